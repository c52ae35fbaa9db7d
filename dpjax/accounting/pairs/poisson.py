"""Poisson samples of Gaussians, a record added, removed or replaced: what a step is, on a grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from dpjax._numerics.arrays import EPS, Numbers, namespace
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import Composed, PoissonSampled, Repeated
from dpjax.accounting.mechanisms.correlated import CyclicPoissonCorrelated
from dpjax.accounting.pairs.gaussian import correlated_mu2, gaussian_pair, samplable
from dpjax.accounting.pairs.mixtures import Mixture, poisson_mixture, replace_one
from dpjax.accounting.pairs.on_grid import inverse, log_ratio, ndtr, normal_mass
from dpjax.accounting.pairs.pair import Folded
from dpjax.accounting.pairs.protocol import GridPair, Masses, SampledRelease, SamplingRule
from dpjax.accounting.typing import Real


class Sampled(GridPair):
    """A pair of sampled Gaussians, for contour integration and Rényi curves too.

    μ is the distance a record can move the sum over the noise's standard deviation: 1/σ for
    add/remove and for Poisson replace-one (whose two means are ±μ), 2/σ for fixed batches under
    replace-one. Rate 1 is the plain Gaussian.

    Fields:
        mirrored: whether P and Q are each other's mirror images; its Rényi integral is then that
            of (g·r(y), g·r(−y)) instead of (g·r, g).
        table: from μ and the rate to the pair of `pairs.pair` that the contour takes.
    """

    mirrored = False
    table: ClassVar[Callable[[Numbers, Numbers], Mixture | Folded]]

    def total_variation(self, mu: Numbers, rate: Numbers) -> Numbers:
        """The total variation distance of P and Q."""
        # q·(2Φ(μ/2) − 1); of means ±μ twice as far apart
        return rate * namespace(mu).erf(mu / np.sqrt(2.0 if self.mirrored else 8.0))

    def origin(self, sign: int, mu: float, rate: float, h: float) -> tuple[float, bool]:
        return 0.0, True


class PoissonPair(Sampled):
    """(g·r, g), the record removed, and the reverse, the record added."""

    name = "poisson"
    table = staticmethod(poisson_mixture)
    directed = True

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        low = -reach if rate < 1 else mu - reach
        if sign < 0:
            return -float(log_ratio(reach, mu, rate)), -float(log_ratio(-reach, mu, rate))
        return float(log_ratio(low, mu, rate)), float(log_ratio(mu + reach, mu, rate))

    def masses(self, sign: int, mu: float, rate: float, losses: np.ndarray) -> Masses:
        if sign > 0:
            y = inverse(losses, mu, rate)
            q = normal_mass(y)
            # P's mass beyond the last loss
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

        origin = sign * np.log1p(-rate)  # the least loss, log(1 − q), or its opposite
        for _ in range(40):
            last, origin = origin, lump(origin)
            if not np.isfinite(origin):
                return 0.0, False
            if abs(origin - last) < 1e-18:
                break
        # Below the fixed point, so that the inequality holds in floating point too.
        origin -= 1e-9 * h + 4 * EPS * abs(origin)
        return origin, bool(lump(origin) >= origin)


def _refuse_poisson(step: PoissonSampled, adjacency: Adjacency, kind_of: Callable) -> str:
    inner = kind_of(step.mechanism)
    if inner == "gaussian" and samplable(step.mechanism):
        return ""
    if isinstance(step.mechanism, PoissonSampled):
        return ""  # a sample of a sample
    what = type(step.mechanism).__name__
    if inner != "gaussian" and isinstance(step.mechanism, Repeated | Composed):
        what = "a composition of sampled steps"
    return f"around {what} has no amplification theorem here"


def _poisson_parameters(step: PoissonSampled, adjacency: Adjacency) -> tuple[Numbers, Real]:
    xp = namespace(step)
    if isinstance(step.mechanism, PoissonSampled):
        mu, rate = _poisson_parameters(step.mechanism, adjacency)
        return mu, rate * step.rate  # independent draws: the rates multiply
    pair = gaussian_pair(step.mechanism)
    mu2 = pair.add_remove
    if adjacency is Adjacency.REPLACE_ONE:
        # Antipodal displacements of half the replace-one diameter, if that is the larger.
        mu2 = xp.maximum(mu2, pair.replace_one / 4.0)
    return xp.sqrt(mu2), step.rate


def _pair(adjacency: Adjacency) -> str:
    return "poisson" if adjacency is Adjacency.ADD_REMOVE else "replace"


def _amplify(
    step: PoissonSampled, adjacency: Adjacency, inner: SampledRelease
) -> SampledRelease | None:
    """Zhu, Dong, Wang 2022, Theorem 11: the mixture, under add/remove."""
    if adjacency is not Adjacency.ADD_REMOVE:
        return None
    return inner._replace(rate=inner.rate * step.rate)


POISSON_RULE = SamplingRule(
    "poisson",
    PoissonSampled,
    _refuse_poisson,
    _poisson_parameters,
    _pair,
    _pair,
    participation=lambda step, adjacency: step.rate,
    amplify=_amplify,
)


class Replace(Sampled):
    """(g·r(y), g·r(−y)), which is its own mirror image."""

    name = "replace"
    table = staticmethod(replace_one)
    mirrored = True

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        def loss(y: float) -> float:
            return float(log_ratio(y, mu, rate)) - float(log_ratio(-y, mu, rate))

        return loss(-reach if rate < 1 else mu - reach), loss(mu + reach)

    def masses(self, sign: int, mu: float, rate: float, losses: np.ndarray) -> Masses:
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


def _cyclic_parameters(step: CyclicPoissonCorrelated, adjacency: Adjacency) -> tuple[Numbers, Real]:
    xp = namespace(step)
    rows, once = xp.asarray(float(np.shape(step.strategy)[0])), xp.asarray(1.0)
    return xp.sqrt(correlated_mu2(step, rows, once, once)), step.rate


CYCLIC = SamplingRule(
    "cyclic-poisson",
    CyclicPoissonCorrelated,
    lambda step, adjacency, kind_of: "",
    _cyclic_parameters,
    POISSON_RULE.dominating,
    POISSON_RULE.attained,
)
