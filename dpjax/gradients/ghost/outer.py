"""Norms and weighted sums of gradients that are given as sums of outer products.

A matrix plus a product of two thin ones (`low_rank_sum`) is known to it: with W = W₀ + A·B and a
record's gradient by W given as Σₜ xₜ ⊗ yₜ, its gradient by A is Σₜ xₜ ⊗ B·yₜ and by B
Σₜ Aᵀ·xₜ ⊗ yₜ (the chain rule), so that no gradient of W's size is ever formed.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpjax.gradients.compensated import (
    Compensated,
    add_term,
    as_pair,
    cancelling,
    carry_zeros,
    is_wider,
    run_shape,
    scatter_into,
    slack_of_lookups,
    sum_over_records,
    sum_runs,
    without_error,
)
from dpjax.gradients.ghost.rules import OuterProducts
from dpjax.gradients.per_example import (
    accumulation_dtype,
    flush_error,
    norms_dtype,
)

Form = Literal["vectors", "direct", "gram", "distinct"]
_GRAM_ON_CPU = 4  # times as long as its multiplications take in larger products, and more
_FEW = 96  # positions up to which comparing all pairs is quicker than a sort
_EXACT = jax.lax.Precision.HIGHEST  # no TF32 or bfloat16 passes in what bounds a norm


def cheapest_form(sizes: tuple[int, int, int, int], lookup: bool) -> tuple[Form, int, int]:
    """(form, multiplications per record, numbers written per record) for the squared norm."""
    # "vectors" for t = 1, where ‖x⊗y‖ = ‖x‖·‖y‖; "gram" is Σₜₛ (xₜ·xₛ)(yₜ·yₛ), t²(k + n); "direct"
    # forms the g·k·n numbers of the gradient, t·k·n. Direct is chosen only where the gradient is
    # smaller than its factors, so its memory is never more than that of the activations; on a CPU,
    # which multiplies many matrices of t by t slowly, up to a few times as large.
    g, t, k, n = sizes
    if lookup and t > 1:
        # "distinct" first adds up a record's columns of equal tokens: by comparing all pairs of
        # positions, or by a sort where there are many.
        if t > _FEW:
            return "distinct", t * n, 2 * t * n + t * math.ceil(math.log2(t))
        return "distinct", t * t * n, t * n + t * t
    if t == 1:
        return "vectors", n if lookup else g * (k + n), 0
    gram, direct = g * t * t * (k + n), g * t * k * n
    slower = _GRAM_ON_CPU if jax.default_backend() == "cpu" else 1
    return (
        ("gram", gram, 2 * g * t * t) if slower * gram < direct else ("direct", direct, g * k * n)
    )


def concatenate(parts: Sequence[OuterProducts]) -> OuterProducts:
    """The sum of several sums of outer products of one layout: all dense, or all look-ups."""
    if len(parts) == 1:
        return parts[0]
    positions = 1 if parts[0].is_lookup else 2
    rows = jnp.concatenate([part.rows for part in parts], axis=positions)
    return OuterProducts(rows, jnp.concatenate([part.columns for part in parts], axis=2))


def einsum(spec: str, *operands: Array) -> Array:
    """A contraction in the widest of the operands' dtypes, float32 at least."""
    dtype = norms_dtype(operands)
    if len({operand.dtype for operand in operands}) > 1:
        operands = tuple(operand.astype(dtype) for operand in operands)
    return jnp.einsum(spec, *operands, precision=_EXACT, preferred_element_type=dtype)


def _square_sum(value: Array, axes: tuple[int, ...]) -> Array:
    """An upper bound on the sum of the squares, of which small ones may become zero."""
    # One factor's squares may vanish where the other's are so large that their product does not.
    dtype = accumulation_dtype(value.dtype)
    numbers = math.prod(value.shape[axis] for axis in axes)
    return jnp.sum(jnp.square(value.astype(dtype)), axis=axes) + flush_error(numbers, dtype)


