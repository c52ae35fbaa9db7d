"""What of GeoDP holds, from the CSV files of the last run."""

from __future__ import annotations

import pathlib

import numpy as np
import pandas as pd

from experiments.duan2025.perturbation import summary
from experiments.duan2025.published import NOISE_FREE, accuracy
from experiments.duan2025.summaries import FREE, by_method, ends, steady_rate
from experiments.report import CONDITIONS, FAILS, HOLDS, NONE, Line, Missing, Verdict, table

# Final losses of two curves that are closer than this are level.
_LOSS = 2e-3

_NEIGHBOURS = {"aligned": "norm C", "tenth": "norm C/10", "pole": "near a pole"}


def privacy_lines(folder: pathlib.Path) -> list[Line]:
    """Claimed, audited and exact ε of one release."""
    rows = table(folder, "privacy")
    mine = rows[(rows["sigma"] == 1.0) & (rows["d"] <= 10)]
    return [
        Line(
            "§IV, one release",
            f"ε at δ = 1e-5, σ = 1, d = {row['d']}, β = {row['beta']:g}, average "
            f"{_NEIGHBOURS[row['neighbours']]}",
            row["claimed"],
            row["exact"],
            None,
            "published: the claim, priced tightly; audit without assumptions "
            f"{row['threshold']:.3g}",
        )
        for row in mine.to_dict("records")
    ]


def direction_lines(folder: pathlib.Path) -> list[Line]:
    """Squared angle of what is released, GeoDP against plain noise."""
    return [
        Line(
            "Figures 1, 3",
            f"squared angle, σ = {row['σ']:g}, d = {row['d']}, B = {row['B']}, GeoDP β = 1",
            "below DP's",
            row["GeoDP β=1 (no DP)"],
            None,
            f"DP {row['DP']:.3g}, G3 with the same proven ε {row['G3 (best radius)']:.3g}",
        )
        for row in _directions(folder).to_dict("records")
        if row["σ"] >= 0.1 and row["d"] in (500, 5000, 20000)
    ]


def _directions(folder: pathlib.Path) -> pd.DataFrame:
    return pd.DataFrame(summary(table(folder, "perturbation").to_dict("records")))


def noise_free_lines(folder: pathlib.Path) -> list[Line]:
    """The networks without noise."""
    return [
        Line(
            f"Table {'II' if row['data set'] == 'MNIST' else 'III'}",
            f"accuracy %, {row['data set']}, noise-free",
            NOISE_FREE[row["data set"]],
            row["accuracy %"],
            None,
            f"not clipped, B = {row['B']}, {row['epochs']} epochs, rate {row['rate']:g}",
        )
        for row in table(folder, "noise_free").to_dict("records")
    ]


def training_lines(folder: pathlib.Path, name: str) -> list[Line]:
    """Rows of Table II: accuracy, what it rests on, and what it costs."""
    rows, lines = table(folder, name), []
    for row in by_method(rows).to_dict("records"):
        mine = rows[(rows["method"] == row["method"]) & (rows["B"] == row["B"])]
        divided = row["B"] // int(mine["B run"].iloc[0])
        note = f"{row['seeds']} seed{'s' * (row['seeds'] > 1)}, {row['setting']}; "
        note += f"B/{divided}, " if divided > 1 else ""
        note += f"proven ε {row['proven ε']:.3g}"
        if (mine["attempts"] != mine["steps"]).any() or "SUR" in row["method"]:
            note += (
                f"; {mine['accepted'].mean():.0f} of {mine['attempts'].mean():.0f} attempts kept"
            )
        third = name == "table3"
        where, batch, sigma = "Table III" if third else "Table II", int(row["B"]), row["σ"]
        what = f"accuracy %, {row['method']}, B = {batch:,}, σ = {sigma:g}"
        printed = accuracy(row["method"], batch, sigma, "table3" if third else "table2")
        error = row["error"] if row["seeds"] > 1 else None
        lines.append(Line(where, what, printed, row["accuracy %"], error, note))
    return lines


