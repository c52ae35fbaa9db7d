"""What of chourasia2021 holds, from the CSV files of the last run."""

from __future__ import annotations

import math
import pathlib

import numpy as np
import pandas as pd

from experiments.chourasia2021.complexity import _MOST_STEPS
from experiments.chourasia2021.protocol import TABLE1_METHODS
from experiments.chourasia2021.published import composition, theorem1
from experiments.report import (
    FAILS,
    HOLDS,
    NONE,
    Case,
    Gap,
    Line,
    Verdict,
    among,
    errors_apart,
    every,
    is_above,
    require,
    spread,
    table,
    would_decide,
)

_RDP = "RDP at α = 30"
_EXACT = "exact, quadratic of curvature λ"
_PRINTED = "tracing diffusion, as printed (e^{-ηK/2})"
_PUBLISHED = "published (Theorem 3)"
_DELTA = 1e-6
# Above this risk the loss is no longer quadratic in the noise, and the rate says nothing.
_QUADRATIC = 0.01
_RATE = {"records": -2.0, "dimension": 1.0, "epsilon": -2.0}
# A power off by more than this is nearer to another rate: a factor √n is 0.5.
_HALF_WAY = 0.25
_PROVED = "tracing diffusion (e^{-ληK/2})"


def figure1_lines(folder: pathlib.Path) -> list[Line]:
    """Rényi privacy where the bound has levelled out, against the exact value."""
    rows = table(folder, "figure1")
    last = rows[rows["steps"] == rows["steps"].max()]
    steps = int(last["steps"].iloc[0])
    lines = []
    for convexity, mine in last.groupby("strong convexity"):
        value = mine.set_index("bound")[_RDP]
        lines.append(
            Line(
                "Figure 1",
                f"Rényi privacy at α = 30, λ = {convexity:g}, K = {steps:,}",
                theorem1(steps, float(convexity)),
                value[_EXACT],
                None,
                "measured: exact for the quadratic, which is also what shifted interpolation "
                f"proves for all ({value['shifted interpolation']:.4g}); composition "
                f"{composition(steps):.3g}",
            )
        )
    few = rows[(rows["strong convexity"] == 4.0)]
    wide = few.pivot_table(index="steps", columns="bound", values=_RDP)
    worst = (wide[_EXACT] / wide[_PRINTED]).idxmax()
    lines.append(
        Line(
            "introduction",
            f"exponent printed as −ηK/2, λ = 4, K = {worst}",
            theorem1(float(worst), 4.0, exponent_has_lambda=False),
            float(wide.loc[worst, _EXACT]),
            None,
            "an error in the paper: the exact divergence of a quadratic is larger; the proof gives "
            f"−ληK/2 ({theorem1(float(worst), 4.0):.3g})",
        )
    )
    return lines


def theorem3_lines(folder: pathlib.Path) -> list[Line]:
    """Excess risk at the theorem's K*."""
    rows = table(folder, "theorem3")
    return [
        Line(
            "Theorem 3",
            f"excess risk, Adult, λ = 0.1, ({row['steps']} steps), noise by {row['accounting']}",
            row["bound on the excess risk"],
            row["excess risk"],
            row["standard error"],
            "published: the bound with its constant at this noise",
        )
        for row in rows[rows["steps"] == rows["steps"].max()].to_dict("records")
    ]


def theorem4_lines(folder: pathlib.Path) -> list[Line]:
    """Excess risk over the lower bound's rate, where it is least and where it is most."""
    lines = []
    for (problem, accounting), mine in _ratios(table(folder, "theorem4")).groupby(
        ["problem", "accounting"]
    ):
        exact = mine["excess risk"] / mine["exact"]
        note = "over d·ln(1/δ)/(ε²n²), over all (n, d, ε)"
        if exact.notna().all():
            note += f"; {exact.min():.2f} to {exact.max():.2f} times the exact expectation"
        share = mine["excess risk"] / mine["bound of Theorem 3"]
        lines.append(
            Line(
                "Theorems 3, 4",
                f"excess risk at K*, {problem}, noise by {accounting}",
                f"up to {(mine['bound of Theorem 3'] / mine['scale']).max():.3g}",
                f"{mine['ratio'].min():.3g} to {mine['ratio'].max():.3g}",
                None,
                f"{note}; at most {share.max():.2f} of the bound with its constant",
            )
        )
    return lines


