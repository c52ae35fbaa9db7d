"""Compensated sums: exact but for second order, in every form, in compiled programs."""

from __future__ import annotations

import fractions

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.gradients import clipped_grad, rounding_slack
from dpjax.gradients.compensated import (
    Compensated,
    add,
    add_noise,
    run_length,
    sum_over_records,
    two_sum,
)

UNIT = 2.0**-24  # of float32


@pytest.fixture
def one_device(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)


def product(rows, columns):
    return jnp.einsum("ik,in->kn", rows, columns, precision=jax.lax.Precision.HIGHEST)


def awkward(records):
    """Terms that round the same way again and again, where they are added one by one."""
    half = records // 2
    small = 0.75 * np.spacing(np.float32(half)) / 2
    return np.where(np.arange(records) < half, 1, small).astype(np.float32)


@pytest.mark.parametrize("form", ["loop", "at once"])
@pytest.mark.parametrize("records", [300, 1024, 5000, 16_384])
def test_a_pair_is_the_sum_to_second_order(form, records, monkeypatch):
    """Runs are exact here (one record each holds a number): what is left is the sum over runs."""
    monkeypatch.setattr(jax, "device_count", lambda: 1 if form == "loop" else 8)
    length, width = run_length(records), 600
    values = np.zeros(records, np.float32)
    values[::length] = awkward(-(-records // length)) * np.float32(1 / 3)
    rows, columns = jnp.asarray(values)[:, None], jnp.ones((records, width), jnp.float32)
    pair = jax.jit(lambda *x: sum_over_records(product, x))(rows, columns)
    truth = np.sum(values.astype(np.float64))
    found = np.asarray(pair.total, np.float64) + np.asarray(pair.error, np.float64)
    np.testing.assert_allclose(found, truth, rtol=2 * UNIT**2 * records)
    np.testing.assert_array_equal(pair.total, np.float32(truth))
    plain = np.float32(0)
    for value in values[::length]:
        plain += value
    assert records < 10_000 or abs(float(plain) - truth) > UNIT * truth / 2  # so it can fail


@pytest.mark.parametrize("records", [700, 4096])
def test_one_record_moves_the_sum_by_its_own_run(records, one_device):
    """Equal records, and those that round one way: the difference of two sums, exactly."""
    rng = np.random.default_rng(0)
    summed = jax.jit(lambda *x: sum_over_records(product, x))
    for kind in ("equal", "awkward", "normal"):
        rows = rng.normal(size=(records, 40)).astype(np.float32)
        rows /= np.linalg.norm(rows, axis=1)[:, None]
        columns = rng.normal(size=(records, 60)).astype(np.float32)
        columns /= np.linalg.norm(columns, axis=1)[:, None]
        if kind != "normal":
            rows, columns = np.repeat(rows[:1], records, 0), np.repeat(columns[:1], records, 0)
        if kind == "awkward":
            rows *= awkward(records)[:, None]
        whole = summed(rows, columns)
        for index in (0, records // 2, records - 1):
            rest = summed(np.where(np.arange(records)[:, None] == index, 0, rows), columns)
            moved = sum(np.float64(a) - np.float64(b) for a, b in zip(whole, rest, strict=True))
            slack = rounding_slack(records, 1, in_place=True)
            # The record's own norm is 1 but for the rounding of its two factors.
            assert np.linalg.norm(moved) <= (1 + 4 * UNIT) * (1 + slack)
            own = np.outer(rows[index].astype(float), columns[index].astype(float))
            assert np.linalg.norm(moved - own) <= slack


def test_two_sum_is_exact_in_compiled_programs():
    rng = np.random.default_rng(1)
    a = (rng.normal(size=500) * 10.0 ** rng.integers(-12, 12, 500)).astype(np.float32)
    b = (rng.normal(size=500) * 10.0 ** rng.integers(-12, 12, 500)).astype(np.float32)
    exported = jax.export.export(jax.jit(two_sum))(a, b)
    for how in (two_sum, jax.jit(two_sum), jax.jit(jax.vmap(two_sum)), exported.call):
        for one, other, total, lost in zip(a, b, *map(np.asarray, how(a, b)), strict=True):
            exact = fractions.Fraction(float(one)) + fractions.Fraction(float(other))
            assert fractions.Fraction(float(total)) + fractions.Fraction(float(lost)) == exact


def test_pairs_add_up_in_any_order_to_second_order():
    values = np.float32(np.random.default_rng(2).uniform(0.5, 2, (64, 8)))
    zero = Compensated(jnp.zeros(8), jnp.zeros(8))

    def added(order):
        pair = zero
        for number in order:
            pair = add(pair, Compensated(jnp.asarray(values[number]), jnp.zeros(8)))
        return sum(np.float64(part) for part in pair)

    truth = values.astype(np.float64).sum(axis=0)
    for order in (range(64), reversed(range(64))):
        np.testing.assert_allclose(added(order), truth, rtol=64 * 4 * UNIT**2)


def test_noise_is_added_to_the_pair_with_one_rounding():
    """The error of a sum that float32 cannot hold decides how its noisy value is rounded."""
    total, error = jnp.float32(2.0**24), jnp.asarray([-0.75, 0.0, 0.75, 0.99], jnp.float32)
    noise = jnp.full(4, 0.5, jnp.float32)
    pair = Compensated(jnp.full(4, total), error)
    found = jax.jit(add_noise)(pair, noise)
    exact = 2.0**24 + np.asarray(error, np.float64) + 0.5
    assert np.all(np.abs(np.asarray(found, np.float64) - exact) <= 1)
    np.testing.assert_array_equal(found, exact.astype(np.float32))


@pytest.mark.parametrize("method", ["ghost", "vmap"])
def test_the_loop_and_one_product_give_one_sum(method, monkeypatch):
    key = jax.random.split(jax.random.key(0), 3)
    params = {"w": jax.random.normal(key[0], (70, 50)), "b": jnp.zeros(50)}
    x = jax.random.normal(key[1], (900, 70))

    def loss(params, x):
        return jnp.sum(jnp.tanh(x @ params["w"] + params["b"]))

    found = []
    for devices in (1, 8):
        monkeypatch.setattr(jax, "device_count", lambda n=devices: n)
        found.append(jax.jit(clipped_grad(loss, 0.5, method, microbatch_size=None))(params, x))
    for a, b in zip(*(jax.tree.leaves(own.sum) for own in found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found[0].norms, found[1].norms)
