"""What the hidden-state solvers promise of their runs, and what their mechanisms say of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax import erm

REPLACE = acc.Adjacency.REPLACE_ONE


def test_mechanisms_state_the_runs_constants(logistic, key):
    run = erm.noisy_gd(logistic, key, steps=9, step_size=1.5, noise_std=0.2, clip_norm=0.3)
    m = run.mechanism
    assert (m.steps, m.step_size, m.noise_std) == (9, 1.5, 0.2)
    assert m.gradient_sensitivity == pytest.approx(2 * 0.3 / 203)
    assert (m.strong_convexity, m.smoothness) == (0.05, pytest.approx(0.3))
    cyclic = erm.noisy_cyclic_gd(
        logistic, jax.random.clone(key), epochs=4, batches=8, step_size=1.5, noise_std=0.2
    ).mechanism
    assert (cyclic.steps, cyclic.batches) == (32, 8)
    assert cyclic.gradient_sensitivity == pytest.approx(2 / 25)  # ⌊203/8⌋ records a batch


def test_the_last_iterates_price_converges_while_composition_grows(logistic):
    price = []
    for steps in (50, 2_000, 200_000):
        mechanism = erm.mechanism_of(erm.noisy_gd, logistic, 0.05, steps=steps, step_size=1.0)
        price.append(acc.epsilon(mechanism, delta=1e-5, adjacency=REPLACE))
    assert price[0] < price[1] <= price[2] < 1.001 * price[1]
    # The quadratic process attains μ² = (S/n)²·(η/2σ²)·(1+c)(1−c^K)/((1−c)(1+c^K)).
    c = 1 - 1.0 * 0.05
    mu = 2 / 203 * np.sqrt(1.0 / (2 * 0.05**2) * (1 + c) / (1 - c))
    exact = acc.epsilon(acc.Gaussian(2 / mu), delta=1e-5, adjacency=REPLACE)
    assert price[2] == pytest.approx(exact, rel=2e-3)


def test_shuffled_cyclic_batches_cost_far_less_than_composition(logistic):
    settings = {"epochs": 200, "batches": 8, "step_size": 1.0}
    mechanism = erm.mechanism_of(erm.noisy_cyclic_gd, logistic, 0.3, **settings)
    hidden = acc.epsilon(mechanism, delta=1e-5, adjacency=REPLACE)
    # 200 visits of the record, each a Gaussian of multiplier (√(2η)σ/η)·b/(S/2) on the batch.
    visit = acc.Gaussian(np.sqrt(2) * 0.3 * 25)
    composed = acc.epsilon(acc.Repeated(visit, 200), delta=1e-5, adjacency=REPLACE)
    assert hidden < 0.8 * composed


def test_projection_keeps_every_release_in_the_ball(rows):
    problem = erm.logistic_regression(*rows, l2=0.01, radius=0.5)
    run = erm.noisy_gd(problem, jax.random.key(0), steps=3, step_size=1.0, noise_std=5.0)
    assert jnp.linalg.norm(run.params) <= 0.5 * (1 + 1e-6)
    assert run.mechanism.diameter == 1.0


def test_history_tells_nothing_but_the_noise(logistic, key):
    run = erm.noisy_gd(logistic, key, steps=3, step_size=1.0, noise_std=0.5)
    assert run.history._fields == ("noise_std",)


@pytest.mark.at_length
def test_remainder_is_left_out_at_random():
    # 5 records in 2 batches: one is left out, and which one depends on the key.
    rows = np.eye(5, dtype=np.float32)
    problem = erm.logistic_regression(rows, [1] * 5, l2=0.0, intercept=0.0)

    def left_out(key):
        params = erm.noisy_cyclic_gd(
            problem, key, epochs=1, batches=2, step_size=1.0, noise_std=0.0, init=jnp.zeros(5)
        ).params
        return jnp.argmin(params), jnp.sum(params == 0)

    which, zeros = jax.vmap(left_out)(jax.random.split(jax.random.key(0), 300))
    assert np.all(zeros == 1)
    counts = np.bincount(which, minlength=5)
    assert counts.min() > 30  # 60 expected of each, sd 7
