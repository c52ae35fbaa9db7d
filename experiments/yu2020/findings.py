"""What of yu2020 holds, from the CSV files of the last run."""

from __future__ import annotations

import pathlib
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.report import CONDITIONS, FAILS, HOLDS, NONE, Line, Verdict, table
from experiments.yu2020.published import TABLE2, TABLE4, TABLE4_EPSILON

_GRADIENT = ("DP-GD", "DP-SGD")
_OTHERS = ("AMP", "Out-SGD")
_REACHES = 0.5  # points from the published noise-free accuracy, or nothing is compared
_FLAT = "ν = 0"
_BEATS = "Gradient perturbation beats objective and output perturbation by a large margin"
_FULL = "DP-GD is at least as good as DP-SGD (Table 4)"


def table2_lines(folder: pathlib.Path) -> list[Line]:
    """Minimum and average curvature."""
    lines = []
    for row in table(folder, "table2").to_dict("records"):
        minimum, average = TABLE2[row["data set"]]
        name = row["data set"]
        for what, published in (("minimum", minimum), ("average", average)):
            measured = row[f"{what} measured"]
            lines.append(
                Line("Table 2", f"{what} curvature, {name}", published, measured, None, row["note"])
            )
    return lines


def figure1_lines(folder: pathlib.Path) -> list[Line]:
    """Expected curvature with little and much noise."""
    lines = []
    for name, mine in table(folder, "figure1").groupby("data set", sort=False):
        first, last = mine.iloc[0], mine.iloc[-1]
        lines.append(
            Line(
                "Figure 1",
                f"ν at noise {last['noise in the iterate']:g}, {name}",
                TABLE2[str(name)][1],
                last["expected curvature"],
                None,
                f"published: the average curvature it tends to; at noise "
                f"{first['noise in the iterate']:g} it is {first['expected curvature']:.3g}",
            )
        )
    return lines


def table4_lines(folder: pathlib.Path) -> list[Line]:
    """Accuracies without privacy, averaged over the splits."""
    lines = []
    levels = _levels(folder)
    for (data, method), mine in levels.groupby(["data set", "method"], sort=False):
        printed = TABLE4[data]["NP"] if method == "non-private" else None
        # One split has the error of its rows, several that of their mean.
        error = mine["accuracy"].sem() if len(mine) > 1 else mine["standard error"].iloc[0]
        over = f"{len(mine)} splits" if len(mine) > 1 else "the rows reported"
        note = f"{mine['records'].iloc[0]:,} training rows; ± over {over}"
        mean = 100 * mine["accuracy"].mean()
        what = f"accuracy %, {data}, {method}"
        lines.append(Line("Table 4", what, printed, mean, 100 * error, note))
    return lines


def _levels(folder: pathlib.Path) -> pd.DataFrame:
    """Accuracy without privacy and of the most frequent class, a row a split."""
    return pd.concat([table(folder, name) for name in ("baseline", "baseline_mnist")])


def _accuracy_lines(folder: pathlib.Path, name: str) -> list[Line]:
    lines = []
    for row in table(folder, name).to_dict("records"):
        data, epsilon = row["data set"], row["epsilon"]
        printed = None
        if np.isclose(epsilon, TABLE4_EPSILON[data]):
            printed = TABLE4[data][row["method"].partition(", ")[0]]
        lines.append(
            Line(
                "Table 4" if printed else "Figure 2",
                f"accuracy %, {data}, ε = {epsilon:g}, {row['method']}",
                printed,
                100 * row["accuracy"],
                100 * row["over the noise"],
                f"{row['setting']}, chosen among {row['settings tried']} on other rows; "
                f"{row['runs']} runs, ± over their noise",
            )
        )
    return lines


def adult_lines(folder: pathlib.Path) -> list[Line]:
    """Adult at every ε."""
    return _accuracy_lines(folder, "table4")


def mnist_lines(folder: pathlib.Path) -> list[Line]:
    """MNIST at the paper's ε."""
    return _accuracy_lines(folder, "mnist")


def bound_lines(folder: pathlib.Path) -> list[Line]:
    """Theorem 1 beside the run."""
    lines = []
    for epsilon, mine in table(folder, "bound").groupby("epsilon"):
        row = mine.iloc[-1]
        lines.append(
            Line(
                "Theorem 1",
                f"excess risk of DP-GD, Adult, ε = {epsilon:g}, T = {row['steps']:g}",
                row["bound, smallest curvature so far"],
                row["excess risk"],
                row["standard error"],
                f"published: the bound with ν = {row['smallest curvature so far']:.3g}, as "
                f"measured; with μ = λ it is {row['bound, minimum curvature']:.3g}",
            )
        )
    return lines


