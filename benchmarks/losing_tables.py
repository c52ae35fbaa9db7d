"""Tables made for the default to lose on: `python -m benchmarks.losing_tables`.

    python -m benchmarks.losing_tables [--interpret PYTHON] [--diffprivlib PYTHON] [--keys 0 1 2]

Simulated records of two classes, by the default of `DPLogisticRegression(preprocessing="private")`,
which is told nothing; the same with what docs/prepare-data.md says to do; and DP-EBM and
diffprivlib's forest, which are told ranges and classes, where PYTHON is an interpreter that has
the library. Area under the curve of 10,000 further records at δ = 1e-5 (or a tenth of 1/n), mean ±
standard error over keys. Cells that were measured are kept in `--cache FOLDER`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import pathlib
import statistics
import tempfile
from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.special import expit

from benchmarks import table_methods, tables
from benchmarks.private_tables import RESULTS
from benchmarks.table_data import MOST_HELD_OUT, Parts, Table, describe
from benchmarks.table_methods import Hidden, Method, Task

EPSILONS, KEYS = (1.0, 4.0), (0, 1, 2)
PEERS = {"DP-EBM, ranges declared": "interpret", "diffprivlib, forest": "diffprivlib"}


def _divide(frame: pd.DataFrame, size: int, ranges: dict[str, tuple[float, float]]) -> Parts:
    return Parts(frame.iloc[:size], frame.iloc[size:], describe(frame, "y", ranges))


def _answers(draws: np.random.Generator, odds: np.ndarray) -> np.ndarray:
    return np.where(draws.random(len(odds)) < expit(odds), "yes", "no")


def far(folder: pathlib.Path, key: int, size: int = 2_000) -> Parts:
    """Ten columns, narrow and far from 0, as years and time stamps are."""
    draws = np.random.default_rng([key, 21])
    x = draws.uniform(-1.0, 1.0, (size + MOST_HELD_OUT, 10))
    frame = pd.DataFrame((2_000 + 10 * x).round(2), columns=[f"t{n}" for n in range(10)])
    frame["y"] = _answers(draws, 1.5 * x[:, :5].sum(axis=1))
    return _divide(frame, size, {f"t{n}": (1_990.0, 2_010.0) for n in range(10)})


def copies(folder: pathlib.Path, key: int, size: int = 3_000) -> Parts:
    """A column, ten copies of it and five constants."""
    draws = np.random.default_rng([key, 22])
    x = draws.normal(size=size + MOST_HELD_OUT).round(3).clip(-5.0, 5.0)
    frame = pd.DataFrame({f"copy{n}": x for n in range(11)} | {f"one{n}": 1.0 for n in range(5)})
    frame["y"] = _answers(draws, 1.5 * x)
    ends = {f"copy{n}": (-5.0, 5.0) for n in range(11)} | {f"one{n}": (0.0, 1.0) for n in range(5)}
    return _divide(frame, size, ends)


def rare(folder: pathlib.Path, key: int, size: int = 50_000) -> Parts:
    """Three records in a thousand are positive."""
    draws = np.random.default_rng([key, 23])
    x = draws.normal(size=(size + MOST_HELD_OUT, 4)).round(3).clip(-5.0, 5.0)
    frame = pd.DataFrame(x, columns=[f"x{n}" for n in range(4)])
    frame["y"] = _answers(draws, 1.2 * x[:, 0] + 0.6 * x[:, 1] - 6.8)
    return _divide(frame, size, {f"x{n}": (-5.0, 5.0) for n in range(4)})


def few(folder: pathlib.Path, key: int, size: int = 100) -> Parts:
    """A hundred records with two columns."""
    draws = np.random.default_rng([key, 24])
    x = draws.normal(size=(size + MOST_HELD_OUT, 2)).round(3).clip(-5.0, 5.0)
    frame = pd.DataFrame(x, columns=["x0", "x1"])
    frame["y"] = _answers(draws, 3 * x[:, 0])
    return _divide(frame, size, {"x0": (-5.0, 5.0), "x1": (-5.0, 5.0)})


def product(folder: pathlib.Path, key: int, size: int = 10_000) -> Parts:
    """Two columns of which only the product counts."""
    draws = np.random.default_rng([key, 25])
    x = draws.uniform(-1.0, 1.0, (size + MOST_HELD_OUT, 2)).round(4)
    frame = pd.DataFrame(x, columns=["x0", "x1"])
    frame["y"] = _answers(draws, 8 * x[:, 0] * x[:, 1])
    return _divide(frame, size, {"x0": (-1.0, 1.0), "x1": (-1.0, 1.0)})


def weak(folder: pathlib.Path, key: int, size: int = 5_000) -> Parts:
    """Two columns of ten count, and two labels of five are wrong."""
    draws = np.random.default_rng([key, 26])
    x = draws.normal(size=(size + MOST_HELD_OUT, 10)).round(3).clip(-5.0, 5.0)
    frame = pd.DataFrame(x, columns=[f"x{n}" for n in range(10)])
    wrong = draws.random(len(frame)) < 0.4
    frame["y"] = np.where((x[:, 0] + x[:, 1] > 0) != wrong, "yes", "no")
    return _divide(frame, size, {f"x{n}": (-5.0, 5.0) for n in range(10)})


def slopes(folder: pathlib.Path, key: int, size: int = 3_000) -> Parts:
    """A number whose effect rises in two categories of three, and falls in the other."""
    draws = np.random.default_rng([key, 27])
    x = draws.uniform(-1.0, 1.0, (size + MOST_HELD_OUT, 2)).round(4)
    kind = draws.choice(["a", "b", "c"], len(x))
    frame = pd.DataFrame({"x": x[:, 0], "other": x[:, 1], "kind": kind})
    frame["y"] = _answers(draws, np.where(kind == "c", -4.0, 4.0) * x[:, 0] + x[:, 1])
    return _divide(frame, size, {"x": (-1.0, 1.0), "other": (-1.0, 1.0)})


def _fit(task: Task, model: object, train: pd.DataFrame, held: pd.DataFrame) -> np.ndarray:
    try:
        model.fit(train, task.train[task.target])
    except ValueError as error:
        raise Hidden(str(error)) from error
    return task.arrange(model.predict_proba(held), model.classes_)


def _given(task: Task) -> dict[str, object]:
    how = {"epsilon": task.epsilon, "delta": task.delta, "random_state": task.key}
    return {"preprocessing": "private", **how}


def declare_ranges(task: Task) -> np.ndarray:
    """The default, told the ranges and the classes."""
    from dpjax.data import Column, Schema
    from dpjax.estimators import DPLogisticRegression

    columns = tuple(Column(name, range=ends) for name, ends in task.ranges.items())
    schema = Schema(columns, classes=tuple(task.classes))
    return _fit(task, DPLogisticRegression(bounds=schema, **_given(task)), *task.inputs)


def declare_classes(task: Task) -> np.ndarray:
    """The default, told the classes."""
    return table_methods.dpjax(task, declared=True)


def leave_copies_out(task: Task) -> np.ndarray:
    """The default, of the one column that is no copy and no constant."""
    from dpjax.estimators import DPLogisticRegression

    train, held = (part[["copy0"]] for part in task.inputs)
    return _fit(task, DPLogisticRegression(**_given(task)), train, held)


def network(task: Task) -> np.ndarray:
    """The network of `--model mlp`."""
    from dpjax.estimators import DPSGDClassifier

    return _fit(task, DPSGDClassifier(**_given(task)), *task.inputs)


def lines_alone(task: Task) -> np.ndarray:
    """`dpjax train --encoding asinh`: one feature a number, and no cells."""
    return table_methods.dpjax_command(task, "--encoding", "asinh")


def a_slope_each(task: Task) -> np.ndarray:
    """The default, of a column of the number for each category, 0 in the others."""
    from dpjax.estimators import DPLogisticRegression

    def divide(frame: pd.DataFrame) -> pd.DataFrame:
        own = {f"x of {kind}": frame["x"] * (frame["kind"] == kind) for kind in ("a", "b", "c")}
        return frame.drop(columns="x").assign(**own)

    return _fit(task, DPLogisticRegression(**_given(task)), *map(divide, task.inputs))


@dataclasses.dataclass(frozen=True)
class Losing:
    """A table, and what the page says to do about it."""

    table: Table
    remedy: str
    run: Callable[[Task], np.ndarray]


LOSING = (
    Losing(Table("ten columns, narrow and far from 0, 2,000", far), "ranges", declare_ranges),
    Losing(Table("ten copies and five constants, 3,000", copies), "no copies", leave_copies_out),
    Losing(Table("0.3 % positive, 50,000", rare), "classes", declare_classes),
    Losing(Table("100 records", few), "classes", declare_classes),
    Losing(Table("a product of two columns, 10,000", product), "a network", network),
    Losing(Table("a weak signal in two columns of ten, 5,000", weak), "asinh", lines_alone),
    Losing(Table("a slope by category, 3,000", slopes), "a slope each", a_slope_each),
)


def measure(cache: tables.Cache, one: Losing, epsilon: float, key: int) -> None:
    """The default and the remedy in this process, where they are not known."""
    folder, known = cache.folder / "tables" / one.table.slug / str(key), cache.read()
    if not (folder / "public.json").exists():
        one.table.draw(pathlib.Path(), key).write(folder)
    task = dataclasses.replace(table_methods.read_task(folder), epsilon=epsilon, key=key)
    default = functools.partial(table_methods.dpjax, declared=False)
    for name, run in {"default": default, "remedy": one.run}.items():
        if tables.Cell(one.table.name, name, epsilon, key) not in known:
            found = table_methods.run_cell(Method(name, run, "dpjax"), task, 600.0)
            said = found._asdict() | {"scores": found.scores._asdict()}
            cell = {"table": one.table.name, "method": name, "epsilon": epsilon, "key": key}
            cache.add(json.dumps(cell | said))


def report(cache: tables.Cache) -> str:
    """The page of all that is known."""
    results = cache.read()
    lines = ["# Tables made for the default to lose on", "", "Area under the curve."]
    lines += ["", "| table | ε | the default | DP-EBM | the forest | with | the default so |"]
    lines += ["|---|---:|---:|---:|---:|---|---:|"]
    for one in LOSING:
        for epsilon in EPSILONS:
            cells = [_show(results, one.table.name, name, epsilon)
                     for name in ("default", *PEERS, "remedy")]  # fmt: skip
            if any(cells):
                shown = [one.table.name, f"{epsilon:g}", *cells[:-1], one.remedy, cells[-1]]
                lines.append(f"| {' | '.join(shown)} |")
    return "\n".join([*lines, ""])


def _show(results: tables.Results, table: str, name: str, epsilon: float) -> str:
    """Mean ± standard error; without a model the area of equal chances, and how often."""
    cells = [one for cell, one in results.items() if cell[:3] == (table, name, epsilon)]
    values = [one.scores.area for one in cells if not one.failed and not one.cut_off]
    if not values:
        return "gave up" if cells else ""
    hidden = sum(bool(one.hidden) for one in cells)
    if len(values) < 2:
        return f"{statistics.fmean(values):.3f} (one key)"
    return tables.show(values) + (f" (no model in {hidden})" if hidden else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cache = pathlib.Path(tempfile.gettempdir()) / "dpjax-losing-tables"
    parser.add_argument("--cache", type=pathlib.Path, default=cache)
    for library in PEERS.values():
        parser.add_argument(f"--{library}", metavar="PYTHON")
    parser.add_argument("--keys", nargs="+", type=int, default=KEYS)
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS / "losing_tables.md")
    asked = parser.parse_args()
    kept = tables.Cache(asked.cache)
    for key in asked.keys:
        for one in LOSING:
            for epsilon in EPSILONS:
                measure(kept, one, epsilon, key)
                print(report(kept), flush=True)
        listed = [one.table for one in LOSING]
        for peer, library in PEERS.items():
            if python := getattr(asked, library):
                groups = tables.list_groups(listed, [peer], EPSILONS, [key], kept.read())
                tables.run_groups(groups, python, kept, pathlib.Path(), 600.0)
        asked.out.write_text(report(kept))


if __name__ == "__main__":
    main()
