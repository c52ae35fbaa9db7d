"""The networks of Tables II and III: a CNN on MNIST, a ResNet on CIFAR-10 (JPEG)."""

from __future__ import annotations

import functools
import math
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.duan2025 import models
from experiments.duan2025.training import Problem, accuracy
from experiments.images import Images, load_cifar10_jpeg, load_mnist


def problem_of(settings: dict[str, Any], data: pathlib.Path):
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
