"""What ε buys on a table, beside every tool that installs: `python -m benchmarks.tables`.

    python -m benchmarks.tables --data FOLDER [--interpret PYTHON] [--diffprivlib PYTHON]
        [--dpmm PYTHON] [--only METHOD …] [--tables TABLE …] [--epsilon 1 4] [--keys 0 1 2]

Tables (`benchmarks.table_data`) × methods (`benchmarks.table_methods`) × ε × keys; PYTHON is an
interpreter that has the library. A cell that was measured is kept in `--cache FOLDER`: a run that
was cut goes on, a further run adds cells, `--again` measures anew. Every run writes the report from
all that is kept (`--report` alone does no more than that), and says which cells are missing. Tables
whose target is a number have a report of their own, `numbers.md` beside the other.

dpjax is ahead of a peer, or behind it, where the mean of the differences over keys (both have the
same records at a key) is beyond two standard errors of it; else level: of cells without a
difference one of nine is called ahead or behind with five keys, one of five with three. The best
peer of a cell is chosen by its result there, which favours it. A peer that gave up, was cut off or
was not run has not lost; dpjax without a model, or with one that gave up, has the area of equal
chances.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import dpjax
from benchmarks import table_data
from benchmarks.table_methods import METHODS, Outcome, Scores

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "tables.md"
NUMBERS = "numbers.md"  # beside it: the tables whose target is a number
DATA = ROOT.parent / "shared" / "data"
CACHE = pathlib.Path(tempfile.gettempdir()) / "dpjax-tables"
EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
KEYS = (0, 1, 2, 3, 4)
OURS = ("dpjax", "dpjax, classes declared", "dpjax, all declared", "dpjax train")
PEERS = tuple(name for name, one in METHODS.items() if one.private and one.library != "dpjax")
LIMITS = tuple(name for name, one in METHODS.items() if not one.private)
LEAST_NEPS, MOST_GAP = 1e4, 0.01  # from this n·ε on the model without privacy is so near at least


class Cell(NamedTuple):
    """What one line of the cache is about; ε is None of a method without privacy."""

    table: str
    method: str
    epsilon: float | None
    key: int


Results = dict[Cell, Outcome]


class Cache:
    """Results in a file of one JSON line a cell; the last line of a cell counts."""

    def __init__(self, folder: pathlib.Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.file = folder, folder / "results.jsonl"
        self._lock = threading.Lock()

    def read(self) -> Results:
        """All cells that are known; a line that was cut off while it was written is none."""
        found: Results = {}
        if not self.file.exists():
            return found
        for line in self.file.read_text().splitlines():
            try:
                said = json.loads(line)
            except json.JSONDecodeError:
                continue
            cell = Cell(said["table"], said["method"], said["epsilon"], said["key"])
            found[cell] = Outcome(
                Scores(**said["scores"]),
                said["seconds"],
                said["hidden"],
                said["failed"],
                said["cut_off"],
            )
        return found

    def add(self, line: str) -> None:
        """Keep what a worker printed."""
        with self._lock, self.file.open("a") as file:
            file.write(line.strip() + "\n")


# --- versions ------------------------------------------------------------------------------------

_DISTRIBUTIONS = {
    "dpjax": ("jax", "scikit-learn"),
    "interpret": ("interpret-core",),
    "diffprivlib": ("diffprivlib",),
    "dpmm": ("dpmm",),
}
_ASK = """
import importlib.metadata, sys
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in sys.argv[1:]))
"""


def note_versions(cache: Cache, pythons: dict[str, str | None]) -> list[str]:
    """Versions of the libraries that are there now or were in an earlier run of the cache."""
    file = cache.folder / "versions.json"
    known: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    for library, python in pythons.items():
        if python is not None:
            done = subprocess.run(
                [python, "-c", _ASK, *_DISTRIBUTIONS[library]],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            known[library] = done.stdout.strip() or f"{library} of an unknown version"
    file.write_text(json.dumps(known))
    return [known[library] for library in _DISTRIBUTIONS if library in known]


# --- runs ----------------------------------------------------------------------------------------


class Group(NamedTuple):
    """The cells of a table and a method."""

    table: table_data.Table
    method: str
    cells: tuple[tuple[float | None, int], ...]


def list_groups(
    tables: Iterable[table_data.Table],
    methods: Sequence[str],
    epsilons: Sequence[float],
    keys: Sequence[int],
    known: Iterable[Cell],
) -> list[Group]:
    """What is left to run: key by key, so that the first keys are there first."""
    have, groups = set(known), []
    for table in tables:
        for method in methods:
            budgets: Sequence[float | None] = table.epsilons or epsilons
            if not METHODS[method].private:
                budgets = (None,)
            cells = [
                (budget, key)
                for key in keys
                for budget in budgets
                if Cell(table.name, method, budget, key) not in have
            ]
            if cells:
                groups.append(Group(table, method, tuple(cells)))
    return groups


class Worker:
    """A process that has a library, and is told of one table and method after the other."""

    def __init__(self, python: str, limit: float):
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.table_methods", "--limit", str(limit)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    def run(self, group: Group, folder: pathlib.Path) -> Iterator[str]:
        """A line for each cell; what a library prints besides is none. Fewer where it died."""
        asked = {"table": group.table.name, "method": group.method, "folder": str(folder)}
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(asked | {"cells": group.cells}) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            if line.startswith('{"done"'):
                return
            if line.startswith('{"table"'):
                yield line
        process.wait()  # it died: nothing more comes

    def close(self) -> int:
        """Let it end, and say how it did."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        ended_with = self._process.wait()
        self._process.stdout.close()
        return ended_with

    @property
    def is_alive(self) -> bool:
        """Whether it can be told of another table."""
        return self._process.poll() is None


