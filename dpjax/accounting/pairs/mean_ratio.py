"""The law of a mean of independent lognormals, from above and from below in convex order.

W = (1/t)Σᵢ exp(μzᵢ − μ²/2). Both δ(ε) of the pair that W is the density ratio of, E[(W − e^ε)₊]
and E[(1 − e^ε W)₊], are expectations of convex functions of W. A law that is larger in convex order
thus bounds both from above, one that is smaller both from below; and convex order survives adding
independent terms. So W is computed on a geometric grid by ⌈log₂ t⌉ doublings, and after each its
law is rounded to the grid

* from above: the mass between two grid points is split between them so that its mean stays;
* from below: the mass between two grid points is put at its mean (Jensen's inequality).

The distance to the truth falls with the square of the grid's ratio (derived for dpjax; Feldman and
Shenfeld 2026 round each term up or down by the whole ratio). What is cut off is charged: on the
left it is split between the lowest point and 0, on the right between the highest point and
infinity, which then has no mass and still a part of the mean.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpjax._numerics.arrays import EPS, log_sum
from dpjax.accounting.pairs.on_grid import ndtr, normal_mass, normal_mass_error

_U = 2.0**-53
_FINE = 0.02  # spacing of the lattice, in standard deviations of X, and of X − 1 far out
_CHARGED = 3e-4  # of δ: what is put at an infinite loss
_MOST_POINTS = 1 << 19  # points of the transform
_RATIO_POINTS = 1600
_LOOK = 100  # points of a first look, by which the grid's ends are chosen
_FARTHEST = 690.0  # |log W| beyond which values are cut, so that nothing overflows
_ROWS_AT_A_TIME = 256  # of a product that are multiplied out at a time


class RatioLaw(NamedTuple):
    """The law of W under Q, larger or smaller in convex order.

    Fields:
        ratio: its values, ascending and positive.
        mass: their masses; under P every value weighs W times as much.
        zero: mass at W = 0.
        beyond: the part of E[W] = 1 at infinity.
        off: bound on a relative error by rounding: of masses on a geometric grid, of values on an
            even lattice.
    """

    ratio: np.ndarray
    mass: np.ndarray
    zero: float
    beyond: float
    off: float = 0.0


def _grid(low: float, high: float, points: int) -> np.ndarray:
    low, high = max(low, -_FARTHEST), min(high, _FARTHEST)
    return np.linspace(low, max(high, low + 1e-300), points)


def _rounded(
    logs: np.ndarray, mass: np.ndarray, first: np.ndarray, zero: float, beyond: float, upper: bool
) -> RatioLaw:
    """A law of the masses and first moments of the cells of a grid.

    Args:
        logs: log of the grid's points.
        mass, first: of the values below the first point, between two points, beyond the last.
        zero, beyond: as of `RatioLaw`, besides those.
        upper: which way to round.
    """
    if not upper:
        kept = (mass > 0) & (first > 0)
        return RatioLaw(first[kept] / mass[kept], mass[kept], 0.0, 0.0)
    value = np.exp(logs)
    at = np.zeros(len(logs))
    inner, moment = mass[1:-1], first[1:-1]
    b = np.clip((moment - inner * value[:-1]) / (value[1:] - value[:-1]), 0.0, inner)
    at[:-1] += inner - b
    at[1:] += b
    lowest = min(first[0] / value[0], mass[0])
    at[0] += lowest
    at[-1] += mass[-1]
    zero += mass[0] - lowest
    beyond += max(first[-1] - mass[-1] * value[-1], 0.0)
    return RatioLaw(value, at, zero, beyond)


def _one(mu: float, points: int, reach: float, upper: bool) -> RatioLaw:
    """exp(μz − μ²/2) itself."""
    logs = _grid(-mu * reach - 0.5 * mu * mu, mu * reach + 0.5 * mu * mu, points)
    z = np.concatenate([[-np.inf], (logs + 0.5 * mu * mu) / mu, [np.inf]])
    mass, first = normal_mass(z), normal_mass(z - mu)
    lost = float(first[mass <= 0].sum())  # underflow
    law = _rounded(logs, mass, np.where(mass > 0, first, 0.0), 0.0, 0.0, upper)
    return law._replace(beyond=law.beyond + lost) if upper else law


def _trimmed(law: RatioLaw, rare: float) -> tuple[float, float]:
    """The values between which all but so much lies, of the masses and of the mean."""
    below = np.cumsum(law.mass) > rare
    above = np.cumsum((law.mass * law.ratio)[::-1])[::-1] > rare
    kept = law.ratio[below & above] if (below & above).any() else law.ratio
    return float(np.log(kept[0])), float(np.log(kept[-1]))


def _coarse(law: RatioLaw) -> RatioLaw:
    """The law on few points, for choices on which no bound rests."""
    width = -(-len(law.ratio) // _LOOK)
    starts = np.arange(0, len(law.ratio), width)
    mass = np.add.reduceat(law.mass, starts)
    first = np.add.reduceat(law.mass * law.ratio, starts)
    kept = (mass > 0) & (first > 0)
    return RatioLaw(first[kept] / mass[kept], mass[kept], law.zero, law.beyond)


def _sum(a: RatioLaw, b: RatioLaw, share: float, logs: np.ndarray, upper: bool) -> RatioLaw:
    """share·A + (1 − share)·B of independent A and B, rounded to a grid of even spacing."""
    size = len(logs) + 1
    low, h = logs[0], (logs[-1] - logs[0]) / (len(logs) - 1)
    mass, first = np.zeros(size), np.zeros(size)
    # A value of 0 is one more outcome.
    one, other = (
        (np.append(law.ratio, 0.0), np.append(law.mass, law.zero)) if law.zero else law[:2]
        for law in (a, b)
    )
    for start in range(0, len(one[0]), _ROWS_AT_A_TIME):
        rows = slice(start, start + _ROWS_AT_A_TIME)
        # A law with itself meets every pair of values twice.
        twice = a is b and share == 0.5
        columns = slice(start if twice else 0, None)
        value = (share * one[0][rows, None] + (1 - share) * other[0][columns]).ravel()
        weight = one[1][rows, None] * other[1][columns]
        weight[:, _ROWS_AT_A_TIME:] *= 2.0 if twice else 1.0
        weight = weight.ravel()
        with np.errstate(divide="ignore"):
            place = np.clip((np.log(value) - low) / h + 1.0, 0.0, size - 1.0).astype(np.intp)
        mass += np.bincount(place, weight, size)
        first += np.bincount(place, weight * value, size)
    zero = a.zero * b.zero if upper else 0.0
    mass[0] = max(mass[0] - zero, 0.0)
    return _rounded(logs, mass, first, zero, share * a.beyond + (1 - share) * b.beyond, upper)


def _add(a: RatioLaw, b: RatioLaw, share: float, points: int, rare: float, upper: bool) -> RatioLaw:
    """The mean of both, on a grid whose ends are where a coarse look has its last mass."""
    few_a, few_b = _coarse(a), _coarse(b)
    low = np.log(share * few_a.ratio[0] + (1 - share) * few_b.ratio[0])
    high = np.log(share * few_a.ratio[-1] + (1 - share) * few_b.ratio[-1])
    look = _sum(few_a, few_b, share, _grid(low, high, 4 * _LOOK), False)
    return _sum(a, b, share, _grid(*_trimmed(look, rare), points), upper)


@functools.lru_cache(maxsize=128)
def mean_ratio(
    mu: float, steps: int, reach: float, upper: bool, points: int = _RATIO_POINTS
) -> RatioLaw:
    """The law of W from above or from below.

    Args:
        mu: μ.
        steps: t.
        reach: normal quantile beyond which mass is cut off, and charged.
        upper: which way to round.
        points: of the geometric grid.

    Example:
        >>> from dpjax.accounting.pairs.mean_ratio import mean_ratio
        >>> import numpy as np
        >>> laws = [mean_ratio(1.0, 20, 9.0, upper, 400) for upper in (False, True)]
        >>> ends = [np.maximum(w.ratio - np.exp(0.5), 0) @ w.mass for w in laws]
        >>> bool(ends[0] < 7.937e-3 < ends[1])  # by contour integration
        True
    """
    rare = float(ndtr(-reach))
    law, rounds = _mean(_one(mu, points, reach, upper), steps, points, rare, upper)
    return _add_slack(law, rounds, mu / np.sqrt(steps))


def _mean(one: RatioLaw, count: int, points: int, rare: float, upper: bool) -> tuple[RatioLaw, int]:
    """The mean of so many independent copies, by doublings, and how many roundings it took."""
    law, done, rounds = one, 1, 1
    for bit in f"{count:b}"[1:]:
        law = _add(law, law, 0.5, points, rare, upper)
        done, rounds = 2 * done, rounds + 1
        if bit == "1":
            law = _add(law, one, done / (done + 1), points, rare, upper)
            done, rounds = done + 1, rounds + 1
    return law, rounds


def _add_slack(law: RatioLaw, rounds: int, spread: float) -> RatioLaw:
    """The law with what rounding may have changed.

    A mean is off by a few units of roundoff a round, against a loss of the size of W's spread; the
    tails, far from it, lose no more than that of their own size.
    """
    slack = rounds * (1e-12 + 400 * EPS / min(spread, 1.0))
    kept = law.mass > 0
    return RatioLaw(law.ratio[kept], law.mass[kept], law.zero, law.beyond, float(slack))


def _times(a: RatioLaw, b: RatioLaw, points: int, rare: float) -> RatioLaw:
    """A·B of independent A and B from above: E f(AB) is convex in the law of either.

    What A has of its mean at infinity is there in AB times E[B] = 1, and the other way round.
    """

    def product(a: RatioLaw, b: RatioLaw, logs: np.ndarray, upper: bool) -> RatioLaw:
        low, h = logs[0], (logs[-1] - logs[0]) / (len(logs) - 1)
        log = np.add.outer(np.log(a.ratio), np.log(b.ratio)).ravel()
        weight, size = np.multiply.outer(a.mass, b.mass).ravel(), len(logs) + 1
        place = np.clip((log - low) / h + 1.0, 0.0, size - 1.0).astype(np.intp)
        mass = np.bincount(place, weight, size)
        first = np.bincount(place, weight * np.multiply.outer(a.ratio, b.ratio).ravel(), size)
        zero = a.zero + b.zero - a.zero * b.zero
        return _rounded(logs, mass, first, zero, a.beyond + b.beyond, upper)

    few_a, few_b = _coarse(a), _coarse(b)
    low, high = (float(np.log(few_a.ratio[k]) + np.log(few_b.ratio[k])) for k in (0, -1))
    look = product(few_a, few_b, _grid(low, high, 4 * _LOOK), False)
    return product(a, b, _grid(*_trimmed(look, rare), points), True)


@functools.lru_cache(maxsize=64)
def nested_ratio(
    parts: tuple[float, float, float], blocks: int, inner: int, reach: float, points: int = 700
) -> RatioLaw:
    """The law from above of a mean of blocks whose lognormals have a factor in common.

        e^{√a·z₀ − a/2}·mean over blocks of e^{√b·z_B − b/2}·mean within of e^{√c·z_{B,i} − c/2}

    Args:
        parts: (a, b, c), the variances that all share, that those of a block share, and of one.
        blocks, inner: how many blocks, and how many terms each has.
        reach: normal quantile beyond which mass is cut off, and charged.
        points: of the geometric grid.

    Example:
        >>> law, plain = nested_ratio((0.0, 0.0, 1.0), 4, 5, 9.0), mean_ratio(1.0, 20, 9.0, True)
        >>> ends = [np.maximum(w.ratio - np.exp(0.5), 0) @ w.mass for w in (plain, law)]
        >>> bool(0 <= ends[1] / ends[0] - 1 < 3e-3)
        True
    """
    rare, (shared, block, own) = float(ndtr(-reach)), parts
    law, rounds = _mean(_one(math.sqrt(own), points, reach, True), inner, points, rare, True)
    if block:
        law = _times(law, _one(math.sqrt(block), points, reach, True), points, rare)
    law, more = _mean(law, blocks, points, rare, True)
    if shared:
        law = _times(law, _one(math.sqrt(shared), points, reach, True), points, rare)
    spreads = [shared, block / blocks, own / (blocks * inner)]
    least = math.sqrt(min(v for v in spreads if v))
    return _add_slack(law, rounds + more + 2, least)


# --- on an even lattice


def _cells(edges: np.ndarray, mu: float) -> tuple[np.ndarray, ...]:
    """Masses of X between edges, E[X] there, and bounds on the errors of both."""
    with np.errstate(divide="ignore"):
        log = np.log(edges)
    z = (log + 0.5 * mu * mu) / mu
    moved = 4 * _U * (1 + np.abs(np.where(np.isfinite(log), log, 0.0)) + mu * mu) / mu
    found: list[np.ndarray] = []
    for at in (z, z - mu):
        found += [normal_mass(at), normal_mass_error(at, moved)]
    return found[0], found[2], found[1], found[3]


def _above(mu: float, eta: float, start: float, top: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Points of the lattice (whole numbers) and masses of an X larger in convex order; E at ∞.

    SPLIT: for x in [a, b] a convex f has f(x) ≤ ((b − x)f(a) + (x − a)f(b))/(b − a), so that the
    mass of a cell may be split between its ends if its mean stays. Beyond the last point
    f(x) ≤ f(b) + (x − b)·sup f′: the mass stays there, and E[(X − b)₊] goes to infinity. As f ≥ 0,
    masses that are rounded up keep the bound.
    """
    even = np.arange(max(math.ceil(start / eta), 1), math.ceil(1 / eta + 100) + 1)
    far = even[-1] * eta - 1
    steps = max(math.ceil(math.log(max((top - 1) / far, 1.01)) / math.log1p(0.5 * _FINE)), 1)
    spread = np.floor((1 + far * (1 + 0.5 * _FINE) ** np.arange(1, steps + 1)) / eta)
    k = np.unique(np.concatenate([[0], even, spread]))
    y = k * eta
    mass, first, off, first_off = _cells(np.append(y, np.inf), mu)
    gap = np.diff(y)
    up = np.clip((first[:-1] - mass[:-1] * y[:-1]) / gap, 0.0, mass[:-1])
    error = (first_off[:-1] + y[1:] * off[:-1]) / gap + off[:-1] + 4 * _U * mass[:-1]
    error[0] = off[0] + first_off[0] / gap[0]
    p = np.zeros(len(k))
    p[:-1] += mass[:-1] - up + error
    p[1:] += up + error
    p[-1] += mass[-1] + off[-1]
    excess = first[-1] - mass[-1] * y[-1] + first_off[-1] + y[-1] * off[-1]
    return k.astype(np.int64), p * (1 + 4 * _U), float(max(excess, 0.0))


