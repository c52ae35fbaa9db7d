"""Mistakes planted inside the step of `fit`: each is found, and the step as it is is cleared.

`benchmarks/audit.py` repeats the second part a hundred times.
"""

from __future__ import annotations

import pytest

from benchmarks import audit as table
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


def _until(name, run):
    curve, worlds = mistakes_in_fit.claimed_curve(name), mistakes_in_fit.draw(name, run)
    return mistakes_in_fit.pairs_until_found(curve, *worlds, table.LEVEL)


@pytest.mark.at_length
def test_bets_find_a_mistake_sooner_and_clear_the_step_as_it_is(right):
    name = "a record added along the first leaf"
    assert _until(name, right["full"]) is None
    plant, audited = mistakes_in_fit.MISTAKES["noise / 2"]
    assert audited == name
    with plant():
        needed = _until(name, mistakes_in_fit.mechanism("full"))
    assert needed < mistakes_in_fit.AUDITS[name].trials / 10


def test_the_wrong_adjacency_is_in_the_claimed_curve_too():
    name = "a record exchanged"
    right = mistakes_in_fit.claimed_curve(name).false_positives(0.5)
    with mistakes_in_fit.MISTAKES["sensitivity of the wrong adjacency"][0]():
        assert mistakes_in_fit.claimed_curve(name).false_positives(0.5) > 2.0 * right
    assert mistakes_in_fit.claimed_curve(name).false_positives(0.5) == right


def test_planted_tables_turn_the_verdict_of_the_bets():
    row = {"of": 10, "found by bets": 10, "mean pairs by bets": 90.0}
    row["pairs of the fixed sample"] = 100
    assert table.is_sooner({"one": row, "other": row})
    assert not table.is_sooner({"one": row, "other": row | {"found by bets": 9}})
    assert not table.is_sooner({"one": row, "other": row | {"mean pairs by bets": 100.0}})
    assert not table.is_sooner({})