def _ratios(rows: pd.DataFrame) -> pd.DataFrame:
    scale = rows["rate of the lower bound"] * math.log(1.0 / _DELTA)
    return rows.assign(scale=scale, ratio=rows["excess risk"] / scale)


def exponents(rows: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Powers of n, d and ε in the excess risk, each with its standard error, by least squares.

    The error is of what scatters about the fit, and of the risks' own standard errors.
    """
    names = ["records", "dimension", "epsilon"]
    design = np.column_stack([np.ones(len(rows)), *(np.log(rows[name]) for name in names)])
    logs = np.log(rows["excess risk"].to_numpy())
    found, _, _, _ = np.linalg.lstsq(design, logs, rcond=None)
    spare = len(rows) - design.shape[1]
    spread = np.sum(np.square(logs - design @ found)) / spare
    weights = np.linalg.pinv(design)
    own = (rows["standard error"] / rows["excess risk"]).to_numpy()
    errors = np.sqrt(np.square(weights) @ (spread + np.square(own)))
    return {n: (float(found[i]), float(errors[i])) for i, n in enumerate(names, 1)}


def _divergences(figure1: pd.DataFrame) -> pd.DataFrame:
    """Rényi privacy by (curvature, steps), a column a bound."""
    require(figure1["bound"], (_PROVED, _EXACT, _PRINTED, "composition"), "figure1")
    return figure1.groupby(["strong convexity", "steps", "bound"])[_RDP].mean().unstack()


_POINTS = "figure1 at the points that have no number: a minute on two cores"


def converges(figure1: pd.DataFrame) -> Verdict:
    """Whether the bound is one, and its gap to where it ends falls by equal factors in equal times.

    From 1/4 to 1/16 of the gap takes as many steps as from 1 to 1/4: 1 for an exponential, 0.1 for
    a line that ends with the table, 4 for a gap that falls as 1/K.
    """
    wide = _divergences(figure1)
    sound = every(wide[_PROVED] >= wide[_EXACT] * (1 - 1e-9), wide[_PROVED], wide[_EXACT])
    late: dict[str, float] = {}
    found: dict[str, bool | None] = {}
    for convexity, mine in wide[_PROVED].groupby("strong convexity"):
        steps = mine.index.get_level_values("steps").to_numpy(float)
        gap = np.maximum(1 - mine.to_numpy() / mine.iloc[-1], 1e-300)
        quarter, last = np.interp(np.log([4.0, 16.0]), -np.log(gap), steps)
        late[f"λ = {convexity:g}"] = (last - quarter) / quarter
        known = sound and mine.notna().all() and len(mine) > 3
        right = bool(0.8 < late[f"λ = {convexity:g}"] < 1.25) if known else None
        found[f"λ = {convexity:g}"] = False if sound is False else right
    verdict, under = among(found)
    end = wide.groupby("strong convexity").last()
    times = float(end["composition"].max() / end[_PROVED].min())
    short = (wide["composition"] < wide[_PROVED]).groupby("strong convexity").sum()
    return Verdict(
        "The privacy loss of the last iterate converges exponentially fast",
        verdict,
        f"proved values are {'never' if sound else 'not known never'} below the exact one; "
        f"composition reaches {times:.0f} times the bound at "
        f"K = {int(figure1['steps'].max()):,}, and is smaller in "
        f"{int(short.min())} to {int(short.max())} of the drawn steps a curvature",
        f"the gap to the last value takes {min(late.values()):.3g} to {max(late.values()):.3g} "
        "times as many steps from 1/4 to 1/16 as from 1 to 1/4",
        "below 0.8 (a line: 0.11) or above 1.25 (1/K: 4), or a value below the exact one",
        under,
        would=would_decide(verdict, under, _POINTS),
    )


def is_tight(figure1: pd.DataFrame) -> Verdict:
    """The bound over the exact value, at every step: the paper says that 4 is never exceeded."""
    wide = _divergences(figure1)
    ratio = wide[_PROVED] / wide[_EXACT]
    kept = (ratio >= 1 - 1e-9) & (ratio <= 4)
    groups = ratio.groupby("strong convexity")
    verdict, under = among({f"λ = {c:g}": every(kept[r.index], r) for c, r in groups})
    end = ratio.groupby("strong convexity").last()
    return Verdict(
        "The bound is tight: at every step up to a constant of 4",
        verdict,
        f"{end.min():.2f} to {end.max():.2f} times the exact value of a quadratic where it has "
        "levelled out; shifted interpolation reaches that value for every loss",
        f"{ratio.min():.2f} to {ratio.max():.2f} times the exact value, {len(ratio)} points",
        "above 4, or below 1",
        under,
        would=would_decide(verdict, under, _POINTS),
        changed="was *holds under conditions*: the line was drawn at 1.05, which the paper does "
        "not claim, and no table gave *does not hold*",
    )


def is_sound_as_printed(figure1: pd.DataFrame) -> Verdict:
    """The introduction's formula against the exact divergence of a quadratic."""
    wide = _divergences(figure1)
    ratio = wide[_PRINTED] / wide[_EXACT]
    below = ratio[ratio < 1 - 1e-9]
    least = "".join(f" (λ ≥ {c:g})" for c in [*below.index.get_level_values(0)][:1])
    proof = every(wide[_PROVED] >= wide[_EXACT] * (1 - 1e-9), wide[_PROVED], wide[_EXACT])
    verdict = {True: HOLDS, False: FAILS, None: NONE}[every(ratio >= 1 - 1e-9, ratio)]
    return Verdict(
        "ε = αS²/(λσ²n²)(1 − e^{−ηK/2}), as the introduction prints it",
        verdict,
        f"below the exact divergence at {len(below)} of {len(ratio)} points{least}; the proof's "
        f"exponent −ληK/2 is {'' if proof else 'not known to be '}sound",
        f"at least {ratio.min():.3g} times the exact divergence",
        "1 or more at every point",
        would=would_decide(verdict, "", _POINTS),
    )


def is_more_useful(theorem3: pd.DataFrame) -> Verdict:
    """Theorem 3 against composition, at its K* and with the best number of steps for each."""
    rows = theorem3
    require(rows["accounting"], (_PUBLISHED, "composition", "shifted interpolation"), "theorem3")
    slack = rows["bound on the excess risk"] - rows["excess risk"]
    slack = slack / rows["standard error"]
    known = rows.dropna(subset="excess risk")
    last = rows[rows["steps"] == rows["steps"].max()].set_index("accounting")
    best = known.loc[known.groupby("accounting")["excess risk"].idxmin()].set_index("accounting")
    best = best.reindex(last.index)  # NaN for whom no risk is known
    found: dict[str, bool | None] = {}
    gains = {}
    for where, mine in (("at the theorem's K*", last), ("at the best steps of each", best)):
        ours, theirs = (mine.loc[name] for name in (_PUBLISHED, "composition"))
        gap = theirs["excess risk"] - ours["excess risk"]
        error = float(np.hypot(ours["standard error"], theirs["standard error"]))
        gains[where] = theirs["excess risk"] / ours["excess risk"]
        found[where] = is_above(gap, error, tests=2)
    verdict, under = among(found)
    # Every risk is one test of the bound.
    above = (slack < -errors_apart(tests=2 * len(rows))).any()
    if above:
        verdict, under = FAILS, ""
    elif rows["bound on the excess risk"].isna().any() or known.empty:
        verdict, under = NONE, ""  # the claim is about the theorem's bound
    now = best["excess risk"]["composition"] / best["excess risk"]["shifted interpolation"]
    return Verdict(
        "Hidden-state accounting gives better utility at small gradient complexity (Theorem 3)",
        verdict,
        f"shifted interpolation has {now:.2f} times less excess risk than composition, each at "
        f"its best number of steps; measured risks are {'not ' if above else ''}below "
        "the theorem's bound",
        "; ".join(f"{gain:.2f} times less excess risk {w}" for w, gain in gains.items()),
        "holds: above 1 in both; fails: below 1 in both, or a risk above the bound",
        under,
        would=would_decide(
            verdict,
            under,
            "theorem3 --full, 100 repeats at 16 numbers of steps: 10 minutes on two cores",
        ),
    )


def reaches_the_rate(theorem4: pd.DataFrame) -> Verdict:
    """Theorem 4: does noisy GD scale as the rate that nobody beats?"""
    require(theorem4["accounting"], (_PUBLISHED, "composition"), "theorem4")
    rows = _ratios(theorem4)
    own = rows[rows["accounting"] == _PUBLISHED]
    small = own[own["excess risk"] < _QUADRATIC]
    # A risk that noise has made negative has no power; without it the others' would be too large.
    lost = {*small.loc[small["excess risk"] <= 0, "problem"]}
    # Three powers and a level, and one setting more for the error.
    powers = {
        name: exponents(mine)
        for name, mine in small.groupby("problem")
        if name not in lost and len(mine) > 4 and mine[[*_RATE]].nunique().min() > 1
    }
    off = [
        Case(
            f"{problem}, {name}",
            abs(found[name][0] - power),
            found[name][1],
            (small["problem"] == problem).sum() - 4.0,  # three powers and a level are fitted
        )
        for problem, found in powers.items()
        for name, power in _RATE.items()
    ]
    known = [is_above(_HALF_WAY - c.value, c.error, spare=c.spare, tests=len(off) + 1) for c in off]
    known += [None for name in own["problem"].unique() if name not in powers]
    # The bound is at the theorem's noise. On the linear loss it is the expectation itself, so that
    # the mean scatters around it.
    least = own["excess risk"] - errors_apart(tests=2 * len(own)) * own["standard error"]
    above = int((least > own["bound of Theorem 3"]).sum())
    known.append(None if own[["excess risk", "bound of Theorem 3"]].isna().any(axis=None) else True)
    verdict = FAILS if above or False in known else HOLDS if all(known) else NONE
    told = "; ".join(
        f"{problem}: n^{found['records'][0]:.2f} d^{found['dimension'][0]:.2f} "
        f"ε^{found['epsilon'][0]:.2f}"
        for problem, found in powers.items()
    )
    cases = ["problem", "records", "dimension", "epsilon", "accounting"]
    last = rows.groupby(cases)["excess risk"].mean().unstack()
    gain = last["composition"] / last[_PUBLISHED]
    return Verdict(
        "Noisy GD reaches the rate d/(ε²n²) of the lower bound up to ln(1/δ) (Theorems 3, 4)",
        verdict,
        f"excess risk at K* goes as {told or 'nothing'} in the {len(small)} settings with risk "
        f"below {_QUADRATIC:g}, and lies above Theorem 3's bound beyond chance in "
        f"{above} of {len(own)}; composition needs {gain.min():.2f} to {gain.max():.2f} times the "
        "risk at the same K*",
        f"powers of n, d and ε off by {spread(off)}",
        f"off by more than {_HALF_WAY:g}, half-way to the next half power",
        published="n⁻² d¹ ε⁻² ln(1/δ)",
        scale="two problems, a theorem without a run",
        would=would_decide(
            verdict, "", "theorem4 --full, n up to 125,000 and 3 seeds: an hour on two cores"
        ),
    )


def _power_of_n(rows: pd.DataFrame, values: pd.Series) -> Gap:
    """The power of n in these values; each dimension and seed has its own level."""
    rows, values = rows[values.notna()], values[values.notna()]
    groups = [rows["dimension"], rows["seed"]]
    logs, sizes = np.log(values), np.log(rows["records"])
    y, x = (part - part.groupby(groups).transform("mean") for part in (logs, sizes))
    if not (x * x).sum() > 0:
        return Gap(math.nan, math.inf, 0.0)
    found = float((x * y).sum() / (x * x).sum())
    spare = len(rows) - rows.groupby(["dimension", "seed"]).ngroups - 1
    scatter = float(np.square(y - found * x).sum()) / spare if spare > 0 else math.inf
    return Gap(found, math.sqrt(scatter / float((x * x).sum())), float(spare))


def _within(power: Gap, expected: float, tests: int) -> bool | None:
    """Whether a power is nearer to the expected one than the half-way line."""
    off = abs(power.value - expected)
    return is_above(_HALF_WAY - off, power.error, spare=power.spare, tests=tests)


def _both(left: pd.DataFrame, right: pd.DataFrame, what: str) -> pd.Series:
    """A column of the one method over that of the other, by the problems that both have."""
    index = ["dimension", "seed", "records"]
    return (left.set_index(index)[what] / right.set_index(index)[what]).dropna()


def _with_bounds(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """Rows of noisy SGD whose missing gradients are what they were given; and which these are.

    A run that never comes to the risk needs more than it was given: it is censored, and what it was
    given, n/2 times the largest power of 4 that stays within the limit, is a lower bound of what it
    needs.
    """
    n = rows["records"].astype(float)
    most = np.minimum(np.square(n), _MOST_STEPS)
    given = n // 2 * 4.0 ** np.floor(np.log(most / (n // 2)) / math.log(4.0))
    # A run that reports a least risk has used all it was given; without one it was not made.
    censored = rows["gradients"].isna() & rows["least risk"].notna()
    return rows.assign(gradients=rows["gradients"].where(~censored, given)), censored


def needs_fewer_gradients(table1: pd.DataFrame) -> Verdict:
    """Table 1's gradient complexities, by the powers of n and by the numbers at each n.

    What noisy SGD was given where it does not come to the common risk is a lower bound: it can show
    that it needs more than noisy GD, and not that it needs less.
    """
    require(table1["method"], [TABLE1_METHODS[0], TABLE1_METHODS[2]], "table1")
    by = {name: table1[table1["method"] == name] for name in TABLE1_METHODS}
    ours = by[TABLE1_METHODS[0]]
    theirs, censored = _with_bounds(by[TABLE1_METHODS[2]])
    by[TABLE1_METHODS[2]] = theirs
    logs = np.log(np.square(ours["records"] * ours["epsilon"]) / ours["dimension"] / 4)
    expected = _power_of_n(ours, ours["records"] * (logs - math.log(math.log(1 / _DELTA))))[0]
    powers = {name: _power_of_n(rows, rows["gradients"]) for name, rows in by.items() if len(rows)}
    unknown = Gap(math.nan, math.inf, 0.0)
    first, second = (powers.get(TABLE1_METHODS[i], unknown) for i in (0, 2))
    logs = np.log(_both(theirs, ours, "gradients")).groupby("records").agg(["mean", "sem", "size"])
    ratio = np.exp(logs["mean"])
    tests = len(logs) + 2
    short = {*map(int, theirs["records"][censored])}
    orders = [_within(first, expected, tests), _within(second, 2.0, tests)]
    if short:
        # A power that is at least so large: it cannot fail, and shows where the bounds are at the
        # largest n alone.
        least = is_above(second.value - (2.0 - _HALF_WAY), second.error, spare=second.spare)
        orders[1] = least if least and short == {theirs["records"].max()} else None
    found: dict[str, bool | None] = {"the orders": True}
    for n, mean, error, count in logs.itertuples():
        more = is_above(mean, error, spare=count - 1, tests=tests)
        found[f"n = {n:,}"] = more if more or n not in short else None
    verdict, under = among(found)
    # Whose number is not known has none, and the powers are not of all. Without a problem at which
    # both have one there is no factor.
    if pd.concat([ours, theirs])["gradients"].hasnans:
        orders = [None]
    elif logs.empty:
        orders = [one for one in orders if one is False] or [None]
    if not all(orders):
        verdict, under = (FAILS if False in orders else NONE), ""
    told = "; ".join(f"{n}: n^({p.value:.2f} ± {p.error:.2f})" for n, p in powers.items())
    if short:
        told += f". {censored.sum()} of {len(theirs)} runs of noisy SGD were cut off at "
        told += f"most {_MOST_STEPS:,} steps, and count with these"
    level = by[TABLE1_METHODS[3]]
    least = _both(ours, level, "gradients") if len(level) else pd.Series([math.nan])
    return Verdict(
        "To one excess risk noisy GD computes n ln n gradients and noisy SGD n², a factor n/ln n "
        "more (Table 1)",
        verdict,
        f"{told}; n ln n has the power {expected:.2f} here. Output perturbation computes "
        f"{least.min():.2g} to {least.max():.2g} times fewer gradients than noisy GD",
        "noisy SGD computes "
        + ", ".join(f"{value:.2g} (n = {n:,})" for n, value in ratio.items())
        + f" times as many; powers {first[0]:.2f} ± {first[1]:.2f} and {second[0]:.2f} ± "
        f"{second[1]:.2f}",
        f"a power off by more than {_HALF_WAY:g} fails; conditions: fewer than noisy GD at an n",
        under,
        published="n ln n against n²",
        scale="logistic regression, a table without a run",
        changed=""
        if verdict == NONE
        else "was *cannot be decided*: up to n = 4,000 the powers had errors of 0.15; a larger n "
        "and four data sets for two make them smaller",
        would=would_decide(verdict, under, _OF_TABLE1),
    )


_OF_TABLE1 = "table1 --full, two dimensions and 4 seeds at n up to 16,000: 40 minutes on two cores"


def has_the_least_risk(table1: pd.DataFrame) -> Verdict:
    """Table 1's utilities: n⁻² for three of four, and more by a power of ln n for noisy SGD."""
    require(table1["method"], TABLE1_METHODS, "table1")
    by = {name: table1[table1["method"] == name] for name in TABLE1_METHODS}
    powers = {name: _power_of_n(rows, rows["least risk"]) for name, rows in by.items()}
    ours, theirs = by[TABLE1_METHODS[0]], by[TABLE1_METHODS[2]]
    ratio = _both(theirs, ours, "least risk")
    rows = ratio.index.to_frame(index=False)
    growth = _power_of_n(rows, pd.Series(ratio.to_numpy()))
    square = np.square(np.log(rows["records"]))
    expected = _power_of_n(rows, square)[0]
    tests = 6  # three powers, two lines about the growth, and the level
    found = {
        n: _within(powers[n], -2.0, tests) for n in np.array(TABLE1_METHODS)[[0, 3, 4]].tolist()
    }
    # Half-way between no factor and ln²n, and less than a power of n; and a risk that is the lower
    # one misses nothing.
    over, short = growth.value - expected / 2, expected + _HALF_WAY - growth.value
    ends = [is_above(v, growth.error, spare=growth.spare, tests=tests) for v in (over, short)]
    grows = False if False in ends else all(ends) or None
    level = np.log(ratio)
    larger = is_above(float(level.mean()), float(level.sem()), spare=len(level) - 1.0, tests=tests)
    found["noisy SGD's is larger by a power of ln n"] = grows if larger else larger
    verdict, under = among(found)
    return Verdict(
        "Noisy GD attains d/(ε²n²) like objective and output perturbation; noisy SGD misses it by "
        "a power of ln n (Table 1)",
        verdict,
        "least risk: "
        + "; ".join(f"{n}: n^({p.value:.2f} ± {p.error:.2f})" for n, p in powers.items())
        + ". Noisy SGD was given at most min(n², 4.2 million) steps, and an exact price",
        f"noisy SGD's least risk is {ratio.min():.2g} to {ratio.max():.2g} times noisy GD's, as "
        f"n^({growth[0]:.2f} ± {growth[1]:.2f})",
        f"above 1 and as n^{expected / 2:.2f} to n^{expected + _HALF_WAY:.2f} (ln²n: "
        f"{expected:.2f}); powers of the others within {_HALF_WAY:g} of −2",
        under,
        published="a factor of ln²n",
        scale="logistic regression, a table without a run",
        would=would_decide(verdict, under, _OF_TABLE1),
    )


def table1_lines(folder: pathlib.Path) -> list[Line]:
    """Gradients and least risk at the largest n, means over the data sets drawn."""
    rows = table(folder, "table1")
    largest = rows[rows["records"] == rows["records"].max()]
    lines = []
    for (dimension, name), mine in largest.groupby(["dimension", "method"], sort=False):
        where = f"n = {mine['records'].iloc[0]:,}, d = {dimension}, {name}"
        note = f"to the risk {mine['common risk'].mean():.2g}; {len(mine)} data sets"
        found = mine["gradients"].mean()
        lines.append(Line("Table 1", f"gradients, {where}", None, found, None, note))
        risk = mine["least risk"].mean()
        lines.append(Line("Table 1", f"least excess risk, {where}", None, risk, None, ""))
    return lines


LINES = (figure1_lines, theorem3_lines, theorem4_lines, table1_lines)
VERDICTS = (
    (converges, "figure1"),
    (is_tight, "figure1"),
    (is_sound_as_printed, "figure1"),
    (is_more_useful, "theorem3"),
    (reaches_the_rate, "theorem4"),
    (needs_fewer_gradients, "table1"),
    (has_the_least_risk, "table1"),
)
