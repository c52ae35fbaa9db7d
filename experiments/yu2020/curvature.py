"""Table 2 and Figure 1: minimum, average and expected curvature of four linear regressions."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._numerics.scope import enable_x64
from dpjax.data import load_table
from dpjax.erm import curvature
from experiments.common import Run
from experiments.yu2020.published import TABLE2

# Features are min-max normalised; the ranges are read off the data, so that nothing here is
# private, nor is it meant to be.
_DROPPED = {"admission": ("Serial No.",)}
_NOTES = {
    "admission": "reproduced",
    "sonar": "average reproduced; the minimum of the 208 published rows is 10 % above the print",
    "boston": "no choice of columns of the published 506 rows gives both numbers: another copy",
    "swedish-motor": "the print's minimum is that of all seven columns, target included "
    "(9.06e-06); its average is that of the six features",
}


def _regression(name: str, data: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """(features scaled to [0, 1], targets) in float64."""
    table = load_table(name, data)
    frame = table.train
    features = frame.drop(columns=[table.target, *_DROPPED.get(name, ())]).to_numpy(np.float64)
    targets = frame[table.target]
    if targets.dtype.kind not in "if":
        targets = targets.astype("category").cat.codes
    low, high = features.min(0), features.max(0)
    return (features - low) / np.where(high > low, high - low, 1.0), targets.to_numpy(np.float64)


def _quadratic(name: str, data: pathlib.Path):
    """(objective, minimiser, p) of F(x) = ‖Sx − t‖²/(2n), as float64 JAX values."""
    features, targets = _regression(name, data)
    low, high = targets.min(), targets.max()
    targets = (targets - low) / (high - low)
    minimiser = np.linalg.lstsq(features, targets, rcond=None)[0]
    rows, truth = jnp.asarray(features), jnp.asarray(targets)

    def objective(params):
        return 0.5 * jnp.mean(jnp.square(rows @ params - truth))

    return objective, jnp.asarray(minimiser), features.shape[1]


def _table2_rows(data: pathlib.Path) -> list[dict[str, Any]]:
    rows = []
    with enable_x64(True):
        for name, (minimum, average) in TABLE2.items():
            objective, _, dimension = _quadratic(name, data)
            at = jnp.zeros(dimension)
            low, _ = curvature.extreme_curvatures(objective, at, jax.random.key(0))
            # Along every coordinate in turn: the trace exactly, and still without a Hessian.
            basis = jnp.eye(dimension)
            products = jax.vmap(
                lambda v, f=objective, x=at: curvature.hessian_vector_product(f, x, v)
            )(basis)
            rows.append(
                {
                    "data set": name,
                    "features": dimension,
                    "minimum published": minimum,
                    "minimum measured": float(low),
                    "average published": average,
                    "average measured": float(jnp.trace(products)) / dimension,
                    "note": _NOTES[name],
                }
            )
    return rows


def table2(run: Run) -> list[pathlib.Path]:
    """Table 2: smallest and average eigenvalue of the Hessian, four data sets."""
    rows = run.rows("table2", {"data": "published"}, lambda: _table2_rows(run.data))
    return [run.save_table("table2", rows)]


def _figure1_rows(data: pathlib.Path, points: int) -> list[dict[str, Any]]:
    rows = []
    with enable_x64(True):
        for name in TABLE2:
            objective, minimiser, dimension = _quadratic(name, data)
            at = jnp.zeros(dimension)
            hessian_vector = lambda v, f=objective, x=at: curvature.hessian_vector_product(f, x, v)  # noqa: E731
            products = jax.vmap(hessian_vector)(jnp.eye(dimension))
            trace = float(jnp.trace(products))
            smallest = float(jnp.linalg.eigvalsh(products)[0])
            for i, noise in enumerate(np.geomspace(1e-3, 10.0, points)):
                value = curvature.expected_curvature(objective, at, minimiser, noise, trace)
                simulated = curvature.expected_curvature_monte_carlo(
                    objective, at, minimiser, noise, jax.random.key(i), samples=4096
                )
                rows.append(
                    {
                        "data set": name,
                        "noise in the iterate": float(noise),
                        "expected curvature": float(value),
                        "simulated": float(simulated.value),
                        "simulated low": float(simulated.low),
                        "simulated high": float(simulated.high),
                        "average curvature": trace / dimension,
                        "minimum curvature": smallest,
                    }
                )
    return rows


def figure1(run: Run) -> list[pathlib.Path]:
    """Figure 1: expected curvature against noise, by Equation 5 and by simulation."""
    import matplotlib.pyplot as plt

    points = run.choose(25, 60, 4)
    rows = run.rows("figure1", {"points": points}, lambda: _figure1_rows(run.data, points))
    figure, axes = plt.subplots(2, 2, figsize=(8.4, 6.2), layout="constrained", sharex=True)
    for axis, name in zip(axes.flat, TABLE2, strict=True):
        mine = [row for row in rows if row["data set"] == name]
        noise = [row["noise in the iterate"] for row in mine]
        axis.fill_between(
            noise,
            [row["simulated low"] for row in mine],
            [row["simulated high"] for row in mine],
            color="#c9d7e8",
            label="simulation of Definition 3, ±3 standard errors",
        )
        axis.plot(noise, [row["expected curvature"] for row in mine], color="#1f4e79", label="ν")
        axis.axhline(mine[0]["average curvature"], ls="--", color="#b5542b", label="average")
        axis.axhline(mine[0]["minimum curvature"], ls=":", color="#555555", label="minimum")
        axis.set_xscale("log")
        axis.set_title(name)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[1]:
        axis.set_xlabel("noise in the iterate, τ = ησ")
    for axis in axes[:, 0]:
        axis.set_ylabel("curvature")
    axes[0, 1].legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(0.0, 0.9))
    figure.suptitle("yu2020, Figure 1: expected curvature against noise (at x = 0)", fontsize=11)
    return [run.save_table("figure1", rows), run.save_figure("figure1", figure)]
