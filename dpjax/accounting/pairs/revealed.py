"""Several sampled pairs, of which a label drawn at random and released says which one was met.

By joint convexity a step is dominated by what somebody sees who is told more than it releases: here
a label that has the same law on both sides, and then one pair of displacement and rate. Its masses
between losses are the weighted sums of the pairs' own.

References:
  Balle, Barthe, Gaboardi 2018 (joint convexity).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpjax.accounting.pairs.on_grid import ndtr
from dpjax.accounting.pairs.protocol import GridPair, Masses

_REVEALED = 1e-3  # of what may lie beyond the grid: labels rarer than that reveal everything


def is_rare(weight: np.ndarray, reach: float) -> np.ndarray:
    """Which weights, from the least on, are together less than what a grid leaves out."""
    order, found = np.argsort(weight), np.zeros(len(weight), bool)
    found[order[np.cumsum(weight[order]) <= _REVEALED * float(ndtr(-reach))]] = True
    return found


class LabelledPart(NamedTuple):
    """One label: its probability, and the displacement and rate of its pair."""

    weight: float
    mu: float
    rate: float


class RevealedMixture(GridPair):
    """Σ weight·pair(μ, rate) over the parts; its own numbers count.

    Probabilities that are rounded up make an upper bound. `revealed` is the probability of labels
    that stand in no part, which are taken to reveal everything.
    """

    def __init__(self, pair: GridPair, parts: list[LabelledPart], revealed: float = 0.0) -> None:
        self._pair = pair
        self._parts = [part for part in parts if part.weight > 0 and part.rate > 0]
        self._revealed = revealed
        self.name, self.directed, self.folded = pair.name, pair.directed, pair.folded

    def atom(self, mu: float, rate: float) -> float:
        return sum(p.weight * float(self._pair.atom(p.mu, p.rate)) for p in self._parts)

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        from scipy.special import ndtri

        rare = float(ndtr(-reach))
        ends = []
        for part in self._parts:
            # As far as this label's own share of the tail.
            own = -float(ndtri(min(rare / part.weight, 0.5)))
            ends.append(self._pair.loss_range(sign, part.mu, part.rate, min(own, reach)))
        if not ends:
            return 0.0, 0.0
        return min(low for low, _ in ends), max(high for _, high in ends)

    def masses(self, sign: int, mu: float, rate: float, losses: np.ndarray) -> Masses:
        p, q = np.zeros(len(losses) - 1), np.zeros(len(losses) - 1)
        above = self._revealed
        for part in self._parts:
            found = self._pair.masses(sign, part.mu, part.rate, losses)
            p, q = p + part.weight * found[0], q + part.weight * found[1]
            above += part.weight * found[2]
        return p, q, float(above)

    def origin(self, sign: int, mu: float, rate: float, h: float) -> tuple[float, bool]:
        if len(self._parts) == 1 and not self._revealed:
            return self._pair.origin(sign, self._parts[0].mu, self._parts[0].rate, h)
        return super().origin(sign, mu, rate, h)


def labelled(
    pair: GridPair, mu: float, j: np.ndarray, weight: np.ndarray, off: float, reach: float
) -> RevealedMixture:
    """j copies at displacement jμ, each at the rate of any: rounded up.

    Args:
        pair: of one copy's displacement and rate.
        mu: that displacement.
        j, weight: numbers of copies, 0 first, and their probabilities, rounded towards more.
        off: bound on the relative error of the probabilities.
        reach: normal quantile beyond which mass is cut.
    """
    any_ = float(weight[1:].sum())
    rate = min(any_ * (1 + off), 1.0)
    own = weight[1:] / any_ * (1 + 3 * off)
    rare = is_rare(own, reach)
    parts = [LabelledPart(float(own[i]), float(j[1:][i] * mu), rate) for i in np.flatnonzero(~rare)]
    return RevealedMixture(pair, parts, rate * float(own[rare].sum()))
