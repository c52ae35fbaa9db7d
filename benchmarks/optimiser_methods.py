"""The optimisers of `benchmarks.optimisers`: optax transformations that are told the noise.

Each is made from a learning rate, a number of its own and the standard deviation of the noise in
every coordinate of the mean gradient, which may all be traced. They see what was released alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree
from scipy import signal

from dpjax import transforms

Number = float | Float[Array, ""]
Make = Callable[[Number, Number, Number], optax.GradientTransformation]


def momentum(rate: Number, decay: Number, noise_std: Number) -> optax.GradientTransformation:
    """SGD with momentum, whose steps add up to `rate` gradients."""
    del noise_std
    return optax.chain(optax.trace(decay=decay), optax.scale(-rate * (1 - decay)))


def adam(rate: Number, b2: Number, noise_std: Number) -> optax.GradientTransformation:
    """Adam, whose second moments hold the noise's variance."""
    del noise_std
    return optax.adam(rate, b2=b2)


class AdamBCState(NamedTuple):
    """Steps taken, and decaying sums of the noisy gradients and of their squares."""

    count: Array
    mean: PyTree
    square: PyTree


def scale_by_adam_bc(
    noise_std: Number, floor: Number, b1: float = 0.9, b2: float = 0.999
) -> optax.GradientTransformation:
    """DP-AdamBC: m̂ / √max(v̂ − σ², floor), where Adam divides by √v̂ (Tang et al. 2024)."""

    def init(params: PyTree) -> AdamBCState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AdamBCState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None):
        del params
        count = state.count + 1
        mean = optax.tree.update_moment(updates, state.mean, b1, 1)
        square = optax.tree.update_moment_per_elem_norm(updates, state.square, b2, 2)
        first = optax.tree.bias_correction(mean, b1, count)
        second = optax.tree.bias_correction(square, b2, count)
        # The noise is independent of the gradient: E v̂ is the gradient's second moment plus σ².
        kept = jax.tree.map(lambda v: jnp.maximum(v - noise_std**2, floor), second)
        scaled = jax.tree.map(lambda m, v: m / jnp.sqrt(v), first, kept)
        return scaled, AdamBCState(count, mean, square)

    return optax.GradientTransformation(init, update)


def adam_bc(rate: Number, share: Number, noise_std: Number) -> optax.GradientTransformation:
    """DP-AdamBC with `share` of the noise's variance for a floor."""
    tx = scale_by_adam_bc(noise_std, share * noise_std**2)
    return optax.chain(tx, optax.scale(-rate))


def scaled(rate: Number, removed: Number, noise_std: Number) -> optax.GradientTransformation:
    """`transforms.scale_then_privatise`; the state that has the scale comes first."""
    own = transforms.scale_then_privatise(noise_std, removed=removed)
    return optax.chain(own, optax.scale(-rate))


# Low-pass filters of Butterworth with one cutoff: that at which the first has the pole 0.9. Each as
# b₀, b₁, b₂ and a₁, a₂ of mₜ = Σ b·g − Σ a·m.
CUTOFF = 2 / math.pi * math.atan(1 / 19)
FILTERS = np.zeros((2, 5))
for _order in (1, 2):
    _b, _a = signal.butter(_order, CUTOFF)
    FILTERS[_order - 1, : _order + 1], FILTERS[_order - 1, 3 : 3 + _order] = _b, _a[1:]


class FilterState(NamedTuple):
    """The last two inputs and outputs of a filter, and those of the same filter on ones."""

    past: tuple[PyTree, PyTree, PyTree, PyTree]
    ones: Float[Array, "4"]


def doppler(rate: Number, order: Number, noise_std: Number) -> optax.GradientTransformation:
    """DOPPLER: a low-pass filter of first or second order, its start corrected (Zhang 2024)."""
    del noise_std
    numbers = jnp.asarray(FILTERS, jnp.float32)[jnp.asarray(order, jnp.int32) - 1]

    def weigh(now: Array, before: Array, twice: Array, first: Array, second: Array) -> Array:
        b0, b1, b2, a1, a2 = numbers
        return b0 * now + b1 * before + b2 * twice - a1 * first - a2 * second

    def init(params: PyTree) -> FilterState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return FilterState((zeros, zeros, zeros, zeros), jnp.zeros(4))

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None):
        del params
        g1, _, m1, _ = state.past
        filtered = jax.tree.map(weigh, updates, *state.past)
        one = weigh(jnp.ones(()), *state.ones)  # of a constant gradient of 1
        ones = jnp.stack([jnp.ones(()), state.ones[0], one, state.ones[2]])
        step = jax.tree.map(lambda m: -rate * m / one, filtered)
        return step, FilterState((updates, g1, filtered, m1), ones)

    return optax.GradientTransformation(init, update)


class KalmanState(NamedTuple):
    """Steps taken, the filtered gradient, how far ahead the gradient is taken, the rest's state."""

    count: Array
    filtered: PyTree
    ahead: PyTree
    inner: optax.OptState


def disk(rate: Number, gain: Number, noise_std: Number) -> optax.GradientTransformation:
    """DiSK (Zhang et al. 2025) with γ = (1 − κ)/κ, where it takes one gradient, before momentum.

    The parameters are xₜ + γ·(xₜ − xₜ₋₁), where the gradient is taken: with u the step of x, they
    move by (1 + γ)·u less what they were ahead by.
    """
    inner = momentum(rate, 0.9, noise_std)
    further = (1 - gain) / gain

    def init(params: PyTree) -> KalmanState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return KalmanState(jnp.zeros((), jnp.int32), zeros, zeros, inner.init(params))

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None):
        # The first gradient is its own estimate.
        weight = jnp.where(state.count == 0, jnp.ones(()), jnp.asarray(gain, jnp.float32))
        filtered = jax.tree.map(lambda f, g: f + weight * (g - f), state.filtered, updates)
        step, after = inner.update(filtered, state.inner, params)
        moved = jax.tree.map(lambda u, e: (1 + further) * u - e, step, state.ahead)
        ahead = jax.tree.map(lambda u: further * u, step)
        return moved, KalmanState(state.count + 1, filtered, ahead, after)

    return optax.GradientTransformation(init, update)


class Method(NamedTuple):
    """An optimiser, and what it takes the noisy sum of.

    Fields:
        make: `make(rate, number, noise_std)`, a transformation of the noisy mean.
        numbers: the two values of the method's own number.
        about: what this number is.
        start: the first learning rate, over the task's.
        released: the clipped gradient; the same times the scale of the state; or the one number
            that is the gradient along a normal direction, drawn anew in every step.
    """

    make: Make
    numbers: tuple[float, float]
    about: str
    start: float
    released: Literal["gradient", "scaled", "direction"] = "gradient"


BASELINE = "SGD, momentum"
METHODS: dict[str, Method] = {
    BASELINE: Method(momentum, (0.9, 0.97), "momentum", 1.0),
    "Adam": Method(adam, (0.99, 0.999), "b2", 0.01),
    "DP-AdamBC": Method(adam_bc, (0.03, 0.3), "floor over the noise's variance", 0.01),
    "scaled before the clip": Method(
        scaled, (0.0, 1.0), "share of the noise taken off", 0.01, "scaled"
    ),
    "DOPPLER": Method(doppler, (1, 2), "order of the filter", 1.0),
    "DiSK": Method(disk, (0.7, 0.5), "gain", 1.0),
    "zeroth order": Method(momentum, (0.0, 0.9), "momentum", 0.5, "direction"),
}
