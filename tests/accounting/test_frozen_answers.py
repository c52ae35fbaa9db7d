"""No answer contradicts those of the accountant before it was rebuilt."""

from __future__ import annotations

import copy
import random

import pytest

from benchmarks.frozen_answers import FAMILIES, compare, contradictions, read

FROZEN = read()
_QUICK = 60  # milliseconds of processor time when frozen
_FEW = 7  # settings of each family


def _some() -> list:
    """Of every family a few that were quickly answered, or refused."""
    random.Random(0).shuffle(mixed := FROZEN[:])
    found = []
    for family in [*FAMILIES, "wrapped"]:
        own = [s for s in mixed if s["family"] == family and s["answers"]["ms"] < _QUICK]
        own = [s for s in own if "methods" not in s["answers"]]  # some take a second
        found += own[:_FEW]
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_answer_contradicts_the_frozen_ones():
    wrong = [(s["run"], found) for s, new in compare(_some()) if (found := contradictions(s, new))]
    assert not wrong


def test_the_frozen_answers_are_of_every_family():
    families = {setting["family"] for setting in FROZEN}
    assert families == {*FAMILIES, "wrapped"}
    ends = [s["answers"]["interval"] for s in FROZEN if "interval" in s["answers"]]
    assert all(0 <= low <= high for low, high in ends)
    assert sum(low > 0 for low, _ in ends) > len(FROZEN) / 3


def _planted(change):
    """A setting with two ends, its own answers, and the same with one thing changed."""
    setting = next(
        s
        for s in FROZEN
        if 0.5 < s["answers"].get("interval", [0])[0] < float("inf")
        and {"rdp", "delta at low", "method"} <= set(s["answers"])
    )
    new = copy.deepcopy(setting["answers"])
    assert contradictions(setting, new) == []
    change(new, *new["interval"])
    return contradictions(setting, new)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda new, low, high: new.update(interval=[0.0, low * (1 - 1e-9)]), "upper end"),
        (lambda new, low, high: new.update(interval=[high * (1 + 1e-9), 9e9]), "lower end"),
        (lambda new, low, high: new.update(interval=[low, float("nan")]), "upper end"),
        (lambda new, low, high: new.update(interval=[float("nan"), high]), "lower end"),
        (lambda new, low, high: new.update(methods={"pld": low * (1 - 1e-9)}), "by pld"),
        (lambda new, low, high: new["rdp"].__setitem__(5, 0.0), "order 256.0"),
        (lambda new, low, high: new.update({"delta at low": 0.0}), "old lower end"),
        (lambda new, low, high: new["refused"].append("interval"), "no answer"),
    ],
)
def test_a_planted_mistake_is_seen(change, said):
    assert any(said in sentence for sentence in _planted(change))
