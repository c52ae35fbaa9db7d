"""Group privacy of any mechanism that answers ε(δ): k records are k steps between neighbours.

With M(0), …, M(k) the outputs along the steps, P(M(0) ∈ S) ≤ e^ε P(M(1) ∈ S) + δ ≤ … gives

    P(M(0) ∈ S) ≤ e^{kε} P(M(k) ∈ S) + δ(1 + e^ε + … + e^{(k−1)ε}).

It holds for whatever is released, with the guarantee of the same adjacency at every data set on the
way. `TruncatedPoissonSampled` is priced for the size of the larger neighbour and is not covered
under ADD_REMOVE, where that size changes along the way.

References:
  Vadhan 2017, Lemma 2.2; Dwork, Roth 2014, Theorem 2.2 (its δ = 0 case).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpjax._numerics.arrays import ROUND_UP, Numbers, NumbersLike
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import Mechanism, TruncatedPoissonSampled, UserLevel
from dpjax.accounting.mechanisms.base import walk
from dpjax.accounting.method import Method, best_bound, rank_in_best

_ROUNDS = 16
_NEAR = 1e-2  # of log δ, where a search ends
_LEAST_LOG_DELTA = -570.0  # log δ of one step below which none is tried


def covered(run: Mechanism, adjacency: Adjacency) -> bool:
    """Whether the guarantee of what is wrapped holds at every data set between two neighbours."""
    sized = any(isinstance(part, TruncatedPoissonSampled) for part in walk(run))
    return not (sized and adjacency is Adjacency.ADD_REMOVE)


def log_factor(records: NumbersLike, epsilon: NumbersLike) -> np.ndarray:
    """log(1 + e^ε + … + e^{(k−1)ε}), rounded up; ε >= 0.

    Example:
        >>> log_factor(3, np.log(2.0)).round(6), np.log(7).round(6)
        (np.float64(1.94591), np.float64(1.94591))
    """
    k, epsilon = np.asarray(records, np.float64), np.asarray(epsilon, np.float64)
    safe = np.clip(epsilon, 1e-8, 1e300)
    # e^{(k−1)ε}(1 − e^{−kε})/(1 − e^{−ε}), and at most k·e^{(k−1)ε}.
    sum_ = (k - 1) * safe + np.log(np.expm1(-k * safe) / np.expm1(-safe))
    found = np.where(epsilon < 1e-8, np.log(k) + (k - 1) * epsilon, sum_)
    return np.where(k == 1, 0.0, found * ROUND_UP)


def group_privacy(table: Sequence[Method]) -> Method:
    """The method `"group"` over the methods of a table that price what `UserLevel` wraps."""

    def supports(run: Mechanism, adjacency: Adjacency) -> bool:
        if not isinstance(run, UserLevel) or not covered(run, adjacency):
            return False
        return bool(rank_in_best(table, "epsilon", run.mechanism, adjacency))

    def delta(run: UserLevel, epsilon: Numbers, adjacency: Adjacency) -> np.ndarray:
        k = np.asarray(run.records, np.float64)
        each = np.minimum(np.asarray(epsilon, np.float64), 1e300) / k * (1 - 1e-15)
        methods = rank_in_best(table, "delta", run.mechanism, adjacency)
        if not methods:
            return np.ones(np.broadcast_shapes(k.shape, np.shape(epsilon)))
        one = np.asarray(best_bound("delta", methods, run.mechanism, each, adjacency)[0])
        with np.errstate(divide="ignore"):
            value = np.exp(np.minimum(np.log(one) * (1 - 1e-15) + log_factor(k, each), 0.0))
        return np.where(one > 0, np.minimum(value * ROUND_UP, 1.0), 0.0)

    def epsilon(run: UserLevel, delta: Numbers, adjacency: Adjacency) -> np.ndarray:
        """By the δ of one step: whichever ε is kept has been checked to be enough."""
        k, goal = np.asarray(run.records, np.float64), np.log(np.asarray(delta, np.float64))
        methods = rank_in_best(table, "epsilon", run.mechanism, adjacency)
        high = goal - np.log(k) - 1e-12  # the factor is at least k
        best = np.asarray(np.inf)

        def excess(log_delta: np.ndarray) -> np.ndarray:
            """log of the group's δ over what is asked for."""
            nonlocal best
            each = np.exp(np.minimum(log_delta, -1e-12))
            one = np.asarray(best_bound("epsilon", methods, run.mechanism, each, adjacency)[0])
            with np.errstate(invalid="ignore", over="ignore"):
                over = np.where(np.isfinite(one), log_delta + log_factor(k, one) - goal, np.inf)
                best = np.fmin(best, np.where(over <= -1e-12, k * one * ROUND_UP, np.inf))
            return over

        above = excess(high)
        shape, step = np.broadcast_shapes(above.shape, high.shape), np.maximum(above, 1.0)
        high, low, below = np.broadcast_to(high, shape), np.full(shape, -np.inf), above
        # Downwards by doubled steps, until enough; then between the two.
        for _ in range(_ROUNDS):
            found = np.isfinite(low)
            if np.all((above <= -1e-12) | (found & (high - low < _NEAR))):
                break
            with np.errstate(invalid="ignore", divide="ignore"):
                share = np.clip(above / (above - below), 0.2, 0.8)
                between = high - np.where(np.isfinite(share), share, 0.5) * (high - low)
            step = np.where(np.isfinite(step), step, 1.0)
            at = np.where(found, between, np.maximum(high - step, _LEAST_LOG_DELTA))
            at = np.where(above <= -1e-12, high, at)
            now = excess(at)
            enough = now <= -1e-12
            low, below = np.where(enough, at, low), np.where(enough, now, below)
            high, above = np.where(enough, high, at), np.where(enough, above, now)
            step = 2 * step
        return best

    return Method(
        "group",
        rank=80.0,
        dear=True,
        supports=supports,
        needs=(UserLevel,),
        epsilon=epsilon,
        delta=delta,
        describe="group privacy (Vadhan 2017, Lemma 2.2): k records cost kε and δ(e^{kε} − 1)/"
        "(e^ε − 1)",
    )
