"""Strategies of banded inverse: C by exact fractions, sensitivity by brute force, the optimum."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax.correlation import (
    BandedInverse,
    Workload,
    banded_inverse,
    banded_toeplitz,
    inverse_square_root,
    square_root,
)
from tests.correlation.test_strategies import brute_force


def exact_column(d, steps):
    """The first column of the inverse, in fractions."""
    d = [Fraction(x) for x in d]
    found = [1 / d[0]]
    for t in range(1, steps):
        found.append(-sum(d[j] * found[t - j] for j in range(1, min(t, len(d) - 1) + 1)) / d[0])
    return found


@st.composite
def strategies(draw):
    """d₀ > 0 and d_l ≤ 0 with falling coefficients: a_l a share of the most that keeps them so."""
    shares = draw(st.lists(st.floats(0.0, 1.0), max_size=6))
    weights, column = [], [1.0]
    for share in shares:
        least = sum(a * c for a, c in zip(weights, column[::-1], strict=False))
        weights.append(share * max(column[-1] - least, 0.0))
        column.append(least + weights[-1])
    first = draw(st.sampled_from([1.0, 0.3, 1e-3, 1e3]))
    return BandedInverse(tuple([first] + [-first * a for a in weights]))


@settings(max_examples=100, deadline=None)
@given(strategy=strategies(), steps=st.integers(1, 30))
def test_the_column_is_that_of_the_inverse_and_never_below(strategy, steps):
    truth = exact_column(strategy.inverse_coefficients, steps)
    found = strategy.column(steps)
    assert np.all(found[1:] <= found[:-1])
    for ours, exact in zip(found.tolist(), truth, strict=True):
        assert exact <= Fraction(ours) <= exact * (1 + Fraction(1, 10**12)) + Fraction(1, 10**300)


@settings(max_examples=100, deadline=None)
@given(
    strategy=strategies(),
    steps=st.integers(1, 10),
    separation=st.integers(1, 12),
    participations=st.sampled_from([1, 2, 3, math.inf]),
)
def test_sensitivity_is_the_largest_over_all_sets_of_steps(
    strategy, steps, separation, participations
):
    truth = brute_force(strategy, steps, separation, participations)
    found = strategy.sensitivity(steps, separation, participations)
    assert truth * (1 - 1e-12) <= found <= truth * (1 + 1e-11)


def test_later_coefficients_fall_too_over_a_long_run():
    """Checked are as many as there are bands; the others follow."""
    for strategy in (inverse_square_root(3), BandedInverse((1.0, -0.5, -0.125, -0.125))):
        truth = exact_column(strategy.inverse_coefficients, 300)
        assert all(b <= a for a, b in itertools.pairwise(truth))


def test_the_square_root_of_prefix_sums_is_inverted():
    bands = 9
    inverse = inverse_square_root(bands)
    np.testing.assert_allclose(inverse.column(bands), square_root(bands).coefficients, rtol=1e-12)
    np.testing.assert_allclose(
        inverse.inverse_coefficients, square_root(bands).inverse(bands), rtol=1e-12
    )
    np.testing.assert_allclose(
        np.linalg.inv(inverse.matrix(20))[:, 0], inverse.inverse(20), atol=1e-14
    )


@pytest.mark.parametrize("rates", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_errors_are_those_of_the_matrices(momentum, rates):
    steps, strategy = 17, inverse_square_root(4)
    given_rates = np.linspace(1.0, 0.05, steps) if rates else np.ones(steps)
    work = Workload(steps, momentum, tuple(given_rates) if rates else ())
    apart = np.subtract.outer(np.arange(steps), np.arange(steps))
    buffer = np.where(apart >= 0, momentum ** np.maximum(apart, 0.0), 0.0)
    a = np.tril(np.ones((steps, steps))) @ np.diag(given_rates) @ buffer
    rows = np.linalg.norm(a @ np.linalg.inv(strategy.matrix(steps)), axis=1)
    np.testing.assert_allclose(work.errors(strategy), rows, rtol=1e-11)
    np.testing.assert_allclose(work.errors(strategy.toeplitz(steps)), rows, rtol=1e-11)


@pytest.mark.parametrize(
    ("work", "kind"), [(Workload(60), "mean"), (Workload(40, momentum=0.9), "max")]
)
def test_an_optimum_has_no_better_strategy_beside_it(work, kind):
    tuned = banded_inverse(4, workload=work, separation=6, kind=kind)
    least = work.error(tuned, separation=6, kind=kind)
    assert least < work.error(inverse_square_root(4), separation=6, kind=kind)
    if kind == "mean":
        other = banded_toeplitz(4, workload=work, separation=6)
        assert least < work.error(other, separation=6)
    rng, d = np.random.default_rng(0), np.asarray(tuned.inverse_coefficients)
    tried = 0
    for _ in range(60):
        near = d * np.exp(0.01 * rng.normal(size=d.size))
        try:
            other = BandedInverse(tuple((near / near[0]).tolist()))
        except ValueError:  # its coefficients do not fall
            continue
        tried += 1
        assert work.error(other, separation=6, kind=kind) >= least * (1 - 1e-6)
    assert tried >= 5


@pytest.mark.parametrize(
    "bad",
    [(), (0.0,), (-1.0,), (1.0, 0.1), (1.0, -1.1), (1.0, -0.9, -0.9), (math.nan,), (1.0, -math.inf),
     (5e-324,), (1e-300, -1e10), "ab", (True,), None],
)  # fmt: skip
def test_what_has_no_known_sensitivity_is_refused(bad):
    with pytest.raises((TypeError, ValueError), match="inverse_coefficients must"):
        BandedInverse(bad)


def test_what_is_asked_is_checked():
    for call in (
        lambda: banded_inverse(4),
        lambda: banded_inverse(0, steps=4),
        lambda: banded_inverse(4, steps=4, kind="least"),
        lambda: inverse_square_root(0),
        lambda: inverse_square_root(2).column(0),
        lambda: inverse_square_root(2).sensitivity(4, 1.5),
    ):
        with pytest.raises(ValueError, match=r"must be|give either"):
            call()
    assert banded_inverse(1, steps=9).inverse_coefficients == (1.0,)
    assert banded_inverse(8, steps=1).bands == 1
