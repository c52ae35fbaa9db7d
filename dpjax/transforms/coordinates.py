"""Hyperspherical coordinates of any tree in O(d), by blocked scans accurate to d = 10⁷."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

from dpjax._numerics.elementary import log_of_pair, sine_cosine
from dpjax._numerics.materialise import materialised

_BLOCK = 32


class Spherical(NamedTuple):
    """A vector g of d numbers as its norm and d − 1 elevations φ.

    φ_z = π/2 − θ_z, with θ_z = arctan2(√(Σ_{k>z} g_k²), g_z) for z < d − 1 and
    θ_{d−1} = arctan2(g_d, g_{d−1}) the angles of Duan et al. 2025, equation (3). Elevations are
    kept because most of them are small: θ_z is near π/2 for large d, and π/2 − θ_z would have lost
    its leading digits in float32.

    Fields:
        norm: ‖g‖ ≥ 0.
        elevations: in [−π/2, π/2], the last in (−π, π]; 0 where g_z and all that follow are zero.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax import transforms
        >>> point = transforms.Spherical(jnp.array(2.0), jnp.array([math.pi / 2]))
        >>> [f"{x:.3f}" for x in transforms.from_spherical(point, jnp.zeros(2)) + 1e-6]
        ['2.000', '0.000']
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
    """The hyperspherical coordinates of a tree of d ≥ 2 numbers, read leaf after leaf.

    Suffix norms are sums of squares by blocks of 32 (a product with a triangular matrix), scaled by
    the largest number; where a suffix is so small beside it that its squares vanish, a scan of
    hypotenuses takes over. Numbers below the smallest normal one count as zero, as XLA has it.

    Args:
        tree: floating arrays.

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
        Duan et al. 2025, "Analyzing and optimizing perturbation of DP-SGD geometrically", §V.
    """
    return _of_tree(tree)


@jax.jit  # whose conditionals would be compiled at every call outside a program
def _of_tree(tree: PyTree) -> Spherical:
    flat, d = ravel(tree)
    norm, cosine_part = norm_and_opposite(flat, d)
    return Spherical(norm, _arctan2(flat[: d - 1], cosine_part[: d - 1]))


def from_spherical(point: Spherical, like: PyTree) -> PyTree:
    """The tree with the given hyperspherical coordinates; the inverse of `to_spherical`.

    g_z = ‖g‖·cos φ_1⋯cos φ_{z−1}·sin φ_z. The products are cumulative sums of log|cos φ|, so that
    they neither overflow nor lose digits, and signs are counted apart.

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
    return unravel(_of_point(point), like)


@jax.jit
def _of_point(point: Spherical) -> Float[Array, " n"]:
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


def norm_and_opposite(x: Float[Array, " n"], d: int) -> tuple[Float[Array, ""], Float[Array, " n"]]:
    """‖x‖, and for every z the norm of what follows x_z; for z = d − 1 the signed x_d itself.

    With the products left out these are r·sin φ = x_z and r·cos φ of the elevations.
    """
    squares = running_sums(jnp.square(x), reverse=True)
    # Sums of squares are poor below 2^-100, and lost above 2^127: then a scan of hypotenuses.
    smallest = jnp.min(jnp.where(x == 0, 1, squares + jnp.square(x)))
    fine = (smallest > 2.0**-100) & (squares[0] + jnp.square(x[0]) < 2.0**100)
    opposite = lax.cond(fine, lambda _, s: _root(s), _following_norms, x, squares)
    norm = _hypotenuse(opposite[0], jnp.abs(x[0]))
    signed = (jnp.arange(x.shape[0]) == d - 2) & (x[d - 1] < 0)
    return norm, jnp.where(signed, -opposite, opposite)


def _root(x: Array) -> Array:
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def _hypotenuse(a: Array, b: Array) -> Array:
    large, small = jnp.maximum(a, b), jnp.minimum(a, b)
    positive = large > 0
    ratio = jnp.where(positive, small, 0) / jnp.where(positive, large, 1)
    return large * jnp.sqrt(1 + ratio * ratio)


def _following_norms(x: Array, _: Array) -> Array:
    return jnp.pad(lax.associative_scan(_hypotenuse, jnp.abs(x), reverse=True)[1:], (0, 1))


def running_sums(x: Float[Array, " n"], reverse: bool = False) -> Float[Array, " n"]:
    """Σ_{k < z} x_k for every z (k > z if reversed); the rounding error grows with log n.

    A block of 32 is a product with a triangular matrix, which costs less than a pass over memory;
    `jnp.cumsum` takes ten. Terms of one sign suffer no cancellation. n is a multiple of 32.
    """
    rows = materialised(lambda x: x.reshape(-1, _BLOCK), x)
    ones = np.ones((_BLOCK, _BLOCK))
    triangle = jnp.asarray(np.tril(ones, -1) if reverse else np.triu(ones, 1), x.dtype)
    within = lax.dot(rows, triangle, precision=lax.Precision.HIGHEST)
    blocks = rows.shape[0]
    if blocks == 1:
        return within.reshape(-1)

    def before(rows):
        totals = jnp.pad(jnp.sum(rows, axis=1), (0, -blocks % _BLOCK))
        return running_sums(totals, reverse)[:blocks]

    return (within + materialised(before, rows)[:, None]).reshape(-1)


def assemble(
    radius: Float[Array, ""], d: int, sine_and_cosine: Callable, *args: Float[Array, " n"]
) -> Float[Array, " n"]:
    """r·cos φ_1⋯cos φ_{z−1}·sin φ_z for z < d, r·cos φ_1⋯cos φ_{d−1} for z = d, and rubbish after.

    (sin φ, cos φ) = sine_and_cosine(*args), computed in one pass. The products are cumulative sums
    of log|cos φ|; signs are counted apart, where there are any.
    """

    def packed(*args):
        sine, cosine = sine_and_cosine(*args)
        # The logarithm is never positive: its sign is free to carry the cosine's.
        size = jnp.clip(jnp.abs(cosine), _tiny(cosine.dtype), 1)
        logarithm = log_of_pair(size, jnp.square(sine) / (1 + size))
        signed = jnp.where(cosine < 0, jnp.maximum(-logarithm, _tiny(cosine.dtype)), logarithm)
        return lax.complex(signed, sine)

    pair = materialised(packed, *args)
    logarithm, sine = lax.real(pair), lax.imag(pair)
    # e^(s/2) twice: the product with r may be in range where e^s is not.
    half = jnp.exp(0.5 * running_sums(-jnp.abs(logarithm)))
    # The last cosine's sign touches the last number alone, and is negative half of the time.
    place = jnp.arange(sine.shape[0])
    end = jnp.where(logarithm[d - 2] > 0, -1, 1).astype(sine.dtype)
    product = radius * half * half * jnp.where(place == d - 1, end, sine)

    def signed(product, pair):
        negative = (lax.real(pair) > 0) & (place < d - 2)
        count = running_sums(negative.astype(product.dtype))  # exact below 2^24
        return product * (1 - 2 * (count % 2))

    turned = jnp.max(jnp.where(place < d - 2, logarithm, -1)) > 0
    return lax.cond(turned, signed, lambda p, _: p, product, pair)


def _tiny(dtype) -> float:
    return float(jnp.finfo(dtype).tiny)


def _arctan2(y: Array, x: Array) -> Array:
    # The derivative at the origin is undefined; zero is better than NaN.
    origin = (x == 0) & (y == 0)
    return jnp.where(origin, 0, jnp.arctan2(jnp.where(origin, 0, y), jnp.where(origin, 1, x)))
