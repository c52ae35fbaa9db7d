"""What of chen2019 holds, from the CSV files of the last run."""

from __future__ import annotations

import math
import pathlib
from typing import NamedTuple

import numpy as np

from experiments.chen2019.methods import BATCH, even_batch
from experiments.chen2019.published import FIGURE_3, FIGURES_1_2, TABLE1
from experiments.report import CONDITIONS, FAILS, HOLDS, NONE, Line, Verdict, table

_AS_2019 = ("RSGD-AR, priced as in 2019", "SGD-MA, add/remove as in 2019")
_BASELINES = ("NSGD", "ObjPert", "OutPert-GD", "DP-AGD")
_EXACT = ("non-private", "non-private, unit rows")  # of the rivals that clip, and of the others
_SCALE = "a9a and Bank whole, 1 split, 3 of its ε, 20 of 100 runs, 8 settings a method"


class _Case(NamedTuple):
    """One data set, task and ε.

    Attributes:
        where: in words. gap: points of the subject over the best rival. error: its standard error.
        rival: the best one. drawn: whether a verdict may be drawn from it.
    """

    where: str
    gap: float
    error: float
    rival: str
    drawn: bool


def _cases(folder: pathlib.Path, own: str, rivals: tuple[str, ...]) -> list[_Case]:
    levels = table(folder, "baseline").set_index(["data set", "task", "method"])["accuracy"]
    found = []
    for name in ("figure1", "figure2"):
        whole = table(folder, name)
        for (data, task, epsilon), mine in whole.groupby(["data set", "task", "epsilon"]):
            rows = mine.set_index("method")
            exact = min(levels[data, task, m] for m in _EXACT)
            majority = levels[data, task, "majority"]
            others = rows.loc[[r for r in rivals if r in rows.index], "accuracy"]
            rival, subject = str(others.idxmax()), float(rows.loc[own, "accuracy"])
            spread = 100 * np.hypot(*rows.loc[[own, rival], "over the noise"])
            # Nothing can be seen where no privacy, or the subject, is close to the majority.
            drawn = exact - majority >= 0.01 and subject - majority > 1e-3
            where = f"{data}, {_task(name)}, ε = {epsilon:g}"
            gap = 100 * (subject - float(others.max()))
            found.append(_Case(where, gap, float(spread), rival, bool(drawn)))
    return found


def _task(where: str) -> str:
    return "logistic" if where == "figure1" else "SVM"


def _contest(folder: pathlib.Path, claim: str, own: str, rivals: tuple[str, ...]) -> Verdict:
    """Ahead by two standard errors, or competitive: at most half a point behind, known to that."""
    cases = _cases(folder, own, rivals)
    drawn = [case for case in cases if case.drawn]
    ahead = [case.gap > 2 * case.error for case in drawn]
    level = [case.gap > -0.5 and case.error < 0.5 for case in drawn]
    kept = [a or c for a, c in zip(ahead, level, strict=True)]
    # Half a point or more behind, or behind by two standard errors; the rest is not known.
    behind = [case.gap <= -max(0.5, 2 * case.error) for case in drawn]
    verdict = HOLDS if all(kept) else CONDITIONS if any(kept) else FAILS
    if not any(kept) and not any(behind):
        verdict = NONE
    told = "; ".join(f"{c.where}: {c.gap:+.1f} ± {c.error:.1f} ({c.rival})" for c in drawn)
    why = (
        f"ahead in {sum(ahead)}, ahead or level in {sum(kept)} of {len(drawn)} cases; points over "
    )
    why += f"the best rival: {told}"
    if len(drawn) < len(cases):
        why += f". {len(cases) - len(drawn)} of {len(cases)} cases left out, where {own} or "
        why += "non-private is close to the majority"
    return Verdict(claim, verdict, why, scale=_SCALE)


def contest_verdicts(folder: pathlib.Path) -> list[Verdict]:
    """RSGD-AR against the others, as priced in 2019 and as priced now."""
    return [
        _contest(
            folder,
            f"{FIGURES_1_2[0]} (RSGD-AR and SGD-MA at their prices of 2019)",
            _AS_2019[0],
            (*_BASELINES, _AS_2019[1]),
        ),
        _contest(
            folder,
            "RSGD-AR still performs competitively, every method priced tightly",
            "RSGD-AR",
            (*_BASELINES, "SGD-MA"),
        ),
        _contest(
            folder,
            "Averaging and restarts help RSGD-AR (against permuted SGD without them)",
            "RSGD-AR",
            ("RSGD (no averaging)",),
        ),
    ]


def noise_verdicts(folder: pathlib.Path) -> list[Verdict]:
    """Randomised sensitivity needs less noise than the worst batch."""
    rows = table(folder, "noise")
    saved = rows["NSGD, exact Gaussian"] / rows["no averaging, direct mixture"]
    published = rows["NSGD, exact Gaussian"] / rows["RSGD-AR as published"]
    verdict = HOLDS if (published > 1).all() else CONDITIONS if (saved > 1).all() else FAILS
    return [
        Verdict(
            "The random position of a record saves noise",
            verdict,
            f"the mixture saves a factor {saved.min():.2f} to {saved.max():.2f} against the exact "
            f"Gaussian for the worst batch; RSGD-AR by the published route needs "
            f"{1 / published.max():.2f} to {1 / published.min():.2f} times NSGD's exact noise",
        )
    ]


