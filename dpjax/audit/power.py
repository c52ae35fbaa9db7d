"""What an audit could have seen: the smallest excess of μ that it finds nine times in ten."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import binom, chi2

from dpjax._numerics import checks
from dpjax.audit.anytime import make_gains
from dpjax.audit.bound import (
    AT_LEAST_ZERO,
    CurveEvidence,
    EmpiricalBound,
    GuessEvidence,
    NormalShiftEvidence,
    PairsEvidence,
    real,
    upper_limit,
)
from dpjax.audit.curve_guesses import is_refuted
from dpjax.audit.curves import CurveLines, GaussianCurve, PiecewiseCurve, TradeoffCurve
from dpjax.audit.gaussian_fit import gaussian_epsilon, shift_limit
from dpjax.audit.one_run import one_run_bound
from dpjax.audit.trials import threshold_epsilon

POWER = 0.9


def smallest_factor(bound: EmpiricalBound, claim: float) -> float:
    """The factor by which noise has to be too small for this audit to contradict `claim`.

    The mechanism that is claimed is taken to be Gaussian, μ_c-GDP with ε(δ) = `claim`; with its
    noise divided by f it is f·μ_c-GDP. The result is the smallest f at which an audit of the same
    method, number of runs, δ and confidence, with the likelihood ratio as its score, exceeds the
    claim with a probability of about 0.9; +inf where no f makes it do so.

    Args:
        bound: what the audit returned; only its settings are read, not what it found.
        claim: the ε, at the audit's δ, that it is compared with.

    Returns:
        A factor ≥ 1, or +inf.

    Raises:
        ValueError: `claim` negative or NaN, a bound at δ = 0, or what is no bound, such as a
            `BootstrapInterval`.

    Guarantee:
        None for privacy: an estimate of power, to be read beside a bound that contradicts nothing.

    Example:
        >>> from dpjax import audit
        >>> guesses = audit.one_run_bound(canaries=5000, guesses=400, correct=210, delta=1e-5)
        >>> audit.smallest_factor(guesses, claim=8.0)
        inf
    """
    if not isinstance(bound, EmpiricalBound):
        raise ValueError(f"bound must be an EmpiricalBound, got {checks.render(bound)}")
    claim = real("claim", claim, AT_LEAST_ZERO, "be at least 0")
    if bound.delta <= 0.0:
        raise ValueError(f"delta must be positive for a Gaussian mechanism, got {bound.delta}")
    claimed = gaussian_mu(claim, bound.delta)  # μ_c of the Gaussian that just keeps the claim
    if claimed == math.inf:
        return math.inf
    return first_factor(_likely_contradiction(bound, claim, claimed), claimed)


def first_factor(sees: Callable[[float], bool], claimed: float) -> float:
    """The smallest factor by which the true μ exceeds the claimed where an audit sees it, or +inf.

    Args:
        sees: from the true μ to whether the audit contradicts the claim nine times in ten.
        claimed: the claimed μ, positive and finite.
    """
    # What an audit shows need not rise with μ everywhere: the first of a grid is refined.
    grid = np.geomspace(max(claimed, 1e-3), 40.0 + 2.0 * claimed, 60).tolist()
    high, low = next((mu for mu in grid if sees(mu)), math.inf), claimed
    if high == math.inf:
        return math.inf
    for _ in range(30):  # bisection
        middle = (low + high) / 2
        low, high = (low, middle) if sees(middle) else (middle, high)
    return max(high / claimed, 1.0)  # noise divided by f is f times μ_c


def describe_power(bound: EmpiricalBound, claim: float) -> str:
    """`smallest_factor` in one sentence, to stand beside `bound.describe()`.

    Args:
        bound, claim: as `smallest_factor`.

    Raises:
        ValueError: as `smallest_factor`.

    Example:
        >>> from dpjax import audit
        >>> guesses = audit.one_run_bound(canaries=5000, guesses=400, correct=210, delta=1e-5)
        >>> audit.describe_power(guesses, claim=8.0)
        'Against a claim of ε = 8 no reduction of Gaussian noise would have been seen.'
    """
    factor = smallest_factor(bound, claim)
    seen = "no reduction of Gaussian noise would have been seen"
    if factor < math.inf:
        seen = f"Gaussian noise too small by {factor:.3g} times would have been seen 9 times in 10"
    return f"Against a claim of ε = {claim:.3g} {seen}."


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest μ with δ_G(μ, ε) ≤ δ, which is positive even at an ε of 0."""
    if math.isinf(epsilon):
        return math.inf
    if epsilon == 0.0:  # δ_G(μ, 0) = 2·Φ(μ/2) − 1
        return -2.0 * float(ndtri((1.0 - delta) / 2.0))
    high = 1.0
    while gaussian_epsilon(high, delta) <= epsilon:  # ε rises with μ
        high *= 2.0
    return float(brentq(lambda mu: gaussian_epsilon(mu, delta) - epsilon, 0.0, high, xtol=1e-9))  # pyrefly: ignore[bad-argument-type]


