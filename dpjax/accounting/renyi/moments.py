"""Rényi curves of sampled Gaussians, at every real order above one, as upper bounds.

For a dominating pair (P, Q) with loss L = log dP/dQ, log-moment and divergence at order α are

    K(α) = log E_P[e^{(α−1)L}],        D_α(P‖Q) = K(α)/(α−1).

With g the standard normal density and r the density over it of a mixture of N(m_i, 1) with weights
w_i and 0 = m_0 < … < m_k, P is g·r(z) or g, and Q is g or g·r(−z): the integrand is f = g times
r(z)^α where P is the mixture, times r(−z)^{1−α} where Q is. A record removed has the first factor
alone, one added the second, one replaced both. The trapezoid rule sums f; where the moment is near
one, as 1 + E_P[e^{(α−1)L} − 1], which keeps the digits of tiny divergences. Its error is bounded,
not guessed, and added:

* Cut ends. log f − (−z²/2) has a slope between 0 and s, so that beyond an end b ≥ s (or a ≤ 0) f is
  at most f(end)·e^{−(z−end)²/2}: a tail of at most f(end)√(π/2).
* Cut bulk. Where the part at N(αm_k) outweighs the others, the line begins between them: by
  Minkowski's inequality in L^α, the part of E[r^α] left of a ≤ αm_k is at most
  (Σ_{i<k} w_i e^{(α−1)m_i²/2} + w_k e^{(α−1)m_k²/2 − (αm_k−a)²/(2α)})^α.
* Aliases. By SECTOR and POISSON (`contour.tilt`) the relative error of step h is at most
  2e^{b²/2}R^{α−1}/(e^{2πb/h} − 1) for every shift b < π/m_k, R = 1/cos(b·m_k/2) where Q is a
  mixture, and 1 where it is g.

Where that takes too many nodes, closed bounds stand in: E[r^α] ≤ (Σ_i w_i e^{(α−1)m_i²/2})^α
(Minkowski), r ≥ w_0, E[r^{1−α}] ≤ Σ_i w_i e^{α(α−1)m_i²/2} (Jensen), and the plain Gaussian's
(quasi-convexity).

References:
  Mironov, Talwar and Zhang 2019, Theorem 5 (of one record the removed one is the worse direction);
  Ganesh 2024 (a user's records); Trefethen and Weideman 2014, Theorem 5.1 (the trapezoid rule).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from dpjax._numerics.arrays import NUMPY, Numbers, NumbersLike, namespace, with_derivative
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.contour.tilt import log_aliases, sector
from dpjax.accounting.pairs.atoms import PAIRS, GroupedSteps, by_pair
from dpjax.accounting.pairs.protocol import StepGroup

RELATIVE, ABSOLUTE = 1e-9, 1e-15  # final inflation of every Rényi divergence: rounding
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_HALF_LOG_HALF_PI = 0.5 * math.log(0.5 * math.pi)
_REACH = 10.0  # standard deviations kept on either side: a cut end holds about e^-50
_ALIAS = 48.0  # aliases are below e^-48 unless that needs more than _MOST_NODES nodes
_MOST_NODES = 8192  # nodes
_PAIRS_AT_A_TIME = 16  # pairs of order and step worked on at a time, if there are many
_MOST_EXPONENT = 30.0  # exponents of which e^x − 1 may be summed
LOUDEST = 1e3  # μ beyond which no finite bound is looked for on the host


class Kind(NamedTuple):
    """Whether P is a mixture, and whether Q is the mirror image of it."""

    first: bool
    second: bool


_Jets = tuple[Numbers, ...]  # a moment and its derivatives


class MeansTable(NamedTuple):
    """A mixture of N(m_j, 1), means and cells first; one record in a Poisson sample has one mean.

    Fields:
        mean, weight: of every m_j > 0, ascending. [means, cells]
        rest: weight of N(0, 1). [cells]
    """

    mean: Numbers
    weight: Numbers
    rest: Numbers

    def log(self, x: Numbers) -> Numbers:
        """Return log(w_0 + Σ w_j e^{x_j}), to full relative precision. [means, cells, nodes]"""
        xp = namespace(self, x)
        weight, rest = self.weight[..., None], self.rest[..., None]
        # As the weights sum to 1 it is log(1 + Σ w_j(e^{x_j} − 1)), which keeps small digits.
        excess = xp.sum(weight * xp.expm1(xp.minimum(x, _MOST_EXPONENT)), axis=0)
        most = xp.max(x, axis=0)
        near = (most <= _MOST_EXPONENT) & (excess > -0.5)
        direct = xp.log1p(xp.maximum(excess, -0.5))
        if xp is NUMPY and near.all():
            return direct
        top = xp.where(rest > 0, xp.maximum(most, 0.0), most)
        total = rest * xp.exp(-xp.maximum(top, -700.0)) + xp.sum(weight * xp.exp(x - top), axis=0)
        return xp.where(near, direct, top + xp.log(total))

    def log_ratio(self, z: Numbers) -> Numbers:
        """Return log r(z). [cells, nodes]"""
        mean = self.mean[..., None]
        return self.log(mean * (z - 0.5 * mean))

    def shares(self, x: Numbers) -> tuple[Numbers, Numbers]:
        """Return the same logarithm, and w_j e^{x_j} as a share of that sum. [means, cells]"""
        xp = namespace(self, x)
        log = self.log(x[..., None])[..., 0]
        return log, xp.exp(xp.log(self.weight) + x - log)

    def slope(self, z: Numbers) -> Numbers:
        """Return (log r)′(z), the mean of the m_j by their shares in r(z). [cells]"""
        shares = self.shares(self.mean * (z - 0.5 * self.mean))[1]
        return namespace(self, z).sum(self.mean * shares, axis=0)

    def begin(self, order: Numbers, left: Numbers) -> tuple[Numbers, Numbers]:
        """Return where the line may begin, and log of the bound on what is left of it, or NaN."""
        xp = namespace(self, order)
        half = 0.5 * (order - 1) * self.mean * self.mean
        # exp(level) is the least that the part at N(αm_k) can weigh; left of `shift` is e^-50 of
        # it, the other parts counted as a whole.
        level = order * (xp.log(self.weight[-1]) + half[-1])
        others = self.rest * xp.exp(-level / order)
        others = others + xp.sum(self.weight[:-1] * xp.exp(half[:-1] - level / order), axis=0)
        spare = xp.maximum(xp.exp(-50.0 / order) - others, 1e-300)
        shift = order * self.mean[-1] - xp.sqrt(-2 * order * xp.log(spare))
        cut = (level > 60.0) & (shift > left)
        return xp.where(cut, shift, left), xp.where(cut, level - 50.0, xp.nan)

    def closed(self, kind: Kind, order: Numbers) -> tuple[Numbers, ...]:
        """Return the closed bound, with its derivatives as of `integrate`."""
        xp = namespace(self, order)
        c, half = order - 1, 0.5 * self.mean * self.mean
        if not kind.first:
            return (xp.minimum(self.shares(order * c * half)[0], -c * xp.log(self.rest)),)
        log, hit = self.shares(c * half)
        rise = xp.sum(hit * half, axis=0)
        bend = 2 * rise + order * (xp.sum(hit * half * half, axis=0) - rise * rise)
        by_mu = order * c * xp.sum(self.mean * hit, axis=0)
        by_rate = -order * xp.expm1(-log) / xp.where(self.weight[0] > 0, self.weight[0], 1.0)
        bound = (order * log, log + order * rise, bend, by_mu, by_rate)
        if kind.second:
            floor = xp.log(self.rest)
            by_rate = by_rate + c / self.rest
            bound = (bound[0] - c * floor, bound[1] - floor, bend, by_mu, by_rate)
            mu = self.mean[-1]
            plain = (2 * mu * mu * order * c, 2 * mu * mu * (order + c), 4 * mu * mu)
            plain = (*plain, 4 * mu * order * c, 0.0)
            wide = ~(bound[0] <= plain[0])
            bound = tuple(xp.where(wide, p, b) for p, b in zip(plain, bound, strict=True))
        return tuple(xp.where(self.idle(), 0.0, b) for b in bound)

    def idle(self) -> Numbers:
        """Whether nothing is released."""
        return namespace(self).all((self.mean == 0) | (self.weight == 0), axis=0)


def _sampled(mu: Numbers, rate: Numbers) -> MeansTable:
    return MeansTable(mu[None], rate[None], 1 - rate)


def _line(kind: Kind, table: MeansTable, order: Array) -> tuple[Array, ...]:
    """First node, last place and step of the rule; its alias; log of the mass left of it, or NaN.

    NaN where the line begins where f is bounded by its first value.
    """
    xp = namespace(table, order)
    c, width = order - 1, table.mean[-1]
    right, left, lost = _REACH + 0.0 * order, -_REACH + 0.0 * order, xp.nan * order
    strip, curved = 0.999, 1.0
    if kind.first:
        right = right + order * width
        left, lost = table.begin(order, left)
    if kind.second:
        # r(−z) pulls less and less to the right, so that its slope there bounds the rest.
        right = right + c * table.slope(-right)
        lost = lost - c * table.log_ratio(-left[:, None])[:, 0]
        strip, curved = 0.9, 1.0 + 0.25 * c * width * width
    # Any shift within the strip is valid: near the best one of the quadratic approximation.
    b = xp.minimum(xp.sqrt(2 * _ALIAS / curved), strip * math.pi / width)
    # SECTOR: |r(z + ib)| ≤ r(z), and at least r(z)/R.
    grown = 0.5 * b * b + (c * xp.log(sector(width, b)) if kind.second else 0.0)
    step = 2 * math.pi * b / (_ALIAS + grown)
    if table.rest.shape != order.shape:  # one line for all orders, on which r is the same
        left, right, step = xp.min(left)[None], xp.max(right)[None], xp.min(step)[None]
    step = xp.maximum(step, (right - left) / (_MOST_NODES - 1))
    # POISSON, to both sides.
    alias = 2 * xp.exp(grown + log_aliases(2 * math.pi / step, b))
    return left, right, step, alias, lost


def integrate(kind: Kind, table: MeansTable, order: Numbers, partials: bool = False) -> _Jets:
    """K and its first two derivatives by the order; with `partials` also those by μ and q. [cells]

    All sums are over the same nodes, f-weighted: K' = E[L], K'' = Var[L].
    """
    xp = namespace(table, order)
    left, right, step, alias, lost = _line(kind, table, order)
    a, h, lean = left[:, None], step[:, None], (order - 1)[:, None]
    width = 256 if xp is NUMPY else 64  # nodes at a time: few calls, or little in vain
    offsets = xp.arange(width)
    reach = xp.max((right - left) / step)

    def block(state: tuple) -> tuple:
        number, top, sums, ends = state
        z = a + h * (number * width + offsets)
        up = table.log_ratio(z) if kind.first else 0.0
        down = table.log_ratio(-z) if kind.second else 0.0
        loss = up - down
        x, log_p = lean * loss, up - (0.5 * z * z + _HALF_LOG_2PI)
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
            m, q = table.mean[0][:, None], table.weight[0][:, None]
            rise = -xp.expm1(-up)
            by_mu = (1 + lean) * (q + (1 - q) * rise) * (z - m)
            by_rate = (1 + lean) * rise
            if kind.second:
                fall = -xp.expm1(-down)
                by_mu = by_mu + lean * (q + (1 - q) * fall) * (z + m)
                by_rate = by_rate - lean * fall
            rows += [weight * by_mu, weight * by_rate]
        sums = sums * xp.exp(top - high) + xp.sum(xp.stack(rows), axis=-1)
        begin = xp.where(number == 0, value[:, 0], ends[0])
        return number + 1, high, sums, (begin, value[:, -1])

    zero = 0.0 * order
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
        rate = table.weight[0]
        found += [others[0] / mass, others[1] / mass / xp.where(rate > 0, rate, 1.0)]
    good = (error < 1e-9 * mass) & ~table.idle()
    if xp is not NUMPY or not good.all():
        bound = table.closed(kind, order)
        found = [xp.where(good, f, b) for f, b in zip(found, bound, strict=False)]
    return tuple(found)


@functools.partial(with_derivative, static=1)
def _moment(kind: Kind, mu: Numbers, rate: Numbers, order: Numbers) -> Numbers:
    return integrate(kind, _sampled(mu, rate), order)[0]


@_moment.defjvp
def _moment_jvp(kind: Kind, primals: tuple, tangents: tuple) -> tuple:
    mu, rate, order = primals
    found = integrate(kind, _sampled(mu, rate), order, partials=True)
    value, slope, _, by_mu, by_rate = found
    return value, by_mu * tangents[0] + by_rate * tangents[1] + slope * tangents[2]


def sampled_pairs(atoms: GroupedSteps, adjacency: Adjacency) -> list[tuple[Kind, StepGroup]]:
    """The sampled steps of a run, and their integral.

    A record removed serves both directions: at no order is the reverse divergence the larger.
    """
    return [
        (Kind(True, PAIRS[name].mirrored), steps)
        for name, steps in by_pair(atoms, adjacency, attained=True).items()
    ]


def _summed(
    function: Callable[..., tuple[Numbers, ...]], steps: StepGroup, orders: Numbers
) -> tuple[Numbers, ...]:
    """Σ count·function(μ, q, α) over the steps, at every order."""
    xp = namespace(steps, orders)
    shape = (orders.shape[0], steps.mu.shape[0])
    size = shape[0] * shape[1]
    cells = (steps.mu, steps.rate, orders)
    if size > 1:
        cells = (steps.mu, steps.rate, orders[:, None])
        cells = tuple(xp.broadcast_to(v, shape).reshape(-1) for v in cells)
    if size <= 2 * _PAIRS_AT_A_TIME:
        values = function(*cells)
    else:
        index = xp.minimum(xp.arange(size + -size % _PAIRS_AT_A_TIME), size - 1).reshape(
            -1, _PAIRS_AT_A_TIME
        )
        values = xp.map(lambda row: function(*row), tuple(v[index] for v in cells))
        values = tuple(v.reshape(-1)[:size] for v in values)
    # A step that is not made costs nothing, not even without noise.
    values = [v.reshape(shape) for v in values]
    values = [xp.where((steps.count > 0) | xp.isfinite(v), v, 0.0) for v in values]
    return tuple(xp.sum(steps.count * v, axis=-1) for v in values)


def log_moments(
    atoms: GroupedSteps, adjacency: Adjacency, orders: Float[Array, " k"]
) -> Float[Array, " k"]:
    """K(α) = (α−1)·RDP(α) of a whole run, at float64 orders above one, differentiable."""
    total = 0.5 * orders * (orders - 1) * atoms.gaussian_mu2
    for kind, steps in sampled_pairs(atoms, adjacency):
        total = total + _summed(lambda *cell, k=kind: (_moment(k, *cell),), steps, orders)[0]
    return total


def log_moment_jets(
    atoms: GroupedSteps, adjacency: Adjacency, orders: Float[Array, " k"]
) -> tuple[Numbers, ...]:
    """K, K' and K'' of a whole run at float64 orders above one."""
    mu2 = atoms.gaussian_mu2
    total = (0.5 * orders * (orders - 1) * mu2, (orders - 0.5) * mu2, mu2 + 0.0 * orders)
    for kind, steps in sampled_pairs(atoms, adjacency):

        def jets(
            mu: Numbers, rate: Numbers, order: Numbers, kind: Kind = kind
        ) -> tuple[Numbers, ...]:
            return integrate(kind, _sampled(mu, rate), order)

        total = tuple(t + v for t, v in zip(total, _summed(jets, steps, orders), strict=True))
    return total


