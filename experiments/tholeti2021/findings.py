"""What of tholeti2021 holds, from the CSV files of the last run."""

from __future__ import annotations

import pathlib

import numpy as np
import pandas as pd

from experiments.report import CONDITIONS, FAILS, HOLDS, NONE, Line, Verdict, table
from experiments.tholeti2021.landscape import stationary_distance
from experiments.tholeti2021.protocol import METHODS
from experiments.tholeti2021.published import ONE_DIMENSION, odd_dimension, total

_ESCAPES = "Perturbed gradient descent comes close to a local minimum (Theorem 2)"
_BALL = 0.1  # sensitivity over radius in the table of Theorem 1


def figure2_lines(folder: pathlib.Path) -> list[Line]:
    """δ of one step: the paper's series for odd dimensions beside the simulation."""
    rows = table(folder, "figure2")
    lines = []
    for dimension in (1, 5):
        mine = rows[rows["dimension"] == dimension]
        row = mine.iloc[(mine["sensitivity"] - 0.5).abs().argmin()]
        sensitivity = float(row["sensitivity"])
        printed = ONE_DIMENSION * sensitivity
        lines.append(
            Line(
                "Figure 2",
                f"δ of one step, d = {dimension}, Δ = {sensitivity:.4g}",
                printed if dimension == 1 else odd_dimension(sensitivity, dimension),
                float(row["simulated"]),
                float(row["simulated error"]) / 3,
                "published: Δ/2" if dimension == 1 else "published: Eq. 9; measured by simulation",
            )
        )
    return lines


def theorem1_lines(folder: pathlib.Path) -> list[Line]:
    """Total δ, and what Gaussian noise costs."""
    rows = table(folder, "theorem1")
    lines = []
    for row in rows[rows["dimension"] == 10].to_dict("records"):
        n, steps = int(row["records"]), int(row["steps"])
        one = _one_step(row)
        lines.append(
            Line(
                "Theorem 1",
                f"total δ, d = 10, Δ = 0.1, n = {n:,}, T = {steps:,}",
                total(one, n, steps),
                row["δ, independent draws (Theorem 1)"],
                None,
                f"void above 1/n = {1 / n:.1e}; in shuffled passes {row['δ, shuffled passes']:.3g}",
            )
        )
    for row in rows[(rows["steps"] == rows["records"])].to_dict("records"):
        lines.append(
            Line(
                "own line",
                f"noise std/Δ for δ = 1e-5, d = {row['dimension']}, n = T = {row['records']:,}: "
                "ball",
                None,
                row["its std per coordinate/Δ"],
                None,
                f"Gaussian noise for (1, 1e-5): {row['Gaussian std/Δ for (1, 1e-5)']:.3g}",
            )
        )
    return lines


def _one_step(row: dict) -> float:
    """The paper's δ of one step, by its Eq. 9 between the odd dimensions around d = 10."""
    low, high = odd_dimension(_BALL, 9), odd_dimension(_BALL, 11)
    return 0.5 * (low + high)


def theorem2_lines(folder: pathlib.Path) -> list[Line]:
    """From the saddle to a minimum."""
    lines = []
    for row in table(folder, "theorem2").to_dict("records"):
        exact = None
        if row["method"] == "all records, ball":
            exact = stationary_distance(row["step size"], row["radius"])
        left = row["median steps to leave"]
        when = "" if pd.isna(left) else f", after {left:,.0f} steps (median)"
        lines.append(
            Line(
                "Theorem 2",
                f"distance to a minimum, η = {row['step size']:g}, {row['method']}",
                exact,
                row["distance to a minimum"],
                row["standard error"],
                f"{row['runs that leave the saddle']} of {row['runs']} leave the saddle{when}, "
                f"{row['runs that end near a minimum']} end near a minimum"
                + ("; published: exact near the minimum" if exact else "")
                + f"; δ of the run {row['δ of the run']:.3g}",
            )
        )
    return lines


def power(rows: pd.DataFrame, name: str) -> float:
    """The power of the step size in a column, by least squares of the logarithms."""
    logs = np.log(rows[[name, "step size"]].to_numpy(float))
    return float(np.polyfit(logs[:, 1], logs[:, 0], 1)[0])


