"""Buffered strategies: C by exact fractions, sensitivity by brute force, optima by comparison."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import accounting as acc
from dpjax.correlation import (
    BufferedToeplitz,
    Workload,
    banded_toeplitz,
    buffered_toeplitz,
    identity,
)
from tests.correlation.test_strategies import brute_force


@st.composite
def strategies(draw):
    """Up to four series, as many equal or of length 0 or 1 as may be, of any weights up to 1."""
    size = draw(st.integers(1, 4))
    ends = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 1.0, 1 - 1e-6, 1e-30, 0.5]))
    decays = draw(st.lists(ends, min_size=size, max_size=size))
    parts = np.asarray(draw(st.lists(st.floats(0.0, 1.0), min_size=size, max_size=size)))
    whole = draw(st.sampled_from([0.999, 0.5, 1e-3, 0.0]))
    weights = whole * parts / max(parts.sum(), 1e-300)
    return BufferedToeplitz(tuple(decays), tuple(weights.tolist()))


def exact_column(strategy, steps):
    """1 and Σ ω·θ^{t−1}, in fractions."""
    kept = [Fraction(w) for w in strategy.weights]
    found = [Fraction(1)]
    for _ in range(1, steps):
        found.append(sum(kept, Fraction(0)))
        kept = [Fraction(d) * w for d, w in zip(strategy.decays, kept, strict=True)]
    return found


@settings(max_examples=100, deadline=None)
@given(strategy=strategies(), steps=st.integers(1, 30))
def test_the_column_is_never_below_the_exact_one(strategy, steps):
    truth = exact_column(strategy, steps)
    found = strategy.column(steps)
    assert found.shape == (steps,)
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


def test_the_inverse_is_the_inverse():
    strategy = BufferedToeplitz((0.9, 0.6, 0.6), (0.3, 0.2, 0.1))
    truth = np.linalg.inv(strategy.matrix(25))[:, 0]
    np.testing.assert_allclose(strategy.inverse(25), truth, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("rates", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_errors_are_those_of_the_matrices(momentum, rates):
    steps, strategy = 17, BufferedToeplitz((0.9, 0.3), (0.25, 0.25))
    rate = np.linspace(1.0, 0.05, steps) if rates else np.ones(steps)
    work = Workload(steps, momentum, tuple(rate) if rates else ())
    apart = np.subtract.outer(np.arange(steps), np.arange(steps))
    buffer = np.where(apart >= 0, momentum ** np.maximum(apart, 0.0), 0.0)
    a = np.tril(np.ones((steps, steps))) @ np.diag(rate) @ buffer
    rows = np.linalg.norm(a @ np.linalg.inv(strategy.matrix(steps)), axis=1)
    np.testing.assert_allclose(work.errors(strategy), rows, rtol=1e-11)


@pytest.mark.at_length
def test_the_published_figures_are_reached():
    """Mean error of two buffers: at most 2.89, and 13.1 for ten passes of 200 batches."""
    for steps, passes, most in (
        (500, {"separation": 500}, 2.89),
        (2000, {"separation": 200, "participations": 10}, 13.1),
    ):
        work = Workload(steps)
        tuned = buffered_toeplitz(2, workload=work, **passes)
        assert work.error(tuned, **passes) <= most
        assert work.error(tuned, **passes) >= 0.9 * most  # and no error is left out


@pytest.mark.at_length
def test_of_the_largest_error_three_buffers_come_near_the_best_strategy_there_is():
    # The full square root is optimal among Toeplitz strategies (Dvijotham et al. 2024).
    work, best = Workload(64), math.fsum(square_root_column(64) ** 2)
    tuned = buffered_toeplitz(3, workload=work, kind="max")
    assert best * (1 - 1e-9) <= work.error(tuned, kind="max") <= best * 1.002


def square_root_column(steps):
    i = np.arange(1, steps)
    return np.cumprod(np.concatenate([[1.0], (2 * i - 1) / (2 * i)]))


@pytest.mark.parametrize(
    ("work", "kind"), [(Workload(40), "mean"), (Workload(40, momentum=0.9), "max")]
)
def test_an_optimum_has_no_better_strategy_beside_it(work, kind):
    passes = {"separation": 6, "kind": kind}
    tuned = buffered_toeplitz(2, workload=work, **passes)
    least = work.error(tuned, **passes)
    assert least < work.error(identity(), **passes)
    rng = np.random.default_rng(0)
    for _ in range(40):
        decays, weights = (
            np.clip(np.asarray(x) * np.exp(0.01 * rng.normal(size=2)), 0.0, 1.0)
            for x in (tuned.decays, tuned.weights)
        )
        other = BufferedToeplitz(tuple(decays), tuple(weights / max(1.0, weights.sum() + 1e-6)))
        assert work.error(other, **passes) >= least * (1 - 1e-6)


@pytest.mark.at_length
def test_more_buffers_are_no_worse_and_one_is_enough_for_one_step():
    work = Workload(50)
    errors = [work.error(buffered_toeplitz(size, workload=work)) for size in (1, 2, 4)]
    assert errors[0] > errors[1] >= errors[2] * (1 - 1e-9)
    assert errors[2] <= work.error(banded_toeplitz(8, workload=work))
    for steps in (1, 2):
        few = Workload(steps)
        for kind in ("mean", "max"):
            found = few.error(buffered_toeplitz(5, workload=few, kind=kind), kind=kind)
            best = few.error(banded_toeplitz(2, workload=few, kind=kind), kind=kind)
            assert found == pytest.approx(best, rel=1e-6)


def test_separation_beyond_the_run_is_one_use():
    strategy = BufferedToeplitz((0.9, 0.3), (0.25, 0.25))
    assert strategy.sensitivity(10, 10) == strategy.sensitivity(10, 10**6)
    assert strategy.sensitivity(10, 10) == pytest.approx(np.linalg.norm(strategy.column(10)))


def test_its_price_is_that_of_its_coefficients():
    strategy = BufferedToeplitz((0.9, 0.3), (0.25, 0.25))
    run = acc.CorrelatedGaussian(3.0, strategy, steps=40, separation=10)
    used = strategy.matrix(40)[:, ::10].sum(1)
    truth = np.linalg.norm(used)
    assert acc.epsilon(run, 1e-5) == pytest.approx(acc.epsilon(acc.Gaussian(3.0 / truth), 1e-5))


@pytest.mark.parametrize(
    ("decays", "weights"),
    [
        ((), ()), ((0.5,), ()), ((0.5,), (0.1, 0.1)), ((1.5,), (0.1,)), ((-0.1,), (0.1,)),
        ((0.5,), (-0.1,)), ((0.5, 0.5), (0.6, 0.6)), ((math.nan,), (0.1,)), ((0.5,), (math.nan,)),
        ((0.5,), (math.inf,)), ("a", (0.1,)), (None, (0.1,)), ((True,), (0.1,)),
    ],
)  # fmt: skip
def test_what_has_no_known_sensitivity_is_refused(decays, weights):
    with pytest.raises((TypeError, ValueError), match=r"(decays|weights) must"):
        BufferedToeplitz(decays, weights)


def test_what_is_asked_is_checked():
    strategy = BufferedToeplitz((0.5,), (0.5,))
    for call in (
        lambda: buffered_toeplitz(2),
        lambda: buffered_toeplitz(0, steps=4),
        lambda: buffered_toeplitz(17, steps=4),
        lambda: buffered_toeplitz(2.5, steps=4),
        lambda: buffered_toeplitz(2, steps=4, kind="least"),
        lambda: buffered_toeplitz(2, steps=4, separation=0),
        lambda: buffered_toeplitz(2, steps=4, participations=math.nan),
        lambda: strategy.column(0),
        lambda: strategy.sensitivity(4, 1.5),
    ):
        with pytest.raises(ValueError, match=r"must be|give either"):
            call()
