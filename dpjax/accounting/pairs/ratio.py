"""The likelihood ratio of a sampled Gaussian: r(y) = 1 − q + q e^{w(y)}, w(y) = μy − μ²/2.

In units of the noise's standard deviation: the density of (1−q)N(0, 1) + qN(μ, 1) over N(0, 1)'s.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Array

from dpjax._numerics.arrays import NUMPY, namespace


def log_ratio(y: Any, mu: Any, rate: Any) -> Any:
    """log r(y), to full relative precision, for every 0 ≤ q ≤ 1."""
    return log_mixture(mu * y - 0.5 * mu * mu, rate)


def log_mixture(w: Any, rate: Any) -> Any:
    """log(1 − q + q e^w), to full relative precision, for every 0 ≤ q ≤ 1."""
    xp: Any = namespace(w, rate)
    if xp is NUMPY and np.all(w <= 30.0) and np.all(rate < 1):
        # Mostly nothing is near log 0 either: the same numbers as below, in two calls.
        grown = rate * np.expm1(w)
        if np.all(grown > -0.5):
            return np.log1p(grown)
    far = xp.maximum(w, 30.0)
    high = far + xp.log(rate + (1 - rate) * xp.exp(-far))
    near = xp.clip(w, -700.0, 30.0)
    excess = rate * xp.expm1(near)
    direct = xp.log(xp.maximum((1 - rate) + rate * xp.exp(near), 1e-300))
    low = xp.where(excess > -0.5, xp.log1p(xp.maximum(excess, -0.5)), direct)
    # At rate 1 the ratio is e^w itself, also where e^w underflows.
    low = xp.where(rate < 1, low, xp.minimum(w, 30.0))
    return xp.where(w > 30.0, high, low)


def rough_log_ratio(y: Any, mu: Any, rate: Any) -> Any:
    """log r(y), to full relative precision but where r is close to 0: two transcendentals of six.

    For searches, whose result any error leaves valid.
    """
    xp: Any = namespace(y, mu, rate)
    if xp is NUMPY:  # there `log_mixture` mostly takes two as well
        return log_ratio(y, mu, rate)
    w = mu * y - 0.5 * mu * mu
    near = xp.log1p(rate * xp.expm1(xp.minimum(w, 600.0)))
    return xp.where(rate < 1, xp.where(w > 600.0, w + xp.log(rate), near), w)


def posterior(y: Any, mu: Any, rate: Any) -> Any:
    """π(y) = q e^w/r(y), the probability that the record took part; d log r/dy = μπ."""
    xp: Any = namespace(y, mu, rate)
    w = xp.clip(mu * y - 0.5 * mu * mu, -700.0, 700.0)
    return xp.exp(xp.log(rate) - xp.logaddexp(xp.log(rate), xp.log1p(-rate) - w))


def excess(y: Array, mu: Array, rate: Array) -> Array:
    """r(y) − 1."""
    xp: Any = namespace(y, mu, rate)
    return rate * xp.expm1(xp.minimum(mu * y - 0.5 * mu * mu, 600.0))


def log_ratio_slopes(y: Array, mu: Array, rate: Array) -> tuple[Array, Array]:
    """∂ log r(y)/∂μ = π(y)(y − μ) and ∂ log r(y)/∂q = (e^w − 1)/r(y)."""
    xp: Any = namespace(y, mu, rate)
    w = mu * y - 0.5 * mu * mu
    low, high = xp.clip(w, -700.0, 0.0), xp.maximum(w, 0.0)
    below = xp.expm1(low) / (1 - rate + rate * xp.exp(low))
    above = -xp.expm1(-high) / (rate + (1 - rate) * xp.exp(-high))
    return posterior(y, mu, rate) * (y - mu), xp.where(w > 0, above, below)


# --- where the loss is, for grids; NumPy's alone


def ndtr(x: Any) -> Any:
    """Φ(x)."""
    from scipy import special  # a third of a second, and only loss distributions need it

    return special.ndtr(x)


def inverse(loss: np.ndarray, mu: float, rate: float) -> np.ndarray:
    """y with log r(y) = loss; −∞ below the least loss log(1 − q)."""
    floor = np.log1p(-rate) if rate < 1 else -np.inf
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # log((e^l − 1 + q)/q), from whichever end does not cancel
        near = np.log1p(np.expm1(np.minimum(loss, 30.0)) / rate)
        over_floor = np.log(-np.expm1(floor - loss)) + loss - np.log(rate)
        w = np.where(
            loss > np.log1p(-0.5 * rate), np.where(loss > 30, over_floor, near), over_floor
        )
    return np.where(loss <= floor, -np.inf, (w + 0.5 * mu * mu) / mu)


def normal_mass(edges: np.ndarray) -> np.ndarray:
    """Φ(b) − Φ(a) of successive ascending edges, without cancellation in either tail."""
    tail, right = ndtr(-np.abs(edges)), edges > 0
    between = tail[1:] - tail[:-1]
    # Right of 0 the tails fall; around it both are what is left out.
    around = ~right[:-1] & right[1:]
    return np.where(right[:-1], -between, np.where(around, 1 - tail[:-1] - tail[1:], between))
