"""What a model is worth on held-out records: truth by hand, planted models, noise and its price."""

from __future__ import annotations

import itertools
import json

import jax
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax import training
from dpjax.cli import evaluation
from dpjax.cli.evaluation import Counts, Evaluation
from dpjax.data import Dataset

LINE = {"weights": np.ones(1, np.float32), "bias": np.float32(0)}  # predicts 1 above 0
MODEL = training.logistic(1)


def _records(odds, labels, classes=("no", "yes")):
    return Dataset(np.asarray(odds, np.float32)[:, None], np.asarray(labels, np.int32), classes)


# Predicted no, no, no, yes, yes, yes.
HAND = _records([-3, -2, -1, 1, 2, 3], [0, 0, 1, 0, 1, 1])


def test_the_exact_table_is_that_counted_by_hand():
    found = Evaluation(MODEL, HAND).summarise(LINE)
    assert found["confusion"] == [[2, 1], [1, 2]]
    assert (found["stddev"], found["records"], found["accuracy"]) == (0.0, 6, 4 / 6)
    assert found["largest_class_share"] == 0.5
    # Of nine pairs (no, yes) the yes is above but for (1, −1).
    assert found["auc"] == pytest.approx(8 / 9)
    assert found["precision"] == {"no": 2 / 3, "yes": 2 / 3} == found["recall"]
    stated = [found[name] for name in found if name.endswith("stddev")]
    assert [*np.hstack([[*x.values()] if isinstance(x, dict) else x for x in stated])] == [0.0] * 8
    assert json.loads(json.dumps(found)) == found
    # A record of no known class is never predicted rightly, and is in no line of the table.
    other = _records([-3, -2, -1, 1, 2, 3, 5], [0, 0, 1, 0, 1, 1, -1])
    found = Evaluation(MODEL, other).summarise(LINE)
    assert (found["confusion"], found["records"]) == ([[2, 1], [1, 2]], 7)
    assert (found["accuracy"], found["auc"]) == (pytest.approx(4 / 7), pytest.approx(8 / 9))


def test_precision_and_recall_are_told_apart():
    # Predicted no, yes, yes, yes, yes: of four that are said to be yes two are, and both are found.
    found = Evaluation(MODEL, _records([-1, 1, 2, 3, 4], [0, 0, 0, 1, 1])).summarise(LINE)
    assert found["confusion"] == [[1, 2], [0, 2]]  # a row for each true class
    assert found["precision"] == {"no": 1.0, "yes": 0.5}
    assert found["recall"] == {"no": pytest.approx(1 / 3), "yes": 1.0}


def test_the_area_is_that_of_all_pairs_with_ties_as_halves():
    rng = np.random.default_rng(0)
    odds, labels = rng.integers(-3, 4, 60) / 2, rng.integers(0, 2, 60)
    pairs = itertools.product(odds[labels == 0], odds[labels == 1])
    truth = np.mean([(a < b) + (a == b) / 2 for a, b in pairs])
    assert Evaluation(MODEL, _records(odds, labels)).summarise(LINE)["auc"] == pytest.approx(truth)


def _planted(kind):
    """700 records, 70 % of class no, and a model that is right always, never, or says no."""
    labels = np.repeat([0, 1], [490, 210])
    odds = {"always": 2 * labels - 1, "never": 1 - 2 * labels, "largest": -1 + 0 * labels}[kind]
    return _records(odds, labels)


@pytest.mark.parametrize("counts", [None, Counts(2, 11, stddev=4.0, key=jax.random.key(0))])
def test_planted_models_are_told_apart(counts):
    near = {"abs": 0.0 if counts is None else 0.06}
    always, never, largest = (
        Evaluation(MODEL, _planted(kind), counts).summarise(LINE)
        for kind in ("always", "never", "largest")
    )
    assert [always["accuracy"], always["auc"]] == pytest.approx([1.0, 1.0], **near)
    assert [never["accuracy"], never["auc"]] == pytest.approx([0.0, 0.0], **near)
    assert [largest["accuracy"], largest["auc"]] == pytest.approx([0.7, 0.5], **near)
    assert largest["largest_class_share"] == pytest.approx(0.7, **near)
    assert largest["recall"] == pytest.approx({"no": 1.0, "yes": 0.0}, **near)
    assert largest["precision"]["yes"] is None  # it was never predicted
    assert largest["precision"]["no"] == pytest.approx(0.7, **near)
    assert evaluation.compare(always) is None
    for found in (never, largest):
        assert "better than always answering 'no'" in evaluation.compare(found)


