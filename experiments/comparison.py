"""Private solvers side by side on one split: every method's grid as vmapped sweeps, best per ε."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd

from dpjax import accounting as acc
from dpjax import erm
from dpjax.erm.solution import spec_of


@dataclasses.dataclass(frozen=True)
class Method:
    """One line of a comparison.

    Attributes:
        name: as it is drawn.
        solver: a private solver of `dpjax.erm`.
        grid: hyperparameters to try.
        adjacency: the neighbouring relation of the budget.
        fixed: hyperparameters that do not vary.
        noise: (problem, ε, δ, hyperparameters) -> the noise argument, where the method is to be
            priced otherwise than by the accountant's best bound.
    """

    name: str
    solver: Callable
    grid: Mapping[str, Sequence]
    adjacency: acc.Adjacency = acc.Adjacency.REPLACE_ONE
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    noise: Callable[..., float] | None = None


def run_method(
    method: Method,
    problem: erm.Problem,
    test: tuple[np.ndarray, np.ndarray],
    epsilons: Sequence[float],
    delta: float,
    *,
    repeats: int,
    key: jax.Array,
    memory_budget: float = 2**30,
) -> pd.DataFrame:
    """One row a run: method, epsilon, the hyperparameters, noise, accuracy, objective."""
    common = {
        "repeats": repeats,
        "key": key,
        "test": test,
        "progress": False,
        "memory_budget": memory_budget,
        **method.fixed,
    }
    if method.noise is None:
        grid = {"epsilon": list(epsilons), **method.grid}
        table = erm.sweep(
            method.solver, problem, grid, delta=delta, adjacency=method.adjacency, **common
        ).table
    else:
        name = spec_of(method.solver).noise
        parts = []
        for epsilon in epsilons:
            for point in _points(method.grid):
                noise = method.noise(problem, epsilon, delta, {**method.fixed, **point})
                grid = {k: [v] for k, v in point.items()} | {name: [noise]}
                part = erm.sweep(method.solver, problem, grid, **common).table
                parts.append(part.assign(epsilon=epsilon))
        table = pd.concat(parts, ignore_index=True)
    settings = [
        ", ".join(f"{name}={row[name]:g}" for name in method.grid)
        for row in table.to_dict("records")
    ]
    columns = ["epsilon", "noise", "accuracy", "objective", "repeat"]
    return table[columns].assign(method=method.name, setting=settings)


def _points(grid: Mapping[str, Sequence]) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = [{}]
    for name, values in grid.items():
        points = [{**point, name: value} for point in points for value in values]
    return points


def best_per_epsilon(table: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard error of the best setting of every (method, ε).

    The setting is chosen by its mean test accuracy, as the papers do: not a private choice.
    """
    grouped = table.groupby(["method", "epsilon", "setting"], sort=False)
    means = grouped.agg(
        accuracy=("accuracy", "mean"),
        accuracy_se=("accuracy", "sem"),
        objective=("objective", "mean"),
        objective_se=("objective", "sem"),
        runs=("accuracy", "size"),
        noise=("noise", "mean"),
    ).reset_index()
    chosen = means.groupby(["method", "epsilon"], sort=False)["accuracy"].idxmax()
    return means.loc[chosen].reset_index(drop=True)


def draw(
    axis: Any,
    best: pd.DataFrame,
    styles: Mapping[str, tuple[str, str]],
    *,
    metric: str = "accuracy",
    lines: Mapping[str, float] | None = None,
) -> None:
    """Metric against ε, one line a method, ±2 standard errors; horizontal lines beside."""
    scale = 100.0 if metric == "accuracy" else 1.0
    for name, (colour, marker) in styles.items():
        mine = best[best["method"] == name].sort_values("epsilon")
        if mine.empty:
            continue
        axis.errorbar(
            mine["epsilon"],
            scale * mine[metric],
            2 * scale * mine[f"{metric}_se"].fillna(0.0),
            color=colour,
            marker=marker,
            ms=4,
            capsize=2,
            lw=1.3,
            label=name,
        )
    for (name, value), style in zip((lines or {}).items(), ("--", ":"), strict=False):
        axis.axhline(scale * value, color="#555555", ls=style, lw=1, label=name)
    axis.set_xscale("log")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
