"""The benchmark of tables can lose, goes on where it was cut, and draws what it says."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import statistics
import sys

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

from benchmarks import few_records, table_data, table_methods, tables
from benchmarks.table_methods import Outcome, Scores
from benchmarks.tables import Cell
from dpjax import accounting as acc
from dpjax import data, training
from dpjax.training.tables import TableSettings

ALL = (*table_data.TABLES, *table_data.NUMBERS)


def test_area_log_loss_and_accuracy_are_those_of_scikit_learn():
    draws = np.random.default_rng(0)
    labels = draws.integers(0, 3, 400)
    chances = draws.dirichlet(np.ones(3), 400).round(2)  # with ties
    chances /= chances.sum(axis=1, keepdims=True)
    found = table_methods.score_chances(labels, chances)
    areas = [metrics.roc_auc_score(labels == side, chances[:, side]) for side in range(3)]
    assert found.area == pytest.approx(statistics.fmean(areas), abs=1e-12)
    assert found.accuracy == metrics.accuracy_score(labels, chances.argmax(axis=1))
    clipped = np.clip(chances[np.arange(400), labels], 1e-6, 1.0)
    assert found.log_loss == pytest.approx(-np.log(clipped).mean(), abs=1e-12)
    two = table_methods.score_chances(labels % 2, np.stack([1 - chances[:, 0], chances[:, 0]], 1))
    expected = metrics.roc_auc_score(labels % 2, chances[:, 0])
    assert two.area == pytest.approx(expected, abs=1e-12)


def test_the_calibration_error_is_the_gap_in_ten_bins():
    labels = np.array([0, 1, 1, 1, 0, 0, 0, 1])
    said = np.array([0.05, 0.05, 0.75, 0.75, 0.75, 0.75, 1.0, 1.0])
    # Bins 0, 7 and 9: |.1 - 1|, |3 - 2| and |2 - 1| of eight records.
    found = table_methods.score_chances(labels, np.stack([1 - said, said], axis=1))
    assert found.calibration == pytest.approx((0.9 + 1.0 + 1.0) / 8, abs=1e-12)


def test_a_model_that_is_hidden_has_the_scores_of_equal_chances(small):
    found = table_methods.score_nothing(small)
    assert found.area == 0.5
    assert found.log_loss == pytest.approx(math.log(2), abs=1e-12)


# ------------------------------------------------------------------------------ verdicts


@pytest.mark.parametrize(
    ("shift", "word"), [(0.02, "ahead"), (-0.02, "behind"), (0.0, "level"), (0.001, "level")]
)
def test_two_standard_errors_of_the_differences_decide(shift, word):
    noise = [0.004, -0.004, 0.001, -0.001, 0.0]  # of mean 0 and standard error 0.0013
    theirs = {key: 0.8 + 0.05 * key for key in range(5)}  # keys differ by much more
    ours = {key: theirs[key] + shift + noise[key] for key in range(5)}
    found = tables.judge(ours, theirs)
    assert found.word == word
    assert found.difference == pytest.approx(shift, abs=1e-12)
    assert found.error == pytest.approx(statistics.stdev(noise) / math.sqrt(5), abs=1e-12)


def test_keys_that_only_one_has_are_not_compared():
    assert tables.judge({0: 0.9, 1: 0.9}, {1: 0.8, 2: 0.8}).word == "none"
    assert tables.judge({0: 0.5, 1: 0.5, 2: 0.9}, {0: 0.8, 1: 0.8}).word == "behind"


def planted(ours: float, theirs: float, **other) -> tables.Results:
    """Five keys of a cell in which only the areas are given."""
    table, found = table_data.TABLES[0].name, {}
    for key in range(5):
        for method, value, rest in (
            ("dpjax", ours, {}), ("DP-EBM, ranges declared", theirs, other),
        ):  # fmt: skip
            scores = Scores(area=value + 0.0001 * (key % 2), accuracy=0.5)
            found[Cell(table, method, 1.0, key)] = Outcome(scores, 1.0, **rest)
    return found


def judgement(results: tables.Results) -> list[str]:
    """The line of the report about dpjax and the planted peer: ahead, level, behind, none."""
    lines = tables.show_judgements(results, ALL)
    (line,) = [line for line in lines if line.startswith("| dpjax | DP-EBM, ranges declared |")]
    return line.strip("| ").split(" | ")[2:]


def test_planted_results_turn_the_report():
    assert judgement(planted(0.9, 0.8)) == ["1", "0", "0", "0"]
    assert judgement(planted(0.8, 0.8)) == ["0", "1", "0", "0"]
    assert judgement(planted(0.7, 0.8)) == ["0", "0", "1", "0"]
    lost = "\n".join(tables.show_judgements(planted(0.7, 0.8), table_data.TABLES))
    assert "| dpjax | Bank | 1 | DP-EBM, ranges declared | .700 ± .000 | .800 ± .000 |" in lost
    assert "In no cell that was measured." not in lost
    won = "\n".join(tables.show_judgements(planted(0.9, 0.8), table_data.TABLES))
    assert "In no cell that was measured." in won


def test_a_peer_without_a_result_has_not_lost():
    """One that gave up or was cut off is not compared, though scores stand beside it."""
    assert judgement(planted(0.9, 0.8, failed="ValueError")) == ["0", "0", "0", "1"]
    assert judgement(planted(0.9, 0.8, cut_off=True)) == ["0", "0", "0", "1"]
    results = planted(0.9, 0.8, failed="ValueError: no")
    said = "\n".join(tables.list_missing(results, table_data.TABLES))
    assert "* DP-EBM, ranges declared, Bank: 5 cells without a result (ValueError: no)." in said


def test_a_hidden_model_of_ours_is_a_loss():
    results = planted(0.5, 0.8)
    for cell, outcome in results.items():
        if cell.method == "dpjax":
            results[cell] = outcome._replace(hidden="one class")
    assert judgement(results) == ["0", "0", "1", "0"]
    page = tables.report(results, table_data.TABLES, {"Bank": 36_168}, "Written here.")
    assert "| dpjax |  |  |  | .500 ± .000 (5 hidden) |  |  |  |" in page
    peer = "DP-EBM, ranges declared | .800 ± .000 |"
    assert f"| Bank | 1 | 36,168 | .500 ± .000 | {peer}" in page  # no model has that area


def test_where_classes_were_hidden_dpjax_is_compared_as_much_as_it_was_told():
    results = planted(0.5, 0.8)
    for cell, outcome in list(results.items()):
        if cell.method == "dpjax":
            results[cell] = outcome._replace(hidden="one class" if cell.key else "")
            told = outcome._replace(scores=Scores(area=0.85 + 0.0001 * (cell.key % 2)))
            results[cell._replace(method="dpjax, classes declared")] = told
    lines = tables.show_hidden(results, table_data.TABLES)[2:]
    peer = "DP-EBM, ranges declared | .800 ± .000"
    assert lines == [
        f"| Bank | 1 | 4 of 5 | {peer} | nothing | .500 ± .000 | behind |",
        f"| Bank | 1 | 4 of 5 | {peer} | classes | .850 ± .000 | ahead |",
        f"| Bank | 1 | 4 of 5 | {peer} | all | – | not measured |",
    ]
    seen = planted(0.5, 0.8)
    assert tables.show_hidden(seen, table_data.TABLES) == ["In no cell that was measured."]


def test_a_default_that_is_told_all_looks_at_nothing(small, monkeypatch):
    def look(table, frame, key):
        assert table.mechanism == acc.Composed(())
        return release(table, frame, key)

    release = data.PrivateTable.release
    monkeypatch.setattr(data.PrivateTable, "release", look)
    task = dataclasses.replace(small, epsilon=4.0)
    found = table_methods.score(task, table_methods.dpjax_all_declared(task))
    assert found.area > 0.8


def test_a_default_of_ours_that_gives_up_is_a_loss():
    results = planted(0.9, 0.8)
    for cell, outcome in results.items():
        if cell.method == "dpjax":
            results[cell] = outcome._replace(failed="DataError: no")
    assert judgement(results) == ["0", "0", "1", "0"]


def test_an_error_of_a_regression_counts_against_who_has_the_larger_one():
    def cells(ours: float, theirs: float) -> tables.Results:
        return {
            Cell("Adult, age", method, 1.0, key): Outcome(Scores(error=value + key), 1.0)
            for method, value in (("dpjax", ours), ("DP-EBM, ranges declared", theirs))
            for key in (0, 1)
        }

    assert judgement(cells(11.0, 12.0)) == ["1", "0", "0", "0"]
    assert judgement(cells(12.0, 11.0)) == ["0", "0", "1", "0"]
    page = tables.report(cells(12.0, 11.0), table_data.NUMBERS, {}, "Here.", tables.OF_NUMBERS)
    assert "| dpjax |  |  |  | 12.50 ± .50 |  |  |  |" in page
    assert "No such cell was measured with both." in page  # without the limit beside it


def test_the_gap_to_the_model_without_privacy_is_shown_from_a_budget_on():
    table, found = "Bank", {}
    for key in (0, 1, 2):
        found[Cell(table, "linear, no privacy", None, key)] = Outcome(Scores(0.9 + 0.001 * key), 1)
        for epsilon, area in ((0.1, 0.5), (1.0, 0.88), (4.0, 0.895)):
            cell = Cell(table, "dpjax, classes declared", epsilon, key)
            found[cell] = Outcome(Scores(area + 0.001 * key), 1)
    lines = tables.show_gaps(found, table_data.TABLES, {"Bank": 36_168})[2:]
    assert len(lines) == 2  # n·ε = 3,617 is below the bound
    assert lines[0].endswith("0.0200 ± 0.0000 | beyond 0.01 |")
    assert lines[1].endswith("0.0050 ± 0.0000 |  |")


@pytest.mark.parametrize(("error", "said"), [(10.3, "beyond 0.01"), (10.05, "")])
def test_the_gap_of_a_number_is_a_part_of_the_error_without_privacy(error, said):
    table, found = table_data.NUMBERS[0], {}
    for key in (0, 1, 2):
        unit = 10.0**key  # keys differ by much more than the methods
        for method, epsilon, value in (
            ("linear, no privacy", None, 10.0), ("dpjax", 1.0, error), ("dpjax", 0.1, 20.0),
        ):  # fmt: skip
            cell = Cell(table.name, method, epsilon, key)
            found[cell] = Outcome(Scores(error=unit * value), 1)
    page = tables.report(found, [table], {table.name: 32_561}, "Here.", tables.OF_NUMBERS)
    (line,) = [line for line in page.splitlines() if line.startswith("| Adult, age | 32,561 |")]
    assert line.endswith(f"| {error / 10 - 1:.4f} ± 0.0000 | {said} |")  # n·ε = 3,256 is too few
    assert f"| dpjax | {error * 37:.2f} ± " in line


@pytest.mark.at_length
def test_the_limit_of_a_number_is_least_squares_on_the_same_features(tmp_path):
    """Without noise in the numbers it finds what a linear function leaves: the noise of 1."""
    parts = table_data.sines_number(tmp_path, 0, size=3_000)
    parts.write(tmp_path / "0")
    task = table_methods.read_task(tmp_path / "0")
    found = table_methods.run_cell(table_methods.METHODS["linear, no privacy"], task, 600)
    assert not found.failed
    error = found.scores.error
    assert 1.0 < error < 1.2  # normal noise of 1, sines cut into a dozen cells
    assert error < 0.6 * task.labels(task.held).std()


# ------------------------------------------------------------------------------ the cache, a run


def test_the_last_line_of_a_cell_counts_and_a_torn_one_does_not(tmp_path):
    cache = tables.Cache(tmp_path)
    for area in (0.6, 0.7):
        outcome = Outcome(Scores(area=area), 1.0)
        said = {"table": "Bank", "method": "dpjax", "epsilon": 1.0, "key": 0}
        cache.add(json.dumps(said | outcome._asdict() | {"scores": outcome.scores._asdict()}))
    with cache.file.open("a") as file:
        file.write('{"table": "Bank", "met')
    found = cache.read()
    assert list(found) == [Cell("Bank", "dpjax", 1.0, 0)]
    assert next(iter(found.values())).scores.area == 0.7


def test_only_what_is_not_known_is_left_to_run():
    table = table_data.TABLES[0]
    known = [Cell("Bank", "dpjax", 1.0, 0)]
    methods = ["dpjax", "linear, no privacy"]
    groups = tables.list_groups([table], methods, (1.0, 4.0), (0, 1), known)
    assert [group.cells for group in groups] == [
        ((4.0, 0), (1.0, 1), (4.0, 1)),
        ((None, 0), (None, 1)),
    ]
    (eight,) = [table for table in ALL if table.name == "Bank × 8"]
    (group,) = tables.list_groups([eight], ["dpjax"], (1.0,), (0,), ())
    assert group.cells == ((0.1, 0), (16.0, 0))


def tiny(folder: pathlib.Path, key: int) -> table_data.Parts:
    """300 records in which a number and a category decide most."""
    draws = np.random.default_rng(key)
    frame = pd.DataFrame({"x": draws.uniform(0, 1, 500).round(3)})
    frame["kind"] = draws.choice(["a", "b"], 500)
    odds = 6 * frame["x"] - 3 + (frame["kind"] == "a")
    frame["y"] = np.where(draws.random(500) < 1 / (1 + np.exp(-odds)), "yes", "no")
    return table_data.split(frame, table_data.describe(frame, "y", {"x": (0.0, 1.0)}), 300, key)


@pytest.fixture(name="small")
def _small(tmp_path) -> table_methods.Task:
    tiny(tmp_path, 0).write(tmp_path / "0")
    return table_methods.read_task(tmp_path / "0")


def test_a_task_is_read_as_it_was_drawn(small):
    assert small.train.shape == (300, 3)
    assert len(small.held) == 200
    assert (small.classes, small.categories) == (["no", "yes"], {"kind": ["a", "b"]})
    assert small.delta == 1e-5
    rows = table_methods.as_unit_rows(small, small.train)
    assert np.linalg.norm(rows, axis=1).max() <= 1.0
    unknown = small.held.assign(kind="c")
    assert np.isnan(table_methods.as_codes(small, unknown)[:, 1]).all()
    found = small.arrange(np.array([[0.25, 0.75]]), ["yes", "no"])
    np.testing.assert_array_equal(found, [[0.75, 0.25]])


_STUB = """#!/bin/sh
read line
echo a library says something
echo '{"table": "tiny", "method": "dpjax", "epsilon": 1.0, "key": 0, "scores": {},'\\
    '"seconds": 1.0, "hidden": "", "failed": "", "cut_off": false}'
