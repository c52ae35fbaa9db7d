"""The types that a table keeps and a text file does not: dates, decimals, large whole numbers."""

from __future__ import annotations

import decimal
import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from dpjax import data, estimators


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


def test_a_column_of_text_that_names_the_records_is_refused():
    names = [f"2020 day {k % 120}" for k in range(121)]
    frame = pd.DataFrame({"born": names, "y": ["a", "b", "b"] * 40 + ["a"]})
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


_WRITTEN = [
    "$12.50", "€4", "EUR 5", "12 kg", "15kg", "1 003", "1\u00a0003", "5\u202f000", "1.234,50",
    "12%", "3 %", "(3)", "10,1", "1,003", "12 years", "-4 °C", "1'250", "-$5", "CHF 12", "12 CHF",
    "12,34,567", "US$5", "5 zł", "$-3", "− 5", "3 M", "5 d", "١٢",
]  # fmt: skip
_CODES = [
    "A12", "I10.9", "9th", "20-29", "2020-01-02", "12:30", "12 Main St", "3x", "yes", "M", "3M",
    "5d", "2T", "34B", "5XL", "4K",
]  # fmt: skip


@pytest.mark.parametrize("cell", _WRITTEN)
def test_a_column_of_numbers_as_people_write_them_is_no_category(cell):
    frame = pd.DataFrame({"x": [cell, cell, cell, "7"], "y": list("abab")})
    with pytest.raises(data.DataError, match=r"'x' .* in row 0") as found:
        data.from_frame(frame, target="y")
    assert "decimal and thousands in a schema (--missing" in str(found.value)
    declared = data.Schema((data.Column("x", "category", categories=(cell, "7")),))
    assert data.from_frame(frame, target="y", schema=declared).features.shape == (4, 2)


_BESIDE = [
    "{} KG", "{}Kg", "{} LBS", "{} usd", "{} eur", "{} Euro", "{} dollars", "{} percent", "{}‰",
    "{} mg/dL", "{}.2 mmol/L", "{} IU", "{} km/h", "{} MB", "{}MB", "{} sec.", "{} yrs.", "{}½",
    "~{}", "<{}", ">= {}", "{},", "{}+", "{} widgets", "{} kPa", "{}'", "{} kg\u200b", "–{} kPa",
]  # fmt: skip


@pytest.mark.parametrize("written", _BESIDE)
def test_numbers_with_the_same_beside_them_are_no_categories(written):
    cells = [written.format(k % 11 + 3) for k in range(200)]
    frame = pd.DataFrame({"x": cells, "y": ["a", "b"] * 100})
    with pytest.raises(data.DataError, match=r"'x' is text in 200 of 200 rows.* in row 0, and a n"):
        data.from_frame(frame, target="y")
    with pytest.raises(data.DataError, match="'x' is text in 199 of 200 rows"):
        data.from_frame(frame.assign(x=["7", *cells[1:]]), target="y")


_NUMBERED = [
    "Q{}", "Grade {}", "{}th", "{}th grade", "patient {}", "{}-{}", "{}M", "{}XL", "{}A", "#{}",
    "§ {}", "2020-{}", "I{}.9", "{}:30", "A{}", "{}x",
]  # fmt: skip


@pytest.mark.parametrize("written", _NUMBERED)
def test_a_column_of_numbered_things_stays_a_category(written):
    cells = [written.format(k % 11 + 4, k % 11 + 5) for k in range(200)]
    frame = pd.DataFrame({"x": cells, "y": ["a", "b"] * 100})
    assert data.from_frame(frame, target="y").features.shape == (200, 11)


@pytest.mark.parametrize("cell", _CODES)
def test_a_column_of_codes_stays_a_category(cell):
    frame = pd.DataFrame({"x": [cell, "other", cell, "other"], "y": list("abab")})
    assert data.from_frame(frame, target="y").features.shape == (4, 2)


@pytest.mark.parametrize(
    "written", ["{}", "+{}", "–{}", "{}\u00a0", "\ufeff{}", "{}\u200b", "{}e2"]
)
def test_a_column_of_texts_that_are_numbers_is_numbers_in_every_table(written, tmp_path):
    cells = [written.format(k % 12) for k in range(200)]
    frame = pd.DataFrame({"x": cells, "y": ["a", "b"] * 100})
    frame.to_csv(tmp_path / "a.csv", index=False)
    found = data.from_frame(frame, target="y")
    read = data.from_frame(data.read_table(tmp_path / "a.csv"), target="y")
    assert found.features.shape == (200, 1)
    np.testing.assert_array_equal(found.features, read.features)
    said = frame.astype({"x": "category"})
    assert data.from_frame(said, target="y").features.shape == (200, 12)


