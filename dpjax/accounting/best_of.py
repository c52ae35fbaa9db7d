"""The best of a secret number of runs, priced from the privacy profile of one run.

One run's outputs on neighbours are P and Q, L = log dP/dQ, δ_PQ(ε) = E_P(1 − e^{ε − L})₊. Of K runs
the one of the best score leaves; f(x) = E x^K, and G(a) = sup{Q(S) : P(S) ≤ a}.

UPPER     δ(ε) ≤ E_P φ(e^{−L}), φ(x) = sup_a (f′(1 − a) − e^ε x f′(1 − G(a)))₊. For let ties be
          broken by an independent uniform. The winner has density f′(1 − a(y)) over P, a(y) the
          probability under P of a better outcome than y, and over Q f′(1 − a′(y)) with a′ ≤ G(a);
          f′ rises, so that the hockey stick's integrand is at most φ(e^{−L}) over P. Having made no
          run has one probability in both worlds.
CHORDS    φ is convex and falls, from f′(1) at x = 0, where Q has no mass. Between knots x_i it lies
          below its chords, beyond the last below its value there: in all below
          φ_n + Σ w_i(1 − x/x_i)₊ with w_i ≥ 0, whose mean under P is φ_n + Σ w_i δ_PQ(−log x_i).
LINES     Q(S) ≤ e^e P(S) + δ_QP(e) for every e, so that G(a) ≤ min_e e^e a + δ_QP(e).
CELL      f′(1 − a) is convex in a and below its chord. Below one of LINES f′(1 − line) is convex
          too, and above its chord less a quarter of the cell times the change of its slope. So on a
          cell the difference is below a linear function, and that below the larger of its ends.
ATTAINED  A score that ranks S₀ = {L < −e₀} first, then S₁ = {L > e₁}, then the rest lets S₁ win
          with probability f(1 − P(S₀)) − f(1 − P(S₀) − P(S₁)) under P, and likewise under Q. It
          rises in P(S₁) and falls in P(S₀), as f is convex.
BESIDE    A convex profile, linear in v = e^ε between knots v_i, is Σ w_i(1 − v/v_i)₊ + w_∞, w ≥ 0:
          that of losses log v_i of probability w_i. So what lies above UPPER at knots, joined by
          chords, is the profile of a pair that dominates the selection. Beside other releases,
          whose results the runs may depend on, with losses e_j of probability u_j that dominate
          them, δ(ε) ≤ Σ w_i u_j(1 − e^{ε − e_j}/v_i)₊ + w_∞ + u_∞, as such pairs compose (Zhu, Dong
          and Wang 2022, Theorem 10).

Whatever bounds the profile of every two neighbours serves: UPPER takes nothing else of them.

References:
  Liu and Talwar 2019; Papernot and Steinke 2022; Koskela, Redberg and Wang 2024, whose bound UPPER
  sharpens. Derived for dpjax.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeGuard

import jax
import numpy as np

from dpjax._numerics.scope import is_traced
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.contour import method as contour
from dpjax.accounting.contour.profile import (
    DOWN,
    UP,
    Profile,
    at_both_signs,
    below_chords,
    subtract_exponentials,
)
from dpjax.accounting.errors import UnsupportedQuery
from dpjax.accounting.gaussian import gaussian_dp
from dpjax.accounting.loss_distribution import method as grids
from dpjax.accounting.mechanisms import BestOf, Composed, Mechanism, Repeated
from dpjax.accounting.mechanisms.base import map_axes
from dpjax.accounting.mechanisms.selection import FIXED, Trials, law_of_trials
from dpjax.accounting.method import Method, Part, best_bound, list_settings, rank_methods
from dpjax.accounting.pairs.stacked import split_run
from dpjax.accounting.profiles import has_profile, profiles
from dpjax.accounting.remembered import remember
from dpjax.accounting.typing import Real

_DENSE, _CELLS = 1000, 600  # where a is looked at, and what is kept
_REST = 1e-4  # share of δ that losses beyond the last knot may take
_LEAST_DELTA = 1e-280  # δ of one run below which nothing is read
_LAST_EPSILON = 600.0  # ε above which nothing is said
_READ = 160  # ε at which a whole profile is read
_COARSE, _FINE = 24, 48  # knots of a selection that stands beside other releases


# ------------------------------------------------------------------------------ the upper end


def _support(
    law: Trials, own: Profile, other: Profile, least: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return points (u, w) with sup_a (f′(1 − a) − y·f′(1 − G(a))) ≤ max(u − y·w) for every y ≥ 0.

    Cells are fine where both functions change, down to where f′(1 − a) is at a least value: any
    cells would do.
    """
    e, d = at_both_signs(other, own)
    half = _DENSE // 2
    a = np.geomspace(1e-16, 0.5, half), 1 - np.geomspace(0.5, 1e-12, half)[1:]
    a = np.concatenate([[0.0], *a, [1.0]])
    far = law.slope(a), law.slope(np.minimum(np.min(np.exp(e) * a[:, None] + d, axis=1), 1.0))
    far = [-np.log(np.maximum(v, 1e-300)) for v in far]
    kept = far[0] <= -math.log(least)
    ends = (far[0] + far[1])[kept]
    a = np.interp(np.linspace(ends[0], ends[-1], _CELLS), ends, a[kept])
    a = np.unique(np.concatenate([[0.0, 1e-16], a, [1.0]]))
    by_line = np.exp(e) * a[:, None] + d
    g = np.minimum(np.min(by_line, axis=1) * UP, 1.0)
    best = np.argmin(by_line[:-1] + by_line[1:], axis=1)
    rise, base = np.exp(e[best]), d[best]
    at = [np.minimum((rise * v + base) * UP, 1.0) for v in (a[:-1], a[1:])]
    steep = [np.where(v < 1, -rise * law.bend(v), 0.0) for v in at]
    # CELL; or all along a cell what f′(1 − G) is at its right end, where that is more at the left.
    gap = 0.25 * np.diff(a) * (steep[1] - steep[0]) * (1 + 1e-9)
    w = [law.slope(v) * DOWN - gap for v in at]
    flat = law.slope(g[1:]) * DOWN
    w = [np.where((flat >= w[0]) | (w[1] < 0), flat, v) for v in w]
    u, w = np.concatenate([law.slope(v) for v in (a[:-1], a[1:])]), np.concatenate(w)
    order = np.lexsort((-u, w))
    u, w = u[order] * UP, w[order] * DOWN
    kept = u > np.maximum.accumulate(np.append(0.0, u[:-1]))  # the others lie below one of these
    return u[kept], w[kept]


