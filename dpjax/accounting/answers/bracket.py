"""The parameters nearest to the root of ε(parameter) = target, on either side of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpjax.accounting.answers.accepted import Ends

NOT_MONOTONE = "ε must rise or fall with the parameter of make_mechanism; it does both"


class Bracket:
    """The nearest parameters asked on either side of every root; NaN where there are none.

    Attributes:
        safe, dear: the last that keeps the budget, and the first that does not.
        cost_safe, cost_dear: ε there.
        points: all that were asked: logarithms of the parameters, and heights.
    """

    def __init__(self, ends: Ends, target: np.ndarray, rising: bool, at_least: Callable):
        self._ends, self._target, self._rising = ends, target, rising
        self._at_least = at_least
        self.sign = 1.0 if rising else -1.0  # ε rises with sign · log parameter
        self.safe, self.dear = (np.full(target.shape, np.nan) for _ in range(2))
        self.cost_safe = np.zeros(target.shape)
        self.cost_dear = np.full(target.shape, np.inf)
        self.points: list[tuple[np.ndarray, np.ndarray]] = []

    @property
    def limits(self) -> tuple[float, float]:
        """The parameters of least and of most ε, as far as they are known by now."""
        low, high = self._ends.low, self._ends.high
        return (low, high) if self._rising else (high, low)

    def note(self, value: np.ndarray, cost: np.ndarray) -> None:
        """Takes in that `value` costs `cost`."""
        sign, safe, dear = self.sign, self.safe, self.dear
        # Between two parameters a monotone ε lies between theirs; methods may differ by a little.
        less = (cost < 0.98 * self.cost_safe) & (sign * value > sign * safe)
        more = np.isfinite(cost) & (cost > 1.02 * self.cost_dear) & (sign * value < sign * dear)
        if np.any(less):
            self._refuse(np.where(less, safe, value), np.where(less, cost, np.inf))
        if np.any(more):
            self._refuse(value, np.where(more, self.cost_dear, np.inf))
        keep = (cost <= self._target) & ~(sign * value <= sign * safe)
        drop = ~(cost <= self._target) & ~(sign * value >= sign * dear)
        # No answer where a dearer parameter has one says nothing of ε: the search goes on outwards.
        void = np.isinf(cost) & np.isfinite(self.cost_dear) & np.isnan(safe)
        drop &= ~(void & (value != self.limits[0]))
        self.safe, self.cost_safe = (
            np.where(keep, value, safe),
            np.where(keep, cost, self.cost_safe),
        )
        self.dear, self.cost_dear = (
            np.where(drop, value, dear),
            np.where(drop, cost, self.cost_dear),
        )
        self.points.append((np.log(value), height(cost, self._target)))

    def _refuse(self, value: np.ndarray, most: np.ndarray) -> None:
        """ε at `value` should not be above `most`, which a parameter beyond it costs."""
        if np.any(self._at_least(value) > most):
            raise ValueError(NOT_MONOTONE)


def height(cost: np.ndarray, target: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):  # ε of 0 or infinity says no more than its sign
        return np.clip(np.log(cost) - np.log(target), -40.0, 40.0)
