"""Ways to learn tables, on many budgets and keys, in the interpreter that has their library.

    PYTHON -m benchmarks.table_methods [--limit SECONDS]

Reads a line of JSON for every table and method, {"table": "Bank", "method": "dpjax", "folder":
FOLDER, "cells": [[1.0, 0], [4.0, 0]]}: cells are ε and a key, and FOLDER/KEY holds what
`benchmarks.table_data.Parts.write` wrote. Prints one line of JSON a cell, as soon as it is known,
and {"done": METHOD} after the last one. Only NumPy and pandas are imported before a method asks for
its library.

What each is given, of `Public`, is said where it is made. Seconds are processor time from the
frame in memory to the predictions of the records held out; programs that were not compiled for a
cell before are compiled in it.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

Range = tuple[float, float]
BINS = 10  # of the calibration error
_LEAST_CHANCE = 1e-6  # of the log-loss


class Hidden(Exception):
    """No model was released: the noise hides all classes but one, or every record of one."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A table at a budget and a key, as every method is given it."""

    train: pd.DataFrame
    held: pd.DataFrame
    target: str
    ranges: dict[str, Range]
    categories: dict[str, list[str]]
    classes: list[str]
    target_range: Range | None
    delta: float
    folder: pathlib.Path
    epsilon: float = math.inf
    key: int = 0

    @property
    def inputs(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The columns to learn from, of both parts."""
        names = [name for name in self.train.columns if name != self.target]
        return self.train[names], self.held[names]

    @property
    def regression(self) -> bool:
        """Whether a number is predicted."""
        return self.target_range is not None

    def labels(self, frame: pd.DataFrame) -> np.ndarray:
        """Class numbers, or the target of a regression."""
        if self.regression:
            return frame[self.target].to_numpy(np.float64)
        numbers = {name: number for number, name in enumerate(self.classes)}
        return frame[self.target].astype(str).map(numbers).to_numpy(np.int64)

    def arrange(self, chances: np.ndarray, named: np.ndarray | list[str]) -> np.ndarray:
        """Chances by the declared classes; one that a model does not know has none."""
        found = np.zeros((len(chances), len(self.classes)))
        for column, name in enumerate(named):
            found[:, self.classes.index(str(name))] = chances[:, column]
        return found


def read_task(folder: pathlib.Path) -> Task:
    """The frames and what is public of them; numbers as numbers and the rest as texts."""
    public = json.loads((folder / "public.json").read_text())
    numbers = [*public["ranges"], *([public["target"]] if public["target_range"] else [])]
    texts = [*public["categories"], *([] if public["target_range"] else [public["target"]])]
    frames = [
        pd.read_csv(
            folder / f"{part}.csv",
            dtype=dict.fromkeys(texts, str) | dict.fromkeys(numbers, "float64"),
            keep_default_na=False,
        )
        for part in ("train", "held")
    ]
    ends = public["target_range"]
    return Task(
        *frames,
        target=public["target"],
        ranges={name: (low, high) for name, (low, high) in public["ranges"].items()},
        categories=public["categories"],
        classes=public["classes"],
        target_range=None if ends is None else (ends[0], ends[1]),
        delta=public["delta"],
        folder=folder,
    )


# --- scores --------------------------------------------------------------------------------------


def area(positive: np.ndarray, scores: np.ndarray) -> float:
    """Area under the curve, by ranks; ties count half."""
    ranks = pd.Series(scores).rank().to_numpy()
    ones = int(positive.sum())
    zeros = len(positive) - ones
    if not ones or not zeros:
        return math.nan
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


class Scores(NamedTuple):
    """What is measured on the records held out; NaN where it has no meaning."""

    area: float = math.nan  # of several classes the mean of each against the rest
    accuracy: float = math.nan
    log_loss: float = math.nan
    calibration: float = math.nan  # the mean gap between chance and share, in ten bins of chance
    error: float = math.nan  # the root mean squared error of a regression


def score_chances(labels: np.ndarray, chances: np.ndarray) -> Scores:
    """Scores of the chances [records, classes] of classes 0, 1, …"""
    classes = chances.shape[1]
    sides = range(1, 2) if classes == 2 else range(classes)
    areas = [area(labels == side, chances[:, side]) for side in sides]
    right = chances.argmax(axis=1) == labels
    of_truth = np.clip(chances[np.arange(len(labels)), labels], _LEAST_CHANCE, 1.0)
    # Of two classes the chance of the second one, of more that of the class that is predicted.
    said = chances[:, 1] if classes == 2 else chances.max(axis=1)
    came = (labels == 1) if classes == 2 else right
    cells = np.minimum((said * BINS).astype(int), BINS - 1)
    gaps = np.bincount(cells, weights=said - came, minlength=BINS)
    return Scores(
        area=float(np.nanmean(areas)),
        accuracy=float(right.mean()),
        log_loss=float(-np.log(of_truth).mean()),
        calibration=float(np.abs(gaps).sum() / len(labels)),
    )


def score_numbers(truth: np.ndarray, predicted: np.ndarray) -> Scores:
    """The root mean squared error."""
    return Scores(error=float(np.sqrt(np.mean((truth - predicted) ** 2))))


def score(task: Task, found: np.ndarray) -> Scores:
    """Scores of chances by class, or of predicted numbers."""
    truth = task.labels(task.held)
    return score_numbers(truth, found) if task.regression else score_chances(truth, found)


def score_nothing(task: Task) -> Scores:
    """Of a method that released no model: every record has the same chance of every class."""
    truth = task.labels(task.held)
    if task.regression:
        low, high = task.target_range or (0.0, 0.0)
        return score_numbers(truth, np.full(len(truth), (low + high) / 2))
    return score_chances(truth, np.full((len(truth), len(task.classes)), 1 / len(task.classes)))


# --- what several methods share ------------------------------------------------------------------


def as_codes(task: Task, frame: pd.DataFrame) -> np.ndarray:
    """Numbers as they are and categories by their place in the list; an unlisted one is NaN."""
    columns = []
    for name in task.inputs[0].columns:
        if name in task.ranges:
            columns.append(frame[name].to_numpy(np.float64))
        else:
            places = {value: number for number, value in enumerate(task.categories[name])}
            columns.append(frame[name].astype(str).map(places).to_numpy(np.float64))
    return np.stack(columns, axis=1)


def as_unit_rows(task: Task, frame: pd.DataFrame) -> np.ndarray:
    """Rows of norm at most 1: numbers by their public range, one feature a category."""
    blocks = []
    for name in task.inputs[0].columns:
        if name in task.ranges:
            low, high = task.ranges[name]
            values = frame[name].clip(low, high).to_numpy(np.float64)
            blocks.append(((values - low) / (high - low))[:, None])
        else:
            listed = np.array(task.categories[name])
            blocks.append((frame[name].astype(str).to_numpy()[:, None] == listed).astype(float))
    return np.concatenate(blocks, axis=1) / math.sqrt(len(blocks))


def boosted_trees(task: Task, train: pd.DataFrame) -> np.ndarray:
    """scikit-learn's boosted trees of these records: chances by class, or numbers."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    features, held = as_codes(task, train), as_codes(task, task.held)
    kinds = [name not in task.ranges for name in task.inputs[0].columns]
    if task.regression:
        trees = HistGradientBoostingRegressor(categorical_features=kinds, random_state=task.key)
        return trees.fit(features, task.labels(train)).predict(held)
    labels = task.labels(train)
    if len(np.unique(labels)) < 2:
        raise Hidden("the records hold one class")
    model = HistGradientBoostingClassifier(categorical_features=kinds, random_state=task.key)
    model.fit(features, labels)
    return task.arrange(model.predict_proba(held), [task.classes[c] for c in model.classes_])


# --- dpjax ---------------------------------------------------------------------------------------


def dpjax(task: Task, *, declared: bool) -> np.ndarray:
    """The default of the estimators with preprocessing="private".

    Given: the frame, of which it learns kinds, ranges, categories and classes within ε, of a
    regression the range of the target; with `declared` the classes, or that range.
    """
    from dpjax import data, estimators

    train, held = task.inputs
    given = {"epsilon": task.epsilon, "delta": task.delta, "random_state": task.key}
    if task.regression:
        model = estimators.DPLinearRegression(
            preprocessing="private", target_range=task.target_range if declared else None, **given
        )
        return model.fit(train, task.train[task.target]).predict(held)
    bounds = data.Schema((), classes=tuple(task.classes)) if declared else None
    classifier = estimators.DPLogisticRegression(preprocessing="private", bounds=bounds, **given)
    try:
        classifier.fit(train, task.train[task.target])
    except ValueError as error:  # the frame is the same at every ε: only classes can be missing
        raise Hidden(str(error)) from error
    if len(classifier.classes_) < 2:
        raise Hidden("a constant model")
    return task.arrange(classifier.predict_proba(held), classifier.classes_)


def dpjax_all_declared(task: Task) -> np.ndarray:
    """The default of the estimators, told all that diffprivlib is told: nothing is looked for.

    Given: ranges, categories and classes, of a regression the range of the target.
    """
    from dpjax import data, estimators

    train, held = task.inputs
    columns = tuple(
        data.Column(name, range=task.ranges[name])
        if name in task.ranges
        else data.Column(name, "category", categories=tuple(task.categories[name]))
        for name in train.columns
    )
    given = {"epsilon": task.epsilon, "delta": task.delta, "random_state": task.key}
    if task.regression:
        model = estimators.DPLinearRegression(
            preprocessing="private",
            bounds=data.Schema(columns),
            target_range=task.target_range,
            **given,
        )
        return model.fit(train, task.train[task.target]).predict(held)
    schema = data.Schema(columns, classes=tuple(task.classes))
    classifier = estimators.DPLogisticRegression(preprocessing="private", bounds=schema, **given)
    classifier.fit(train, task.train[task.target])
    return task.arrange(classifier.predict_proba(held), classifier.classes_)


def dpjax_command(task: Task, *options: str) -> np.ndarray:
    """`dpjax train` and `dpjax predict`, a process each. Given: the file, target, ε and δ.

    With further options of `dpjax train`, none in the benchmark of tables.
    """
    with tempfile.TemporaryDirectory() as folder:
        run, rows = pathlib.Path(folder) / "run", task.folder / "held.csv"
        command = [
            "train", "--data", str(task.folder / "train.csv"), "--target", task.target,
            "--test", str(rows), "--epsilon", str(task.epsilon), "--delta", str(task.delta),
            "--seed", str(task.key), "--out", str(run), *options,
        ]  # fmt: skip
        _dpjax([*command, *(["--task", "regression"] if task.regression else [])])
        out = pathlib.Path(folder) / "predictions.csv"
        _dpjax(["predict", str(run), "--data", str(rows), "--out", str(out)])
        found = pd.read_csv(out)
    if task.regression:
        return found.iloc[:, -1].to_numpy(np.float64)
    known = {name: f"probability of {name}" for name in task.classes}
    known = {name: column for name, column in known.items() if column in found}
    if len(known) < 2:
        raise Hidden("a constant model")
    return task.arrange(found[list(known.values())].to_numpy(np.float64), list(known))


def _dpjax(words: list[str]) -> None:
    """Run the command, and say what it said where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "dpjax", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout).strip()[-500:])


# --- peers ---------------------------------------------------------------------------------------


def dp_ebm(task: Task, *, declared: bool) -> np.ndarray:
    """interpret's DP-EBM, by its defaults.

    Given: which columns hold numbers; with `declared` their public ranges, else it takes them off
    the records, which its ε does not cover. It always reads the classes off the records.
    """
    from interpret.privacy import DPExplainableBoostingClassifier as Classifier
    from interpret.privacy import DPExplainableBoostingRegressor as Regressor

    train, held = task.inputs
    if not task.regression and len(task.classes) > 2:
        raise NotImplementedError("two classes only")
    given = {
        "feature_types": ["continuous" if name in task.ranges else "nominal" for name in train],
        "privacy_bounds": dict(task.ranges) if declared else None,
        "epsilon": task.epsilon,
        "delta": task.delta,
        "random_state": task.key,
        "n_jobs": 1,
    }
    if task.regression:
        low, high = task.target_range or (0.0, 0.0)
        model = Regressor(privacy_target_min=low, privacy_target_max=high, **given)
        return model.fit(train, task.labels(task.train)).predict(held)
    classifier = Classifier(**given).fit(train, task.train[task.target].to_numpy(str))
    return task.arrange(classifier.predict_proba(held), classifier.classes_)


_LEAST_L2, _OF_NOISE = 1e-4, 0.07


def diffprivlib_linear(task: Task) -> np.ndarray:
    """diffprivlib's logistic regression (objective perturbation, pure ε), or linear regression.

    Given: ranges, categories and classes; rows of norm at most 1 by them. The weight of its
    regulariser is that which dpjax takes for objective perturbation at this ε: its own default
    is worse on all tables where both were tried (benchmarks/results/estimators.md).
    """
    from diffprivlib.models import LinearRegression, LogisticRegression

    train, held = as_unit_rows(task, task.train), as_unit_rows(task, task.held)
    labels, (n, width) = task.labels(task.train), train.shape
    if task.regression:
        widest = 1 / math.sqrt(len(task.inputs[0].columns))
        model = LinearRegression(
            epsilon=task.epsilon,
            bounds_X=(0.0, widest),
            bounds_y=task.target_range,
            random_state=task.key,
        )
        return np.clip(model.fit(train, labels).predict(held), *(task.target_range or (0.0, 0.0)))
    models = 1 if len(task.classes) == 2 else len(task.classes)
    l2 = float(np.clip(_OF_NOISE * 2 * (width + 1) * models / (task.epsilon * n), _LEAST_L2, 1.0))
    classifier = LogisticRegression(
        epsilon=task.epsilon, data_norm=1.0, C=1 / (l2 * n), max_iter=1_000, random_state=task.key
    ).fit(train, labels)
    named = [task.classes[number] for number in classifier.classes_]
    return task.arrange(classifier.predict_proba(held), named)


def diffprivlib_forest(task: Task) -> np.ndarray:
    """diffprivlib's random forest, by its defaults. Given: ranges, categories and classes."""
    from diffprivlib.models import RandomForestClassifier

    if task.regression:
        raise NotImplementedError("classes only")
    low, high = [], []
    for name in task.inputs[0].columns:
        ends = task.ranges.get(name, (-1.0, float(len(task.categories.get(name, ())))))
        low.append(ends[0])
        high.append(ends[1])
    classifier = RandomForestClassifier(
        epsilon=task.epsilon,
        bounds=(np.array(low), np.array(high)),
        classes=list(range(len(task.classes))),
        random_state=task.key,
    ).fit(np.nan_to_num(as_codes(task, task.train), nan=-1.0), task.labels(task.train))
    held = np.nan_to_num(as_codes(task, task.held), nan=-1.0)
    return task.arrange(classifier.predict_proba(held), task.classes)


_OF_BINS = 0.1  # the share of ε that finds the bins of numbers; the rest is for the marginals


def mst(task: Task) -> np.ndarray:
    """Boosted trees on a synthetic table of dpmm's MST, as large as the records, by its defaults.

    Given: ranges, categories and classes. Its bins of numbers take a tenth of ε.
    """
    from dpmm.pipelines import MSTPipeline

    train = task.train.copy()
    domain: dict[str, dict] = {
        name: {"lower": low, "upper": high} for name, (low, high) in task.ranges.items()
    }
    for name, (low, high) in task.ranges.items():
        train[name] = train[name].clip(low, high)
    listed = dict(task.categories)
    if task.target_range is None:
        listed[task.target] = task.classes
    else:
        domain[task.target] = dict(zip(("lower", "upper"), task.target_range, strict=True))
    domain |= {name: {"categories": values} for name, values in listed.items()}
    maker = MSTPipeline(
        epsilon=(1 - _OF_BINS) * task.epsilon,
        delta=task.delta,
        proc_epsilon=_OF_BINS * task.epsilon,
        n_jobs=1,
    )
    maker.fit(train, domain, random_state=task.key)
    made = maker.generate(n_records=len(train), random_state=task.key)
    return boosted_trees(task, made)


# --- without privacy -----------------------------------------------------------------------------

_LARGE_EPSILON = 1_000.0


def linear_without_privacy(task: Task) -> np.ndarray:
    """The linear model of dpjax's default without privacy.

    Its features are those of dpjax at ε = 1,000; scikit-learn fits the weights, with the
    regulariser that cross-validation prefers, by log-loss or of a number by squared error. A number
    is predicted within the range of the target, as dpjax does it.
    """
    from sklearn.linear_model import LogisticRegressionCV, RidgeCV

    from dpjax import data, estimators
    from dpjax.estimators.columns import encode_rows

    train, held = task.inputs
    given = {"epsilon": _LARGE_EPSILON, "delta": task.delta, "random_state": task.key}
    if task.regression:
        model = estimators.DPLinearRegression(
            preprocessing="private", target_range=task.target_range, **given
        )
        model.fit(train, task.train[task.target])
        features, others = encode_rows(model, train), encode_rows(model, held)
        ridge = RidgeCV(alphas=(1e-3, 1e-2, 0.1, 1.0, 10.0)).fit(features, task.labels(task.train))
        return np.clip(ridge.predict(others), *(task.target_range or (-math.inf, math.inf)))
    classifier = estimators.DPLogisticRegression(
        preprocessing="private",
        bounds=data.Schema((), classes=tuple(task.classes)),
        **given,
    )
    classifier.fit(train, task.train[task.target])
    features, others = encode_rows(classifier, train), encode_rows(classifier, held)
    plain = LogisticRegressionCV(
        Cs=(1.0, 10.0, 100.0, 1_000.0), cv=3, scoring="neg_log_loss", max_iter=1_000
    ).fit(features, task.labels(task.train))
    return task.arrange(plain.predict_proba(others), [task.classes[c] for c in plain.classes_])


def trees_without_privacy(task: Task) -> np.ndarray:
    """scikit-learn's boosted trees on the records themselves."""
    return boosted_trees(task, task.train)


# --- the list, and a run -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to learn a table, and which library has to be there."""

    name: str
    run: Callable[[Task], np.ndarray]
    library: str
    private: bool = True


METHODS = {
    method.name: method
    for method in (
        Method("dpjax", functools.partial(dpjax, declared=False), "dpjax"),
        Method("dpjax, classes declared", functools.partial(dpjax, declared=True), "dpjax"),
        Method("dpjax, all declared", dpjax_all_declared, "dpjax"),
        Method("dpjax train", dpjax_command, "dpjax"),
        Method("DP-EBM, ranges declared", functools.partial(dp_ebm, declared=True), "interpret"),
        Method("DP-EBM, ranges read off", functools.partial(dp_ebm, declared=False), "interpret"),
        Method("diffprivlib, linear", diffprivlib_linear, "diffprivlib"),
        Method("diffprivlib, forest", diffprivlib_forest, "diffprivlib"),
        Method("MST, then trees", mst, "dpmm"),
        Method("linear, no privacy", linear_without_privacy, "dpjax", private=False),
        Method("trees, no privacy", trees_without_privacy, "dpjax", private=False),
    )
}


class Outcome(NamedTuple):
    """What came of a cell."""

    scores: Scores
    seconds: float  # of the processor, in this process and those that it started
    hidden: str = ""  # why no model was released; the scores are then those of equal chances
    failed: str = ""  # what the library said where it gave up; no scores
    cut_off: bool = False  # the limit came before the end; no scores


class OverTime(Exception):
    """A cell took longer than it may."""


def _stop(number: int, frame: types.FrameType | None) -> None:
    raise OverTime


def processor_seconds() -> float:
    """Of this process and of its children that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def run_cell(method: Method, task: Task, limit: float) -> Outcome:
    """The scores of one cell; a library that gives up is part of the result."""
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, limit)
    start, nothing, hidden, failed = processor_seconds(), Scores(), "", ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = method.run(task)
        signal.setitimer(signal.ITIMER_PROF, 0)
        scores = score(task, found)
    except OverTime:
        return Outcome(nothing, limit, cut_off=True)
    except Hidden as error:
        scores, hidden = score_nothing(task), str(error)
    except Exception as error:
        scores, failed = nothing, f"{type(error).__name__}: {error}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return Outcome(scores, processor_seconds() - start, hidden, failed)


def run_cells(
    method: Method, folder: pathlib.Path, cells: Iterable[tuple[float | None, int]], limit: float
) -> Iterator[dict[str, object]]:
    """What came of each cell (ε or None, key) of a table, one after the other."""
    tasks: dict[int, Task] = {}
    for epsilon, key in cells:
        if key not in tasks:
            tasks = {key: read_task(folder / str(key))}
        budget = math.inf if epsilon is None else epsilon
        found = run_cell(method, dataclasses.replace(tasks[key], epsilon=budget, key=key), limit)
        said = found._asdict() | {"scores": found.scores._asdict()}
        yield {"epsilon": epsilon, "key": key} | said
        if found.cut_off:  # the other cells of the table would take as long
            break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--limit", type=float, default=600.0, help="processor seconds a cell")
    limit = parser.parse_args().limit
    for line in sys.stdin:
        asked = json.loads(line)
        name = {"table": asked["table"], "method": asked["method"]}
        method, folder = METHODS[asked["method"]], pathlib.Path(asked["folder"])
        for found in run_cells(method, folder, asked["cells"], limit):
            print(json.dumps(name | found), flush=True)
        print(json.dumps({"done": asked["method"]}), flush=True)


if __name__ == "__main__":
    main()
