"""A loss distribution with finitely many outcomes, laid on grids like any other pair."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Outcomes(NamedTuple):
    """Losses with their masses; a pair as `protocol.Discretisable` describes it, of one direction.

    Fields:
        losses: log P/Q of each outcome, ascending.
        mass: their probabilities under P; Q has mass·e^{−losses}.
        infinite: probability under P of an infinite loss.
        slack: what rounding may have changed the masses by, relative: added to an upper bound,
            negative and thereby taken off a lower one.
    """

    losses: np.ndarray
    mass: np.ndarray
    infinite: float
    slack: float

    name = "outcomes"
    directed = folded = False

    def atom(self, mu: Any, rate: Any) -> Any:
        return 0.0

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        return float(self.losses[0]), float(self.losses[-1])

    def masses(
        self, sign: int, mu: float, rate: float, losses: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float]:
        place = np.searchsorted(losses, self.losses, side="right") - 1
        place = np.where(self.losses == losses[-1], len(losses) - 2, place)
        inside, above = (place >= 0) & (place < len(losses) - 1), place >= len(losses) - 1
        mass = self.mass * (1 + self.slack)
        at, size = place[inside], len(losses) - 1
        p = np.bincount(at, mass[inside], size)
        q = np.bincount(at, mass[inside] * np.exp(-self.losses[inside]), size)
        return p, q, float(mass[above].sum() + self.infinite * (1 + self.slack))

    def origin(self, sign: int, mu: float, rate: float, h: float) -> tuple[float, bool]:
        return 0.0, False
