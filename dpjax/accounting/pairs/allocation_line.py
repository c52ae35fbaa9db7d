"""Random allocation's transform on lines, for contour integration: a `pairs.protocol.Transform`.

In the direction "remove" e^{L} = W has the law of Q tilted by W, so that E_P[e^{zL}] = E[W^{z+1}];
in "add" it is E[W^{−z}]; W as in `pairs.allocation_transform`, t = 1/rate.
"""

from __future__ import annotations

import functools

import numpy as np

from dpjax._numerics.arrays import NUMPY
from dpjax.accounting.pairs import allocation_inversion as inversion
from dpjax.accounting.pairs import allocation_moments as moments
from dpjax.accounting.pairs import allocation_series as series
from dpjax.accounting.pairs.allocation_powers import product_of
from dpjax.accounting.pairs.allocation_transform import moment, values
from dpjax.accounting.pairs.protocol import OnLine

_ALIASES = (2, 4, 6)  # of the tilts offered, where a moment of the direction "add" is computed
_KNOTS = np.array([0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384])
_MOST_ADD, _KNOWN = 2e4, 400.0  # tilts of that direction, and those that are looked at
_DECAYED = 40.0  # −log of what counts for nothing on a line
_TILTED = 10.0  # tilts, times the deviation of the whole run's loss, beyond which none is asked for


def _above(mu: float, t: float, p: float) -> float:
    """An upper bound on log E[W^p], +∞ where it was not computed."""
    log, error = moment(mu, t, p)
    return log + 1.1 * error if error < 0.1 else np.inf


def _power(sign: int, c: float) -> float:
    """The real part of the power of W on the line Re z = c."""
    return c + 1 if sign > 0 else -c


