"""Trade-off curves from privacy profiles lie below the true curve, and close to it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from dpjax import accounting as acc
from dpjax.accounting import envelope

RATES = np.linspace(0.0, 1.0, 41)


def test_gaussian_curve_is_bounded_from_below_and_nearly_reached():
    bound = acc.tradeoff(acc.Gaussian(1.0), RATES, method="profile")
    exact = norm.cdf(norm.isf(RATES) - 1.0)
    assert np.all(bound <= exact + 1e-12)
    assert np.max(exact - bound) < 2e-3


def test_the_exact_curve_is_asked_first_where_there_is_one():
    exact = norm.cdf(norm.isf(RATES[1:-1]) - 1.0)
    assert acc.tradeoff(acc.Gaussian(1.0), RATES[1:-1]) == pytest.approx(exact, abs=1e-9)


@pytest.fixture
def few_epsilons(monkeypatch):
    """A coarser envelope, still a bound: every ε is a query of its own."""
    monkeypatch.setattr(envelope, "_EPSILONS", np.append(0.0, np.geomspace(0.02, 3.0, 20)))


@pytest.mark.parametrize("adjacency", list(acc.Adjacency))
def test_sampled_steps_have_a_curve_that_no_threshold_attack_beats(adjacency, few_epsilons):
    run = acc.PoissonSampled(acc.Gaussian(1.0), 0.25)
    bound = acc.tradeoff(run, RATES, adjacency=adjacency)
    # An attack on one step: flag outputs above t, records at distance 1 (2 apart if exchanged).
    thresholds = np.linspace(-4.0, 5.0, 200)
    false_positive = norm.sf(thresholds)
    power = 0.75 * norm.sf(thresholds) + 0.25 * norm.sf(thresholds - 1.0)
    if adjacency is acc.Adjacency.REPLACE_ONE:
        false_positive = 0.75 * norm.sf(thresholds) + 0.25 * norm.sf(thresholds + 1.0)
    achieved = np.interp(RATES, false_positive[::-1], (1 - power)[::-1])
    assert np.all(bound <= achieved + 1e-4)  # interpolation of the attack's curve
    assert bound[4] > 0.8 * achieved[4]
    assert bound[0] <= 1.0
    assert np.all(np.diff(bound) <= 1e-12)


def test_fields_that_are_arrays_give_a_curve_each(few_epsilons):
    sigmas = np.array([1.0, 2.0, 4.0])
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigmas), 0.1), 10)
    curves = acc.tradeoff(run, RATES[:3])
    assert curves.shape == (3, 3)
    assert np.all(np.diff(curves[:, 1]) > 0)  # more noise, more errors


def test_what_has_no_profile_is_still_refused():
    with pytest.raises(acc.UnsupportedQuery, match="FixedBatchSampled"):
        acc.tradeoff(acc.FixedBatchSampled(acc.Gaussian(1.0), 10, 100), [0.5])


def test_one_setting_is_asked_until_delta_is_negligible_and_as_the_sweep_is(monkeypatch):
    epsilons = np.append(0.0, np.geomspace(0.02, 100.0, 20))
    monkeypatch.setattr(envelope, "_EPSILONS", epsilons)
    asked = []
    least = envelope.best_bound

    def counted(part, chosen, run, given, adjacency):
        asked.append(np.size(given))
        return least(part, chosen, run, given, adjacency)

    monkeypatch.setattr(envelope, "best_bound", counted)
    step = acc.Laplace(0.5)
    one = acc.tradeoff(step, RATES)
    assert sum(asked) < epsilons.size
    # The curves of a sweep ask every ε: they may be above, by what is negligible.
    monkeypatch.setattr(envelope, "_NEGLIGIBLE", 0.0)
    whole = acc.tradeoff(step, RATES)
    assert np.all(one <= whole)
    assert np.all(whole - one <= 2e-12)


_OFF_PROFILES = {
    "one step": acc.PoissonSampled(acc.Gaussian(1.0), 0.2),
    "steps": acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 1_000),
    "schedule": acc.Composed(
        [acc.PoissonSampled(acc.Gaussian(2.0), 0.1), acc.Repeated(acc.Gaussian(9.0), 4)]
    ),
}


@pytest.mark.parametrize("adjacency", list(acc.Adjacency))
@pytest.mark.parametrize("kind", _OFF_PROFILES)
@pytest.mark.at_length(every=3)
def test_a_curve_off_the_profile_lies_above_the_lines_asked_one_by_one(kind, adjacency):
    run = _OFF_PROFILES[kind]
    curve = acc.tradeoff(run, RATES, adjacency=adjacency)
    lines = []
    for epsilon in envelope._EPSILONS[::4]:
        delta = acc.delta(run, float(epsilon), adjacency=adjacency)
        line = 1 - delta - np.exp(epsilon) * RATES, np.exp(-epsilon) * (1 - delta - RATES)
        lines.append(np.maximum(np.maximum(*line), 0.0))
    assert np.all(curve >= np.max(lines, axis=0) - 1e-8)
    # The truth is no further than what chords between the knots lose of a curve.
    assert np.max(curve - np.max(lines, axis=0)) < 1e-2
    assert np.all(np.diff(curve) <= 1e-12)


def test_a_curve_off_the_profile_is_that_of_one_step():
    """The best attack on one step flags large outputs, or small ones; a guess mixes both."""
    step, rate = acc.PoissonSampled(acc.Gaussian(1.0), 0.2), 0.2
    alarms = np.append(np.geomspace(1e-9, 0.01, 2_000), np.linspace(0.01, 1 - 1e-9, 20_000))
    removed = 1 - (1 - rate) * alarms - rate * norm.sf(norm.isf(alarms) - 1.0)
    outputs = np.linspace(-12.0, 12.0, 200_001)
    false = (1 - rate) * norm.cdf(outputs) + rate * norm.cdf(outputs - 1.0)
    worse = np.minimum(removed, np.interp(alarms, false, norm.sf(outputs)))
    slopes = -np.geomspace(1e-3, 1e3, 12_001)[:, None]  # one is −1
    heights = [np.min(worse - slope * alarms) for slope in slopes]  # lines below the worse of both
    truth = np.max(slopes * RATES + np.array(heights)[:, None], axis=0)[1:-1]
    found = acc.tradeoff(step, RATES)[1:-1]
    assert np.all(found <= truth + 1e-6)  # what lines of finitely many slopes are off by
    assert np.max(truth - found) < 1e-4
