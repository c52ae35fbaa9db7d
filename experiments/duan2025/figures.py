"""The figures and tables of duan2025, drawn from the cells of its protocol."""

from __future__ import annotations

import pathlib

import numpy as np
import pandas as pd

from experiments.common import Rows, Run
from experiments.duan2025.privacy import DELTA, KINDS
from experiments.duan2025.protocol import TABLES
from experiments.duan2025.published import accuracy
from experiments.duan2025.summaries import FREE, by_method, steady_rate

_TABLES = {table.name: table for table in TABLES}
_PRIVACY = (
    "Where the average gradient is short or near a pole, GeoDP loses more privacy than it claims "
    "(B = 2,048)"
)
_NEIGHBOURS = {"aligned": "of norm C", "tenth": "of norm C/10", "pole": "near a pole"}
_TABLE2 = (
    "GeoDP trains worse than DP-SGD; the noise-free run, clipped, stays below the paper's 99.11 %\n"
    "(MNIST, σ = 10, batches of B/16, each row at the best rate that was tried)"
)
_COLOURS = {
    "noise-free, clipped": "k",
    "DP": "#1f4e79",
    "GeoDP": "#b5542b",
    "G3": "#7b4ea3",
    "averaged DP": "#7fa8d1",
}


def privacy(run: Run) -> list[pathlib.Path]:
    """Figure and table: claimed, empirical and exact ε of GeoDP as published."""
    rows = run.cells(_TABLES["privacy"])
    return [run.save_table("privacy", rows), run.save_figure("privacy", _privacy(rows), _PRIVACY)]


def figure5(run: Run) -> list[pathlib.Path]:
    """Figure 5, at the largest step size at which no panel's noise-free loss rises."""
    import matplotlib.pyplot as plt

    rows = run.cells(_TABLES["figure5"])
    frame = pd.DataFrame(rows)
    rate = steady_rate(frame)
    frame = frame[frame["rate"] == rate]
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.4), sharey=True, layout="constrained")
    titles = {"a": "σ = 1", "b": "σ = 10", "c": "B = 256"}
    for axis, (panel, title) in zip(axes, titles.items(), strict=True):
        seen: dict[str, int] = {}
        for (method, sigma, batch), some in frame[frame["panel"] == panel].groupby(
            ["method", "σ", "B"], sort=False
        ):
            name = method.split(" ")[0].removesuffix(",")
            style = ("-", "--", ":")[seen.get(name, 0)]
            seen[name] = seen.get(name, 0) + 1
            noise = "" if method == FREE else f", σ = {sigma:g}"
            colour = _COLOURS[FREE if method == FREE else name]
            axis.plot(some["iteration"], some["loss"], style, color=colour, lw=1.4,
                      label=f"{method}, B = {batch:,}{noise}")  # fmt: skip
        axis.set(xlabel="iteration", title=f"({panel}) {title}")
        axis.legend(fontsize=7, frameon=False)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("training loss")
    shows = f"DP-SGD's loss is level with the noise-free one at step size {rate:g}, the largest at "
    shows += "which that does not rise (odd against even digits, C = 0.1)"
    return [run.save_table("figure5", rows), run.save_figure("figure5", figure, shows)]


def figure5seeds(run: Run) -> list[pathlib.Path]:
    """The ends of Figure 5's curves by further seeds, each at its own best step size."""
    return [run.save_table("figure5seeds", run.cells(_TABLES["figure5seeds"]))]


def noise_free(run: Run) -> list[pathlib.Path]:
    """The networks' own accuracy: no noise, no clipping, ordinary batches."""
    return [run.save_table("noise_free", run.cells(_TABLES["noise_free"]))]


def table2(run: Run) -> list[pathlib.Path]:
    """Table II at σ = 10: DP-SGD, GeoDP, G3 and averaged DP-SGD, and the network without noise."""
    rows = run.cells(_TABLES["table2"])
    return [run.save_table("table2", rows), run.save_figure("table2", _accuracies(rows), _TABLE2)]


