"""The likelihood ratio of a sampled Gaussian: r(y) = 1 − q + q e^{w(y)}, w(y) = μy − μ²/2.

In units of the noise's standard deviation: the density of (1−q)N(0, 1) + qN(μ, 1) over N(0, 1)'s.

The plain Gaussian pair, N(μ, 1) against N(0, 1), on grids; elsewhere its transform is known.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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


def posterior(y: Any, mu: Any, rate: Any) -> Any:
    """π(y) = q e^w/r(y), the probability that the record took part; d log r/dy = μπ."""
    xp: Any = namespace(y, mu, rate)
    w = xp.clip(mu * y - 0.5 * mu * mu, -700.0, 700.0)
    return xp.exp(xp.log(rate) - xp.logaddexp(xp.log(rate), xp.log1p(-rate) - w))


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


class Plain:
    """N(μ, 1) against N(0, 1), its own mirror image: L = μy − μ²/2."""

    name = "gaussian"
    directed = folded = False

    def atom(self, mu: Any, rate: Any) -> Any:
        return 0.0

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        return mu * mu / 2 - reach * mu, mu * mu / 2 + reach * mu

    def masses(
        self, sign: int, mu: float, rate: float, losses: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float]:
        y = losses / mu + 0.5 * mu
        return normal_mass(y - mu), normal_mass(y), float(ndtr(mu - y[-1]))

    def origin(self, sign: int, mu: float, rate: float, h: float) -> tuple[float, bool]:
        return 0.0, False
