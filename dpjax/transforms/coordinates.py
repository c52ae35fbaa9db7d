"""Hyperspherical coordinates of any tree in O(d), by blocked scans accurate to d = 10⁷.

`spherical_noise` is GeoDP's perturbation of them as published, for reproducing it: it protects
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, PyTree

from dpjax._numerics.checks import positive
from dpjax._numerics.normal import log_of_pair, materialised, normal, sine_cosine
from dpjax._numerics.typing import PRNGKey
from dpjax.transforms.noise import fold_noise_key, refuse_unless_unsafe, start_noise

_BLOCK = 32


class Spherical(NamedTuple):
    """A vector g of d numbers as its norm and d − 1 elevations φ.

    φ_z = π/2 − θ_z, with θ_z = arctan2(√(Σ_{k>z} g_k²), g_z) for z < d − 1 and
    θ_{d−1} = arctan2(g_d, g_{d−1}) the angles of Duan et al. 2025, Equation 25. Most elevations
    are small: near π/2, where θ_z is for large d, float32 would have lost their leading digits.

    Fields:
        norm: ‖g‖ ≥ 0.
        elevations: in [−π/2, π/2], the last in (−π, π]; 0 where g_z and all that follow are zero.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax import transforms
        >>> f"{transforms.Spherical(jnp.array(2.0), jnp.array([0.0])).angles[0]:.3f}"
        '1.571'
    """

    norm: Float[Array, ""]
    elevations: Float[Array, " d-1"]

    @property
    def angles(self) -> Float[Array, " d-1"]:
        """The angles θ, in [0, π], the last in (−π, π]."""
        theta = math.pi / 2 - self.elevations
        last = jnp.where(theta[-1] > math.pi, theta[-1] - 2 * math.pi, theta[-1])
        return theta.at[-1].set(last)


def to_spherical(tree: PyTree) -> Spherical:
    """The hyperspherical coordinates of a tree of d ≥ 2 floating numbers, read leaf after leaf.

    Numbers below the smallest normal one count as zero, as XLA has it.

    Raises:
        ValueError: fewer than two numbers, or complex ones.

    Guarantee:
        `from_spherical(to_spherical(g), g)` is within 1e-5·‖g‖ of g in float32 for d up to 10⁷, and
        the map is differentiable wherever g_d or g_{d−1} is not zero; elsewhere the derivative of
        an angle that is not defined is taken to be zero.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.transforms import to_spherical
        >>> point = to_spherical({"a": jnp.array([1.0]), "b": jnp.array([1.0, -1.0])})
        >>> f"{point.norm:.4f}", [f"{angle:.4f}" for angle in point.angles]
        ('1.7321', ['0.9553', '-0.7854'])

    References:
        Duan et al. 2025, "Analyzing and optimizing perturbation of DP-SGD geometrically",
        Section V-A, Equations 24 to 27.
    """
    return _spherical_coordinates(tree)


@jax.jit  # whose conditionals would be compiled at every call outside a program
def _spherical_coordinates(tree: PyTree) -> Spherical:
    """The coordinates of a tree, by sums of squares or, where these fail, by hypotenuses."""
    x, d = ravel(tree)
    # With the products left out, r·sin φ = x_z, and r·cos φ is the norm of what follows x_z; for
    # z = d − 1 the signed x_d itself.
    squares = running_sums(jnp.square(x), reverse=True)
    # Sums of squares are poor below 2^-100, and lost above 2^127: then a scan of hypotenuses.
    smallest = jnp.min(jnp.where(x == 0, 1, squares + jnp.square(x)))
    fine = (smallest > 2.0**-100) & (squares[0] + jnp.square(x[0]) < 2.0**100)
    opposite = lax.cond(fine, lambda _, s: _take_root(s), _suffix_norms, x, squares)
    norm = _take_hypotenuse(opposite[0], jnp.abs(x[0]))
    signed = (jnp.arange(x.shape[0]) == d - 2) & (x[d - 1] < 0)
    opposite = jnp.where(signed, -opposite, opposite)
    # The derivative of the angle at the origin is undefined; zero is better than NaN.
    y, x = x[: d - 1], opposite[: d - 1]
    origin = (x == 0) & (y == 0)
    angle = jnp.arctan2(jnp.where(origin, 0, y), jnp.where(origin, 1, x))
    return Spherical(norm, jnp.where(origin, 0, angle))


def from_spherical(point: Spherical, like: PyTree) -> PyTree:
    """The tree with the given hyperspherical coordinates; the inverse of `to_spherical`.

        g_z = ‖g‖·cos φ_1⋯cos φ_{z−1}·sin φ_z.

    Args:
        point: the norm (of either sign) and any real elevations.
        like: a tree with the shapes and dtypes of the result.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.transforms import from_spherical, to_spherical
        >>> g = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([0.5])}
        >>> back = from_spherical(to_spherical(g), g)
        >>> bool(jnp.allclose(back["a"], g["a"], atol=1e-6))
        True
    """
    return unravel(_cartesian_coordinates(point), like)


@jax.jit
def _cartesian_coordinates(point: Spherical) -> Float[Array, " n"]:
    d = point.elevations.shape[0] + 1
    elevations = jnp.pad(point.elevations, (0, 1 + -d % _BLOCK))
    return assemble(point.norm, d, sine_cosine, elevations)


def ravel(tree: PyTree) -> tuple[Float[Array, " n"], int]:
    """(all d numbers of a tree and zeros up to a multiple of 32, d), in float32 at least."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    dtype = jnp.float64 if any(x.dtype == jnp.float64 for x in leaves) else jnp.float32
    d = sum(x.size for x in leaves)
    if any(jnp.iscomplexobj(x) for x in leaves):
        raise ValueError("the tree must hold real numbers, got complex ones")
    if d < 2:
        raise ValueError(f"the tree must hold at least two numbers, got {d}")
    parts = [x.astype(dtype).reshape(-1) for x in leaves]
    pad = -d % _BLOCK
    if len(parts) == 1 and pad == 0:
        return parts[0], d
    return materialised(lambda *p: jnp.concatenate([*p, jnp.zeros(pad, dtype)]), *parts), d


