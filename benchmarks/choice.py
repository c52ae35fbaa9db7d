"""A linear model, a network, or a choice of the two: `python -m benchmarks.choice --data FOLDER`.

`dpjax train` by its defaults, with `--model mlp` and with `--model auto`, on tables of
`benchmarks.table_data`, and on two simulated ones of which sums over columns tell nothing, or not
all: the classes are declared, all else is released within ε. A fifth of the records is held out by
the command; the figures are those of further records. The share of the steps that a trial takes,
and from which n·ε a column on one is made, were chosen on the tables marked so, and by a look at
both models on Bank and the clothes at ε = 4; the others tell what that is worth. Where nothing is
tried, `auto` is the linear model to the bit, and is not run.

Cells that were measured are kept in `--cache FOLDER`; every run writes the report from all of them.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import statistics
import tempfile
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import expit

from benchmarks import table_data
from benchmarks.private_tables import RESULTS
from benchmarks.table_data import MOST_HELD_OUT, Parts, Table
from benchmarks.table_methods import read_task, score_chances
from dpjax.cli import choice

MODELS = ("linear", "mlp", "auto")
EPSILONS, KEYS = (0.25, 1.0, 4.0), (0, 1)
_HELD_OUT = 0.2  # what the command holds out of the records that it is given


def _simulate(size: int, key: int, columns: int, weight: float, pairs: Sequence[int]) -> Parts:
    """Uniform numbers; the log-odds are products of pairs, and a sum of the first three columns."""
    draws = np.random.default_rng([key, 5])
    x = draws.uniform(-1.0, 1.0, (size + MOST_HELD_OUT, columns)).round(4)
    odds = 8.0 * sum(x[:, one] * x[:, one + 1] for one in pairs)
    odds = odds + weight * (x[:, :3] * np.array([1.0, -1.0, 1.0][: min(columns, 3)])).sum(axis=1)
    frame = pd.DataFrame(x, columns=[f"x{number}" for number in range(columns)])
    frame["y"] = np.where(draws.random(len(frame)) < expit(odds), "yes", "no")
    ranges = {f"x{number}": (-1.0, 1.0) for number in range(columns)}
    public = table_data.describe(frame, "y", ranges)
    return Parts(frame.iloc[:size], frame.iloc[size:], public)


def product(folder: pathlib.Path, key: int, size: int = 10_000) -> Parts:
    """A pure interaction: the log-odds are eight times the product of two numbers."""
    return _simulate(size, key, 2, 0.0, (0,))


def products_and_sums(folder: pathlib.Path, key: int, size: int = 20_000) -> Parts:
    """Ten numbers, three of which add up, and two products of others."""
    return _simulate(size, key, 10, 1.5, (3, 5))


CHOSEN_ON: Sequence[Table] = (
    *(
        one
        for one in table_data.TABLES
        if one.name in ("Adult, 2,000 rows", "swedish-motor, 1,500")
    ),
    Table("2 % positive, 15,000", table_data.rare),
    *(
        Table(f"a product, {size:,}", functools.partial(product, size=size))
        for size in (2_000, 10_000)
    ),
    Table("products and sums, 20,000", products_and_sums),
)
OTHERS: Sequence[Table] = tuple(
    one
    for one in table_data.TABLES
    if one.name
    in (
        *("Bank", "Adult", "kddcup99, 10,000 rows", "sines, 20,000", "clothes, 49 columns"),
        *("30 categories, 20,000", "Adult, marriage (3 classes)"),
    )
)


def run_command(folder: pathlib.Path, model: str, epsilon: float, key: int) -> dict[str, object]:
    """Train and predict by the commands, and score the further records."""
    from typer.testing import CliRunner

    from dpjax.cli import app

    def dpjax(*words: object) -> None:
        done = CliRunner().invoke(app, [str(word) for word in words])
        if done.exit_code:
            raise RuntimeError(done.output[-500:])

    task = read_task(folder)
    with tempfile.TemporaryDirectory() as name:
        out, predicted = pathlib.Path(name) / "run", pathlib.Path(name) / "predictions.csv"
        dpjax(
            "train", "--data", folder / "train.csv", "--target", task.target, "--epsilon", epsilon,
            "--delta", task.delta, "--classes", ",".join(task.classes), "--seed", key, "--out", out,
            *(() if model == "linear" else ("--model", model)),
        )  # fmt: skip
        dpjax("predict", out, "--data", folder / "held.csv", "--out", predicted)
        declared = json.loads((out / "certificate.json").read_text())["declared"]
        found = pd.read_csv(predicted)
    named = [f"probability of {one}" for one in task.classes]
    chances = found[named].to_numpy(np.float64)
    scores = score_chances(task.labels(task.held), chances)
    return {**scores._asdict(), "model": declared["model"]}


class Cells:
    """What was measured, a line of JSON each."""

    def __init__(self, folder: pathlib.Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.file = folder, folder / "choice.jsonl"
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.known = {self._name(one): one for one in map(json.loads, lines)}

    @staticmethod
    def _name(cell: dict) -> tuple:
        return cell["table"], cell["ask"], cell["epsilon"], cell["key"]

    def add(self, cell: dict) -> None:
        """Keep a cell."""
        self.known[self._name(cell)] = cell
        with self.file.open("a") as file:
            file.write(json.dumps(cell) + "\n")


def measure(
    cells: Cells, data: pathlib.Path, table: Table, models: Sequence[str], epsilon: float, key: int
) -> None:
    """What is not known yet of a table at a budget and a key."""
    folder = cells.folder / table.slug / str(key)
    if not (folder / "public.json").exists():
        table.draw(data, key).write(folder)
    task = read_task(folder)
    records, columns = round((1 - _HELD_OUT) * len(task.train)), task.train.shape[1] - 1
    tried = choice.is_worth_a_trial(records, epsilon, columns)
    for ask in models:
        if (table.name, ask, epsilon, key) in cells.known or (ask == "auto" and not tried):
            continue
        found = run_command(folder, ask, epsilon, key)
        own = {"table": table.name, "ask": ask, "epsilon": epsilon, "key": key}
        cells.add(own | {"columns": columns, "records": records, "tried": tried} | found)
        print(cells.known[table.name, ask, epsilon, key], flush=True)


def report(cells: Cells) -> list[str]:
    """A line for each table and budget."""
    names = "table", "records × ε, a column", "ε", "linear", "network", "auto", "auto took"
    lines = [f"| {' | '.join(names)} |", "|---|---:|---:|---:|---:|---:|---|"]
    for table in (*CHOSEN_ON, *OTHERS):
        budgets = sorted({name[2] for name in cells.known if name[0] == table.name})
        for epsilon in budgets:
            found = {
                ask: [
                    one
                    for name, one in cells.known.items()
                    if name[:3] == (table.name, ask, epsilon)
                ]
                for ask in MODELS
            }
            if not found["linear"]:
                continue
            first = found["linear"][0]
            chosen = " (chosen on it)" if table in CHOSEN_ON else ""
            size = first["records"] * epsilon / first["columns"]
            shown = [f"{table.name}{chosen}", f"{size:,.0f}", f"{epsilon:g}"]
            shown += [_show(found[ask]) for ask in MODELS[:2]]
            if choice.is_worth_a_trial(first["records"], epsilon, first["columns"]):
                networks = sum(one["model"] == "mlp" for one in found["auto"])
                took = f"a network in {networks} of {len(found['auto'])}" if found["auto"] else ""
                shown += [_show(found["auto"]), took]
            else:
                shown += [_show(found["linear"]), "linear, nothing tried"]
            lines.append(f"| {' | '.join(shown)} |")
    return lines


def _show(cells: list[dict]) -> str:
    """Mean area and log-loss of the keys."""
    if not cells:
        return ""
    means = [statistics.fmean(cell[name] for cell in cells) for name in ("area", "log_loss")]
    return ", ".join(f"{mean:.3f}".removeprefix("0") for mean in means)


def _count_keys(cells: Cells) -> str:
    """How many keys the figures are the mean of, in words."""
    keys = len({name[3] for name in cells.known})
    return "one key" if keys == 1 else f"the mean over up to {keys} keys"


def main() -> None:
    known = {table.name: table for table in (*CHOSEN_ON, *OTHERS)}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    cache = pathlib.Path(tempfile.gettempdir()) / "dpjax-choice"
    parser.add_argument("--cache", type=pathlib.Path, default=cache)
    parser.add_argument("--tables", nargs="+", choices=known, default=[*known], metavar="TABLE")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--epsilon", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--keys", nargs="+", type=int, default=KEYS)
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS / "choice.md")
    asked = parser.parse_args()
    cells = Cells(asked.cache)
    for key in asked.keys:
        for epsilon in asked.epsilon:
            for name in asked.tables:
                measure(cells, asked.data, known[name], asked.models, epsilon, key)
                head = ["# A linear model, a network, or a choice of the two", ""]
                head += [f"Area under the curve and log-loss; {_count_keys(cells)}.", ""]
                asked.out.write_text("\n".join([*head, *report(cells)]) + "\n")


if __name__ == "__main__":
    main()
