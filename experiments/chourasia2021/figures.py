"""The figures and tables of chourasia2021, drawn from the cells of its protocol."""

from __future__ import annotations

import math
import pathlib
from statistics import fmean

from experiments.chourasia2021.protocol import NOISES, TABLE1_METHODS, TABLES
from experiments.common import Rows, Run

_TABLES = {table.name: table for table in TABLES}
_COLOURS = dict(zip(NOISES, ("#777777", "#b5542b", "#1f4e79"), strict=True))
LINES = {
    "composition": ("#777777", "-"),
    "tracing diffusion (e^{-ληK/2})": ("#b5542b", "-"),
    "tracing diffusion, as printed (e^{-ηK/2})": ("#b5542b", ":"),
    "tracing diffusion, best γ(t)": ("#d99a2b", "-"),
    "numerical solution, γ = 1/2": ("#b5542b", "o"),
    "numerical solution, best γ(t)": ("#d99a2b", "o"),
    "shifted interpolation": ("#1f4e79", "-"),
    "exact, quadratic of curvature λ": ("#111111", "--"),
    "lower bound (λ = 1)": ("#2c7a4b", ":"),
}


def _convexities(rows: Rows) -> list[float]:
    return sorted({row["strong convexity"] for row in rows})


def figure1(run: Run) -> list[pathlib.Path]:
    """Rényi privacy of the last iterate against steps, four curvatures, every bound."""
    import matplotlib.pyplot as plt

    rows = run.cells(_TABLES["figure1"])
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 7.0), layout="constrained", sharex=True)
    for axis, convexity in zip(axes.flat, _convexities(rows), strict=True):
        for name, (colour, style) in LINES.items():
            mine = [r for r in rows if r["strong convexity"] == convexity and r["bound"] == name]
            if not mine:
                continue
            axis.plot(
                [r["steps"] for r in mine],
                [r["RDP at α = 30"] for r in mine],
                style,
                color=colour,
                ms=4,
                mfc="none",
                label=name.replace("{", "(").replace("}", ")"),
            )
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylim(1e-4, 1.2)
        axis.set_title(f"strong convexity λ = {convexity:g}", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    for axis in axes[1]:
        axis.set_xlabel("steps K")
    for axis in axes[:, 0]:
        axis.set_ylabel("Rényi privacy at α = 30")
    handles, labels = axes[0, 1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    shows = (
        "If only the last iterate leaves, its privacy loss levels out; shifted interpolation is "
        "exact for a quadratic\n(S = 4, n = 5000, σ = 0.02, η = 0.02, β = 4)"
    )
    return [run.save_table("figure1", rows), run.save_figure("figure1", figure, shows)]


def theorem3(run: Run) -> list[pathlib.Path]:
    """Theorem 3: excess risk at (1, 1e-5) against gradients computed, three ways of accounting."""
    import matplotlib.pyplot as plt

    rows = run.cells(_TABLES["theorem3"])
    certificates = [row.pop("certificate") for row in rows]
    figure, axis = plt.subplots(figsize=(6.6, 4.4), layout="constrained")
    for name, colour in _COLOURS.items():
        mine = [row for row in rows if row["accounting"] == name]
        gradients = [row["gradients"] for row in mine]
        axis.errorbar(
            gradients,
            [row["excess risk"] for row in mine],
            [2 * row["standard error"] for row in mine],
            color=colour,
            marker="o",
            ms=4,
            capsize=2,
            label=name,
        )
        axis.plot(
            gradients, [row["bound on the excess risk"] for row in mine], ":", color=colour, lw=1
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("gradients computed, K·n")
    axis.set_ylabel("excess empirical risk (dotted: its bound)")
    axis.legend(frameon=False, title="noise by", fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    return [
        run.save_table("theorem3", rows),
        run.save_figure(
            "theorem3",
            figure,
            "Counting the last iterate alone lowers the risk from many steps on; as published,\n"
            "only at the largest number of steps "
            "(noisy GD on Adult, λ = 0.1, ε = 1, δ = 1e-5, replace-one)",
        ),
        run.save_certificates("theorem3", certificates),
    ]


def theorem4(run: Run) -> list[pathlib.Path]:
    """Theorems 3 and 4: excess risk at K* against n, beside the rate that nobody beats."""
    import matplotlib.pyplot as plt

    rows = run.cells(_TABLES["theorem4"])
    names = list(dict.fromkeys(row["problem"] for row in rows))
    dimensions = sorted({row["dimension"] for row in rows})
    budget = max(row["epsilon"] for row in rows)
    figure, axes = plt.subplots(
        len(names), len(dimensions), figsize=(3.4 * len(dimensions), 3.1 * len(names)),
        layout="constrained", sharex=True, sharey=True, squeeze=False,
    )  # fmt: skip
    for name, line in zip(names, axes, strict=True):
        for dimension, axis in zip(dimensions, line, strict=True):
            mine = [r for r in rows if r["problem"] == name and r["dimension"] == dimension]
            mine = [r for r in mine if r["epsilon"] == budget]
            for accounting, colour in _COLOURS.items():
                own = [r for r in mine if r["accounting"] == accounting]
                axis.errorbar(
                    [r["records"] for r in own],
                    [r["excess risk"] for r in own],
                    [2 * r["standard error"] for r in own],
                    color=colour, marker="o", ms=4, capsize=2, label=accounting,
                )  # fmt: skip
            n = [r["records"] for r in own]
            axis.plot(n, [r["bound of Theorem 3"] for r in own], "k--", lw=1, label="Theorem 3")
            axis.plot(n, [r["rate of the lower bound"] for r in own], "k:", lw=1,
                      label="d/(ε²n²), Theorem 4")  # fmt: skip
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_title(f"{name}, d = {dimension}", fontsize=9)
            axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("records n")
    for axis in axes[:, 0]:
        axis.set_ylabel("excess empirical risk")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    shows = f"Noisy GD at the theorem's K* falls as n⁻², the lower bound's rate (ε = {budget:g}, "
    shows += "δ = 1e-6; ±2 standard errors)"
    return [run.save_table("theorem4", rows), run.save_figure("theorem4", figure, shows)]


def table1(run: Run) -> list[pathlib.Path]:
    """Table 1: gradients to one excess risk, and the least risk of each algorithm, against n."""
    import matplotlib.pyplot as plt

    rows = run.cells(_TABLES["table1"])
    dimension = min(row["dimension"] for row in rows)
    mine = [row for row in rows if row["dimension"] == dimension]
    records = sorted({row["records"] for row in mine})
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 4.2), layout="constrained")
    colours = ("#b5542b", "#1f4e79", "#2c7a4b", "#d99a2b", "#7b4fa0")
    for axis, what in zip(axes, ("gradients", "least risk"), strict=True):
        for name, colour in zip(TABLE1_METHODS, colours, strict=True):
            own = [r for r in mine if r["method"] == name and r[what] is not None]
            means = [
                math.exp(fmean(math.log(r[what]) for r in own if r["records"] == n))
                for n in records
                if any(r["records"] == n for r in own)
            ]
            drawn = [n for n in records if any(r["records"] == n for r in own)]
            axis.plot(drawn, means, color=colour, lw=1.2)
            axis.plot(
                [r["records"] for r in own], [r[what] for r in own], "o", ms=4, color=colour,
                label=name,
            )  # fmt: skip
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("records n")
        axis.set_xticks(records, [f"{n:,}" for n in records])
        axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
    # A run that was cut off has no number to draw.
    first = min(r["gradients"] or math.inf for r in mine if r["method"] == TABLE1_METHODS[2])
    axes[0].plot(records, [first * (n / records[0]) ** 2 for n in records], "k:", label="n²")
    axes[0].set_ylabel("gradients of single records, to one excess risk")
    axes[1].set_ylabel("least excess risk")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    shows = (
        "To one excess risk output perturbation needs the fewest gradients, and noisy SGD's number "
        f"grows the fastest with n\n(logistic regression, d = {dimension}, ε = 1, δ = 1e-6, "
        "a point a data set, lines: their means)"
    )
    return [run.save_table("table1", rows), run.save_figure("table1", figure, shows)]
