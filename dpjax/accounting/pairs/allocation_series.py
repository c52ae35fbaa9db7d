"""E[W^w] of a mean W of lognormals that varies little, by the binomial series about 1.

W as in `pairs.allocation_transform`, s its standard deviation, so that s² = (e^{μ²} − 1)/t:

    E[W^w] = Σ_{j<J} w(w−1)…(w−j+1) s^j g_j + R,   g_j = E[((W − 1)/s)^j]/j!.

g_j is the j-th coefficient of (Σ_k f_k y^k)^t, f_k = E[((X − 1)/(ts))^k]/k!, with f_1 = 0 and
f_2 = 1/(2t). Few terms are needed where |w|s is a few units: much noise, or many epochs, of whose
transform a power is taken that has decayed before |w| is large. What bounds what:

* The rest, for 1 + η = W: Taylor's theorem with the integral of the J-th derivative gives
  |R| ≤ |C(w, J)| E[|η|^J max(1, W^{p−J})], p = Re w; Cauchy and Schwarz split the product.
* f_k by the trapezoid rule in z, whose integrand is entire: |e^{a+ib} − 1| ≤ |e^a − 1| + |b|e^a on
  a line Im z = ±2π/h, Minkowski's inequality for the k-th power. Ends: |e^a − 1| ≤ |a|e^{max(a, 0)}
  and |z|^k e^{−z²/4} ≤ (2k/e)^{k/2}.
* g_j from f_k by J. C. P. Miller's recurrence, or by repeated squaring, their errors carried along.
* Rounding: units of roundoff times the sums of moduli.

NumPy alone.

References:
  Taylor's theorem; the bounds were derived for dpjax.
"""

from __future__ import annotations

import functools

import numpy as np

from dpjax._numerics.arrays import NUMPY
from dpjax.accounting.pairs import allocation_moments as moments

_EPS = float(np.finfo(np.float64).eps)
REACH = 6.5  # |w|s up to which the series is tried
CLOSE = 1e-12  # relative error up to which it is taken
_WIDEST = 1.0  # μ up to which it is
_MOST = 128  # terms
_GOAL, _LEAST = 45.0, 25.0  # −log of what the rest is aimed at, and of the largest that is of use
_MOST_TERMS = 2_000  # of the bound on large moments


Known = tuple[np.ndarray, np.ndarray]  # coefficients, and bounds on their errors


def deviation(mu: float, t: float) -> float:
    """The standard deviation s of W.

    Example:
        >>> round(deviation(0.1, 100.0), 6)
        0.010025
    """
    return float(np.sqrt(np.expm1(min(mu * mu, 500.0)) / t))


def _ratios(mu: float, t: float, most: int) -> Known:
    """f_k for k = 0 … most, and bounds on their errors."""
    k = np.arange(3.0, most + 1)
    unit = 0.5 * (np.log(np.expm1(mu * mu)) + np.log(t))  # log(ts)
    front = -k * unit - moments.log_factorials(most)[3:]
    # Nodes at x = z − μ/2, where log X = μx has a relative error only.
    wave = 6 + 2 * np.sqrt(most)
    h, cut = 2 * np.pi / wave, 14 + 1.2 * np.sqrt(most)
    first, last = -np.ceil(cut / h) + 0.5, np.ceil((cut + 4 * most * mu) / h) + 0.5
    x = h * np.arange(first, last + 1)
    z = x + 0.5 * mu
    size = np.log(np.abs(np.expm1(mu * x))) - unit
    height = 0.5 * z * z + 0.5 * np.log(2 * np.pi) - np.log(h)
    exponent = k[:, None] * size - (height + moments.log_factorials(most)[3:, None])
    terms = np.exp(exponent)
    odd = terms @ np.stack([np.sign(x), np.ones_like(x)], axis=1)
    f = np.where(k % 2 == 1, odd[:, 0], odd[:, 1])
    # Rounding of log|e^{μx} − 1|, of the exponent's parts, and of the sum.
    units = len(x) + 16 + k[:, None] * (4 * np.maximum(mu * x, 0) + 2 * np.abs(size) + 16)
    units += 4 * height + 4 * moments.log_factorials(most)[3:, None] + 4 * abs(unit) * k[:, None]
    rounding = _EPS * np.sum(terms * units, axis=1)
    # ‖z‖_k, ‖X‖_k and ‖X − 1‖_k, by |e^a − 1| ≤ |a| + |a|e^a and Minkowski.
    norm = np.exp(0.5 * np.log(2) + (NUMPY.gammaln((k + 1) / 2) - 0.5 * np.log(np.pi)) / k)
    whole = np.exp(0.5 * mu * mu * (k - 1))
    less = mu * (norm + 0.5 * mu) + mu * (norm + k * mu) * whole
    alias = np.log(2.1) - 0.5 * wave * wave + k * np.log(less + mu * wave * whole)
    low, high = -x[0], x[-1]
    ends = np.logaddexp(-0.25 * low * low + 0.5 * low * mu, k * mu * high - 0.25 * high * high)
    ends = ends + k * np.log(mu) + 0.5 * k * np.log(2 * k / np.e)
    off = rounding + np.exp(front + alias) + np.exp(front + ends) + 1e-300
    start = np.array([1.0, 0.0, 0.5 / t])
    return np.concatenate([start, f]), np.concatenate([[0.0, 0.0, 2 * _EPS / t], off])


