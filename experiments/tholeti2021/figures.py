"""The figures and tables of tholeti2021, drawn from the cells of its protocol."""

from __future__ import annotations

import pathlib

import numpy as np

from experiments.common import Run
from experiments.tholeti2021.landscape import stationary_distance
from experiments.tholeti2021.privacy import GAUSSIANS
from experiments.tholeti2021.protocol import METHODS, TABLES

_TABLES = {table.name: table for table in TABLES}


def figure2(run: Run) -> list[pathlib.Path]:
    """Figure 2: δ of one step against sensitivity and dimension, with a simulation beside it."""
    import matplotlib.pyplot as plt

    rows = run.cells(_TABLES["figure2"])
    dimensions = sorted({row["dimension"] for row in rows})
    figure, axis = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    colours = plt.get_cmap("viridis")(np.linspace(0.0, 0.85, len(dimensions)))
    for dimension, colour in zip(dimensions, colours, strict=True):
        mine = [row for row in rows if row["dimension"] == dimension]
        shift = [row["sensitivity"] for row in mine]
        axis.plot(shift, [row["delta"] for row in mine], color=colour, label=f"d = {dimension}")
        axis.errorbar(
            shift,
            [row["simulated"] for row in mine],
            [row["simulated error"] for row in mine],
            fmt=".",
            ms=3,
            lw=0.8,
            color=colour,
        )
    axis.set_xlabel("sensitivity Δ over the ball's radius")
    axis.set_ylabel("δ of one release, at every ε ≥ 0")
    axis.spines[["top", "right"]].set_visible(False)
    axis.errorbar([], [], [], fmt="k.", ms=3, lw=0.8, label="simulation, ±3 standard errors")
    axis.legend(frameon=False, fontsize=8)
    shows = "The δ of one step grows with sensitivity and dimension, as Eq. 6 says (lines: exact)"
    return [run.save_table("figure2", rows), run.save_figure("figure2", figure, shows)]


def theorem1(run: Run) -> list[pathlib.Path]:
    """Theorem 1's total δ against n and T, and the Gaussian noise that costs as much."""
    import matplotlib.pyplot as plt

    rows = run.cells(_TABLES["theorem1"])
    certificates = [line for row in rows for line in row["certificates"]]
    table = [{k: v for k, v in row.items() if k != "certificates"} for row in rows]
    figure, axis = plt.subplots(figsize=(6.6, 4.4), layout="constrained")
    largest = max(row["records"] for row in rows)
    for dimension, colour in ((10, "#d99a2b"), (1000, "#b5542b")):
        mine = [r for r in table if r["dimension"] == dimension and r["records"] == largest]
        axis.plot(
            [r["steps"] for r in mine],
            [r["its std per coordinate/Δ"] for r in mine],
            marker="o",
            color=colour,
            label=f"ball, d = {dimension}: (0, 1e-5)",
        )
    mine = [r for r in table if r["dimension"] == 10 and r["records"] == largest]
    for epsilon, colour in zip(GAUSSIANS, ("#7fa8d1", "#3f74a8", "#1f4e79"), strict=True):
        axis.plot(
            [r["steps"] for r in mine],
            [r[f"Gaussian std/Δ for ({epsilon:g}, 1e-5)"] for r in mine],
            marker="s",
            color=colour,
            label=f"Gaussian, any d: ({epsilon:g}, 1e-5)",
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel(f"steps T, one of n = {largest:,} records each")
    axis.set_ylabel("noise std per coordinate / sensitivity Δ")
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    return [
        run.save_table("theorem1", table),
        run.save_figure(
            "theorem1",
            figure,
            "A ball that gives δ = 1e-5 needs hundreds to tens of thousands of times the noise\n"
            "of a Gaussian",
        ),
        run.save_certificates("theorem1", certificates),
    ]


def theorem2(run: Run) -> list[pathlib.Path]:
    """Theorem 2: distance to a minimum and steps to leave the saddle, against the step size."""
    import matplotlib.pyplot as plt

    rows = run.cells(_TABLES["theorem2"])
    figure, axes = plt.subplots(1, 2, figsize=(9.2, 4.0), layout="constrained")
    for method, colour in zip(METHODS, ("#b5542b", "#d99a2b", "#1f4e79", "#7fa8d1"), strict=True):
        mine = [r for r in rows if r["method"] == method]
        sizes = [r["step size"] for r in mine]
        axes[0].plot(sizes, [r["distance to a minimum"] or np.nan for r in mine], "o-",
                     color=colour, label=method)  # fmt: skip
        axes[1].plot(sizes, [r["median steps to leave"] or np.nan for r in mine], "o-",
                     color=colour, label=method)  # fmt: skip
    sizes = sorted({r["step size"] for r in rows})
    exact = [stationary_distance(size, 1.0) for size in sizes]
    axes[0].plot(sizes, exact, "k--", lw=1, label="exact near the minimum: all records, ball")
    first = next(r for r in rows if r["method"] == METHODS[0])
    for axis, column, power in (
        (axes[0], "distance to a minimum", 0.5),
        (axes[1], "median steps to leave", -2.0),
    ):
        rate = [first[column] * (size / first["step size"]) ** power for size in sizes]
        label = "rate of Theorem 2's bound: √η (left), η⁻² (right)"
        axis.plot(sizes, rate, ":", color="0.4", lw=1.5, label=label)
    for axis in axes:
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(sizes, [f"{size:g}" for size in sizes], minor=False)
        axis.set_xticks([], minor=True)
        axis.set_xlabel("step size η")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("distance to the nearest minimum")
    axes[1].set_ylabel("median steps to leave the saddle")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    shows = (
        "Up to η = 0.005 every run with the ball comes as near to a minimum as √η; drawing one "
        "record a step\nleaves the saddle without it (a 40 × 40 factorisation from its saddle)"
    )
    return [run.save_table("theorem2", rows), run.save_figure("theorem2", figure, shows)]
