"""Adam that takes the noise's variance off its second moments (DP-AdamBC)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from dpjax._numerics.checks import Range, number, one_number
from dpjax.transforms.noise import make_wide_zeros


class AdamBCState(NamedTuple):
    """The state of `scale_by_adam_bc`.

    Fields:
        count: steps taken.
        mean, square: decaying sums of the noisy gradients and of their squares, not corrected.
        noise: the same decaying sum of the noise's variance.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax import transforms
        >>> transforms.scale_by_adam_bc(0.1).init(jnp.array(1.0)).count.item()
        0
    """

    count: Int[Array, ""]
    mean: PyTree
    square: PyTree
    noise: Float[Array, ""]


def scale_by_adam_bc(
    noise_std: float | Sequence[float], b1: float = 0.9, b2: float = 0.999, floor: float = 1e-8
) -> optax.GradientTransformation:
    """Scale noisy gradients as Adam does, by second moments without the noise's share.

    The update is m̂ / √max(v̂ − σ̂², floor): m̂ and v̂ are Adam's corrected moments of the noisy
    gradient and σ̂² is the same mean of the noise's variance, σ² where it is one number. Adam's v̂
    is larger than the gradient's by σ², so that where noise dominates it is SGD with momentum.

    Args:
        noise_std: σ >= 0 of the noise in each coordinate, as `plan.noise_std(0)` says, in units of
            the gradient; or one for each step, of which the last stands for all later steps.
        b1: decay of the first moment, in [0, 1).
        b2: decay of the second, in [0, 1).
        floor: the least second moment, > 0, in squared units of the gradient.

    Raises:
        ValueError: an argument out of range.

    Guarantee:
        Post-processing of noisy gradients and public numbers: it changes no price.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax import transforms
        >>> tx = transforms.scale_by_adam_bc(noise_std=3.0)
        >>> update, _ = tx.update(jnp.array(5.0), tx.init(jnp.array(0.0)))
        >>> f"{update:.3f}"  # 5/√(25 − 9), where Adam's is 1
        '1.250'

    References:
        Tang, Shpilevskiy and Lécuyer 2024, "DP-AdamBC: your DP-Adam is actually DP-SGD (unless
        you apply bias correction)", Algorithm 1.
    """
    stds = np.atleast_1d(np.asarray(number("noise_std", noise_std, Range(0.0)), np.float64))
    if stds.ndim != 1 or not stds.size:
        raise ValueError(f"noise_std must be a number or one for each step, got {noise_std!r}")
    decays = [
        one_number(n, b, Range(0.0, 1.0, open_high=True)) for n, b in (("b1", b1), ("b2", b2))
    ]
    least = one_number("floor", floor, Range(0.0, open_low=True))
    variances = stds**2
    logs = [math.log(decay) if decay > 0 else -math.inf for decay in decays]

    def init(params: PyTree) -> AdamBCState:
        zeros = make_wide_zeros(params)
        return AdamBCState(jnp.zeros((), jnp.int32), zeros, zeros, jnp.zeros(()))

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None):
        del params
        now = jnp.asarray(variances, state.noise.dtype)[jnp.minimum(state.count, stds.size - 1)]
        count = jnp.asarray(optax.safe_increment(state.count))
        # 1 − b^t by expm1: in float32 the difference loses digits while b^t is near 1.
        taken = count.astype(state.noise.dtype)
        decayed = [-jnp.expm1(taken * log) for log in logs]

        def mix(decay, old, new):
            return decay * old + (1 - decay) * new.astype(old.dtype)

        mean = jax.tree.map(lambda m, g: mix(decays[0], m, g), state.mean, updates)
        square = jax.tree.map(
            lambda v, g: mix(decays[1], v, jnp.square(g.astype(v.dtype))), state.square, updates
        )
        noise = mix(decays[1], state.noise, now)

        def scaled(g, m, v):
            signal = jnp.maximum((v - noise.astype(v.dtype)) / decayed[1].astype(v.dtype), least)
            return (m / decayed[0].astype(m.dtype) / jnp.sqrt(signal)).astype(g.dtype)

        return jax.tree.map(scaled, updates, mean, square), AdamBCState(count, mean, square, noise)

    return optax.GradientTransformation(init, update)
