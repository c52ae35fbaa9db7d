"""The law of a mean of independent lognormals, from above and from below in convex order.

W = (1/t)Σᵢ exp(μzᵢ − μ²/2). Both δ(ε) of the pair that W is the density ratio of, E[(W − e^ε)₊]
and E[(1 − e^ε W)₊], are expectations of convex functions of W. A law that is larger in convex order
thus bounds both from above, one that is smaller both from below; and convex order survives adding
independent terms. So W is computed on a geometric grid by ⌈log₂ t⌉ doublings, and after each its
law is rounded to the grid

* from above: the mass between two grid points is split between them so that its mean stays;
* from below: the mass between two grid points is put at its mean (Jensen's inequality).

The distance to the truth falls with the square of the grid's ratio (derived for dpjax; Feldman and
Shenfeld 2026 round each term up or down by the whole ratio). What is cut off is charged: on the
left it is split between the lowest point and 0, on the right between the highest point and
infinity, which then has no mass and still a part of the mean.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from dpjax._numerics.arrays import EPS
from dpjax.accounting.pairs.on_grid import ndtr, normal_mass

_RATIO_POINTS = 1600
_LOOK = 100  # points of a first look, by which the grid's ends are chosen
_FARTHEST = 690.0  # |log W| beyond which values are cut, so that nothing overflows
_ROWS_AT_A_TIME = 256  # of a product that are multiplied out at a time


class RatioLaw(NamedTuple):
    """The law of W under Q, larger or smaller in convex order.

    Fields:
        ratio: its values, ascending and positive.
        mass: their masses; under P every value weighs W times as much.
        zero: mass at W = 0.
        beyond: the part of E[W] = 1 at infinity.
        off: bound on a relative error by rounding: of masses on a geometric grid, of values on an
            even lattice.
    """

    ratio: np.ndarray
    mass: np.ndarray
    zero: float
    beyond: float
    off: float = 0.0


def _grid(low: float, high: float, points: int) -> np.ndarray:
    low, high = max(low, -_FARTHEST), min(high, _FARTHEST)
    return np.linspace(low, max(high, low + 1e-300), points)


def _rounded(
    logs: np.ndarray, mass: np.ndarray, first: np.ndarray, zero: float, beyond: float, upper: bool
) -> RatioLaw:
    """A law of the masses and first moments of the cells of a grid.

    Args:
        logs: log of the grid's points.
        mass, first: of the values below the first point, between two points, beyond the last.
        zero, beyond: as of `RatioLaw`, besides those.
        upper: which way to round.
    """
    if not upper:
        kept = (mass > 0) & (first > 0)
        return RatioLaw(first[kept] / mass[kept], mass[kept], 0.0, 0.0)
    value = np.exp(logs)
    at = np.zeros(len(logs))
    inner, moment = mass[1:-1], first[1:-1]
    b = np.clip((moment - inner * value[:-1]) / (value[1:] - value[:-1]), 0.0, inner)
    at[:-1] += inner - b
    at[1:] += b
    lowest = min(first[0] / value[0], mass[0])
    at[0] += lowest
    at[-1] += mass[-1]
    zero += mass[0] - lowest
    beyond += max(first[-1] - mass[-1] * value[-1], 0.0)
    return RatioLaw(value, at, zero, beyond)


def _one(mu: float, points: int, reach: float, upper: bool) -> RatioLaw:
    """exp(μz − μ²/2) itself."""
    logs = _grid(-mu * reach - 0.5 * mu * mu, mu * reach + 0.5 * mu * mu, points)
    z = np.concatenate([[-np.inf], (logs + 0.5 * mu * mu) / mu, [np.inf]])
    mass, first = normal_mass(z), normal_mass(z - mu)
    lost = float(first[mass <= 0].sum())  # underflow
    law = _rounded(logs, mass, np.where(mass > 0, first, 0.0), 0.0, 0.0, upper)
    return law._replace(beyond=law.beyond + lost) if upper else law


def _trimmed(law: RatioLaw, rare: float) -> tuple[float, float]:
    """The values between which all but so much lies, of the masses and of the mean."""
    below = np.cumsum(law.mass) > rare
    above = np.cumsum((law.mass * law.ratio)[::-1])[::-1] > rare
    kept = law.ratio[below & above] if (below & above).any() else law.ratio
    return float(np.log(kept[0])), float(np.log(kept[-1]))


def _coarse(law: RatioLaw) -> RatioLaw:
    """The law on few points, for choices on which no bound rests."""
    width = -(-len(law.ratio) // _LOOK)
    starts = np.arange(0, len(law.ratio), width)
    mass = np.add.reduceat(law.mass, starts)
    first = np.add.reduceat(law.mass * law.ratio, starts)
    kept = (mass > 0) & (first > 0)
    return RatioLaw(first[kept] / mass[kept], mass[kept], law.zero, law.beyond)


def _sum(a: RatioLaw, b: RatioLaw, share: float, logs: np.ndarray, upper: bool) -> RatioLaw:
    """share·A + (1 − share)·B of independent A and B, rounded to a grid of even spacing."""
    size = len(logs) + 1
    low, h = logs[0], (logs[-1] - logs[0]) / (len(logs) - 1)
    mass, first = np.zeros(size), np.zeros(size)
    # A value of 0 is one more outcome.
    one, other = (
        (np.append(law.ratio, 0.0), np.append(law.mass, law.zero)) if law.zero else law[:2]
        for law in (a, b)
    )
    # A law with itself meets every pair of values twice.
    twice = a is b and share == 0.5
    # Written into again and again: new memory for every product takes three times as long.
    buffers = np.empty((3, _ROWS_AT_A_TIME * len(other[0])))
    for start in range(0, len(one[0]), _ROWS_AT_A_TIME):
        rows = slice(start, start + _ROWS_AT_A_TIME)
        columns = slice(start if twice else 0, None)
        x, y = one[0][rows, None], other[0][columns]
        value, weight, place = (part[: len(x) * len(y)] for part in buffers)
        shape = len(x), len(y)
        np.add(share * x, (1 - share) * y, out=value.reshape(shape))
        np.multiply(one[1][rows, None], other[1][columns], out=weight.reshape(shape))
        if twice:
            weight.reshape(shape)[:, _ROWS_AT_A_TIME:] *= 2.0
        with np.errstate(divide="ignore"):
            np.log(value, out=place)
        place -= low
        place /= h
        place += 1.0
        cell = np.clip(place, 0.0, size - 1.0, out=place).astype(np.intp)
        mass += np.bincount(cell, weight, size)
        weight *= value
        first += np.bincount(cell, weight, size)
    zero = a.zero * b.zero if upper else 0.0
    mass[0] = max(mass[0] - zero, 0.0)
    return _rounded(logs, mass, first, zero, share * a.beyond + (1 - share) * b.beyond, upper)


def _add(a: RatioLaw, b: RatioLaw, share: float, points: int, rare: float, upper: bool) -> RatioLaw:
    """The mean of both, on a grid whose ends are where a coarse look has its last mass."""
    few_a, few_b = _coarse(a), _coarse(b)
    low = np.log(share * few_a.ratio[0] + (1 - share) * few_b.ratio[0])
    high = np.log(share * few_a.ratio[-1] + (1 - share) * few_b.ratio[-1])
    look = _sum(few_a, few_b, share, _grid(low, high, 4 * _LOOK), False)
    return _sum(a, b, share, _grid(*_trimmed(look, rare), points), upper)


@functools.lru_cache(maxsize=128)
def mean_ratio(
    mu: float, steps: int, reach: float, upper: bool, points: int = _RATIO_POINTS
) -> RatioLaw:
    """The law of W from above or from below.

    Args:
        mu: μ.
        steps: t.
        reach: normal quantile beyond which mass is cut off, and charged.
        upper: which way to round.
        points: of the geometric grid.

    Example:
        >>> from dpjax.accounting.pairs.mean_ratio import mean_ratio
        >>> import numpy as np
        >>> laws = [mean_ratio(1.0, 20, 9.0, upper, 400) for upper in (False, True)]
        >>> ends = [np.maximum(w.ratio - np.exp(0.5), 0) @ w.mass for w in laws]
        >>> bool(ends[0] < 7.937e-3 < ends[1])  # by contour integration
        True
    """
    rare = float(ndtr(-reach))
    law, rounds = _mean(_one(mu, points, reach, upper), steps, points, rare, upper)
    return _add_slack(law, rounds, mu / np.sqrt(steps))


def _mean(one: RatioLaw, count: int, points: int, rare: float, upper: bool) -> tuple[RatioLaw, int]:
    """The mean of so many independent copies, by doublings, and how many roundings it took."""
    law, done, rounds = one, 1, 1
    for bit in f"{count:b}"[1:]:
        law = _add(law, law, 0.5, points, rare, upper)
        done, rounds = 2 * done, rounds + 1
        if bit == "1":
            law = _add(law, one, done / (done + 1), points, rare, upper)
            done, rounds = done + 1, rounds + 1
    return law, rounds


def _add_slack(law: RatioLaw, rounds: int, spread: float) -> RatioLaw:
    """The law with what rounding may have changed.

    A mean is off by a few units of roundoff a round, against a loss of the size of W's spread; the
    tails, far from it, lose no more than that of their own size.
    """
    slack = rounds * (1e-12 + 400 * EPS / min(spread, 1.0))
    kept = law.mass > 0
    return RatioLaw(law.ratio[kept], law.mass[kept], law.zero, law.beyond, float(slack))


def _times(a: RatioLaw, b: RatioLaw, points: int, rare: float) -> RatioLaw:
    """A·B of independent A and B from above: E f(AB) is convex in the law of either.

    What A has of its mean at infinity is there in AB times E[B] = 1, and the other way round.
    """

    def product(a: RatioLaw, b: RatioLaw, logs: np.ndarray, upper: bool) -> RatioLaw:
        low, h = logs[0], (logs[-1] - logs[0]) / (len(logs) - 1)
        log = np.add.outer(np.log(a.ratio), np.log(b.ratio)).ravel()
        weight, size = np.multiply.outer(a.mass, b.mass).ravel(), len(logs) + 1
        place = np.clip((log - low) / h + 1.0, 0.0, size - 1.0).astype(np.intp)
        mass = np.bincount(place, weight, size)
        first = np.bincount(place, weight * np.multiply.outer(a.ratio, b.ratio).ravel(), size)
        zero = a.zero + b.zero - a.zero * b.zero
        return _rounded(logs, mass, first, zero, a.beyond + b.beyond, upper)

    few_a, few_b = _coarse(a), _coarse(b)
    low, high = (float(np.log(few_a.ratio[k]) + np.log(few_b.ratio[k])) for k in (0, -1))
    look = product(few_a, few_b, _grid(low, high, 4 * _LOOK), False)
    return product(a, b, _grid(*_trimmed(look, rare), points), True)


@functools.lru_cache(maxsize=64)
def nested_ratio(
    parts: tuple[float, float, float], blocks: int, inner: int, reach: float, points: int = 700
) -> RatioLaw:
    """The law from above of a mean of blocks whose lognormals have a factor in common.

        e^{√a·z₀ − a/2}·mean over blocks of e^{√b·z_B − b/2}·mean within of e^{√c·z_{B,i} − c/2}

    Args:
        parts: (a, b, c), the variances that all share, that those of a block share, and of one.
        blocks, inner: how many blocks, and how many terms each has.
        reach: normal quantile beyond which mass is cut off, and charged.
        points: of the geometric grid.

    Example:
        >>> law, plain = nested_ratio((0.0, 0.0, 1.0), 4, 5, 9.0), mean_ratio(1.0, 20, 9.0, True)
        >>> ends = [np.maximum(w.ratio - np.exp(0.5), 0) @ w.mass for w in (plain, law)]
        >>> bool(0 <= ends[1] / ends[0] - 1 < 3e-3)
        True
    """
    rare, (shared, block, own) = float(ndtr(-reach)), parts
    law, rounds = _mean(_one(math.sqrt(own), points, reach, True), inner, points, rare, True)
    if block:
        law = _times(law, _one(math.sqrt(block), points, reach, True), points, rare)
    law, more = _mean(law, blocks, points, rare, True)
    if shared:
        law = _times(law, _one(math.sqrt(shared), points, reach, True), points, rare)
    spreads = [shared, block / blocks, own / (blocks * inner)]
    least = math.sqrt(min(v for v in spreads if v))
    return _add_slack(law, rounds + more + 2, least)
