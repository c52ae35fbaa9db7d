"""The figures and tables of duan2025, drawn from the cells of its protocol."""

from __future__ import annotations

import pathlib

from experiments.common import Rows, Run
from experiments.duan2025.privacy import DELTA, KINDS
from experiments.duan2025.protocol import TABLES

_TABLES = {table.name: table for table in TABLES}
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
    return [run.save_table("privacy", rows), run.save_figure("privacy", _privacy(rows))]


def figure5(run: Run) -> list[pathlib.Path]:
    """Figure 5, at the largest step size at which no panel's noise-free loss rises."""
    rows = run.cells(_TABLES["figure5"])
    return [run.save_table("figure5", rows)]


def noise_free(run: Run) -> list[pathlib.Path]:
    """The networks' own accuracy: no noise, no clipping, ordinary batches."""
    return [run.save_table("noise_free", run.cells(_TABLES["noise_free"]))]


def table2(run: Run) -> list[pathlib.Path]:
    """Table II at σ = 10: the claim's rows, and the mechanisms that have DP-SGD's proven ε."""
    rows = run.cells(_TABLES["table2"])
    return [run.save_table("table2", rows)]


def addons(run: Run) -> list[pathlib.Path]:
    """Table II at σ = 10: importance sampling, selective update, AUTO-S and PSAC."""
    return [run.save_table("addons", run.cells(_TABLES["addons"]))]


def quiet(run: Run) -> list[pathlib.Path]:
    """Table II at σ = 1, on whole batches."""
    return [run.save_table("quiet", run.cells(_TABLES["quiet"]))]


def table3(run: Run) -> list[pathlib.Path]:
    """Table III: a ResNet on CIFAR-10 (JPEG)."""
    return [run.save_table("table3", run.cells(_TABLES["table3"]))]


def figure6(run: Run) -> list[pathlib.Path]:
    """Figure 6: seconds against dimension, alone and with the clipping of a batch."""
    rows = run.cells(_TABLES["figure6"])
    return [run.save_table("figure6", rows)]


def _privacy(rows: Rows):
    import matplotlib.pyplot as plt

    dimensions = sorted({row["d"] for row in rows})
    figure, axes = plt.subplots(
        1, len(dimensions), figsize=(4.6 * len(dimensions), 4.4), sharey=True, squeeze=False
    )
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
                label = f"{kind}, β = {beta:g}"
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
    axes[0][-1].legend(fontsize=8, title="points: audit, 99.9 %; lines: exact", title_fontsize=8)
    figure.suptitle("GeoDP as published: claimed privacy and measured privacy loss, B = 2,048")
    figure.tight_layout()
    return figure
