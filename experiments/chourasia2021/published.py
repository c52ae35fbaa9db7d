"""What chourasia2021 states: formulas, and the settings of its figure."""

from __future__ import annotations

import math

# The figure's setting: α = 30, S_g = 4, n = 5000, σ = 0.02, η = 0.02, β = 4.
ORDER, SENSITIVITY, RECORDS, NOISE, STEP, SMOOTHNESS = 30.0, 4.0, 5_000, 0.02, 0.02, 4.0


def theorem1(steps: float, convexity: float, *, exponent_has_lambda: bool = True) -> float:
    """Corollary 1: ε = αS²/(λσ²n²)·(1 − e^{−ληK/2}); the introduction drops λ in the exponent.

    >>> round(theorem1(math.inf, 1.0), 4)
    0.048
    """
    rate = convexity if exponent_has_lambda else 1.0
    limit = ORDER * SENSITIVITY**2 / (convexity * NOISE**2 * RECORDS**2)
    return limit * -math.expm1(-rate * STEP * steps / 2.0)


def composition(steps: float) -> float:
    """ε of K composed steps: αηS²K/(4σ²n²).

    >>> round(composition(100), 4)
    0.024
    """
    return ORDER * STEP * SENSITIVITY**2 * steps / (4.0 * NOISE**2 * RECORDS**2)
