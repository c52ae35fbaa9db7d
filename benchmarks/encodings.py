"""How numbers become features: `python -m benchmarks.encodings --data FOLDER`.

Tables of `benchmarks.table_data`, their classes declared and all else released with noise within ε,
and a linear model by the rule of `dpjax train` on them, by each way to encode numbers, at δ = 1e-5
under add/remove. Areas under the curve of records held out: a mean over keys, each with records of
its own. The weight of the line in "bins-and-line" was chosen on the first four tables, none of it
on the others. Results go to benchmarks/results, where those of tables that are not asked for stay.
"""

from __future__ import annotations

import argparse
import pathlib

import numpy as np

from benchmarks import private_tables
from benchmarks.table_data import TABLES

EPSILONS = (0.25, 1.0, 4.0)
ENCODINGS = ("tail-bins", "asinh", "bins-and-line")
CHOSEN_ON = (
    "Adult, 500 rows",
    "Adult, 2,000 rows",
    "swedish-motor, 1,500",
    "2 % positive, 15,000",
)
OTHERS = ("Bank", "Adult", "kddcup99, 10,000 rows", "sines, 20,000")


def measure(folder: pathlib.Path, name: str, keys: int) -> str:
    """A line of the result: of each encoding the areas by ε, in %."""
    (table,) = [one for one in TABLES if one.name == name]
    found = np.zeros((len(ENCODINGS), len(EPSILONS), keys))
    for key in range(keys):
        parts = table.draw(folder, key)
        rows = parts.train, parts.held
        classes = tuple(parts.public.classes)
        for row, encoding in enumerate(ENCODINGS):
            for column, epsilon in enumerate(EPSILONS):
                _, found[row, column, key] = private_tables.one_run(
                    rows, None, parts.public.target, epsilon, encoding, key, classes=classes
                )
    shown = [" · ".join(f"{area:.1f}" for area in areas) for areas in found.mean(axis=2)]
    chosen = "yes" if name in CHOSEN_ON else "no"
    return f"| {' | '.join([name, chosen, str(keys), *shown])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--keys", type=int, default=2)
    parser.add_argument("--tables", nargs="+", choices=(*CHOSEN_ON, *OTHERS), metavar="TABLE")
    parser.add_argument("--out", type=pathlib.Path, default=private_tables.RESULTS / "encodings.md")
    arguments = parser.parse_args()
    known = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in known}
    budgets = " · ".join(f"{epsilon:g}" for epsilon in EPSILONS)
    columns = ["table", "chosen on it", "keys", *(f"{name}, ε = {budgets}" for name in ENCODINGS)]
    head = ["# Encodings of numbers: area under the curve, in %", "", "Classes declared.", ""]
    head += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name in arguments.tables or (*CHOSEN_ON, *OTHERS):
        rows[name] = measure(arguments.data, name, arguments.keys)
        print(rows[name], flush=True)
        lines = [rows[one] for one in (*CHOSEN_ON, *OTHERS) if one in rows]
        arguments.out.write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    main()
