"""Training under correlated and fresh noise at equal ε, amplified and not, on two data sets.

    python -m benchmarks.correlated_training [mnist | adult]

Writes benchmarks/results/correlated_mnist.md (a linear model of 7,850 numbers) and
correlated_adult.md (a table of embeddings, one row for each value of the eight categorical columns,
summed, beside the numeric columns, and a hidden layer) from ../shared/data; says so where these are
absent. Ways and rates are compared on records held out of the training part; the test set is read
once, at the rate that was best there. SGD without momentum, four passes, clip norm 1, add/remove,
δ = 1e-5, the mean and the spread of three seeds.
"""

from __future__ import annotations

import gzip
import os
import pathlib
import sys
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import correlation, training
from experiments.images import load_mnist

RESULTS = pathlib.Path(__file__).parent / "results"
DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
BATCHES, PASSES, SEEDS = 50, 4, 3
EMBEDDED, HIDDEN = 8, 16
CATEGORIES = (1, 3, 5, 6, 7, 8, 9, 13)
# Column and a public scale: what adults may be expected to report.
NUMBERS = {0: 100.0, 4: 16.0, 10: 1e5, 11: 1e4, 12: 100.0}


class Task(NamedTuple):
    """Three parts (inputs, labels), the first parameters and a model of one record."""

    train: Any
    validation: Any
    test: Any
    params: Any
    logits: Any
    rates: tuple[float, ...]
    about: str


def mnist() -> Task | None:
    if not (DATA / "mnist").is_dir():
        return None
    images = load_mnist(DATA)
    flat = ((images.images.reshape(60_000, -1) + 1) / 2).astype(np.float32)
    test = ((images.test_images.reshape(10_000, -1) + 1) / 2).astype(np.float32)
    return Task(
        (flat[:50_000], images.labels[:50_000]),
        (flat[50_000:], images.labels[50_000:]),
        (test, images.test_labels),
        {"w": jnp.zeros((784, 10)), "b": jnp.zeros(10)},
        lambda params, x: x @ params["w"] + params["b"],
        (0.5, 2.0, 8.0, 32.0),
        "MNIST: a linear model of 7,850 numbers, 50,000 records, 10,000 for the choice of the rate",
    )


def adult() -> Task | None:
    folder = DATA / "adult"
    if not folder.is_dir():
        return None
    rows = {}
    for name in ("data", "test"):
        with gzip.open(folder / f"adult.{name}.gz", "rt") as stream:
            cells = [line.strip().rstrip(".").split(", ") for line in stream if "," in line]
        rows[name] = [row for row in cells if len(row) == 15]
    # The values of the columns are published beside the data (adult.names).
    levels = {
        column: {value: number for number, value in enumerate(sorted({r[column] for r in both}))}
        for both in [rows["data"] + rows["test"]]
        for column in CATEGORIES
    }
    begins = np.cumsum([0, *(len(levels[column]) for column in CATEGORIES)])

    def part(records):
        places = [[levels[c][r[c]] for c in CATEGORIES] for r in records]
        numbers = [[float(r[c]) / scale for c, scale in NUMBERS.items()] for r in records]
        labels = [int(">50K" in r[14]) for r in records]
        inputs = (np.int32(places) + np.int32(begins[:-1]), np.float32(numbers))
        return inputs, np.int32(labels)

    first, second = jax.random.split(jax.random.key(0))
    width = EMBEDDED + len(NUMBERS)
    params = {
        "embeddings": 0.1 * jax.random.normal(first, (int(begins[-1]), EMBEDDED)),
        "hidden": jax.random.normal(second, (width, HIDDEN)) / width**0.5,
        "bias": jnp.zeros(HIDDEN),
        "out": jnp.zeros((HIDDEN, 2)),
        "end": jnp.zeros(2),
    }

    def logits(params, x):
        places, numbers = x
        summed = jnp.sum(params["embeddings"][places], axis=-2)
        hidden = jnp.concatenate([summed, numbers], axis=-1) @ params["hidden"] + params["bias"]
        return jax.nn.relu(hidden) @ params["out"] + params["end"]

    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    return Task(
        part(rows["data"][:26_000]),
        part(rows["data"][26_000:]),
        part(rows["test"]),
        params,
        logits,
        (0.5, 2.0, 8.0, 32.0),
        f"Adult: {begins[-1]} embeddings of {EMBEDDED} numbers for eight categorical columns, "
        f"{size:,} numbers in all, 26,000 records, 6,561 for the choice of the rate",
    )