def _product(first: Known, second: Known) -> Known:
    """The product of two series, as far as both are known."""
    (f, off), (g, lost) = first, second
    most = len(f)
    size, other = np.abs(f), np.abs(g)
    units = _EPS * (np.arange(most) + 4)
    error = np.convolve(size, lost)[:most] + np.convolve(off, other + lost)[:most]
    return np.convolve(f, g)[:most], error + units * np.convolve(size, other)[:most]


def _recurrence(f: np.ndarray, off: np.ndarray, t: float) -> Known:
    """The power t by c_m = Σ_k (k(t + 1) − m) f_k c_{m−k}/m, where few factors are negative."""
    most = len(f) - 1
    k, g, lost = np.arange(most + 1.0), np.zeros(most + 1), np.zeros(most + 1)
    g[0], size = 1.0, np.abs(f)
    for m in range(2, most + 1):
        factor = (k[2 : m + 1] * (t + 1) - m) / m
        behind, error = g[m - 2 :: -1], lost[m - 2 :: -1]
        g[m] = factor @ (f[2 : m + 1] * behind)
        factor, behind = np.abs(factor), np.abs(behind)
        own = size[2 : m + 1] * (error + (m + 8) * _EPS * behind)
        lost[m] = factor @ (own + off[2 : m + 1] * (behind + error))
    return g, lost


@functools.lru_cache(maxsize=64)
def coefficients(mu: float, t: float, most: int) -> Known:
    """g_j for j = 0 … most, and bounds on their errors.

    Example:
        >>> g, error = coefficients(0.1, 100.0, 8)
        >>> g[:4].round(6), bool(np.all(error[:4] < 1e-14))
        (array([1.      , 0.      , 0.5     , 0.005029]), True)
    """
    with np.errstate(all="ignore"):
        f, off = _ratios(mu, t, most)
        if 2 * (t + 1) < most:
            return moments.power((f, off), round(t), _product)
        return _recurrence(f, off, t)


