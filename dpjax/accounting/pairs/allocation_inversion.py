"""E[W^w] of a mean W of lognormals at large Re w > 0, from its moment generating function.

W as in `pairs.allocation_transform`. For every x > 0, b > 0 and w = p + iy, p > 0,

    x^w = Γ(w + 1)/(2π) ∫ e^{sx} s^{−w−1} dτ,   s = b + iτ,

so that E[W^w] is that of E[e^{sW}] = M(s)^t in place of e^{sx}, if only outcomes with every z_i ≤ Z
are counted: M(s) = E[e^{sX/t}; z ≤ Z]. With b near p the integrand is a bell about τ = y as wide as
|w|/√p: few nodes serve all y, where the whole line is long. What bounds what:

* z_i > Z: by Minkowski's inequality E[W^p; z_i > Z] is at most E[W^p]·E[(1 + X/t)^p; z > Z], as
  E[W^p] ≥ 1.
* Spacing h in τ, T = 2π/h: the rule returns the sum of (x − jT)₊^w e^{jTb}, of modulus at most
  (p/(er))^p e^{r(x−jT)+jTb} for every r > 0, the best r beyond b for j > 0 and below for j < 0.
* Ends in τ: |M(s)| ≤ M(b), and |s^{−w−1}| = |s|^{−p−1}e^{y arg s} falls faster than a power.
* Spacing in z: on Im z = ±2π/h, and on the ends of that strip at Z, half way between two nodes,
  |e^{sX/t}| is at most e^{|s|X(Z)/t}, and e^{bX(Z)/t} where the strip begins.
* Rounding: units of roundoff times the sums of moduli.

NumPy alone.

References:
  Poisson summation, Minkowski's inequality; the bounds were derived for dpjax.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpjax.accounting.pairs import allocation_series as series

REACH = 12.0  # p times the deviation of W up to which it is tried
LEAST = 8.0  # p from which on
CLOSE = 1e-8  # relative error up to which it is taken
FINE = 1e-11  # and where rays have the same numbers
_EPS = float(np.finfo(np.float64).eps)
_CUTS = (9.0, 10.5, 12.0, 14.0, 17.0)  # Z
_DEPTH = 42.0  # every cut and alias is aimed at e^{−42}
_MOST = 4_000  # nodes
_MOST_VALUES = 2_000_000  # of the matrix of nodes and y
_ROWS = 64  # of it that are worked on at a time


class Transform(NamedTuple):
    """M on nodes, and what it is off by.

    Fields:
        less: M − 1.
        error: bound on its error.
    """

    less: np.ndarray
    error: np.ndarray


def _log_beyond(mu: float, t: float, p: float, z: float) -> float:
    """log of t·E[(1 + X/t)^p; z > Z], or more."""
    last = max(p * mu, z) + 12.0
    edges = np.linspace(z, last, 400)
    width = edges[1] - edges[0]
    log = p * np.log1p(np.exp(mu * edges - 0.5 * mu * mu) / t)
    cells = log[1:] - 0.5 * edges[:-1] ** 2 + np.log(width)
    # Beyond, the logarithm's slope is at most pμ.
    gap = last - p * mu
    rest = log[-1] - p * mu * last + 0.5 * (p * mu) ** 2 - 0.5 * gap * gap
    return float(np.logaddexp(np.logaddexp.reduce(cells), rest) + np.log(t))


def _cut(mu: float, t: float, p: float, b: float) -> float:
    """The least Z beyond which nothing counts, NaN if there is none."""
    for z in _CUTS:
        size = np.exp(mu * z - 0.5 * mu * mu) / t
        if max(_log_beyond(mu, t, p, z), np.log(t) - 0.5 * z * z + b * size) < -0.8 * _DEPTH:
            return z
    return np.nan


def _transform(mu: float, t: float, z: float, b: float, tau: np.ndarray) -> Transform | None:
    """M(b + iτ) − 1."""
    largest = np.exp(mu * z - 0.5 * mu * mu) / t  # of X/t
    far = np.hypot(b, np.max(np.abs(tau)))
    depth = _DEPTH + 8 + np.log(t) + far * largest
    if not depth < 1e4:
        return None
    h = np.sqrt(2 * np.pi**2 / depth)
    low = np.sqrt(2 * _DEPTH + 2 * np.log(t) + 2 * np.log1p(far / t)) + 1
    at = z - h * (np.arange(int(np.ceil((z + low) / h))) + 0.5)
    size = np.exp(mu * at - 0.5 * mu * mu) / t
    weight = h * np.exp(-0.5 * at * at) / np.sqrt(2 * np.pi)
    if len(at) * len(tau) > _MOST_VALUES:
        return None
    grown, angle = np.expm1(b * size), tau[:, None] * size
    half = np.sin(0.5 * angle)
    real = grown - 2 * (1 + grown) * half * half
    imag = (1 + grown) * np.sin(angle)
    less = real @ weight + 1j * (imag @ weight)
    # Of the weights and the sums, and of the exponents sX/t.
    modulus = np.abs(b + 1j * tau)[:, None] * size
    error = np.minimum(modulus, 2.0) @ ((1 + grown) * (len(at) + 16 + at * at) * weight)
    error += modulus @ ((1 + grown) * (8 + 4 * mu * np.abs(at)) * weight)
    error *= _EPS
    # |e^u − 1| ≤ 1 + e^{Re u} on the strip's sides, both of them; and the ends that were cut.
    error += 8 * np.exp(far * largest - 2 * np.pi**2 / h**2)
    error += 8 * np.pi / h * np.exp(b * largest - 0.5 * z * z)
    error += 2 * np.exp(-0.5 * at[-1] ** 2 + b * size[-1]) * far * size[-1]
    return Transform(less - 0.5 * np.exp(-0.5 * z * z), error + np.exp(-0.5 * z * z))


def _spread(mu: float, t: float, p: float, z: float, b: float, s: float) -> tuple[float, float]:
    """The spacing h in τ, and the logarithm of a bound on the other terms of Poisson's sum."""
    depth = _DEPTH + 0.5 * np.log(2 * np.pi * p)
    period = np.sqrt(2 * depth * (p + (b * s) ** 2)) / b + 2 * depth / (3 * p)
    near = period * np.array([0.6, 0.8, 1.0, 1.2]) * p / (p + (b * s) ** 2)
    logs = []
    for r in (b / (1 + near), b * (1 + near)):
        known = [_transform(mu, t, z, float(v), np.zeros(1)) for v in r]
        if any(one is None for one in known):
            return 0.0, np.inf
        above = [np.log1p(one.less[0].real + one.error[0]) for one in known]  # pyrefly: ignore
        fall = np.abs(r - b) * period
        log = p * (np.log(p / r) - 1) + t * np.array(above) - fall
        logs.append(np.min(log - np.log(-np.expm1(-fall))))
    return 2 * np.pi / period, float(np.logaddexp(*logs))


