"""Claimed trade-off curves, against closed forms, mpmath and the accountant's own curve."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

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
    lines = audit.PiecewiseCurve(*audit.GaussianCurve(mu).lines(200))
    for power in (0.1, 0.5, 0.9):
        truth = _least(mu, power)
        assert lines.false_positives(power) <= truth
        assert lines.false_positives(power) == pytest.approx(truth, rel=0.02, abs=1e-6)


def _least_of_laplace(rate):
    """The trade-off curve of Laplace noise of scale 1 (Dong, Roth and Su 2022, Lemma A.6)."""
    if rate < math.exp(-1) / 2:
        return 1.0 - math.e * rate
    return math.exp(-1) / (4 * rate) if rate <= 0.5 else math.exp(-1) * (1.0 - rate)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3, 0.5, 0.7, 0.95])
@pytest.mark.parametrize("noise", ["normal", "laplace"])
def test_the_curve_of_a_release_lies_close_below_its_closed_form(noise, rate):
    run = acc.Gaussian(1.0) if noise == "normal" else acc.Laplace(1.0)
    truth = _least(1.0, 1.0 - rate) if noise == "normal" else _least_of_laplace(rate)
    found = audit.claimed_curve(run).false_positives(1.0 - rate)
    assert 0.98 * truth - 4e-4 <= found <= truth


def test_the_curve_of_a_sampled_step_lies_below_both_directions():
    # Tests "score above a cut" of N(0, s²) against (1 − q)·N(0, s²) + q·N(1, s²), and exchanged.
    run = acc.PoissonSampled(acc.Gaussian(0.8), 0.25)
    curve = audit.claimed_curve(run, points=8, least_delta=1e-3)
    cut = np.linspace(-2.0, 4.0, 61)
    out = norm.sf(cut / 0.8)
    into = 0.75 * out + 0.25 * norm.sf((cut - 1.0) / 0.8)
    for one, other in zip(out, into, strict=True):
        assert curve.false_positives(other) <= one
        assert curve.false_positives(1.0 - one) <= 1.0 - other
    # Where the two directions differ, the claim is the smaller: close below it, not below both.
    for power in (0.3, 0.5, 0.8):
        added, removed = (
            np.interp(power, into[::-1], out[::-1]),
            np.interp(power, 1 - out, 1 - into),
        )
        assert curve.false_positives(power) >= 0.9 * min(added, removed)


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
