"""The cells of Table 4: a method at one ε, its settings chosen on rows that are not reported."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import numpy as np

from dpjax import erm
from experiments import comparison, data_sets
from experiments.protocol import Rows
from experiments.yu2020.methods import L2, method_for
from experiments.yu2020.records import Task, task


def problem_for(found: Task, row_norm: float) -> erm.Problem:
    """Logistic or softmax regression on the training rows, cut to `row_norm`."""
    make, extra = erm.logistic_regression, {}
    if found.classes > 2:
        make, extra = erm.softmax_regression, {"classes": found.classes}
    return make(*found.train, l2=L2, feature_norm=row_norm, **extra)


def baseline(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Accuracy without privacy, and of the most frequent class."""
    found = task(settings["data"], data, settings["seeds"])
    problem = problem_for(found, found.row_norm)
    exact = erm.lbfgs(problem, tolerance=1e-4).params
    _, counts = np.unique(found.train[1], return_counts=True)
    most = np.argmax(counts)
    shares = {
        "non-private": float(problem.accuracy(exact, *found.report)),
        "majority": float(np.mean(found.report[1] == most)),
    }
    return [
        {"data set": settings["data"], "method": name, "records": problem.n, "accuracy": share,
         "standard error": _of_share(share, len(found.report[1]))}
        for name, share in shares.items()
    ]  # fmt: skip


def private(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Mean accuracy over `repeats` draws on the rows to report, at the setting chosen elsewhere."""
    found = task(settings["data"], data, settings["seeds"])
    method, bounded = method_for(settings["methods"], settings, found.classes)
    problem = problem_for(found, 1.0 if bounded else found.row_norm)
    epsilon, delta = settings["epsilon"], problem.n**-2.0
    choose_key, report_key = jax.random.split(jax.random.key(settings["seeds"]))
    noises = comparison.calibrate(method, problem, [epsilon], delta)
    draws = settings["draws to choose"]
    tried = comparison.run_method(
        method, problem, found.choose, noises, repeats=draws, key=choose_key
    )
    means = tried.groupby("setting", sort=False)["accuracy"].mean()
    # The first of equals; settings are in the order of the grid.
    (row,) = [n for n in noises if n["setting"] == means.idxmax()]
    runs = comparison.run_method(
        method, problem, found.report, [row], repeats=settings["repeats"], key=report_key
    )["accuracy"]
    certificate = comparison.certificate(
        method, problem, row, delta, data=settings["data"], not_covered=[data_sets.NOT_COVERED]
    )
    error = np.hypot(runs.sem(), _of_share(runs.mean(), len(found.report[1])))
    return [
        {
            "data set": settings["data"],
            "method": settings["methods"],
            "epsilon": epsilon,
            "records": problem.n,
            "accuracy": float(runs.mean()),
            "standard error": float(error),
            "over the noise": float(runs.sem()),
            "runs": len(runs),
            "setting": row["setting"],
            "settings tried": len(noises),
            "noise": row["noise"],
            "certificate": certificate,
        }
    ]


def _of_share(share: float, rows: int) -> float:
    """Standard error of a share of so many rows."""
    return float(np.sqrt(share * (1.0 - share) / rows))
