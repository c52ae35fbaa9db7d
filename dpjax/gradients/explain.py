"""Which method clips a loss's gradients, in which pieces and at what cost; and a table of it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax

from dpjax._argument_names import suggests_argument_names
from dpjax.gradients import arguments
from dpjax.gradients.ghost import sums
from dpjax.gradients.ghost.plan import Family, Plan, fitting_gradients, make_plan
from dpjax.gradients.ghost.programs import Program, trace
from dpjax.gradients.per_example import additions
from dpjax.gradients.strategies import Flat, Strategy

Method = Literal["auto", "ghost", "vmap"]
PieceSize = int | Literal["auto"] | None

# A number that goes through memory costs about as much as this many multiplications; per-example
# gradients are written once and read twice (norm, sum).
MEMORY_WEIGHT = 8
_PASSES = 3
# On a CPU the gradients of one kernel per record (a convolution in groups) cost more than as many
# multiplications of a matrix product, and within a loop many times as much.
_CONVOLUTION_WEIGHT = 8


class ParameterCost(NamedTuple):
    """One row of the table."""

    parameter: str  # its path in the tree
    shape: tuple[int, ...]
    used_in: str  # the equations it enters, with the model's own scope names where there are any
    rule: str  # how its per-example norm is formed
    ghost: int  # estimated cost per record beyond the backward pass, by either method
    vmap: int


@dataclasses.dataclass(frozen=True)
class Choice:
    """What will be done, and why."""

    method: str  # "ghost" or "vmap"
    reason: str  # in words
    plan: Plan | None  # None for "vmap"
    rows: tuple[ParameterCost, ...]  # empty where the loss could not be traced

    def __str__(self) -> str:
        table = [("parameter", "shape", "used in", "rule", "ghost", "vmap")]
        table += [(*map(str, r[:4]), f"{r.ghost:,}", f"{r.vmap:,}") for r in self.rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = []
        for row in table:
            cells = [*map(str.ljust, row[:4], widths), *map(str.rjust, row[4:], widths[4:])]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, f"method: {self.method} ({self.reason})"])


BY_VMAP = Choice("vmap", "as asked", None, ())


def choose(method: Method, loss: Callable, params: Any, records: Any) -> Choice:
    """The method for a loss of `(params, record)`, by cost; it is still to be tried out."""
    if method == "vmap":
        return BY_VMAP
    try:
        plan = make_plan(loss, params, records)
    except Exception as error:
        return _fall_back_to_vmap("not traceable record by record", error)
    rows = tuple(_rows(plan, params))
    ghost_cost, vmap_cost = sum(r.ghost for r in rows), sum(r.vmap for r in rows)
    share = f"{100 * ghost_cost / max(vmap_cost, 1):.3g} %"
    if method == "ghost":
        return Choice("ghost", "as asked", plan, rows)
    if ghost_cost < vmap_cost:
        return Choice("ghost", f"costs {share} of vmap", plan, rows)
    return Choice("vmap", f"ghost would cost {share} of it", None, rows)


def fall_back_if_untraceable(choice: Choice, run: Callable[..., Any], *arguments: Any) -> Choice:
    """The choice, or "vmap" where `run`, the clipped sum that will be used, cannot be traced."""
    if choice.plan is None:
        return choice
    try:
        jax.eval_shape(run, *arguments)
    except Exception as error:
        return _fall_back_to_vmap("the ghost method failed", error)
    return choice


def _fall_back_to_vmap(what: str, error: Exception) -> Choice:
    # Whatever goes wrong, per-example gradients are right: either they work, or they raise the
    # error that is the user's own.
    reason = f"{what}: {type(error).__name__}: {error}".splitlines()[0]
    return Choice("vmap", reason, None, ())


def multiplications(family: Family) -> int:
    """Of the product that forms one record's gradient from its outer products."""
    g, t, k, n = family.sizes
    return t * n if family.sites[0].rule.name == "table look-up" else g * t * k * n


def _rows(plan: Plan, params: Any) -> list[ParameterCost]:
    rows = []
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    for index, ((path, leaf), families) in enumerate(zip(leaves, plan.families, strict=True)):
        name = arguments.path_name(path) or "parameter"
        size = math.prod(leaf.shape)
        copies = _PASSES * MEMORY_WEIGHT * size
        if index in plan.copied:
            why = plan.reasons[index]
            rows.append(ParameterCost(name, leaf.shape, why, "copied", copies, copies))
            continue
        sites = [site for family in families for site in family.sites]
        used = ", ".join(dict.fromkeys(f"{s.rule.name} {s.where}".strip() for s in sites))
        forms = ", ".join(dict.fromkeys(family.form for family in families))
        costs = [_costs(family) for family in families]
        ghost, vmap = (sum(cost[k] for cost in costs) for k in (0, 1))
        vmap += copies if families else 0
        used, forms = used or "nowhere", forms or "none"
        rows.append(ParameterCost(name, leaf.shape, used, forms, ghost, vmap))
    return rows


