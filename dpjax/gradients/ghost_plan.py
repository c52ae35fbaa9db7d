"""What the ghost method will do for a loss: which uses of a parameter add up, and in which form."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from dpjax.gradients import outer
from dpjax.gradients.checkpoints import Remembering, remembering
from dpjax.gradients.equations import Program, trace
from dpjax.gradients.low_rank import Side, sides_of
from dpjax.gradients.parameters import overlap
from dpjax.gradients.tracing import Interpreter
from dpjax.gradients.values import Batched, Site


@dataclasses.dataclass(frozen=True)
class Family:
    """Uses of one piece of one parameter whose outer products add up.

    Attributes:
        sites: the uses.
        form: how the squared norm is formed.
        sizes: (g, t, k, n) with the scans folded in and the sites joined.
        work: multiplications per record for the norm.
        memory: numbers written per record for the norm.
        side: which factor of a low-rank sum the parameter is, whose uses the sites are; or None.
    """

    sites: tuple[Site, ...]
    form: outer.Form
    sizes: tuple[int, int, int, int]
    work: int
    memory: int
    side: Side | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the ghost method will do for one loss and one shape of batch.

    Attributes:
        program: the loss of one record.
        families: per parameter, its families; empty for an unused or a copied parameter.
        copied: parameters that are copied once per record.
        reasons: for every copied parameter, the use that has no rule.
        aux: the structure of the loss's second output.
        shapes: the parameters' shapes and dtypes.
        remembering: how the loss's checkpoints are honoured.
    """

    program: Program
    families: tuple[tuple[Family, ...], ...]
    copied: frozenset[int]
    reasons: Mapping[int, str]
    aux: Any
    shapes: tuple[Any, ...]
    remembering: Remembering


def make_plan(loss: Callable, params: Any, records: Any) -> Plan:
    """Traces the loss for one record and decides, parameter by parameter, how to form norms."""
    leaves, tree = jax.tree.flatten(params)
    size = jax.tree.leaves(records)[0].shape[0]
    example = jax.eval_shape(lambda r: jax.tree.map(lambda x: x[0], r), records)
    program, out = trace(lambda flat, one: loss(tree.unflatten(flat), one), leaves, example)
    copied: set[int] = set()
    reasons: dict[int, str] = {}
    while True:
        before = set(copied)
        walk = Interpreter(copied, size, None)
        outs = walk.run(program, inputs_of(walk, leaves, program, None), "")
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
        tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves),
        remembering(program, walk.sites.values(), size),
    )


def inputs_of(
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
    groups = list(grouped.values())
    for index, uses in enumerate(groups):
        for other in groups[index + 1 :]:
            if overlap(uses[0].view, other[0].view):
                return None
    return [_family(tuple(uses)) for uses in groups]


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
        sides = sides_of(pair, uses, leaves[pair[0]].shape)
        alone = all(factors.count(index) == 1 and families[index] == [] for index in pair)
        found[pair] = None
        if sides is not None and alone:
            whole, rank = _family(tuple(uses)), leaves[pair[0]].shape[-1]
            left, right = (_side(whole, side, rank) for side in sides)
            found[pair] = left, right
    return found


def _side(whole: Family, side: Side, rank: int) -> Family:
    g, t, k, n = whole.sizes
    sizes = side.sizes(whole.sizes, rank)
    form, work, memory = outer.cheapest_form(sizes, lookup=False)
    work += g * t * rank * (n if side.left else k)
    return Family(whole.sites, form, sizes, work, memory + g * t * rank, side)


def _family(sites: tuple[Site, ...]) -> Family:
    g, _, k, n = sites[0].rule.sizes
    g *= math.prod(length for length, scanned in sites[0].scans if scanned)
    positions = [
        site.rule.sizes[1] * math.prod(length for length, scanned in site.scans if not scanned)
        for site in sites
    ]
    sizes = (g, sum(positions), k, n)
    lookups = [site.rule.name == "table look-up" for site in sites]
    form, work, memory = outer.cheapest_form(sizes, any(lookups))
    if form == "sorted" and not all(lookups):
        form = "tokens"
    return Family(sites, form, sizes, work, memory)
