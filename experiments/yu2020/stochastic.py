"""Cells of Theorem 2: DP-SGD with the theorem's step sizes, its excess risk and its bound.

The runs are of `erm.dp_sgd`, whose batches are Poisson samples: with an expected batch of one and
T = n²ε² it is the paper's Algorithm 2 but for the batch's size, which is random here and one there.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting as acc
from dpjax import erm
from dpjax.erm import schedules
from experiments import data_sets, utility_bounds
from experiments.comparison import certificate_line
from experiments.protocol import Rows

AS_PRINTED, ROOT = "n²ε²", "nε/√p"  # Theorem 2's T, and that of the remark after it
_DIMENSION = 3
_TRIALS, _TRIAL_STEPS, _TRIAL_RUNS = 10, 2_000, 8


class Case(NamedTuple):
    """A problem on a ball, its minimiser there, and whether Theorem 2's ν is 0."""

    problem: erm.Problem
    best: jax.Array
    flat: bool


def case(name: str, records: int, seed: int, data: pathlib.Path) -> Case:
    """The problem of a cell.

    "dot product" is the paper's example of ν = 0: −⟨x, s⟩, here as the linear piece of the hinge,
    on a ball that does not leave it.
    """
    rng = np.random.default_rng([seed, records])
    if name == "Adult":
        table = data_sets.adult(data)
        made = erm.logistic_regression(table.features, table.labels, l2=1e-3, radius=10.0)
        return _solved(made)
    rows = rng.normal(size=(records, _DIMENSION))
    if name == "logistic regression":
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        likely = 1.0 / (1.0 + np.exp(-2.0 * rows[:, 0]))
        labels = rng.random(records) < likely
        return _solved(erm.logistic_regression(rows, labels, l2=1e-3, intercept=0.0, radius=4.0))
    rows = 0.5 * rows + np.eye(_DIMENSION)[0]
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    ones = np.ones(records, int)
    linear = erm.huber_svm(rows, ones, l2=0.0, width=0.5, intercept=0.0, radius=0.5)
    mean = np.mean(rows, axis=0)
    return Case(linear, jnp.asarray(0.5 * mean / np.linalg.norm(mean), linear.dtype), True)


