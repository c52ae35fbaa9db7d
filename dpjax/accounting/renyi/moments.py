"""Rényi curves of the (subsampled) Gaussian, at every real order above one, as upper bounds.

For a dominating pair (P, Q) with loss L = log dP/dQ, log-moment and divergence at order α are

    K(α) = log E_P[e^{(α−1)L}],        D_α(P‖Q) = K(α)/(α−1).

With g the standard normal density and r(z) = 1 − q + q e^{μz − μ²/2} the integrand is
f = g·r^α (`remove`: (1−q)N(0) + qN(μ) against N(0)) or f = g·r(z)^α r(−z)^{1−α} (`replace`:
(1−q)N(0) + qN(μ) against (1−q)N(0) + qN(−μ)). It is summed by the trapezoid rule; where the moment
is near one, as 1 + E_P[e^{(α−1)L} − 1], which keeps the digits of tiny divergences. The rule's
error is bounded, not guessed, and added:

* Cut ends. log f − (−z²/2) has a slope between 0 and s, so that beyond an end b ≥ s (or a ≤ 0) f is
  at most f(end)·e^{−(z−end)²/2}: a tail of at most f(end)√(π/2).
* Cut bulk. Where the part at N(αμ) outweighs the one at N(0), the line begins between the two: by
  Minkowski's inequality in L^α, the part of E[r^α] left of a ≤ αμ is at most
  ((1−q) + q e^{(α−1)μ²/2 − (αμ−a)²/(2α)})^α.
* Aliases. f is analytic for |Im z| < π/μ, where |f(z + iy)| ≤ f(z)·e^{y²/2}·cos(μy/2)^{−κ}, κ = α−1
  for `replace` and 0 for `remove`: the relative error of step h is at most
  2e^{−2πy/h + y²/2}cos(μy/2)^{−κ}/(1 − e^{−2πy/h}) for every such y.

Where that takes too many nodes, closed bounds stand in: E[r^α] ≤ (1 − q + q e^{(α−1)μ²/2})^α
(Minkowski), r ≥ 1 − q, and the plain Gaussian's (quasi-convexity).

References:
  Mironov, Talwar and Zhang 2019, Theorem 5 (the `remove` pair is the worse direction); Trefethen
  and Weideman 2014, Theorem 5.1 (the trapezoid rule on the line).
"""

from __future__ import annotations

import functools
import math
from typing import Any

from jaxtyping import Array, Float

from dpjax._numerics.arrays import NUMPY, namespace, with_derivative
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.pairs.atoms import Atoms, by_pair
from dpjax.accounting.pairs.protocol import Steps
from dpjax.accounting.pairs.ratio import log_ratio, posterior
from dpjax.accounting.pairs.table import PAIRS

RELATIVE, ABSOLUTE = 1e-9, 1e-15  # final inflation of every Rényi divergence: rounding
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_HALF_LOG_HALF_PI = 0.5 * math.log(0.5 * math.pi)
_REACH = 10.0  # standard deviations kept on either side: a cut end holds about e^-50
_ALIAS = 48.0  # aliases are below e^-48 unless that needs more than _MOST nodes
_MOST = 8192  # nodes
_CELLS = 16  # pairs of order and step worked on at a time, if there are many


def _closed(mirrored: bool, mu: Array, rate: Array, order: Array) -> tuple[Any, ...]:
    """The closed upper bound, with its derivatives as of `_integrals`."""
    xp: Any = namespace(mu, rate, order)
    c, half = order - 1, 0.5 * mu * mu
    log = log_ratio(0.5 * order * mu, mu, rate)
    hit = posterior(0.5 * order * mu, mu, rate)
    by_rate = -order * xp.expm1(-log) / xp.where(rate > 0, rate, 1.0)
    bend = half * hit * (2 + order * half * (1 - hit))
    bound = (order * log, log + order * half * hit, bend, order * c * mu * hit, by_rate)
    if not mirrored:
        return bound
    floor = xp.log1p(-rate)
    bound = (bound[0] - c * floor, bound[1] - floor, bend, bound[3], by_rate + c / (1 - rate))
    plain = (2 * mu * mu * order * c, 2 * mu * mu * (order + c), 4 * mu * mu, 4 * mu * order * c)
    wide = ~(bound[0] <= plain[0])
    return tuple(xp.where(wide, p, b) for p, b in zip((*plain, 0.0), bound, strict=True))


