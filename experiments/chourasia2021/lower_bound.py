"""Theorems 3 and 4: excess risk of noisy GD at K* against the rate that no private algorithm beats.

Two problems at every (n, d, ε): logistic regression, the setting of the paper's upper bound, and
the linear loss −⟨x, w⟩ with ridge 1, from which the lower bound is constructed. There the iterates
are Gaussian, so that the expected excess risk is known exactly.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import erm
from experiments import utility_bounds
from experiments.chourasia2021.utility import Budget, constants, noise_for
from experiments.protocol import Rows


@dataclasses.dataclass(frozen=True)
class Linear:
    """ℓ(s) = −s: the loss of Theorem 4's instance; its gradient is −x whatever the parameters."""

    slope_bound = 1.0
    smoothness = 0.0
    outputs = 1

    def value(self, scores, labels):
        return -scores

    def slope(self, scores, labels):
        return -jnp.ones_like(scores)

    def curvature(self, scores, labels):
        return jnp.zeros_like(scores)


def problem_for(name: str, n: int, dimension: int, l2: float, seed: int) -> erm.Problem:
    """The records of a cell, drawn from its seed."""
    rng = np.random.default_rng([seed, n, dimension])
    if name == "linear loss":
        corners = rng.choice([-1.0, 1.0], (n, dimension)) / math.sqrt(dimension)
        plain = erm.logistic_regression(corners, np.ones(n, int), l2=1.0, intercept=0.0)
        return dataclasses.replace(plain, loss=Linear())
    rows = rng.normal(size=(n, dimension))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    truth = rng.normal(size=dimension)
    likely = 1.0 / (1.0 + np.exp(-3.0 * rows @ truth))
    return erm.logistic_regression(rows, rng.random(n) < likely, l2=l2, intercept=0.0)


def exact_linear_risk(
    dimension: int, noise: float, step_size: float, steps: int, distance: float
) -> float:
    """E F(w_K) − F* of the linear loss: w − w* shrinks by 1 − η a step, and 2ησ²Z joins it.

    F(w) − F* = ‖w − w*‖²/2; w₀ ~ N(0, 2σ²I), `distance` = ‖w*‖.

    >>> exact_linear_risk(3, 0.0, 0.5, 1, 2.0)
    0.5
    """
    kept = (1.0 - step_size) ** 2
    start = kept**steps * (distance**2 + 2.0 * noise**2 * dimension)
    shaken = 2.0 * step_size * noise**2 * dimension * (1.0 - kept**steps) / (1.0 - kept)
    return 0.5 * (start + shaken)


def cell(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Excess risk at the theorem's K* and step size, a row a way of accounting."""
    name, repeats = settings["data"], settings["repeats"]
    n, dimension = settings["records"], settings["dimension"]
    budget = Budget(settings["epsilon"], settings["delta"])
    problem = problem_for(name, n, dimension, settings["l2"], settings["seeds"])
    best = erm.lbfgs(problem).params
    theorem = utility_bounds.noisy_gd_theorem_settings(**constants(problem, budget))
    step_size, steps = theorem[1:]
    rate = utility_bounds.noisy_gd_lower_rate(n=n, dimension=dimension, epsilon=budget.epsilon)
    bound = utility_bounds.noisy_gd_theorem_bound(
        **constants(problem, budget), start_distance=float(jnp.linalg.norm(best))
    )
    rows = []
    for accounting in settings["methods"]:
        noise = noise_for(accounting, problem, budget, steps, step_size)
        solve = functools.partial(
            erm.noisy_gd, problem, steps=steps, step_size=step_size, noise_std=noise
        )
        keys = jax.random.split(jax.random.key(settings["seeds"]), repeats)
        params = jax.jit(jax.vmap(lambda key, solve=solve: solve(key).params))(keys)
        risks = np.asarray(_excess(problem, params, best), np.float64)
        exact = None
        if name == "linear loss":
            away = float(jnp.linalg.norm(best))
            exact = exact_linear_risk(dimension, noise, step_size, steps, away)
        rows.append(
            {
                "problem": name,
                "records": n,
                "dimension": dimension,
                "epsilon": budget.epsilon,
                "accounting": accounting,
                "steps": steps,
                "noise_std": noise,
                "excess risk": float(risks.mean()),
                "standard error": float(risks.std(ddof=1) / math.sqrt(repeats)),
                "exact": exact,
                "rate of the lower bound": rate,
                "bound of Theorem 3": bound,
            }
        )
    return rows


@jax.jit
def _excess(problem: erm.Problem, params: jax.Array, best: jax.Array) -> jax.Array:
    """F(w) − F* of every row w: ∫ ⟨∇F, w − w*⟩ along the way, by Gauss–Legendre with 5 places.

    Risks here go down to 1e-8, where the difference of two float32 objectives says nothing.
    """
    places, weights = np.polynomial.legendre.leggauss(5)
    away = params - best

    def slope(place):
        gradients = jax.vmap(problem.gradient)(best + (1.0 + place) / 2.0 * away)
        return jnp.sum(gradients * away, axis=1)

    parts = [w / 2.0 * slope(t) for t, w in zip(places.tolist(), weights.tolist(), strict=True)]
    return sum(parts, jnp.zeros(params.shape[0], params.dtype))
