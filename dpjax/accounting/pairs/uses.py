"""Loss distributions with finitely many values: of releases whose pair is known, used many times.

Few outcomes are multiplied out: two by the binomial law, a few more by the multinomial one, and
different releases with each other. What has too many is left to the transform
(`loss_distribution.grid`), which takes such losses as they are.

References:
  Kairouz, Oh, Viswanath 2017; Zhu, Dong, Wang 2022, Theorem 10 (adaptive composition of
  dominating pairs).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dpjax._numerics.arrays import EPS
from dpjax.accounting.pairs.finite import Finite, coarsen, reverse, sample_pair, symmetrise
from dpjax.accounting.pairs.guarantee import Guarantee
from dpjax.accounting.pairs.protocol import Release, SampledRelease

_MOST_PRODUCTS = (
    1 << 16
)  # outcomes up to which discrete losses are multiplied out instead of transformed
_MOST_USES = 1e10  # uses, whose four million losses fit in memory
_UNDERFLOW = 1e-280  # bounds what binomial masses lose to underflow and to the cut tails
_RARE_MASS = 1e-3  # mass of a third outcome that is moved to its neighbours instead of transformed


class Discrete(NamedTuple):
    """A loss distribution with finitely many values; Q has masses·e^{−losses} there.

    Fields:
        losses: log P/Q of each outcome, +∞ where Q has no mass.
        masses: their probabilities under P.
        count: how many such steps there are.
        exact: whether the mass at +∞ is a number that was given, neither computed nor rounded.
    """

    losses: np.ndarray
    masses: np.ndarray
    count: float = 1.0
    exact: bool = False


def repeat_release(
    known: SampledRelease, count: float, *, sign: int = 1, upper: bool = True
) -> Discrete:
    """The loss of `count` uses of one release, rounded towards more loss or towards less.

    Args:
        known: the release and its sampling, in numbers.
        count: how often, a whole number >= 1.
        sign: +1 for (with the record, without it), −1 for the reverse.
        upper: which way to round. A lower bound says nothing where no neighbours are known to
            attain the sampled pair.
    """
    if not (upper or known.rate == 1 or known.release.sampled):
        return _nothing(upper)
    assert isinstance(known.release, Release)  # what is laid on a grid has no list of outcomes
    with np.errstate(over="ignore", under="ignore"):
        pair = known.release.pair(known.numbers, upper=upper)
        # A promise's δ is the number given; what a release or its sample computes is rounded up.
        exact = upper and bool(known.rate == 1) and isinstance(known.release, Guarantee)
        both = known.symmetric and upper
        pair = (symmetrise if both else sample_pair)(pair, float(known.rate))
        pair = coarsen(reverse(pair) if sign < 0 else pair, upper=upper)
        return compose_uses(pair, count, upper=upper, exact=exact)


def _nothing(upper: bool) -> Discrete:
    """One loss that says nothing."""
    return Discrete(np.array([np.inf if upper else 0.0]), np.ones(1))


def compose_uses(pair: Finite, count: float, *, upper: bool, exact: bool = False) -> Discrete:
    """The loss of `count` uses of a pair.

    With two finite losses the sum is binomial, and its masses follow from their ratios. A rare
    third one at either end is moved to its neighbours: for an upper bound to the one above, or
    along the chord between the one below and +∞; for a lower one down. One use keeps the mass at +∞
    as it is where that is `exact`.

    Returns:
        Multiplied out, with count 1, where there are few outcomes (of two at most
        √(1380·count) + 6, beyond 1e10 uses a loss that says nothing); otherwise one use and its
        count.
    """
    losses, masses = np.asarray(pair.losses), np.asarray(pair.p)
    infinite = float(masses[losses == np.inf].sum())  # outcomes that Q never gives
    kept = (masses > 0) & np.isfinite(losses)
    losses, masses = losses[kept], masses[kept]
    if not len(losses):
        losses, masses = np.zeros(1), np.zeros(1)
    losses, place = np.unique(losses, return_inverse=True)
    masses = np.bincount(place, masses)
    if infinite == 0 and not losses.any():
        return Discrete(np.zeros(1), np.ones(1))  # nothing is released
    if count * np.abs(losses).max() > 1e300:
        return _nothing(upper)
    if len(losses) > 2 and count * len(losses) <= 4 * _MOST_PRODUCTS:
        ways = math.comb(int(count) + len(losses) - 1, len(losses) - 1)  # multisets of losses
        if count > 1 and ways <= _MOST_PRODUCTS:
            return _multinomial(losses, masses, infinite, int(count), upper)
    dropped = 0.0
    if len(losses) == 3 and count > 1 and masses[0] <= _RARE_MASS:
        dropped = 0.0 if upper else masses[0]
        masses = np.array([masses[1] + masses[0] - dropped, masses[2]])
        losses = losses[1:]
    elif len(losses) == 3 and count > 1 and masses[2] <= _RARE_MASS:
        # the chord of e^{−loss} between the loss below and +∞
        stays = masses[2] * (np.exp(losses[1] - losses[2]) if upper else 1.0)
        infinite += masses[2] - stays
        masses = np.array([masses[0], masses[1] + stays])
        losses = losses[:2]
    if len(losses) > 2 or count == 1:
        slack = 1 + (4 if upper else -4) * EPS  # of a mass and its product with the rate
        exact = exact and count == 1
        masses = np.append(masses * slack, infinite if exact else infinite * slack)
        return Discrete(np.append(losses, np.inf), masses, float(count), exact)
    if count > _MOST_USES:
        return _nothing(upper)
    return _two(losses, masses, infinite, infinite + dropped, count, upper)


def _two(
    losses: np.ndarray, masses: np.ndarray, infinite: float, dead: float, count: float, upper: bool
) -> Discrete:
    """Sums of two losses; `dead` is the mass that is in neither."""
    low, high = losses[0], losses[-1]
    odds = (masses[1] / masses[0] if masses[0] > 0 else np.inf) if len(losses) == 2 else 0.0
    first, mass = binomial(count, odds)
    slack = 12 * EPS * (len(mass) + count * min(dead, 1.0)) * (1 if upper else -1)
    mass = mass * (np.exp(count * np.log1p(-dead)) if dead < 1 else 0.0) * (1 + slack)
    # 1 − (1 − m)^n: at least one infinite loss
    beyond = (-np.expm1(count * np.log1p(-infinite)) if infinite < 1 else 1.0) * (1 + slack)
    j = first + np.arange(len(mass))
    total = j * high + (count - j) * low
    # rounding of two products and a sum, on the safe side
    total += np.sign(slack) * 8 * EPS * (j * abs(high) + (count - j) * abs(low))
    if upper:
        beyond += _UNDERFLOW
    else:
        mass = np.where(mass > _UNDERFLOW, mass, 0.0)
    return Discrete(np.append(total, np.inf), np.append(mass, beyond))


def _multinomial(
    losses: np.ndarray, masses: np.ndarray, infinite: float, count: int, upper: bool
) -> Discrete:
    """Every way to use a few outcomes `count` times, equal ones counted once."""
    bars = itertools.combinations(range(count + len(losses) - 1), len(losses) - 1)
    bars = np.array(list(bars), float)
    ends = np.full((len(bars), 1), count + len(losses) - 1.0)
    often = np.diff(np.concatenate([np.full((len(bars), 1), -1.0), bars, ends], axis=1)) - 1
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, count + 1)))])
    terms = often * np.log(masses) - logs[often.astype(int)]  # log of Π m_i^{k_i}/k_i!
    rounding = 8 * EPS * (logs[-1] + np.abs(terms).sum(axis=1) + 4)
    slack = 1 + (rounding if upper else -rounding)
    mass = np.exp(logs[-1] + terms.sum(axis=1)) * slack
    total = often @ losses + (8 if upper else -8) * EPS * (often @ np.abs(losses))
    beyond = (-np.expm1(count * np.log1p(-infinite)) if infinite < 1 else 1.0) * (
        1 + 8 * EPS if upper else 1 - 8 * EPS
    )
    return Discrete(
        np.append(total, np.inf), np.append(mass, beyond + (_UNDERFLOW if upper else 0))
    )


def binomial(count: float, odds: float) -> tuple[float, np.ndarray]:
    """The binomial law by the ratios of its masses, from the mode outwards; its first place.

    What is left out has mass at most 2e^{−690} (Hoeffding 1963, Theorem 2).
    """
    share = odds / (1 + odds) if odds < np.inf else 1.0
    mode = min(np.floor((count + 1) * share), count)
    reach = np.ceil(np.sqrt(345.0 * count)) + 2
    up = np.arange(mode, min(count, mode + reach))
    down = np.arange(mode, max(0.0, mode - reach), -1.0)
    with np.errstate(under="ignore"):
        above = np.cumprod((count - up) / (up + 1) * odds)  # P(j+1)/P(j) = (n−j)/(j+1)·odds
        below = np.cumprod(down / (count - down + 1) / odds)
    mass = np.concatenate([below[::-1], [1.0], above])
    return mode - len(below), mass / mass.sum()


def convolve(parts: Iterable[Discrete]) -> list[Discrete]:
    """The same independent losses with as many as possible multiplied out, which is exact."""
    parts = list(parts)
    found: list[Discrete] = []
    for part in sorted((p for p in parts if p.count == 1), key=lambda part: len(part.losses)):
        if found and len(found[-1].losses) * len(part.losses) <= _MOST_PRODUCTS:
            last = found.pop()
            part = Discrete(
                # independent: losses add, masses multiply
                np.add.outer(last.losses, part.losses).ravel(),
                np.multiply.outer(last.masses, part.masses).ravel(),
            )
        found.append(part)
    return [*found, *(part for part in parts if part.count != 1)]
