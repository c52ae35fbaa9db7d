"""Public cells of a declared range: a function of what is declared, one cell a record."""

import dataclasses
import json
import math

import jax
import numpy as np
import pandas as pd
import pytest

from dpjax import data
from dpjax.data import range_cells

RANGES = [
    (0.0, 1.0),
    (17.0, 90.0),
    (-1.0, 1.0),
    (-50.0, 3.0),
    (-8.0, 0.0),
    (-9.0, -2.0),
    (0.0, 1e300),
    (0.0, 5e-300),
    (0.0, 5e-324),
    (1e15, 1e15 + 1),
    (-1e307, 1e307),
    (2010.0, 2030.0),
    (3, 7),
]


def table(column, **settings):
    schema = data.Schema((column,), target="y", classes=("a", "b"))
    return data.PrivateTable((column.name,), schema, 1_000, stddev=5.0, **settings)


@pytest.mark.parametrize(
    ("ends", "scale"),
    [
        (ends, scale)
        for ends in RANGES
        for scale in ("linear", "log", "asinh")
        if scale != "log" or ends[0] >= 0
    ],
)
def test_cuts_are_in_the_range_and_a_record_is_in_one_cell(ends, scale):
    if scale != "linear" and ends[0] == 1e15:
        with pytest.raises(data.DataError, match="one number on the scale"):
            data.Column("x", range=ends, scale=scale)
        return
    column = range_cells.divide(data.Column("x", range=ends, scale=scale), 0.9)
    cuts = np.array(column.cuts)
    assert np.all((ends[0] <= cuts) & (cuts < ends[1]))
    assert len(cuts) <= 8 + 12
    schema = data.Schema((column,), target="y", classes=("a", "b"), missing=("",))
    near = [np.nextafter(cut, side) for cut in cuts for side in (-math.inf, math.inf)]
    cells = [*ends, *cuts, *near, -1e308, 1e308, math.nan, "", "ten"]
    encoded = data.encode_released(pd.DataFrame({"x": cells, "y": "a"}), schema).features
    norms = np.linalg.norm(encoded, axis=1)
    assert np.all(norms <= 1 + 1e-6)
    np.testing.assert_array_equal((encoded[:, :-1] > 0).sum(axis=1), 1)
    assert np.all(encoded[-3:, -2] > 0)  # what is no number has a cell of its own


def test_eighths_and_powers_of_four_towards_zero():
    (amounts, ages, both, debts) = (
        range_cells.divide(data.Column("x", range=ends), 0.9).cuts
        for ends in ((0.0, 4096.0), (16.0, 80.0), (-8.0, 8.0), (-4096.0, 0.0))
    )
    eighths = [512.0 * k for k in range(1, 8)]
    assert list(amounts) == sorted({0.0, 0.25, 1.0, 4.0, 16.0, 64.0, 256.0, *eighths})
    assert ages[0] == 16.0
    assert ages[1:4] == (16 + 64 / 4**7, 16 + 64 / 4**6, 16 + 64 / 4**5)
    assert 0.0 in both
    assert sorted(-np.array(both)) == list(both)
    # A zero of amounts is a cell of its own, on either side: cells end with their cut.
    assert debts[-1] == -5e-324
    assert list(debts[:-1]) == sorted(-np.array(amounts[1:]))


@pytest.mark.parametrize(
    ("scale", "ends"),
    [
        ("asinh", (4.193248818526525, 4.193248818526526)),
        ("asinh", (1e12, 1e12 + 0.001)),
        ("log", (15537709489.985325, 15537709489.985344)),
        ("linear", (0.0, 5e-324)),
        ("linear", (1.0, 1.0 + 2.0**-52)),
    ],
)
def test_a_range_of_a_few_roundings_is_a_column_that_has_effects(scale, ends, tmp_path):
    """Back from its scale no cut may be left: the line is."""
    from dpjax import effects, training
    from dpjax.estimators import DPLogisticRegression

    column = data.Column("x", range=ends, scale=scale)
    found = range_cells.divide(column, 0.9)
    assert found == column or all(ends[0] <= cut < ends[1] for cut in found.cuts)
    frame = pd.DataFrame({"x": [ends[0], ends[1]] * 500})
    schema = data.Schema((column,), classes=("a", "b"))
    model = DPLogisticRegression(
        epsilon=1.0, delta=1e-6, preprocessing="private", bounds=schema, random_state=0
    )
    model.fit(frame, ["a", "b"] * 500).save(tmp_path / "model")
    saved = training.load_model(tmp_path / "model")
    (curve,) = effects.read_effects(saved).columns
    assert np.all(np.isfinite(curve.scores))


def test_a_column_without_cuts_beside_its_line_has_effects():
    """As a model file may have it that an earlier version wrote."""
    from dpjax.effects import _find_edges

    edges, _ = _find_edges(data.Column("x", range=(1.0, 3.0), cuts=(), line_weight=0.5))
    assert (edges[0, 0], edges[-1, 0]) == (1.0, 3.0)


@pytest.mark.parametrize("scale", ["linear", "log", "asinh"])
@pytest.mark.parametrize("high", [2**63, 2**64, 10**30])
def test_whole_numbers_of_any_size_are_ends(scale, high):
    column, other = (data.Column("x", range=(0, end), scale=scale) for end in (high, float(high)))
    assert range_cells.divide(column, 0.9).cuts == range_cells.divide(other, 0.9).cuts