def squared_norms(form: Form, first: OuterProducts, *others: OuterProducts) -> Float[Array, " b"]:
    """Per-example squared norms of the sum of the parts, without forming the gradients."""
    if not others and form in ("vectors", "distinct"):
        right = _square_sum(first.columns, (-2, -1))
        left = jnp.ones_like(right) if first.is_lookup else _square_sum(first.rows, (-2, -1))
        return jnp.sum(left * right, axis=1)
    squared = inner_products(first, first)
    for other in others:  # ‖a + b‖² = ⟨a, a⟩ + 2⟨a, b⟩ + ⟨b, b⟩
        squared = squared + 2 * inner_products(first, other) + inner_products(other, other)
    return guard_cancellation(squared, (first, *others))


def with_distinct_rows(products: OuterProducts) -> OuterProducts:
    """Look-ups whose non-zero columns stand at different tokens of their record."""
    # A record's gradient in a row is the sum of its columns there. That sum is formed once, and
    # both the norm and the clipped sum read it: whatever it lost to rounding, a record counts for
    # at most the clip norm, and columns of a record that cancel never meet those of other records.
    tokens, columns = products.rows, products.columns[:, 0]
    dtype = accumulation_dtype(columns.dtype)
    columns, positions = columns.astype(dtype), tokens.shape[1]
    if positions == 1:
        return products
    if positions <= _FEW:
        sum_equal = _move_to_first if jax.default_backend() == "cpu" else _multiply_to_first
        return OuterProducts(tokens, sum_equal(tokens, columns)[:, None])
    place = jnp.broadcast_to(jnp.arange(positions, dtype=jnp.int32), tokens.shape)
    ordered, order = jax.lax.sort_key_val(tokens, place, dimension=1)
    new = (ordered[:, 1:] != ordered[:, :-1]).astype(jnp.int32)
    group = jnp.pad(jnp.cumsum(new, axis=1, dtype=jnp.int32), ((0, 0), (1, 0)))
    values = jnp.take_along_axis(columns, order[:, :, None], axis=1)
    sums = jax.vmap(lambda g, v: jnp.zeros_like(v).at[g].add(v))(group, values)
    # Positions without a group keep token 0, at which they add zeros.
    found = jax.vmap(lambda g, v: jnp.zeros_like(v).at[g].set(v))(group, ordered)
    return OuterProducts(found, sums[:, None])


def _multiply_to_first(tokens: Array, columns: Array) -> Array:
    """[b, t, n]: the sum of a record's columns of a token where it stands first, and zeros."""
    equal = tokens[:, :, None] == tokens[:, None, :]
    positions = jnp.arange(tokens.shape[1])
    first = ~jnp.any(equal & (positions[:, None] > positions[None, :])[None], axis=2)
    return einsum("bts,bsn->btn", (equal & first[:, :, None]).astype(columns.dtype), columns)


@jax.custom_jvp
def _move_to_first(tokens: Array, columns: Array) -> Array:
    """What `_multiply_to_first` forms, in as many rounds as a record has repeated tokens."""
    # A product of 64 by 64 numbers a record is most of what a look-up costs on a CPU, and nearly
    # all of its terms are zeros. A round moves one repeated column of each record to its first.
    last = tokens.shape[1] - 1

    def look(step: Array, first: Array) -> Array:  # from the last position on: the first one stays
        equal = tokens == jax.lax.dynamic_slice_in_dim(tokens, last - step, 1, axis=1)
        return jnp.where(equal, last - step, first)

    first = jax.lax.fori_loop(0, last + 1, look, jnp.zeros_like(tokens, jnp.int32))
    again = first != jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    number = jnp.cumsum(again, axis=1, dtype=jnp.int32)  # of repeats up to a position
    records = jnp.arange(tokens.shape[0])

    def move(state: tuple[Array, Array]) -> tuple[Array, Array]:
        done, columns = state
        here = jnp.argmax(again & (number == done + 1), axis=1)  # 0 where no repeat is left
        left = (number[:, -1] > done)[:, None]
        column = columns[records, here]
        columns = columns.at[records, here].set(jnp.where(left, 0, column))
        to = jnp.take_along_axis(first, here[:, None], axis=1)[:, 0]
        return done + 1, columns.at[records, to].add(jnp.where(left, column, 0))

    most = jnp.max(number[:, -1], initial=0)
    return jax.lax.while_loop(lambda state: state[0] < most, move, (most * 0, columns))[1]