def regression_lines(folder: pathlib.Path) -> list[Line]:
    """Figure 5: where every curve ends."""
    rows = table(folder, "figure5")
    rate = steady_rate(rows)
    return [
        Line(
            f"Figure 5({row['panel']})",
            f"final loss, {row['method']}, B = {row['B']:,}, σ = {row['σ']:g}",
            None,
            row["loss"],
            None,
            f"test accuracy {row['accuracy %']:.2f} %, step size {rate:g}, 1 seed",
        )
        for row in ends(rows).to_dict("records")
    ]


def runtime_lines(folder: pathlib.Path) -> list[Line]:
    """Figure 6: how many times as long GeoDP's perturbation takes."""
    return [
        Line(
            "Figure 6",
            f"GeoDP's processor time over DP-SGD's, d = {row['d']:,}"
            + (f", with the clipping of {row['batch']:,} gradients" if row["batch"] else ""),
            "above 1",
            row["ratio"],
            None,
            f"{1e3 * row['geodp_s']:.3g} and {1e3 * row['gaussian_s']:.3g} ms the perturbation",
        )
        for row in table(folder, "figure6").to_dict("records")
        if row["d"] in (1_000, 100_000, 1_000_000) and row["batch"] in (0, 256)
    ]


def _made(folder: pathlib.Path, name: str) -> str:
    """Says where a table was made by an earlier run, whose cells are not kept."""
    return "–" if (folder / "cells" / name).is_dir() else "a run before its cells"


def privacy_verdicts(folder: pathlib.Path) -> list[Verdict]:
    """The privacy claim."""
    rows = table(folder, "privacy")
    broken = rows[rows["exact"] > rows["claimed"]]
    caught = rows[rows["threshold"] > rows["claimed"]]
    mildest = rows[(rows["sigma"] == 1.0) & (rows["beta"] == 1.0)]
    worst = mildest.loc[(mildest["exact"] / mildest["claimed"]).idxmax()]
    return [
        Verdict(
            "GeoDP has the privacy of DP-SGD at the same σ",
            FAILS if len(broken) else HOLDS,
            f"the exact ε is above the claim in {len(broken)} of {len(rows)} settings, and "
            f"counting errors, with no assumption, shows it in {len(caught)}; at σ = 1, β = 1, "
            f"d = {worst['d']} it is {worst['exact']:.3g} where {worst['claimed']:.3g} is claimed",
            scale=_made(folder, "privacy"),
        )
    ]


def direction_verdicts(folder: pathlib.Path) -> list[Verdict]:
    """The utility claims."""
    rows = _directions(folder)
    parts = []
    for beta in ("1", "0.1", "0.01"):
        better = int((rows[f"GeoDP β={beta} (no DP)"] < rows["DP"]).sum())
        parts.append((beta, better))
    share = [better / len(rows) for _, better in parts]
    verdict = HOLDS if min(share) > 0.9 else CONDITIONS if max(share) > 0.5 else FAILS
    shown = ", ".join(f"β = {beta}: {better} of {len(rows)}" for beta, better in parts)
    sound = int((rows["G3 (best radius)"] < rows["DP"]).sum())
    return [
        Verdict(
            "GeoDP keeps directions better than DP-SGD at the same σ",
            verdict,
            f"settings with a smaller angle: {shown}; a small β wins by leaving out noise that "
            f"privacy needs. With a proof, G3 is better in {sound} of {len(rows)}",
            scale=_made(folder, "perturbation"),
        )
    ]


def regression_verdicts(folder: pathlib.Path) -> list[Verdict]:
    """Figure 5, by final losses at the steady step size."""
    rows = ends(table(folder, "figure5"))
    free = rows[rows["method"] == FREE].set_index("panel")["loss"]
    plain, ours = rows[rows["method"] == "DP"], rows[rows["method"].str.startswith("GeoDP")]
    lost = plain["loss"] - plain["panel"].map(free)
    best = plain.groupby(["panel", "σ", "B"])["loss"].min()
    gain = [best[p, s, b] - v for p, s, b, v in ours[["panel", "σ", "B", "loss"]].to_numpy()]
    ahead = [value > _LOSS for value in gain]
    verdict = HOLDS if all(ahead) else CONDITIONS if any(ahead) else FAILS
    return [
        Verdict(
            "DP-SGD's biased direction costs accuracy that GeoDP recovers (Figure 5)",
            verdict,
            f"DP-SGD's final loss is {lost.min():+.4f} to {lost.max():+.4f} from the noise-free "
            f"one, and GeoDP's is lower than DP-SGD's by {min(gain):.4f} to {max(gain):.4f}",
            "curves",
            "B, σ and iterations as published, 1 of 100 repeats",
        )
    ]


