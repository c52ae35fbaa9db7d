"""The bounds on a sum's rounding, attacked: terms that round one way or cancel, in any order."""

from __future__ import annotations

import fractions
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.gradients import clipped_grad, rounding_slack
from dpjax.gradients.compensated import (
    RunShape,
    _units_of_run,
    cancelling,
    run_shape,
    slack_of_runs,
    sum_runs,
)
from dpjax.gradients.ghost.outer import weighted_total
from dpjax.gradients.ghost.rules import OuterProducts

UNIT = 2.0**-24  # of float32


def lost(terms):
    """What a float32 sum, one term after the other, is off by: exact."""
    total, truth = np.float32(0), fractions.Fraction(0)
    for term in np.asarray(terms, np.float32):
        total += term
        truth += fractions.Fraction(float(term))
    return float(fractions.Fraction(float(total)) - truth)


def one_way(peak, number):
    """So many terms that bring a sum to its peak, a power of two, and then round upwards."""
    # Just above half a unit in the last place: each is rounded to a whole one, and its error is u
    # times the sum.
    small = np.float32(peak * UNIT * (1 + 2.0**-10))
    return np.concatenate([[np.float32(peak)], np.full(number - 1, small)]).astype(np.float32)


def test_equal_records_lose_half_of_what_a_run_is_allowed():
    """In every binade all additions round one way; the bound is for any order in each entry."""
    shape = run_shape(1)
    worst = 0.0
    for value in np.random.default_rng(0).uniform(0.5, 1.0, 400):
        terms = np.full(shape.records, np.float32(value))
        worst = max(worst, abs(lost(terms)) / float(terms[0]))
    bound = _units_of_run(shape, 1) * UNIT
    assert 0.2 * bound <= worst <= bound


def test_each_entry_may_have_an_order_of_its_own():
    """In each entry two records of three, they first: more than one order for all would allow."""
    m = run_shape(1).records
    rng = np.random.default_rng(1)
    records = np.float64(rng.random((m, 20_000)) < 2 / 3)
    records /= np.linalg.norm(records, axis=1)[:, None]
    partial = np.cumsum(np.sort(records, axis=0)[::-1], axis=0)  # [k, entry]: the k-th results
    most = np.linalg.norm(np.sum(partial[1:], axis=0))
    assert m * (m + 1) / 2 < most <= _units_of_run(RunShape(m, 1), 1)


@pytest.mark.parametrize("positions", [2, 4, 8, 16, 64, 128, 200])
def test_positions_that_cancel_lose_nearly_what_a_run_is_allowed(positions):
    """Their large terms first, so that all others are added to the largest sum there can be."""
    shape, kappa = run_shape(positions), cancelling(positions)
    records, terms_of_all = shape.records, shape.records * positions
    # Each record: one positive term of (κ + 1)/2, tiny ones, and one of −(κ − 1)/2.
    peak = records * (kappa + 1) / 2
    scale = 2.0 ** math.floor(math.log2(peak)) / peak  # of a clip norm that makes it a power of two
    rising = one_way(peak * scale / records, 1)
    parts = [np.repeat(rising, records)]
    parts.append(one_way(peak * scale, terms_of_all - 2 * records + 1)[1:])
    parts.append(np.full(records, -(kappa - 1) / 2 * scale))
    off = abs(lost(np.concatenate(parts)))
    bound = _units_of_run(shape, positions) * UNIT * scale
    assert off <= bound
    if positions >= 16:  # fewer have hardly another than the two large ones
        assert off > bound / 2, "a bound half as large would not hold"


@pytest.mark.parametrize("positions", [512, 784, 4096])
def test_chunks_of_a_record_lose_nearly_what_they_are_allowed(positions):
    shape, kappa = run_shape(positions), cancelling(positions)
    chunks = positions // shape.positions
    peak = kappa / chunks
    scale = 2.0 ** math.floor(math.log2(peak)) / peak
    rising = one_way(peak * scale, shape.positions)
    # Every other chunk has the other sign in its large term, so that together they cancel; as far
    # above the power of two that it does not come to lie below it.
    falling = rising.copy()
    falling[0] = -rising[0] * np.float32(1 + 2.0**-12)
    off = sum(lost(falling if k % 2 else rising) for k in range(chunks))
    bound = _units_of_run(shape, positions) * UNIT * scale
    assert bound / 2 < abs(off) <= bound


@pytest.mark.parametrize("positions", [1, 2, 3, 16, 100, 128, 300, 400, 784, 5_000, 20_000])
def test_two_runs_are_within_what_the_slack_has_for_them(positions):
    shape = run_shape(positions)
    compared = 3 if shape.records == 1 else 4  # in two places, on two neighbours
    assert compared * _units_of_run(shape, positions) <= 21 << 10
    longer = shape._replace(records=shape.records + 1)
    if shape.positions == positions:
        assert 4 * _units_of_run(longer, positions) > 21 << 10 or positions > 128
    for records in (64, 250_000):
        assert slack_of_runs(records, UNIT) <= 0.0018  # within the 0.002 that is promised


