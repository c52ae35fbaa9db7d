"""Step sizes, one per step, as the theorems and the experiments of the papers choose them."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from dpjax._numerics.typing import Number

__all__ = ["halved_midway", "inverse_sqrt", "inverse_time"]


def halved_midway(step_size: Number, steps: int) -> Float[Array, " steps"]:
    """η for the first half of the steps and η/2 after it (yu2020 §4, DP-SGD).

    Example:
        >>> halved_midway(2.0, 4).tolist()
        [2.0, 2.0, 1.0, 1.0]
    """
    first = jnp.arange(steps) < (steps + 1) // 2
    return jnp.where(first, step_size, 0.5 * jnp.asarray(step_size))


def inverse_time(curvature: Number, steps: int) -> Float[Array, " steps"]:
    """η_t = 1/(νt), t = 1 … T (yu2020 Theorem 2, ν > 0).

    Example:
        >>> inverse_time(0.5, 3).tolist()
        [2.0, 1.0, 0.6666666865348816]
    """
    return 1.0 / (curvature * jnp.arange(1, steps + 1).astype(float))


def inverse_sqrt(diameter: Number, gradient_size: Number, steps: int) -> Float[Array, " steps"]:
    """η_t = D/(G√t), t = 1 … T, with G = L√(1 + pσ²) (yu2020 Theorem 2, ν = 0).

    Example:
        >>> inverse_sqrt(2.0, 4.0, 4).tolist()
        [0.5, 0.3535533845424652, 0.28867512941360474, 0.25]
    """
    return diameter / (gradient_size * jnp.sqrt(jnp.arange(1, steps + 1).astype(float)))
