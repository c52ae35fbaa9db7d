"""What of yu2020 holds, from the CSV files of the last run."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.chourasia2021.findings import _HALF_WAY, exponents
from experiments.report import (
    CONDITIONS,
    FAILS,
    NONE,
    Case,
    Line,
    Verdict,
    among,
    among_cases,
    compare,
    edges_of,
    errors_apart,
    every,
    is_above,
    is_ahead,
    is_at_edge,
    over_splits,
    require,
    setting_of,
    spread,
    table,
    welch,
    would_decide,
)
from experiments.yu2020.bound import _L2
from experiments.yu2020.published import TABLE2, TABLE4, TABLE4_EPSILON

_GRADIENT = ("DP-GD", "DP-SGD")
_OTHERS = ("AMP", "Out-SGD")
_REACHES = 0.5  # points from the published noise-free accuracy, or nothing is compared
_FLAT = "ν = 0"
_SCALE = (
    "Adult whole, 5 splits of 20 runs, settings inside their grids; MNIST whole, 1 split of 5 "
    "runs, 4 settings a method"
)
_OF_ADULT = "adult --full, 10 splits of 20 runs: 15 minutes on two cores"
_OF_MNIST = "mnist with grids widened as those of adult: 3 hours on two cores, most of it AMP's"
_STAYS_OPEN = (
    "the tables with --full: half an hour on two cores; a setting whose bound exceeds the start's "
    "risk stays open whatever is run"
)
_MARGIN = 1.0  # points that are a large margin
_MUCH, _NEAR = 10.0, 0.1  # times the minimum curvature; share of the average
_PERTURBED = ("objective", "output", "DP-GD", "DP-SGD")
_RATES = {"records": -2.0, "dimension": 1.0, "epsilon": -2.0}
_APART = 2.0  # ν over μ, from where a run can tell one from the other


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
    return _level_lines(pd.concat([table(folder, f"baseline{of}") for of in ("", "_mnist")]))


def kddcup99_lines(folder: pathlib.Path) -> list[Line]:
    """A data set of footnote 4, of which nothing is printed."""
    levels = _level_lines(table(folder, "baseline_kddcup99"))
    lines = [*levels, *_accuracy_lines(folder, "kddcup99")]
    if (folder / "kddcup99_inside.csv").is_file():
        lines += _accuracy_lines(folder, "kddcup99_inside")
    return lines


def sparse_lines(folder: pathlib.Path) -> list[Line]:
    """Real-sim and RCV1, where a user has run them."""
    levels = _level_lines(table(folder, "sparse_baseline"))
    return [*levels, *_accuracy_lines(folder, "sparse")]


def _level_lines(levels: pd.DataFrame) -> list[Line]:
    lines = []
    for (data, method), mine in levels.groupby(["data set", "method"], sort=False):
        known = _printed(data) in TABLE4
        printed = TABLE4[_printed(data)]["NP"] if known and method == "non-private" else None
        # One split has the error of its rows, several that of their mean.
        error = mine["accuracy"].sem() if len(mine) > 1 else mine["standard error"].iloc[0]
        over = f"{len(mine)} splits" if len(mine) > 1 else "the rows reported"
        note = f"{mine['records'].iloc[0]:,} training rows; ± over {over}"
        mean = 100 * mine["accuracy"].mean()
        what = f"accuracy %, {data}, {method}"
        where = "Table 4" if known else "Footnote 4"
        lines.append(Line(where, what, printed, mean, 100 * error, note))
    return lines


def _printed(data: object) -> str:
    """The name that a data set has in Table 4."""
    return "RCV1" if data == "rcv1" else str(data)


def _accuracy_lines(folder: pathlib.Path, name: str) -> list[Line]:
    lines = []
    for row in table(folder, name).to_dict("records"):
        data, epsilon = _printed(row["data set"]), row["epsilon"]
        printed = None
        if np.isclose(epsilon, TABLE4_EPSILON.get(data, np.nan)):
            printed = TABLE4[data][row["method"].partition(", ")[0]]
        lines.append(
            Line(
                "Table 4" if printed else "Figure 2" if data in TABLE4 else "Footnote 4",
                f"accuracy %, {data}, ε = {epsilon:g}, {row['method']}",
                printed,
                100 * row["accuracy"],
                100 * row["over the noise"],
                f"{setting_of(row)}, chosen among {row['settings tried']} on other rows; "
                f"{row['runs']} runs, ± over their noise",
            )
        )
    return lines


def adult_lines(folder: pathlib.Path) -> list[Line]:
    """Adult at every ε."""
    return _accuracy_lines(folder, "table4")


def split_lines(folder: pathlib.Path) -> list[Line]:
    """Adult's replace-one rows over several splits, where they were run."""
    lines: list[Line] = []
    if not (folder / "adult.csv").is_file():
        return lines
    for epsilon, rows in table(folder, "adult").groupby("epsilon"):
        found = over_splits(rows)
        count = rows.groupby("method").size()
        for name, row in found.iterrows():
            printed = TABLE4["Adult"].get(str(name)) if np.isclose(epsilon, 0.1) else None
            lines.append(
                Line(
                    "Table 4" if printed else "Figure 2",
                    f"accuracy %, Adult, ε = {epsilon:g}, {name}, {count[name]} split"
                    + "s" * bool(count[name] > 1),
                    printed,
                    100 * row["accuracy"],
                    100 * row["over the noise"],
                    f"settings inside their grids{edges_of(row)}; ± over the noise and the splits",
                )
            )
    return lines


