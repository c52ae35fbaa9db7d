"""What all private solvers take, is declared once, and each of them takes it."""

from __future__ import annotations

import inspect

import jax
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax import erm
from dpjax.erm.solver import solver_spec

ADD, REPLACE = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE
STEPS = {"steps": 3, "step_size": 0.5}
EPOCHS = {"epochs": 2, "batch_size": 5, "step_size": 0.5}
# Solver -> its noise argument, its adjacency, what it cannot do without.
SOLVERS = {
    erm.approximate_minima_perturbation: ("noise_std", REPLACE, {}),
    erm.dp_agd: ("total_noise", ADD, {}),
    erm.dp_gd: ("noise_multiplier", ADD, STEPS),
    erm.dp_sgd: ("noise_multiplier", ADD, {**STEPS, "rate": 0.5}),
    erm.noisy_cyclic_gd: ("noise_std", REPLACE, {"epochs": 2, "batches": 2, "step_size": 0.5}),
    erm.noisy_gd: ("noise_std", REPLACE, STEPS),
    erm.nsgd: ("noise_std", REPLACE, EPOCHS),
    erm.objective_perturbation: ("noise_std", ADD, {}),
    erm.output_perturbed_gd: ("noise_std", REPLACE, STEPS),
    erm.output_perturbed_sgd: (
        "noise_std",
        REPLACE,
        {"passes": 1, "batch_size": 5, "step_size": 0.5},
    ),
    erm.perturbed_gd: ("noise_radius", REPLACE, STEPS),
    erm.rsgd: ("noise_std", REPLACE, EPOCHS),
    erm.rsgd_ar: ("noise_std", REPLACE, EPOCHS),
    erm.sgd_ma: ("noise_multiplier", ADD, STEPS),
}
every_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda f: f.__name__)


def problem():
    return erm.logistic_regression([[1.0], [-1.0]] * 10, [1, 0] * 10, l2=0.1)


@every_solver
def test_signature_and_docstring_name_the_noise_and_the_budget(solver):
    noise, adjacency, needed = SOLVERS[solver]
    parameters = inspect.signature(solver).parameters
    assert list(parameters)[:2] == ["problem", "key"]
    shared = {noise: None, "epsilon": None, "delta": None, "adjacency": adjacency}
    for name, default in shared.items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default is default
    assert needed.keys() <= parameters.keys()
    assert "budget" not in parameters
    assert inspect.signature(solver).return_annotation == "Solution[acc.Mechanism]"
    text = inspect.getdoc(solver)
    arguments = text[text.index("\nArgs:\n") :].split("\n\n")[0]
    assert f"    {noise}" in arguments
    assert f"epsilon, delta: a budget instead of {noise}" in arguments
    assert f"relation of that budget; Adjacency.{adjacency.name} unless" in arguments
    assert solver_spec(solver)[:1] == (noise,)
    assert solver_spec(solver).adjacency is adjacency


@every_solver
def test_noise_or_budget_but_not_both(solver):
    noise, _, needed = SOLVERS[solver]
    with pytest.raises(ValueError, match=f"{noise}.*budget"):
        solver(problem(), jax.random.key(0), **needed)
    both = {noise: 1.0, "epsilon": 1.0, "delta": 1e-3}
    if solver is erm.approximate_minima_perturbation:
        both["output_noise_std"] = 1.0
    with pytest.raises(ValueError, match=f"{noise} or a budget.*both"):
        solver(problem(), jax.random.key(0), **needed, **both)
    with pytest.raises(ValueError, match=r"delta|budget"):
        solver(problem(), jax.random.key(0), **needed, epsilon=1.0)
    with pytest.raises(TypeError, match=f"{solver.__name__}.*'momentum'"):
        solver(problem(), jax.random.key(0), **needed, **{noise: 1.0}, momentum=0.9)


@every_solver
def test_noise_and_clip_norms_are_one_number_each(solver):
    """An array would give every parameter a noise, or every record a clip norm, of its own."""
    noise, _, needed = SOLVERS[solver]
    one = problem()
    if solver is erm.approximate_minima_perturbation:
        needed = {**needed, "output_noise_std": 1.0}
    for value in (np.ones(one.shape), [1.0], True):
        with pytest.raises((TypeError, ValueError), match=f"^[A-Za-z.]*{noise} must be .*number"):
            solver(one, jax.random.key(0), **needed, **{noise: value})
    if "clip_norm" in inspect.signature(solver).parameters:
        with pytest.raises(ValueError, match=r"^clip_norm must be one number"):
            solver(one, jax.random.key(0), **needed, **{noise: 1.0}, clip_norm=np.ones(one.n))


def test_another_function_is_no_private_solver():
    with pytest.raises(ValueError, match=r"one of the private ones .*dp_gd.*, got sgd"):
        erm.calibrate_noise(erm.sgd, problem(), epsilon=1.0, delta=1e-5)
