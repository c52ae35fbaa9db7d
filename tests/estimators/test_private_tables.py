"""Estimators that release with noise what no schema declares."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from dpjax import accounting as acc
from dpjax import data, training
from dpjax.data import Column, Schema
from dpjax.data.schema import RELEASED
from dpjax.estimators import (
    DPLinearRegression,
    DPLinearSVC,
    DPLogisticRegression,
    DPSGDClassifier,
    PrivacyWarning,
)

pytestmark = pytest.mark.usefixtures("lenient_promotion")
SETTINGS = {"epsilon": 2.0, "delta": 1e-5, "preprocessing": "private"}
KINDS = (DPLogisticRegression, DPLinearSVC, DPSGDClassifier)


def _people(n=6_000, classes=2):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": rng.integers(18, 90, n).astype(float), "job": rng.choice(["baker", "smith"], n)}
    )
    labels = np.digitize(frame.age, np.linspace(18, 90, classes + 1)[1:-1])
    frame.loc[3, "age"] = np.nan
    frame.loc[4, "job"] = None
    return frame, np.asarray(["a", "b", "c"])[labels]


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.at_length(every=4)
def test_all_that_is_learned_is_in_the_certificate(kind, adjacency, recwarn):
    frame, labels = _people()
    model = kind(**SETTINGS, adjacency=adjacency).fit(frame, labels)
    assert not [w for w in recwarn if issubclass(w.category, PrivacyWarning)]
    certificate = model.certificate_
    assert certificate.not_covered == ()
    assert "other" not in {one.code for one in (*certificate.not_covered, *certificate.assumptions)}
    assert certificate.adjacency.value == adjacency
    looks, _ = certificate.mechanism.mechanisms
    # Four looks at two columns, and one at the classes, with less noise.
    assert [part.steps for part in looks.mechanisms] == [4, 1]
    assert looks.mechanisms[1].mechanism.stddev < looks.mechanisms[0].mechanism.stddev
    assert 1.99 < certificate.verify().epsilon <= 2.0
    (taken,) = [d for why, d in certificate.extra_delta.items() if "alone holds" in why]
    assert taken == pytest.approx(1e-6)
    assert model.schema_.columns[1].categories == ("", "baker", "smith")
    column = model.schema_.columns[0]
    assert column.scale == ("linear" if kind is DPLinearSVC else "asinh")
    assert (column.line_weight is None) == (kind is not DPLogisticRegression)
    assert model.classes_.tolist() == ["a", "b"]
    assert model.score(frame, labels) > 0.9


@pytest.mark.at_length
def test_several_classes_share_the_budget_with_the_table(tmp_path):
    frame, labels = _people(classes=3)
    for kind in (DPLogisticRegression, DPLinearSVC):
        model = kind(**SETTINGS).fit(frame, labels)
        assert 1.99 < model.certificate_.verify().epsilon <= 2.0
        assert model.score(frame, labels) > 0.8
    model = DPLogisticRegression(**SETTINGS).fit(frame, labels)
    saved = training.load_model(model.save(tmp_path / "model"))
    assert {column["origin"] for column in saved.encoding["columns"]} == {RELEASED}


@pytest.mark.parametrize("classes", [2, 3])
def test_objective_perturbation_regularises_by_its_share_beside_a_table(classes):
    frame, labels = _people(classes=classes)
    settings = {**SETTINGS, "solver": "objective_perturbation"}
    model = DPLinearSVC(**settings).fit(frame, labels)
    assert 1.99 < model.certificate_.verify().epsilon <= 2.0
    assert model.score(frame, labels) > (0.9 if classes == 2 else 0.75)
    run = model.certificate_.mechanism.mechanisms[1]
    run = run.mechanism if classes > 2 else run
    # Kifer, Smith and Thakurta 2012: λ = 2c/ε, of each class's share of ε.
    share = 2.0 / (classes if classes > 2 else 1)
    assert run.regularization == pytest.approx(2 * run.smoothness / share, rel=1e-6)
    options = {"extra_l2": 0.01}
    model = DPLinearSVC(**settings, solver_options=options).fit(frame, labels)
    run = model.certificate_.mechanism.mechanisms[1]
    run = run.mechanism if classes > 2 else run
    assert run.regularization == pytest.approx(6_000 * (0.01 + 1e-4), rel=1e-6)


@pytest.mark.at_length
def test_what_is_declared_is_public_and_costs_nothing():
    frame, labels = _people()
    schema = Schema((Column("age", range=(18, 90)),), classes=("a", "b"))
    model = DPLogisticRegression(**SETTINGS, bounds=schema).fit(frame, labels)
    looks = model.certificate_.mechanism.mechanisms[0]
    assert looks.steps == 2  # the jobs
    assert "public: ranges of age: given by the user" in model.certificate_.assumptions
    numbers, target = frame[["age"]], (labels == "b") * 1.0
    given = {"bounds": (18, 90), "target_range": (0, 1)}
    model = DPLinearRegression(**SETTINGS, **given).fit(numbers, target)
    assert isinstance(model.certificate_.mechanism, acc.Repeated)  # no look at all
    assert not any("alone holds" in why for why in model.certificate_.extra_delta)
    assert model.score(numbers, target) > 0.3


def test_numbers_of_a_regression_and_odd_cells_are_released_too():
    frame, labels = _people()
    numbers = frame[["age"]].to_numpy().copy()
    numbers[5] = np.inf
    model = DPLinearRegression(**SETTINGS, target_range=(0, 1)).fit(numbers, labels == "b")
    assert model.schema_.columns[0].cuts is not None
    assert model.predict([[20.0], [80.0]])[0] < 0.5 < model.predict([[20.0], [80.0]])[1]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"delta": 0.0}, "delta must be above 0 with preprocessing='private'"),
        ({"epsilon": None}, "epsilon must be above 0 with preprocessing='private'"),
        ({"epsilon": 0.01}, "bounds must declare the classes where fewer than two stand out"),
        ({"epsilon": 0.2}, r"one of 20% of them from ε = [0-9.]+ or [0-9,]+ records on"),
    ],
)
@pytest.mark.filterwarnings("ignore:records should be at least")
def test_what_cannot_be_released_is_named(settings, told):
    frame, labels = _people(300)
    with pytest.raises(ValueError, match=told):
        DPLogisticRegression(**{**SETTINGS, **settings}).fit(frame, labels)


def _fit_rows(X, y, kind=DPLogisticRegression, **settings):
    return kind(**SETTINGS, random_state=1, **settings).fit(X, y)


@pytest.mark.parametrize("cell", [None, 0.5, "x", math.inf, "NaN", 10**30])
def test_one_cell_decides_nothing_of_how_other_rows_are_read(cell, monkeypatch):
    rng = np.random.default_rng(0)
    flags = rng.random(3_000) < 0.5
    rows = [[bool(flag), float(place % 97)] for place, flag in enumerate(flags)]
    seen = []
    monkeypatch.setattr(
        DPLogisticRegression, "_train", lambda self, records: seen.append(records.features)
    )
    labels = np.where(flags, "yes", "no")
    given = _fit_rows(rows, labels)
    assert given.schema_.columns[0].categories == ("", "False", "True")
    rows[17] = [cell, cell]
    found = _fit_rows(rows, labels)
    assert found.schema_.columns[0] == given.schema_.columns[0]
    others = np.arange(3_000) != 17
    width = 3  # of the flag: the cuts of the number move by the noise's counts
    np.testing.assert_array_equal(seen[1][others, :width], seen[0][others, :width])
    assert np.isfinite(seen[1]).all()


def test_rows_of_objects_are_predicted_as_they_were_read():
    rng = np.random.default_rng(0)
    flags = rng.random(6_000) < 0.5
    rows = [[bool(flag), "baker" if place % 2 else "smith"] for place, flag in enumerate(flags)]
    model = _fit_rows(rows, np.where(flags, "yes", "no"))
    assert model.predict([[True, "baker"], [False, None]]).tolist() == ["yes", "no"]


LABELS = {
    "texts": ["no", "yes"],
    "objects": np.array(["no", "yes"], dtype=object),
    "whole numbers": [0, 1],
    "array": np.array([0.0, 1.0]),
    "objects of numbers": np.array([0, 1], dtype=object),
    "booleans": [False, True],
    "series": pd.Series([False, True], dtype="boolean"),
    "categories": pd.Series(["no", "yes"], dtype="category"),
    "nullable": pd.Series([0, 1], dtype="Int64"),
}


@pytest.mark.parametrize("odd", [None, 7.5, "a", 2, [1, 2]])
@pytest.mark.parametrize("form", LABELS)
@pytest.mark.at_length(every=4)
def test_one_label_neither_refuses_nor_shows_nor_changes_others(form, odd, monkeypatch):
    seen = []
    monkeypatch.setattr(
        DPLogisticRegression, "_train", lambda self, records: seen.append(records.target)
    )
    frame, _ = _people(3_000)
    both = LABELS[form]
    if isinstance(both, list):
        labels = both * 1_500
    elif isinstance(both, np.ndarray):
        labels = np.tile(both, 1_500)
    else:
        labels = pd.concat([both] * 1_500)
    given = _fit_rows(frame, labels)
    assert [str(label) for label in given.classes_] == [str(label) for label in both]
    try:
        if isinstance(labels, pd.Series):
            labels.iloc[5] = odd
        else:
            labels[5] = odd
    except (TypeError, ValueError):
        return  # the type of the column, which is public, has no such label
    found = _fit_rows(frame, labels)
    assert found.classes_.tolist() == given.classes_.tolist()
    assert found.classes_.dtype == given.classes_.dtype
    others = np.arange(3_000) != 5
    np.testing.assert_array_equal(seen[1][others], seen[0][others])


@pytest.mark.at_length
def test_classes_are_the_released_names_and_no_spelling_of_a_record():
    frame, labels = _people(3_000)
    labels = labels.astype(object)
    labels[labels == "a"] = "no"
    labels[np.flatnonzero(labels == "no")[-1]] = "no  "
    assert _fit_rows(frame, labels).classes_.tolist() == ["b", "no"]
    # A list has no type: its classes are numbers where all that were released are.
    for texts in (["01", "02"], ["1", "x"], [str(10**30), "1"]):
        assert set(_fit_rows(frame, texts * 1_500).classes_.tolist()) == set(texts)
    for kind, values in {"b": [True, False], "i": [-1, 1]}.items():
        classes = _fit_rows(frame, values * 1_500).classes_
        assert (classes.dtype.kind, set(classes.tolist())) == (kind, set(values))


@pytest.mark.parametrize("odd", [None, math.nan, math.inf, "secret", [1]])
@pytest.mark.at_length(every=2)
def test_a_target_that_is_no_number_is_the_middle_of_the_range(odd, monkeypatch):
    seen = []
    label = DPLinearRegression._label
    monkeypatch.setattr(
        DPLinearRegression,
        "_label",
        lambda self, records: seen.append(label(self, records)) or seen[-1],
    )
    frame, _ = _people(1_000)
    target = [*np.linspace(0, 10, 1_000)]
    target[5] = odd
    _fit_rows(frame[["age"]], target, DPLinearRegression, target_range=(2, 8))
    values = np.asarray(seen[0])
    assert values[5] == 0.0
    assert (values.min(), values.max()) == (-1.0, 1.0)
    dates = pd.Series(pd.date_range("2020-01-01", periods=1_000))
    with pytest.raises(ValueError, match=r"y must hold numbers, got datetime64\[.*\]$"):
        _fit_rows(frame[["age"]], dates, DPLinearRegression, target_range=(2, 8))


def test_the_type_of_an_array_is_public_and_may_be_refused():
    frame, labels = _people(3_000)
    days = np.where(labels == "a", np.datetime64("2020-01-01"), np.datetime64("2021-01-01"))
    assert _fit_rows(frame, days).classes_.tolist() == ["2020-01-01", "2021-01-01"]
    with pytest.raises(ValueError, match=r"y must hold no complex numbers, got complex128$"):
        _fit_rows(frame, np.where(labels == "a", 1j, 2))


# ------------------------------------------------------------------------------ the rule for tables


@pytest.mark.parametrize("classes", [2, 3])
def test_the_default_trains_by_the_rule_and_a_saved_model_predicts_as_it_does(classes, tmp_path):
    frame, labels = _people(classes=classes)
    model = DPLogisticRegression(**SETTINGS, random_state=0).fit(frame, labels)
    declared = model.certificate_.declared
    assert (declared["training_steps"], declared["averaged_steps"]) == (400, 200)
    assert declared["bias_feature"] == pytest.approx(1 / math.sqrt(2))  # of two columns
    bound = 0.5 * math.sqrt(1.5) * (1 if classes == 2 else math.sqrt(2))
    assert declared["clip_norm"] == pytest.approx(bound, rel=1e-5)
    assert model.certificate_.verify().epsilon <= 2.0
    assert model.score(frame, labels) > (0.9 if classes == 2 else 0.75)
    chances = model.predict_proba(frame)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(model.classes_[chances.argmax(axis=1)], model.predict(frame))
    found = training.load_model(model.save(tmp_path / "model"))
    assert found.encoding["columns"][0]["line_weight"] == 0.9
    rows = data.encode_features(frame, data.described_schema(found.encoding))
    np.testing.assert_allclose(
        training.probabilities(found.model, found.params, rows), chances, atol=1e-6
    )


@pytest.mark.at_length
def test_each_setting_of_the_rule_can_be_replaced_and_the_solver_of_before_is_there():
    frame, labels = _people(2_000)
    own = {"steps": 40, "averaged": 0.0, "learning_rate": 1.0}
    model = DPLogisticRegression(**SETTINGS, solver="tables", solver_options=own).fit(frame, labels)
    declared = model.certificate_.declared
    found = declared["training_steps"], declared["averaged_steps"], declared["learning_rate"]
    assert found == (40, 0, 1.0)
    assert (declared["momentum"], declared["batch_size"]) == (0.9, pytest.approx(500))
    for before in ({"solver": "dp_gd"}, {"l2": 1e-3}, {"solver_options": {"steps": 50}},
                   {"fit_intercept": False}):  # fmt: skip
        model = DPLogisticRegression(**SETTINGS, **before).fit(frame, labels)
        assert "averaged_steps" not in model.certificate_.declared
        assert model.schema_.columns[0].line_weight is None


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"l2": 1.0}, "l2 must be left out with solver='tables'"),
        ({"fit_intercept": False}, "fit_intercept must be left out"),
        ({"solver_options": {"step_size": 1.0}}, "solver_options must be among steps"),
        ({"solver_options": {"momentum": 2.0}}, "momentum must be"),
    ],
)
def test_what_the_rule_does_not_take_is_refused(settings, told):
    frame, labels = _people(2_000)
    with pytest.raises(ValueError, match=told):
        DPLogisticRegression(**SETTINGS, solver="tables", **settings).fit(frame, labels)


@pytest.mark.at_length
def test_a_network_without_settings_follows_its_rule_and_with_epochs_those_of_before():
    frame, labels = _people(3_000)
    model = DPSGDClassifier(**SETTINGS, random_state=0).fit(frame, labels)
    declared = model.certificate_.declared
    assert (declared["training_steps"], declared["clip_norm"]) == (400, 4.0)
    assert declared["batch_size"] == pytest.approx(750)
    assert model.certificate_.verify().epsilon <= 2.0
    assert model.score(frame, labels) > 0.9
    model = DPSGDClassifier(**SETTINGS, epochs=2, clip_norm=0.5).fit(frame, labels)
    declared = model.certificate_.declared
    assert (declared["training_steps"], declared["clip_norm"]) == (16, 0.5)


# ------------------------------------------------------------------------------ numbers


def _wages(n=8_000, seed=0):
    """Wages by a truth: 2 a year of age above 40, 6 of smiths, and normal noise of deviation 5."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"age": rng.uniform(18, 90, n).round(1), "job": rng.choice(["baker", "smith"], n)}
    )
    truth = 50 + 0.5 * np.maximum(frame.age - 40, 0) + 6 * (frame.job == "smith")
    return frame, truth.to_numpy(), (truth + rng.normal(0, 5, n)).to_numpy()


