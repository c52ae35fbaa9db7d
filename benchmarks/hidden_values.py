"""Values that noise hides, with buckets and without: `python -m benchmarks.hidden_values`.

    python -m benchmarks.hidden_values --data FOLDER [--keys 3] [--tables TABLE …] [--epsilon 1 …]

Tables of `benchmarks.table_data` by the default of the estimators, told nothing: as it is, with
hidden values encoded as zeros, and told all categories. How many buckets there are was chosen on
"30 categories, 20,000" (`docs/decisions/private-tables.md`). Two tables are planted for and against
them: of five columns all values are hidden, twenty categories that say the class, or names, which
say nothing. Area under the curve of records held out, a mean over keys with its standard error;
results go to benchmarks/results.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
import tempfile
import warnings
from unittest import mock

import numpy as np
import pandas as pd
from scipy.special import expit

from benchmarks.private_tables import RESULTS
from benchmarks.table_data import MOST_HELD_OUT, TABLES, Parts, Table, two_parts
from benchmarks.table_methods import dpjax, dpjax_all_declared, read_task, score
from benchmarks.tables import show_scores
from dpjax.data import buckets


def draw_hidden(folder: pathlib.Path, key: int, *, size: int, names: bool) -> Parts:
    """Five columns of names, or of twenty categories with effects, and a number with one."""
    effects = np.random.default_rng(20).normal(scale=0.8, size=(5, 20))
    draws, count = np.random.default_rng([key, 20]), size + MOST_HELD_OUT
    frame = pd.DataFrame({"u": draws.uniform(-1.0, 1.0, count).round(4)})
    odds = 2 * frame["u"].to_numpy()
    for column, effect in enumerate(effects):
        codes = draws.permutation(count) if names else draws.integers(20, size=count)
        frame[f"c{column}"] = np.char.add("k", codes.astype(str))
        odds = odds if names else odds + effect[codes]
    frame["y"] = np.where(draws.random(count) < expit(odds), "yes", "no")
    return two_parts(frame, size, "y", {"u": (-1.0, 1.0)})


PLANTED = [
    Table(
        f"5 × {'names' if names else '20 categories'}, {size:,}",
        functools.partial(draw_hidden, size=size, names=names),
    )
    for size in (1_000, 5_000)
    for names in (False, True)
]
USUAL = ("30 categories, 20,000", "Adult", "kddcup99, 10,000 rows", *(one.name for one in PLANTED))
_MOST_DECLARED = 1_000  # values of a column: of names nobody could list them


def measure(folder: pathlib.Path, table: Table, epsilon: float, keys: int) -> str:
    """A line of the result."""
    found: list[list[float]] = [[], [], []]
    for key in range(keys):
        with tempfile.TemporaryDirectory() as place:
            table.draw(folder, key).write(pathlib.Path(place))
            task = read_task(pathlib.Path(place))
        task = dataclasses.replace(task, epsilon=epsilon, key=key)
        with mock.patch.object(buckets, "choose_count", return_value=0):
            found[0].append(score(task, dpjax(task, declared=False)).area)
        found[1].append(score(task, dpjax(task, declared=False)).area)
        if max(map(len, task.categories.values())) <= _MOST_DECLARED:
            found[2].append(score(task, dpjax_all_declared(task)).area)
    shown = " | ".join(show_scores(areas) if areas else "–" for areas in found)
    return f"| {table.name} | {epsilon:g} | {keys} | {shown} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--tables", nargs="+", default=USUAL, metavar="TABLE")
    parser.add_argument("--epsilon", nargs="+", type=float, default=(0.25, 0.5, 1.0))
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS / "hidden_values.md")
    given = parser.parse_args()
    known = {table.name: table for table in (*TABLES, *PLANTED)}
    lines = ["# Values that noise hides", "", "Area under the curve, told nothing or all.", ""]
    lines += ["| table | ε | keys | hidden values as zeros | in buckets | all declared |"]
    lines += ["|---|---:|---:|---:|---:|---:|"]
    for name in given.tables:
        for epsilon in given.epsilon:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that records are few for so many columns
                lines.append(measure(given.data, known[name], epsilon, given.keys))
            print(lines[-1], flush=True)
            given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
