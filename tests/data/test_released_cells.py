"""Cells that are not of their column's released kind: missing, and refused nowhere.

Kinds × cells × whatever encodes by a released schema: the records that were looked at, new rows in
memory, and the commands.
"""

from __future__ import annotations

import csv
import datetime
import json
import warnings
from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dpjax import training
from dpjax._numerics.warning import DpjaxWarning
from dpjax.cli import app
from dpjax.data import (
    Column,
    DataError,
    PrivateTable,
    Schema,
    describe_encoding,
    described_schema,
    encode_features,
    encode_released,
    private_table,
)
from dpjax.data.schema import RELEASED
from dpjax.estimators import DPLogisticRegression

_NUMBERS = (
    Column("both", range=(0.0, 9.0), scale="asinh", cuts=(1.0, 5.0), line_weight=0.9),
    Column("cells", cuts=(-1.0, 0.0, 3.0)),
    Column("line", range=(-5.0, 5.0)),
)
_TEXTS = Column("texts", "category", categories=("", "a", "1", "True"))
_DECLARED = Schema((*_NUMBERS, _TEXTS), target="y", classes=("no", "yes"), missing=("", "-9"))
_RELEASED = replace(
    _DECLARED, columns=tuple(replace(one, released=True) for one in _DECLARED.columns)
)
_CELLS = st.one_of(
    st.none(),
    st.text(max_size=5),
    st.sampled_from(["4O", "1.000", "999", "1,5", "-9", "-9.0", "inf", "nan", "a", " a ", "1e999"]),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.dates(),
    st.datetimes(),
    st.decimals(),
    st.binary(max_size=3),
    st.complex_numbers(),
    st.lists(st.integers(), max_size=2),
)


def _predicted(frame, schema):
    """The features of new rows, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DpjaxWarning)
        features = encode_features(frame, schema)
    return features, [str(one.message) for one in caught if one.category is DpjaxWarning]


def _trained(frame, schema):
    return encode_released(frame.assign(y="no"), schema).features


@given(st.lists(_CELLS, min_size=1, max_size=4), st.booleans())
def test_a_new_row_is_encoded_as_the_same_record_was(cells, inferred):
    column = pd.Series(cells, dtype=object)
    column = column.infer_objects() if inferred else column
    frame = pd.DataFrame({one.name: column for one in _RELEASED.columns})
    features, said = _predicted(frame, _RELEASED)
    np.testing.assert_array_equal(features, _trained(frame, _RELEASED))
    assert np.isfinite(features).all()
    assert np.linalg.norm(features, axis=1).max() <= 1 + 1e-6
    for row in range(len(frame)):  # by itself, whatever the other cells of its column are
        alone, _ = _predicted(frame.iloc[[row]], _RELEASED)
        np.testing.assert_array_equal(alone[0], features[row])
    assert len(said) <= 1


@pytest.mark.parametrize(
    ("cells", "is_number"),
    [
        (["Private", "3"], [False, True]),
        ([datetime.date(2020, 1, 1), 2.0], [False, True]),
        ([np.inf, 1.0], [False, True]),
        ([b"u", [1]], [False, False]),
        ([1j, 2j], [False, False]),
        (pd.Categorical(["u", "v"]), [False, False]),
        (pd.date_range("2020", periods=2), [False, False]),
        (pd.period_range("2020", periods=2), [False, False]),
        (pd.timedelta_range("1D", periods=2), [False, False]),
    ],
    ids=lambda cells: type(cells).__name__,
)
def test_what_is_no_number_is_missing_and_said_once_by_its_column(cells, is_number):
    number = replace(_NUMBERS[0], name="n", released=True)
    schema, frame = replace(_RELEASED, columns=(number,)), pd.DataFrame({"n": cells})
    features, said = _predicted(frame, schema)
    missing, nothing = _predicted(pd.DataFrame({"n": [None, ""]}), schema)
    assert (features == missing).all(axis=1).tolist() == [not one for one in is_number]
    assert nothing == []
    (line,) = said
    assert line.startswith(
        f"cells that are no numbers, taken as missing: n ({is_number.count(False)});"
    )
    # A declared column keeps its error.
    declared = replace(schema, columns=(replace(number, released=False),))
    with pytest.raises(DataError, match=r"not a finite number|'n' holds a"):
        encode_features(frame, declared)


def test_a_released_schema_says_so_of_itself_and_is_read_back():
    described = describe_encoding(_RELEASED)
    assert {one["origin"] for one in described["columns"]} == {RELEASED}
    assert described_schema(described) == _RELEASED
    assert "released" not in described["columns"][0]
    assert repr(_RELEASED) == repr(_DECLARED)  # which a stored key of a run is bound to
    assert described_schema(describe_encoding(_DECLARED, _DECLARED)) == _DECLARED


def test_booleans_are_categories_by_themselves_and_numbers_where_these_are_declared():
    frame = pd.DataFrame({"b": [True, False] * 200, "y": ["no", "yes"] * 200})
    asked = PrivateTable(("b",), Schema((), target="y"), len(frame), 3.0)
    assert asked.release(frame, jax.random.key(0)).columns[0].categories == ("", "False", "True")
    given = replace(asked, numeric=("b",), encoding="range").release(frame, jax.random.key(0))
    assert given.columns[0].kind == "number"
    places = encode_released(frame, given).features[:2, 0]
    assert places[0] > places[1]


# ------------------------------------------------------------------------------------ the commands

_KINDS = {
    "all numbers": lambda numbers, texts: "number",
    "all categories": lambda numbers, texts: "category",
    "each the other": lambda numbers, texts: "category" if np.isfinite(numbers[0]) else "number",
}


@pytest.fixture(params=_KINDS)
def kinds(request, monkeypatch):
    """What the look at the columns' kinds finds, as noise may have it find anything."""
    found = _KINDS[request.param]
    monkeypatch.setattr(private_table._Looks, "kind", lambda self, n, t: found(n, t))
    return request.param