class Bound(NamedTuple):
    """UPPER of one direction: knots, δ of the run there, f′(1), and the points of `_support`."""

    x: np.ndarray
    delta: np.ndarray
    mean: float
    u: np.ndarray
    w: np.ndarray

    def at(self, epsilon: float) -> float:
        """Return an upper end of δ(ε) of the selection."""
        y = np.exp(np.minimum(epsilon + np.log(self.x), 700.0))  # a lesser y has a larger φ
        phi = np.maximum(np.max(self.u - np.multiply.outer(y, self.w), axis=1), 0.0)
        # CHORDS. A weight is a difference of slopes: what it loses by cancellation is added.
        values, gaps = np.concatenate([[self.mean * UP], phi]), np.diff(self.x, prepend=0.0)
        slopes = np.append(np.diff(values) / gaps, 0.0)
        lost = 4 * 2.0**-52 * (values[:-1] + values[1:]) / gaps
        turns = np.maximum(np.diff(slopes), 0.0) + lost + np.append(lost[1:], 0.0)
        found = float((np.sum(turns * self.x * self.delta) + phi[-1]) * UP)
        return found if found >= 0 else np.inf


class Beside(NamedTuple):
    """BESIDE of one direction: all sums of losses, their probabilities, that of an infinite one."""

    losses: np.ndarray
    masses: np.ndarray
    rest: float

    def at(self, epsilon: float) -> float:
        """Return an upper end of δ(ε) of the selection and what stands beside it."""
        return float(
            (self.rest - self.masses @ np.minimum(np.expm1(epsilon - self.losses), 0)) * UP
        )


