"""Under a trace nothing can be refused: what a constructor would refuse is priced as +inf."""

from __future__ import annotations

import contextlib
import dataclasses

import jax
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax._numerics.scope import enable_x64
from dpjax.accounting.mechanisms import validity
from tests.accounting.mechanism_examples import EXAMPLES

ADD, REPLACE = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE
_BAD = [np.nan, -np.inf, np.inf, -1.0, -1e-3, 0.0, 0.5, 1.5, 2.5, 11.0]


def _narrow():
    return contextlib.nullcontext()  # the suite runs in float32


def _refused(run, name, value):
    old = getattr(run, name)
    try:
        dataclasses.replace(run, **{name: np.full(np.shape(old), value) if np.ndim(old) else value})
    except ValueError:
        return True
    return False


def _fields(run):
    """The numbers that a trace may hold: not those that decide which bounds there are."""
    known = isinstance(run, acc.RandomAllocationCorrelated)
    return ["noise_multiplier"] if known else [*type(run)._ranges]


def _rows(run, values):
    """One row for each of these (field, value), the other fields good; a traced run takes them."""
    rows = {n: [np.asarray(getattr(run, n), float)] * len(values) for n in _fields(run)}
    for i, (name, value) in enumerate(values):
        rows[name] = list(rows[name])
        rows[name][i] = np.full(np.shape(rows[name][i]), value)
    return {n: np.stack(column) for n, column in rows.items()}


_NUMBERED = [run for run in EXAMPLES if type(run)._ranges]
_EXAMPLES = pytest.mark.parametrize("run", _NUMBERED, ids=lambda run: type(run).__name__)


@pytest.mark.parametrize("wide", [False, True], ids=["float32", "float64"])
@_EXAMPLES
@pytest.mark.at_length(every=3)
def test_a_trace_marks_exactly_what_a_constructor_refuses(run, wide):
    values = [(name, value) for name in _fields(run) for value in _BAD]

    def found(fields):
        traced = dataclasses.replace(run, **fields)
        return validity.invalid(traced), validity.invalid(validity.replace_invalid(traced))

    with enable_x64() if wide else _narrow():
        marked, left = jax.jit(jax.vmap(found))(_rows(run, values))
    expected = [_refused(run, name, value) for name, value in values]
    assert any(expected)
    np.testing.assert_array_equal(np.asarray(marked), expected)
    assert not np.asarray(left).any()  # no method meets what is refused


def _answer(run, adjacency):
    able = acc.methods(run, adjacency)
    method = next((m for m in ("gdp", "closed_form", "hidden_state", "rdp") if m in able), "best")
    return lambda r: acc.epsilon(r, 1e-5, adjacency=adjacency, method=method)


@pytest.mark.parametrize("wide", [False, True], ids=["float32", "float64"])
@_EXAMPLES
@pytest.mark.at_length(every=3)
def test_bad_numbers_of_every_field_are_priced_as_infinite(run, wide):
    only_replaced = acc.FixedBatchSampled | acc.NoisySampledDescent | acc.WithReplacement
    adjacency = REPLACE if isinstance(run, only_replaced) else ADD
    price = _answer(run, adjacency)
    values = [(n, v) for n in _fields(run) for v in _BAD if _refused(run, n, v)]
    # a quarter of a second each
    dear = acc.NoisySampledDescent | acc.TruncatedPoissonSampled | acc.WithReplacement
    if isinstance(run, dear):  # one a field
        values = list({n: (n, v) for n, v in values}.values())
    ask = jax.jit(jax.vmap(lambda fields: price(dataclasses.replace(run, **fields))))
    with enable_x64() if wide else _narrow():
        found = np.asarray(ask(_rows(run, values)))
    assert [pair for pair, value in zip(values, found, strict=True) if value != np.inf] == []


@pytest.mark.parametrize("wide", [False, True], ids=["float32", "float64"])
def test_every_question_says_the_worst_of_a_bad_number(wide):
    def ask(sigma, count):
        run = acc.Repeated(acc.Gaussian(sigma), count)
        low, high = acc.epsilon_interval(run, 1e-5)
        return (
            acc.epsilon(run, 1e-5, method="rdp"),
            acc.delta(run, 1.0),
            acc.rdp(run, [2.0, 8.0]).min(),
            acc.tradeoff(run, [0.1, 0.5], method="gdp").max(),
            low,
            high,
        )

    bad = np.array([[np.nan, 1], [-1, 1], [1, np.nan], [1, -1], [1, 1.5], [np.inf, 1]])
    with enable_x64() if wide else _narrow():
        found = jax.jit(jax.vmap(ask))(bad[:, 0], bad[:, 1])
        good = jax.jit(ask)(2.0, 3.0)
    for values, worst in zip(found, (np.inf, 1.0, np.inf, 0.0, 0.0, np.inf), strict=True):
        np.testing.assert_array_equal(np.asarray(values), worst)
    assert all(np.isfinite(np.asarray(value)) for value in good)


def test_bad_questions_are_answered_by_the_worst():
    run = acc.Gaussian(2.0)
    bad = np.array([np.nan, -0.1, 0.0, 1.0, 2.0])
    found = jax.jit(jax.vmap(lambda d: acc.epsilon(run, d)))(bad)
    np.testing.assert_array_equal(found, np.inf)
    found = jax.jit(jax.vmap(lambda e: acc.delta(run, e)))(np.array([np.nan, -1.0]))
    np.testing.assert_array_equal(found, 1.0)
    found = jax.jit(lambda orders: acc.rdp(run, orders))(np.array([np.nan, 2.0, 0.5]))
    np.testing.assert_array_equal(np.isfinite(found), [False, True, False])
    found = jax.jit(lambda rates: acc.tradeoff(run, rates))(np.array([np.nan, 0.5, -1.0, 2.0]))
    np.testing.assert_array_equal(np.asarray(found) > 0, [False, True, False, False])


def test_derivatives_of_good_settings_are_untouched():
    traced = jax.grad(lambda s: acc.epsilon(acc.Gaussian(s), 1e-5))(2.0)
    h = 1e-5
    exact = (
        (acc.epsilon(acc.Gaussian(2 + h), 1e-5) - acc.epsilon(acc.Gaussian(2 - h), 1e-5)) / 2 / h
    )
    assert traced == pytest.approx(exact, rel=1e-4)
    run = jax.grad(lambda run: acc.epsilon(run, 1e-5))(acc.Repeated(acc.Gaussian(2.0), 3.0))
    assert run.mechanism.noise_multiplier < 0 < run.steps


def test_every_number_of_a_mechanism_may_be_traced():
    """A method that wants one of them known leaves the answer to the others."""
    run = acc.NoisyCyclicDescent(10, 0.1, 0.1, 0.1, 1.0, 2.0, 5, 3.0)
    found = jax.jit(lambda run: acc.epsilon(run, 1e-5, adjacency=REPLACE))(run)
    known = acc.epsilon(run, 1e-5, adjacency=REPLACE, method="hidden_state")
    assert acc.epsilon(run, 1e-5, adjacency=REPLACE) < known <= found <= known * (1 + 1e-6)