def hostile(positions, entries, records):
    """(rows, columns) [records, 1, positions, ·] of records of norm 1 whose positions cancel."""
    kappa = cancelling(positions)
    peak = 2.0 ** math.floor(math.log2((kappa + 1) / 2))
    terms = one_way(peak, positions)
    terms[-1] = -peak + 0.5
    rows = np.tile(terms[None, None, :, None], (records, 1, 1, entries))
    rows = (rows / np.sqrt(entries)).astype(np.float32)
    columns = np.full((records, 1, positions, entries), 1 / np.sqrt(entries), np.float32)
    return rows, columns


@pytest.mark.parametrize("form", ["loop", "at once"])
@pytest.mark.parametrize(
    ("positions", "records", "entries"),
    [(1, 300, 16), (8, 200, 16), (64, 40, 16), (512, 20, 4), (4_096, 6, 4)],
)
def test_a_sum_moves_by_no_more_than_its_slack(positions, records, entries, form, monkeypatch):
    """A record is taken out, and the last one moves into its place: the exact difference."""
    monkeypatch.setattr(jax, "device_count", lambda: 1 if form == "loop" else 8)
    monkeypatch.setattr("dpjax.gradients.compensated._AT_ONCE_ON_CPU", 0)
    rows, columns = hostile(positions, entries, records)
    rows[1::2] *= np.float32(0.7)  # so that it matters who is where
    mask = np.ones(records, np.float32)
    summed = jax.jit(lambda r, c, f: weighted_total(OuterProducts(r, c), f, entries))

    def total(rows, mask):
        pair = summed(rows, columns, mask)
        return np.float64(pair.total) + np.float64(pair.error)

    whole = total(rows, mask)
    exact = np.einsum("gtk,gtn->gkn", np.float64(rows[0]), np.float64(columns[0]))
    moved = rows.copy()
    moved[0], mask[-1] = rows[-1], 0.0
    slack = rounding_slack(records, 1, in_place=True)
    assert np.linalg.norm(whole - total(moved, mask) - exact) <= slack
    if form == "loop" and positions > 1:  # all of it is off by less than runs that have all moved
        truth = np.einsum("bgtk,bgtn->gkn", np.float64(rows), np.float64(columns))
        shifted = rounding_slack(records, 1, positions=positions)
        assert np.linalg.norm(whole - truth) <= shifted / 2


def test_a_slack_of_one_position_would_not_do_for_eight():
    """The terms of all records round one way: more than the bound for gradients that are formed."""
    positions, records = 8, 64
    kappa = cancelling(positions)
    shape = run_shape(positions)
    peak = shape.records * (kappa + 1) / 2
    scale = 2.0 ** math.floor(math.log2(peak)) / peak
    run = one_way(peak * scale, shape.records * (positions - 1))
    off = abs(lost(run)) * (records // shape.records) / scale
    assert off > UNIT * records * (shape.records + 3) / 2  # what one position a record would allow
    assert off <= rounding_slack(records, 1, positions=positions) / 2


def cancelling_loss(params, record):
    x, y = record
    return jnp.sum((x @ params["w"]) * y)


@pytest.mark.parametrize("positions", [2, 8, 64])
def test_the_ghost_method_lets_no_record_cancel_further(positions):
    """Its norm is at least the sum of its terms' over κ."""
    width = 9 * positions  # of which the gradient itself is not formed
    x = np.zeros((3, positions, width), np.float32)
    y = np.ones((3, positions, width), np.float32) / np.sqrt(width)
    for one, left in enumerate((1e-4, 1e-2, 1.0)):
        x[one, :, 0] = np.where(np.arange(positions) % 2, -1.0, 1.0)
        x[one, 0, 0] += left
    clipped = jax.jit(clipped_grad(cancelling_loss, 1.0, "ghost"))
    params = {"w": jnp.zeros((width, width))}
    for one in range(3):
        alone = jax.tree.map(lambda leaf, k=one: leaf[k : k + 1], (x, y))
        norm = float(clipped(params, alone).norms[0])
        truth = np.linalg.norm(x[one].astype(float).T @ y[one].astype(float))
        sizes = np.sum(np.linalg.norm(x[one], axis=1) * np.linalg.norm(y[one], axis=1))
        assert norm >= max(truth, sizes / cancelling(positions)) * (1 - 1e-5)
        assert one < 2 or norm <= 8 * truth  # and what cancels less counts for more


@pytest.mark.parametrize("runs", [3, 64, 1_025, 3_000])
def test_blocks_of_runs_add_up_to_second_order(runs, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    values = np.random.default_rng(3).uniform(0.5, 1.0, (runs, 70_000 // runs + 1))
    values = np.float32(values)
    pair = jax.jit(functools.partial(sum_runs, lambda v: jnp.sum(v, axis=0), length=1))((values,))
    found = np.float64(pair.total) + np.float64(pair.error)
    np.testing.assert_allclose(
        found, np.sum(np.float64(values), axis=0), rtol=2 * 1_030 * UNIT**2 + 2.0**-45
    )
