"""The parameter that spends a privacy budget and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._numerics import float64
from dpjax.accounting import queries
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import Mechanism

MakeMechanism = Callable[[Any], Mechanism]

_TOLERANCE = 2e-7  # of the parameter, relative; three times float32's spacing
_ROUNDS = 60
_NOT_MONOTONE = "ε must rise or fall with the parameter of make_mechanism; it does both"


class ImpossibleBudget(ValueError):
    """No value of the parameter keeps the budget; the message says how little is reachable.

    >>> issubclass(ImpossibleBudget, ValueError)
    True
    """


def _spend(make: MakeMechanism, delta: Any, adjacency: Adjacency, method: str) -> Callable:
    """ε at concrete parameter values; +inf where the mechanism cannot be built or priced."""

    def at(values: np.ndarray) -> np.ndarray:
        shaped = values if values.ndim else float(values)
        run = make(shaped)
        answer = queries.epsilon(run, delta, adjacency=adjacency, method=method)
        return np.broadcast_to(np.asarray(answer, np.float64), values.shape)

    return at


def _accepts(make: MakeMechanism, value: float) -> bool:
    try:
        make(value)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        return False
    return True


def _is_whole(make: MakeMechanism) -> bool:
    """Whether the mechanism takes whole numbers only, as `Repeated.steps` does."""
    probes = [2.0**k for k in range(0, 20, 4)]
    good = [v for v in probes if _accepts(make, v)]
    return bool(good) and not any(_accepts(make, v - f) for v in good for f in (0.25, 0.375))


def _limits(make: MakeMechanism, whole: bool) -> tuple[float, float]:
    """Smallest and largest parameter the mechanism accepts, between 2^-40 and 2^40 (1 if whole)."""
    exponents = range(0 if whole else -40, 41)
    low = next((2.0**k for k in exponents if _accepts(make, 2.0**k)), None)
    if low is None:
        raise ValueError(
            "make_mechanism accepts no value of its parameter between "
            f"{2.0 ** exponents[0]:.3g} and {2.0**40:.3g}"
        )
    high = next(2.0**k for k in reversed(exponents) if _accepts(make, 2.0**k))
    edge = 2.0 * high
    while edge > high * (1 + 1e-12) and (
        not whole or edge - high > 1
    ):  # rates end at 1, not at 2^k
        middle = 0.5 * (high + edge)
        middle = np.floor(middle) if whole else middle
        if middle <= high:
            break
        if _accepts(make, middle):
            high = float(middle)
        else:
            edge = float(middle)
    return low, high


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


def _check_between(value: np.ndarray, least: np.ndarray, most: np.ndarray) -> None:
    """Between two parameters a monotone ε lies between theirs; methods may differ by a little.

    Where no method has an answer ε is infinite, and the parameter does not keep the budget.
    """
    if np.any((value < 0.98 * least) | (np.isfinite(value) & (value > 1.02 * most))):
        raise ValueError(_NOT_MONOTONE)


def _solve(
    make: MakeMechanism,
    epsilon: np.ndarray,
    spend: Callable,
    whole: bool,
    low: float,
    high: float,
) -> np.ndarray:
    """Bracket the budget between `low` and `high`, all targets at once."""
    shape = epsilon.shape
    ends = np.asarray([low, high])
    cost = np.stack([spend(np.full(shape, v)) for v in ends])
    rising = bool(np.all(cost[1] >= cost[0]))
    if not rising and not np.all(cost[1] <= cost[0]):
        raise ValueError(_NOT_MONOTONE)
    private, spent = (0, 1) if rising else (1, 0)  # index of the cheap and the dear end
    if np.any(cost[private] > epsilon):
        worst = np.argmax(cost[private] - epsilon)
        least, wanted = cost[private].ravel()[worst], epsilon.ravel()[worst]
        raise ImpossibleBudget(
            f"epsilon={wanted:g} cannot be reached: the smallest reachable epsilon is {least:.6g}, "
            f"at parameter {ends[private]:.6g}; lower the steps or the sampling rate, raise the "
            "noise, or raise epsilon or delta"
        )
    # Invariant: `safe` keeps the budget, `dear` does not (or is the limit, and is then the answer).
    safe, dear = np.full(shape, ends[private]), np.full(shape, ends[spent])
    done = cost[spent] <= epsilon
    safe = np.where(done, dear, safe)
    cost_safe, cost_dear = np.array(cost[private]), np.array(cost[spent])
    log_target = np.log(np.maximum(epsilon, 1e-300))

    def height(value: np.ndarray) -> np.ndarray:
        # Between -1 and 1 where ε is 0 or infinite: then the step is a bisection in effect.
        with np.errstate(divide="ignore"):
            return np.clip(np.log(value) - log_target, -40.0, 40.0)

    kept = np.zeros(shape)  # which end moved last: 1 the safe one, -1 the dear one
    h_safe, h_dear = height(np.where(done, epsilon, cost[private])), height(cost[spent])
    towards = np.sign(np.log(ends[spent] / ends[private]))  # where ε rises
    last, before = (np.log(dear), h_dear), (np.log(safe), h_safe)
    stride = np.full(shape, np.log(4.0))
    for count in range(_ROUNDS):
        a, b = np.log(safe), np.log(dear)
        width = np.abs(b - a)
        # Close to the root two evaluations give its slope, and that how far the safe end is off.
        run, rise = last[0] - before[0], last[1] - before[1]
        slope = towards * rise / np.where(run == 0, 1.0, run)
        close = (np.abs(last[1]) < 0.3) & (np.abs(before[1]) < 1.0) & (slope > 0) & (run != 0)
        slope = np.where(close, slope, 1.0)
        if whole:
            open_ = ~done & (np.abs(dear - safe) > 1.0)
        else:
            near = close & (-height(cost_safe) <= _TOLERANCE * slope)
            open_ = ~done & (width > _TOLERANCE) & ~near
        if not np.any(open_):
            break
        # Regula falsi in logarithms, a hair beyond the root on the farther side, so that both ends
        # close in; a retained end counts half (Illinois); bisection while ε is 0, infinite or
        # stuck. With a slope, its root, a hair on the safe side.
        weight = h_safe / np.where(h_safe == h_dear, 1.0, h_safe - h_dear)
        hair = 0.3 * _TOLERANCE / np.maximum(width, _TOLERANCE)
        weight = weight + np.where(weight < 0.5, hair, -hair)
        root = last[0] - towards * (last[1] / slope + 0.5 * _TOLERANCE)
        by_slope = (root - a) / np.where(b == a, 1.0, b - a)
        use = close & (by_slope > 0) & (by_slope < 1) & (count < 20)
        weight = np.clip(np.where(use, by_slope, weight), 0.2 * hair, 1.0 - 0.2 * hair)
        no_safe, no_dear = np.abs(h_safe) >= 40.0, np.abs(h_dear) >= 40.0
        flat = (no_dear | no_safe | (count > 30)) & ~use
        # From an end that says something, ever farther towards one that does not.
        part = np.minimum(stride / np.maximum(width, stride), 0.5)
        part = np.where(no_dear & ~no_safe, part, np.where(no_safe & ~no_dear, 1.0 - part, 0.5))
        stride = np.where(flat & (no_dear != no_safe), 2.0 * stride, stride)
        middle = np.exp(a + (b - a) * np.where(flat, part, weight))
        if whole:
            inside = np.minimum(safe, dear) + 1, np.maximum(safe, dear) - 1
            middle = np.clip(np.round(middle), *inside)
        else:  # what is returned is a float32: try those, so that the last one tried is it
            middle = np.where(use, np.clip(_next_safe(middle, rising), low, high), middle)
        middle = np.where(open_, middle, safe)
        value = spend(middle)
        _check_between(value[open_], cost_safe[open_], cost_dear[open_])
        keep = open_ & (value <= epsilon)
        drop = open_ & ~(value <= epsilon)
        safe, dear = np.where(keep, middle, safe), np.where(drop, middle, dear)
        cost_safe, cost_dear = np.where(keep, value, cost_safe), np.where(drop, value, cost_dear)
        found = height(value)
        h_safe = np.where(keep, found, np.where(drop & (kept == -1), 0.5, 1.0) * h_safe)
        h_dear = np.where(drop, found, np.where(keep & (kept == 1), 0.5, 1.0) * h_dear)
        kept = np.where(keep, 1, np.where(drop, -1, kept))
        last, before = (np.log(middle), found), last
    if whole:
        return safe
    # Round to a float32 on the private side, and verify with the value that is returned.
    rounded = np.clip(_next_safe(safe, rising), low, high)
    if np.all(rounded == safe):
        return safe
    return np.where(spend(rounded) <= epsilon, rounded, safe)


def _given(name: str, value: Any) -> np.ndarray:
    return np.asarray(value, np.float64)


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
    answer is a float32 value (exact in float64 too) whose price has been computed as returned, so
    casting it in a float32 program does not overshoot; whole parameters (such as steps) come back
    as integers.

    Arguments:
        make_mechanism: from the parameter to the mechanism. For array targets it is called with
            arrays, one value per target.
        epsilon, delta: the budget; arrays give an answer for each target.
        adjacency, method: as in `epsilon`.
        bounds: search between these parameters only; by default everything from 2^-40 to 2^40
            (from 1 for whole parameters) that the mechanism accepts.

    Returns:
        A float or int, or an array of the targets' shape. Under a trace a traced value that
        differentiates in ε and δ by the implicit function theorem.

    Raises:
        ImpossibleBudget: no parameter keeps the budget; says the smallest reachable ε.
        ValueError: ε <= 0, δ outside (0, 1), or ε not monotone in the parameter.

    >>> from dpjax import accounting as acc
    >>> make = lambda s: acc.Repeated(acc.PoissonSampled(acc.Gaussian(s), 0.01), 1_000)
    >>> sigma = acc.calibrate(make, epsilon=2.0, delta=1e-5, method="rdp")
    >>> round(sigma, 3), acc.epsilon(make(sigma), 1e-5, method="rdp") <= 2.0
    (1.022, True)
    >>> acc.calibrate(lambda t: acc.Repeated(acc.Gaussian(8.0), t), 2.0, 1e-5, method="rdp")
    13
    """
    adjacency = queries.check_adjacency(adjacency)
    queries.check_range("epsilon", epsilon, 0.0, np.inf)
    queries.check_range("delta", delta, 0.0, 1.0)
    if float64.is_traced(epsilon, delta):
        return _traced(make_mechanism, epsilon, delta, adjacency, method, bounds)
    target, probability = np.broadcast_arrays(_given("epsilon", epsilon), _given("delta", delta))
    probability = probability if probability.ndim else float(probability)
    whole = _is_whole(make_mechanism)
    low, high = bounds if bounds is not None else _limits(make_mechanism, whole)
    spend = _spend(make_mechanism, probability, adjacency, method)
    answer = _solve(make_mechanism, target, spend, whole, float(low), float(high))
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
    dtype = jnp.zeros(()).dtype

    def host(target: Any, probability: Any) -> np.ndarray:
        answer = calibrate(
            make,
            np.asarray(target, np.float64),
            np.asarray(probability, np.float64),
            adjacency=adjacency,
            method=method,
            bounds=bounds,
        )
        return np.asarray(answer, dtype)

    @jax.custom_jvp
    def solve(target: Array, probability: Array) -> Array:
        shape = jnp.broadcast_shapes(target.shape, probability.shape)
        spec = jax.ShapeDtypeStruct(shape, dtype)
        return jax.pure_callback(host, spec, target, probability, vmap_method="broadcast_all")

    @solve.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple:
        answer = solve(*primals)

        def price(value: Array, probability: Array) -> Array:
            return jnp.asarray(
                queries.epsilon(make(value), probability, adjacency=adjacency, method=method)
            )

        one = jnp.ones_like(answer)
        probability = jnp.broadcast_to(primals[1], answer.shape)
        _, by_value = jax.jvp(lambda v: price(v, probability), (answer,), (one,))
        _, by_delta = jax.jvp(lambda d: price(answer, d), (probability,), (one,))
        return answer, (tangents[0] - by_delta * tangents[1]) / by_value

    return solve(jnp.asarray(epsilon, dtype), jnp.asarray(delta, dtype))
