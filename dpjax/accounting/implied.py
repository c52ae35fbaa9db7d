"""What the bounds of other methods imply: trade-off curves, and group privacy.

A trade-off curve is the envelope of the lines that δ(ε) implies.

Of a sampled release with little noise hardly more can be said than that all is told or nothing.

Group privacy is that of any mechanism that answers ε(δ): k records are k steps between neighbours.
With M(0), …, M(k) the outputs along the steps, P(M(0) ∈ S) ≤ e^ε P(M(1) ∈ S) + δ ≤ … gives

    P(M(0) ∈ S) ≤ e^{kε} P(M(k) ∈ S) + δ(1 + e^ε + … + e^{(k−1)ε}).

It holds for whatever is released, with the guarantee of the same adjacency at every data set on the
way. `TruncatedPoissonSampled` is priced for the size of the larger neighbour and is not covered
under ADD_REMOVE, where that size changes along the way.

References:
  Vadhan 2017, Lemma 2.2; Dwork, Roth 2014, Theorem 2.2 (its δ = 0 case).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpjax._numerics.arrays import NUMPY, Numbers, NumbersLike, namespace
from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.gaussian import gaussian_dp
from dpjax.accounting.mechanisms import (
    FixedBatchSampled,
    Mechanism,
    PoissonSampled,
    TruncatedPoissonSampled,
    UserLevel,
    WithReplacement,
)
from dpjax.accounting.mechanisms.base import map_axes, walk
from dpjax.accounting.mechanisms.steps import replace_noiseless
from dpjax.accounting.method import Method, Part, best_bound, list_settings, rank_methods
from dpjax.accounting.pairs.atoms import is_gaussian_family
from dpjax.accounting.profiles import worse_direction

# Any set of ε gives a valid bound; these leave it within 1e-3 of the curve for Gaussian releases.
_EPSILONS = np.concatenate([[0.0], np.geomspace(1e-3, 1e2, 120)])
# δ(ε) falls in ε: what it is at one ε bounds it at all larger ones, whose own are dear to compute.
_NEGLIGIBLE = 1e-12

_ROUNDS = 16
_NEAR = 1e-2  # of log δ, where a search ends
_LEAST = -570.0  # log δ of one step below which none is tried
_UP = 1 + 1e-12
_LITTLE = 0.05  # noise over the sensitivity, up to which a sampled release may tell all
_SAMPLED = PoissonSampled, TruncatedPoissonSampled, FixedBatchSampled, WithReplacement


def _able(
    table: Sequence[Method], part: str, run: Mechanism, adjacency: Adjacency
) -> Sequence[Method]:
    return rank_methods(table, part, run, adjacency, lambda method: method.rank is not None)


# ------------------------------------------------------------------------------ trade-off curves


def _falling(chosen: Sequence[Method], run: Mechanism, adjacency: Adjacency) -> np.ndarray:
    """δ at every ε, of one setting: asked one by one, until it is negligible."""
    deltas: list[float] = []
    for epsilon in _EPSILONS.tolist():
        if not deltas or deltas[-1] > _NEGLIGIBLE:
            deltas.append(float(best_bound("delta", chosen, run, epsilon, adjacency)[0]))
        else:
            deltas.append(deltas[-1])
    return np.asarray(deltas)


def _off_profiles(
    table: Sequence[Method], run: Mechanism, rates: Numbers, adjacency: Adjacency
) -> Numbers:
    """The same off the whole profile of each setting, which one reading knows at many ε."""
    shape, settings = list_settings(run, map_axes(run))
    found = np.empty((*shape, len(rates)))
    for index, one in settings:
        known = worse_direction(one, adjacency, _NEGLIGIBLE, _EPSILONS)
        if known is None:
            chosen = _able(table, "delta", one, adjacency)
            known = _EPSILONS, _falling(chosen, one, adjacency)
        epsilons, deltas = (NUMPY.asarray(v[:, None]) for v in known)
        found[index] = gaussian_dp.two_lines(epsilons, deltas, rates).max(axis=0)
    return NUMPY.asarray(found)


def envelope(table: Sequence[Method]) -> Method:
    """The method `"profile"` over the methods of a table that answer δ(ε)."""

    def tradeoff(run: Mechanism, rates: Numbers, adjacency: Adjacency) -> Numbers:
        """max over ε of max{0, 1 − δ(ε) − e^ε α, e^−ε (1 − δ(ε) − α)}, shape S + [k]."""
        xp = namespace(run, rates)
        if not is_traced(run, rates) and is_gaussian_family(run, adjacency):
            return _off_profiles(table, run, rates, adjacency)
        chosen = _able(table, "delta", run, adjacency)
        first = best_bound("delta", chosen, run, 0.0, adjacency)[0]
        shape = np.shape(first)
        epsilons = _EPSILONS.reshape(-1, *(1 for _ in shape))
        if shape or is_traced(first):
            deltas, _ = best_bound("delta", chosen, run, epsilons, adjacency)
        else:
            deltas = _falling(chosen, run, adjacency)
        lines = gaussian_dp.approximate_tradeoff(
            epsilons[..., None], xp.asarray(deltas)[..., None], rates
        )
        return xp.max(xp.asarray(lines), axis=0)

    return Method(
        "profile",
        rank=90.0,
        supports=lambda run, adjacency: bool(_able(table, "delta", run, adjacency)),
        tradeoff=tradeoff,
        describe="trade-off curve as the envelope of the lines that the privacy profile implies "
        "(Wasserman and Zhou 2010; Dong, Roth and Su 2022, Equation 5)",
    )


# ------------------------------------------------------------------------------ little noise


def all_or_nothing(table: Sequence[Method]) -> Method:
    """The method `"all_or_nothing"` over the methods of a table that price what it leaves."""

    def supports(run: Mechanism, adjacency: Adjacency) -> bool:
        sampled = any(isinstance(part, _SAMPLED) for part in walk(run))
        # What no other method prices stays refused, by the reason that there is none.
        return sampled and bool(_able(table, "epsilon", run, adjacency))

    def ask(part: Part, run: Mechanism, given: Numbers, adjacency: Adjacency) -> np.ndarray:
        """The settings of a sweep one after the other: in each others may have little noise."""
        if is_traced(run, given):
            raise UnsupportedQuery(
                "method 'all_or_nothing' runs on the host: price outside the trace"
            )
        shape, settings = list_settings((run, given), (map_axes(run), 0))
        found = np.full(shape, np.inf if part == "epsilon" else 1.0)
        for index, (one, asked) in settings:
            told = replace_noiseless(one, adjacency, _LITTLE)
            if told is not one and (able := _able(table, part, told, adjacency)):
                found[index] = float(best_bound(part, able, told, asked, adjacency)[0])
        return found

    return Method(
        "all_or_nothing",
        rank=18.0,  # at once; a loss distribution that has an answer is taken for tight
        dear=True,
        is_advised=False,  # a price as if of no noise
        supports=supports,
        needs=_SAMPLED,
        epsilon=functools.partial(ask, "epsilon"),
        delta=functools.partial(ask, "delta"),
        describe="sampled releases of little noise as if without any: either nothing is told of a "
        "record, or all",
    )


# ------------------------------------------------------------------------------ group privacy


def covered(run: Mechanism, adjacency: Adjacency) -> bool:
    """Whether the guarantee of what is wrapped holds at every data set between two neighbours."""
    sized = any(isinstance(part, TruncatedPoissonSampled) for part in walk(run))
    return not (sized and adjacency is Adjacency.ADD_REMOVE)


def log_factor(records: Any, epsilon: NumbersLike) -> np.ndarray:
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
    return np.where(k == 1, 0.0, found * _UP)


def group_privacy(table: Sequence[Method]) -> Method:
    """The method `"group"` over the methods of a table that price what `UserLevel` wraps."""

    def supports(run: Mechanism, adjacency: Adjacency) -> bool:
        if not isinstance(run, UserLevel) or not covered(run, adjacency):
            return False
        return bool(_able(table, "epsilon", run.mechanism, adjacency))

    def delta(run: UserLevel, epsilon: Numbers, adjacency: Adjacency) -> Any:
        k = np.asarray(run.records, np.float64)
        each = np.minimum(np.asarray(epsilon, np.float64), 1e300) / k * (1 - 1e-15)
        methods = _able(table, "delta", run.mechanism, adjacency)
        if not methods:
            return np.ones(np.broadcast_shapes(k.shape, np.shape(epsilon)))
        one = np.asarray(best_bound("delta", methods, run.mechanism, each, adjacency)[0])
        with np.errstate(divide="ignore"):
            value = np.exp(np.minimum(np.log(one) * (1 - 1e-15) + log_factor(k, each), 0.0))
        return np.where(one > 0, np.minimum(value * _UP, 1.0), 0.0)

    def epsilon(run: UserLevel, delta: Numbers, adjacency: Adjacency) -> Any:
        """By the δ of one step: whichever ε is kept has been checked to be enough."""
        k, goal = np.asarray(run.records, np.float64), np.log(np.asarray(delta, np.float64))
        methods = _able(table, "epsilon", run.mechanism, adjacency)
        high = goal - np.log(k) - 1e-12  # the factor is at least k
        best = np.asarray(np.inf)

        def excess(log_delta: np.ndarray) -> np.ndarray:
            """log of the group's δ over what is asked for."""
            nonlocal best
            each = np.exp(np.minimum(log_delta, -1e-12))
            one = np.asarray(best_bound("epsilon", methods, run.mechanism, each, adjacency)[0])
            with np.errstate(invalid="ignore", over="ignore"):
                over = np.where(np.isfinite(one), log_delta + log_factor(k, one) - goal, np.inf)
                best = np.fmin(best, np.where(over <= -1e-12, k * one * _UP, np.inf))
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
            at = np.where(found, between, np.maximum(high - step, _LEAST))
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
