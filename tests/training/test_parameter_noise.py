"""What of the noise of all steps is left in the parameters: exact, at most, and in `fit`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import training
from dpjax._numerics.scope import enable_x64
from dpjax.training import parameter_noise_std


def moved_by(steps, rate, momentum, averaged, curvatures):
    """How far noise of 1 in each step's gradient moves the mean of the last iterates, by optax."""
    optimizer = optax.sgd(rate, momentum=momentum or None)

    def run(step, curvature):
        def take(carry, t):
            x, state = carry
            update, state = optimizer.update(curvature * x + (t == step), state, x)
            x = optax.apply_updates(x, update)
            return (x, state), x

        zero = jnp.zeros((), jnp.float64)
        _, path = jax.lax.scan(take, (zero, optimizer.init(zero)), jnp.arange(steps))
        return jnp.mean(path[-averaged:])

    with enable_x64(True), jax.numpy_dtype_promotion("standard"):
        over_steps = jax.vmap(run, in_axes=(0, None))
        every = jax.jit(jax.vmap(over_steps, in_axes=(None, 0)))
        return np.asarray(every(jnp.arange(steps), jnp.asarray(curvatures)))


SETTINGS = [(0.0, 1), (0.0, 10), (0.9, 1), (0.9, 10), (0.9, 20), (0.5, 7)]


@pytest.mark.parametrize(("momentum", "averaged"), SETTINGS)
def test_no_stable_curvature_lets_noise_move_parameters_further(momentum, averaged):
    steps, stds = 20, np.linspace(0.5, 2.0, 20)
    most = parameter_noise_std(stds, 1.0, momentum=momentum, averaged=averaged)
    ends = 2 * (1 + momentum), (1 - np.sqrt(momentum)) ** 2, (1 + np.sqrt(momentum)) ** 2
    curved = [0.001, 0.03, 0.5, 1.0, *ends]
    moved = moved_by(steps, 1.0, momentum, averaged, [0.0, *curved, 3 + 3 * momentum])
    flat, *stable, wild = np.linalg.norm(stds * moved, axis=1)
    assert most == pytest.approx(flat, rel=1e-12)  # of a linear loss it is exact
    assert max(stable) <= most * (1 + 1e-12)
    assert wild > most  # beyond what is stable: the condition is not idle


def released(loss, params, data, plan, keys, **settings):
    """The released averages of many runs of `fit` that differ in their noise alone."""
    found = []
    for key in range(keys):
        run = training.fit(
            loss, params, data, plan, optimizer=optax.sgd(0.5, momentum=0.9),
            key=jax.random.key(key), average=training.tail_average(plan.steps // 2), **settings,
        )  # fmt: skip
        found.append(np.asarray(run.average, np.float64))
    return np.stack(found)


def plan_of_all(records, steps=12):
    """Every record in every step: what differs between keys is noise."""
    return training.make_plan(
        records, noise_multiplier=2.0, delta=1e-3, steps=steps, batch_size=records,
        sampling="full", clip_norm=1.0,
    )  # fmt: skip


def test_runs_of_fit_of_a_linear_loss_scatter_by_it():
    plan = plan_of_all(20)
    data = jnp.full((20, 400), 0.01)
    runs = released(lambda params, x: jnp.sum(params * x), jnp.zeros(400), data, plan, 20)
    stds = [plan.noise_std(step) for step in range(plan.steps)]
    expected = parameter_noise_std(stds, 0.5, momentum=0.9, averaged=plan.steps // 2)
    # 19 · 400 degrees of freedom: four deviations of the estimate are 3.2 %.
    assert np.sqrt(np.mean(runs.var(axis=0, ddof=1))) == pytest.approx(expected, rel=0.033)


def test_runs_of_fit_of_a_logistic_loss_scatter_by_less():
    rng = np.random.default_rng(0)
    plan = plan_of_all(50, steps=60)
    x = rng.normal(size=(50, 40))
    x = jnp.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), jnp.float32)
    y = jnp.asarray(rng.integers(0, 2, 50), jnp.float32)

    def loss(params, example):
        features, label = example
        return optax.sigmoid_binary_cross_entropy(features @ params, label)

    runs = released(loss, jnp.zeros(40), (x, y), plan, 20)
    stds = [plan.noise_std(step) for step in range(plan.steps)]
    most = parameter_noise_std(stds, 0.5, momentum=0.9, averaged=30)
    spread = np.sqrt(np.mean(runs.var(axis=0, ddof=1)))
    assert 0.3 * most < spread < most


def test_what_is_no_run_is_refused():
    for stds in ([], [[1.0]], [-1.0], [np.nan], [np.inf]):
        with pytest.raises(ValueError, match="noise_stds must be finite numbers"):
            parameter_noise_std(stds, 0.1)
    with pytest.raises(ValueError, match="learning_rate must be"):
        parameter_noise_std([1.0], -0.1)
    with pytest.raises(ValueError, match="momentum must be"):
        parameter_noise_std([1.0], 0.1, momentum=1.0)
    for averaged in (0, 3):
        with pytest.raises(ValueError, match="averaged must be at"):
            parameter_noise_std([1.0, 1.0], 0.1, averaged=averaged)
    assert parameter_noise_std([0.0, 0.0], 0.1) == 0.0
    assert parameter_noise_std([1e-200, 1e-200], 1.0) == pytest.approx(np.sqrt(2) * 1e-200)
