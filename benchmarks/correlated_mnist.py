"""MNIST, a linear model: correlated and fresh noise at equal ε, amplified and not.

    python -m benchmarks.correlated_mnist

Writes benchmarks/results/correlated_mnist.md from ../shared/data/mnist; says so where it is absent.
One seed, SGD without momentum, four passes in batches of 1,000, clip norm 1, add/remove, δ = 1e-5.
The rate is 2; 0.5, tried at ε = 1, ended 2 to 4 points lower for all four.
"""

from __future__ import annotations

import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import correlation, training
from experiments.images import load_mnist

RESULTS = pathlib.Path(__file__).parent / "results"
DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
RECORDS, BATCH, STEPS = 60_000, 1_000, 240


def ways() -> dict[str, dict]:
    """Arguments of `make_plan`, by what the table calls them."""
    batches = RECORDS // BATCH
    tuned = correlation.banded_toeplitz(batches, steps=STEPS, separation=batches)
    four = correlation.banded_toeplitz(4, steps=STEPS)
    return {
        "fixed order, fresh noise": {"sampling": "cyclic", "strategy": correlation.identity()},
        f"fixed order, {batches} bands": {"sampling": "cyclic", "strategy": tuned},
        "Poisson, fresh noise (DP-SGD)": {"sampling": "poisson"},
        "Poisson groups in turn, 4 bands": {"sampling": "cyclic-poisson", "strategy": four},
    }


def loss(params, example):
    logits = example[0] @ params["w"] + params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])


def main() -> None:
    if not (DATA / "mnist").is_dir():
        print("skipped: ../shared/data/mnist is absent")
        return
    images = load_mnist(DATA)
    flat = (images.images.reshape(RECORDS, -1) + 1) / 2
    data = (jnp.asarray(flat), jnp.asarray(images.labels))
    test = (images.test_images.reshape(len(images.test_labels), -1) + 1) / 2
    lines = [
        "# Correlated noise on MNIST",
        "",
        "Written by `python -m benchmarks.correlated_mnist`: a linear model of 7,850 numbers, "
        f"{STEPS} steps, batches of {BATCH:,}, clip norm 1, add/remove, δ = 1e-5, one seed.",
        "",
        "| ε | noise and order | noise multiplier | rate | test accuracy, % | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for epsilon in (1.0, 8.0):
        for name, how in ways().items():
            plan = training.make_plan(
                RECORDS, epsilon=epsilon, delta=1e-5, steps=STEPS, batch_size=BATCH, **how
            )
            for rate in (2.0,):
                start = time.process_time()
                params = {"w": jnp.zeros((784, 10)), "b": jnp.zeros(10)}
                fit = training.fit(
                    loss, params, data, plan, optimizer=optax.sgd(rate), key=jax.random.key(0)
                )
                logits = test @ np.asarray(fit.params["w"]) + np.asarray(fit.params["b"])
                accuracy = 100 * np.mean(logits.argmax(1) == images.test_labels)
                cells = [f"{epsilon:g}", name, f"{plan.noise_multiplier:.3f}", rate]
                cells += [f"{accuracy:.2f}", f"{time.process_time() - start:.0f}"]
                lines.append("| " + " | ".join(map(str, cells)) + " |")
                print(lines[-1], flush=True)
    (RESULTS / "correlated_mnist.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
