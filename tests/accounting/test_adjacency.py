"""Adjacency: names round trip, and nothing else is taken for one."""

import dataclasses
import inspect
import json
import math

import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax.accounting.answers import pricing


@pytest.mark.parametrize("member", list(acc.Adjacency))
def test_names_round_trip(member):
    for text in (member.value, member.name, member.name.lower(), f" {member.value.upper()} "):
        assert acc.Adjacency(text) is member
        assert pricing.check_adjacency(text) is member
    assert acc.Adjacency(json.loads(json.dumps(member))) is member


@pytest.mark.parametrize("text", ["", "add", "replace", "addremove", "zero-out", None, 1])
def test_what_is_no_adjacency(text):
    for ask in (pricing.check_adjacency, acc.Adjacency):
        with pytest.raises(ValueError, match="adjacency must be one of"):
            ask(text)


def test_the_two_relations_cost_differently():
    run = acc.Gaussian(3.0)
    assert acc.epsilon(run, 1e-5) < acc.epsilon(run, 1e-5, adjacency="replace-one")


_SPELLINGS = ["Replace One", "replace_one", "replace-one", acc.Adjacency.REPLACE_ONE]


@pytest.mark.parametrize("kind", [acc.PureDP, acc.ApproximateDP, acc.ZeroConcentrated])
def test_a_promise_is_read_alike_however_its_relation_is_spelt(kind):
    numbers = (0.5, 1e-6) if kind is acc.ApproximateDP else (0.5,)
    answers = {
        (kind(*numbers, name).adjacency, acc.epsilon(kind(*numbers, name), 1e-4, adjacency=asked))
        for name in _SPELLINGS
        for asked in _SPELLINGS
    }
    assert len(answers) == 1
    # By default it is for the relation that is asked about, and says which in its certificate.
    for adjacency in acc.Adjacency:
        assert (
            acc.epsilon(kind(*numbers), 1e-4, adjacency=adjacency)
            == acc.epsilon(kind(*numbers, adjacency), 1e-4, adjacency=adjacency)
            == next(iter(answers))[1]
        )
        made = acc.certify(kind(*numbers), 1e-4, adjacency=adjacency)
        assert adjacency.value in made.assumptions[0]
        assert made.verify().epsilon == made.epsilon


def test_a_replacement_is_a_removal_and_an_addition():
    for epsilon, delta, rho in [(0.3, 1e-7, 0.01), (2.0, 1e-3, 0.5)]:
        two = acc.ApproximateDP(2 * epsilon, (1 + math.exp(epsilon)) * delta)
        for one, both in [
            (acc.PureDP(epsilon, "add-remove"), acc.PureDP(2 * epsilon)),
            (acc.ApproximateDP(epsilon, delta, "add-remove"), two),
            (acc.ZeroConcentrated(rho, "add-remove"), acc.ZeroConcentrated(4 * rho)),
        ]:
            found = acc.epsilon(one, 1e-2, adjacency="replace-one")
            assert found == pytest.approx(acc.epsilon(both, 1e-2), rel=1e-9)
            assert acc.epsilon_interval(one, 1e-2, adjacency="replace-one") == (0.0, found)
            wrong = dataclasses.replace(one, adjacency="replace-one")
            with pytest.raises(acc.UnsupportedQuery, match="another size"):
                acc.epsilon(wrong, 1e-2)


def test_promises_of_all_kinds_compose():
    parts = acc.PureDP(1.0), acc.ApproximateDP(0.5, 1e-7), acc.ZeroConcentrated(0.1)
    for adjacency in acc.Adjacency:
        for two in [parts[:1] + parts[2:], parts[:2]]:
            total = acc.epsilon(acc.Composed(two), 1e-5, adjacency=adjacency)
            assert 1.0 < total < 4.0


@pytest.mark.parametrize("name", [*_SPELLINGS, "add-remove"])
def test_every_question_reads_every_spelling(name):
    relation, run = acc.Adjacency(name), acc.Gaussian(4.0)
    given = {
        "calibrate": (acc.Gaussian, 1.0, 1e-5),
        "certify": (run, 1e-5),
        "delta": (run, 1.0),
        "epsilon": (run, 1e-5),
        "epsilon_interval": (run, 1e-5),
        "gdp_mu": (run,),
        "methods": (acc.PureDP(1.0),),
        "price": (run, 1e-5),
        "rdp": (run, [2.0]),
        "summary": (run,),
        "tradeoff": (run, [0.1]),
    }
    functions = {n: f for n in acc.__all__ if inspect.isroutine(f := getattr(acc, n))}
    asked = {n for n, f in functions.items() if "adjacency" in inspect.signature(f).parameters}
    assert asked == set(given)
    for question in asked - {"certify"}:
        found, same = (functions[question](*given[question], adjacency=a) for a in (name, relation))
        assert np.array_equal(found, same) if question in ("rdp", "tradeoff") else found == same
    declared = {"adjacency": str(name)}
    made = acc.certify(run, 1e-5, adjacency=name, declared=declared)
    assert made.verify().epsilon == made.epsilon
    assert made.adjacency is relation
    for release in (run, acc.PureDP(1.0)):
        assert release.assumptions(name) == release.assumptions(relation)
    promise = acc.PureDP(1.0, "add-remove")
    assert promise.stated_for(name) == promise.stated_for(relation)


@pytest.mark.parametrize("run", [acc.PureDP(1.0), acc.ApproximateDP(1.0, 1e-6)])
def test_a_user_of_one_record_is_that_record(run):
    low, high = acc.epsilon_interval(run, 1e-5)
    assert 0.0 < low <= high
    one = acc.UserLevel(run, 1)
    for user in (one, acc.UserLevel(one, 1), acc.Repeated(one, 1)):
        assert acc.epsilon_interval(user, 1e-5) == pytest.approx((low, high), rel=1e-9)
    made = acc.certify(one, 1e-5).verify()
    assert made == acc.certify(run, 1e-5).verify()
    assert acc.epsilon_interval(acc.UserLevel(one, 2), 1e-5)[0] == 0.0
