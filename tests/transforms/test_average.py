"""Averaging with restart, against a loop in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import transforms


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_against_a_loop(every, dtype):
    rng = np.random.default_rng(0)
    steps = rng.standard_normal((11, 3)).astype(np.float32) / 8
    tx = transforms.periodic_average(every)
    w = {"a": jnp.ones(3, dtype)}
    state = tx.init(w)
    expected, recent = np.ones(3), []
    for step in steps:
        update, state = jax.jit(tx.update)({"a": jnp.asarray(step, dtype)}, state, w)
        w = optax.apply_updates(w, update)
        expected = expected + step
        recent.append(expected)
        if len(recent) == every:
            expected, recent = np.mean(recent, axis=0), []
        np.testing.assert_allclose(w["a"], expected, atol=1e-5 if dtype == jnp.float32 else 0.06)


def test_long_windows_in_16_bits():
    """A running mean kept in bfloat16 would stop moving; this one reaches the exact mean."""
    tx = transforms.periodic_average(1000)
    w = jnp.zeros((), jnp.bfloat16)
    state = tx.init(w)

    def step(carry, t):
        w, state = carry
        update, state = tx.update(jnp.where(t == 499, 1.0, 0.0).astype(jnp.bfloat16), state, w)
        return (optax.apply_updates(w, update), state), None

    (w, _), _ = jax.lax.scan(step, (w, state), jnp.arange(1000))
    assert float(w) == pytest.approx(0.501, abs=0.003)


def test_needs_params_and_a_whole_number():
    with pytest.raises(ValueError, match=r"every must .* got 0"):
        transforms.periodic_average(0)
    tx = transforms.periodic_average(2)
    with pytest.raises(ValueError, match="params"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
