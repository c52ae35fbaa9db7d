"""Tables of pandas, polars and Arrow are one thing to `fit`; what holds no numbers is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
from flax import nnx

from dpjax import accounting as acc
from dpjax import training

N = 8
COLUMNS = {
    "x": np.linspace(0, 1, N).astype(np.float32),
    "large": 2**24 + 1 + np.arange(N),  # whole numbers that float32 rounds
    "label": np.arange(N) % 2,
}


def polars():
    return pytest.importorskip("polars")


TABLES = {
    "pandas": pd.DataFrame,
    "arrow": pa.table,
    "polars": lambda columns: polars().DataFrame(columns),
}


@pytest.fixture(autouse=True)
def unpriced(monkeypatch):
    monkeypatch.setattr(acc, "epsilon", lambda run, *_, **__: np.ones(np.shape(run.steps)))


def loss(w, record):
    return (w * record["x"] - record["label"].astype(jnp.float32)) ** 2


def fit(data, loss=loss, params=None):
    plan = training.Plan(
        acc.Repeated(acc.Gaussian(1.0), 2), clip_norm=1.0, population=N, delta=1e-5
    )
    start = jnp.zeros(()) if params is None else params
    return training.fit(loss, start, data, plan, optimizer=optax.sgd(0.1), key=jax.random.key(0))


@pytest.mark.parametrize("kind", TABLES)
def test_a_record_is_a_dict_of_its_columns(kind):
    rows = np.array([6, 1, 6])
    found = training.HostData(TABLES[kind](COLUMNS))
    loaded = found.load(rows, 3)
    assert found.records == N
    assert set(loaded) == set(COLUMNS)
    for name, column in COLUMNS.items():  # to the last digit
        np.testing.assert_array_equal(loaded[name], column[rows])
        assert (loaded[name].dtype.kind == "i") == (column.dtype.kind == "i")


def test_every_kind_of_table_trains_alike():
    arrays = {"x": jnp.asarray(COLUMNS["x"]), "label": jnp.asarray(COLUMNS["label"], jnp.int32)}
    expected = float(fit(arrays).params)
    for kind, make in TABLES.items():
        assert float(fit(make(COLUMNS)).params) == pytest.approx(expected, rel=1e-6), kind


def test_lists_of_one_length_in_a_column_are_records_of_that_shape():
    pl = polars()
    values = np.arange(2.0 * N).reshape(N, 2)
    tables = {
        "list": pl.DataFrame({"v": values.tolist()}),
        "array": pl.DataFrame({"v": pl.Series(values.tolist(), dtype=pl.Array(pl.Float64, 2))}),
        "arrow": pa.table({"v": values.tolist()}),
    }
    for kind, table in tables.items():
        found = training.HostData(table).load(np.array([3, 0]), 2)
        np.testing.assert_array_equal(found["v"], values[[3, 0]], err_msg=kind)
    ragged = pl.DataFrame({"v": [[1.0]] * 4 + [[1.0, 2.0]] * 4})
    with pytest.raises(ValueError, match=r"one shape, got \[\(1,\), \(2,\)\]: pad them to one"):
        training.HostData(ragged).load(np.array([0, 7]), 2)


MISSING = {
    "pandas": lambda column: pd.DataFrame({"label": pd.array(column, dtype="Int64")}),
    "arrow": lambda column: pa.table({"label": pa.array(column)}),
    "polars": lambda column: polars().DataFrame({"label": column}),
}


@pytest.mark.parametrize("kind", MISSING)
def test_a_missing_whole_number_is_refused_before_the_first_step(kind):
    with pytest.raises(ValueError, match=r"column label must have every value, got [Ii]nt64 with"):
        training.HostData(MISSING[kind]([1] * (N - 1) + [None]))
    whole = training.HostData(MISSING[kind]([1] * N))
    assert whole.load(np.array([0]), 1)["label"].tolist() == [1]


@pytest.mark.parametrize("kind", ["pandas", "arrow", "polars"])
def test_missing_labels_beside_features_are_refused(kind):
    table = MISSING[kind]([1] * (N - 1) + [None])
    labels = table["label"]
    model = training.logistic(1)
    features = COLUMNS["x"][:, None]
    for call in (
        lambda: fit((features, labels), training.cross_entropy(model), model.init(None)),
        lambda: training.accuracy(model, features, labels),
    ):
        with pytest.raises(ValueError, match=r"must have every value, got [Ii]nt64 with missing"):
            call()


def test_a_missing_float_is_a_number_that_is_none():
    table = polars().DataFrame({"x": [1.0] * (N - 1) + [None]})
    assert np.isnan(training.HostData(table).load(np.array([N - 1]), 1)["x"]).all()


X, Y = COLUMNS["x"][:, None], COLUMNS["label"]
REFUSED = {
    "sparse matrix": (
        lambda: (sp.csr_matrix(X), Y),
        r"dense array, got a scipy\.sparse csr_matrix",
    ),
    "sparse array": (lambda: (sp.coo_array(X), Y), r"dense array, got a scipy\.sparse coo_array"),
    "sparse alone": (lambda: sp.csr_array(X), r"dense array, got a scipy.* toarray\(\)"),
    "lists": (lambda: (X.tolist(), Y.tolist()), r"got lists of Python's numbers: give numpy\.asa"),
    "lists beside": (lambda: {"x": X.tolist(), "y": Y}, r"got lists of Python's numbers"),
    "too few records": (lambda: [([1.0], 0)] * (N - 1), r"plan's 8 records, got 7"),
    "lists of two lengths": (lambda: [[1.0], [1.0, 2.0]] * 4, r"lists of one length .*: pad lists"),
    "objects": (
        lambda: pd.DataFrame({"a": [[1.0]] * N}),
        r"numbers, got object at a: text, .* enc",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_table_of_numbers_is_refused_in_one_sentence(kind):
    make, reason = REFUSED[kind]
    with pytest.raises(ValueError, match=reason):
        fit(make(), lambda w, record: w)


def test_a_list_of_lists_of_one_length_is_a_list_of_records():
    found = fit([[1.0, 2.0]] * N, lambda w, record: (w * record[0] - record[1]) ** 2).params
    assert np.isfinite(float(found))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.only = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        return self.only(x)


CANNOT_BUILD = {
    "a key": (lambda key: Net(nnx.Rngs(key)), r"from nnx\.Rngs, got ValueError where key is one"),
    "half a key": (
        lambda key: Net(nnx.Rngs(jax.random.split(key)[0])),
        r"from nnx\.Rngs, got TypeError where key is one: write .*lambda rngs: Net\(rngs=rngs\)",
    ),
    "nothing": (lambda: Net(nnx.Rngs(0)), r"must take rngs alone, got \(\)"),
    "two": (lambda width, rngs: Net(rngs), r"must take rngs alone, got \(width, rngs\)"),
    "no module": (lambda rngs: None, r"must return a module of flax\.nnx, got None"),
}


@pytest.mark.parametrize("kind", CANNOT_BUILD)
def test_from_nnx_says_what_it_hands_over(kind):
    make, reason = CANNOT_BUILD[kind]
    with pytest.raises(TypeError, match=reason):
        training.from_nnx(make)


@pytest.mark.parametrize("make", [Net, lambda r: Net(r), lambda *, rngs: Net(rngs)])
def test_from_nnx_builds_by_any_name_of_the_streams(make):
    params = training.from_nnx(make).init(jax.random.key(0))
    assert params["only"]["kernel"].shape == (3, 2)
