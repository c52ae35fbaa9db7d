"""Clipped sums from one forward and one backward pass, without per-example gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from dpjax._numerics.namespace import AnyTree, Returned
from dpjax._numerics.typing import Number, Params
from dpjax.gradients import compensated, per_example
from dpjax.gradients.choice import Family, GhostPlan
from dpjax.gradients.compensated import Compensated
from dpjax.gradients.ghost import outer
from dpjax.gradients.ghost.programs import (
    Batched,
    Constant,
    Parametric,
    Site,
    Value,
    leaf_key,
)
from dpjax.gradients.ghost.rules import OuterProducts
from dpjax.gradients.ghost.trace import Interpreter
from dpjax.gradients.methods import walk_inputs
from dpjax.gradients.strategies import Strategy

_FEW = 1 << 16  # numbers, of which a pass over them takes some 20 microseconds


class LayeredGradients(NamedTuple):
    """Saved inputs and cotangents of a parameter that a loop slices, one slice a step."""

    saved: Array  # of its one use, [steps, records, ...]
    cotangent: Array

    def each(self, site: Site, function: Callable[[OuterProducts], Returned]) -> Returned:
        """The function of every step's outer products, one after the other: without a copy."""
        return jax.lax.map(lambda step: function(site.rule.factor(*step)), tuple(self))


# A family's gradients: themselves, the outer products that they sum, or a loop's, step by step.
Represented = Array | list[OuterProducts] | LayeredGradients


def _backward_pass(
    plan: GhostPlan, leaves: Sequence[Array], records: PyTree[Array], size: int
) -> tuple[Array, PyTree[Array], dict[str, PyTree[Array]], dict[str, Array]]:
    """(losses, aux, saved inputs by tap, cotangents by tap): one forward and one backward pass."""
    taps: dict[str, Array] = {
        leaf_key(index): jnp.zeros((size, *leaves[index].shape), leaves[index].dtype)
        for index in plan.copied
    }
    for site in (s for families in plan.families for family in families for s in family.sites):
        lengths = tuple(length for length, _ in site.scans)
        taps[site.tap] = jnp.zeros((*lengths, size, *site.out.shape), site.out.dtype)

    def forward(taps: dict[str, Array]):
        walk = Interpreter(dict(plan.copied), size, taps, plan.remat.recompute)
        args = walk_inputs(walk, leaves, plan.program, records)
        outs = walk.run(plan.program, args, "")
        losses = walk.as_batched(outs[0], plan.program.outputs[0].aval).value
        return losses, ([_give_batch_axis(value, size) for value in outs[1:]], walk.saved)

    losses, backward, (aux, saved) = jax.vjp(forward, taps, has_aux=True)
    (cotangents,) = backward(jnp.ones_like(losses))
    return losses, plan.aux.unflatten(aux), saved, cotangents


def ghost_clipped_sum(
    plan: GhostPlan,
    params: Params,
    records: PyTree[Array],
    mask: Bool[Array, " b"],
    clip_norm: Number,
    strategy: Strategy,
) -> tuple[Compensated, Array, Array, tuple[Array, PyTree[Array]]]:
    """(sum, norms, records kept, (losses, aux)), as `per_example.clipped_sum` returns them."""
    leaves, tree = jax.tree.flatten(params)
    size, strategy = mask.shape[0], strategy.bind(params)
    losses, aux, saved, cotangents = _backward_pass(plan, leaves, records, size)
    groups, copied = strategy.groups(params), sorted(plan.copied)
    small = pack_small_leaves(
        [leaves[index] for index in copied], [groups[index] for index in copied]
    )
    copies = small.join([cotangents[leaf_key(index)] for index in copied])
    owners = [groups[copied[places[0]]] for places in small.groups]  # the group of each array
    parts = [
        [_represent_family(family, saved, cotangents, leaves) for family in families]
        for families in plan.families
    ]
    copies, parts = per_example.round_as_stored((copies, parts))
    dtype = per_example.norms_dtype(leaves)
    rows = [jnp.zeros(size, dtype)] * (max(groups) + 1)  # squared norms, a group each
    for group, families, part in zip(groups, plan.families, parts, strict=True):
        if families:
            rows[group] = rows[group] + _square_leaf(families, part, size, dtype)
    for group, copy in zip(owners, copies, strict=True):
        rows[group] = rows[group] + per_example.per_example_squared_norm(copy, dtype)
    sizes = per_example.group_sizes(leaves, groups)
    clipping = per_example.clip_factors(strategy, jnp.stack(rows), clip_norm, mask, sizes)

    copies, parts = _zero_records_left_out((copies, parts), clipping)
    sums = [
        _sum_leaf(leaf, families, part, clipping.factors[group])
        for leaf, families, part, group in zip(leaves, plan.families, parts, groups, strict=True)
    ]
    of_copies = [
        per_example.weighted_sum(clipping.factors[group], copy, finite=True)
        for group, copy in zip(owners, copies, strict=True)
    ]
    totals, errors = (
        small.split([own[place] for own in of_copies]) for place in range(len(Compensated._fields))
    )
    for index, *pair in zip(copied, totals, errors, strict=True):
        sums[index] = Compensated(*pair)
    total = Compensated(*map(tree.unflatten, zip(*sums, strict=True)))
    return total, clipping.norms, clipping.kept, (losses, aux)


