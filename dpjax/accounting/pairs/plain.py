"""The plain Gaussian pair, N(μ, 1) against N(0, 1), on grids; elsewhere its transform is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpjax.accounting.pairs.ratio import ndtr, normal_mass


class Plain:
    """N(μ, 1) against N(0, 1), its own mirror image: L = μy − μ²/2."""

    name = "gaussian"
    directed = folded = False

    def atom(self, mu: Any, rate: Any) -> Any:
        return 0.0

    def loss_range(self, sign: int, mu: float, rate: float, reach: float) -> tuple[float, float]:
        return mu * mu / 2 - reach * mu, mu * mu / 2 + reach * mu

    def masses(
        self, sign: int, mu: float, rate: float, losses: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float]:
        y = losses / mu + 0.5 * mu
        return normal_mass(y - mu), normal_mass(y), float(ndtr(mu - y[-1]))

    def origin(self, sign: int, mu: float, rate: float, h: float) -> tuple[float, bool]:
        return 0.0, False
