"""Table 1: gradients that four private algorithms compute until they have the same excess risk.

The risk is that of noisy GD at Theorem 3's noise, step size and K*, and a quarter more: every
algorithm gets there at the same (ε, δ). A gradient is that of one record at one point. The least
risk of each is the one it has with as many gradients as anyone was given.
"""

from __future__ import annotations

import functools
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting as acc
from dpjax import erm
from dpjax._numerics.normal import normal
from experiments import utility_bounds
from experiments.chourasia2021.lower_bound import _excess, problem_for
from experiments.chourasia2021.protocol import TABLE1_METHODS as METHODS
from experiments.chourasia2021.utility import Budget, constants, noise_for
from experiments.protocol import Rows

_SLACK = 1.25
_MOST_STEPS = 2**22  # of noisy SGD, whose risk has levelled out by then
_GRID = 2.0**0.5  # between numbers of steps of the others


def cell(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Gradients to the common risk and the least risk, a row a method."""
    n, dimension, repeats = settings["records"], settings["dimension"], settings["repeats"]
    budget = Budget(settings["epsilon"], settings["delta"])
    problem = problem_for("logistic regression", n, dimension, settings["l2"], settings["seeds"])
    best = erm.lbfgs(problem).params
    _, step_size, last = utility_bounds.noisy_gd_theorem_settings(**constants(problem, budget))
    keys = jax.random.split(jax.random.key(settings["seeds"]), (len(METHODS), repeats))
    risks = {
        name: functools.partial(_risk_after, name, problem, best, budget, step_size, own)
        for name, own in zip(METHODS, keys, strict=True)
    }
    target = _SLACK * risks[METHODS[0]](last)
    rows = []
    for name, risk in risks.items():
        if name == METHODS[4]:
            found = float(_steps_to_solve(problem, budget, settings["seeds"]) * n)
            least = risk(0)
        elif name == METHODS[2]:
            found, least = gradients_to(risk, target, n // 2, 4.0, min(n**2, _MOST_STEPS))
        else:
            found, least = gradients_to(risk, target, 1, _GRID, last)
            found *= n
        rows.append(
            {
                "method": name,
                "records": n,
                "dimension": dimension,
                "seed": settings["seeds"],
                "epsilon": budget.epsilon,
                "common risk": target,
                "gradients": found if least <= target else None,
                "least risk": least,
                "K* of Theorem 3": last,
            }
        )
    return rows


def gradients_to(
    risk: Callable[[int], float], target: float, first: int, factor: float, most: int
) -> tuple[float, float]:
    """(steps at which the risk falls to the target, the least risk up to `most` steps).

    Between two numbers of steps of the grid the risk is taken as a power of them.

    >>> found, least = gradients_to(lambda k: 8.0 / k, 0.5, 1, 4.0, 64)
    >>> round(found, 6), least
    (16.0, 0.125)
    """
    steps, risks = [], []
    at = float(first)
    while round(at) <= most:
        if not steps or round(at) > steps[-1]:
            steps.append(round(at))
            risks.append(risk(steps[-1]))
        at *= factor
    below = np.flatnonzero(np.asarray(risks) <= target)
    if not len(below) or not below[0]:
        return float(steps[0]), min(risks)
    k = int(below[0])
    low, high = math.log(risks[k - 1] / target), math.log(target / risks[k])
    share = low / (low + high)
    return steps[k - 1] ** (1 - share) * steps[k] ** share, min(risks)


def _risk_after(name, problem, best, budget, step_size, keys, steps: int) -> float:
    """The mean excess risk after so many steps, the noise set for exactly these."""
    spent = {"epsilon": budget.epsilon, "delta": budget.delta}
    keys = jax.vmap(lambda key: jax.random.fold_in(key, steps))(keys)
    if name in METHODS[:2]:
        noise = noise_for(name.removeprefix("noisy GD, "), problem, budget, steps, step_size)
        params = _noisy_gd(problem, keys, noise, step_size, steps)
    elif name == METHODS[3]:
        size = 1.0 / problem.smoothness  # as Zhang et al. 2017 have it
        shape = {"steps": steps, "step_size": size}
        noise = float(erm.calibrate_noise(erm.output_perturbed_gd, problem, **spent, **shape))
        params = _output_perturbed(problem, keys, noise, size, steps)
    elif name == METHODS[2]:
        params = one_record_sgd(problem, keys, _multiplier(problem.n, steps, budget), steps)
    else:
        # Kifer's ridge; solved until γ = 1/n², and that hidden, too.
        solve = functools.partial(erm.approximate_minima_perturbation, problem, **spent)
        params = jnp.stack([solve(key).params for key in keys])
    return float(np.mean(np.asarray(_excess(problem, params, best), np.float64)))


@functools.partial(jax.jit, static_argnames="steps")
def _noisy_gd(problem, keys, noise, step_size, steps: int):
    settings = {"steps": steps, "step_size": step_size, "noise_std": noise}
    return jax.vmap(lambda key: erm.noisy_gd(problem, key, **settings).params)(keys)


@functools.partial(jax.jit, static_argnames="steps")
def _output_perturbed(problem, keys, noise, step_size, steps: int):
    settings = {"steps": steps, "step_size": step_size, "noise_std": noise}
    return jax.vmap(lambda key: erm.output_perturbed_gd(problem, key, **settings).params)(keys)


@functools.lru_cache
def _multiplier(n: int, steps: int, budget: Budget) -> float:
    """The noise over R of steps that each see one record, drawn uniformly; all of them leave."""
    return float(
        acc.calibrate(
            lambda s: acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(s), 1, n), steps),
            epsilon=budget.epsilon,
            delta=budget.delta,
            adjacency=acc.Adjacency.REPLACE_ONE,
        )
    )


@functools.partial(jax.jit, static_argnames="steps")
def one_record_sgd(problem: erm.Problem, keys: jax.Array, multiplier, steps: int) -> jax.Array:
    """w ← w − (1/λt)(∇ℓᵢ(w) + λw + σR·Z), i uniform; a run a key, in blocks of 64 steps.

    Noisy SGD of Bassily, Smith and Thakurta (2014).
    """
    block, n, dtype = 64, problem.n, problem.dtype
    std = multiplier * problem.gradient_bound

    def one_run(key):
        which_key, noise_key = jax.random.split(key)

        def some(params, number):
            # What is random is drawn for a block at once.
            which = jax.random.randint(jax.random.fold_in(which_key, number), (block,), 0, n)
            shape = (block, problem.dimension)
            shakes = std * normal(jax.random.fold_in(noise_key, number), shape, dtype)

            def one(params, given):
                t, row, label, shake = given
                slope = problem.loss.slope((row @ params)[None], label[None])[0]
                gradient = slope * row + shake + problem.l2 * params
                moved = params - gradient / (problem.l2 * (t + 1.0))
                return jnp.where(t < steps, moved, params), None

            times = (number * block + jnp.arange(block)).astype(dtype)
            given = (times, problem.features[which], problem.labels[which], shakes)
            return jax.lax.scan(one, params, given)[0], None

        numbers = jnp.arange(-(-steps // block))
        return jax.lax.scan(some, problem.zeros(), numbers)[0]

    return jax.vmap(one_run)(keys)


def _steps_to_solve(problem: erm.Problem, budget: Budget, seed: int) -> int:
    """Steps of gradient descent, in float64, until a tilted objective is solved to 1/n²."""
    n, smoothness = problem.n, problem.smoothness - problem.l2
    l2 = max(problem.l2, 2.0 * smoothness / (budget.epsilon * n))
    rows, signs = (np.asarray(x, np.float64) for x in (problem.features, problem.labels))
    noise = float(
        erm.calibrate_noise(
            erm.objective_perturbation, problem, epsilon=budget.epsilon, delta=budget.delta,
            adjacency=acc.Adjacency.REPLACE_ONE, extra_l2=l2 - problem.l2,
        )
    )  # fmt: skip
    tilt = noise * np.random.default_rng(seed).normal(size=problem.dimension) / n
    params, size = np.zeros(problem.dimension), 2.0 / (smoothness + 2.0 * l2)
    for steps in range(1, 100_000):
        slopes = -signs / (1.0 + np.exp(signs * (rows @ params)))
        gradient = slopes @ rows / n + l2 * params + tilt
        if np.linalg.norm(gradient) <= n**-2.0:
            return steps
        params = params - size * gradient
    raise RuntimeError(f"steps must be enough for a gradient of 1/n², got {steps}")