def mnist_lines(folder: pathlib.Path) -> list[Line]:
    """MNIST at the paper's ε."""
    return _accuracy_lines(folder, "mnist")


def bound_lines(folder: pathlib.Path) -> list[Line]:
    """Theorem 1 beside the run."""
    lines = []
    both = pd.concat([table(folder, name) for name in ("bound", "bounddrawn")])
    for (data, records, epsilon), mine in both.groupby(["data set", "records", "epsilon"]):
        row = mine.iloc[-1]
        lines.append(
            Line(
                "Theorem 1",
                f"excess risk of DP-GD, {data}, n = {records:,}, ε = {epsilon:g}, "
                f"T = {row['steps']:g}",
                row["bound, smallest curvature so far"],
                row["excess risk"],
                row["standard error"],
                f"published: the bound with ν = {row['smallest curvature so far']:.3g}, as "
                f"measured; with μ = λ it is {row['bound, minimum curvature']:.3g}",
            )
        )
    return lines


def is_much_larger(figure1: pd.DataFrame) -> Verdict:
    """ν against μ at every noise, and against the average at the largest, by the simulation."""
    # The table's interval is three standard errors about the simulation; every point is a test.
    wide = max(1.0, errors_apart(tests=2 * len(figure1)) / 3)
    middle = figure1["simulated"]
    figure1 = figure1.assign(
        **{e: middle + wide * (figure1[e] - middle) for e in ("simulated low", "simulated high")}
    )
    found, above, off = {}, [], []
    for data, mine in figure1.groupby("data set", sort=False):
        mine = mine.sort_values("noise in the iterate")
        last = mine.iloc[-1]
        low, high = (mine[f"simulated {e}"] / mine["minimum curvature"] for e in ("low", "high"))
        ends = [last[f"simulated {e}"] / last["average curvature"] - 1 for e in ("low", "high")]
        above.append(low.min())
        off.append(abs(last["simulated"] / last["average curvature"] - 1))
        larger = True if low.min() > _MUCH else False if high.min() < _MUCH else None
        apart = min(ends) > _NEAR or max(ends) < -_NEAR
        tends = False if apart else True if max(map(abs, ends)) < _NEAR else None
        known = mine[["simulated low", "simulated high"]].notna().all(axis=None)
        found[str(data)] = (larger and tends) if known else None
        if False in (larger, tends) and pd.notna(ends).all():
            found[str(data)] = False
    verdict, under = among(found)
    return Verdict(
        "Expected curvature is much larger than minimum curvature, and tends to the average",
        verdict,
        "by simulation, on four data sets; but what counts is the noise in the iterate, ησ: at the "
        "small ησ of a private run ν is set by the start, not by the average",
        f"at least {min(above):.3g} times the minimum, within {100 * max(off):.2g} % of the "
        "average at the largest noise",
        f"below {_MUCH:g} times the minimum, or more than {100 * _NEAR:g} % from the average",
        under,
        would=would_decide(
            verdict, under, "figure1 with more draws of the simulation: minutes on two cores"
        ),
    )


