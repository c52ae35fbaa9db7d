"""Geometric mechanisms that hold: clipping about an anchor, which earlier releases provide.

The anchor is a function of previous noisy outputs and public data. Given it, each record adds one
term from a set of known diameter, whatever the other records are; the sum of the terms plus
Gaussian noise is a Gaussian mechanism, and the rest (rotation, exponential map) is post-processing.
Adaptive composition covers the anchor's dependence on the past. Sensitivities derived for dpjax, as
repairs of Duan et al. 2025, whose own perturbation has no bounded one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from dpjax._numerics.checks import Range, scalar
from dpjax._numerics.explicit import on_explicit_too, spec_of
from dpjax._numerics.materialise import materialised
from dpjax._numerics.normal import normal_like
from dpjax._numerics.sphere import squared_norm
from dpjax.gradients.strategies import Flat
from dpjax.transforms.checks import batch_of, positive, random_key
from dpjax.transforms.clip import clipped_sum
from dpjax.transforms.noise import NoiseState, add_scaled, key_of
from dpjax.transforms.released import reading


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

    released: dict[str, dict[str, Any]]


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
    key: PRNGKeyArray,
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

    Raises:
        ValueError: an argument out of range.

    Guarantee:
        A Gaussian mechanism of l2 sensitivity r/B (add or remove a record) or 2r/B (exchange one);
        `acc.RecentredGaussian(**tx.released["RecentredGaussian"])`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import transforms
        >>> tx = transforms.recentred_clipping(0.5, 0.0, batch_size=2, key=jax.random.key(0))
        >>> state = tx.init(jnp.zeros(2))
        >>> g = jnp.array([[1.0, 0.0], [1.0, 0.0]])
        >>> for _ in range(3):
        ...     out, state = tx.update(g, state)
        ...     print([f"{x:.2f}" for x in out])
        ['0.50', '0.00']
        ['1.00', '0.00']
        ['1.00', '0.00']
        >>> tx.released
        {'RecentredGaussian': {'radius': 0.5, 'noise_std': 0.0, 'batch_size': 2}}
    """
    _check(radius=radius, batch_size=batch_size)
    positive("noise_std", noise_std, allow_zero=True)
    _check_decay(anchor_decay)

    def estimate(updates, anchor, mask, key):
        offsets = jax.tree.map(lambda g, a: g.astype(a.dtype) - a[None], updates, anchor)
        total, _ = clipped_sum(offsets, radius, Flat(), mask)
        mean = jax.tree.map(lambda s: s / batch_size, total)
        # The noise first, then the anchor: a sum that is rounded on the grid of a far anchor moves
        # by more than r/B; a noisy one is released already, and rounding it post-processes it.
        noisy = add_scaled(mean, normal_like(key, anchor), noise_std)
        return jax.tree.map(jnp.add, anchor, noisy)

    fields = {"radius": radius, "noise_std": noise_std, "batch_size": batch_size}
    return _release(estimate, key, {"RecentredGaussian": fields}, anchor_decay)