def _ends(p: float, b: float, y: float) -> tuple[float, float]:
    """How far τ goes to either side, where the integrand has fallen by e^{−42} or more."""

    def log(tau: float, of: float) -> float:
        return -0.5 * (p + 1) * np.log1p((tau / b) ** 2) + of * np.arctan(tau / b)

    found = []
    for side, of in ((-1.0, 0.0), (1.0, y)):
        peak = of * b / (p + 1)
        reach, top = 6 * np.hypot(b, peak) / np.sqrt(p + 1), log(peak, of)
        while log(peak + side * reach, of) > top - _DEPTH - 4 and reach < 1e3 * (b + peak):
            reach *= 1.15
        found.append(peak + side * reach)
    return found[0], found[1]


def sums(mu: float, t: float, p: float, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E[W^{p−iy}] at several y ≥ 0, and bounds on the errors, +∞ where it was not computed.

    Args:
        mu: μ = 1/σ.
        t: how many steps.
        p: the real part of the power.
        y: ascending.

    Example:
        >>> from dpjax.accounting.pairs.allocation_moments import whole_moments
        >>> value, error = sums(0.1, 100.0, 30.0, np.array([0.0]))
        >>> exact = np.exp(whole_moments(0.1, 100.0)[30])
        >>> bool(abs(value[0] - exact) < error[0]), bool(error[0] < 1e-11)
        (True, True)
    """
    with np.errstate(all="ignore"):
        found = _sums(mu, t, p, y)
    if found is None:
        return np.zeros(len(y), complex), np.full(len(y), np.inf)
    return found


def _sums(mu: float, t: float, p: float, y: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    s = series.deviation(mu, t)
    if not (p >= LEAST and p * s <= REACH and t > 1 and mu > 0):
        return None
    from scipy import special

    b = (p + 1) / (1 + p * s * s)
    z = _cut(mu, t, p, b)
    if np.isnan(z):
        return None
    h, log_alias = _spread(mu, t, p, z, b, s)
    low, high = _ends(p, b, float(y[-1]))
    if not (h > 0 and (high - low) / h < _MOST):
        return None
    tau = h * np.arange(np.floor(low / h), np.ceil(high / h) + 1)
    m = _transform(mu, t, z, b, tau)
    if m is None or len(tau) * len(y) > _MOST_VALUES:
        return None
    size = np.abs(1 + m.less)
    square = 2 * m.less.real + m.less.real**2 + m.less.imag**2
    log = t * np.where(square > -0.5, 0.5 * np.log1p(np.maximum(square, -0.5)), np.log(size))
    angle = t * np.arctan2(m.less.imag, 1 + m.less.real)
    lost = np.expm1(np.minimum(t * -np.log1p(-np.minimum(m.error / size, 0.5)), 700.0))
    wide, turned = 0.5 * np.log1p((tau / b) ** 2), np.arctan2(tau, b)
    gamma = special.loggamma(p + 1 + 1j * y)
    front, phase = gamma.real - (p + 1) * np.log(b), gamma.imag - y * np.log(b)
    value, error = np.empty(len(y), complex), np.empty(len(y))
    units = 8 * (np.abs(log) + np.abs(angle)) + 8 * (p + 1) * (wide + np.abs(turned))
    for start in range(0, len(y), _ROWS):
        rows = slice(start, start + _ROWS)
        own = y[rows, None]
        part = np.exp(front[rows, None] + (log - (p + 1) * wide) + own * turned)
        wave = phase[rows, None] + (angle - (p + 1) * turned) - own * wide
        value[rows] = np.sum(part * np.cos(wave), axis=1) + 1j * np.sum(part * np.sin(wave), axis=1)
        error[rows] = part @ (lost + _EPS * (units + 32 + 2 * len(tau)))
        error[rows] += _EPS * y[rows] * (part @ (8 * (wide + np.abs(turned))))
        error[rows] += (
            16
            * _EPS
            * (np.abs(gamma[rows]) + (p + 1 + y[rows]) * np.log(b))
            * (np.sum(part, axis=1))
        )
    value, error = value * (h / (2 * np.pi)), error * (h / (2 * np.pi))
    # The tails beyond the ends, of which each is at most twice its first term over its slope.
    most = t * np.log1p(_real(mu, t, z, b))
    for end in (tau[0], tau[-1]):
        slope = (p + 1) * abs(end) - np.sign(end) * y * b
        first = front - (p + 1) * 0.5 * np.log1p((end / b) ** 2) + y * np.arctan2(end, b) + most
        tail = np.exp(first) * (b * b + end * end) / slope / np.pi
        error += np.where((slope > 0) & (4 * abs(end) <= slope), tail, np.inf)
    error += np.exp(log_alias)
    beyond = np.exp(_log_beyond(mu, t, p, z))
    error += beyond / (1 - beyond) * (np.abs(value[0]) + error[0])
    return np.conj(value), np.where(np.isfinite(value) & np.isfinite(error), error, np.inf)


def _real(mu: float, t: float, z: float, b: float) -> float:
    """An upper bound on M(b) − 1."""
    one = _transform(mu, t, z, b, np.zeros(1))
    return np.inf if one is None else float(one.less[0].real + one.error[0])
