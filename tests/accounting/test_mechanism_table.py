"""`docs/mechanisms.md` has one line for every mechanism, and its methods are those that answer."""

from __future__ import annotations

import pathlib
import re

import pytest

import dpjax
from dpjax import accounting as acc
from tests.accounting.mechanism_examples import EXAMPLES

_PAGE = pathlib.Path(dpjax.__file__).resolve().parents[1] / "docs" / "mechanisms.md"
_NOT_SAID = {"profile", "rdp_classic"}


def lines() -> dict[str, list[str]]:
    rows = [line.split(" | ") for line in _PAGE.read_text().split("\n") if line.startswith("| `")]
    assert all(len(row) == 6 for row in rows)
    return {row[0].strip("| `"): row for row in rows}


def test_every_registered_mechanism_is_in_the_table_once():
    registered = {
        name
        for name, kind in acc.registered_mechanisms().items()
        if kind.__module__.startswith("dpjax.")
    }
    assert len(_PAGE.read_text().split("\n| `")) - 1 == len(lines())
    assert set(lines()) == registered


@pytest.mark.parametrize("run", EXAMPLES, ids=lambda run: type(run).__name__)
def test_the_methods_are_those_that_answer(run):
    said = lines()[type(run).__name__][3]
    if "inside" in said or "all parts" in said:
        return
    answer = {name for side in acc.Adjacency for name in acc.methods(run, side)} - _NOT_SAID
    assert set(re.findall(r"`(\w+)`", said)) == answer
