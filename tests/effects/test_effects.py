"""Effects sum to the score that the model gives, and their bands are the noise's."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import optax
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from dpjax import accounting as acc
from dpjax import data, estimators, training
from dpjax.data import Column, Schema, buckets
from dpjax.data.encoding import encode_columns
from dpjax.effects import explain, is_linear, read_effects
from dpjax.plotting import plot_effects

COLUMNS = (
    Column("age", range=(18.0, 90.0)),
    Column("gain", range=(0.0, 1e5), scale="log"),
    Column("heat", range=(-50.0, 200.0), scale="asinh", centre=10.0, width=5.0),
    Column("hours", cuts=(10.0, 20.0, 35.0, 40.0)),
    Column("pay", range=(0.0, 900.0), scale="asinh", centre=30.0, width=20.0,
           cuts=(0.0, 30.0, 90.0), line_weight=0.6),
    Column("job", "category", categories=("", "=1+1", "baker", "smith")),
    Column("town", "category", categories=("a", "b")),
    Column("code", "category", categories=("", "other 1", "7"), buckets=4),
    Column("note", "ignore"),
)  # fmt: skip
ROWS = pd.DataFrame(
    {
        "age": [18.0, 30.0, 90.0, 200.0, np.nan, 45.0],
        "gain": [0.0, 5.0, 1e5, 1e7, np.nan, 700.0],
        "heat": [-60.0, 10.0, 11.0, 300.0, np.nan, 0.0],
        "hours": [10.0, 10.5, 20.0, 41.0, np.nan, 38.0],
        "pay": [-4.0, 0.0, 30.5, 5e3, np.nan, 60.0],
        "job": ["baker", "=1+1", "smith", "tailor", None, "baker"],
        "town": ["a", "b", "c", None, "a", "b"],
        "code": ["7", "other 1", "other 2", None, "rare", "012"],
    }
)
CLASSES = {"two": ("no", "yes"), "three": ("u", "v", "w"), "number": ()}


def schema_of(task):
    ends = (0.0, 50.0) if task == "number" else None
    return Schema(COLUMNS, "target", CLASSES[task], missing=("",), target_range=ends)


def saved_of(task, seed=0, certificate=None, link=None):
    schema, rng = schema_of(task), np.random.default_rng(seed)
    width = sum(block.shape[1] for block in encode_columns(ROWS, schema).values())
    outputs = len(CLASSES[task]) or 1
    if task == "two":
        model, shape = training.logistic(width, link), ()
    else:
        model, shape = training.softmax(width, outputs), (outputs,)
    params = {
        "weights": jnp.asarray(rng.normal(size=(width, *shape)), jnp.float32),
        "bias": jnp.asarray(rng.normal(size=shape), jnp.float32),
    }
    encoding = json.loads(json.dumps(data.describe_encoding(schema)))
    return training.SavedModel(params, model, encoding, certificate)


def outputs_of(saved, task):
    """The score as the model itself computes it."""
    features = data.encode_features(ROWS, schema_of(task))
    logits = np.asarray(jax.vmap(saved.model.apply, (None, 0))(saved.params, features), np.float64)
    if task == "two":
        return logits[:, 1:] - logits[:, :1]
    return 25 + 25 * logits if task == "number" else logits - logits.mean(axis=1, keepdims=True)


@pytest.mark.parametrize("task", CLASSES)
def test_base_and_parts_are_the_score_of_the_model(task):
    saved = saved_of(task)
    found = explain(saved, ROWS)
    assert found.parts.shape == (6, 8, max(1, len(found.outputs)))
    np.testing.assert_allclose(found.scores, outputs_of(saved, task), atol=2e-5 * 25)
    np.testing.assert_array_equal(found.base, read_effects(saved).base)


def test_a_part_is_the_effect_at_the_value_of_the_row():
    saved = saved_of("two")
    effects = {effect.column: effect for effect in read_effects(saved).columns}
    parts = explain(saved, ROWS).parts[:, :, 0]

    def effect_at(column, label):
        return effects[column].scores[effects[column].labels.index(label), 0]

    at = [effect_at("hours", one) for one in ("≤ 10", "10 – 20", "10 – 20", "> 40", "missing")]
    np.testing.assert_allclose(parts[:5, 3], at, atol=1e-6)
    at = [effect_at("job", one) for one in ("baker", "=1+1", "smith", "any other", "missing")]
    np.testing.assert_allclose(parts[:5, 5], at, atol=1e-6)
    at = [effect_at("town", one) for one in ("a", "b", "missing or other", "missing or other")]
    np.testing.assert_allclose(parts[:4, 6], at, atol=1e-6)
    assert parts[3, 7] == pytest.approx(effect_at("code", "missing"), abs=1e-6)
    assert parts[0, 7] == pytest.approx(effect_at("code", "7"), abs=1e-6)
    # A value in a bucket has the part of its own; the effect is the mean over one of each.
    texts = {buckets.place("code", text, 4): text for text in map("rare {}".format, range(99))}
    rows = pd.concat([ROWS[:1]] * 4, ignore_index=True).assign(code=list(texts.values()))
    shared = explain(saved, rows).parts[:, 7, 0]
    assert np.ptp(shared) > 0.1
    assert shared.mean() == pytest.approx(effect_at("code", "any other (mean)"), abs=1e-6)
    for column, place in (("age", 0), ("gain", 1), ("heat", 2), ("pay", 4)):
        known = effects[column].edges[:-1, 0]
        assert np.all(np.diff(known) >= 0)
        # Within the range, at numbers the curve has; beyond it, as at its ends.
        line = explain(
            saved, pd.concat([ROWS[:1]] * len(known), ignore_index=True).assign(**{column: known})
        )
        np.testing.assert_allclose(
            line.parts[:, place, 0], effects[column].scores[:-1, 0], atol=1e-5
        )
        np.testing.assert_allclose(parts[4, place], effects[column].scores[-1, 0], atol=1e-6)


def test_an_effect_has_the_mean_zero_over_its_values():
    for effect in read_effects(saved_of("three")).columns:
        np.testing.assert_allclose(effect.scores.mean(axis=0), 0.0, atol=1e-12)
        np.testing.assert_allclose(effect.scores.sum(axis=1), 0.0, atol=1e-12)  # over the classes


def certificate_of(**facts):
    facts = {
        "training_noise_multiplier": 2.0, "training_steps": 40, "clip_norm": 0.5,
        "batch_size": 20.0, "learning_rate": 0.7, "momentum": 0.9, "averaged_steps": 20, **facts,
    }  # fmt: skip
    facts = {name: value for name, value in facts.items() if value is not None}
    return acc.certify(acc.Gaussian(4.0), 1e-5, declared=facts)


@pytest.mark.at_length(every=3)
@pytest.mark.parametrize("task", CLASSES)
def test_a_band_is_what_noise_in_every_weight_does(task):
    found = read_effects(saved_of(task, certificate=certificate_of()))
    std = training.parameter_noise_std(np.full(40, 0.05), 0.7, momentum=0.9, averaged=20)
    rng, saved = np.random.default_rng(0), saved_of(task)
    drawn = []
    for _ in range(400):
        noisy = {
            name: value + std * rng.normal(size=value.shape) for name, value in saved.params.items()
        }
        drawn.append(
            [effect.scores for effect in read_effects(saved._replace(params=noisy)).columns]
        )
    for place, effect in enumerate(found.columns):
        spread = np.std([one[place] for one in drawn], axis=0)
        # 400 draws: five standard deviations of the estimate are 18 %.
        np.testing.assert_allclose(spread, effect.noise_std, rtol=0.18, atol=1e-9)


@pytest.mark.at_length
def test_a_fit_scatters_by_less_than_the_band():
    """Runs that differ in noise alone, as `dpjax train` trains: the band is an upper bound."""
    rng = np.random.default_rng(1)
    frame = ROWS.sample(120, replace=True, random_state=1).reset_index(drop=True)
    schema = schema_of("two")
    x, y = data.encode_features(frame, schema), rng.integers(0, 2, 120).astype(np.int32)
    model = training.logistic(x.shape[1])
    plan = training.make_plan(
        120, noise_multiplier=2.0, delta=1e-3, steps=40, batch_size=120, sampling="full",
        clip_norm=0.5,
    )  # fmt: skip
    facts = {"batch_size": 120.0, "averaged_steps": 20, "learning_rate": 2.0}
    certificate, drawn = certificate_of(**facts), []
    saved = saved_of("two", certificate=certificate)
    for key in range(16):
        run = training.fit(
            training.cross_entropy(model), model.init(jax.random.key(0)), (x, y), plan,
            optimizer=optax.sgd(2.0, momentum=0.9), key=jax.random.key(key),
            average=training.tail_average(20),
        )  # fmt: skip
        found = read_effects(saved._replace(params=run.average))
        drawn.append(np.concatenate([effect.scores.ravel() for effect in found.columns]))
    band = np.concatenate([effect.noise_std.ravel() for effect in found.columns])
    ratio = np.sqrt(np.mean(np.var(drawn, axis=0, ddof=1))) / np.sqrt(np.mean(band**2))
    assert 0.3 < ratio < 1.0


def test_without_knowledge_of_the_training_there_is_no_band():
    for certificate in (None, certificate_of(clip_norm=None), certificate_of(learning_rate=None)):
        found = read_effects(saved_of("two", certificate=certificate))
        assert found.parameter_std is None
        assert found.noise.startswith("the noise is not known: ")
        assert all(effect.noise_std is None for effect in found.columns)
        assert "±" not in found.table()


def test_a_run_of_before_says_less_and_was_trained_by_momentum_to_its_last_step():
    old = certificate_of(momentum=None, averaged_steps=None)
    found = read_effects(saved_of("two", certificate=old))
    std = training.parameter_noise_std(np.full(40, 0.05), 0.7, momentum=0.9)
    assert found.parameter_std == pytest.approx([std])


def test_the_link_of_a_model_does_not_change_its_effects():
    plain, linked = saved_of("two"), saved_of("two", link=training.ClippedLink(0.5, 0.3))
    for one, other in zip(read_effects(plain).columns, read_effects(linked).columns, strict=True):
        np.testing.assert_array_equal(one.scores, other.scores)


def test_the_steepest_change_comes_first_and_noise_does_not_lead():
    columns = (Column("a", "category", categories=("x", "y")), Column("b", range=(0.0, 1.0)))
    schema = Schema(columns, "t", ("no", "yes"))
    root = np.float32(np.sqrt(2))
    params = {"weights": root * jnp.array([-1.0, 2.0, 1.0]), "bias": jnp.zeros(())}
    encoding = data.describe_encoding(schema)
    saved = training.SavedModel(params, training.logistic(3), encoding, None)
    table = read_effects(saved).table()
    assert table.splitlines() == [
        "column  from  to  change", "a       x     y   +3.00", "b       0     1   +2.00",
    ]  # fmt: skip
    # The features of the first change by √(1 + 1)/√2, those of the second by 2/√2.
    noisy = read_effects(saved._replace(certificate=certificate_of()))
    std = float(noisy.parameter_std[0])
    assert [one.column for one in noisy.steepest()] == ["a", "b"]
    assert [one.noise for one in noisy.steepest()] == pytest.approx(
        [2 * std, 2 * std * np.sqrt(2)], rel=1e-6
    )


def test_what_is_no_sum_over_columns_is_refused(tmp_path):
    saved = saved_of("two")
    perceptron = saved._replace(model=training.mlp(3, 2))
    assert is_linear(saved)
    assert not is_linear(perceptron)
    for call in (read_effects, lambda one: explain(one, ROWS)):
        with pytest.raises(ValueError, match="got a perceptron: its score is no sum over columns"):
            call(perceptron)
    with pytest.raises(ValueError, match="model must be linear"):
        read_effects(saved._replace(model=None))
    with pytest.raises(ValueError, match="model must say the encoding"):
        read_effects(saved._replace(encoding=None))
    with pytest.raises(ValueError, match="model must have a score for each of the 3 classes"):
        read_effects(saved._replace(encoding=saved_of("three").encoding))
    with pytest.raises(ValueError, match="most must be"):
        plot_effects(saved, tmp_path / "x.png", most=0)


def wide(columns=41, categories=30, classes=9):
    """A model of many columns with long names and many categories, of more classes than colours."""
    words = tuple(f"category number {k} of a list that is long" for k in range(categories))
    listed = [
        Column(f"column_{k}_whose_name_is_much_longer_than_its_panel_$x$", "category",
               categories=words[: 2 + k % categories]) if k % 3 == 0
        else Column(f"n{k}", cuts=tuple(10.0**j for j in range(k % 7 + 1))) for k in range(columns)
    ]  # fmt: skip
    schema = Schema(tuple(listed), "t", tuple(f"class {k}" for k in range(classes)), missing=("",))
    width = sum(len(c.cuts) + 2 if c.cuts else len(c.categories or ()) for c in listed)
    rng = np.random.default_rng(0)
    params = {
        "weights": jnp.asarray(8 * rng.normal(size=(width, classes)), jnp.float32),
        "bias": jnp.zeros(classes),
    }
    encoding = data.describe_encoding(schema)
    model = training.softmax(width, classes)
    return training.SavedModel(params, model, encoding, certificate_of())


@pytest.mark.at_length(every=2)
@pytest.mark.parametrize("task", [*CLASSES, "wide"])
def test_a_picture_is_drawn_whose_words_do_not_overlap(tmp_path, monkeypatch, task):
    from dpjax.plotting import effects as drawing

    kept = []
    whole = drawing.save_picture
    monkeypatch.setattr(
        drawing, "save_picture", lambda figure, path: kept.append(figure) or whole(figure, path)
    )
    saved = wide() if task == "wide" else saved_of(task, certificate=certificate_of())
    path = plot_effects(saved, tmp_path / "effects.png", title="of $1 and more", most=12)
    pixels = matplotlib.image.imread(path)
    assert pixels.std() > 0.02  # not blank
    figure = kept[0]
    names = {effect.column for effect in read_effects(saved).columns}
    assert len(figure.axes) == min(12, len(names))
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    for place, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert not any(box.overlaps(other) for other in boxes[:place])


@pytest.mark.at_length
@pytest.mark.usefixtures("lenient_promotion")
def test_an_estimator_is_drawn_without_a_folder(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.uniform(18, 90, 2_000), "job": rng.choice(["a", "b"], 2_000)})
    settings = {"epsilon": 3.0, "preprocessing": "private", "random_state": 0}
    for model, target in (
        (estimators.DPLogisticRegression(**settings), np.where(frame.age > 50, "old", "young")),
        (estimators.DPLinearRegression(**settings), 100 * (frame.job == "b") + frame.age),
    ):
        with pytest.raises(NotFittedError):
            read_effects(model)
        model.fit(frame, target)
        found, kept = read_effects(model), read_effects(model.save(tmp_path / type(model).__name__))
        assert found.parameter_std is not None
        np.testing.assert_allclose(found.parameter_std, kept.parameter_std)
        assert found.table() == kept.table()
        steepest = "age" if isinstance(model, estimators.DPLogisticRegression) else "job"
        assert found.steepest()[0].column == steepest
        rows = explain(model, frame[:5])
        np.testing.assert_allclose(rows.scores, explain(model.as_saved(), frame[:5]).scores)
        assert plot_effects(model, tmp_path / "effects.png").stat().st_size > 10_000
    network = estimators.DPSGDClassifier(**settings, epochs=1).fit(frame, frame.job)
    with pytest.raises(ValueError, match=r"model must be linear .* got a perceptron"):
        read_effects(network)
    with pytest.raises(ValueError, match=r"or a fitted estimator that can be saved.* got int"):
        read_effects(3)
