"""Correlated noise: C applied to it is fresh noise again, and a run resumes to the last bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from dpjax import transforms
from dpjax.correlation import (
    BandedInverse,
    BufferedToeplitz,
    Toeplitz,
    identity,
    square_root,
)

STEPS = 12
TREE = {"w": jnp.zeros((80, 50)), "b": (jnp.zeros(3, jnp.bfloat16), jnp.zeros(()))}


def run(tx, updates, steps=STEPS, state=None):
    """The noise of so many steps, stacked, and the state after them."""
    state = tx.init(updates) if state is None else state

    def step(state, _):
        out, state = tx.update(updates, state)
        return state, out

    state, out = jax.lax.scan(step, state, None, length=steps)
    return out, state


@pytest.fixture(
    scope="module",
    params=[
        Toeplitz((2.0, 1.5, 1.0, 1.0, 0.25)),
        BandedInverse((0.5, -0.25, -0.1, -0.05)),
        BufferedToeplitz((0.9, 0.6, 0.3, 0.0), (0.3, 0.2, 0.3, 0.1)),
    ],
    ids=["banded", "banded-inverse", "buffered"],
)
def strategy(request):
    return request.param


@pytest.fixture(scope="module")
def noise(strategy):
    return run(transforms.correlated_noise(strategy, 0.7, jax.random.key(1)), TREE)[0]


@pytest.mark.parametrize(("wrong", "accepted"), [(1.0, True), (0.98, False), (1.02, False)])
def test_the_strategy_undoes_the_correlation(noise, strategy, wrong, accepted):
    """Cy is white: chi-square of all 48,000 numbers, two-sided p = 1e-4."""
    y = np.asarray(noise["w"], np.float64).reshape(STEPS, -1)
    z = strategy.matrix(STEPS) @ y / (0.7 * wrong)
    statistic = np.sum(z**2)
    p = 2 * min(stats.chi2.cdf(statistic, z.size), stats.chi2.sf(statistic, z.size))
    assert (p > 1e-4) == accepted
    if wrong == 1.0:
        assert stats.kstest(z.ravel(), "norm").pvalue > 1e-4
        off = np.corrcoef(z)[np.triu_indices(STEPS, 1)]
        assert np.abs(off).max() < 5 / np.sqrt(z.shape[1])
        white = np.corrcoef(y)[np.triu_indices(STEPS, 1)]
        assert np.abs(white).max() > 0.3  # and what is added is not


def test_another_strategy_does_not_undo_it(noise):
    y = np.asarray(noise["w"], np.float64).reshape(STEPS, -1)
    z = square_root(5).matrix(STEPS) @ y / 0.7
    assert np.abs(np.corrcoef(z)[np.triu_indices(STEPS, 1)]).max() > 0.1


def test_every_leaf_has_noise_of_its_own_in_its_dtype(noise):
    half, scalar = noise["b"]
    assert half.dtype == jnp.bfloat16
    assert half.shape == (STEPS, 3)
    first = [np.asarray(noise["w"][:, 0, 0]), np.asarray(half[:, 0], np.float32), scalar]
    assert all(len(np.unique(column)) > STEPS - 2 for column in first)
    assert not np.allclose(first[0], first[2])


@pytest.mark.parametrize("stop", [1, 3, 7])
def test_a_run_continues_from_its_state_to_the_last_bit(strategy, stop):
    """By one compiled step: two programs may round the same noise to neighbouring numbers."""
    tx = transforms.correlated_noise(strategy, 0.7, jax.random.key(1))
    update = jax.jit(tx.update)

    def following(state, steps):
        out = []
        for _ in range(steps):
            noise, state = update(TREE, state)
            out.append(noise)
        return out, state

    whole, _ = following(tx.init(TREE), STEPS)
    _, state = following(tx.init(TREE), stop)
    bits = jax.tree.map(np.asarray, state._replace(key=jax.random.key_data(state.key)))
    stored = jax.tree.map(jnp.asarray, bits)
    stored = stored._replace(key=jax.random.wrap_key_data(stored.key))
    rest, _ = following(stored, STEPS - stop)
    jax.tree.map(np.testing.assert_array_equal, rest, whole[stop:])
    again, _ = following(state, STEPS - stop)  # the step after a crash, once more
    jax.tree.map(np.testing.assert_array_equal, rest, again)


def test_without_bands_it_is_white_and_scaled():
    zero = jnp.zeros(20_000)
    one, _ = run(transforms.correlated_noise(identity(), 1.0, jax.random.key(2)), zero, 2)
    half, _ = run(transforms.correlated_noise(Toeplitz((2.0,)), 2.0, jax.random.key(2)), zero, 2)
    np.testing.assert_allclose(one, half, rtol=1e-6)
    assert stats.kstest(np.asarray(one).ravel(), "norm").pvalue > 1e-4
    assert abs(np.corrcoef(np.asarray(one))[0, 1]) < 0.05
    plain = transforms.gaussian_noise(1.0, jax.random.key(2))
    assert not np.allclose(plain.update(zero, plain.init(zero))[0], one[0])  # its own salt


def test_groups_with_one_key_draw_different_noise(strategy):
    params = {"a": jnp.zeros(100), "b": jnp.zeros(100)}
    tx = transforms.correlated_noise(strategy, 1.0, jax.random.key(3))
    chain = optax.multi_transform({"a": tx, "b": tx}, {"a": "a", "b": "b"})
    out, _ = run(chain, params, 3)
    assert abs(np.corrcoef(np.asarray(out["a"]).ravel(), np.asarray(out["b"]).ravel())[0, 1]) < 0.3


@pytest.mark.at_length(every=3)
def test_what_is_kept_is_sharded_as_the_parameters_and_changes_nothing(strategy):
    mesh = jax.make_mesh((8,), ("x",), devices=jax.devices()[:8])
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None))
    params = jnp.zeros((64, 32))
    tx = transforms.correlated_noise(strategy, 1.0, jax.random.key(4))
    update = jax.jit(tx.update)
    placed = jax.device_put(params, spread)
    states = [tx.init(params), tx.init(placed)]
    kept = not isinstance(strategy, BandedInverse)  # four arrays of either
    if kept:
        assert states[1].past.sharding.shard_shape(states[1].past.shape) == (4, 8, 32)
    for _ in range(3):
        one, states[0] = update(params, states[0])
        other, states[1] = update(placed, states[1])
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)  # the order of five terms
    if kept:
        assert states[1].past.sharding.shard_shape(states[1].past.shape) == (4, 8, 32)


def test_of_a_banded_inverse_nothing_is_kept():
    """Any step's noise, from (key, step) alone; and the same as that of C with what it keeps."""
    inverse, key, steps = BandedInverse((1.0, -0.5, -0.125)), jax.random.key(5), 9
    tx = transforms.correlated_noise(inverse, 0.7, key)
    assert jax.tree.leaves(tx.init(TREE).past) == []
    out, _ = run(tx, TREE, steps)
    for t in (0, 1, 7):
        alone, _ = tx.update(TREE, transforms.CorrelatedState(key, jnp.asarray(t, jnp.int32), ()))
        jax.tree.map(lambda a, b, t=t: np.testing.assert_array_equal(a, b[t]), alone, out)
    kept, _ = run(transforms.correlated_noise(inverse.toeplitz(steps), 0.7, key), TREE, steps)
    np.testing.assert_allclose(out["w"], kept["w"], rtol=0, atol=3e-6)