def _list_losses(own: Profile, other: Profile) -> Beside:
    """Return losses of a pair that dominates all that is known by its profiles: BESIDE."""
    x, d = at_both_signs(own, other)
    d = np.minimum(below_chords(x, d, x, subtract_exponentials) * UP, 1.0)
    # A mass is v_i times a difference of slopes: what it loses by cancellation is added.
    gaps, grow = -np.expm1(-np.diff(x, prepend=-np.inf)), np.append(np.exp(-np.diff(x)), 0.0)
    falls, lost = np.diff(d, prepend=1.0) / gaps, 4 * 2.0**-52 / gaps
    masses = np.maximum(grow * np.append(falls[1:], 0.0) - falls, 0.0)
    return Beside(x, masses + lost + grow * np.append(lost[1:], 0.0), float(d[-1]))


def _put_beside(bounds: list[Bound], others: list[Profile], delta: float) -> list[Beside]:
    """Return the bounds of both directions beside other releases, for a δ up to tenfold."""
    far = -2 * math.log(bounds[0].x[0])  # where infinite losses alone are left
    near = [min(_solve(bounds, share * delta), far) for share in (10.0, 1.0, 2 * _REST)]
    last, wide = max(near[-1], 1e-6), others[0].epsilon[-1]
    # Fine where the sum of BESIDE has its mass: near what the selection alone costs.
    fine = np.linspace(near[0] - wide, near[1] + wide, _FINE)
    e = np.unique(np.clip(np.concatenate([np.linspace(0.0, last, _COARSE), fine]), 0.0, last))
    e = e[np.diff(e, prepend=-np.inf) > 1e-9 * last]
    read = [np.minimum([bound.at(x) for x in e], 1.0) for bound in bounds]
    best, found = [Profile(e, np.minimum.accumulate(high), 0.0 * e) for high in read], []
    for i in range(max(len(best), len(others))):
        one, two = (_list_losses(own[i % len(own)], own[i - 1]) for own in (best, others))
        sums = np.add.outer(one.losses, two.losses).ravel()
        masses = np.multiply.outer(one.masses, two.masses).ravel()
        found.append(Beside(sums, masses, one.rest + two.rest))
    return found


def upper_bound(law: Trials, own: Profile, other: Profile, least: float) -> Bound:
    """Return UPPER of one direction, of the profiles of both; what is below `least` is rough."""
    e, d = at_both_signs(own, other)
    x = np.exp(-e[::-1]) * (1 - 1e-15)  # rounded down: δ(−log x) is at most what it is at e
    return Bound(x, d[::-1] * UP, law.mean, *_support(law, own, other, least))


def _solve(bounds: Sequence[Bound | Beside], delta: float) -> float:
    """Return an ε at which every bound is at most δ, close to the least."""

    def excess(epsilon: float) -> float:
        return math.log(max(max(bound.at(epsilon) for bound in bounds), 1e-300) / delta)

    if excess(0.0) <= 0:
        return 0.0
    top = 1.0
    while excess(top) > 0:
        top *= 2
        if top > _LAST_EPSILON:
            return np.inf
    from scipy.optimize import root_scalar

    ends = top / 2 if top > 1 else 0.0, top
    root = root_scalar(excess, bracket=ends, method="brentq", xtol=1e-14, rtol=1e-14).root
    step = 1e-14 * (1 + root)
    while excess(root) > 0:  # a bound counts where it has been asked
        root, step = root + step, 2 * step
    return float(root)


# ------------------------------------------------------------------------------ the lower end


