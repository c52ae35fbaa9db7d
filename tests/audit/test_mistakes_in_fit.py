"""Mistakes planted inside the step of `fit`: each is found, and the step as it is is cleared.

`benchmarks/audit.py` repeats the second part a hundred times.
"""

from __future__ import annotations

import pytest

from benchmarks import mistakes_in_fit

REPETITIONS = 3


@pytest.fixture(scope="module")
def right():
    return {run: mistakes_in_fit.mechanism(run) for run in mistakes_in_fit.PLANS}


@pytest.mark.parametrize("name", mistakes_in_fit.AUDITS)
@pytest.mark.at_length(every=3)
def test_the_step_of_fit_is_cleared(name, right):
    run, claim = right[mistakes_in_fit.AUDITS[name].run], mistakes_in_fit.claim(name)
    for seed in range(REPETITIONS):
        bound = mistakes_in_fit.measure(name, run, seed)
        assert not bound.contradicts(claim)
        # The attack is not idle, except the one that the number of other records hides.
        assert bound.epsilon > 0.4 * claim or name == "a record against all others"


@pytest.mark.at_length(every=3)
@pytest.mark.parametrize("mistake", mistakes_in_fit.MISTAKES)
def test_a_mistake_is_found(mistake):
    plant, name = mistakes_in_fit.MISTAKES[mistake]
    with plant():
        bound = mistakes_in_fit.measure(
            name, mistakes_in_fit.mechanism(mistakes_in_fit.AUDITS[name].run)
        )
        assert bound.contradicts(mistakes_in_fit.claim(name))
