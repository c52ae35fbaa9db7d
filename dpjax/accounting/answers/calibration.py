"""The parameter that spends a privacy budget and no more."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics import checks, float64
from dpjax._numerics.arrays import namespace, with_derivative
from dpjax._other_names import taught
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.answers import pricing
from dpjax.accounting.answers.admission import PROBABILITY
from dpjax.accounting.mechanisms import Mechanism

MakeMechanism = Callable[[Any], Mechanism]

_ROUNDS = 60
_LEAST, _MOST = 2.0**-40, 2.0**40  # the parameters that are searched
_POSITIVE = checks.Range(0.0, open_low=True)
_NOT_MONOTONE = "ε must rise or fall with the parameter of make_mechanism; it does both"


class ImpossibleBudget(ValueError):
    """No value of the parameter keeps the budget; the message says how little is reachable.

    `beyond` is the end that the parameter would have to go past: +inf or 0.

    Example:
        >>> issubclass(ImpossibleBudget, ValueError)
        True
    """

    beyond: float = np.inf


def _spend(make: MakeMechanism, delta: Any, adjacency: Adjacency, method: str) -> Callable:
    """ε at concrete parameter values; +inf where the mechanism cannot be built or priced."""

    def at(values: np.ndarray) -> np.ndarray:
        shaped = values if values.ndim else float(values)
        run = make(shaped)
        answer = pricing.epsilon(run, delta, adjacency=adjacency, method=method)
        return np.broadcast_to(np.asarray(answer, np.float64), values.shape)

    return at


def _accepts(make: MakeMechanism, value: float) -> bool:
    try:
        run = make(value)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        return False
    if not isinstance(run, Mechanism):
        raise TypeError(f"make_mechanism must return a mechanism, got {checks.shown(run)}")
    return True


def _is_whole(make: MakeMechanism) -> bool:
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


class _Ends:
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


def _rises(points: list[tuple[np.ndarray, np.ndarray]]) -> bool:
    """Whether the cost rises with the parameter: by those that are finite, if two of them differ.

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
    return bool(np.all(told))


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