def test_buffers_hold_what_the_whole_past_would_give():
    """The noise of 300 steps, kept in two sums, undone by all coefficients of C in float64."""
    strategy = BufferedToeplitz((0.991, 0.77), (0.15, 0.32))
    key, zero = jax.random.key(6), jnp.zeros(200)
    out, state = run(transforms.correlated_noise(strategy, 1.0, key), zero, 300)
    assert state.past.shape == (2, 200)
    z = strategy.matrix(300) @ np.asarray(out, np.float64)
    alone, _ = run(transforms.correlated_noise(BandedInverse((1.0,)), 1.0, key), zero, 300)
    np.testing.assert_allclose(z, alone, rtol=0, atol=3e-6)  # some roundings of numbers up to 4
    assert np.abs(np.asarray(out) - np.asarray(alone)).max() > 1.0


def test_one_update_of_it_has_no_price(strategy):
    chain = optax.chain(
        transforms.clip_per_example(1.0),
        transforms.correlated_noise(strategy, 1.0, jax.random.key(0)),
    )
    with pytest.raises(ValueError, match="correlated_noise, whose steps have no price"):
        transforms.released(chain)


def test_what_is_asked_is_checked(strategy):
    key = jax.random.key(0)
    for bad in (
        lambda: transforms.correlated_noise((1.0, 0.5), 1.0, key),
        lambda: transforms.correlated_noise(strategy, -1.0, key),
        lambda: transforms.correlated_noise(strategy, float("nan"), key),
        lambda: transforms.correlated_noise(strategy, lambda step: 1.0, key),
        lambda: transforms.correlated_noise(strategy, 1.0, 3),
    ):
        with pytest.raises((TypeError, ValueError), match="must be"):
            bad()
