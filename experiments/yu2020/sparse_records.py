"""Real-sim and RCV1, half of Table 4, on files of the user's own as LIBSVM publishes them."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import BCOO

from dpjax import erm
from experiments import data_sets
from experiments.protocol import Rows
from experiments.yu2020 import wider_grid
from experiments.yu2020.cells import _of_share, problem_for
from experiments.yu2020.records import Task

_MOST = 50_000  # rows of RCV1 that the paper takes, without saying which


def task(name: str, data: pathlib.Path, seed: int) -> Task:
    """80 % of the records to train, 10 % to choose settings on, 10 % to report; rows of norm 1."""
    found = data_sets.libsvm(data / "libsvm", name=name)
    most = _MOST if name == "rcv1" else None
    order = np.random.default_rng(seed).permutation(len(found.labels))[:most]
    first, second = int(0.8 * len(order)), int(0.9 * len(order))
    parts = (order[:first], order[first:second], order[second:])
    rows = ((_rows(found.features[part]), found.labels[part]) for part in parts)
    return Task(*rows, 2, math.sqrt(2.0))  # with the intercept


def _rows(features) -> BCOO:
    """A SciPy matrix as one of JAX, which is not made dense."""
    found = features.tocoo()
    indices = np.stack([found.row, found.col], axis=1).astype(np.int32)
    return BCOO((jnp.asarray(found.data), jnp.asarray(indices)), shape=found.shape)


def baseline(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Accuracy without privacy, and of the most frequent class."""
    found = task(settings["data"], data, settings["seeds"])
    problem = problem_for(found, found.row_norm)
    exact = erm.lbfgs(problem, tolerance=1e-4).params
    most = np.argmax(np.bincount(found.train[1]))
    shares = {
        "non-private": float(problem.accuracy(exact, *found.report)),
        "majority": float(np.mean(found.report[1] == most)),
    }
    return [
        {
            "data set": settings["data"],
            "method": name,
            "records": problem.n,
            "accuracy": share,
            "standard error": _of_share(share, len(found.report[1])),
        }
        for name, share in shares.items()
    ]


def private(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """A method at one ε, as on the other data sets; the paper's clip norm is the cell's."""
    return wider_grid.private(settings, data, task)