def _line(mirrored: bool, mu: Array, rate: Array, order: Array) -> tuple[Array, ...]:
    """First node, last place and step of the rule; its alias; log of the mass left of it, or NaN.

    NaN where the line begins where f is bounded by its first value.
    """
    xp: Any = namespace(mu, rate, order)
    c, far = order - 1, order * mu
    slope, strip, curved = far, 0.999, 1.0
    if mirrored:
        # r(−z) pulls less and less to the right of αμ, so that its slope there bounds the rest.
        slope = slope + c * mu * posterior(-far, mu, rate)
        strip, curved = 0.9, 1.0 + 0.25 * c * mu * mu
    left, right = -_REACH, slope + _REACH
    # exp(level) is the least that the part at N(αμ) can weigh; left of `shift` lies e^-50 of it.
    level = order * (xp.log(rate) + 0.5 * c * mu * mu)
    spare = xp.exp(-50.0 / order) - (1 - rate) * xp.exp(-level / order)
    shift = far - xp.sqrt(-2 * order * xp.log(xp.maximum(spare, 1e-300)))
    cut = (level > 60.0) & (shift > left)
    left = xp.where(cut, shift, left)
    lost = xp.where(cut, level - 50.0, xp.nan)
    # Any y within the strip is valid: near the best one of the quadratic approximation.
    y = xp.minimum(xp.sqrt(2 * _ALIAS / curved), strip * math.pi / mu)
    grown = 0.5 * y * y
    if mirrored:
        lost = lost - c * log_ratio(-left, mu, rate)
        grown = grown - c * xp.log(xp.cos(0.5 * mu * y))
    turn = 2 * math.pi * y
    step = xp.maximum(turn / (_ALIAS + grown), (right - left) / (_MOST - 1))
    alias = -2 * xp.exp(grown - turn / step) / xp.expm1(-turn / step)
    return left, right, step, alias, lost


def _integrals(
    mirrored: bool, mu: Any, rate: Any, order: Any, partials: bool = False
) -> tuple[Any, ...]:
    """K and its first two derivatives by the order; with `partials` also those by μ and q. [cells]

    All sums are over the same nodes, f-weighted: K' = E[L], K'' = Var[L].
    """
    xp: Any = namespace(mu, rate, order)
    c = order - 1
    left, right, step, alias, lost = _line(mirrored, mu, rate, order)
    a, h, lean, m, q = (v[:, None] for v in (left, step, c, mu, rate))
    width = 256 if xp is NUMPY else 64  # nodes at a time: few calls, or little in vain
    offsets = xp.arange(width)
    reach = xp.max((right - left) / step)

    def block(state: tuple) -> tuple:
        number, top, sums, ends = state
        z = a + h * (number * width + offsets)
        loss = up = log_ratio(z, m, q)
        log_p = up - (0.5 * z * z + _HALF_LOG_2PI)
        if mirrored:
            down = log_ratio(-z, m, q)
            loss = up - down
        x = lean * loss
        loss, log_p, x = xp.barrier((loss, log_p, x))
        value = log_p + x
        high = xp.maximum(top, xp.max(value, axis=-1))
        weight = xp.exp(value - high[:, None])
        p = xp.exp(log_p)
        # P(e^x − 1), read only where nothing exceeds one (high = 0).
        excess = xp.where(x < 1.0, p * xp.expm1(xp.minimum(x, 1.0)), weight - p)
        first = weight * loss
        rows = [excess, weight, first, first * loss]
        if partials:  # ∂ log r/∂μ = (z − μ)(q + (1−q)(1 − 1/r)), ∂ log r/∂q = (1 − 1/r)/q
            rise = -xp.expm1(-up)
            by_mu = (1 + lean) * (q + (1 - q) * rise) * (z - m)
            by_rate = (1 + lean) * rise
            if mirrored:
                fall = -xp.expm1(-down)  # pyrefly: ignore
                by_mu = by_mu + lean * (q + (1 - q) * fall) * (z + m)
                by_rate = by_rate - lean * fall
            rows += [weight * by_mu, weight * by_rate]
        sums = sums * xp.exp(top - high) + xp.sum(xp.stack(rows), axis=-1)
        begin = xp.where(number == 0, value[:, 0], ends[0])
        return number + 1, high, sums, (begin, value[:, -1])

    zero = 0.0 * right
    start = (0, zero, xp.stack([zero] * (6 if partials else 4)), (zero, zero))
    _, top, sums, ends = xp.while_loop(lambda s: s[0] * width <= reach, block, start)
    excess, mass, slope, square, *others = sums * step
    low = xp.where(lost == lost, lost, ends[0] + _HALF_LOG_HALF_PI)
    error = xp.exp(low - top) + xp.exp(ends[1] + _HALF_LOG_HALF_PI - top)
    # The sum of P itself is taken to be one: its alias, and its own two ends.
    unit = xp.exp(-top)
    error = error + alias * (mass + unit) + math.exp(-0.5 * _REACH * _REACH) * unit
    near = xp.log1p(xp.maximum(excess, 0.0) + error)
    value = xp.where(top > 0, top + xp.log(mass + error), near)
    slope = slope / mass
    found = [value, slope, square / mass - slope * slope]
    if partials:
        found += [others[0] / mass, others[1] / mass / xp.where(rate > 0, rate, 1.0)]
    good = (error < 1e-9 * mass) & (rate > 0) & (mu > 0)
    if xp is not NUMPY or not good.all():
        bound = _closed(mirrored, mu, rate, order)
        still = (rate == 0) | (mu == 0)
        found = [
            xp.where(still, 0.0, xp.where(good, f, b)) for f, b in zip(found, bound, strict=False)
        ]
    return tuple(found)