def _levels_drawn(baseline: pd.DataFrame, data: str) -> tuple[bool, float, str]:
    """Whether a data set's table may speak, its majority's accuracy, and both lines in words."""
    levels = baseline[baseline["data set"] == data].groupby("method")["accuracy"].mean()
    require(levels.index, ("non-private", "majority"), f"baseline of {data}")
    exact, majority = (100 * levels[m] for m in ("non-private", "majority"))
    printed = TABLE4.get(_printed(data), {}).get("NP")
    told = f"{data} (non-private {exact:.1f}, "
    told += "" if printed is None else f"published {printed:g}; "
    told += f"majority {majority:.1f})"
    reached = printed is None or abs(exact - printed) <= _REACHES
    return reached and exact - majority >= 1.0, majority, told


def _gaps(
    levels: pd.DataFrame,
    tables: Sequence[pd.DataFrame],
    ours: tuple[str, ...],
    others: tuple[str, ...],
    line: float,
) -> tuple[list[Case], int, str]:
    """(cases that decide, those left out, all in words): points between the best at every ε.

    Args:
        levels: accuracies without privacy. tables: a data set each.
    """
    cases, left, told = [], 0, []
    tests = sum(table_["epsilon"].nunique() for table_ in tables)
    for table_ in tables:
        data = str(table_["data set"].iloc[0])
        drawn, majority, words = _levels_drawn(levels, data)
        mine = []
        for epsilon, rows in table_.groupby("epsilon"):
            rows = over_splits(rows).reindex([*_GRADIENT, *_OTHERS])
            own = rows.loc[list(ours)]
            where = f"{data}, ε = {epsilon:g}"
            case = compare(
                where, own, rows.loc[list(others)], "accuracy", "over the noise", scale=100.0
            )
            # Near the majority ours can be behind, and being level there says nothing.
            near = 100 * own["accuracy"].max() <= majority + 0.5
            if not near or is_ahead(case, min(line, 0.0), tests) is False:
                mine.append(case)
            else:
                left += drawn
        # A table that misses the published noise-free line shows its numbers and no verdict.
        cases += mine if drawn else []
        shown = (f"{c.where.partition(', ')[2]}: {c.value:+.1f} ± {c.error:.1f}" for c in mine)
        told.append(f"{words}: {'; '.join(shown)}")
    return cases, left, "; ".join(told)


def _by_data_set(
    tables: tuple[pd.DataFrame, ...],
) -> tuple[pd.DataFrame, list[pd.DataFrame]]:
    """Accuracies without privacy, and a table a data set: of two of the same the last one.

    Args:
        tables: two of accuracies without privacy, then those with it.
    """
    return pd.concat(tables[:2]), [*{str(t["data set"].iloc[0]): t for t in tables[2:]}.values()]


def beats_the_others(*tables: pd.DataFrame) -> Verdict:
    """Gradient perturbation against the others, at every ε, replace-one."""
    levels, sets = _by_data_set(tables)
    cases, left, told = _gaps(levels, sets, _GRADIENT, _OTHERS, _MARGIN)
    verdict, under = among_cases(cases, _MARGIN, left)
    return Verdict(
        "Gradient perturbation beats objective and output perturbation by a large margin",
        verdict,
        "the better of DP-GD and DP-SGD over the better of AMP and Out-SGD, points at equal "
        f"replace-one (ε, 1/n²): {told}",
        spread(cases, " points"),
        f"above {_MARGIN:g} point everywhere holds, below it wherever known fails",
        under,
        published="+1.6 on Adult at ε = 0.1, +16.7 on MNIST at ε = 1",
        scale=_SCALE,
        changed=_AT_EDGES.get(verdict, ""),
        would=_open_cases(verdict, under),
    )


