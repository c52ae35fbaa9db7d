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
from dpjax.accounting.answers.bracket import NOT_MONOTONE, Bracket, height
from dpjax.accounting.errors import ImpossibleBudget

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
        raise ValueError(NOT_MONOTONE)
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
