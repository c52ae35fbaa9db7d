"""Geometric mechanisms with a proven price: clipping about an anchor from earlier releases.

The anchor is a function of previous noisy outputs and public data. Given it, each record adds one
term from a set of known diameter, whatever the other records are: with noise the sum of the terms
is a Gaussian mechanism, and the rest (rotation, exponential map) is post-processing. Adaptive
composition covers the anchor's dependence on the past. Sensitivities derived for dpjax, as repairs
of Duan et al. 2025, whose own perturbation has no bounded one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from dpjax._numerics.checks import CLIP_NORMS, Range, one_number, positive, scalar
from dpjax._numerics.directions import squared_norm
from dpjax._numerics.explicit import on_explicit_too, partition_spec
from dpjax._numerics.normal import materialised, normal, normal_like
from dpjax._numerics.typing import PRNGKey
from dpjax.gradients.per_example import accumulation_dtype, sum_clipped, weighted_sum
from dpjax.gradients.strategies import Flat
from dpjax.transforms.clip import count_update_records, mask_records
from dpjax.transforms.coordinates import Spherical, from_spherical, to_spherical
from dpjax.transforms.noise import READER, NoiseState, add_scaled, fold_noise_key, start_noise


class Release(optax.GradientTransformationExtraArgs):
    """A transformation that says what it releases.

    Fields:
        released: the names of the accountant's mechanisms, each with its fields;
            `transforms.released(tx)` makes them one mechanism, through `optax.chain` too.

    Example:
        >>> import jax
        >>> from dpjax import transforms
        >>> tx = transforms.recentred_clipping(0.5, 0.1, batch_size=8, key=jax.random.key(0))
        >>> transforms.released(tx).radius
        0.5
    """

    released: dict[str, dict[str, float]]


class AnchorState(NamedTuple):
    """The state of the geometric mechanisms.

    Fields:
        anchor: what the next step clips about, in float32 at least.
        noise: key and step.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import transforms
        >>> tx = transforms.recentred_clipping(0.5, 0.1, batch_size=8, key=jax.random.key(0))
        >>> tx.init(jnp.zeros(3)).anchor.tolist()
        [0.0, 0.0, 0.0]
    """

    anchor: PyTree
    noise: NoiseState


def recentred_clipping(
    radius: float,
    noise_std: float,
    batch_size: int,
    key: PRNGKey,
    *,
    anchor_decay: float = 0.0,
) -> Release:
    """Clip per-example gradients to a ball about the previous released gradient (the default).

        out = a + [(1/B)·Σᵢ clip_r(gᵢ − a) + noise_std·Z],  then a ← decay·a + (1 − decay)·out.

    Where gradients concentrate about the anchor, r can be far below the clip norm that plain
    clipping needs, and the noise with it. The first anchor is zero: plain clipping.

    Args:
        radius: r > 0, in units of the gradient.
        noise_std: of the released *average*, ≥ 0.
        batch_size: B, the expected number of records in a batch, a public constant.
        key: a JAX key, secret, used for nothing else.
        anchor_decay: in [0, 1): how much of the old anchor stays. Averaged anchors are less noisy.

    Returns:
        A transformation of updates with a leading batch axis, which it drops; `update` takes an
        optional `mask`. Masked and non-finite records contribute zero, not −a. The output is the
        released *average*: no division is left to do.

    Guarantee:
        A Gaussian mechanism of l2 sensitivity r/B (add or remove a record) or 2r/B (exchange one);
        `acc.RecentredGaussian(**tx.released["RecentredGaussian"])`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import transforms
        >>> tx = transforms.recentred_clipping(0.5, 0.0, batch_size=2, key=jax.random.key(0))
        >>> state = tx.init(jnp.zeros(2))
        >>> for _ in range(3):
        ...     out, state = tx.update(jnp.array([[1.0, 0.0], [1.0, 0.0]]), state)
        ...     print([f"{x:.2f}" for x in out], end=" ")
        ['0.50', '0.00'] ['1.00', '0.00'] ['1.00', '0.00']
        >>> tx.released
        {'RecentredGaussian': {'radius': 0.5, 'noise_std': 0.0, 'batch_size': 2}}
    """
    fields = check_sizes(radius=radius, noise_std=noise_std, batch_size=batch_size)

    def estimate(updates: PyTree, anchor: PyTree, mask: Bool[Array, " b"] | None, key: PRNGKey):
        offsets = jax.tree.map(lambda g, a: g.astype(a.dtype) - a[None], updates, anchor)
        offsets, mask = mask_records(offsets, mask)
        (total, _), _ = sum_clipped(offsets, offsets, radius, Flat(), mask)
        mean = jax.tree.map(lambda s: s / batch_size, total)
        # The noise first, then the anchor: a sum that is rounded on the grid of a far anchor moves
        # by more than r/B; a noisy one is released already, and rounding it post-processes it.
        noisy = add_scaled(mean, normal_like(key, anchor), noise_std)
        return jax.tree.map(jnp.add, anchor, noisy)

    return make_release(estimate, key, {"RecentredGaussian": fields}, anchor_decay)


def anisotropic_clipping(
    parallel_radius: float,
    perpendicular_radius: float,
    parallel_noise_std: float,
    perpendicular_noise_std: float,
    batch_size: int,
    key: PRNGKey,
    *,
    anchor_decay: float = 0.0,
) -> Release:
    """Clip and perturb the parts along and across the previous released gradient apart (G4).

    With u the anchor's direction, pᵢ = ⟨gᵢ, u⟩ and qᵢ = gᵢ − pᵢu:

        out = u·[(1/B)·Σᵢ clip(pᵢ, ±C∥) + s∥·Z] + (1/B)·Σᵢ clip_{r⊥}(qᵢ) + s⊥·Z⊥,  Z⊥ across u.

    Without an anchor yet (the first step) everything is across.

    Args:
        parallel_radius, perpendicular_radius: C∥, r⊥ > 0, in units of the gradient.
        parallel_noise_std, perpendicular_noise_std: of the released averages, ≥ 0.
        batch_size, key, anchor_decay: as of `recentred_clipping`, and so is what is returned.

    Guarantee:
        μ-GDP with μ² = (C∥/(B s∥))² + (r⊥/(B s⊥))² when a record is added or removed, 2μ when one
        is exchanged; `acc.Anisotropic(**tx.released["Anisotropic"])`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import transforms
        >>> tx = transforms.anisotropic_clipping(2.0, 0.1, 0.0, 0.0, 1, jax.random.key(0))
        >>> state = tx.init(jnp.zeros(2))
        >>> for g in ([[1.0, 0.0]], [[1.0, 1.0]]):
        ...     out, state = tx.update(jnp.array(g), state)
        >>> [f"{x:.2f}" for x in out]
        ['1.00', '0.10']
    """
    fields = check_sizes(
        parallel_radius=parallel_radius,
        perpendicular_radius=perpendicular_radius,
        parallel_noise_std=parallel_noise_std,
        perpendicular_noise_std=perpendicular_noise_std,
        batch_size=batch_size,
    )

    def estimate(updates: PyTree, anchor: PyTree, mask: Bool[Array, " b"] | None, key: PRNGKey):
        u = _find_direction(anchor)
        updates, mask = mask_records(updates, mask)
        updates = jax.tree.map(lambda g, a: g.astype(a.dtype), updates, anchor)
        along = jax.vmap(lambda g: _inner_product(g, u))(updates)
        across = jax.vmap(lambda g, p: _add(g, u, -p))(updates, along)
        # Parts clipped and perturbed apart are two Gaussians: squares of radius over noise add up.
        (total, _), clipping = sum_clipped(across, across, perpendicular_radius, Flat(), mask)
        kept = jnp.where(clipping.kept, along, 0)  # 0·NaN would be NaN
        parallel = jnp.sum(jnp.clip(kept, -parallel_radius, parallel_radius)) / batch_size
        z, z_along = normal_like(key, (anchor, parallel))
        z_across = _add(z, u, -_inner_product(z, u))
        mean = jax.tree.map(lambda s: s / batch_size, total)
        noisy = add_scaled(mean, z_across, perpendicular_noise_std)
        # The sum is across u in exact arithmetic; the projection is free and keeps it so.
        noisy = _add(noisy, u, -_inner_product(noisy, u))
        return _add(noisy, u, parallel + parallel_noise_std * z_along)

    return make_release(estimate, key, {"Anisotropic": fields}, anchor_decay)


def make_release(
    estimate: Callable[[PyTree, PyTree, Bool[Array, " b"] | None, PRNGKey], PyTree],
    key: PRNGKey,
    released: dict[str, dict[str, float]],
    anchor_decay: float,
    first: Callable[[Array], Array] = jnp.zeros_like,
) -> Release:
    """A mechanism from its one step: estimate(updates, anchor, mask, key) -> released average."""
    scalar("anchor_decay", anchor_decay, Range(0.0, 1.0, open_high=True))
    start = start_noise(key)
    # Computed once: else the anchor's last bits may be those of another sum than was released.
    # Compiled once, where there is no program around it.
    once = jax.jit(functools.partial(materialised, estimate))

    def init(params: PyTree):
        return AnchorState(jax.tree.map(lambda p: first(_widen(p)), params), start())

    def update(
        updates: PyTree,
        state: PyTree,
        params: PyTree | None = None,
        *,
        mask: Bool[Array, " b"] | None = None,
        **extra: object,
    ):
        del params, extra
        now, noise = fold_noise_key(state.noise, "+".join(released), updates)
        if (reader := READER.get()) is not None:
            return reader.release(updates, released), AnchorState(state.anchor, noise)
        count_update_records(updates)
        specs = jax.tree.map(partition_spec, state.anchor)
        out = on_explicit_too(once, specs, updates, state.anchor, mask, now)
        anchor = jax.tree.map(lambda a, o: o + anchor_decay * (a - o), state.anchor, out)
        out = jax.tree.map(lambda o, u: o.astype(u.dtype), out, updates)
        return out, AnchorState(anchor, noise)

    tx = Release(init, update)
    tx.released = released
    return tx


def _widen(leaf: Array) -> Array:
    """A leaf of the parameters in float32 at least."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise ValueError(f"params must be of floats, got {leaf.dtype}")
    return leaf.astype(accumulation_dtype(leaf.dtype))


