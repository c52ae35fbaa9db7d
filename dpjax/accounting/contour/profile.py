"""The whole privacy profile of one composed run, in both directions, between certified ends.

L = log dP/dQ, δ_PQ(ε) = E_P(1 − e^{ε − L})₊. A run of few outcomes has it as a sum, a single
sampled step in closed form, and any other run off a few lines (`contour.line`), each read near the
ε that it was drawn for. Three facts serve all of them:

CHORDS    δ is convex in v = e^ε, and falls: below the chords of its upper ends. What two v differ
          by is taken from their ε, since v near 1 is rounded by more than near ones differ.
DOWN      δ_PQ(−e) = 1 − e^{−e} + e^{−e}δ_QP(e), from ∫(p − e^{−e}q)₊ and P and Q having mass 1.
SLOPE     To the right δ has the slope −Q(L > ε) in v. So Q(L > ε) lies between the slopes of two
          chords, and P(L > ε) = δ(ε) + v·Q(L > ε).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpjax._numerics.arrays import EPS, NUMPY, halve
from dpjax.accounting.contour import interval
from dpjax.accounting.contour import line as lines
from dpjax.accounting.contour.allocations import LAWS, allocate
from dpjax.accounting.contour.rare_steps import RareSteps, can_round
from dpjax.accounting.contour.saddle import Composition, Group, Rounded, Saddle, find_saddle
from dpjax.accounting.contour.single_step import find_single_step
from dpjax.accounting.loss_distribution.step import Pair
from dpjax.accounting.pairs.atoms import PAIRS
from dpjax.accounting.pairs.finite_profile import discrete_delta, discrete_epsilon
from dpjax.accounting.pairs.mixtures import Mixture
from dpjax.accounting.pairs.pair import Atoms
from dpjax.accounting.pairs.uses import Discrete, convolve

UP, DOWN = 1 + 1e-12, 1 - 1e-12  # of values that are off by some hundred units of roundoff
_KNOTS = 120
_LINES = 5
_READ_UP_TO = 0.9  # of the distance between two lines, up to which each is read
_NEIGHBOUR = 3e-5  # how far a knot's neighbours are, over the last knot
_GOOD = 1e-2  # relative width of δ at which no longer line is drawn
_LAST = 300.0  # ε beyond which nothing is read
_FAR_DEVIATIONS = 45.0  # deviations beyond which a normal number is rarer than 1e-440
_PLACE_HALVINGS = 80


class Profile(NamedTuple):
    """Both ends of δ(ε) in one direction, at rising ε ≥ 0."""

    epsilon: np.ndarray
    high: np.ndarray
    low: np.ndarray

    def tails(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a lower end of P(L > ε) and an upper end of Q(L > ε) (inequality SLOPE)."""
        v = np.exp(self.epsilon)
        gap = subtract_exponentials(self.epsilon, self.epsilon[:, None])
        with np.errstate(divide="ignore", invalid="ignore"):
            least = np.where(gap > 0, (self.low[:, None] - self.high) / gap, 0.0).max(axis=1)
            most = np.where(gap < 0, (self.low[:, None] - self.high) / gap, 1.0).min(axis=1)
        # P's end belongs to the least Q of any: δ and v are known there.
        return (self.low + v * np.maximum(least * DOWN, 0.0)) * DOWN, np.minimum(most * UP, 1.0)


def at_both_signs(own: Profile, other: Profile) -> tuple[np.ndarray, np.ndarray]:
    """Return all knots, rising, and upper ends of δ_PQ there: DOWN."""
    e = other.epsilon[:0:-1]
    # Four roundings of terms that are at least 0, so nothing cancels: rounded up by as many.
    below = (-np.expm1(-e) + np.exp(-e) * other.high[:0:-1]) * (1 + 4 * EPS)
    return np.concatenate([-e, own.epsilon]), np.concatenate([below, own.high])