class AllocationLine:
    """E_P[e^{zL}] of (1/t)Σ N(μe_i, I) against N(0, I), from the moments of their ratio W."""

    name = "allocation"
    directed = True

    def plain(self, mu: np.ndarray, rate: np.ndarray) -> np.ndarray:
        return rate > 0.5

    def variance(self, mu: float, rate: float) -> float:
        """About the variance of the loss: that of W, if it is small."""
        return float(np.expm1(min(mu * mu, 1.0))) * rate

    def most_tilt(self, sign: int, mu: float, rate: float, count: float = 1.0) -> float:
        """The largest tilt at which the transform is computed."""
        t, mu = moments.steps_of(rate), float(mu)
        more = _summed(int(sign), mu, t, float(count))
        if sign > 0:
            known = moments.whole_moments(mu, t)[: moments.LARGEST]
            return max(float(np.sum(known < 500.0)) - 5.0, 0.5, more)
        # Where the bound on E[W^{−c}] is e^{300}.
        root = np.sqrt(t * t / 4 + 600.0 * t / (mu * mu)) - t / 2
        return float(max(min(root, _MOST_ADD), more))

    def look(
        self, sign: int, mu: float, rate: float, tilts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """About log-moment, mean and variance of the loss at every tilt: no bound rests on them.

        K(c) = κ(c)·c(c + 1)/2 with a κ that varies slowly.
        """
        log_c, kappa = _curvatures(int(sign), float(mu), moments.steps_of(rate))
        at = np.log(tilts)
        found = np.interp(at, log_c, kappa)
        slope = (np.interp(at + 0.05, log_c, kappa) - np.interp(at - 0.05, log_c, kappa)) / 0.1
        slope = slope / tilts
        total = 0.5 * found * tilts * (tilts + 1)
        mean = found * (tilts + 0.5) + 0.5 * slope * tilts * (tilts + 1)
        return total, mean, np.maximum(found + slope * (2 * tilts + 1), 1e-3 * found)

    def rises(self, sign: int, mu: float, rate: float, c: float, more: np.ndarray) -> np.ndarray:
        """An upper bound on K(c + α) − K(c) for every α of `more`, ascending."""
        t, p = moments.steps_of(rate), _power(sign, c)
        log, error = moment(mu, t, p)
        log -= 2 * error
        found = moments.upper(mu, t, p + more) - log if sign > 0 else np.full(len(more), np.inf)
        if sign < 0 or p + more[_ALIASES[1]] > moments.LARGEST:
            at = list(_ALIASES)
            known = [moment(mu, t, p + sign * more[i]) for i in at]
            heights = np.array([0.0, *(v + 2 * e - log for v, e in known)])
            usable = np.isfinite(heights)
            # Convex: chords bound it between the tilts where it is known.
            at = np.array([0.0, *more[at]])[usable]
            found = np.fmin(found, np.interp(more, at, heights[usable], right=np.inf))
        return np.where(np.isfinite(found), found, 1e30)

    def on_line(
        self, sign: int, mu: float, rate: float, c: float, t: np.ndarray, count: float
    ) -> OnLine:
        steps, p = moments.steps_of(rate), float(_power(sign, c))
        found = values(float(mu), steps, p, float(t[1]), len(t), float(count))
        real, imag = found.value.real - 1, -found.value.imag * sign
        return OnLine(found.log_moment, found.moment_error, real, imag, found.error)

    def log_moments(self, mu: float, rate: float, c: np.ndarray, quick: bool) -> np.ndarray:
        """Quick: chords between whole powers of W, and between a few negative ones."""
        t, mu = moments.steps_of(rate), float(mu)
        removed = moments.upper(mu, t, c + 1)
        if t == 1:
            return removed
        at = _KNOTS if quick else np.unique(c)
        at = at[at <= 1.01 * self.most_tilt(-1, mu, rate)]
        known = np.array([_above(mu, t, -v) for v in at])
        at, known = np.append(0.0, at), np.append(0.0, known)
        usable = np.isfinite(known)
        added = np.interp(c, at[usable], known[usable], right=np.inf)
        added = np.minimum(added, moments.negative_upper(mu, t, c))
        if not quick:
            best = np.array([_above(mu, t, v + 1) for v in c])
            removed = np.minimum(removed, best)
        return np.maximum(removed, added)

    def log_decay(self, mu: float, rate: float, t: np.ndarray) -> np.ndarray:
        """The mean of t normal variables is a part of log W, and independent of the rest."""
        return -0.5 * mu * mu * t * t / moments.steps_of(rate)

    def total_variation(self, mu: float, rate: float) -> np.ndarray:
        """At most that of one Gaussian release, and half the root of E[(W − 1)²]."""
        root = 0.5 * np.sqrt(np.expm1(np.minimum(np.square(mu), 50.0)) * rate)
        return np.minimum(NUMPY.erf(np.asarray(mu) / np.sqrt(8.0)), root)


def _summed(sign: int, mu: float, t: float, count: float) -> float:
    """Up to which tilt another sum than the rays' gives the power `count`, or 0."""
    if not t > 1:
        return 0.0
    s, count = series.deviation(mu, t), max(count, 1.0)
    # The power has decayed where |E[W^{p+iy}]| is at most e^{−40/count} of E[W^p].
    y = np.array([0.0, np.sqrt(2 * _DECAYED * t / count) / mu])
    most = np.sqrt(max(series.REACH**2 - (s * y[1]) ** 2, 0.0))
    wanted = _TILTED / np.sqrt(count) / s
    for other, c in ((series, min(0.99 * most / s, wanted)), (inversion, wanted)):
        for part in (1.0, 0.6, 0.3) if sign > 0 or other is series else ():
            p = _power(sign, part * c)
            value, error = other.sums(mu, t, p, y)
            error[1] *= np.exp(-_DECAYED * (1 - 1 / count))
            if np.max(error) <= other.CLOSE * value[0].real:
                return part * c - 1.0
    return 0.0


@functools.lru_cache(maxsize=256)
def _curvatures(sign: int, mu: float, t: float) -> tuple[np.ndarray, np.ndarray]:
    """log c and 2K(c)/(c(c + 1)), roughly."""
    if t == 1:
        return np.zeros(1), np.full(1, mu * mu)
    if sign > 0:
        p = np.arange(2.0, moments.LARGEST + 1)
        c = p - 1
        return np.log(c), 2 * moments.whole_moments(mu, t)[2 : moments.LARGEST + 1] / (c * p)
    # Γ(c)⁻¹ ∫ e^{cv} f(e^v/t)^t dv on few nodes
    c = np.geomspace(1.0, _KNOWN, 24)
    h = 0.08
    v = h * np.arange(-300, 145)
    ratio = max(int(0.3 * mu / h), 1)
    hz = ratio * h / mu if mu >= h / 0.3 else 0.3
    z = np.arange(-8.5, 8.5, hz)
    weight = hz * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    size = np.exp(v[:, None] + mu * z - 0.5 * mu * mu - np.log(t))
    weight = weight[:, None][:, [0, 0]]
    less = product_of(np.expm1(-size), weight)[:, 0]
    # Of few steps the power of what is lost in the rounding of 1 would outweigh the rest.
    small = np.log(np.maximum(product_of(np.exp(-size), weight)[:, 0], 1e-300))
    log_f = t * np.where(less > -0.5, np.log1p(np.maximum(less, -0.5)), small)
    exponent = c[:, None] * v + log_f
    top = exponent.max(axis=1)
    k = np.log(h * np.exp(exponent - top[:, None]).sum(axis=1)) + top - NUMPY.gammaln(c)
    kappa = 2 * k / (c * (c + 1))
    # Where the differences drown in rounding it is about the variance of W.
    good = (k > 1e-11) & np.isfinite(k)
    rough = np.expm1(min(mu * mu, 1.0)) / t
    return np.log(c), np.where(good, kappa, rough)
