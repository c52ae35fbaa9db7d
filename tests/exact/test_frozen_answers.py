"""Answers that were frozen before the accountant was rebuilt: no new one contradicts them.

All that took a fifth of a second of processor time or less, and every twentieth of the others;
`python -m benchmarks.frozen_answers` compares all of them.
"""

from __future__ import annotations

import collections

import pytest

from benchmarks.frozen_answers import compare, contradictions, read

_QUICK = 200  # milliseconds
_BY_FAMILY = collections.defaultdict(list)
for _number, _setting in enumerate(read()):
    if _setting["answers"]["ms"] <= _QUICK or _number % 20 == 0:
        _BY_FAMILY[_setting["family"]].append(_setting)


@pytest.mark.parametrize("family", sorted(_BY_FAMILY))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_answer_contradicts_the_frozen_ones(family):
    new = compare(_BY_FAMILY[family])
    wrong = [(s["run"], found) for s, answers in new if (found := contradictions(s, answers))]
    assert not wrong
