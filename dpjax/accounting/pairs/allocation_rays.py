"""E[W^w] of a mean W of lognormals, for complex w, with a bound on the error: random allocation.

W = (1/t) Σ X_i, X_i = e^{μz_i − μ²/2}, z_i independent standard normals, is the density ratio of
the mixture (1/t) Σ N(e_i, σ²I) over N(0, σ²I), μ = 1/σ. With D_n(s) = E[Wⁿe^{−sW}], n > Re w, and
u = log s, on any line Im u = Θ with |Θ| < π/2,

    E[W^w] = 1/Γ(n − w) ∫ e^{(n−w)u} D_n(e^u) du,
    D_n(s) = n! [yⁿ] (Σ_k b_k(s) y^k)^t,   b_k(s) = E[(X/t)^k e^{−sX/t}]/k!.

Both integrals by the trapezoid rule. What bounds what, with a = n − Re w and y = |Im w|:

* log W is a normal variable of variance μ²/t, the mean of the z_i, plus an independent one. Hence
  |E[W^{p+iy}]| ≤ e^{−y²μ²/(2t)} E[W^p].
* Spacing h in u: the rule returns the sum of the integrals at y + 2πj/h (Poisson summation), which
  are Γ(a + iy)e^{−iΘ(a+iy)}E[W^{p−iy}], bounded by the line above.
* Ends in u: |D_n(s)| ≤ D_n(Re s), at most E[Wⁿ], which makes the left end a geometric series, and
  at most (b/(eρ))^b E[W^{n−b}] at ρ = Re s for every b ≥ 0.
* Spacing in z: on Im z = −β the integrand is analytic up to where s·X turns past ±π/2, and is
  there at most e^{(Im z)²/2} times its size at s = 0. Ends in z: normal tails.
* From b_k to D_n: |(b + Δ)^t − b^t| ≤ tΔ(|b| + Δ)^{t−1}, coefficient by coefficient.
* Rounding: units of roundoff times the sums of moduli.

1/Γ(a + iy) grows like e^{πy/2}, so that s has to turn by nearly as much as the saddle point
(a + iy)/W does: the frequencies are taken in bands, each with a Θ of its own. With spacings in
log s and in μz that are multiples of one another e^{−sX/t} depends on their sum alone, and is
computed on one line. NumPy alone.

References:
  Trefethen, Weideman 2014 (the trapezoid rule); the representation and its bounds were derived for
  dpjax.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpjax.accounting.pairs import allocation_moments as moments
from dpjax.accounting.pairs.allocation_powers import Powers, joined, nth, powers, product_of

DIGITS = 40.0  # every cut and alias is aimed at e^{−40} of the moment
_EPS = float(np.finfo(np.float64).eps)
_BAND = 1.5  # natural digits that the ends of a band may cost
_FAR = 300.0  # y from which on more derivatives are taken than are needed
_MORE, _RISE = 16, 1.0  # how many at most, and what they may add to log E[Wⁿ]
_TERMS = 24  # of the series to the left
_MOST_NODES = 3e5  # in u, of one band, times the orders of b_k
_LARGEST = 600.0  # of log E[Wⁿ], so that nothing overflows
_ORDERS = np.concatenate([np.arange(1.0, 12.0), np.geomspace(12.0, 600.0, 24)])  # of caps


class _Ray(NamedTuple):
    """h·e^{au}D_n(e^u)/e^{scale} on the nodes of one ray, and what their sum is off by.

    Fields:
        a, theta, h: n − p, the angle, and the spacing in v = log|s|.
        v, value: nodes, and the integrand there without its factor e^{iaΘ}.
        series: log of E[W^{n+j}]/(j! e^{scale}), the terms that stand in to the left of the nodes.
        error: Σ of the bounds on the errors of the values, and the ends that were cut.
        scale: logarithm that was taken out, about that of Γ(a)E[W^p].
    """

    a: float
    theta: float
    h: float
    v: np.ndarray
    value: np.ndarray
    series: np.ndarray
    error: float
    scale: float


def _log_gamma(a: float, y: np.ndarray) -> np.ndarray:
    from scipy import special  # a third of a second, and only this needs it

    return special.loggamma(a + 1j * y)


def _log_alias(ray: tuple[float, float, float], y: np.ndarray, decay: float) -> np.ndarray:
    """log of a bound on the other terms of Poisson's sum, relative to E[W^p].

    Terms beyond the second fall by more than e^{−(2π/h)·π/2} times (1 + j)^{a} each.
    """
    a, theta, h = ray
    own = _log_gamma(a, y).real + theta * y
    at = y + 2 * np.pi / h * np.array([-2.0, -1.0, 1.0, 2.0])[:, None]
    terms = _log_gamma(a, at).real + theta * at - 0.5 * decay * at * at - own
    return np.logaddexp.reduce(terms, axis=0) + 0.05


def _spacing(a: float, theta: float, ends: np.ndarray, decay: float) -> float:
    """The widest spacing, or nearly, with aliases below e^{−40} at both ends of a band."""
    wave = ends[-1] + 24.0
    for _ in range(40):
        if np.max(_log_alias((a, theta, 2 * np.pi / wave), ends, decay)) < -DIGITS:
            break
        wave *= 1.12
    return 2 * np.pi / wave


def _log_caps(mu: float, t: float, n: int, b: np.ndarray, v: np.ndarray | float) -> np.ndarray:
    """log of (b/(eρ))^b E[W^{n−b}] for every b, a row each; ρ = e^v."""
    left = n - b
    known = np.where(
        left >= 0,
        moments.upper(mu, t, np.maximum(left, 0.0)),
        moments.negative_upper(mu, t, np.maximum(-left, 0.0)),
    )
    front = b * (np.log(np.maximum(b, 1e-300)) - 1)
    return (front + known)[:, None] - b[:, None] * np.atleast_1d(v)


def _order(mu: float, t: float, p: float, y: float) -> int:
    """n, with n − p between 2 and 3, or n = 0: a smaller one makes the left end long.

    More where y is large, as long as E[Wⁿ] is about E[W^p]: the saddle point (a + iy)/W then turns
    less far, aliases decay the faster, and far fewer nodes are needed.
    """
    least = max(int(np.floor(p + 3.0)), 0)
    if least == 0 or least > moments.LARGEST or y < _FAR:
        return least
    most = int(max(min(least + _MORE, moments.LARGEST, t), least))  # a sum is short if n ≤ t
    known = moments.whole_moments(mu, t)[least : most + 1]
    return least + int(np.sum(known <= known[0] + _RISE)) - 1


class _Plan(NamedTuple):
    """A ray whose b_k are known.

    Fields:
        a, theta, h, v, series, scale: as of `_Ray`.
        at: the b_k.
        b, caps: exponents of bounds on D_n, and logarithms of what lies beyond v, less (a − b)v.
        left: the end that was cut on the left.
    """

    a: float
    theta: float
    h: float
    v: np.ndarray
    series: np.ndarray
    scale: float
    at: Powers
    b: np.ndarray
    caps: np.ndarray
    left: float


def _plan(mu: float, t: float, p: float, n: int, low: float, high: float) -> _Plan | None:
    """The ray for low ≤ y ≤ high."""
    if n > moments.LARGEST or not moments.whole_moments(mu, t)[n] <= _LARGEST:
        return None
    a, decay, moment = n - p, mu * mu / t, moments.lower(mu, t, p)
    whole = float(_log_gamma(a, np.zeros(1))[0].real)
    ends = np.array([low, high])
    psi = np.arctan(1 / np.sinh(np.mean(np.arcsinh(ends / a)))) if high > 0 else 0.5 * np.pi
    theta = 0.5 * np.pi - psi
    h = _spacing(a, theta, ends, decay)
    # Γ(a)/|Γ(a + iy)|·e^{−Θy} is at most about this; everything is cut that much deeper.
    front = whole + float(np.max(-_log_gamma(a, ends).real - theta * ends))
    goal = DIGITS + max(front, 0.0)
    # The integral's size, which may be larger than any number, the more so on a ray that turns.
    scale = moment + whole + max(-front, 0.0)
    rise = max(moments.whole_moments(mu, t)[n] - moment, 0.0)
    # To the left D_n(s) = Σ_j (−s)^j E[W^{n+j}]/j!, off by at most the first term left out.
    j = np.arange(min(_TERMS, moments.LARGEST - n) + 1.0)
    series = moments.whole_moments(mu, t)[n : n + len(j)] - moments.log_factorials(len(j) - 1)
    series = series - scale
    edges = -(goal + 2 + series - np.log(a + j)) / (a + j)
    cut = int(np.argmax(edges))
    first = float(edges[cut])
    b = a + _ORDERS * max(0.2 * np.sqrt(a), 1.0)
    caps = _log_caps(mu, t, n, b, np.log(np.sin(psi)))[:, 0]
    # Σ beyond v₁ is at most e^{cap + (a−b)v₁}/(b − a) for the best b.
    caps = caps - np.log(b - a) - scale
    last = float(np.min((caps + goal) / (b - a)))
    # An error η in b_0 = E[e^{−sX/t}] ≥ e^{−s/t} is one of tη/b_0, relative.
    depth = goal + rise + np.log(t) + 4 + min(max(a * last, 0.0), np.exp(min(last, 50.0)) / t)
    if not (h > 0 and np.isfinite(first + last + depth) and (last - first) < h * _MOST_NODES):
        return None
    found = powers(mu, t, n, theta, first, h, int(np.ceil(max(last - first, h) / h)) + 1, depth)
    if found is None:
        return None
    at, v = found
    h = v[1] - v[0]
    left = series[cut] + (a + cut) * (first - h) + 1e-9
    left = h * np.exp(left) / -np.expm1(-(a + cut) * h)
    return _Plan(a, theta, h, v, series[:cut], scale, at, b, caps, float(left))


def _rays(
    mu: float, t: float, p: float, n: int, bands: Sequence[tuple[float, float]]
) -> list[_Ray | None]:
    """The integrand of E[W^{p−iy}] for the y of every band, on a ray of its own."""
    plans = [_plan(mu, t, p, n, low, high) for low, high in bands]
    known = [plan for plan in plans if plan is not None]
    if not known:
        return [None] * len(plans)
    with np.errstate(all="ignore"):
        # The nodes of all rays together: each of the sums over orders is one for all.
        together = nth(joined([plan.at for plan in known]), t)
        ends = np.cumsum([len(plan.v) for plan in known])[:-1]
        parts = list(zip(*(np.split(found, ends) for found in together), strict=True))
        rays = [_ray(mu, t, n, plan, *part) for plan, part in zip(known, parts, strict=True)]
    found = iter(rays)
    return [None if plan is None else next(found) for plan in plans]


def _ray(
    mu: float,
    t: float,
    n: int,
    plan: _Plan,
    top: np.ndarray,
    log: np.ndarray,
    lost: np.ndarray,
    log_major: np.ndarray,
) -> _Ray:
    """The rest of it, from what `nth` says of its nodes."""
    a, theta, h, v, series, scale, _, b, caps, left = plan
    front = a * v + moments.log_factorials(n)[n] - scale
    value = h * np.exp(front + log.real) * top * np.exp(1j * log.imag)
    error = h * np.exp(front + log_major) * lost
    units = a * np.abs(v) + 2 * np.abs(front) + np.abs(log) + abs(scale)
    error += 4 * _EPS * units * np.abs(value)
    inward = np.log(np.cos(theta))
    cap = np.min(_log_caps(mu, t, n, np.append(b, 0.0), v + inward), axis=0)
    cap = h * np.exp(a * v - scale + cap)
    # Where the quotient overflows or is lost, 0 is as good a value as any.
    kept = (error <= cap) & np.isfinite(value)
    value, error = np.where(kept, value, 0.0), np.where(kept, error, cap)
    right = np.exp(np.min(caps + (a - b) * v[-1]))
    return _Ray(a, theta, h, v, value, series, float(np.sum(error) + left + right), scale)


def _sums(ray: _Ray, start: float, step: float, count: int) -> np.ndarray:
    """Σ value·e^{iyv} at y = start + k·step: e^{iyv} as a product of two, few sines for many y."""
    blocks = int(np.ceil(np.sqrt(count)))
    fine = step * np.arange(blocks)[:, None] * ray.v
    coarse = (start + step * blocks * np.arange(-(-count // blocks))[:, None]) * ray.v
    rows = np.cos(fine) + 1j * np.sin(fine)
    columns = (np.cos(coarse) + 1j * np.sin(coarse)) * ray.value
    return product_of(columns, rows.T).reshape(-1)[:count]


def _left(ray: _Ray, y: np.ndarray) -> tuple[np.ndarray, float]:
    """The sum over the nodes to the left of the first, term by term, and the size of the terms."""
    if not len(ray.series):
        return np.zeros(len(y), complex), 0.0
    j = np.arange(len(ray.series))
    slope = (ray.a + j)[:, None] + 1j * y
    quotient = np.exp(-slope * ray.h)
    front = ray.series + (ray.a + j) * ray.v[0]
    phase = j[:, None] * (ray.theta + np.pi) + y * ray.v[0]
    terms = ray.h * np.exp(front[:, None] + 1j * phase) * quotient / (1 - quotient)
    # |1 − q| ≥ 1 − |q|, and its rounding is that of 1.
    size = ray.h * np.exp(front) / np.expm1((ray.a + j) * ray.h) ** 2
    return np.sum(terms, axis=0), float(np.sum(size * (1 + np.abs(front))))


def band(
    mu: float, t: float, p: float, y: np.ndarray, log_moment: float | None, ray: _Ray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """E[W^{p−iy}]/e^{log_moment} at evenly spaced y, and its error if that is E[W^p].

    Without a log_moment it is `moments.lower`; without a ray it is of the least order.
    """
    if ray is None:
        ray = _rays(mu, t, p, _order(mu, t, p, 0.0), [(float(y[0]), float(y[-1]))])[0]
    if ray is None:
        return np.zeros(len(y), complex), np.full(len(y), np.inf)
    a, theta = ray.a, ray.theta
    gamma = _log_gamma(a, y)
    size, far = np.sum(np.abs(ray.value)), np.abs(ray.value) @ np.abs(ray.v)
    total = _sums(ray, y[0], y[1] - y[0] if len(y) > 1 else 0.0, len(y))
    left, left_size = _left(ray, y)
    total = total + left
    front = -gamma.real - theta * y
    front += ray.scale - (moments.lower(mu, t, p) if log_moment is None else log_moment)
    with np.errstate(all="ignore"):  # what is not a number counts as lost
        value = np.exp(front) * total * np.exp(1j * (theta * a - gamma.imag))
        error = np.exp(front) * (ray.error + _EPS * ((32 + len(ray.v)) * size + 16 * y * far))
        error += 32 * _EPS * np.exp(front) * left_size * (1 + y * abs(ray.v[0]))
        error += 16 * _EPS * (1 + np.abs(gamma) + np.abs(front) + theta * a) * np.abs(value)
        alias = np.exp(_log_alias((a, theta, ray.h), y, mu * mu / t))
        error += alias if log_moment is not None else 1.01 * alias * np.abs(value)
    return value, error


def along(
    mu: float, t: float, p: float, y: np.ndarray, log_moment: float
) -> tuple[np.ndarray, np.ndarray]:
    """E[W^{p−iy}]/e^{log_moment} at the y = k·step, k = 1, 2, …, and its error, band by band.

    With tan of the saddle's angle y/a, a ray whose angle belongs to another y costs
    a·(asinh(y/a) − asinh(y'/a))²/2 digits, or less.
    """
    value, error = np.zeros(len(y), complex), np.full(len(y), np.inf)
    if not len(y):
        return value, error
    n = _order(mu, t, p, y[-1])
    a = n - p
    whole = np.arcsinh(y[-1] / a)
    bands = max(int(np.ceil(whole / np.sqrt(8 * _BAND / a))), 1)
    edges = a * np.sinh(whole * np.arange(1, bands + 1) / bands)
    parts, first = [], 0
    for edge in edges:
        end = len(y) if edge == edges[-1] else min(len(y), int(edge / y[0]))
        if end > first:
            parts.append(slice(first, end))
            first = end
    rays = _rays(mu, t, p, n, [(y[part][0], y[part][-1]) for part in parts])
    for part, ray in zip(parts, rays, strict=True):
        if ray is not None:
            value[part], error[part] = band(mu, t, p, y[part], log_moment, ray)
    return value, error