def _zero_records_left_out(parts: AnyTree, clipping: per_example.Clipping) -> AnyTree:
    """`parts`, with those of records that are left out cut out if some are not finite."""
    # The factor 0 is not enough there, since 0·NaN is NaN; and cutting always would cost a pass
    # over the data in every step for the sake of the rare bad one. Of few numbers the pass costs
    # less than such a loop takes to compile.
    if sum(value.size for value in jax.tree.leaves(parts)) <= _FEW:
        return _zero_rows(parts, clipping.kept)
    return _zero_rows_if_needed(parts, clipping.kept, clipping.clean)


def _zero_rows(parts: AnyTree, kept: Array) -> AnyTree:
    """`parts` with zeros for the records that are not kept."""

    def zero(value: Array) -> Array:
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            return value
        return jnp.where(per_example.expand_like(kept, value), value, jnp.zeros_like(value))

    def zero_part(part: Array | LayeredGradients) -> Array | LayeredGradients:
        if isinstance(part, LayeredGradients):
            return LayeredGradients(*map(jax.vmap(zero), part))
        return zero(part)

    return jax.tree.map(zero_part, parts, is_leaf=lambda part: isinstance(part, LayeredGradients))


@jax.custom_jvp
@jax.jit  # a loop of its own would be compiled at every call outside a program
def _zero_rows_if_needed(parts: PyTree[Array], kept: Array, clean: Array) -> PyTree[Array]:
    """`_zero_rows` of records of which some are not clean, the parts as they are otherwise."""

    # A loop of no or one turn works in place, and what follows is compiled once, where each branch
    # of a conditional would have it.
    def turn(state: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        return jnp.zeros_like(state[0]), _zero_rows(state[1], kept)

    return jax.lax.while_loop(lambda state: state[0], turn, (~clean, parts))[1]


@_zero_rows_if_needed.defjvp
def _push_tangents_of_rows(
    primals: tuple[PyTree[Array], Array, Array], tangents: tuple[PyTree[Array], Array, Array]
) -> tuple[PyTree[Array], PyTree[Array]]:
    """The rule of differentiation: linear in the parts, and backwards no loop can be followed."""
    parts, kept, clean = primals
    return _zero_rows_if_needed(parts, kept, clean), _zero_rows(tangents[0], kept)


def _give_batch_axis(value: Value, size: int) -> Array:
    """An auxiliary output with its batch axis, whether or not it depends on the record."""
    if isinstance(value, Batched):
        return value.value
    assert isinstance(value, Constant | Parametric)
    return jnp.broadcast_to(value.value, (size, *jnp.shape(value.value)))


def _represent_family(
    family: Family,
    saved: dict[str, PyTree[Array]],
    cotangents: dict[str, Array],
    leaves: Sequence[Array],
) -> Represented:
    """What stands for the family's gradients: the gradients, or the outer products they sum."""
    if _is_by_loop_step(family):
        (site,) = family.sites
        return LayeredGradients(saved[site.tap], cotangents[site.tap])
    products = [_fold_scans(site, saved[site.tap], cotangents[site.tap]) for site in family.sites]
    if family.side is not None:
        products = [family.side.products(p, leaves) for p in products]
    dense = [p for p in products if not p.is_lookup]
    lookups = [p for p in products if p.is_lookup]
    joined = [outer.concatenate(some) for some in (dense, lookups) if some]
    joined = [outer.with_distinct_rows(p) if p.is_lookup else p for p in joined]
    if family.form != "direct":
        return joined
    return outer.einsum("bgtk,bgtn->bgkn", joined[0].rows, joined[0].columns)


def _is_by_loop_step(family: Family) -> bool:
    """Whether norms and sums are formed a step of a loop at a time."""
    if len(family.sites) > 1 or family.side is not None or family.form in ("direct", "distinct"):
        return False
    (site,) = family.sites
    return [scanned for _, scanned in site.scans] == [True]


def _fold_scans(site: Site, saved: Array, cotangent: Array) -> OuterProducts:
    """The outer products of one site, with the steps of the loops around it folded in."""
    # Steps are further positions t of a parameter that they share, blocks g of one that is sliced.
    factor, scans = site.rule.factor, len(site.scans)
    for _ in range(scans):
        factor = jax.vmap(factor)
    products = factor(saved, cotangent)
    own = [axis for axis, (_, scanned) in enumerate(site.scans) if scanned]  # become blocks
    shared = [axis for axis, (_, scanned) in enumerate(site.scans) if not scanned]  # positions

    def fold(value: Array) -> Array:
        b, g, t, n = range(scans, scans + 4)
        value = value.transpose(b, *own, g, *shared, t, n)
        split = 2 + len(own)
        blocks, positions = math.prod(value.shape[1:split]), math.prod(value.shape[split:-1])
        return value.reshape(value.shape[0], blocks, positions, value.shape[-1])

    if not scans:
        return products
    if products.rows.ndim == scans + 2:
        rows = products.rows.transpose(scans, *shared, scans + 1)
        return OuterProducts(rows.reshape(rows.shape[0], -1), fold(products.columns))
    return OuterProducts(fold(products.rows), fold(products.columns))


def _square_leaf(
    families: Sequence[Family], part: Sequence[Represented], size: int, dtype: np.dtype
) -> Array:
    """Per-example squared norms of one parameter's gradients."""
    squared = jnp.zeros(size, dtype)  # families share no entry: their squares add up
    for family, products in zip(families, part, strict=True):
        if isinstance(products, LayeredGradients):
            norms = functools.partial(outer.squared_norms, family.form)
            own = jnp.sum(products.each(family.sites[0], norms), axis=0)
        elif isinstance(products, jax.Array):
            own = per_example.per_example_squared_norm(products, dtype)
        else:
            own = outer.squared_norms(family.form, *products)
        squared = squared + own.astype(dtype)
    return squared


def _sum_leaf(
    leaf: Array, families: Sequence[Family], part: Sequence[Represented], factors: Array
) -> Compensated:
    """The weighted sum of one parameter's gradients."""
    dtype = per_example.accumulation_dtype(leaf.dtype)
    pair = compensated.without_error(jnp.zeros(leaf.shape, dtype))
    for family, products in zip(families, part, strict=True):
        summed = functools.partial(
            outer.weighted_total,
            factors=factors,
            table_rows=family.sizes[2],
            parts=len(products) if isinstance(products, list) else 1,
        )
        if isinstance(products, LayeredGradients):
            gradient = products.each(family.sites[0], summed)
            gradient = gradient.map(lambda x: x.reshape(math.prod(x.shape[:2]), *x.shape[2:]))
        elif isinstance(products, jax.Array):
            gradient = per_example.weighted_sum(factors, products, finite=True)
        else:
            gradient = functools.reduce(compensated.add, map(summed, products))
        put = functools.partial(_place_in_leaf, family, leaf.shape)
        own = gradient.map(put).map(lambda x: x.astype(dtype))
        # Families share no entry: all but one of an entry's terms are zero, and nothing is rounded.
        pair = Compensated(pair.total + own.total, pair.error + own.error)
    return pair


def _place_in_leaf(family: Family, shape: tuple[int, ...], gradient: Array) -> Array:
    """A family's gradient [blocks, k, n] as one of the parameter."""
    if family.side is not None:
        return gradient.reshape(shape)
    site = family.sites[0]
    lengths = tuple(length for length, scanned in site.scans if scanned)
    blocks = site.rule.sizes[0]
    gradient = site.rule.unpack(gradient.reshape((*lengths, blocks, *gradient.shape[1:])))
    return site.view.to_leaf(gradient, len(lengths))


# Numbers of a leaf below which a copy of it costs less than a kernel of its own.
_SMALL = 1024


class PackedLeaves(NamedTuple):
    """Which leaves lie in one array."""

    groups: tuple[tuple[int, ...], ...]  # the leaves' places, those of one array together
    shapes: tuple[tuple[int, ...], ...]  # of the leaves, without the axes that they share

    def join(self, leaves: Sequence[Array]) -> list[Array]:
        """The arrays, from leaves with the same axes before those of their shapes."""

        def flat(place: int) -> Array:
            leaf, own = leaves[place], self.shapes[place]
            shared = jnp.shape(leaf)[: jnp.ndim(leaf) - len(own)]
            return jnp.reshape(leaf, (*shared, math.prod(own)))

        # One leaf is left as it is: a reshape outside a program would copy it.
        return [
            leaves[places[0]] if len(places) == 1 else jnp.concatenate(list(map(flat, places)), -1)
            for places in self.groups
        ]

    def split(self, arrays: Sequence[Array]) -> list[Array]:
        """The leaves, from arrays without other axes."""
        found: dict[int, Array] = {}
        for group, array in zip(self.groups, arrays, strict=True):
            stops = np.cumsum([math.prod(self.shapes[place]) for place in group])[:-1]
            parts = [array] if len(group) == 1 else jnp.split(array, stops)
            for place, part in zip(group, parts, strict=True):
                found[place] = part if len(group) == 1 else part.reshape(self.shapes[place])
        return [found[place] for place in range(len(self.shapes))]


def pack_small_leaves(
    leaves: Sequence[Array | jax.ShapeDtypeStruct],
    kinds: Sequence[int] | None = None,
    below: int = _SMALL,
) -> PackedLeaves:
    """Leaves of one dtype and kind that have fewer numbers than `below` together, others alone."""
    groups: dict[int | tuple[np.dtype, int], list[int]] = {}
    for place, leaf in enumerate(leaves):
        kind = leaf.dtype, kinds[place] if kinds is not None else 0
        groups.setdefault(kind if math.prod(leaf.shape) < below else place, []).append(place)
    return PackedLeaves(tuple(map(tuple, groups.values())), tuple(tuple(x.shape) for x in leaves))
