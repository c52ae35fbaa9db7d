"""The tree of DP-FTRL: sensitivity by brute force over all uses, errors and noise by its matrix."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import transforms
from dpjax.correlation import Tree, Workload, identity
from tests.correlation.test_strategies import brute_force


@pytest.mark.parametrize("participations", [1, 2, 3, math.inf])
@pytest.mark.parametrize("separation", [1, 2, 3, 4, 5, 7, 20])
def test_sensitivities_are_the_largest_over_all_sets_of_steps(separation, participations):
    found = Tree().sensitivities(12, separation, participations)
    for steps, ours in enumerate(found.tolist(), 1):
        truth = brute_force(Tree(), steps, separation, participations)
        assert truth * (1 - 4e-16) <= ours <= truth * (1 + 1e-15)


def test_contributions_of_other_directions_or_signs_move_less():
    c, rng = Tree().matrix(9), np.random.default_rng(0)
    bound = Tree().sensitivity(9, 3)
    for _ in range(300):
        used = [0, 3, 6] if rng.random() < 0.5 else [2, 7]
        x = np.zeros((9, 4))
        x[used] = rng.normal(size=(len(used), 4))
        x[used] /= np.linalg.norm(x[used], axis=1, keepdims=True)
        assert np.linalg.norm(c @ x) <= bound * (1 + 1e-12)


@pytest.mark.parametrize(("steps", "apart", "uses"), [(1000, 100, 3), (4096, 512, 8), (777, 9, 4)])
def test_at_the_size_of_a_training_run_it_is_above_what_random_uses_need(steps, apart, uses):
    tree, rng = Tree(), np.random.default_rng(1)
    bound, most = tree.sensitivity(steps, apart, uses) ** 2, 0.0
    for _ in range(300):
        gaps = apart * (1 + (rng.random(uses) < 0.3) * rng.random(uses))
        at = np.floor(np.cumsum(np.concatenate([[0], np.ceil(gaps)[:-1]]))).astype(int)
        at, total = at[at < steps], 0
        for height in range(steps.bit_length()):
            block, count = np.unique(at >> height, return_counts=True)
            released = (block % 2 == 0) & ((block + 1) << height <= steps)
            total += int(np.sum(count[released] ** 2))
        assert total <= bound
        most = max(most, total)
    assert most >= 0.6 * bound  # and the bound is not far from them


@pytest.mark.parametrize("rates", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_errors_are_those_of_the_matrices(momentum, rates):
    steps = 21
    given = np.linspace(1.0, 0.05, steps) if rates else np.ones(steps)
    apart = np.subtract.outer(np.arange(steps), np.arange(steps))
    buffer = np.where(apart >= 0, momentum ** np.maximum(apart, 0.0), 0.0)
    a = np.tril(np.ones((steps, steps))) @ np.diag(given) @ buffer
    truth = np.linalg.norm(a @ np.linalg.inv(Tree().matrix(steps)), axis=1)
    work = Workload(steps, momentum, tuple(given) if rates else ())
    np.testing.assert_allclose(work.errors(Tree()), truth, rtol=1e-12)
    if momentum == 0 and not rates:  # one noise for each binary digit that is 1
        digits = [bin(t).count("1") for t in range(1, steps + 1)]
        np.testing.assert_allclose(truth**2, digits, rtol=1e-12)


def test_beside_fresh_noise_it_leaves_less_error_in_a_long_run():
    work = Workload(1024)
    assert work.error(Tree()) < 0.5 * work.error(identity())


def test_its_noise_undone_is_fresh_noise_and_a_step_needs_no_other():
    steps, key = 19, jax.random.key(0)
    zero, tx = jnp.zeros(5000), transforms.correlated_noise(Tree(), 0.7, key)

    update, state, y = jax.jit(tx.update), tx.init(zero), []
    for _ in range(steps):
        out, state = update(zero, state)
        y.append(out)
    z = Tree().matrix(steps) @ np.asarray(y, np.float64) / 0.7
    np.testing.assert_allclose(z.std(1), 1.0, atol=0.05)  # five standard errors of 5,000 numbers
    assert np.abs(np.corrcoef(z)[np.triu_indices(steps, 1)]).max() < 5 / np.sqrt(5000)
    # The sum of the first 16 steps carries one noise, that of 15 four.
    sums = np.cumsum(np.asarray(y, np.float64), 0) / 0.7
    np.testing.assert_allclose(sums[[14, 15]].std(1), [2.0, 1.0], rtol=0.05)
    for t in (0, 7, 11):
        state = transforms.CorrelatedState(key, jnp.asarray(t, jnp.int32), ())
        np.testing.assert_array_equal(update(zero, state)[0], y[t])


def test_what_is_asked_is_checked():
    for bad in ((0, 1), (2.5, 1), (4, 0), (4, 1, 0), (2**20 + 1, 1), (4, math.nan), (None, 1)):
        with pytest.raises((TypeError, ValueError), match="must be"):
            Tree().sensitivities(*bad)
