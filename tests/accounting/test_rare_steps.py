"""Rare sampled steps, rounded to finitely many outcomes: against 40 digits and other lattices."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax.accounting.contour.rare_steps import _rounded_bound
from dpjax.accounting.loss_distribution.step import Pair
from dpjax.accounting.pairs import on_grid
from dpjax.accounting.pairs.mixtures import poisson_mixture, replace_one
from dpjax.accounting.pairs.on_grid import round_to_atoms

_MP = mpmath.mp.clone()
_MP.dps = 40


def _tail(x):
    return _MP.erfc(x / _MP.sqrt(2)) / 2


def _delta(kind, mu, rate, epsilon):
    """δ of one step at any ε: what P and Q have beyond the point at which the loss is ε."""
    mu, rate, epsilon = _MP.mpf(mu), _MP.mpf(rate), _MP.mpf(epsilon)
    grow = _MP.exp(epsilon)
    if kind == "replace":
        k, b = rate * _MP.exp(-mu * mu / 2), (1 - rate) * (grow - 1)
        y = _MP.log((b + _MP.sqrt(b * b + 4 * k * k * grow)) / (2 * k)) / mu
        common = (1 - rate) * (1 - grow) * _tail(y)
        return common + rate * (_tail(y - mu) - grow * _tail(y + mu))
    ratio = (grow if kind == "removed" else 1 / grow) - 1 + rate
    if ratio <= 0:  # no loss is as small, or as large
        return 1 - grow if kind == "removed" else _MP.mpf(0)
    y = (_MP.log(ratio / rate) + mu * mu / 2) / mu
    if kind == "removed":
        return (1 - rate) * _tail(y) + rate * _tail(y - mu) - grow * _tail(y)
    return _tail(-y) - grow * ((1 - rate) * _tail(-y) + rate * _tail(mu - y))


def _pair(kind, mu, rate):
    table = replace_one if kind == "replace" else poisson_mixture
    found = table(np.float64(mu), np.float64(rate))
    return found.reversed() if kind == "added" else found


def _of_atoms(pair, epsilon):
    return float(pair.mass @ np.maximum(-np.expm1(epsilon - pair.loss), 0) + pair.infinite)


@pytest.mark.parametrize("kind", ["removed", "added", "replace"])
def test_outcomes_bound_one_step_from_either_side(kind):
    rng = np.random.default_rng(3)
    for _ in range(30):
        mu, rate = np.exp(rng.uniform(np.log([0.05, 1e-9]), np.log([6.0, 0.9])))
        low, high = (round_to_atoms(_pair(kind, mu, rate), 1e-20, upper) for upper in (False, True))
        likely = high.loss[np.cumsum(high.mass[::-1])[::-1] > 1e-13]
        for epsilon in np.quantile(likely, [0.02, 0.3, 0.6, 0.9, 0.99]):
            truth = float(_delta(kind, mu, rate, epsilon))
            if truth < 1e-25:
                continue
            ends = _of_atoms(low, epsilon), _of_atoms(high, epsilon)
            assert ends[0] <= truth * (1 + 1e-13), (mu, rate, epsilon)
            assert ends[1] >= truth * (1 - 1e-13), (mu, rate, epsilon)


@pytest.mark.parametrize(("kind", "sign"), [("removed", 1), ("added", -1)])
@pytest.mark.parametrize(("mu", "rate", "share"), [(1.25, 1e-4, 0.5), (2.0, 1e-3, 0.8)])
@pytest.mark.at_length(every=2)
def test_two_rare_steps_are_what_an_integral_over_the_first_says(kind, sign, mu, rate, share):
    mp_mu, mp_rate = _MP.mpf(mu), _MP.mpf(rate)

    def loss(y):
        return sign * _MP.log(1 - mp_rate + mp_rate * _MP.exp(mp_mu * y - mp_mu**2 / 2))

    def density(y):
        mixed = (1 - mp_rate) * _MP.npdf(y) + mp_rate * _MP.npdf(y - mp_mu)
        return mixed if sign > 0 else _MP.npdf(y)

    epsilon = share * (float(loss(mu + 5.0)) if sign > 0 else -2 * np.log1p(-rate))
    # Where the rest of ε is the largest or the least loss of a step the integrand has a kink.
    kinks = [_MP.mpf(v) for v in (-9, -6, -3, 0, 2, 4, 6, 8, 11)]
    for edge in (-_MP.log(1 - mp_rate), _MP.mpf(0)):
        inner = (_MP.exp(sign * (epsilon - edge)) - 1 + mp_rate) / mp_rate
        if inner > 0:
            kinks.append((_MP.log(inner) + mp_mu**2 / 2) / mp_mu)
    with mpmath.workdps(20):
        truth = _MP.quad(
            lambda y: density(y) * _delta(kind, mu, rate, epsilon - loss(y)), sorted(kinks)
        )
    pairs = [Pair("poisson", sign, mu, rate, 2.0)]
    low, high = (
        _rounded_bound(pairs, float(truth), "epsilon", upper=upper) for upper in (False, True)
    )
    assert low <= epsilon * (1 + 1e-9)
    assert high >= epsilon * (1 - 1e-9)
    assert high - low < 2e-3 * epsilon


# By another lattice, of each factor of the density ratio, 2^21 points long: its two ends.
@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta", "low", "high"),
    [
        (0.5, 1e-7, 10**7, 1e-5, 0.0055343, 0.0055815),
        (0.8, 1e-4, 300, 1e-8, 0.070768, 0.070789),
    ],
)
@pytest.mark.at_length(every=2)
def test_many_rare_steps_are_what_a_longer_lattice_says(sigma, rate, steps, delta, low, high):
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), steps)
    ends = acc.epsilon_interval(run, delta)
    assert ends[0] <= high
    assert ends[1] >= low
    assert ends[1] - ends[0] < 5e-3 * ends[1]


@pytest.mark.at_length
def test_ten_million_rare_steps_are_below_a_coarse_grid_and_their_profile_agrees():
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(0.5), 1e-7), 10**7)
    low, high = acc.epsilon_interval(run, 1e-8)
    assert 0.0341 < low < high < 0.0342  # dp_accounting's grid of 1e-4: 0.0535
    assert 0.99e-8 < acc.delta(run, high) < 1.05e-8


@pytest.mark.parametrize("charged", [True, False])
def test_tails_that_are_off_by_what_they_are_charged_keep_both_ends(monkeypatch, charged):
    # Planted: tails of normal laws that are off by a part in a thousand, upwards or downwards.
    mu, rate, right, held = 1.0, 1e-3, on_grid.ndtr, []
    if charged:
        monkeypatch.setattr(on_grid, "tail_error", lambda x: 1e-3 + 0 * x)
    for sign, upper in ((-1, True), (1, False)):
        monkeypatch.setattr(on_grid, "ndtr", lambda x, s=sign: right(x) * (1 + s * 0.99e-3))
        found = round_to_atoms(_pair("removed", mu, rate), 1e-20, upper)
        for epsilon in (2e-3, 1e-2, 0.5):
            truth, end = float(_delta("removed", mu, rate, epsilon)), _of_atoms(found, epsilon)
            held.append(end >= truth if upper else end <= truth)
    assert all(held) is charged
