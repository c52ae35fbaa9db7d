"""Measured excess risk stays below the bounds where they apply."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax import erm
from dpjax.erm.objective_perturbation import gaussian_budget
from experiments import utility_bounds as bounds


@pytest.fixture(scope="module")
def ridge():
    """Logistic regression whose curvature is at least l2 = 0.2 and at most 0.45."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(400, 4)).astype(np.float32)
    return erm.logistic_regression(rows, rng.integers(0, 2, 400), l2=0.2)


def _excess(problem, params):
    best = erm.lbfgs(problem).params
    return jax.vmap(problem.objective)(params) - problem.objective(best), jnp.linalg.norm(best)


def test_dp_gd_stays_below_equation_nine(ridge):
    # ν ≥ μ = l2 always; the start is the origin.
    steps, size, sigma = 40, 2.0, 40.0
    keys = jax.random.split(jax.random.key(0), 200)
    params = jax.vmap(
        lambda k: erm.dp_gd(ridge, k, steps=steps, step_size=size, noise_multiplier=sigma).params
    )(keys)
    excess, distance = _excess(ridge, params)
    bound = bounds.dp_gd_excess_risk(
        step_size=size,
        steps=steps,
        noise_std=sigma / ridge.n,
        dimension=5,
        curvature=ridge.strong_convexity,
        smoothness=ridge.smoothness,
        start_distance=float(distance),
    )
    measured = float(jnp.mean(excess))
    assert measured + 5 * float(jnp.std(excess)) / math.sqrt(200) < bound
    assert measured > bound / 40


def test_noisy_gd_stays_below_its_bound_at_the_theorems_settings(ridge):
    constants = {
        "n": ridge.n,
        "dimension": 5,
        "lipschitz": 1.0,
        "smoothness": ridge.smoothness,
        "strong_convexity": ridge.strong_convexity,
        "epsilon": 2.0,
        "delta": 1e-5,
    }
    noise, size, steps = bounds.noisy_gd_theorem_settings(**constants)
    keys = jax.random.split(jax.random.key(1), 200)
    params = jax.vmap(
        lambda k: erm.noisy_gd(ridge, k, steps=steps, step_size=size, noise_std=noise).params
    )(keys)
    excess, distance = _excess(ridge, params)
    bound = bounds.noisy_gd_theorem_bound(start_distance=float(distance), **constants)
    measured = float(jnp.mean(excess))
    assert measured + 5 * float(jnp.std(excess)) / math.sqrt(200) < bound
    assert measured > bound / 40
    # The theorem's noise keeps its budget, and more.
    mechanism = erm.mechanism_of(erm.noisy_gd, ridge, noise, steps=steps, step_size=size)
    assert acc.epsilon(mechanism, delta=1e-5, adjacency="replace-one") < 2.0


def test_a_sampled_gradient_is_as_large_as_stated():
    # Records that agree: E‖g‖² = C²(1 + (1 − q)/b + pσ²/b²), the statement but for q of a term.
    rows, n, rate, sigma, dimension = np.zeros((400, 4), np.float32), 400, 0.05, 3.0, 4
    rows[:, 0] = 1.0
    problem = erm.logistic_regression(rows, np.ones(n, int), l2=0.0, intercept=0.0)
    bound = bounds.dp_sgd_gradient_size(
        lipschitz=problem.lipschitz,
        clip_norm=problem.gradient_bound,
        dimension=dimension,
        noise_multiplier=sigma,
        batch=rate * n,
    )
    # One step of size one from the origin, where the slope of a record's loss is 1/2, not 1.
    keys = jax.random.split(jax.random.key(0), 4_000)
    moved = jax.vmap(
        lambda k: (
            erm.dp_sgd(
                problem,
                k,
                steps=1,
                step_size=1.0,
                rate=rate,
                clip_norm=1.0,
                noise_multiplier=sigma / 2,
            ).params
        )
    )(keys)
    squares = np.square(2.0 * np.asarray(moved, np.float64)).sum(1)
    error = squares.std() / math.sqrt(4_000)
    exact = bound**2 - rate / (rate * n)
    assert abs(squares.mean() - exact) < 4 * error
    assert error < 0.02 * exact


def test_dp_sgd_stays_below_theorem_two(ridge):
    problem = dataclasses.replace(ridge, radius=4.0)
    rate, steps, sigma = 0.25, 64, 5.0
    size = bounds.dp_sgd_gradient_size(
        lipschitz=problem.lipschitz,
        clip_norm=problem.gradient_bound,
        dimension=5,
        noise_multiplier=sigma,
        batch=rate * problem.n,
    )
    schedules = {
        bounds.dp_sgd_excess_risk(
            steps=steps, gradient_size=size, curvature=problem.strong_convexity
        ): erm.schedules.inverse_time(problem.strong_convexity, steps),
        bounds.dp_sgd_convex_bound(
            steps=steps, gradient_size=size, diameter=8.0
        ): erm.schedules.inverse_sqrt(8.0, size, steps),
    }
    keys = jax.random.split(jax.random.key(0), (len(schedules), 100))
    for mine, (bound, sizes) in zip(keys, schedules.items(), strict=True):
        run = jax.vmap(
            lambda k, sizes=sizes: (
                erm.dp_sgd(
                    problem, k, steps=steps, step_size=sizes, rate=rate, noise_multiplier=sigma
                ).params
            )
        )
        excess, distance = _excess(problem, run(mine))
        assert float(distance) < 4.0  # the minimiser lies in the ball
        assert float(jnp.mean(excess)) + 5 * float(jnp.std(excess)) / 10.0 < bound


