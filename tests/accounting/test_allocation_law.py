"""The law of random allocation's density ratio from above and from below, against quadrature."""

from __future__ import annotations

import numpy as np
import pytest

from dpjax.accounting.pairs.allocation import ALLOCATION
from tests.accounting.allocation_truth import delta_of_two


def _delta(sigma, steps, epsilon, sign, upper, goal=1e-6):
    found = ALLOCATION.outcomes(sign, 1 / sigma, 1 / steps, goal, upper)
    mass = found.mass * (1 + found.slack)
    return mass @ np.maximum(-np.expm1(epsilon - found.losses), 0) + found.infinite


@pytest.mark.parametrize("epsilon", [0.02, 0.2])
@pytest.mark.parametrize("sigma", [0.9, 2.0, 8.0])
def test_two_steps(sigma, epsilon):
    for sign, exact in zip((1, -1), delta_of_two(sigma, epsilon), strict=True):
        low, high = (_delta(sigma, 2, epsilon, sign, upper) for upper in (False, True))
        assert low <= exact <= high
        assert high - low <= 1e-2 * exact


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 20), (0.8, 1_000), (3.0, 10_000)])
def test_the_two_laws_are_in_order(sigma, steps):
    spread = np.sqrt(np.expm1(sigma**-2) / steps)
    for sign in (1, -1):
        for share in (0.5, 1.0, 2.0, 4.0):
            epsilon = share * spread
            low = _delta(sigma, steps, epsilon, sign, False)
            high = _delta(sigma, steps, epsilon, sign, True)
            assert 0 < low <= high
            # The width in ε; far out the other direction, which is less, is wider.
            if sign > 0 or share < 4:
                assert _delta(sigma, steps, epsilon * (1 + 1e-3), sign, True) <= low