def privacy_verdicts(folder: pathlib.Path) -> list[Verdict]:
    """One step, and the whole run."""
    figure2, theorem1 = (table(folder, n) for n in ("figure2", "theorem1"))
    off = (figure2["delta"] - figure2["simulated"]).abs() / figure2["simulated error"].clip(1e-3)
    formula = HOLDS if (off < 2).all() else FAILS
    wide = figure2.pivot_table(index="sensitivity", columns="dimension", values="delta")
    rising = bool((wide.diff(axis=1).iloc[:, 1:] > -1e-9).all().all())
    totals = theorem1["δ, independent draws (Theorem 1)"]
    void = bool((totals > 1 / theorem1["records"]).all())
    ratio = theorem1["its std per coordinate/Δ"] / theorem1["Gaussian std/Δ for (1, 1e-5)"]
    return [
        Verdict(
            "One step with noise from a ball is (0, δ)-private with the δ of Eq. 6, which grows "
            "with Δ and d",
            formula if rising else FAILS,
            f"{len(figure2)} simulated points lie within {off.max():.1f} times three standard "
            "errors of the formula",
        ),
        Verdict(
            "Perturbed gradient descent inherently preserves privacy (Theorem 1)",
            CONDITIONS if void else HOLDS,
            f"the total is right, and void: δ = {totals.min():.2g} to {totals.max():.2g} with a "
            f"radius of ten sensitivities, where 1/n publishes a record; a total of 1e-5 takes "
            f"{ratio.min():,.0f} to {ratio.max():,.0f} times the noise of a Gaussian with "
            "(1, 1e-5)",
        ),
    ]


def landscape_verdicts(folder: pathlib.Path) -> list[Verdict]:
    """Theorem 2, where the step size is below its threshold: the runs of one record converge."""
    rows = table(folder, "theorem2")
    published = rows[rows["method"] == METHODS[0]]
    near = published["runs that end near a minimum"] == published["runs"]
    below = published[near]
    if len(below) < 3:
        return [Verdict(_ESCAPES, NONE, f"only {len(below)} step sizes are below the threshold")]
    distance, steps = (power(below, n) for n in ("distance to a minimum", "median steps to leave"))
    alone = rows[(rows["method"] == METHODS[1]) & rows["step size"].isin(below["step size"])]
    full = rows[rows["method"] == METHODS[2]]
    still = rows[rows["method"] == METHODS[3]]
    # Õ(√η) and Õ(η⁻²) are upper bounds: a larger power of η in the distance, and fewer steps, obey.
    reached = distance > 0.4 and steps > -2.1 and still["runs that leave the saddle"].sum() == 0
    exact = [
        stationary_distance(s, r) for s, r in zip(full["step size"], full["radius"], strict=True)
    ]
    off = (full["distance to a minimum"] / exact - 1).abs().max()
    return [
        Verdict(
            _ESCAPES,
            HOLDS
            if reached and (full["runs that end near a minimum"] == full["runs"]).all()
            else FAILS,
            f"1,600 records, from an exact saddle, η ≤ {below['step size'].max():g}: distance "
            f"∝ η^{distance:.2f}, steps to leave ∝ η^{steps:.2f}, all "
            f"{below['runs'].sum()} runs end near a minimum; without noise none of "
            f"{still['runs'].sum()} leaves; with all records and the ball within {100 * off:.0f} % "
            "of the exact distance",
            published="Õ(√η)-close within Õ(η⁻²) steps",
            scale="a theorem without a run",
        ),
        Verdict(
            "The ball is what escapes the saddle (Algorithm 1)",
            CONDITIONS if alone["runs that leave the saddle"].sum() else HOLDS,
            f"drawing one record a step leaves it too, without the ball: "
            f"{alone['runs that leave the saddle'].sum()} of {alone['runs'].sum()} runs; the ball "
            f"is needed with all records. δ of these runs is {rows['δ of the run'].min():.2f} to "
            f"{rows['δ of the run'].max():.2f}: noise that escapes protects nobody",
            published="–",
            scale="a theorem without a run",
        ),
    ]


LINES = (figure2_lines, theorem1_lines, theorem2_lines)
VERDICTS = (privacy_verdicts, landscape_verdicts)