_AT_EDGES = {
    NONE: "was *holds under conditions*: the settings of DP-GD, DP-SGD and Out-SGD lie at the edge "
    "of the grids they were chosen from, on both data sets",
    FAILS: "was *holds under conditions*: on MNIST the settings of Out-SGD lie at the edge of "
    "their grid, on Adult all are inside theirs now, by five splits",
    CONDITIONS: "still *holds under conditions*: of MNIST, where settings lie at the edge of their "
    "grids, less is known; on Adult all are inside theirs now, by five splits",
}


def _open_cases(verdict: str, under: str) -> str:
    """What would decide the cases that are open, by the data sets that they are of."""
    open_ = under.partition("not known: ")[2] if verdict != NONE else "Adult, MNIST"
    known = {"Adult": _OF_ADULT, "MNIST": _OF_MNIST}
    return "; ".join(what for data, what in known.items() if data in open_)


def beats_on_kddcup99(
    levels: pd.DataFrame, kddcup99: pd.DataFrame, *inside: pd.DataFrame
) -> Verdict:
    """A data set of footnote 4, of which the paper prints nothing."""
    cases, left, told = _gaps(levels, [[kddcup99, *inside][-1]], _GRADIENT, _OTHERS, _MARGIN)
    verdict, under = among_cases(cases, _MARGIN, left)
    return Verdict(
        "Gradient perturbation leads by a large margin on KDDCup99, too (footnote 4)",
        verdict,
        f"points, replace-one: {told}",
        spread(cases, " points"),
        f"above {_MARGIN:g} point everywhere holds, below it wherever known fails",
        under,
        scale="70,000 rows drawn, 1 split",
        changed=""
        if verdict == NONE
        else "was *cannot be decided*: settings lay at the edge of their grids; they are inside "
        "now, by 20 runs for five",
        would=would_decide(
            verdict,
            under,
            "kddcup99_inside, at settings inside their grids: 10 minutes on two cores",
        ),
    )


def beats_on_sparse_rows(levels: pd.DataFrame, sparse: pd.DataFrame) -> Verdict:
    """Real-sim and RCV1, half of Table 4, on files of the user's own."""
    mine = [rows for _, rows in sparse.groupby("data set", sort=False)]
    cases, left, told = _gaps(levels, mine, _GRADIENT, _OTHERS, _MARGIN)
    verdict, under = among_cases(cases, _MARGIN, left)
    return Verdict(
        "Gradient perturbation leads by a large margin on real-sim and RCV1 (Table 4)",
        verdict,
        f"points, replace-one: {told}",
        spread(cases, " points"),
        f"above {_MARGIN:g} point everywhere holds, below it wherever known fails",
        under,
        published="+2.9 on real-sim, +8.2 on RCV1",
        scale="the user's files",
        would=would_decide(verdict, under, "sparse --full, 10 splits: hours on two cores"),
    )


def full_batches_are_as_good(*tables: pd.DataFrame) -> Verdict:
    """DP-GD against DP-SGD: behind by less than half a point, and that known."""
    levels, sets = _by_data_set(tables)
    cases, left, told = _gaps(levels, sets, ("DP-GD",), ("DP-SGD",), -0.5)
    verdict, under = among_cases(cases, -0.5, left)
    return Verdict(
        "DP-GD is at least as good as DP-SGD (Table 4)",
        verdict,
        f"points, replace-one: {told}",
        spread(cases, " points"),
        "above −0.5 points everywhere holds, below it wherever known fails",
        under,
        published="+0.5 on Adult at ε = 0.1, +1.1 on MNIST at ε = 1",
        scale=_SCALE,
        changed=_AT_EDGES.get(verdict, ""),
        would=_open_cases(verdict, under),
    )


def _spare(row: pd.Series | dict) -> float:
    """Degrees of freedom of a row's standard error; infinite where its runs are not said."""
    return float(row.get("runs", np.inf)) - 1


def _can_tell(nu: pd.Series, mu: pd.Series) -> bool:
    """Whether ν is apart from μ and its bound below the risk of the start."""
    apart = nu["curvature used"] / mu["curvature used"] > _APART
    return bool(apart and nu["bound"] < nu["at the start"])


