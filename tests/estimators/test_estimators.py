"""The estimators keep scikit-learn's contract, and say what their ε covers."""

from __future__ import annotations

import collections
import decimal
import warnings

import flax.linen as nn
import jax
import numpy as np
import pandas as pd
import pytest
from flax import nnx
from scipy.special import expit
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from dpjax import accounting as acc
from dpjax import data, training
from dpjax._numerics.warning import DpjaxWarning
from dpjax.data import Column, Schema
from dpjax.estimators import (
    DPLinearRegression,
    DPLinearSVC,
    DPLogisticRegression,
    DPSGDClassifier,
    PrivacyWarning,
    RangeScaler,
    base,
    forbidden_checks,
)

pytestmark = pytest.mark.usefixtures("lenient_promotion")

SCHEMA = Schema(
    (Column("age", range=(18, 90)), Column("job", "category", categories=("desk", "field"))),
    classes=("no", "yes"),
)
CLASSIFIERS = (DPLogisticRegression, DPLinearSVC, DPSGDClassifier)


@pytest.fixture(autouse=True)
def _nothing_fitted_before(monkeypatch):
    monkeypatch.setattr(base, "_FITTED", {})


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    age, job = rng.uniform(18, 90, 600), rng.choice(["desk", "field"], 600)
    frame = pd.DataFrame({"age": age, "job": job})
    return frame, np.where(age + 20 * (job == "field") > 64, "yes", "no")


def one_layer(features, classes):
    return nn.Dense(classes)


# The checks are of the interface, and nearly each compiles: one layer and epoch, on all records.
QUICK = DPSGDClassifier(one_layer, epochs=1, sampling="full")


@pytest.mark.parametrize(
    "estimator",
    [DPLogisticRegression(), DPLinearRegression(), DPLinearSVC(), QUICK, RangeScaler()],
    ids=lambda estimator: type(estimator).__name__,
)
@pytest.mark.at_length
def test_scikit_learn_checks_pass_and_the_forbidden_ones_alone_fail(estimator):
    forbidden = {} if isinstance(estimator, RangeScaler) else forbidden_checks(estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            estimator, expected_failed_checks=forbidden, on_fail=None, on_skip=None
        )
    failed = [(r["check_name"], r["exception"]) for r in results if r["status"] == "failed"]
    assert not failed
    assert collections.Counter(r["status"] for r in results)["passed"] > 35
    assert {r["check_name"] for r in results} >= set(forbidden)


@pytest.mark.parametrize("estimator", CLASSIFIERS)
@pytest.mark.at_length(every=2)
def test_a_schema_leaves_nothing_uncovered_and_labels_stay_text(estimator, people):
    frame, labels = people
    with warnings.catch_warnings():
        warnings.simplefilter("error", DpjaxWarning)
        model = estimator(epsilon=4.0, bounds=SCHEMA, random_state=0, preprocessing="public").fit(
            frame, labels
        )
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.score(frame, labels) > 0.85
    assert 0.98 * 4 < model.certificate_.epsilon <= 4
    assert not any("learned" in line for line in model.certificate_.not_covered)
    assert any("seed given by hand" in line for line in model.certificate_.not_covered)
    model.certificate_.verify()


def test_what_is_learned_from_rows_is_warned_of_and_listed(people):
    frame, labels = people
    with pytest.warns(PrivacyWarning, match="ranges learned from the rows: age.*not covered by ε"):
        model = DPLogisticRegression().fit(frame, labels)
    listed = " ".join(model.certificate_.not_covered)
    for line in ("ranges", "category lists", "classes of the target"):
        assert f"{line} learned from the rows" in listed
    with pytest.warns(PrivacyWarning, match="range of the target"):
        regression = DPLinearRegression(bounds=(0, 90)).fit(frame[["age"]], frame["age"])
    assert "range of the target learned from the rows" in regression.certificate_.not_covered
    for estimator in (DPLogisticRegression, DPSGDClassifier):
        model = estimator(delta=0.01, bounds=SCHEMA)
        with pytest.raises(NotFittedError, match=rf"{estimator.__name__} has certificate_ only"):
            model.certificate_  # noqa: B018
        assert not hasattr(model, "certificate_")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model.fit(frame, labels)
        (one,) = [str(w.message) for w in said if issubclass(w.category, DpjaxWarning)]
        assert "delta must be below 1 / 600" in one