def ways() -> dict[str, dict]:
    """Arguments of `make_plan`, by what the table calls them."""
    work = correlation.Workload(PASSES * BATCHES)
    tuned = {"workload": work, "separation": BATCHES}
    cyclic = {
        "fixed order, fresh noise": correlation.identity(),
        f"fixed order, {BATCHES} bands of C": correlation.banded_toeplitz(BATCHES, **tuned),
        "fixed order, 8 bands of C⁻¹": correlation.banded_inverse(8, **tuned),
    }
    amplified = correlation.banded_toeplitz(4, workload=work)
    return {
        **{name: {"sampling": "cyclic", "correlation": c} for name, c in cyclic.items()},
        "Poisson, fresh noise (DP-SGD)": {"sampling": "poisson"},
        "Poisson groups in turn, 4 bands of C": {
            "sampling": "cyclic-poisson",
            "correlation": amplified,
        },
    }


def accuracies(task: Task, plan: training.Plan) -> tuple[np.ndarray, np.ndarray]:
    """Of every rate and seed, on the validation part and on the test set, in %."""

    def loss(params, example):
        found = task.logits(params, example[0])
        return optax.softmax_cross_entropy_with_integer_labels(found, example[1])

    def right(params, part):
        return 100 * jnp.mean(jnp.argmax(task.logits(params, part[0]), -1) == part[1])

    @jax.jit
    def run(rate, key, train, validation, test):
        step = training.training_step(loss, task.params, plan, optimizer=optax.sgd(rate))
        state = step.init(task.params)
        state = jax.lax.fori_loop(
            0, plan.steps, lambda _, state: step.update(state, train, key)[0], state
        )
        return right(state["params"], validation), right(state["params"], test)

    parts = [jax.tree.map(jnp.asarray, part) for part in (task.train, task.validation, task.test)]
    found = [
        [run(jnp.float32(rate), jax.random.key(seed), *parts) for seed in range(SEEDS)]
        for rate in task.rates
    ]
    both = np.asarray(found, np.float64)
    return both[..., 0], both[..., 1]


def table(task: Task) -> list[str]:
    records = len(task.train[1])
    batch = records // BATCHES
    lines = [
        "# Correlated noise in training",
        "",
        f"Written by `python -m benchmarks.correlated_training`. {task.about}. "
        f"{PASSES * BATCHES} steps, batches of {batch:,}, SGD at a constant rate of "
        f"{', '.join(f'{rate:g}' for rate in task.rates)}, chosen by the held-out records; clip "
        f"norm 1, add/remove, δ = 1e-5; mean and standard deviation of {SEEDS} seeds. Load of the "
        f"machine (2 cores) at the start: {os.getloadavg()[0]:.1f}; seconds are of the processor.",
        "",
        "| ε | noise and order | noise multiplier | rate | held out, % | test, % | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for epsilon in (1.0, 8.0):
        for name, how in ways().items():
            start = time.process_time()
            plan = training.make_plan(
                records, epsilon=epsilon, delta=1e-5, steps=PASSES * BATCHES, batch_size=batch,
                **how,
            )  # fmt: skip
            held_out, test = accuracies(task, plan)
            best = int(np.argmax(held_out.mean(1)))
            cells = [f"{epsilon:g}", name, f"{plan.noise_multiplier:.3f}", f"{task.rates[best]:g}"]
            cells += [f"{x[best].mean():.2f} ± {x[best].std(ddof=1):.2f}" for x in (held_out, test)]
            cells += [f"{time.process_time() - start:.0f}"]
            lines.append("| " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    for name, make in {"mnist": mnist, "adult": adult}.items():
        if sys.argv[1:] in ([], [name]):
            task = make()
            if task is None:
                print(f"skipped: ../shared/data/{name} is absent")
                continue
            (RESULTS / f"correlated_{name}.md").write_text("\n".join(table(task)) + "\n")


if __name__ == "__main__":
    main()
