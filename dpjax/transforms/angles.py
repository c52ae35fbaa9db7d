"""Directions and lengths released apart: a direction near that of an earlier release."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from dpjax._numerics.checks import CLIP_NORMS, Range, one_number, positive, scalar
from dpjax._numerics.normal import normal
from dpjax._numerics.typing import PRNGKey
from dpjax.gradients.per_example import weighted_sum
from dpjax.transforms.clip import mask_records
from dpjax.transforms.coordinates import Spherical, from_spherical, to_spherical
from dpjax.transforms.geometric import Release, check_sizes, make_release, safe_divide

_DOWN = 1 - 2.0**-21  # factors are rounded down, so that a clipped term stays in its ball


def tangent_ball(
    radius: float,
    noise_std: float,
    batch_size: int,
    clip_norm: float,
    norm_noise_std: float,
    key: PRNGKey,
) -> Release:
    """Average directions in the tangent space of the previous one, clipped to a ball (G2).

    tᵢ = log_u(gᵢ/‖gᵢ‖) is the tangent vector at u that points to record i's direction, its length
    the angle. Released are (1/B)·Σᵢ clip_ρ(tᵢ) + noise, from which the exponential map at u makes
    the new direction, and the length C/2 + (1/B)·Σᵢ (min(‖gᵢ‖, C) − C/2) + noise.

    Args:
        radius: ρ in (0, π], radians.
        noise_std: per tangent coordinate, radians, ≥ 0.
        batch_size: B, public.
        clip_norm: C > 0, in units of the gradient: the cap on a record's length.
        norm_noise_std: of the released length, ≥ 0.
        key: a JAX key, secret, used for nothing else.

    Returns:
        As `recentred_clipping`. The first direction is (1, …, 1)/√d.

    Guarantee:
        Two Gaussian mechanisms, of l2 sensitivities ρ/B and C/(2B) (add or remove a record), twice
        that when one is exchanged; see `released`. A record whose gradient is zero, not finite, or
        exactly opposite to u has no direction and adds nothing to it.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import transforms
        >>> tx = transforms.tangent_ball(3.0, 0.0, 1, 10.0, 0.0, jax.random.key(0))
        >>> out, _ = tx.update(jnp.array([[3.0, 4.0]]), tx.init(jnp.zeros(2)))
        >>> [f"{x:.3f}" for x in out], sorted(tx.released)
        (['3.000', '4.000'], ['Gaussian', 'TangentBall'])
    """
    fields = check_sizes(radius=radius, noise_std=noise_std, batch_size=batch_size)
    if not isinstance(radius, jax.core.Tracer) and radius > math.pi:
        raise ValueError(f"radius must be an angle, at most π, got {radius!r}")

    def direction(unit: Array, kept: Array, u: Array, key: PRNGKey):
        cosine = _matvec(unit, u)  # of the angle to u, [b]
        across = unit - cosine[:, None] * u[None, :]
        # Over the largest: squares below 1e-38 vanish, and with them the length of what is clipped.
        largest = jnp.max(jnp.abs(across), axis=1, initial=0)
        sine = largest * jnp.linalg.norm(safe_divide(across, largest[:, None]), axis=1)
        angle = jnp.arctan2(sine, cosine)  # in [0, π], accurate at both ends
        used = kept & (sine > 0)
        factor = jnp.minimum(angle, radius) * _DOWN / jnp.where(used, sine, 1)
        mean = weighted_sum(jnp.where(used, factor, 0), across).total / batch_size
        z = normal(key, u.shape, u.dtype)
        tangent = mean + noise_std * z
        tangent = tangent - _matvec(tangent, u) * u  # noise along u is no tangent
        length = jnp.linalg.norm(tangent)  # the angle to go from u
        return jnp.cos(length) * u + jnp.sinc(length / math.pi) * tangent

    return _release_direction(direction, "TangentBall", fields, clip_norm, norm_noise_std, key)


def boxed_angles(
    bounding_factor: float,
    noise_std: float,
    batch_size: int,
    dimension: int,
    clip_norm: float,
    norm_noise_std: float,
    key: PRNGKey,
) -> Release:
    """Average per-example angles, clipped to a box about the previous direction's (G1).

    The faithful repair of GeoDP. A reflection takes the previous direction u to the last axis,
    the centre of the chart, where all angles are π/2 and no pole is near. Record i's angles there,
    less π/2, are clipped to ±βπ/2 (the last to ±βπ), averaged with 1/B, and perturbed; the length
    is released as by `tangent_ball`.

    Args:
        bounding_factor: β in (0, 1].
        noise_std: per angle, radians, ≥ 0.
        dimension: d ≥ 2, the number of parameters; checked against the updates.
        batch_size, clip_norm, norm_noise_std, key: as of `tangent_ball`, and so is the result.

    Raises:
        ValueError: an argument out of range, or a gradient of another dimension.

    Guarantee:
        Two Gaussian mechanisms, of l2 sensitivities √(d+2)·βπ/(2B) and C/(2B) (add or remove a
        record), twice that when one is exchanged; see `released`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import transforms
        >>> tx = transforms.boxed_angles(1.0, 0.0, 1, 3, 10.0, 0.0, jax.random.key(0))
        >>> out, _ = tx.update(jnp.array([[2.0, 3.0, 6.0]]), tx.init(jnp.zeros(3)))
        >>> [f"{x:.2f}" for x in out]
        ['2.00', '3.00', '6.00']
    """
    dimension = int(one_number("dimension", dimension, Range(2.0, whole=True)))
    fields = check_sizes(
        bounding_factor=bounding_factor, noise_std=noise_std, batch_size=batch_size
    )
    fields["dimension"] = dimension
    if not isinstance(bounding_factor, jax.core.Tracer) and bounding_factor > 1:
        raise ValueError(f"bounding_factor must be in (0, 1], got {bounding_factor!r}")

    def direction(unit: Array, kept: Array, u: Array, key: PRNGKey):
        if u.size != dimension:
            raise ValueError(f"dimension must be the gradient's {u.size}, got {dimension}")
        # Householder: v − 2⟨v, m⟩m/‖m‖² with m = u − e_d exchanges u and e_d, and keeps lengths.
        mirror = u.at[-1].add(-1)
        square = _matvec(mirror, mirror)
        scale = jnp.where(square > 1e-12, 2 / jnp.where(square > 1e-12, square, 1), 0)
        reflected = unit - scale * _matvec(unit, mirror)[:, None] * mirror[None, :]
        elevations = jax.vmap(lambda v: to_spherical(v).elevations)(reflected)
        # d − 2 angles within βπ/2 and one within βπ: a term's length is at most √(d+2)·βπ/2.
        box = jnp.full(dimension - 1, 0.5).at[-1].set(1) * (bounding_factor * math.pi * _DOWN)
        box = box.astype(u.dtype)[None, :]
        clipped = jnp.where(kept[:, None], jnp.clip(elevations, -box, box), 0)
        noise = noise_std * normal(key, (dimension - 1,), u.dtype)
        mean = jnp.sum(clipped, axis=0) / batch_size + noise
        out = from_spherical(Spherical(jnp.ones((), u.dtype), mean), u)
        return out - scale * _matvec(out, mirror) * mirror

    return _release_direction(direction, "BoxedAngles", fields, clip_norm, norm_noise_std, key)


def _release_direction(
    direction: Callable,
    name: str,
    fields: dict[str, float],
    clip_norm: float,
    norm_noise_std: float,
    key: PRNGKey,
) -> Release:
    """A mechanism that releases direction(unit, kept, u, key) and, apart from it, a length."""
    scalar("clip_norm", clip_norm, CLIP_NORMS)
    positive("norm_noise_std", norm_noise_std, allow_zero=True)

    def estimate(updates: PyTree, anchor: PyTree, mask: Bool[Array, " b"] | None, key: PRNGKey):
        updates, mask = mask_records(updates, mask)
        u, unravel = ravel_pytree(anchor)
        updates = jax.tree.map(lambda g, a: g.astype(a.dtype), updates, anchor)
        flat = jax.vmap(lambda g: ravel_pytree(g)[0])(updates)
        norms = jnp.linalg.norm(flat, axis=1)
        kept = jnp.isfinite(norms) & mask
        flat = jnp.where(kept[:, None], flat, 0)
        directed = kept & (norms > 0)
        unit = flat / jnp.where(directed, norms, 1)[:, None]
        for_direction, for_length = jax.random.split(key)
        # A release of length 0 has no direction: then about the first one again.
        u = safe_divide(u, jnp.max(jnp.abs(u), initial=0), otherwise=1)
        u = direction(unit, directed, u / jnp.linalg.norm(u), for_direction)
        # Centred at C/2: the term of a record then has length C/2 at most, not C.
        length = jnp.where(kept, jnp.minimum(norms, clip_norm) - clip_norm / 2, 0)
        noise = norm_noise_std * normal(for_length, (), u.dtype)
        # The noise before C/2, whose float32 grid is coarser than what one record of many may move.
        length = clip_norm / 2 + (jnp.sum(length) / fields["batch_size"] + noise)
        return unravel(length * u)

    multiplier = norm_noise_std * fields["batch_size"] / (clip_norm / 2)
    released = {name: fields, "Gaussian": {"noise_multiplier": multiplier}}
    return make_release(estimate, key, released, 0.0, first=jnp.ones_like)


def _matvec(rows: Array, vector: Float[Array, " d"]) -> Array:
    """⟨row, vector⟩ of every row, without TF32 or bfloat16, of which cosines are too coarse."""
    return jnp.matmul(rows, vector, precision=jax.lax.Precision.HIGHEST)