def test_a_solver_that_is_set_after_the_fit_changes_no_probability(tmp_path):
    rng = np.random.default_rng(1)
    x, y = rng.uniform(-1, 1, (300, 2)), np.repeat(["a", "b", "c"], 100)
    columns = tuple(Column(name, range=(-1, 1)) for name in ("x0", "x1"))
    model = DPLogisticRegression(
        bounds=Schema(columns, classes=("a", "b", "c")), solver="objective_perturbation"
    )
    before = model.fit(x, y).predict_proba(x)
    np.testing.assert_array_equal(model.set_params(solver="dp_gd").predict_proba(x), before)
    with pytest.raises(ValueError, match="to be saved, got 'objective_perturbation'"):
        model.save(tmp_path / "model")


def test_fits_differ_unless_a_random_state_is_given(people):
    frame, labels = people
    fits = [
        DPLogisticRegression(bounds=SCHEMA, random_state=state).fit(frame, labels).coef_
        for state in (None, None, 7, 7)
    ]
    assert not np.array_equal(fits[0], fits[1])
    assert np.array_equal(fits[2], fits[3])


def test_pure_epsilon_is_certified_under_replace_one(people):
    frame, labels = people
    model = DPLogisticRegression(
        4.0, 0.0, adjacency="replace-one", solver="objective_perturbation", bounds=SCHEMA
    ).fit(frame, labels)
    # The accountant rounds up: a few units in the last digit above the ε of the mechanism.
    assert 4.0 <= model.certificate_.epsilon <= 4.0 * (1 + 1e-12)
    assert model.certificate_.mechanism.epsilon == 4.0
    assert model.certificate_.tier == "conditional"
    model.certificate_.verify()


def test_the_usual_l2_is_one_of_public_numbers(people):
    frame, labels = people
    pure = {"delta": 0.0, "adjacency": "replace-one", "solver": "objective_perturbation"}

    def l2_of(frame, labels, **settings):
        return DPLogisticRegression(bounds=SCHEMA, **settings).fit(frame, labels).l2_

    assert l2_of(frame, labels) == 1e-4
    assert l2_of(frame, labels, l2=3e-3, **pure) == 3e-3
    n, size = len(frame), DPLogisticRegression(bounds=SCHEMA).fit(frame, labels).coef_.size + 1
    assert l2_of(frame, labels, epsilon=2.0, **pure) == pytest.approx(0.07 * 2 * size / (2.0 * n))
    # The labels decide nothing.
    assert l2_of(frame, labels[::-1], epsilon=2.0, **pure) == l2_of(
        frame, labels, epsilon=2.0, **pure
    )
    assert l2_of(frame, labels, epsilon=1e6, **pure) == 1e-4
    assert l2_of(frame, labels, epsilon=1e-6, **pure) == 1.0


def test_saved_models_give_the_same_probabilities(people, tmp_path):
    frame, labels = people
    model = DPLogisticRegression(bounds=SCHEMA, random_state=0).fit(frame, labels)
    saved = training.load_model(model.save(tmp_path / "model"))
    assert saved.certificate.mechanism == model.certificate_.mechanism
    assert set(saved.certificate.subject) == {"model.json", "model.safetensors"}
    features = data.encode_features(frame, data.described_schema(saved.encoding))
    expected = training.probabilities(saved.model, saved.params, features)
    np.testing.assert_allclose(model.predict_proba(frame), expected, atol=1e-5)
    scores = features.astype(np.float64) @ model.coef_[0] + model.intercept_
    np.testing.assert_allclose(model.predict_proba(frame)[:, 1], expit(scores), atol=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        DPLogisticRegression(8.0, random_state=0),
        DPLogisticRegression(8.0, solver="objective_perturbation", random_state=0),
        DPLinearSVC(8.0, random_state=0),
    ],
)
def test_several_classes_share_the_budget(model, tmp_path):
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(c, 0.3, (200, 2)) for c in ([-1, -1], [1, -1], [0, 1])])
    y = np.repeat([3, 5, 9], 200)
    bounds = Schema((Column("a", range=(-2, 2)), Column("b", range=(-2, 2))), classes=tuple("359"))
    model.set_params(bounds=bounds).fit(x, y)
    assert model.classes_.tolist() == [3, 5, 9]
    assert model.score(x, y) > 0.9
    assert model.certificate_.epsilon <= 8
    if isinstance(model, DPLogisticRegression):
        np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1)
        if model.solver == "objective_perturbation":
            with pytest.raises(ValueError, match="solver must be one of"):
                model.save(tmp_path)