def addons(run: Run) -> list[pathlib.Path]:
    """Table II at σ = 10: importance sampling, selective update, AUTO-S and PSAC."""
    return [run.save_table("addons", run.cells(_TABLES["addons"]))]


def selective(run: Run) -> list[pathlib.Path]:
    """Table II at σ = 10, batches of B/64: selective update, both ways of counting."""
    return [run.save_table("selective", run.cells(_TABLES["selective"]))]


def quiet(run: Run) -> list[pathlib.Path]:
    """Table II at σ = 1, on whole batches."""
    return [run.save_table("quiet", run.cells(_TABLES["quiet"]))]


def table3(run: Run) -> list[pathlib.Path]:
    """Table III: a ResNet on CIFAR-10 (JPEG)."""
    return [run.save_table("table3", run.cells(_TABLES["table3"]))]


def figure6(run: Run) -> list[pathlib.Path]:
    """Figure 6: seconds against dimension, alone and with the clipping of a batch."""
    import matplotlib.pyplot as plt

    rows = run.cells(_TABLES["figure6"])
    frame = pd.DataFrame(rows)
    alone, sizes = frame[frame["batch"] == 0], sorted(set(frame["batch"]) - {0})
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    for column, name in (("gaussian_s", "DP"), ("geodp_s", "GeoDP")):
        left.plot(alone["d"], alone[column], "o-", color=_COLOURS[name], label=name)
        for size, style in zip(sizes, ("-", "--", ":", "-."), strict=False):
            some = frame[frame["batch"] == size]
            right.plot(some["d"], some[column] + some["clipping_s"], style, marker=".",
                       color=_COLOURS[name], label=f"{name}, B = {size}")  # fmt: skip
    for axis, title in ((left, "perturbation"), (right, "clipping, averaging and perturbation")):
        axis.set(xscale="log", yscale="log", xlabel="dimension", title=title)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, frameon=False)
    left.set_ylabel("processor seconds")
    shows = "GeoDP's perturbation takes longer than DP-SGD's; beside the clipping of a large batch "
    shows += "it hardly counts"
    return [run.save_table("figure6", rows), run.save_figure("figure6", figure, shows)]


def _accuracies(rows: Rows):
    """Every seed a point, their mean a line, the published accuracy a cross."""
    import matplotlib.pyplot as plt

    frame = pd.DataFrame(rows)
    summary = by_method(frame)
    figure, axis = plt.subplots(figsize=(7.2, 0.55 * len(summary) + 1.3), layout="constrained")
    for at, row in enumerate(summary.to_dict("records")):
        name = row["method"]
        colour = _COLOURS[name if name in _COLOURS else name.split(" ")[0]]
        mine = frame[(frame["method"] == name) & (frame["B"] == row["B"])]
        points = mine["accuracy %"]
        axis.plot(points, np.full(len(points), at), "o", color=colour, mfc="none", ms=6)
        axis.plot([row["accuracy %"]] * 2, [at - 0.25, at + 0.25], color=colour, lw=2)
        printed = accuracy(name, row["B"], row["σ"])
        if printed is not None:
            axis.plot(printed, at, "x", color="0.35", ms=8, mew=2)
    labels = [f"{r['method']}, B = {r['B']:,}" for r in summary.to_dict("records")]
    axis.set_yticks(range(len(labels)), labels)
    axis.invert_yaxis()
    axis.plot([], [], "ko", mfc="none", label="a seed")
    axis.plot([], [], "k-", lw=2, label="mean")
    axis.plot([], [], "x", color="0.35", ms=8, mew=2, label="published")
    axis.legend(frameon=False, fontsize=8)
    axis.set_xlabel("accuracy on 5,000 test images, %")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.3)
    return figure


