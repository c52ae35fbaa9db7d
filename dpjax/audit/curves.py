"""Claimed trade-off curves: how rarely a test may err one way, given how it errs the other way."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr, ndtri

from dpjax import accounting as acc
from dpjax._numerics import checks
from dpjax._numerics.arrays import EPS
from dpjax.audit.bound import AT_LEAST_ZERO, check_scores, real
from dpjax.audit.gaussian_fit import gaussian_profile

# SciPy's Φ(Φ⁻¹(y) − μ) is off by less: by the error of the argument, 1e-15·z, times the slope z of
# ln Φ, for z < 38.
_ROUND_DOWN = 1.0 - 1e-11


class CurveLines(NamedTuple):
    """Claims of (ε_k, δ_k)-privacy that hold together: the straight lines above a curve.

    Fields:
        epsilon: [lines], finite, at least 0.
        delta: [lines], in [0, 1].

    Example:
        >>> from dpjax import audit
        >>> audit.GaussianCurve(1.0).lines(2).epsilon.round(2)
        array([0. , 4.5])
    """

    epsilon: Float[np.ndarray, " lines"]
    delta: Float[np.ndarray, " lines"]


class TradeoffCurve(abc.ABC):
    """What a mechanism is claimed to hide from every test, in both directions.

    A test that says "in" with probability y where the record is in says so with probability at
    least h(y) where it is out, and the same with "in" and "out" exchanged.

    Example:
        >>> from dpjax import audit
        >>> isinstance(audit.GaussianCurve(1.0), audit.TradeoffCurve)
        True

    References:
        Dong, Roth and Su 2022, "Gaussian differential privacy", Definition 3 and Proposition 6.
    """

    @abc.abstractmethod
    def false_positives(self, power: float) -> float:
        """h(y), rounded down: the least error of one kind of a test with this power.

        Args:
            power: y, the probability of saying "in" (or "out") where that is so, in [0, 1].

        Raises:
            ValueError: `power` outside [0, 1].
        """

    @abc.abstractmethod
    def lines(self, count: int = 8) -> CurveLines:
        """Pairs (ε, δ) that the curve implies; together they are at most as strong as it is.

        Args:
            count: how many, at least 1, where there is a choice.

        Raises:
            ValueError: `count` below 1.
        """


def check_curve(curve: TradeoffCurve) -> None:
    """Refuses what is no trade-off curve, such as an ε or a mechanism."""
    if not isinstance(curve, TradeoffCurve):
        raise ValueError(
            "curve must be a TradeoffCurve, as claimed_curve(run), GaussianCurve(mu) or "
            f"PiecewiseCurve(epsilon, delta) makes, got {checks.render(curve)}"
        )


def _check_power(power: float) -> float:
    """The power, if it is a probability; a sum of some may be above 1 by what rounding adds."""
    if type(power) is float and 0.0 <= power <= 1.0:
        return power  # asked thousands of times for one p-value
    allowed = checks.Range(0.0, 1.0 + 1e-9)
    return min(real("power", power, allowed, "lie in [0, 1]"), 1.0)


@dataclasses.dataclass(frozen=True)
class GaussianCurve(TradeoffCurve):
    """The curve of μ-GDP, h(y) = Φ(Φ⁻¹(y) − μ): of noise 1/μ times as large as the sensitivity.

    Args:
        mu: μ ≥ 0, in standard deviations of the noise; +inf hides nothing.

    Raises:
        ValueError: `mu` negative or NaN.

    Example:
        >>> from dpjax import audit
        >>> round(audit.GaussianCurve(1.0).false_positives(0.5), 4)
        0.1587

    References:
        Dong, Roth and Su 2022, "Gaussian differential privacy", Definition 4.
    """

    mu: float

    def __post_init__(self):
        object.__setattr__(self, "mu", real("mu", self.mu, AT_LEAST_ZERO, "be at least 0"))

    def false_positives(self, power: float) -> float:
        power = _check_power(power)
        if power <= 0.0 or self.mu == math.inf:
            return 0.0
        return float(ndtr(ndtri(power) - self.mu)) * _ROUND_DOWN

    def lines(self, count: int = 8) -> CurveLines:
        count = checks.whole("count", count)
        if self.mu == math.inf:
            return CurveLines(np.zeros(1), np.ones(1))  # a δ of 1 claims nothing
        if self.mu == 0.0:
            return CurveLines(np.zeros(1), np.zeros(1))
        # The lines touch where Φ⁻¹(1 − FPR) = μ/2 + ε/μ: from the middle to four deviations.
        epsilon = self.mu * np.linspace(0.0, 4.0 + self.mu / 2, count)
        delta = np.array([gaussian_profile(self.mu, one) for one in epsilon.tolist()])
        # Rounded up: for small μ the difference of two logarithms is off by some 1e-15.
        return CurveLines(epsilon, np.minimum(delta * (1.0 + 1e-9) + 1e-14, 1.0))


@dataclasses.dataclass(frozen=True, eq=False)
class PiecewiseCurve(TradeoffCurve):
    """The curve of whatever is (ε_k, δ_k)-private for every k, of which no more is said.

        h(y) = max_k max{ e^(−ε_k)·(y − δ_k), 1 − δ_k − e^(ε_k)·(1 − y), 0 }

    Args:
        epsilon: one number or [k], finite and at least 0.
        delta: as many, in [0, 1].

    Raises:
        ValueError: numbers outside these ranges, or not as many of one as of the other.

    Example:
        >>> from dpjax import audit
        >>> round(audit.PiecewiseCurve(1.0, 0.01).false_positives(0.5), 4)
        0.1803

    References:
        Dong, Roth and Su 2022, "Gaussian differential privacy", Propositions 3 and 6.
    """

    epsilon: float | np.ndarray
    delta: float | np.ndarray

    def __post_init__(self):
        for name in ("epsilon", "delta"):
            value = check_scores(name, getattr(self, name))
            object.__setattr__(self, name, np.atleast_1d(value))
        epsilon, delta = self.lines()
        if epsilon.shape != delta.shape or epsilon.ndim != 1 or epsilon.size == 0:
            raise ValueError(
                "epsilon and delta must be one number or as many of each, got shapes "
                f"{epsilon.shape} and {delta.shape}"
            )
        if not np.all((epsilon >= 0.0) & (epsilon < math.inf)):
            raise ValueError(f"epsilon must be at least 0 and finite, got {epsilon}")
        if not np.all((delta >= 0.0) & (delta <= 1.0)):
            raise ValueError(f"delta must lie in [0, 1], got {delta}")

    def false_positives(self, power: float) -> float:
        power, (epsilon, delta) = _check_power(power), self.lines()
        steep = np.exp(np.minimum(epsilon, 700.0)) * (1.0 - power)  # e^700 (1 − y) is above 1, or 0
        first = np.exp(-epsilon) * (power - delta) * (1.0 - 4.0 * EPS)
        second = 1.0 - delta - steep - 4.0 * EPS * (2.0 + steep)  # less what rounding may add
        return max(float(np.max(first)), float(np.max(second)), 0.0)

    def lines(self, count: int = 8) -> CurveLines:
        return CurveLines(np.asarray(self.epsilon), np.asarray(self.delta))


def claimed_curve(
    run: acc.Mechanism,
    *,
    adjacency: acc.Adjacency = acc.Adjacency.ADD_REMOVE,
    points: int = 32,
    least_delta: float = 1e-10,
) -> PiecewiseCurve:
    """The trade-off curve that the accountant claims for a run, by `points` of its lines.

    Every line is an upper bound of ε at a δ from `least_delta` to that at ε = 0: the curve lies
    below the run's own: an audit that contradicts it contradicts the accountant.

    Args:
        run: what is released.
        adjacency: the neighbouring relation; that of the audit's two worlds.
        points: number of lines, at least 1.
        least_delta: the smallest δ of a line, in (0, 1): n runs tell none below 1/n from zero.

    Raises:
        UnsupportedQuery: the accountant has no price of the run.
        ValueError: `points` below 1, or `least_delta` outside (0, 1).

    Example:
        >>> from dpjax import accounting as acc, audit
        >>> curve = audit.claimed_curve(acc.Gaussian(1.0))
        >>> 0.158 < curve.false_positives(0.5) <= audit.GaussianCurve(1.0).false_positives(0.5)
        True
    """
    points = checks.whole("points", points)
    inside = checks.Range(0.0, 1.0, open_low=True, open_high=True)
    least_delta = real("least_delta", least_delta, inside, "lie in (0, 1)")
    middle = float(acc.delta(run, 0.0, adjacency=adjacency))
    epsilon, delta = np.zeros(1), np.array([middle])
    if middle > least_delta and points > 1:
        # Half of them even in ln δ, for the tails, the others in δ, for the middle of the curve.
        tails = np.geomspace(least_delta, middle, points // 2 + 1)[:-1]
        asked = np.append(tails, middle * np.linspace(0.0, 1.0, points - tails.size + 1)[1:-1])
        found = np.asarray(acc.epsilon(run, asked, adjacency=adjacency))
        known = np.isfinite(found)
        epsilon, delta = np.append(epsilon, found[known]), np.append(delta, asked[known])
    return PiecewiseCurve(epsilon, np.minimum(delta, 1.0))