def is_governed_by_nu(bound: pd.DataFrame, drawn: pd.DataFrame, *theorem2: pd.DataFrame) -> Verdict:
    """Theorems 1 and 2 where they can tell ν from μ: bounds apart, and below the start's risk.

    There ν governs if its bound holds and the run that steps by ν has the lower risk.
    """
    found: dict[str, bool | None] = {}
    told, apart = [], {}
    theorem1 = pd.concat([bound, drawn]).sort_values("steps")
    for (data, records, epsilon), mine in theorem1.groupby(["data set", "records", "epsilon"]):
        row, where = mine.iloc[-1], f"Theorem 1, {data} of {records:,} records, ε = {epsilon:g}"
        limit = mine["bound, smallest curvature so far"]
        columns = (limit, mine["excess risk"], mine["standard error"])
        spare = _spare(row)
        below = {
            is_above(b - r, e, spare=spare, tests=len(mine))
            for b, r, e in zip(*columns, strict=True)
        }
        # The first step has the start's risk or less; a larger bound says nothing.
        tells = limit.iloc[-1] < mine["excess risk"].iloc[0]
        ratio = row["bound, minimum curvature"] / limit.iloc[-1]
        known = tells and ratio > _APART and below == {True}
        found[where] = False if False in below else True if known else None
        apart[where] = row.get("smallest curvature so far", np.nan) / _L2
        told.append(f"{where}: bounds {limit.iloc[-1]:.2g} by ν, {ratio:.2g} times that by μ")
    runs = pd.concat(theorem2, ignore_index=True)
    curved = runs[runs["curvature"] != _FLAT]
    cases = ["data set", "epsilon", "records", "steps"]
    pairs = [
        (str(data), epsilon, mine.loc["expected ν"], mine.loc["minimum μ = λ"])
        for (data, epsilon, *_), rows in curved.groupby(cases, sort=False)
        if {"expected ν", "minimum μ = λ"} <= {*(mine := rows.set_index("curvature")).index}
    ]
    # Which settings can tell does not depend on the risks, so that only these are tests.
    tests = 2 * sum(_can_tell(nu, mu) for _, _, nu, mu in pairs)
    for data, epsilon, nu, mu in pairs:
        where = f"Theorem 2, {data} of {nu['records']:,} records, ε = {epsilon:g}"
        where += f", T = {nu['steps']:,}"
        error = float(np.hypot(nu["standard error"], mu["standard error"]))
        ratio = nu["curvature used"] / mu["curvature used"]
        apart[where] = ratio
        tells = _can_tell(nu, mu)
        both = welch((nu["standard error"], _spare(nu)), (mu["standard error"], _spare(mu)))
        lower = is_above(
            mu["excess risk"] - nu["excess risk"], error, spare=both, tests=max(tests, 1)
        )
        below = is_above(
            nu["bound"] - nu["excess risk"],
            nu["standard error"],
            spare=_spare(nu),
            tests=max(tests, 1),
        )
        known = tells and (below or lower is False)
        found[where] = False if below is False else lower if known else None
        told.append(
            f"{where}: ν = {ratio:.2g} μ, bound {nu['bound']:.2g} where the start has risk "
            f"{nu['at the start']:.2g}; risk {nu['excess risk']:.2g} ± {nu['standard error']:.1g} "
            f"by ν, {mu['excess risk']:.2g} ± {mu['standard error']:.1g} by μ"
        )
    verdict, under = among(found)
    count = {w: f for w, f in found.items() if f is not None}
    most = pd.Series([apart[where] for where in count], dtype=float).max()
    return Verdict(
        "The utility is governed by ν instead of μ (Theorem 1 for DP-GD, Theorem 2 for DP-SGD)",
        verdict,
        "; ".join(told),
        f"{sum(count.values())} of the {len(count)} settings that can tell, of {len(found)}; ν is "
        f"up to {most:.2g} times μ there",
        f"a risk above ν's bound, or no lower risk by ν than by μ; nothing is told where ν < "
        f"{_APART:g} μ or the bound exceeds the start's risk",
        under,
        scale="theorems without a run",
        changed="still *holds under conditions*, of more settings: on records that are drawn "
        "Theorem 1 can tell ν from μ, which decided in one setting of Theorem 2 alone",
        would=would_decide(verdict, under, _STAYS_OPEN),
    )