def test_the_published_noise_is_private_until_eight_and_wasteful(oracles):
    for row in oracles["dpgd_sigma_formula"]:
        p = row["params"]
        found = bounds.dp_gd_theorem_noise_std(
            n=p["n"], lipschitz=p["L"], steps=p["T"], epsilon=p["eps"], delta=p["delta"]
        )
        assert found == pytest.approx(row["value"], rel=1e-12)
    for row in oracles["dpgd_sigma_formula_valid_up_to_eps"]:
        for factor, private in ((0.999, True), (1.001, False)):
            epsilon, delta = factor * row["value"], row["params"]["delta"]
            mu = epsilon / math.sqrt(2 * math.log(1 / delta))
            assert (mu <= gaussian_budget(epsilon, delta)) is private


def test_dp_gd_calibrates_to_the_exact_noise(oracles):
    checked = 0
    for row in oracles["dpgd_sigma_exact_replace_one"]:
        p = row["params"]
        if p["T"] > 200 or p["eps"] < 0.1:
            continue
        problem = erm.logistic_regression(
            np.zeros((p["n"], 1), np.float32), np.zeros(p["n"], int), l2=0.1, intercept=0.0
        )
        multiplier = erm.calibrate_noise(
            erm.dp_gd,
            problem,
            epsilon=p["eps"],
            delta=p["delta"],
            adjacency="replace-one",
            steps=p["T"],
            step_size=1.0,
        )
        assert multiplier * p["L"] / p["n"] == pytest.approx(row["value"], rel=1e-5)
        checked += 1
    assert checked


def test_theorem_bound_equals_equation_nine_at_the_theorems_steps():
    n, p, nu, beta, epsilon, delta = 1000, 6, 0.1, 0.3, 0.5, 1e-6
    size = 1 / beta
    steps = 2 * math.log(n) / (size * nu)
    sigma = bounds.dp_gd_theorem_noise_std(
        n=n, lipschitz=1.0, steps=steps, epsilon=epsilon, delta=delta
    )
    inner = bounds.dp_gd_excess_risk(
        step_size=size,
        steps=steps,
        noise_std=sigma,
        dimension=p,
        curvature=nu,
        smoothness=beta,
        start_distance=2.0,
    )
    stated = bounds.dp_gd_theorem_bound(
        n=n,
        dimension=p,
        lipschitz=1.0,
        smoothness=beta,
        curvature=nu,
        start_distance=2.0,
        epsilon=epsilon,
        delta=delta,
    )
    # (1 − ην)^T ≤ e^{−ηνT} = n⁻² is all that is lost.
    assert inner <= stated <= inner * 1.2


def test_rates_improve_where_the_paper_says():
    rates = bounds.utility_rates(
        n=10_000, dimension=20, epsilon=1.0, smoothness=1.0, strong_convexity=1e-3, curvature=0.1
    )
    assert rates["DP-GD"][1] < rates["gradient (GD), minimum curvature"][1]
    assert rates["DP-SGD"][1] < rates["gradient (SGD), minimum curvature"][1]
    assert rates["DP-GD"][0] <= rates["gradient (SGD), minimum curvature"][0]
    assert math.isnan(rates["gradient (GD), minimum curvature"][0])
    assert bounds.noisy_gd_lower_rate(n=10, dimension=400, epsilon=1.0) == 1.0


def test_conditions_are_named():
    with pytest.raises(ValueError, match="n is too small"):
        bounds.noisy_gd_theorem_settings(
            n=10, dimension=50, lipschitz=1.0, smoothness=1.0, strong_convexity=0.1, epsilon=0.1,
            delta=1e-5,
        )  # fmt: skip
    with pytest.raises(ValueError, match=r"2\*lambda/beta\^2"):
        bounds.noisy_gd_excess_risk(
            step_size=1.0, steps=3, noise_std=0.1, dimension=2, smoothness=2.0,
            strong_convexity=0.5, start_distance_squared=1.0,
        )  # fmt: skip


def test_dp_sgd_is_priced_exactly():
    # q = 0.1, T = 50, ε = 0.1, δ = 1/36176²: σ = 36.1696 exact, 47.1 by the moments accountant.
    problem = erm.logistic_regression([[1.0]], [1], l2=0.1)
    mechanism = erm.mechanism_of(
        erm.dp_sgd, problem, 36.169579569842995, steps=50, rate=0.1, step_size=1.0
    )
    delta = 36176.0**-2
    assert delta * (1 - 1e-5) < acc.delta(mechanism, epsilon=0.1) < delta * (1 + 1e-3)
