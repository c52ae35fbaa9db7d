"""`spherical_noise`: GeoDP's perturbation as published, for reproducing it. It protects nothing."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import PRNGKeyArray

from dpjax._numerics.elementary import sine_cosine
from dpjax._numerics.normal import normal
from dpjax.transforms.checks import positive, random_key, refuse_unless_unsafe
from dpjax.transforms.coordinates import assemble, ravel, running_sums, unravel
from dpjax.transforms.noise import NoiseState, key_of

_LEAST = 1e-37  # squares below it are zero


def spherical_noise(
    noise_multiplier: float,
    clip_norm: float,
    batch_size: int,
    bounding_factor: float,
    key: PRNGKeyArray,
    unsafe_no_dp: bool = False,
) -> optax.GradientTransformation:
    """Perturb the norm and the angles of a clipped sum apart, as GeoDP does. No privacy guarantee.

    With r and θ the hyperspherical coordinates of the sum of clipped gradients (its angles are the
    average's), σ the noise multiplier, C the clip norm, B the batch size and β the bounding factor:

        r* = r + C·σ·Z₀,  θ* = θ + (√(d+2)·β·π·σ/B)·Z,  Z₀, Z standard normal.

    Args:
        noise_multiplier: σ ≥ 0.
        clip_norm: C > 0.
        batch_size: B, the expected number of records in the sum.
        bounding_factor: β in (0, 1]. The published algorithm declares the angles to lie in a box of
            that relative size, and does not clip them to it.
        key: a JAX key, used for nothing else.
        unsafe_no_dp: must be True.

    Returns:
        A transformation of the sum that `clip_per_example` returns, in O(d): neither angles nor
        their functions are formed. θ + n has the sine sin θ cos n + cos θ sin n, and so on.

    Raises:
        ValueError: `unsafe_no_dp` is not True, or an argument out of range.

    Guarantee:
        None. The angle of an average moves by up to 2C/(B‖ḡ‖) when one record is replaced, which is
        not bounded; the published claim fails already for d = 2 and a fully aligned batch (claimed
        ε = 4.38, true 18.0 at σ = 1, B = 2048, β = 0.1, δ = 1e-5). `acc.GeoDP` prices it +inf. Use
        `recentred_clipping`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import transforms
        >>> tx = transforms.spherical_noise(
        ...     1.0, 1.0, 2048, 0.1, jax.random.key(0), unsafe_no_dp=True
        ... )
        >>> g = {"w": jnp.full(10, 100.0)}
        >>> out, _ = tx.update(g, tx.init(g))
        >>> out["w"].shape
        (10,)

    References:
        Duan et al. 2025, "Analyzing and optimizing perturbation of DP-SGD geometrically", Algorithm
        1.
    """
    refuse_unless_unsafe("GeoDP's perturbation", "recentred_clipping", unsafe_no_dp)
    positive("noise_multiplier", noise_multiplier, allow_zero=True)
    positive("clip_norm", clip_norm)
    positive("batch_size", batch_size)
    positive("bounding_factor", bounding_factor)

    random_key(key)

    def init(params):
        del params
        return NoiseState(key, jnp.zeros((), jnp.int32))

    @jax.jit
    def perturbed(updates, now):
        flat, d = ravel(updates)
        # Beside the largest number, suffixes below 1e-19 count as zero: their place is lost anyway.
        largest = jnp.max(jnp.abs(flat))
        unit = 1 / jnp.where(largest > 0, largest, 1)
        following = running_sums(jnp.square(flat * unit), reverse=True)
        norm = largest * jnp.sqrt(jnp.square(flat[0] * unit) + following[0])
        z = normal(now, flat.shape, flat.dtype)
        scale = math.sqrt(d + 2) * math.pi * bounding_factor * noise_multiplier / batch_size
        scale = jnp.asarray(scale, z.dtype)
        radius = norm + jnp.asarray(clip_norm * noise_multiplier, z.dtype) * z[d - 1]
        last = jnp.sign(flat[d - 1])

        def turned(x, following, z, unit, scale, last):
            x, end = x * unit, jnp.arange(x.size) == d - 2
            total = jnp.square(x) + following
            inverse = lax.rsqrt(jnp.maximum(total, _LEAST))
            cosine = following * lax.rsqrt(jnp.maximum(following, _LEAST)) * inverse
            cosine = jnp.where(total > _LEAST, jnp.where(end, last * cosine, cosine), 1)
            sine, (turn_sine, turn_cosine) = x * inverse, sine_cosine(z * scale)
            return (
                sine * turn_cosine - cosine * turn_sine,
                cosine * turn_cosine + sine * turn_sine,
            )

        out = assemble(radius, d, turned, flat, following, z, unit, scale, last)
        return unravel(out, updates)

    def update(updates, state, params=None):
        del params
        now, state = key_of(state, "spherical", updates)
        return perturbed(updates, now), state

    return optax.GradientTransformation(init, update)
