"""The plan of the ghost method for a loss: which uses of a parameter add up, and in which form.

What `jax.checkpoint` in the loss asks for belongs to it: blocks run again, or small pieces.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from dpjax.gradients.arguments import first_record
from dpjax.gradients.ghost.outer import Form, Side, cheapest_form, find_sides
from dpjax.gradients.ghost.programs import Batched, Program, Site, trace
from dpjax.gradients.ghost.trace import Interpreter


class RematPolicy(NamedTuple):
    """What is remembered of a batch until its norms are known."""

    recompute: bool = False  # whether checkpointed blocks are run again in the backward pass
    # Records about whose memory the plain gradient takes for the whole batch; None where no block
    # is checkpointed.
    fitting: int | None = None


def remat_policy(program: Program, sites: Iterable[Any], records: int) -> RematPolicy:
    """How the checkpoints of a loss of one record are honoured in a batch of so many `records`."""
    kept, inside, largest, paths = _checkpoints(program, 1, "")
    if not inside:
        return RematPolicy()
    # The plain gradient keeps every block's results, and one block's inner values at a time. Pieces
    # of the batch take no longer, but are only cut on one device, and no smaller than one record.
    least = records * (kept + largest)
    recompute = jax.device_count() > 1 or least < inside
    if recompute:  # what parameters meet in the blocks is kept besides
        inside = kept + largest
        for site in {s.tap: s for s in sites if s.tap.startswith(tuple(paths))}.values():
            one = math.prod(site.saved.shape) + math.prod(site.out.shape)
            inside += one * math.prod(length for length, _ in site.scans)
    return RematPolicy(recompute, min(records, max(1, least // inside)))


def fitting_gradients(program: Program, size: int, records: int) -> int | None:
    """Records whose gradients of `size` numbers fit in the plain gradient's memory of them all."""
    kept, inside, largest, _ = _checkpoints(program, 1, "")
    if not inside:
        return None
    own = kept + largest
    return min(records, max(1, records * own // (own + size)))


def _checkpoints(program: Program, steps: int, path: str) -> tuple[int, int, int, list[str]]:
    """Numbers a record: results of checkpointed blocks, values inside all, inside the largest; and
    how the names of the taps in such blocks begin.
    """
    kept, inside, largest, paths = 0, 0, 0, []
    for number, eqn in enumerate(program.equations):
        here = f"{path}{number}."
        if eqn.recomputed:
            own = sum(map(_written, eqn.programs()))
            kept += steps * sum(math.prod(aval.shape) for aval in eqn.outs)
            inside, largest = inside + steps * own, max(largest, own)
            paths.append(here)
            continue
        loop = eqn.scan()
        for inner in eqn.programs():
            more = _checkpoints(inner, steps * loop.length if loop else steps, here)
            kept, inside = kept + more[0], inside + more[1]
            largest, paths = max(largest, more[2]), paths + more[3]
    return kept, inside, largest, paths


def _written(program: Program) -> int:
    """Numbers that the equations of a program write, loops in full."""
    total = 0
    for eqn in program.equations:
        loop, inner = eqn.scan(), eqn.programs()
        if inner:
            total += (loop.length if loop else 1) * sum(map(_written, inner))
        else:
            total += sum(math.prod(aval.shape) for aval in eqn.outs)
    return total


@dataclasses.dataclass(frozen=True)
class Family:
    """Uses of one piece of one parameter whose outer products add up."""

    sites: tuple[Site, ...]
    form: Form  # how the squared norm is formed
    sizes: tuple[int, int, int, int]  # (g, t, k, n) with the scans folded in and the sites joined
    work: int  # multiplications per record for the norm
    memory: int  # numbers written per record for the norm
    side: Side | None = None  # the factor of a low-rank sum, whose uses the sites are, that it is


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the ghost method will do for one loss and one shape of batch."""

    program: Program  # the loss of one record
    families: tuple[tuple[Family, ...], ...]  # per parameter; none if it is unused or copied
    copied: frozenset[int]  # parameters that are copied once per record
    reasons: Mapping[int, str]  # for every copied parameter, the use that has no rule
    aux: Any  # the structure of the loss's second output
    remat: RematPolicy  # how the loss's checkpoints are honoured


def make_plan(loss: Callable, params: Any, records: Any) -> Plan:
    """Traces the loss for one record and decides, parameter by parameter, how to form norms."""
    leaves, tree = jax.tree.flatten(params)
    size = jax.tree.leaves(records)[0].shape[0]
    example = first_record(records)
    program, out = trace(lambda flat, one: loss(tree.unflatten(flat), one), leaves, example)
    copied: set[int] = set()
    reasons: dict[int, str] = {}
    while True:
        before = set(copied)
        walk = Interpreter(copied, size, None)
        outs = walk.run(program, walk_inputs(walk, leaves, program, None), "")
        walk.as_batched(outs[0], None)
        families = [_families(walk.sites, index) for index in range(len(leaves))]
        for index, found in enumerate(families):
            if found is None:
                copied.add(index)
                reasons[index] = "uses that do not add up"
        for pair, found in _factors(walk.sites, families, leaves).items():
            if found is None:
                copied.update(pair)
                reasons.update(dict.fromkeys(pair, "uses of a product that are no matrix products"))
            else:
                for index, family in zip(pair, found, strict=True):
                    families[index] = [family]
        reasons.update({index: why for index, why in walk.reasons.items() if index not in reasons})
        if copied == before:
            break
    return Plan(
        program,
        tuple(tuple(found or ()) for found in families),
        frozenset(copied),
        reasons,
        jax.tree.structure(out[1]),
        remat_policy(program, walk.sites.values(), size),
    )


def walk_inputs(
    walk: Interpreter, leaves: Sequence[Any], program: Program, records: Any
) -> list[Any]:
    """The program's inputs in a walk: every parameter, and the numbers of the records, if any."""
    args = [walk.parameter(index, leaf) for index, leaf in enumerate(leaves)]
    rest = len(program.inputs) - len(leaves)
    values = [None] * rest if records is None else jax.tree.leaves(records)
    return args + [Batched(value) for value in values]


def _families(sites: dict[Any, Site], leaf: int) -> list[Family] | None:
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
    return [_family(tuple(uses)) for uses in grouped.values()]


def _factors(
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
            left, right = (_family(tuple(uses), side) for side in sides)
            found[pair] = left, right
    return found


def _family(sites: tuple[Site, ...], side: Side | None = None) -> Family:
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
    return Family(sites, form, own, work, memory, side)