def _solve(
    make: MakeMechanism,
    whole: bool,
    target: np.ndarray,
    spend: Callable,
    bounds: tuple[float, float] | None,
    at_least: Callable,
) -> np.ndarray:
    """The parameter of every target: a bracket from near one outwards, then its inside.

    The search is for the root of log ε − log target in the logarithm of the parameter. Bounds of ε
    need not be monotone where ε is: they may be loose. The search goes on unless the lower ends of
    ε, which `at_least` gives, show that ε itself is not.
    """
    ends = _Ends(make, whole, bounds)
    shape = target.shape

    def height(cost: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):  # ε of 0 or infinity says no more than its sign
            return np.clip(np.log(cost) - np.log(target), -40.0, 40.0)

    def grid(z: np.ndarray, rising: bool) -> np.ndarray:
        value = np.exp(z)
        return ends.inside(np.round(value) if whole else _next_safe(value, rising))

    def beside(value: np.ndarray, to: float) -> np.ndarray:
        """The next parameter that may be returned, towards 0 or infinity."""
        if whole:
            return ends.inside(value + (1.0 if to else -1.0))
        return ends.inside(np.nextafter(value.astype(np.float32), np.float32(to)).astype(float))

    first = np.full(shape, ends.good[0])
    at_first = spend(first)
    # About where the root is, if ε falls as a power of the parameter, as it does with the noise: a
    # steeper one the less noise there is.
    above = height(at_first)
    guess = above / np.where(above > 0, 1.4, 2.5)
    factor = 2.0 if whole else np.exp(np.copysign(np.clip(np.abs(guess), 0.15, 3.0), guess))
    second = np.full(shape, ends.good[1]) if bounds else ends.inside(factor * first)
    if np.all(second == first):
        second = ends.inside(np.ceil(0.5 * first) if whole else 0.5 * first)
    cost = [at_first, spend(second)]
    for far in (4.0, 256.0, 2.0**40):  # away from where ε is infinite or zero throughout
        if bounds or np.any(cost[0] != cost[1]):
            break
        first, second = ends.inside(first / far), ends.inside(second * far)
        cost = [spend(first), spend(second)]
    asked = [(first, cost[0]), (second, cost[1])]
    lost = np.isinf(cost[0])
    known, least = np.where(lost, second, first), np.where(lost, cost[1], cost[0])
    if np.any(lost != np.isinf(cost[1])):
        # One answer does not tell the direction: no answer may be a bound's failing, not a high ε.
        away = np.where((second > first) == lost, 2.0, 0.5) * known
        third = ends.inside(np.ceil(away) if whole else away)
        asked.append((third, spend(third)))
    rising = _rises(asked)
    sign = 1.0 if rising else -1.0  # ε rises with sign · log parameter
    more_to, less_to = (np.inf, 0.0) if rising else (0.0, np.inf)

    # The nearest points on either side of the root that were asked; NaN where there are none yet.
    safe, dear = (np.full(shape, np.nan) for _ in range(2))
    cost_safe, cost_dear = np.zeros(shape), np.full(shape, np.inf)
    points: list[tuple[np.ndarray, np.ndarray]] = []

    def last(value: np.ndarray) -> np.ndarray:
        return value == (ends.low if rising else ends.high)

    def refuse(value: np.ndarray, most: np.ndarray) -> None:
        """ε at `value` should not be above `most`, which a parameter beyond it costs."""
        if np.any(at_least(value) > most):
            raise ValueError(_NOT_MONOTONE)

    def note(value: np.ndarray, cost: np.ndarray) -> None:
        nonlocal safe, dear, cost_safe, cost_dear
        # Between two parameters a monotone ε lies between theirs; methods may differ by a little.
        less = (cost < 0.98 * cost_safe) & (sign * value > sign * safe)
        more = np.isfinite(cost) & (cost > 1.02 * cost_dear) & (sign * value < sign * dear)
        if np.any(less):
            refuse(np.where(less, safe, value), np.where(less, cost, np.inf))
        if np.any(more):
            refuse(value, np.where(more, cost_dear, np.inf))
        keep = (cost <= target) & ~(sign * value <= sign * safe)
        drop = ~(cost <= target) & ~(sign * value >= sign * dear)
        # No answer where a dearer parameter has one says nothing of ε: the search goes on outwards.
        drop &= ~(np.isinf(cost) & np.isfinite(cost_dear) & np.isnan(safe) & ~last(value))
        safe, cost_safe = np.where(keep, value, safe), np.where(keep, cost, cost_safe)
        dear, cost_dear = np.where(drop, value, dear), np.where(drop, cost, cost_dear)
        points.append((np.log(value), height(cost)))

    for value, found in asked:
        # Nor does it say anything where a dearer parameter has one.
        void = np.isinf(found) & np.isfinite(least) & (sign * value < sign * known)
        note(np.where(void, known, value), np.where(void, least, found))
    stride, done = 1.0, np.zeros(shape, bool)
    for count in range(_ROUNDS):
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
        limit = ends.high if rising else ends.low
        done |= no_dear & (safe == limit)
        at_end = no_safe & (dear == (ends.low if rising else ends.high))
        if np.any(at_end):
            worst = int(np.argmax(at_end))
            refusal = ImpossibleBudget(
                f"epsilon={target.flat[worst]:g} cannot be reached: the smallest reachable epsilon "
                f"is {cost_dear.flat[worst]:.6g}, at parameter {dear.flat[worst]:.6g}; lower the "
                "steps or the sampling rate, raise the noise, or raise epsilon or delta"
            )
            refusal.beyond = less_to
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
        value = grid(np.where(done, points[-1][0], z), rising)
        # What is asked between the ends is new.
        value = np.where(between & (sign * value <= sign * safe), more, value)
        less = beside(np.where(no_dear, first, dear), less_to)
        value = np.where(between & (sign * value >= sign * dear), less, value)
        value = np.where(done, safe, value)
        note(value, spend(value))
    if np.any(np.isnan(safe)):
        raise ValueError(_NOT_MONOTONE)
    return safe


def _checked_bounds(bounds: Any) -> tuple[float, float] | None:
    if bounds is None:
        return None
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise TypeError(f"bounds must be two numbers, got {checks.shown(bounds)}")
    low, high = (checks.one_number("bounds", end, _POSITIVE) for end in bounds)
    if not low < high:
        raise ValueError(f"bounds must rise, got {checks.shown(bounds)}")
    return low, high


def _given(name: str, value: Any) -> np.ndarray:
    numbers = np.asarray(value, np.float64)
    if numbers.size == 0:
        raise ValueError(f"{name} must be a number or a non-empty array of numbers, got {value!r}")
    return numbers


