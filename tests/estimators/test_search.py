"""`DPSearchCV`: a private search behind fit and predict."""

from __future__ import annotations

import collections
import warnings

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from dpjax import accounting as acc
from dpjax import training
from dpjax.data import Column, Schema
from dpjax.estimators import (
    DPLinearRegression,
    DPLogisticRegression,
    DPSearchCV,
    DPSGDClassifier,
    base,
    forbidden_checks,
    search,
)
from dpjax.training.plan import ARITHMETIC
from dpjax.training.search import Selection

pytestmark = pytest.mark.usefixtures("lenient_promotion")
SCHEMA = Schema(
    (Column("age", range=(18, 90)), Column("job", "category", categories=("desk", "field"))),
    classes=("no", "yes"),
)
BASE = DPLogisticRegression(bounds=SCHEMA, preprocessing="public")
# A default that learns nothing, and one setting that does.
SPACE = [{"l2": 1e3}, {"l2": 1e-4}]
SETTINGS = {"epsilon": 3.0, "random_state": 1, "law": "fixed", "mean": 4.0}


@pytest.fixture(autouse=True)
def _nothing_fitted_before(monkeypatch):
    monkeypatch.setattr(base, "_FITTED", {})


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    age, job = rng.uniform(18, 90, 1_200), rng.choice(["desk", "field"], 1_200)
    frame = pd.DataFrame({"age": age, "job": job})
    return frame, np.where(age + 20 * (job == "field") > 64, "yes", "no")


@pytest.mark.at_length
def test_scikit_learn_checks_pass_and_the_forbidden_ones_alone_fail():
    search = DPSearchCV(DPLogisticRegression(), [{"l2": 1e-4}], law="fixed", mean=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            search, expected_failed_checks=forbidden_checks(search), on_fail=None, on_skip=None
        )
    assert not [(r["check_name"], r["exception"]) for r in results if r["status"] == "failed"]
    assert collections.Counter(r["status"] for r in results)["passed"] > 35


def test_the_best_fit_is_kept_under_one_certificate_of_all(people, tmp_path):
    frame, labels = people
    fitted = []
    with pytest.MonkeyPatch.context() as patch:
        real = DPLogisticRegression._train
        patch.setattr(
            DPLogisticRegression,
            "_train",
            lambda self, records: (real(self, records), fitted.append((self, records)))[0],
        )
        search = DPSearchCV(BASE, SPACE, **SETTINGS).fit(frame, labels)
    assert len(fitted) == 4
    assert {model.l2 for model, _ in fitted} == {1e3, 1e-4}
    assert search.best_params_ == {"l2": 1e-4}
    assert search.best_estimator_ in [model for model, _ in fitted]
    assert search.score(frame, labels) == search.best_estimator_.score(frame, labels) > 0.8
    certificate = search.certificate_
    run, score = certificate.mechanism.mechanism.mechanisms
    assert certificate.mechanism == acc.BestOf(acc.Composed((run, score)), 4.0, "fixed")
    assert score == acc.Gaussian(24.0 / 3.0)
    assert 2.99 < certificate.verify().epsilon <= 3.0
    assert any("score counts" in line for line in certificate.assumptions)
    assert search.best_estimator_.certificate_ == certificate
    # A record is trained on or held out, by coins that no record decides.
    sizes = {len(records.target) for _, records in fitted}
    assert len(sizes) == 1
    assert 0.75 < sizes.pop() / len(labels) < 0.85
    assert len({bytes(np.asarray(jax.random.key_data(r.key))) for _, r in fitted}) == 4
    again = DPSearchCV(BASE, SPACE, **SETTINGS).fit(frame, labels)
    np.testing.assert_array_equal(again.predict_proba(frame), search.predict_proba(frame))
    assert again.best_score_ == search.best_score_
    saved = training.load_model(search.save(tmp_path / "model"))
    assert saved.certificate.mechanism == certificate.mechanism


def test_the_score_is_a_noisy_count_of_held_out_records(people):
    frame, labels = people
    settings = {**SETTINGS, "mean": 1.0, "random_state": 5}
    found = DPSearchCV(BASE, SPACE[1:], score_noise=3.0, **settings).fit(frame, labels)
    assert abs(found.best_score_ - found.score(frame, labels)) < 0.1
    with pytest.raises(acc.ImpossibleBudget):  # a count that costs more than everything may
        DPSearchCV(BASE, SPACE[1:], score_noise=0.01, **settings).fit(frame, labels)
    noisy = [
        DPSearchCV(
            BASE, SPACE[1:], score_noise=500.0, **{**settings, "random_state": seed}
        ).fit(frame, labels)
        for seed in range(4)
    ]  # fmt: skip
    assert np.std([one.best_score_ for one in noisy]) > 0.5


@pytest.mark.at_length
def test_a_released_table_is_priced_once_beside_the_search():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(18, 90, 6_000).astype(float)})
    labels = np.where(frame.age > 50, "b", "a")
    inner = DPLogisticRegression(preprocessing="private")
    search = DPSearchCV(inner, [{}], epsilon=2.0, mean=2.0, random_state=3).fit(frame, labels)
    _, best = search.certificate_.mechanism.mechanisms
    assert isinstance(best, acc.BestOf)
    assert search.certificate_.not_covered == (base.BY_HAND,)
    assert 1.98 < search.certificate_.epsilon <= 2.0
    assert search.score(frame, labels) > 0.85


