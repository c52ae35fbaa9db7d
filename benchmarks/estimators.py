"""The scikit-learn estimators beside diffprivlib: `python -m benchmarks.estimators --data FOLDER`.

Adult and Bank: the published training rows, a fifth held out. Ranges, categories and classes are
those of the whole table, declared to both sides. `DPLogisticRegression` fits the data frame and
encodes it; diffprivlib 0.6 cannot, and is given the encoded matrix, whose rows have norm at most 1
(`data_norm=1`). It runs in its own interpreter (`--diffprivlib PYTHON`), because it needs an older
scikit-learn. Its guarantee is pure ε under replace-one; `DPLogisticRegression` is measured with
that very guarantee, and with its defaults at δ = 1e-6. The regulariser decides what objective
perturbation loses to its noise: diffprivlib is measured at its default, C = 1, which is l2 = 1/n,
and at the one that dpjax takes for the budget.

Seconds are processor time of `fit`: the median, and the first with its compilation. Results go to
benchmarks/results.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator

import jax
import numpy as np
import pandas as pd

import dpjax
from dpjax import data, estimators

RESULTS = pathlib.Path(__file__).parent / "results"
EPSILONS = (0.1, 1.0)
_PURE = {"delta": 0.0, "adjacency": "replace-one", "solver": "objective_perturbation"}
OURS = {
    "DPLogisticRegression, pure ε": (estimators.DPLogisticRegression, _PURE),
    "DPLogisticRegression, δ = 1e-6, replace-one": (
        estimators.DPLogisticRegression,
        {"delta": 1e-6, "adjacency": "replace-one"},
    ),
    "DPLogisticRegression, δ = 1e-6": (estimators.DPLogisticRegression, {"delta": 1e-6}),
    "DPLinearSVC, δ = 1e-6": (estimators.DPLinearSVC, {"delta": 1e-6}),
    "DPSGDClassifier, δ = 1e-6": (estimators.DPSGDClassifier, {"delta": 1e-6}),
}
_PEER = """
import sys, time, warnings
import numpy as np
from diffprivlib.models import LogisticRegression
warnings.simplefilter("ignore")
d = np.load(sys.argv[1])
for seed in range(int(sys.argv[2])):
    model = LogisticRegression(epsilon=float(sys.argv[3]), data_norm=1.0, random_state=seed,
                               max_iter=1000, C=float(sys.argv[4]))
    start = time.process_time()
    model.fit(d["x"], d["y"])
    print(time.process_time() - start, model.score(d["tx"], d["ty"]))
"""


def peers(epsilon: float, schema, train) -> list[tuple[str, float]]:
    """Names and l2 of diffprivlib's settings: its default, C = 1, and the one that dpjax takes."""
    name = "diffprivlib LogisticRegression, pure ε"
    model = estimators.DPLogisticRegression(epsilon=epsilon, bounds=schema, **_PURE)
    l2 = model.fit(train.drop(columns=schema.target), train[schema.target]).l2_
    return [(name, 1 / len(train)), (f"{name}, dpjax's l2 = {l2:.2g}", l2)]


Fits = list[tuple[float, float]]  # seconds and accuracy


def parts(table: data.Table) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training rows, and the fifth that is held out."""
    order = np.random.default_rng(0).permutation(len(table.train))
    cut = len(order) // 5
    train, test = table.train.iloc[order[cut:]], table.train.iloc[order[:cut]]
    return train.reset_index(drop=True), test.reset_index(drop=True)


def ours(estimator, settings, epsilon: float, fits: int, schema, train, test) -> Iterator:
    """Seconds and accuracy of fits from the data frame."""
    inputs = [part.drop(columns=schema.target) for part in (train, test)]
    truths = [part[schema.target] for part in (train, test)]
    for seed in range(fits):
        model = estimator(epsilon=epsilon, bounds=schema, random_state=seed, **settings)
        start = time.process_time()
        model.fit(inputs[0], truths[0])
        yield time.process_time() - start, model.score(inputs[1], truths[1])


def theirs(python: str, epsilon: float, fits: int, l2: float, train, test) -> Fits:
    """The same of diffprivlib, from the encoded matrix; its C is 1/(n·l2)."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "rows.npz"
        np.savez(file, x=train.features, y=train.labels, tx=test.features, ty=test.labels)
        strength = 1 / (len(train) * l2)
        command = [python, "-c", _PEER, str(file), str(fits), str(epsilon), str(strength)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [(float(a), float(b)) for a, b in map(str.split, done.stdout.strip().splitlines())]


def row(name: str, epsilon: float, fits: Fits) -> str:
    seconds, scores = zip(*fits, strict=True)
    line = (
        f"| {name} | {epsilon:g} | {100 * np.mean(scores):.2f} ± {100 * np.std(scores):.2f} | "
        f"{statistics.median(seconds):.2f} | {seconds[0]:.2f} |"
    )
    print(line, flush=True)
    return line


def table_of(name: str, folder: str, fits: int, python: str | None) -> list[str]:
    from sklearn.linear_model import LogisticRegression

    table = data.load_table(name, folder)
    schema, _ = data.complete_schema(table.train, table.target)
    train, test = parts(table)
    encoded = [data.encode(part, schema) for part in (train, test)]
    plain = LogisticRegression(C=1e3, max_iter=1000).fit(encoded[0].features, encoded[0].labels)
    reached = plain.score(encoded[1].features, encoded[1].labels)
    share = float(np.mean(encoded[1].labels))
    lines = [
        "",
        f"## {name.capitalize()}, {len(train):,} records, {encoded[0].features.shape[1]} features",
        "",
        f"Larger class {100 * max(share, 1 - share):.2f}, without privacy {100 * reached:.2f} "
        f"(scikit-learn); held-out accuracy in %, mean ± standard deviation of {fits} fits.",
        "",
        "| estimator | ε | accuracy | seconds a fit | first fit |",
        "|---|---:|---:|---:|---:|",
    ]
    for epsilon in EPSILONS:
        if python is not None:
            for label, l2 in peers(epsilon, schema, train):
                found = theirs(python, epsilon, fits, l2, *encoded)
                lines.append(row(label, epsilon, found))
        for label, (estimator, settings) in OURS.items():
            jax.clear_caches()
            found = list(ours(estimator, settings, epsilon, fits, schema, train, test))
            lines.append(row(label, epsilon, found))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder that holds adult/, bank/")
    parser.add_argument("--fits", type=int, default=10)
    parser.add_argument("--diffprivlib", help="python of an environment that has diffprivlib")
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    lines = [
        "# The estimators beside diffprivlib",
        "",
        f"dpjax {dpjax.__version__}, jax {jax.__version__}, cpu. Seconds are processor time of "
        "`fit`; dpjax's include the encoding of the frame, which diffprivlib is given encoded.",
    ]
    if arguments.diffprivlib is None:
        lines += ["", "diffprivlib: not measured (give its interpreter by --diffprivlib)."]
    for name in ("adult", "bank"):
        lines += table_of(name, arguments.data, arguments.fits, arguments.diffprivlib)
    (RESULTS / "estimators.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
