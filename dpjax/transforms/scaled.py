"""Adam on gradients that are divided by its second moments before they are clipped."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from dpjax._numerics.checks import Range, one_number, positive, scalar
from dpjax._numerics.typing import Number
from dpjax.transforms.noise import make_wide_zeros

_LEAST = 0.1  # a second moment's floor, as a share of the noise's variance in it


class ScaledState(NamedTuple):
    """The state of `scale_then_privatise`.

    Fields:
        mean, square: decaying means of what was released, divided by its scale, and of its squares.
        noise: the same mean of the noise's variance in each number.
        scale: that of the next step's gradients, for `clipped_grad(...)(..., scale=state.scale)`.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax import transforms
        >>> transforms.scale_then_privatise(0.1).init(jnp.zeros(2)).scale.tolist()
        [1.0, 1.0]
    """

    mean: PyTree
    square: PyTree
    noise: PyTree
    scale: PyTree


def scale_then_privatise(
    noise_std: Number, b1: float = 0.9, b2: float = 0.99, removed: Number = 0.0
) -> optax.GradientTransformation:
    """Adam, whose gradients are divided by the root of its second moments before the clip:

        update = m/√v,  m and v the decaying means of h/scale and of its square,

    for h the noisy mean of gradients that were multiplied by `state.scale` before they were
    clipped. The next scale is 1/√v, with a mean square of 1. Columns or parameters of small
    gradients then have as small a noise, where clip and noise as they are drown them. v starts at
    the noise's variance, without Adam's correction of its start, and is never below a tenth of it.

    Args:
        noise_std: > 0, of the noise in each number of h: `plan.noise_std(0)`. May be traced.
        b1: decay of the first moment, in [0, 1).
        b2: decay of the second, in [0, 1).
        removed: the share of the noise's variance that is taken off v, in [0, 1]. May be traced.

    Raises:
        ValueError: an argument out of range.

    Guarantee:
        Post-processing of what was released: `state.scale` is a function of earlier releases alone,
        so that the clipped sum of the gradients that it scales has the sensitivity of the others,
        and the step its price.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import clipped_grad, transforms
        >>> clipped = clipped_grad(lambda w, x: jnp.sum(w * x), clip_norm=1.0)
        >>> tx = transforms.scale_then_privatise(noise_std=0.1)
        >>> w, x = jnp.zeros(2), jnp.array([[0.3, 0.003]])
        >>> state = tx.init(w)
        >>> for _ in range(500):
        ...     mean = clipped(w, x, scale=state.scale).sum  # in earnest: with noise
        ...     update, state = tx.update(mean, state)
        >>> f"{state.scale[1] / state.scale[0]:.1f}"  # 100, but for the floor of v
        '13.3'

    References:
        Ganesh, McMahan and Thakurta 2025, "On design principles for private adaptive optimizers"
        (scale-then-privatize).
    """
    positive("noise_std", noise_std)
    allowed = Range(0.0, 1.0, open_high=True)
    b1, b2 = one_number("b1", b1, allowed), one_number("b2", b2, allowed)
    scalar("removed", removed, Range(0.0, 1.0))

    def init(params: PyTree) -> ScaledState:
        zeros = make_wide_zeros(params)
        noise = jax.tree.map(lambda z: z + jnp.asarray(noise_std, z.dtype) ** 2, zeros)
        # Each field has buffers of its own: a step that donates the state gives none up twice.
        square = jax.tree.map(jnp.copy, noise)
        return ScaledState(zeros, square, noise, jax.tree.map(lambda z: z + 1, zeros))

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None):
        del params
        released = jax.tree.map(lambda h, s: h.astype(s.dtype) / s, updates, state.scale)

        def mix(decay: float, old: PyTree, new: PyTree) -> PyTree:
            return jax.tree.map(lambda o, n: decay * o + (1 - decay) * n, old, new)

        mean = mix(b1, state.mean, released)
        square = mix(b2, state.square, jax.tree.map(jnp.square, released))
        # Divided by its scale, the noise has the standard deviation noise_std/scale.
        own = jax.tree.map(lambda s: jnp.square(jnp.asarray(noise_std, s.dtype) / s), state.scale)
        noise = mix(b2, state.noise, own)

        def remove(v: Array, n: Array) -> Array:
            return jnp.maximum(v - jnp.asarray(removed, n.dtype) * n, _LEAST * n)

        kept = jax.tree.map(remove, square, noise)
        scale = _normalise(jax.tree.map(lambda v: 1 / v, kept))
        step = jax.tree.map(lambda m, v, h: (m / jnp.sqrt(v)).astype(h.dtype), mean, kept, updates)
        return step, ScaledState(mean, square, noise, scale)

    return optax.GradientTransformation(init, update)


def _normalise(squares: PyTree) -> PyTree:
    """The roots of the squares over their mean, so that a clip norm means the same."""
    leaves = jax.tree.leaves(squares)
    count = sum(leaf.size for leaf in leaves)
    # In float32 at least, over all leaves at once.
    total = jnp.sum(jnp.stack([jnp.sum(leaf, dtype=jnp.float32) for leaf in leaves]))

    def divide(leaf: Array) -> Array:
        return jnp.sqrt(leaf / (total / count).astype(leaf.dtype))

    return jax.tree.map(divide, squares)
