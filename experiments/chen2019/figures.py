"""Figures 1 to 3 and the tables, drawn from the cells."""

from __future__ import annotations

import pathlib

import pandas as pd

from experiments import comparison
from experiments.chen2019.methods import AS_2019
from experiments.chen2019.methods import STYLES as _METHODS
from experiments.chen2019.protocol import TABLES
from experiments.common import Run

_TABLES = {table.name: table for table in TABLES}
_SHOWS = (
    "RSGD-AR and NSGD are the fastest, objective perturbation takes several times as long\n"
    "(ε = 0.5, δ = 1e-12)"
)
STYLES = _METHODS | {
    "ObjPert, add/remove": ("#e0aa93", "^"),
    "DP-AGD, add/remove": ("#c3aad6", "P"),
    "SGD-MA, add/remove": ("#e9a0bd", "X"),
}
_SHOWN = {"today": "At today's prices", "2019": "At the bounds of 2019"}
_LEVELS = ("non-private", "non-private, unit rows", "majority")


def baseline(run: Run, name: str = "baseline") -> list[pathlib.Path]:
    """Accuracy without privacy and of the most frequent class, on the rows reported."""
    return [run.save_table(name, run.cells(_TABLES[name]))]


def noise(run: Run) -> list[pathlib.Path]:
    """σ of RSGD-AR by the published route and by the direct hockey-stick mixture."""
    return [run.save_table("noise", run.cells(_TABLES["noise"]))]


def figure1(run: Run, of: str = "") -> list[pathlib.Path]:
    """Figure 1: logistic regression."""
    return _accuracies(run, "figure1", "logistic regression, λ = 0.001", of)


def figure2(run: Run, of: str = "") -> list[pathlib.Path]:
    """Figure 2: huberised SVM (h = 0.5)."""
    return _accuracies(run, "figure2", "huberised SVM, h = 0.5, λ = 0.001", of)


def widened(run: Run) -> list[pathlib.Path]:
    """RSGD-AR and permuted SGD without averaging, at settings inside their grids."""
    rows = run.cells(_TABLES["widened"])
    lines = [row.pop("certificate") for row in rows]
    return [run.save_table("widened", rows), run.save_certificates("widened", lines)]


def _describe_lead(rows: pd.DataFrame) -> str:
    """By how much any rival is ahead of RSGD-AR at some ε, by the relation it is private for."""
    points = 100 * rows.pivot_table(index="epsilon", columns="method", values="accuracy")
    (own,) = (name for name in points if name.startswith("RSGD-AR"))
    other = [name for name in points if "add/remove" in name]
    lead = points.sub(points[own], axis=0).max()
    data = rows["data set"].iloc[0]
    found = f"rivals lead RSGD-AR on {data} by up to {lead.drop(other).max():.1f} points"
    return found + (f", under add/remove by {lead[other].max():.1f}" if other else "")


def _accuracies(run: Run, name: str, title: str, of: str) -> list[pathlib.Path]:
    name += of
    rows = run.cells(_TABLES[name])
    lines = [row.pop("certificate") for row in rows]
    levels = pd.DataFrame(run.cells(_TABLES[f"baseline{of}"]))
    table = pd.DataFrame(rows)
    saved = []
    for prices, file in (("today", name), ("2019", f"{name}_2019")):
        own = table[table["prices"] == prices]
        drawn = _draw(own, levels)
        lead = _describe_lead(own[own["data set"] == rows[0]["data set"]])
        shows = f"{_SHOWN[prices]} {lead}: {title}; ±2 standard errors"
        saved.append(run.save_figure(file, drawn, shows))
    return [run.save_table(name, rows), *saved, run.save_certificates(name, lines)]


