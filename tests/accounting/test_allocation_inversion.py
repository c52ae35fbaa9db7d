"""Large moments of random allocation by inversion: against exact sums, the series and the rays."""

from __future__ import annotations

import numpy as np
import pytest

from dpjax.accounting.pairs import allocation_inversion as inversion
from dpjax.accounting.pairs import allocation_moments as moments
from dpjax.accounting.pairs import allocation_series as series
from dpjax.accounting.pairs import allocation_transform as transform


@pytest.mark.parametrize(
    ("mu", "t", "p"),
    [
        (0.2, 1000.0, 100),
        (0.0475, 45.0, 140),
        (0.01, 10.0, 60),
        (0.1, 1e6, 30),
        (0.3, 1e4, 9),
        (0.1, 100.0, 160),
    ],
)
def test_whole_moments_are_those_of_exact_sums(mu, t, p):
    value, error = inversion.sums(mu, t, float(p), np.zeros(1))
    known = moments.whole_moments(mu, t)
    exact, off = np.exp(known[p]), np.expm1(moments.rounding(known)[p])
    assert abs(value[0] - exact) <= error[0] + off * exact
    assert error[0] <= 1e-9 * exact


@pytest.mark.parametrize(
    ("mu", "t", "p", "reach"),
    [(0.05, 66.0, 200.7, 2.0), (1 / 28, 1000.0, 900.3, 1.5), (0.02, 2.0, 120.0, 2.0)],
)
def test_complex_moments_are_those_of_the_series(mu, t, p, reach):
    y = np.linspace(0.0, reach, 23) / series.deviation(mu, t)
    (value, error), (exact, off) = (way.sums(mu, t, p, y) for way in (inversion, series))
    assert np.all(np.abs(value - exact) <= error + off)
    assert error[0] <= 1e-9 * exact[0].real
    assert np.all(off <= 1e-9 * exact[0].real)


def test_a_long_line_is_that_of_the_rays(monkeypatch):
    """Five deviations of W to the side, where no series goes."""
    mu, t, p = 0.1, 100.0, 88.3
    step = 0.5 / series.deviation(mu, t)
    line = step * np.arange(11)
    value, error = inversion.sums(mu, t, p, line)
    monkeypatch.setattr(inversion, "LEAST", np.inf)
    monkeypatch.setattr(series, "REACH", 0.0)
    transform._moment.cache_clear()
    rays = transform.values(mu, t, p, step, 11)
    transform._moment.cache_clear()
    off = rays.error + (error + error[0]) / value[0].real + 1e-15
    assert np.all(np.abs(value / value[0] - rays.value) <= off)
    assert np.all(off <= 1e-9)


@pytest.mark.parametrize("mu", [0.05, 1 / 28])
def test_more_nodes_and_further_cuts_stay_within_the_bound(monkeypatch, mu):
    """No term of the bound is left out: coarser rules err by more, and say so."""
    t, p = 500.0, 900.3
    y = np.linspace(0.0, 6.0, 17) / series.deviation(mu, t)
    exact, least = inversion.sums(mu, t, p, y)
    assert least[0] <= 1e-9 * exact[0].real
    errors = []
    for depth in (4.0, 10.0, 20.0):
        monkeypatch.setattr(inversion, "_DEPTH", depth)
        value, error = inversion.sums(mu, t, p, y)
        assert np.all(np.abs(value - exact) <= error + least)
        assert np.isfinite(error[0])
        errors.append(error[0])
    assert errors[0] > 1e2 * errors[1] > 1e4 * errors[2]


def test_rare_outcomes_are_bounded_by_brute_force():
    """Two steps: the share of E[W^p] where some z is beyond Z, on a grid of both."""
    mu, t, p = 0.4, 2.0, 9.0
    z = np.arange(-10.0, 18.0, 0.02)
    mass = np.exp(-0.5 * z * z) * 0.02 / np.sqrt(2 * np.pi)
    ratio = np.exp(mu * z - 0.5 * mu * mu)
    power = (0.5 * np.add.outer(ratio, ratio)) ** p * np.outer(mass, mass)
    for cut in (2.0, 4.0, 6.0):
        rare = power[np.maximum.outer(z, z) > cut].sum() / power.sum()
        assert np.log(rare) <= inversion._log_beyond(mu, t, p, cut)


def test_what_rests_on_the_rarest_outcomes_is_not_computed():
    """E[W^790] of 1,000 steps at σ = 5 is e^7000, of outcomes no one ever meets."""
    for mu, t, p in [(0.2, 1e3, 790.0), (1.0, 100.0, 20.0), (0.3, 1.0, 20.0), (0.1, 100.0, 3.0)]:
        value, error = inversion.sums(mu, t, p, np.array([0.0, 1.0]))
        assert np.all(np.isinf(error))
        assert np.all(value == 0)