@_move_to_first.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """A linear map of the columns: its derivative is itself, as a product that has a transpose."""
    return _move_to_first(*primals), _multiply_to_first(primals[0], tangents[1])


def inner_products(a: OuterProducts, b: OuterProducts) -> Float[Array, " b"]:
    """Per-example ⟨gradient a, gradient b⟩ = Σₜₛ (rowsₜ·rowsₛ)(columnsₜ·columnsₛ)."""
    if b.is_lookup and not a.is_lookup:
        a, b = b, a
    columns = einsum("bgtn,bgsn->bgts", a.columns, b.columns)
    if a.is_lookup and b.is_lookup:
        rows = (a.rows[:, None, :, None] == b.rows[:, None, None, :]).astype(columns.dtype)
    elif a.is_lookup:
        # ⟨one-hot(token t), rows s⟩ is entry `token t` of rows s.
        taken = jax.vmap(lambda r, tokens: r[:, tokens])(b.rows[:, 0], a.rows)
        rows = jnp.swapaxes(taken, 1, 2)[:, None].astype(columns.dtype)
    else:
        rows = einsum("bgtk,bgsk->bgts", a.rows, b.rows)
    return jnp.sum(rows * columns, axis=(1, 2, 3))


def guard_cancellation(
    squared: Float[Array, " b"], parts: Sequence[OuterProducts]
) -> Float[Array, " b"]:
    """The squared norm, raised where its terms cancel so far that rounding errors matter."""
    rights = [jnp.sqrt(_square_sum(part.columns, (-1,))) for part in parts]
    lefts = [
        jnp.ones_like(right) if part.is_lookup else jnp.sqrt(_square_sum(part.rows, (-1,)))
        for part, right in zip(parts, rights, strict=True)
    ]

    def squared_sum(values: Sequence[Array]):
        summed = functools.reduce(jnp.add, (jnp.sum(value, axis=-1) for value in values))
        return jnp.sum(jnp.square(summed), axis=-1)

    sizes = squared_sum([left * right for left, right in zip(lefts, rights, strict=True)])
    # The sizes add up to S = (Σₜ‖rowsₜ‖‖columnsₜ‖)², and their sum is off by about u·S. Where
    # that is more than the rounding of the factors allows for, it is added: a norm may come out too
    # large there (the record counts less), never too small.
    eps = float(jnp.finfo(squared.dtype).eps)
    error = eps * sizes
    # So is what products may lack that are too small for a number: of n in columnsₜ·columnsₛ,
    # n·tiny times (Σₜ‖rowsₜ‖)², and vice versa.
    k = max(0 if part.is_lookup else part.rows.shape[-1] for part in parts)
    k, n = (flush_error(length, squared.dtype) for length in (k, parts[0].columns.shape[-1]))
    lacking = n * squared_sum(lefts) + k * squared_sum(rights)
    norm = jnp.maximum(squared, 0) + jnp.maximum(error - 64 * eps * squared, 0) + lacking
    # The sum over records rounds what its terms are, not what is left of them: no record's terms
    # may add up to more than `cancelling` times its norm. Those of look-ups do not round. Parts of
    # an array that is used in several places are summed apart, in runs (`run_shape`) and with
    # look-ups (`_sum_rows`) that allow for squares of at most four times what is left of them.
    if len(parts) > 1:
        apart = [guard_cancellation(inner_products(part, part), [part]) for part in parts]
        return jnp.maximum(norm, functools.reduce(jnp.add, apart) / 4)
    if parts[0].is_lookup:
        return norm
    return jnp.maximum(norm, sizes / cancelling(parts[0].rows.shape[2]) ** 2)


