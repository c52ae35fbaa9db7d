"""Curvature estimates against exact values and reference quadratures."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import erm
from experiments import curvature

_H = jnp.array([[2.0, 0.3, 0.0], [0.3, 0.5, 0.1], [0.0, 0.1, 0.01]])


def _quadratic(w):
    return 0.5 * w @ _H @ w


def test_trace_and_extremes_of_a_quadratic():
    low, high = curvature.extreme_curvatures(_quadratic, jnp.ones(3), jax.random.key(0))
    exact = np.linalg.eigvalsh(np.asarray(_H, np.float64))
    assert low == pytest.approx(exact[0], abs=2e-6)
    assert high == pytest.approx(exact[-1], rel=1e-5)
    trace = curvature.hessian_trace(_quadratic, jnp.ones(3), jax.random.key(1), samples=512)
    assert trace.low < 2.51 < trace.high
    # Random signs: variance 2(‖H‖²_F − Σh²ᵢᵢ) = 0.4 a sample.
    assert trace.high - trace.value == pytest.approx(2 * np.sqrt(0.4 / 512), rel=0.2)
    average = curvature.average_curvature(_quadratic, jnp.ones(3), jax.random.key(1), samples=512)
    assert average.value == pytest.approx(float(trace.value) / 3)


def test_hessian_vector_product_is_the_glm_formula():
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(203, 5)).astype(np.float32), rng.integers(0, 2, 203)
    problem = erm.logistic_regression(rows, labels, l2=0.05)
    w, v = jax.random.normal(jax.random.key(2), (2, 6))
    bend = problem.loss.curvature(problem.features @ w, problem.labels)
    expected = problem.features.T @ (bend * (problem.features @ v)) / problem.n + 0.05 * v
    found = curvature.hessian_vector_product(problem.objective, w, v)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_expected_curvature_of_quadratics_reproduces_reference_values(oracles):
    for row in oracles["expected_curvature_quadratic"]:
        p = row["params"]
        found = curvature.expected_curvature(
            _quadratic, jnp.array(p["x_minus_xstar"], float), jnp.zeros(3), p["sigma"], 2.51
        )
        assert found == pytest.approx(row["value"], rel=1e-5)
    (row,) = oracles["expected_curvature_quadratic_inf_over_ball"]
    smallest = np.linalg.eigvalsh(np.asarray(row["params"]["H"]))[0]
    found = curvature.expected_curvature_on_ball(
        2.51, smallest, 3, row["params"]["sigma"], row["params"]["radius"]
    )
    assert found == pytest.approx(row["value"], rel=1e-9)


def test_golden_expected_curvature():
    found = curvature.expected_curvature(
        _quadratic, jnp.array([1.0, -2.0, 0.5]), jnp.zeros(3), 1.0, 2.51
    )
    assert found == pytest.approx(0.6196969696969697, rel=1e-5)


_S = [[1.0, 0.0], [0.6, 0.8], [-0.8, 0.6], [0.28, -0.96]]


def _reference_problem():
    return erm.logistic_regression(
        _S, [1, -1, 1, 1], l2=0.01, intercept=0.0, feature_norm=1.0 + 1e-6
    )


def test_logistic_curvature_is_exact_and_equation_five_is_not(oracles):
    problem = _reference_problem()
    best = jnp.array([oracles[f"lr_minimizer_coord{i}"][0]["value"] for i in (0, 1)], jnp.float32)
    np.testing.assert_allclose(erm.lbfgs(problem).params, best, rtol=1e-3)
    for row in oracles["expected_curvature_lr_exact"]:
        found = curvature.expected_curvature_logistic(
            problem, jnp.zeros(2), best, row["params"]["sigma"]
        )
        assert found == pytest.approx(row["value"], rel=2e-5)
    trace = jnp.trace(jax.hessian(problem.objective)(jnp.zeros(2)))
    for row in oracles["expected_curvature_lr_eq5"]:
        found = curvature.expected_curvature(
            problem.objective, jnp.zeros(2), best, row["params"]["sigma"], trace
        )
        assert found == pytest.approx(row["value"], rel=2e-5)


@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_monte_carlo_interval_holds_the_exact_value_and_is_narrow(noise):
    problem = _reference_problem()
    best = erm.lbfgs(problem).params
    exact = curvature.expected_curvature_logistic(problem, jnp.zeros(2), best, noise)
    found = curvature.expected_curvature_monte_carlo(
        problem.objective, jnp.zeros(2), best, noise, jax.random.key(3), samples=20_000
    )
    assert found.low < exact < found.high
    assert found.high - found.low < 0.2 * exact


def test_the_scale_that_matters_is_step_size_times_noise():
    # At σ = 1 the published reading gives nearly the average curvature; at ησ it is nearly minimal.
    away = jnp.array([0.0, 0.0, 1.0])
    reading = [
        float(curvature.expected_curvature(_quadratic, away, jnp.zeros(3), t, 2.51))
        for t in (1.0, curvature.noise_in_iterate(0.5, 0.02))
    ]
    assert reading[0] > 0.6
    assert reading[1] < 0.02


def test_only_logistic_losses_have_the_exact_form():
    problem = erm.huber_svm(_S, [1, -1, 1, 1], l2=0.01)
    with pytest.raises(ValueError, match="loss must be Logistic"):
        curvature.expected_curvature_logistic(problem, jnp.zeros(3), jnp.zeros(3), 1.0)
