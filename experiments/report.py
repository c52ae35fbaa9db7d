"""REPORT.md: published beside measured for every table and figure, and a verdict a claim.

Everything in it is computed from the CSV files of the last run, verdicts included.
"""

from __future__ import annotations

import importlib
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pandas as pd

HOLDS, CONDITIONS, FAILS = "holds", "holds under conditions", "does not hold"
_PAPERS = ("chen2019", "yu2020", "tholeti2021", "chourasia2021", "geodp")
_TITLES = {
    "chen2019": "Chen, Lee and Kifer 2019: Rényi differentially private ERM",
    "yu2020": "Yu et al. 2020: gradient perturbation is underrated",
    "tholeti2021": "Tholeti and Kalyani 2021: perturbed gradient descent",
    "chourasia2021": "Chourasia, Ye and Shokri 2021: dynamics of noisy gradient descent",
    "geodp": "Duan et al. 2025: GeoDP",
}


class Line(NamedTuple):
    """What a paper prints or says, and what came out.

    Attributes:
        where: table or figure. what: the number. published: as printed, or None.
        measured: as measured. error: its standard error, or None where nothing is random.
        note: why they differ, or what the number is.
    """

    where: str
    what: str
    published: float | str | None
    measured: float | str | None
    error: float | None = None
    note: str = ""


class Verdict(NamedTuple):
    """A central claim, one of the three verdicts, and the numbers it rests on."""

    claim: str
    verdict: str
    why: str


class Missing(Exception):
    """A table that has not been run."""


def table(folder: pathlib.Path, name: str) -> pd.DataFrame:
    """`name`.csv of a paper; raises Missing."""
    file = folder / f"{name}.csv"
    if not file.is_file():
        raise Missing(name)
    return pd.read_csv(file)


def report(here: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    """Writes REPORT.md into `out` from the papers' folders in `here`."""
    sections, summary = [], []
    for paper in _PAPERS:
        module = importlib.import_module(f"experiments.{paper}.findings")
        folder = here / paper
        lines, missing = _collect(module.LINES, folder)
        verdicts, gaps = _collect(module.VERDICTS, folder)
        summary += [(paper, verdict) for verdict in verdicts]
        sections.append(_section(paper, folder, lines, sorted({*missing, *gaps})))
    text = "\n\n".join([_HEAD, _summary(summary), *sections, _FOOT])
    file = out / "REPORT.md"
    out.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")
    return file


def _collect(parts: Sequence[Callable], folder: pathlib.Path) -> tuple[list, list[str]]:
    found, missing = [], []
    for part in parts:
        try:
            found += part(folder)
        except Missing as error:
            missing.append(str(error))
    return found, missing


def _summary(verdicts: list[tuple[str, Verdict]]) -> str:
    rows = [f"| {paper} | {v.claim} | **{v.verdict}** | {v.why} |" for paper, v in verdicts]
    head = "| paper | claim | verdict | measured here |\n| --- | --- | --- | --- |"
    return "\n".join(["## Verdicts", "", head, *rows])


def _section(paper: str, folder: pathlib.Path, lines: list[Line], missing: list[str]) -> str:
    rows = [f"## {_TITLES[paper]}", ""]
    rows += [
        "| table or figure | | published | measured | difference | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for line in lines:
        shown = number(line.measured)
        if line.error is not None and not math.isnan(line.error):
            shown += f" ± {line.error:.2g}"
        cells = (line.where, line.what, number(line.published), shown, _gap(line), line.note)
        rows.append("| " + " | ".join(cells) + " |")
    if missing:
        rows += ["", f"Not run yet: {', '.join(missing)}."]
    names = sorted(file.name for file in folder.glob("*.png"))
    if names:
        rows += ["", "Pictures: " + ", ".join(f"[{n}]({paper}/{n})" for n in names) + "."]
    if (folder / "certificates").is_dir():
        files = sorted((folder / "certificates").glob("*.jsonl"))
        count = sum(len(file.read_text().splitlines()) for file in files)
        rows.append(f"Certificates: {count}, in `{paper}/certificates/`, one a line.")
    return "\n".join(rows)


def number(value: float | str | None) -> str:
    """A number to four digits; a dash for none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 and value == int(value) else f"{value:.4g}"


def _gap(line: Line) -> str:
    if isinstance(line.published, str) or isinstance(line.measured, str):
        return "–"
    if line.published is None or line.measured is None:
        return "–"
    gap = line.measured - line.published
    return f"{gap:+,.0f}" if abs(gap) >= 1000 and gap == int(gap) else f"{gap:+.3g}"


_HEAD = """# The papers, re-run

Published beside measured. This page is written by `python -m experiments report` from the CSV files
of the last run, verdicts included; nothing in it is edited by hand. Run anything again with
`python -m experiments <paper> <figure or table>`, with `--full` for the published grid.

"±" is one standard error over repeats. "–" under *published* means that the paper draws a curve and
prints no number. Verdicts are about what was run here: these data sets, grids and budgets."""

_FOOT = """## How to read it

* Budgets are priced by `dpjax.accounting`, tightly, unless a line says "as in 2019" or names
  another way. Both methods of a comparison then have the same proven (ε, δ).
* The neighbouring relation is replace-one unless a line says add/remove. In 2019 and 2020 gradient
  perturbation was priced under add/remove and the others under replace-one, which favours it by a
  factor of two in sensitivity.
* Settings are chosen by mean accuracy on held-out rows, as in the papers. That choice is not
  private; every certificate says so.
* Preprocessing is in `data_sets.py`, one function a data set, with what it reads off the data.
* A certificate is a line of `<paper>/certificates/<figure>.jsonl`: write it to a file and run
  `dpjax verify` on it, or check all with `python -m experiments verify`."""
