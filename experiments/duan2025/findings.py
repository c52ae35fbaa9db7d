"""What of GeoDP holds, from the CSV files of `experiments/geodp`."""

from __future__ import annotations

import pathlib

from experiments.report import CONDITIONS, FAILS, HOLDS, Line, Verdict, table

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
    rows = table(folder, "perturbation_summary")
    return [
        Line(
            "Figures 1, 3",
            f"squared angle, σ = {row['σ']:g}, d = {row['d']}, B = {row['B']}, GeoDP β = 1",
            "below DP's",
            row["GeoDP β=1 (no DP)"],
            None,
            f"DP {row['DP']:.3g}, G3 with the same proven ε {row['G3 (best radius)']:.3g}",
        )
        for row in rows.to_dict("records")
        if row["σ"] >= 0.1 and row["d"] in (500, 5000, 20000)
    ]


def training_lines(folder: pathlib.Path, name: str) -> list[Line]:
    """Table II or III: accuracy of every row."""
    rows = table(folder, name)
    sigmas = [c.removeprefix("published ") for c in rows if c.startswith("published ")]
    return [
        Line(
            {"table2": "Table II", "table3": "Table III"}[name],
            f"accuracy %, {row['method']}, B = {row['B']:,}, {sigma}",
            row[f"published {sigma}"],
            row[f"measured {sigma}"],
            row.get(f"spread {sigma}"),
            "smaller images and batches, see the folder's README (± is its spread)",
        )
        for row in rows.to_dict("records")
        for sigma in sigmas
    ]


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
        )
    ]


def direction_verdicts(folder: pathlib.Path) -> list[Verdict]:
    """The utility claims."""
    rows = table(folder, "perturbation_summary")
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
        )
    ]


def regression_verdicts(folder: pathlib.Path) -> list[Verdict]:
    """Figure 5."""
    rows = table(folder, "figure5_summary")
    plain = rows[rows["curve"].str.startswith("no noise")].set_index("panel")["test accuracy %"]
    noisy = rows[rows["curve"].str.startswith("DP")]
    lost = (noisy["panel"].map(plain) - noisy["test accuracy %"]).max()
    ours = rows[rows["curve"].str.startswith("GeoDP")]
    gain = (
        ours["test accuracy %"].to_numpy()
        - ours["panel"].map(noisy.groupby("panel")["test accuracy %"].max()).to_numpy()
    )
    verdict = HOLDS if (gain > 0.1).all() else CONDITIONS if (gain > 0.1).any() else FAILS
    return [
        Verdict(
            "DP-SGD's biased direction costs accuracy that GeoDP recovers (Figure 5)",
            verdict,
            f"DP-SGD loses at most {lost:.2f} points to its noise, and GeoDP ends "
            f"{gain.min():+.1f} to {gain.max():+.1f} points from the best DP-SGD of its panel",
        )
    ]


LINES = (
    privacy_lines,
    direction_lines,
    lambda folder: training_lines(folder, "table2"),
    lambda folder: training_lines(folder, "table3"),
)
VERDICTS = (privacy_verdicts, direction_verdicts, regression_verdicts)