def test_one_target_beyond_its_range_counts_as_its_end():
    x = np.linspace(0, 1, 500)[:, None]
    y, far = 4 * x.ravel() + 1, 4 * x.ravel() + 1
    y[0], far[0] = 6.0, 1e30
    fits = [
        DPLinearRegression(4.0, bounds=(0, 1), target_range=(0, 6), random_state=0).fit(x, target)
        for target in (y, far)
    ]
    assert np.array_equal(fits[0].coef_, fits[1].coef_)
    assert fits[0].score(x[1:], y[1:]) > 0.9


@pytest.mark.parametrize(
    "network",
    [
        nn.Dense(2),
        lambda features, classes: nn.Dense(classes),
        training.from_nnx(lambda rngs: nnx.Linear(3, 2, rngs=rngs)),
    ],
    ids=["linen", "function", "nnx"],
)
def test_any_flax_model_is_trained(network, people, tmp_path):
    frame, labels = people
    settings = {"bounds": SCHEMA, "random_state": 0, "solver": "sgd", "learning_rate": 1.0}
    model = DPSGDClassifier(network, 8.0, sampling="full", epochs=20, **settings)
    assert model.fit(frame, labels).score(frame, labels) > 0.8
    saved = training.load_model(model.save(tmp_path), model._build_model())
    np.testing.assert_allclose(
        training.probabilities(saved.model, saved.params, data.encode_features(frame, SCHEMA)),
        model.predict_proba(frame),
        atol=1e-6,
    )


def test_the_network_that_is_released_is_the_average_of_its_last_steps(people, monkeypatch):
    frame, labels = people
    runs, whole = [], training.fit
    monkeypatch.setattr(training, "fit", lambda *a, **k: runs.append(whole(*a, **k)) or runs[-1])
    for share in (0.1, 0.0):
        settings = {"bounds": SCHEMA, "random_state": 0, "sampling": "full", "epochs": 20}
        model = DPSGDClassifier(nn.Dense(2), 8.0, average=share, **settings).fit(frame, labels)
        released = runs[-1].average if share else runs[-1].params
        jax.tree.map(np.testing.assert_array_equal, model.params_, released)
    averaged, last = runs
    assert last.average is None
    # Of the same 20 steps: weights of decay 1 − 1/(.1 · 20), which differ from the last alone.
    jax.tree.map(np.testing.assert_array_equal, averaged.params, last.params)
    gaps = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), averaged.average, last.params)
    assert min(jax.tree.leaves(gaps)) > 1e-4


def test_refusals_name_the_argument(people):
    frame, labels = people
    with pytest.raises(ValueError, match="one logit for each of the 2 classes"):
        DPSGDClassifier(nn.Dense(3), bounds=SCHEMA).fit(frame, labels)
    with pytest.raises(ValueError, match="solver must be adam"):
        DPSGDClassifier(solver="lbfgs", bounds=SCHEMA).fit(frame, labels)
    with pytest.raises(ValueError, match="solver must be one of the private ones"):
        DPLogisticRegression(solver="lbfgs", bounds=SCHEMA).fit(frame, labels)
    with pytest.raises(ValueError, match="bounds must be a schema"):
        DPLogisticRegression(bounds=3).fit(frame[["age"]], labels)
    with pytest.raises(ValueError, match="at least two classes"):
        DPLogisticRegression(bounds=(0, 90)).fit(frame[["age"]], ["no"] * 600)
    with pytest.raises(ValueError, match="target_range must be"):
        DPLinearRegression(bounds=(0, 90), target_range=(1, 1)).fit(frame[["age"]], frame["age"])
    with pytest.raises(ValueError, match=r"y must hold a label for every row, got none .* row 1;"):
        DPLogisticRegression(bounds=SCHEMA).fit(frame, [labels[0], None, *labels[2:]])
    with pytest.raises(ValueError, match=r"got text; give a pandas\.DataFrame"):
        DPLogisticRegression(bounds=SCHEMA).fit(frame.to_numpy(), labels)
    with pytest.raises(data.DataError, match="'maybe', which is none of the declared classes"):
        DPLogisticRegression(bounds=SCHEMA).fit(frame, ["maybe", *labels[1:]])


@pytest.mark.parametrize("kind", ["bool", "boolean", "bool[pyarrow]", "int64", "Int64", "Float64"])
@pytest.mark.parametrize("column", [False, True])
def test_labels_of_every_type_come_back_as_they_were(kind, column):
    x = np.random.default_rng(0).uniform(-1, 1, (400, 1))
    truth = x[:, 0] > 0
    labels = pd.Series(truth, name="y").astype(kind)
    model = DPLogisticRegression(epsilon=50.0, bounds=(-1, 1), random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, labels.to_frame() if column else labels)
    assert model.classes_.tolist() == [0, 1]
    assert np.mean(model.predict(x) == truth) > 0.95


