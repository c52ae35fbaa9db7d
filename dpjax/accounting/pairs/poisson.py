"""Poisson sampling: (1−q)N(0, 1) + qN(μ, 1) against N(0, 1) and, replace-one, against its mirror.

Under ADD_REMOVE the pair (g·r, g) and its reverse dominate (Zhu, Dong, Wang 2022). Under
REPLACE_ONE the antipodal pair of `pairs/replace.py` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpjax._numerics.arrays import namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import Composed, PoissonSampled, Repeated
from dpjax.accounting.pairs.gaussian import pair_of, samplable
from dpjax.accounting.pairs.ratio import inverse, log_ratio, ndtr, normal_mass, posterior
from dpjax.accounting.pairs.release import Known
from dpjax.accounting.pairs.scheme import Scheme
from dpjax.accounting.pairs.subsampled import REACH, Subsampled, log_normal_tail, log_tail

_EPS = float(np.finfo(np.float64).eps)


class Poisson(Subsampled):
    """(g·r, g), the record removed, and the reverse, the record added."""

    name = "poisson"
    directed = True

    def power(self, sign: Any, c: Any) -> Any:
        return namespace(sign, c).where(sign > 0, c + 1, -c)

    def reach(self, sign: Any, mu: Any, rate: Any, c: Any) -> tuple[Any, Any]:
        xp: Any = namespace(sign, mu, rate, c)
        s = xp.where(sign > 0, c + 1, c)
        # Stationary points solve ±y = sμπ(y); where r has reached its floor 1 − q nothing pulls on.
        start = posterior(-REACH + 0 * mu, mu, rate)
        remove_low, remove_high = -REACH + s * mu * start, REACH + s * mu
        floor = 0.5 * mu + (xp.log1p(-rate) - xp.log(rate)) / mu
        pull = xp.minimum(s * mu, xp.maximum(-floor, 0.0) + xp.log1p(s * mu) / mu)
        add_low = -REACH - pull
        # E[r] = 1 is used, so that r's own mass, which lies around μ, has to be covered.
        add_high = REACH + mu
        return xp.where(sign > 0, remove_low, add_low), xp.where(sign > 0, remove_high, add_high)

    def tails(
        self, sign: Any, mu: Any, rate: Any, c: Any, ends: tuple, ratio: Any, value: Any
    ) -> tuple[Any, Any]:
        xp: Any = namespace(sign, mu, rate, c)
        low, high = ends
        left = (c + 1) * ratio[0] + log_normal_tail(-low)
        right = log_tail(value[-1], (c + 1) * mu, high)
        steep = log_tail(-c * ratio[0], c * mu, -low)
        flat = -c * xp.log1p(-rate) + log_normal_tail(-low)
        left = xp.where(sign > 0, left, xp.fmin(steep, flat))
        return left, xp.where(sign > 0, right, -c * ratio[-1] + log_normal_tail(high))

    def boundary(self, sign: int, mu: Any, rate: Any, s: Any) -> tuple[Any, Any, Any]:
        t = 0.5 * mu + sign * s
        return t, sign * log_ratio(t, mu, rate), t - mu if sign > 0 else -t

    def one_step_density(self, sign: int, mu: Any, t: Any, epsilon: Any, x: Any) -> Any:
        xp: Any = namespace(mu, t)
        if sign > 0:  # φ(t + x − μ), for y > t
            return xp.exp(-0.5 * (t[..., None] + x - mu) ** 2)
        # e^{ε + w(t)} φ(t − x), for y < t
        grow = (epsilon + mu * t - 0.5 * mu * mu)[..., None]
        return xp.exp(grow - 0.5 * (t[..., None] - x) ** 2)

    def one_step_slopes(self, sign: int, mu: Any, rate: Any, t: Any, epsilon: Any) -> tuple:
        xp: Any = namespace(mu, t)
        below, density, grow = normal(xp), gauss(xp), xp.exp(epsilon)
        if sign > 0:
            return -grow * below(-t), rate * density(t - mu), below(mu - t) - below(-t)
        by_epsilon = -grow * ((1 - rate) * below(t) + rate * below(t - mu))
        return by_epsilon, grow * rate * density(t - mu), -grow * (below(t - mu) - below(t))

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        low = -reach if rate < 1 else mu - reach
        if sign < 0:
            return -float(log_ratio(reach, mu, rate)), -float(log_ratio(-reach, mu, rate))
        return float(log_ratio(low, mu, rate)), float(log_ratio(mu + reach, mu, rate))

    def masses(
        self, sign: int, mu: float, rate: float, losses: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float]:
        if sign > 0:
            y = inverse(losses, mu, rate)
            q = normal_mass(y)
            above = (1 - rate) * ndtr(-y[-1]) + rate * ndtr(mu - y[-1])
            return (1 - rate) * q + rate * normal_mass(y - mu), q, float(above)
        y = inverse(-losses, mu, rate)[::-1]
        p = normal_mass(y)[::-1]
        return p, (1 - rate) * p + rate * normal_mass(y - mu)[::-1], float(ndtr(y[0]))

    def origin(self, sign: int, mu: float, rate: float, h: float) -> tuple[float, bool]:
        if rate == 1:
            return 0.0, False

        def lump(at: float) -> float:
            edges = inverse(sign * at + np.array([-h, h]), mu, rate)
            without, added = normal_mass(edges)[0], normal_mass(edges - mu)[0]
            return sign * float(np.log1p(rate * (added / max(without, 1e-300) - 1)))

        origin = sign * np.log1p(-rate)
        for _ in range(40):
            last, origin = origin, lump(origin)
            if not np.isfinite(origin):
                return 0.0, False
            if abs(origin - last) < 1e-18:
                break
        # Below the fixed point, so that the inequality holds in floating point too.
        origin -= 1e-9 * h + 4 * _EPS * abs(origin)
        return origin, bool(lump(origin) >= origin)


def normal(xp: Any) -> Callable:
    """Φ in a namespace."""
    return lambda v: 0.5 * xp.erfc(-v / np.sqrt(2.0))


def gauss(xp: Any) -> Callable:
    """φ in a namespace."""
    return lambda v: xp.exp(-0.5 * v * v) / np.sqrt(2 * np.pi)


def _refusal(step: PoissonSampled, adjacency: Adjacency, kind_of: Callable) -> str:
    inner = kind_of(step.mechanism)
    if inner == "gaussian" and samplable(step.mechanism):
        return ""
    if isinstance(step.mechanism, PoissonSampled):
        return ""  # a sample of a sample
    what = type(step.mechanism).__name__
    if inner != "gaussian" and isinstance(step.mechanism, Repeated | Composed):
        what = "a composition of sampled steps"
    return f"around {what} has no amplification theorem here"


def _parameters(step: PoissonSampled, adjacency: Adjacency) -> tuple[Any, Any]:
    xp: Any = namespace(step)
    if isinstance(step.mechanism, PoissonSampled):
        mu, rate = _parameters(step.mechanism, adjacency)
        return mu, rate * step.rate
    pair = pair_of(step.mechanism)
    mu2 = pair.add_remove
    if adjacency is Adjacency.REPLACE_ONE:
        # Antipodal displacements of half the replace-one diameter, if that is the larger.
        mu2 = xp.maximum(mu2, pair.replace_one / 4.0)
    return xp.sqrt(mu2), step.rate


def _pair(adjacency: Adjacency) -> str:
    return "poisson" if adjacency is Adjacency.ADD_REMOVE else "replace"


def _amplify(step: PoissonSampled, adjacency: Adjacency, inner: Known) -> Known | None:
    """Zhu, Dong, Wang 2022, Theorem 11: the mixture, under add/remove."""
    if adjacency is not Adjacency.ADD_REMOVE:
        return None
    return inner._replace(rate=inner.rate * step.rate)


SCHEME = Scheme(
    "poisson",
    PoissonSampled,
    _refusal,
    _parameters,
    _pair,
    _pair,
    participation=lambda step, adjacency: step.rate,
    amplify=_amplify,
)