def lower_end(law: Trials, own: Profile, other: Profile, delta: float) -> float:
    """Return an ε that some score attains in one direction: ATTAINED; 0 where none is found."""

    def interpolate(more: np.ndarray, less: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A score may also tell a part of what lies between two events, at random."""
        order = np.lexsort((-less, more))
        more, less = np.append(0.0, more[order]), np.append(0.0, less[order])
        parts = np.concatenate([more, np.geomspace(1e-12, 1.0, 200) * more[-1]])
        return parts, -below_chords(more, -less, parts) * DOWN

    p, q = own.tails()
    b0, a0 = other.tails()  # {L < −e} is {L > e} where the roles are changed
    a0, b0 = (v[:, None] for v in interpolate(a0, b0))
    q, p = interpolate(q, p)
    gain = law.win(a0, p) * DOWN - delta
    cost = law.win(b0, q) * UP
    good = (a0 + p <= 1) & (b0 + q <= 1) & (gain > 0)
    best = np.max(np.where(good, gain / np.maximum(cost, 1e-300), 0.0))
    return max(math.log(best) - 1e-12 * (1 + abs(math.log(best))), 0.0) if best > 0 else 0.0


# ------------------------------------------------------------------------------ the method


def _is_selection(step: Mechanism) -> TypeGuard[BestOf]:
    return isinstance(step, BestOf)


def _has_selection(run: Mechanism, adjacency: Adjacency) -> bool:
    """Whether one run is known by pairs that lines can be drawn for, or by a few outcomes."""
    found, others = split_run(run, _is_selection)
    if len(found) != 1 or found[0][1]:
        return False
    return has_profile(Composed((found[0][0].mechanism, others)), adjacency)


def _part(run: Mechanism) -> tuple[BestOf, Composed]:
    """Return the only selection of a run that `_has_selection`, and what stands beside it."""
    ((best, _),), others = split_run(run, _is_selection)
    return best, others


def _profiles(
    run: Mechanism, adjacency: Adjacency, level: float, *, upper: bool
) -> list[tuple[Profile, Profile]]:
    """Return the profiles of one of the runs, own and other, in either direction."""
    known = profiles(run, adjacency, level, upper=upper)
    return [] if known is None else list(zip(known, known[::-1], strict=True))


@remember(32)
def _prepare_upper(run: Mechanism, adjacency: Adjacency, level: float) -> list[Bound | Beside]:
    """Return the bound in either direction, off which answers are read."""
    best, others = _part(run)
    both = _profiles(best.mechanism, adjacency, level, upper=True)
    bounds = [upper_bound(law_of_trials(best), *way, level) for way in both]
    if not bounds or not others.mechanisms:
        return [*bounds]
    beside = profiles(others, adjacency, level)
    return [] if beside is None else [*_put_beside(bounds, beside, level * bounds[0].mean / _REST)]


@remember(32)
def _prepare_lower(
    best: BestOf, adjacency: Adjacency, level: float
) -> list[tuple[Profile, Profile]]:
    """Return the profiles off which lower ends are read."""
    return _profiles(best.mechanism, adjacency, level, upper=False)


def _ready_for(run: Mechanism, adjacency: Adjacency, level: float) -> list[Bound | Beside]:
    """Return the bounds; nothing where losses or δ are beyond what is read."""
    return [] if level < _LEAST_DELTA else _prepare_upper(run, adjacency, level)


def _level(run: Mechanism, delta: float) -> float:
    """Return the δ of one run that hardly counts, as UPPER has at most E K times that.

    A power of ten, so that like questions share what is prepared.
    """
    best = _part(run)[0]
    hardly = _REST * delta / max(float(best.expected_trials), 1.0)
    return 10.0 ** math.floor(math.log10(max(hardly, 1e-300)))


def _tell_all(run: Mechanism) -> Mechanism | None:
    """Return all runs, of which the best is a function, where their number is certain."""
    best, others = _part(run)
    m = float(best.expected_trials)
    if best.distribution != FIXED and (m != 1 or best.distribution == "poisson"):
        return None
    told = best.mechanism if m == 1 else Repeated(best.mechanism, m)
    return Composed((*others.mechanisms, told)) if others.mechanisms else told


def _composition(part: Part, run: Mechanism, given: float, adjacency: Adjacency) -> float:
    told, nothing = _tell_all(run), np.inf if part == "epsilon" else 1.0
    if told is None:
        return nothing
    table = [*gaussian_dp.GDP_METHODS, *contour.CONTOUR_METHODS, *grids.LOSS_METHODS]
    able = [m for m in rank_methods(table, part, told, adjacency) if m.rank is not None]
    return float(best_bound(part, able, told, given, adjacency)[0]) if able else nothing


def _selection_epsilon(run: Mechanism, delta: float, adjacency: Adjacency) -> float:
    if not 0 < delta < 1:
        return np.inf if delta < 1 else 0.0
    bounds = _ready_for(run, adjacency, _level(run, delta))
    found = _solve(bounds, delta) if bounds else np.inf
    return min(found, _composition("epsilon", run, delta, adjacency))


def _selection_delta(run: Mechanism, epsilon: float, adjacency: Adjacency) -> float:
    if not 0 <= epsilon < np.inf:
        return 1.0
    level, found, tried = 1e-12, 1.0, set()
    while level not in tried and (bounds := _ready_for(run, adjacency, level)):
        tried.add(level)
        found = min(found, max(bound.at(epsilon) for bound in bounds))
        wanted = _level(run, found)  # as ε(δ) takes it, so that one is the other's inverse
        level = wanted if wanted >= level else 10.0 ** math.floor(1.5 * math.log10(level))
    found = max(found, 1e-300)  # what underflows is not nothing
    return min(found, _composition("delta", run, epsilon, adjacency))


def read_selection(
    run: Mechanism, adjacency: Adjacency, level: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return ε, rising from 0, and upper ends of δ there, down to about a level; None if unknown.

    All are read off what is prepared for the last: UPPER holds whatever it was prepared for.
    """
    if not _has_selection(run, adjacency) or _tell_all(run) is not None:
        return None
    bounds = _ready_for(run, adjacency, _level(run, level))
    last = _solve(bounds, level) if bounds else np.inf
    if not 0 < last < np.inf:
        return None
    # UPPER at any ε, of profiles that are read down to the least δ asked for.
    epsilons = np.linspace(0.0, last, _READ)
    return epsilons, np.minimum([max(bound.at(e) for bound in bounds) for e in epsilons], 1.0)


def _selection_lower(run: Mechanism, delta: float, adjacency: Adjacency) -> float:
    """A lower end, of the pair that neighbours attain in one run and the score of ATTAINED.

    What stands beside the selection is left out: without it no more is told.
    """
    best = _part(run)[0]
    if not (0 < delta < 1 and grids.is_attained(best.mechanism, adjacency)):
        return 0.0
    level = _level(run, delta)
    both = [] if level < _LEAST_DELTA else _prepare_lower(best, adjacency, level)
    law = law_of_trials(best)
    return max((lower_end(law, own, other, delta) for own, other in both), default=0.0)


def _each(answer: Callable) -> Callable:
    """Return the answer of every setting of a sweep, one by one."""

    @functools.wraps(answer)
    def ask(run: Mechanism, given: Real, adjacency: Adjacency) -> np.ndarray:
        if is_traced(run, given):
            raise UnsupportedQuery("method 'selection' runs on the host: price outside the trace")
        shape, settings = list_settings((run, given), (map_axes(run), 0))
        found = np.empty(shape)
        for place, setting in settings:
            one, at = jax.tree.map(lambda v: np.asarray(v, np.float64), setting)
            found[place] = answer(one, float(at), adjacency)
        return found

    return ask


BEST_OF_METHODS = (
    Method(
        "selection",
        rank=34.0,
        dear=True,
        supports=_has_selection,
        needs=(BestOf,),
        epsilon=_each(_selection_epsilon),
        delta=_each(_selection_delta),
        epsilon_lower=_each(_selection_lower),
        describe="the best of K runs from one run's privacy profile, bounded over every score "
        "(derived for dpjax; after Koskela, Redberg and Wang 2024); of a certain K also their "
        "composition",
    ),
)
