"""GeoDP as published, as a function (key, average) -> released average."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dpjax import transforms


def geodp(
    noise_multiplier: float, clip_norm: float, batch_size: int, bounding_factor: float
) -> Callable[[Array, Array], Array]:
    """Algorithm 1's perturbation of an averaged clipped gradient. It has no privacy guarantee."""
    with jax.ensure_compile_time_eval():  # the settings are numbers, also inside a user's jit
        noise = transforms.spherical_noise(
            noise_multiplier,
            clip_norm / batch_size,  # of the average: the angles of a sum are those of its average
            batch_size,
            bounding_factor,
            jax.random.key(0),  # replaced below: every call brings its own
            unsafe_no_dp=True,
        )

    def release(key, average):
        state = transforms.NoiseState(key, jnp.zeros((), jnp.int32))
        return noise.update(average, state)[0]

    return release