def _log_large(mu: float, t: float, p: float, s: float) -> float:
    """An upper bound on log E[W^p], p real, within a few units where p is large.

    E[W^m] = m! [y^m] F(y)^t ≤ m! r^{−m} F(r)^t for every r > 0, F(r) = Σ_{k≤m} E[X^k](r/t)^k/k!.
    The logarithms of F's terms are concave in k up to 1/μ² and convex beyond, so that past
    a falling one none is larger than it and the last.
    """
    if p <= 0:
        return float(moments.negative_upper(mu, t, -p))
    m = int(np.ceil(p))  # E[W^p] ≤ E[W^m] for 1 ≤ p ≤ m, and ≤ 1 for p ≤ 1
    if m <= 1:
        return 0.0
    few = min(m, _MOST_TERMS)
    k = np.append(np.arange(few + 1.0), float(m))
    r = m / (1 + m * s * s)
    log = 0.5 * mu * mu * k * (k - 1) + k * np.log(r / t) - NUMPY.gammaln(k + 1)
    if few < m and not log[few] < log[few - 1]:
        return np.inf
    rest = max(log[few], log[few + 1]) + np.log(m) if few < m else -np.inf
    total = np.logaddexp(np.logaddexp.reduce(log[: few + 1]), rest)
    found = NUMPY.gammaln(np.array(m + 1.0)) - m * np.log(r) + t * total
    # Of the sums of logarithms, and of m and t times one; and x^m is convex.
    found += 64 * _EPS * (m * (1 + np.log(m)) + t * (1 + abs(total)))
    return float(min(found, 0.5 * mu * mu * m * (m - 1) * (1 + 8 * _EPS)))


def _terms(mu: float, t: float, p: float, y: float, s: float) -> int:
    """About how many terms E[W^{p−iy}] takes, 0 if no number of them is enough.

    (W − 1)^{2J} has at least about the moment of a normal variable of its deviation, and that of a
    single X far from 1.
    """
    j = np.arange(1.0, _MOST + 1)
    factorials = moments.log_factorials(2 * _MOST)
    with np.errstate(divide="ignore"):  # a whole power has no more terms
        log = np.cumsum(np.log(np.hypot(p - j + 1, y) / j))
    normal = factorials[2::2] - factorials[1 : _MOST + 1] + j * np.log(0.5 * s * s)
    single = (1 - 2 * j) * np.log(t) + mu * mu * j * (2 * j - 1)
    single += 2 * j * np.log(-np.expm1(-2 * j * mu * mu))
    log = log + 0.5 * np.maximum(normal, single)
    good = log < -_GOAL
    best = int(np.argmax(good)) if good.any() else int(np.argmin(log))
    return best + 1 if log[best] < -_LEAST else 0


def sums(mu: float, t: float, p: float, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E[W^{p−iy}] at several y ≥ 0, and bounds on the errors, +∞ where the series is of no use.

    Args:
        mu: μ = 1/σ.
        t: how many steps.
        p: the real part of the power.
        y: ascending.

    Example:
        >>> value, error = sums(0.1, 100.0, 2.0, np.array([0.0]))
        >>> bool(abs(value[0] - np.exp(moments.whole_moments(0.1, 100.0)[2])) < 1e-13)
        True
    """
    s = deviation(mu, t)
    few = 0 < mu <= _WIDEST and t > 1 and np.hypot(p, y[-1]) * s <= REACH
    count = _terms(mu, t, p, float(y[-1]), s) if few else 0
    if not count:
        return np.zeros(len(y), complex), np.full(len(y), np.inf)
    g, lost = coefficients(mu, t, 32 * int(np.ceil(count / 16)))  # one table for several counts
    g, lost = g[: 2 * count + 1], lost[: 2 * count + 1]
    with np.errstate(all="ignore"):
        # |R| ≤ |w…(w−J+1)|/J!·√E[η^{2J}]·(1 + √E[W^{2(p−J)}])
        log = 0.5 * (moments.log_factorials(2 * count)[-1] + np.log(g[-1] + lost[-1]))
        log -= moments.log_factorials(count)[-1]
        rest = np.exp(log) * (1 + np.exp(0.5 * _log_large(mu, t, 2 * (p - count), s)))
        value = np.full(len(y), complex(g[count - 1]))
        error = np.full(len(y), 1.01 * rest)
        for j in range(count - 1, -1, -1):
            size = s * np.hypot(p - j, y)
            # A term is a product of j factors, each with the rounding of w − j, s and a product.
            error = error * size + lost[j] + 12 * (j + 2) * _EPS * np.abs(g[j])
            if j < count - 1:
                value = value * (s * ((p - j) - 1j * y)) + g[j]
        error = np.where(np.isfinite(error) & np.isfinite(value), error, np.inf)
    return value, error
