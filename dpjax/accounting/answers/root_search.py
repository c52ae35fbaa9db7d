"""The root of a monotone ε(parameter) = target: a bracket from near one outwards, then its inside.

The search is for the root of log ε − log target in the logarithm of the parameter. Bounds of ε need
not be monotone where ε is: they may be loose. The search goes on unless the lower ends of ε show
that ε itself is not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpjax.accounting.answers.accepted import Ends
from dpjax.accounting.errors import ImpossibleBudget

_ROUNDS = 60
_NOT_MONOTONE = "ε must rise or fall with the parameter of make_mechanism; it does both"


def _next_safe(value: np.ndarray, rising: bool) -> np.ndarray:
    """The nearest float32 on the private side: the value survives a cast in the user's program."""
    narrow = value.astype(np.float32)
    if rising:  # ε rises with the parameter: less is safer
        over = narrow.astype(np.float64) > value
        narrow = np.where(over, np.nextafter(narrow, np.float32(-np.inf)), narrow)
    else:
        under = narrow.astype(np.float64) < value
        narrow = np.where(under, np.nextafter(narrow, np.float32(np.inf)), narrow)
    return narrow.astype(np.float64)


class Costs(NamedTuple):
    """What is asked of parameters.

    Fields:
        epsilon: upper ends of ε; +inf where there is no answer.
        at_least: lower ends of ε.
        delta: of δ at ε = 0, which may still move where ε does not.
    """

    epsilon: Callable[[np.ndarray], np.ndarray]
    at_least: Callable[[np.ndarray], np.ndarray]
    delta: Callable[[np.ndarray], np.ndarray]


class Found(NamedTuple):
    """The last parameters that keep their targets.

    Fields:
        value: the parameters.
        cut: whether it is for want of an answer, not for a high one, that no fuller one is known.
    """

    value: np.ndarray
    cut: np.ndarray


def _rises(points: list[tuple[np.ndarray, np.ndarray]]) -> bool | None:
    """Whether the cost rises with the parameter: by those that are finite, if two of them differ.

    Returns:
        None where no two costs differ.

    Raises:
        ValueError: it does at some targets, and falls at others.
    """
    pairs = list(itertools.combinations(points, 2))
    up = np.stack([(b > a) == (y > x) for (x, a), (y, b) in pairs])
    differ = np.stack([a != b for (_, a), (_, b) in pairs])
    finite = differ & np.stack([np.isfinite(a) & np.isfinite(b) for (_, a), (_, b) in pairs])
    told = up[finite if np.any(finite) else differ]
    if np.any(told) and not np.all(told):
        raise ValueError(_NOT_MONOTONE)
    return bool(np.all(told)) if told.size else None


def _interpolated(
    points: list[tuple[np.ndarray, np.ndarray]], order: int
) -> tuple[np.ndarray, np.ndarray]:
    """Where the height is 0, by inverse interpolation in the points nearest to it; NaN for nowhere.

    Neville's scheme, of the highest order up to the given one whose correction is much smaller than
    the distance that the lower one moved.

    Returns:
        The root, and the last correction from the second order on; ∞ for none.
    """
    z, h = (np.stack(column) for column in zip(*points, strict=True))
    nearest = np.argsort(np.abs(h), axis=0, kind="stable")[: order + 1]
    z, h = (np.take_along_axis(values, nearest, axis=0) for values in (z, h))
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.where(np.abs(h) < 4.0, z, np.nan)
        first, root, trust = z[0], np.full_like(z[0], np.nan), np.inf
        correction = np.full_like(z[0], np.inf)
        for m in range(1, len(z)):
            z = (h[:-m] * z[1:] - h[m:] * z[:-1]) / (h[:-m] - h[m:])
            moved = np.abs(z[0] - (first if m == 1 else root))
            good = (moved < trust) & ((m == 1) | np.isfinite(moved))
            root = np.where(good, z[0], root)
            correction = np.where(good & (m > 1), moved, correction)
            trust = np.where(good, 0.3 * np.abs(root - first), 0.0)
    return root, correction