def holds_where_restricted(restricted: pd.DataFrame) -> Verdict:
    """Theorem 1 on restricted strongly convex least squares: its bound, and what ν is."""
    found: dict[str, bool | None] = {}
    least = restricted["restricted coefficient"]
    for name in ("the nearest", "one"):
        ratio = restricted[f"ν from {name} minimiser"] / least
        where = "from the nearest minimiser" if name != "one" else "from one minimiser, as x*"
        kept = every(ratio > 1 - 1e-6, ratio)
        found[f"ν is at least the restricted coefficient, seen {where}"] = kept
    at_least = [*found.values()]
    shares = []
    for row in restricted.to_dict("records"):
        below = is_above(
            row["bound by ν"] - row["excess risk"],
            row["standard error"],
            spare=_spare(row),
            tests=len(restricted),
        )
        tells = row["bound by ν"] < row["at the start"]
        found[f"the bound, ε = {row['epsilon']:g}"] = below if tells or below is False else None
        share = row["excess risk"] / row["bound by ν"], row["standard error"] / row["bound by ν"]
        shares += [Case(f"{row['epsilon']:g}", *share)] if tells else []
    verdict, under = among(found)
    bounds = [f for where, f in found.items() if where.startswith("the bound")]
    # The claim has two parts: of ν, from some minimiser, and of the bound.
    if False in bounds or at_least == [False, False]:
        verdict, under = FAILS, ""
    elif not any(bounds) or not any(at_least):
        verdict, under = NONE, ""
    one, near = (
        (restricted[f"ν from {n} minimiser"] / least).min() for n in ("one", "the nearest")
    )
    return Verdict(
        "On restricted strongly convex objectives, μ = 0, ν is at least the restricted "
        "coefficient, and the bound in ν holds",
        verdict,
        f"least squares of rank 10 in 40 columns: the smallest ν of the path is {near:.3g} times "
        f"the coefficient if x* is the minimiser nearest to each iterate, {one:.3g} times if it is "
        "one minimiser, from which noise without curvature leads away. The bound in μ is infinite",
        f"the smallest ν is {near:.3g} or {one:.3g} times the coefficient; risk over the bound in "
        f"ν {spread(shares)}",
        "below 1 from both, or a risk above 1 fails; nothing is told by a "
        "bound above the start's risk",
        under,
        scale="a remark without a run",
        would=would_decide(verdict, under, _STAYS_OPEN),
    )


def is_mu_without_noise(paths: pd.DataFrame) -> Verdict:
    """§3.4: without perturbation of the updates ν = μ."""
    ratio = paths["smallest ν"] / paths["minimum curvature"]
    still, noisy = paths["noise"] == 0, paths["noise"] > 0
    of = ["data set", "descent"]
    both = paths[noisy].set_index([*of, "steps"])["smallest ν"]
    before = paths[still].groupby([*of, "steps"])["smallest ν"].first()
    lift = both / before.reindex(both.index)
    found = {}
    for where, mine in ratio[still].groupby([paths[n][still] for n in of]):
        level = every(abs(mine - 1) < _NEAR, mine)
        more = lift[lift.index.droplevel("steps") == where]
        more = every(more > 1 + _NEAR, more)
        found[", ".join(where)] = False if False in (level, more) else level and more
    verdict, under = among(found)
    worst = ratio[still].groupby([paths[n][still] for n in of]).max()
    count = sum(f is not None and f for f in found.values())
    means = both.groupby("descent").mean() / paths[noisy]["minimum curvature"].mean()
    return Verdict(
        "ν = μ always where the update has no noise; only gradient perturbation has more (§3.4)",
        verdict,
        f"four regressions, four descents: noise lifts the smallest ν of a path {lift.min():.2g} "
        f"to {lift.max():.2g} times; ν is of the path: mean ν over mean μ "
        + ", ".join(f"{name} {value:.2g}" for name, value in means.items()),
        f"without noise the smallest ν of the path is {worst.min():.3g} to {worst.max():.3g} "
        f"times μ, in {count} of {len(found)} cases within a tenth and more with noise",
        "within a tenth of μ, and above it with noise, in every case holds, in none fails",
        under,
        scale="a remark without a run",
        would=would_decide(
            verdict, under, "paths at the settings without a number: a minute on two cores"
        ),
    )


