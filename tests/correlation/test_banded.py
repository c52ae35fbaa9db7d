"""Matrices of columns of their own: sensitivity by brute force, error and noise by the matrix."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import transforms
from dpjax.correlation import (
    Banded,
    Workload,
    banded_toeplitz,
    column_normalised,
    fixed_epochs,
    identity,
    square_root,
)


def matrix_of(seed, steps, bands):
    """Numbers of any sign, on a scale of its own for each column."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(steps, bands)) * np.exp(rng.normal(size=(steps, 1)))
    table[:, 0] = np.abs(table[:, 0]) + 0.1
    table[np.add.outer(np.arange(steps), np.arange(bands)) >= steps] = 0.0
    return Banded(tuple(map(tuple, table)))


def brute_force(strategy, steps, separation, participations):
    """The largest of Σ ‖C[:, t] xₜ‖ over allowed sets and over contributions ±1, dense."""
    c, best = strategy.matrix(strategy.steps)[:steps, :steps], 0.0
    for count in range(1, steps + 1):
        if count > participations or (count - 1) * separation >= steps:
            break
        for used in itertools.combinations(range(steps), count):
            if np.all(np.diff(used) >= separation):
                for signs in itertools.product((1, -1), repeat=count):
                    best = max(best, np.linalg.norm(c[:, used] @ np.array(signs)))
    return best


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    steps=st.integers(1, 9),
    bands=st.integers(1, 5),
    more=st.integers(0, 3),
    participations=st.sampled_from([1, 2, 3, math.inf]),
)
def test_sensitivities_are_the_largest_over_all_sets_of_steps(
    seed, steps, bands, more, participations
):
    strategy = matrix_of(seed, steps, min(bands, steps))
    found = strategy.sensitivities(steps, strategy.bands + more, participations)
    for rows, ours in enumerate(found.tolist(), 1):
        truth = brute_force(strategy, rows, strategy.bands + more, participations)
        assert truth * (1 - 4e-16) <= ours <= truth * (1 + 1e-13)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    steps=st.integers(1, 9),
    bands=st.integers(1, 9),
    separation=st.integers(1, 10),
    positive=st.booleans(),
)
def test_in_a_fixed_order_no_signs_or_directions_move_further(
    seed, steps, bands, separation, positive
):
    strategy = matrix_of(seed, steps, min(bands, steps))
    if positive:
        strategy = Banded(tuple(map(tuple, np.abs(strategy.columns))))
    found = strategy.cyclic_sensitivities(steps, separation)
    assert np.all(np.diff(found) >= 0)
    c, rng = strategy.matrix(steps), np.random.default_rng(seed)
    moved = np.zeros(steps)
    for first in range(min(separation, steps)):
        own = c[:, first::separation]
        tried = [np.array(s)[:, None] for s in itertools.product((1, -1), repeat=own.shape[1])]
        for x in (*tried, *rng.normal(size=(20, own.shape[1], 3))):
            directions = x / np.linalg.norm(x, axis=1, keepdims=True)
            rows = np.linalg.norm(own @ directions, axis=1)
            moved = np.maximum(moved, np.sqrt(np.cumsum(rows**2)))
    assert np.all(moved <= found)
    if positive:  # all directions alike attain it
        np.testing.assert_allclose(found, np.maximum.accumulate(moved), rtol=1e-12)
    if strategy.bands <= separation:
        known = strategy.sensitivities(steps, separation)
        assert np.all(found <= known * (1 + 1e-12))


