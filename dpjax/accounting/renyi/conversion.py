"""From Rényi and zero-concentrated guarantees to (ε, δ), at the best real order.

For every order α > 1, ε = RDP(α) + log(1 − 1/α) − log(αδ)/(α−1) holds (Canonne, Kamath and Steinke
2020, Proposition 12; Balle et al. 2020, Theorem 21). With K = (α−1)·RDP its derivative has the sign
of (α−1)K' − K + log α − log(1/δ), which rises with α because K is convex: there is one best order,
and the logarithms of the two sides, as functions of log(α−1), are what Newton's method is run on.
It starts from a closed approximation of K, and is kept between the orders known to be too low and
too high. The same for δ(ε), whose order solves K' = ε + log(1 + 1/(α−1)).

At the best order ε does not change with the order to first order, so that its derivative by any
parameter is the partial one at that order (the envelope theorem).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpjax._argument_names import suggests_argument_names
from dpjax._numerics import checks, float64
from dpjax._numerics.arrays import Numbers, namespace, with_derivative
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.pairs.atoms import GroupedSteps
from dpjax.accounting.renyi.moments import (
    ABSOLUTE,
    RELATIVE,
    log_moment_jets,
    log_moments,
    sampled_pairs,
)

_UNIT = np.linspace(0.0, 1.0, 33)
_LOWEST, _HIGHEST = -30.0, 60.0  # of log(α − 1)
_NEWTON_STEPS = 60

_MOST_EPSILON = 1e200  # what is true there is true beyond, and nothing overflows
UNDERFLOW = 1e-300  # what underflows is not nothing


def epsilon_at(order: Numbers, rdp: Numbers, log_delta: Numbers, classic: bool = False) -> Numbers:
    """ε at an order, from the Rényi divergence there; classic: by Mironov 2017, Proposition 3."""
    xp = namespace(order, rdp, log_delta)
    if classic:
        return rdp - log_delta / (order - 1)
    # Canonne, Kamath and Steinke 2020, Proposition 12
    return rdp + xp.log1p(-1 / order) - (log_delta + xp.log(order)) / (order - 1)


def log_delta_at(order: Numbers, rdp: Numbers, epsilon: Numbers) -> Numbers:
    """log δ at an order: δ = exp((α−1)(RDP(α) − ε))·(1 − 1/α)^α/(α − 1)."""
    xp = namespace(order, rdp, epsilon)
    epsilon = xp.minimum(epsilon, _MOST_EPSILON)
    return (order - 1) * (rdp - epsilon + xp.log1p(-1 / order)) - xp.log(order)


# Two numbers that are equal at the best order, and their derivatives by log(α − 1).
_Sides = tuple[Numbers, Numbers, Numbers, Numbers | float]


class _Aim(NamedTuple):
    """What is minimised over the orders, and how far an order is from the best one.

    Fields:
        value: (order, RDP, target) -> bound.
        sides: (order, K, K', K'', target) -> `_Sides`.
    """

    value: Callable[..., Numbers]
    sides: Callable[..., _Sides]


def _epsilon_sides(
    order: Numbers, k: Numbers, slope: Numbers, bend: Numbers, log_delta: Numbers
) -> _Sides:
    xp = namespace(order, log_delta)
    c = order - 1
    # d/dα of the bound is 0 where the two sides are equal
    return c * slope - k + xp.log(order), -log_delta, c * (c * bend + 1 / order), 0.0


def _classic_sides(
    order: Numbers, k: Numbers, slope: Numbers, bend: Numbers, log_delta: Numbers
) -> _Sides:
    c = order - 1
    return c * slope - k, -log_delta, c * c * bend, 0.0


def _delta_sides(
    order: Numbers, k: Numbers, slope: Numbers, bend: Numbers, epsilon: Numbers
) -> _Sides:
    xp = namespace(order, epsilon)
    c = order - 1
    return slope, epsilon + xp.log1p(1 / c), c * bend, -1 / order


_EPSILON = _Aim(epsilon_at, _epsilon_sides)
_CLASSIC = _Aim(lambda *a: epsilon_at(*a, classic=True), _classic_sides)
_DELTA = _Aim(log_delta_at, _delta_sides)


def _round_up(k: Numbers, order: Numbers) -> Numbers:
    xp = namespace(k, order)
    c = order - 1
    # The terms whose logarithms make K are up to K/(α − 1) in size, and rounded as such.
    return k / c * (1 + RELATIVE + 4 * 2.0**-52 / c) + xp.where(k > 0, ABSOLUTE, 0.0)


def _approximate(
    atoms: GroupedSteps, adjacency: Adjacency, orders: Numbers
) -> tuple[Numbers, Numbers]:
    """About K and K': of its first term in q, and of the integral's part at N(αμ). Not a bound."""
    xp = namespace(atoms, orders)
    mu2 = atoms.gaussian_mu2
    # K and K' of the Gaussian part, exact
    total = [0.5 * orders * (orders - 1) * mu2, (orders - 0.5) * mu2]
    a = orders[:, None]
    for (_, mirrored), steps in sampled_pairs(atoms, adjacency):
        q, mu2 = steps.rate, steps.mu * steps.mu
        half, rise = 0.5 * a * (a - 1), a - 0.5
        # E[r^α] ≈ 1 + α(α−1)/2·E[(r−1)²], and convexity in q if that is less.
        square, wide = (4 * xp.sinh(mu2), 4 * mu2) if mirrored else (xp.expm1(mu2), mu2)
        square, grown = square * q * q, q * xp.expm1(half * wide)
        first, second = xp.log1p(half * square), xp.log1p(grown)
        by_first = rise * square / (1 + half * square)
        by_second = rise * wide * (grown + q) / (1 + grown)
        near, by_near = xp.minimum(first, second), xp.where(first < second, by_first, by_second)
        # The integrand's second peak at αμ; only where there is one, and apart from the first.
        left = (1 - q) * xp.exp(-rise * mu2)  # the term without the record, at y = αμ
        far = half * mu2 + a * xp.log(q + left) - 16 / (a * a * mu2) - 16 * left / q
        by_far = rise * mu2 + xp.log(q + left) - a * mu2 * left / (q + left)
        by_far = by_far + 32 / (a**3 * mu2) + 16 * mu2 * left / q
        if mirrored:
            other = q * xp.exp(-(a + 0.5) * mu2)
            far = far - (a - 1) * xp.log(1 - q + other)
            by_far = by_far - xp.log(1 - q + other) + (a - 1) * mu2 * other / (1 - q + other)
        k = xp.logaddexp(near, far)  # the two peaks of the integrand add up
        share = xp.exp(far - k)
        # Where a part is NaN, it has no say.
        for i, part in enumerate((k, by_near + share * (by_far - by_near))):
            part = xp.where((q > 0) & (steps.count > 0) & (part == part), steps.count * part, 0.0)
            total[i] = total[i] + xp.sum(part, axis=-1)
    return total[0], total[1]


def _start(
    aim: _Aim, atoms: GroupedSteps, adjacency: Adjacency, target: Numbers
) -> tuple[Numbers, Numbers]:
    """log(α − 1) around the best one of the approximate moments, and the heights there, rising."""
    xp = namespace(atoms, target)
    low, high = -10.0, 26.0
    for _ in range(3):
        logs = low + (high - low) * xp.asarray(_UNIT)
        orders = 1 + xp.exp(logs)
        up, down, *_ = aim.sides(orders, *_approximate(atoms, adjacency, orders), 0.0, target)
        heights = xp.log(xp.maximum(up, 1e-300) / down)
        # NaN beyond the range counts as too far
        heights = xp.where(heights == heights, heights, 700.0)
        place = xp.clip(xp.argmax(heights >= 0) - 1, 0, len(_UNIT) - 2)
        low, high = logs[place], logs[place + 1]
    return logs, heights


class _Found(NamedTuple):
    """State of the search: the next log(α − 1), what bounds the best one, the last point, the best.

    Fields:
        at, low, high: next point and bracket, in log(α − 1).
        before: the last point, its height and slope.
        value: least bound so far. order: the best, to first order beyond the last point.
        rounds: of evaluation. open: whether to go on.
    """

    at: Numbers
    low: Numbers
    high: Numbers
    before: tuple[Numbers, Numbers, Numbers]
    value: Numbers
    order: Numbers
    rounds: int
    open: Numbers


def _search(
    aim: _Aim, adjacency: Adjacency, atoms: GroupedSteps, target: Numbers
) -> tuple[Numbers, Numbers]:
    """The least bound and its order; every evaluation on the way is of certified moments."""
    xp = namespace(atoms, target)
    logs, heights = _start(aim, atoms, adjacency, target)

    def look(state: _Found) -> _Found:
        t = state.at
        order = 1 + xp.exp(t)
        jets = log_moment_jets(atoms, adjacency, order[None])
        k, slope, bend = (v[0] for v in jets)
        up, down, up_slope, down_slope = aim.sides(order, k, slope, bend, target)
        height, steep = xp.log(up / down), up_slope / up - down_slope / down
        low = xp.where(height < 0, t, state.low)  # the sides cross once: K is convex
        high = xp.where(height < 0, state.high, t)
        # no step beyond the range where K' bends little
        newton = t - xp.clip(height / steep, -3.0, 3.0)
        # Cubic through the last two points and their slopes, where the root is near them.
        t0, height0, steep0 = state.before
        gap = height0 - height
        u = -height / xp.where(gap == 0, 1.0, gap)
        v = 1 - u
        cubic = v * v * ((1 + 2 * u) * t + u * gap / steep)
        cubic = cubic + u * u * ((3 - 2 * u) * t0 - v * gap / steep0)
        near = (xp.abs(u) < 0.5) & (xp.abs(height) < 1.0) & (xp.abs(height0) < 3.0)
        move = xp.where(near, cubic, newton)
        # At first the approximation, which bends where K does, moved up or down.
        guess = (state.rounds == 0) & (-height > heights[0]) & (-height < heights[-1])
        move = xp.where(guess, xp.interp(-height, heights, logs), move)
        move = xp.where((move > low) & (move < high), move, newton)
        # bisection where neither stays inside
        move = xp.where((move > low) & (move < high), move, 0.5 * (low + high))
        value = aim.value(order, _round_up(k, order), target)
        # The bound exceeds the least by height²/(4·steep) of itself, or about that.
        settled = (height * height < 1e-12 * steep) | (high - low < 1e-14)
        rounds = state.rounds + 1
        again = ~settled & (height == height) & (rounds < _NEWTON_STEPS)
        least = xp.fmin(value, state.value)  # any order gives a bound: the least seen is one
        best = xp.where(settled, 1 + xp.exp(newton), order)
        best = xp.where(settled | (value <= state.value), best, state.order)
        return _Found(move, low, high, (t, height, steep), least, best, rounds, again)

    at = xp.interp(0.0, heights, logs)
    zero = 0.0 * at
    start = _Found(
        at,
        zero + _LOWEST,
        zero + _HIGHEST,
        (at, zero + 9.0, zero + 1.0),
        zero + xp.inf,
        1 + xp.exp(at),
        0,
        at == at,
    )
    found = xp.while_loop(lambda state: state.open, look, start)
    return found.value, found.order


@functools.partial(with_derivative, static=2)
def _least(aim: _Aim, adjacency: Adjacency, atoms: GroupedSteps, target: Numbers) -> Numbers:
    return _search(aim, adjacency, atoms, target)[0]


@_least.defjvp
def _least_jvp(aim: _Aim, adjacency: Adjacency, primals: tuple, tangents: tuple) -> tuple:
    # by the envelope theorem the best order counts as constant
    value, order = _search(aim, adjacency, *jax.lax.stop_gradient(primals))

    def at_order(atoms: GroupedSteps, target: Numbers) -> Numbers:
        k = log_moments(atoms, adjacency, order[None])[0]
        return aim.value(order, _round_up(k, order), target)

    return value, jax.jvp(at_order, primals, tangents)[1]


def _releases_nothing(atoms: GroupedSteps) -> Numbers:
    xp = namespace(atoms)
    idle = atoms.gaussian_mu2 == 0
    for steps in atoms.sampled.values():
        # no uses, never drawn, or nothing moves
        idle = idle & xp.all((steps.count == 0) | (steps.rate == 0) | (steps.mu == 0))
    return idle


def epsilon_from_atoms(
    atoms: GroupedSteps, adjacency: Adjacency, delta: Float[Array, ""], *, classic: bool = False
) -> Float[Array, ""]:
    """ε(δ) of a run through its Rényi curve, the order optimised over the reals."""
    xp = namespace(atoms, delta)
    proper = (delta > 0) & (delta < 1)
    aim = _CLASSIC if classic else _EPSILON
    value = _least(aim, adjacency, atoms, xp.log(xp.where(proper, delta, 0.5)))
    value = xp.where(xp.isnan(value), xp.inf, xp.maximum(value, 0.0))
    value = xp.where(_releases_nothing(atoms), 0.0, value)
    return xp.where(proper, value, xp.where(delta >= 1, 0.0, xp.inf))


def delta_from_atoms(
    atoms: GroupedSteps, adjacency: Adjacency, epsilon: Float[Array, ""]
) -> Float[Array, ""]:
    """δ(ε) of a run through its Rényi curve, the order optimised over the reals, within [0, 1]."""
    xp = namespace(atoms, epsilon)
    proper = epsilon >= 0
    value = _least(_DELTA, adjacency, atoms, xp.where(proper, epsilon, 1.0))
    value = xp.maximum(xp.exp(xp.minimum(value, 0.0)) * (1 + RELATIVE), UNDERFLOW)
    value = xp.where(xp.isnan(value) | ~proper, 1.0, xp.minimum(value, 1.0))
    return xp.where(_releases_nothing(atoms), 0.0, value)


def _given(order: Numbers, rdp: Numbers, delta: Numbers, classic: bool) -> Numbers:
    xp = namespace(order, rdp, delta)
    value = epsilon_at(order, rdp, xp.log(delta), classic)
    good = (order > 1) & (order < xp.inf) & (rdp >= 0) & (delta > 0) & (delta < 1)
    return xp.where(good, xp.maximum(value, 0.0), xp.inf)


_GIVEN = {classic: functools.partial(_given, classic=classic) for classic in (False, True)}


@suggests_argument_names
def rdp_to_epsilon(
    orders: Float[ArrayLike, "..."],
    rdp: Float[ArrayLike, "..."],
    delta: Float[ArrayLike, "..."],
    *,
    classic: bool = False,
) -> float | np.ndarray | jax.Array:
    """ε at each order from Rényi values of your own; the least over the orders is a valid bound.

    Args:
        orders: above one; +inf is the answer at others.
        rdp: the Rényi divergence at each order, at least 0.
        delta: in (0, 1). All three broadcast together.
        classic: Mironov 2017, Proposition 3, for reproducing papers; never below the default.

    Returns:
        A float, or a float64 array; traced under a trace, and +inf where it would raise.

    Raises:
        ValueError: not a number, or out of range.

    Example:
        >>> round(rdp_to_epsilon(10.0, 0.5, 1e-5), 10)
        1.4180106368
        >>> round(rdp_to_epsilon(10.0, 0.5, 1e-5, classic=True), 10)
        1.7792139406

    References:
        Canonne, Kamath and Steinke 2020, Proposition 12.
    """
    orders = checks.number("orders", orders, checks.Range(infinite=True))
    rdp = checks.number("rdp", rdp, checks.Range(0.0, infinite=True))
    delta = checks.number("delta", delta, checks.Range(0.0, 1.0, True, True))
    given = orders, rdp, delta
    return float64.to_float(float64.evaluate(_GIVEN[classic], given, (0, 0, 0), rounding="up"))


def _zcdp_improved(rho: Array, delta: Array) -> Array:
    xp = namespace(rho, delta)
    value = epsilon_from_atoms(GroupedSteps(2 * rho, {}), Adjacency.ADD_REMOVE, delta)
    return xp.where(rho >= 0, value, xp.inf)


def _zcdp_classic(rho: Array, delta: Array) -> Array:
    xp = namespace(rho, delta)
    good = (rho >= 0) & (delta > 0) & (delta < 1)
    return xp.where(good, rho + 2 * xp.sqrt(-rho * xp.log(delta)), xp.inf)


@suggests_argument_names
def zcdp_to_epsilon(
    rho: Float[ArrayLike, "..."], delta: Float[ArrayLike, "..."], *, classic: bool = False
) -> float | np.ndarray | jax.Array:
    """ε of ρ-zCDP (RDP(α) = ρα), by the best order.

    Args:
        rho: at least 0.
        delta: in (0, 1). The two broadcast together.
        classic: ρ + 2√(ρ log(1/δ)) instead (Bun and Steinke 2016).

    Returns:
        A float, or a float64 array; traced under a trace, and +inf where it would raise.

    Raises:
        ValueError: not a number, or out of range.

    Example:
        >>> round(zcdp_to_epsilon(0.1, 1e-5), 8)
        1.91423883
    """
    rho = checks.number("rho", rho, checks.Range(0.0, infinite=True))
    delta = checks.number("delta", delta, checks.Range(0.0, 1.0, True, True))
    core = _zcdp_classic if classic else _zcdp_improved
    return float64.to_float(float64.evaluate(core, (rho, delta), (0, 0), rounding="up"))
