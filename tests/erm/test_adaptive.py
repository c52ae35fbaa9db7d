"""The adaptive solver never spends what it has not got, and keeps its running average."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax import erm
from dpjax._numerics.scope import enable_x64
from dpjax.erm.adaptive import utilities
from dpjax.erm.descent import exponential, exponential_from_words


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


@pytest.mark.parametrize("size", [0.0, 1e3, 1e6, 1e8, 1e15])  # of the regulariser beside the losses
def test_one_record_moves_the_choice_by_the_range_that_is_priced(size):
    # The exponential mechanism is priced by the range of utility(D) - utility(D'), at most `scale`.
    rng = np.random.default_rng(0)
    records, bound, scale = 300, 3.0, 0.1
    choose = jax.jit(utilities)
    for _ in range(50):
        losses = rng.uniform(-1, 4, size=(20, records))
        losses[:, rng.integers(records)] = rng.choice([0.0, bound, np.inf, np.nan], size=20)
        ridge = size * (1 + 0.01 * rng.random(20))
        given = [jnp.asarray(x, jnp.float32) for x in (losses, losses[:, 1:], losses[:, :-1])]
        found = [
            np.float64(choose(x, jnp.asarray(ridge, jnp.float32), bound, scale)) for x in given
        ]
        for other in found[1:]:
            moved = found[0] - other
            # Beyond 100 the chance of a candidate is below 1e-43: float32 may round its utility.
            likely = (found[0] > found[0].max() - 100) & (other > other.max() - 100)
            assert np.ptp(moved[likely]) <= scale * (1 + 1e-3)


def test_the_choice_still_follows_losses_and_regulariser():
    losses = jnp.asarray([[0.5] * 100, [0.25] * 100, [0.75] * 100], jnp.float32)
    found = utilities(losses, jnp.asarray([10.0, 20.0, 0.0], jnp.float32), 2.0, 0.3)
    # (50 + 10, 25 + 20, 75 + 0) on the scale 0.3 / 2.
    np.testing.assert_allclose(found - found[1], [-15 * 0.15, 0, -30 * 0.15], atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exponentials_have_true_tails(dtype):
    words = [0, 1, 2**20, 2**40 + 12345, 2**63 - 1, 2**63, 2**64 - 2**40, 2**64 - 2, 2**64 - 1]
    pairs = np.array([[word >> 32, word & 0xFFFF_FFFF] for word in words], np.uint32).T
    with enable_x64(dtype is np.float64), mpmath.workdps(40):
        found = np.asarray(exponential_from_words(jnp.asarray(pairs), dtype), np.float64)
        truth = [
            float(-mpmath.log1p(-(mpmath.mpf(word) + 0.5) / mpmath.mpf(2) ** 64)) for word in words
        ]
    np.testing.assert_allclose(found, truth, rtol=4 * np.finfo(dtype).eps)


def test_exponentials_near_zero_are_not_on_a_grid():
    # Of 2^20 draws about 10 lie below 1e-5, where multiples of 2^-23 have 84 places.
    small = np.sort(np.asarray(exponential(jax.random.key(0), (2**20,), jnp.float32)))[:200]
    assert np.any((small * 2.0**23) % 1 > 0.1)
    assert 2**20 * (1 - np.exp(-small[99])) == pytest.approx(100, rel=0.5)
