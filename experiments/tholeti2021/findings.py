"""What of tholeti2021 holds, from the CSV files of the last run."""

from __future__ import annotations

import pathlib

from experiments.report import CONDITIONS, FAILS, HOLDS, Line, Verdict, table
from experiments.tholeti2021.published import ONE_DIMENSION, odd_dimension, total

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


def saddle_lines(folder: pathlib.Path) -> list[Line]:
    """Escape from a strict saddle."""
    rows = table(folder, "saddle")
    return [
        Line(
            "§IV-B",
            f"runs that leave the saddle, noise radius {row['noise radius']:g}",
            "none" if row["noise radius"] == 0 else "all",
            f"{row['runs escaped']} of {row['runs']}",
            None,
            "" if row["noise radius"] == 0 else f"median {row['median steps to escape']:g} steps",
        )
        for row in rows.to_dict("records")
    ]


def verdicts(folder: pathlib.Path) -> list[Verdict]:
    """The three claims."""
    figure2, theorem1, saddle = (table(folder, n) for n in ("figure2", "theorem1", "saddle"))
    off = (figure2["delta"] - figure2["simulated"]).abs() / figure2["simulated error"].clip(1e-3)
    formula = HOLDS if (off < 2).all() else FAILS
    wide = figure2.pivot_table(index="sensitivity", columns="dimension", values="delta")
    rising = bool((wide.diff(axis=1).iloc[:, 1:] > -1e-9).all().all())
    totals = theorem1["δ, independent draws (Theorem 1)"]
    void = bool((totals > 1 / theorem1["records"]).all())
    ratio = theorem1["its std per coordinate/Δ"] / theorem1["Gaussian std/Δ for (1, 1e-5)"]
    quiet = saddle[saddle["noise radius"] == 0]["runs escaped"].sum()
    noisy = saddle[saddle["noise radius"] > 0]
    all_out = bool((noisy["runs escaped"] == noisy["runs"]).all())
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
        Verdict(
            "The same noise escapes strict saddles",
            HOLDS if all_out and quiet == 0 else FAILS,
            f"{noisy['runs escaped'].sum()} of {noisy['runs'].sum()} runs with noise leave, "
            f"{quiet} without; radii that escape quickly protect nothing",
        ),
    ]


LINES = (figure2_lines, theorem1_lines, saddle_lines)
VERDICTS = (verdicts,)