def curvature_verdicts(folder: pathlib.Path) -> list[Verdict]:
    """ν against μ."""
    curves = table(folder, "figure1")
    above = curves["expected curvature"] / curves["minimum curvature"]
    ends = curves.groupby("data set").last()
    off = (ends["expected curvature"] / ends["average curvature"] - 1).abs().max()
    return [
        Verdict(
            "Expected curvature is much larger than minimum curvature, and tends to the average",
            HOLDS if above.min() > 1 and off < 0.05 else CONDITIONS,
            f"{above.min():.3g} to {above.max():.3g} times the minimum on the four data sets, "
            f"within {100 * off:.1f} % of the average at the largest noise; but what counts is the "
            "noise in the iterate, ησ: at the small ησ of a private run ν is set by the start, "
            "not by the average",
        )
    ]


def accuracy_verdicts(folder: pathlib.Path) -> list[Verdict]:
    """Gradient perturbation against the others, at every ε, replace-one."""
    found = [
        _compared(folder, data, name) for data, name in (("Adult", "table4"), ("MNIST", "mnist"))
    ]
    ahead = [one for compared in found for one in compared.ahead]
    level = [one for compared in found for one in compared.level]
    scale = "Adult and MNIST whole, 5 of 20 runs, 4 settings a method"
    return [
        Verdict(
            _BEATS,
            _among(ahead),
            "the better of DP-GD and DP-SGD over the better of AMP and Out-SGD, points at equal "
            "replace-one (ε, 1/n²): " + "; ".join(f"{c.levels}: {c.leads}" for c in found),
            published="+1.6 on Adult at ε = 0.1, +16.7 on MNIST at ε = 1",
            scale=scale,
        ),
        Verdict(
            _FULL,
            _among(level),
            "points, replace-one: " + "; ".join(f"{c.data}: {c.pairs}" for c in found),
            published="+0.5 on Adult at ε = 0.1, +1.1 on MNIST at ε = 1",
            scale=scale,
        ),
    ]


class _Compared(NamedTuple):
    """A data set's part of the verdicts; none of `ahead` and `level` where none may be drawn."""

    data: str
    levels: str
    leads: str
    pairs: str
    ahead: list[bool]
    level: list[bool]


def _compared(folder: pathlib.Path, data: str, name: str) -> _Compared:
    levels = _levels(folder)
    levels = levels[levels["data set"] == data].groupby("method")["accuracy"]
    exact, majority = (100 * levels.mean()[m] for m in ("non-private", "majority"))
    gap = exact - TABLE4[data]["NP"]
    told = (
        f"{data} (non-private {exact:.1f}, published {TABLE4[data]['NP']:g}; "
        f"majority {majority:.1f})"
    )
    # A table that misses the published noise-free line shows its numbers and no verdict.
    drawn = abs(gap) <= _REACHES and exact - majority >= 1.0
    leads, pairs = [], []
    for epsilon, mine in table(folder, name).groupby("epsilon"):
        rows = mine.set_index("method")
        ours, others = (rows.loc[list(group)] for group in (_GRADIENT, _OTHERS))
        ours = ours[100 * ours["accuracy"] > majority + 0.5]
        if ours.empty:  # it predicts the majority: nothing to compare
            continue
        leads.append((epsilon, *_gap(ours, others)))
        pairs.append((epsilon, *_gap(rows.loc[["DP-GD"]], rows.loc[["DP-SGD"]])))
    ahead = [g > 2 * s for _, g, s in leads]
    # Competitive: behind by at most half a point, and that known to half a point.
    level = [g > -0.5 and s < 0.5 for _, g, s in pairs]
    shown = ["; ".join(f"ε = {e:g}: {g:+.1f} ± {s:.1f}" for e, g, s in x) for x in (leads, pairs)]
    return _Compared(data, told, *shown, ahead if drawn else [], level if drawn else [])


def _among(found: list[bool]) -> str:
    if not found:
        return NONE
    return HOLDS if all(found) else CONDITIONS if any(found) else FAILS


def _gap(ours: pd.DataFrame, others: pd.DataFrame) -> tuple[float, float]:
    """Points between the best of each, and the standard error over the noise of both."""
    first, second = (rows.loc[rows["accuracy"].idxmax()] for rows in (ours, others))
    spread = np.hypot(first["over the noise"], second["over the noise"])
    return 100 * (first["accuracy"] - second["accuracy"]), 100 * float(spread)