def run_groups(
    groups: Sequence[Group], python: str, cache: Cache, data: pathlib.Path, limit: float
) -> None:
    """Draw what is not on the disk, and keep each line of a worker as it comes."""
    worker = None
    for group in groups:
        folder = cache.folder / "tables" / group.table.slug
        for key in sorted({key for _, key in group.cells}):
            if not (folder / str(key) / "public.json").exists():
                group.table.draw(data, key).write(folder / str(key))
        worker = worker if worker is not None and worker.is_alive else Worker(python, limit)
        for line in worker.run(group, folder):
            cache.add(line)
            print(group.table.name, group.method, line.strip()[:200], sep="  ", flush=True)
        if not worker.is_alive:
            print(f"{group.table.name}, {group.method}: ended with {worker.close()}", flush=True)
    if worker is not None:
        worker.close()


# --- verdicts ------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """How dpjax stands to a peer in one cell of the table."""

    word: str  # "ahead", "behind", "level"; "none" where nothing can be said
    difference: float = math.nan  # dpjax's score less the peer's, mean over keys
    error: float = math.nan  # its standard error


def judge(ours: dict[int, float], theirs: dict[int, float]) -> Verdict:
    """Two standard errors of the differences at the keys that both have."""
    differences = [ours[key] - theirs[key] for key in sorted(ours.keys() & theirs.keys())]
    if len(differences) < 2:
        return Verdict("none")
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    if abs(mean) <= 2 * error:
        return Verdict("level", mean, error)
    return Verdict("ahead" if mean > 0 else "behind", mean, error)


def score_of(outcome: Outcome) -> float:
    """What is compared, more being better: the area, of a regression the error with a minus."""
    found = outcome.scores
    return found.area if math.isnan(found.error) else -found.error


def by_key(results: Results, table: str, method: str, epsilon: float | None) -> dict[int, float]:
    """The scores of a cell by key; dpjax has the area of equal chances where it gave up."""
    found = {}
    for cell, outcome in results.items():
        if cell[:3] != (table, method, epsilon) or outcome.cut_off:
            continue
        if not outcome.failed:
            found[cell.key] = score_of(outcome)
        elif method in OURS and not is_regression(results, table):
            found[cell.key] = 0.5
    return found


def is_regression(results: Results, table: str) -> bool:
    """Whether errors were measured on a table, and not areas."""
    return any(
        cell.table == table and not math.isnan(outcome.scores.error)
        for cell, outcome in results.items()
    )


# --- the report ----------------------------------------------------------------------------------


def show(values: Iterable[float], digits: int = 3) -> str:
    """Mean ± standard error, without the zero before the point."""
    found = [value for value in values if not math.isnan(value)]
    if not found:
        return "–"
    mean = f"{statistics.fmean(found):.{digits}f}".removeprefix("0")
    if len(found) < 2:
        return f"{mean} (one key)"
    error = statistics.stdev(found) / math.sqrt(len(found))
    return f"{mean} ± " + f"{error:.{digits}f}".removeprefix("0")


