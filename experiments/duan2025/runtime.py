"""Cells of Figure 6: run time of the perturbations against dimension and batch size."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dpjax import transforms
from experiments.duan2025.methods import CLIP_NORM
from experiments.protocol import Rows

BATCH_SIZE = 2_048


# Processor seconds on a CPU: other work disturbs them less than the wall clock.
_clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter


def _seconds(functions: Sequence[Callable], argument, repeats: int) -> list[float]:
    """Least seconds of each `function(key, argument)`, in alternating calls with fresh keys."""
    first, *keys = jax.random.split(jax.random.key(0), repeats + 1)
    for function in functions:
        jax.block_until_ready(function(first, argument))
    times: list[list[float]] = [[] for _ in functions]
    for key in keys:
        for taken, function in zip(times, functions, strict=True):
            start = _clock()
            jax.block_until_ready(function(key, argument))
            taken.append(_clock() - start)
    return [min(taken) for taken in times]


@jax.jit
def _gaussian(key, average):
    tx = transforms.gaussian_noise(CLIP_NORM / BATCH_SIZE, key)
    return tx.update(average, tx.init(average))[0]


@jax.jit
def _geodp(key, average):
    tx = transforms.spherical_noise(
        1.0, CLIP_NORM / BATCH_SIZE, BATCH_SIZE, 0.1, key, unsafe_no_dp=True
    )
    return tx.update(average, tx.init(average))[0]


@jax.jit
def _clipped_average(key, batch):
    del key
    tx = transforms.clip_per_example(CLIP_NORM)
    return tx.update(batch, tx.init(batch[0]))[0] / len(batch)


def cell(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Seconds of one perturbation, and of clipping and averaging a batch before it."""
    del data
    d, repeats = settings["d"], settings["repeats"]
    average = jnp.linspace(-1.0, 1.0, d)
    plain, spherical = _seconds((_gaussian, _geodp), average, repeats)
    alone = {"d": d, "gaussian_s": plain, "geodp_s": spherical}
    rows: Rows = [{**alone, "batch": 0, "clipping_s": 0.0}]
    for batch_size in settings["B"]:
        if batch_size * d > 2**28:
            continue
        batch = jnp.broadcast_to(average, (batch_size, d)) + 0.0
        (clipping,) = _seconds((_clipped_average,), batch, repeats)
        rows.append({**alone, "batch": batch_size, "clipping_s": clipping})
    for row in rows:
        row["ratio"] = (spherical + row["clipping_s"]) / (plain + row["clipping_s"])
    return rows