def subtract_exponentials(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return e^one − e^other, to a few units of roundoff of itself."""
    return np.exp(other) * np.expm1(one - other)


def below_chords(
    x: np.ndarray, y: np.ndarray, at: np.ndarray, subtract: Callable = np.subtract
) -> np.ndarray:
    """Return the greatest convex function that is at most y at rising points x, y of one sign.

    Example:
        >>> below_chords(np.arange(3.0), np.array([2.0, 3.0, 0.0]), np.array([1.0]))
        array([1.])
    """
    kept: list[int] = []
    for i in range(len(x)):
        while len(kept) > 1:
            j, k = kept[-2:]
            if (y[k] - y[j]) * subtract(x[i], x[k]) <= (y[i] - y[k]) * subtract(x[k], x[j]):
                break
            kept.pop()
        kept.append(i)
    right = np.clip(np.searchsorted(x[kept], at, side="right"), 1, max(len(kept) - 1, 1))
    j, k = (np.take(kept, place, mode="clip") for place in (right - 1, right))
    # A mean of two ends of one sign: nothing cancels, however close the points are.
    one, other = subtract(x[k], at), subtract(at, x[j])
    with np.errstate(invalid="ignore"):
        mean = (y[j] * one + y[k] * other) / (one + other)
    return np.where(one + other > 0, mean, y[k])


# ------------------------------------------------------------------------------ what is composed


def _compose(pairs: list[Pair | Discrete], level: float) -> Discrete | Composition | Rounded | None:
    """Return the steps of one direction multiplied out, or as lines take them; None without noise.

    Args:
        pairs: known outcomes, and steps of pairs that lines are drawn for.
        level: about the least δ that is asked for.
    """
    rows: dict[Any, list[Pair]] = {}
    for pair in pairs:
        if isinstance(pair, Pair) and pair.mu > 0 and pair.rate > 0 and pair.count > 0:
            rows.setdefault(pair.family, []).append(pair)
    several = convolve(pair for pair in pairs if isinstance(pair, Discrete) and np.any(pair.losses))
    if not rows and len(several) <= 1:
        only = several[0] if several else Discrete(np.zeros(1), np.ones(1))
        if only.count == 1:
            return only
    mu2, groups = 0.0, []
    allocated = [step for family in LAWS for step in rows.pop(family, [])]
    for family, steps in rows.items():
        mu, rate, count = (np.array([step[i] for step in steps]) for i in (2, 3, 4))
        if not np.all(np.isfinite(mu) & np.isfinite(count)):
            return None
        if family == "gaussian":  # a sum of n terms is off by n units of roundoff
            mu2 += float(np.sum(count * mu * mu))
            continue
        table = PAIRS[family].table(NUMPY.asarray(mu), NUMPY.asarray(rate))
        groups.append(Group(table if steps[0].sign > 0 else table.reversed(), NUMPY.asarray(count)))
    for losses, masses, count, _ in several:
        finite = np.isfinite(losses) & (masses > 0)
        if not np.any(finite):
            return None
        atoms = losses[finite], masses[finite], np.sum(masses[losses == np.inf]), 0.0
        table = Atoms(*(NUMPY.asarray(v)[None] for v in atoms))
        groups.append(Group(table, NUMPY.asarray([count])))
    # A law made for the least δ bounds larger ones too.
    whole = Composition(NUMPY.asarray(mu2), tuple(groups))
    return allocate(whole, allocated, level) if allocated else whole


def _round_rare(
    pairs: list[Pair | Discrete], run: Discrete | Composition | Rounded | None
) -> Rounded | None:
    """Return few rare steps by their outcomes, for which lines of their densities are too short."""
    steps = [pair for pair in pairs if isinstance(pair, Pair)]
    if not isinstance(run, Composition) or len(steps) < len(pairs) or not can_round(steps):
        return None
    return RareSteps(run) if all(isinstance(g.pair, Mixture) for g in run.groups) else None


def _find_last(run: Discrete | Composition | Rounded, level: float) -> float:
    """Return about the ε at which δ(ε), but for infinite losses, has fallen to a level."""
    if isinstance(run, Discrete):
        finite = np.isfinite(run.losses)
        return discrete_epsilon(Discrete(run.losses[finite], run.masses[finite]), level)
    whole = run if isinstance(run, Composition) else run.rough()
    return float(find_saddle(whole, NUMPY.asarray(np.log(level)), None).epsilon)


def read_profiles(
    ways: list[list[Pair | Discrete]],
    level: float,
    *,
    with_neighbours: bool,
    also: np.ndarray | None = None,
    lines_at: Sequence[float] = (),
) -> list[Profile] | None:
    """Return the profile of either direction, on the same knots; None where nothing is known.

    Args:
        ways: the steps in either direction, or in the one that says both.
        level: δ, about, at the last knot.
        with_neighbours: whether every knot has one close by, as a sharp SLOPE needs.
        also: knots besides, where they are before the last.
        lines_at: ε at which lines are drawn besides, where they may be far from even places.
    """
    with np.errstate(all="ignore"):
        runs = [_compose(pairs, level) for pairs in ways]
        finer = [_round_rare(pairs, run) for pairs, run in zip(ways, runs, strict=True)]
        last = max(np.inf if run is None else _find_last(run, level) for run in runs)
        if not last <= _LAST:
            return None
        last = max(last, 1e-6)
        knots = np.linspace(0.0, last, _KNOTS)
        for run in runs:  # of few outcomes every loss is a knot: between them δ is its own chord
            if isinstance(run, Discrete) and len(run.losses) <= _KNOTS:
                own = np.abs(run.losses[np.isfinite(run.losses)])
                knots = np.union1d(knots, own[own <= last])
        if also is not None:
            knots = np.union1d(knots, also[also <= last])
        if with_neighbours:
            near = _NEIGHBOUR * last
            knots = np.unique(np.concatenate([knots, knots + near, knots[1:] - near]))
            knots = knots[knots >= 0]
        knots = knots[np.diff(knots, prepend=-np.inf) > 1e-9 * last]
        at = [e for e in lines_at if 0 < e < last]
        return [_read_direction(run, knots, few, at) for run, few in zip(runs, finer, strict=True)]  # pyrefly: ignore


# ------------------------------------------------------------------------------ one direction


def _read_direction(
    run: Discrete | Composition | Rounded,
    epsilon: np.ndarray,
    finer: Rounded | None,
    lines_at: Sequence[float],
) -> Profile:
    """Return the profile of one direction."""
    if isinstance(run, Discrete):
        low = np.array([discrete_delta(run, float(e)) for e in epsilon]) * DOWN
        high = low * UP**2 * UP
    elif isinstance(run, Composition) and (step := _single_step(run)) is not None:
        low, high = _from_tails(step, epsilon)
    else:
        low, high = _off_lines(run, epsilon, finer, lines_at)
    low = np.maximum.accumulate(np.maximum(low, 0.0)[::-1])[::-1]
    high = np.minimum(np.minimum.accumulate(high), 1.0)
    chords = below_chords(epsilon, high, epsilon, subtract_exponentials) * UP
    return Profile(epsilon, np.minimum(high, chords), low)


def _single_step(run: Composition) -> Mixture | None:
    """Return the pair of a single step whose loss rises or falls, as one whose loss rises."""
    pair = find_single_step(run)
    single = run.gaussian_mu2 == 0 and isinstance(pair, Mixture) and run.groups[0].count[0] == 1
    side = pair.direction() if single else 0  # pyrefly: ignore
    return None if side == 0 else pair if side > 0 else pair.turned_round()  # pyrefly: ignore


def _from_tails(pair: Mixture, epsilon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends of δ(ε) = P(y > x) − e^ε Q(y > x) at L(x) = ε, L rising.

    Any x gives a lower end. With L(a) ≤ ε ≤ L(b) an upper one is P(y > a) − e^ε Q(y > b).
    """

    def is_past(x: np.ndarray, way: float) -> np.ndarray:
        p, q = pair.spread(NUMPY.asarray(x))
        loss = p.value - q.value
        off = EPS * (p.rounding + q.rounding + np.abs(loss) + 8)
        return np.asarray(loss + way * off) > epsilon

    far, ends = np.max(np.abs(pair.means)) + _FAR_DEVIATIONS, []
    for way in (1.0, -1.0):
        low, high = np.full(len(epsilon), -far), np.full(len(epsilon), far)
        low, high = halve(low, high, functools.partial(is_past, way=way), _PLACE_HALVINGS)
        ends.append(low if way > 0 else high)
    a, b = ends
    places = [x - pair.means[:, None] for x in ends]
    beyond = [0.5 * NUMPY.erfc(place / math.sqrt(2.0)) for place in places]
    p_a, p_b, q_b, grow = pair.p @ beyond[0], *(w @ beyond[1] for w in pair[1:]), np.exp(epsilon)
    # (log erfc)′ is at most 2z + 2: a place off by a unit of roundoff moves a tail by 2z² of them.
    off = beyond[0] * (EPS * (16 + 2 * places[0] ** 2))
    off = pair.p @ off + grow * (pair.q @ off)
    p_a, q_b_sure = np.where(is_past(a, 1.0), 1.0, p_a), np.where(is_past(b, -1.0), q_b, 0.0)
    return p_b - grow * q_b - off, p_a - grow * q_b_sure + off


def _off_lines(
    run: Composition | Rounded,
    epsilon: np.ndarray,
    finer: Rounded | None,
    lines_at: Sequence[float],
) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends of δ(ε) off lines: where several are read each of them bounds.

    Where no line of the run is long enough those of the finer one are drawn, whose outcomes are
    few. What is rounded has no lower end but 0.
    """
    high, low = np.ones(len(epsilon)), np.zeros(len(epsilon))
    last = epsilon[-1]
    even = last * (np.arange(_LINES) + 0.3) / _LINES
    places = [(e, _READ_UP_TO * last / _LINES) for e in even.tolist()] + [(e, e) for e in lines_at]
    for e, reach in places:
        near = np.flatnonzero(np.abs(epsilon - e) <= reach)
        middle = int(np.argmin(np.abs(epsilon[near] - e)))
        for way in (run,) if finer is None else (run, finer):
            drawn = _draw_near(way, e)
            if drawn is None:
                continue
            # Every line bounds at every ε, and what dominates the run bounds it from above.
            levels = interval.LEVELS[:2] if way is drawn[0] else interval.list_levels(drawn[0])
            up, down = _read_near(*drawn, levels, epsilon[near], middle)
            high[near] = np.fmin(high[near], up)
            if way is drawn[0]:
                low[near] = np.fmax(low[near], down)
            if up[middle] - down[middle] <= _GOOD * up[middle]:
                break
    return low, high


def _read_near(
    run: Composition, at: Saddle, levels: Sequence[Any], epsilon: np.ndarray, middle: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends at some ε off the lines at one place, as fine as its middle needs."""
    high, low = np.ones(len(epsilon)), np.zeros(len(epsilon))
    mass = float(interval.infinite_mass(run))
    for level in levels:
        for line in lines.evaluate_line(run, at, *level):
            up, down = np.exp(np.array(lines.read_ends(line, NUMPY.asarray(epsilon))))
            high = np.fmin(high, (up + mass) * UP)
            low = np.fmax(low, (down + mass) * DOWN)
            if line.blur == 0:
                break  # the second line is the first
        if high[middle] - low[middle] <= _GOOD * high[middle]:
            break
    return high, low


def _draw_near(run: Composition | Rounded, epsilon: float) -> tuple[Composition, Saddle] | None:
    """Return what a line near ε is drawn of, and where it goes; None where nothing is left."""
    if isinstance(run, Composition):
        return run, find_saddle(run, None, NUMPY.asarray(epsilon))
    at = find_saddle(run.rough(), None, NUMPY.asarray(epsilon))
    if not np.isfinite(at.c):
        return None
    # Which outcomes are kept is chosen for lines of this tilt; the run dominates at any.
    few = run.few(float(at.c), float(np.exp(-at.depth)))
    if not all(np.size(group.pair.loss) for group in few.groups if isinstance(group.pair, Atoms)):
        return None  # all outcomes lie beyond, at infinite losses
    return few, find_saddle(few, None, NUMPY.asarray(epsilon))
