"""A clipped sum of numbers plus noise, in integers: no rounding moves its sensitivity."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from dpjax._numerics.normal import normal

_SECOND = 2.0**-9  # the standard deviation of the noise's second part, of the first's


def noisy_total(
    values: Float[Array, " b"],
    bound: float,
    noise_multiplier: float,
    key: PRNGKeyArray,
    mask: Bool[Array, " b"] | None = None,
) -> Float[Array, ""]:
    """Σᵢ clip(vᵢ, ±bound) + N(0, (noise_multiplier·bound)²); a NaN counts as 0.

    Every clipped value is rounded to a multiple of bound/2^k and added as an integer, with k as
    large as 32 bits allow: a record moves the sum by at most `bound`, exactly. A float32 sum of
    60,000 numbers could be off by a third of one of them. Rounding noise to integers and adding
    them is the same as rounding the noisy sum, which only post-processes it: as long as the noise
    has every integer. One float32 draw beyond 2^24 has only multiples of 2, 4, 8, …, and the last
    digits of the sum would show.

    Raises:
        ValueError: where noise and sum do not fit into 32 bits.
    """
    reach = values.size + math.ceil(10.0 * noise_multiplier) + 1  # the noise ends at |z| = 9.3
    bits = 30 - math.ceil(math.log2(reach))
    if bits < 1:
        raise ValueError(
            f"values and their noise must fit into 32 bits, got {values.size} values with "
            f"noise_multiplier={noise_multiplier}; lower the noise or split the sum"
        )
    unit = np.float32(2.0**bits)
    shares = jnp.clip(values.astype(jnp.float32) / np.float32(bound), -1.0, 1.0)
    shares = jnp.where(jnp.isnan(shares), jnp.zeros_like(shares), shares)
    units = jnp.round(shares * unit).astype(jnp.int32)
    if mask is not None:
        units = jnp.where(mask, units, jnp.zeros_like(units))
    # Two independent parts. The first has the whole standard deviation, so that the second only
    # post-processes; that ends at 2^21, where float32 has every integer, and is 2^11 times as wide
    # as the widest gap of the first.
    parts = np.array([1.0, _SECOND]) * noise_multiplier * float(unit)
    noise = jnp.round(parts.astype(np.float32) * normal(key, (2,))).astype(jnp.int32)
    total = jnp.sum(units, dtype=jnp.int32) + jnp.sum(noise, dtype=jnp.int32)
    return total.astype(jnp.float32) * np.float32(bound / float(unit))
