"""The rule for linear models of tables: its formulas by simulation, and what replaces what."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import training
from dpjax.training.descent import add_places, descend_with_momentum
from dpjax.training.tables import TableSettings

CLASSES = [0, 2, 3]  # of a number none


@pytest.mark.parametrize(("classes", "spread"), [(2, 2.0), (4, 2.0), (0, 0.5)])
def test_the_noise_of_all_steps_spreads_a_weight_by_what_the_rule_says(classes, spread):
    made = TableSettings.choose(8_000, columns=9, classes=classes, steps=2_000)
    noise = 300.0
    rng, weights, speed = np.random.default_rng(0), np.zeros(4_000), np.zeros(4_000)
    for _ in range(made.steps):  # a run whose records pull at nothing
        step = noise * made.clip_norm / made.batch_size * rng.normal(size=weights.size)
        speed = made.momentum * speed + step
        weights -= made.learning_rate(noise) * speed
    assert np.std(weights) == pytest.approx(spread, rel=0.04)


@pytest.mark.parametrize("classes", CLASSES)
def test_a_larger_budget_trains_faster_up_to_a_stable_rate(classes):
    made = TableSettings.choose(10_000, columns=4, classes=classes)
    rates = [made.learning_rate(noise) for noise in (100.0, 10.0, 1e-3, 0.0)]
    assert rates == sorted(rates)
    assert rates[2] == rates[3] == (32.0 if classes else 1.0)


@pytest.mark.parametrize(("classes", "wrong"), [(2, 0.5), (0, 0.5)])
def test_an_error_of_one_half_is_where_a_gradient_is_clipped(classes, wrong):
    """By JAX's own gradient, of a row of norm 1 at parameters of zero."""
    made = TableSettings.choose(1_000, columns=4, classes=classes)
    x = jnp.full(4, 0.5)  # four columns, each of 1/√4
    label = jnp.asarray(1) if classes else jnp.asarray(wrong)
    params = made.training_model(4).init(jax.random.key(0))
    gradient = jax.grad(made.loss(4))(params, (x, label))
    norm = math.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(gradient)))
    assert norm == pytest.approx(made.clip_norm, rel=1e-6)


def test_two_classes_of_softmax_are_clipped_at_the_same_probability():
    one, two = (TableSettings.choose(1_000, columns=4, classes=c) for c in (2, 3))
    # Of two classes with a score each the residual is (p − y, y − p), √2 times as long.
    assert two.clip_norm == pytest.approx(math.sqrt(2) * one.clip_norm)


GIVEN = {
    "steps": 50,
    "batch_size": 100,
    "momentum": 0.5,
    "averaged": 0.0,
    "clip_norm": 0.1,
    "learning_rate": 0.3,
}


@pytest.mark.parametrize("name", GIVEN)
def test_what_is_given_replaces_that_setting_alone(name):
    usual = TableSettings.choose(10_000, columns=10)
    made = TableSettings.choose(10_000, columns=10, **{name: GIVEN[name]})
    kept = {"given", "rate", name}
    for field in dataclasses.fields(made):
        if field.name not in kept:
            assert getattr(made, field.name) == getattr(usual, field.name)
    shown = {one.name: one for one in made.reasons(5.0)}
    assert [n for n, one in shown.items() if one.why == "as it was given"] == [name]
    if name in ("steps", "batch_size", "momentum", "clip_norm"):  # which the rate follows
        noise = 5.0 * made.clip_norm * math.sqrt(made.steps)
        expected = 2 * (1 - made.momentum) * made.batch_size / noise
        assert made.learning_rate(5.0) == pytest.approx(min(expected, 32.0))


@pytest.mark.parametrize(
    ("name", "value"),
    [("steps", 0), ("batch_size", 0.5), ("momentum", 1.0), ("averaged", 1.0), ("averaged", -0.1),
     ("clip_norm", 0.0), ("learning_rate", math.inf), ("columns", 0), ("records", 0)],
)  # fmt: skip
def test_an_impossible_setting_is_refused_by_name(name, value):
    given = {"records": 100, "columns": 3, name: value}
    with pytest.raises(ValueError, match=name):
        TableSettings.choose(given.pop("records"), **given)


