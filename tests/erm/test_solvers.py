"""What holds for every solver: the noiseless twin, the noise's scale, jit, vmap, bad arguments."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import erm

_STEPS, _SIZE = 6, 0.8
_GD = {"steps": _STEPS, "step_size": _SIZE}
_CLIPPED = {**_GD, "clip_norm": 1.0}

# name -> (solver, noise argument, settings under which no noise means plain gradient descent)
TWINS = {
    "dp_gd": (erm.dp_gd, "noise_multiplier", _CLIPPED),
    "dp_sgd": (erm.dp_sgd, "noise_multiplier", {**_CLIPPED, "rate": 1.0}),
    "noisy_gd": (erm.noisy_gd, "noise_std", _GD),
    "noisy_cyclic_gd": (
        erm.noisy_cyclic_gd,
        "noise_std",
        {"epochs": _STEPS, "batches": 1, "step_size": _SIZE},
    ),
    "perturbed_gd": (erm.perturbed_gd, "noise_radius", {**_CLIPPED, "batch_size": 203}),
    "output_perturbed_gd": (erm.output_perturbed_gd, "noise_std", _GD),
    "output_perturbed_sgd": (
        erm.output_perturbed_sgd,
        "noise_std",
        {"passes": _STEPS, "batch_size": 203, "step_size": _SIZE},
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_without_noise_a_solver_is_gradient_descent(name, logistic, key):
    solver, noise, settings = TWINS[name]
    expected = erm.gradient_descent(logistic, **_GD).params
    found = solver(logistic, key, **{noise: 0.0}, **settings).params
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def test_sgd_ma_is_dp_sgd_at_rate_one_over_root_n(logistic, key):
    ours = erm.sgd_ma(logistic, key, steps=3, step_size=0.5, noise_multiplier=1.5)
    theirs = erm.dp_sgd(
        logistic,
        jax.random.clone(key),
        steps=3,
        step_size=0.5,
        noise_multiplier=1.5,
        rate=1 / math.sqrt(203),
    )
    np.testing.assert_array_equal(ours.params, theirs.params)
    assert ours.mechanism.mechanism.rate >= 1 / math.sqrt(203)


def _reference_rsgd(problem, order, epochs, size, first_step, interval):
    """chen2019, Algorithm 3, one record at a time in float64."""
    x = np.asarray(problem.features, np.float64)[order]
    y = np.asarray(problem.labels, np.float64)[order]
    w, past, h = np.zeros(x.shape[1]), [], 0
    for s in range(1, epochs + 1):
        h += 1
        for begin in range(0, len(y), size):
            rows, signs = x[begin : begin + size], y[begin : begin + size]
            slope = -signs / (1 + np.exp(signs * (rows @ w)))
            w = w - first_step / h * (rows.T @ slope / len(signs) + problem.l2 * w)
            past.append(w)
        if interval is not None and s % interval == 0:
            w, past, h = np.mean(past, axis=0), [], 0
    return w


@pytest.mark.parametrize(
    ("solver", "extra", "interval", "permuted"),
    [
        (erm.nsgd, {}, None, False),
        (erm.rsgd, {}, None, True),
        (erm.rsgd_ar, {"average_every": 3}, 3, True),
    ],
)
def test_cyclic_solvers_follow_the_published_algorithm(
    solver, extra, interval, permuted, logistic, key
):
    order = np.arange(203)
    if permuted:
        order = np.asarray(jax.random.permutation(jax.random.split(jax.random.clone(key))[1], 203))
    found = solver(
        logistic, key, epochs=7, batch_size=50, step_size=1.5, noise_std=0.0, **extra
    ).params
    expected = _reference_rsgd(logistic, order, 7, 50, 1.5, interval)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "solve",
    [
        lambda p, k: erm.objective_perturbation(p, k, noise_std=0.0),
        lambda p, k: erm.approximate_minima_perturbation(p, k, noise_std=0.0, output_noise_std=0.0),
        lambda p, k: erm.lbfgs(p),
    ],
    ids=["objective_perturbation", "approximate_minima_perturbation", "lbfgs"],
)
def test_minimisers_reach_a_vanishing_gradient(solve, logistic, key):
    params = solve(logistic, key).params
    assert jnp.linalg.norm(logistic.gradient(params)) < 5e-6


def test_sgd_of_full_batches_heads_for_the_minimum(logistic, key):
    found = erm.sgd(logistic, key, steps=400, step_size=0.5, batch_size=100).params
    best = erm.lbfgs(logistic).params
    assert logistic.objective(found) - logistic.objective(best) < 5e-3


# --- the noise ----------------------------------------------------------------------------------

_WIDE = 4  # records of zeros: whatever moves the parameters is noise
_D = 20_000
# name -> (solver, noise argument, settings, expected std per unit of noise)
SCALES = {
    "dp_gd": (
        erm.dp_gd,
        "noise_multiplier",
        {"steps": 1, "step_size": 0.5, "clip_norm": 3.0},
        0.5 * 3.0 / _WIDE,
    ),
    "dp_sgd": (
        erm.dp_sgd,
        "noise_multiplier",
        {"steps": 1, "step_size": 0.5, "clip_norm": 3.0, "rate": 0.25},
        0.5 * 3.0 / (0.25 * _WIDE),
    ),
    "noisy_gd": (erm.noisy_gd, "noise_std", {"steps": 1, "step_size": 0.5}, math.sqrt(2 * 0.5)),
    "noisy_cyclic_gd": (
        erm.noisy_cyclic_gd,
        "noise_std",
        {"epochs": 1, "batches": 1, "step_size": 0.5},
        math.sqrt(2 * 0.5),
    ),
    "nsgd": (erm.nsgd, "noise_std", {"epochs": 1, "batch_size": 2, "step_size": 0.5}, 1.0),
    "rsgd": (erm.rsgd, "noise_std", {"epochs": 1, "batch_size": 2, "step_size": 0.5}, 1.0),
    "rsgd_ar": (erm.rsgd_ar, "noise_std", {"epochs": 1, "batch_size": 2, "step_size": 0.5}, 1.0),
    "output_perturbed_gd": (
        erm.output_perturbed_gd,
        "noise_std",
        {"steps": 1, "step_size": 0.5},
        1.0,
    ),
    "output_perturbed_sgd": (
        erm.output_perturbed_sgd,
        "noise_std",
        {"passes": 1, "batch_size": 2, "step_size": 0.5},
        1.0,
    ),
}


@pytest.fixture(scope="module")
def nothing() -> erm.Problem:
    return erm.logistic_regression(
        np.zeros((_WIDE, _D), np.float32), [0, 1, 0, 1], l2=0.0, intercept=0.0
    )


def is_normal_of(values: np.ndarray, std: float) -> bool:
    """Two-sided test of the scale at 5 standard errors: p = 6e-7 for a right one."""
    z = np.asarray(values, np.float64).ravel() / std
    off = abs(np.mean(z**2) - 1) / math.sqrt(2 / z.size)
    shifted = abs(np.mean(z)) * math.sqrt(z.size)
    return off < 5 and shifted < 5


@pytest.mark.parametrize("name", SCALES)
def test_noise_has_the_scale_the_mechanism_says(name, nothing, key):
    solver, noise, settings, unit = SCALES[name]
    init = {"init": jnp.zeros(_D)} if "noisy" in name else {}
    params = solver(nothing, key, **{noise: 2.5}, **settings, **init).params
    assert is_normal_of(params, 2.5 * unit)
    assert not is_normal_of(params, 2.5 * unit * 1.06)
    assert not is_normal_of(params, 2.5 * unit / 1.06)


def test_the_starting_point_of_noisy_gd_is_the_theorems():
    problem = erm.logistic_regression(
        np.zeros((_WIDE, _D), np.float32), [0, 1, 0, 1], l2=0.08, intercept=0.0
    )
    # One step of size 1e-6 leaves the start where it was: variance 2 sigma^2 / lambda.
    params = erm.noisy_gd(problem, jax.random.key(4), steps=1, step_size=1e-6, noise_std=0.3).params
    assert is_normal_of(params, 0.3 * math.sqrt(2 / 0.08))


def test_ball_noise_is_uniform_in_its_ball(key):
    problem = erm.logistic_regression(
        np.zeros((8, 3), np.float32), [0, 1] * 4, l2=0.0, intercept=0.0
    )
    with pytest.warns(UserWarning, match="protects nobody"):
        history = erm.perturbed_gd(
            problem, key, steps=20_000, step_size=1.0, noise_radius=2.0, keep_iterates=True
        ).history
    draws = np.diff(np.asarray(history.iterates, np.float64), axis=0)
    radii = np.linalg.norm(draws, axis=1) / 2.0
    assert radii.max() <= 1 + 1e-4
    assert abs(np.mean(radii**3) - 0.5) < 5 / math.sqrt(12 * len(radii))  # radius^d is uniform
    assert np.all(abs(np.mean(draws, axis=0)) < 5 * 2.0 / math.sqrt(5 * len(radii)))


# --- jit, vmap, one program ---------------------------------------------------------------------

VMAPPED = {
    "dp_gd": (erm.dp_gd, "noise_multiplier", {"steps": 3}),
    "dp_sgd": (erm.dp_sgd, "noise_multiplier", {"steps": 3, "rate": 0.25}),
    "noisy_gd": (erm.noisy_gd, "noise_std", {"steps": 3}),
    "noisy_cyclic_gd": (erm.noisy_cyclic_gd, "noise_std", {"epochs": 2, "batches": 3}),
    "rsgd_ar": (erm.rsgd_ar, "noise_std", {"epochs": 4, "batch_size": 60, "average_every": 2}),
    "output_perturbed_gd": (erm.output_perturbed_gd, "noise_std", {"steps": 3}),
    "output_perturbed_sgd": (
        erm.output_perturbed_sgd,
        "noise_std",
        {"passes": 2, "batch_size": 60},
    ),
}


@pytest.mark.parametrize("name", VMAPPED)
@pytest.mark.at_length(every=3)
def test_vmap_over_keys_noise_and_step_size_is_the_loop(name, logistic):
    solver, noise, settings = VMAPPED[name]
    keys = jax.random.split(jax.random.key(3), 3)
    noises, sizes = jnp.array([0.1, 0.2, 0.4]), jnp.array([0.2, 0.5, 0.7])
    calls = 0

    def one(key, scale, size):
        nonlocal calls
        calls += 1
        return solver(logistic, key, **{noise: scale}, step_size=size, **settings).params

    batched = jax.jit(jax.vmap(one))
    together = batched(jax.random.clone(keys), noises, sizes)
    batched(jax.random.clone(keys), 2 * noises, 0.5 * sizes)
    assert calls == 1  # new values, same program
    for i in range(2):
        alone = solver(
            logistic,
            keys[i],
            **{noise: float(noises[i])},
            step_size=float(sizes[i]),
            **settings,
        ).params
        np.testing.assert_allclose(together[i], alone, rtol=3e-5, atol=3e-6)


def test_one_compilation_serves_other_data_keys_and_noises(rows):
    from dpjax.erm import gradient_perturbation

    run = functools.partial(erm.dp_gd, steps=4)
    a, b = (erm.logistic_regression(rows[0] * s, rows[1], l2=0.05) for s in (1.0, 0.5))
    run(a, jax.random.key(0), step_size=0.1, noise_multiplier=1.0)
    before = gradient_perturbation._add_gaussians._cache_size()
    run(b, jax.random.key(1), step_size=0.3, noise_multiplier=2.0, clip_norm=0.5)
    assert gradient_perturbation._add_gaussians._cache_size() == before


def test_the_same_key_gives_the_same_run_and_another_key_another(logistic):
    run = functools.partial(erm.dp_gd, logistic, steps=2, step_size=0.5, noise_multiplier=1.0)
    first, again, other = (run(jax.random.key(k)).params for k in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert jnp.linalg.norm(first - other) > 1e-4


# --- bad arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda p, k: erm.dp_gd(p, k, steps=0, step_size=1.0, noise_multiplier=1.0),
            "steps must .* got 0",
        ),
        (
            lambda p, k: erm.dp_gd(p, k, steps=2.5, step_size=1.0, noise_multiplier=1.0),
            "steps must .* got 2.5",
        ),
        (
            lambda p, k: erm.dp_gd(p, k, steps=2, step_size=-1.0, noise_multiplier=1.0),
            "step_size must .* got -1",
        ),
        (
            lambda p, k: erm.dp_gd(p, k, steps=2, step_size=jnp.ones(3), noise_multiplier=1.0),
            r"step_size must be .* got \(3,\)",
        ),
        (
            lambda p, k: erm.dp_gd(p, k, steps=2, step_size=1.0, noise_multiplier=-1.0),
            "noise_multiplier must .* got -1",
        ),
        (lambda p, k: erm.dp_gd(p, k, steps=2, step_size=1.0), "neither"),
        (
            lambda p, k: erm.dp_gd(
                p, k, steps=2, step_size=1.0, noise_multiplier=1.0, epsilon=1.0, delta=1e-5
            ),
            "both",
        ),
        (lambda p, k: erm.dp_gd(p, k, steps=2, step_size=1.0, epsilon=1.0), "delta is missing"),
        (
            lambda p, k: erm.dp_gd(
                p, k, steps=2, step_size=1.0, noise_multiplier=1.0, init=jnp.zeros(2)
            ),
            r"init must have shape .* got \(2,\)",
        ),
        (
            lambda p, k: erm.dp_sgd(p, k, steps=2, step_size=1.0, rate=1.5, noise_multiplier=1.0),
            "rate must .* got 1.5",
        ),
        (
            lambda p, k: erm.rsgd_ar(p, k, epochs=2, batch_size=204, step_size=1.0, noise_std=1.0),
            "batch_size must be between 1 and the 203 records, got 204",
        ),
        (
            lambda p, k: erm.rsgd_ar(
                p, k, epochs=2, batch_size=20, step_size=1.0, noise_std=1.0, average_every=0
            ),
            "average_every must .* got 0",
        ),
        (
            lambda p, k: erm.noisy_gd(p, k, steps=2, step_size=6.7, noise_std=1.0),
            "step_size < 2/beta = 6.66",
        ),
        (
            lambda p, k: erm.noisy_gd(p, k, steps=2, step_size=np.ones(2), noise_std=1.0),
            "step_size must be one number",
        ),
        (
            lambda p, k: erm.output_perturbed_gd(
                p, k, steps=6, step_size=np.ones(6), noise_std=1.0
            ),
            "step_size must be one number",
        ),
        (
            lambda p, k: erm.noisy_cyclic_gd(
                p, k, epochs=2, batches=2, step_size=6.7, noise_std=1.0
            ),
            "step_size < 2/beta",
        ),
        (
            lambda p, k: erm.output_perturbed_gd(p, k, steps=2, step_size=6.8, noise_std=1.0),
            "step_size <= 2/L",
        ),
        (
            lambda p, k: erm.output_perturbed_sgd(
                p, k, passes=2, batch_size=10, step_size=6.8, noise_std=1.0
            ),
            "step_size <= 2/beta",
        ),
        (
            lambda p, k: erm.output_perturbed_sgd(
                p, k, passes=2, batch_size=10, schedule="wild", noise_std=1.0
            ),
            "schedule must .* got 'wild'",
        ),
        (
            lambda p, k: erm.output_perturbed_sgd(
                p, k, passes=2, batch_size=10, schedule="sqrt", step_size=0.1, noise_std=1.0
            ),
            "come with the constant schedule",
        ),
        (
            lambda p, k: erm.perturbed_gd(
                p, k, steps=2, step_size=1.0, batch_size=300, noise_radius=1.0
            ),
            "batch_size must .* got 300",
        ),
        (
            lambda p, k: erm.sgd(p, k, steps=2, step_size=1.0, batch_size=300),
            "batch_size must .* got 300",
        ),
        (lambda p, k: erm.dp_agd(p, k), "total_noise or a budget"),
        (lambda p, k: erm.dp_agd(p, k, total_noise=0.0), "total_noise must .* got 0"),
        (
            lambda p, k: erm.dp_agd(p, k, total_noise=1.0, line_share=1.0),
            "line_share must .* got 1.0",
        ),
    ],
)
def test_bad_arguments_raise_with_the_condition_that_fails(call, message, logistic, key):
    with pytest.raises(ValueError, match=message):
        call(logistic, key)


def test_conditions_of_the_problem_are_named(rows, key):
    flat = erm.logistic_regression(*rows, l2=0.0)
    with pytest.raises(ValueError, match="l2 must be positive"):
        erm.output_perturbed_sgd(
            flat, key, passes=2, batch_size=10, schedule="strongly_convex", noise_std=1.0
        )
    with pytest.raises(ValueError, match=r"l2 \+ extra_l2 must be positive, got 0.0"):
        erm.objective_perturbation(flat, key, noise_std=1.0)
    unbounded = erm.linear_regression(*rows, l2=0.1)
    with pytest.raises(ValueError, match="gradient_bound must be finite"):
        erm.rsgd(unbounded, key, epochs=2, batch_size=10, step_size=0.1, noise_std=1.0)
    many = erm.softmax_regression(*rows, classes=2, l2=0.1)
    with pytest.raises(ValueError, match="one score a record"):
        erm.objective_perturbation(many, key, noise_std=1.0)
    with pytest.raises(ValueError, match="one score a record"):
        erm.noisy_gd(many, key, steps=2, step_size=0.1, clip_norm=0.5, noise_std=1.0)
    ball = erm.logistic_regression(*rows, l2=0.1, radius=1.0)
    with pytest.raises(ValueError, match="unconstrained minimiser"):
        erm.objective_perturbation(ball, key, noise_std=1.0)
