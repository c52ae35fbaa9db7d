"""Figure 6: run time of the perturbations against dimension and batch size."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

from dpjax._numerics.normal import normal
from experiments.common import Rows, Run, track
from experiments.geodp.published import geodp

CLIP_NORM, BATCH_SIZE = 0.1, 2_048


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
    return average + CLIP_NORM / BATCH_SIZE * normal(key, average.shape)


_geodp = jax.jit(geodp(1.0, CLIP_NORM, BATCH_SIZE, 0.1))


@jax.jit
def _clipped_average(key, batch):
    del key
    norms = jnp.linalg.norm(batch, axis=1, keepdims=True)
    return jnp.sum(batch * jnp.minimum(1.0, CLIP_NORM / norms), axis=0) / len(batch)


def table(run: Run) -> Rows:
    """Seconds of one perturbation, and of clipping and averaging a batch before it."""
    dimensions = run.choose(
        (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
        (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
        (100, 1_000),
    )
    batches = run.choose((16, 64, 256), (16, 64, 256, 1_024), (4,))
    repeats = run.choose(7, 25, 2)
    rows: Rows = []
    for d in track(dimensions, "run times"):
        average = jnp.linspace(-1.0, 1.0, d)
        plain, spherical = _seconds((_gaussian, _geodp), average, repeats)
        rows.append({"d": d, "batch": None, "gaussian_s": plain, "geodp_s": spherical})
        for batch_size in batches:
            if batch_size * d > 2**28:
                continue
            batch = jnp.broadcast_to(average, (batch_size, d)) + 0.0
            (clipping,) = _seconds((_clipped_average,), batch, repeats)
            rows.append({**rows[-1], "batch": batch_size, "clipping_s": clipping})
    for row in rows:
        before = row.get("clipping_s", 0.0)
        row["ratio"] = (row["geodp_s"] + before) / (row["gaussian_s"] + before)
    return rows


def figure6(run: Run) -> Sequence[pathlib.Path]:
    """Figure 6: seconds against dimension, alone and with the clipping of a batch."""
    rows = table(run)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10.5, 4.2), sharey=True, layout="constrained"
    )
    alone = [r for r in rows if r["batch"] is None]
    curves = (
        ("gaussian_s", "k", "DP (Gaussian noise)"),
        ("geodp_s", "tab:red", "GeoDP (spherical noise)"),
    )
    batches = sorted({r["batch"] for r in rows if r["batch"] is not None})
    for column, colour, label in curves:
        d = [r["d"] for r in alone]
        left.plot(d, [r[column] for r in alone], "o-", color=colour, label=label)
        for batch, style in zip(batches, ("-", "--", ":", "-."), strict=False):
            some = [r for r in rows if r["batch"] == batch]
            seconds = [r[column] + r["clipping_s"] for r in some]
            options = {"color": colour, "label": f"{label.split(' ')[0]}, B = {batch}"}
            right.plot([r["d"] for r in some], seconds, style, marker=".", lw=1.2, **options)
    for axis, title in ((left, "perturbation"), (right, "clipping, averaging and perturbation")):
        axis.set(xscale="log", yscale="log", xlabel="dimension", title=title)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, frameon=False)
    left.set_ylabel("processor seconds" if jax.default_backend() == "cpu" else "seconds")
    return [run.save_table("figure6", rows), run.save_figure("figure6", figure)]
