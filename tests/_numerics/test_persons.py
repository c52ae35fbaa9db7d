"""Ids that are one number are one person; the truth is the fraction that an id says."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from dpjax._numerics.persons import are_mixed, canonical_id, number_persons

ONE = [
    ["17", "17.0", "017", " 17 ", "+17", "1.7e1", "170E-1", "17.", "0017.000", "17e0", "\t17\n"],
    ["0", "-0", "0.0", ".0", "0e5", "-0e99999999999999999999", "+00"],
    ["17.5", "17.50", "175e-1", "0175e-01"],
    ["1e3", "1000", "1000.0", "1E+3", "10e2"],
    [str(2**53 + 1), f"{2**53 + 1}.0", f"0{2**53 + 1}"],
    [str(2**53), "9007199254740992.0"],
    ["9" * 5_000, "0" + "9" * 5_000 + ".0"],
    ["1e99999999999999999999", "10e99999999999999999998"],
    ["-17", "-17.0", "-017"],
    ["P17"],
    ["p17"],
    ["17a"],
    ["1,700"],
    ["1_7"],
    ["0x11"],
    ["inf"],
    ["nan"],
    ["."],
    ["e1"],
    ["١٧"],
    ["17-0"],
    ["17 0"],
    [""],
]


def test_ids_are_one_person_if_and_only_if_they_are_one_number():
    for (a, first), (b, second) in itertools.product(enumerate(ONE), repeat=2):
        for one, other in itertools.product(first, second):
            assert (canonical_id(one) == canonical_id(other)) == (a == b), (one, other)


def test_short_texts_are_joined_as_fractions_are():
    texts = ["".join(t) for n in (1, 2, 3, 4) for t in itertools.product("01.e-", repeat=n)]
    by_value: dict[object, set[str]] = {}
    by_id: dict[str, set[str]] = {}
    for text in texts:
        try:
            value: object = Fraction(text)
        except ValueError:
            value = text
        by_value.setdefault(value, set()).add(text)
        by_id.setdefault(canonical_id(text), set()).add(text)
    assert sorted(map(sorted, by_id.values())) == sorted(map(sorted, by_value.values()))


@pytest.mark.parametrize("kind", [object, str, np.bytes_])
def test_persons_are_numbered_in_the_order_of_their_ids(kind):
    ids = np.array(["b", "17.0", "a", "017", "17", "b"], kind)
    assert number_persons(ids).tolist() == [2, 0, 1, 0, 0, 2]
    whole = np.array([30, -1, 30, 2**40], np.int64)
    assert number_persons(whole).tolist() == np.unique(whole, return_inverse=True)[1].tolist()
    assert number_persons(np.array([10**6_000, 9, 10], object)).tolist() == [2, 0, 1]


def test_numbers_beside_other_texts_are_mixed():
    assert are_mixed(np.array(["17", "P17"], object))
    assert not are_mixed(np.array(["17", "017"], object))
    assert not are_mixed(np.array(["P17", "P17.0"], object))
