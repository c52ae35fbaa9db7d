"""The law of a mean of independent lognormals on an even lattice, by one transform."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from dpjax._numerics.arrays import log_sum
from dpjax.accounting.pairs.mean_ratio import RatioLaw
from dpjax.accounting.pairs.on_grid import normal_mass, normal_mass_error

Factor = TypeVar("Factor")

_U = 2.0**-53
_FINE = 0.02  # spacing of the lattice, in standard deviations of X, and of X − 1 far out
_CHARGED = 3e-4  # of δ: what is put at an infinite loss
_MOST_POINTS = 1 << 19  # points of the transform


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


def raised(x: Factor, t: int, product: Callable = operator.mul) -> Factor:
    """Return x multiplied t times by repeated squaring.

    Of numbers that is at most t − 1 products, each off by less than 3u of itself.
    """
    out: Factor | None = None
    while t:
        if t & 1:
            out = x if out is None else product(out, x)
        t >>= 1
        if t:
            x = product(x, x)
    assert out is not None  # t >= 1
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
