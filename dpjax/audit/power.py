"""What an audit could have seen: the smallest excess of μ that it finds nine times in ten."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import binom, chi2

from dpjax.audit.bound import EmpiricalBound, GuessEvidence, NormalShiftEvidence, upper_limit
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
        ValueError: `claim` negative or NaN, or a bound at δ = 0.

    Guarantee:
        None for privacy: an estimate of power, to be read beside a bound that contradicts nothing.

    Example:
        >>> from dpjax import audit
        >>> guesses = audit.one_run_bound(canaries=5000, guesses=400, correct=210, delta=1e-5)
        >>> audit.smallest_factor(guesses, claim=8.0)
        inf
    """
    if not claim >= 0.0:
        raise ValueError(f"claim must be at least 0, got {claim}")
    if bound.delta <= 0.0:
        raise ValueError(f"delta must be positive for a Gaussian mechanism, got {bound.delta}")
    claimed = gaussian_mu(claim, bound.delta)  # μ_c of the Gaussian that just keeps the claim
    if claimed == 0.0 or claimed == math.inf:
        return math.inf
    shown = _likely_bound(bound)
    # What an audit shows need not rise with μ everywhere: the first of a grid is refined.
    grid = np.geomspace(max(claimed, 1e-3), 40.0 + 2.0 * claimed, 60).tolist()
    high, low = next((mu for mu in grid if shown(mu) > claim), math.inf), claimed
    if high == math.inf:
        return math.inf
    for _ in range(30):  # bisection
        middle = (low + high) / 2
        low, high = (low, middle) if shown(middle) > claim else (middle, high)
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
    """The μ with δ_G(μ, ε) = δ."""
    if math.isinf(epsilon):
        return math.inf
    high = 1.0
    while gaussian_epsilon(high, delta) <= epsilon:  # ε rises with μ
        high *= 2.0
    return float(brentq(lambda mu: gaussian_epsilon(mu, delta) - epsilon, 0.0, high, xtol=1e-9))  # pyrefly: ignore[bad-argument-type]


def _likely_bound(bound: EmpiricalBound) -> Callable[[float], float]:
    """From the true μ to the bound that such an audit exceeds nine times in ten."""
    evidence, delta, level = bound.evidence, bound.delta, (1.0 - bound.confidence) / 2.0
    if isinstance(evidence, GuessEvidence):
        return lambda mu: _bound_by_guesses(mu, evidence, delta, bound.confidence)
    if isinstance(evidence, NormalShiftEvidence):
        return lambda mu: _bound_by_shift(mu, evidence.runs, delta, level)
    return lambda mu: _bound_by_threshold(mu, evidence.runs, delta, level, bound.method)


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
    """The guesses at the extremes of a mixture of two normal scores, each right as they are."""
    share = evidence.guesses / (2.0 * evidence.canaries)  # of the canaries at either extreme
    if share == 0.0:
        return 0.0

    def tail(cut: float) -> float:
        return (ndtr(-cut) + ndtr(mu - cut)) / 2.0 - share

    cut = float(brentq(tail, -60.0, mu + 60.0)) if share < 0.5 else mu / 2.0  # pyrefly: ignore[bad-argument-type]
    accuracy = float(ndtr(mu - cut)) / (2.0 * share)  # Bayes' rule for a canary beyond the cut
    correct = int(binom.ppf(1.0 - POWER, evidence.guesses, min(accuracy, 1.0)))
    settings = {"canaries": evidence.canaries, "guesses": evidence.guesses, "correct": correct}
    return one_run_bound(**settings, delta=delta, confidence=confidence).epsilon
