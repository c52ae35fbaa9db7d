"""Figure 3: processing time against the number of rows, on KDDCup99."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dpjax import erm
from experiments import data_sets
from experiments.chen2019.methods import L2, STYLES, even_batch
from experiments.common import Run, track

_EPSILON, _DELTA = 0.5, 1e-12


def _solvers(rows: int) -> dict[str, Callable[[erm.Problem, jax.Array], Any]]:
    """One fit of every method, budget to parameters, at settings that do well in Figure 1."""
    budget = {"epsilon": _EPSILON, "delta": _DELTA, "adjacency": "replace-one"}
    cyclic = {"epochs": 10, "batch_size": even_batch(rows), "step_size": 1.0}
    return {
        "RSGD-AR": lambda p, k: erm.rsgd_ar(p, k, **cyclic, **budget),
        "NSGD": lambda p, k: erm.nsgd(p, k, **cyclic, **budget),
        "ObjPert": lambda p, k: erm.objective_perturbation(p, k, **budget),
        "OutPert-GD": lambda p, k: erm.output_perturbed_gd(
            p, k, steps=60, step_size=2.0 / (p.smoothness + p.strong_convexity), **budget
        ),
        "DP-AGD": lambda p, k: erm.dp_agd(p, k, **budget),
        "SGD-MA": lambda p, k: erm.sgd_ma(p, k, steps=1000, step_size=1.0, **budget),
    }


def _rows(
    data: pathlib.Path, sizes: list[int], repeats: int, skip: list[str]
) -> list[dict[str, Any]]:
    table = data_sets.kddcup99(data)
    order = np.random.default_rng(0).permutation(len(table.labels))
    out = []
    for size in track(sizes, "chen2019 KDDCup99"):
        problem = erm.logistic_regression(
            table.features[order[:size]], table.labels[order[:size]], l2=L2
        )
        held = order[-20_000:]
        for name, solve in _solvers(size).items():
            if name in skip:
                continue
            times = []
            for repeat in range(repeats + 1):
                start = time.perf_counter()
                solution = jax.block_until_ready(solve(problem, jax.random.key(repeat)).params)
                times.append(time.perf_counter() - start)
            accuracy = problem.accuracy(solution, table.features[held], table.labels[held])
            out.append(
                {
                    "method": name,
                    "rows": size,
                    # The first fit compiles and calibrates for these shapes.
                    "seconds": float(np.median(times[1:])),
                    "first fit": times[0],
                    "accuracy": float(accuracy),
                }
            )
    return out


def figure3(run: Run) -> list[pathlib.Path]:
    """Figure 3: seconds per fit, noise calibration included, 50k to 250k rows."""
    import matplotlib.pyplot as plt

    settings = {
        "sizes": run.choose(
            [50_000, 150_000, 250_000], [50_000, 100_000, 150_000, 200_000, 250_000], [2_000]
        ),
        "repeats": run.choose(2, 5, 1),
    }
    # Pricing SGD-MA tightly at δ = 1e-12 takes longer than all fits together: in a full run alone.
    skip = run.choose(["SGD-MA"], [], ["SGD-MA"])
    rows = run.rows(
        "figure3",
        {**settings, "skip": skip},
        lambda: _rows(run.data, skip=skip, **settings),
        code=(_rows, _solvers, data_sets.kddcup99),
    )
    figure, axis = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for name in _solvers(1):
        colour, marker = STYLES[name]
        mine = [row for row in rows if row["method"] == name]
        if not mine:
            continue
        axis.plot(
            [row["rows"] for row in mine],
            [row["seconds"] for row in mine],
            marker=marker,
            color=colour,
            label=name,
        )
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")
    axis.set_xlabel("rows of KDDCup99")
    axis.set_ylabel("seconds per fit (compiled), median")
    axis.set_title("chen2019, Figure 3: processing time, ε = 0.5, δ = 1e-12", fontsize=10)
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    return [run.save_table("figure3", rows), run.save_figure("figure3", figure)]
