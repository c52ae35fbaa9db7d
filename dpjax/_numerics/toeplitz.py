"""Lower-triangular Toeplitz matrices, by their first column: sums of columns, and inverses."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from dpjax._numerics.arrays import EPS, Numbers, NumbersLike, namespace


def summed_columns2(
    column: Numbers | np.ndarray, rows: NumbersLike, apart: NumbersLike, times: NumbersLike
) -> Numbers:
    """‖Σ_{j < times} C[:, j·apart]‖² of a C with so many rows, rounded up.

    The matrix is never formed. With V_t = c_t + c_{t−b} + c_{t−2b} + …, a row of the sum over all
    columns is V_t, and one of the first k columns V_t − V_{t−kb}. Below the m given coefficients V
    repeats itself with period b. That makes three sums of at most m terms, however many rows.

    Args:
        column: c ≥ 0 along the first axis, [m, …]; zero below. The other arguments broadcast
            against what follows.
        rows, apart, times: whole numbers ≥ 1; `times` may be infinite, and columns beyond the last
            row are none.
    """
    xp = namespace(column, rows, apart, times)
    m = column.shape[0]
    place = xp.arange(m, dtype=float).reshape((m,) + (1,) * (column.ndim - 1))
    shape = np.broadcast_shapes(np.shape(column), np.shape(rows), np.shape(apart), np.shape(times))
    rows, apart = xp.broadcast_to(rows, shape[1:]), xp.broadcast_to(apart, shape[1:])
    total = xp.broadcast_to(column, shape)

    def at(values: Numbers, index: Numbers) -> Numbers:
        inside = (index >= 0) & (index < m)
        safe = xp.where(inside, index, 0.0).astype(int)
        return xp.where(inside, xp.take_along_axis(values, safe, axis=0), 0.0)

    reach = apart
    for _ in range(max(m - 1, 0).bit_length()):  # sums of 2, 4, 8, … terms
        total = total + at(total, place - reach)
        reach = 2 * reach
    squares = total * total  # rows of the sum over all columns, V_t²
    first = xp.minimum(rows, times * apart)  # rows that see no column too many
    head = xp.sum(xp.where(place < first, squares, 0.0), axis=0)
    below = xp.maximum(first - m, 0.0)
    periods = xp.floor(below / apart)  # whole repetitions of the last period
    rest = below - periods * apart
    late = place >= m - apart
    period = xp.sum(xp.where(late, squares, 0.0), axis=0)
    part = xp.sum(xp.where(late & (place < m - apart + rest), squares, 0.0), axis=0)
    ahead = place + first
    folded = m - apart + (ahead - m) - apart * xp.floor((ahead - m) / apart)
    gap = at(total, xp.where(ahead < m, ahead, folded)) - total
    tail = xp.sum(xp.where(place < rows - first, gap * gap, 0.0), axis=0)
    # Each sum has at most m terms of log2(m) additions; differences may cancel down to their own
    # size over the whole sum's.
    slack = 8 * (m - 1) * (math.log2(m) + 2) * EPS
    return (head + periods * period + part + tail) * (1 + slack)


def solve(column: Float[Array, " m"], right: Float[Array, " n"]) -> Float[Array, " n"]:
    """x with Cx = right, by forward substitution over the m diagonals: n·m operations.

    JAX only: a scan, which can be differentiated.
    """

    below = column[1:]

    def step(last: Array, value: Array) -> tuple[Array, Array]:
        # row t of Cx = right, with the m − 1 entries before
        x = (value - jnp.sum(below * last)) / column[0]
        return jnp.concatenate([x[None], last[:-1]]) if below.shape[0] else last, x

    return lax.scan(step, jnp.zeros_like(below), right)[1]