def theorem2(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Excess risk at the last step beside the bound, a row a choice of ν in η = 1/(νt)."""
    epsilon, batch, repeats = (settings[name] for name in ("epsilon", "batch", "repeats"))
    found = case(settings["data"], settings["records"], settings["seeds"], data)
    problem = found.problem
    n, steps = problem.n, settings["steps"]
    printed = {AS_PRINTED: (n * epsilon) ** 2, ROOT: n * epsilon / math.sqrt(problem.dimension)}
    steps = round(printed.get(steps, steps))
    fixed = {"steps": steps, "rate": batch / n, "clip_norm": problem.gradient_bound}
    adjacency, delta = acc.Adjacency.REPLACE_ONE, 1.0 / n**2
    noise = float(
        erm.calibrate_noise(
            erm.dp_sgd, problem, epsilon=epsilon, delta=delta, adjacency=adjacency,
            step_size=1.0, **fixed,
        )
    )  # fmt: skip
    size = utility_bounds.dp_sgd_gradient_size(
        lipschitz=problem.lipschitz,
        clip_norm=problem.gradient_bound,
        dimension=problem.dimension,
        noise_multiplier=noise,
        batch=batch,
    )
    certificate = certificate_line(
        erm.mechanism_of(erm.dp_sgd, problem, noise, **fixed),
        delta,
        adjacency=adjacency,
        records=n,
        method="DP-SGD, Theorem 2",
        data=settings["data"],
        target=epsilon,
        not_covered=["the curvature that the step size is made from, read off the records"],
    )
    common = {"data set": settings["data"], "epsilon": epsilon, "records": n, "steps": steps,
              "batch": batch, "noise multiplier": noise, "gradient size": size}  # fmt: skip
    start = float(problem.objective(problem.zeros()) - problem.objective(found.best))
    key, trial_key = jax.random.split(jax.random.key(settings["seeds"]))
    if found.flat:
        diameter = 2.0 * problem.radius
        bound = utility_bounds.dp_sgd_convex_bound(
            steps=steps, gradient_size=size, diameter=diameter
        )
        choices = [("ν = 0", 0.0, bound, schedules.inverse_sqrt(diameter, size, steps))]
    else:
        trial = {**fixed, "steps": min(steps, _TRIAL_STEPS)}
        nu = _expected_curvature(found, trial_key, noise, trial)
        choices = [
            (
                name,
                curvature,
                utility_bounds.dp_sgd_excess_risk(
                    steps=steps, gradient_size=size, curvature=curvature
                ),
                schedules.inverse_time(curvature, steps),
            )
            for name, curvature in (("expected ν", nu), ("minimum μ = λ", problem.strong_convexity))
        ]
    keys, rows = jax.random.split(key, (len(choices), repeats)), []
    for mine, (name, curvature, bound, sizes) in zip(keys, choices, strict=True):
        risks, along = _runs(found, mine, sizes, noise, fixed)
        rows.append(
            {
                **common,
                "curvature": name,
                "curvature used": curvature,
                "smallest along the path": along,
                "excess risk": float(risks.mean()),
                "standard error": float(risks.std(ddof=1) / math.sqrt(repeats)),
                "at the start": start,
                "bound": bound,
                "runs": repeats,
                "certificate": certificate,
            }
        )
    return rows


def _solved(problem: erm.Problem) -> Case:
    """With the minimiser of a problem whose ball holds it."""
    best = erm.lbfgs(dataclasses.replace(problem, radius=math.inf), tolerance=1e-5).params
    distance = float(jnp.linalg.norm(best))
    if distance > problem.radius:
        raise ValueError(f"radius must reach the minimiser at {distance:.3g}, got {problem.radius}")
    return Case(problem, best, False)


def _expected_curvature(found: Case, key, noise: float, fixed: dict[str, Any]) -> float:
    """The largest ν, of a bisection, whose own path has an expected curvature of ν throughout.

    μ = λ is one; the curvature at the start is not exceeded. The first steps decide: they are the
    longest, and lead where the objective is flattest.
    """
    low = found.problem.strong_convexity
    high = float(_curvature(found, found.problem.zeros()[None]))
    for keys in jax.random.split(key, (_TRIALS, _TRIAL_RUNS)):
        middle = math.sqrt(low * high)
        sizes = schedules.inverse_time(middle, fixed["steps"])
        _, along = _runs(found, keys, sizes, noise, fixed)
        low, high = (middle, high) if along >= middle else (low, middle)
    # A margin for the runs that follow, whose noise is another.
    return max(found.problem.strong_convexity, 0.9 * low)


def _runs(found: Case, keys, sizes, noise: float, fixed: dict[str, Any]):
    """Excess risks at the last step, and the smallest expected curvature along the path."""
    where = np.unique(np.round(np.geomspace(1, fixed["steps"], 200)).astype(int)) - 1
    run = _compiled(fixed["rate"], fixed["clip_norm"], found.flat)
    problem = found.problem
    params, iterates = run(problem, keys, sizes, jnp.float32(noise), jnp.asarray(where))
    risks = jax.vmap(problem.objective)(params) - problem.objective(found.best)
    if found.flat:
        return np.asarray(risks, np.float64), 0.0
    begin = float(_curvature(found, problem.zeros()[None]))
    along = _along(problem, found.best, jnp.swapaxes(iterates, 0, 1))
    return np.asarray(risks, np.float64), min(begin, float(along.min()))


@jax.jit
def _along(problem, best, points):
    return jax.lax.map(lambda at: _curvature(Case(problem, best, False), at), points)


@functools.lru_cache
def _compiled(rate: float, clip_norm: float, flat: bool):
    @jax.jit
    def run(problem, keys, sizes, noise, where):
        def one(key):
            done = erm.dp_sgd(
                problem,
                key,
                steps=sizes.size,
                step_size=sizes,
                rate=rate,
                clip_norm=clip_norm,
                noise_multiplier=noise,
                keep_iterates=not flat,
            )
            kept = done.params[None] if flat else done.history.iterates[where]
            return done.params, kept

        return jax.vmap(one)(keys)

    return run


def _curvature(found: Case, points) -> jax.Array:
    """E⟨x − x*, ∇F(x)⟩/E‖x − x*‖² over the runs: the ν of Definition 3 at a step."""
    away = points - found.best
    inner = jax.vmap(lambda a, x: jnp.vdot(a, found.problem.gradient(x)))(away, points)
    return jnp.mean(inner) / jnp.mean(jnp.sum(jnp.square(away), axis=-1))
