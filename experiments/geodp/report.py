"""Fills the tables of README.md from the CSV files of the last run."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Sequence

import pandas as pd

from experiments.common import Rows, Run, fill_report, markdown_table

_TABLES = (
    "privacy",
    "perturbation_summary",
    "figure5_summary",
    "figure6",
    "table2",
    "table2_equal",
    "table2_rates",
    "table3",
    "table3_equal",
)
_TEMPLATE = pathlib.Path(__file__).resolve().parent / "README.md"


def report(run: Run) -> Sequence[pathlib.Path]:
    """Writes the measured tables into the report, between its marks; missing files are left out."""
    file = run.out / "README.md"
    if file != _TEMPLATE:
        shutil.copy(_TEMPLATE, file)
    sections = {}
    for name in _TABLES:
        if (run.out / f"{name}.csv").is_file():
            rows = pd.read_csv(run.out / f"{name}.csv").to_dict("records")
            rows = _privacy(rows) if name == "privacy" else rows
            sections[name] = markdown_table(rows, [c for c in rows[0] if not _aside(c)])
    fill_report(file, sections)
    return [file]


def _aside(column: str) -> bool:
    """Columns of a CSV file that its table in the report leaves out."""
    return column == "learning_rate" or column.startswith("spread")


def _privacy(rows: Rows) -> Rows:
    """The settings of the claims: σ = 1 and the smallest and largest noise of the paper."""
    return [
        {
            "d": row["d"],
            "β": row["beta"],
            "σ": row["sigma"],
            "neighbours": row["neighbours"],
            "claimed ε": row["claimed"],
            "audit, no assumption": row["threshold"],
            "audit, Gaussian fit": row["gaussian_fit"],
            "audit, normal shift": row["normal_shift"],
            "exact ε": row["exact"],
        }
        for row in rows
        if row["sigma"] in (0.1, 1.0, 10.0)
    ]
