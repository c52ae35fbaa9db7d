"""Geometric mechanisms with a proven price: clipping about an anchor from earlier releases.

The anchor is a function of previous noisy outputs and public data. Given it, each record adds one
term from a set of known diameter, whatever the other records are: with noise the sum of the terms
is a Gaussian mechanism, and the rest (rotation, exponential map) is post-processing. Adaptive
composition covers the anchor's dependence on the past. Sensitivities derived for dpjax, as repairs
of Duan et al. 2025, whose own perturbation has no bounded one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

from dpjax._numerics.checks import Range, positive, scalar
from dpjax._numerics.directions import squared_norm
from dpjax._numerics.explicit import on_explicit_too, partition_spec
from dpjax._numerics.normal import materialised, normal_like
from dpjax._numerics.typing import PRNGKey
from dpjax.gradients.per_example import accumulation_dtype, sum_clipped
from dpjax.gradients.strategies import Flat
from dpjax.transforms.clip import count_update_records, mask_records
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
