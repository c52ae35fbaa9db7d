"""The root of a monotone ε(parameter) = target: a bracket from near one outwards, then its inside.

`Ends` finds which parameters the mechanism accepts, `Bracket` holds the nearest ones asked on each
side of the root, and `solve` searches for the root of log ε − log target in the logarithm of the
parameter. Bounds of ε need not be monotone where ε is: they may be loose. The search goes on unless
the lower ends of ε show that ε itself is not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpjax._numerics import checks
from dpjax.accounting.errors import ImpossibleBudget
from dpjax.accounting.mechanisms import Mechanism

MakeMechanism = Callable[[Any], Mechanism]

_LEAST, _MOST = 2.0**-40, 2.0**40  # the parameters that are searched


def _accepts(make: MakeMechanism, value: float) -> bool:
    try:
        run = make(value)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        return False
    if not isinstance(run, Mechanism):
        raise TypeError(f"make_mechanism must return a mechanism, got {checks.shown(run)}")
    return True


def is_whole(make: MakeMechanism) -> bool:
    """Whether the mechanism takes whole numbers only, as `Repeated.steps` does."""
    if _accepts(make, 1.375) or _accepts(make, 0.6875):
        return False
    good = [v for v in (2.0**k for k in range(0, 20, 4)) if _accepts(make, v)]
    return bool(good) and not any(_accepts(make, v - f) for v in good for f in (0.25, 0.375))


def _start(make: MakeMechanism) -> float:
    """A parameter that the mechanism accepts, the nearest power of two to one."""
    for exponent in range(41):
        for value in (2.0**exponent, 2.0**-exponent):
            if _accepts(make, value):
                return value
    raise ValueError(
        "make_mechanism must accept some value of its parameter between "
        f"{_LEAST:.3g} and {_MOST:.3g}, got none"
    )


def _limit(make: MakeMechanism, good: float, bad: float, whole: bool) -> float:
    """The last parameter accepted on the way from one that is to one that is not."""
    while abs(bad - good) > (1.0 if whole else 1e-12 * good):
        middle = 0.5 * (good + bad)
        middle = np.floor(middle) if whole else middle
        if middle in (good, bad):
            break
        good, bad = (middle, bad) if _accepts(make, middle) else (good, middle)
    return float(good)


class Ends:
    """The parameters within which to search; those that the mechanism refuses are found out."""

    def __init__(self, make: MakeMechanism, whole: bool, bounds: tuple[float, float] | None):
        self._make, self._whole, self._known = make, whole, bounds is not None
        self.low, self.high = bounds or (1.0 if whole else _LEAST, _MOST)
        self.good = [*bounds] if bounds else [_start(make)] * 2

    def inside(self, value: np.ndarray) -> np.ndarray:
        """The nearest parameters that are accepted."""
        for reach in (float(np.min(value)), float(np.max(value))):
            reach = min(max(reach, self.low), self.high)
            if self._known or self.good[0] <= reach <= self.good[1]:
                continue
            k = int(reach > self.good[1])
            if not _accepts(self._make, reach):
                reach = _limit(self._make, self.good[k], reach, self._whole)
                self.low, self.high = (self.low, reach) if k else (reach, self.high)
            self.good[k] = reach
        return np.clip(value, self.low, self.high)


NOT_MONOTONE = "ε must rise or fall with the parameter of make_mechanism; it does both"


class Bracket:
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
        self.points.append((np.log(value), height(cost, self._target)))

    def _refuse(self, value: np.ndarray, most: np.ndarray) -> None:
        """ε at `value` should not be above `most`, which a parameter beyond it costs."""
        if np.any(self._at_least(value) > most):
            raise ValueError(NOT_MONOTONE)


def height(cost: np.ndarray, target: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):  # ε of 0 or infinity says no more than its sign
        return np.clip(np.log(cost) - np.log(target), -40.0, 40.0)


_ROUNDS = 60


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
    """Whether the cost rises: by finite ones if two of them differ; None where no two do."""
    pairs = list(itertools.combinations(points, 2))
    up = np.stack([(b > a) == (y > x) for (x, a), (y, b) in pairs])
    differ = np.stack([a != b for (_, a), (_, b) in pairs])
    finite = differ & np.stack([np.isfinite(a) & np.isfinite(b) for (_, a), (_, b) in pairs])
    told = up[finite if np.any(finite) else differ]
    if np.any(told) and not np.all(told):
        raise ValueError(NOT_MONOTONE)
    return bool(np.all(told)) if told.size else None


def _interpolated(
    points: list[tuple[np.ndarray, np.ndarray]], order: int
) -> tuple[np.ndarray, np.ndarray]:
    """Where the height is 0, by inverse interpolation in the points nearest to it; NaN for nowhere.

    Neville's scheme, of the highest order up to the given one whose correction is much smaller than
    the distance that the lower one moved; with it the last correction from the second order on.
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
    above = height(at_first, target)
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


def _begun(
    ends: Ends,
    whole: bool,
    target: np.ndarray,
    costs: Costs,
    bounded: bool,
    start: np.ndarray | None,
) -> tuple[Bracket, np.ndarray]:
    """The bracket of the first parameters, which told the direction; and the first of them."""
    asked, (known, least_cost) = _first_asked(ends, whole, target, costs.epsilon, bounded, start)
    rising = _rises(asked)
    if rising is None:  # ε is 0 throughout, or infinite
        rising = _rises([(value, costs.delta(value)) for value, _ in asked]) is not False
    bracket = Bracket(ends, target, rising, costs.at_least)
    sign = bracket.sign
    for value, found in asked:
        # Nor does it say anything where a dearer parameter has one.
        void = np.isinf(found) & np.isfinite(least_cost) & (sign * value < sign * known)
        bracket.note(np.where(void, known, value), np.where(void, least_cost, found))
    return bracket, asked[0][0]