@pytest.mark.parametrize("cell", [[1, 2], np.array([1.0, 2.0]), {"a": 1}, {1}])
def test_a_cell_of_several_values_is_refused_by_its_place(cell):
    frame = pd.DataFrame({"x": [0.5, 1.5], "y": ["a", "b"], "z": pd.Series([0.5, cell])})
    told = rf"^column 'z' holds a {type(cell).__name__} in row 1; write one value in a cell"
    with pytest.raises(data.DataError, match=told):
        data.from_frame(frame, target="y")
    with pytest.raises(data.DataError, match=told):
        data.from_frame(frame, target="z")
    for column in data.Column("z", range=(0, 1)), data.Column("z", "category", categories=("a",)):
        with pytest.raises(data.DataError, match=told):
            data.encode_features(frame, data.Schema((column,)))
    left = data.Schema((data.Column("z", "ignore"),))
    assert data.from_frame(frame, target="y", schema=left).features.shape == (2, 1)
    other = data.Schema((data.Column("x", range=(0, 1)),))
    assert data.encode_features(frame, other).shape == (2, 1)  # a column that it does not read


def test_many_letters_behind_numbers_are_no_sizes():
    frame = pd.DataFrame({"x": [f"{k}M" for k in range(21)] * 30, "y": [*"ab", "a"] * 210})
    with pytest.raises(data.DataError, match="'x' is text in 630 of 630 rows, such as '0M'"):
        data.from_frame(frame, target="y")


# How numbers are written, what they are, and a cell that is none of them however it looks.
_MARKS = {
    "german": (",", ".", ["1.234,5", "−7", "1,5e1"], [1234.5, -7, 15], "1.5"),
    "american": (".", ",", ["1,234.5", "-7", "1,234,567"], [1234.5, -7, 1234567], "1,23"),
    "indian": (".", ",", ["12,34,567", "0", "5"], [1234567, 0, 5], "12,34,56"),
    "french": (",", " ", ["1\u202f234", "0,5", "9"], [1234, 0.5, 9], "1 23"),
    "swiss": (".", "'", ["1'234", "1’235", "2"], [1234, 1235, 2], "1'2"),
    "plain": (".", None, ["+1.5", "−.5", "7"], [1.5, -0.5, 7], "1_000"),
}


@pytest.mark.parametrize("kind", _MARKS)
def test_numbers_are_read_as_the_schema_says_they_are_written(kind, tmp_path):
    decimal, thousands, cells, values, other = _MARKS[kind]
    marks = {"decimal": decimal, "thousands": thousands}
    given = data.Schema((), target="y", **marks)
    frame = pd.DataFrame({"x": [*cells, *cells], "y": list("ababab")})
    plain = data.from_frame(frame.assign(x=values * 2), target="y")
    for separator, name in (";", "a.csv"), ("\t", "a.tsv"), (None, "a.parquet"):
        path = tmp_path / name
        frame.to_parquet(path) if separator is None else frame.to_csv(
            path, sep=separator, index=False
        )
        read = data.read_table(path, schema=given)
        np.testing.assert_array_equal(
            data.from_frame(read, target="y", schema=given).features, plain.features
        )
        complete, _ = data.complete_schema(read, "y", given)
        again = data.described_schema(data.describe_encoding(complete, given))
        assert again == complete
        # As at predict time, one row at a time.
        one = data.encode_features(frame[["x"]].iloc[1:2], again)
        np.testing.assert_array_equal(one, plain.features[1:2])
    for declared in ((), (data.Column("x", range=(0, 1)),)):
        schema = data.Schema(declared, target="y", **marks)
        spoilt = frame.assign(x=[*cells, other, *cells[1:]])
        with pytest.raises(data.DataError, match=r"'x' holds .* in row 3.* thousands in a"):
            data.from_frame(spoilt, target="y", schema=schema)
    codes = data.Schema((data.Column("x", "category"),), target="y", **marks)
    assert data.from_frame(frame, target="y", schema=codes).features.shape == (6, 3)


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_a_missing_cell_is_the_middle_of_its_range_and_no_category(kind, tmp_path):
    frame = pd.DataFrame(
        {
            "x": ["0", "?", "NA", "10"],
            "n": [-999, 1, 3, 2],
            "c": ["u", " ? ", "v", None],
            "y": list("abab"),
        }
    )
    schema = data.Schema((), target="y", missing=("?", "NA", "-999"))
    if kind == "csv":
        frame.to_csv(tmp_path / "a.csv", index=False)
        frame = data.read_table(tmp_path / "a.csv", schema=schema)
    elif kind == "parquet":
        frame.to_parquet(tmp_path / "a.parquet")
        frame = data.read_table(tmp_path / "a.parquet", schema=schema)
    found = data.from_frame(frame, target="y", schema=schema)
    expected = [[-1, 0, 1, 0], [0, -1, 0, 0], [0, 1, 0, 1], [1, 0, 0, 0]]
    np.testing.assert_allclose(found.features * np.sqrt(3), expected, atol=1e-6)
    complete, _ = data.complete_schema(frame, "y", schema)
    np.testing.assert_array_equal(data.encode_features(frame, complete), found.features)
    with pytest.raises(data.DataError, match=r"'y' is missing in (row 1|line 3)"):
        data.from_frame(frame.assign(y=["a", "?", "a", "b"]), target="y", schema=schema)
    with pytest.raises(data.DataError, match="'c' is empty; leave it out"):
        data.from_frame(frame.assign(c="?"), target="y", schema=schema)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"decimal": ",,"}, "decimal must be one mark"),
        ({"decimal": "5"}, "decimal must be one mark"),
        ({"decimal": " "}, "decimal must be one mark"),
        ({"thousands": "-"}, "thousands must be one mark"),
        ({"separator": ", "}, "separator must be one mark"),
        ({"separator": '"'}, "separator must be one mark"),
        ({"thousands": "."}, "decimal and thousands must differ"),
        ({"missing": "?"}, "missing must be a tuple of texts"),
    ],
)
def test_marks_that_are_none_are_refused(wrong, told):
    with pytest.raises(data.DataError, match=told):
        data.Schema((), **wrong)


