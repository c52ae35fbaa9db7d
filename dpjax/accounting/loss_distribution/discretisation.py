"""One step's privacy loss on a grid, rounded towards more loss and towards less.

Upwards by connecting the dots: mass between two grid points is split so that P and Q both keep
theirs, and the privacy profile becomes its own chord in e^ε. What lies beyond the grid on the right
goes to an atom at +∞; on the left it is rounded up.

Downwards the chord serves too, where it overshoots little: with δ̃ the chord, δ̃(ε + η) ≤ δ(ε) for
every ε once (e^η − 1)Q(L > l_{k+2}) ≥ (e^h − 1)Q(bin k)/4 in every bin, because a convex
function's chord overshoots by at most a quarter of the interval times the change of slope. Bins
that would need a larger η are rounded down instead, and where most of the mass lies in one bin it
is lumped there exactly. The distance to the truth falls with h², not h (derived for dpjax).

References:
  Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, Algorithm 1 (connect the dots).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dpjax.accounting.pairs.discrete import Discrete
from dpjax.accounting.pairs.subsampled import Family, log_ratio

_EPS = float(np.finfo(np.float64).eps)


class Pair(NamedTuple):
    """One kind of step: a Gaussian family, displacement over noise, sampling rate, multiplicity.

    Fields:
        family: see `pairs`; "gaussian" is the plain Gaussian pair.
        sign: +1 for direction remove, −1 for add; only "poisson" looks at it.
        mu: distance of the two means over the noise's standard deviation.
        rate: sampling rate.
        count: how many such steps there are.
    """

    family: Family | str
    sign: int
    mu: float
    rate: float
    count: float


class Discretised(NamedTuple):
    """One step's loss on the grid l_k = origin + (start + k)·h, rounded one way.

    Fields:
        origin: offset of the grid, where most of a rarely sampled record's loss lies.
        start: index of the first grid point.
        mass: probability under P at each point.
        infinite: probability under P of +∞ (for an upper bound: of more than the last point).
        shift: η, by which a lower bound's losses are still too large.
    """

    origin: float
    start: int
    mass: np.ndarray
    infinite: float
    shift: float


def _ndtr(x: Any) -> Any:
    from scipy.special import ndtr  # a third of a second, and only this method needs it

    return ndtr(x)


def _inverse(loss: np.ndarray, mu: float, rate: float) -> np.ndarray:
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


def _normal_mass(edges: np.ndarray) -> np.ndarray:
    """Φ(b) − Φ(a) of successive ascending edges, without cancellation in either tail."""
    a, b = edges[:-1], edges[1:]
    return np.where(
        a > 0,
        _ndtr(-a) - _ndtr(-b),
        _ndtr(b) - _ndtr(a),
    )


def _replace_inverse(loss: np.ndarray, mu: float, rate: float) -> np.ndarray:
    """y with log r(y) − log r(−y) = loss: with u = e^{μy}, a quadratic."""
    if rate == 1:
        return loss / (2 * mu)
    # 1 − q + ku = e^l(1 − q + k/u), k = qe^{−μ²/2}, B = (1−q)(e^l − 1): u = (B + √(B² + 4k²e^l))/2k
    log_k = np.log(rate) - 0.5 * mu * mu
    size = np.abs(loss)
    # by symmetry for |l|; all terms divided by e^{l}, so that nothing overflows
    b = (1 - rate) * -np.expm1(-size)
    log_b = np.log(np.maximum(b, 1e-320))
    root = 0.5 * np.logaddexp(2 * log_b, np.log(4.0) + 2 * log_k - size)
    log_u = np.logaddexp(log_b, root) + size - np.log(2.0) - log_k
    return np.sign(loss) * np.maximum(log_u, 0.0) / mu


def loss_range(pair: Pair | Discrete, reach: float) -> tuple[float, float]:
    """Losses between which all of P lies but for what is as rare as normal tails beyond `reach`.

    Args:
        pair: the step.
        reach: normal quantile.
    """
    if isinstance(pair, Discrete):
        order = np.argsort(pair.losses)
        losses, masses = np.asarray(pair.losses)[order], np.asarray(pair.masses)[order]
        losses, masses = losses[losses < np.inf], masses[losses < np.inf]
        rare = float(_ndtr(-reach))
        below, above = np.cumsum(masses) > rare, np.cumsum(masses[::-1])[::-1] > rare
        likely = losses[below & above] if (below & above).any() else losses
        return float(likely[0]), float(likely[-1])
    mu, rate = pair.mu, pair.rate
    if pair.family == "gaussian":
        return mu * mu / 2 - reach * mu, mu * mu / 2 + reach * mu

    def log_r(y: float) -> float:
        return float(log_ratio(np.asarray(y), mu, rate))

    if pair.family == "poisson" and pair.sign < 0:
        return -log_r(reach), -log_r(-reach)
    low = -reach if rate < 1 else mu - reach
    if pair.family == "poisson":
        return log_r(low), log_r(mu + reach)
    if pair.family == "replace":
        return log_r(low) - log_r(-low), log_r(mu + reach) - log_r(-mu - reach)
    return -log_r(mu + reach), log_r(mu + reach)


def _masses(pair: Pair, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """P and Q mass between successive losses, and P mass above the last."""
    mu, rate = pair.mu, pair.rate
    if pair.family == "gaussian":
        y = losses / mu + 0.5 * mu
        return _normal_mass(y - mu), _normal_mass(y), float(_ndtr(mu - y[-1]))
    if pair.family == "poisson" and pair.sign > 0:
        y = _inverse(losses, mu, rate)
        q = _normal_mass(y)
        p = (1 - rate) * q + rate * _normal_mass(y - mu)
        return (
            p,
            q,
            float((1 - rate) * _ndtr(-y[-1]) + rate * _ndtr(mu - y[-1])),
        )
    if pair.family == "poisson":
        y = _inverse(-losses, mu, rate)[::-1]
        p = _normal_mass(y)[::-1]
        q = (1 - rate) * p + rate * _normal_mass(y - mu)[::-1]
        return p, q, float(_ndtr(y[0]))
    if pair.family == "replace":
        y = _replace_inverse(losses, mu, rate)
        common = (1 - rate) * _normal_mass(y)
        p, q = common + rate * _normal_mass(y - mu), common + rate * _normal_mass(y + mu)
        return (
            p,
            q,
            float((1 - rate) * _ndtr(-y[-1]) + rate * _ndtr(mu - y[-1])),
        )
    y = np.maximum(_inverse(np.abs(losses), mu, rate), 0.5 * mu)
    # Above 0 the pair is (g·r, g) on y > μ/2, below 0 its mirror image with P and Q exchanged.
    tail_g = _ndtr(-y)
    tail_gr = (1 - rate) * tail_g + rate * _ndtr(mu - y)
    upper = losses[:-1] >= 0
    p = np.where(upper, tail_gr[:-1] - tail_gr[1:], tail_g[1:] - tail_g[:-1])
    q = np.where(upper, tail_g[:-1] - tail_g[1:], tail_gr[1:] - tail_gr[:-1])
    return np.maximum(p, 0.0), np.maximum(q, 0.0), float(tail_gr[-1])


def _origin(pair: Pair, h: float) -> tuple[float, bool]:
    """A grid offset l₀, and whether outcomes within h of it may be lumped there for a lower bound.

    A lump is a function of the outcome, and has the loss log(P/Q) of its total masses: second-order
    exact where most of the mass lies in one bin. Any l₀ ≤ log(P/Q) of what lies within h of it
    will do; for symmetric pairs 0 does.
    """
    mu, rate = pair.mu, pair.rate
    if pair.family != "poisson" or rate == 1:
        return 0.0, pair.family not in ("poisson", "gaussian")

    def lump(at: float) -> float:
        edges = _inverse(pair.sign * at + np.array([-h, h]), mu, rate)
        without, added = _normal_mass(edges)[0], _normal_mass(edges - mu)[0]
        return pair.sign * float(np.log1p(rate * (added / max(without, 1e-300) - 1)))

    origin = pair.sign * np.log1p(-rate)
    for _ in range(40):
        last, origin = origin, lump(origin)
        if not np.isfinite(origin):
            return 0.0, False
        if abs(origin - last) < 1e-18:
            break
    # Below the fixed point, so that the inequality holds in floating point too.
    origin -= 1e-9 * h + 4 * _EPS * abs(origin)
    return origin, bool(lump(origin) >= origin)


def discretise(
    pair: Pair | Discrete, h: float, reach: float = 9.0, *, upper: bool = True
) -> Discretised:
    """One step's loss on a grid of spacing h.

    Args:
        pair: the step.
        h: spacing of the grid.
        reach: normal quantile beyond which mass is cut off.
        upper: whether to round towards more loss.
    """
    if isinstance(pair, Discrete):
        return _discretise_outcomes(pair, h, reach, upper)
    low, high = loss_range(pair, reach)
    origin, lumped = _origin(pair, h)
    origin = origin if lumped else 0.0
    first, last = int(np.floor((low - origin) / h)), int(np.ceil((high - origin) / h))
    if pair.family == "symmetrised":
        first, last = min(first, -1), max(last, 1)
    last = max(last, first + 1)
    losses = origin + h * np.arange(first, last + 1)
    p, q, above = _masses(pair, losses)
    # The chord: a + b = p and a·e^{−l} + b·e^{−l−h} = q. A point with q = 0 is rounded up.
    with np.errstate(over="ignore", invalid="ignore"):
        b = (p - q * np.exp(losses[:-1])) / -np.expm1(-h)
    b = np.clip(np.where(np.isfinite(b), b, p), 0.0, p)
    mass = np.zeros(len(losses))
    atom = 0.0
    if pair.family == "symmetrised":
        atom = (1 - pair.rate) * (2 * float(_ndtr(0.5 * pair.mu)) - 1)
    if upper:
        mass[:-1] += p - b
        mass[1:] += b
        mass[-first if atom else 0] += atom
        # All that is unaccounted for, the left tail and rounding, goes to the lowest point.
        mass[0] += max(0.0, 1.0 - above - mass.sum())
        return Discretised(origin, first, mass, above * (1 + 1e-12), 0.0)
    beyond = np.append(np.cumsum(q[::-1])[::-1][2:], [0.0, 0.0])[: len(q)]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        need = np.where(p > 0, np.log1p(np.expm1(h) * q / (4 * beyond)), 0.0)
    need = np.where(np.isfinite(need), need, np.inf)
    lump = np.zeros(len(p), bool)
    cell = slice(max(-first - 1, 0), max(min(-first + 1, len(p)), 0))
    lump[cell] = lumped and p[cell].sum() > 0.5
    need = np.where(lump, 0.0, need)
    # The best threshold weighs the shift of all mass against rounding the rest down by h/2.
    order = np.argsort(need)
    weight = np.where(lump, 0.0, p)[order]
    rounded = np.append(np.cumsum(weight[::-1])[::-1][1:], 0.0) * h / 2
    cost = np.where(need[order] <= h, need[order], np.inf) + rounded
    eta = float(need[order][np.argmin(cost)]) if np.isfinite(cost.min()) else 0.0
    b = np.where((need <= eta) & ~lump, b, 0.0)
    mass[:-1] += np.where(lump, 0.0, p - b)
    mass[1:] += b
    mass[min(max(-first, 0), last - first)] += p[lump].sum() + atom
    mass[-1] += above
    return Discretised(origin, first, mass * (1 - 2e-15), 0.0, eta)


def _discretise_outcomes(pair: Discrete, h: float, reach: float, upper: bool) -> Discretised:
    """Every loss between two grid points by the chord, or down; the likeliest is a grid point."""
    low, high = loss_range(pair, reach)
    losses, masses = np.asarray(pair.losses), np.asarray(pair.masses)
    infinite = float(masses[losses > high].sum() if upper else masses[losses == np.inf].sum())
    kept = (losses <= high) if upper else (losses >= low) & (losses < np.inf)
    losses, masses = np.clip(losses[kept], low, high), masses[kept]
    origin = float(losses[np.argmax(masses)])
    place = np.floor((losses - origin) / h)
    first = int(place.min())
    place = (place - first).astype(int)
    size = int(place.max()) + 2
    b = np.zeros_like(masses)
    if upper:
        below = origin + h * (first + place)
        b = np.clip(masses * np.expm1(below - losses) / np.expm1(-h), 0.0, masses)
    mass = np.bincount(place, masses - b, size) + np.bincount(place + 1, b, size)
    rounding = (4e-15 if upper else -4e-15) + 1.0
    return Discretised(origin, first, mass * rounding, infinite * rounding, 0.0)
