"""Cells of Figure 5: training losses of logistic regression on MNIST over 350 iterations."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.duan2025.methods import METHODS, Setting
from experiments.duan2025.models import LogisticRegression, binary_loss
from experiments.duan2025.training import Problem, Run, accuracy, train
from experiments.images import Images, load_mnist
from experiments.protocol import Rows


def odd_digits(data: Images) -> Images:
    """Labels 1 for odd digits, pixels in [0, 1].

    The paper's d = 785 is a binary model; it does not name the task. With the background at −1,
    what is left of a gradient clipped to C = 0.1 is mostly background.
    """
    return Images(
        (data.images + 1.0) / 2.0,
        data.labels % 2,
        (data.test_images + 1.0) / 2.0,
        data.test_labels % 2,
    )


def curve(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """A line of a panel: its losses at every step size, each of which is a row of its own."""
    problem, loss, right = _problem(settings["train images"], data)
    panel, name, sigma, batch_size = settings["curves"]
    method = METHODS[name]
    steps, every = settings["iterations"], settings["iterations between points"]
    rows: Rows = []
    for rate in settings["rates"]:
        found = train(
            problem,
            method,
            Run(batch_size, sigma, steps),
            Setting(rate, radius=0.5),
            settings["seeds"],
            evaluate=lambda params: {"loss": loss(params)},
            log_every=every,
        )
        for step, value in zip(found.metrics["step"], found.metrics["loss"], strict=True):
            rows.append(
                {
                    "panel": panel,
                    "method": name,
                    "σ": sigma,
                    "B": batch_size,
                    "rate": rate,
                    "seed": settings["seeds"],
                    "iteration": int(step),
                    "loss": float(value),
                    "accuracy %": right(found.params) if step == steps else None,
                }
            )
    return rows


@functools.lru_cache(maxsize=1)
def _problem(most: int, data: pathlib.Path):
    images = odd_digits(load_mnist(data))
    images = images._replace(images=images.images[:most], labels=images.labels[:most])
    model = LogisticRegression()
    problem = Problem(model, binary_loss(model), _correct, images)
    whole = jnp.asarray(images.images), jnp.asarray(images.labels)

    @jax.jit
    def mean_loss(params, whole):
        return jnp.mean(jax.lax.map(lambda e: problem.loss(params, e), whole, batch_size=1_000))

    right = accuracy(problem, np.asarray(images.test_images), np.asarray(images.test_labels))
    return problem, lambda params: float(mean_loss(params, whole)), right


def _correct(logit, label):
    return (logit > 0) == label