def _costs(family: Family) -> tuple[int, int]:
    """A record's cost of norm and sum by the ghost method, and of forming its gradient."""
    product, convolved = multiplications(family), family.sites[0].rule.name == "convolution"
    slow = convolved and jax.default_backend() == "cpu"
    if family.form == "direct":  # formed once, for the norm and for the sum
        g, t, k, _ = family.sizes
        patches = g * t * k if convolved else 0
        ghost = family.work + MEMORY_WEIGHT * (_PASSES * family.memory + patches)
    else:
        ghost = family.work + MEMORY_WEIGHT * family.memory + product
    return ghost, product * (_CONVOLUTION_WEIGHT if slow else 1)


# What a core keeps close by. Beyond it every pass over the activations goes through memory.
_CACHE = 16e6
_LEAST, _MOST = 8, 32
# Adding a piece to the compensated total reads and writes it and its error.
_TOTAL_PASSES = 4
_WORTHWHILE = 0.1


def piece_size(
    choice: Choice, loss: Callable[..., Any], params: Any, batch: Any, given: PieceSize = "auto"
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
            program = trace(loss, params, arguments.first_record(batch))[0]
            allowed = fitting_gradients(program, size, records) or records
    return cut(records, min(allowed, _quickest(choice, program, leaves, size, records)))


def cut(records: int, most: int) -> int:
    """The size of equal pieces of at most `most` records, within the slack of the whole batch."""
    if most >= records:
        return records
    for pieces in range(-(-records // most), records):
        size = -(-records // pieces)
        if additions(size, pieces) <= additions(records):
            return size
    return 1


def _quickest(
    choice: Choice, program: Program | None, leaves: list[Any], size: int, records: int
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
        work = 3 * records * sum(multiplications(family) for family in families)
        worthwhile = _TOTAL_PASSES * MEMORY_WEIGHT * pieces * size <= _WORTHWHILE * work
    return fitting if worthwhile else records


@suggests_argument_names
def explain_clipping(
    loss: Callable[..., Any],
    params: Any,
    batch: Any,
    *,
    method: Method = "auto",
    strategy: Strategy = Flat(),  # noqa: B008 (frozen)
    has_aux: bool = False,
    rng: Any = None,
) -> None:
    """Prints how `clipped_grad` would treat every parameter, and which method it would use.

    The method is tried out on the shapes of the whole batch. Costs are estimates per record, in
    multiplications (a number that passes through memory counts as eight, and so does one of a
    kernel's gradient per record on a CPU), of what clipping adds to the backward pass. Rules:
    "vectors" ‖x⊗y‖ = ‖x‖·‖y‖; "gram" Σₜₛ (xₜ·xₛ)(yₜ·yₛ); "direct" the gradient itself, where it is
    smaller than its factors; "distinct" the sums of a look-up's equal tokens; "copied" one copy per
    record, differentiated by JAX (biases, scales, and every use without a rule).

    Args:
        loss, params, batch, method, strategy, has_aux, rng: as for `clipped_grad` and its function.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax import explain_clipping
        >>> def loss(params, example):
        ...     x, y = example
        ...     return (x @ params["w"] + params["b"] - y) ** 2
        >>> params = {"w": jnp.zeros(100), "b": jnp.zeros(())}
        >>> explain_clipping(loss, params, (jnp.ones((8, 100)), jnp.ones(8)))
        parameter  shape   used in         rule     ghost   vmap
        b          ()      add             copied      24     24
        w          (100,)  matrix product  vectors    201  2,500
        method: ghost (costs 8.91 % of vmap)
    """
    trained, rebuild = arguments.trainable(params)
    keys = None if rng is None else arguments.record_keys(rng, arguments.batch_size(batch))
    one = arguments.scalar_loss(loss, rebuild, has_aux, with_key=rng is not None)
    choice = choose(method, one, trained, (batch, keys))
    if choice.plan is not None:
        run = functools.partial(sums.clipped_sum, choice.plan, strategy=strategy)
        everyone = jax.ShapeDtypeStruct((arguments.batch_size(batch),), bool)
        choice = fall_back_if_untraceable(choice, run, trained, (batch, keys), everyone, 1.0)
    print(choice)