def test_numbers_that_noise_hides_are_none():
    few = Counts(2, 11, stddev=40.0, key=jax.random.key(1))
    found = Evaluation(MODEL, HAND, few).summarise(LINE)
    assert found["auc"] is None
    assert "not clearly better" in evaluation.compare(found)
    assert min(itertools.chain(*found["confusion"])) >= 0
    assert 0 <= found["accuracy"] <= 1


def test_of_one_class_or_none_there_is_no_curve():
    found = Evaluation(training.softmax(1, 1), _records([1, 2], [0, -1], ("only",))).summarise(
        {"weights": np.ones((1, 1), np.float32), "bias": np.zeros(1, np.float32)}
    )
    assert (found["confusion"], found["accuracy"], found["auc"]) == ([[1]], 0.5, None)
    nothing = Evaluation(MODEL, _records([1, np.nan], [-1, -1])).summarise(LINE)
    assert (nothing["confusion"], nothing["auc"]) == ([[0, 0], [0, 0]], None)
    assert nothing["recall"] == {"no": None, "yes": None}


@pytest.mark.at_length
def test_noise_belongs_to_the_parameters_and_has_the_deviation_that_is_stated():
    records = _planted("always")
    models = [{**LINE, "bias": np.float32(k / 1e4)} for k in range(300)]
    noisy = Evaluation(MODEL, records, Counts(2, 11, stddev=9.0, key=jax.random.key(2)))
    labels = np.arange(700) % 2  # a model that is right for half of them
    noisy.labels = labels
    exact = Evaluation(MODEL, _records(records.features[:, 0], labels)).summarise(LINE)
    found = [noisy.summarise(params) for params in models]
    assert noisy.summarise(models[7]) == found[7]
    for name in ("accuracy", "auc", "largest_class_share"):
        values = np.array([one[name] for one in found])
        stated = np.mean([one[f"{name}_stddev"] for one in found])
        assert np.std(values) == pytest.approx(
            stated, rel=0.2 if name != "largest_class_share" else 0.5
        )
        if name != "largest_class_share":  # the larger of two noisy counts is too large
            assert abs(np.mean(values) - exact[name]) < 4 * stated / np.sqrt(300)
    recall = np.array([one["recall"]["yes"] for one in found])
    assert np.std(recall) == pytest.approx(found[0]["recall_stddev"]["yes"], rel=0.2)
    rows = np.array([noisy.row(params) for params in models])
    assert noisy.row(models[7]) == rows[7]
    stated = 9.0 * noisy.counts.noise["row"] / 700
    assert np.std(rows) == pytest.approx(stated, rel=0.2)
    assert abs(rows.mean() - 0.5) < 4 * stated / np.sqrt(300)
    assert noisy.row(LINE, exact=True) == 0.5


@pytest.mark.parametrize("adjacency", acc.Adjacency)
def test_a_record_moves_every_release_by_what_is_priced(adjacency, monkeypatch):
    """All neighbours of a small held-out part: each release moves by one cell, or by two."""
    cells = list(itertools.product([-9.0, -0.5, 0.5, 9.0], [0, 1, -1]))
    seen = {}

    def without_noise(self, name, counts, params):
        seen[name] = counts
        # SCORES as released: the cells of CURVE follow from what was released, noise and all.
        return np.ones_like(counts) if name == "scores" else counts

    monkeypatch.setattr(Counts, "perturb", without_noise)

    def releases(part):
        odds, labels = zip(*part, strict=True)
        with jax.disable_jit():  # nothing is compiled for every size
            noisy = Evaluation(MODEL, _records(odds, labels), Counts(2, 11, stddev=3.0))
            noisy.summarise(LINE)
            noisy.row(LINE)
        return dict(seen)

    most = dict.fromkeys(Counts(2, 11).noise, 0.0)
    for start in [((0.5, 1), one) for one in cells]:
        first = releases(start)
        for one in cells:
            second = releases(
                (*start, one) if adjacency is acc.Adjacency.ADD_REMOVE else (start[0], one)
            )
            for name, counts in second.items():
                moved = np.linalg.norm(np.subtract(counts, first[name]))
                most[name] = max(most[name], float(moved))
    across = 1.0 if adjacency is acc.Adjacency.ADD_REMOVE else np.sqrt(2)
    expected = {"table": across, "scores": across, "curve": across, "row": 1.0}
    assert most == pytest.approx(expected)


