"""A loss distribution with finitely many outcomes, laid on grids like any other pair."""

from __future__ import annotations

import dataclasses

import numpy as np

from dpjax.accounting.pairs.pair import Atoms, concrete_atoms
from dpjax.accounting.pairs.protocol import GridPair, Masses

_MOST_OUTCOMES = 1200  # outcomes that a contour takes


@dataclasses.dataclass(frozen=True, eq=False)
class Outcomes(GridPair):
    """Losses with their masses, of one direction.

    Fields:
        losses: log P/Q of each outcome, ascending.
        mass: their probabilities under P; Q has mass·e^{−losses}.
        infinite: probability under P of an infinite loss.
        slack: what rounding may have changed the masses by, relative: added to an upper bound,
            negative and thereby taken off a lower one.
        never: probability under Q of the outcomes that P never gives.
    """

    losses: np.ndarray
    mass: np.ndarray
    infinite: float
    slack: float
    never: float = 0.0

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        return float(self.losses[0]), float(self.losses[-1])

    def masses(self, sign: int, mu: float, rate: float, losses: np.ndarray) -> Masses:
        place = np.searchsorted(losses, self.losses, side="right") - 1
        place = np.where(self.losses == losses[-1], len(losses) - 2, place)
        inside, above = (place >= 0) & (place < len(losses) - 1), place >= len(losses) - 1
        mass = self.mass * (1 + self.slack)  # towards the side that is bounded
        at, size = place[inside], len(losses) - 1
        p = np.bincount(at, mass[inside], size)  # by the cell below each loss
        q = np.bincount(at, mass[inside] * np.exp(-self.losses[inside]), size)
        return p, q, float(mass[above].sum() + self.infinite * (1 + self.slack))

    def rough(self) -> Atoms:
        """Return about the same outcomes, fewer, to choose by; no bound rests on them."""
        ends = np.linspace(self.losses[0], self.losses[-1], 400)
        start = np.unique(np.searchsorted(self.losses, ends))
        mass = np.add.reduceat(self.mass, start) + 1e-300
        loss = np.add.reduceat(self.mass * self.losses, start) / mass
        return concrete_atoms(loss, mass, self.infinite)

    def few(self, tilt: float, upper: bool, most: int = _MOST_OUTCOMES) -> Atoms:
        """Return few outcomes, a larger pair or a smaller one; fine where e^{tilt·loss} weighs.

        SPLIT: δ(ε) = Σ(p − e^ε q)₊ is convex in the p and q of an outcome, which may thus be split
        between the ends of its cell where both keep their sums: the share that goes up is
        (1 − e^{a−l})/(1 − e^{a−b}). From below all of a cell become one outcome, as a function of
        them. What P lacks of 1 goes to the least loss: δ grows with the law of the loss under P.
        """
        slack = 1 + self.slack
        n, loss, mass = len(self.losses), self.losses, self.mass * slack
        size = np.log(np.maximum(mass, 1e-300)) + tilt * loss
        # A chord is off by width³ times the density, which is to be about the same everywhere.
        width = np.cbrt(np.diff(loss, append=loss[-1])) ** 2
        share = np.exp((size - size.max()) / 3) * width
        place = np.cumsum(share / max(share.sum(), 1e-300) + 0.1 / n)
        edge = np.searchsorted(place, np.linspace(0.0, place[-1], most)[1:-1])
        edge = np.unique(np.concatenate([[0], edge, [n - 1]]))
        start, often = loss[edge], np.diff(edge, append=n)
        gone = -np.expm1(np.repeat(start, often) - loss)
        # Rounding of a sum of up to n terms, and of its terms.
        way = 1 + (4 * n if upper else -4 * n) * 2.0**-53
        p, gone = (np.add.reduceat(v, edge) for v in (mass, mass * gone))
        infinite = self.infinite * slack
        if upper:
            up = np.minimum(gone[:-1] / -np.expm1(start[:-1] - start[1:] - 1e-300), p[:-1])
            masses, values = p * way, start
            masses[:-1] -= up / way
            masses[1:] += up * way
            masses[0] += max(1 - infinite - masses.sum(), 0.0) + 1e-14
        else:
            p, infinite = p * way, 0.0
            masses, values = p, start - np.log1p(-gone / np.maximum(p, 1e-300) * way**2)
        good = masses > 0
        return concrete_atoms(values[good], masses[good], infinite, self.never)