def _likely_contradiction(
    bound: EmpiricalBound, claim: float, claimed: float
) -> Callable[[float], bool]:
    """From the true μ to whether such an audit exceeds the claim nine times in ten."""
    evidence, delta, confidence = bound.evidence, bound.delta, bound.confidence
    if isinstance(evidence, GuessEvidence):
        return lambda mu: _bound_by_guesses(mu, evidence, delta, confidence) > claim
    if isinstance(evidence, CurveEvidence):
        gaussian = evidence.mu is not None
        curve = GaussianCurve(claimed) if gaussian else PiecewiseCurve(claim, delta)
        return lambda mu: _is_curve_refuted(mu, evidence, curve, 1.0 - confidence)
    if isinstance(evidence, PairsEvidence):
        lines = PiecewiseCurve(claim, delta).lines()
        return lambda mu: is_refuted_by_pairs(mu, evidence, lines, 1.0 - confidence)
    level = (1.0 - confidence) / 2.0
    if isinstance(evidence, NormalShiftEvidence):
        return lambda mu: _bound_by_shift(mu, evidence.runs, delta, level) > claim
    return lambda mu: _bound_by_threshold(mu, evidence.runs, delta, level, bound.method) > claim


def _bound_by_threshold(mu: float, runs: int, delta: float, level: float, method: str) -> float:
    """Counts at their 1 − (1 − power)/2 quantiles, at the best of all cuts."""
    cuts = np.linspace(-9.0, mu + 9.0, 800)  # no score is 9 deviations from its mean
    part = 1.0 - (1.0 - POWER) / 2.0  # by the union bound over the two counts
    counts = (binom.ppf(part, runs, rate) for rate in (ndtr(-cuts), ndtr(cuts - mu)))
    fpr, fnr = (upper_limit(count, runs, level) for count in counts)
    if method == "threshold":
        return float(np.max(threshold_epsilon(fpr, fnr, delta)))
    return gaussian_epsilon(float(np.max(ndtri(1.0 - fpr) - ndtri(fnr))), delta)


def _bound_by_shift(mu: float, runs: int, delta: float, level: float) -> float:
    """The mean and the variance at their 1 − (1 − power)/2 quantiles."""
    freedom, part = 2 * runs - 2, (1.0 - POWER) / 2.0
    shift = mu + float(ndtri(part)) * math.sqrt(2.0 / runs)  # variance 1/n in each world
    std = math.sqrt(float(chi2.ppf(1.0 - part, freedom)) / freedom)
    return gaussian_epsilon(shift_limit(shift, std, runs, level), delta)


def _bound_by_guesses(mu: float, evidence: GuessEvidence, delta: float, confidence: float) -> float:
    """The bound of as many right guesses as are likely."""
    settings = {"canaries": evidence.canaries, "guesses": evidence.guesses}
    correct = _likely_correct(mu, evidence)
    return one_run_bound(**settings, correct=correct, delta=delta, confidence=confidence).epsilon


def _is_curve_refuted(
    mu: float, evidence: CurveEvidence, curve: TradeoffCurve, level: float
) -> bool:
    """Whether as many right guesses as are likely refute the claimed curve."""
    correct = _likely_correct(mu, evidence)
    return correct > 0 and is_refuted(curve, evidence.canaries, evidence.guesses, correct, level)


def _likely_correct(mu: float, evidence: GuessEvidence | CurveEvidence) -> int:
    """The guesses at the extremes of a mixture of two normal scores, each right as they are."""
    share = evidence.guesses / (2.0 * evidence.canaries)  # of the canaries at either extreme
    if share == 0.0:
        return 0

    def tail(cut: float) -> float:
        return (ndtr(-cut) + ndtr(mu - cut)) / 2.0 - share

    cut = float(brentq(tail, -60.0, mu + 60.0)) if share < 0.5 else mu / 2.0  # pyrefly: ignore[bad-argument-type]
    accuracy = float(ndtr(mu - cut)) / (2.0 * share)  # Bayes' rule for a canary beyond the cut
    return int(binom.ppf(1.0 - POWER, evidence.guesses, min(accuracy, 1.0)))


def is_refuted_by_pairs(
    mu: float, evidence: PairsEvidence, lines: CurveLines, level: float
) -> bool:
    """Whether bets on as many pairs of normal scores likely refute one of the lines.

    The best bet alone, at its quantile by the normal approximation, and its share of the wealth.

    Args:
        mu: true distance of the scores' means, in standard deviations.
        evidence: pairs of runs, and bets among which the wealth is divided.
        lines: what is claimed.
        level: at which it is to be refuted.
    """
    if evidence.pairs == 0:
        return False
    cuts = np.linspace(-9.0, mu + 9.0, 400)[:, None, None]  # beyond, no score lies
    hit, missed = ndtr(mu - cuts), ndtr(-cuts)
    rates = [(1 - hit) * (1 - missed), (1 - hit) * missed, hit * (1 - missed), hit * missed]
    gains = np.asarray(make_gains(lines))
    mean = sum(rate * gain for rate, gain in zip(rates, gains, strict=True))
    square = sum(rate * gain**2 for rate, gain in zip(rates, gains, strict=True))
    spread = np.sqrt(np.maximum(square - mean**2, 0.0) * evidence.pairs)
    likely = evidence.pairs * mean + float(ndtri(1.0 - POWER)) * spread
    return float(np.max(likely)) - math.log(evidence.bets) >= -math.log(level)
