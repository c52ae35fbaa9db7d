"""The loop that solvers share is the loop as one writes it out; noise is a function of the step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import erm
from dpjax.erm import descent


@pytest.mark.parametrize("average", [False, True])
def test_descent_is_the_loop_written_out(rows, key, average):
    problem = erm.logistic_regression(*rows, l2=0.05, radius=0.3)
    sizes = jnp.asarray([2.0, 1.0, 0.5, 0.25])
    noise = descent.descent_noise(key, problem, 0.1)
    found, iterates = descent.descend(
        problem, problem.zeros(), sizes, lambda w, t: problem.gradient(w), noise=noise,
        average=average, keep_iterates=True,
    )  # fmt: skip
    x, y = np.asarray(problem.features, np.float64), np.asarray(problem.labels, np.float64)
    w, path = np.zeros(6), []
    for t, size in enumerate([2.0, 1.0, 0.5, 0.25]):
        gradient = x.T @ (-y / (1 + np.exp(y * (x @ w)))) / 203 + 0.05 * w
        w = w - size * gradient + np.asarray(noise(t), np.float64)
        w = w * min(1.0, 0.3 / np.linalg.norm(w))
        path.append(w)
    np.testing.assert_allclose(iterates, path, atol=1e-6)
    np.testing.assert_allclose(found, np.mean(path, 0) if average else w, atol=1e-6)


@pytest.mark.parametrize("batch_size", [50, 203])
def test_cyclic_batches_are_every_record_once_and_short_ones_are_averages_too(
    logistic, key, batch_size
):
    data = descent.shuffle_problem(logistic, key, batch_size)
    gradient = descent.cyclic_gradient(data, logistic.n, batch_size, clip_norm=0.3)
    params = 0.1 * jnp.ones(6)
    sizes = descent.batch_sizes(logistic.n, batch_size)
    parts = [(gradient(params, t) - 0.05 * params) * float(size) for t, size in enumerate(sizes)]
    np.testing.assert_allclose(sum(parts), logistic.gradient_sum(params, clip_norm=0.3), atol=2e-4)
    # The next epoch has the same batches.
    np.testing.assert_array_equal(gradient(params, len(sizes)), gradient(params, 0))


@pytest.mark.parametrize(
    ("solver", "settings"),
    [
        (erm.dp_gd, {"noise_multiplier": 3.0}),
        (erm.dp_sgd, {"noise_multiplier": 3.0, "rate": 0.3}),
        (erm.perturbed_gd, {"noise_radius": 1e3}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_noise_and_batches_are_a_function_of_key_and_step(solver, settings, logistic):
    few, more = (
        solver(
            logistic, jax.random.key(1), steps=steps, step_size=0.5, keep_iterates=True, **settings
        ).history.iterates
        for steps in (2, 4)
    )
    np.testing.assert_allclose(few, more[:2], rtol=1e-6, atol=1e-7)
    assert not np.allclose(few[1] - few[0], few[0], rtol=1e-2)
