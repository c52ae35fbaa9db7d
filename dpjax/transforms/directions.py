"""Direction and length released apart: per-example directions clipped about an anchor's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from dpjax._numerics.checks import CLIP_NORMS, Range, one_number, scalar
from dpjax._numerics.normal import normal
from dpjax.gradients.per_example import weighted_sum
from dpjax.transforms.checks import batch_of, mask_of, positive
from dpjax.transforms.coordinates import Spherical, from_spherical, to_spherical, unravel
from dpjax.transforms.geometric import Release, _release, over

_DOWN = 1 - 2.0**-21  # factors are rounded down, so that a clipped term stays in its ball


def tangent_ball(
    radius: float,
    noise_std: float,
    batch_size: int,
    clip_norm: float,
    norm_noise_std: float,
    key: PRNGKeyArray,
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
        A transformation of updates with a leading batch axis, which it drops; `update` takes an
        optional `mask`. The output is the released average. The first direction is (1, …, 1)/√d.

    Raises:
        ValueError: an argument out of range.

    Guarantee:
        Two Gaussian mechanisms, of l2 sensitivities ρ/B and C/(2B) (add or remove a record), twice
        that when one is exchanged; see `released`. A record whose gradient is zero, not finite, or
        exactly opposite to u has no direction and adds nothing to it.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import transforms
        >>> tx = transforms.tangent_ball(3.0, 0.0, 1, 10.0, 0.0, jax.random.key(0))
        >>> out, _ = tx.update(jnp.array([[3.0, 4.0]]), tx.init(jnp.zeros(2)))
        >>> [f"{x:.3f}" for x in out]
        ['3.000', '4.000']
        >>> sorted(tx.released)
        ['Gaussian', 'TangentBall']
    """
    positive("radius", radius)
    if not isinstance(radius, jax.core.Tracer) and radius > math.pi:
        raise ValueError(f"radius must be an angle, at most π, got {radius!r}")

    def direction(unit, kept, u, key):
        cosine = _products(unit, u)
        across = unit - cosine[:, None] * u[None, :]
        # Over the largest: squares below 1e-38 vanish, and with them the length of what is clipped.
        largest = jnp.max(jnp.abs(across), axis=1, initial=0)
        sine = largest * jnp.linalg.norm(over(across, largest[:, None]), axis=1)
        angle = jnp.arctan2(sine, cosine)
        used = kept & (sine > 0)
        factor = jnp.minimum(angle, radius) * _DOWN / jnp.where(used, sine, 1)
        mean = weighted_sum(jnp.where(used, factor, 0), across) / batch_size
        z = normal(key, u.shape, u.dtype)
        tangent = mean + noise_std * z
        tangent = tangent - _products(tangent, u) * u
        length = jnp.linalg.norm(tangent)
        return jnp.cos(length) * u + jnp.sinc(length / math.pi) * tangent

    fields = {"radius": radius, "noise_std": noise_std, "batch_size": batch_size}
    return _directed(direction, "TangentBall", fields, clip_norm, norm_noise_std, key)