def divergence(log_moment: Numbers, order: Numbers) -> Numbers:
    """The Rényi divergence, rounded up; +inf at orders that are not above one."""
    xp = namespace(log_moment, order)
    good = (order > 1) & (order < xp.inf)
    value = log_moment / (xp.where(good, order, 2.0) - 1)
    value = value * (1 + RELATIVE) + xp.where(value > 0, ABSOLUTE, 0.0)
    return xp.where(good & ~xp.isnan(value), value, xp.inf)


def gaussian_family_curve(
    atoms: GroupedSteps, adjacency: Adjacency, orders: Float[Array, " k"]
) -> Float[Array, " k"]:
    """The Rényi divergence of a whole run at each order."""
    xp = namespace(atoms, orders)
    safe = xp.where((orders > 1) & (orders < xp.inf), orders, 2.0)
    return divergence(log_moments(atoms, adjacency, safe), orders)


# --- on the host, setting by setting


def curve_by_setting(moments: Callable, lead: tuple[int, ...], orders: NumbersLike) -> np.ndarray:
    """The Rényi divergence of every setting at each order, shape S + [k], rounded up.

    Args:
        moments: (place of the setting, orders) -> K(α).
        lead: the sweep's shape, with which that of the orders broadcasts.
        orders: [..., k].
    """
    orders = np.asarray(orders, np.float64)
    shape = np.broadcast_shapes(lead, orders.shape[:-1])
    every = np.broadcast_to(orders, (*shape, orders.shape[-1]))
    found = np.empty(every.shape)
    for at in np.ndindex(*shape):
        safe = np.where((every[at] > 1) & (every[at] < np.inf), every[at], 2.0)
        found[at] = divergence(moments(at, safe), every[at])
    return found
