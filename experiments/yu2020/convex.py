"""Cells of Theorem 1 without curvature (ν = 0): the averaged iterate's risk and its bound."""

from __future__ import annotations

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


def averaged(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """η = 1/β, T = nβε/√p, no regularisation, at the theorem's noise and at the calibrated one.

    The bound holds against every point x, with r₁ = ‖x‖; the rows compare with the point that
    L-BFGS finds, whose objective is the least one known.
    """
    epsilon, repeats = settings["epsilon"], settings["repeats"]
    table = data_sets.adult(data)
    problem = erm.logistic_regression(table.features, table.labels, l2=0.0)
    n, p, radius = problem.n, problem.dimension, problem.gradient_bound
    best = erm.lbfgs(problem, tolerance=1e-4).params
    least, start = float(problem.objective(best)), float(jnp.linalg.norm(best))
    delta, size = 1.0 / n**2, 1.0 / problem.smoothness
    steps = max(1, round(n * problem.smoothness * epsilon / math.sqrt(p)))
    fixed = {"steps": steps, "step_size": size, "clip_norm": radius, "average": True}
    adjacency = acc.Adjacency.REPLACE_ONE
    budget = {"epsilon": epsilon, "delta": delta}
    noises = {
        # On the sum over the clip norm, as the solver takes it.
        "as in the theorem": n / radius * utility_bounds.dp_gd_theorem_noise_std(
            n=n, lipschitz=radius, steps=steps, **budget
        ),
        "calibrated": float(
            erm.calibrate_noise(erm.dp_gd, problem, adjacency=adjacency, **budget, **fixed)
        ),
    }  # fmt: skip

    @jax.jit
    def risks(problem, keys, noise):
        def one(key):
            found = erm.dp_gd(problem, key, noise_multiplier=noise, **fixed)
            return problem.objective(found.params) - least

        return jax.vmap(one)(keys)

    keys, rows = jax.random.split(jax.random.key(settings["seeds"]), (len(noises), repeats)), []
    for mine, (name, noise) in zip(keys, noises.items(), strict=True):
        risk = np.asarray(risks(problem, mine, jnp.float32(noise)), np.float64)
        certificate = certificate_line(
            erm.mechanism_of(erm.dp_gd, problem, noise, **fixed),
            delta,
            adjacency=adjacency,
            records=n,
            method=f"DP-GD, averaged, noise {name}",
            data="Adult, ν = 0",
            target=epsilon,
            not_covered=[data_sets.NOT_COVERED],
        )
        bound = utility_bounds.dp_gd_convex_bound(
            n=n, dimension=p, lipschitz=radius, start_distance=start, **budget
        )
        rows.append(
            {
                "epsilon": epsilon,
                "steps": steps,
                "noise": name,
                "noise multiplier": noise,
                "excess risk": float(risk.mean()),
                "standard error": float(risk.std(ddof=1) / math.sqrt(repeats)),
                "at the start": float(problem.objective(problem.zeros())) - least,
                "distance of the start": start,
                "bound": bound,
                "runs": repeats,
                "certificate": certificate,
            }
        )
    return rows
