"""What an audit returns: a lower bound on ε, its confidence, and the evidence behind it.

The evidence of two worlds is the best threshold between their scores, with Clopper-Pearson limits
of its errors. The methods of the other files end in one of the kinds of evidence.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import ArrayLike, Float
from scipy.special import betaincinv, ndtri

from dpjax._numerics import checks
from dpjax._numerics.typing import PRNGKey


class ThresholdEvidence(NamedTuple):
    """Error counts of the rule "guess the neighbour where the score passes the threshold".

    Fields:
        threshold: the cut, chosen on trials that are not counted here.
        above: whether scores above the cut (rather than below) point to the neighbour.
        false_positives: runs on the data set that were guessed to be the neighbour's.
        false_negatives: runs on the neighbour that were guessed to be the data set's.
        runs: counted runs in each of the two worlds.
        false_positive_rate: upper Clopper-Pearson limit of the first error rate.
        false_negative_rate: upper Clopper-Pearson limit of the second error rate.
        mu: lower limit of the Gaussian-DP parameter, Φ⁻¹(1 − FPR) − Φ⁻¹(FNR).

    Example:
        >>> ThresholdEvidence(0.0, True, 2, 3, 100, 0.07, 0.09, 2.82).false_positives
        2
    """

    threshold: float
    above: bool
    false_positives: int
    false_negatives: int
    runs: int
    false_positive_rate: float
    false_negative_rate: float
    mu: float

    def describe(self) -> str:
        """The evidence in words."""
        side = "above" if self.above else "below"
        return (
            f"{self.false_positives} of {self.runs} runs on the data set and "
            f"{self.runs - self.false_negatives} of {self.runs} on its neighbour scored {side} "
            f"{self.threshold:.6g}; error rates are at most {self.false_positive_rate:.3g} and "
            f"{self.false_negative_rate:.3g}"
        )


class NormalShiftEvidence(NamedTuple):
    """Means and standard deviation of normally distributed scores in the two worlds.

    Fields:
        mean: mean score on the data set.
        neighbour_mean: mean score on the neighbour.
        std: pooled standard deviation.
        runs: runs in each of the two worlds.
        mu: lower limit of |difference of the means| / standard deviation.

    Example:
        >>> NormalShiftEvidence(0.0, 1.0, 1.0, 1000, 0.8).mu
        0.8
    """

    mean: float
    neighbour_mean: float
    std: float
    runs: int
    mu: float

    def describe(self) -> str:
        """The evidence in words."""
        return (
            f"mean scores {self.mean:.6g} and {self.neighbour_mean:.6g}, standard deviation "
            f"{self.std:.3g}, {self.runs} runs each; the shift is at least {self.mu:.4g} "
            "standard deviations"
        )


class GuessEvidence(NamedTuple):
    """Membership guesses of a single run with many canaries.

    Fields:
        canaries: independent fair coins that decided which canaries took part.
        guesses: canaries on which the auditor committed himself.
        correct: guesses that agree with the coin.

    Example:
        >>> GuessEvidence(1000, 100, 93).correct
        93
    """

    canaries: int
    guesses: int
    correct: int

    def describe(self) -> str:
        """The evidence in words."""
        return f"{self.correct} of {self.guesses} guesses about {self.canaries} canaries were right"


class CurveEvidence(NamedTuple):
    """Membership guesses of a single run, held against a family of trade-off curves.

    Fields:
        canaries: independent fair coins that decided which canaries took part.
        guesses: canaries on which the auditor committed himself.
        correct: guesses that agree with the coin.
        mu: lower limit of the Gaussian-DP parameter; None where the family is not Gaussian.

    Example:
        >>> CurveEvidence(1000, 100, 93, 1.2).mu
        1.2
    """

    canaries: int
    guesses: int
    correct: int
    mu: float | None = None

    def describe(self) -> str:
        """The evidence in words."""
        text = f"{self.correct} of {self.guesses} guesses about {self.canaries} canaries were right"
        return text if self.mu is None else f"{text}; μ is at least {self.mu:.4g}"


class PairsEvidence(NamedTuple):
    """Bets on pairs of runs, one in each of two worlds, that were looked at after every pair.

    Fields:
        pairs: pairs of runs so far.
        bets: how many bets the evidence against one claim is the mean of.

    Example:
        >>> PairsEvidence(250, 480).pairs
        250
    """

    pairs: int
    bets: int

    def describe(self) -> str:
        """The evidence in words."""
        return (
            f"{self.pairs} pairs of runs, one in each of the two worlds, and the mean of "
            f"{self.bets} bets on their scores, valid at whatever pair it is stopped"
        )


Evidence = ThresholdEvidence | NormalShiftEvidence | GuessEvidence | CurveEvidence | PairsEvidence


@dataclasses.dataclass(frozen=True)
class EmpiricalBound:
    """A lower bound on the ε of a mechanism, measured by running it.

    With probability at least `confidence` over the runs, the mechanism is not (ε', δ)-private for
    any ε' < `epsilon`, under the adjacency that relates the two data sets that were used. An audit
    never proves privacy: a bound below the certificate only means that this attack failed.

    Fields:
        epsilon: the lower bound, ≥ 0.
        delta: the δ at which it holds.
        confidence: 1 − the chance that the bound is wrong, at least 0.5.
        method: "threshold", "gaussian", "normal", "one_run", "one_run_curve" or "anytime".
        assumption: what the bound rests on beyond independent runs; empty if nothing.
        evidence: the numbers that the bound was computed from.

    Example:
        >>> from dpjax import audit
        >>> bound = audit.one_run_bound(canaries=1000, guesses=100, correct=99, delta=1e-5)
        >>> bound.contradicts(1.0)
        True
        >>> print(bound.describe())
        ε ≥ 1.74 at δ = 1e-05 with 99.9 % confidence (one_run): 99 of 100 guesses
        about 1000 canaries were right.
    """

    epsilon: float
    delta: float
    confidence: float
    method: str
    assumption: str
    evidence: Evidence

    def contradicts(self, epsilon: float) -> bool:
        """Whether a claim of (`epsilon`, `delta`)-differential privacy is refuted.

        Args:
            epsilon: what is claimed, at least 0; +inf claims nothing.

        Raises:
            ValueError: `epsilon` negative, NaN, or not one number.
        """
        return self.epsilon > real("epsilon", epsilon, AT_LEAST_ZERO, "be at least 0")

    def to_json(self) -> str:
        """The bound as JSON text: as `audit.json` in a run's folder it is on its report."""
        numbers = {name: float(getattr(self, name)) for name in ("epsilon", "delta", "confidence")}
        words = {"method": self.method, "assumption": self.assumption}
        return json.dumps(numbers | words) + "\n"

    def describe(self) -> str:
        """The bound with its confidence, evidence and assumption in one sentence."""
        text = (
            f"ε ≥ {self.epsilon:.3g} at δ = {self.delta:g} with {100 * self.confidence:g} % "
            f"confidence ({self.method}): {self.evidence.describe()}"
        )
        return f"{text}; assuming that {self.assumption}." if self.assumption else f"{text}."


AT_LEAST_ZERO = checks.Range(0.0, infinite=True)
_ABOVE_ZERO = checks.Range(0.0, 1.0, open_low=True, open_high=True)
# What is wrong more often than right contradicts nothing.
_CONFIDENCE = checks.Range(0.5, 1.0, open_high=True)


def real(name: str, value: object, allowed: checks.Range, said: str) -> float:
    """The value as a float, if it is one number that is allowed; `said` says which are."""
    if isinstance(value, checks.Tracer):
        raise ValueError(f"{name} must be known before tracing, got a traced number")
    try:
        return checks.one_number(name, value, allowed)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must {said}, got {checks.render(value)}") from None


def check_scores(name: str, scores: object, *, events: bool = False) -> Float[np.ndarray, "..."]:
    """Numbers in float64, if they are an array or a list of real ones; or `events`, 0 and 1."""
    kinds = (np.floating, np.integer, *[np.bool_] * events)
    try:
        found = np.asarray(scores)
        if not any(jax.dtypes.issubdtype(found.dtype, kind) for kind in kinds):
            raise TypeError
    except (TypeError, ValueError):  # lists of unequal lengths, words, complex numbers
        raise ValueError(
            f"{name} must be an array of real numbers, got {checks.render(scores)}"
        ) from None
    return found.astype(np.float64)


def check_worlds(
    scores: object, neighbour_scores: object, least: int
) -> tuple[Float[np.ndarray, " runs"], Float[np.ndarray, " runs"]]:
    """The scores in float64, if they are of as many runs in both worlds, and of enough."""
    first = check_scores("scores", scores, events=True)
    second = check_scores("neighbour_scores", neighbour_scores, events=True)
    if first.shape != second.shape or first.ndim != 1 or first.size < least:
        raise ValueError(
            f"scores must be of the same number of runs in both worlds, at least {least}, got "
            f"shapes {first.shape} of scores and {second.shape} of neighbour_scores"
        )
    return first, second


def check_level(delta: float, confidence: float, *, gaussian: bool = False) -> None:
    """Refuses a δ outside [0, 1) and a confidence outside [0.5, 1): a level of 0.01 is not one.

    No Gaussian curve has a finite ε at δ = 0, where every shift would refute every claim: of a
    `gaussian` one it is refused.
    """
    if gaussian:
        real("delta", delta, _ABOVE_ZERO, "lie in (0, 1) for a Gaussian curve")
    else:
        real("delta", delta, checks.BELOW_ONE, "lie in [0, 1)")
    real("confidence", confidence, _CONFIDENCE, "lie in [0.5, 1), as 0.999")


def check_mechanism(mechanism: object) -> None:
    """Refuses what cannot be called."""
    if not callable(mechanism):
        raise ValueError(f"mechanism must be a function, got {checks.render(mechanism)}")


def check_one_key(key: PRNGKey) -> None:
    """Refuses what is not one typed key."""
    typed = isinstance(key, jax.Array) and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not typed or key.shape:
        raise ValueError(
            f"key must be one typed key, as jax.random.key(seed) makes, got {checks.render(key)}"
        )


def best_threshold(
    scores: np.ndarray,
    neighbour_scores: np.ndarray,
    confidence: float,
    objective: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> ThresholdEvidence:
    """Chooses a threshold on the first half of the runs, counts its errors on the second."""
    scores, neighbour_scores = check_worlds(scores, neighbour_scores, 4)
    if np.isnan(scores).any() or np.isnan(neighbour_scores).any():
        raise ValueError("scores must be ordered, got NaN")
    # Union bound: each of the two error rates fails with half of the probability.
    level, half = (1.0 - confidence) / 2.0, scores.size // 2
    tune = np.sort(scores[:half]), np.sort(neighbour_scores[:half])
    cuts, best = _candidates(*tune), (-math.inf, 0.0, True)
    for above in (True, False):
        errors = _errors(*tune, cuts, above)
        value = objective(*(upper_limit(count, half, level) for count in errors))
        index = int(np.argmax(value))
        best = max(best, (float(value[index]), float(cuts[index]), above), key=lambda one: one[0])
    _, threshold, above = best
    # Choosing on one half and counting on the other keeps the confidence, whatever the choice.
    counted = np.sort(scores[half:]), np.sort(neighbour_scores[half:])
    runs = counted[0].size
    positives, negatives = (int(c[0]) for c in _errors(*counted, np.array([threshold]), above))
    fpr, fnr = (float(upper_limit(count, runs, level)) for count in (positives, negatives))
    # No test of a μ-GDP mechanism has Φ⁻¹(1 − FPR) − Φ⁻¹(FNR) > μ.
    mu = float(ndtri(1.0 - fpr) - ndtri(fnr)) if max(fpr, fnr) < 1.0 else 0.0
    return ThresholdEvidence(threshold, above, positives, negatives, runs, fpr, fnr, max(mu, 0.0))


def upper_limit(count: ArrayLike, runs: int, level: float) -> np.ndarray:
    """Upper one-sided Clopper-Pearson limit of a rate, `count` successes among `runs`."""
    count = np.asarray(count)
    # The quantile of Beta(k + 1, n − k), which is 1 for k = n.
    limit = betaincinv(count + 1.0, np.maximum(runs - count, 1), 1.0 - level)
    return np.where(count >= runs, 1.0, limit)


def _errors(
    first: np.ndarray, second: np.ndarray, cuts: np.ndarray, above: bool
) -> tuple[np.ndarray, np.ndarray]:
    """False positives and false negatives of every cut; the scores are sorted."""
    side = "right" if above else "left"  # a score at the cut has not passed it, on either side
    one, other = (np.searchsorted(world, cuts, side) for world in (first, second))
    return (first.size - one, other) if above else (one, second.size - other)  # one per cut


def _candidates(first: np.ndarray, second: np.ndarray, count: int = 256) -> np.ndarray:
    """Cuts at ranks of both worlds, dense in the tails, where the large ratios are."""
    ranks = np.unique(np.geomspace(1, first.size, count).astype(int) - 1)
    ranks = np.unique(np.concatenate([ranks, first.size - 1 - ranks]))
    cuts = np.unique(np.concatenate([first[ranks], second[ranks]]))
    # A midpoint lies strictly between the two atoms of a discrete score.
    middle = cuts[:-1] / 2 + cuts[1:] / 2
    return np.unique(np.concatenate([cuts, middle[np.isfinite(middle)]]))