class _Bracket:
    """The nearest parameters asked on either side of every root; NaN where there are none.

    Attributes:
        safe, dear: the last that keeps the budget, and the first that does not.
        cost_safe, cost_dear: ε there.
        points: all that were asked: logarithms of the parameters, and heights.
    """

    def __init__(self, ends: Ends, target: np.ndarray, rising: bool, at_least: Callable):
        self._ends, self._target, self._rising = ends, target, rising
        self._at_least = at_least
        self.sign = 1.0 if rising else -1.0  # ε rises with sign · log parameter
        self.safe, self.dear = (np.full(target.shape, np.nan) for _ in range(2))
        self.cost_safe = np.zeros(target.shape)
        self.cost_dear = np.full(target.shape, np.inf)
        self.points: list[tuple[np.ndarray, np.ndarray]] = []

    @property
    def limits(self) -> tuple[float, float]:
        """The parameters of least and of most ε, as far as they are known by now."""
        low, high = self._ends.low, self._ends.high
        return (low, high) if self._rising else (high, low)

    def note(self, value: np.ndarray, cost: np.ndarray) -> None:
        """Takes in that `value` costs `cost`."""
        sign, safe, dear = self.sign, self.safe, self.dear
        # Between two parameters a monotone ε lies between theirs; methods may differ by a little.
        less = (cost < 0.98 * self.cost_safe) & (sign * value > sign * safe)
        more = np.isfinite(cost) & (cost > 1.02 * self.cost_dear) & (sign * value < sign * dear)
        if np.any(less):
            self._refuse(np.where(less, safe, value), np.where(less, cost, np.inf))
        if np.any(more):
            self._refuse(value, np.where(more, self.cost_dear, np.inf))
        keep = (cost <= self._target) & ~(sign * value <= sign * safe)
        drop = ~(cost <= self._target) & ~(sign * value >= sign * dear)
        # No answer where a dearer parameter has one says nothing of ε: the search goes on outwards.
        void = np.isinf(cost) & np.isfinite(self.cost_dear) & np.isnan(safe)
        drop &= ~(void & (value != self.limits[0]))
        self.safe, self.cost_safe = (
            np.where(keep, value, safe),
            np.where(keep, cost, self.cost_safe),
        )
        self.dear, self.cost_dear = (
            np.where(drop, value, dear),
            np.where(drop, cost, self.cost_dear),
        )
        self.points.append((np.log(value), _height(cost, self._target)))

    def _refuse(self, value: np.ndarray, most: np.ndarray) -> None:
        """ε at `value` should not be above `most`, which a parameter beyond it costs."""
        if np.any(self._at_least(value) > most):
            raise ValueError(_NOT_MONOTONE)


def _height(cost: np.ndarray, target: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):  # ε of 0 or infinity says no more than its sign
        return np.clip(np.log(cost) - np.log(target), -40.0, 40.0)


def _first_asked(
    ends: Ends,
    whole: bool,
    target: np.ndarray,
    spend: Callable,
    bounded: bool,
    start: np.ndarray | None,
) -> tuple[list[tuple[np.ndarray, np.ndarray]], tuple[np.ndarray, np.ndarray]]:
    """Two or three parameters and their ε, two of them different; and those with an answer."""
    first = np.full(target.shape, ends.good[0]) if start is None else ends.inside(start)
    at_first = spend(first)
    # About where the root is, if ε falls as a power of the parameter, as it does with the noise: a
    # steeper one the less noise there is.
    above = _height(at_first, target)
    guess = above / np.where(above > 0, 1.4, 2.5)
    factor = 2.0 if whole else np.exp(np.copysign(np.clip(np.abs(guess), 0.15, 3.0), guess))
    second = np.full(target.shape, ends.good[1]) if bounded else ends.inside(factor * first)
    if np.all(second == first):
        second = ends.inside(np.ceil(0.5 * first) if whole else 0.5 * first)
    cost = [at_first, spend(second)]
    for far in (4.0, 256.0, 2.0**40):  # away from where ε is infinite or zero throughout
        if bounded or np.any(cost[0] != cost[1]):
            break
        first, second = ends.inside(first / far), ends.inside(second * far)
        cost = [spend(first), spend(second)]
    asked = [(first, cost[0]), (second, cost[1])]
    lost = np.isinf(cost[0])
    known, least = np.where(lost, second, first), np.where(lost, cost[1], cost[0])
    if np.any(lost != np.isinf(cost[1])):
        # One answer does not tell the direction: no answer may be a bound's failing, not a high ε.
        away = np.where((second > first) == lost, 2.0, 0.5)
        third = ends.inside(np.ceil(away * known) if whole else away * known)
        # From an end inwards.
        back = ends.inside(np.ceil(known / away) if whole else known / away)
        third = np.where(third == known, back, third)
        asked.append((third, spend(third)))
    return asked, (known, least)