def boxed_angles(
    bounding_factor: float,
    noise_std: float,
    batch_size: int,
    dimension: int,
    clip_norm: float,
    norm_noise_std: float,
    key: PRNGKeyArray,
) -> Release:
    """Average per-example angles, clipped to a box about the previous direction's (G1).

    The faithful repair of GeoDP. A reflection takes the previous direction u to the last axis,
    the centre of the chart, where all angles are π/2 and no pole is near. Record i's angles there,
    less π/2, are clipped to ±βπ/2 (the last to ±βπ), averaged with 1/B, and perturbed; the length
    is released as by `tangent_ball`.

    Args:
        bounding_factor: β in (0, 1].
        noise_std: per angle, radians, ≥ 0.
        batch_size: B, public.
        dimension: d ≥ 2, the number of parameters; checked against the updates.
        clip_norm: C > 0, in units of the gradient: the cap on a record's length.
        norm_noise_std: of the released length, ≥ 0.
        key: a JAX key, secret, used for nothing else.

    Returns:
        As `tangent_ball`.

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
    positive("bounding_factor", bounding_factor)
    if not isinstance(bounding_factor, jax.core.Tracer) and bounding_factor > 1:
        raise ValueError(f"bounding_factor must be in (0, 1], got {bounding_factor!r}")
    dimension = int(one_number("dimension", dimension, Range(2.0, whole=True)))

    def direction(unit, kept, u, key):
        if u.size != dimension:
            raise ValueError(f"dimension must be the gradient's {u.size}, got {dimension}")
        mirror = u.at[-1].add(-1)
        square = _products(mirror, mirror)
        scale = jnp.where(square > 1e-12, 2 / jnp.where(square > 1e-12, square, 1), 0)
        reflected = unit - scale * _products(unit, mirror)[:, None] * mirror[None, :]
        elevations = jax.vmap(lambda v: to_spherical(v).elevations)(reflected)
        box = jnp.full(dimension - 1, 0.5).at[-1].set(1) * (bounding_factor * math.pi * _DOWN)
        box = box.astype(u.dtype)[None, :]
        clipped = jnp.where(kept[:, None], jnp.clip(elevations, -box, box), 0)
        noise = noise_std * normal(key, (dimension - 1,), u.dtype)
        mean = jnp.sum(clipped, axis=0) / batch_size + noise
        out = from_spherical(Spherical(jnp.ones((), u.dtype), mean), u)
        return out - scale * _products(out, mirror) * mirror

    fields = {
        "bounding_factor": bounding_factor,
        "noise_std": noise_std,
        "batch_size": batch_size,
        "dimension": dimension,
    }
    return _directed(direction, "BoxedAngles", fields, clip_norm, norm_noise_std, key)


def _directed(
    direction: Callable[[Array, Bool[Array, " b"], Array, PRNGKeyArray], Float[Array, " d"]],
    name: str,
    fields: dict[str, Any],
    clip_norm: float,
    norm_noise_std: float,
    key: PRNGKeyArray,
) -> Release:
    """A mechanism that releases a direction and, apart from it, a length."""
    positive("noise_std", fields["noise_std"], allow_zero=True)
    positive("batch_size", fields["batch_size"])
    scalar("clip_norm", clip_norm, CLIP_NORMS)
    positive("norm_noise_std", norm_noise_std, allow_zero=True)

    def estimate(updates, anchor, mask, key):
        mask = mask_of(batch_of(updates), mask)
        if mask.size == 0:  # an empty batch is one record that takes no part
            updates = jax.tree.map(lambda u: jnp.zeros((1, *u.shape[1:]), u.dtype), updates)
            mask = jnp.zeros(1, bool)
        flat = jax.vmap(_flat)(jax.tree.map(lambda g, a: g.astype(a.dtype), updates, anchor))
        norms = jnp.linalg.norm(flat, axis=1)
        kept = jnp.isfinite(norms) & mask
        flat = jnp.where(kept[:, None], flat, 0)
        directed = kept & (norms > 0)
        unit = flat / jnp.where(directed, norms, 1)[:, None]
        for_direction, for_length = jax.random.split(key)
        # A release of length 0 has no direction: then about the first one again.
        u = _flat(anchor)
        u = over(u, jnp.max(jnp.abs(u), initial=0), otherwise=1)
        u = direction(unit, directed, u / jnp.linalg.norm(u), for_direction)
        # Centred at C/2: the term of a record then has length C/2 at most, not C.
        length = jnp.where(kept, jnp.minimum(norms, clip_norm) - clip_norm / 2, 0)
        noise = norm_noise_std * normal(for_length, (), u.dtype)
        # The noise before C/2, whose float32 grid is coarser than what one record of many may move.
        length = clip_norm / 2 + (jnp.sum(length) / fields["batch_size"] + noise)
        return unravel(length * u, anchor)

    multiplier = norm_noise_std * fields["batch_size"] / (clip_norm / 2)
    released = {name: fields, "Gaussian": {"noise_multiplier": multiplier}}
    return _release(estimate, key, released, 0.0, first=jnp.ones_like)


def _products(rows: Array, vector: Float[Array, " d"]) -> Array:
    """⟨row, vector⟩ of every row, without TF32 or bfloat16, of which cosines are too coarse."""
    return jnp.matmul(rows, vector, precision=jax.lax.Precision.HIGHEST)


def _flat(tree: Any) -> Float[Array, " d"]:
    return jnp.concatenate([x.reshape(-1) for x in jax.tree.leaves(tree)])