_SPELT = [
    (("01", "02", "A1"), ["01", "02"], [0, 1]),
    (("true", "false"), ["true", "false"], [0, 1]),
    (("1", "01", "x"), ["01", "x"], [1, 2]),
    (("1", "2"), ["1.0", "2.00"], [0, 1]),
    (("1.0", "x"), ["1", "x"], [0, 1]),
    (("NA", "None"), ["None", "NA"], [1, 0]),
    (("0x1", "1e3"), ["0x1", "1000"], [0, 1]),
    (("New York", "x"), ["New \t York", "x"], [0, 1]),
    (("yes", "no"), ["\ufeffyes", "n\u200bo"], [0, 1]),
    (("y\u00ades", "n\u200do"), ["yes", "no"], [0, 1]),
    (("☺", "x"), ["☺\ufe0f", "x"], [0, 1]),
    ((str(2**60), str(2**60 + 1)), [str(2**60 + 1), str(2**60)], [1, 0]),
]


@pytest.mark.parametrize(("listed", "cells", "expected"), _SPELT)
def test_a_cell_is_found_whatever_the_other_rows_hold(listed, cells, expected, tmp_path):
    """pandas reads 01 as 1, and "true" as True, in a file whose other rows are such too."""
    schema = data.Schema((data.Column("c", "category", categories=listed),), "y", listed)
    pd.DataFrame({"c": cells, "y": cells}).to_csv(tmp_path / "a.csv", index=False)
    found = data.encode(data.read_table(tmp_path / "a.csv", schema=schema), schema)
    np.testing.assert_array_equal(found.features, np.eye(len(listed))[expected])
    assert found.labels.tolist() == expected


_ALIKE = [
    ("yes", "yes  "), ("yes", " yes"), ("caf\u00e9", "cafe\u0301"), ("a b", "a\u00a0b"),
    ("a b", "a  b"), ("a b", "a\tb"), ("a b", "a\nb"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), _ALIKE)
def test_texts_that_differ_by_blanks_or_normal_form_are_one(one, other):
    frame = pd.DataFrame({"x": [one, other, "no", "no"], "y": [one, other, "no", "no"]})
    found = data.from_frame(frame, target="y")
    assert len(found.classes) == 2
    np.testing.assert_array_equal(found.features[0], found.features[1])
    assert found.labels[0] == found.labels[1] != found.labels[2]
    schema = data.Schema((data.Column("x", "category", categories=(other, "no")),))
    encoded = data.encode_features(frame, schema)  # as at predict time
    np.testing.assert_array_equal(encoded, [[1, 0], [1, 0], [0, 1], [0, 1]])
    with pytest.raises(data.DataError, match="twice"):
        data.Column("x", "category", categories=(one, other))


_HIDDEN = [
    "\u200b", "\ufeff", "\u00ad", "\u200d", "\u034f", "\u115f", "\u17b4", "\u180b", "\u180f",
    "\u2065", "\u3164", "\uffa0", "\ufff0", "\U000e0020", "\U000e0100",
]  # fmt: skip


