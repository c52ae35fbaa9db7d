"""The adaptive solver never spends what it has not got, and keeps its running average."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax import erm


def test_the_budget_is_never_passed_and_nearly_used(logistic):
    for noise, steps in ((20.0, 5), (3.0, 40)):
        run = erm.dp_agd(logistic, jax.random.key(0), total_noise=noise, planned_steps=steps)
        rho = 0.5 / noise**2
        assert run.mechanism.rho == pytest.approx(rho)
        assert run.history.spent <= rho
        # The round that did not fit costs little more than ρ/planned, grown a few times.
        assert run.history.spent > 0.5 * rho
        assert int(run.history.updates) + int(run.history.refinements) <= 2 * steps


def test_with_plenty_of_budget_it_comes_near_the_minimum(logistic):
    run = erm.dp_agd(logistic, jax.random.key(1), total_noise=1e-3)
    best = erm.lbfgs(logistic).params
    gap = float(logistic.objective(run.params) - logistic.objective(best))
    start = float(logistic.objective(logistic.zeros()) - logistic.objective(best))
    assert gap < 0.02 * start
    assert run.history.updates > 3


def test_at_the_minimum_no_candidate_wins_and_the_gradient_is_refined(logistic):
    best = erm.lbfgs(logistic).params
    run = erm.dp_agd(logistic, jax.random.key(2), total_noise=0.02, init=best, max_step_size=1e4)
    assert run.history.refinements > run.history.updates
    assert logistic.objective(run.params) - logistic.objective(best) < 0.05


def test_the_mechanism_is_priced_for_its_own_adjacency(logistic):
    for adjacency in acc.Adjacency:
        run = erm.dp_agd(logistic, jax.random.key(3), epsilon=1.0, delta=1e-6, adjacency=adjacency)
        assert 0.99 < acc.epsilon(run.mechanism, delta=1e-6, adjacency=adjacency) <= 1.0
    with pytest.raises(acc.UnsupportedQuery):
        acc.epsilon(run.mechanism, delta=1e-6, adjacency="add-remove")


def test_replace_one_adds_twice_the_noise():
    # Zero rows: the first direction is pure noise, and only the choice sees the factor; with the
    # regulariser as the only signal, twice the noise turns the measured direction further away.
    problem = erm.logistic_regression(
        np.zeros((50, 40), np.float32), [0, 1] * 25, l2=1.0, intercept=0.0
    )
    start = 5 * np.ones(40, np.float32) / np.sqrt(40)
    ends = {}
    for adjacency in acc.Adjacency:
        runs = [
            erm.dp_agd(
                problem,
                key,
                total_noise=0.1,
                planned_steps=1,
                adjacency=adjacency,
                init=start,
                candidates=2,
                max_step_size=1000.0,  # the shortest of the geometric candidates is then 1
            ).params
            for key in jax.random.split(jax.random.key(4), 30)
        ]
        moves = np.asarray(runs) - start
        cosines = -moves @ (start / 5) / np.maximum(np.linalg.norm(moves, axis=1), 1e-9)
        ends[adjacency] = np.mean(np.arccos(np.clip(cosines, -1, 1)))
    # Signal n·λ·5 = 250, noise std·√40 with std = factor·C/√(2ρ_g): angle ≈ noise/signal.
    rho_g = 0.5 * 0.5 / 0.1**2
    expected = np.arctan(1 / np.sqrt(2 * rho_g) * np.sqrt(39) / 250)
    assert ends[acc.Adjacency.ADD_REMOVE] == pytest.approx(expected, rel=0.1)
    assert ends[acc.Adjacency.REPLACE_ONE] == pytest.approx(2 * expected, rel=0.1)
