"""RSGD-AR and permuted SGD without averaging, each grid widened until its best is inside."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax
import numpy as np

from dpjax import accounting as acc
from dpjax import erm
from experiments import comparison, data_sets
from experiments.chen2019 import records
from experiments.chen2019.cells import DELTA, _error, _runs
from experiments.chen2019.methods import variants
from experiments.comparison import Method
from experiments.protocol import Rows
from experiments.widening import Axis, Found, Point, search

_WHOLE = ("epochs", "restarts")
# Passes over the records, for both alike. Where the step is η/h in epoch h, every doubling of them
# gained another record of 4,500 at least, up to the 100,000 passes of a trial that has no script.
MOST_EPOCHS = 1_600.0
Case = tuple[str, float]  # a price and an ε


def axes_of(method: Method, limit: float) -> list[Axis]:
    """What a method is tuned over, from its first grid on.

    A run averages and restarts once at least, and has `MOST_EPOCHS` at most. Steps longer than
    `limit`, two over the smoothness and the strong convexity, do not contract, and 1.05 times that
    is as far as they go.
    """
    found = []
    for name, values in method.grid.items():
        axis = Axis(name, tuple(map(float, values)), 2.0)
        if name in _WHOLE:
            axis = axis._replace(least=1.0)
        if name == "epochs":
            axis = axis._replace(most=MOST_EPOCHS)
        if name == "step_size":
            axis = axis._replace(most=1.05 * limit)
        found.append(axis)
    return found


def at(method: Method, point: Point) -> Method:
    """A method with the one setting of a point."""
    values = {
        name: [round(value) if name in _WHOLE else value]
        for name, value in zip(method.grid, point, strict=True)
    }
    return dataclasses.replace(method, grid=values)


def private(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Mean over `repeats` draws on the rows to report, a line a price and ε.

    The prices and ε of one setting share the runs that have no noise, so that a setting that is
    tried for one of them is known to all.
    """
    found = records.task(settings["data"], data, settings["seeds"])
    problem = records.problem(settings["task"], found.train, 1.0)
    limit = 2.0 / (problem.smoothness + problem.strong_convexity)
    best = float(problem.objective(erm.lbfgs(problem, tolerance=1e-5).params))
    choose_key, report_key = jax.random.split(jax.random.key(settings["seeds"]))
    methods = variants(settings["methods"], settings, problem)
    made: dict[Point, dict[Case, float]] = {}
    count = len(found.choose[1])

    def priced_at(point: Point) -> list[tuple[Method, dict]]:
        return [
            (one, row)
            for one in (at(method, point) for method in methods)
            for row in comparison.calibrate(one, problem, settings["epsilon"], DELTA)
            if np.isfinite(row["noise"])
        ]

    def score(point: Point, case: Case) -> float:
        setting = dict(zip(methods[0].grid, point, strict=True))
        if round(setting.get("restarts", 1.0)) > round(setting["epochs"]):
            return float("nan")  # there is nothing to average
        if point not in made:
            try:
                priced = priced_at(point)
            except acc.ImpossibleBudget:  # steps that do not contract, restart upon restart
                priced = []
            draws = 5 * settings["draws to choose"]  # of noise at the end, as the other cells have
            # The same draws for every setting: two that differ do so by more than their luck.
            key = jax.random.clone(choose_key)
            runs = _runs(priced, problem, found.choose, draws, key, orders=1)
            # In whole records of those that choose: a smaller gain is none.
            made[point] = {
                (method.name, row["epsilon"]): float(
                    np.round(count * np.mean(one.accuracy)) / count
                )
                for (method, row), one in zip(priced, runs, strict=True)
            }
        return made[point].get(case, float("nan"))

    def search_from(axes: list[Axis], case: Case) -> Found:
        return search(axes, lambda points: [score(point, case) for point in points])

    def search_all() -> dict[Case, Found]:
        """The best of every price and ε, none of which has a better one among the others' settings.

        A search ends at the first setting whose neighbours are no better. Where another price or ε
        came past a better one, it goes on from there.
        """
        axes = {method.name: axes_of(method, limit) for method in methods}
        cases = [(name, epsilon) for name in axes for epsilon in settings["epsilon"]]
        chosen = {case: search_from(axes[case[0]], case) for case in cases}
        settled = False
        while not settled:
            settled = True
            for case in cases:
                known = {point: score(point, case) for point in made}
                best = max((p for p in known if not np.isnan(known[p])), key=known.__getitem__)
                if known[best] > known[chosen[case].best]:
                    pairs = zip(axes[case[0]], best, strict=True)
                    own = [axis._replace(values=(value,)) for axis, value in pairs]
                    chosen[case], settled = search_from(own, case), False
        return chosen

    out, searched = [], search_all()
    for method in methods:
        for epsilon in settings["epsilon"]:
            case = (method.name, epsilon)
            chosen = searched[case]
            (kept,) = [
                (one, row)
                for one, row in priced_at(chosen.best)
                if (one.name, row["epsilon"]) == case
            ]
            key = jax.random.fold_in(report_key, len(out))
            (runs,) = _runs([kept], problem, found.report, settings["repeats"], key)
            one, row = kept
            certificate = comparison.certificate(
                one, problem, row, DELTA, data=f"{settings['data']}, {settings['task']}",
                not_covered=[data_sets.NOT_COVERED],
            )  # fmt: skip
            out.append(
                {
                    "data set": settings["data"],
                    "task": settings["task"],
                    "method": method.name,
                    "prices": "2019" if method.noise else "today",
                    "epsilon": epsilon,
                    "records": problem.n,
                    "seed": settings["seeds"],
                    "accuracy": float(runs.accuracy.mean()),
                    "over the noise": _error(runs.accuracy),
                    "excess objective": float(runs.objective.mean()) - best,
                    "excess objective, error": _error(runs.objective),
                    "runs": len(runs.accuracy),
                    "setting": row["setting"],
                    "edge": chosen.edge,
                    "settings tried": len(made),
                    "noise": row["noise"],
                    "certificate": certificate,
                }
            )
    return out