def weighted_total(
    products: OuterProducts, factors: Float[Array, " b"], table_rows: int, parts: int = 1
) -> Compensated:
    """Σ over records of factor × gradient, [g, k, n], of one of so many parts of an array."""
    rows, columns = products.rows, products.columns
    dtype = accumulation_dtype(columns.dtype)
    if products.is_lookup:
        scaled = columns.astype(dtype) * factors[:, None, None, None]
        flat = scaled.reshape(-1, columns.shape[-1])
        total = _sum_rows(rows.reshape(-1), flat, table_rows, rows.shape[0])
        return total.map(lambda x: x[None])

    positions = rows.shape[2]
    cut = run_shape(positions, parts).positions

    def sum_run(rows: Array, columns: Array, factors: Array) -> Array:
        rows, columns, scale = rows.astype(dtype), columns.astype(dtype), factors.astype(dtype)
        if rows.shape[-1] < columns.shape[-1]:
            rows = rows * scale[:, None, None, None]
        else:
            columns = columns * scale[:, None, None, None]
        if rows.shape[1] == 1:  # without the axis of blocks it is a plain matrix product
            flat = (x.reshape(-1, x.shape[-1]) for x in (rows, columns))
            return einsum("ik,in->kn", *flat)[None]
        return einsum("bgtk,bgtn->gkn", rows, columns)

    if cut == positions:
        return sum_over_records(sum_run, (rows, columns, factors), positions, parts)

    def sum_record(rows: Array, columns: Array, factors: Array) -> Compensated:
        chunks = [_cut_positions(x, cut) for x in (rows, columns)]
        factors = jnp.broadcast_to(factors, chunks[0].shape[:1])
        return sum_runs(sum_run, (*chunks, factors), 1, of_one=True)

    return sum_over_records(sum_record, (rows, columns, factors), positions, parts)


def _cut_positions(vectors: Array, length: int) -> Array:
    """[chunks, g, length, k] of one record's vectors [1, g, t, k], filled up with zeros."""
    _, groups, positions, width = vectors.shape
    missing = -positions % length
    filled = jnp.pad(vectors[0], ((0, 0), (0, missing), (0, 0)))
    return filled.reshape(groups, -1, length, width).swapaxes(0, 1)


def _sum_rows(tokens: Array, values: Array, rows: int, records: int) -> Compensated:
    """[rows, n]: the sums of the values of each token, of which a record has at most one each."""
    # A scatter adds one record after the other, so an entry that b records add to is off by up to
    # b·u·Σ|terms|, u the unit round-off, and the sum of a batch by b·u·b·C, on either neighbour,
    # and by twice that where what is looked up is one part of an array: half of `slack_of_lookups`
    # is enough. In the float64 that carries a pair of float32, u is 2⁻⁵³, and the pair that it is
    # split into is off by u² of float32 more.
    empty = jnp.zeros((rows, values.shape[-1]), values.dtype)
    kind, carried = jnp.finfo(values.dtype), carry_zeros(empty)
    allowed = slack_of_lookups(float(kind.eps) / 2) / 2
    if is_wider(carried, empty):
        off = records * (records * 2.0**-52 + float(kind.eps) ** 2)  # of both neighbours, over C
        if off <= allowed:
            return as_pair(scatter_into(carried, tokens, values))
    # Elsewhere every term is split at a unit of its entry, a power of two of at least 2u·Σ|terms|
    # and at most 4u·Σ|terms|. Its multiple of the unit is summed exactly in any order, since all
    # partial sums are multiples of the unit below 1/u units. What is left of a term is at most half
    # a unit, so that the rest's sum is off by at most b·u·(b·2u)·Σ|terms|: each split gains a
    # factor b·2u.
    gain, pair = records * float(kind.eps), without_error(empty)
    off = gain * records
    while off > allowed and gain < 1:
        # The sum of sizes is itself off by at most b·u, relative: hence the factor 1 + 2·b·u.
        size = empty.at[tokens].add(jnp.abs(values)) * (1 + gain)
        unit = jnp.ldexp(jnp.ones_like(size), jnp.frexp(size)[1] - kind.nmant)
        unit = jnp.maximum(unit, kind.tiny)[tokens]
        multiple = jnp.round(values / unit) * unit
        pair = add_term(pair, empty.at[tokens].add(multiple))
        values, off = values - multiple, off * gain
    return add_term(pair, empty.at[tokens].add(values))


