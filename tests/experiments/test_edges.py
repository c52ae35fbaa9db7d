"""A chosen setting at an end of its grid: searches that have none, and tables that say theirs."""

from __future__ import annotations

import importlib
import math
import pathlib

import numpy as np
import pandas as pd
import pytest

from experiments import common, edges, protocol, report, widening
from experiments.duan2025 import protocol as duan2025
from experiments.widening import Axis

HERE = pathlib.Path(protocol.__file__).parent
# What a table has that says its settings were chosen.
_CHOICE = {"setting", "tried", "settings tried", "edge"}
TABLES = [
    (paper, file.stem)
    for paper in common.papers()
    for file in sorted((HERE / paper).glob("*.csv"))
    if _CHOICE & {*pd.read_csv(file, nrows=1)} or file.stem in edges.grids(paper)
]
NAMES = [f"{paper}-{name}" for paper, name in TABLES]


@pytest.mark.parametrize("top", [(0.3, 5.0), (900.0, 0.02), (64.0, 1.0)])
def test_a_search_ends_with_worse_settings_on_either_side(top):
    """A score that falls with the distance from one setting, in octaves."""
    axes = [Axis("rate", (8.0, 32.0)), Axis("radius", (0.5, 1.0))]

    def score(points):
        return [-sum(abs(math.log2(x / t)) for x, t in zip(p, top, strict=True)) for p in points]

    found = widening.search(axes, score)
    assert found.edge == ""
    # No setting of the search is nearer than the best, and it is within an octave of the top.
    assert found.tried[found.best] == max(found.tried.values())
    for i, (value, exact) in enumerate(zip(found.best, top, strict=True)):
        assert 0.5 <= value / exact <= 2.0
        beside = [p[i] for p in found.tried if (*p[:i], *p[i + 1 :]) == _others(found.best, i)]
        assert min(beside) < value < max(beside)


def _others(point, i):
    return (*point[:i], *point[i + 1 :])


def test_a_search_goes_no_further_than_there_is_anything():
    falling = widening.search(
        [Axis("weight", (0.25, 0.5), most=1.0)], lambda points: [x for (x,) in points]
    )
    assert falling.best == (1.0,)
    assert falling.edge == ""
    assert len(falling.tried) == 3
    cut = widening.search([Axis("rate", (1.0,))], lambda p: [x for (x,) in p], at_most=4)
    assert cut.edge == "rate (largest)"
    unknown = widening.search([Axis("rate", (1.0, 2.0))], lambda p: [-x if x < 2 else math.nan
                                                                    for (x,) in p])  # fmt: skip
    assert unknown.best[0] < 1.0 or unknown.edge
    with pytest.raises(ValueError, match="score must be a number"):
        widening.search([Axis("rate", (1.0,))], lambda points: [math.nan for _ in points])


def test_there_are_tables_with_and_without_edges():
    marked = [report.table(HERE / paper, name)["edge"] for paper, name in TABLES]
    every = pd.concat(marked)
    assert {"", *every} != {""}
    assert (every == "").any()


@pytest.mark.parametrize(("paper", "name"), TABLES, ids=NAMES)
def test_every_committed_choice_is_inside_its_grid_or_says_edge(paper, name):
    frame = pd.read_csv(HERE / paper / f"{name}.csv")
    grid = edges.grids(paper).get(name)
    assert grid or "edge" in frame, "the protocol's CHOSEN must say what was chosen among"
    marked = report.table(HERE / paper, name)
    assert marked["edge"].map(type).eq(str).all()
    if grid:
        for row, edge in zip(frame.to_dict("records"), marked["edge"], strict=True):
            tried = grid(row)
            assert tried
            for one in tried.values():
                assert any(math.isclose(one.chosen, v, rel_tol=1e-4) for v in one.values), row
            inside = all(
                min(one.values) < one.chosen * (1 - 1e-4) or one.chosen <= one.least * (1 + 1e-4)
                for one in tried.values()
            ) and all(
                max(one.values) > one.chosen * (1 + 1e-4) or one.chosen >= one.most * (1 - 1e-4)
                for one in tried.values()
            )
            assert inside == (edge == "")
    said = (HERE / paper / "RESULTS.md").read_text()
    for words in {*marked["edge"]} - {""}:
        assert f"(edge: {words})" in said


def test_the_further_seeds_of_figure_5_are_at_the_best_step_sizes():
    rows = pd.read_csv(HERE / "duan2025" / "figure5.csv")
    last = rows[rows["iteration"] == rows["iteration"].max()]
    best = last.loc[last.groupby(["panel", "method", "σ", "B"])["loss"].idxmin()]
    found = {
        (row["panel"], row["method"], row["σ"], row["B"]): row["rate"]
        for row in best.to_dict("records")
        if row["method"] == "DP" or row["method"].startswith("GeoDP")
    }
    assert dict(duan2025._AT_BEST) == found
    assert np.all([0.1 < rate < 1.0 for rate in found.values()])


def test_a_verdict_whose_case_is_open_says_what_would_decide():
    """Of the committed tables, every claim of every paper."""
    for paper in common.papers():
        module = importlib.import_module(f"experiments.{paper}.findings")
        for judge, *names in module.VERDICTS:
            try:
                found = judge(*report.tables_of(HERE / paper, names))
            except report.Missing:
                continue
            open_ = found.verdict == report.NONE or "not known" in found.under
            assert bool(found.would) == open_, judge.__name__
