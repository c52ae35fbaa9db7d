"""Figure 6: run time of the perturbations against dimension and batch size."""

from __future__ import annotations

import pathlib
import statistics
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

from dpjax._numerics.normal import normal
from experiments.common import Rows, Run, track
from experiments.geodp.published import geodp

CLIP_NORM, BATCH_SIZE = 0.1, 2_048


def _seconds(function: Callable, argument, repeats: int) -> float:
    """Median seconds of `function(key, argument)`, each call with a key of its own."""
    first, *keys = jax.random.split(jax.random.key(0), repeats + 1)
    jax.block_until_ready(function(first, argument))
    times = []
    for key in keys:
        start = time.perf_counter()
        jax.block_until_ready(function(key, argument))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


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
        rows.append(
            {
                "d": d,
                "batch": None,
                "gaussian_s": _seconds(_gaussian, average, repeats),
                "geodp_s": _seconds(_geodp, average, repeats),
            }
        )
        for batch_size in batches:
            if batch_size * d > 2**28:
                continue
            batch = jnp.broadcast_to(average, (batch_size, d)) + 0.0
            clipping = _seconds(_clipped_average, batch, repeats)
            rows.append({**rows[-1], "batch": batch_size, "clipping_s": clipping})
    for row in rows:
        row["ratio"] = row["geodp_s"] / row["gaussian_s"]
    return rows


def figure6(run: Run) -> Sequence[pathlib.Path]:
    """Figure 6: seconds against dimension, alone and with the clipping of a batch."""
    rows = table(run)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2))
    alone = [r for r in rows if r["batch"] is None]
    for name, colour, label in (
        ("gaussian_s", "k", "DP (Gaussian noise)"),
        ("geodp_s", "tab:red", "GeoDP (spherical noise)"),
    ):
        left.plot(
            [r["d"] for r in alone], [r[name] for r in alone], "o-", color=colour, label=label
        )
        for batch in sorted({r["batch"] for r in rows if r["batch"] is not None}):
            some = [r for r in rows if r["batch"] == batch]
            seconds = [r[name] + r["clipping_s"] for r in some]
            style = {"k": "o--", "tab:red": "s-"}[colour]
            right.plot(
                [r["d"] for r in some],
                seconds,
                style,
                color=colour,
                alpha=0.4 + 0.6 * batch / 256 if batch <= 256 else 1.0,
                label=f"{label.split(' ')[0]}, B = {batch}",
            )
    for axis, title in ((left, "perturbation"), (right, "clipping, averaging and perturbation")):
        axis.set(xscale="log", yscale="log", xlabel="dimension", ylabel="seconds", title=title)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.tight_layout()
    return [run.save_table("figure6", rows), run.save_figure("figure6", figure)]
