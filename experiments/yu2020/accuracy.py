"""Table 4 and Figure 2, drawn from the cells: accuracy against ε beside what the paper prints."""

from __future__ import annotations

import pathlib

import pandas as pd

from experiments import comparison
from experiments.common import Rows, Run
from experiments.yu2020.methods import STYLES
from experiments.yu2020.protocol import TABLES
from experiments.yu2020.published import TABLE4, TABLE4_EPSILON

_SHOWS = (
    "Gradient perturbation (DP-GD, DP-SGD) leads by many points on MNIST and by few on Adult; "
    "±2 standard errors"
)
_SHOWS_KDD = (
    "On KDDCup99, of which the paper prints nothing, objective perturbation (AMP)\n"
    "is level with gradient perturbation; ±2 standard errors"
)
_TABLES = {table.name: table for table in TABLES}


def baseline(run: Run) -> list[pathlib.Path]:
    """Adult's accuracy without privacy and of the most frequent class, on the rows reported."""
    return [run.save_table("baseline", run.cells(_TABLES["baseline"]))]


def baseline_mnist(run: Run) -> list[pathlib.Path]:
    """The same of MNIST."""
    return [run.save_table("baseline_mnist", run.cells(_TABLES["baseline_mnist"]))]


def baseline_kddcup99(run: Run) -> list[pathlib.Path]:
    """The same of KDDCup99."""
    return [run.save_table("baseline_kddcup99", run.cells(_TABLES["baseline_kddcup99"]))]


def kddcup99(run: Run) -> list[pathlib.Path]:
    """KDDCup99, which footnote 4 speaks of and the paper does not show."""
    rows, levels = (run.cells(_TABLES[name]) for name in ("kddcup99", "baseline_kddcup99"))
    drawn = _drawn("kddcup99", run, rows, levels, _SHOWS_KDD)
    return [*_saved(run, "kddcup99"), drawn]


def table4(run: Run) -> list[pathlib.Path]:
    """Table 4's Adult: accuracy of every method against ε."""
    return _saved(run, "table4")


def kddcup99_inside(run: Run) -> list[pathlib.Path]:
    """KDDCup99's replace-one rows at settings inside their grids."""
    return _saved(run, "kddcup99_inside")


def adult(run: Run) -> list[pathlib.Path]:
    """Adult's replace-one rows by several splits and the paper's 20 runs."""
    return _saved(run, "adult")


def sparse_baseline(run: Run) -> list[pathlib.Path]:
    """The accuracies without privacy of real-sim and RCV1, on files of the user's own."""
    return [run.save_table("sparse_baseline", run.cells(_TABLES["sparse_baseline"]))]


def sparse(run: Run) -> list[pathlib.Path]:
    """Table 4's real-sim and RCV1, on files of the user's own in `libsvm/`."""
    return _saved(run, "sparse")


def mnist(run: Run) -> list[pathlib.Path]:
    """Table 4's MNIST, and Figure 2 of both data sets; crosses are what Table 4 prints."""
    saved = _saved(run, "mnist")
    rows = run.cells(_TABLES["table4"]) + run.cells(_TABLES["mnist"])
    levels = run.cells(_TABLES["baseline"]) + run.cells(_TABLES["baseline_mnist"])
    return [*saved, _drawn("figure2", run, rows, levels, _SHOWS)]


def _saved(run: Run, name: str) -> list[pathlib.Path]:
    rows = run.cells(_TABLES[name])
    lines = [row.pop("certificate") for row in rows]
    return [run.save_table(name, rows), run.save_certificates(name, lines)]


def _drawn(name: str, run: Run, rows: Rows, levels: Rows, shows: str) -> pathlib.Path:
    import matplotlib.pyplot as plt

    table = pd.DataFrame(rows).drop(columns="certificate")
    known = pd.DataFrame(levels)
    sets = list(dict.fromkeys(table["data set"]))
    figure, axes = plt.subplots(
        1, len(sets), figsize=(6.0 * len(sets), 4.4), layout="constrained", squeeze=False
    )
    for data, axis in zip(sets, axes[0], strict=True):
        mine = table[table["data set"] == data]
        drawn = mine.rename(columns={"over the noise": "accuracy_se"})
        own = known[(known["data set"] == data) & (known["method"] == "non-private")]
        printed = TABLE4.get(data, {})
        lines = {"non-private, as printed": printed["NP"] / 100} if printed else {}
        lines["non-private, measured"] = own["accuracy"].mean()
        comparison.draw(axis, drawn, STYLES, lines=lines)
        for method, value in printed.items():
            if method in STYLES:
                axis.plot(
                    TABLE4_EPSILON[data], value, "x", color=STYLES[method][0], ms=8, mew=2, zorder=5
                )
        axis.set_xlim(0.88 * table["epsilon"].min(), 1.14 * table["epsilon"].max())
        if printed:
            axis.plot([], [], "x", color="#333333", ms=8, mew=2, label="as printed (Table 4)")
        axis.set_title(f"{data}, {int(mine['records'].iloc[0]):,} training rows", fontsize=10)
        axis.set_xlabel("ε (δ = 1/n²; replace-one unless said)")
    axes[0, 0].set_ylabel("accuracy on the rows reported, %")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return run.save_figure(name, figure, shows)
