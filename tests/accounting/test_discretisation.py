"""The discretised loss of one step keeps its mass, however narrow or wide its range."""

from __future__ import annotations

import numpy as np
import pytest

from dpjax.accounting.loss_distribution import step


@pytest.mark.parametrize("family", ["poisson", "replace", "symmetrised"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("mu", [1e-13, 1e-9, 1.0, 50.0])
def test_mass_is_kept_above_and_not_exceeded_below(family, sign, mu):
    pair = step.Pair(family, sign, mu, 0.25, 100)
    low, high = step.loss_range(pair, 9.0)
    # With little noise the loss of the reverse direction is −log(1 − q), to rounding: one cell.
    up, down = (
        step.discretise(pair, max((high - low) / 1000, 1e-12), upper=upper)
        for upper in (True, False)
    )
    assert up.mass.sum() + up.infinite == pytest.approx(1.0, abs=1e-12)
    assert np.all(up.mass >= 0)
    assert np.all(down.mass >= 0)
    assert 0 < down.mass.sum() <= 1.0
