"""Cells of Theorem 1: measured excess risk, the bound by expected curvature, the one by μ."""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting as acc
from dpjax import erm
from experiments import data_sets, utility_bounds
from experiments.comparison import certificate_line
from experiments.protocol import Rows
from experiments.yu2020.stochastic import case

_L2 = 1e-3


def _problem(settings: dict[str, Any], data: pathlib.Path) -> erm.Problem:
    """Adult, or so many records drawn as for Theorem 2, with no ball; λ = 0.001."""
    if settings["data"] == "Adult":
        table = data_sets.adult(data)
        return erm.logistic_regression(table.features, table.labels, l2=_L2)
    drawn = case(settings["data"], settings["records"], settings["seeds"], data).problem
    return dataclasses.replace(drawn, radius=math.inf)


def excess_risk(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Theorem 1 (Eq. 9): the bound by ν and by μ beside the excess risk of DP-GD."""
    epsilon, steps, repeats = (settings[name] for name in ("epsilon", "steps", "repeats"))
    problem = _problem(settings, data)
    best = erm.lbfgs(problem).params
    least = problem.objective(best)
    size, delta = 1.0 / problem.smoothness, 1.0 / problem.n**2
    adjacency = acc.Adjacency.REPLACE_ONE
    multiplier = erm.calibrate_noise(
        erm.dp_gd,
        problem,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        steps=steps,
        step_size=size,
    )

    @jax.jit
    def run(problem, keys):
        solve = functools.partial(
            erm.dp_gd,
            problem,
            steps=steps,
            step_size=size,
            clip_norm=problem.gradient_bound,  # clips nothing, as the theorem's L
            noise_multiplier=multiplier,
            keep_iterates=True,
        )
        return jax.vmap(lambda key: solve(key).history.iterates)(keys)

    @jax.jit
    def look(problem, points):
        """Excess risk, ⟨x − x*, ∇F(x)⟩ and ‖x − x*‖² of every run at one step."""

        def one(x):
            away = x - best
            inner = jnp.vdot(away, problem.gradient(x))
            return problem.objective(x) - least, inner, jnp.vdot(away, away)

        return jax.vmap(one)(points)

    iterates = run(problem, jax.random.split(jax.random.key(0), repeats))
    start = float(jnp.linalg.norm(best))
    std = float(multiplier) * problem.gradient_bound / problem.n
    constants = {"step_size": size, "noise_std": std, "dimension": problem.dimension}
    constants |= {"smoothness": problem.smoothness, "start_distance": start}
    # Definition 3 along the path: E⟨x − x*, ∇F⟩ = ν_t E‖x − x*‖² at the noisy iterate x_t.
    measured = [
        [np.asarray(part, np.float64) for part in look(problem, iterates[:, t])]
        for t in range(steps)
    ]
    curvatures = [float(inner.mean() / square.mean()) for _, inner, square in measured]
    origin = jnp.zeros_like(best)
    at_start = [np.asarray(part, np.float64) for part in look(problem, origin[None])]
    curvatures.insert(0, float(at_start[1][0] / at_start[2][0]))
    certificate = certificate_line(
        erm.mechanism_of(erm.dp_gd, problem, float(multiplier), steps=steps),
        delta,
        adjacency=adjacency,
        records=problem.n,
        method="DP-GD",
        data=f"{settings['data']}, bound",
        target=epsilon,
        not_covered=[data_sets.NOT_COVERED],
    )
    out, along = [], start**2
    for t in range(1, steps + 1):
        along = (1.0 - size * curvatures[t - 1]) * along + problem.dimension * (size * std) ** 2
        if t not in _shown(steps):
            continue
        lowest = min(curvatures[:t])
        risk = measured[t - 1][0]
        out.append(
            {
                "data set": settings["data"],
                "records": problem.n,
                "epsilon": epsilon,
                "steps": t,
                "excess risk": float(risk.mean()),
                "standard error": float(risk.std(ddof=1) / math.sqrt(repeats)),
                "curvature here": curvatures[t],
                "smallest curvature so far": lowest,
                "bound, curvature along the path": 0.5 * problem.smoothness * along,
                "bound, smallest curvature so far": utility_bounds.dp_gd_excess_risk(
                    steps=t, curvature=lowest, **constants
                ),
                "bound, minimum curvature": utility_bounds.dp_gd_excess_risk(
                    steps=t, curvature=problem.strong_convexity, **constants
                ),
                "runs": repeats,
                "certificate": certificate,
            }
        )
    return out


def _shown(steps: int) -> set[int]:
    return set(np.unique(np.round(np.geomspace(1, steps, 24)).astype(int)).tolist())
