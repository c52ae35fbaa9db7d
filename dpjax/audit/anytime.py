"""Evidence that may be looked at after every run: bets against a claim, which a true claim wins.

A mechanism that is (ε, δ)-private lets no event A of its release, and no score, have

    P_in[A] > e^ε·P_out[A] + δ    or    P_out[A] > e^ε·P_in[A] + δ

A bet on A takes a pair of runs, one in each of the two worlds: with 1_A of the first world's run
and 1'_A of the second's, and a stake λ < 1/(e^ε + δ), it multiplies what was put on it by

    1 + λ·(1_A − e^ε·1'_A − δ) > 0,

whose mean is at most 1 if the claim holds, whatever was seen before. So is that of a mixture of
bets that was chosen before the first run: its wealth, which starts at 1, is a non-negative
supermartingale, and by Ville's inequality it exceeds 1/α at ANY time with a probability of at most
α. An audit may therefore stop at whatever run it likes, for whatever reason, and its confidence
holds. The bets are all events "score above a cut" and "score not above it", in either direction,
for a grid of cuts, of lines (ε_k, δ_k) of the claimed curve and of stakes.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Self

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from dpjax._numerics import checks
from dpjax._numerics.arrays import EPS, NUMPY, Numbers, NumbersLike, namespace
from dpjax._numerics.scope import is_traced
from dpjax.audit.bound import (
    EmpiricalBound,
    PairsEvidence,
    check_level,
    check_scores,
    check_worlds,
    real,
)
from dpjax.audit.curves import CurveLines, PiecewiseCurve, TradeoffCurve, check_curve

# Parts of the largest stake. Near 1, one event in the wrong world costs almost everything.
STAKES = np.array([0.05, 0.12, 0.3, 0.6, 0.9])
_ROLES = 4  # above or not above the cut, more likely in one world or in the other
_P_VALUES = checks.Range(0.0, 1.0, open_low=True)
REFUTABLE = checks.Range(0.0, 0.5, open_low=True)


@dataclasses.dataclass(frozen=True)
class _Bets(abc.ABC):
    """The wealth of bets on pairs of runs, and the largest evidence that it ever was.

    Fields:
        cuts: [cuts], at which scores are divided.
        gains: [4, lines, stakes], what a bet adds to the logarithm of its wealth, by outcome.
        log_wealth: [4, cuts, lines, stakes], of every bet.
        log_largest: the largest `log_evidence` so far, at least 0.
        pairs: pairs of runs so far.
    """

    cuts: Float[Array, " cuts"]
    gains: Float[Array, "4 lines stakes"]
    log_wealth: Float[Array, "4 cuts lines stakes"]
    log_largest: Float[Array, "..."]
    pairs: Int[Array, ""]

    def update(self, score: Float[ArrayLike, ""], neighbour_score: Float[ArrayLike, ""]) -> Self:
        """What is known after one more run in each world.

        Args:
            score: of a new run on the data set, independent of all others.
            neighbour_score: of a new run on its neighbour.

        Raises:
            ValueError: a score that is NaN (where it is known) or not one number, as of several
                pairs at once; no cuts to settle it by.
        """
        log_wealth = _settle(self.cuts, self.gains, self.log_wealth, score, neighbour_score)
        return self._keep_largest(log_wealth=log_wealth, pairs=self.pairs + 1)

    @property
    @abc.abstractmethod
    def log_evidence(self) -> Float[Array, "..."]:
        """Logarithm of the present wealth; 0 before the first run."""

    def _keep_largest(self, **changed: object) -> Self:
        """The same with these fields changed, and the largest evidence so far."""
        new = dataclasses.replace(self, **changed)
        found = new.log_evidence
        largest = namespace(self.log_largest, found).maximum(self.log_largest, found)
        return dataclasses.replace(new, log_largest=largest)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RunningEvidence(_Bets):
    """A test martingale against one claim: made by `start_evidence`, updated after every run.

    A frozen pytree: `update` is pure, runs under `jax.jit`, `jax.vmap` and `jax.lax.scan` (there in
    JAX's own precision, and rounded down in either), and in NumPy's float64 outside.

    Fields:
        cuts: [cuts], at which scores are divided.
        gains: [4, lines, stakes], what a bet adds to the logarithm of its wealth, by outcome.
        log_wealth: [4, cuts, lines, stakes], of every bet.
        log_largest: the largest `log_evidence` so far, at least 0.
        pairs: pairs of runs so far.
        log_carried: logarithm of the evidence that whole audits brought (`multiply`).

    Guarantee:
        If the claim holds in both directions and runs are independent, the probability that
        `rejects(level)` is ever true, at whatever time it is asked, is at most `level`.

    Example:
        >>> import numpy as np
        >>> from dpjax import audit
        >>> rng = np.random.default_rng(0)
        >>> found = audit.start_evidence(audit.GaussianCurve(1.0), cuts=np.linspace(-2, 3, 11))
        >>> while not found.rejects(0.001):  # the noise is a half of what is claimed
        ...     found = found.update(*(np.array([0.0, 1.0]) + 0.5 * rng.normal(size=2)))
        >>> int(found.pairs) < 300
        True

    References:
        Ville 1939; Ramdas, Grünwald, Vovk and Shafer 2023, "Game-theoretic statistics and safe
        anytime-valid inference", Section 3.
    """

    log_carried: Float[Array, ""]

    def multiply(self, p_value: Float[ArrayLike, ""]) -> RunningEvidence:
        """The evidence after one more audit of a whole run of its own, such as `curve_p_value`'s.

        The factor is ∫ κ·p^(κ−1) dκ over κ from 0 to 1, (1 − p + p·ln p)/(p·ln²p), whose mean is at
        most 1 where P[p ≤ α] ≤ α for every α.

        Args:
            p_value: of a new run, independent of all before, against the same claim; in (0, 1].

        Raises:
            ValueError: `p_value` outside (0, 1].

        References:
            Vovk and Wang 2021, "E-values: calibration, combination and applications", Section 2.
        """
        if is_traced(p_value):
            checks.scalar("p_value", p_value)
        else:
            p_value = real("p_value", p_value, _P_VALUES, "lie in (0, 1]")
        xp = namespace(p_value, self.log_carried)
        before = xp.asarray(self.log_carried)
        given, dtype = xp.asarray(p_value).astype(before.dtype), before.dtype
        # The factor falls with p, to 1/2 at 1: from 0.9 on, where it cancels, it is taken as 1/2.
        known = (given >= 0.0) & (given <= 0.9)
        apart = xp.clip(given, 1e-30, 0.9)
        log = xp.log(apart)
        factor = xp.log((1.0 - apart + apart * log) / (apart * log * log))
        gained = xp.where(known, factor - 400.0 * float(np.finfo(dtype).eps), -math.log(2.0))
        carried = before + gained
        carried = carried - rounding(carried)
        return self._keep_largest(log_carried=carried)

    @property
    def log_evidence(self) -> Float[Array, ""]:
        """Logarithm of the present wealth, the mean over all bets; 0 before the first run."""
        xp = namespace(self.log_wealth, self.log_carried)
        flat = xp.reshape(xp.asarray(self.log_wealth), -1)
        return log_mean(flat) + xp.asarray(self.log_carried)

    @property
    def evidence(self) -> Float[Array, ""]:
        """The present wealth: at most 1 in the mean, at every stopping time, if the claim holds."""
        found = self.log_evidence
        xp = namespace(found)
        return xp.exp(xp.minimum(found, 700.0))  # less than what overflows

    def rejects(self, level: float) -> Bool[Array, ""]:
        """Whether the wealth has ever reached 1/level: the claim is refuted at this level.

        Args:
            level: the probability with which a true claim may ever be refuted, in (0, 0.5].

        Raises:
            ValueError: `level` outside (0, 0.5].
        """
        level = real("level", level, REFUTABLE, "lie in (0, 0.5], as 0.001")
        return self.log_largest >= -math.log(level)

    def describe(self) -> str:
        """The evidence in one sentence."""
        bets = PairsEvidence(int(self.pairs), self.log_wealth.size)
        level = math.exp(-float(self.log_largest))
        found = f"refuted at every level from {level:.3g} on" if level <= 0.5 else "not refuted"
        return f"{bets.describe()}: the claim is {found}."


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RunningBound(_Bets):
    """A lower bound on ε that may be read after every pair of runs: made by `start_bound`.

    For every ε_k of a grid the claim of (ε_k, δ)-privacy has a test martingale of its own. Refuted
    is the largest ε_k up to which all have ever reached 1/α: a wrong bound takes that the first of
    the grid at which the claim is true be refuted, one martingale, so that no union is paid for.
    A frozen pytree, as `RunningEvidence`.

    Fields:
        cuts: [cuts], at which scores are divided.
        gains: [4, claims, stakes], what a bet adds to the logarithm of its wealth, by outcome.
        log_wealth: [4, cuts, claims, stakes], of every bet.
        log_largest: [claims], the largest `log_evidence` so far, at least 0.
        pairs: pairs of runs so far.
        claims: the ε of every claim, rising; no leaf of the pytree, which JAX would round.
        delta: the δ of all claims; no leaf either.

    Guarantee:
        With probability at least `confidence` the mechanism is not (ε', δ)-private for any refuted
        ε', up to and with `epsilon_bound(confidence)`, at all times together.

    Example:
        >>> import numpy as np
        >>> from dpjax import audit
        >>> rng = np.random.default_rng(0)
        >>> found = audit.start_bound(delta=1e-2, cuts=np.linspace(-2, 3, 11))
        >>> for _ in range(500):
        ...     found = found.update(*(np.array([0.0, 1.0]) + 0.3 * rng.normal(size=2)))
        >>> found.bound(confidence=0.999).contradicts(2.4)  # ε of σ = 1 at δ = 0.01
        True
    """

    claims: tuple[float, ...] = dataclasses.field(metadata={"static": True})
    delta: float = dataclasses.field(metadata={"static": True})

    @property
    def epsilon(self) -> Float[np.ndarray, " claims"]:
        """The ε of every claim, rising."""
        return np.array(self.claims)

    @property
    def log_evidence(self) -> Float[Array, " claims"]:
        """Logarithm of the present wealth against every claim; 0 before the first run."""
        log_wealth = namespace(self.log_wealth).asarray(self.log_wealth)
        return log_mean(log_wealth.transpose(2, 0, 1, 3).reshape(log_wealth.shape[2], -1))

    def epsilon_bound(self, confidence: float = 0.999) -> Float[Array, ""]:
        """The largest ε_k such that every claim up to it has been refuted; 0 where none is.

        Under a trace in JAX's own precision, rounded to nearest; `bound` reads the claims as given.

        Args:
            confidence: of all bounds read at all times together, in [0.5, 1).

        Raises:
            ValueError: `confidence` outside [0.5, 1).
        """
        leading = self._find_refuted(confidence)
        xp = namespace(leading)
        return xp.max(xp.where(leading, xp.asarray(self.epsilon), 0.0))

    def _find_refuted(self, confidence: float) -> Bool[Array, " claims"]:
        """Which claims are refuted together with all that are smaller."""
        check_level(0.0, confidence)
        xp = namespace(self.log_largest)
        refuted = self.log_largest >= -math.log(1.0 - confidence)
        return xp.cumsum(xp.where(refuted, 0, 1)) == 0  # none so far that was not

    def bound(self, confidence: float = 0.999) -> EmpiricalBound:
        """The bound at this moment, as the other audits return it.

        A refuted ε_k is contradicted itself, which is a bound of the next larger number.

        Args:
            confidence: of all bounds read at all times together, in [0.5, 1).

        Raises:
            ValueError: `confidence` outside [0.5, 1).
        """
        count, epsilon = int(np.sum(np.asarray(self._find_refuted(confidence)))), 0.0
        if count > 0:  # not (ε', δ)-private for any ε' ≤ ε_k, that is for any below its successor
            epsilon = math.nextafter(self.claims[count - 1], math.inf)
        bets = self.log_wealth.size // len(self.claims)
        evidence = PairsEvidence(int(self.pairs), bets)
        return EmpiricalBound(epsilon, self.delta, confidence, "anytime", "", evidence)


def start_evidence(
    curve: TradeoffCurve, cuts: Sequence[float] | np.ndarray = (), *, lines: int = 8
) -> RunningEvidence:
    """Wealth of 1 to bet against a claimed trade-off curve, before the first run.

    Args:
        curve: what is claimed, for the adjacency of the two worlds: a run's `claimed_curve`,
            `GaussianCurve`, or `PiecewiseCurve(ε, δ)` of a single claim.
        cuts: at which scores are divided, chosen without the runs that are counted (`choose_cuts`);
            none where only whole audits bring evidence (`RunningEvidence.multiply`).
        lines: how many lines of a Gaussian curve are bet against, at least 1; of a list all are.

    Raises:
        ValueError: cuts that are NaN or infinite, `curve` that is none, or `lines` below 1.

    Example:
        >>> from dpjax import audit
        >>> round(float(audit.start_evidence(audit.GaussianCurve(1.0), cuts=[0.5]).evidence), 9)
        1.0
    """
    check_curve(curve)
    checked = _check_cuts(cuts)
    gains = make_gains(curve.lines(checks.whole("lines", lines)))
    return RunningEvidence(
        cuts=checked,
        gains=gains,
        log_wealth=NUMPY.zeros((_ROLES, checked.size, *gains.shape[1:])),
        log_largest=NUMPY.zeros(()),
        pairs=NUMPY.zeros((), dtype=np.int64),
        log_carried=NUMPY.zeros(()),
    )


def start_bound(
    delta: float,
    cuts: Sequence[float] | np.ndarray,
    *,
    epsilons: Sequence[float] | np.ndarray | None = None,
) -> RunningBound:
    """Wealth of 1 to bet against every claim of a grid, before the first run.

    Args:
        delta: the δ at which ε is bounded, in [0, 1).
        cuts: at which scores are divided, chosen without the runs that are counted (`choose_cuts`).
        epsilons: [claims], what may be refuted, at least 0; 0, 1/8, …, 8 unless given. A bound is
            one of these: name the ε of the certificate.

    Raises:
        ValueError: no cut or cuts that are not finite, `epsilons` that are negative or not finite,
            or a δ outside [0, 1).

    Example:
        >>> from dpjax import audit
        >>> audit.start_bound(1e-5, cuts=[0.5]).bound().epsilon
        0.0
    """
    check_level(delta, 0.5)
    given = np.arange(65) / 8 if epsilons is None else check_scores("epsilons", epsilons)
    grid = np.unique(given) + 0.0  # rising, and no −0.0
    if grid.size == 0 or not (grid[0] >= 0.0 and grid[-1] < math.inf):  # NaN is sorted to the end
        raise ValueError(
            "epsilons must be at least one number, each at least 0 and finite, got "
            f"{checks.render(epsilons)}"
        )
    checked = _check_cuts(cuts)
    if checked.size == 0:
        raise ValueError("cuts must be at least one number, got none")
    lines = PiecewiseCurve(grid, np.full(grid.shape, float(delta))).lines()
    gains = make_gains(lines)
    return RunningBound(
        cuts=checked,
        gains=gains,
        log_wealth=NUMPY.zeros((_ROLES, checked.size, *gains.shape[1:])),
        log_largest=NUMPY.zeros(grid.size),
        pairs=NUMPY.zeros((), dtype=np.int64),
        claims=tuple(grid.tolist()),
        delta=float(delta),
    )


def choose_cuts(
    scores: Float[np.ndarray, " runs"],
    neighbour_scores: Float[np.ndarray, " runs"],
    *,
    count: int = 24,
) -> Float[np.ndarray, " cuts"]:
    """Cuts to bet at, from a few runs of each world that are not counted afterwards.

    Four robust deviations to either side of the median, evenly, and the pooled quantiles.

    Args:
        scores: of a few runs on the data set, at least 2.
        neighbour_scores: of as many on the neighbour.
        count: number of even cuts; there are at most 9 more.

    Returns:
        A rising array.

    Raises:
        ValueError: fewer than 2 runs, different numbers of them, NaN, or `count` below 1.

    Example:
        >>> import numpy as np
        >>> from dpjax import audit
        >>> rng = np.random.default_rng(0)
        >>> cuts = audit.choose_cuts(rng.normal(size=40), 1 + rng.normal(size=40))
        >>> bool(cuts.min() < -3 and cuts.max() > 3)
        True
    """
    pooled = np.concatenate(check_worlds(scores, neighbour_scores, 2))
    count = checks.whole("count", count)
    if np.isnan(pooled).any():
        raise ValueError("scores must be ordered, got NaN")
    pooled = np.clip(pooled, -1e300, 1e300)  # an infinite score has no quantile
    ranks = np.quantile(pooled, np.linspace(0.0, 1.0, 9), method="lower")
    deviation = (ranks[6] - ranks[2]) / 1.349  # of a normal score, from its quartiles
    even = ranks[4] + deviation * np.linspace(-4.0, 4.0, count)
    return np.unique(np.concatenate([even, ranks]))


def _check_cuts(cuts: Sequence[float] | np.ndarray) -> Numbers:
    """The cuts in rising order, if all are finite."""
    found = np.unique(check_scores("cuts", cuts))
    if not np.all(np.isfinite(found)):
        raise ValueError(f"cuts must be finite, got {found}")
    return NUMPY.asarray(found)


def make_gains(lines: CurveLines) -> Numbers:
    """ln(1 + λ·(a − e^ε·b − δ)) by outcome 2a + b, line and stake, rounded down."""
    epsilon, delta = lines.epsilon[:, None], lines.delta[:, None]
    # λ = part/(e^ε + δ), written so that e^ε does not overflow: λ·e^ε and λ are at most 1.
    whole = STAKES / (1.0 + delta * np.exp(-epsilon))
    small = whole * np.exp(-epsilon)
    table = [a * small - b * whole - small * delta for a in (0, 1) for b in (0, 1)]
    # Each payoff is off by a few units of the last place, and its logarithm by ten times as much.
    return NUMPY.asarray(np.log1p(np.stack(table)) - 100.0 * EPS)


def _settle(
    cuts: NumbersLike,
    gains: NumbersLike,
    log_wealth: Numbers,
    score: Float[ArrayLike, ""],
    neighbour_score: Float[ArrayLike, ""],
) -> Numbers:
    """The logarithms of all wealth after a pair of runs."""
    for name, value in (("score", score), ("neighbour_score", neighbour_score)):
        # Several pairs at once would give every cut a pair of its own, traced or not.
        known = value if is_traced(value) else check_scores(name, value, events=True)
        if np.ndim(known) or (not is_traced(known) and np.isnan(known)):
            raise ValueError(f"{name} must be one number that can be ordered, got {value}")
    if np.size(cuts) == 0:
        raise ValueError("cuts must be at least one number to settle a pair of runs by, got none")
    xp = namespace(score, neighbour_score, log_wealth)
    at = xp.asarray(cuts)
    pair = (xp.asarray(one).astype(at.dtype) for one in (score, neighbour_score))
    above, beside = (xp.where(one > at, 1, 0) for one in pair)  # a score at the cut is not above
    # Which world is bet on, with "above" and with "not above"; what happened in the other.
    hit = xp.stack([beside, 1 - above, above, 1 - beside])
    missed = xp.stack([above, 1 - beside, beside, 1 - above])
    grown = xp.asarray(log_wealth) + xp.asarray(gains)[2 * hit + missed]
    return grown - rounding(grown)


def rounding(sums: Numbers) -> Numbers:
    """What one more addition, and a term that was cast to this precision, may have added."""
    return 2.0 * float(np.finfo(sums.dtype).eps) * (abs(sums) + 1.0)


def log_mean(log_wealth: Numbers) -> Numbers:
    """ln of the mean of e^x along the last axis, rounded down; 0 where it is empty."""
    xp, count = namespace(log_wealth), log_wealth.shape[-1]
    if count == 0:
        return xp.zeros(log_wealth.shape[:-1], dtype=log_wealth.dtype)
    top = xp.max(log_wealth, axis=-1, keepdims=True)
    total = xp.sum(xp.exp(log_wealth - top), axis=-1)
    found = xp.squeeze(top, -1) + xp.log(total) - math.log(count)
    # A sum of n positive terms is off by at most n units of the last place of itself.
    slack = float(np.finfo(log_wealth.dtype).eps) * (count + 8)
    return found - slack - rounding(found)