def solve(
    ends: Ends,
    whole: bool,
    target: np.ndarray,
    costs: Costs,
    bounded: bool,
    start: np.ndarray | None = None,
) -> Found:
    """The last parameter of every target that keeps it.

    Args:
        ends: the parameters within which to search.
        whole: whether they are whole numbers.
        target: the ε of the budget.
        costs: what a parameter costs.
        bounded: whether to begin at both ends.
        start: the first parameters to ask; by default any that is accepted.

    Raises:
        ImpossibleBudget: no parameter keeps a target.
        ValueError: ε both rises and falls with the parameter.
    """
    spend = costs.epsilon
    asked, (known, least_cost) = _first_asked(ends, whole, target, spend, bounded, start)
    first, rising = asked[0][0], _rises(asked)
    if rising is None:  # ε is 0 throughout, or infinite
        rising = _rises([(value, costs.delta(value)) for value, _ in asked]) is not False
    more_to, less_to = (np.inf, 0.0) if rising else (0.0, np.inf)
    bracket = _Bracket(ends, target, rising, costs.at_least)
    sign, points = bracket.sign, bracket.points

    def grid(z: np.ndarray) -> np.ndarray:
        value = np.exp(z)
        return ends.inside(np.round(value) if whole else _next_safe(value, rising))

    def beside(value: np.ndarray, to: float) -> np.ndarray:
        """The next parameter that may be returned, towards 0 or infinity."""
        if whole:
            return ends.inside(value + (1.0 if to else -1.0))
        return ends.inside(np.nextafter(value.astype(np.float32), np.float32(to)).astype(float))

    for value, found in asked:
        # Nor does it say anything where a dearer parameter has one.
        void = np.isinf(found) & np.isfinite(least_cost) & (sign * value < sign * known)
        bracket.note(np.where(void, known, value), np.where(void, least_cost, found))
    stride, done = 1.0, np.zeros(target.shape, bool)
    for count in range(_ROUNDS):
        safe, dear = bracket.safe, bracket.dear
        no_safe, no_dear = np.isnan(safe), np.isnan(dear)
        between = ~(no_safe | no_dear)
        (inner, off), (outer, _) = _interpolated(points, 3), _interpolated(points, 1)
        root = np.where(between, inner, outer)
        a, b = np.log(safe), np.log(dear)
        # Neighbours on either side of the root: as full as can be.
        more = np.where(no_safe, np.nan, beside(np.where(no_safe, first, safe), more_to))
        done |= sign * more >= sign * dear
        # Nor need the next one be asked where the root is plainly short of it: that what is
        # returned keeps the budget does not rest on it.
        if not whole:
            short = np.minimum(sign * (root - a), sign * (np.log(more) - root))
            done |= between & (short > 0.05 * np.abs(np.log(more) - a)) & (short > 20 * off)
        cheapest, dearest = bracket.limits
        done |= no_dear & (safe == dearest)
        at_end = no_safe & (dear == cheapest)
        if np.any(at_end):
            worst = int(np.argmax(at_end))
            reachable = float(bracket.cost_dear.flat[worst])
            refusal = ImpossibleBudget(
                f"epsilon={target.flat[worst]:g} cannot be reached: the smallest reachable epsilon "
                f"is {reachable:.6g}, at parameter {dear.flat[worst]:.6g}; "
                "lower the steps or the sampling rate, raise the noise, or raise epsilon or delta"
            )
            refusal.beyond, refusal.reachable = less_to, reachable
            raise refusal
        if np.all(done):
            break
        # Outwards to a little beyond the interpolated root, at most a stride that grows; by that
        # stride where there is no root ahead, and at times, as roots may keep falling short.
        edge, way = np.where(no_dear, a, b), np.where(no_dear, sign, -sign)
        least = np.maximum(np.exp(-edge), 0.05) if whole else 0.05
        ahead = way * (root - edge)
        use = (ahead > 0) & (ahead + least < stride) & (count % 6 != 5)
        out = edge + way * np.where(use, ahead + least, np.maximum(stride, least))
        # Between two ends to the root, or to the middle where it is not between them.
        near = (np.minimum(a, b) < root) & (root < np.maximum(a, b)) & (count % 12 != 11)
        z = np.where(between, np.where(near, root, 0.5 * (a + b)), out)
        stride *= 1.0 if np.all(between) else 2.0
        value = grid(np.where(done, points[-1][0], z))
        # What is asked between the ends is new.
        value = np.where(between & (sign * value <= sign * safe), more, value)
        less = beside(np.where(no_dear, first, dear), less_to)
        value = np.where(between & (sign * value >= sign * dear), less, value)
        value = np.where(done, safe, value)
        bracket.note(value, spend(value))
    if np.any(np.isnan(bracket.safe)):
        raise ValueError(_NOT_MONOTONE)
    full = bracket.cost_safe >= 0.999 * target
    return Found(bracket.safe, np.isinf(bracket.cost_dear) & ~np.isnan(bracket.dear) & ~full)
