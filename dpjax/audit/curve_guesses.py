"""Right guesses in one run against a whole trade-off curve, not one pair (ε, δ) of it.

Let r guesses be made about m fair coins, p_i the chance that exactly i of them are right, h the
curve's least error (`TradeoffCurve`), and for every number t

    R_t = Σ_{i ≥ t} i·p_i / m,    H_t = Σ_{i ≥ t} (r − i)·p_i / m,

as parts of all coins. Lemma: H_{t−1} ≥ h(R_t) for t = 1, …, r. Proof: fix a coin j, the outcome of
all others, and b; let S be the number of right guesses about the others. "Guess b about j, and S ≥
t − 1" is a test of coin j: if y is its probability where the coin is b, that where it is not b is
at least h(y). On average over b, the others' outcome and j, y is R_t (j is guessed right, and at
least t are right), and the other probability is H_{t−1} (j is guessed wrong, and at least t − 1 are
right). By Jensen's inequality for the convex h, the average of h(y) is at least h(R_t).

Theorem. Given P[at least v right] = q, the sum Σ p_i is least where p_v = q, p_i = 0 above v, and
every p_i below is the least that the lemma allows with those above it. If that sum is above 1, no
mechanism with this curve lets as many guesses be right with probability q. Proof: write a state
(R, H) ⪰_i (R', H') where R − R' + H − H' ≥ 0 and (r − i)(R − R') ≥ i·(H − H'). Whatever the p_i
with tail q, at v their state is ⪰_v that of the theorem, for mass moves only up. Let it be ⪰_{i+1}
at i + 1, which implies ⪰_i and R ≥ R'. Adding p_i moves a state along (i, r − i), which leaves the
second difference alone. If the theorem adds nothing, ⪰_i stays; if it adds, H' = h(R'_{i+1}) ≤
h(R_{i+1}) ≤ H at i, so that R − R' ≥ (H − H')·i/(r − i) ≥ 0, and ⪰_i holds again. At i = 0 the
first inequality compares the sums. The proof asks of a p_i > 0 of the theorem only that it leave
H' ≤ h(R'_{i+1}): a p_i that is rounded down makes a valid bound, whatever follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from dpjax._numerics import checks
from dpjax._numerics.arrays import EPS
from dpjax.audit.bound import CurveEvidence, EmpiricalBound, check_level
from dpjax.audit.curves import GaussianCurve, PiecewiseCurve, TradeoffCurve, check_curve
from dpjax.audit.gaussian_fit import gaussian_epsilon

GAUSSIAN = "the trade-off curve is Gaussian"


def check_counts(canaries: int, guesses: int, correct: int) -> None:
    """Refuses counts of guesses that cannot be."""
    for name, count in (("canaries", canaries), ("guesses", guesses), ("correct", correct)):
        checks.whole(name, count, low=0)
    if not correct <= guesses <= canaries or canaries < 1:
        raise ValueError(
            "correct, guesses and canaries must obey 0 ≤ correct ≤ guesses ≤ canaries ≥ 1, "
            f"got {correct}, {guesses} and {canaries}"
        )


def curve_p_value(curve: TradeoffCurve, *, canaries: int, guesses: int, correct: int) -> float:
    """Bounds the chance of so many right guesses under any mechanism with the claimed curve.

    Of m fair coins r are guessed and v of the guesses are right. Let p_v = q and, from i = v − 1
    down to 0, p_i = m·max{h(R_{i+1}) − H_{i+1}, 0}/(r − i): the chance is below every q with which
    Σ p_i exceeds 1 (the module proves it). Below a level such as 0.001 the claim is refuted at it.

    Args:
        curve: what is claimed under add/remove adjacency: of a run by `claimed_curve`, or Gaussian.
        canaries: m, the fair and independent coins that were flipped.
        guesses: r, the most canaries that would have been guessed about; fixed in advance.
        correct: v, the right guesses.

    Returns:
        A number in (0, 1], rounded up.

    Raises:
        ValueError: unless 0 ≤ correct ≤ guesses ≤ canaries ≥ 1, whole numbers, or `curve` is none.

    Guarantee:
        P[p-value ≤ α] ≤ α for every α, every mechanism with the curve and every attacker, however
        the canaries depend on each other. The guesses are looked at once, all together: for bets
        that are looked at after every one see `start_guesses`.

    Example:
        >>> from dpjax import accounting as acc, audit
        >>> counts = dict(canaries=5000, guesses=1000, correct=1000)
        >>> audit.curve_p_value(audit.claimed_curve(acc.Gaussian(1.0)), **counts) < 1e-3
        True
        >>> audit.curve_p_value(audit.claimed_curve(acc.Gaussian(0.25)), **counts) > 0.5
        True

    References:
        Mahloujifar, Melis and Chaudhuri 2025, "Auditing f-differential privacy in one run": the
        same recursion, with the proof of this module.
    """
    check_curve(curve)
    check_counts(canaries, guesses, correct)
    if correct == 0 or not is_refuted(curve, canaries, guesses, correct, 1.0):
        return 1.0
    # The sum grows with q: bisection of ln q keeps an upper end at which it exceeds 1.
    low, high = math.log(1e-300), 0.0
    for _ in range(60):
        middle = (low + high) / 2
        impossible = is_refuted(curve, canaries, guesses, correct, math.exp(middle))
        low, high = (low, middle) if impossible else (middle, high)
    return min(math.exp(high) * (1.0 + 4.0 * EPS), 1.0)


def one_run_curve_bound(
    *,
    canaries: int,
    guesses: int,
    correct: int,
    delta: float,
    confidence: float = 0.999,
    family: Literal["gaussian", "approximate"] = "gaussian",
) -> EmpiricalBound:
    """Lower bound on ε from right guesses about m fair coins, by the trade-off curves of a family.

    The bound is the largest member of the family whose `curve_p_value` is below 1 − confidence. By
    "gaussian" that is a μ, which is free of assumptions ("the mechanism is not μ'-GDP for any
    smaller μ'"), and its ε at δ, which is not. By "approximate" it is an ε of (ε, δ)-privacy,
    which assumes nothing, as `one_run_bound` does.

    Args:
        canaries: m, the coins that were flipped.
        guesses: r, the most canaries that would have been guessed about; fixed in advance.
        correct: v, the right guesses.
        delta: the δ at which ε is bounded: in [0, 1), and by "gaussian", where ε is infinite at a
            δ of 0, in (0, 1).
        confidence: probability with which the bound is right, in [0.5, 1).
        family: which curves are claimed.

    Returns:
        An `EmpiricalBound` with `CurveEvidence`.

    Raises:
        ValueError: unless 0 ≤ correct ≤ guesses ≤ canaries ≥ 1, another family, or `delta` or
            `confidence` outside its range.

    Example:
        >>> from dpjax import audit
        >>> counts = dict(canaries=1000, guesses=100, correct=99, delta=1e-5)
        >>> bound = audit.one_run_curve_bound(**counts)
        >>> bound.epsilon > audit.one_run_bound(**counts).epsilon
        True

    References:
        Mahloujifar, Melis and Chaudhuri 2025, "Auditing f-differential privacy in one run".
    """
    if not isinstance(family, str) or family not in ("gaussian", "approximate"):
        raise ValueError(f"family must be gaussian or approximate, got {checks.render(family)}")
    check_level(delta, confidence, gaussian=family == "gaussian")
    check_counts(canaries, guesses, correct)
    level = 1.0 - confidence

    def is_too_small(size: float) -> bool:
        curve = GaussianCurve(size) if family == "gaussian" else PiecewiseCurve(size, delta)
        return correct > 0 and is_refuted(curve, canaries, guesses, correct, level)

    size = _largest_refuted(is_too_small)
    if family == "gaussian":
        evidence = CurveEvidence(canaries, guesses, correct, size)
        epsilon = gaussian_epsilon(size, delta)
        return EmpiricalBound(epsilon, delta, confidence, "one_run_curve", GAUSSIAN, evidence)
    evidence = CurveEvidence(canaries, guesses, correct)
    return EmpiricalBound(size, delta, confidence, "one_run_curve", "", evidence)


def _largest_refuted(is_too_small: Callable[[float], bool]) -> float:
    """The largest size of a family that is refuted, where smaller ones are refuted with it."""
    if not is_too_small(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < 1e3 and is_too_small(high):  # finitely many coins refute no claim that is as large
        low, high = high, 2.0 * high
    for _ in range(50):  # bisection: the lower end is refuted
        middle = (low + high) / 2
        low, high = (middle, high) if is_too_small(middle) else (low, middle)
    return low


def is_refuted(
    curve: TradeoffCurve, canaries: int, guesses: int, correct: int, tail: float
) -> bool:
    """Whether P[as many right] ≥ tail would take probabilities whose least sum is above 1."""
    total, right, wrong = tail, correct * tail, (guesses - correct) * tail  # R and H, times m
    # Each of the sums has at most `guesses` positive terms: it is off by less than this part.
    slack = (guesses + 8) * EPS
    for number in range(correct - 1, -1, -1):
        # The least p_i, rounded down: h of less than R, less than h of it, more than H.
        power = right * (1.0 - slack) / canaries
        least = canaries * curve.false_positives(power) * (1.0 - 4.0 * EPS)
        mass = max(least - wrong * (1.0 + slack), 0.0) / (guesses - number) * (1.0 - 2.0 * EPS)
        total, right, wrong = (
            total + mass,
            right + number * mass,
            wrong + (guesses - number) * mass,
        )
        if total * (1.0 - slack) > 1.0:
            return True
    return False
