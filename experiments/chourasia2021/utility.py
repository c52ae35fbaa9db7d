"""Theorem 3: excess risk against gradient complexity, on Adult with a strong regulariser."""

from __future__ import annotations

import functools
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting as acc
from dpjax import erm
from experiments import data_sets, utility_bounds
from experiments.chourasia2021.protocol import NOISES
from experiments.comparison import certificate_line
from experiments.protocol import Rows


def noise_for(
    name: str, problem: erm.Problem, budget: Budget, steps: int, step_size: float
) -> float:
    """σ in Langevin units that keeps (ε, δ) after `steps`, by one way of accounting."""
    published, shifted = NOISES[1:]
    if name == published:
        return utility_bounds.noisy_gd_theorem_settings(**constants(problem, budget))[0]
    if name == shifted:
        spent = {"epsilon": budget.epsilon, "delta": budget.delta}
        shape = {"steps": steps, "step_size": step_size}
        return float(erm.calibrate_noise(erm.noisy_gd, problem, **spent, **shape))
    # Every iterate released: one record moves an update by 2ηL/n, its noise is √(2η)σ.
    multiplier = acc.calibrate(
        lambda s: acc.Repeated(acc.Gaussian(s), steps),
        epsilon=budget.epsilon,
        delta=budget.delta,
        adjacency=acc.Adjacency.REPLACE_ONE,
    )
    return float(multiplier) * problem.gradient_bound / problem.n * np.sqrt(step_size / 2)


class Budget(NamedTuple):
    """(ε, δ), replace-one."""

    epsilon: float
    delta: float


def constants(problem: erm.Problem, budget: Budget) -> dict[str, Any]:
    """What the theorem's noise, step size and K* are functions of."""
    return {
        "n": problem.n,
        "dimension": problem.dimension,
        "lipschitz": problem.gradient_bound,
        "smoothness": problem.smoothness,
        "strong_convexity": problem.strong_convexity,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
    }


def cell(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Excess risk against steps, the noise set by one way of accounting."""
    name, repeats, l2 = settings["methods"], settings["repeats"], settings["l2"]
    budget = Budget(settings["epsilon"], settings["delta"])
    table = data_sets.adult(data)
    problem = erm.logistic_regression(table.features, table.labels, l2=l2)
    best = erm.lbfgs(problem).params
    least = float(problem.objective(best))
    theorem = utility_bounds.noisy_gd_theorem_settings(**constants(problem, budget))
    step_size, last = theorem[1:]
    rows = []
    for steps in np.unique(np.geomspace(4, last, settings["points"]).astype(int)):
        noise = noise_for(name, problem, budget, int(steps), step_size)
        solve = functools.partial(
            erm.noisy_gd, problem, steps=int(steps), step_size=step_size, noise_std=noise
        )
        # The same noise for every way of accounting, so that they differ in its size alone.
        keys = jax.random.split(jax.random.key(settings["seeds"]), repeats)
        params = jax.vmap(lambda key, solve=solve: solve(key).params)(keys)
        risks = np.asarray(jax.vmap(problem.objective)(params), np.float64) - least
        bound = utility_bounds.noisy_gd_excess_risk(
            step_size=step_size,
            steps=int(steps),
            noise_std=noise,
            dimension=problem.dimension,
            smoothness=problem.smoothness,
            strong_convexity=l2,
            start_distance_squared=float(jnp.sum(jnp.square(best)))
            + 2 * noise**2 * problem.dimension / l2,
        )
        rows.append(
            {
                "accounting": name,
                "steps": int(steps),
                "gradients": int(steps) * problem.n,
                "noise_std": noise,
                "excess risk": float(np.mean(risks)),
                "standard error": float(np.std(risks, ddof=1) / np.sqrt(repeats)),
                "bound on the excess risk": bound,
                "certificate": _certificate(name, problem, budget, int(steps), step_size, noise),
            }
        )
    return rows


def _certificate(
    name: str,
    problem: erm.Problem,
    budget: Budget,
    steps: int,
    step_size: float,
    noise: float,
) -> str:
    """Of the last iterate; of every iterate where composition set the noise."""
    settings = {"steps": steps, "step_size": step_size}
    run = erm.mechanism_of(erm.noisy_gd, problem, noise, **settings)
    if name == NOISES[0]:
        multiplier = noise * problem.n / problem.gradient_bound / np.sqrt(step_size / 2)
        run = acc.Repeated(acc.Gaussian(float(multiplier) * (1 + 1e-9)), steps)
    return certificate_line(
        run,
        budget.delta,
        adjacency=acc.Adjacency.REPLACE_ONE,
        records=problem.n,
        method=f"noisy GD, noise by {name}",
        data=f"Adult, {steps} steps",
        target=budget.epsilon,
        not_covered=[data_sets.NOT_COVERED],
    )