@pytest.mark.parametrize("hidden", _HIDDEN)
def test_texts_that_look_alike_are_refused(hidden):
    alike = ["yes", f"y{hidden}es", "no", "no"]
    for frame in (
        pd.DataFrame({"x": alike, "y": list("abab")}),
        pd.DataFrame({"x": [1, 2, 3, 4], "y": alike}),
    ):
        with pytest.raises(data.DataError, match="look alike"):
            data.from_frame(frame, target="y")
    with pytest.raises(data.DataError, match="look alike"):
        data.Column("x", "category", categories=tuple(alike[:2]))
    with pytest.raises(data.DataError, match="look alike"):
        data.Schema((), classes=("yes", f"yes{hidden}", "yes\u2800"))
    schema = data.Schema((data.Column("x", "category", categories=("yes", "a b")),))
    cells = pd.DataFrame({"x": [f"yes {hidden}", "yes\u2800", f"a{hidden}\u2800b"]})
    found = data.encode_features(cells, schema)  # as at predict time
    np.testing.assert_array_equal(found, [[1, 0], [1, 0], [0, 1]])


def test_ids_and_numbers_to_predict_are_not_written_into_a_model():
    rows = np.arange(3_000)
    ids = [f"patient {row % 1_104}" for row in rows]
    frame = pd.DataFrame({"id": ids, "x": rows / 7.0, "y": rows % 2})
    with pytest.raises(data.DataError, match=r"'id' has 1104 different values.*ignore"):
        data.from_frame(frame, target="y")
    weights = frame.assign(y=50 + rows % 644 / 10).drop(columns="id")
    with pytest.raises(data.DataError, match=r"'y' has 644 different values.*DPLinearRegression"):
        data.from_frame(weights, target="y")
    seconds = pd.DataFrame({"x": rows / 7.0, "y": rows % 2}).loc[np.repeat(rows, 10)]
    with pytest.raises(data.DataError, match=r"'y' has 1200 different values in 30000 rows"):
        data.from_frame(seconds.assign(y=np.arange(30_000) % 1_200), target="y")
    # Of declared classes a file may hold few.
    named = data.Schema((), classes=tuple(map(str, range(1_200))))
    found = data.from_frame(frame[["x", "y"]], target="y", schema=named)
    assert len(found.classes) == 1_200
    # Places of 60 kinds, 50 rows each, are categories.
    places = frame.assign(id=[f"place {row % 60}" for row in rows])
    assert data.from_frame(places, target="y").features.shape == (3_000, 61)


def _as_category(frame: pd.DataFrame) -> object:
    columns = (data.Column("when", "category", categories=("1700-01-01", "2001-02-03")),)
    schema = data.Schema(columns, target="y", classes=("a", "b"), missing=("",))
    return data.encode_features(frame, schema).tolist()


def _as_classes(frame: pd.DataFrame) -> object:
    return data.from_frame(frame[["x", "when"]], target="when").classes


def _as_classes_of_an_estimator(frame: pd.DataFrame) -> object:
    model = estimators.DPLogisticRegression(epsilon=50.0, random_state=0)
    return model.fit(frame[["x"]], frame["when"]).classes_.size


def _as_labels_to_score(frame: pd.DataFrame) -> object:
    model = estimators.DPLogisticRegression(epsilon=50.0, random_state=0)
    return model.fit(frame[["x"]], frame["y"]).score(frame[["x"]], frame["when"]) > 0


def _run(use: Callable[[pd.DataFrame], object], when: pd.Series) -> str:
    """What comes of a table with these times, as text: an error's is a result too."""
    numbers, sides = np.arange(40.0), ["a", "b"] * 20
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return repr(use(pd.DataFrame({"when": when, "x": numbers, "y": sides})))
        except (ValueError, TypeError) as error:
            return f"{type(error).__name__}: {str(error)[:40]}"


@pytest.mark.parametrize("zone", ["Europe/Paris", "UTC"])
@pytest.mark.parametrize(
    "use", [_as_category, _as_classes, _as_classes_of_an_estimator, _as_labels_to_score]
)
def test_a_time_before_the_first_nanosecond_ends_no_process(use, zone):
    days = np.full(40, np.datetime64("2001-02-03", "s"))
    odd = days.copy()
    odd[::2] = np.datetime64("1600-01-01", "s")
    plain = odd.copy()
    plain[::2] = np.datetime64("1700-01-01" if int(pd.__version__[0]) >= 3 else "NaT", "s")
    found, expected = (
        _run(use, pd.Series(times).dt.tz_localize("UTC").dt.tz_convert(zone))
        for times in (odd, plain)
    )
    # Missing where pandas 2 cannot look it up, and elsewhere a time as any other.
    assert found.replace("1600", "1700") == expected
