"""E[W^w] of a mean W of lognormals, for complex w, with a bound on the error: random allocation.

W = (1/t) Σ X_i, X_i = e^{μz_i − μ²/2}, z_i independent standard normals, is the density ratio of
the mixture (1/t) Σ N(e_i, σ²I) over N(0, σ²I), μ = 1/σ.

Of three sums the cheapest that is close enough is taken: `pairs.allocation_series`, some dozen
terms, where W varies little; `pairs.allocation_inversion`, one set of nodes for the whole of a long
line, for large powers; else the integrals of `pairs.allocation_rays`, in bands. NumPy alone.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from dpjax.accounting.pairs import allocation_inversion as inversion
from dpjax.accounting.pairs import allocation_moments as moments
from dpjax.accounting.pairs import allocation_rays as rays
from dpjax.accounting.pairs import allocation_series as series

_EPS = float(np.finfo(np.float64).eps)


class Values(NamedTuple):
    """E[W^{p−iy}] on a line.

    Fields:
        log_moment: log E[W^p].
        moment_error: bound on the relative error of E[W^p]; ∞ where nothing was computed.
        value: E[W^{p−iy}]/E[W^p].
        error: bound on the absolute error of the values, for an exact E[W^p].
    """

    log_moment: float
    moment_error: float
    value: np.ndarray
    error: np.ndarray


def moment(mu: float, t: float, p: float) -> tuple[float, float]:
    """log E[W^p] at a real p ≤ 0 or p ≥ 1, and a bound on the relative error of E[W^p].

    Example:
        >>> log, error = moment(1.0, 20.0, 2.0)
        >>> bool(abs(log - moments.whole_moments(1.0, 20.0)[2]) < 1e-12), bool(error < 1e-11)
        (True, True)
    """
    return _moment(float(mu), float(t), float(p))


def _close(p: float) -> float:
    """The relative error up to which the inversion is taken."""
    return inversion.FINE if p <= moments.LARGEST else inversion.CLOSE


def _logarithm(value: np.ndarray, error: np.ndarray, close: float) -> tuple[float, float] | None:
    """The logarithm of one moment and its relative error, None if that is not small enough."""
    found, off = float(value[0].real), float(error[0])
    if not off <= close * found:
        return None
    log = float(np.log(found))
    return log, off / (found - off) + 2 * _EPS * (1 + abs(log))


@functools.lru_cache(maxsize=4096)
def _moment(mu: float, t: float, p: float) -> tuple[float, float]:
    # At t = 1 and at whole p ≥ 0 it is known.
    if t == 1:
        return 0.5 * mu * mu * p * (p - 1), 4 * _EPS * (1 + mu * mu * p * (p - 1))
    summed = _logarithm(*series.sums(mu, t, p, np.zeros(1)), series.CLOSE)
    if summed is not None:
        return summed
    if p == np.floor(p) and 0 <= p <= moments.LARGEST:
        known = moments.whole_moments(mu, t)
        return float(known[int(p)]), float(moments.rounding(known)[int(p)])
    summed = _logarithm(*inversion.sums(mu, t, p, np.zeros(1)), _close(p))
    if summed is not None:
        return summed
    value, error = rays.band(mu, t, p, np.zeros(1), None)
    scale, found = moments.lower(mu, t, p), float(value[0].real)
    error = float(error[0]) / max(found, 1e-300)
    if not (found > 0 and error < 0.01):
        return np.nan, np.inf
    error = error / (1 - error) + 2e-16 * (1 + abs(scale))
    return scale + float(np.log(found)), error


def _cut(
    log_moment: float, moment_error: float, value: np.ndarray, error: np.ndarray, bound: np.ndarray
) -> Values:
    """The values, 0 where the bound on the decay is less than the error."""
    poor = ~(error < bound)
    value, error = np.where(poor, 0.0, value), np.where(poor, bound, error)
    return Values(log_moment, moment_error, value, error)


def values(mu: float, t: float, p: float, step: float, count: int, uses: float = 1.0) -> Values:
    """E[W^{p−iy}] at y = k·step, k < count.

    Where the power `uses` of the bound on the decay is e^{−40} or less, that bound stands in.

    Args:
        mu: μ = 1/σ.
        t: how many steps, a whole number.
        p: ≤ 0 or ≥ 1.
        step: distance of the points.
        count: how many.
        uses: of which power the values are wanted.

    Example:
        >>> found = values(1.0, 20.0, 2.0, 0.5, 3)
        >>> found.value.round(6)
        array([1.      +0.j      , 0.986735-0.062148j, 0.94835 -0.118565j])
    """
    log_moment, moment_error = moment(mu, t, p)
    y = step * np.arange(count)
    value, error = np.zeros(count, complex), np.full(count, np.inf)
    value[0], error[0] = 1.0, 0.0
    if not np.isfinite(step):  # of a saddle that was not found
        return Values(log_moment, np.inf, value, error)
    decay = mu * mu / t
    bound = np.exp(-0.5 * decay * y * y)
    if t == 1:
        value = bound * np.exp(-1j * (p - 0.5) * mu * mu * y)
        error = 8 * _EPS * mu * mu * y * (y + abs(2 * p - 1)) * bound
        return Values(log_moment, moment_error, value, error)
    if not np.isfinite(moment_error):
        return Values(log_moment, moment_error, value, error)
    furthest = np.sqrt(2 * rays.DIGITS / (decay * max(uses, 1.0)))
    last = min(count, int(furthest / step) + 2) if step > 0 else 1
    for other, close in ((series, series.CLOSE), (inversion, _close(p))):
        sums, off = other.sums(mu, t, p, y[:last])
        whole = float(sums[0].real)
        # What an error counts for in the power: the rest of it has decayed.
        counts = off * bound[:last] ** max(uses - 1, 0.0)
        if whole > 0 and np.max(counts) <= close * whole:
            value[:last] = sums / whole
            error[:last] = (off + (1.01 * off[0] / whole + 4 * _EPS) * np.abs(sums)) / whole
            value[0], error[0] = 1.0, 0.0
            return _cut(log_moment, moment_error, value, error, bound)
    value[1:last], error[1:last] = rays.along(mu, t, p, y[1:last], log_moment)
    return _cut(log_moment, moment_error, value, error, bound)
