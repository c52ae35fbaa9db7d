"""Norms and weighted sums of gradients that are given as sums of outer products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpjax.gradients.per_example import accumulation_dtype, flushed
from dpjax.gradients.rounding import in_runs, pairwise_sum
from dpjax.gradients.rules import OuterProducts

Form = Literal["vectors", "direct", "gram", "tokens", "sorted"]
_FEW = 96  # positions up to which all pairs are quicker than a sort
_EXACT = jax.lax.Precision.HIGHEST  # no TF32 or bfloat16 passes in what bounds a norm


def cheapest_form(sizes: tuple[int, int, int, int], lookup: bool) -> tuple[Form, int, int]:
    """(form, multiplications per record, numbers written per record) for the squared norm.

    With `sizes` = (g, t, k, n): "vectors" for t = 1, where ‖x⊗y‖ = ‖x‖·‖y‖; "gram" is
    Σₜₛ (xₜ·xₛ)(yₜ·yₛ), t²(k + n); "direct" forms the g·k·n numbers of the gradient, t·k·n.
    Direct is chosen only where the gradient is smaller than its factors, so its memory is never
    more than that of the activations. For look-ups, "tokens" compares all pairs of positions and
    "sorted" adds up the columns of equal tokens, which wins for long records.
    """
    g, t, k, n = sizes
    if lookup and t > 1:
        if t > _FEW:
            return "sorted", t * n, 2 * t * n + t * math.ceil(math.log2(t))
        return "tokens", t * t * n, t * t
    if t == 1:
        return "vectors", n if lookup else g * (k + n), 0
    gram, direct = g * t * t * (k + n), g * t * k * n
    return ("gram", gram, 2 * g * t * t) if gram < direct else ("direct", direct, g * k * n)


def concatenate(parts: Sequence[OuterProducts]) -> OuterProducts:
    """The sum of several sums of outer products of one layout: all dense, or all look-ups."""
    if len(parts) == 1:
        return parts[0]
    positions = 1 if parts[0].is_lookup else 2
    rows = jnp.concatenate([part.rows for part in parts], axis=positions)
    return OuterProducts(rows, jnp.concatenate([part.columns for part in parts], axis=2))


def _einsum(spec: str, *operands: Array) -> Array:
    dtype = accumulation_dtype(operands[0].dtype)
    return jnp.einsum(spec, *operands, precision=_EXACT, preferred_element_type=dtype)


def _square_sum(value: Array, axes: tuple[int, ...]) -> Array:
    """At least the sum of the squares, whatever of them becomes zero by being too small.

    One factor's squares may vanish where the other's are so large that their product does not.
    """
    dtype = accumulation_dtype(value.dtype)
    numbers = math.prod(value.shape[axis] for axis in axes)
    return jnp.sum(jnp.square(value.astype(dtype)), axis=axes) + flushed(numbers, dtype)


def gradients(products: OuterProducts) -> Float[Array, "b g k n"]:
    """The per-example gradients themselves."""
    return _einsum("bgtk,bgtn->bgkn", products.rows, products.columns)


def squared_norms(products: OuterProducts, form: Form) -> Float[Array, " b"]:
    """Per-example squared norms, without forming the gradients."""
    rows, columns = products.rows, products.columns
    if form == "vectors":
        right = _square_sum(columns, (-2, -1))
        left = jnp.ones_like(right) if products.is_lookup else _square_sum(rows, (-2, -1))
        return jnp.sum(left * right, axis=1)
    if form == "sorted":
        return _square_sum(_sums_of_equal_tokens(rows, columns[:, 0]), (-2, -1))
    return guarded(inner_products(products, products), [products])


def _sums_of_equal_tokens(tokens: Array, columns: Array) -> Array:
    """[b, t, n] whose non-zero rows are, per record, the sums of the columns of equal tokens."""
    positions = tokens.shape[1]
    place = jnp.broadcast_to(jnp.arange(positions, dtype=jnp.int32), tokens.shape)
    ordered, order = jax.lax.sort_key_val(tokens, place, dimension=1)
    first = (ordered[:, 1:] != ordered[:, :-1]).astype(jnp.int32)
    group = jnp.pad(jnp.cumsum(first, axis=1), ((0, 0), (1, 0)))
    dtype = accumulation_dtype(columns.dtype)
    values = jnp.take_along_axis(columns.astype(dtype), order[:, :, None], axis=1)
    return jax.vmap(lambda g, v: jnp.zeros_like(v).at[g].add(v))(group, values)


def inner_products(a: OuterProducts, b: OuterProducts) -> Float[Array, " b"]:
    """Per-example ⟨gradient a, gradient b⟩ = Σₜₛ (rowsₜ·rowsₛ)(columnsₜ·columnsₛ)."""
    if b.is_lookup and not a.is_lookup:
        a, b = b, a
    columns = _einsum("bgtn,bgsn->bgts", a.columns, b.columns)
    if a.is_lookup and b.is_lookup:
        rows = (a.rows[:, None, :, None] == b.rows[:, None, None, :]).astype(columns.dtype)
    elif a.is_lookup:
        # ⟨one-hot(token t), rows s⟩ is entry `token t` of rows s.
        taken = jax.vmap(lambda r, tokens: r[:, tokens])(b.rows[:, 0], a.rows)
        rows = jnp.swapaxes(taken, 1, 2)[:, None].astype(columns.dtype)
    else:
        rows = _einsum("bgtk,bgsk->bgts", a.rows, b.rows)
    return jnp.sum(rows * columns, axis=(1, 2, 3))


def guarded(squared: Float[Array, " b"], parts: Sequence[OuterProducts]) -> Float[Array, " b"]:
    """The squared norm, moved up where its terms cancel so far that rounding errors show.

    The terms' sizes add up to S = (Σₜ‖rowsₜ‖‖columnsₜ‖)², and their sum is off by about u·S. Where
    that is more than the rounding of the factors allows for, it is added: a norm may come out too
    large there (the record counts less), never too small. So is what products may lack that are
    too small for a number: of n in columnsₜ·columnsₛ, n·tiny times (Σₜ‖rowsₜ‖)², and vice versa.
    """
    sizes, lefts, rights, lengths = [], [], [], [0, 0]
    for part in parts:
        right = jnp.sqrt(_square_sum(part.columns, (-1,)))
        left = jnp.ones_like(right)
        if not part.is_lookup:
            left = jnp.sqrt(_square_sum(part.rows, (-1,)))
            lengths[0] = part.rows.shape[-1]
        lengths[1] = part.columns.shape[-1]
        for found, value in ((sizes, left * right), (lefts, left), (rights, right)):
            found.append(jnp.sum(value, axis=-1))

    def squared_sum(parts):
        return jnp.sum(jnp.square(sum(parts[1:], start=parts[0])), axis=-1)

    eps = float(jnp.finfo(squared.dtype).eps)
    error = eps * squared_sum(sizes)
    k, n = (flushed(length, squared.dtype) for length in lengths)
    lacking = n * squared_sum(lefts) + k * squared_sum(rights)
    return jnp.maximum(squared, 0) + jnp.maximum(error - 64 * eps * squared, 0) + lacking


def weighted_total(
    products: OuterProducts,
    factors: Float[Array, " b"],
    table_rows: int,
    share_of: int | None = None,
) -> Float[Array, "g k n"]:
    """Σ over records of factor × gradient, as one matrix product over records and positions."""
    rows, columns = products.rows, products.columns
    dtype = accumulation_dtype(columns.dtype)
    columns = columns.astype(dtype)
    if products.is_lookup:
        width = columns.shape[-1]
        scaled = (columns * factors[:, None, None, None]).reshape(-1, width)
        empty = jnp.zeros((table_rows, width), dtype)
        return empty.at[rows.reshape(-1)].add(scaled)[None]
    rows = rows.astype(dtype)
    if rows.shape[-1] < columns.shape[-1]:
        rows = rows * factors[:, None, None, None]
    else:
        columns = columns * factors[:, None, None, None]
    rows, columns = in_runs(rows, share_of), in_runs(columns, share_of)
    if rows.shape[2] == 1:  # without the axis of blocks the product is a plain matrix product
        product = _einsum("rbtn,rbtk->rnk", columns[:, :, 0], rows[:, :, 0])
        return jnp.swapaxes(pairwise_sum(product), 0, 1)[None]
    return pairwise_sum(_einsum("rbgtk,rbgtn->rgkn", rows, columns))
