"""RESULTS.md, a line a claim; and a page a paper: its verdicts, and published beside measured.

Everything in them is computed from the CSV files of the last run, verdicts included.
"""

from __future__ import annotations

import functools
import importlib
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd
from PIL import Image
from scipy.stats import binomtest
from scipy.stats import t as student

from experiments import edges, protocol

HOLDS, CONDITIONS, FAILS = "holds", "holds under conditions", "does not hold"
NONE = "cannot be decided"
_PAPERS = ("chen2019", "yu2020", "tholeti2021", "chourasia2021", "duan2025")
_TITLES = {
    "chen2019": "Chen, Lee and Kifer 2019: Rényi differentially private ERM",
    "yu2020": "Yu et al. 2020: gradient perturbation is underrated",
    "tholeti2021": "Tholeti and Kalyani 2021: perturbed gradient descent",
    "chourasia2021": "Chourasia, Ye and Shokri 2021: dynamics of noisy gradient descent",
    "duan2025": "Duan et al. 2025: GeoDP",
}

# The picture of each paper on the first page.
_PICTURES = {
    "chen2019": "figure1.png",
    "yu2020": "figure2.png",
    "tholeti2021": "theorem1.png",
    "chourasia2021": "theorem4.png",
    "duan2025": "privacy.png",
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
    """A central claim, one of the verdicts, and the numbers it rests on.

    Attributes:
        claim: as the paper states it. verdict: HOLDS, CONDITIONS, FAILS or NONE.
        why: what was measured. decides: the number that decides.
        otherwise: the number that would have decided otherwise.
        under: the conditions, where the verdict is CONDITIONS.
        published: the paper's number, where it prints one.
        scale: what was run, of what the paper ran.
        changed: why the verdict differs from the one that this page gave before.
        would: where it, or a case of it, cannot be decided: what would decide, and what that costs.
    """

    claim: str
    verdict: str
    why: str
    decides: str
    otherwise: str
    under: str = ""
    published: str = "–"
    scale: str = "–"
    changed: str = ""
    would: str = ""


class Gap(NamedTuple):
    """A difference, its standard error (0 where nothing is random) and the error's freedom.

    Attributes:
        value: of the subject over a rival; NaN where one of them is not known.
        error: its standard error.
        spare: degrees of freedom of that error; infinite where it is known.
        may_be_more: whether the subject's setting lies at the edge of its grid, so that the subject
            may do better. may_be_less: the same of the rival.
    """

    value: float
    error: float
    spare: float = math.inf
    may_be_more: bool = False
    may_be_less: bool = False


class Case(NamedTuple):
    """A number that a claim speaks of, and its standard error (0 where nothing is random).

    Attributes:
        where: the setting, in words.
        value: the number.
        error: its standard error.
        spare: degrees of freedom of that error.
        gaps: where the best of several subjects is compared with the best of several rivals, every
            subject (rows) against every rival (columns).
    """

    where: str
    value: float
    error: float
    spare: float = math.inf
    gaps: tuple[tuple[Gap, ...], ...] = ()


@functools.cache
def errors_apart(spare: float = math.inf, tests: int = 1) -> float:
    """Standard errors that a number is off by chance in 5 % of all tables at most, either way.

    The quantile of Student's t at 1 − 0.025/tests; at least 2.

    >>> errors_apart(), round(errors_apart(4), 3), round(errors_apart(tests=9), 3)
    (2.0, 2.776, 2.773)
    """
    if not spare > 0:
        return math.inf
    return max(2.0, float(student.ppf(1 - 0.025 / tests, spare)))


def is_above(
    value: float, error: float, line: float = 0.0, *, spare: float = math.inf, tests: int = 1
) -> bool | None:
    """Whether a number lies above a line, or below it, beyond chance; None: not known.

    By two standard errors, and more where few runs gave the error or where it is one of several
    tests of a claim (`errors_apart`).

    >>> is_above(1.0, 0.4), is_above(-1.0, 0.4), is_above(1.0, 0.6), is_above(1.0, 0.4, spare=4)
    (True, False, None, None)
    """
    reach = errors_apart(spare, tests) * error if error else error
    if value - reach > line:
        return True
    return False if value + reach < line else None


# Rows that are compared: a table, or a list of its rows.
Compared = pd.DataFrame | Sequence[Mapping]


def compare(
    where: str, own: Compared, rivals: Compared, of: str, error: str, scale: float = 1.0
) -> Case:
    """The best of some rows over the best of others; a row of NaN is of one that is not known.

    Args:
        where: the setting, in words.
        own: the subjects. rivals: those whom they are compared with. Tables, or lists of rows.
        of: the column compared, of which more is better. error: the column of its errors.
        scale: what the numbers are multiplied by.
    """
    gaps = tuple(
        tuple(_gap_between(mine, other, of, error, scale) for other in _each(rivals))
        for mine in _each(own)
    )
    known = [[gap for gap in row if not math.isnan(gap.value)] for row in gaps]
    if not known or not all(known):
        return Case(where, math.nan, math.nan, gaps=gaps)
    best = max((min(row, key=lambda gap: gap.value) for row in known), key=lambda gap: gap.value)
    return Case(where, *best[:3], gaps=gaps)


def _each(rows: Compared) -> list[pd.Series | Mapping]:
    return [row for _, row in rows.iterrows()] if isinstance(rows, pd.DataFrame) else list(rows)


def _gap_between(
    mine: pd.Series | Mapping, other: pd.Series | Mapping, of: str, error: str, scale: float
) -> Gap:
    """A row over another; the splits that both have are compared one by one."""
    both = [row.get("by split") for row in (mine, other)]
    value, apart, spare = (
        _split_by_split(*both)
        if all(isinstance(splits, dict) for splits in both)
        else _difference(
            *(Measured(row[of], row[error], row.get("spare", math.inf)) for row in (mine, other))
        )
    )
    return Gap(scale * value, scale * apart, spare, is_at_edge(mine), is_at_edge(other))


class Measured(NamedTuple):
    """A number, its standard error, and the degrees of freedom of that error."""

    value: float
    error: float
    spare: float


def _difference(mine: Measured, other: Measured) -> Measured:
    """A number over another that is independent of it, with Welch's degrees of freedom."""
    error = math.hypot(mine.error, other.error)
    return Measured(float(mine.value - other.value), error, welch(mine[1:], other[1:]))


def _split_by_split(mine: Mapping[int, Measured], other: Mapping[int, Measured]) -> Measured:
    """The mean difference over the splits that both have, and its error by their spread.

    What a split does to both leaves the difference. One split has the error of its noise alone.
    """
    gaps = [_difference(mine[split], other[split]) for split in mine.keys() & other.keys()]
    if len(gaps) == 1:
        return gaps[0]
    values = pd.Series([gap.value for gap in gaps], dtype=float)
    error = math.nan if values.isna().any() else float(values.sem())
    return Measured(float(values.mean(skipna=False)), error, len(gaps) - 1.0)


def is_at_edge(row: pd.Series | Mapping) -> bool:
    """Whether a row's setting is the last one of its grid, and a further one may be better."""
    return isinstance(row.get("edge"), str) and bool(row["edge"])


def welch(*parts: tuple[float, float]) -> float:
    """Degrees of freedom of a sum of independent errors, by Welch and Satterthwaite.

    Args:
        parts: (standard error, its degrees of freedom) each.

    >>> round(welch((1.0, 4), (1.0, 4)), 1), welch((1.0, math.inf), (0.0, 4))
    (8.0, inf)
    """
    whole = sum(error**2 for error, _ in parts) ** 2
    lost = sum(error**4 / spare for error, spare in parts if error and spare > 0)
    return whole / lost if lost else math.inf


def is_ahead(case: Case, line: float = 0.0, tests: int = 1) -> bool | None:
    """Whether a case lies above a line beyond chance, or below it; None: not known.

    The best subject is ahead if some subject is ahead of every rival, and behind if every subject
    is behind some rival. Each "some" is a choice among several tests. A rival that is not known can
    only refute: it is never beaten; a subject that is not known is never behind. So it is with a
    setting at the edge of its grid, which is known from one side: a further one may be better.
    """
    gaps = case.gaps or ((Gap(case.value, case.error, case.spare),),)
    subjects, rivals = len(gaps), max((len(row) for row in gaps), default=0)
    if not rivals:
        return None
    above = [
        [
            is_above(g.value, g.error, line, spare=g.spare, tests=tests * subjects)
            and not g.may_be_less
            for g in row
        ]
        for row in gaps
    ]
    if any(all(one is True for one in row) for row in above):
        return True
    below = [
        [
            None
            if g.may_be_more
            else is_above(g.value, g.error, line, spare=g.spare, tests=tests * rivals)
            for g in row
        ]
        for row in gaps
    ]
    return False if all(any(one is False for one in row) for row in below) else None


def every(right: pd.Series, *known_by: pd.Series) -> bool | None:
    """Whether a condition is met at every point; None: where a number of it is missing.

    >>> number = pd.Series([1.0, math.nan])
    >>> every(number > 0, number), every(number > 2, number), every(number[:1] > 0, number[:1])
    (None, False, True)
    """
    known = pd.concat(known_by, axis=1).notna().all(axis=1)
    if (known & ~right).any():
        return False
    return True if len(known) and known.all() else None


def over_splits(rows: pd.DataFrame) -> pd.DataFrame:
    """Accuracy by method, its mean over splits, and its error: over the noise and the splits.

    The column "spare" has the degrees of freedom of that error, by the runs and the splits; "edge"
    is that of the splits whose setting lies at one; "by split" has every split, by its seed, or by
    its place where the rows do not say theirs.
    """
    found: dict[str, tuple[float, float, float, str, dict[int, Measured]]] = {}
    for name, mine in rows.groupby("method", sort=False):
        splits, runs = len(mine), mine.get("runs", pd.Series(math.inf, mine.index))
        places = pd.Series(range(splits), mine.index)
        seeds = mine.get("seed", places).fillna(places)
        single = {
            int(seed): Measured(float(share), float(error), float(count) - 1)
            for seed, share, error, count in zip(
                seeds, mine["accuracy"], mine["over the noise"], runs, strict=True
            )
        }
        noise = [(one.error / splits, one.spare) for one in single.values()]
        apart = (float(mine["accuracy"].sem()), splits - 1.0) if splits > 1 else (0.0, math.inf)
        found[name] = (
            mine["accuracy"].mean(skipna=False),
            math.hypot(*(error for error, _ in (*noise, apart))),
            welch(*noise, apart),
            "; ".join(sorted({*filter(None, mine.get("edge", []))})),
            single,
        )
    columns = ["accuracy", "over the noise", "spare", "edge", "by split"]
    return pd.DataFrame.from_dict(found, orient="index", columns=columns)


def by_seed(values: Iterable[float], seeds: Iterable[int]) -> dict[int, Measured]:
    """Runs of one method by their seeds, which have no error of their own.

    Methods that share a seed share its start and its batches, as those of a split share its rows.
    """
    return {
        int(seed): Measured(float(value), math.nan, math.nan)
        for seed, value in zip(seeds, values, strict=True)
    }


def are_most(count: int, of: int, tests: int = 1) -> bool | None:
    """Whether an event has a probability above one half, by its 95 % interval; None: not known.

    The interval is wider where it is one of several tests of a claim.

    >>> are_most(12, 12), are_most(0, 15), are_most(11, 15), are_most(12, 15, tests=3)
    (True, False, None, None)
    """
    if not of:
        return None
    low, high = binomtest(int(count), int(of)).proportion_ci(1 - 0.05 / tests)
    return True if low > 0.5 else False if high < 0.5 else None


def among(found: dict[str, bool | None]) -> tuple[str, str]:
    """The verdict on a claim from its cases, and the conditions under which it holds.

    >>> among({"a": True, "b": False, "c": False})
    ('holds under conditions', 'a; not b; not c')
    >>> among({"a": False, "b": None})[0], among({})[0]
    ('does not hold', 'cannot be decided')
    """
    yes, no, open_ = ([w for w, f in found.items() if f is x] for x in (True, False, None))
    if not yes:
        return (FAILS if no else NONE), ""
    if not no and not open_:
        return HOLDS, ""
    parts = (
        "; ".join(yes),
        "; ".join(f"not {where}" for where in no),
        open_ and "not known: " + "; ".join(open_),
    )
    return CONDITIONS, "; ".join(p for p in parts if p)


def would_decide(verdict: str, under: str, what: str) -> str:
    """`what`, where a verdict or one of its cases is open; nothing where all is decided.

    >>> would_decide(NONE, "", "an hour"), would_decide(HOLDS, "", "an hour")
    ('an hour', '')
    """
    return what if verdict == NONE or "not known" in under else ""


def among_cases(cases: Sequence[Case], line: float = 0.0, left: int = 0) -> tuple[str, str]:
    """The verdict on a claim that every number lies above a line, and its conditions.

    The cases are as many tests of one claim: level data decide in 5 % of all tables at most. So are
    those that were `left` out by what they came to.
    """
    return among({c.where: is_ahead(c, line, len(cases) + left) for c in cases})


def spread(cases: Sequence[Case], unit: str = "") -> str:
    """From the least to the largest number of the cases, with its error where one is known."""
    cases = [c for c in cases if not math.isnan(c.value)]
    if not cases:
        return "no case"
    ends = min(cases, key=lambda c: c.value), max(cases, key=lambda c: c.value)
    shown = " to ".join(
        f"{c.value:.3g}" + (f" ± {c.error:.1g}" if c.error > 0 else "") for c in ends
    )
    return f"{shown}{unit}, {len(cases)} case{'s' * (len(cases) > 1)}"


class Missing(Exception):
    """A table that has not been run."""


def require(there: Iterable[object], names: Iterable[str], table: str) -> None:
    """Raises Missing where a table has no row of a name that its claim is about."""
    absent = sorted({*names} - {*there})
    if absent:
        raise Missing(f"{table} ({', '.join(absent)})")


def table(folder: pathlib.Path, name: str) -> pd.DataFrame:
    """`name`.csv of a paper, its settings at an edge of their grids marked; raises Missing."""
    file = folder / f"{name}.csv"
    if not file.is_file():
        raise Missing(name)
    return edges.marked(folder.name, name, pd.read_csv(file))


def setting_of(row: Mapping) -> str:
    """A row's setting in words, and the edge of its grid that it lies at."""
    return row["setting"] + edges_of(row)


def edges_of(row: Mapping) -> str:
    """The edges that a row's setting lies at, or those of its splits; empty where all are inside.

    >>> edges_of({"edge": "rate (least); steps (largest)"})
    ' (edge: rate (least)) (edge: steps (largest))'
    """
    if not is_at_edge(dict(row)):
        return ""
    return "".join(f" (edge: {words})" for words in row["edge"].split("; "))


def report(here: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    """Writes RESULTS.md and the papers' RESULTS.md into `out`, from the folders in `here`."""
    links, every = [], []
    for paper in _PAPERS:
        module = importlib.import_module(f"experiments.{paper}.findings")
        folder = here / paper
        lines, missing = _collect(module.LINES, folder)
        parts = [functools.partial(_judged, judge, names) for judge, *names in module.VERDICTS]
        verdicts, gaps = _collect(parts, folder)
        asked = {n[1:] for _, *names in module.VERDICTS for n in names if n[0] == "?"}
        unrun = {name for name in asked if not (folder / f"{name}.csv").is_file()}
        missing = sorted({*missing, *gaps, *(unrun if verdicts else ())})
        every += [(paper, v) for v in verdicts]
        links.append(_link(paper, folder, missing))
        page = out / paper / "RESULTS.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        parts = _page(paper, folder, verdicts, lines, missing)
        # What a page has of its own: words, then tables.
        own = [*getattr(module, "NOTES", ()), *_grids(getattr(module, "GRIDS", ()), folder)]
        place = parts.index(_PUBLISHED)
        page.write_text("\n\n".join([*parts[:place], *own, *parts[place:]]) + "\n")
    file = out / "RESULTS.md"
    parts = [_HEAD, _first(every), "## The papers, and every number", "\n".join(links), _FOOT]
    file.write_text("\n\n".join(parts) + "\n")
    return file


def _judged(judge: Callable[..., Verdict], names: Sequence[str], folder: pathlib.Path) -> list:
    return [judge(*tables_of(folder, names))]


def tables_of(folder: pathlib.Path, names: Sequence[str]) -> list[pd.DataFrame]:
    """The tables of a verdict; one whose name begins with "?" is left out where it was not run."""
    there = [n for n in names if n[0] != "?" or (folder / f"{n[1:]}.csv").is_file()]
    return [table(folder, name.removeprefix("?")) for name in there]


def _grids(makers: Sequence[tuple], folder: pathlib.Path) -> list[str]:
    """Tables that a page has beside its lines; (title, folder -> table) each."""
    parts = []
    for title, make in makers:
        try:
            frame = make(folder)
        except Missing:
            continue
        rows = [[*frame.columns], ["---"] * frame.shape[1], *frame.to_numpy().tolist()]
        told = "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)
        parts.append(f"**{title}**\n\n{told}")
    return parts


def _without_unknown(told: str) -> str:
    """The numbers of a verdict, without an error where one run has none."""
    return told.replace(" ± nan", "")


def _first(every: Sequence[tuple[str, Verdict]]) -> str:
    """The table that the report opens with."""
    rows = ["| paper | claim | verdict | the number that decides | it would decide otherwise |"]
    rows += ["| --- | --- | --- | --- | --- |"]
    for paper, v in every:
        decides = _without_unknown(v.decides)
        rows.append(f"| {paper} | {v.claim} | {v.verdict} | {decides} | {v.otherwise} |")
    return "\n".join(rows)


def _collect(parts: Sequence[Callable], folder: pathlib.Path) -> tuple[list, list[str]]:
    found, missing = [], []
    for part in parts:
        try:
            found += part(folder)
        except Missing as error:
            missing.append(str(error))
    return found, missing


def _link(paper: str, folder: pathlib.Path, missing: list[str]) -> str:
    """A paper on the first page: where its numbers and its picture are, and what was not run."""
    told = f"* {paper}: [{_TITLES[paper]}]({paper}/RESULTS.md)."
    picture = folder / _PICTURES[paper]
    if picture.is_file():
        told += f" [{_shown(picture)}]({paper}/{picture.name})."
    return told + (f" Not run yet: {', '.join(missing)}." if missing else "")


def _judge(paper: str, folder: pathlib.Path, verdicts: list[Verdict]) -> str:
    """The verdicts on a paper's own page: a line a claim, those that changed, one picture."""
    rows = ["## Verdicts", "", "| claim | published | measured | run / published | verdict |"]
    rows += ["| --- | --- | --- | --- | --- |"]
    for v in verdicts:
        said = f"**{v.verdict}**" + (f": {v.under}" if v.under else "")
        why = _without_unknown(v.why)
        rows.append(f"| {v.claim} | {v.published} | {why} | {v.scale} | {said} |")
    changed = [v for v in verdicts if v.changed]
    if changed:
        rows += ["", "| verdict that changed | before, and the cause |", "| --- | --- |"]
        rows += [f"| {v.claim}: {v.verdict} | {v.changed} |" for v in changed]
    open_ = [v for v in verdicts if v.would]
    if open_:
        rows += ["", "| not decided, or not in all cases | what would decide, and what it costs |"]
        rows += ["| --- | --- |", *(f"| {v.claim} | {v.would} |" for v in open_)]
    picture = folder / _PICTURES[paper]
    if picture.is_file():
        rows += ["", f"![{_shown(picture)}]({picture.name})"]
    return "\n".join(rows)


def _page(
    paper: str,
    folder: pathlib.Path,
    verdicts: list[Verdict],
    lines: list[Line],
    missing: list[str],
) -> list[str]:
    """A paper's own page: verdicts, its protocol, its tables, then published beside measured."""
    rows = [
        "| table or figure | | published | measured | difference | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for line in lines:
        shown = number(line.measured)
        if line.error is not None and not math.isnan(line.error):
            shown += f" ± {line.error:.2g}"
        cells = (line.where, line.what, number(line.published), shown, _gap(line), line.note)
        rows.append("| " + " | ".join(cells) + " |")
    parts = [f"# {_TITLES[paper]}", _PAGE_HEAD, _judge(paper, folder, verdicts)]
    parts += [*_protocol(paper), _PUBLISHED]
    parts.append("\n".join(rows))
    if missing:
        parts.append(f"Not run yet: {', '.join(missing)}.")
    pictures = [f"* [{f.name}]({f.name}): {_shown(f)}." for f in sorted(folder.glob("*.png"))]
    if pictures:
        parts.append("\n".join(["Pictures, and what they show:", "", *pictures]))
    if (folder / "certificates").is_dir():
        files = sorted((folder / "certificates").glob("*.jsonl"))
        count = sum(len(file.read_text().splitlines()) for file in files)
        parts.append(f"Certificates: {count}, in `certificates/`, one a line.")
    return parts


def _shown(picture: pathlib.Path) -> str:
    """The sentence that a picture has with it."""
    with Image.open(picture) as image:
        return " ".join(str(image.info.get("Description", "no sentence")).split())


def _protocol(paper: str) -> list[str]:
    """The protocol's tables, three columns each."""
    known = protocol.tables(paper)
    if not known:
        return []
    parts = ["## Protocol"]
    for one in known.values():
        rows = [f"**{one.name}**: {one.about}.", "", "| | published | small | full |"]
        rows.append("| --- | --- | --- | --- |")
        small, full = one.small.words(), one.full.words()
        for name in protocol.ENTRIES:
            said = one.published.get(name, "not said")
            also = full[name] if full[name] != small[name] else "as small"
            rows.append(f"| {name} | {said} | {small[name]} | {also} |")
        parts.append("\n".join(rows))
    return parts


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


_PUBLISHED = "## Published and measured"
_HEAD = """# The papers, re-run

Each claim, what came out, the number that decides it and the number that would have decided
otherwise. A claim holds, or does not, by two standard errors at least, and *cannot be decided*
where they reach across the line; the papers' pages name conditions, and what would decide the rest.
`python -m experiments report` writes all pages from the tables of the last run, verdicts included.
Run anything again with `python -m experiments <paper> <figure or table>`, `--full` for the
published grid; `python -m experiments status` counts what was run. Verdicts are about these data
sets, grids and budgets."""

_PAGE_HEAD = """Written by `python -m experiments report`. The number that decides each verdict is
in [RESULTS.md](../RESULTS.md). "±" is one standard error over repeats. "–" means that the paper
prints no number, or that the table has no protocol yet; "run / published" is the scale of the run
over the paper's."""

_FOOT = """## How to read it

* Budgets are priced by `dpjax.accounting`, tightly, unless a line says "as in 2019" or names
  another way: both methods of a comparison have the same proven (ε, δ).
* The neighbouring relation is replace-one unless a line says add/remove. In 2019 and 2020 gradient
  perturbation was priced under add/remove and the others under replace-one, which favours it by a
  factor of two in sensitivity.
* Settings are chosen by mean accuracy on held-out rows, as in the papers. That choice is not
  private; every certificate says so. A setting at the edge of its grid is marked: its method may do
  better further out, so that it can show that it is ahead, and not that it is behind.
* A number is a function of its seed, of the code and of the library's version, times aside. A cell
  is run again where the code of its paper has changed, not where the library has.
* Data sets that are not at hand run on files of your own: the papers' pages say how.
* A certificate is a line of `<paper>/certificates/<figure>.jsonl`; `dpjax verify` reads one,
  `python -m experiments verify` checks all."""