def time_verdicts(folder: pathlib.Path) -> list[Verdict]:
    """RSGD-AR is as fast as objective perturbation."""
    whole = table(folder, "figure3")
    rows = whole.pivot_table(index="rows", columns="method", values="seconds")
    ratio = rows["RSGD-AR"] / rows["ObjPert"]
    verdict = HOLDS if (ratio < 1.5).all() else CONDITIONS if (ratio < 1.5).any() else FAILS
    why = f"RSGD-AR takes {ratio.min():.2g} to {ratio.max():.2g} times ObjPert's processor time; "
    why += f"the fastest at {rows.index[-1]:,} rows is {rows.iloc[-1].idxmin()}"
    sizes = f"{len(rows)} of 5 sizes, 1 fit each"
    return [Verdict(FIGURE_3, verdict, why, scale=sizes)]


def accuracy_lines(folder: pathlib.Path) -> list[Line]:
    """Figures 1 and 2, in per cent."""
    lines = []
    for row in table(folder, "baseline").to_dict("records"):
        figure = "Figure 1 (logistic)" if row["task"] == "logistic" else "Figure 2 (SVM)"
        what = f"accuracy %, {row['data set']}, {row['method']}"
        note = f"{row['records']:,} training rows; ± over the rows reported"
        lines.append(
            Line(figure, what, None, 100 * row["accuracy"], 100 * row["standard error"], note)
        )
    for where in ("figure1", "figure2"):
        for row in table(folder, where).to_dict("records"):
            note = f"{row['setting']}; objective over its minimum: {row['excess objective']:.2g}"
            if math.isnan(row["accuracy"]):
                note = f"{row['setting']}; a draw missed its minimum, and releases nothing"
            lines.append(
                Line(
                    f"Figure {where[-1]} ({_task(where)})",
                    f"accuracy %, {row['data set']}, ε = {row['epsilon']:g}, {row['method']}",
                    None,
                    100 * row["accuracy"],
                    100 * row["over the noise"],
                    note,
                )
            )
    return lines


def noise_lines(folder: pathlib.Path) -> list[Line]:
    """σ by the published route and by the direct mixture."""
    rows = table(folder, "noise")
    mine = rows[(rows["step size"] == 1.0) & (rows["epochs"] == 10)]
    return [
        Line(
            "own line",
            f"RSGD-AR's σ, Adult, η₀ = 1, 10 epochs, ε = {row['epsilon']:g}",
            row["RSGD-AR as published"],
            row["RSGD-AR, direct mixture"],
            None,
            f"{row['gain']:.2f} times less noise: {row['of it by conversion']:.2f} by conversion, "
            f"{row['of it by mixture']:.2f} by the mixture",
        )
        for row in mine.to_dict("records")
    ]


def time_lines(folder: pathlib.Path) -> list[Line]:
    """Seconds per fit."""
    rows = table(folder, "figure3")
    largest = rows[rows["rows"] == rows["rows"].max()]
    return [
        Line(
            "Figure 3",
            f"processor seconds, {row['rows']:,} rows of KDDCup99, {row['method']}",
            None,
            row["seconds"],
            None,
            f"{row['of it calibration']:.2g} of it calibrate the noise; accuracy "
            f"{100 * row['accuracy']:.2f} %, without privacy {100 * row['non-private']:.2f} %",
        )
        for row in largest.to_dict("records")
    ]


def data_lines(folder: pathlib.Path) -> list[Line]:
    """Table 1: which data these are."""
    records = {
        "Adult": (48_842, "a9a: equal in every cell to LIBSVM's two files"),
        "Bank": (45_211, "Lee and Kifer's file"),
        "KDDCup99": (494_021, "the public 10 % subset; Figure 3 takes up to 250,000 rows"),
    }
    columns = {"Adult": (124, "123 and a constant"), "Bank": (33, "32 and a constant")}
    lines = [
        Line("Table 1", f"{name}, {what}", TABLE1[name][index], number, None, note)
        for index, what, found in ((0, "records", records), (1, "columns", columns))
        for name, (number, note) in found.items()
    ]
    trained = int(0.8 * records["Adult"][0])
    note = f"4,000 leaves a last batch of {trained % BATCH:,} rows, "
    note += f"{BATCH / (trained % BATCH):.2f} times as sensitive as the others"
    return [*lines, Line("§5", "mini-batch, a9a", BATCH, even_batch(trained), None, note)]


LINES = (data_lines, accuracy_lines, noise_lines, time_lines)
VERDICTS = (contest_verdicts, noise_verdicts, time_verdicts)