def show_scores(values: Sequence[float]) -> str:
    """Mean ± standard error of areas, or of errors, which are kept with a minus."""
    shown = [abs(value) for value in values]
    return show(shown, 3 if max(shown, default=0.0) <= 1 else 2)


def show_cell(results: Results, table: str, method: str, epsilon: float | None) -> str:
    """The score of a method in one cell, or why there is none."""
    outcomes = [found for cell, found in results.items() if cell[:3] == (table, method, epsilon)]
    if not outcomes:
        return ""
    kept = [found for found in outcomes if not found.failed and not found.cut_off]
    if not kept:
        return "over the limit" if any(found.cut_off for found in outcomes) else "gave up"
    values = [abs(score_of(found)) for found in kept]
    hidden = sum(bool(found.hidden) for found in kept)
    return show(values, 3 if values[0] <= 1 else 2) + (f" ({hidden} hidden)" if hidden else "")


def show_judgements(results: Results, tables: Sequence[table_data.Table]) -> list[str]:
    """Wins and losses of each default against each peer, and the cells that were lost."""
    lines = ["| dpjax's | against | ahead | level | behind | no figure of the peer |"]
    lines += ["|---|---|---:|---:|---:|---:|"]
    lost = []
    for own in OURS:
        for peer in (*PEERS, "best peer"):
            count = dict.fromkeys(("ahead", "level", "behind", "none"), 0)
            for table in tables:
                for epsilon in table.epsilons or EPSILONS:
                    if not (ours := by_key(results, table.name, own, epsilon)):
                        continue
                    name, theirs = peer, by_key(results, table.name, peer, epsilon)
                    if peer == "best peer":
                        name, theirs = find_best(results, table.name, epsilon)
                    found = judge(ours, theirs)
                    count[found.word] += 1
                    if found.word == "behind" and peer == "best peer":
                        lost.append((own, table.name, epsilon, name, ours, theirs, found))
            if sum(count.values()):
                cells = " | ".join(str(number) for number in count.values())
                lines.append(f"| {own} | {peer} | {cells} |")
    lines += ["", "## Where dpjax is behind the best peer", ""]
    if not lost:
        return [*lines, "In no cell that was measured."]
    lines += ["| dpjax's | table | ε | peer | dpjax | peer | difference |"]
    lines += ["|---|---|---:|---|---:|---:|---:|"]
    for own, table, epsilon, name, ours, theirs, found in lost:
        common = ours.keys() & theirs.keys()
        two = (show([abs(side[key]) for key in common]) for side in (ours, theirs))
        lines.append(
            f"| {own} | {table} | {epsilon:g} | {name} | {' | '.join(two)} | "
            f"{found.difference:+.4f} ± {found.error:.4f} |"
        )
    return lines


def find_best(results: Results, table: str, epsilon: float) -> tuple[str, dict[int, float]]:
    """The peer with the largest mean score in a cell: chosen by its result, which favours it."""
    scores = {peer: by_key(results, table, peer, epsilon) for peer in PEERS}
    known = {peer: found for peer, found in scores.items() if len(found) > 1}
    if not known:
        return "", {}
    best = max(known, key=lambda peer: statistics.fmean(known[peer].values()))
    return best, known[best]


def show_hidden(results: Results, tables: Sequence[table_data.Table]) -> list[str]:
    """Where noise hid the classes at a key: dpjax beside the best peer, told as much as that."""
    lines = ["| table | ε | no model in | the best peer | its area | dpjax, told | area | |"]
    lines += ["|---|---:|---:|---|---:|---|---:|---|"]
    for table in tables:
        for epsilon in table.epsilons or EPSILONS:
            cells = {
                cell: found
                for cell, found in results.items()
                if cell[:3] == (table.name, OURS[0], epsilon)
            }
            hidden = sum(bool(found.hidden or found.failed) for found in cells.values())
            if not hidden:
                continue
            name, theirs = find_best(results, table.name, epsilon)
            for own, told in zip(OURS[:3], ("nothing", "classes", "all"), strict=True):
                ours = by_key(results, table.name, own, epsilon)
                word = judge(ours, theirs).word if ours else "not measured"
                shown = [show_scores([*side.values()]) if side else "–" for side in (theirs, ours)]
                lines.append(
                    f"| {table.name} | {epsilon:g} | {hidden} of {len(cells)} | {name} | "
                    f"{shown[0]} | {told} | {shown[1]} | {word} |"
                )
    return lines if len(lines) > 2 else ["In no cell that was measured."]


