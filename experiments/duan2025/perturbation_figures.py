"""Figures 1, 3 and 4, drawn from the errors that `perturbation` measures."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, ScalarFormatter

from experiments.common import Rows, Run
from experiments.duan2025.protocol import BETAS, FIGURE4_BETAS, TABLES

# One colour a method, one line a quantity.
_METHODS = (
    ("DP", "k", "o", "DP"),
    ("GeoDP", "tab:red", "s", "GeoDP (no guarantee)"),
    ("G3", "tab:purple", "^", "G3 (DP's guarantee)"),
)
_THETA, _GRADIENT = ("theta_mse", "-", "θ"), ("gradient_mse", "--", "g")
_ANGLE = ("angle_squared", "-", "angle")
_NAMES = {"sigma": "noise multiplier σ", "d": "dimension d", "B": "batch size B"}
_TITLES = {
    "theta_mse": "error of the paper's angles, ‖θ* − θ‖²",
    "gradient_mse": "error of the gradient, ‖g* − g‖²",
    "angle_squared": "squared angle between g* and g",
}


_TABLE = next(table for table in TABLES if table.name == "perturbation")


def perturbation(run: Run) -> Sequence[pathlib.Path]:
    """Figures 1, 3 and 4: errors of directions and of gradients of one release."""
    rows = run.cells(_TABLE)
    drawn = (
        ("figure1", _figure1, "GeoDP with β = 1 has larger angles than DP-SGD at every noise"),
        ("figure3", _figure3, "A small β shrinks GeoDP's errors by leaving out noise"),
        (
            "figure4",
            _figure4,
            "GeoDP's gradients err less than DP-SGD's and, but for a small β, its angles more",
        ),
    )
    return [
        run.save_table("perturbation", rows),
        *(run.save_figure(name, draw(rows), shows) for name, draw, shows in drawn),
    ]


def _figure1(rows: Rows):
    """Figure 1: errors of directions and of gradients against the noise multiplier, β = 1."""
    d, batch = _middle(rows)
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.9), layout="constrained")
    for axis, quantity in zip(axes, (_THETA, _GRADIENT, _ANGLE), strict=True):
        _panel(axis, rows, "sigma", 1.0, (quantity,), d=d, B=batch)
        axis.set_title(_TITLES[quantity[0]], fontsize=10)
    random = axes[2].axhline(np.pi**2 / 4, color="0.5", ls=":", lw=1)
    lines, names = axes[0].get_legend_handles_labels()
    names = [name.removesuffix(", θ") for name in names]
    axes[0].legend([*lines, random], [*names, "a random direction"], fontsize=8)
    axes[0].set_ylabel("mean squared error")
    axes[1].annotate(f"d = {d:,}, B = {batch:,}, β = 1", (0.04, 0.94), xycoords="axes fraction",
                     va="top", fontsize=8)  # fmt: skip
    return figure


def _figure3(rows: Rows):
    """Figure 3: the same against σ, d and B (rows) for β = 1, 0.1 and 0.01 (columns)."""
    d, batch = _middle(rows)
    large_b = _batch_of_dimensions(rows)
    wide_d = max(r["d"] for r in rows if r["sigma"] == 8.0 and r["B"] == min(_values(rows, "B")))
    layout = (
        ("sigma", f"d = {d:,}, B = {batch:,}", {"d": d, "B": batch}),
        ("d", f"σ = 8, B = {large_b:,}", {"sigma": 8.0, "B": large_b}),
        ("B", f"d = {wide_d:,}, σ = 8", {"sigma": 8.0, "d": wide_d}),
    )
    figure, axes = plt.subplots(3, 3, figsize=(12, 10.5), sharey="row", layout="constrained")
    for row, (x, title, fixed) in zip(axes, layout, strict=True):
        for axis, beta in zip(row, reversed(BETAS), strict=True):
            _panel(axis, rows, x, beta, (_THETA, _GRADIENT), **fixed)
            axis.set_title(f"{title}, β = {beta:g}", fontsize=10)
        row[0].set_ylabel("mean squared error")
    _legend_below(figure, axes[0][0], columns=6)
    return figure


def _figure4(rows: Rows):
    """Figure 4: errors against the bounding factor; DP-SGD and G3 do not depend on it."""
    batch = _batch_of_dimensions(rows)
    some = {r["d"] for r in rows if r["sigma"] == 8.0 and r["B"] == batch}
    dims = sorted(some, reverse=True)[:3]
    figure, axes = plt.subplots(
        2,
        len(dims),
        figsize=(3.8 * len(dims), 6.2),
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    best = _best_g3(rows)
    for column, d in enumerate(dims):
        fixed = {"sigma": 8.0, "d": d, "B": batch}
        for axis, measure in zip(axes[:, column], ("theta_mse", "gradient_mse"), strict=True):
            for method, colour, _, label in _METHODS:
                if method == "GeoDP":
                    curve = [
                        _select(rows, measure, f"GeoDP {b:g}", **fixed)[1][-1]
                        for b in FIGURE4_BETAS
                    ]
                    axis.plot(FIGURE4_BETAS, curve, "s-", color=colour, ms=5, label=label)
                else:
                    source = best if method == "G3" else rows
                    level = _select(source, measure, method, **fixed)[1][-1]
                    axis.axhline(level, color=colour, ls={"DP": "-", "G3": "--"}[method],
                                 label=label)  # fmt: skip
            axis.set(yscale="log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=9))
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.grid(alpha=0.3)
        axes[0][column].set_title(f"d = {d:,}, σ = 8, B = {batch:,}", fontsize=10)
        axes[1][column].set_xlabel("bounding factor β")
    axes[0][0].set_ylabel("angles, ‖θ* − θ‖²")
    axes[1][0].set_ylabel("gradient, ‖g* − g‖²")
    _legend_below(figure, axes[0][0], columns=3)
    return figure


def _panel(axis, rows, x, beta, quantities, **fixed) -> None:
    """The paper's curves, and the sound geometric mechanism at DP's guarantee."""
    best = _best_g3(rows)
    for measure, style, symbol in quantities:
        for name, colour, marker, label in _METHODS:
            method = f"GeoDP {beta:g}" if name == "GeoDP" else name
            some, values = _select(best if name == "G3" else rows, measure, method, **fixed)
            order = np.argsort([r[x] for r in some])
            at, value = [some[i][x] for i in order], [values[i] for i in order]
            options = {"marker": marker, "color": colour, "ms": 4, "lw": 1.3}
            axis.plot(at, value, style, **options, label=f"{label}, {symbol}")
    axis.set(xscale="log", yscale="log", xlabel=_NAMES[x])
    axis.minorticks_off()
    if x != "sigma":
        axis.xaxis.set_major_locator(NullLocator())
        axis.set_xticks(at[::2] if len(at) > 4 else at)
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(alpha=0.3)


def _legend_below(figure, axis, columns: int) -> None:
    lines, labels = axis.get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=columns, fontsize=8.5)


def _select(rows, measure, method, **fixed):
    some = [r for r in rows if r["method"] == method and all(r[k] == v for k, v in fixed.items())]
    return some, [r[measure] for r in some]


def _best_g3(rows: Rows) -> Rows:
    """G3 at the radius with the smallest gradient error in each setting."""
    groups: dict[tuple, list] = {}
    for r in rows:
        if r["method"].startswith("G3"):
            groups.setdefault((r["sigma"], r["d"], r["B"]), []).append(r)
    return [{**min(g, key=lambda r: r["gradient_mse"]), "method": "G3"} for g in groups.values()]


def _values(rows: Rows, column: str) -> list:
    return sorted({r[column] for r in rows})


def _middle(rows: Rows) -> tuple[int, int]:
    """The d and B at which σ is varied."""
    some = next(r for r in rows if r["sigma"] != 8.0)
    return some["d"], some["B"]


def _batch_of_dimensions(rows: Rows) -> int:
    """The B at which d is varied."""
    smallest = min(_values(rows, "d"))
    return max(r["B"] for r in rows if r["sigma"] == 8.0 and r["d"] == smallest)
