"""Theorem 3: excess risk against gradient complexity, on Adult with a strong regulariser."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting as acc
from dpjax import erm
from experiments import data_sets
from experiments.common import Run, track
from experiments.comparison import certificate_line

_L2, _EPSILON, _DELTA = 0.1, 1.0, 1e-5
NOISES = ("composition", "published (Theorem 3)", "shifted interpolation")


def _noise(name: str, problem: erm.Problem, steps: int, step_size: float) -> float:
    """σ in Langevin units for (ε, δ) = (1, 1e-5) after `steps`, by one way of accounting."""
    if name == NOISES[1]:
        return erm.utility_bounds.noisy_gd_theorem_settings(
            n=problem.n,
            dimension=problem.dimension,
            lipschitz=problem.gradient_bound,
            smoothness=problem.smoothness,
            strong_convexity=problem.strong_convexity,
            epsilon=_EPSILON,
            delta=_DELTA,
        )[0]
    if name == NOISES[2]:
        return float(
            erm.calibrate_noise(
                erm.noisy_gd,
                problem,
                epsilon=_EPSILON,
                delta=_DELTA,
                steps=steps,
                step_size=step_size,
            )
        )
    # Every iterate released: one record moves an update by 2ηL/n, its noise is √(2η)σ.
    multiplier = acc.calibrate(
        lambda s: acc.Repeated(acc.Gaussian(s), steps),
        epsilon=_EPSILON,
        delta=_DELTA,
        adjacency=acc.Adjacency.REPLACE_ONE,
    )
    return float(multiplier) * problem.gradient_bound / problem.n * np.sqrt(step_size / 2)


def _rows(data: pathlib.Path, repeats: int, points: int, rows: int | None) -> list[dict[str, Any]]:
    table = data_sets.adult(data)
    features, labels = table.features[:rows], table.labels[:rows]
    problem = erm.logistic_regression(features, labels, l2=_L2)
    best = erm.lbfgs(problem).params
    least = float(problem.objective(best))
    _, step_size, last = erm.utility_bounds.noisy_gd_theorem_settings(
        n=problem.n,
        dimension=problem.dimension,
        lipschitz=problem.gradient_bound,
        smoothness=problem.smoothness,
        strong_convexity=_L2,
        epsilon=_EPSILON,
        delta=_DELTA,
    )
    out = []
    for steps in track(np.unique(np.geomspace(4, last, points).astype(int)), "chourasia2021"):
        for name in NOISES:
            noise = _noise(name, problem, int(steps), step_size)
            solve = functools.partial(
                erm.noisy_gd, problem, steps=int(steps), step_size=step_size, noise_std=noise
            )
            # The same noise for every way of accounting, so that they differ in its size alone.
            keys = jax.random.split(jax.random.key(0), repeats)
            params = jax.vmap(lambda key, solve=solve: solve(key).params)(keys)
            risks = np.asarray(jax.vmap(problem.objective)(params), np.float64) - least
            bound = erm.utility_bounds.noisy_gd_excess_risk(
                step_size=step_size,
                steps=int(steps),
                noise_std=noise,
                dimension=problem.dimension,
                smoothness=problem.smoothness,
                strong_convexity=_L2,
                start_distance_squared=float(jnp.sum(jnp.square(best)))
                + 2 * noise**2 * problem.dimension / _L2,
            )
            out.append(
                {
                    "accounting": name,
                    "steps": int(steps),
                    "gradients": int(steps) * problem.n,
                    "noise_std": noise,
                    "excess risk": float(np.mean(risks)),
                    "standard error": float(np.std(risks, ddof=1) / np.sqrt(repeats)),
                    "bound on the excess risk": bound,
                    "certificate": _certificate(name, problem, int(steps), step_size, noise),
                }
            )
    return out


def _certificate(name: str, problem: erm.Problem, steps: int, step_size: float, noise: float):
    """Of the last iterate; of every iterate where composition set the noise."""
    settings = {"steps": steps, "step_size": step_size}
    run = erm.mechanism_of(erm.noisy_gd, problem, noise, **settings)
    if name == NOISES[0]:
        multiplier = noise * problem.n / problem.gradient_bound / np.sqrt(step_size / 2)
        run = acc.Repeated(acc.Gaussian(float(multiplier) * (1 + 1e-9)), steps)
    return certificate_line(
        run,
        _DELTA,
        adjacency=acc.Adjacency.REPLACE_ONE,
        records=problem.n,
        method=f"noisy GD, noise by {name}",
        data=f"Adult, {steps} steps",
        target=_EPSILON,
        not_covered=[data_sets.NOT_COVERED],
    )


def theorem3(run: Run) -> list[pathlib.Path]:
    """Theorem 3: excess risk at (1, 1e-5) against gradients computed, three ways of accounting."""
    import matplotlib.pyplot as plt

    settings = {
        "repeats": run.choose(20, 100, 2),
        "points": run.choose(8, 16, 2),
        "rows": run.choose(None, None, 2_000),
    }
    rows = run.rows(
        "theorem3",
        settings,
        lambda: _rows(run.data, **settings),
        code=(_rows, _noise, _certificate, data_sets.adult),
    )
    certificates = [row.pop("certificate") for row in rows]
    figure, axis = plt.subplots(figsize=(6.6, 4.4), layout="constrained")
    for name, colour in zip(NOISES, ("#777777", "#b5542b", "#1f4e79"), strict=True):
        mine = [row for row in rows if row["accounting"] == name]
        gradients = [row["gradients"] for row in mine]
        axis.errorbar(
            gradients,
            [row["excess risk"] for row in mine],
            [2 * row["standard error"] for row in mine],
            color=colour,
            marker="o",
            ms=4,
            capsize=2,
            label=name,
        )
        axis.plot(
            gradients, [row["bound on the excess risk"] for row in mine], ":", color=colour, lw=1
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("gradients computed, K·n")
    axis.set_ylabel("excess empirical risk (dotted: its bound)")
    axis.set_title("Noisy GD on Adult, λ = 0.1, (ε, δ) = (1, 1e-5), replace-one", fontsize=10)
    axis.legend(frameon=False, title="noise by", fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    return [
        run.save_table("theorem3", rows),
        run.save_figure("theorem3", figure),
        run.save_certificates("theorem3", certificates),
    ]
