"""Table 1 as slopes: the least excess risk of four ways of perturbing by n, p and ε.

Every method has the same (ε, δ), replace-one, and as many steps as serve it best; what Table 1
bounds is the risk at one number of steps each, so that its rates are upper ones.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting as acc
from dpjax import erm
from experiments.chourasia2021.lower_bound import _excess, problem_for
from experiments.protocol import Rows
from experiments.yu2020.methods import RATE, halved_dp_sgd

METHODS = ("objective", "output", "DP-GD", "DP-SGD")
_STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_ADJACENCY = acc.Adjacency.REPLACE_ONE


def cell(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """The least mean excess risk of every method on drawn records, a row a method."""
    n, dimension, repeats = (settings[k] for k in ("records", "dimension", "repeats"))
    budget = {"epsilon": settings["epsilon"], "delta": settings["delta"]}
    problem = problem_for(settings["data"], n, dimension, settings["l2"], settings["seeds"])
    best = erm.lbfgs(problem).params
    keys = jax.random.split(jax.random.key(settings["seeds"]), (len(METHODS), repeats))
    rows = []
    for name, own in zip(METHODS, keys, strict=True):
        found = []
        for steps in _STEPS if name != "objective" else (1,):
            params = _released(name, problem, own, budget, steps)
            risks = np.asarray(_excess(problem, params, best), np.float64)
            found.append((float(risks.mean()), float(risks.std(ddof=1) / repeats**0.5), steps))
        risk, error, steps = min(found)
        rows.append(
            {
                "method": name,
                "records": n,
                "dimension": dimension,
                "epsilon": budget["epsilon"],
                "seed": settings["seeds"],
                "excess risk": risk,
                "standard error": error,
                "steps": steps,
                "edge": _edge(name, steps),
            }
        )
    return rows


def _edge(name: str, steps: int) -> str:
    """Whether the best number of steps is the largest one tried; fewer than one step are none."""
    if name == "DP-SGD":  # its risk is mostly the error of batches, which another rate changes
        return "sampling rate (one tried)"
    return "steps (largest)" if name != "objective" and steps == _STEPS[-1] else ""


def _released(
    name: str, problem: erm.Problem, keys: jax.Array, budget: dict[str, float], steps: int
) -> jax.Array:
    """What leaves at the end of a run a key."""
    spent = {**budget, "adjacency": _ADJACENCY}
    if name == "objective":
        solve = functools.partial(erm.approximate_minima_perturbation, problem, **budget)
        return jnp.stack([solve(key).params for key in keys])
    size = 1.0 / problem.smoothness
    if name == "output":
        fixed: dict[str, Any] = {"steps": steps, "step_size": size}
        noise = float(erm.calibrate_noise(erm.output_perturbed_gd, problem, **spent, **fixed))
        return _each(erm.output_perturbed_gd, problem, keys, fixed | {"noise_std": noise})
    fixed = {"steps": steps, "step_size": size, "clip_norm": problem.gradient_bound}
    solver = erm.dp_gd
    if name == "DP-SGD":
        solver, fixed = halved_dp_sgd, fixed | {"rate": RATE, "step_size": 2.0 * size}
    noise = float(erm.calibrate_noise(solver, problem, **spent, **fixed))
    return _each(solver, problem, keys, fixed | {"noise_multiplier": noise})


def _each(
    solver: Callable, problem: erm.Problem, keys: jax.Array, settings: dict[str, Any]
) -> jax.Array:
    """The parameters of a run a key, as one program."""

    @jax.jit
    def run(problem, keys):
        return jax.vmap(lambda key: solver(problem, key, **settings).params)(keys)

    return run(problem, keys)
