"""Figures 1 and 2: accuracy and objective against ε, logistic regression and huberised SVM."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pandas as pd

from dpjax import erm
from experiments import comparison, data_sets
from experiments.chen2019.methods import HUBER, L2, STYLES, methods
from experiments.common import Rows, Run, track
from experiments.comparison import best_per_epsilon, draw

_DELTA = 1e-8
_DATA: dict[str, Callable[[pathlib.Path], data_sets.DataSet]] = {
    "Adult": data_sets.adult,
    "Bank": data_sets.bank,
    "IPUMS-BR": functools.partial(data_sets.ipums, name="IPUMS-BR"),
    "IPUMS-US": functools.partial(data_sets.ipums, name="IPUMS-US"),
}
_TINY = {"logistic": ("RSGD-AR", "ObjPert", "DP-AGD"), "svm": ("NSGD", "OutPert-GD")}
_CODE = (
    comparison.run_method,
    comparison.calibrate,
    data_sets.adult,
    data_sets.bank,
    data_sets.ipums,
)


def _folds(rows: int, number: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """5-fold cross-validation, repeated; folds of one size, so that one program fits all."""
    size = rows // 5
    for index in range(number):
        repeat, fold = divmod(index, 5)
        order = np.random.default_rng(repeat).permutation(rows)[: 5 * size]
        test = order[fold * size : (fold + 1) * size]
        yield np.setdiff1d(order, test), test


def _problem(task: str, features: np.ndarray, labels: np.ndarray) -> erm.Problem:
    if task == "logistic":
        return erm.logistic_regression(features, labels, l2=L2)
    return erm.huber_svm(features, labels, l2=L2, width=HUBER)


def _baselines(problem: erm.Problem, test: tuple[np.ndarray, np.ndarray]) -> Rows:
    exact = erm.lbfgs(problem).params
    share = float(np.mean(test[1] > 0))
    return [
        {
            "method": "NonPrivate",
            "accuracy": float(problem.accuracy(exact, *test)),
            "objective": float(problem.objective(exact)),
        },
        {"method": "Majority", "accuracy": max(share, 1 - share), "objective": None},
    ]


def _runs(run: Run, name: str, task: str, which: str) -> tuple[pd.DataFrame, list[str]]:
    """Every run of a data set, and the certificates of the best setting of every (method, ε)."""
    epsilons = run.choose(
        [0.05, 0.1, 0.2, 0.5, 1.0], [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0], [1.0]
    )
    # Three of the five folds, of the SVM one; all, twenty times, in a full run.
    folds = run.choose(3 if task == "logistic" else 1, 100, 1)
    repeats = run.choose(2, 1, 2)
    rows = run.choose(None, None, 1_000)
    settings = {"size": run.size, "epsilons": epsilons, "repeats": repeats, "rows": rows}
    settings |= {"task": task, "data": which, "delta": _DELTA}
    code = (*_CODE, _problem, _folds, _baselines)

    @functools.cache
    def data() -> data_sets.DataSet:
        whole = _DATA[which](run.data)
        return whole._replace(features=whole.features[:rows], labels=whole.labels[:rows])

    @functools.lru_cache(maxsize=1)
    def fold(number: int) -> tuple[erm.Problem, tuple[np.ndarray, np.ndarray]]:
        features, labels = data().features, data().labels
        train, held_out = list(_folds(len(labels), number + 1))[-1]
        problem = _problem(task, features[train], labels[train])
        return problem, (features[held_out], labels[held_out])

    # Names, grids and noises are the same for all folds: they depend on n and constants alone.
    shape = run.rows(f"{name}-{which}-n", settings, lambda: [{"n": fold(0)[0].n}], code=code)
    every = {m.name: m for m in methods(_shaped(task, shape[0]["n"]), run.size)}
    if run.tiny:  # one of a kind: a test has no time to compile the others
        every = {name: every[name] for name in _TINY[task]}
    noises, tables = {}, []
    for method in track(every.values(), f"{name} {which}: noise"):
        noises[method.name] = run.rows(
            f"{name}-{which}-noise",
            {**settings, "method": method.identity()},
            lambda method=method: comparison.calibrate(method, fold(0)[0], epsilons, _DELTA),
            code=(*code, *method.code()),
        )
    work = [(number, m) for number in range(folds) for m in (None, *every.values())]
    for number, method in track(work, f"{name} {which}: runs"):
        if method is None:
            part = run.rows(
                f"{name}-{which}-baselines",
                {**settings, "fold": number},
                lambda number=number: _baselines(*fold(number)),
                code=code,
            )
        else:
            part = run.rows(
                f"{name}-{which}-runs",
                {**settings, "fold": number, "method": method.identity()},
                lambda number=number, method=method: _what_converged(
                    method, *fold(number), noises[method.name], repeats=repeats, seed=number
                ),
                code=(*code, *method.code()),
            )
        tables.append(pd.DataFrame(part).assign(fold=number))
    table = pd.concat(tables, ignore_index=True)
    best = best_per_epsilon(table[table["epsilon"].notna()])

    def certify() -> list[dict[str, Any]]:
        out = []
        for row in track(best.to_dict("records"), f"{name} {which}: certificates"):
            noise = next(
                n
                for n in noises[row["method"]]
                if (n["epsilon"], n["setting"]) == (row["epsilon"], row["setting"])
            )
            line = comparison.certificate(
                every[row["method"]],
                fold(0)[0],
                noise,
                _DELTA,
                data=f"{which}, {task}",
                not_covered=[data_sets.NOT_COVERED],
            )
            out.append({"line": line})
        return out

    chosen = best[["method", "epsilon", "setting"]].to_dict("records")
    certificates = run.rows(
        f"{name}-{which}-certificates", {**settings, "chosen": chosen}, certify, code=code
    )
    flat = table[table["epsilon"].isna()].groupby("method", sort=False)
    base = pd.DataFrame(
        {
            "accuracy": flat["accuracy"].mean(),
            "accuracy_se": flat["accuracy"].sem(),
            "objective": flat["objective"].mean(),
            "objective_se": flat["objective"].sem(),
            "runs": flat.size(),
        }
    ).reset_index()
    both = pd.concat([best, base], ignore_index=True).assign(**{"data set": which, "task": task})
    return both, [row["line"] for row in certificates]


def _what_converged(method, problem, test, noises, *, repeats: int, seed: int) -> Rows:
    """Every run; where one misses its minimum and releases nothing, the settings without such."""
    key = jax.random.key(seed)
    kept = {"repeats": repeats, "key": key}
    try:
        return comparison.run_method(method, problem, test, noises, **kept).to_dict("records")
    except erm.NotConverged:
        pass
    rows: Rows = []
    for number, row in enumerate(noises):
        kept["key"] = jax.random.fold_in(jax.random.key(seed), number)
        try:
            table = comparison.run_method(method, problem, test, [row], **kept)
        except erm.NotConverged:
            continue
        rows += table.to_dict("records")
    return rows


def _shaped(task: str, n: int) -> erm.Problem:
    """A problem of the constants and the size alone."""
    return _problem(task, np.zeros((n, 1), np.float32), np.zeros(n, np.int32))


def _figure(run: Run, name: str, task: str, title: str) -> list[pathlib.Path]:
    import matplotlib.pyplot as plt

    present = run.choose([*_DATA], [*_DATA], ["Adult" if task == "logistic" else "Bank"])
    present = [w for w in present if not w.startswith("IPUMS") or data_sets.has_ipums(run.data, w)]
    parts = [_runs(run, name, task, which) for which in present]
    table = pd.concat([part for part, _ in parts], ignore_index=True)
    figure, axes = plt.subplots(
        2,
        len(present),
        figsize=(4.8 * len(present), 7.4),
        layout="constrained",
        sharex=True,
        squeeze=False,
    )
    for column, which in enumerate(present):
        mine = table[table["data set"] == which]
        flat = mine.set_index("method").loc[["NonPrivate", "Majority"]]
        draw(axes[0, column], mine, STYLES, lines=flat["accuracy"].to_dict())
        least = {"NonPrivate": float(flat.loc["NonPrivate", "objective"])}
        draw(axes[1, column], mine, STYLES, metric="objective", lines=least)
        axes[0, column].set_title(which, fontsize=10)
        axes[1, column].set_xlabel("ε (δ = 1e-8; replace-one unless said)")
        axes[1, column].set_yscale("log")
        # What fails altogether would squeeze the rest into a line.
        top = 100 * float(flat.loc["NonPrivate", "accuracy"])
        low = 100 * float(flat.loc["Majority", "accuracy"])
        span = max(top - low, 1.0)
        means = 100 * mine["accuracy"]
        low, top = min(low, means[means > low - 2 * span].min()), max(top, means.max())
        axes[0, column].set_ylim(low - 0.2 * span, top + 0.2 * span)
        base = least["NonPrivate"]
        axes[1, column].set_ylim(0.95 * base, 4 * base)
        ticks = [round(factor * base, 2) for factor in (1.0, 1.5, 2.0, 3.0, 4.0)]
        axes[1, column].set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes[1, column].minorticks_off()
    axes[0, 0].set_ylabel("test accuracy, %")
    axes[1, 0].set_ylabel("objective")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10)
    certificates = [line for _, lines in parts for line in lines]
    return [
        run.save_table(name, table),
        run.save_figure(name, figure),
        run.save_certificates(name, certificates),
    ]


def figure1(run: Run) -> list[pathlib.Path]:
    """Figure 1: logistic regression, Adult and Bank (IPUMS where its files are)."""
    return _figure(run, "figure1", "logistic", "chen2019, Figure 1: logistic regression, λ = 0.001")


def figure2(run: Run) -> list[pathlib.Path]:
    """Figure 2: huberised SVM (h = 0.5), Adult and Bank (IPUMS where its files are)."""
    return _figure(run, "figure2", "svm", "chen2019, Figure 2: huberised SVM, h = 0.5, λ = 0.001")
