"""Table 2, Figure 1 and Theorem 1, written and drawn from the cells."""

from __future__ import annotations

import pathlib

from experiments.common import Run
from experiments.yu2020.protocol import TABLES
from experiments.yu2020.published import TABLE2

_TABLES = {table.name: table for table in TABLES}


def table2(run: Run) -> list[pathlib.Path]:
    """Table 2: smallest and average eigenvalue of the Hessian, four data sets."""
    return [run.save_table("table2", run.cells(_TABLES["table2"]))]


def figure1(run: Run) -> list[pathlib.Path]:
    """Figure 1: expected curvature against noise, by Equation 5 and by simulation."""
    import matplotlib.pyplot as plt

    rows = run.cells(_TABLES["figure1"])
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
    shows = (
        "With the noise in the iterate the expected curvature tends to the average one (at x = 0)"
    )
    return [run.save_table("figure1", rows), run.save_figure("figure1", figure, shows)]


def bound(run: Run) -> list[pathlib.Path]:
    """Theorem 1 (Eq. 9): the bound by ν and by μ beside the excess risk of DP-GD on Adult."""
    import matplotlib.pyplot as plt

    rows = run.cells(_TABLES["bound"])
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 4.2), layout="constrained", sharey=True)
    for axis, epsilon in zip(axes, (0.1, 1.0), strict=True):
        mine = [row for row in rows if row["epsilon"] == epsilon]
        steps = [row["steps"] for row in mine]
        axis.errorbar(
            steps,
            [row["excess risk"] for row in mine],
            [2 * row["standard error"] for row in mine],
            color="#111111",
            marker="o",
            ms=3,
            capsize=2,
            label="measured",
        )
        for name, colour, style in (
            ("curvature along the path", "#1f4e79", "-"),
            ("smallest curvature so far", "#7fa8d1", "--"),
            ("minimum curvature", "#b5542b", ":"),
        ):
            label = f"bound, {name}" + (" μ = λ" if name.startswith("minimum") else " ν")
            axis.plot(
                steps, [row[f"bound, {name}"] for row in mine], style, color=colour, label=label
            )
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(f"ε = {epsilon:g}", fontsize=10)
        axis.set_xlabel("steps T (noise of the whole run)")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("excess empirical risk")
    axes[0].legend(frameon=False, fontsize=8)
    lines = list(dict.fromkeys([row.pop("certificate") for row in rows]))
    return [
        run.save_table("bound", rows),
        run.save_figure(
            "bound",
            figure,
            "Theorem 1's bounds by ν and by μ lie far above the risk of DP-GD on "
            "Adult (λ = 0.001, η = 1/β); ±2 standard errors",
        ),
        run.save_certificates("bound", lines),
    ]


def bounddrawn(run: Run) -> list[pathlib.Path]:
    """Theorem 1 on records that are drawn, where its bound says something."""
    return _saved(run, "bounddrawn")


def slopes(run: Run) -> list[pathlib.Path]:
    """Table 1 as slopes: the least excess risk by n, p and ε."""
    return [run.save_table("slopes", run.cells(_TABLES["slopes"]))]


def convex(run: Run) -> list[pathlib.Path]:
    """Theorem 1 for ν = 0: the averaged iterate on Adult without regularisation."""
    return _saved(run, "convex")


def theorem2(run: Run) -> list[pathlib.Path]:
    """Theorem 2: DP-SGD with its step sizes, in batches, where the bound says something."""
    return _saved(run, "theorem2")


def algorithm2(run: Run) -> list[pathlib.Path]:
    """Theorem 2 as printed: one record a step, T = n²ε²."""
    return _saved(run, "algorithm2")


def algorithm2root(run: Run) -> list[pathlib.Path]:
    """Theorem 2 with T = nε/√p, the remark after it."""
    return _saved(run, "algorithm2root")


def restricted(run: Run) -> list[pathlib.Path]:
    """Theorem 1 on least squares whose minimum is flat: μ = 0 < ν."""
    return _saved(run, "restricted")


def paths(run: Run) -> list[pathlib.Path]:
    """The smallest ν along four descents over the minimum curvature, with and without noise."""
    import matplotlib.pyplot as plt

    rows = run.cells(_TABLES["paths"])
    steps, sets = (
        max(row["steps"] for row in rows),
        list(dict.fromkeys(r["data set"] for r in rows)),
    )
    descents = list(dict.fromkeys(row["descent"] for row in rows))
    colours = ("#1f4e79", "#b5542b", "#2c7a4b", "#8fc3a2")
    figure, axis = plt.subplots(figsize=(7.6, 4.4), layout="constrained")
    for number, (descent, colour) in enumerate(zip(descents, colours, strict=True)):
        for noisy, mark in ((False, "o"), (True, "^")):
            mine = {
                row["data set"]: row["smallest ν"] / row["minimum curvature"]
                for row in rows
                if row["descent"] == descent
                and row["steps"] == steps
                and (row["noise"] > 0) == noisy
            }
            axis.plot(
                [sets.index(name) + 0.12 * (number - 1.5) for name in mine], [*mine.values()], mark,
                color=colour, mfc=colour if noisy else "none", ms=6,
                label=f"{descent}, {'noise of ε = 1' if noisy else 'no noise'}",
            )  # fmt: skip
    axis.axhline(1.0, color="#555555", ls=":", lw=1, label="ν = μ")
    axis.set_yscale("log")
    axis.set_xticks(range(len(sets)), sets)
    axis.set_xlabel("data set")
    axis.set_ylabel("smallest ν along the path, over μ")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    shows = (
        "Without noise, too, ν lies above μ on some paths; noise lifts it on all, "
        "momentum mostly lowers it"
    )
    return [run.save_table("paths", rows), run.save_figure("paths", figure, shows)]


def theorem2adult(run: Run) -> list[pathlib.Path]:
    """Theorem 2 on Adult, at Section 4's sampling rate and number of steps."""
    return _saved(run, "theorem2adult")


def _saved(run: Run, name: str) -> list[pathlib.Path]:
    rows = run.cells(_TABLES[name])
    lines = list(dict.fromkeys([row.pop("certificate") for row in rows]))
    return [run.save_table(name, rows), run.save_certificates(name, lines)]
