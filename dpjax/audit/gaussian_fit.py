"""The Gaussian-DP fit: from error rates, or from a shift, to μ, and from μ to ε."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri
from scipy.stats import chi2
from scipy.stats import t as student

from dpjax.audit.bound import (
    EmpiricalBound,
    NormalShiftEvidence,
    best_threshold,
    check_level,
    check_worlds,
)

_FARTHEST = 1e150  # of a score that has a variance in float64


def gaussian_bound(
    scores: Float[np.ndarray, " runs"],
    neighbour_scores: Float[np.ndarray, " runs"],
    *,
    delta: float,
    confidence: float = 0.999,
) -> EmpiricalBound:
    """Lower bound on μ from error rates, turned into ε at δ for a Gaussian trade-off curve.

    No test of a μ-GDP mechanism has Φ⁻¹(1 − FPR) − Φ⁻¹(FNR) > μ. Upper Clopper-Pearson limits of
    both rates at a threshold chosen on the other half of the runs give a lower bound on μ; that
    "the mechanism is not μ'-GDP for any smaller μ'" is assumption-free. The ε that goes with it,
    δ_G(μ, ε) = δ, is a bound on the mechanism's ε only if its trade-off curve is Gaussian.

    Args:
        scores, neighbour_scores, confidence: as in `distinguishing_bound`.
        delta: the δ at which ε is bounded, in (0, 1).

    Returns:
        An `EmpiricalBound` with `ThresholdEvidence`, whose `mu` is the fitted parameter.

    Example:
        >>> import numpy as np
        >>> from dpjax import audit
        >>> rng = np.random.default_rng(0)
        >>> bound = audit.gaussian_bound(rng.normal(size=50_000), 2 + rng.normal(size=50_000),
        ...                              delta=1e-5)
        >>> 1.9 < bound.evidence.mu < 2.0
        True

    References:
        Nasr et al. (2023), Tight auditing of differentially private machine learning, §4; Dong,
        Roth, Su (2022), Gaussian differential privacy, Corollary 2.13.
    """
    check_level(delta, confidence, gaussian=True)
    evidence = best_threshold(
        scores, neighbour_scores, confidence, lambda fpr, fnr: ndtri(1.0 - fpr) - ndtri(fnr)
    )
    epsilon, assumption = gaussian_epsilon(evidence.mu, delta), "the trade-off curve is Gaussian"
    return EmpiricalBound(epsilon, delta, confidence, "gaussian", assumption, evidence)


def normal_shift_bound(
    scores: Float[np.ndarray, " runs"],
    neighbour_scores: Float[np.ndarray, " runs"],
    *,
    delta: float,
    confidence: float = 0.999,
) -> EmpiricalBound:
    """Lower bound on μ from the shift of a normal score, however large the shift is.

    For scores N(a, s²) and N(b, s²), μ = |b − a|/s. The numerator is bounded from below by
    Student's t, the denominator from above by χ², each at half the error probability. Error rates
    saturate near μ = 8 with 10⁵ runs; this does not, and is meant for mechanisms that add normal
    noise in some coordinates, where the score is one of them.

    Args:
        scores, neighbour_scores, confidence: as in `distinguishing_bound`.
        delta: the δ at which ε is bounded, in (0, 1).

    Returns:
        An `EmpiricalBound` with `NormalShiftEvidence`.

    Example:
        >>> import numpy as np
        >>> from dpjax import audit
        >>> rng = np.random.default_rng(0)
        >>> bound = audit.normal_shift_bound(rng.normal(size=50_000), 30 + rng.normal(size=50_000),
        ...                                  delta=1e-5)
        >>> 29 < bound.evidence.mu < 30
        True
    """
    check_level(delta, confidence, gaussian=True)
    worlds = check_moments(scores, neighbour_scores, 2)
    runs = worlds[0].size
    std = math.sqrt(sum(float(np.var(world, ddof=1)) for world in worlds) / 2)
    mean, other = (float(np.mean(world)) for world in worlds)
    # Union bound: the shift and the deviation fail with half of the probability each.
    mu = shift_limit(other - mean, std, runs, (1.0 - confidence) / 2.0)
    evidence = NormalShiftEvidence(mean, other, std, runs, mu)
    assumption = "the score is normal with the same variance in both worlds"
    return EmpiricalBound(
        gaussian_epsilon(mu, delta), delta, confidence, "normal", assumption, evidence
    )


def check_moments(
    scores: object, neighbour_scores: object, least: int
) -> tuple[Float[np.ndarray, " runs"], Float[np.ndarray, " runs"]]:
    """The scores as by `check_worlds`, if they have means and variances in float64."""
    worlds = check_worlds(scores, neighbour_scores, least)
    for world in worlds:
        wrong = world[~(np.abs(world) <= _FARTHEST)]  # NaN is not
        if wrong.size:
            raise ValueError(
                f"scores must be finite, got {wrong[0]}: they have no mean"
                if not np.isfinite(wrong[0])
                else f"scores must lie within ±{_FARTHEST:g}, got {wrong[0]}: they have no variance"
            )
    return worlds


def shift_limit(shift: float, std: float, runs: int, level: float) -> float:
    """Lower limit of |shift|/std, each of the two estimates failing with probability `level`."""
    freedom = 2 * runs - 2
    # The sign of the shift is read off the data, so both tails are charged.
    margin = float(student.ppf(1.0 - level / 2, freedom)) * std * math.sqrt(2.0 / runs)
    # (n − 1)·s²/σ² is χ² distributed: its low quantile bounds σ from above.
    largest_std = std * math.sqrt(freedom / float(chi2.ppf(level, freedom)))
    excess = max(abs(shift) - margin, 0.0)
    # Scores that never vary and differ between the worlds tell them apart with certainty.
    return excess / largest_std if largest_std > 0.0 else (math.inf if excess > 0.0 else 0.0)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The ε with δ_G(μ, ε) = δ, rounded down; zero where δ_G(μ, 0) ≤ δ."""
    # δ_G(μ, ·) falls: where it is at most δ at 0, no ε > 0 is shown.
    if mu <= 0.0 or delta <= 0.0 or gaussian_profile(mu, 0.0) <= delta:
        return 0.0 if mu <= 0.0 or delta > 0.0 else math.inf
    if mu == math.inf:
        return math.inf
    high = mu * mu / 2 + mu * 40.0

    def excess(epsilon: float) -> float:
        return gaussian_profile(mu, epsilon) - delta

    root: float = brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-14)  # pyrefly: ignore[bad-assignment]
    # A lower bound: what the root finder may be off by, in parts and in all, is taken off.
    return max(root * (1.0 - 1e-9) - 2e-12, 0.0)


def gaussian_profile(mu: float, epsilon: float) -> float:
    """δ_G(μ, ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), without cancellation."""
    first, second = log_ndtr(-epsilon / mu + mu / 2), log_ndtr(-epsilon / mu - mu / 2)
    return math.exp(first) * -math.expm1(min(epsilon + second - first, 0.0))
