"""Figures 1 and 2: accuracy and objective against ε, logistic regression and huberised SVM."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pandas as pd

from dpjax import erm
from experiments import data_sets
from experiments.chen2019.methods import HUBER, L2, STYLES, methods
from experiments.common import Run, track
from experiments.comparison import best_per_epsilon, draw, run_method

_DELTA = 1e-8
_DATA = {"Adult": data_sets.adult, "Bank": data_sets.bank}


def _folds(rows: int, repeats: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """5-fold cross-validation, `repeats` times; folds of one size, so that one program fits all."""
    size = rows // 5
    for repeat in range(repeats):
        order = np.random.default_rng(repeat).permutation(rows)[: 5 * size]
        for fold in range(5):
            test = order[fold * size : (fold + 1) * size]
            yield np.setdiff1d(order, test), test


def _problem(task: str, features: np.ndarray, labels: np.ndarray) -> erm.Problem:
    if task == "logistic":
        return erm.logistic_regression(features, labels, l2=L2)
    return erm.huber_svm(features, labels, l2=L2, width=HUBER)


def _rows(
    data: data_sets.DataSet,
    task: str,
    size: str,
    epsilons: list[float],
    folds: int,
    repeats: int,
    rows: int | None,
) -> list[dict[str, Any]]:
    features, labels = data.features[:rows], data.labels[:rows]
    cases = list(_folds(len(labels), max(1, folds // 5)))[:folds]
    tables, baselines = [], []
    for number, (train, held_out) in enumerate(track(cases, f"chen2019 {data.name} {task}")):
        problem = _problem(task, features[train], labels[train])
        test = (features[held_out], labels[held_out])
        for method in methods(problem, size):
            table = run_method(
                method,
                problem,
                test,
                epsilons,
                _DELTA,
                repeats=repeats,
                key=jax.random.key(number),
            )
            tables.append(table.assign(fold=number))
        exact = erm.lbfgs(problem)
        said = np.asarray(problem.scores(exact.params, test[0])) >= 0
        baselines.append(
            {
                "accuracy": float(np.mean(said == (test[1] > 0))),
                "objective": float(problem.objective(exact.params)),
                "majority": float(max(np.mean(test[1] > 0), 1 - np.mean(test[1] > 0))),
            }
        )
    best = best_per_epsilon(pd.concat(tables, ignore_index=True))
    base = pd.DataFrame(baselines).mean()
    for name, accuracy, objective in (
        ("NonPrivate", base["accuracy"], base["objective"]),
        ("Majority", base["majority"], np.nan),
    ):
        row = {"method": name, "epsilon": np.nan, "setting": "", "accuracy": accuracy}
        best.loc[len(best)] = pd.Series({**row, "objective": objective, "runs": len(cases)})
    records = best.assign(**{"data set": data.name, "task": task}).to_dict("records")
    return [
        {k: None if isinstance(v, float) and np.isnan(v) else v for k, v in r.items()}
        for r in records
    ]


def _figure(run: Run, name: str, task: str, title: str) -> list[pathlib.Path]:
    import matplotlib.pyplot as plt

    settings = {
        "size": run.size,
        "epsilons": run.choose(
            [0.05, 0.1, 0.2, 0.5, 1.0], [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0], [1.0]
        ),
        "folds": run.choose(5, 100, 1),
        "repeats": run.choose(4, 1, 1),
        "rows": run.choose(None, None, 1_000),
    }
    code = ["experiments.chen2019.methods", "experiments.comparison", "experiments.data_sets"]
    rows: list[dict[str, Any]] = []
    for which, load in _DATA.items():
        rows += run.rows(
            f"{name}-{which}",
            {**settings, "task": task, "code": code},
            lambda load=load: _rows(load(run.data), task, **settings),
        )
    table = pd.DataFrame(rows)
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 7.0), layout="constrained", sharex=True)
    for column, which in enumerate(_DATA):
        mine = table[table["data set"] == which]
        flat = {
            n: float(mine[mine["method"] == n]["accuracy"].iloc[0])
            for n in ("NonPrivate", "Majority")
        }
        draw(axes[0, column], mine, STYLES, lines=flat)
        least = {"NonPrivate": float(mine[mine["method"] == "NonPrivate"]["objective"].iloc[0])}
        draw(axes[1, column], mine, STYLES, metric="objective", lines=least)
        axes[0, column].set_title(which, fontsize=10)
        axes[1, column].set_xlabel("ε (δ = 1e-8, replace-one)")
        axes[1, column].set_yscale("log")
    axes[0, 0].set_ylabel("test accuracy, %")
    axes[1, 0].set_ylabel("objective")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10)
    return [run.save_table(name, table), run.save_figure(name, figure)]


def figure1(run: Run) -> list[pathlib.Path]:
    """Figure 1: logistic regression, Adult and Bank."""
    return _figure(run, "figure1", "logistic", "chen2019, Figure 1: logistic regression, λ = 0.001")


def figure2(run: Run) -> list[pathlib.Path]:
    """Figure 2: huberised SVM (h = 0.5), Adult and Bank."""
    return _figure(run, "figure2", "svm", "chen2019, Figure 2: huberised SVM, h = 0.5")