def _below(mu: float, eta: float, start: float, top: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Points of the lattice and masses of an X smaller in convex order; how far the means are off.

    MEANS: E f(X) ≥ Σ P(cell)·f(E[X | cell]) by Jensen, for cells one after the other whose ends
    are chosen so that their means lie on the lattice. What lies outside of all cells is left out:
    f ≥ 0. A mean that is off by a share o of itself moves W by at most that share.
    """

    def cdf(z: float) -> float:
        return 0.5 * math.erfc(-z / math.sqrt(2))

    def place(x: float) -> float:
        return (math.log(x) + 0.5 * mu * mu) / mu

    root, k, ends = 1 / math.sqrt(2 * math.pi), [], [start]
    a, za = start, place(start)
    while a < top:
        size = max(2 * eta, _FINE * (a - 1))
        j = math.floor((a + 0.5 * size) / eta + 0.5)
        j += j * eta <= a + 0.25 * size
        y, mass = j * eta, 0.0
        b = 2 * y - a
        for _ in range(60):  # Newton's method: ∫_a^b (x − y) dQ has the slope (b − y)·density
            zb = place(b)
            s = -1 if zb > 0 else 1  # from the nearer tail
            mass = s * (cdf(s * zb) - cdf(s * za))
            s = -1 if zb > mu else 1
            first = s * (cdf(s * (zb - mu)) - cdf(s * (za - mu)))
            density = math.exp(-0.5 * zb * zb) * root / (mu * b)
            if density <= 0 or mass <= 0:
                break
            new = min(max(b - (first - y * mass) / ((b - y) * density), 0.5 * (b + y)), b + size)
            done = abs(new - b) <= 3e-15 * b
            b = new
            if done:
                break
        if mass <= 0:
            break
        k.append(j)
        ends.append(b)
        a, za = b, place(b)
    edges, k = np.array(ends), np.array(k, np.int64)
    mass, first, off, first_off = _cells(edges, mu)
    y = k * eta
    # A cell whose mean is known badly, or is not on the lattice, is left out.
    share = (np.abs(first - y * mass) + first_off + y * off) / np.maximum(first, 1e-300)
    good = (share <= 1e-9) & (mass > 2 * off)
    return k[good], (mass - off)[good] * (1 - 2 * _U), float(share[good].max(initial=0.0)) + 4 * _U


class _Sum:
    """The sum S of t independent lattice variables, by Chernoff's inequality."""

    def __init__(self, k: np.ndarray, p: np.ndarray, t: int) -> None:
        self.k, self.t = k.astype(float), t
        with np.errstate(divide="ignore"):
            self.log_p = np.maximum(np.log(p), -800.0)
        mean = p @ self.k / p.sum()
        self.deviation = math.sqrt(p @ (self.k - mean) ** 2 / p.sum() * t)
        self.x = np.geomspace(1e-3, 60.0, 50) / max(self.deviation, 1e-3)

    def log_tails(self, side: int, tilt: float, weighted: bool = False) -> np.ndarray:
        """Λ(x) with P(side·S ≥ side·s) ≤ e^{Λ(x) − side·x·s} under masses tilted by e^{tilt·k}, at
        every x; of E[W·1{…}]·t in place of P where `weighted`.
        """
        log_p = self.log_p + tilt * self.k
        one = log_sum(log_p)
        found = log_sum(log_p + side * self.x[:, None] * self.k) - one
        if not weighted:
            return self.t * found
        with np.errstate(divide="ignore"):
            value = np.log(self.k)
        own = log_sum(log_p + value + side * self.x[:, None] * self.k) - one
        return (self.t - 1) * found + own + math.log(self.t)

    def edge(self, side: int, tilt: float, rare: float, weighted: bool = False) -> float:
        """s beyond which, on one side, lies at most so much."""
        far = (self.log_tails(side, tilt, weighted) - math.log(rare)) / self.x
        return side * float(np.min(far))


def raised(x: Any, t: int, product: Callable = operator.mul) -> Any:
    """Return x multiplied t times by repeated squaring.

    Of numbers that is at most t − 1 products, each off by less than 3u of itself.
    """
    out = None
    while t:
        if t & 1:
            out = x if out is None else product(out, x)
        t >>= 1
        if t:
            x = product(x, x)
    return out


def _masses(whole: _Sum, first: int, n: int, tilt: float, upper: bool) -> np.ndarray:
    """Bounds on the masses of S = first … first + n − 1, from masses tilted by e^{tilt·k}.

    FFT: in a stage of radix r an output is a sum of r products with roots of unity. A product is
    off by 3.3u with its root (Brent, Percival, Zimmermann 2007), the sum of r = 2, 4, 3 or 5 by 1,
    2, 4 or 6u: together at most 5u·log₂ r of Σ|x| = 1. |φ^t − φ̂^t| ≤ t(|φ̂| + e)^{t−1}e, and the
    mean of those over all frequencies bounds every mass. Frequencies of which less than e^{−80} is
    left are left out.
    WRAP: what lies n further comes back (Chernoff); it is taken off a lower bound.
    """
    from scipy import fft

    t, s = whole.t, first + np.arange(n)
    exponent = whole.log_p + tilt * whole.k
    one = float(log_sum(exponent))
    phi = fft.rfft(np.bincount(whole.k.astype(np.int64) % n, np.exp(exponent - one), n))
    stage = 5 * _U * (math.log2(n) + 1)
    size = np.abs(phi)
    kept = (t - 1) * np.log(np.maximum(size + stage, 1e-300)) > -80.0
    hat = np.zeros_like(phi)
    hat[kept] = raised(phi[kept], t)
    powers = np.exp((t - 1) * np.log(np.minimum(size[kept] + stage, 1 + stage)))
    error = 2 / n * (t * (stage + 4 * _U) * powers.sum() + stage * np.abs(hat).sum()) + 4e-35
    mass = np.roll(fft.irfft(hat, n), -(first % n))
    # Rounding of every exponent, t times over.
    relative = 2 * _U * (t * (8 + np.abs(exponent).max() + abs(one)) + 8 + abs(tilt) * s[-1])
    log_scale = t * one - tilt * s
    if upper:
        mass = (np.maximum(mass, 0.0) + error) * (1 + relative)
    else:
        back = np.zeros(n)
        for side in (1, -1):
            # S ≥ s + n, and S ≤ s − n: least at the end of the window that is met first.
            tails = whole.log_tails(side, tilt)
            near = first + n if side > 0 else first
            i = int(np.argmin(tails - side * whole.x * near))
            back += np.exp(np.minimum(tails[i] - side * whole.x[i] * (s + side * n), 0.0))
        mass = np.maximum(mass - error - back, 0.0) * max(1 - relative, 0.0)
    with np.errstate(under="ignore", over="ignore"):
        return mass * np.exp(np.minimum(log_scale, 700.0))


@functools.lru_cache(maxsize=4)
def law(mu: float, t: int, goal: float, sign: int, upper: bool) -> RatioLaw | None:
    """The law of W, made for δ(ε) of about `goal` in one direction; None if it would be too long.

    Args:
        mu: μ.
        t: steps, at least 2.
        goal: about the least δ that matters, of one epoch.
        sign: +1 for E[(W − e^ε)₊], −1 for E[(1 − e^ε W)₊].
        upper: which way to round.
    """
    from scipy import fft
    from scipy.special import ndtri

    deviation = math.sqrt(math.expm1(mu * mu))
    spread = deviation / math.sqrt(t)

    def value(z: float) -> float:
        return math.exp(mu * z - 0.5 * mu * mu)

    eta = _FINE * deviation
    if sign > 0:  # beyond the last point a P-mass is charged
        start, top = value(-9.0), value(mu - ndtri(_CHARGED * goal))
        eta = max(eta, min(top / (_MOST_POINTS / 4), 2 * eta))
    else:  # X may be cut where that does not move W's mean; all of them at 0 are charged
        start, top = value(-9.0), value(mu - ndtri(1e-5 * min(spread, 1.0)))
        eta = min(eta, value(ndtri(max((1e-4 * goal) ** (1 / t), 1e-19))))
        # The δ of W near 0, where it is at least the geometric mean of the X.
        eta = min(eta, _FINE * t * math.exp(mu * ndtri(goal) / math.sqrt(t) - 0.5 * mu * mu))
    if top / eta > 4 * _MOST_POINTS:
        return None
    if upper:
        k, p, beyond = _above(mu, eta, start, top)
        off = 4 * _U
    else:
        low = value(float(ndtri(max(1e-6 * goal, 1e-280)))) if sign < 0 else start
        (k, p, off), beyond = _below(mu, eta, low, top), 0.0
    if not len(k):
        return None
    whole, rare = _Sum(k, p, t), 1e-6 * goal
    # The saddle point for one epoch, where jumps to the far end stay rare; and weaker ones.
    tilts = sign * np.geomspace(0.005, 60.0, 60) / spread
    exponent = whole.log_p + tilts[:, None] * (k * eta / t)
    grown = log_sum(exponent)
    rates = (t * grown - tilts - math.log(goal)) / np.abs(tilts)
    far = k >= 0.2 * k[-1]
    jumps = math.log(t) + log_sum(exponent[:, far]) - grown
    allowed = np.flatnonzero((jumps < -13.0) | (sign < 0))
    best = float(tilts[min(int(np.argmin(rates)), allowed[-1] if len(allowed) else 0)])
    best *= eta / t
    low = whole.edge(-1, 0.0, 1e-16 if sign > 0 else rare)
    high = whole.edge(1, 0.0, (rare if sign > 0 else 1e-16) * t / eta, weighted=True)
    if not upper and sign > 0:  # nor may much of the tilted law come back
        high = max(high, whole.edge(1, best, 1e-13))
    first = max(int(low), 0)
    n = fft.next_fast_len(max(int(high) - first + 2, 64), real=True)
    if n > (_MOST_POINTS if upper else 2 * _MOST_POINTS):
        return None
    every = [_masses(whole, first, n, tilt, upper) for tilt in (0.0, 0.5 * best, best)]
    mass = np.min(every, axis=0) if upper else np.max(every, axis=0)
    s = first + np.arange(n)
    zero = 0.0
    if first == 0:
        zero, s, mass = float(mass[0]), s[1:], mass[1:]
    if upper and first > 0:
        zero = zero + 1.01 * (1e-16 if sign > 0 else rare)  # what lies left of the window
    if upper:
        beyond += 1.01 * (rare if sign > 0 else 1e-16)  # what lies right of it
    return RatioLaw(s[mass > 0] * (eta / t), mass[mass > 0], zero, beyond, off)
