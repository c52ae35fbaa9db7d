"""Pairs laid on grids: where a loss is on the line, and what mass lies between two.

Of one sampled record that is known: r(y) = 1 − q + q e^{w(y)}, w(y) = μy − μ²/2, in units of the
noise's standard deviation, is the density of (1−q)N(0, 1) + qN(μ, 1) over N(0, 1)'s. Any other
`mixtures.Mixture` whose loss L = log p/q rises or falls is laid by its means and weights alone:

PLACES  The place of a loss is found by Newton's method kept between two points of a table: L rises,
        so that it lies between them. Where L is flatter than its rounding, any place there will do:
        their losses differ by that rounding, which `grid._slack` adds for each step.
FAINT   Against the term that is largest at one end of an interval the logarithms of others are
        straight lines, so that one that is small against it at both ends is small throughout.
LUMP    Outcomes that are told together have the loss log(P/Q) of their total masses.

Such a pair is also rounded to finitely many outcomes (`round_to_atoms`), one for each cell of y:

SPLIT   δ(ε) = Σ(p − e^ε q)₊ is convex in the p and q of an outcome, which may thus be split between
        the ends a < b of its cell's losses where both keep their sums: of a cell's p and q the
        share (p − e^a q)/(1 − e^{a − b}) goes to b. For a lower bound a cell is a LUMP.
ORDER   δ grows with the law of the loss under P: masses may go to larger losses for an upper bound.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from dpjax._numerics.arrays import EPS, NUMPY, Numbers, NumbersLike, halve, namespace
from dpjax.accounting.pairs.pair import Atoms, concrete_atoms
from dpjax.accounting.pairs.protocol import GridPair, Masses
from dpjax.accounting.typing import Real

if TYPE_CHECKING:
    from dpjax.accounting.pairs.mixtures import Mixture

_POINTS_AT_A_TIME = 1 << 12  # points worked on at a time
_TABLE = 2049
_NOWHERE = 39.0  # standard deviations, beyond which a normal law has less than the least number
_FAINT = 60.0  # e^{−60} of a term, times their number, is below its rounding
_LUMP = 0.5  # mass of a bin below which `discretise` makes no lump of it
_MOST_OUTCOMES = 2048


def log_ratio(y: Real, mu: Real, rate: Real) -> Numbers:
    """log r(y), to full relative precision, for every 0 ≤ q ≤ 1."""
    return log_mixture(mu * y - 0.5 * mu * mu, rate)


def log_mixture(w: Real, rate: Real) -> Numbers:
    """log(1 − q + q e^w), to full relative precision, for every 0 ≤ q ≤ 1."""
    xp = namespace(w, rate)
    if xp is NUMPY and np.all(w <= 30.0) and np.all(rate < 1):
        # Mostly nothing is near log 0 either: the same numbers as below, in two calls.
        grown = rate * np.expm1(w)
        if np.all(grown > -0.5):
            return xp.log1p(grown)
    far = xp.maximum(w, 30.0)
    high = far + xp.log(rate + (1 - rate) * xp.exp(-far))
    near = xp.clip(w, -700.0, 30.0)
    excess = rate * xp.expm1(near)
    direct = xp.log(xp.maximum((1 - rate) + rate * xp.exp(near), 1e-300))
    low = xp.where(excess > -0.5, xp.log1p(xp.maximum(excess, -0.5)), direct)
    # At rate 1 the ratio is e^w itself, also where e^w underflows.
    low = xp.where(rate < 1, low, xp.minimum(w, 30.0))
    return xp.where(w > 30.0, high, low)


def ndtr(x: NumbersLike) -> np.ndarray:
    """Φ(x)."""
    from scipy import special  # a third of a second, and only loss distributions need it

    return special.ndtr(x)


def inverse(loss: np.ndarray, mu: float, rate: float) -> np.ndarray:
    """y with log r(y) = loss; −∞ below the least loss log(1 − q)."""
    floor = np.log1p(-rate) if rate < 1 else -np.inf
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # log((e^l − 1 + q)/q), from whichever end does not cancel
        near = np.log1p(np.expm1(np.minimum(loss, 30.0)) / rate)
        over_floor = np.log(-np.expm1(floor - loss)) + loss - np.log(rate)
        w = np.where(
            loss > np.log1p(-0.5 * rate), np.where(loss > 30, over_floor, near), over_floor
        )
    return np.where(loss <= floor, -np.inf, (w + 0.5 * mu * mu) / mu)


def normal_mass(edges: np.ndarray) -> np.ndarray:
    """Φ(b) − Φ(a) of successive ascending edges, without cancellation in either tail."""
    tail, right = ndtr(-np.abs(edges)), edges > 0
    between = tail[1:] - tail[:-1]
    # Right of 0 the tails fall; around it both are what is left out.
    around = ~right[:-1] & right[1:]
    return np.where(right[:-1], -between, np.where(around, 1 - tail[:-1] - tail[1:], between))


def tail_error(x: np.ndarray) -> np.ndarray:
    """Bound the relative error of a computed Φ(−x), x ≥ 0.

    It is half of erfc(t), t = x/√2 off by a unit of roundoff u of its constant and one of the
    product: t² = x²/2 by 2x²u at most, and by x²u/2 when it is squared; e^{−t²} and a ratio of
    polynomials by units that do not grow. Against 40 digits: at most (2x² + 11)u.
    """
    return 0.5 * EPS * (2.5 * x * x + 16)


def mass_units(log_mass: np.ndarray) -> np.ndarray:
    """Bound by its mass, in units of eps, what a cell and all above it is off by, relative.

    It is a sum of tails at y less a mean, rounded: their arguments x are off by xu, hence they by
    x(x + 1)u, and none is less than the mass, so that x² ≤ −2 log m. Sums add up to 2 units. That
    the loss at y is not quite the grid's is charged to ε.
    """
    x = np.sqrt(np.maximum(-2 * log_mass, 0.0))
    return tail_error(x) / EPS + 0.5 * x * (x + 1) + 2


def loss_units(largest: float, mean: float) -> float:
    """Bound, in units of eps, what the losses at the places of a grid are off by.

    A loss is a logarithm of sums of e^{my − m²/2}, |m| ≤ `mean` and |y| ≤ 37 + |m|, beyond which
    there are no numbers: y moves an exponent by |my|u, exponents and logarithms are rounded.
    Against 40 digits: half of it.
    """
    return 2 + largest + mean * (37 + mean)


def normal_mass_error(edges: np.ndarray, moved: NumbersLike) -> np.ndarray:
    """Bound what `normal_mass` is off by, of edges that are off by `moved`.

    What the error of its argument changes a tail by: the hazard φ(x)/Φ(−x) is at most x + 1. A
    difference is rounded, and around 0 two are taken off 1. Below 1e-300 a tail has fewer digits.
    """
    x = np.minimum(np.abs(edges), 1e3)
    error = ndtr(-x) * (tail_error(x) + (x + 1) * moved) + 1e-300
    around = (edges[:-1] <= 0) & (edges[1:] > 0)
    return error[1:] + error[:-1] + EPS * np.where(around, 1.0, normal_mass(edges))


def mixed_mass(edges: np.ndarray, means: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Masses of Σ_i weight_i N(means_i, 1) between successive ascending edges."""
    total = np.zeros(len(edges) - 1)
    used = weight != 0
    means, weight = means[used], weight[used]
    first = np.searchsorted(edges, means - _NOWHERE)
    last = np.searchsorted(edges, means + _NOWHERE) + 1
    for a, b, mean, w in zip(np.maximum(first - 1, 0), last, means, weight, strict=True):
        part = edges[a:b]
        total[a : a + max(len(part) - 1, 0)] += w * normal_mass(part - mean)
    return total


