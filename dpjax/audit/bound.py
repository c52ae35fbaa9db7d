"""What an audit returns: a lower bound on ε, its confidence, and the evidence behind it."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple


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


@dataclasses.dataclass(frozen=True)
class EmpiricalBound:
    """A lower bound on the ε of a mechanism, measured by running it.

    With probability at least `confidence` over the runs, the mechanism is not (ε', δ)-private for
    any ε' < `epsilon`, under the adjacency that relates the two data sets that were used. An audit
    never proves privacy: a bound below the certificate only means that this attack failed.

    Fields:
        epsilon: the lower bound, ≥ 0.
        delta: the δ at which it holds.
        confidence: 1 − the chance that the bound is wrong.
        method: "threshold", "gaussian", "normal" or "one_run".
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
    evidence: ThresholdEvidence | NormalShiftEvidence | GuessEvidence

    def contradicts(self, epsilon: float) -> bool:
        """Whether a claim of (`epsilon`, `delta`)-differential privacy is refuted."""
        return self.epsilon > epsilon

    def describe(self) -> str:
        """The bound with its confidence, evidence and assumption in one sentence."""
        text = (
            f"ε ≥ {self.epsilon:.3g} at δ = {self.delta:g} with {100 * self.confidence:g} % "
            f"confidence ({self.method}): {self.evidence.describe()}"
        )
        return f"{text}; assuming that {self.assumption}." if self.assumption else f"{text}."


def check_level(delta: float, confidence: float) -> None:
    """Refuses a δ or a confidence outside (0, 1); δ may be zero."""
    if not 0.0 <= delta < 1.0:
        raise ValueError(f"delta must lie in [0, 1), got {delta}")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie in (0, 1), got {confidence}")