def test_large_whole_numbers_are_classes_of_their_own():
    x = np.random.default_rng(0).uniform(-1, 1, (400, 1))
    labels = np.where(x[:, 0] > 0, 2**60 + 1, 2**60)
    model = DPLogisticRegression(epsilon=50.0, bounds=(-1, 1), random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        model.fit(x, labels)
    assert model.classes_.tolist() == [2**60, 2**60 + 1]
    assert np.mean(model.predict(x) == labels) > 0.95


@pytest.mark.parametrize(
    ("labels", "classes", "aliases"),
    [
        (("no", "yes"), ("no", "yes", "perhaps"), ()),  # longer than every label of these records
        (("n", "y"), ("no", "yes"), (("n", "no"), ("y", "yes"))),
        ((0, 1), ("no", "yes"), (("0", "no"), ("1", "yes"))),
        ((False, True), ("no", "yes"), (("False", "no"), ("True", "yes"))),
    ],
)
def test_declared_classes_keep_their_names(labels, classes, aliases):
    x = np.random.default_rng(0).uniform(-1, 1, (400, 1))
    schema = Schema((Column("x", range=(-1, 1)),), classes=classes, aliases=aliases)
    model = DPLogisticRegression(epsilon=50.0, bounds=schema, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        model.fit(x, np.where(x[:, 0] > 0, labels[1], labels[0]))
    assert model.classes_.tolist() == list(classes)
    assert np.mean(model.predict(x) == np.where(x[:, 0] > 0, "yes", "no")) > 0.95


@pytest.mark.parametrize("target_range", [4, (4, -2), "wide", (1, 2, 3), np.array([2.0, 1.0])])
def test_a_target_range_that_is_none_is_refused(target_range):
    x = np.linspace(0, 1, 100)[:, None]
    model = DPLinearRegression(bounds=(0, 1), target_range=target_range, delta=1e-3)
    with pytest.raises(ValueError, match=r"target_range must be \(low, high\), got"):
        model.fit(x, x[:, 0])
    model = DPLinearRegression(bounds=(0, 1), target_range=np.array([0.0, 1.0]), delta=1e-3)
    assert model.fit(x, x[:, 0]).predict(x).shape == (100,)


@pytest.mark.parametrize("given", ["pyarrow", "polars", "array of objects", "list"])
def test_rows_that_are_no_frame_keep_the_type_of_every_column(given):
    """As one array of floats, True would be "1" and two large ids one: features would be lost."""
    rng = np.random.default_rng(0)
    chosen = rng.uniform(size=400) > 0.5
    frame = pd.DataFrame({"x": rng.uniform(size=400), "member": chosen})
    frame["id"] = np.where(rng.uniform(size=400) > 0.5, 2**60 + 1, 2**60)
    ids = (str(2**60), str(2**60 + 1))
    schema = Schema(
        (
            Column("x", range=(0, 1)),
            Column("member", "category", categories=("False", "True")),
            Column("id", "category", categories=ids),
        ),
        classes=("0", "1"),
    )
    if given == "pyarrow":
        table = pytest.importorskip(given).Table.from_pandas(frame)
    elif given == "polars":
        columns = {name: frame[name].to_numpy() for name in frame}
        table = pytest.importorskip(given).DataFrame(columns)
    else:
        table = frame.astype(object).to_numpy()
        table = table.tolist() if given == "list" else table
    wanted, found = (
        DPLogisticRegression(50.0, 1e-3, bounds=schema, random_state=0).fit(
            rows, chosen.astype(int)
        )
        for rows in (frame, table)
    )
    np.testing.assert_array_equal(found.coef_, wanted.coef_)
    np.testing.assert_array_equal(found.predict_proba(table), wanted.predict_proba(frame))
    assert np.mean(found.predict(table) == chosen) > 0.95


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda x: pytest.importorskip("polars").LazyFrame({"x0": x[:, 0]}), "LazyFrame; X.colle"),
        (lambda x: {"x0": x[:, 0]}, r"dict; pandas.DataFrame\(X\) is one"),
        (lambda x: [{"x0": 1.0}] * len(x), r"an array of shape \(40,\)"),
        (lambda x: x[:, 0], r"an array of shape \(40,\); Reshape your data"),
        (lambda x: [*x[1:].tolist(), [1.0, 2.0]], r"an array of shape \(40,\)"),  # ragged
        (lambda x: x + 0j, "complex128"),
    ],
)
@pytest.mark.parametrize("kind", [DPLogisticRegression, DPLinearRegression])
def test_rows_that_are_none_are_refused_without_showing_records(kind, wrong, told):
    x = np.linspace(-1, 1, 40)[:, None]
    model, y = kind(delta=1e-3, bounds=(-1, 1), random_state=0), (x[:, 0] > 0).astype(int)
    refused = f"^X must be a table of pandas, .* got {told}[^\n]{{0,40}}$"
    with pytest.raises(ValueError, match=refused):
        model.fit(wrong(x), y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        model.fit(x, y)
    with pytest.raises(ValueError, match=refused):
        model.predict(wrong(x))


@pytest.mark.parametrize("cell", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_named_by_its_place(cell):
    X = np.linspace(0.0, 1.0, 12).reshape(6, 2)
    labels = [0, 1, 0, 1, 0, 1]
    model = DPLogisticRegression(epsilon=1.0, delta=1e-5, bounds=(0.0, 1.0))
    with pytest.warns(PrivacyWarning, match="classes"):
        model.fit(X, labels)
    X[3:5, 1] = cell
    told = f"finite numbers, got {str(cell).replace('nan', 'NaN')} in row 3 of column 'x1' .2 such"
    for rows in (X, X.tolist(), X.astype(object)):
        with pytest.raises(ValueError, match=told) as found:
            model.predict_proba(rows)
        assert "\n" not in str(found.value)
    with pytest.raises(ValueError, match=told):
        model.fit(X, labels)


@pytest.mark.parametrize("kind", [DPLogisticRegression, DPLinearRegression])
def test_masked_cells_are_refused(kind):
    """scikit-learn reads what lies under the mask."""
    x, y = np.linspace(-1, 1, 40)[:, None], np.arange(40) % 2
    model = kind(delta=1e-3, bounds=(-1, 1), random_state=0)
    with pytest.raises(ValueError, match=r"X must have every value, .* 3 of 40 are hidden"):
        model.fit(np.ma.masked_array(x, mask=np.arange(40)[:, None] < 3), y)
    with pytest.raises(ValueError, match=r"y must have every value, .* 20 of 40 are hidden"):
        model.fit(x, np.ma.masked_equal(y, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        model.fit(np.ma.masked_array(x), np.ma.masked_array(y))  # nothing is hidden
    with pytest.raises(ValueError, match="X must have every value"):
        model.predict(np.ma.masked_less(x, 0.0))


def test_a_frame_without_rows_or_with_levels_of_names_is_refused(people):
    frame, labels = people
    with pytest.raises(ValueError, match="X must have at least one row, got none"):
        DPLogisticRegression(bounds=SCHEMA).fit(frame[:0], labels[:0])
    levels = frame.set_axis(pd.MultiIndex.from_tuples([("p", "age"), ("p", "job")]), axis=1)
    with pytest.raises(data.DataError, match=r"texts for names, got \('p', 'age'\)"):
        DPLogisticRegression().fit(levels, labels)


def test_any_true_value_is_an_intercept_of_ones():
    """As a number it was the constant's size, by which predictions did not multiply."""
    x = np.random.default_rng(0).uniform(-1, 1, (300, 1))
    one, five = (
        DPLinearRegression(
            50.0, 1e-3, bounds=(-1, 1), target_range=(0, 4), fit_intercept=flag, random_state=0
        ).fit(x, x[:, 0] + 3)
        for flag in (True, 5)
    )
    np.testing.assert_array_equal(five.predict(x), one.predict(x))
    assert np.max(np.abs(one.predict(x) - x[:, 0] - 3)) < 0.5


def test_a_declared_class_that_the_labels_cannot_hold_stays_itself():
    x = np.random.default_rng(0).uniform(-1, 1, (300, 1))
    schema = Schema((Column("x0", range=(-1, 1)),), classes=("0", "1", "300"))
    labels = (x[:, 0] > 0).astype(np.uint8)
    model = DPLogisticRegression(5.0, 1e-3, bounds=schema, random_state=0).fit(x, labels)
    assert model.classes_.tolist() == [0, 1, 300]


def test_what_a_regression_cannot_take_as_numbers_is_named():
    x = np.linspace(-1, 1, 300)[:, None]
    model = DPLinearRegression(5.0, 1e-3, bounds=(-1, 1), target_range=(0, 4), random_state=0)
    for target in (["a"] * 300, pd.date_range("2020", periods=300)):
        with pytest.raises(ValueError, match="y must hold numbers, got"):
            model.fit(x, target)
    plain = model.fit(x, np.full(300, 2.5)).predict(x)
    exact = model.fit(x, np.full(300, decimal.Decimal("2.5"), dtype=object)).predict(x)
    np.testing.assert_array_equal(exact, plain)
    with pytest.raises(ValueError, match="delta must be a number, got None"):
        DPLogisticRegression(delta=None, bounds=(-1, 1)).fit(x, x[:, 0] > 0)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.at_length(every=2)
def test_epsilon_is_one_number(classes):
    x, y = np.random.default_rng(0).uniform(size=(40, 2)), (np.arange(40) % classes).astype(str)
    schema = Schema(
        tuple(Column(f"x{i}", range=(0, 1)) for i in range(2)), classes=tuple("0123"[:classes])
    )
    pure = {"solver": "objective_perturbation", "delta": 0.0, "adjacency": "replace-one"}
    given = pure | {"bounds": schema, "random_state": 0}
    plain = DPLogisticRegression(epsilon=0.5, **given).fit(x, y)
    for same in (np.array(0.5), np.float32(0.5)):
        other = DPLogisticRegression(epsilon=same, **given).fit(x, y)
        assert other.l2_ == plain.l2_ > 1e-3
    for wrong in ("a", [1.0, 2.0], True, np.array([1.0, 2.0])):
        with pytest.raises((TypeError, ValueError), match=r"epsilon must be (a|one) number"):
            DPLogisticRegression(epsilon=wrong, **given).fit(x, y)


@pytest.mark.parametrize("estimator", [DPLogisticRegression, DPSGDClassifier])
def test_a_fit_that_fails_leaves_no_model(estimator, people, tmp_path):
    """The old parameters stayed beside the new columns, ranges and classes."""
    frame, labels = people
    model = estimator(epsilon=5.0, delta=1e-3, bounds=SCHEMA, random_state=0).fit(frame, labels)
    other = Schema((Column("age", range=(0, 10)), SCHEMA.columns[1]), classes=("yes", "no"))
    model.set_params(bounds=other, epsilon=-1.0)
    with pytest.raises(ValueError, match="epsilon must be"):
        model.fit(frame, labels)
    for use in (model.predict, model.predict_proba, lambda _: model.save(tmp_path / "m")):
        with pytest.raises(NotFittedError):
            use(frame)


@pytest.mark.parametrize("kind", ["boolean", "bool[pyarrow]"])
@pytest.mark.at_length(every=2)
def test_labels_in_an_array_of_pandas_come_back_as_they_were(kind):
    rows = [[float(number % 2)] for number in range(200)]
    labels = pd.array([True, False] * 100, dtype=kind)
    model = DPLogisticRegression(bounds=(0, 1), delta=1e-3, random_state=0, epsilon=50.0)
    with pytest.warns(PrivacyWarning, match="classes of the target"):
        model.fit(rows, labels)
    assert model.classes_.dtype == bool
    assert model.score(rows, labels.to_numpy(bool)) == 1.0


@pytest.mark.parametrize("estimator", [DPLogisticRegression, DPSGDClassifier, DPLinearRegression])
@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({0: 12345, 1: 54321}, "got dict"),
        ({12345, 54321}, "got set"),
        ("12345", "got str"),
        (12345, "got int"),
    ],
)
def test_a_target_that_is_no_column_is_refused_without_showing_records(estimator, labels, told):
    with pytest.raises(ValueError, match=told) as refused:
        estimator(bounds=(0, 1)).fit([[0.1], [0.9]], labels)
    assert str(refused.value).startswith("y must be one label a row")
    assert "12345" not in str(refused.value)


@pytest.mark.parametrize("estimator", CLASSIFIERS)
@pytest.mark.parametrize(
    ("one", "other", "aliases"),
    [("yes", "yes  ", ()), ("\u00e9", "e\u0301", ()), ("yes", "y", (("y", "yes"),))],
)
@pytest.mark.at_length(every=3)
def test_a_score_reads_labels_as_fit_does(estimator, one, other, aliases):
    x = np.random.default_rng(0).uniform(-1, 1, (400, 1))
    plain = np.where(x[:, 0] > 0, one, "no")
    spelt = np.where((x[:, 0] > 0) & (np.arange(400) % 2 == 0), other, plain)
    schema = Schema((Column("x0", range=(-1, 1)),), classes=("no", one), aliases=aliases)
    model = estimator(epsilon=10.0, bounds=schema, random_state=0).fit(x, spelt)
    assert model.score(x, spelt) == model.score(x, plain) > 0.85
    assert model.score(x, spelt, x[:, 0] < 0) > 0.85
    assert model.score(x, np.where(plain == "no", "no", "another")) < 0.7
    with pytest.raises(ValueError, match="inconsistent"):
        model.score(x, spelt[1:])


def test_labels_of_several_types_are_refused():
    labels = np.array(["1", 1] * 20, dtype=object)
    for estimator in CLASSIFIERS:
        with pytest.raises(ValueError, match="y must hold labels of one type, got int and str"):
            estimator(bounds=(0, 1)).fit([[0.1], [0.9]] * 20, labels)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ([-1e308, 1e308], r"target_range must be \(low, high\) .*, got None"),
        ([2.0**60, 2.0**60], None),
        ([1e300, 1e300], None),
        ([0.0, 5e-324], None),
    ],
)
def test_a_range_learned_from_extreme_targets_gives_numbers_or_is_refused(target, told):
    model = DPLinearRegression(bounds=(0, 1), delta=1e-3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        if told is not None:
            with pytest.raises(ValueError, match=told):
                model.fit([[0.1], [0.9]] * 50, [*target, *[0.0] * 98])
            return
        model.fit([[0.1], [0.9]] * 50, target * 50)
    found = model.predict([[0.1], [0.9]])
    assert np.all(np.isfinite(found))
    assert np.all(np.abs(found) <= 3 * max(target[1], 1.0))


def test_columns_of_one_name_are_refused_in_one_line(people):
    frame, labels = people
    twice = pd.concat([frame, frame[["age"]]], axis=1)
    model = DPLogisticRegression(bounds=SCHEMA, random_state=0)
    with pytest.raises(ValueError, match="age") as refused:
        model.fit(twice, labels)
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="age"):
        model.fit(frame, labels).predict(twice)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"learning_rate": np.nan}, "learning_rate must be a finite number > 0, got nan"),
        ({"learning_rate": -1}, "learning_rate must be a finite number > 0, got -1"),
        ({"learning_rate": "a"}, "learning_rate must be a number .*, got 'a'"),
        ({"average": 1.0}, r"average must be in \[0, 1\), got 1.0"),
        ({"average": -0.1}, "average must be .*, got -0.1"),
        ({"model": 3}, "model must be a flax module, .*, got 3"),
        ({"model": lambda features, classes: None}, "model must be a flax module, .*, got None"),
    ],
)
def test_settings_of_the_network_are_refused_by_name(people, given, told):
    frame, labels = people
    with pytest.raises((ValueError, TypeError), match=told):
        DPSGDClassifier(bounds=SCHEMA, **given).fit(frame, labels)


