"""Claimed trade-off curves, against closed forms, mpmath and the accountant's own curve."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax import audit


def _least(mu, power):
    """Φ(Φ⁻¹(y) − μ) in 40 digits."""
    with mpmath.workdps(40):
        quantile = mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(power) - 1)
        return float(mpmath.ncdf(quantile - mpmath.mpf(mu)))


@pytest.mark.parametrize("mu", [0.0, 1e-6, 0.3, 2.0, 8.0])
@pytest.mark.parametrize("power", [1e-9, 0.02, 0.5, 0.97, 1 - 1e-9])
def test_the_gaussian_curve_is_its_closed_form_rounded_down(mu, power):
    found, truth = audit.GaussianCurve(mu).false_positives(power), _least(mu, power)
    assert found <= truth
    assert found == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("curve", [audit.GaussianCurve(1.0), audit.PiecewiseCurve(1.0, 1e-3)])
def test_a_curve_has_its_ends_and_is_convex_and_rises(curve):
    power = np.linspace(0.0, 1.0, 101)
    least = np.array([curve.false_positives(one) for one in power])
    assert least[0] == 0.0
    assert np.all(least <= power)
    assert np.all(np.diff(least) >= 0.0)
    assert np.all(np.diff(least, 2) >= -1e-12)


def test_the_other_direction_is_the_same_curve():
    # Exchange "in" and "out": a test of power y and error h(y) becomes one of 1 − h(y) and 1 − y.
    for curve in (audit.GaussianCurve(1.3), audit.PiecewiseCurve([0.5, 2.0], [0.1, 1e-3])):
        for power in (0.05, 0.4, 0.8):
            error = curve.false_positives(power)
            assert curve.false_positives(1.0 - error) <= 1.0 - power + 1e-9


@pytest.mark.parametrize("mu", [1e-7, 0.2, 1.0, 6.0])
def test_lines_of_a_gaussian_curve_lie_below_it_and_touch_it(mu):
    whole = audit.GaussianCurve(mu)
    lines = audit.PiecewiseCurve(*whole.lines(200))
    for power in (0.1, 0.5, 0.9):
        assert lines.false_positives(power) <= whole.false_positives(power)
        assert lines.false_positives(power) == pytest.approx(
            whole.false_positives(power), rel=0.02, abs=1e-6
        )


@pytest.mark.parametrize(
    "run",
    [
        acc.Gaussian(1.0),
        acc.Repeated(acc.PoissonSampled(acc.Gaussian(0.8), 0.25), 4),
        acc.Laplace(1.0),
    ],
)
def test_the_curve_of_a_run_lies_close_below_what_the_accountant_says(run):
    curve = audit.claimed_curve(run)
    for rate in (0.1, 0.4, 0.7):
        truth = float(acc.tradeoff(run, [rate])[0])
        assert curve.false_positives(1.0 - rate) <= truth + 1e-3
        assert curve.false_positives(1.0 - rate) >= 0.97 * truth - 2e-3


def test_what_hides_all_and_what_hides_nothing():
    assert audit.PiecewiseCurve(0.0, 0.0).false_positives(0.3) == pytest.approx(0.3)
    assert audit.PiecewiseCurve(0.0, 1.0).false_positives(0.99) == 0.0
    assert audit.PiecewiseCurve(1e6, 0.0).false_positives(0.99) == 0.0
    assert audit.GaussianCurve(math.inf).false_positives(0.99) == 0.0
    assert audit.GaussianCurve(0.0).lines() == (0.0, 0.0)
    assert audit.GaussianCurve(math.inf).lines() == (0.0, 1.0)


@pytest.mark.parametrize("mu", [-1.0, math.nan])
def test_mu_is_checked(mu):
    with pytest.raises(ValueError, match="mu must be at least 0"):
        audit.GaussianCurve(mu)


@pytest.mark.parametrize(
    ("epsilon", "delta", "said"),
    [
        (-1.0, 0.0, "epsilon must be"),
        (math.nan, 0.0, "epsilon must be"),
        (math.inf, 0.0, "epsilon must be"),
        (1.0, -1e-9, "delta must lie"),
        (1.0, 1.1, "delta must lie"),
        (1.0, math.nan, "delta must lie"),
        ([1.0, 2.0], [0.1], "as many of each"),
        ([], [], "as many of each"),
    ],
)
def test_lines_are_checked(epsilon, delta, said):
    with pytest.raises(ValueError, match=said):
        audit.PiecewiseCurve(epsilon, delta)


def test_the_number_of_points_is_checked():
    with pytest.raises(ValueError, match="points must be"):
        audit.claimed_curve(acc.Gaussian(1.0), points=0)
    with pytest.raises(ValueError, match="least_delta must lie"):
        audit.claimed_curve(acc.Gaussian(1.0), least_delta=0.0)
    assert audit.claimed_curve(acc.Gaussian(1.0), points=1).lines().epsilon.tolist() == [0.0]