def _people(n=400):
    rng = np.random.default_rng(0)
    age, day = rng.integers(18, 90, n), pd.to_datetime("2020-01-01")
    return pd.DataFrame(
        {
            "age": age,
            "job": rng.choice(["baker", "smith"], n),
            "day": [day + pd.Timedelta(days=int(k)) for k in rng.integers(0, 9, n)],
            "gap": np.where(rng.random(n) < 0.5, 1.5, np.nan),
            "paid": np.where(age > 50, "yes", "no"),
        }
    )


_ODD = pd.DataFrame(
    {
        "age": ["4O", "", "30", "2020-01-01"],
        "job": ["7", "smith", "", "1e999"],
        "day": ["1", "2020-01-02", "?", "x"],
        "gap": ["x", "1.5", "1.000", "999"],
        "paid": ["no", "maybe", "", "1.0"],
    }
)


def _run(*arguments):
    found = CliRunner().invoke(app, [str(one) for one in arguments])
    assert found.exit_code == 0, found.output
    return found.output


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.at_length(every=6)
def test_every_command_takes_cells_of_any_kind(kinds, task, tmp_path):
    people = _people().assign(age=lambda one: one.age.astype(str))
    if task == "regression":
        people["paid"] = people.age
    people.to_csv(tmp_path / "people.csv", index=False)
    pd.concat([_ODD, people[:50].astype(str)]).to_csv(tmp_path / "odd.csv", index=False)
    declared = {"classification": ("--classes", "no,yes"), "regression": ("--task", task)}[task]
    settings = ("--epsilon", "3", "--delta", "1e-4", "--steps", "2", *declared, "--target", "paid")
    files, run = ("--data", tmp_path / "people.csv", "--test", tmp_path / "odd.csv"), tmp_path / "r"
    _run("train", *files, *settings, "--out", run)
    schema = described_schema(training.load_model(run).encoding)
    numbers = {one.name for one in schema.columns if one.kind == "number"}
    asked = [("people.csv", "--explain"), ("odd.csv", "--explain"), ("odd.csv", "--json")]
    for number, (file, option) in enumerate(asked):
        out = tmp_path / f"{number}.csv"
        said = _run("predict", run, "--data", tmp_path / file, "--out", out, option)
        unread = "cells that are no numbers, taken as missing" in " ".join(said.split())
        odd = {"job", "day"} if file == "people.csv" else {*_ODD}
        assert unread == bool(numbers & odd)
        assert "4O" not in said
        with out.open() as text:
            rows = [*csv.reader(text)]
        assert len(rows) == 1 + len(pd.read_csv(tmp_path / file))
        if option == "--json":
            assert json.loads(said)["rows"] == len(rows) - 1


@pytest.mark.usefixtures("lenient_promotion")
@pytest.mark.at_length(every=6)
def test_an_estimator_takes_cells_of_any_kind(kinds):
    people = _people(800)
    schema, few = Schema((), classes=("no", "yes")), {"steps": 2}
    model = DPLogisticRegression(
        epsilon=3.0, delta=1e-4, preprocessing="private", bounds=schema, solver="tables",
        solver_options=few,
    )  # fmt: skip
    model.fit(people.drop(columns="paid"), people["paid"])  # in silence: the records are private
    for rows in (people, _ODD):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DpjaxWarning)
            chances = model.predict_proba(rows.drop(columns="paid"))
        assert np.isfinite(chances).all()
        numbers = {one.name for one in model.schema_.columns if one.kind == "number"}
        odd = {"job", "day"} if rows is people else {*_ODD.columns}
        ours = [one for one in caught if one.category is DpjaxWarning]
        assert len(ours) == bool(numbers & odd)