def test_what_a_shared_seed_gives_away_is_said_and_has_no_joint_price(people):
    """scikit-learn's clone keeps a whole number: the folds of a search share one noise."""
    frame, labels = people

    def fit(rows=600, **given):
        model = DPLogisticRegression(bounds=SCHEMA, **given)
        return model.fit(frame[:rows], labels[:rows]).certificate_

    with warnings.catch_warnings():
        warnings.simplefilter("error", DpjaxWarning)
        seeded, drawn, other = fit(random_state=0), fit(), fit()
        assert fit(random_state=0).declared["noise"] == seeded.declared["noise"]  # one release
    assert any("another model trained with it, can subtract" in x for x in seeded.not_covered)
    for changed in ({"rows": 400}, {"epsilon": 3.0}):
        with pytest.warns(PrivacyWarning, match="random_state=0 has drawn the noise of another"):
            again = fit(random_state=0, **changed)
        with pytest.raises(ValueError, match="runs with a key each"):
            acc.certify([drawn, seeded, again], delta=1e-6)
    together = acc.certify([drawn, seeded, other], delta=1e-6)
    run = acc.Composed((drawn.mechanism, seeded.mechanism, other.mechanism))
    assert together.epsilon == acc.epsilon(run, delta=1e-6)
    assert set(seeded.not_covered) <= set(together.not_covered)
    with pytest.raises(ValueError, match="runs with a key each"):
        acc.certify([together, other], delta=1e-6)