@taught
def calibrate(
    make_mechanism: MakeMechanism,
    epsilon: Float[ArrayLike, "..."],
    delta: Float[ArrayLike, "..."],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: str = "best",
    bounds: tuple[float, float] | None = None,
) -> float | int | np.ndarray | Array:
    """The parameter that spends the budget (ε, δ) as fully as possible and never more.

    The parameter may be anything positive that ε is monotone in, rising or falling: a noise
    multiplier, a rate, a number of steps, a batch size. The direction is found by itself. The
    answer is the last float32 value (exact in float64 too) that keeps the budget, priced as it is
    returned, so casting it in a float32 program does not overshoot; whole parameters (such as
    steps) come back as integers.

    Args:
        make_mechanism: from the parameter to the mechanism. For array targets it is called with
            arrays, one value per target.
        epsilon, delta: the budget; arrays give an answer for each target.
        adjacency, method: as in `epsilon`.
        bounds: search between these parameters only; by default everything from 2^-40 to 2^40 (from
            1 for whole parameters) that the mechanism accepts.

    Returns:
        A float or int, or an array of the targets' shape. Under a trace a traced value that
        differentiates in ε and δ by the implicit function theorem; where no parameter keeps the
        budget it is the end that spends nothing, +inf or 0.

    Raises:
        ImpossibleBudget: no parameter keeps the budget; says the smallest reachable ε.
        TypeError, ValueError: ε <= 0, δ outside (0, 1), bounds that are no two rising positive
            numbers, no mechanism made, or ε shown not to be monotone in the parameter.

    Example:
        >>> from dpjax import accounting as acc
        >>> make = lambda s: acc.Repeated(acc.PoissonSampled(acc.Gaussian(s), 0.01), 1_000)
        >>> sigma = acc.calibrate(make, epsilon=2.0, delta=1e-5, method="rdp")
        >>> round(sigma, 3), acc.epsilon(make(sigma), 1e-5, method="rdp") <= 2.0
        (1.022, True)
        >>> acc.calibrate(lambda t: acc.Repeated(acc.Gaussian(8.0), t), 2.0, 1e-5, method="rdp")
        13
    """
    adjacency = pricing.check_adjacency(adjacency)
    if not callable(make_mechanism):
        raise TypeError(
            "make_mechanism must be a function from a number to a mechanism, "
            f"got {checks.shown(make_mechanism)}"
        )
    bounds = _checked_bounds(bounds)
    epsilon = checks.number("epsilon", epsilon, _POSITIVE)
    delta = checks.number("delta", delta, PROBABILITY)
    if float64.is_traced(epsilon, delta):
        return _traced(make_mechanism, epsilon, delta, adjacency, method, bounds)
    target, probability = np.broadcast_arrays(_given("epsilon", epsilon), _given("delta", delta))
    probability = probability if probability.ndim else float(probability)
    spend = _spend(make_mechanism, probability, adjacency, method)
    whole = _is_whole(make_mechanism)

    def at_least(values: np.ndarray) -> Any:
        run = make_mechanism(values if values.ndim else float(values))
        return pricing.epsilon_interval(run, probability, adjacency=adjacency)[0]

    answer = _solve(make_mechanism, whole, target, spend, bounds, at_least)
    if whole:
        answer = answer.astype(np.int64)
        return int(answer) if answer.ndim == 0 else answer
    return float(answer) if answer.ndim == 0 else answer


def _traced(
    make: MakeMechanism,
    epsilon: Any,
    delta: Any,
    adjacency: Adjacency,
    method: str,
    bounds: tuple[float, float] | None,
) -> Array:
    """Calibration under the user's trace: the search on the host, the derivative implicit."""
    xp: Any = namespace(make, epsilon, delta, method, bounds)
    dtype = xp.zeros(()).dtype

    def one(target: float, probability: float) -> Any:
        # A trace cannot raise. No parameter keeps what is no budget either.
        if not (0 < target < np.inf and 0 < probability < 1):
            target, probability = 1e-300, 1e-200
        try:
            return calibrate(
                make, target, probability, adjacency=adjacency, method=method, bounds=bounds
            )
        except ImpossibleBudget as refusal:
            return refusal.beyond

    def host(target: Any, probability: Any) -> np.ndarray:
        rows = np.broadcast(np.asarray(target, np.float64), np.asarray(probability, np.float64))
        answers = [one(float(e), float(d)) for e, d in rows]
        return np.asarray(answers, dtype).reshape(rows.shape)

    @with_derivative
    def solve(target: Array, probability: Array) -> Array:
        shape = xp.broadcast_shapes(target.shape, probability.shape)
        spec = jax.ShapeDtypeStruct(shape, dtype)
        return float64.call_host(host, spec, (target, probability), "broadcast_all")

    @solve.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple:
        answer = solve(*primals)

        def price(value: Array, probability: Array) -> Array:
            return xp.asarray(
                pricing.epsilon(make(value), probability, adjacency=adjacency, method=method)
            )

        found = xp.isfinite(answer) & (answer > 0)
        value, ones = xp.where(found, answer, 1.0), xp.ones_like(answer)
        probability = xp.broadcast_to(primals[1], answer.shape)
        _, by_value = jax.jvp(lambda v: price(v, probability), (value,), (ones,))
        _, by_delta = jax.jvp(lambda d: price(value, d), (probability,), (ones,))
        found = found & (by_value != 0)
        change = (tangents[0] - by_delta * tangents[1]) / xp.where(found, by_value, 1.0)
        return answer, xp.where(found, change, 0.0)

    return solve(xp.asarray(epsilon).astype(dtype), xp.asarray(delta).astype(dtype))