def path_lines(folder: pathlib.Path) -> list[Line]:
    """The smallest ν along the paths."""
    return [
        Line(
            "§3.4",
            f"smallest ν, {row['data set']}, {row['descent']}, "
            f"{'noise of ε = 1' if row['noise'] else 'no noise'}, T = {row['steps']}",
            row["minimum curvature"] if row["noise"] == 0 else None,
            row["smallest ν"],
            None,
            f"published: μ; risk {row['excess risk']:.2g} from {row['at the start']:.2g}",
        )
        for row in table(folder, "paths").to_dict("records")
    ]


def _theorem2(folder: pathlib.Path) -> pd.DataFrame:
    tables = [table(folder, name) for name in _TABLES2]
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


def holds_without_curvature(convex: pd.DataFrame, *theorem2: pd.DataFrame) -> Verdict:
    """Theorems 1 and 2 for ν = 0, where the bound is below the risk of the start."""
    runs = pd.concat(theorem2, ignore_index=True)
    flat = runs[runs["curvature"] == _FLAT]
    cases, found = [], {}
    for row in [*convex.to_dict("records"), *flat.to_dict("records")]:
        batch = row.get("batch", 1.0)
        mine = row.get("noise", f"of {batch:g} record{'s' * (batch > 1)}")
        where = f"T = {row['steps']:,} ({mine}), ε = {row['epsilon']:g}"
        below = is_above(
            row["bound"] - row["excess risk"],
            row["standard error"],
            spare=_spare(row),
            tests=len(convex) + len(flat),
        )
        # A bound above the risk of the start could not have been contradicted.
        tells = row["bound"] <= row["at the start"]
        found[where] = below if tells or below is False else None
        if tells:
            share = row["excess risk"] / row["bound"], row["standard error"] / row["bound"]
            cases.append(Case(where, *share))
    # The claim is of both theorems.
    found |= {} if len(convex) else {"Theorem 1, not run": None}
    found |= {} if len(flat) else {"Theorem 2, not run": None}
    verdict, under = among(found)
    loose = convex["bound"] / convex["excess risk"]
    return Verdict(
        "Without curvature the risk is at most √p/(nε) times constants and ln n (Theorems 1, 2, "
        "ν = 0)",
        verdict,
        f"Theorem 1, Adult, no regularisation: the bound is {loose.min():.2g} to "
        f"{loose.max():.2g} times the measured risk. Theorem 2: a dot product on a ball (the "
        f"projection that its D needs and Algorithm 2 leaves out). In {len(found) - len(cases)} of "
        f"{len(found)} settings the bound exceeds the risk of the start, and says nothing",
        f"risk over bound {spread(cases)}",
        "above 1; nothing is told by a bound above the start's risk",
        under,
        scale="theorems without a run",
        would=would_decide(verdict, under, _STAYS_OPEN),
    )


def has_the_rates_of_table1(slopes: pd.DataFrame) -> Verdict:
    """Table 1, strongly convex: the least risk of each method as p/(n²ε²), its logarithms aside."""
    require(slopes["method"], _PERTURBED, "slopes")
    found: dict[str, bool | None] = {}
    told, off = [], []
    cases = len(_PERTURBED) * len(_RATES)
    for name in _PERTURBED:
        mine = slopes[slopes["method"] == name]
        known = mine["excess risk"] > 0
        # Three powers and a level are fitted.
        few = len(mine) < 6 or mine[[*_RATES]].nunique().min() < 2
        if not known.all() or few or any(is_at_edge(row) for row in mine.to_dict("records")):
            found[name] = None
            continue
        powers = exponents(mine)
        within = []
        for what, rate in _RATES.items():
            value, error = powers[what]
            off.append(Case(f"{name}, {what}", abs(value - rate), error, len(mine) - 4.0))
            within.append(
                is_above(_HALF_WAY - off[-1].value, error, spare=off[-1].spare, tests=cases)
            )
        found[name] = False if False in within else all(within) or None
        told.append(
            f"{name}: n^{powers['records'][0]:.2f} p^{powers['dimension'][0]:.2f} "
            f"ε^{powers['epsilon'][0]:.2f}{_sampled(mine)}"
        )
    verdict, under = among(found)
    return Verdict(
        "Objective, output and gradient perturbation have one rate, p/(n²ε²) up to logarithms "
        "(Table 1, strongly convex)",
        verdict,
        "least excess risk: " + "; ".join(told),
        f"powers of n, p and ε off by {spread(off)}",
        f"off by more than {_HALF_WAY:g}, half-way to the next half power",
        under,
        published="n⁻² p ε⁻²",
        scale="logistic regression, a table without a run",
        changed=_TUNED.get(verdict, ""),
        would=would_decide(
            verdict,
            under,
            "slopes --full, n up to 128,000 and 3 seeds: 80 minutes on two cores; a power at the "
            "line may stay open",
        ),
    )


