"""MNIST and Fashion-MNIST at a budget: a private linear model on scattering features.

    python -m benchmarks.image_accuracy [--seeds 3]

Writes benchmarks/results/image_accuracy.md from ../shared/data; says so where that is absent.
Batch, rate, momentum and clip norm are the first that were tried, after Tramèr and Boneh 2021, on
55,000 training images with 5,000 to look at; nothing was tuned, and the test images chose nothing.
"""

from __future__ import annotations

import argparse
import pathlib
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.scattering import features
from dpjax import training
from experiments.images import load_mnist

RESULTS = pathlib.Path(__file__).parent / "results"
DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
DELTA, BATCH, CLIP, MOMENTUM = 1e-5, 4096, 0.1, 0.9


class Setting(NamedTuple):
    """One row: a data set, a budget, what was aimed at, and the run."""

    name: str
    epsilon: float
    goal: float
    epochs: int
    rate: float


SETTINGS = (
    Setting("mnist", 1.0, 96.5, 20, 4.0),
    Setting("mnist", 3.0, 98.0, 40, 4.0),
    Setting("fashion-mnist", 3.0, 86.0, 40, 4.0),
)


def loss(params, example):
    logits = example[0] @ params["w"] + params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])


def trained(setting: Setting, data, key):
    """The parameters and the plan of one private run on (features, labels)."""
    rows, width = data[0].shape
    plan = training.make_plan(
        rows,
        epsilon=setting.epsilon,
        delta=DELTA,
        epochs=setting.epochs,
        batch_size=BATCH,
        clip_norm=CLIP,
    )
    params = {"w": jnp.zeros((width, 10)), "b": jnp.zeros(10)}
    optimizer = optax.sgd(setting.rate, momentum=MOMENTUM)
    found = training.fit(loss, params, data, plan, optimizer=optimizer, key=key, capacity=1024)
    return found.params, plan


def accuracy(params, data) -> float:
    """In per cent."""
    predicted = jnp.argmax(data[0] @ params["w"] + params["b"], axis=-1)
    return 100 * float(jnp.mean(predicted == data[1]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    lines = [
        "# Images at a budget",
        "",
        "Written by `python -m benchmarks.image_accuracy`: a linear model of 39,700 numbers on "
        f"scattering features, δ = {DELTA:g}, add/remove, Poisson batches of {BATCH:,} expected, "
        f"clip norm {CLIP}, momentum {MOMENTUM}, {seeds} seeds, on {jax.devices()[0].device_kind}.",
        "",
        "| data | ε | goal, % | test, % (mean, least) | epochs | rate | noise multiplier | "
        "features, s | a run, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(s.name for s in SETTINGS):
        if not (DATA / name).is_dir():
            print(f"skipped: ../shared/data/{name} is absent")
            return
        images = load_mnist(DATA, name)
        began = time.perf_counter()
        train = jnp.asarray(features((images.images[..., 0] + 1) / 2)), jnp.asarray(images.labels)
        test = features((images.test_images[..., 0] + 1) / 2), images.test_labels
        made = time.perf_counter() - began
        for setting in (s for s in SETTINGS if s.name == name):
            found, seconds = [], []
            for seed in range(seeds):
                began = time.perf_counter()
                params, plan = trained(setting, train, jax.random.key(seed))
                seconds.append(time.perf_counter() - began)
                found.append(accuracy(params, test))
            lines.append(
                f"| {name} | {setting.epsilon:g} | {setting.goal:g} | {np.mean(found):.2f}, "
                f"{np.min(found):.2f} | {setting.epochs} | {setting.rate:g} | "
                f"{plan.noise_multiplier:.3f} | {made:.0f} | {np.median(seconds):.0f} |"
            )
            print(lines[-1], flush=True)
    (RESULTS / "image_accuracy.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
