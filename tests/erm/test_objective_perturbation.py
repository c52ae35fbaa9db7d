"""The tilt can be read back from the minimiser; a missed tolerance releases nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax import erm
from dpjax.accounting import ObjectivePerturbation, PureDP

_N, _D = 60, 400


@pytest.fixture(scope="module")
def wide() -> erm.Problem:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(_N, _D)).astype(np.float32)
    return erm.logistic_regression(rows, rng.integers(0, 2, _N), l2=0.5, intercept=0.0)


def _tilt(problem, params):
    """b from the optimality condition Σ∇ℓ + nλw + b = 0."""
    return -problem.n * np.asarray(problem.gradient(params), np.float64)


def test_the_tilt_has_the_scale_the_mechanism_says(wide):
    solve = lambda k: erm.objective_perturbation(wide, k, noise_std=40.0)  # noqa: E731
    runs = [solve(key) for key in jax.random.split(jax.random.key(2), 20)]
    b = np.concatenate([_tilt(wide, run.params) for run in runs])
    z2 = np.mean((b / 40.0) ** 2)
    tolerance = 5 * np.sqrt(
        2 / b.size
    )  # 8,000 numbers: a scale 10 % off is 12 standard errors away
    assert abs(z2 - 1) < tolerance
    assert abs(z2 / 1.1**2 - 1) > tolerance
    assert runs[0].mechanism.noise_std == 40.0
    assert runs[0].mechanism.regularization == _N * 0.5


def test_pure_noise_has_the_gamma_length_of_chaudhuri(wide):
    run = lambda k: erm.objective_perturbation(  # noqa: E731
        wide, k, epsilon=2.0, delta=0, adjacency="replace-one"
    )
    runs = [run(key) for key in jax.random.split(jax.random.key(3), 20)]
    assert isinstance(runs[0].mechanism, PureDP)
    # ‖b‖ is Gamma(d, 2/ε'): mean 2d/ε', relative spread 1/√d.
    prime = 2.0 - 2 * np.log1p(0.25 / (_N * 0.5))
    lengths = [np.linalg.norm(_tilt(wide, r.params)) * prime / (2 * _D) for r in runs]
    assert abs(np.mean(lengths) - 1) < 5 / np.sqrt(20 * _D)


def test_amp_adds_its_output_noise(wide):
    keys = [jax.random.key(9), jax.random.key(9)]
    bare, noisy = (
        erm.approximate_minima_perturbation(wide, k, noise_std=10.0, output_noise_std=s).params
        for k, s in zip(keys, (0.0, 0.2), strict=True)
    )
    z = np.asarray(noisy - bare, np.float64) / 0.2
    assert abs(np.mean(z**2) - 1) < 5 * np.sqrt(2 / _D)


def test_amp_residual_counts_both_solvers_errors(wide):
    run = erm.approximate_minima_perturbation(
        wide, jax.random.key(0), gradient_tolerance=1e-4, noise_std=10.0, output_noise_std=0.01
    )
    assert run.mechanism.residual == pytest.approx(2 * (1e-4 / 0.5) / 0.01)
    assert run.history.gradient_norm <= 1e-4


@pytest.mark.parametrize(
    "solve",
    [
        lambda p, k: erm.objective_perturbation(p, k, noise_std=1.0, tolerance=1e-30),
        lambda p, k: erm.approximate_minima_perturbation(
            p, k, noise_std=1.0, output_noise_std=1.0, gradient_tolerance=1e-30
        ),
    ],
)
def test_a_missed_tolerance_releases_nothing(solve, logistic, key):
    with pytest.raises(erm.NotConverged, match="nothing is released"):
        solve(logistic, key)


def test_under_a_trace_a_missed_tolerance_gives_nan(logistic):
    def solve(k, tol):
        return erm.objective_perturbation(logistic, k, noise_std=1.0, tolerance=tol).params

    keys = jax.random.split(jax.random.key(1), 2)
    found = jax.vmap(solve)(keys, jnp.array([1e-5, 1e-30]))
    assert np.all(np.isfinite(found[0]))
    assert np.all(np.isnan(found[1]))


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_budget_is_kept_and_used(adjacency, rows, key):
    problem = erm.logistic_regression(*rows, l2=0.05)
    run = erm.objective_perturbation(problem, key, epsilon=1.0, delta=1e-6, adjacency=adjacency)
    assert isinstance(run.mechanism, ObjectivePerturbation)
    spent = acc.epsilon(run.mechanism, delta=1e-6, adjacency=adjacency)
    assert 0.999 < spent <= 1.0
    # Kifer's rule: the curvature of one record is at most ε/2 of the regularisation.
    assert run.mechanism.regularization >= 2 * 0.25 / 1.0 * (1 - 1e-9)


def test_sparse_rows_take_the_quasi_newton_road(rows, key):
    from jax.experimental import sparse

    thin = erm.logistic_regression(sparse.BCOO.fromdense(jnp.asarray(rows[0])), rows[1], l2=0.05)
    full = erm.logistic_regression(*rows, l2=0.05)
    a = erm.objective_perturbation(thin, key, noise_std=3.0, tolerance=1e-7).params
    b = erm.objective_perturbation(full, jax.random.clone(key), noise_std=3.0).params
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_pure_noise_takes_no_ridge_of_the_callers(wide, key):
    pure = {"epsilon": 2.0, "delta": 0, "adjacency": "replace-one"}
    with pytest.raises(ValueError, match="extra_l2 must be None for delta = 0"):
        erm.objective_perturbation(wide, key, extra_l2=1.0, **pure)


@pytest.mark.parametrize(
    "solver", [erm.objective_perturbation, erm.approximate_minima_perturbation]
)
@pytest.mark.parametrize("epsilon", [0, -1.0, np.nan, np.inf])
def test_a_budget_of_no_epsilon_is_refused_by_name(logistic, solver, epsilon):
    with pytest.raises(ValueError, match=rf"epsilon must be a finite number > 0, got {epsilon}"):
        solver(logistic, jax.random.key(0), epsilon=epsilon, delta=1e-5)


def test_approximate_minima_need_a_positive_delta(logistic):
    for delta in (0, 0.0, 1.0, np.nan):
        with pytest.raises(ValueError, match=rf"delta must be in \(0, 1\), got {delta}"):
            erm.approximate_minima_perturbation(
                logistic, jax.random.key(0), epsilon=1.0, delta=delta
            )
