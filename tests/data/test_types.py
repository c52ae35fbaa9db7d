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
