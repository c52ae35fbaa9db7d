"""The whole path of a private table and training is audited; a range read off the records shows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

from dpjax import accounting as acc
from dpjax import audit, data, training
from dpjax.data import private_table

_RUNS = 5  # within which the planted leak has to be found
_CANARIES, _OTHERS, _DELTA, _FAR = 64, 400, 1e-5, 1e6
_COLUMNS = tuple(f"x{i}" for i in range(_CANARIES))


def _plant(monkeypatch):
    """The range of a number is that of the records, without noise."""

    def encoding(look, numbers, first=None):
        return {"range": private_table._widen(np.nanmin(numbers), np.nanmax(numbers))}

    monkeypatch.setattr(private_table._Looks, "encoding", encoding)


def _records():
    """Others, then one canary a column: far out there, and of the class that is rare among them."""
    rng = np.random.default_rng(0)
    cells = np.concatenate([rng.uniform(0, 1, (_OTHERS, _CANARIES)), _FAR * np.eye(_CANARIES)])
    frame = pd.DataFrame(cells, columns=list(_COLUMNS))
    return frame.assign(y=np.where(np.arange(len(cells)) < 0.9 * _OTHERS, "a", "b"))


_PEOPLE = _records()
_SCHEMA = data.Schema((), target="y", classes=("a", "b"))
# As many as there are on average: a public number.
_TABLE = data.PrivateTable(
    _COLUMNS, _SCHEMA, _OTHERS + _CANARIES // 2, 80.0, numeric=_COLUMNS, encoding="range"
)


@pytest.fixture(scope="module")
def plan():
    return training.make_plan(
        len(_PEOPLE), epsilon=1.0, delta=_DELTA, steps=8, batch_size=100, clip_norm=0.5,
        preceding=_TABLE.mechanism, extra_delta=_TABLE.extra_delta,
    )  # fmt: skip


def _scores(plan, key, included):
    """One run of everything: how far out a column's range ends, and how well its canary is known.

    The second is the canary's score by the released model, as the released table encodes it.
    """
    kept = np.concatenate([np.ones(_OTHERS, bool), np.asarray(included)])
    schema = _TABLE.release(_PEOPLE[kept], key)
    # Those that are out have no gradient, so that all runs share a compilation.
    every = data.encode_released(_PEOPLE, schema)
    model = training.logistic(every.features.shape[1])
    loss = training.cross_entropy(model)
    found = training.fit(
        lambda params, record: record[2] * loss(params, record[:2]),
        model.init(key),
        (every.features, every.labels, kept.astype(np.float32)),
        plan,
        optimizer=optax.sgd(1.0),
        key=key,
        log_every=plan.steps,
    )
    known = training.probabilities(model, found.params, every.features[_OTHERS:])[:, 1]
    tops = np.asarray([column.range[1] for column in schema.columns])
    return jnp.asarray(np.log1p(np.abs(tops)) + known, jnp.float32)


def _audit(plan, seed):
    return audit.one_run(
        lambda key, included: _scores(plan, key, included), key=jax.random.key(seed),
        canaries=_CANARIES, guesses=48, delta=_DELTA,
    )  # fmt: skip


@pytest.mark.at_length
def test_one_run_finds_nothing_on_the_whole_path(plan):
    claim = plan.certify().epsilon
    assert 0.9 < claim <= 1.0
    assert not any(_audit(plan, seed).contradicts(claim) for seed in range(_RUNS))


def test_one_run_finds_a_range_that_is_read_off_the_records(plan, monkeypatch):
    _plant(monkeypatch)
    assert any(_audit(plan, seed).contradicts(plan.certify().epsilon) for seed in range(_RUNS))


# ------------------------------------------------------------------------------------------
# The released table alone, of a data set and of the same with one record of rare values more.

_RELEASES = 120


def _two_tables():
    """What the audit shows of the released range's end, and what the table is priced at."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=150), "y": rng.choice(["a", "b"], 150)})
    other = pd.concat([frame, pd.DataFrame({"x": [1e9], "y": ["rare"]})], ignore_index=True)
    table = data.PrivateTable(
        ("x",), data.Schema((), target="y"), 150, 5.0, ("x",), "range", threshold_delta=1e-3
    )
    ends = []
    for start, one in ((0, frame), (10**6, other)):
        schemas = [table.release(one, jax.random.key(start + i)) for i in range(_RELEASES)]
        assert not any("rare" in schema.classes for schema in schemas)
        ends.append(np.asarray([schema.columns[0].range[1] for schema in schemas]))
    return audit.distinguishing_bound(*ends, delta=1e-2), acc.epsilon(table.mechanism, 1e-2 - 1e-3)


@pytest.mark.at_length
def test_two_tables_are_told_apart_by_no_more_than_is_priced():
    bound, priced = _two_tables()
    assert bound.epsilon <= priced < 1.6


def test_two_tables_are_told_apart_by_a_range_that_is_read_off_the_records(monkeypatch):
    _plant(monkeypatch)
    bound, priced = _two_tables()
    assert bound.contradicts(priced)