class _Values(NamedTuple):
    """The parameters that may be returned.

    Fields:
        ends, whole: as of `solve`.
        rising: whether ε rises with them.
    """

    ends: Ends
    whole: bool
    rising: bool

    def at(self, z: np.ndarray) -> np.ndarray:
        """The nearest to exp(z) on the private side."""
        value = np.exp(z)
        return self.ends.inside(np.round(value) if self.whole else _next_safe(value, self.rising))

    def beside(self, value: np.ndarray, *, dearer: bool) -> np.ndarray:
        """The next one, of more ε or of less."""
        up = dearer == self.rising
        if self.whole:
            return self.ends.inside(value + (1.0 if up else -1.0))
        to = np.float32(np.inf if up else 0.0)
        return self.ends.inside(np.nextafter(value.astype(np.float32), to).astype(float))


def _full(
    bracket: Bracket, more: np.ndarray, root: np.ndarray, off: np.ndarray, whole: bool
) -> np.ndarray:
    """Whether the safe parameters are as full as can be: `more` are the next ones."""
    sign, safe, dear = bracket.sign, bracket.safe, bracket.dear
    full = sign * more >= sign * dear
    # Nor need the next one be asked where the root is plainly short of it: that what is returned
    # keeps the budget does not rest on it.
    if not whole:
        a = np.log(safe)
        between = ~(np.isnan(safe) | np.isnan(dear))
        short = np.minimum(sign * (root - a), sign * (np.log(more) - root))
        full |= between & (short > 0.05 * np.abs(np.log(more) - a)) & (short > 20 * off)
    return full


def _refusal(bracket: Bracket, target: np.ndarray, at_end: np.ndarray) -> ImpossibleBudget:
    """What is said of the targets that the parameter of least ε does not keep."""
    worst = int(np.argmax(at_end))
    reachable, dear = float(bracket.cost_dear.flat[worst]), bracket.dear.flat[worst]
    refusal = ImpossibleBudget(
        f"epsilon={target.flat[worst]:g} cannot be reached: the smallest reachable epsilon is "
        f"{reachable:.6g}, at parameter {dear:.6g}; "
        "lower the steps or the sampling rate, raise the noise, or raise epsilon or delta"
    )
    refusal.beyond = 0.0 if bracket.sign > 0 else np.inf
    refusal.reachable = reachable
    return refusal


def _next(bracket: Bracket, root: np.ndarray, stride: float, count: int, whole: bool) -> np.ndarray:
    """The logarithms of the parameters to ask next."""
    a, b = np.log(bracket.safe), np.log(bracket.dear)
    no_dear = np.isnan(b)
    # Outwards to a little beyond the interpolated root, at most a stride that grows; by that stride
    # where there is no root ahead, and at times, as roots may keep falling short.
    edge, way = np.where(no_dear, a, b), np.where(no_dear, bracket.sign, -bracket.sign)
    least = np.maximum(np.exp(-edge), 0.05) if whole else 0.05
    ahead = way * (root - edge)
    use = (ahead > 0) & (ahead + least < stride) & (count % 6 != 5)
    out = edge + way * np.where(use, ahead + least, np.maximum(stride, least))
    # Between two ends to the root, or to the middle where it is not between them.
    near = (np.minimum(a, b) < root) & (root < np.maximum(a, b)) & (count % 12 != 11)
    between = ~(np.isnan(a) | no_dear)
    return np.where(between, np.where(near, root, 0.5 * (a + b)), out)


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
    bracket, first = _begun(ends, whole, target, costs, bounded, start)
    sign, points = bracket.sign, bracket.points
    values = _Values(ends, whole, rising=sign > 0)
    stride, done = 1.0, np.zeros(target.shape, bool)
    for count in range(_ROUNDS):
        safe, dear = bracket.safe, bracket.dear
        no_safe, no_dear = np.isnan(safe), np.isnan(dear)
        between = ~(no_safe | no_dear)
        (inner, off), (outer, _) = _interpolated(points, 3), _interpolated(points, 1)
        root = np.where(between, inner, outer)
        # Neighbours on either side of the root: as full as can be.
        more = values.beside(np.where(no_safe, first, safe), dearer=True)
        more = np.where(no_safe, np.nan, more)
        done |= _full(bracket, more, root, off, whole)
        cheapest, dearest = bracket.limits
        done |= no_dear & (safe == dearest)
        at_end = no_safe & (dear == cheapest)
        if np.any(at_end):
            raise _refusal(bracket, target, at_end)
        if np.all(done):
            break
        z = _next(bracket, root, stride, count, whole)
        stride *= 1.0 if np.all(between) else 2.0
        value = values.at(np.where(done, points[-1][0], z))
        # What is asked between the ends is new.
        value = np.where(between & (sign * value <= sign * safe), more, value)
        less = values.beside(np.where(no_dear, first, dear), dearer=False)
        value = np.where(between & (sign * value >= sign * dear), less, value)
        value = np.where(done, safe, value)
        bracket.note(value, costs.epsilon(value))
    if np.any(np.isnan(bracket.safe)):
        raise ValueError(NOT_MONOTONE)
    full = bracket.cost_safe >= 0.999 * target
    return Found(bracket.safe, np.isinf(bracket.cost_dear) & ~np.isnan(bracket.dear) & ~full)