def bound_verdicts(folder: pathlib.Path) -> list[Verdict]:
    """Theorems 1 and 2 with curvature."""
    rows = table(folder, "bound")
    slack = rows["excess risk"] + 2 * rows["standard error"]
    below = bool((slack < rows["bound, smallest curvature so far"]).all())
    last = rows.groupby("epsilon").last()
    gain = last["bound, minimum curvature"] / last["bound, smallest curvature so far"]
    loose = last["bound, smallest curvature so far"] / last["excess risk"]
    runs = _theorem2(folder)
    curved = runs[runs["curvature"] != _FLAT]
    below &= bool((curved["excess risk"] + 2 * curved["standard error"] < curved["bound"]).all())
    by_nu, by_mu = (
        curved[curved["curvature"] == name].set_index(["data set", "epsilon"])
        for name in ("expected ν", "minimum μ = λ")
    )
    ratio = (by_nu["curvature used"] / by_mu["curvature used"]).loc["Adult"]
    void = (by_nu["bound"] > by_nu["at the start"]).loc["Adult"]
    (first, second) = (rows.loc["logistic regression"].iloc[-1] for rows in (by_nu, by_mu))
    return [
        Verdict(
            "The utility is governed by ν instead of μ (Theorem 1 for DP-GD, Theorem 2 for DP-SGD)",
            FAILS if not below else HOLDS if gain.min() > 2 and not void.any() else CONDITIONS,
            "measured risks stay below the bounds. Theorem 1 on Adult: at the last step ν improves "
            f"it {gain.min():.2g} to {gain.max():.2g} times over μ = λ, and it is still "
            f"{loose.min():.2g} to {loose.max():.2g} times the measured risk. Theorem 2 on "
            f"{first['records']:,} drawn records, ε = {first.name:g}, where the start has risk "
            f"{first['at the start']:.2g}: bound {first['bound']:.2g} and risk "
            f"{first['excess risk']:.2g} with ν = {first['curvature used']:.2g}, "
            f"{second['bound']:.2g} and {second['excess risk']:.2g} with μ = λ; on Adult ν is "
            f"{ratio.min():.2g} to {ratio.max():.2g} μ, and the bound exceeds the risk of the "
            f"start in {void.sum()} of {len(void)} settings",
            scale="theorems without a run",
        )
    ]


def _theorem2(folder: pathlib.Path) -> pd.DataFrame:
    tables = [table(folder, name) for name in ("theorem2", "algorithm2", "theorem2adult")]
    return pd.concat(tables, ignore_index=True)


def theorem2_lines(folder: pathlib.Path) -> list[Line]:
    """Theorem 2 beside the runs."""
    lines = []
    for row in _theorem2(folder).to_dict("records"):
        used = row["curvature"]
        if used != _FLAT:
            used += f" = {row['curvature used']:.3g}"
        lines.append(
            Line(
                "Theorem 2",
                f"excess risk of DP-SGD, {row['data set']}, ε = {row['epsilon']:g}, "
                f"T = {row['steps']:,} of {row['batch']:g} records, {used}",
                row["bound"],
                row["excess risk"],
                row["standard error"],
                f"published: the bound, its constant Shamir and Zhang's; {row['records']:,} "
                f"records; the start has {row['at the start']:.3g}",
            )
        )
    return lines


def convex_lines(folder: pathlib.Path) -> list[Line]:
    """Theorem 1 for ν = 0 beside the run."""
    return [
        Line(
            "Theorem 1, ν = 0",
            f"excess risk of the averaged iterate, ε = {row['epsilon']:g}, noise {row['noise']}",
            row["bound"],
            row["excess risk"],
            row["standard error"],
            f"published: the bound, ‖x*‖ = {row['distance of the start']:.3g}; T = "
            f"{row['steps']:g}; the start has {row['at the start']:.3g}",
        )
        for row in table(folder, "convex").to_dict("records")
    ]


def convex_verdicts(folder: pathlib.Path) -> list[Verdict]:
    """Theorems 1 and 2 for ν = 0."""
    rows = table(folder, "convex")
    runs = _theorem2(folder)
    flat = runs[runs["curvature"] == _FLAT]
    both = pd.concat([rows, flat])
    below = both["excess risk"] + 2 * both["standard error"] < both["bound"]
    # A bound above the risk of the start could not have been contradicted.
    void = both["bound"] > both["at the start"]
    loose = rows["bound"] / rows["excess risk"]
    telling = flat[flat["bound"] <= flat["at the start"]]
    told = "; ".join(
        f"T = {row['steps']:,} of {row['batch']:g}, ε = {row['epsilon']:g}: bound "
        f"{row['bound']:.2g}, risk {row['excess risk']:.2g}, at the start {row['at the start']:.2g}"
        for row in telling.to_dict("records")
    )
    return [
        Verdict(
            "Without curvature the risk is √p/(nε) up to constants and ln n (Theorems 1, 2, ν = 0)",
            FAILS if not below.all() else NONE if void.all() else CONDITIONS,
            f"Theorem 1, Adult, no regularisation: the bound is {loose.min():.2g} to "
            f"{loose.max():.2g} times the measured risk. Theorem 2, dot product on a ball (the "
            f"projection that its D needs and Algorithm 2 leaves out): {told}. In {void.sum()} of "
            f"{len(both)} settings the bound exceeds the risk of the start, and says nothing",
            scale="theorems without a run",
        )
    ]


LINES = (
    table2_lines,
    figure1_lines,
    table4_lines,
    adult_lines,
    mnist_lines,
    bound_lines,
    convex_lines,
    theorem2_lines,
)
VERDICTS = (curvature_verdicts, accuracy_verdicts, bound_verdicts, convex_verdicts)
