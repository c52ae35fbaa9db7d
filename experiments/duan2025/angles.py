"""Hyperspherical angles, written out once more from equation (25): the attacker's and judge's view.

Kept apart from `dpjax.transforms`, whose conversion is under test here.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array


def angles(vector: Array) -> Array:
    """θ_z = atan2(‖(g_{z+1}, …, g_d)‖, g_z), last atan2(g_d, g_{d−1}); [..., d] to d − 1."""
    tails = jnp.sqrt(jnp.cumsum((vector**2)[..., ::-1], axis=-1)[..., ::-1])
    first = jnp.arctan2(tails[..., 1:-1], vector[..., :-2])
    last = jnp.arctan2(vector[..., -1:], vector[..., -2:-1])
    return jnp.concatenate([first, last], axis=-1)


def wrap(angle: Array) -> Array:
    """The same angle in [−π, π)."""
    return jnp.mod(angle + jnp.pi, 2 * jnp.pi) - jnp.pi


def direction_error(noisy: Array, true: Array) -> Array:
    """‖θ* − θ‖², the paper's error of a direction (equation (10)), the last angle a circle."""
    difference = angles(noisy) - angles(true)
    return jnp.sum(difference.at[..., -1].set(wrap(difference[..., -1])) ** 2, axis=-1)


def angle_between(first: Array, second: Array) -> Array:
    """The angle between two vectors, in radians: an error that no choice of chart can change."""
    product = jnp.sum(first * second, axis=-1)
    norms = jnp.linalg.norm(first, axis=-1) * jnp.linalg.norm(second, axis=-1)
    return jnp.arccos(jnp.clip(product / norms, -1.0, 1.0))