LOW_RANK_SUM = "_dpjax_low_rank_sum"  # the name of its call in a traced program


def _dpjax_low_rank_sum(base: Array, a: Array, b: Array) -> Array:
    dtype = norms_dtype((base, a, b))
    a, b = a.astype(dtype), b.astype(dtype)
    product = jnp.matmul(a, b, precision=_EXACT)
    return (base.astype(dtype) + product.reshape(base.shape)).astype(base.dtype)


_compiled = jax.jit(_dpjax_low_rank_sum)


def low_rank_sum(
    base: Float[Array, "..."],
    a: Float[Array, "*layers rows rank"],
    b: Float[Array, "*layers rank columns"],
) -> Float[Array, "..."]:
    """base + (a @ b) in base's shape, where the ghost method clips a and b without copies.

    Args:
        base: with rows · columns entries, its leading dimensions those of `a`; not trained.
        a, b: the factors; with an axis of layers before, where `base` has one, one a layer. Layers
            are clipped without copies where `jax.lax.scan` loops over them.

    Example:
        >>> low_rank_sum(jnp.ones((2, 2)), jnp.ones((2, 1)), jnp.ones((1, 2))).tolist()
        [[2.0, 2.0], [2.0, 2.0]]
    """
    return _compiled(base, a, b)


@dataclasses.dataclass(frozen=True)
class Side:
    """One factor of a low-rank sum: how its outer products follow from those of the sum."""

    left: bool  # whether it is the left factor
    other: int  # the index of the other one among the parameters
    rank: int

    def products(self, of_sum: OuterProducts, leaves: Sequence[Any]) -> OuterProducts:
        """The outer products of this factor."""
        other = leaves[self.other]
        if self.left:
            return OuterProducts(
                of_sum.rows, _multiply_blocks(of_sum.columns, other.swapaxes(-1, -2))
            )
        return OuterProducts(_multiply_blocks(of_sum.rows, other), of_sum.columns)

    def sizes(self, of_sum: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        """(g, t, k, n) of this factor."""
        g, t, k, n = of_sum
        return (g, t, k, self.rank) if self.left else (g, t, self.rank, n)


def _multiply_blocks(vectors: Array, matrix: Array) -> Array:
    """Every block's vectors times the matrix of its layer."""
    dtype, matrix = norms_dtype((vectors, matrix)), matrix.reshape(-1, *matrix.shape[-2:])
    return einsum("bgtn,gnr->bgtr", vectors.astype(dtype), matrix.astype(dtype))


def find_sides(
    pair: tuple[int, int], sites: Sequence[Any], shape: tuple[int, ...]
) -> tuple[Side, Side] | None:
    """The sides of a sum's two factors, or None where a use of it is not a plain matrix product."""
    # Where the factors have an axis of layers, a use is one of a loop over these.
    layers, rows = len(shape) - 2, shape[-2]
    for site in sites:
        whole = view = site.view
        sizes = [stop - start for start, stop in view.box]
        while whole.parent is not None:
            whole = whole.parent
        cut = next(c for c in range(layers, len(sizes) + 1) if math.prod(sizes[layers:c]) >= rows)
        dimensions = tuple(range(len(sizes)))
        layout = ("outer", (), dimensions[layers:cut], dimensions[cut:])
        sliced = layers <= 1 and len(view.scans) == layers
        if not sliced or view.box != whole.box or site.rule.layout != layout:
            return None
    return Side(True, pair[1], shape[-1]), Side(False, pair[0], shape[-1])