@pytest.mark.at_length
def test_a_known_regression_is_found_within_a_range_that_is_released(recwarn):
    frame, truth, wages = _wages()
    model = DPLinearRegression(**SETTINGS).fit(frame, wages)
    assert not [w for w in recwarn if issubclass(w.category, PrivacyWarning)]
    certificate = model.certificate_
    assert certificate.not_covered == ()
    assert 1.99 < certificate.verify().epsilon <= 2.0
    # Two columns, and the target, which is known to be a number, each twice.
    assert certificate.mechanism.mechanisms[0].steps == 6
    low, high = model.schema_.target_range
    # Between powers of two, which the first look has: 32 and 128.
    assert np.mean((low <= wages) & (wages <= high)) > 0.98
    assert 32 <= low < high <= 128
    # The truth deviates by 8.2 from its mean: of the model little of that is left.
    assert np.sqrt(np.mean((model.predict(frame) - truth) ** 2)) < 1.6
    both = frame.assign(job="smith"), frame.assign(job="baker")
    gap = np.mean(model.predict(both[0]) - model.predict(both[1]))
    assert gap == pytest.approx(6.0, abs=1.0)
    assert np.all((model.predict(frame) >= low) & (model.predict(frame) <= high))


def test_numbers_of_the_rule_are_in_the_certificate():
    frame, _, wages = _wages(2_000)
    model = DPLinearRegression(**SETTINGS, target_range=(20, 120)).fit(frame, wages)
    declared = model.certificate_.declared
    assert (declared["training_steps"], declared["averaged_steps"]) == (400, 200)
    bound = 0.5 * math.sqrt(1 + 1 / 2)  # a quarter of the range, of two columns
    assert declared["clip_norm"] == pytest.approx(bound, rel=1e-6)
    assert declared["batch_size"] == pytest.approx(500)
    # All noise spreads a weight by one half: σC/B a step, √400 steps, each 1/(1 − .9) times.
    spread = declared["training_noise_multiplier"] * bound / 500 * math.sqrt(400) / 0.1
    assert declared["learning_rate"] == pytest.approx(min(0.5 / spread, 1.0), rel=1e-6)
    assert "public: range of target: given by the user" in model.certificate_.assumptions


@pytest.mark.at_length
def test_a_saved_regression_predicts_as_it_does(tmp_path):
    frame, _, wages = _wages(3_000)
    bounds = Schema((Column("age", range=(18, 90)),), target_range=(20.0, 120.0))
    for model in (
        DPLinearRegression(**SETTINGS),
        DPLinearRegression(**SETTINGS, bounds=bounds, l2=1e-3),  # by the solver of before
    ):
        found = training.load_model(model.fit(frame, wages).save(tmp_path / str(model.l2)))
        features = data.encode_features(frame, data.described_schema(found.encoding))
        places = np.asarray(features @ found.params["weights"] + found.params["bias"])[:, 0]
        low, high = found.encoding["target_range"]
        if model.l2:
            assert (low, high) == (20.0, 120.0)
            assert "averaged_steps" not in model.certificate_.declared
        expected = low + (high - low) * (np.clip(places, -1, 1) + 1) / 2
        np.testing.assert_allclose(model.predict(frame), expected, atol=1e-3)
