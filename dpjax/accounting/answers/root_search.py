"""The root of a monotone ε(parameter) = target: a bracket from near one outwards, then its inside.

`_Ends` finds which parameters the mechanism accepts, and `Calibration` brackets the root of
log ε − log target in the logarithm of the parameter. Bounds of ε need not be monotone where ε is:
they may be loose. The search goes on unless the lower ends of ε show that ε itself is not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpjax._numerics import checks, float64
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers import pricing
from dpjax.accounting.errors import ImpossibleBudget, UnsupportedQuery
from dpjax.accounting.mechanisms import Mechanism
from dpjax.accounting.typing import Real

MakeMechanism = Callable[[Any], Mechanism]

_LEAST_PARAMETER, _MOST_PARAMETER = 2.0**-40, 2.0**40  # the parameters that are searched
_ROUNDS = 60
_FORMULAS = {"gdp", "rdp", "rdp_classic"}  # least over orders at most: no grid, no integral
_NOT_MONOTONE = "ε must rise or fall with the parameter of make_mechanism; it does both"


def _accepts(make: MakeMechanism, value: float) -> bool:
    try:
        run = make(value)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        return False
    if not isinstance(run, Mechanism):
        raise TypeError(f"make_mechanism must return a mechanism, got {checks.render(run)}")
    return True


def is_whole(make: MakeMechanism) -> bool:
    """Whether the mechanism takes whole numbers only, as `Repeated.steps` does."""
    if _accepts(make, 1.375) or _accepts(make, 0.6875):
        return False
    good = [v for v in (2.0**k for k in range(0, 20, 4)) if _accepts(make, v)]
    return bool(good) and not any(_accepts(make, v - f) for v in good for f in (0.25, 0.375))


class _Ends:
    """The parameters within which to search; those that the mechanism refuses are found out.

    Attributes:
        low, high: nothing beyond is asked.
        good: the least and the greatest that are known to be accepted.
    """

    def __init__(self, make: MakeMechanism, whole: bool, bounds: tuple[float, float] | None):
        self._make, self._whole, self._known = make, whole, bounds is not None
        self.low, self.high = bounds or (1.0 if whole else _LEAST_PARAMETER, _MOST_PARAMETER)
        self.good = [*bounds] if bounds else [self._nearest_to_one()] * 2

    def _nearest_to_one(self) -> float:
        """The accepted power of two that is nearest to one."""
        for exponent in range(41):
            for value in (2.0**exponent, 2.0**-exponent):
                if _accepts(self._make, value):
                    return value
        raise ValueError(
            "make_mechanism must accept some value of its parameter between "
            f"{_LEAST_PARAMETER:.3g} and {_MOST_PARAMETER:.3g}, got none"
        )

    def _limit(self, good: float, bad: float) -> float:
        """The last parameter accepted on the way from one that is to one that is not."""
        while abs(bad - good) > (1.0 if self._whole else 1e-12 * good):
            middle = 0.5 * (good + bad)
            middle = np.floor(middle) if self._whole else middle
            if middle in (good, bad):
                break
            good, bad = (middle, bad) if _accepts(self._make, middle) else (good, middle)
        return float(good)

    def inside(self, value: np.ndarray) -> np.ndarray:
        """The nearest parameters that are accepted."""
        for reach in (float(np.min(value)), float(np.max(value))):
            reach = min(max(reach, self.low), self.high)
            if self._known or self.good[0] <= reach <= self.good[1]:
                continue
            k = int(reach > self.good[1])
            if not _accepts(self._make, reach):
                reach = self._limit(self.good[k], reach)
                self.low, self.high = (self.low, reach) if k else (reach, self.high)
            self.good[k] = reach
        return np.clip(value, self.low, self.high)


class CalibrationQuestion(NamedTuple):
    """What is asked of concrete parameters: of `make`'s mechanisms, ε at δ.

    Fields:
        whole: whether the parameters are whole numbers.
        make, delta, adjacency, method: as of `calibrate`.
        measure: where it is not None, what is asked instead of a run, which costs as ε does: a
            positive number or 0, +inf of no privacy.
    """

    make: MakeMechanism
    whole: bool
    delta: Real
    adjacency: Adjacency
    method: str
    measure: Callable[[Mechanism], Any] | None = None

    def _ask(self, question: Callable, values: np.ndarray) -> np.ndarray:
        answer = question(self.make(values if values.ndim else float(values)))
        return np.broadcast_to(np.asarray(answer, np.float64), values.shape)

    def upper(self, values: np.ndarray) -> np.ndarray:
        """Upper ends of ε; +inf where there is no answer."""
        how: dict[str, Any] = {"adjacency": self.adjacency, "method": self.method}
        if self.measure is not None:
            return self._ask(self.measure, values)
        return self._ask(lambda run: pricing.epsilon(run, self.delta, **how), values)

    def is_smooth(self) -> bool:
        """Whether what is asked is a formula, whose rounding is far below a float32 step."""
        return self.measure is None and self.method in _FORMULAS

    def lower(self, values: np.ndarray) -> np.ndarray:
        """Lower ends of ε; of another measure nothing is known from below."""
        if self.measure is not None:
            return np.zeros(values.shape)
        how = {"adjacency": self.adjacency}
        return self._ask(lambda run: pricing.epsilon_interval(run, self.delta, **how)[0], values)

    def delta_at_zero(self, values: np.ndarray) -> np.ndarray:
        """δ at ε = 0, which may still move where ε does not; 1 where there is no answer."""
        try:
            return self._ask(lambda run: pricing.delta(run, 0.0, adjacency=self.adjacency), values)
        except UnsupportedQuery:
            return np.ones(values.shape)


def _height(cost: np.ndarray, target: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):  # ε of 0 or infinity says no more than its sign
        return np.clip(np.log(cost) - np.log(target), -40.0, 40.0)


def _rises(points: list[tuple[np.ndarray, np.ndarray]]) -> bool | None:
    """Whether the cost rises: by finite ones if two of them differ; None where no two do."""
    pairs = list(itertools.combinations(points, 2))
    up = np.stack([(b > a) == (y > x) for (x, a), (y, b) in pairs])
    differ = np.stack([a != b for (_, a), (_, b) in pairs])
    finite = differ & np.stack([np.isfinite(a) & np.isfinite(b) for (_, a), (_, b) in pairs])
    told = up[finite if np.any(finite) else differ]
    if np.any(told) and not np.all(told):  # at some targets it does, and at others it falls
        raise ValueError(_NOT_MONOTONE)
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


class Calibration:
    """The last parameters that keep their targets.

    Attributes:
        safe, dear: of those asked the last that keep the budget and the first that do not; NaN
            where there are none.
        cost_safe, cost_dear: ε there.
        points: all that were asked: logarithms of the parameters, and heights.
        sign: ε rises with sign · log parameter.
    """

    def __init__(
        self,
        question: CalibrationQuestion,
        target: np.ndarray,
        bounds: tuple[float, float] | None,
        start: np.ndarray | None = None,
    ):
        self.question, self.target = question, target
        self.ends = _Ends(question.make, question.whole, bounds)
        self.safe, self.dear = (np.full(target.shape, np.nan) for _ in range(2))
        self.cost_safe, self.cost_dear = np.zeros(target.shape), np.full(target.shape, np.inf)
        self.points: list[tuple[np.ndarray, np.ndarray]] = []
        asked, (known, least) = self._first_asked(bounds is not None and start is None, start)
        self.first = asked[0][0]
        rising = _rises(asked)
        if rising is None:  # ε is 0 throughout, or infinite
            by_delta = [(value, question.delta_at_zero(value)) for value, _ in asked]
            rising = _rises(by_delta) is not False
        self.rising, self.sign = rising, 1.0 if rising else -1.0
        for value, cost in asked:
            # No answer where a dearer parameter has one says nothing.
            void = np.isinf(cost) & np.isfinite(least) & (self.sign * value < self.sign * known)
            self._note(np.where(void, known, value), np.where(void, least, cost))

    def _first_asked(self, bounded: bool, start: np.ndarray | None) -> tuple[list, tuple]:
        """Two or three parameters and their ε, two of them different; and those with an answer."""
        ends, spend, whole = self.ends, self.question.upper, self.question.whole
        first = np.full(self.target.shape, ends.good[0]) if start is None else ends.inside(start)
        at_first = spend(first)
        # About where the root is, if ε falls as a power of the parameter, as it does with the
        # noise: a steeper one the less noise there is.
        above = _height(at_first, self.target)
        guess = above / np.where(above > 0, 1.4, 2.5)
        # After a first answer of nearly the same question the root is near.
        least = 0.15 if start is None or self.question.measure is None else 1e-4
        factor = 2.0 if whole else np.exp(np.copysign(np.clip(np.abs(guess), least, 3.0), guess))
        far = np.full(self.target.shape, ends.good[1])
        second = far if bounded else ends.inside(factor * first)
        if np.all(second == first):
            second = ends.inside(np.ceil(0.5 * first) if whole else 0.5 * first)
        cost = [at_first, spend(second)]
        for reach in (4.0, 256.0, 2.0**40):  # away from where ε is infinite or zero throughout
            if bounded or np.any(cost[0] != cost[1]):
                break
            first, second = ends.inside(first / reach), ends.inside(second * reach)
            cost = [spend(first), spend(second)]
        asked = [(first, cost[0]), (second, cost[1])]
        lost = np.isinf(cost[0])
        known, least = np.where(lost, second, first), np.where(lost, cost[1], cost[0])
        if np.any(lost != np.isinf(cost[1])):
            # One answer does not tell the direction: no answer may be a bound's failing, not a
            # high ε. A third parameter on the side of the answer, or from an end inwards.
            away = np.where((second > first) == lost, 2.0, 0.5)
            third, back = (
                ends.inside(np.ceil(value) if whole else value)
                for value in (away * known, known / away)
            )
            third = np.where(third == known, back, third)
            asked.append((third, spend(third)))
        return asked, (known, least)

    def _note(self, value: np.ndarray, cost: np.ndarray) -> None:
        """Takes in that `value` costs `cost`."""
        sign, safe, dear = self.sign, self.safe, self.dear
        # Between two parameters a monotone ε lies between theirs; methods may differ by a little.
        less = (cost < 0.98 * self.cost_safe) & (sign * value > sign * safe)
        more = np.isfinite(cost) & (cost > 1.02 * self.cost_dear) & (sign * value < sign * dear)
        for wrong, at, most in (
            (less, np.where(less, safe, value), cost),
            (more, value, self.cost_dear),
        ):
            # Refused only if ε itself is above what a parameter beyond it costs.
            if np.any(wrong) and np.any(self.question.lower(at) > np.where(wrong, most, np.inf)):
                raise ValueError(_NOT_MONOTONE)
        keep = (cost <= self.target) & ~(sign * value <= sign * safe)
        drop = ~(cost <= self.target) & ~(sign * value >= sign * dear)
        # No answer where a dearer parameter has one says nothing of ε: the search goes on outwards.
        void = np.isinf(cost) & np.isfinite(self.cost_dear) & np.isnan(safe)
        drop &= ~(void & (value != self._ends()[0]))
        self.safe, self.cost_safe = (
            np.where(keep, new, old) for new, old in ((value, safe), (cost, self.cost_safe))
        )
        self.dear, self.cost_dear = (
            np.where(drop, new, old) for new, old in ((value, dear), (cost, self.cost_dear))
        )
        self.points.append((np.log(value), _height(cost, self.target)))

    def _ends(self) -> tuple[float, float]:
        """The parameters of least and of most ε, as far as they are known by now."""
        low, high = self.ends.low, self.ends.high
        return (low, high) if self.rising else (high, low)

    def _nearest(self, z: np.ndarray) -> np.ndarray:
        """The parameter nearest to exp(z) that may be returned, on the private side.

        It is a float32, so that it survives a cast in the user's program.
        """
        value = np.exp(z)
        if self.question.whole:
            return self.ends.inside(np.round(value))
        narrow = float64.narrow(value, np.float32, "down" if self.rising else "up")
        return self.ends.inside(narrow.astype(np.float64))

    def _beside(self, value: np.ndarray, *, dearer: bool) -> np.ndarray:
        """The next parameter that may be returned, of more ε or of less."""
        up = dearer == self.rising
        if self.question.whole:
            return self.ends.inside(value + (1.0 if up else -1.0))
        to = np.float32(np.inf if up else 0.0)
        return self.ends.inside(np.nextafter(value.astype(np.float32), to).astype(float))

    def _full(self, more: np.ndarray, root: np.ndarray, off: np.ndarray) -> np.ndarray:
        """Whether the safe parameters are as full as can be: `more` are the next ones."""
        full = self.sign * more >= self.sign * self.dear
        # Nor need the next one be asked where the root is plainly short of it. Bounds of a grid or
        # a contour are off by their own rounding, in places by more than a float32 step moves
        # them: a root says nothing there, and the next one may keep the budget too.
        if not self.question.whole and self.question.is_smooth():
            a = np.log(self.safe)
            between = ~(np.isnan(self.safe) | np.isnan(self.dear))
            short = np.minimum(self.sign * (root - a), self.sign * (np.log(more) - root))
            full |= between & (short > 0.05 * np.abs(np.log(more) - a)) & (short > 20 * off)
        return full

    def _refusal(self, at_end: np.ndarray) -> ImpossibleBudget:
        """What is said of the targets that the parameter of least ε does not keep."""
        worst = int(np.argmax(at_end))
        reachable, dear = float(self.cost_dear.flat[worst]), self.dear.flat[worst]
        refusal = ImpossibleBudget(
            f"epsilon={self.target.flat[worst]:g} cannot be reached: the smallest reachable "
            f"epsilon is {reachable:.6g}, at parameter {dear:.6g}; "
            "lower the steps or the sampling rate, raise the noise, or raise epsilon or delta"
        )
        refusal.beyond = 0.0 if self.rising else np.inf
        refusal.reachable, refusal.parameter = reachable, float(dear)
        return refusal

    def _next(self, root: np.ndarray, stride: float, count: int) -> np.ndarray:
        """The logarithms of the parameters to ask next."""
        a, b = np.log(self.safe), np.log(self.dear)
        no_dear = np.isnan(b)
        # Outwards to a little beyond the interpolated root, at most a stride that grows; by that
        # stride where there is no root ahead, and at times, as roots may keep falling short.
        edge, way = np.where(no_dear, a, b), np.where(no_dear, self.sign, -self.sign)
        least = np.maximum(np.exp(-edge), 0.05) if self.question.whole else 0.05
        ahead = way * (root - edge)
        use = (ahead > 0) & (ahead + least < stride) & (count % 6 != 5)
        out = edge + way * np.where(use, ahead + least, np.maximum(stride, least))
        # Between two ends to the root, or to the middle where it is not between them.
        near = (np.minimum(a, b) < root) & (root < np.maximum(a, b)) & (count % 12 != 11)
        between = ~(np.isnan(a) | no_dear)
        return np.where(between, np.where(near, root, 0.5 * (a + b)), out)

    def solve(self) -> tuple[np.ndarray, np.ndarray]:
        """The parameters, and whether it is for want of an answer that no fuller one is known."""
        sign, first = self.sign, self.first
        stride, done = 1.0, np.zeros(self.target.shape, bool)
        for count in range(_ROUNDS):
            safe, dear = self.safe, self.dear
            no_safe, no_dear = np.isnan(safe), np.isnan(dear)
            between = ~(no_safe | no_dear)
            (inner, off), (outer, _) = (_interpolated(self.points, order) for order in (3, 1))
            root = np.where(between, inner, outer)
            # Neighbours on either side of the root: as full as can be.
            more = self._beside(np.where(no_safe, first, safe), dearer=True)
            more = np.where(no_safe, np.nan, more)
            done |= self._full(more, root, off)
            cheapest, dearest = self._ends()
            done |= no_dear & (safe == dearest)
            at_end = no_safe & (dear == cheapest)
            if np.any(at_end):
                raise self._refusal(at_end)
            if np.all(done):
                break
            z = self._next(root, stride, count)
            stride *= 1.0 if np.all(between) else 2.0
            value = self._nearest(np.where(done, self.points[-1][0], z))
            # What is asked between the ends is new.
            value = np.where(between & (sign * value <= sign * safe), more, value)
            less = self._beside(np.where(no_dear, first, dear), dearer=False)
            value = np.where(between & (sign * value >= sign * dear), less, value)
            value = np.where(done, safe, value)
            self._note(value, self.question.upper(value))
        if np.any(np.isnan(self.safe)):
            raise ValueError(_NOT_MONOTONE)
        full = self.cost_safe >= 0.999 * self.target
        return self.safe, np.isinf(self.cost_dear) & ~np.isnan(self.dear) & ~full
