"""Which method clips a loss's gradients, in which pieces and at what cost.

The plan of the ghost method says which uses of a parameter add up, and in which form norms are
taken. What `jax.checkpoint` in the loss asks for belongs to it: blocks run again, or small pieces.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
from jaxtyping import Array, PyTree

from dpjax._numerics.typing import Params
from dpjax.gradients.choice import (
    BY_VMAP,
    ClippingMethod,
    Family,
    GhostPlan,
    MethodChoice,
    ParameterCost,
    PieceSize,
    RematPolicy,
)
from dpjax.gradients.compensated import describe_sum
from dpjax.gradients.ghost.outer import Side, cheapest_form, find_sides
from dpjax.gradients.ghost.programs import Batched, Program, Site, Value, trace
from dpjax.gradients.ghost.trace import Interpreter
from dpjax.gradients.per_example import count_records, record_shapes
from dpjax.gradients.strategies import path_name


def choose_remat_policy(program: Program, sites: Iterable[Any], records: int) -> RematPolicy:
    """How the checkpoints of a loss of one record are honoured in a batch of so many `records`."""
    kept, inside, paths = _measure_checkpoints(program)
    if not inside:
        return RematPolicy()
    # The plain gradient keeps every block's results, and one block's inner values at a time. Pieces
    # of the batch take no longer, but are only cut on one device, and no smaller than one record.
    least = records * kept
    recompute = jax.device_count() > 1 or least < inside
    if recompute:  # what parameters meet in the blocks is kept besides
        inside = kept
        for site in {s.tap: s for s in sites if s.tap.startswith(paths)}.values():
            one = math.prod(site.saved.shape) + math.prod(site.out.shape)
            inside += one * math.prod(length for length, _ in site.scans)
    return RematPolicy(recompute, min(records, max(1, least // inside)))


def count_fitting_gradients(program: Program, size: int, records: int) -> int | None:
    """Records whose gradients of `size` numbers fit in the plain gradient's memory of them all."""
    kept, inside, _ = _measure_checkpoints(program)
    return min(records, max(1, records * kept // (kept + size))) if inside else None


def _measure_checkpoints(program: Program) -> tuple[int, int, tuple[str, ...]]:
    """Numbers a record that the blocks keep, and hold inside; how taps within them are named."""
    blocks = list(_list_checkpoints(program, 1, ""))
    # Kept are the results of all blocks, and the values inside the largest while it is run again.
    kept = sum(steps * results for _, steps, results, _ in blocks)
    kept += max((inside for *_, inside in blocks), default=0)
    inside = sum(steps * inside for _, steps, _, inside in blocks)
    return kept, inside, tuple(path for path, *_ in blocks)


def _list_checkpoints(
    program: Program, steps: int, path: str
) -> Iterator[tuple[str, int, int, int]]:
    """List every checkpointed block: its place, its runs, numbers of its results and inside it."""
    for number, eqn in enumerate(program.equations):
        here, loop = f"{path}{number}.", eqn.scan()
        if eqn.is_checkpoint:
            inside = sum(map(_count_written, eqn.programs()))
            yield here, steps, sum(math.prod(aval.shape) for aval in eqn.outs), inside
            continue
        for inner in eqn.programs():
            yield from _list_checkpoints(inner, steps * (loop.length if loop else 1), here)


def _count_written(program: Program) -> int:
    """Numbers that the equations of a program write, loops in full."""
    total = 0
    for eqn in program.equations:
        loop, inner = eqn.scan(), eqn.programs()
        if inner:
            total += (loop.length if loop else 1) * sum(map(_count_written, inner))
        else:
            total += sum(math.prod(aval.shape) for aval in eqn.outs)
    return total


def plan_memory(loss: Callable, params: Params, records: PyTree[Array]) -> GhostPlan:
    """Traces the loss for one record and decides, parameter by parameter, how to form norms."""
    leaves, tree = jax.tree.flatten(params)
    size = jax.tree.leaves(records)[0].shape[0]
    example = record_shapes(records)
    program, out = trace(lambda flat, one: loss(tree.unflatten(flat), one), leaves, example)
    copied: dict[int, str] = {}
    while True:
        before = set(copied)
        walk = Interpreter(copied, size, None)
        outs = walk.run(program, walk_inputs(walk, leaves, program, None), "")
        walk.as_batched(outs[0], program.outputs[0].aval)
        families = [_find_families(walk.sites, index) for index in range(len(leaves))]
        for index, found in enumerate(families):
            if found is None:
                copied[index] = "uses that do not add up"
        for pair, found in _find_factor_families(walk.sites, families, leaves).items():
            if found is None:
                copied.update(dict.fromkeys(pair, "uses of a product that are no matrix products"))
            else:
                for index, family in zip(pair, found, strict=True):
                    families[index] = [family]
        if copied.keys() == before:
            break
    return GhostPlan(
        program,
        tuple(tuple(found or ()) for found in families),
        copied,
        jax.tree.structure(out[1]),
        choose_remat_policy(program, walk.sites.values(), size),
    )


def walk_inputs(
    walk: Interpreter, leaves: Sequence[Any], program: Program, records: PyTree[Array] | None
) -> list[Value]:
    """The program's inputs in a walk: every parameter, and the numbers of the records, if any."""
    args = [walk.read_parameter(index, leaf) for index, leaf in enumerate(leaves)]
    rest = len(program.inputs) - len(leaves)
    values = [None] * rest if records is None else jax.tree.leaves(records)
    return args + [Batched(value) for value in values]


def _find_families(sites: dict[Any, Site], leaf: int) -> list[Family] | None:
    """The families of one parameter, or None if its uses cannot be told apart or added up."""
    grouped: dict[Any, list[Site]] = {}
    for site in sites.values():
        if site.view.leaf == leaf:
            if site.rule.name == "table look-up" and site.view.scans:
                return None
            grouped.setdefault((site.rule.layout, site.view.box, site.view.scans), []).append(site)
    for pair in itertools.combinations(grouped.values(), 2):
        boxes = zip(*(uses[0].view.box for uses in pair), strict=True)
        if all(a[0] < b[1] and b[0] < a[1] for a, b in boxes):  # they share an entry
            return None
    return [_make_family(tuple(uses)) for uses in grouped.values()]


def _find_factor_families(
    sites: dict[Any, Site], families: Sequence[Any], leaves: Sequence[Any]
) -> dict[tuple[int, int], tuple[Family, Family] | None]:
    """The families of the factors of every low-rank sum; None where they have to be copied."""
    used: dict[Any, list[Site]] = {}
    for site in sites.values():
        if isinstance(site.view.leaf, tuple):
            used.setdefault(site.view.leaf, []).append(site)
    factors = [index for pair in used for index in pair]
    found: dict[tuple[int, int], tuple[Family, Family] | None] = {}
    for pair, uses in used.items():
        sides = find_sides(pair, uses, leaves[pair[0]].shape)
        alone = all(factors.count(index) == 1 and families[index] == [] for index in pair)
        found[pair] = None
        if sides is not None and alone:
            left, right = (_make_family(tuple(uses), side) for side in sides)
            found[pair] = left, right
    return found


def _make_family(sites: tuple[Site, ...], side: Side | None = None) -> Family:
    """The uses that add up, with scans folded in; of a low-rank sum, one of its factors."""
    g, _, k, n = sites[0].rule.sizes
    g *= math.prod(length for length, scanned in sites[0].scans if scanned)
    positions = [
        site.rule.sizes[1] * math.prod(length for length, scanned in site.scans if not scanned)
        for site in sites
    ]
    t = sum(positions)
    sizes = (g, t, k, n)
    lookup = side is None and any(site.rule.name == "table look-up" for site in sites)
    own = sizes if side is None else side.sizes(sizes)
    form, work, memory = cheapest_form(own, lookup)
    if side is not None:  # its outer products follow from those of the sum
        memory += g * t * side.rank
        work += g * t * side.rank * (n if side.left else k)
    return Family(sites, form, own, work, memory, side, None if side is None else sizes)


# A number that goes through memory costs about as much as this many multiplications; per-example
# gradients are written once and read twice (norm, sum).
MEMORY_WEIGHT = 8
_PASSES = 3
# On a CPU the gradients of one kernel per record (a convolution in groups) cost more than as many
# multiplications of a matrix product, and within a loop many times as much.
_CONVOLUTION_WEIGHT = 8


def choose_clipping(
    method: ClippingMethod, loss: Callable, params: Params, records: PyTree[Array]
) -> MethodChoice:
    """The method for a loss of `(params, record)`, by cost; it is still to be tried out."""
    if method == "vmap":
        return BY_VMAP
    try:
        plan = plan_memory(loss, params, records)
    except Exception as error:
        return _fall_back_to_vmap("not traceable record by record", error)
    rows = tuple(_list_costs(plan, params, count_records(records)))
    ghost_cost, vmap_cost = sum(r.ghost for r in rows), sum(r.vmap for r in rows)
    share = f"{100 * ghost_cost / max(vmap_cost, 1):.3g} %"
    if method == "ghost":
        return MethodChoice("ghost", "as asked", plan, rows)
    # Where both form every gradient of a record once, the ghost method has the plainer products.
    if ghost_cost < vmap_cost or (ghost_cost == vmap_cost and any(plan.families)):
        return MethodChoice("ghost", f"costs {share} of vmap", plan, rows)
    return MethodChoice("vmap", f"ghost would cost {share} of it", None, rows)


def fall_back_if_untraceable(
    choice: MethodChoice, run: Callable[..., Any], *arguments: PyTree
) -> MethodChoice:
    """The choice, or "vmap" where `run`, the clipped sum that will be used, cannot be traced."""
    if choice.plan is None:
        return choice
    try:
        jax.eval_shape(run, *arguments)
    except Exception as error:
        return _fall_back_to_vmap("the ghost method failed", error)
    return choice


def _fall_back_to_vmap(what: str, error: Exception) -> MethodChoice:
    # Whatever goes wrong, per-example gradients are right: either they work, or they raise the
    # error that is the user's own.
    reason = f"{what}: {type(error).__name__}: {error}".splitlines()[0]
    return MethodChoice("vmap", reason, None, ())


def count_multiplications(family: Family) -> int:
    """Count those of the product that forms one record's gradient from its outer products."""
    g, t, k, n = family.sizes
    return t * n if family.sites[0].rule.name == "table look-up" else g * t * k * n


def _list_costs(plan: GhostPlan, params: Params, records: int) -> list[ParameterCost]:
    """The rows of the table that `explain_clipping` prints."""
    rows = []
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    for index, ((path, leaf), families) in enumerate(zip(leaves, plan.families, strict=True)):
        name = path_name(path) or "parameter"
        size = math.prod(leaf.shape)
        copies = _PASSES * MEMORY_WEIGHT * size
        if index in plan.copied:
            why = plan.copied[index]
            how = describe_sum(records, 1, size)
            rows.append(ParameterCost(name, leaf.shape, why, "copied", copies, copies, how))
            continue
        sites = [site for family in families for site in family.sites]
        used = ", ".join(dict.fromkeys(f"{s.rule.name} {s.where}".strip() for s in sites))
        forms = ", ".join(dict.fromkeys(family.form for family in families))
        costs = [_estimate_costs(family) for family in families]
        ghost, vmap = (sum(cost[k] for cost in costs) for k in (0, 1))
        vmap += copies if families else 0
        used, forms = used or "nowhere", forms or "none"
        how = ", ".join(dict.fromkeys(_describe_family_sum(one, records) for one in families))
        rows.append(ParameterCost(name, leaf.shape, used, forms, ghost, vmap, how or "none"))
    return rows


def _describe_family_sum(family: Family, records: int) -> str:
    """Say in which form the clipped sum of a family's gradients is formed."""
    g, t, k, n = family.sizes
    if any(site.rule.name == "table look-up" for site in family.sites):
        return "scatter"
    # A loop's steps are summed one after the other where they are blocks.
    return describe_sum(records, 1 if family.form == "direct" else t, g * k * n)


def _estimate_costs(family: Family) -> tuple[int, int]:
    """A record's cost of norm and sum by the ghost method, and of forming its gradient."""
    product, convolved = count_multiplications(family), family.sites[0].rule.name == "convolution"
    slow = convolved and jax.default_backend() == "cpu"
    if family.form == "direct":  # formed once, for the norm and for the sum
        g, t, k, _ = family.sizes
        patches = g * t * k if convolved else 0
        ghost = family.work + MEMORY_WEIGHT * (_PASSES * family.memory + patches)
    else:
        ghost = family.work + MEMORY_WEIGHT * family.memory + product
    if family.side is not None and family.of_sum is not None:
        return ghost, _count_gradient_of_factor(family.side, family.of_sum)
    return ghost, product * (_CONVOLUTION_WEIGHT if slow else 1)


def _count_gradient_of_factor(side: Side, of_sum: tuple[int, int, int, int]) -> int:
    """The cost of a record's gradient of one factor of a low-rank sum, where autodiff forms it."""
    # It is that of the whole sum times the other factor: the sum's gradient, as large as the
    # kernel, is formed and written once a record and read for either factor.
    g, t, k, n = of_sum
    whole = g * t * k * n + MEMORY_WEIGHT * _PASSES * g * k * n if side.left else 0
    return whole + g * k * n * side.rank


# What a core keeps close by. Beyond it every pass over the activations goes through memory.
_CACHE = 16e6
_LEAST, _MOST = 8, 32
# Adding a piece to the compensated total reads and writes it and its error.
_TOTAL_PASSES = 4
_WORTHWHILE = 0.1


def piece_size(
    choice: MethodChoice,
    loss: Callable[..., Any],
    params: Params,
    batch: PyTree[Array],
    given: PieceSize = "auto",
) -> int:
    """Records a piece: as given, or all of them, or what the cache holds where that is quicker."""
    # On one CPU device, activations (and per-example gradients, where they are formed) that outgrow
    # the cache cost more than adding up a few sums the size of the parameters. Where the loss uses
    # `jax.checkpoint`, pieces on one device are so small that what is remembered of a piece (by the
    # ghost method, or the gradients of its records) is about what the plain gradient remembers of
    # the batch. Elsewhere, and on several devices, the whole batch goes at once.
    records = jax.tree.leaves(batch)[0].shape[0]
    if given != "auto" or jax.device_count() > 1:
        return records if given == "auto" else min(given or records, records)
    leaves = jax.tree.leaves(params)
    size = sum(math.prod(leaf.shape) for leaf in leaves)
    program, allowed = None, records
    if choice.plan is not None:
        allowed = choice.plan.remat.fitting or records
    elif 4 * size * records >= _CACHE / 4:
        with contextlib.suppress(Exception):  # the call that follows raises the user's own error
            program = trace(loss, params, record_shapes(batch))[0]
            allowed = count_fitting_gradients(program, size, records) or records
    return cut_evenly(
        records, min(allowed, _find_quickest_size(choice, program, leaves, size, records))
    )


def cut_evenly(records: int, most: int) -> int:
    """The size of equal pieces of at most `most` records."""
    return -(-records // -(-records // most))


def _find_quickest_size(
    choice: MethodChoice, program: Program | None, leaves: list[Any], size: int, records: int
) -> int:
    """The size of the pieces as far as time goes; `program` is needed for per-example gradients."""
    if jax.default_backend() != "cpu":
        return records
    plan = choice.plan
    families = [] if plan is None else [family for found in plan.families for family in found]
    if plan is None:
        written = size  # numbers a record leaves in memory: its gradient
    else:
        written = sum(math.prod(leaves[i].shape) for i in plan.copied) + sum(
            math.prod(site.out.shape) * math.prod(length for length, _ in site.scans)
            for family in families
            for site in family.sites
        )
    per_record = 4 * max(written, 1)  # bytes
    fitting = min(max(int(_CACHE / per_record), _LEAST), _MOST)
    if per_record * records < _CACHE / 4 or fitting >= records:
        return records
    pieces = -(-records // fitting)
    if plan is None:
        # XLA forms per-example gradients of convolutions faster at once.
        worthwhile = program is not None and not program.contains("conv_general_dilated")
    else:
        # Forward, backward and the clipped sum are three products of this size a record.
        work = 3 * records * sum(count_multiplications(family) for family in families)
        worthwhile = _TOTAL_PASSES * MEMORY_WEIGHT * pieces * size <= _WORTHWHILE * work
    return fitting if worthwhile else records