def _draw(table: pd.DataFrame, levels: pd.DataFrame):
    """Accuracy above, objective below, a column a data set."""
    import matplotlib.pyplot as plt

    # The line of a method by a price of 2019 has the method's colour; add/remove has its own.
    names = table["method"].str.removesuffix(AS_2019).str.replace(" as in 2019", "")
    table = table.assign(method=names)
    sets = list(dict.fromkeys(table["data set"]))
    figure, axes = plt.subplots(
        2, len(sets), figsize=(5.6 * len(sets), 8.0), layout="constrained", sharex=True,
        squeeze=False,
    )  # fmt: skip
    for column, data in enumerate(sets):
        mine = table[table["data set"] == data].rename(
            columns={
                "over the noise": "accuracy_se",
                "excess objective": "excess",
                "excess objective, error": "excess_se",
            }
        )
        task = mine["task"].iloc[0]
        flat = levels[(levels["data set"] == data) & (levels["task"] == task)]
        known = flat.set_index("method")["accuracy"]
        upper, lower = axes[:, column]
        comparison.draw(upper, mine, STYLES)
        for level, style in zip(_LEVELS, ("--", "-.", ":"), strict=True):
            upper.axhline(100 * known[level], color="#555555", ls=style, lw=1, label=level)
        # What fails altogether would squeeze the rest into a line.
        top, low = 100 * max(known), 100 * known["majority"]
        span = max(top - low, 0.5)
        means, bars = 100 * mine["accuracy"], 200 * mine["accuracy_se"]
        least = (means - bars)[means > low - 1.5 * span].min()
        most = max(top, (means + bars).max())
        upper.set_ylim(min(low, least) - 0.15 * span, most + 0.15 * span)
        comparison.draw(lower, mine, STYLES, metric="excess")
        lower.set_yscale("log")
        for row in mine[mine["accuracy"].isna()].to_dict("records"):
            colour, marker = STYLES[row["method"]]
            for axis in (upper, lower):
                where = {"transform": axis.get_xaxis_transform(), "clip_on": False}
                axis.plot(row["epsilon"], 0.0, marker, color=colour, mfc="white", ms=7, **where)
                axis.annotate(
                    f"{row['method']} at ε = {row['epsilon']:g}:\na draw missed its minimum",
                    (row["epsilon"], 0.0), (4, 8), fontsize=7, color=colour,
                    xycoords=axis.get_xaxis_transform(), textcoords="offset points",
                )  # fmt: skip
        upper.set_title(f"{data}, {int(mine['records'].iloc[0]):,} training rows", fontsize=10)
        lower.set_xlabel("ε (δ = 1e-8; replace-one unless said)")
    axes[0, 0].set_ylabel("accuracy on the rows reported, %")
    axes[1, 0].set_ylabel("objective over its minimum")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def figure3(run: Run) -> list[pathlib.Path]:
    """Figure 3: processor seconds a fit, noise calibration included, 50k to 250k rows."""
    import matplotlib.pyplot as plt

    table = pd.DataFrame(run.cells(_TABLES["figure3"]))
    figure, axis = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    for name, mine in table.groupby("method", sort=False):
        colour, marker = STYLES[str(name)]
        style = {"color": colour, "marker": marker, "ms": 4}
        axis.plot(mine["rows"], mine["seconds"], label=name, **style)
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")
    axis.set_xlabel("rows of KDDCup99")
    axis.set_ylabel("processor seconds per fit, calibration included")
    axis.legend(frameon=False, fontsize=8)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    return [run.save_table("figure3", table), run.save_figure("figure3", figure, _SHOWS)]


def sgld(run: Run) -> list[pathlib.Path]:
    """Footnote 3: noisy SGLD at its own noise, accuracy and objective against ε."""
    import matplotlib.pyplot as plt

    rows = run.cells(_TABLES["sgld"])
    first = rows[0]
    mine = [
        row for row in rows if (row["data set"], row["task"]) == (first["data set"], "logistic")
    ]
    epsilons = [row["epsilon"] for row in mine]
    figure, axes = plt.subplots(1, 2, figsize=(8.8, 3.8), layout="constrained")
    axes[0].errorbar(
        epsilons, [100 * row["accuracy"] for row in mine],
        [200 * row["over the noise"] for row in mine], color="#1f4e79", marker="o", ms=4, capsize=2,
        label="noisy SGLD",
    )  # fmt: skip
    axes[0].axhline(100 * first["majority"], color="#555555", ls=":", label="majority")
    axes[0].set_ylabel("accuracy on the rows reported, %")
    axes[1].plot(
        epsilons,
        [row["objective"] for row in mine],
        "o-",
        color="#1f4e79",
        ms=4,
        label="noisy SGLD",
    )
    start = first["objective at the start"]
    axes[1].axhline(start, color="#555555", ls=":", label="the start, w = 0")
    axes[1].set_yscale("log")
    axes[1].set_ylabel("objective")
    axes[1].set_yticks([0.5, 1, 2, 4, 8, 16, 32], ["0.5", "1", "2", "4", "8", "16", "32"])
    for axis in axes:
        axis.set_xscale("log")
        axis.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
        axis.minorticks_off()
        axis.set_xlabel("ε (δ = 1e-8, replace-one)")
        axis.legend(frameon=False, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    shows = (
        "At its own noise SGLD is worse than the most frequent class unless ε is large "
        "(a9a, logistic regression, the best of six step sizes; ±2 standard errors)"
    )
    return [run.save_table("sgld", rows), run.save_figure("sgld", figure, shows)]