def test_where_no_fit_is_made_the_model_has_seen_blank_records_alone(people, monkeypatch):
    monkeypatch.setattr(Selection, "draw", lambda self, key: [])
    frame, labels = people
    search = DPSearchCV(BASE, SPACE, **SETTINGS)
    first = search.fit(frame, labels).predict_proba(frame)
    assert search.best_params_ is None
    assert search.best_score_ is None
    other = DPSearchCV(BASE, SPACE, **SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one random state with other records
        other.fit(frame, labels[::-1])
    np.testing.assert_array_equal(other.predict_proba(frame), first)


@pytest.mark.at_length
def test_networks_and_regressions_are_searched_with_too(people):
    frame, labels = people
    network = DPSGDClassifier(bounds=SCHEMA, preprocessing="public", epochs=2, sampling="full")
    settings = {**SETTINGS, "mean": 2.0}
    rates = [{"learning_rate": 0.1}, {"learning_rate": 0.05, "clip_norm": 0.5}]
    found = DPSearchCV(network, rates, **settings).fit(frame, labels)
    assert found.predict_proba(frame).shape == (1_200, 2)
    assert 2.99 < found.certificate_.epsilon <= 3.0
    assert not hasattr(found, "decision_function")
    x = np.linspace(0, 1, 1_000)[:, None]
    line = DPLinearRegression(bounds=(0, 1), target_range=(0, 10), preprocessing="public")
    found = DPSearchCV(line, [{"l2": 1e3}, {"l2": 1e-4}], **settings).fit(x, 10 * x[:, 0])
    assert found.best_params_ == {"l2": 1e-4}
    assert found.score(x, 10 * x[:, 0]) > 0.8


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"estimator": DPLogisticRegression}, "estimator must be one of dpjax.estimators"),
        ({"space": []}, "space must be a list of settings"),
        ({"space": [1.0]}, "space must be a list of settings"),
        ({"space": [{"l2": 1.0}, {"epsilon": 2.0}]}, "space must leave epsilon as it is"),
        ({"space": [{"l3": 1.0}]}, "l3"),
        ({"mean": 0.5}, "mean must be"),
        ({"held_out": 1.0}, "held_out must be"),
        ({"delta": 0.0}, "delta must be"),
        ({"epsilon": None}, "epsilon must be"),
        (
            {"space": [{"l2": 1.0}, {"solver_options": {"steps": 10}}]},
            "space must leave what a fit costs as it is",
        ),
        (
            {"estimator": clone(BASE).set_params(solver="objective_perturbation")},
            "solver must be one whose noise is all that keeps the budget",
        ),
    ],
)
def test_bad_settings_are_named_before_a_fit(people, changes, told, monkeypatch):
    monkeypatch.setattr(DPLogisticRegression, "_solve", None)
    given = {"estimator": BASE, "space": SPACE, **SETTINGS, **changes}
    with pytest.raises((TypeError, ValueError), match=told):
        DPSearchCV(**given).fit(*people)


def test_a_held_out_value_moves_the_score_by_one_also_where_no_range_is_given():
    x = np.linspace(0, 1, 200)[:, None]
    line = DPLinearRegression(bounds=(0, 1), epsilon=5.0, preprocessing="public", random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        line.fit(x, 10 * x[:, 0])
        records = line._read(x, 10 * x[:, 0])
    target = records.target.copy()
    target[0] = 1e6
    one, other = (
        search._score(line, part, records.target)
        for part in (records, records._replace(target=target))
    )
    assert abs(one - other) <= 1
    assert 0 <= one < 199


@pytest.mark.at_length
def test_what_rounding_may_cost_is_set_aside_for_all_fits_together(people):
    """As of one fit, of which a search of K makes K."""
    plans = []
    fit = DPSGDClassifier(bounds=SCHEMA, preprocessing="public", epochs=1)
    with pytest.MonkeyPatch.context() as patch:
        real = training.fit

        def watched(loss, params, data, plan, **settings):
            plans.append(plan)
            return real(loss, params, data, plan, **settings)

        patch.setattr(training, "fit", watched)
        search = DPSearchCV(fit, [{"learning_rate": 0.05}], **SETTINGS).fit(*people)
    assert search.certificate_.extra_delta == {ARITHMETIC: 1e-8}
    assert 2.99 < search.certificate_.verify().epsilon <= 3.0
    assert len(plans) == 4
    for plan in plans:
        assert plan.compose(plan.mechanism) == search.certificate_.mechanism
        assert plan.extra_delta == {ARITHMETIC: 1e-8}


def test_no_draw_of_who_is_held_out_refuses():
    """At a share of .9 the coins alone leave nobody to train on in 81 % of draws of two records."""
    settings = {**SETTINGS, "mean": 1.0, "held_out": 0.9}
    for seed in range(6):
        search = DPSearchCV(BASE, SPACE[1:], **{**settings, "random_state": seed})
        frame = pd.DataFrame({"age": [20.0, 80.0], "job": ["desk", "field"]})
        search.fit(frame, ["no", "yes"])
        assert search.certificate_.epsilon <= 3.0
        with pytest.raises(ValueError, match=r"at least 2|minimum of 2"):
            search.fit(frame[:1], ["no"])