_TUNED = {
    CONDITIONS: "was *cannot be decided*: DP-SGD had one sampling rate. Its rate and its step size "
    "are tuned now, and inside what was tried; its powers and two others' are too near the line. "
    "What decides is of objective perturbation, by 100 draws for 20",
}


def _sampled(rows: pd.DataFrame) -> str:
    """How often the best sampling rate is whole batches, by which DP-SGD is DP-GD."""
    rates = rows["rate"].dropna()
    if rates.empty:
        return ""
    return (
        f", at rates from {rates.min():.3g}, whole batches in {(rates == 1).sum()} of {len(rates)}"
    )


def slope_lines(folder: pathlib.Path) -> list[Line]:
    """Least excess risks at the largest n."""
    rows = table(folder, "slopes")
    return [
        Line(
            "Table 1",
            f"least excess risk, {row['method']}, n = {row['records']:,}, p = {row['dimension']}, "
            f"ε = {row['epsilon']:g}",
            None,
            row["excess risk"],
            row["standard error"],
            f"{row['steps']} steps{_batches(row)}{edges_of(row)}",
        )
        for row in rows.to_dict("records")
        if row["records"] == rows["records"].max() or row["edge"]
    ]


def _batches(row: Mapping) -> str:
    """The sampling rate and the first step size of DP-SGD, which are tuned."""
    if math.isnan(row["rate"]):
        return ""
    return (
        f" at rate {row['rate']:.3g}, the first {row['step size']:.3g}/β long, chosen among "
        f"{row['settings tried']} on other draws"
    )


LINES = (
    table2_lines,
    figure1_lines,
    table4_lines,
    adult_lines,
    split_lines,
    mnist_lines,
    kddcup99_lines,
    sparse_lines,
    bound_lines,
    slope_lines,
    convex_lines,
    theorem2_lines,
    path_lines,
)
NOTES = (
    """Of the seven data sets that footnote 4 speaks of, Adult, MNIST and KDDCup99 are at hand and
run at the size of that benchmark (KDDCup99: 70,000 rows drawn of the 10 % subset). real-sim and
RCV1 run on files of your own, as LIBSVM publishes them, in the folder `libsvm/` of a folder of
data: `python -m experiments yu2020 sparse --data <folder>`, and `sparse_baseline`; one of the two
will do. Covertype and Gisette do not run.""",
)
_TABLES2 = ("theorem2", "algorithm2", "algorithm2root", "theorem2adult")
_TABLES4 = ("baseline", "baseline_mnist", "table4", "mnist", "?adult")
VERDICTS = (
    (is_much_larger, "figure1"),
    (beats_the_others, *_TABLES4),
    (full_batches_are_as_good, *_TABLES4),
    (beats_on_kddcup99, "baseline_kddcup99", "kddcup99", "?kddcup99_inside"),
    (beats_on_sparse_rows, "sparse_baseline", "sparse"),
    (has_the_rates_of_table1, "slopes"),
    (is_governed_by_nu, "bound", "bounddrawn", *_TABLES2),
    (holds_without_curvature, "convex", *_TABLES2),
    (holds_where_restricted, "restricted"),
    (is_mu_without_noise, "paths"),
)