@pytest.mark.parametrize("classes", CLASSES)
def test_the_released_model_scores_as_the_trained_one_but_for_its_link(classes):
    made = TableSettings.choose(1_000, columns=4, classes=classes)
    plain = dataclasses.replace(made, clip_norm=1e6)  # whose link is none
    rng = np.random.default_rng(1)
    params = {
        name: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32)
        for name, leaf in made.training_model(5).init(jax.random.key(0)).items()
    }
    x = jnp.asarray(rng.normal(size=5), jnp.float32)
    released = made.release(params)
    expected = made.training_model(5).apply(params, x)
    np.testing.assert_allclose(plain.model(5).apply(released, x), expected, rtol=1e-5)
    kinds = {0: "softmax", 2: "logistic", 3: "softmax"}
    architecture = made.model(5).architecture
    assert architecture is not None
    assert architecture["kind"] == kinds[classes]
    assert ("link" in architecture) == bool(classes)


@pytest.mark.at_length(every=2)
@pytest.mark.parametrize("shares", [(0.9, 0.1), (0.7, 0.2, 0.1)])
def test_classes_are_predicted_as_often_as_they_occur(shares):
    """Records without any difference: the probability of each class is its share."""
    count, classes = 4_000, len(shares)
    labels = np.repeat(np.arange(classes), [round(share * count) for share in shares])
    features = np.ones((count, 1), np.float32)
    made = TableSettings.choose(count, columns=1, classes=classes, steps=200, learning_rate=4.0)
    plan = training.make_plan(count, noise_multiplier=0.05, delta=1e-5, **made.plan_settings)
    found = training.fit(
        made.loss(1),
        made.training_model(1).init(jax.random.key(0)),
        (features, labels.astype(np.int32)),
        plan,
        optimizer=made.optimizer(plan.noise_multiplier),
        key=jax.random.key(0),
        average=made.average,
    )
    params = made.release(found.average)
    chances = training.probabilities(made.model(1), params, features[:1])[0]
    np.testing.assert_allclose(chances, shares, atol=0.012)
    # Without the link the rarer class is taken for rarer than it is.
    plain = training.logistic(1) if classes == 2 else training.softmax(1, classes)
    assert training.probabilities(plain, params, features[:1])[0][-1] < 0.8 * shares[-1]


def test_places_are_few_and_the_same_for_about_as_many_features():
    made = TableSettings.choose(1_000, columns=3)
    places = [made.count_places(features) for features in range(1, 3_000)]
    assert places == sorted(places)
    assert all(own <= many <= max(own * 9 / 8, own + 1) for own, many in enumerate(places, 1))
    assert len({made.count_places(features) for features in range(177, 193)}) == 1


def test_no_program_holds_the_learning_rate():
    params = {"weights": jnp.ones(3)}
    programs = set()
    for rate in (0.25, 7.5):
        descent = descend_with_momentum(rate, 0.9)
        state = descent.init(params)
        programs.add(str(jax.make_jaxpr(descent.update)(params, state, params)))
        moved, state = descent.update(params, state, params)
        moved, _ = descent.update(params, state, params)
        np.testing.assert_allclose(moved["weights"], -rate * 1.9, rtol=1e-6)
    assert len(programs) == 1


@pytest.mark.exact
@pytest.mark.parametrize("classes", CLASSES)
def test_places_change_nothing_of_what_is_released(classes):
    """The noise of a weight is drawn by its number, and no record has anything in a place."""
    count, width = 300, 33
    made = TableSettings.choose(count, columns=4, classes=classes, steps=30)
    rng = np.random.default_rng(3)
    features = rng.normal(size=(count, width)).astype(np.float32) / math.sqrt(width)
    labels = rng.uniform(-1, 1, count).astype(np.float32)
    if classes:
        labels = rng.integers(0, classes, count).astype(np.int32)
    plan = training.make_plan(count, noise_multiplier=2.0, delta=1e-5, **made.plan_settings)
    found = []
    for places in (width, made.count_places(width)):
        fit = training.fit(
            made.loss(places),
            made.training_model(places).init(jax.random.key(0)),
            (add_places(features, places), labels),
            plan,
            optimizer=made.optimizer(plan.noise_multiplier),
            key=jax.random.key(5),
            average=made.average,
        )
        found.append(made.release(fit.average, width))
    assert made.count_places(width) > width
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *found)
    assert found[1]["weights"].shape[0] == width
