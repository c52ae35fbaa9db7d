"""Whole profiles lie above what neighbours attain, and close to it, for every kind of run."""

from __future__ import annotations

import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax.accounting.best_of import read_selection
from dpjax.accounting.profiles import worse_direction

ADD = acc.Adjacency.ADD_REMOVE
_RARE = acc.Repeated(acc.PoissonSampled(acc.Gaussian(0.6), 1e-5), 1_000)
_ALLOCATED = acc.Repeated(acc.RandomAllocation(acc.Gaussian(1.0), 100), 3)
_SAMPLED = acc.Repeated(acc.PoissonSampled(acc.Gaussian(2.0), 0.02), 200)
_DELTAS = (1e-3, 1e-5, 1e-7)


@pytest.mark.parametrize(
    ("run", "loose"),
    [
        (_SAMPLED, 0.02),
        (_ALLOCATED, 0.02),
        (acc.Composed((_ALLOCATED, acc.Gaussian(5.0))), 0.02),
        (_RARE, 0.05),
    ],
    ids=["sampled", "allocated", "allocated beside another", "rare"],
)
def test_a_profile_lies_between_what_is_attained_and_what_is_priced(run, loose):
    ends = [acc.epsilon_interval(run, delta) for delta in _DELTAS]
    prices = [float(high) for _, high in ends if high > 0]
    low_places = [0.03 * min(prices), 0.3 * min(prices)]
    knots = np.outer(prices, np.geomspace(0.01, 30.0, 60)).ravel()
    epsilons, deltas = worse_direction(run, ADD, 1e-10, np.unique(knots), [*low_places, *prices])
    assert np.all(np.diff(deltas) <= 0)
    for delta, (low, high) in zip(_DELTAS, ends, strict=True):
        # δ of some neighbours is at least so much up to the lower end of ε; at 0 it may be less.
        assert low == 0 or np.all(deltas[epsilons <= low] >= delta * (1 - 1e-9))
        beyond = epsilons >= high * (1 + loose)
        assert np.all(deltas[beyond] <= delta * (1 + loose))


def test_the_profile_of_the_best_of_several_lies_above_what_is_attained():
    best = acc.BestOf(_SAMPLED, 5.0)
    epsilons, deltas = read_selection(best, ADD, 1e-9)
    assert np.all(np.diff(deltas) <= 0)
    for delta in (1e-4, 1e-6):
        low, high = acc.epsilon_interval(best, delta)
        assert np.all(deltas[epsilons <= low] >= delta * (1 - 1e-9))
        assert np.all(deltas[epsilons >= 1.05 * high] <= delta)


@pytest.mark.at_length(every=2)
@pytest.mark.parametrize("run", [_ALLOCATED, _RARE], ids=["allocated", "rare"])
def test_a_summary_read_off_a_profile_is_that_of_single_questions(run):
    found = acc.summary(run)
    assert found.epsilons[0][1] == acc.epsilon(run, 1e-5)
    assert found.advantage >= acc.delta(run, 0.0) * (1 - 1e-3)
    for rate, most in found.true_positive_rates:
        lines = [np.exp(e) * rate + acc.delta(run, e) for e in (0.01, 0.1)]
        assert most <= min(lines) * (1 + 1e-3)
        assert most > rate
