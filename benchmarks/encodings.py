"""How numbers become features: `python -m benchmarks.encodings --data FOLDER`.

Tables of `benchmarks.table_data`, their classes declared and all else released with noise within ε,
and a linear model by the rule of `dpjax train` on them, by each way to encode numbers, at δ = 1e-5
under add/remove. Areas under the curve of records held out: a mean over keys, each with records of
its own. The weight of the line in "bins-and-line" was chosen on the first four tables, none of it
on the others. Results go to benchmarks/results.
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
    return f"| {' | '.join([name, chosen, *shown])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--keys", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, default=private_tables.RESULTS / "encodings.md")
    arguments = parser.parse_args()
    budgets = " · ".join(f"{epsilon:g}" for epsilon in EPSILONS)
    head = ["table", "chosen on it", *ENCODINGS]
    lines = ["# Encodings of numbers: area under the curve, in %", ""]
    lines += [f"At ε = {budgets}, a mean over {arguments.keys} keys; classes declared.", ""]
    lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    print("\n".join(lines), flush=True)
    for name in (*CHOSEN_ON, *OTHERS):
        lines.append(measure(arguments.data, name, arguments.keys))
        print(lines[-1], flush=True)
    arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
