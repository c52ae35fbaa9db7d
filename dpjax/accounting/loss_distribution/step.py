"""One step's loss on a grid, rounded up or down.

A step is rounded upwards by connecting the dots: mass between two grid points is split so that P
and Q both keep theirs, and the privacy profile becomes its own chord in e^ε. What lies beyond the
grid on the right goes to an atom at +∞; on the left it is rounded up.

Downwards the chord serves too, where it overshoots little: with δ̃ the chord, δ̃(ε + η) ≤ δ(ε) for
every ε once (e^η − 1)Q(L > l_{k+2}) ≥ (e^h − 1)Q(bin k)/4 in every bin, because a convex
function's chord overshoots by at most a quarter of the interval times the change of slope. Bins
that would need a larger η are rounded down instead, and where most of the mass lies in one bin it
is lumped there exactly. The distance to the truth falls with h², not h (derived for dpjax).

References:
  Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, Algorithm 1 (connect the dots).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpjax.accounting.pairs.atoms import GRIDS
from dpjax.accounting.pairs.on_grid import ndtr
from dpjax.accounting.pairs.protocol import GridPair
from dpjax.accounting.pairs.uses import Discrete


class Pair(NamedTuple):
    """One kind of step: its pair, displacement over noise, sampling rate, multiplicity.

    Fields:
        family: the name of its pair in `pairs.atoms.GRIDS`, or the pair itself.
        sign: +1 for direction remove, −1 for add; only directed pairs look at it.
        mu, rate, count: as of `pairs.protocol.Steps`.
    """

    family: str | GridPair
    sign: int
    mu: float
    rate: float
    count: float


def _kind(pair: Pair) -> GridPair:
    return GRIDS[pair.family] if isinstance(pair.family, str) else pair.family


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


def loss_range(pair: Pair | Discrete, reach: float) -> tuple[float, float]:
    """Losses between which all of P lies but for what is as rare as normal tails beyond `reach`."""
    if isinstance(pair, Discrete):
        order = np.argsort(pair.losses)
        losses, masses = np.asarray(pair.losses)[order], np.asarray(pair.masses)[order]
        losses, masses = losses[losses < np.inf], masses[losses < np.inf]
        rare = float(ndtr(-reach))
        below, above = np.cumsum(masses) > rare, np.cumsum(masses[::-1])[::-1] > rare
        likely = losses[below & above] if (below & above).any() else losses
        return (float(likely[0]), float(likely[-1])) if len(likely) else (0.0, 0.0)
    return _kind(pair).loss_range(pair.sign, pair.mu, pair.rate, reach)


def discretise(
    pair: Pair | Discrete, h: float, reach: float = 9.0, *, upper: bool = True
) -> Discretised:
    """One step's loss on a grid of spacing h, rounded towards more loss or towards less.

    Mass beyond the normal quantile `reach` is cut off, and accounted for.
    """
    if isinstance(pair, Discrete):
        return _discretise_outcomes(pair, h, reach, upper)
    kind, own = _kind(pair), (pair.sign, pair.mu, pair.rate)
    side = getattr(kind, "side", None)  # of a `protocol.BoundedPair` pair
    kind = side(*own, reach, upper) if side else kind
    low, high = kind.loss_range(*own, reach)
    origin, lumped = kind.origin(*own, h)
    origin = origin if lumped else 0.0
    first, last = int(np.floor((low - origin) / h)), int(np.ceil((high - origin) / h))
    if kind.folded:
        first, last = min(first, -1), max(last, 1)
    last = max(last, first + 1)
    losses = origin + h * np.arange(first, last + 1)
    p, q, above = kind.masses(*own, losses)
    # The chord: a + b = p and a·e^{−l} + b·e^{−l−h} = q. A point with q = 0 is rounded up.
    with np.errstate(over="ignore", invalid="ignore"):
        b = (p - q * np.exp(losses[:-1])) / -np.expm1(-h)
    b = np.clip(np.where(np.isfinite(b), b, p), 0.0, p)
    mass = np.zeros(len(losses))
    atom = float(kind.atom(pair.mu, pair.rate))
    if upper:
        mass[:-1] += p - b
        mass[1:] += b
        mass[-first if atom else 0] += atom
        # All that is unaccounted for, the left tail and rounding, goes to the lowest point.
        mass[0] += max(0.0, 1.0 - above - mass.sum())
        return Discretised(origin, first, mass, above * (1 + 4e-12), 0.0)  # far out 4e-13 are lost
    mass[min(max(-first, 0), last - first)] += atom
    mass[-1] += above
    lump = np.zeros(len(p), bool)
    cell = slice(max(-first - 1, 0), max(min(-first + 1, len(p)), 0))
    lump[cell] = lumped and p[cell].sum() > 0.5
    mass[min(max(-first, 0), last - first)] += p[lump].sum()
    more, eta = _rounded_down(np.where(lump, 0.0, p), q, b, h)
    return Discretised(origin, first, (mass + more) * (1 - 2e-15), 0.0, eta)


def _rounded_down(p: np.ndarray, q: np.ndarray, b: np.ndarray, h: float) -> tuple:
    """The masses p of the bins between grid points: by the chord's share b, or all down; and η."""
    beyond = np.append(np.cumsum(q[::-1])[::-1][2:], [0.0, 0.0])[: len(q)]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        need = np.where((p > 0) & (b > 0), np.log1p(np.expm1(h) * q / (4 * beyond)), 0.0)
    need = np.where(np.isfinite(need), need, np.inf)
    # The best threshold weighs the shift of all mass against rounding the rest down by h/2.
    order = np.argsort(need)
    rounded = np.append(np.cumsum(p[order][::-1])[::-1][1:], 0.0) * h / 2
    cost = np.where(need[order] <= h, need[order], np.inf) + rounded
    eta = float(need[order][np.argmin(cost)]) if np.isfinite(cost.min()) else 0.0
    b = np.where((need <= eta) & (p > 0), b, 0.0)
    return np.append(p - b, 0.0) + np.append(0.0, b), eta


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
    below = origin + h * (first + place)
    b = np.clip(masses * np.expm1(below - losses) / np.expm1(-h), 0.0, masses)
    p, b = np.bincount(place, masses), np.bincount(place, b)
    rounding = (4e-15 if upper else -4e-15) + 1.0
    if upper:
        mass, eta = np.append(p - b, 0.0) + np.append(0.0, b), 0.0
    else:
        with np.errstate(over="ignore", under="ignore"):
            q = np.bincount(place, masses * np.exp(-losses))
        mass, eta = _rounded_down(p, q, b, h)
    return Discretised(origin, first, mass * rounding, infinite * rounding, eta)