@pytest.mark.parametrize("rates", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_errors_are_those_of_the_matrices(momentum, rates):
    steps, strategy = 13, matrix_of(3, 13, 4)
    rate = np.linspace(1.0, 0.05, steps) if rates else np.ones(steps)
    work = Workload(steps, momentum, tuple(rate) if rates else ())
    a = np.zeros((steps, steps))
    for s in range(steps):  # a gradient of 1 at step s, by the optimiser itself
        moved = velocity = 0.0
        for t in range(steps):
            velocity = momentum * velocity + (t == s)
            moved += rate[t] * velocity
            a[t, s] = moved
    np.testing.assert_allclose(work.matrix(), a, rtol=1e-12)
    truth = np.linalg.norm(a @ np.linalg.inv(strategy.matrix(steps)), axis=1)
    np.testing.assert_allclose(work.errors(strategy), truth, rtol=1e-9)


@pytest.mark.at_length
def test_an_optimum_has_no_better_matrix_beside_it():
    work, passes = Workload(18, momentum=0.5, rates=tuple(np.linspace(1, 0.1, 18))), 6
    tuned = column_normalised(6, workload=work)
    lengths = np.linalg.norm(tuned.columns, axis=1)
    np.testing.assert_allclose(lengths, 1.0, rtol=1e-6)
    assert tuned.sensitivity(18, passes) == pytest.approx(math.sqrt(3), rel=1e-6)
    least = work.error(tuned, separation=passes)
    assert least < work.error(banded_toeplitz(6, workload=work, separation=6), separation=passes)
    assert least < work.error(identity(), separation=passes)
    rng = np.random.default_rng(0)
    for _ in range(30):
        near = np.asarray(tuned.columns)
        near = near * np.exp(0.01 * rng.normal(size=near.shape))
        near = near / np.linalg.norm(near, axis=1, keepdims=True)
        assert work.error(Banded(tuple(map(tuple, near))), separation=passes) >= least * (1 - 1e-6)


@pytest.mark.at_length
def test_the_best_of_three_epochs_is_orthogonal_and_has_no_better_beside_it():
    work, apart = Workload(12, momentum=0.5), 4
    tuned = fixed_epochs(3, workload=work)
    c = tuned.matrix(12)
    gram = c.T @ c
    for first in range(apart):
        own = gram[first::apart, first::apart]
        assert np.trace(own) == pytest.approx(1.0, rel=1e-6)
        assert np.abs(own - np.diag(np.diag(own))).max() < 1e-6
    uses = {"separation": apart, "cyclic": True}
    least = work.error(tuned, **uses)
    for other in (column_normalised(4, workload=work), identity(), square_root(4)):
        assert least < work.error(other, **uses)
    rng = np.random.default_rng(0)
    for _ in range(30):  # neighbours that keep every record's columns orthogonal
        near = rng.normal(size=(12, 12)) * 0.01 * np.sqrt(np.outer(np.diag(gram), np.diag(gram)))
        near = (near + near.T) * (np.subtract.outer(range(12), range(12)) % apart != 0)
        factor = np.linalg.cholesky((gram + near)[::-1, ::-1]).T[::-1, ::-1]
        beside = Banded(tuple((*factor[t:, t], *[0.0] * t) for t in range(12)))
        assert work.error(beside, **uses) >= least * (1 - 1e-6)


def test_its_noise_undone_is_fresh_noise_and_none_is_drawn_beyond_it():
    strategy, zero, state = matrix_of(5, 9, 3), jnp.zeros(5000), None
    tx = transforms.correlated_noise(strategy, 0.7, jax.random.key(0))
    update, state, y = jax.jit(tx.update), tx.init(zero), []
    assert state.past.shape == (2, 5000)
    for _ in range(10):
        out, state = update(zero, state)
        y.append(out)
    z = strategy.matrix(9) @ np.asarray(y[:9], np.float64) / 0.7
    np.testing.assert_allclose(z.std(1), 1.0, atol=0.05)  # five standard errors of 5,000 numbers
    assert np.abs(np.corrcoef(z)[np.triu_indices(9, 1)]).max() < 5 / np.sqrt(5000)
    assert np.all(np.isnan(y[9]))
    for t in range(9):
        row = np.linalg.inv(strategy.matrix(9))[t, : t + 1]
        np.testing.assert_allclose(strategy.inverse_row(t), row, rtol=1e-8, atol=1e-12)


def test_one_band_and_one_step():
    assert column_normalised(1, 5) == Banded(((1.0,),) * 5)
    assert column_normalised(4, 1) == Banded(((1.0,),))
    assert Banded(((2.0,),)).sensitivity(1, 1) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "bad",
    [(), ((),), ((1.0,), (1.0, 0.0)), ((1.0, 0.5), (1.0, 0.5)), ((0.0,),), ((-1.0,),),
     ((math.nan,),), ((math.inf,),), ((1e39,),), ((1e-39,),), ("a",),
     ((1.0, math.nan), (1.0, 0.0))],
)  # fmt: skip
def test_what_has_no_known_sensitivity_is_refused(bad):
    with pytest.raises((TypeError, ValueError), match="columns must"):
        Banded(bad)


def test_what_is_asked_is_checked():
    strategy = matrix_of(0, 6, 3)
    for call in (
        lambda: strategy.sensitivity(7, 3),
        lambda: strategy.sensitivity(6, 2),
        lambda: strategy.sensitivity(6, math.nan),
        lambda: strategy.sensitivity(6, 3, 0),
        lambda: strategy.inverse_row(6),
        lambda: strategy.cyclic_sensitivities(7, 3),
        lambda: strategy.cyclic_sensitivities(6, 0),
        lambda: strategy.cyclic_sensitivities(6, 3, 1),  # it is used twice
        lambda: fixed_epochs(0, workload=Workload(4)),
        lambda: fixed_epochs(3, workload=Workload(4)),
        lambda: fixed_epochs(2, workload=Workload(4, rates=(0.0,) * 4)),
        lambda: column_normalised(0, 5),
        lambda: column_normalised(2),
        lambda: column_normalised(2, 5, workload=Workload(5)),
    ):
        with pytest.raises(ValueError, match=r"must (be|divide|have)|give either"):
            call()
