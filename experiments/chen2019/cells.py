"""The cells of Figures 1 and 2: a method at every ε, its settings chosen on rows not reported."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from dpjax import erm
from experiments import comparison, data_sets
from experiments.chen2019 import records
from experiments.chen2019.methods import needs_unit_rows, variants
from experiments.protocol import Rows

DELTA = 1e-8


class _Runs(NamedTuple):
    """Draws of one setting: [repeats] each."""

    accuracy: np.ndarray
    objective: np.ndarray


def baseline(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Accuracy and least objective without privacy in both encodings, and the majority's share."""
    found = records.task(settings["data"], data, settings["seeds"])
    most = np.argmax(np.bincount(found.train[1]))
    rows = [("majority", float(np.mean(found.report[1] == most)), None)]
    for name, norm in (("non-private", found.row_norm), ("non-private, unit rows", 1.0)):
        problem = records.problem(settings["task"], found.train, norm)
        exact = erm.lbfgs(problem, tolerance=1e-5).params
        share = float(problem.accuracy(exact, *found.report))
        rows.append((name, share, float(problem.objective(exact))))
    return [
        {
            "data set": settings["data"],
            "task": settings["task"],
            "method": name,
            "records": len(found.train[1]),
            "accuracy": share,
            "standard error": float(np.sqrt(share * (1 - share) / len(found.report[1]))),
            "objective": objective,
        }
        for name, share, objective in rows
    ]


def private(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Mean over `repeats` draws on the rows to report, a line a price and ε.

    The prices of one method share the runs that have no noise.
    """
    found = records.task(settings["data"], data, settings["seeds"])
    name = settings["methods"]
    norm = 1.0 if needs_unit_rows(name) else found.row_norm
    problem = records.problem(settings["task"], found.train, norm)
    best = float(problem.objective(erm.lbfgs(problem, tolerance=1e-5).params))
    choose_key, report_key = jax.random.split(jax.random.key(settings["seeds"]))
    priced = [
        (method, row)
        for method in variants(name, settings, problem)
        for row in comparison.calibrate(method, problem, settings["epsilon"], DELTA)
        if np.isfinite(row["noise"])  # otherwise no noise is enough for this way of accounting
    ]
    # More draws of noise at the end cost next to nothing.
    draws = settings["draws to choose"] * (5 if priced[0][0].at_the_end else 1)
    tried = _runs(priced, problem, found.choose, draws, choose_key, orders=1)
    chosen: dict[tuple, tuple] = {}
    for (method, row), runs in zip(priced, tried, strict=True):
        case, mean = (method.name, row["epsilon"]), float(np.mean(runs.accuracy))
        # The first of equals; settings are in the order of the grid. A NaN is never chosen.
        if mean > chosen.get(case, (None, None, -1.0))[2]:
            chosen[case] = (method, row, mean)
    kept = [(method, row) for method, row, _ in chosen.values()]
    reported = _runs(kept, problem, found.report, settings["repeats"], report_key)
    out = []
    for (method, row), runs in zip(kept, reported, strict=True):
        certificate = comparison.certificate(
            method, problem, row, DELTA, data=f"{settings['data']}, {settings['task']}",
            not_covered=[data_sets.NOT_COVERED],
        )  # fmt: skip
        out.append(
            {
                "data set": settings["data"],
                "task": settings["task"],
                "method": method.name,
                "prices": "2019" if method.noise else "today",
                "epsilon": row["epsilon"],
                "records": problem.n,
                "accuracy": float(runs.accuracy.mean()),
                "over the noise": _error(runs.accuracy),
                "excess objective": float(runs.objective.mean()) - best,
                "excess objective, error": _error(runs.objective),
                "runs": len(runs.accuracy),
                "setting": row["setting"],
                "settings tried": len(method.points()),
                "noise": row["noise"],
                "certificate": certificate,
            }
        )
    return out


def _runs(
    priced: list[tuple], problem, test, repeats: int, key: jax.Array, *, orders: int | None = None
) -> list[_Runs]:
    """The draws of every (method, row of its calibration)."""
    out: list[_Runs | None] = [None] * len(priced)
    for number, members in enumerate(_together(priced)):
        method = priced[members[0]][0]
        if orders is not None and method.at_the_end:
            method = dataclasses.replace(method, orders=orders)
        rows = [priced[i][1] for i in members]
        own = jax.random.fold_in(key, number)
        for i, runs in zip(members, _drawn(method, problem, test, rows, repeats, own), strict=True):
            out[i] = runs
    return [runs for runs in out if runs is not None]


def _together(priced: list[tuple]) -> Iterable[list[int]]:
    """Numbers of what runs together: all prices of a method whose noise is at the end."""
    groups: dict[Any, list[int]] = {}
    for i, (method, _) in enumerate(priced):
        groups.setdefault(method.solver if method.at_the_end else method.name, []).append(i)
    return groups.values()


def _drawn(method, problem, test, rows: list, repeats: int, key: jax.Array) -> list[_Runs]:
    """One setting at a time where one misses its minimum, which then counts as NaN."""
    try:
        table = comparison.run_method(method, problem, test, rows, repeats=repeats, key=key)
    except erm.NotConverged:
        if len(rows) == 1:
            return [_Runs(np.full(repeats, np.nan), np.full(repeats, np.nan))]
        keys = jax.random.split(key, len(rows))
        return [
            _drawn(method, problem, test, [row], repeats, k)[0]
            for row, k in zip(rows, keys, strict=True)
        ]
    # In the order of `rows`, the repeats of each together.
    shape = (len(rows), repeats)
    both = (table[name].to_numpy().reshape(shape) for name in ("accuracy", "objective"))
    return [_Runs(*pair) for pair in zip(*both, strict=True)]


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)
