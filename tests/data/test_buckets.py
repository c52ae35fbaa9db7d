"""Values that noise hides share public buckets: by their text alone, and within the same norm."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import json
import tracemalloc
from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpjax import training
from dpjax.cli import evaluation
from dpjax.data import (
    Column,
    DataError,
    PrivateTable,
    Schema,
    buckets,
    describe_encoding,
    described_schema,
    encode_features,
    encode_released,
)
from dpjax.data.cells import canonical_text
from dpjax.data.encoding import describe_unlisted
from dpjax.data.private_table import _Looks
from dpjax.effects import explain, read_effects
from dpjax.estimators import DPLogisticRegression

JOBS = Column("job", "category", categories=("", "baker", "1"), released=True, buckets=7)
SCHEMA = Schema((JOBS,), target="y", classes=("no", "yes"), missing=("",))


def _by_hand(column, text, count):
    digest = hashlib.sha256(column.encode() + b"\x1f" + text.encode()).digest()
    return int.from_bytes(digest[:8], "big") % count


def _place(cell, schema=SCHEMA):
    """The feature in which a cell alone has its 1."""
    features = encode_features(pd.DataFrame({"job": pd.Series([cell], dtype=object)}), schema)
    (place,) = np.flatnonzero(features[0])
    return int(place)


# ----------------------------------------------------------------------------------- which bucket


def test_a_text_falls_in_the_bucket_of_its_hash_and_in_no_other_version_in_another():
    texts = ["smith", "größe", "職人", "Ł" * 500, "a\x1fb", "-3e2"]
    for column in ("job", "größe"):
        for count in (1, 2, 7, 32):
            found = [buckets.place(column, text, count) for text in texts]
            assert found == [_by_hand(column, text, count) for text in texts]
    # As it was computed once: models that are saved rest on it.
    assert [buckets.place("job", text, 32) for text in texts] == [10, 19, 26, 3, 3, 17]
    for text in ("smith", "größe"):
        assert _place(text) == 3 + _by_hand("job", text, 7)
    other = replace(SCHEMA, columns=(replace(JOBS, buckets=5),))
    assert _place("smith", other) == 3 + _by_hand("job", "smith", 5)


def test_values_are_spread_evenly_over_buckets():
    found = [buckets.place("job", f"value {k}", 16) for k in range(16_000)]
    counts = np.bincount(found, minlength=16)
    # χ² of 15 degrees is below 38 with probability .999; the texts are fixed.
    assert ((counts - 1_000) ** 2 / 1_000).sum() < 38


@pytest.mark.parametrize(
    "forms",
    [
        ["tailor", " tailor ", "tail\u200bor", "tailor\t", np.str_("tailor")],
        ["cafe\u0301", "caf\u00e9"],
        [7, 7.0, "7", "07", "7.0", "+7", " 7", "7e0", "0.7e1", np.int8(7), np.float32(7),
         decimal.Decimal("7.00")],
        [-0.25, "-.25", "\u2212.25", "-0.250"],
        [0, "0", "-0", "0.000", -0.0, "0e9"],
        [10**30, "1e30", "1" + 30 * "0", 1e30, "1e+30"],
        [2**53 + 1, 2.0**53, "9007199254740993", np.uint64(2**53 + 1)],
        [2.0**70, "1.1805916207174113e+21", 2**70],
        [0.1, "0.1", "0.1000000000000000055511151231257827"],
        [True, "True", np.bool_(True)],
        [datetime.datetime(2020, 1, 2), pd.Timestamp("2020-01-02"), "2020-01-02",
         np.datetime64("2020-01-02")],
    ],
    ids=str,
)  # fmt: skip
def test_all_spellings_of_a_hidden_value_fall_in_one_bucket(forms):
    places = {_place(form) for form in forms}
    assert len(places) == 1
    assert min(places) >= 3
    column = pd.Series(forms, dtype=object)
    whole = encode_features(pd.DataFrame({"job": column}), SCHEMA)
    assert (whole == whole[0]).all()


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()))
def test_a_value_in_memory_and_in_a_file_are_of_one_feature(value):
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert _place(value) == _place(text) == _place(f" {text}\u200b")
    assert _place(value) >= 0


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 5))
def test_a_number_has_one_text_whatever_zeros_it_is_written_with(number, zeros):
    with decimal.localcontext() as context:
        context.prec = 3  # which must change nothing
        written = f"{number:f}" if abs(number.adjusted()) < 300 else str(number)
        padded = written + ("0" * zeros if "." in written else "." + "0" * zeros)
        if "e" in written.lower():
            padded = written
        assert canonical_text(padded) == canonical_text(str(number))
    other = number.next_plus(decimal.Context(prec=60))
    assert canonical_text(str(other)) != canonical_text(str(number))


def test_listed_and_missing_values_keep_their_places():
    cells = ["", None, np.nan, pd.NA, pd.NaT, "baker", "ba\u200bker", 1, 1.0, "01", "1.0"]
    assert [_place(cell) for cell in cells] == [0] * 5 + [1] * 2 + [2] * 4
    unknown = replace(SCHEMA, missing=("", "?"))
    assert _place("?", unknown) == 0
    assert _place("?") >= 3


# ------------------------------------------------------------------------------------ the encoding


def _texts(seed=0, n=3_000):
    """Texts that are all listed, some of which are hidden, and that are names; and a number."""
    rng = np.random.default_rng(seed)
    shares = np.r_[np.full(4, 0.2), np.full(20, 0.01)]
    return pd.DataFrame(
        {
            "two": rng.choice(["a", "b"], n),
            "some": rng.choice([f"v{k}" for k in range(24)], n, p=shares),
            "name": [f"name {k}" for k in rng.permutation(n)],
            "x": rng.normal(size=n),
            "y": rng.choice(["no", "yes"], n),
        }
    )


def _table(frame, **settings):
    settings = {"stddev": 10.0, "encoding": "bins-and-line", "buckets": True, **settings}
    names = tuple(frame.columns.drop("y"))
    return PrivateTable(names, Schema((), target="y"), len(frame), **settings)


def test_the_norm_stays_within_one_and_a_neighbour_differs_in_one_row():
    frame = _texts()
    schema = _table(frame).release(frame, jax.random.key(0))
    found = {column.name: column.buckets for column in schema.columns}
    assert found["two"] == found["x"] == found["name"] == 0
    assert found["some"] > 1
    features = encode_released(frame, schema).features
    assert np.linalg.norm(features, axis=1).max() <= 1 + 1e-6
    width = sum(len(c.categories) + c.buckets for c in schema.columns if c.kind == "category")
    ones = features[:, :width] > 0  # of the columns of texts, which come first; names are none
    np.testing.assert_array_equal(ones.sum(axis=1), 2)
    np.testing.assert_allclose(features[:, :width][ones], 0.5, rtol=1e-6)  # 1/√(4 columns)
    other = frame.copy()
    other.loc[17, ["two", "some", "name"]] = ["c", "v999", None]
    again = encode_released(other, schema).features
    assert np.flatnonzero((features != again).any(axis=1)).tolist() == [17]
    alone = encode_released(other.iloc[[17]], schema).features
    np.testing.assert_array_equal(alone[0], again[17])


def test_buckets_change_no_count_no_noise_and_no_price():
    frame = _texts()
    with_, without = _table(frame), _table(frame, buckets=False)
    assert with_.mechanism == without.mechanism
    assert with_.extra_delta == without.extra_delta
    key = jax.random.key(3)
    found = with_.release(frame, key)
    plain = replace(found, columns=tuple(replace(one, buckets=0) for one in found.columns))
    assert plain == without.release(frame, key)
    assert plain != found


def test_a_column_whose_values_are_all_listed_has_none_and_a_hidden_part_has_some():
    """The rule allows for three deviations of the noise: one in 740 has one for nothing."""
    n, rng = 4_000, np.random.default_rng(0)
    listed = rng.choice([f"v{k}" for k in range(12)], n)
    # Each has 5 records, which the noise of 10 hides.
    rest = rng.choice([f"w{k}" for k in range(100)], n)
    some = np.where(np.arange(n) < 500, rest, listed)
    frame = pd.DataFrame({"c": listed, "y": "no"})
    counts = {"listed": [], "some": []}
    for seed in range(200):
        for name, texts in (("listed", listed), ("some", some)):
            looks = _Looks(_table(frame), jax.random.key(seed))
            found = looks.categories(texts.astype(object))
            counts[name].append(found["buckets"])
            assert len(found["categories"]) == 13
    assert np.count_nonzero(counts["listed"]) <= 3
    assert min(counts["some"]) > 0
    # Five hundred records, within five deviations of their noise, by eighths of the threshold.
    eighth = _table(frame).threshold / 8
    spread = 5 * 10 * np.sqrt(12)
    assert min(counts["some"]) >= (500 - spread) / eighth
    assert max(counts["some"]) <= (500 + spread) / eighth + 1


def test_how_many_follows_from_released_counts():
    count = buckets.choose_count
    assert count(1_000, np.zeros(0, int), 10.0, 50) == 128
    assert count(100, np.zeros(0, int), 10.0, 50) == 16
    assert count(1_000, np.array([900]), 10.0, 50) == 16
    assert count(1_000, np.array([970]), 10.0, 50) == 0  # three deviations of the noise
    assert count(1_000, np.array([969]), 10.0, 50) == 5
    assert count(1_000, np.array([1_400]), 10.0, 50) == 0
    assert count(1_600, np.zeros(0, int), 10.0, 50) == 128
    assert count(1_601, np.zeros(0, int), 10.0, 50) == 0  # names: more than 32 thresholds


def test_features_take_the_memory_of_one_array():
    """A copy of the features that buckets make would be gigabytes on a million records."""
    columns = tuple(
        Column(f"c{k}", "category", categories=("", "a"), released=True, buckets=120)
        for k in range(8)
    )
    schema = Schema(columns, target="y", classes=("no", "yes"), missing=("",))
    texts = np.random.default_rng(0).choice([f"v{k}" for k in range(50)], 4_000)
    frame = pd.DataFrame(dict.fromkeys((f"c{k}" for k in range(8)), texts))
    size = 4 * len(frame) * 8 * 122
    for encode in (encode_features, lambda f, s: encode_released(f.assign(y="no"), s).features):
        encode(frame[:10], schema)
        tracemalloc.start()
        assert encode(frame, schema).nbytes == size
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 1.5 * size


# ------------------------------------------------------------------------------------ saved models


def test_buckets_are_saved_and_what_was_saved_without_them_reads_as_before():
    described = describe_encoding(SCHEMA)
    assert described["columns"][0]["buckets"] == 7
    assert described_schema(json.loads(json.dumps(described))) == SCHEMA
    plain = replace(SCHEMA, columns=(replace(JOBS, buckets=0),))
    old = describe_encoding(plain)
    assert "buckets" not in old["columns"][0]
    assert described_schema(json.loads(json.dumps(old))) == plain
    assert repr(plain) == repr(SCHEMA)  # which a stored key of a run is bound to
    rows = pd.DataFrame({"job": ["baker", "smith", None]})
    np.testing.assert_array_equal(
        encode_features(rows, described_schema(old)), [[0, 1, 0], [0, 0, 0], [1, 0, 0]]
    )


@pytest.mark.parametrize("given", [-1, 1.0, True, "1", None, 65_537, 10**12])
def test_a_number_of_buckets_is_checked(given):
    with pytest.raises(DataError, match="buckets must be a whole number from 0 to 65,536"):
        replace(JOBS, buckets=given)
    described = describe_encoding(SCHEMA)
    described["columns"][0]["buckets"] = given
    with pytest.raises(DataError, match="buckets must be a whole number from 0 to 65,536"):
        described_schema(described)


def test_what_has_no_category_for_missing_has_no_buckets():
    with pytest.raises(DataError, match='a category that lists ""'):
        Column("job", "category", categories=("a",), buckets=2)
    with pytest.raises(DataError, match='a category that lists ""'):
        Column("x", range=(0.0, 1.0), buckets=2)


def test_new_values_are_in_buckets_and_not_said_to_be_none():
    rows = pd.DataFrame({"job": ["baker", "smith", "tailor", None]})
    assert describe_unlisted(rows, SCHEMA) is None
    plain = replace(SCHEMA, columns=(replace(JOBS, buckets=0),))
    assert describe_unlisted(rows, plain).endswith("taken for none: job (2)")


def test_groups_of_held_out_records_are_the_listed_ones_and_all_others():
    columns = (Column("x", range=(0.0, 1.0)), JOBS, replace(JOBS, name="other"))
    schema = replace(SCHEMA, columns=columns)
    jobs = ["baker", "smith", "", "tailor", 1]
    frame = pd.DataFrame({"x": 0.5, "job": jobs, "other": ["baker"] * 5})
    encoding = json.loads(json.dumps(describe_encoding(schema)))
    features = encode_features(frame, schema)
    widths = [sum(evaluation.count_features(column)) for column in encoding["columns"]]
    assert widths == [1, 10, 10]
    for name, members in (("job", [1, 3, 0, 3, 2]), ("other", [1] * 5)):
        groups = evaluation.find_groups(encoding, features, name)
        assert groups.names == ["no value", "baker", "1", "none of these"]
        assert np.asarray(groups.number).tolist() == members


# ------------------------------------------------------------------------------------ its effects


def _saved(schema, seed=0):
    width = encode_features(pd.DataFrame({"job": ["a"], "x": [0.0]}), schema).shape[1]
    rng = np.random.default_rng(seed)
    params = {"weights": rng.normal(size=width).astype("f"), "bias": np.float32(0.3)}
    encoding = json.loads(json.dumps(describe_encoding(schema)))
    return training.SavedModel(params, training.logistic(width), encoding, None)


@pytest.mark.parametrize("missing", [("",), ("", "any other")])
def test_an_effect_has_one_value_for_all_buckets_and_parts_sum_to_the_score(missing):
    columns = (replace(JOBS, categories=("", "baker", "other 1")), Column("x", range=(-1.0, 1.0)))
    schema = replace(SCHEMA, columns=columns, missing=missing)
    saved = _saved(schema)
    effect, _ = read_effects(saved).columns
    assert effect.labels == ("missing", "baker", "other 1", "any other (mean)")
    own = saved.params["weights"][:10] / np.float32(np.sqrt(2))
    levels = np.append(own[:3], own[3:].mean())
    np.testing.assert_allclose(effect.scores.ravel(), levels - levels.mean(), atol=1e-6)
    rows = pd.DataFrame({"job": ["smith", "baker", None, "other 1", 12.5], "x": 0.25})
    found = explain(saved, rows)
    features = encode_features(rows, schema)
    scores = features @ saved.params["weights"] + saved.params["bias"]
    np.testing.assert_allclose(found.scores.ravel(), scores, atol=1e-5)
    bucket = own[3 + _by_hand("job", "smith", 7)]
    np.testing.assert_allclose(found.parts[0, 0], bucket - levels.mean(), atol=1e-6)


# --------------------------------------------------------------------------------------- the model


def _planted(n=6_000, seed=0):
    """Three of ten records have one of 60 values, too rare to be listed, which say the class."""
    rng = np.random.default_rng(seed)
    rare = rng.integers(0, 60, n)
    is_rare = rng.random(n) < 0.3
    frame = pd.DataFrame({"c": np.where(is_rare, np.char.add("w", rare.astype(str)), "usual")})
    chance = np.where(is_rare, np.where(rare % 2 == 0, 0.9, 0.1), 0.5)
    return frame, np.where(rng.random(n) < chance, "yes", "no")


def _area(scores, labels):
    ranks, ones = pd.Series(scores).rank().to_numpy(), labels == "yes"
    wins = ranks[ones].sum() - ones.sum() * (ones.sum() + 1) / 2
    return wins / (ones.sum() * (~ones).sum())


@pytest.mark.usefixtures("lenient_promotion")
def test_a_model_learns_from_values_that_noise_hides(monkeypatch):
    (frame, labels), (rows, truth) = _planted(), _planted(seed=1)
    release, areas = PrivateTable.release, {}

    def release_without(table, frame, key):
        return release(replace(table, buckets=False), frame, key)

    for kept in (True, False):
        if not kept:
            monkeypatch.setattr(PrivateTable, "release", release_without)
        model = DPLogisticRegression(
            epsilon=1.0, delta=1e-5, preprocessing="private", random_state=0
        ).fit(frame, labels)
        column = model.schema_.columns[0]
        assert len(column.categories) <= 4  # of sixty-one
        assert (column.buckets > 10) == kept
        areas[kept] = _area(model.predict_proba(rows)[:, 1], truth)
    assert areas[False] == pytest.approx(0.5, abs=0.03)
    assert areas[True] > 0.6
