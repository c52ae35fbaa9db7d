"""Table 4 and Figure 2, drawn from the cells: accuracy against ε beside what the paper prints."""

from __future__ import annotations

import pathlib

import pandas as pd

from experiments import comparison
from experiments.common import Rows, Run
from experiments.yu2020.methods import STYLES
from experiments.yu2020.protocol import TABLES
from experiments.yu2020.published import TABLE4, TABLE4_EPSILON

_TABLES = {table.name: table for table in TABLES}


def baseline(run: Run) -> list[pathlib.Path]:
    """Accuracy without privacy and of the most frequent class, on the rows reported."""
    return [run.save_table("baseline", run.cells(_TABLES["baseline"]))]


def table4(run: Run) -> list[pathlib.Path]:
    """Table 4 and Figure 2: accuracy against ε; crosses are the numbers that Table 4 prints."""
    return _drawn(run, "table4", run.cells(_TABLES["table4"]))


def mnist(run: Run) -> list[pathlib.Path]:
    """Table 4's MNIST: softmax regression at the paper's ε."""
    rows = run.cells(_TABLES["mnist"])
    lines = [row.pop("certificate") for row in rows]
    return [run.save_table("mnist", rows), run.save_certificates("mnist", lines)]


def _drawn(run: Run, name: str, rows: Rows) -> list[pathlib.Path]:
    import matplotlib.pyplot as plt

    lines = [row.pop("certificate") for row in rows]
    table = pd.DataFrame(rows)
    sets = list(dict.fromkeys(table["data set"]))
    figure, axes = plt.subplots(
        1, len(sets), figsize=(6.0 * len(sets), 4.4), layout="constrained", squeeze=False
    )
    for data, axis in zip(sets, axes[0], strict=True):
        mine = table[table["data set"] == data]
        drawn = mine.rename(columns={"over the noise": "accuracy_se"})
        levels = {"non-private, as printed": TABLE4[data]["NP"] / 100}
        comparison.draw(axis, drawn, STYLES, lines=levels)
        for number, (method, value) in enumerate(TABLE4[data].items()):
            if method in STYLES:
                where = TABLE4_EPSILON[data] * 0.94 ** (number - 2)  # side by side
                axis.plot(where, value, "x", color=STYLES[method][0], ms=8, mew=2, zorder=5)
        axis.plot([], [], "x", color="#333333", ms=8, mew=2, label="as printed (Table 4)")
        axis.set_title(f"{data}, {int(mine['records'].iloc[0]):,} training rows", fontsize=10)
        axis.set_xlabel("ε (δ = 1/n²; replace-one unless said)")
    axes[0, 0].set_ylabel("accuracy on the rows reported, %")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle("yu2020, Table 4 and Figure 2", fontsize=10)
    saved = run.save_figure("figure2", figure)
    return [run.save_table(name, rows), saved, run.save_certificates(name, lines)]