_BY_SIZE = ("Adult, 500 rows", "Adult, 2,000 rows", "Adult", "Bank")


def show_by_size(
    results: Results, tables: Sequence[table_data.Table], records: dict[str, int]
) -> list[str]:
    """What records times ε buy by the default that is told nothing, of tables that people know."""
    lines = ["| table | ε | records × ε | area | the best peer | its area |"]
    lines += ["|---|---:|---:|---:|---|---:|"]
    for table in tables:
        for epsilon in EPSILONS if table.name in _BY_SIZE else ():
            cells = by_key(results, table.name, OURS[0], epsilon)
            if not cells or table.name not in records:
                continue
            name, theirs = find_best(results, table.name, epsilon)
            lines.append(
                f"| {table.name} | {epsilon:g} | {records[table.name] * epsilon:,.0f} | "
                f"{show_scores([*cells.values()])} | {name} | {show_scores([*theirs.values()])} |"
            )
    return lines if len(lines) > 2 else ["No such cell was measured."]


def measure_gaps(plain: dict[int, float], own: dict[int, float]) -> dict[int, float]:
    """By key how far the model without privacy is ahead: in area, or as a part of its error."""
    gaps = {}
    for key in sorted(plain.keys() & own.keys()):
        gap = plain[key] - own[key]
        # An error has the unit of its target, and stands here with a minus.
        gaps[key] = gap if plain[key] >= 0 else gap / -plain[key]
    return gaps


def show_gaps(
    results: Results, tables: Sequence[table_data.Table], records: dict[str, int]
) -> list[str]:
    """Where n·ε is large: how far the linear model without privacy is ahead of either default."""
    lines = ["| table | n·ε | without privacy | dpjax's | private | gap | |"]
    lines += ["|---|---:|---:|---|---:|---:|---|"]
    for table in tables:
        plain = by_key(results, table.name, LIMITS[0], None)
        for epsilon in table.epsilons or EPSILONS:
            size = records.get(table.name, 0) * epsilon
            for name in OURS[:2]:
                own = by_key(results, table.name, name, epsilon)
                gaps = measure_gaps(plain, own)
                found = judge(gaps, dict.fromkeys(gaps, 0.0))
                if size < LEAST_NEPS or found.word == "none":
                    continue
                limit, private = (show_scores([side[k] for k in gaps]) for side in (plain, own))
                said = "" if found.difference <= MOST_GAP else f"beyond {MOST_GAP:g}"
                lines.append(
                    f"| {table.name} | {size:,.0f} | {limit} | {name} | {private} | "
                    f"{found.difference:.4f} ± {found.error:.4f} | {said} |"
                )
    return lines if len(lines) > 2 else ["No such cell was measured with both."]


_FURTHER = {"accuracy": "Accuracy", "log_loss": "Log-loss", "calibration": "Calibration error"}


def show_table(results: Results, table: table_data.Table) -> list[str]:
    """One table's areas (or errors) by method and ε, and the other figures at the middle ε."""
    epsilons = table.epsilons or EPSILONS
    shown = {name: [by_key(results, table.name, name, e) for e in epsilons] for name in METHODS}
    regression = any(value < 0 for cells in shown.values() for c in cells for value in c.values())
    lines = ["", f"### {table.name}", "", "Root mean squared error:" if regression else "Area:", ""]
    lines += [f"| | {' | '.join(f'ε = {epsilon:g}' for epsilon in epsilons)} |"]
    lines += ["|---" + "|---:" * len(epsilons) + "|"]
    for name, method in METHODS.items():
        budgets: list[float | None] = [*epsilons] if method.private else [None]
        cells = [show_cell(results, table.name, name, budget) for budget in budgets]
        if any(cells):
            cells += [""] * (len(epsilons) - len(cells))
            lines.append(f"| {name} | {' | '.join(cells)} |")
    middle = 1.0 if 1.0 in epsilons else epsilons[0]
    names = ["seconds"] if regression else [*_FURTHER.values(), "seconds"]
    lines += ["", f"At ε = {middle:g}:", "", f"| | {' | '.join(names)} |"]
    lines += ["|---" + "|---:" * len(names) + "|"]
    for name, method in METHODS.items():
        budget = middle if method.private else None
        kept = [
            found for cell, found in results.items()
            if cell[:3] == (table.name, name, budget) and not found.failed and not found.cut_off
        ]  # fmt: skip
        if kept:
            figures = [] if regression else [
                show(getattr(found.scores, field) for found in kept) for field in _FURTHER
            ]  # fmt: skip
            seconds = statistics.median(found.seconds for found in kept)
            lines.append(f"| {name} | {' | '.join([*figures, f'{seconds:.1f}'])} |")
    return lines


