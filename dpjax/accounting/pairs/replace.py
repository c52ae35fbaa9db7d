"""The antipodal pair: (1−q)N(0, 1) + qN(μ, 1) against (1−q)N(0, 1) + qN(−μ, 1).

Of Poisson sampling when one record is replaced by another. That the worst two contributions are
opposite was confirmed for dpjax by a search over both records' positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpjax._numerics.arrays import namespace
from dpjax.accounting.pairs.poisson import gauss, normal
from dpjax.accounting.pairs.ratio import log_ratio, ndtr, normal_mass, posterior
from dpjax.accounting.pairs.subsampled import REACH, Subsampled, log_normal_tail, log_tail


class Replace(Subsampled):
    """(g·r(y), g·r(−y)), which is its own mirror image."""

    name = "replace"
    mirrored = True

    def reach(self, sign: Any, mu: Any, rate: Any, c: Any) -> tuple[Any, Any]:
        xp: Any = namespace(mu, rate, c)
        start = posterior(-REACH + 0 * mu, mu, rate)
        other = posterior(0 * mu, mu, rate)
        low = xp.minimum(-REACH + (c + 1) * mu * start, -REACH - mu)
        return low, (c + 1) * mu + c * mu * other + REACH

    def tails(
        self, sign: Any, mu: Any, rate: Any, c: Any, ends: tuple, ratio: Any, value: Any
    ) -> tuple[Any, Any]:
        xp: Any = namespace(mu, rate, c)
        low, high = ends
        # r ≥ 1 − q everywhere, so that r^{−c} cannot grow for ever.
        floor = (c + 1) * ratio[-1] - c * xp.log1p(-rate)
        right = log_tail(floor, (c + 1) * mu, high)
        right = xp.fmin(right, log_tail(value[-1], (c + 1) * mu + c * mu, high))
        return value[0] + log_normal_tail(-low), right

    def boundary(self, sign: int, mu: Any, rate: Any, s: Any) -> tuple[Any, Any, Any]:
        return s, log_ratio(s, mu, rate) - log_ratio(-s, mu, rate), s - mu

    def one_step_density(self, sign: int, mu: Any, t: Any, epsilon: Any, x: Any) -> Any:
        xp: Any = namespace(mu, t)  # φ(t + x − μ) + e^{ε + w(−t)} φ(t + x), for y > t
        grow = (epsilon - mu * t - 0.5 * mu * mu)[..., None]
        at = t[..., None] + x
        return xp.exp(-0.5 * (at - mu) ** 2) + xp.exp(grow - 0.5 * at**2)

    def one_step_slopes(self, sign: int, mu: Any, rate: Any, t: Any, epsilon: Any) -> tuple:
        xp: Any = namespace(mu, t)
        below, density, grow = normal(xp), gauss(xp), xp.exp(epsilon)
        return (
            -grow * ((1 - rate) * below(-t) + rate * below(-t - mu)),
            rate * (density(t - mu) + grow * density(t + mu)),
            below(mu - t) - below(-t) - grow * (below(-t - mu) - below(-t)),
        )

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        def loss(y: float) -> float:
            return float(log_ratio(y, mu, rate)) - float(log_ratio(-y, mu, rate))

        return loss(-reach if rate < 1 else mu - reach), loss(mu + reach)

    def masses(
        self, sign: int, mu: float, rate: float, losses: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float]:
        y = _inverse(losses, mu, rate)
        common = (1 - rate) * normal_mass(y)
        p, q = common + rate * normal_mass(y - mu), common + rate * normal_mass(y + mu)
        return p, q, float((1 - rate) * ndtr(-y[-1]) + rate * ndtr(mu - y[-1]))


def _inverse(loss: np.ndarray, mu: float, rate: float) -> np.ndarray:
    """y with log r(y) − log r(−y) = loss: with u = e^{μy}, a quadratic."""
    if rate == 1:
        return loss / (2 * mu)
    # 1 − q + ku = e^l(1 − q + k/u), k = qe^{−μ²/2}, B = (1−q)(e^l − 1): u = (B + √(B² + 4k²e^l))/2k
    log_k = np.log(rate) - 0.5 * mu * mu
    size = np.abs(loss)
    # by symmetry for |l|; all terms divided by e^{l}, so that nothing overflows
    b = (1 - rate) * -np.expm1(-size)
    log_b = np.log(np.maximum(b, 1e-300))
    root = 0.5 * np.logaddexp(2 * log_b, np.log(4.0) + 2 * log_k - size)
    log_u = np.logaddexp(log_b, root) + size - np.log(2.0) - log_k
    return np.sign(loss) * np.maximum(log_u, 0.0) / mu
