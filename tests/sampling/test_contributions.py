"""No person owns more records than allowed, and no record is left out without need."""

from __future__ import annotations

import collections
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import accounting as acc
from dpjax.correlation import square_root
from dpjax.sampling import bound_contributions

GRAPHS = st.lists(st.lists(st.integers(0, 6), max_size=4), max_size=12)


@settings(max_examples=150, deadline=None)
@given(owners=GRAPHS, most=st.integers(1, 4))
def test_nobody_owns_more_and_none_could_be_added(owners, most):
    kept = bound_contributions(owners, most)
    assert kept.shape == (len(owners),)
    count = collections.Counter()
    for own, flag in zip(owners, kept, strict=True):
        count.update(set(own) if flag else ())
    assert max(count.values(), default=0) <= most
    for own, flag in zip(owners, kept, strict=True):
        assert flag or any(count[name] == most for name in own)


def test_one_owner_keeps_the_first_and_many_owners_come_last():
    assert bound_contributions([["a"], ["a"], ["b"], ["a"]], 2).tolist() == [
        True,
        True,
        True,
        False,
    ]
    assert bound_contributions([["a", "b"], ["a"], ["b"]], 1).tolist() == [False, True, True]
    assert bound_contributions([["a", "a"], []], 1).tolist() == [True, True]
    assert bound_contributions([], 1).shape == (0,)
    assert bound_contributions([np.array([1, 2]), np.array([2])], 1).tolist() == [False, True]


def test_a_persons_records_move_what_is_released_as_far_as_is_priced():
    """Three records of one batch, every third step: ‖C Σ e‖ of three times the steps."""
    c, steps = square_root(3), 6
    run = acc.CorrelatedGaussian(2.0, c, steps, separation=3)
    matrix = c.matrix(steps)
    used = np.zeros(steps)
    used[::3] = 3  # three records of the same batch, the worst
    moved = np.linalg.norm(matrix @ used)
    priced = acc.epsilon(acc.UserLevel(run, 3), 1e-5)
    assert priced == pytest.approx(acc.epsilon(acc.Gaussian(2.0 / moved), 1e-5), rel=1e-9)
    spread = np.linalg.norm(matrix @ np.array([1.0, 1, 1, 1, 1, 1]))  # of three batches
    assert spread <= moved


@pytest.mark.parametrize("bad", ["ab", 3, None])
def test_owners_that_are_no_collection_are_refused(bad):
    with pytest.raises(TypeError, match="owners must be"):
        bound_contributions([["a"], bad], 2)
    with pytest.raises(ValueError, match="owners must be"):
        bound_contributions([[math.nan]], 2)


@pytest.mark.parametrize("bad", [0, -1, 1.5, math.nan, math.inf])
def test_the_number_is_checked(bad):
    with pytest.raises(ValueError, match="most must be"):
        bound_contributions([["a"]], bad)