class Asked(NamedTuple):
    """What a run was asked for; the whole benchmark where nothing was said."""

    methods: Sequence[str] = tuple(METHODS)
    epsilons: Sequence[float] = EPSILONS
    keys: Sequence[int] = KEYS


WHOLE = Asked()


def list_missing(
    results: Results, tables: Sequence[table_data.Table], asked: Asked = WHOLE
) -> list[str]:
    """Cells that were asked for and that were not run, by method."""
    lines = []
    for method in asked.methods:
        groups = list_groups(tables, [method], asked.epsilons, asked.keys, results)
        left = sum(len(group.cells) for group in groups)
        if left:
            which = ", ".join(f"{group.table.name} ({len(group.cells)})" for group in groups)
            lines.append(f"* {method}: {left} cells not run: {which}.")
    gave_up: dict[tuple[str, str], list[str]] = {}
    for cell, found in results.items():
        if found.failed or found.cut_off:
            said = found.failed or f"cut off after {found.seconds:.0f} processor seconds"
            gave_up.setdefault((cell.method, cell.table), []).append(said)
    for (method, table), said in gave_up.items():
        text = " ".join(said[-1].split())[:120].replace("|", "/")
        lines.append(f"* {method}, {table}: {len(said)} cells without a result ({text}).")
    return lines or ["None."]


_GIVEN = """Everybody is given the names of the columns. Beside them:

* dpjax: nothing (kinds, ranges, categories and classes are released within ε), or the classes, or
  all that diffprivlib is given; of a number its range is what is released or declared.
* DP-EBM: which columns hold numbers, and their public ranges (wide and round, by what a column
  means), or none, where it takes them off the records, which no ε covers. It reads the classes off
  the records in both, and counts categories with noise.
* diffprivlib: ranges, and the categories and classes of the whole file. Pure ε (δ = 0). Its linear
  model has the regulariser that dpjax takes for objective perturbation, which is better than its
  default; the forest is as it comes.
* MST of dpmm: ranges, categories, classes; a tenth of ε for bins. scikit-learn's boosted trees
  learn the synthetic table.
* Without privacy: scikit-learn on dpjax's features at ε = 1,000, and its boosted trees on the
  records.

δ = 1e-5, or 1/(10 records) if that is smaller. Every key draws its own records."""


class Page(NamedTuple):
    """One report: its title, which of its tables the defaults were chosen on, what a gap is."""

    title: str
    chosen: str
    gap: str


OF_CLASSES = Page(
    "What ε buys on a table",
    "The clothes and Boston were chosen after the defaults were fixed.",
    "Area under the curve, and how much of it is missing.",
)
OF_NUMBERS = Page(
    "What ε buys on a table whose target is a number",
    "The defaults were chosen on ages, balances and claims; the other two tables came later.",
    "Root mean squared error, and by which part of itself it is larger.",
)