def check_sizes(**fields: float) -> dict[str, float]:
    """The fields, positive and finite; a standard deviation may be zero."""
    for name, value in fields.items():
        positive(name, value, allow_zero=name.endswith("noise_std"))
    return fields


def _inner_product(a: PyTree, b: PyTree) -> Float[Array, ""]:
    return jax.tree.reduce(jnp.add, jax.tree.map(lambda x, y: jnp.sum(x * y), a, b))


def _add(a: PyTree, b: PyTree, scale: Array) -> PyTree:
    """a + scale·b."""
    return jax.tree.map(lambda x, y: x + scale.astype(y.dtype) * y, a, b)


def _find_direction(tree: PyTree) -> PyTree:
    """tree/‖tree‖, or zero where the tree is."""
    # Over the largest number first: squares below 1e-38 vanish, and what is divided by the root of
    # the others is longer than one.
    largest = [jnp.max(jnp.abs(x), initial=0) for x in jax.tree.leaves(tree)]
    most = jnp.max(jnp.stack([x.astype(squared_norm(x).dtype) for x in largest]))
    tree = jax.tree.map(lambda x: safe_divide(x, most.astype(x.dtype)), tree)
    norm = jnp.sqrt(squared_norm(tree))
    return jax.tree.map(lambda x: safe_divide(x, norm.astype(x.dtype)), tree)


def safe_divide(x: Array, size: Array, otherwise: float = 0) -> Array:
    """x/size, and `otherwise` where the size is zero."""
    zero = size == 0
    return jnp.where(zero, otherwise, x / jnp.where(zero, 1, size))


def angle_between(a: PyTree, b: PyTree) -> Float[Array, ""]:
    """The angle between two trees as vectors, in [0, π], accurate for small angles too.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.transforms import angle_between
        >>> f"{angle_between(jnp.array([1.0, 0.0]), jnp.array([1.0, 1.0])):.4f}"
        '0.7854'
    """
    u, v = _find_direction(a), _find_direction(b)
    difference = jnp.sqrt(squared_norm(jax.tree.map(jnp.subtract, u, v)))
    together = jnp.sqrt(squared_norm(jax.tree.map(jnp.add, u, v)))
    return 2 * jnp.arctan2(difference, together).astype(difference.dtype)


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
