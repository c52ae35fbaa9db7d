"""Uniform directions and uniform points of a ball, for a whole tree as one vector."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dpjax._numerics.normal import normal_like

_CHUNK = 512


def squared_norm(tree: PyTree) -> Float[Array, ""]:
    """The squared l2 norm of the tree as one vector, in float32 at least.

    Summed in two stages, so that the rounding error grows with the square root of the size at most:
    one running float32 sum loses digits beyond 10⁶ terms.
    """
    leaves = [jnp.asarray(x) for x in jax.tree.leaves(tree)]
    dtype = jnp.float64 if any(x.dtype == jnp.float64 for x in leaves) else jnp.float32
    return sum((_sum_of_squares(x.astype(dtype)) for x in leaves), jnp.zeros((), dtype))


def _sum_of_squares(x: Array) -> Array:
    flat = jnp.square(x).reshape(-1)
    rows = jnp.pad(flat, (0, -flat.size % _CHUNK)).reshape(-1, _CHUNK)
    return jnp.sum(jnp.sum(rows, axis=1))


def sphere_like(key: PRNGKeyArray, tree: PyTree) -> PyTree:
    """A uniform point of the unit sphere in as many dimensions as the tree has numbers.

    z / ‖z‖ with z standard normal.
    """
    return _directed(key, tree, extra=0)


def ball_like(key: PRNGKeyArray, tree: PyTree) -> PyTree:
    """A uniform point of the unit ball in as many dimensions as the tree has numbers.

    The first d coordinates of a uniform point of the sphere in d + 2 dimensions are uniform in the
    ball (Archimedes' theorem, generalised): z / √(‖z‖² + z'² + z''²), all of them standard normal.

    Args:
        key: a JAX key, used once.
        tree: arrays or anything with a shape and a floating dtype.

    Returns:
        A tree like `tree`, of norm at most 1 + 2e-6: the scale is rounded up, as noise from a
        smaller ball protects less than its price says (16-bit leaves round either way).
    """
    return _directed(key, tree, extra=2)


def _directed(key: PRNGKeyArray, tree: PyTree, extra: int) -> PyTree:
    """Normals over the norm that they and `extra` more have together."""
    specs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), _wide(x)), tree)
    z, spare = normal_like(key, (specs, jax.ShapeDtypeStruct((extra,), jnp.float32)))
    total = squared_norm(z)
    total += jnp.sum(jnp.square(spare)).astype(total.dtype)
    # A ball's scale, rounded up by more than the root, the products and the sum can round down.
    scale = jax.lax.rsqrt(total) * (1 + 2.0**-20 if extra else 1.0)
    return jax.tree.map(
        lambda z, x: (z * scale.astype(z.dtype)).astype(jnp.result_type(x)), z, tree
    )


def _wide(x: Array) -> np.dtype:
    dtype = jnp.result_type(x)
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype
