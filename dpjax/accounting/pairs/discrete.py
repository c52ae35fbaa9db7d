"""Pairs with few outcomes: releases of which only an (ε, δ) guarantee is known.

Every (ε, δ)-private release is a randomised function of one with four outcomes (Kairouz, Oh and
Viswanath 2017, Theorem 3.1 with its section 5), so that this pair, which is itself (ε, δ)-private,
dominates all of them, alone and composed:

| outcome | with the record, M₁ | without it, M₀ | log M₁/M₀ |
|---|---|---|---|
| a | δ | 0 | +∞ |
| b | (1−δ)e^ε/(1+e^ε) | (1−δ)/(1+e^ε) | ε |
| c | (1−δ)/(1+e^ε) | (1−δ)e^ε/(1+e^ε) | −ε |
| d | 0 | δ | −∞ |

Poisson sampling at rate q under add/remove: the function that makes the release from the four
outcomes is the same for (1−q)M₀ + qM₁ as for M₀, so that this pair dominates, in either direction,
and is attained by sampling the four outcomes themselves (derived for dpjax). Its largest loss is
log(1 + q(e^ε − 1)), as in Balle, Barthe and Gaboardi 2018, Theorem 8. Fixed batches under
replace-one are (log(1 + q(e^ε − 1)), qδ)-private (the same, Theorem 9), which is the upper bound;
the sampled pair, for a record among others that are all alike, is the lower one.

References:
  Kairouz, Oh, Viswanath 2017; Balle, Barthe, Gaboardi 2018; Zhu, Dong, Wang 2022, Theorem 10
  (adaptive composition of dominating pairs).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import (
    ApproximateDP,
    FixedBatchSampled,
    Mechanism,
    PoissonSampled,
    PureDP,
    Shuffled,
)
from dpjax.accounting.pairs.ratio import log_mixture

_EPS = float(np.finfo(np.float64).eps)
_LARGEST = 1 << 16  # outcomes up to which discrete losses are multiplied out instead of transformed
_MOST = 1e10  # uses, whose four million losses fit in memory
_UNDERFLOW = 1e-280  # bounds what binomial masses lose to underflow and to the cut tails


class Discrete(NamedTuple):
    """A loss distribution with finitely many values; Q has masses·e^{−losses} there.

    Fields:
        losses: log P/Q of each outcome, +∞ where Q has no mass.
        masses: their probabilities under P.
        count: how many such steps there are.
    """

    losses: Any
    masses: Any
    count: float = 1.0


class Guarantee(NamedTuple):
    """What is known of a release: the ε and δ of the mechanism, and the rate it samples at."""

    epsilon: Any
    delta: Any
    rate: Any


def guarantee(step: Mechanism, adjacency: Adjacency) -> Guarantee | None:
    """The guarantee by which one step is priced; None where no theorem gives one.

    A guarantee holds for its stated adjacency alone. Poisson sampling amplifies those of
    add/remove, fixed batches those of replace-one, and a pass over disjoint batches costs what one
    of them costs.
    """
    if isinstance(step, PureDP | ApproximateDP):
        if step.adjacency != adjacency:
            return None
        return Guarantee(step.epsilon, getattr(step, "delta", 0.0), 1.0)
    poisson = isinstance(step, PoissonSampled) and adjacency is Adjacency.ADD_REMOVE
    fixed = isinstance(step, FixedBatchSampled) and adjacency is Adjacency.REPLACE_ONE
    if not (poisson or fixed or isinstance(step, Shuffled)):
        return None
    inner = guarantee(step.mechanism, adjacency)  # pyrefly: ignore
    if inner is None or isinstance(step, Shuffled):
        return inner
    if poisson:
        return inner._replace(rate=inner.rate * step.rate)  # pyrefly: ignore
    if isinstance(step.mechanism, FixedBatchSampled):  # a batch of a batch
        return None
    return inner._replace(rate=step.batch_size / step.population)  # pyrefly: ignore


def repeated(
    known: Guarantee, count: float, *, sign: int = 1, symmetric: bool = False, upper: bool = True
) -> Discrete:
    """The loss of `count` uses of one guarantee, rounded towards more loss or towards less.

    With outcomes b and c alone the sum of the losses is binomial, and its masses follow from their
    ratios. Outcome a ends at +∞; outcome d, which matters only when sampling and has mass at most
    δ, is moved to its neighbours: along the chord between them for an upper bound, down for a lower
    one.

    Args:
        known: ε, δ and sampling rate, as numbers.
        count: how often, a whole number >= 0.
        sign: +1 for (with the record, without it), −1 for the reverse.
        symmetric: the pair of the (log(1 + q(e^ε − 1)), qδ) guarantee instead of the sampled one,
            for fixed batches.
        upper: which way to round.

    Returns:
        At most 2√(345·count) + 6 losses, ascending, the last one +∞; beyond 1e10 uses one loss that
        says nothing.
    """
    epsilon, delta, rate = (float(v) for v in known)
    if symmetric:
        epsilon, delta, rate = float(log_mixture(epsilon, rate)), rate * delta, 1.0
    likely, rare = 1 / (1 + np.exp(-epsilon)), np.exp(-epsilon) / (1 + np.exp(-epsilon))
    rise, fall = float(log_mixture(epsilon, rate)), -float(log_mixture(-epsilon, rate))
    if sign > 0:
        high, high_mass = rise, (1 - delta) * ((1 - rate) * rare + rate * likely)
        low, low_mass = -fall, (1 - delta) * ((1 - rate) * likely + rate * rare)
        infinite = rate * delta
        # Outcome d has the least loss, log(1 − q): up to outcome c, or left out.
        low_mass += (1 - rate) * delta if upper else 0.0
        dead = infinite if upper else delta
    else:
        high, low, low_mass = fall, -rise, (1 - delta) * rare
        # Outcome d has the largest loss, −log(1 − q), and mass (1 − q)δ under Q. The chord between
        # the loss below it and +∞ keeps both masses.
        stays = (1 - rate) / (1 - rate + rate * np.exp(-epsilon)) if rate < 1 else 0.0
        stays = 1.0 if rate < 1 and not upper else stays
        high_mass = (1 - delta) * likely + stays * delta
        infinite = dead = (1 - stays) * delta
    if count > _MOST or count * max(abs(high), abs(low)) > 1e300:
        return Discrete(np.array([np.inf if upper else 0.0]), np.ones(1))  # says nothing
    first, mass = _binomial(count, high_mass / low_mass if low_mass > 0 else np.inf)
    slack = 12 * _EPS * (len(mass) + count * min(dead, 1.0)) * (1 if upper else -1)
    mass = mass * (np.exp(count * np.log1p(-dead)) if dead < 1 else 0.0) * (1 + slack)
    beyond = (-np.expm1(count * np.log1p(-infinite)) if infinite < 1 else 1.0) * (1 + slack)
    j = first + np.arange(len(mass))
    losses = j * high + (count - j) * low
    losses += np.sign(slack) * 8 * _EPS * (j * abs(high) + (count - j) * abs(low))
    if upper:
        beyond += _UNDERFLOW
    else:
        mass = np.where(mass > _UNDERFLOW, mass, 0.0)
    return Discrete(np.append(losses, np.inf), np.append(mass, beyond))


def _binomial(count: float, odds: float) -> tuple[float, np.ndarray]:
    """The binomial law by the ratios of its masses, from the mode outwards; its first place.

    What is left out has mass at most 2e^{−690} (Hoeffding 1963, Theorem 2).
    """
    share = odds / (1 + odds) if odds < np.inf else 1.0
    mode = min(np.floor((count + 1) * share), count)
    reach = np.ceil(np.sqrt(345.0 * count)) + 2
    up = np.arange(mode, min(count, mode + reach))
    down = np.arange(mode, max(0.0, mode - reach), -1.0)
    with np.errstate(under="ignore"):
        above = np.cumprod((count - up) / (up + 1) * odds)
        below = np.cumprod(down / (count - down + 1) / odds)
    mass = np.concatenate([below[::-1], [1.0], above])
    return mode - len(below), mass / mass.sum()


def merged(parts: Iterable[Discrete]) -> list[Discrete]:
    """The same independent losses with as many as possible multiplied out, which is exact."""
    found: list[Discrete] = []
    for part in sorted(parts, key=lambda part: len(part.losses)):
        if found and len(found[-1].losses) * len(part.losses) <= _LARGEST:
            last = found.pop()
            part = Discrete(
                np.add.outer(last.losses, part.losses).ravel(),
                np.multiply.outer(last.masses, part.masses).ravel(),
            )
        found.append(part)
    return found


def delta_of(pair: Discrete, epsilon: float) -> float:
    """δ(ε) = Σ mass·(1 − e^{ε − loss})₊, within a few units of roundoff a term."""
    gap = np.minimum(epsilon - np.asarray(pair.losses), 0.0)
    return float(np.sum(pair.masses * (0.0 - np.expm1(gap))))  # 0 − 0 is 0, and −(0) is not


def epsilon_of(pair: Discrete, delta: float) -> float:
    """The least ε >= 0 with δ(ε) ≤ δ, +∞ if there is none.

    Newton's method from the left: δ(ε) is convex and piecewise linear in e^ε, so that the steps
    never pass the root and end on its piece.
    """
    losses, masses = np.asarray(pair.losses), np.asarray(pair.masses)
    if masses[losses == np.inf].sum() > delta:
        return np.inf
    finite = losses < np.inf
    epsilon, largest = 0.0, float(losses[finite].max())
    for _ in range(500):
        gap = delta_of(Discrete(losses, masses), epsilon) - delta
        if gap <= 0 or epsilon >= largest:
            break
        above = finite & (losses > epsilon)
        slope = float(np.sum(masses[above] * np.exp(epsilon - losses[above])))
        step = np.log1p(gap / slope) if slope > 0 else np.inf
        epsilon = min(epsilon + max(step, 4 * _EPS * epsilon), largest)
    return float(epsilon)
