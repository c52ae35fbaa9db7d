"""Tables without a schema: `python -m benchmarks.private_tables --data FOLDER`.

Adult (its own test file) and Bank (a fifth held out by position), logistic regression by the
defaults of `dpjax train`, at δ = 1e-5 under add/remove. Beside the private
table, whose looks and training share the budget, the same training by a public schema (Adult:
experiments/adult) or, for Bank, which has none, by ranges and categories read off the rows, which
ε does not cover. Nothing was chosen on Bank. The mean and the standard deviation of accuracy, and
of the area under the curve, over keys 0, 1, …; results go to benchmarks/results.
"""

from __future__ import annotations

import argparse
import gzip
import io
import pathlib
import warnings
import zipfile

import jax
import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from dpjax import accounting as acc
from dpjax import data, training
from dpjax.training.tables import TableSettings

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DELTA = 1e-5
EPSILONS = (0.5, 1.0, 3.0)


def read_adult(folder: pathlib.Path) -> tuple[pd.DataFrame, pd.DataFrame, data.Schema]:
    """Training rows, test rows, cells as they are written; and the public schema."""
    schema = data.read_schema(ROOT / "experiments" / "adult" / "schema.toml")
    frames = []
    for name in ("adult.data.gz", "adult.test.gz"):
        with gzip.open(folder / "adult" / name, "rt") as file:
            lines = [line for line in file if line.strip() and not line.startswith("|")]
        frame = pd.read_csv(
            io.StringIO("".join(lines)), header=None, names=list(schema.names or ()),
            skipinitialspace=True, dtype=str, keep_default_na=False,
        )  # fmt: skip
        frames.append(frame.assign(income=frame["income"].str.rstrip(".")))
    return *frames, schema


def read_bank(folder: pathlib.Path) -> tuple[pd.DataFrame, pd.DataFrame, None]:
    """Four fifths of the rows, the other fifth, and no schema."""
    content = zipfile.ZipFile(folder / "bank" / "bank.zip").read("bank-full.csv")
    frame = pd.read_csv(io.BytesIO(content), sep=";", dtype=str, keep_default_na=False)
    order, cut = np.random.default_rng(0).permutation(len(frame)), len(frame) // 5
    parts = [frame.iloc[rows].reset_index(drop=True) for rows in (order[cut:], order[:cut])]
    return *parts, None


def train(
    records: data.Dataset, held: data.Dataset, key: jax.Array, columns: int, **plan
) -> tuple[float, float]:
    """Held-out accuracy and area under the curve, in %, by the rule for tables."""
    made, width = TableSettings.choose(len(records), columns=columns), records.features.shape[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        plan = training.make_plan(len(records), delta=DELTA, **made.plan_settings, **plan)
    found = training.fit(
        made.loss(width), made.training_model(width).init(key), (records.features, records.labels),
        plan, optimizer=made.optimizer(plan.noise_multiplier), key=key, average=made.average,
    )  # fmt: skip
    params = made.release(found.average)
    chances = training.probabilities(made.model(width), params, held.features)[:, 1]
    right = np.mean((chances > 0.5) == (held.labels == 1))
    return 100 * float(right), 100 * float(roc_auc_score(held.labels == 1, chances))


def one_run(
    rows, schema, target: str, epsilon: float, encoding: str | None, seed: int, *,
    classes: tuple[str, ...] | None = None,
):  # fmt: skip
    """A run by a private table, or without an encoding by the schema or what the rows show."""
    frame, other = rows
    key = jax.random.key(seed)
    if encoding is None and schema is None:
        complete, _ = data.complete_schema(frame, target)
        return train(
            data.encode(frame, complete), data.encode(other, complete), key,
            len(complete.columns), epsilon=epsilon,
        )  # fmt: skip
    columns = [name for name in frame.columns if name != target]
    if encoding is not None:
        schema = data.Schema((), target=target, classes=classes)
    default = encoding in (None, "bins-and-line")
    table = data.PrivateTable.for_budget(
        columns, schema, len(frame), epsilon=epsilon, delta=DELTA,
        encoding=encoding or "bins-and-line", buckets=default,
        range_cells=default,
    )  # fmt: skip
    released = table.release(frame, key)
    found = released.classes or ()
    if len(found) < 2:  # a constant model; rows of a class that is not released count as errors
        return 100 * float(other[target].isin(found).mean()), 50.0
    records, held = (data.encode_released(part, released) for part in rows)
    settings = {"preceding": table.mechanism, "extra_delta": table.extra_delta}
    if table.mechanism == acc.Composed(()):  # all is declared: nothing is looked for
        settings = {}
    return train(records, held, key, len(columns), epsilon=epsilon, **settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--only", choices=("Adult", "Bank"))
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS / "private_tables.md")
    arguments = parser.parse_args()
    lines = ["# Tables without a schema", "", f"Keys 0 to {arguments.seeds - 1}.", ""]
    lines += ["| data | ε | encoding | accuracy, % | area under the curve, % |"]
    lines += ["|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for name, read, target in (("Adult", read_adult, "income"), ("Bank", read_bank, "y")):
        if arguments.only not in (None, name):
            continue
        *rows, schema = read(arguments.data)
        for epsilon in arguments.epsilons:
            for encoding in (None, "bins-and-line", "tail-bins", "asinh"):
                found = [
                    one_run(rows, schema, target, epsilon, encoding, seed)
                    for seed in range(arguments.seeds)
                ]
                shown = [
                    f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
                    for values in zip(*found, strict=True)
                ]
                label = encoding or (
                    "public schema" if schema else "read off the rows, not covered"
                )
                lines.append(f"| {name} | {epsilon:g} | {label} | {' | '.join(shown)} |")
                print(lines[-1], flush=True)
    arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