def report(
    results: Results,
    tables: Sequence[table_data.Table],
    records: dict[str, int],
    said: str,
    page: Page = OF_CLASSES,
    asked: Asked = WHOLE,
) -> str:
    """The whole page of these tables."""
    text = [f"# {page.title}", "", said, "", f"{_GIVEN} {page.chosen}", ""]
    text += ["Mean ± standard error over keys. " + " ".join(__doc__.split("\n\n")[-1].split()), ""]
    text += ["## Ahead, level, behind", "", *show_judgements(results, tables), ""]
    if page is OF_CLASSES:
        text += ["## Where the noise hides the classes", "", *show_hidden(results, tables), ""]
        text += ["## By records times ε", "", *show_by_size(results, tables, records), ""]
    text += [f"## Beside the same model without privacy, from n·ε = {LEAST_NEPS:,.0f} on", ""]
    text += [page.gap, "", *show_gaps(results, tables, records), ""]
    text += ["## Table by table"]
    for table in tables:
        if any(cell.table == table.name for cell in results):
            text += show_table(results, table)
    return "\n".join([*text, "", "## Not measured", "", *list_missing(results, tables, asked), ""])


def count_records(cache: Cache, tables: Iterable[table_data.Table]) -> dict[str, int]:
    """Records to train on, of the tables that are drawn."""
    counts = {}
    for table in tables:
        for file in (cache.folder / "tables" / table.slug).glob("*/train.csv"):
            with file.open() as lines:
                counts[table.name] = sum(1 for _ in lines) - 1
            break
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    known_tables = (*table_data.TABLES, *table_data.NUMBERS)
    names = [table.name for table in known_tables]
    parser.add_argument("--data", type=pathlib.Path, default=DATA)
    parser.add_argument("--cache", type=pathlib.Path, default=CACHE)
    for library in ("interpret", "diffprivlib", "dpmm"):
        parser.add_argument(f"--{library}", metavar="PYTHON")
    parser.add_argument("--only", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--tables", nargs="+", choices=names, default=names)
    parser.add_argument("--epsilon", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--keys", nargs="+", type=int, default=KEYS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=600.0, help="processor seconds a cell")
    parser.add_argument("--again", action="store_true", help="measure known cells anew")
    parser.add_argument("--report", action="store_true", help="write the report and end")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    cache = Cache(options.cache)
    named = {table.name: table for table in known_tables}
    tables = [named[name] for name in options.tables]
    absent = [one for one in tables if one.file and not (options.data / one.file).exists()]
    for table in absent:
        print(f"skipped: {table.name}, {options.data / (table.file or '')} is absent", flush=True)
    pythons = {"dpjax": sys.executable} | {
        library: getattr(options, library) for library in ("interpret", "diffprivlib", "dpmm")
    }
    methods = [name for name in options.only if pythons[METHODS[name].library]]
    for name in options.only:
        if name not in methods:
            print(f"skipped: {name}, give --{METHODS[name].library} PYTHON", flush=True)
    if not options.report:
        known: Iterable[Cell] = () if options.again else cache.read()
        left = [table for table in tables if table not in absent]
        groups = list_groups(left, methods, options.epsilon, options.keys, known)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            runs = [
                pool.submit(run_groups, own, python, cache, options.data, options.limit)
                for library, python in pythons.items()
                if python
                and (own := [one for one in groups if METHODS[one.method].library == library])
            ]
            for run in runs:
                run.result()
    versions = [f"dpjax {dpjax.__version__}", *note_versions(cache, pythons)]
    kept = ""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        kept = " What was compiled for an earlier cell was kept on disk, as the command does it."
    narrowed = {"only": METHODS, "tables": names, "epsilon": EPSILONS, "keys": KEYS}
    words = [
        f" --{name} " + " ".join(json.dumps(w) if isinstance(w, str) else f"{w:g}" for w in given)
        for name, whole in narrowed.items()
        if [*(given := getattr(options, name))] != [*whole]
    ]
    said = (
        f"Written by `python -m benchmarks.tables{''.join(words)}`; "
        f"{os.cpu_count()} cores that others used too."
        f"{kept}"
        f"\n\n<!-- {', '.join(versions)} -->"
    )
    records, results = count_records(cache, known_tables), cache.read()
    asked = Asked(options.only, options.epsilon, options.keys)
    pages = (
        (OF_CLASSES, table_data.TABLES, options.out),
        (OF_NUMBERS, table_data.NUMBERS, options.out.with_name(NUMBERS)),
    )
    for page, whole, file in pages:
        part = [table for table in whole if table.name in options.tables]
        own = {table.name for table in part}
        kept = {cell: found for cell, found in results.items() if cell.table in own}
        if kept:
            file.write_text(report(kept, part, records, said, page, asked))


if __name__ == "__main__":
    main()