@functools.partial(with_derivative, static=1)
def _moment(mirrored: bool, mu: Any, rate: Any, order: Any) -> Any:
    return _integrals(mirrored, mu, rate, order)[0]


@_moment.defjvp
def _(mirrored: bool, primals: tuple, tangents: tuple) -> tuple:
    value, slope, _, by_mu, by_rate = _integrals(mirrored, *primals, partials=True)
    return value, by_mu * tangents[0] + by_rate * tangents[1] + slope * tangents[2]


def sampled_pairs(atoms: Atoms, adjacency: Adjacency) -> list[tuple[bool, Steps]]:
    """The sampled steps of a run, and whether their integral is `replace`.

    `remove` serves both directions of a pair: at no order is the reverse divergence the larger.
    """
    return [
        (PAIRS[name].mirrored, steps)
        for name, steps in by_pair(atoms, adjacency, attained=True).items()
    ]


def _summed(function: Any, steps: Steps, orders: Any) -> tuple[Any, ...]:
    """Σ count·function(μ, q, α) over the steps, at every order."""
    xp: Any = namespace(steps, orders)
    shape = (orders.shape[0], steps.mu.shape[0])
    size = shape[0] * shape[1]
    cells = (steps.mu, steps.rate, orders)
    if size > 1:
        cells = (steps.mu, steps.rate, orders[:, None])
        cells = tuple(xp.broadcast_to(v, shape).reshape(-1) for v in cells)
    if size <= 2 * _CELLS:
        values = function(*cells)
    else:
        index = xp.minimum(xp.arange(size + -size % _CELLS), size - 1).reshape(-1, _CELLS)
        values = xp.map(lambda row: function(*row), tuple(v[index] for v in cells))
        values = tuple(v.reshape(-1)[:size] for v in values)
    # A step that is not made costs nothing, not even without noise.
    values = [v.reshape(shape) for v in values]
    values = [xp.where((steps.count > 0) | xp.isfinite(v), v, 0.0) for v in values]
    return tuple(xp.sum(steps.count * v, axis=-1) for v in values)


def log_moments(
    atoms: Atoms, adjacency: Adjacency, orders: Float[Array, " k"]
) -> Float[Array, " k"]:
    """K(α) = (α−1)·RDP(α) of a whole run, at float64 orders above one, differentiable."""
    total = 0.5 * orders * (orders - 1) * atoms.gaussian_mu2
    for mirrored, steps in sampled_pairs(atoms, adjacency):
        total = total + _summed(lambda *cell, m=mirrored: (_moment(m, *cell),), steps, orders)[0]
    return total


def log_moment_jets(
    atoms: Atoms, adjacency: Adjacency, orders: Float[Array, " k"]
) -> tuple[Any, Any, Any]:
    """K, K' and K'' of a whole run at float64 orders above one."""
    mu2 = atoms.gaussian_mu2
    total = (0.5 * orders * (orders - 1) * mu2, (orders - 0.5) * mu2, mu2 + 0.0 * orders)
    for mirrored, steps in sampled_pairs(atoms, adjacency):
        more = _summed(lambda *cell, m=mirrored: _integrals(m, *cell), steps, orders)
        total = tuple(t + v for t, v in zip(total, more, strict=True))
    return total


def rdp_curve(atoms: Atoms, adjacency: Adjacency, orders: Float[Array, " k"]) -> Float[Array, " k"]:
    """The Rényi divergence at each order, rounded up; +inf at orders that are not above one."""
    xp: Any = namespace(atoms, orders)
    good = (orders > 1) & (orders < xp.inf)
    safe = xp.where(good, orders, 2.0)
    value = log_moments(atoms, adjacency, safe) / (safe - 1)
    value = value * (1 + RELATIVE) + xp.where(value > 0, ABSOLUTE, 0.0)
    return xp.where(good & ~xp.isnan(value), value, xp.inf)
