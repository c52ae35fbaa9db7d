"""Figure 3: processor time against the number of rows, on KDDCup99."""

from __future__ import annotations

import functools
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dpjax import erm
from experiments import data_sets
from experiments.chen2019.methods import even_batch, rsgd_ar
from experiments.chen2019.records import L2
from experiments.protocol import Rows

_DELTA = 1e-12


def _solver(name: str, problem: erm.Problem) -> tuple[Callable, dict[str, Any]]:
    """A method at a setting that reaches, on a9a, the accuracy that it has in Figure 1."""
    limit = 2.0 / (problem.smoothness + problem.strong_convexity)
    batch = {"batch_size": even_batch(problem.n)}
    return {
        "RSGD-AR": (rsgd_ar, {"epochs": 40, "restarts": 2, "step_size": limit, **batch}),
        "NSGD": (erm.nsgd, {"epochs": 40, "step_size": limit, **batch}),
        "ObjPert": (erm.objective_perturbation, {}),
        "OutPert-GD": (erm.output_perturbed_gd, {"steps": 50, "step_size": limit}),
        "DP-AGD": (erm.dp_agd, {"planned_steps": 30}),
        "SGD-MA": (erm.sgd_ma, {"steps": 400, "step_size": 2.0}),
    }[name]


@functools.lru_cache(maxsize=1)
def _records(data: pathlib.Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    table = data_sets.kddcup99(data)
    order = np.random.default_rng(seed).permutation(len(table.labels))
    return table.features[order], table.labels[order]


@functools.lru_cache
def _without_privacy(data: pathlib.Path, seed: int, size: int) -> float:
    features, labels = _records(data, seed)
    problem = erm.logistic_regression(features[:size], labels[:size], l2=L2)
    return float(problem.accuracy(erm.lbfgs(problem, tolerance=1e-4).params, *_held(data, seed)))


def _held(data: pathlib.Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    features, labels = _records(data, seed)
    return features[-20_000:], labels[-20_000:]


def seconds(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Processor seconds of the calibration and of a compiled fit, and the fit's accuracy."""
    features, labels = _records(data, settings["seeds"])
    size, seed = settings["rows"], settings["seeds"]
    problem = erm.logistic_regression(features[:size], labels[:size], l2=L2)
    solve, setting = _solver(settings["methods"], problem)
    budget = {"epsilon": settings["epsilon"], "delta": _DELTA, "adjacency": "replace-one"}
    start = time.process_time()
    erm.calibrate_noise(solve, problem, **budget, **setting)
    calibration = time.process_time() - start
    times, params = [], problem.zeros()
    for repeat in range(settings["repeats"] + 1):
        start = time.process_time()
        solution = solve(problem, jax.random.key(repeat), **budget, **setting)
        params = jax.block_until_ready(solution.params)
        times.append(time.process_time() - start)
    return [
        {
            "method": settings["methods"],
            "rows": size,
            # The first fit compiles for these shapes; every fit calibrates its noise.
            "seconds": min(times[1:]),
            "of it calibration": calibration,
            "first fit": times[0],
            "accuracy": float(problem.accuracy(params, *_held(data, seed))),
            "non-private": _without_privacy(data, seed, size),
        }
    ]