_ALL = [DPLogisticRegression, DPLinearSVC, DPSGDClassifier, DPLinearRegression]


@pytest.mark.parametrize("kind", _ALL)
def test_weights_are_refused_with_the_reason(kind):
    with pytest.raises(TypeError, match=r"sample_weight.*count several times"):
        kind().fit([[0.0], [1.0]], [0, 1], sample_weight=[1.0, 2.0])
    with pytest.raises(TypeError, match=r"class_weight.*count several times"):
        kind(class_weight="balanced")
    with pytest.raises(TypeError, match=r"sample_weight.*count several times"):
        kind().fit([[0.0], [1.0]], [0, 1], [1.0, 2.0])
    for name in ("class_weight", "sample_weight"):
        for model, given in (
            (kind(), name),
            (make_pipeline(kind()), f"{kind.__name__.lower()}__{name}"),
        ):
            with pytest.raises(ValueError, match=rf"{name}.*count several times"):
                model.set_params(**{given: "balanced"})
    with pytest.raises(ValueError, match="Invalid parameter"):
        kind().set_params(nothing=1)
    assert kind().set_params(epsilon=2.0).epsilon == 2.0


@pytest.mark.parametrize("kind", _ALL)
@pytest.mark.at_length(every=3)
def test_what_a_pipeline_learned_before_is_said_to_be_uncovered(kind):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, 2))
    y = X[:, 0] > 0.5 if kind is not DPLinearRegression else X[:, 0]
    settings = {"epsilon": 5.0, "delta": 1e-4, "bounds": (0, 1)}
    settings |= {"target_range": (0, 1)} if kind is DPLinearRegression else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # of the classes, which no schema names
        told = kind(**settings).fit(X, y)
        public = kind(**settings, preprocessing="public").fit(X, y)
    assert sum("earlier steps" in line for line in told.certificate_.not_covered) == 1
    assert not any("earlier steps" in line for line in public.certificate_.not_covered)
    assert "\n" not in repr(kind(bounds=SCHEMA))
    settings |= {"preprocessing": "secret"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        with pytest.raises(ValueError, match="preprocessing must be"):
            kind(**settings).fit(X, y)
    if hasattr(told, "coef_"):
        binary = kind is not DPLinearRegression
        assert told.coef_.shape == ((1, 2) if binary else (2,))
        assert np.shape(told.intercept_) == ((1,) if binary else ())


def test_a_scaler_of_public_ranges_learns_nothing_and_clips(people):
    frame, labels = people
    numbers = pd.DataFrame({"age": frame["age"], "double": 2 * frame["age"]})
    scaler = RangeScaler([18, 40], [90, 120])
    last = DPLogisticRegression(
        bounds=Schema(
            (Column("age", range=(0, 1)), Column("double", range=(0, 1))), classes=("no", "yes")
        ),
        preprocessing="public",
    )
    model = make_pipeline(scaler.set_output(transform="pandas"), last).fit(numbers, labels)
    assert model.score(numbers, labels) > 0.7
    (size, *chosen) = last.certificate_.not_covered
    assert "number of training records" in size
    assert not [line for line in chosen if "scaler" in line or "learned" in line]
    assert scaler.get_feature_names_out().tolist() == ["age", "double"]
    # By hand, and the same whatever other rows stand beside it and whatever `fit` saw.
    cells = pd.DataFrame({"age": [18.0, 54.0, 500.0], "double": [0.0, 60.0, 120.0]})
    expected = [[0, 0], [0.5, 0.25], [1, 1]]
    np.testing.assert_array_equal(scaler.transform(cells), expected)
    again = RangeScaler([18, 40], [90, 120]).fit(-1e9 * cells)
    np.testing.assert_array_equal(again.transform(cells.iloc[1:2]), expected[1:2])


@pytest.mark.parametrize(
    ("low", "high"), [(1, 1), (2, 1), (0, np.inf), ("a", 1), ([0, 0, 0], 1), (np.nan, 1), (0, None)]
)
def test_ranges_that_are_none_are_refused(low, high):
    with pytest.raises(ValueError, match="low and high must be numbers, low below high"):
        RangeScaler(low, high).fit([[1.0, 2.0]])


@pytest.mark.parametrize("kind", ["array", "frame", "list"])
@pytest.mark.at_length(every=2)
def test_missing_cells_are_taken_where_the_schema_says_so(kind):
    rows = np.array([[0.0, 1.0], [np.nan, 0.0], [1.0, np.nan], [0.5, 0.5]] * 50)
    given = {"array": rows, "frame": pd.DataFrame(rows, columns=["u", "v"]), "list": rows.tolist()}
    columns = (Column("u", range=(0, 1)), Column("v", range=(0, 1)))
    labels = ["a", "b"] * 100
    model = DPLogisticRegression(bounds=Schema(columns, classes=("a", "b"), missing=("",)))
    model.fit(given[kind], labels)
    middle = np.nan_to_num(rows, nan=0.5)
    if kind == "frame":
        middle = pd.DataFrame(middle, columns=["u", "v"])
    np.testing.assert_array_equal(model.predict_proba(given[kind]), model.predict_proba(middle))
    with pytest.raises(ValueError, match="drop or complete these rows"):
        model.set_params(bounds=Schema(columns, classes=("a", "b"))).fit(given[kind], labels)
