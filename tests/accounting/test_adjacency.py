"""Adjacency: names round trip, and nothing else is taken for one."""

import json

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