def anisotropic_clipping(
    parallel_radius: float,
    perpendicular_radius: float,
    parallel_noise_std: float,
    perpendicular_noise_std: float,
    batch_size: int,
    key: PRNGKeyArray,
    *,
    anchor_decay: float = 0.0,
) -> Release:
    """Clip and perturb the parts along and across the previous released gradient apart (G4).

    With u the anchor's direction, pᵢ = ⟨gᵢ, u⟩ and qᵢ = gᵢ − pᵢu:

        out = u·[(1/B)·Σᵢ clip(pᵢ, ±C∥) + s∥·Z] + (1/B)·Σᵢ clip_{r⊥}(qᵢ) + s⊥·Z⊥,  Z⊥ across u.

    Args:
        parallel_radius, perpendicular_radius: C∥, r⊥ > 0, in units of the gradient.
        parallel_noise_std, perpendicular_noise_std: of the released averages, ≥ 0.
        batch_size: B, public.
        key: a JAX key, secret, used for nothing else.
        anchor_decay: in [0, 1): how much of the old anchor stays.

    Returns:
        As `recentred_clipping`. Without an anchor yet (the first step) everything is across.

    Raises:
        ValueError: an argument out of range.

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
    _check(
        parallel_radius=parallel_radius,
        perpendicular_radius=perpendicular_radius,
        batch_size=batch_size,
    )
    positive("parallel_noise_std", parallel_noise_std, allow_zero=True)
    positive("perpendicular_noise_std", perpendicular_noise_std, allow_zero=True)
    _check_decay(anchor_decay)

    def estimate(updates, anchor, mask, key):
        u = _direction(anchor)
        updates = jax.tree.map(lambda g, a: g.astype(a.dtype), updates, anchor)
        along = jax.vmap(lambda g: _inner(g, u))(updates)
        across = jax.vmap(lambda g, p: _add(g, u, -p))(updates, along)
        total, clipping = clipped_sum(across, perpendicular_radius, Flat(), mask)
        kept = jnp.where(clipping.kept, along, 0)
        parallel = jnp.sum(jnp.clip(kept, -parallel_radius, parallel_radius)) / batch_size
        z, z_along = normal_like(key, (anchor, parallel))
        z_across = _add(z, u, -_inner(z, u))
        mean = jax.tree.map(lambda s: s / batch_size, total)
        noisy = add_scaled(mean, z_across, perpendicular_noise_std)
        # The sum is across u in exact arithmetic; the projection is free and keeps it so.
        noisy = _add(noisy, u, -_inner(noisy, u))
        return _add(noisy, u, parallel + parallel_noise_std * z_along)

    fields = {
        "parallel_radius": parallel_radius,
        "perpendicular_radius": perpendicular_radius,
        "parallel_noise_std": parallel_noise_std,
        "perpendicular_noise_std": perpendicular_noise_std,
        "batch_size": batch_size,
    }
    return _release(estimate, key, {"Anisotropic": fields}, anchor_decay)


def shrink_towards(released: PyTree, anchor: PyTree, noise_std: float | Float[Array, ""]) -> PyTree:
    """Shrink a noisy gradient towards an anchor by James and Stein's positive part: free utility.

        anchor + max(0, 1 − (d − 2)·noise_std²/‖released − anchor‖²)·(released − anchor)

    Post-processing of what was released anyway, and so the rival that a geometric mechanism has to
    beat, next to plain noise and the anchor alone.

    Args:
        released: the noisy gradient; d numbers in all.
        anchor: a function of earlier releases and public data.
        noise_std: standard deviation of the noise in every number of `released`.

    Returns:
        A tree like `released`.

    Guarantee:
        Costs no privacy. Its mean squared error is below that of `released` for every true gradient
        when d ≥ 3.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax import transforms
        >>> out = transforms.shrink_towards(jnp.array([3.0, 0.0, 0.0]), jnp.zeros(3), 1.0)
        >>> [f"{x:.3f}" for x in out]
        ['2.667', '0.000', '0.000']

    References:
        James and Stein 1961, "Estimation with quadratic loss".
    """
    offset = jax.tree.map(jnp.subtract, released, anchor)
    d = sum(x.size for x in jax.tree.leaves(offset))
    squared = squared_norm(offset)
    noise = jnp.asarray(noise_std, squared.dtype)
    moved = squared > 0
    keep = jnp.maximum(0, 1 - max(d - 2, 0) * noise**2 / jnp.where(moved, squared, 1))
    return jax.tree.map(lambda a, o: a + keep.astype(o.dtype) * o, anchor, offset)


def _release(
    estimate: Callable[[PyTree, PyTree, Bool[Array, " b"] | None, PRNGKeyArray], PyTree],
    key: PRNGKeyArray,
    released: dict[str, dict[str, Any]],
    anchor_decay: float,
    first: Callable[[Array], Array] = jnp.zeros_like,
) -> Release:
    """A mechanism from its one step: estimate(updates, anchor, mask, key) -> released average."""

    random_key(key)

    # Computed once: else the anchor's last bits may be those of another sum than was released.
    # Compiled once, where there is no program around it.
    once = jax.jit(functools.partial(materialised, estimate))

    def init(params):
        wide = jax.tree.map(lambda p: p.astype(_at_least_32(p.dtype)), params)
        return AnchorState(jax.tree.map(first, wide), NoiseState(key, jnp.zeros((), jnp.int32)))

    def update(updates, state, params=None, *, mask=None, **extra):
        del params, extra
        now, noise = key_of(state.noise, "+".join(released), updates)
        if (reader := reading()) is not None:
            return reader.release(updates, released), state
        batch_of(updates)
        specs = jax.tree.map(spec_of, state.anchor)
        out = on_explicit_too(once, specs, updates, state.anchor, mask, now)
        anchor = jax.tree.map(lambda a, o: o + anchor_decay * (a - o), state.anchor, out)
        out = jax.tree.map(lambda o, u: o.astype(u.dtype), out, updates)
        return out, AnchorState(anchor, noise)

    tx = Release(init, update)
    tx.released = released
    return tx


def _at_least_32(dtype):
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"params must be of floats, got {dtype}")
    return dtype if jnp.dtype(dtype).itemsize >= 4 else jnp.float32


def _check(**values: Any) -> None:
    for name, value in values.items():
        positive(name, value)


def _check_decay(value: float) -> None:
    scalar("anchor_decay", value, Range(0.0, 1.0, open_high=True))


def _inner(a: PyTree, b: PyTree) -> Float[Array, ""]:
    parts = jax.tree.map(lambda x, y: jnp.sum(x * y), a, b)
    return jax.tree.reduce(jnp.add, parts)


def _add(a: PyTree, b: PyTree, scale: Array) -> PyTree:
    """a + scale·b."""
    return jax.tree.map(lambda x, y: x + scale.astype(y.dtype) * y, a, b)


def _direction(tree: PyTree) -> PyTree:
    """tree/‖tree‖, or zero where the tree is."""
    # Over the largest number first: squares below 1e-38 vanish, and what is divided by the root of
    # the others is longer than one.
    largest = [jnp.max(jnp.abs(x), initial=0) for x in jax.tree.leaves(tree)]
    most = jnp.max(jnp.stack([x.astype(squared_norm(x).dtype) for x in largest]))
    tree = jax.tree.map(lambda x: over(x, most.astype(x.dtype)), tree)
    norm = jnp.sqrt(squared_norm(tree))
    return jax.tree.map(lambda x: over(x, norm.astype(x.dtype)), tree)


def over(x: Array, size: Array, otherwise: float = 0) -> Array:
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
    u, v = _direction(a), _direction(b)
    difference = jnp.sqrt(squared_norm(jax.tree.map(jnp.subtract, u, v)))
    together = jnp.sqrt(squared_norm(jax.tree.map(jnp.add, u, v)))
    return 2 * jnp.arctan2(difference, together).astype(difference.dtype)
