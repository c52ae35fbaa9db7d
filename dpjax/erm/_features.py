"""Dense and sparse feature matrices behind one set of functions.

A sparse matrix is a `BCOO` whose rows are a batch axis (every row stores the same number of
entries, padded by an out-of-range column): rows can then be taken, scaled and permuted like dense
ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from dpjax._numerics.arrays import NUMPY, namespace
from dpjax._numerics.namespace import Numbers, Values
from dpjax._numerics.scope import is_traced

if TYPE_CHECKING:
    from jax.experimental import sparse
    from typing_extensions import TypeIs

Features: TypeAlias = "Array | sparse.BCOO"

# A clipped row or gradient must not exceed its bound after rounding: shrink by a few float32 ulps.
ROUND_DOWN = 1.0 - 2.0**-21
# For the same reason no TF32 and no bfloat16: either rounds a row up by a thousandth and more.
EXACT = jax.lax.Precision.HIGHEST


def is_sparse(features: object) -> TypeIs[sparse.BCOO]:
    """Whether this is a BCOO matrix; by name, since loading the class loads scipy.sparse."""
    return type(features).__name__ == "BCOO"


def as_features(features: Features | ArrayLike) -> Features:
    """A float matrix: dense arrays as they are, BCOO with its rows turned into a batch axis."""
    # 32 bits at least: rounding a sum to 16 could move it by several clip norms for one record.
    if not is_sparse(features) and not isinstance(features, np.ndarray | jax.Array):
        features = np.asarray(features)
    if not any(jnp.issubdtype(features.dtype, t) for t in (jnp.floating, jnp.integer, jnp.bool_)):
        raise ValueError(f"features must be real numbers, got {features.dtype}")
    if not is_sparse(features):
        features = jnp.asarray(features)
    if features.ndim != 2:
        raise ValueError(f"features must be a matrix [n, d], got {features.ndim} axes")
    if is_sparse(features) and features.n_batch != 1:
        features = _rows_as_batch(features)
    if not jnp.issubdtype(features.dtype, jnp.floating):
        return features.astype(float)
    return features.astype(jnp.float32) if features.dtype.itemsize < 4 else features


def _rows_as_batch(features: sparse.BCOO) -> sparse.BCOO:
    """The matrix with its rows as a batch axis, every row padded to the longest one."""
    n, d = features.shape
    rows, columns = np.asarray(features.indices).T
    values = np.asarray(features.data)
    inside = (rows < n) & (columns < d)  # BCOO pads with out-of-range indices
    rows, columns, values = rows[inside], columns[inside], values[inside]
    order = np.argsort(rows, kind="stable")
    rows, columns, values = rows[order], columns[order], values[order]
    counts = np.bincount(rows, minlength=n)
    # An entry's place within its own row.
    slot = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    width = max(1, int(counts.max(initial=0)))
    data = np.zeros((n, width), values.dtype)
    indices = np.full((n, width, 1), d, np.int32)
    data[rows, slot] = values
    indices[rows, slot, 0] = columns
    return type(features)((jnp.asarray(data), jnp.asarray(indices)), shape=(n, d))


def matvec(features: Features, params: Array) -> Array:
    """`features @ params`, params [d] or [d, k]."""
    if not is_sparse(features):
        return jnp.matmul(features, params, precision=EXACT)
    # A padded slot points past the last column and must read as 0.
    entries = params.at[features.indices[..., 0]].get(mode="fill", fill_value=0)
    if params.ndim == 1:
        return jnp.sum(features.data * entries, axis=1)
    return jnp.einsum("nz,nzk->nk", features.data, entries, precision=EXACT)


def rmatvec(features: Features, residuals: Array) -> Array:
    """`features.T @ residuals`, residuals [n] or [n, k]."""
    if not is_sparse(features):
        # This operand order contracts over the rows without a transposed copy.
        return jnp.matmul(residuals.T, features, precision=EXACT).T
    # A padded slot points past the last column, and is dropped.
    columns = features.indices[..., 0]
    zeros = jnp.zeros((features.shape[1], *residuals.shape[1:]), features.data.dtype)
    if residuals.ndim == 1:
        return zeros.at[columns].add(features.data * residuals[:, None], mode="drop")
    return zeros.at[columns].add(features.data[..., None] * residuals[:, None, :], mode="drop")


def map_rows(features: Features, select: Callable[[Array], Array]) -> Features:
    """The matrix of the rows that `select` takes from the leading axis of an array."""
    if not is_sparse(features):
        return select(features)
    data = select(features.data)
    shape = (data.shape[0], features.shape[1])
    return type(features)((data, select(features.indices)), shape=shape)


def row_norms(features: Features) -> Array:
    """Euclidean norm of every row."""
    return vector_norms(features.data if is_sparse(features) else features)


def vector_norms(rows: Numbers) -> Numbers:
    """Norms along the last axis, of entries whose squares vanish or overflow too."""
    xp = namespace(rows)
    # Divide by the largest entry first, so that squares of huge entries do not overflow.
    largest = xp.max(xp.abs(rows), axis=-1, keepdims=True, initial=0)
    safe = xp.where((largest > 0) & xp.isfinite(largest), largest, 1.0)
    return safe[..., 0] * xp.sqrt(xp.sum(xp.square(rows / safe), axis=-1))


def row_clip_factors(norms: Numbers, clip_norm: Values) -> Numbers:
    """min(1, C/‖g‖) of every record, rounded so that no clipped norm exceeds C."""
    xp = namespace(norms)
    safe = xp.where(norms > 0, norms, 1.0)
    return xp.where(norms > clip_norm, clip_norm * ROUND_DOWN / safe, 1.0)


def append_constant(features: Features, value: float) -> Features:
    """The matrix with one more column that holds `value` everywhere."""
    n, d = features.shape
    if not is_sparse(features):
        return jnp.concatenate([features, jnp.full((n, 1), value, features.dtype)], axis=1)
    # Padded slots pointed at column d, which becomes the constant's: move them past it.
    indices = jnp.where(features.indices == d, d + 1, features.indices)
    last = jnp.full((n, 1, 1), d, indices.dtype)
    data = jnp.concatenate([features.data, jnp.full((n, 1), value, features.data.dtype)], axis=1)
    return type(features)((data, jnp.concatenate([indices, last], axis=1)), shape=(n, d + 1))


def clip_rows(features: Features, bound: float) -> Features:
    """Rows scaled down to norm at most `bound`; a row with a NaN or infinity becomes zero."""
    original = features.data if is_sparse(features) else features
    # Norms in float64 wherever the values are at hand: a float32 sum of squares can be too small.
    entries = original if is_traced(original) else NUMPY.asarray(original)
    xp = namespace(entries)
    entries = xp.where(xp.all(xp.isfinite(entries), axis=1)[:, None], entries, 0.0)
    shrink = row_clip_factors(vector_norms(entries), bound)
    clipped = jnp.asarray((entries * shrink[:, None]).astype(original.dtype))
    if is_sparse(features):
        return type(features)((clipped, features.indices), shape=features.shape)
    return clipped
