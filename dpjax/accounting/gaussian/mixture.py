"""Privacy of a Gaussian release whose displacement is drawn at random and kept secret.

If the release is μ_j-GDP with probability q_j, whatever j the secret draw takes, then joint
convexity of the hockey-stick divergence gives δ(ε) ≤ Σ_j q_j δ_G(μ_j, ε). Never looser than the
Rényi mixture bound of Chen, Lee and Kifer (2019, Lemma 3) with any conversion. In a composition j
may be taken as
revealed: conditional on all the draws the whole is one Gaussian pair with μ² = Σ μ², so that the
composition is again such a mixture.

Pure functions of float64 arrays; μ and q have shape [m].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Array, Float

from dpjax._numerics.arrays import namespace, with_derivative
from dpjax._numerics.roots import falling_root
from dpjax.accounting.gaussian import pair

Scalar = Float[Array, ""]
Components = Float[Array, " m"]


def mixture_terms(
    mus: Components, weights: Components, epsilon: Scalar
) -> tuple[Array, Array, Array, Array]:
    """log Σ q_j δ_G(μ_j, ε) over the finite μ_j > 0, and its derivatives by μ_j, q_j and ε."""
    xp: Any = namespace(mus, weights, epsilon)
    used = (mus > 0) & (mus < 1e150) & (epsilon < 1e100 * mus)
    logs, by_mu, ratio = pair.parts(xp.where(used, mus, 1.0), xp.where(used, epsilon, 1.0))
    shares = xp.where(used & (weights > 0), weights, 0.0)
    top = xp.max(xp.where(shares > 0, logs, -1e300))
    total = xp.sum(shares * xp.exp(xp.minimum(logs - top, 0.0)))
    some = total > 0
    value = top + xp.log(xp.where(some, total, 1.0))
    by_weight = xp.where(used & some, xp.exp(logs - value), 0.0)
    by_mu = xp.where(shares > 0, shares * by_weight * by_mu, 0.0)
    rounded = xp.minimum(value + 1e-15 * (8 + xp.abs(top)), 0.0)
    return xp.where(some, rounded, -xp.inf), by_mu, by_weight, -xp.sum(by_mu * ratio)


@with_derivative
def _log_delta(mus: Array, weights: Array, epsilon: Array) -> Array:
    return mixture_terms(mus, weights, epsilon)[0]


@_log_delta.defjvp
def _log_delta_jvp(primals: tuple, tangents: tuple) -> tuple:
    xp: Any = namespace(*primals)
    value, by_mu, by_weight, by_epsilon = mixture_terms(*primals)
    moved = xp.sum(by_mu * tangents[0] + by_weight * tangents[1]) + by_epsilon * tangents[2]
    return value, moved


def _lost(mus: Array, weights: Array) -> Array:
    """The chance of a component without privacy; what is not a number is one."""
    xp: Any = namespace(mus, weights)
    bad = ~(mus < 1e150) | ~(mus >= 0)
    lost = xp.sum(xp.where(bad, xp.where(weights >= 0, weights, 1.0), 0.0)) * (1 + 1e-12)
    return xp.where(xp.all(weights >= 0), lost, 1.0)


def mixture_delta(mus: Components, weights: Components, epsilon: Scalar) -> Array:
    """Σ q_j δ_G(μ_j, ε), ε >= 0, rounded up."""
    xp: Any = namespace(mus, weights, epsilon)
    known = epsilon >= 0
    log_value = _log_delta(mus, weights, xp.where(known, epsilon, 0.0))
    return xp.where(known, xp.minimum(xp.exp(log_value) + _lost(mus, weights), 1.0), 1.0)


@with_derivative
def _root(mus: Array, weights: Array, log_target: Array) -> Array:
    xp: Any = namespace(mus, weights, log_target)
    worst = xp.max(xp.where((weights > 0) & (mus < 1e150), mus, 0.0))
    high = pair.epsilon(worst, xp.exp(log_target))
    nothing = mixture_terms(mus, weights, xp.zeros_like(high))[0] <= log_target
    high = xp.where(nothing, 0.0, high)

    def function(epsilon: Array) -> tuple[Array, Array]:
        value, _, _, slope = mixture_terms(mus, weights, epsilon)
        return value - log_target, slope

    tolerance = 1e-13 - 2e-15 * log_target
    return falling_root(function, high, xp.zeros_like(high), high, tolerance=tolerance)


@_root.defjvp
def _root_jvp(primals: tuple, tangents: tuple) -> tuple:
    xp: Any = namespace(*primals)
    root = _root(*primals)
    mus, weights, _ = primals
    _, by_mu, by_weight, slope = mixture_terms(mus, weights, root)
    moved = xp.sum(by_mu * tangents[0] + by_weight * tangents[1])
    active = (root > 0) & (slope < 0)
    return root, xp.where(active, (tangents[2] - moved) / xp.where(active, slope, 1.0), 0.0)


def mixture_epsilon(mus: Components, weights: Components, delta: Scalar) -> Array:
    """Smallest ε >= 0 with Σ q_j δ_G(μ_j, ε) <= δ, rounded up; its derivative is exact.

    Components without privacy take their chance from δ.
    """
    xp: Any = namespace(mus, weights, delta)
    left = delta * (1 - 1e-15) - _lost(mus, weights)
    usable = (left > 0) & (delta < 1)
    root = _root(mus, weights, xp.log(xp.where(usable, left, 0.5)))
    return xp.where(usable, root, xp.where((left > 0) & (delta >= 1), 0.0, xp.inf))


def mixture_rdp(mus: Components, weights: Components, orders: Float[Array, " k"]) -> Array:
    """Rényi curve log(Σ q_j exp(α(α−1)μ_j²/2))/(α−1), shape [k], rounded up.

    References:
        Chen, Lee and Kifer 2019, Lemma 3.
    """
    xp: Any = namespace(mus, weights, orders)
    gain = orders[:, None] - 1
    present = weights > 0
    known = xp.all((mus >= 0) & (mus < 1e150) & (weights >= 0) | (weights == 0))
    mus = xp.where(known & present, mus, 0.0)
    exponent = orders[:, None] * gain * xp.square(mus)[None, :] / 2
    top = xp.max(xp.where(present, exponent, 0.0), axis=1, keepdims=True)
    # log1p of the sum of expm1 where everything is tiny, log-sum-exp where anything is large.
    small = xp.sum(weights * xp.expm1(xp.minimum(exponent, 1.0)), axis=1)
    shifted = xp.where(present, weights * xp.exp(exponent - top), 0.0)
    large = top[:, 0] + xp.log(xp.maximum(xp.sum(shifted, axis=1), 1e-300))
    value = xp.where(top[:, 0] < 1.0, xp.log1p(small), large)
    return xp.where(known & (orders > 1), value / gain[:, 0] * (1 + 1e-13), xp.inf)


def add_components(
    squares: np.ndarray, weights: np.ndarray, more: np.ndarray, chances: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """Law of the sum of two independent draws of μ², at most `limit` values, rounded upwards."""
    sums = (squares[:, None] + more[None, :]).ravel()
    chance = (weights[:, None] * chances[None, :]).ravel()
    if sums.size > limit and np.ptp(sums) > 0:
        step = np.ptp(sums) / (limit - 1)
        sums = sums.min() + np.ceil((sums - sums.min()) / step * (1 - 1e-12)) * step
    values, place = np.unique(sums, return_inverse=True)
    return values, np.bincount(place.ravel(), chance, minlength=values.size)
