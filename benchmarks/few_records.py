"""A private table of few records: `python -m benchmarks.few_records --data FOLDER`.

A few hundred records of tables of `benchmarks.table_data`, at a small ε: the noise of a look hides
whether a column holds numbers, where they lie, and every category. Classes are declared, which the
noise hides there too. Areas under the curve of the linear model of `dpjax train` by

* the table as it was released before 0.2: kinds by a rough look of their own, and numbers that do
  not stand out of the noise thought to lie nowhere;
* the table as it is released now: kinds by the first look, and the likeliest place of numbers that
  do not stand out;
* ranges and categories declared, with wide and round ranges: nothing is looked for.

The descent is that of `TableSettings` in NumPy, with the noise of its plan: a program would be
compiled for every number of features that is released. Scores are those of 4,000 records held out.
What is done now was chosen on the first tables, and none of it on the others. Mean ± standard error
over keys, each with records of its own, at δ = 1e-5 under add/remove. Cells that were measured are
kept in `--cache FOLDER`.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import tempfile
import warnings
from collections.abc import Sequence

import jax
import numpy as np
from scipy.special import expit

from benchmarks import private_tables, tables
from benchmarks.table_data import TABLES, Parts, Table
from benchmarks.table_methods import area
from dpjax import accounting as acc
from dpjax import data, training
from dpjax.training.tables import TableSettings

EPSILONS, KEYS = (0.25, 0.5, 1.0), (0, 1, 2, 3, 4)
RULES = ("before", "now", "declared")
_HELD_OUT = 4_000


def few(folder: pathlib.Path, key: int, whole: Table, size: int) -> Parts:
    """The first so many records to train on of a table, whose records are drawn by the key."""
    parts = whole.draw(folder, key)
    return Parts(parts.train.iloc[:size], parts.held, parts.public)


def _of(name: str, size: int) -> Table:
    (whole,) = [one for one in TABLES if one.name == name]
    return Table(f"{name.split(',')[0]}, {size}", functools.partial(few, whole=whole, size=size))


CHOSEN_ON: Sequence[Table] = (
    _of("Adult", 500),
    _of("Bank", 400),
    _of("swedish-motor, 1,500", 300),
    _of("kddcup99, 10,000 rows", 400),
)
OTHERS: Sequence[Table] = (
    _of("admission, 300 rows", 300),
    _of("Boston, 400 rows", 400),
    _of("clothes, 49 columns", 400),
    _of("sines, 20,000", 400),
)


def make_table(parts: Parts, epsilon: float, rule: str) -> data.PrivateTable:
    """The looks by one of the rules."""
    public = parts.public
    names = [name for name in parts.train.columns if name != public.target]
    known = ()
    if rule == "declared":
        known = tuple(
            data.Column(name, range=public.ranges[name])
            if name in public.ranges
            else data.Column(name, "category", categories=tuple(public.categories[name]))
            for name in names
        )
    schema = data.Schema(known, target=public.target, classes=tuple(public.classes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the records are few
        return data.PrivateTable.for_budget(
            names,
            schema,
            len(parts.train),
            epsilon=epsilon,
            delta=private_tables.DELTA,
            encoding="bins-and-line",
            rough_kinds=rule == "before",
            range_cells=True,
        )


@functools.cache
def find_noise(records: int, epsilon: float, looks: acc.Mechanism, spent: float) -> float:
    """The noise multiplier of the steps after the looks, which take so much of δ besides."""
    made = TableSettings.choose(records, columns=1)
    before = {} if looks == acc.Composed(()) else {"preceding": looks}
    extra = {"a value that one record alone holds is released": spent} if spent else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the records are few
        plan = training.make_plan(
            records, epsilon=epsilon, delta=private_tables.DELTA, extra_delta=extra,
            **made.plan_settings, **before,
        )  # fmt: skip
    return plan.noise_multiplier


def descend(
    features: np.ndarray, labels: np.ndarray, made: TableSettings, noise: float, seed: Sequence[int]
) -> np.ndarray:
    """Weights of the features by the rule: clipped sums of Poisson batches, their mean released."""
    draws, (records, width) = np.random.default_rng(seed), features.shape
    rows = np.concatenate([features, np.full((records, 1), made.bias_feature)], axis=1)
    weights, moving, total = (np.zeros(width + 1) for _ in range(3))
    norms, rate = np.linalg.norm(rows, axis=1), made.learning_rate(noise)
    first = made.steps - round(made.averaged * made.steps)
    for step in range(made.steps):
        batch = draws.random(records) < made.batch_size / records
        wrong = expit(rows[batch] @ weights) - labels[batch]
        # The norm of a record's gradient is that of its row times |p − y|.
        factors = np.minimum(1.0, made.clip_norm / np.maximum(np.abs(wrong) * norms[batch], 1e-12))
        added = draws.normal(scale=noise * made.clip_norm, size=width + 1)
        moving = made.momentum * moving + ((wrong * factors) @ rows[batch] + added)
        weights = weights - rate * moving / made.batch_size
        total += weights * (step >= first)
    return total[:-1] / (made.steps - first)


def measure(parts: Parts, epsilon: float, rule: str, key: int) -> float:
    """The area under the curve of one run."""
    table = make_table(parts, epsilon, rule)
    schema = table.release(parts.train, jax.random.key(key))
    shown = parts.train, parts.held.iloc[:_HELD_OUT]
    train, held = (data.encode_released(part, schema) for part in shown)
    spent = sum(table.extra_delta.values())
    noise = find_noise(len(train), epsilon, table.mechanism, spent)
    made = TableSettings.choose(len(train), columns=len(schema.columns))
    weights = descend(train.features.astype(np.float64), train.labels, made, noise, [key, 7])
    return area(held.labels == 1, held.features @ weights)


Cells = dict[tuple[str, float, str, int], float]


def report(cells: Cells) -> list[str]:
    """A line for each table and budget."""
    lines = ["# A private table of few records", "", "Area under the curve; classes declared.", ""]
    names = "table", "records × ε, a column", "ε", "before", "now", "now is", "all declared"
    lines += [f"| {' | '.join(names)} |", "|---|---:|---:|---:|---:|---|---:|"]
    columns = {"Adult": 14, "Bank": 16, "swedish-motor": 5, "kddcup99": 41}
    columns |= {"admission": 7, "Boston": 13, "clothes": 49, "sines": 10}
    for table in (*CHOSEN_ON, *OTHERS):
        name, size = table.name.split(", ")
        for epsilon in EPSILONS:
            found: dict[str, dict[int, float]] = {rule: {} for rule in RULES}
            for (of, budget, rule, key), score in cells.items():
                if (of, budget) == (table.name, epsilon):
                    found[rule][key] = score
            if not found["now"]:
                continue
            shown = {rule: tables.show(values.values()) for rule, values in found.items()}
            word = tables.judge(found["now"], found["before"]).word
            chosen = " (chosen on it)" if table in CHOSEN_ON else ""
            share = int(size) * epsilon / columns[name]
            lines.append(
                f"| {table.name}{chosen} | {share:.1f} | {epsilon:g} | {shown['before']} | "
                f"{shown['now']} | {word} | {shown['declared']} |"
            )
    return lines


def main() -> None:
    known = {table.name: table for table in (*CHOSEN_ON, *OTHERS)}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, default=tables.DATA)
    cache = pathlib.Path(tempfile.gettempdir()) / "dpjax-few-records.jsonl"
    parser.add_argument("--cache", type=pathlib.Path, default=cache)
    parser.add_argument("--tables", nargs="+", choices=known, default=[*known], metavar="TABLE")
    parser.add_argument("--keys", nargs="+", type=int, default=KEYS)
    parser.add_argument("--epsilon", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--out", type=pathlib.Path)
    asked = parser.parse_args()
    lines = asked.cache.read_text().splitlines() if asked.cache.exists() else []
    cells: Cells = {tuple(name): area for name, area in map(json.loads, lines)}
    for key in asked.keys:
        for name in asked.tables:
            parts = known[name].draw(asked.data, key)
            for epsilon in asked.epsilon:
                for rule in RULES:
                    cell = name, epsilon, rule, key
                    if cell in cells:
                        continue
                    cells[cell] = measure(parts, epsilon, rule, key)
                    with asked.cache.open("a") as file:
                        file.write(json.dumps([cell, cells[cell]]) + "\n")
        print("\n".join(report(cells)), flush=True)
    if asked.out:
        asked.out.write_text("\n".join(report(cells)) + "\n")


if __name__ == "__main__":
    main()