def unravel(flat: Float[Array, " n"], like: PyTree) -> PyTree:
    """The inverse of `ravel`, in the shapes and dtypes of `like`."""
    leaves, tree = jax.tree.flatten(like)
    ends = np.cumsum([0, *(math.prod(leaf.shape) for leaf in leaves)]).tolist()
    return tree.unflatten(
        [
            lax.slice(flat, (a,), (b,)).reshape(leaf.shape).astype(leaf.dtype)
            for leaf, a, b in zip(leaves, ends[:-1], ends[1:], strict=True)
        ]
    )


def _take_root(x: Array) -> Array:
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def _take_hypotenuse(a: Array, b: Array) -> Array:
    large, small = jnp.maximum(a, b), jnp.minimum(a, b)
    positive = large > 0
    ratio = jnp.where(positive, small, 0) / jnp.where(positive, large, 1)
    return large * jnp.sqrt(1 + ratio * ratio)


def _suffix_norms(x: Array, _: Array) -> Array:
    return jnp.pad(lax.associative_scan(_take_hypotenuse, jnp.abs(x), reverse=True)[1:], (0, 1))


def running_sums(x: Float[Array, " n"], reverse: bool = False) -> Float[Array, " n"]:
    """Σ_{k < z} x_k for every z (k > z if reversed); the rounding error grows with log n."""
    # A block of 32 is a product with a triangular matrix, which costs less than a pass over memory;
    # `jnp.cumsum` takes ten. Terms of one sign suffer no cancellation. n is a multiple of 32.
    rows = materialised(lambda x: x.reshape(-1, _BLOCK), x)
    ones = np.ones((_BLOCK, _BLOCK))
    triangle = jnp.asarray(np.tril(ones, -1) if reverse else np.triu(ones, 1), x.dtype)
    within = lax.dot(rows, triangle, precision=lax.Precision.HIGHEST)
    blocks = rows.shape[0]
    if blocks == 1:
        return within.reshape(-1)

    def before(rows: Array):
        totals = jnp.pad(jnp.sum(rows, axis=1), (0, -blocks % _BLOCK))
        return running_sums(totals, reverse)[:blocks]

    return (within + materialised(before, rows)[:, None]).reshape(-1)


