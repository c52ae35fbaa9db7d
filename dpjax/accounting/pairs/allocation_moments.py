"""Whole moments of W, the mean of t lognormals, and what convexity makes of them.

W = (1/t) Σ X_i, X_i = e^{μz_i − μ²/2}, z_i independent standard normals, is the density ratio of
random allocation. E[X^k] = e^{μ²k(k−1)/2}, so that E[W^m] is m! times a coefficient of the t-th
power of a polynomial, all of whose coefficients are positive. K(p) = log E[W^p] is convex, and
K(0) = K(1) = 0: chords bound it from above between whole p, chords prolonged from below.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

LARGEST = 160  # whole moments that are computed
_EPS = float(np.finfo(np.float64).eps)


def steps_of(rate: float) -> float:
    """t = 1/rate, a whole number; of one between, which no concrete field is, the larger loss.

    Example:
        >>> steps_of(1 / 999_999_999), steps_of(0.4)
        (999999999.0, 2.0)
    """
    nearest = float(np.round(1 / rate))
    return nearest - float(nearest * rate > 1 + 4 * _EPS)


def log_factorials(most: int) -> np.ndarray:
    """log k! for k = 0 … most."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, most + 1.0)))])


def log_coefficients(mu: float, t: float, most: int) -> np.ndarray:
    """log of E[X^k]/(t^k k!) for k = 0 … most.

    Example:
        >>> log_coefficients(1.0, 2.0, 2)[1:].round(6)
        array([-0.693147, -1.079442])
    """
    k = np.arange(most + 1.0)
    return 0.5 * mu * mu * k * (k - 1) - k * np.log(t) - log_factorials(most)


def _log_product(f: np.ndarray, g: np.ndarray) -> np.ndarray:
    return np.array([np.logaddexp.reduce(f[: m + 1] + g[m::-1]) for m in range(len(f))])


def power(f: Any, t: int, product: Callable) -> Any:
    """f multiplied t times by repeated squaring.

    Example:
        >>> power(3, 5, lambda a, b: a * b)
        243
    """
    out = None
    while t:
        if t & 1:
            out = f if out is None else product(out, f)
        t >>= 1
        if t:
            f = product(f, f)
    return out


@functools.lru_cache(maxsize=256)
def whole_moments(mu: float, t: float, most: int = LARGEST + 2) -> np.ndarray:
    """log E[W^m] for m = 0 … most.

    Example:
        >>> whole_moments(1.0, 20.0, 2).round(6)
        array([0.      , 0.      , 0.082422])
    """
    log = log_coefficients(mu, t, most)
    if t + 1 > most:
        # c_m = Σ_k (k(t + 1) − m) b_k c_{m−k}/m (J. C. P. Miller); no term is negative.
        k, found = np.arange(most + 1.0), np.zeros(most + 1)
        for m in range(1, most + 1):
            factor = np.log(k[1 : m + 1] * (t + 1) - m)
            terms = factor + log[1 : m + 1] + found[m - 1 :: -1][:m]
            found[m] = np.logaddexp.reduce(terms) - np.log(m)
    else:
        found = power(log, round(t), _log_product)
    found = found + log_factorials(most)
    found[:2] = 0.0  # E[1] and E[W], exactly
    return found


def rounding(known: np.ndarray) -> np.ndarray:
    """Bound on the rounding errors of `whole_moments`: m sums for the m-th, on top of all before.

    Example:
        >>> bool(rounding(whole_moments(1.0, 20.0)).max() < 1e-10)
        True
    """
    m, factorial = np.arange(len(known)), log_factorials(len(known) - 1)
    return _EPS * np.where(m < 2, 0.0, m * m + 16 * m + 8 * factorial + 8 * known)


def upper(mu: float, t: float, p: Any) -> np.ndarray:
    """An upper bound on K(p) = log E[W^p] at real p ≥ 0; K(0) = 0 between 0 and 1.

    Chords up to p = 160. Beyond, x^p is convex, and the mean of the X_i has a moment of at most
    one of theirs.

    Example:
        >>> bool(upper(1.0, 20.0, 1.5) > 0.5 * whole_moments(1.0, 20.0, 2)[2])
        True
    """
    p = np.asarray(p, np.float64)
    known = whole_moments(mu, t)[: LARGEST + 1]
    known = known + rounding(known)
    chord = np.interp(p, np.arange(LARGEST + 1.0), known)
    plain = 0.5 * mu * mu * p * np.maximum(p - 1, 0.0) * (1 + 8 * _EPS)
    return np.where(p <= LARGEST, np.minimum(chord, plain) if t == 1 else chord, plain)


def negative_upper(mu: float, t: float, k: Any) -> np.ndarray:
    """An upper bound on log E[W^{−k}], k ≥ 0: W is at least the geometric mean of the X_i.

    Example:
        >>> float(negative_upper(1.0, 20.0, 2.0)) == 0.5 * (4 / 20 + 2)
        True
    """
    k = np.asarray(k, np.float64)
    return 0.5 * mu * mu * (k * k / t + k)


def lower(mu: float, t: float, p: float) -> float:
    """A lower bound on K(p): the chords of its neighbours, prolonged, up to p = 160.

    Example:
        >>> lower(1.0, 20.0, 3.0) == float(whole_moments(1.0, 20.0)[3])
        True
    """
    if p <= 1 or p > LARGEST:
        return 0.0  # for p ≤ 0 and p ≥ 1, by Jensen; no one asks between
    m, known = int(np.floor(p)), whole_moments(mu, t)
    ahead = known[m + 1] - (m + 1 - p) * (known[m + 2] - known[m + 1])
    behind = known[m] + (p - m) * (known[m] - known[m - 1])
    return float(max(ahead, behind, 0.0)) if p > m else float(known[m])
