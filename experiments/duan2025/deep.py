"""Cells of Tables II and III: a CNN on MNIST, a ResNet on CIFAR-10 (JPEG)."""

from __future__ import annotations

import functools
import math
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.duan2025 import models, prices
from experiments.duan2025.methods import METHODS, Setting, settings_of
from experiments.duan2025.training import UNCLIPPED, Problem, Run, accuracy, train
from experiments.images import Images, load_cifar10_jpeg, load_mnist
from experiments.protocol import Rows


def private(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """A row of a table: its setting chosen at the first seed, then every seed at that setting.

    Batch size and noise are divided by the same number, which keeps the noise Cσ/B of the mean and
    the number of steps; the sampling error of the smaller batch is larger. One half of the test
    images chooses, the other is reported.
    """
    problem, (choose, report) = _problem(settings, data)
    name, batch_size = settings["methods"].split(", B=")
    method, divisor = METHODS[name], settings["divisor"]
    whole = int(batch_size), settings["sigma"], settings["records priced"]
    run = Run(whole[0] // divisor, whole[1] / divisor, prices.steps(whole[0], whole[2]))
    seeds, tried = settings["seeds"], []
    for setting in settings_of(name, tuple(settings["rates"])):
        found = train(problem, method, run, setting, seeds[0])
        tried.append((choose(found.params), setting, found))
    # The first of those that are equally good.
    _, setting, first = max(tried, key=lambda one: one[0])
    rows: Rows = []
    for seed in seeds:
        found = first if seed == seeds[0] else train(problem, method, run, setting, seed)
        rows.append(
            {
                "method": name,
                "B": whole[0],
                "σ": whole[1],
                "B run": run.batch_size,
                "steps": run.steps,
                "attempts": found.attempts,
                "accepted": found.accepted,
                "seed": seed,
                "accuracy %": report(found.params),
                "setting": setting.words,
                "tried": "; ".join(f"{s.words}: {a:.2f}" for a, s, _ in tried),
                "proven ε": prices.proven_epsilon(method, *whole),
            }
        )
    return rows


def noise_free(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """The network without noise and without clipping, on ordinary batches."""
    problem, (choose, report) = _problem(settings, data)
    method, records = METHODS["noise-free, clipped"], len(problem.data.labels)
    steps = round(settings["epochs"] * records / settings["batch size"])
    run, tried = Run(settings["batch size"], 0.0, steps), []
    for rate in settings["rates"]:
        found = train(problem, method, run, Setting(rate), settings["seeds"], clip_norm=UNCLIPPED)
        tried.append((choose(found.params), rate, report(found.params)))
    best = max(tried)
    return [
        {
            "data set": settings["data"],
            "B": run.batch_size,
            "epochs": settings["epochs"],
            "steps": steps,
            "seed": settings["seeds"],
            "rate": best[1],
            "accuracy %": best[2],
            "tried": "; ".join(f"{rate:g}: {found:.2f}" for found, rate, _ in tried),
        }
    ]


def _problem(settings: dict[str, Any], data: pathlib.Path):
    """The problem of a cell; accuracy on the half that chooses and on the half that is reported."""
    problem = _of(settings["data"], settings["train images"], data)
    images, labels = problem.data.test_images, problem.data.test_labels
    order = np.random.default_rng(0).permutation(len(labels))[: settings["test images"]]
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    return problem, tuple(accuracy(problem, images[rows], labels[rows]) for rows in halves)


@functools.lru_cache(maxsize=1)
def _of(name: str, most: int, data: pathlib.Path) -> Problem:
    if name == "MNIST":
        images, model = load_mnist(data), models.SmallCNN()
    else:
        per_class = math.ceil(most / 10)
        images, model = load_cifar10_jpeg(data, limit=per_class), models.SmallResNet((16, 32, 64))
    kept = Images(images.images[:most], images.labels[:most], *images[2:])
    return Problem(model, models.softmax_loss(model), _correct, kept)


def _correct(predicted, label):
    return jnp.argmax(predicted) == label
