"""The types that a table keeps and a text file does not: dates, decimals, large whole numbers."""

from __future__ import annotations

import decimal

import numpy as np
import pandas as pd
import pytest

from dpjax import data


def test_a_date_is_one_category_in_a_text_file_and_in_a_parquet_file(tmp_path):
    days = ["2020-01-01", "2020-01-02", "2020-01-03"] * 2
    frame = pd.DataFrame({"day": pd.to_datetime(days), "y": ["a", "b"] * 3})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    schema, _ = data.complete_schema(data.read_table(tmp_path / "a.parquet"), "y")
    assert schema.columns[0].categories == tuple(days[:3])
    for name in ("a.csv", "a.parquet"):
        found = data.encode_features(data.read_table(tmp_path / name), schema)
        assert found.tolist() == [[float(k % 3 == j) for j in range(3)] for k in range(6)]


def test_a_date_may_be_the_target_and_a_missing_one_is_named():
    frame = pd.DataFrame({"x": [0.0, 1.0], "day": pd.to_datetime(["2020-01-02", "2020-01-01"])})
    assert data.from_frame(frame, target="day").classes == ("2020-01-01", "2020-01-02")
    frame = pd.DataFrame({"day": pd.to_datetime(["2020-01-02", None]), "y": ["a", "b"]})
    with pytest.raises(data.DataError, match="'day' has no value in row 1"):
        data.from_frame(frame, target="y")


def test_decimals_are_numbers(tmp_path):
    money = [decimal.Decimal("0.50"), decimal.Decimal("2.50"), decimal.Decimal("1.50")]
    pd.DataFrame({"money": money, "y": ["a", "b", "b"]}).to_parquet(tmp_path / "a.parquet")
    frame = data.read_table(tmp_path / "a.parquet")
    assert data.from_frame(frame, target="y").features.ravel().tolist() == [-1.0, 1.0, 0.0]


def test_whole_numbers_beyond_a_float_stay_apart():
    near = [2**60, 2**60 + 1] * 2
    frame = pd.DataFrame({"code": near, "y": near})
    declared = data.Schema((data.Column("code", "category"),))
    found = data.from_frame(frame, target="y", schema=declared)
    assert found.classes == (str(2**60), str(2**60 + 1))
    assert found.labels.tolist() == [0, 1, 0, 1]
    assert np.array_equal(found.features, np.eye(2)[[0, 1, 0, 1]])


@pytest.mark.parametrize("days", [120, 60])
def test_a_column_of_text_that_names_the_records_is_refused(days):
    names = [f"2020 day {k % days}" for k in range(121)]
    frame = pd.DataFrame({"born": names, "y": ["a", "b", "b"] * 40 + ["a"]})
    if 2 * days < len(frame):
        assert data.from_frame(frame, target="y").features.shape == (121, days)
        return
    with pytest.raises(
        data.DataError, match="'born' has 120 different values in 121 rows"
    ) as found:
        data.from_frame(frame, target="y")
    assert "day 7" not in str(found.value)
    declared = data.Schema((data.Column("born", "category"),))  # whoever declares it means it
    assert data.from_frame(frame, target="y", schema=declared).features.shape == (121, 120)


_LATER = {
    "dates": pd.to_datetime(["2020-01-01", "2020-01-02"]),
    "dates with a zone": pd.to_datetime(["2020-01-01", "2020-01-02"]).tz_localize("UTC"),
    "categories of dates": pd.Categorical(pd.to_datetime(["2020-01-01", "2020-01-02"])),
    "durations": pd.to_timedelta([0, 1], unit="D"),
    "periods": pd.period_range("2020", periods=2),
    "complex": np.array([1j, 2j]),
    "complex objects": pd.Series([1j, 2.0], dtype=object),
}


@pytest.mark.parametrize("kind", _LATER)
def test_what_pandas_counts_and_is_no_number_is_refused_as_one(kind):
    schema = data.Schema((data.Column("x", range=(0, 1)),), target="y", classes=("a", "b"))
    frame = pd.DataFrame({"x": _LATER[kind], "y": ["a", "b"]})
    with pytest.raises(data.DataError, match=r"column 'x' holds .* not a finite number"):
        data.encode(frame, schema)


@pytest.mark.parametrize(
    "cells", [[1, 2, 3, 4], [1.5, 2.0, 3.0, 4.0], [1, 2.5, 3, 4], [np.int8(1), 2, 3, 4]]
)
def test_objects_that_are_all_numbers_are_a_column_of_numbers(cells):
    """As categories, each would be a feature of its own and be written into the model."""
    frame = pd.DataFrame({"x": pd.Series(cells, dtype=object), "y": ["a", "b", "a", "b"]})
    found = data.from_frame(frame, target="y")
    plain = data.from_frame(frame.astype({"x": float}), target="y")
    np.testing.assert_array_equal(found.features, plain.features)
    assert found.features.shape == (4, 1)
    with pytest.raises(data.DataError, match="column 'x' holds None in row 2"):
        data.from_frame(frame.assign(x=pd.Series([1, 2, None, 4], dtype=object)), target="y")
    large = frame.assign(x=pd.Series([1, 2, 3, 10**400], dtype=object))
    with pytest.raises(data.DataError, match=r"column 'x' holds 10+ in row 3 .* finite number"):
        data.from_frame(large, target="y")


def test_names_of_columns_are_different_texts_and_there_is_a_row():
    frame = pd.DataFrame({"x": [0.0, 1.0], "y": ["a", "b"]})
    levels = pd.MultiIndex.from_tuples([("p", "x"), ("p", "y")])
    with pytest.raises(data.DataError, match=r"texts for names, got \('p', 'x'\)"):
        data.from_frame(frame.set_axis(levels, axis=1), target="y")
    with pytest.raises(data.DataError, match="texts for names, got 0"):
        data.from_frame(frame.rename(columns={"x": 0}), target="y")
    with pytest.raises(data.DataError, match="two columns named 'x'"):
        data.from_frame(pd.concat([frame, frame[["x"]]], axis=1), target="y")
    with pytest.raises(data.DataError, match="no rows"):
        data.from_frame(frame[:0], target="y")


def test_categories_and_classes_are_texts():
    """Cells are compared as texts: a category 1 would match none, and encode as nothing."""
    with pytest.raises(data.DataError, match=r"column 'x': categories must be .*got 1; write"):
        data.Column("x", "category", categories=(1, 2))
    with pytest.raises(data.DataError, match="categories must be a tuple of texts, got 'ab'"):
        data.Column("x", "category", categories="ab")
    with pytest.raises(data.DataError, match="classes must be a tuple of texts, got 0"):
        data.Schema((), classes=(0, 1))


def test_ranges_near_the_largest_float_and_constants_beyond_2_53():
    wide = data.Schema((data.Column("x", range=(-8e307, 8e307)),), target="y", classes=("a", "b"))
    frame = pd.DataFrame({"x": [-1e308, 0.0, 8e307]})
    assert data.encode_features(frame, wide).ravel().tolist() == [-1.0, 0.0, 1.0]
    frame = pd.DataFrame({"x": [1e20, 1e20], "y": ["a", "b"]})
    assert data.from_frame(frame, target="y").features.ravel().tolist() == [-1.0, -1.0]