exit 3
"""


@pytest.mark.skipif(os.name != "posix", reason="a script of the shell stands for a library")
def test_a_process_that_dies_takes_one_table_with_it(tmp_path, capsys):
    python = tmp_path / "python"
    python.write_text(_STUB)
    python.chmod(0o700)
    table, cache = table_data.Table("tiny", tiny), tables.Cache(tmp_path / "cache")
    groups = [tables.Group(table, method, ((1.0, 0),)) for method in ("dpjax", "dpjax train")]
    tables.run_groups(groups, str(python), cache, tmp_path, 60)
    assert len(cache.file.read_text().splitlines()) == 2  # each has a process of its own
    said = capsys.readouterr().out
    assert "tiny, dpjax: ended with 3" in said
    assert "tiny, dpjax train: ended with 3" in said


@pytest.mark.processes
def test_a_run_writes_its_report_and_goes_on(tmp_path, monkeypatch, capsys):
    table = table_data.Table("tiny", tiny)
    monkeypatch.setattr(table_data, "TABLES", (table,))
    monkeypatch.setattr(table_data, "NUMBERS", ())
    out, cache = tmp_path / "tables.md", tmp_path / "cache"
    words = ["tables", "--cache", str(cache), "--out", str(out), "--only", "trees, no privacy"]
    monkeypatch.setattr(sys, "argv", [*words, "MST, then trees", "--keys", "0"])
    tables.main()
    assert "skipped: MST, then trees, give --dpmm PYTHON" in capsys.readouterr().out
    assert len(tables.Cache(cache).read()) == 1
    assert "(one key)" in out.read_text()
    monkeypatch.setattr(sys, "argv", [*words, "--keys", "0", "1"])
    tables.main()
    found = tables.Cache(cache).read()
    assert len((cache / "results.jsonl").read_text().splitlines()) == len(found) == 2
    assert all(0.6 < outcome.scores.area < 1 for outcome in found.values())
    page = out.read_text()
    assert "| trees, no privacy |" in page
    assert '`python -m benchmarks.tables --only "trees, no privacy" --keys 0 1`' in page
    assert "cells not run" not in page  # all that this run was asked for is there
    monkeypatch.setattr(
        sys, "argv", ["tables", "--cache", str(cache), "--out", str(out), "--report"]
    )
    tables.main()
    page = out.read_text()
    assert "`python -m benchmarks.tables`" in page
    assert "* dpjax: 35 cells not run: tiny (35)." in page


def test_what_a_method_says_where_it_gives_up_is_kept(small):
    def method(run) -> table_methods.Method:
        return table_methods.Method("one", run, "dpjax")

    def refuse(task):
        raise ValueError("no such luck")

    def hide(task):
        raise table_methods.Hidden("one class")

    def work(task):
        while True:
            np.sum(np.arange(1_000))

    assert table_methods.run_cell(method(refuse), small, 60).failed == "ValueError: no such luck"
    hidden = table_methods.run_cell(method(hide), small, 60)
    assert (hidden.hidden, hidden.scores.area) == ("one class", 0.5)
    assert table_methods.run_cell(method(work), small, 0.1).cut_off


# ------------------------------------------------------------------------------ few records


def test_the_descent_in_numpy_finds_the_weights_of_the_released_rule(small):
    """Without noise to speak of, and all records in each step, both are the same numbers."""
    parts = tiny(small.folder, 0)
    columns = (
        data.Column("x", range=(0.0, 1.0)),
        data.Column("kind", "category", categories=("a", "b")),
    )
    schema = data.Schema(columns, target="y", classes=("no", "yes"), missing=("",))
    train = data.encode_released(parts.train, schema)
    made = TableSettings.choose(300, columns=2, batch_size=300)  # all records in each step
    weights = few_records.descend(train.features.astype(float), train.labels, made, 1e-3, [0, 7])
    start = made.training_model(3).init(jax.random.key(0))
    found = training.fit(
        made.loss(3), start, (train.features, train.labels),
        training.make_plan(300, noise_multiplier=1e-3, delta=1e-5, **made.plan_settings),
        optimizer=made.optimizer(1e-3), key=jax.random.key(0), average=made.average,
    )  # fmt: skip
    expected = made.release(found.average)["weights"]
    np.testing.assert_allclose(weights, expected, atol=2e-3 * np.abs(expected).max())
    lost = few_records.descend(train.features.astype(float), train.labels, made, 50.0, [0, 7])
    assert np.abs(lost - expected).max() > 0.5  # the noise is added


def test_a_rule_of_few_records_is_the_table_that_it_says(small):
    parts = tiny(small.folder, 0)
    looks = {rule: few_records.make_table(parts, 1.0, rule) for rule in few_records.RULES}
    assert [looks["before"].rough_kinds, looks["now"].rough_kinds] == [True, False]
    assert looks["declared"].mechanism == acc.Composed(())
    cells = {("Adult, 500", 0.5, "now", key): 0.8 + key / 100 for key in (0, 1)}
    cells |= {("Adult, 500", 0.5, "before", key): 0.7 + key / 100 for key in (0, 1)}
    (line,) = few_records.report(cells)[6:]
    assert line == (
        "| Adult, 500 (chosen on it) | 17.9 | 0.5 | .705 ± .005 | .805 ± .005 | ahead | – |"
    )


# ------------------------------------------------------------------------------ the tables


@pytest.mark.at_length(every=4)
@pytest.mark.parametrize("table", ALL, ids=lambda table: table.slug)
def test_a_table_is_drawn_by_its_key(table):
    if table.file and not (tables.DATA / table.file).exists():
        pytest.skip(f"needs {table.file}")
    parts, again = table.draw(tables.DATA, 0), table.draw(tables.DATA, 0)
    pd.testing.assert_frame_equal(parts.train, again.train)
    public, frame = parts.public, parts.train
    assert not frame.equals(table.draw(tables.DATA, 1).train)
    assert set(frame.columns) == {*public.ranges, *public.categories, public.target}
    assert public.delta < 1 / len(frame)
    assert len(parts.held) <= table_data.MOST_HELD_OUT
    # Ranges are round and public; few records lie outside.
    for name, (low, high) in public.ranges.items():
        assert frame[name].between(low, high).mean() > 0.98
    if public.classes:
        assert sorted(frame[public.target].unique()) == public.classes
        assert set(parts.held[public.target]) == set(public.classes)
    else:
        low, high = public.target_range or (0.0, 0.0)
        assert frame[public.target].between(low, high).all()


def test_names_of_tables_and_methods_are_cells_of_a_table():
    names = [table.name for table in ALL]
    slugs = {table.slug for table in ALL}
    assert len(slugs) == len(set(names)) == len(names) >= 13
    assert not any("|" in name for name in (*names, *table_methods.METHODS))
    assert set(tables.OURS + tables.PEERS + tables.LIMITS) == set(table_methods.METHODS)
    assert dataclasses.is_dataclass(table_methods.Task)