@pytest.mark.parametrize("ends", [(2**53, 2**53 + 1), (0, 10**400), (-(10**400), 0)])
def test_ends_that_are_one_float_or_none_are_refused_by_what_is_allowed(ends):
    with pytest.raises(data.DataError, match=r"give \[low, high\], low < high"):
        data.Column("x", range=ends)


def test_categories_that_were_learned_are_not_called_public_for_a_range():
    declared = data.Schema(
        (data.Column("c", "category", range=(0.0, 1.0)),), target="y", classes=("a", "b")
    )
    frame = pd.DataFrame({"c": ["flu", "hiv"] * 300, "y": ["a", "b"] * 300})
    complete, learned = data.complete_schema(frame, "y", declared)
    assert learned == ("category lists learned from the rows: c",)
    assert "not covered" in data.describe_encoding(complete, declared)["columns"][0]["origin"]
    # In a private table its categories are looked for.
    made = data.PrivateTable(("c",), declared, 600, stddev=5.0, range_cells=True)
    (column,) = made.release(frame, jax.random.key(0)).columns
    assert column.categories == ("", "flu", "hiv")
    assert column.released


def test_a_declared_range_has_cells_that_read_no_record():
    column = data.Column("x", range=(0.0, 64.0))
    frames = [pd.DataFrame({"x": cells, "y": "a"}) for cells in (["1", "2"], ["x", None])]
    made = table(column, range_cells=True, encoding="bins-and-line")
    first, second = (made.release(frame, jax.random.key(0)) for frame in frames)
    assert first == second
    assert first.columns == (range_cells.divide(column, 0.9),)
    assert made.mechanism == table(column).mechanism  # of nothing: no look is taken
    assert table(column).release(frames[0], jax.random.key(0)).columns == (column,)


@pytest.mark.parametrize(
    "column",
    [
        data.Column("x", range=(0.0, 9.0), cuts=(1.0, 2.0), line_weight=0.5),
        data.Column("x", cuts=(1.0, 2.0)),
        data.Column("x", "category", categories=("a",)),
    ],
)
def test_declared_cuts_and_categories_stay(column):
    frame = pd.DataFrame({"x": ["a"], "y": ["a"]})
    assert table(column, range_cells=True).release(frame, jax.random.key(0)).columns == (column,)


def test_a_left_out_column_stays_out():
    schema = data.Schema(
        (data.Column("x", "ignore"), data.Column("z", range=(0.0, 1.0))), target="y",
        classes=("a", "b"),
    )  # fmt: skip
    made = data.PrivateTable(("x", "z"), schema, 1_000, stddev=5.0, range_cells=True)
    found = made.release(pd.DataFrame({"x": [1], "z": [1], "y": ["a"]}), jax.random.key(0))
    assert found.columns[0] == schema.columns[0]
    assert len(found.columns[1].cuts) > 7


def test_a_description_calls_cells_of_a_declared_range_public():
    column = data.Column("x", range=(0.0, 1.0))
    declared = data.Schema((column,), target="y", classes=("a", "b"))
    cells = dataclasses.replace(declared, columns=(range_cells.divide(column, 0.9),))
    said = data.describe_encoding(cells, declared, learned="not covered")
    assert (
        said["columns"][0]["origin"]
        == data.describe_encoding(declared, declared)["columns"][0]["origin"]
    )
    assert "public" in said["columns"][0]["origin"]
    assert data.described_schema(json.loads(json.dumps(said))) == cells
    # Planted: another range than was declared, and one that was released.
    other = dataclasses.replace(cells.columns[0], range=(0.0, 2.0))
    released = dataclasses.replace(cells.columns[0], released=True)
    for wrong in (other, released):
        told = data.describe_encoding(
            dataclasses.replace(cells, columns=(wrong,)), declared, learned="not covered"
        )
        assert "public" not in told["columns"][0]["origin"]


def test_a_bend_is_seen_within_a_declared_range():
    """Classes by a sine: one line says nothing of it."""
    from dpjax.estimators import DPLogisticRegression

    draws = np.random.default_rng(0)
    x = draws.uniform(0, 10, 4_000)
    y = np.where(np.sin(2 * x) + 0.3 * draws.normal(size=len(x)) > 0, "up", "down")
    frame = pd.DataFrame({"x": x})
    bounds = data.Schema((data.Column("x", range=(0.0, 10.0)),), classes=("down", "up"))
    settings = {"epsilon": 1.0, "delta": 1e-6, "bounds": bounds, "random_state": 0}
    model = DPLogisticRegression(preprocessing="private", **settings).fit(frame, y)
    plain = DPLogisticRegression(preprocessing="public", **settings).fit(frame, y)
    assert model.score(frame, y) > 0.75 > 0.65 > plain.score(frame, y)


@pytest.mark.parametrize(("records", "epsilon", "has"), [(299, 1.0, False), (300, 1.0, True)])
def test_of_few_records_times_epsilon_a_line_is_left_alone(records, epsilon, has):
    assert range_cells.pays(records, epsilon) == has
    schema = data.Schema((data.Column("x", range=(0.0, 1.0)),), target="y", classes=("a", "b"))
    made = data.PrivateTable.for_budget(
        ("x",), schema, records, epsilon=epsilon, delta=1e-6, range_cells=True
    )
    assert made.range_cells == has
