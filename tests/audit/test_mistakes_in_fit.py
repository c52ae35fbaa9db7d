"""Mistakes planted inside the step of `fit`: each is found, and the step as it is is cleared.

`benchmarks/audit.py` repeats the second part a hundred times.
"""

from __future__ import annotations

import pytest

from benchmarks import planted

REPETITIONS = 3


@pytest.fixture(scope="module")
def right():
    return {run: planted.mechanism(run) for run in planted.PLANS}


@pytest.mark.parametrize("name", planted.AUDITS)
@pytest.mark.at_length(every=3)
def test_the_step_of_fit_is_cleared(name, right):
    run, claim = right[planted.AUDITS[name].run], planted.claim(name)
    for seed in range(REPETITIONS):
        bound = planted.measure(name, run, seed)
        assert not bound.contradicts(claim)
        # The attack is not idle, except the one that the number of other records hides.
        assert bound.epsilon > 0.4 * claim or name == "a record against all others"


@pytest.mark.parametrize("mistake", planted.MISTAKES)
def test_a_mistake_is_found(mistake):
    plant, name = planted.MISTAKES[mistake]
    with plant():
        bound = planted.measure(name, planted.mechanism(planted.AUDITS[name].run))
        assert bound.contradicts(planted.claim(name))