@pytest.mark.parametrize("classes", [2, 5])
def test_the_price_is_that_of_histograms_side_by_side(classes):
    counts = Counts(classes, 11)
    # 1/σ² of all together, beside the table's: a Gaussian's price to four digits.
    weight = 1 + 3 / 4 + (1 / 4 + 1 / 2) * (classes == 2)
    found = acc.epsilon(counts.mechanism(40.0), 1e-6)
    assert found == pytest.approx(acc.epsilon(acc.Gaussian(40.0 / weight**0.5), 1e-6), rel=1e-3)


def test_groups_are_those_of_the_encoded_column():
    encoding = {
        "columns": [
            {"name": "id", "kind": "ignore", "cuts": None, "categories": None},
            {"name": "age", "kind": "number", "cuts": [1.0, 2.0], "categories": None},
            {"name": "gain", "kind": "number", "cuts": None, "categories": None},
            {"name": "sex", "kind": "category", "cuts": None, "categories": ["", "f", "m"]},
        ]
    }
    features = np.zeros((4, 8), np.float32)
    features[:, [0, 4]] = 0.5
    features[[0, 1, 2], [7, 6, 5]] = 0.5
    column, names, group = evaluation.find_groups(encoding, features, "sex")
    assert (column, names) == ("sex", ["no value", "f", "m", "none of these"])
    assert [names[at] for at in group] == ["m", "f", "no value", "none of these"]
    for other in ("age", "id", None):
        assert evaluation.find_groups(encoding, features, other)[:2] == ("", [""])


def test_no_group_is_lost_where_a_category_is_called_as_one():
    column = {"name": "job", "kind": "category", "cuts": None}
    listed = ["", "no value", "none of these", "baker"]
    encoding = {"columns": [column | {"categories": listed}]}
    features = np.vstack([np.eye(4), np.zeros(4)])
    _, names, group = evaluation.find_groups(encoding, features, "job")
    assert names == ["(no value)", "no value", "none of these", "baker", "(none of these)"]
    found = Evaluation(MODEL, _records(np.ones(5), np.ones(5)), None, ("job", names, group))
    parts = found.summarise(LINE)["by"]["job"]
    assert [part["records"] for part in parts.values()] == [1] * 5


@pytest.mark.parametrize("counts", [None, Counts(2, 11, stddev=3.0, key=jax.random.key(3))])
def test_a_model_that_is_wrong_in_one_group_is_found(counts):
    labels, group = np.arange(900) % 2, np.repeat([0, 1, 2], [600, 296, 4])
    odds = np.where(group == 1, 1 - 2 * labels, 2 * labels - 1)
    groups = ("sex", ["f", "m", "x"], group)
    found = Evaluation(MODEL, _records(odds, labels), counts, groups).summarise(LINE)
    assert found["accuracy"] == pytest.approx(604 / 900, abs=5 * found["accuracy_stddev"] + 1e-9)
    parts = found["by"]["sex"]
    near = {"abs": 0.0 if counts is None else 0.07}
    assert parts["f"]["accuracy"] == pytest.approx(1.0, **near)
    assert parts["m"]["accuracy"] == pytest.approx(0.0, **near)
    assert parts["m"]["recall"] == pytest.approx({"no": 0.0, "yes": 0.0}, **near)
    if counts is None:
        assert [parts[name]["records"] for name in "fmx"] == [600, 296, 4]
        assert parts["m"]["confusion"] == [[0, 148], [148, 0]]
        assert found["confusion"] == [[302, 148], [148, 302]]
    else:  # four records are lost in noise
        assert parts["x"]["accuracy"] is None
        assert found["stddev"] == pytest.approx(3.0 * np.sqrt(3))
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("stddev", [3.0, 1e6])
def test_one_record_and_huge_noise_leave_shares_that_are_shares(stddev):
    counts = Counts(2, 11, stddev=stddev, key=jax.random.key(4))
    found = Evaluation(MODEL, _records([1.0], [1]), counts, ("sex", ["f"], 0)).summarise(LINE)
    assert found["records"] == 1
    assert 0 <= found["accuracy"] <= 1
    assert 0 <= found["largest_class_share"] <= 1
    assert found["by"]["sex"].keys() == {"f"}
    assert found["by"]["sex"]["f"].keys() == found.keys() - {"task", "margins", "classes", "by"}
    assert "not clearly better" in evaluation.compare(found)
    json.dumps(found, allow_nan=False)