def _privacy(rows: Rows):
    import matplotlib.pyplot as plt

    dimensions = sorted({row["d"] for row in rows})
    figure, axes = plt.subplots(
        1, len(dimensions), figsize=(4.2 * len(dimensions), 4.8), sharex=True, sharey=True,
        squeeze=False, layout="constrained",
    )  # fmt: skip
    colours = dict(zip(KINDS, ("tab:blue", "tab:orange", "tab:red"), strict=True))
    for axis, d in zip(axes[0], dimensions, strict=True):
        here = [row for row in rows if row["d"] == d]
        sigmas = sorted({row["sigma"] for row in here})
        claimed = {row["sigma"]: row["claimed"] for row in here}
        axis.plot(sigmas, [claimed[s] for s in sigmas], "k-", lw=2.5, label="claimed")
        for kind, colour in colours.items():
            for beta, line, marker in ((0.1, "-", "o"), (1.0, ":", "s")):
                some = [r for r in here if r["neighbours"] == kind and r["beta"] == beta]
                if not some:
                    continue
                x = [r["sigma"] for r in some]
                label = f"{_NEIGHBOURS[kind]}, β = {beta:g}"
                axis.plot(x, [max(r["exact"], 1e-3) for r in some], line, color=colour, lw=1)
                axis.plot(
                    x,
                    [max(r["normal_shift"], 1e-3) for r in some],
                    marker,
                    color=colour,
                    mfc=colour if beta == 0.1 else "white",
                    ms=6,
                    label=label,
                )
        axis.set(xscale="log", yscale="log", xlabel="noise multiplier σ", title=f"d = {d:,}")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel(f"ε at δ = {DELTA:g}, replace-one")
    # At less noise than σ = 0.01 even the claimed ε is above a thousand.
    axes[0][0].set(xlim=(8e-3, 13.0), ylim=(3e-3, 3e4))
    lines, labels = axes[0][-1].get_legend_handles_labels()
    figure.legend(
        lines, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False,
        title="average gradient and bounding factor β; points: audit, 99.9 %; lines in their "
        "colours: exact, solid β = 0.1, dotted β = 1; more than the axis: not drawn",
        title_fontsize=8,
    )  # fmt: skip
    return figure


def future(run: Run) -> list[pathlib.Path]:
    """G3 beside DP-SGD, plain and averaged, under three optimisers at equal proven (ε, δ)."""
    import matplotlib.pyplot as plt

    rows = run.cells(_TABLES["future"])
    lines = list(dict.fromkeys([row.pop("certificate") for row in rows]))
    table = pd.DataFrame(rows)
    names = list(dict.fromkeys(table["optimiser"]))
    epsilons = sorted(set(table["epsilon"]))
    figure, axes = plt.subplots(
        1, len(epsilons), figsize=(6.2 * len(epsilons), 3.8), layout="constrained", sharey=True,
        squeeze=False,
    )  # fmt: skip
    for epsilon, axis in zip(epsilons, axes[0], strict=True):
        for number, method in enumerate(dict.fromkeys(table["method"])):
            mine = table[(table["method"] == method) & (table["epsilon"] == epsilon)]
            found = mine.groupby("optimiser")["accuracy %"].agg(["mean", "sem"]).loc[names]
            axis.errorbar(
                np.arange(len(names)) + 0.15 * (number - 1), found["mean"], 2 * found["sem"],
                fmt="o", color=_COLOURS[method], ms=5, capsize=3, label=method,
            )  # fmt: skip
        axis.set_xticks(range(len(names)), names, fontsize=8)
        axis.set_title(f"ε = {epsilon:g}", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, axis="y")
    axes[0, 0].set_ylabel("accuracy, %")
    figure.supxlabel("optimiser", fontsize=10)
    axes[0, -1].legend(frameon=False, fontsize=8)
    shows = f"At equal proven privacy G3 is {_leads(table)} points from the better rival\n"
    shows += f"(odd digits of MNIST; ±2 standard errors over {table['seed'].nunique()} seeds)"
    saved = run.save_figure("future", figure, shows)
    return [run.save_table("future", rows), saved, run.save_certificates("future", lines)]


def _leads(table: pd.DataFrame) -> str:
    """Points of G3 over the better of its rivals, by optimiser, at the least ε."""
    least = table[table["epsilon"] == table["epsilon"].min()]
    means = least.pivot_table(index="optimiser", columns="method", values="accuracy %")
    lead = means["G3"] - means.drop(columns="G3").max(axis=1)
    return ", ".join(f"{gap:+.1f} ({name})" for name, gap in lead.items())