def _versus(own: dict, rival: dict) -> tuple[float, float]:
    """(points ahead, standard error)."""
    gap = own["accuracy %"] - rival["accuracy %"]
    return gap, float(np.hypot(own["error"], rival["error"]))


def _decided(gap: float, error: float) -> str:
    """Ahead or behind by two standard errors, else not known."""
    return HOLDS if gap > 2 * error else FAILS if gap < -2 * error else NONE


def _of_table2(folder: pathlib.Path, *names: str) -> tuple[list[dict], bool, float]:
    """Rows of these methods; whether the noise-free line allows a verdict, and where it is."""
    rows = {row["method"]: row for row in by_method(table(folder, "table2")).to_dict("records")}
    absent = [name for name in names if name not in rows]
    if absent:
        raise Missing(f"table2 ({', '.join(absent)})")
    free = table(folder, "noise_free")
    reached = free[free["data set"] == "MNIST"]["accuracy %"].max()
    return [rows[name] for name in names], reached >= NOISE_FREE["MNIST"] - 0.5, reached


def claim_verdicts(folder: pathlib.Path) -> list[Verdict]:
    """Table II at σ = 10, at equal σ as published."""
    (dp, geo, free), comparable, reached = _of_table2(folder, "DP", "GeoDP β=0.1", FREE)
    gap, error = _versus(geo, dp)
    lost, of_it = _versus(free, dp)
    printed = [accuracy(name, 16_384, 10.0) for name in ("GeoDP β=0.1", "DP")]
    told = f"; the network without noise or clipping reaches {reached:.1f} %"
    told += "" if comparable else ", too little for a verdict"
    return [
        Verdict(
            "GeoDP trains a CNN on MNIST better than DP-SGD at σ = 10 (Table II)",
            _decided(gap, error) if comparable else NONE,
            f"GeoDP β = 0.1 {geo['accuracy %']:.1f} %, DP-SGD {dp['accuracy %']:.1f} %: "
            f"{gap:+.1f} ± {error:.1f} points, B = 16,384; DP-SGD loses {lost:.1f} ± {of_it:.1f} "
            f"points to its noise{told}",
            f"{printed[0]} against {printed[1]} %",
            _scale(dp),
        )
    ]


def equal_verdicts(folder: pathlib.Path) -> list[Verdict]:
    """Table II's network at equal proven (ε, δ): G3 against DP-SGD, plain and averaged."""
    (own, *rivals), comparable, _ = _of_table2(folder, "G3", "DP", "averaged DP")
    rival = max(rivals, key=lambda row: row["accuracy %"])
    ahead, spread = _versus(own, rival)
    told = ", ".join(f"{row['method']} {row['accuracy %']:.2f}" for row in (own, *rivals))
    return [
        Verdict(
            "A geometric perturbation trains better at equal *proven* (ε, δ): G3",
            _decided(ahead, spread) if comparable else NONE,
            f"at ε = {own['proven ε']:.3f}, δ = 1e-5: {told} %; {ahead:+.1f} ± {spread:.1f} points "
            "from the better rival",
            "–",
            _scale(own),
        )
    ]


def _scale(row: dict) -> str:
    return f"batches of B/16, {row['seeds']} of 100 repeats"


LINES = (
    privacy_lines,
    direction_lines,
    regression_lines,
    noise_free_lines,
    lambda folder: training_lines(folder, "table2"),
    lambda folder: training_lines(folder, "addons"),
    lambda folder: training_lines(folder, "selective"),
    lambda folder: training_lines(folder, "quiet"),
    lambda folder: training_lines(folder, "table3"),
    runtime_lines,
)
VERDICTS = (
    privacy_verdicts,
    direction_verdicts,
    regression_verdicts,
    claim_verdicts,
    equal_verdicts,
)