def assemble(
    radius: Float[Array, ""], d: int, sine_and_cosine: Callable, *args: Float[Array, " n"]
) -> Float[Array, " n"]:
    """r·cos φ_1⋯cos φ_{z−1}·sin φ_z for z < d, r·cos φ_1⋯cos φ_{d−1} for z = d, then rubbish."""

    def pack(*args: Array):
        sine, cosine = sine_and_cosine(*args)
        # The logarithm is never positive: its sign is free to carry the cosine's.
        tiny = float(jnp.finfo(cosine.dtype).tiny)
        size = jnp.clip(jnp.abs(cosine), tiny, 1)
        logarithm = log_of_pair(size, jnp.square(sine) / (1 + size))
        signed = jnp.where(cosine < 0, jnp.maximum(-logarithm, tiny), logarithm)
        return lax.complex(signed, sine)

    # (sin φ, cos φ) = sine_and_cosine(*args), in one pass. The products are cumulative sums of
    # log|cos φ|, which neither overflow nor lose digits; signs are counted apart, if there are any.
    pair = materialised(pack, *args)
    logarithm, sine = lax.real(pair), lax.imag(pair)
    # e^(s/2) twice: the product with r may be in range where e^s is not.
    half = jnp.exp(0.5 * running_sums(-jnp.abs(logarithm)))
    # The last cosine's sign touches the last number alone, and is negative half of the time.
    place = jnp.arange(sine.shape[0])
    end = jnp.where(logarithm[d - 2] > 0, -1, 1).astype(sine.dtype)
    product = radius * half * half * jnp.where(place == d - 1, end, sine)

    def apply_signs(product: Array, pair: Array):
        negative = (lax.real(pair) > 0) & (place < d - 2)
        count = running_sums(negative.astype(product.dtype))  # exact below 2^24
        return product * (1 - 2 * (count % 2))

    has_signs = jnp.max(jnp.where(place < d - 2, logarithm, -1)) > 0
    return lax.cond(has_signs, apply_signs, lambda p, _: p, product, pair)


_LEAST_SQUARE = 1e-37  # squares below it are zero


def spherical_noise(
    noise_multiplier: float,
    clip_norm: float,
    batch_size: int,
    bounding_factor: float,
    key: PRNGKey,
    unsafe_no_dp: bool = False,
) -> optax.GradientTransformation:
    """Perturb the norm and the angles of a clipped sum apart, as GeoDP does. No privacy guarantee.

    With r and θ the hyperspherical coordinates of the sum of clipped gradients (its angles are the
    average's), σ the noise multiplier, C the clip norm, B the batch size and β the bounding factor:

        r* = r + C·σ·Z₀,  θ* = θ + (√(d+2)·β·π·σ/B)·Z,  Z₀, Z standard normal.

    Args:
        noise_multiplier, clip_norm: σ ≥ 0 and C > 0.
        batch_size: B, the expected number of records in the sum.
        bounding_factor: β in (0, 1]. The published algorithm declares the angles to lie in a box of
            that relative size, and does not clip them to it.
        key: a JAX key, used for nothing else.
        unsafe_no_dp: must be True.

    Returns:
        A transformation of the sum that `clip_per_example` returns, in O(d).

    Raises:
        ValueError: `unsafe_no_dp` is not True, or an argument out of range.

    Guarantee:
        None. The angle of an average moves by up to 2C/(B‖ḡ‖) when one record is replaced, which is
        not bounded: claimed ε = 4.38, true 18.0 at d = 2, σ = 1, B = 2048, β = 0.1, δ = 1e-5 and a
        fully aligned batch. `acc.GeoDP` prices it +inf. Use `recentred_clipping`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import transforms
        >>> key, g = jax.random.key(0), {"w": jnp.full(10, 100.0)}
        >>> tx = transforms.spherical_noise(1.0, 1.0, 2048, 0.1, key, unsafe_no_dp=True)
        >>> tx.update(g, tx.init(g))[0]["w"].shape
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
    start = start_noise(key)

    @jax.jit
    def perturb(updates: PyTree, now: PRNGKey):
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

        def rotate(x: Array, following: Array, z: Array, unit: Array, scale: Array, last: Array):
            # θ + n has the sine sin θ cos n + cos θ sin n, and so on: no angle is formed.
            x, end = x * unit, jnp.arange(x.size) == d - 2
            total = jnp.square(x) + following
            inverse = lax.rsqrt(jnp.maximum(total, _LEAST_SQUARE))
            cosine = following * lax.rsqrt(jnp.maximum(following, _LEAST_SQUARE)) * inverse
            cosine = jnp.where(total > _LEAST_SQUARE, jnp.where(end, last * cosine, cosine), 1)
            sine, (turn_sine, turn_cosine) = x * inverse, sine_cosine(z * scale)
            return (
                sine * turn_cosine - cosine * turn_sine,
                cosine * turn_cosine + sine * turn_sine,
            )

        out = assemble(radius, d, rotate, flat, following, z, unit, scale, last)
        return unravel(out, updates)

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None):
        del params
        now, state = fold_noise_key(state, "spherical", updates)
        return perturb(updates, now), state

    return optax.GradientTransformation(lambda params: start(), update)