def mixed_tail(y: np.ndarray, means: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The mass of Σ_i weight_i N(means_i, 1) above every y."""
    parts = (w * ndtr(m - y) for m, w in zip(means, weight, strict=True) if w > 0)
    return functools.reduce(np.add, parts, np.zeros(()))


def log_linear_sum(
    y: np.ndarray, slope: np.ndarray, level: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """log Σ_i e^{slope_i y + level_i} and its slope, at every y."""
    value, rise = np.empty_like(y), np.empty_like(y)
    for start in range(0, len(y), _POINTS_AT_A_TIME):
        rows = slice(start, start + _POINTS_AT_A_TIME)
        some = _weighty(y[rows], slope, level)
        near = slope[some]
        terms = y[rows, None] * near + level[some]
        top = terms.max(axis=1)
        with np.errstate(under="ignore"):
            part = np.exp(terms - top[:, None])
        total = part.sum(axis=1)
        value[rows] = top + np.log(total)
        rise[rows] = part @ near / total
    return value, rise


def _weighty(y: np.ndarray, slope: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Which terms are somewhere among these y more than e^{−60} of the sum: FAINT."""
    ends = np.array([y.min(), y.max()])[:, None] * slope + level
    against = ends[:, ends.argmax(axis=1)].T  # a row an end's largest, a column an end
    gap = ends[None] - against[:, :, None]
    return ~np.any(np.all(gap < -_FAINT, axis=1), axis=0)


def loss(pair: Mixture, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """L and its slope at every y."""
    found = []
    means_of_all, *weights = map(np.asarray, pair)
    for weight in weights:
        used = weight > 0
        means = means_of_all[used]
        found.append(log_linear_sum(y, means, np.log(weight[used]) - 0.5 * means * means))
    (p, rise), (q, fall) = found
    return p - q, rise - fall


def places(pair: Mixture, losses: np.ndarray) -> np.ndarray:
    """y with L(y) = loss, both ascending; −∞ below all losses of the pair, ∞ above: PLACES."""
    used = pair.means[(pair.p > 0) | (pair.q > 0)]
    low, high = np.full(2, used.min() - _NOWHERE), np.full(2, used.max() + _NOWHERE)
    # where the first and the last lie
    low, high = halve(low, high, lambda y: loss(pair, y)[0] > losses[[0, -1]], 60)
    table = np.linspace(low[0], high[1], _TABLE)
    known, slope = loss(pair, table)
    known = np.maximum.accumulate(known)
    at = np.clip(np.searchsorted(known, losses), 1, _TABLE - 1)
    low, high = table[at - 1], table[at]
    with np.errstate(all="ignore"):
        y = _hermite(known, table, 1 / slope, at - 1, losses)
    y = np.where((y >= low) & (y <= high), y, 0.5 * (low + high))
    rows = np.arange(len(y))
    for _ in range(60):
        value, slope = loss(pair, y[rows])
        over = value > losses[rows]
        high[rows] = np.where(over, y[rows], high[rows])
        low[rows] = np.where(over, low[rows], y[rows])
        with np.errstate(all="ignore"):
            new = y[rows] - (value - losses[rows]) / slope
        inside = (new >= low[rows]) & (new <= high[rows])
        new = np.where(inside, new, 0.5 * (low[rows] + high[rows]))
        moved = np.abs(new - y[rows])
        y[rows] = new
        # Convergence is quadratic, but not between means that lie far apart.
        rows = rows[(~inside & (moved > 0)) | (moved > 1e-9 * (1 + np.abs(new)))]
        if not len(rows):
            break
    y = np.where(losses < known[0], -np.inf, np.where(losses > known[-1], np.inf, y))
    return np.maximum.accumulate(y)


def _hermite(
    x: np.ndarray, y: np.ndarray, slope: np.ndarray, k: np.ndarray, at: np.ndarray
) -> np.ndarray:
    """Cubic interpolation between the k-th and the next of ascending x, by values and slopes."""
    width = x[k + 1] - x[k]
    t = (at - x[k]) / width
    ends = y[k] * (1 + 2 * t) * (1 - t) ** 2 + y[k + 1] * t * t * (3 - 2 * t)
    return ends + width * t * (1 - t) * (slope[k] * (1 - t) - slope[k + 1] * t)


@np.errstate(all="ignore")
def round_to_atoms(pair: Mixture, rare: float, upper: bool, tilt: float = 0.0) -> Atoms:
    """Return a larger pair of finitely many outcomes, or a smaller one: SPLIT, LUMP, ORDER.

    Args:
        pair: a `Mixture` whose loss rises or falls.
        rare: normal tail beyond which all of P, from the outermost means, is one outcome.
        upper: which way to round.
        tilt: where e^{tilt·loss} weighs cells are small.
    """
    from scipy.special import ndtri

    pair = pair if pair.direction() >= 0 else pair.turned_round()
    means, p, q = map(np.asarray, pair)
    reach = -float(ndtri(max(rare, 1e-280)))
    y = np.linspace(means.min() - reach, means.max() + reach, 16 * _MOST_OUTCOMES)
    # A chord is off by width³ times the density, which is to be about the same everywhere.
    log_p, log_q = pair.logs(NUMPY.asarray(y))
    size = log_p - 0.5 * y * y + tilt * (log_p - log_q)
    share = np.exp((size - size.max()) / 3) * np.cbrt(np.diff(log_p - log_q, prepend=0.0)) ** 2
    share[0] = 0.0
    place = np.cumsum(np.nan_to_num(share / share.sum()) + 0.1 / len(y))
    edges = np.searchsorted(place, np.linspace(0.0, place[-1], _MOST_OUTCOMES))
    y = y[np.unique(np.clip(np.append(edges, 0), 0, len(y) - 1))]
    # Where log P/Q is next to nothing only the weights' differences keep digits. They sum to 0, so
    # that the largest weight's is what the others' leave.
    more = p - q
    common = np.argmax(np.minimum(p, q))
    if p[common] > 0 and q[common] > 0:
        more[common] -= math.fsum(more)
    mass, of_q, excess = (mixed_mass(y, means, w) for w in (p, q, more))
    each = [normal_mass_error(y - m, EPS * np.abs(y - m)) + EPS * normal_mass(y - m) for m in means]
    off_q, off = (np.abs(w) @ np.array(each) for w in (q, more))
    # What lies above a point is a sum of tails, each of which is known to this, relative.
    x = np.max(np.abs(y)) + np.max(np.abs(means))
    slack = 2 * tail_error(x) + 4 * EPS * (x + 2) ** 2
    if not upper:
        ratio = (excess - off) / np.maximum(of_q + np.where(excess > off, off_q, -off_q), 1e-300)
        good = (of_q > 2 * off_q) & (ratio > -1) & (mass > 0)
        loss = np.log1p(ratio[good])
        loss = loss - 4 * EPS * np.abs(loss)
        return concrete_atoms(loss, mass[good] * (1 - slack))
    known = pair.spread(NUMPY.asarray(y))
    loss = np.asarray(known[0].value - known[1].value)
    blur = EPS * (known[0].rounding + known[1].rounding + np.abs(loss))
    low, gap = loss[:-1], -np.expm1(loss[:-1] - loss[1:])
    share = excess - of_q * np.expm1(low)
    lost = off + (off_q + 4 * EPS * of_q) * np.abs(np.expm1(low)) + 4 * EPS * np.abs(excess)
    lost = lost + of_q * np.exp(low) * blur[:-1] + np.abs(share) * (blur[:-1] + blur[1:]) / gap
    up = (np.maximum(share, 0.0) + lost) / gap
    up = np.where(up < mass, up, mass)  # also where a cell is too narrow for its losses to differ
    infinite = float(mixed_tail(y[-1], means, p)) * (1 + slack)
    found = np.append(0.0, up)
    found[:-1] += mass - up
    found[1:] *= 1 + slack
    # What lies below, too; and what 1 is rounded by.
    found[0] = max(1 - infinite - math.fsum(found[1:]), 0.0) + 2 * EPS
    return concrete_atoms(loss + blur, found, infinite)


def grid_reach(rare: float) -> float:
    """The normal quantile beyond which a grid leaves out what is as rare as this."""
    return float(np.clip(-NUMPY.ndtri(max(rare, 1e-280)), 8.0, 36.0))


class GaussianGrid(GridPair):
    """N(μ, 1) against N(0, 1), its own mirror image: L = μy − μ²/2."""

    name = "gaussian"

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        return mu * mu / 2 - reach * mu, mu * mu / 2 + reach * mu

    def masses(self, sign: int, mu: float, rate: float, losses: np.ndarray) -> Masses:
        y = losses / mu + 0.5 * mu
        return normal_mass(y - mu), normal_mass(y), float(ndtr(mu - y[-1]))


def _is_rare(means: np.ndarray, weight: np.ndarray, rare: float, y: np.ndarray) -> np.ndarray:
    """Whether a mixture has no more than so much beyond y."""
    return mixed_tail(y, means, weight) <= rare


class Weighted(GridPair):
    """A pair on a grid from means and weights, of one direction.

    Args:
        name: of the pair.
        pair: a `Mixture`, whose weights need not sum to 1.
        revealed: P's mass of an infinite loss beside it.
    """

    def __init__(self, name: str, pair: Mixture, revealed: float = 0.0) -> None:
        self.name, self._revealed = name, revealed
        self.pair = pair if pair.direction() >= 0 else pair.turned_round()  # the loss rises

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        all_means, p, _ = map(np.asarray, self.pair)
        used, rare = p > 0, float(ndtr(-reach))
        weight, ends = p[used], []
        for turn in (-1, 1):  # where P has as little mass as a normal law beyond `reach`
            means = turn * all_means[used]
            is_rare = functools.partial(_is_rare, means, weight, rare)
            high = halve(means.min(), means.max() + reach, is_rare, 60)[1]
            ends.append(turn * float(high))
        low, high = loss(self.pair, np.array(ends))[0]
        return float(low), float(high)

    def masses(self, sign: int, mu: float, rate: float, losses: np.ndarray) -> Masses:
        means, p, q = map(np.asarray, self.pair)
        y = places(self.pair, losses)
        above = float(mixed_tail(y[-1], means, p)) + self._revealed
        return mixed_mass(y, means, p), mixed_mass(y, means, q), above

    def origin(self, sign: int, mu: float, rate: float, h: float) -> tuple[float, bool]:
        """By LUMP; of a pair that is its own mirror image it is the ratio of the whole masses."""
        means, p, q = map(np.asarray, self.pair)
        if np.array_equal(p > 0, q[::-1] > 0):
            whole = float(np.log(np.sum(p[::-1]) / np.sum(q)))
            return whole - (1e-9 * h + 16 * EPS * abs(whole) if whole else 0.0), True
        # Where the lowest mean, or the highest, is common to P and Q, most of the mass may lie next
        # to the loss that it tends to: a fixed point of the lump there.
        end = next((i for i in (0, -1) if p[i] > 0 and q[i] > 0), None)
        if end is None:
            return 0.0, False

        def lump(at: float) -> tuple[float, float]:
            edges = places(self.pair, at + np.array([-h, h]))
            (more,), (of_q,) = mixed_mass(edges, means, p - q), mixed_mass(edges, means, q)
            return float(np.log1p(more / of_q)) if of_q > 0 else np.nan, float(of_q + more)

        with np.errstate(all="ignore"):
            origin = float(np.log1p((p[end] - q[end]) / q[end]))
            for _ in range(40):
                last, (origin, mass) = origin, lump(origin)
                if not np.isfinite(origin) or mass < _LUMP:
                    return 0.0, False
                if abs(origin - last) < max(1e-18, 1e-10 * h):
                    break
            # Below the fixed point, so that the inequality holds in floating point too.
            origin -= 1e-9 * h + 16 * EPS * (1 + abs(origin))
            return origin, bool(lump(origin)[0] >= origin)
