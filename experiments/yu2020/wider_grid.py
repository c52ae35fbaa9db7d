"""Cells of Table 4 whose grid is widened until the best setting is inside."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments import comparison, data_sets
from experiments.comparison import Method
from experiments.protocol import Rows
from experiments.widening import Axis, Point, search
from experiments.yu2020.cells import _of_share, problem_for
from experiments.yu2020.methods import method_for
from experiments.yu2020.records import Task, task

_WHOLE = ("steps", "passes")  # numbers of these are whole
# Below a ridge of 1 the least one, nothing is private; a pass is the fewest.
_LEAST = {"ridge": 1.0, "passes": 1.0, "steps": 1.0}
_FACTORS = {"ridge": 3.0}


def axes_of(method: Method) -> list[Axis]:
    """What a method is tuned over, from its first grid on."""
    return [
        Axis(name, tuple(map(float, v)), _FACTORS.get(name, 2.0), _LEAST.get(name, 0.0))
        for name, v in method.grid.items()
    ]


def at(method: Method, point: Point) -> Method:
    """A method with the one setting of a point."""
    values = {
        name: [round(value) if name in _WHOLE else value]
        for name, value in zip(method.grid, point, strict=True)
    }
    return dataclasses.replace(method, grid=values)


def private(settings: dict[str, Any], data: pathlib.Path, of: Callable[..., Task] = task) -> Rows:
    """Mean accuracy over `repeats` draws on the rows to report, at a setting inside its grid.

    Args:
        settings: of the cell. data: folder of the data sets.
        of: (name, folder, seed) -> the rows.
    """
    found = of(settings["data"], data, settings["seeds"])
    method, bounded = method_for(settings["methods"], settings, found.classes)
    if "clip norm" in settings and "clip_norm" in method.fixed:
        fixed = {**method.fixed, "clip_norm": settings["clip norm"]}
        method = dataclasses.replace(method, fixed=fixed)
    problem = problem_for(found, 1.0 if bounded else found.row_norm)
    epsilon, delta = settings["epsilon"], problem.n**-2.0
    choose_key, report_key = jax.random.split(jax.random.key(settings["seeds"]))
    tried = itertools.count()

    def accuracies(point: Point, rows, repeats: int, key) -> tuple[Method, dict, np.ndarray]:
        one = at(method, point)
        (noise,) = comparison.calibrate(one, problem, [epsilon], delta)
        runs = comparison.run_method(one, problem, rows, [noise], repeats=repeats, key=key)
        return one, noise, runs["accuracy"].to_numpy()

    def score(point: Point) -> float:
        key = jax.random.fold_in(choose_key, next(tried))
        return float(accuracies(point, found.choose, settings["draws to choose"], key)[2].mean())

    best = search(axes_of(method), lambda points: [score(point) for point in points])
    one, noise, runs = accuracies(best.best, found.report, settings["repeats"], report_key)
    over_noise = float(runs.std(ddof=1) / len(runs) ** 0.5)
    certificate = comparison.certificate(
        one, problem, noise, delta, data=settings["data"], not_covered=[data_sets.NOT_COVERED]
    )
    return [
        {
            "data set": settings["data"],
            "method": settings["methods"],
            "epsilon": epsilon,
            "seed": settings["seeds"],
            "records": problem.n,
            "accuracy": float(runs.mean()),
            "standard error": float(
                np.hypot(over_noise, _of_share(runs.mean(), len(found.report[1])))
            ),
            "over the noise": over_noise,
            "runs": len(runs),
            "setting": noise["setting"],
            "edge": best.edge,
            "settings tried": len(best.tried),
            "noise": noise["noise"],
            "certificate": certificate,
        }
    ]
