"""One compiled call, the same runs whatever the chunk, and refusals that say what to do."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import audit


def _noisy_sum(key, data):
    return data.sum() + jax.random.normal(key)


def test_chunks_do_not_change_the_runs():
    worlds = jnp.zeros(3), jnp.ones(4)
    one = audit.run_trials(_noisy_sum, *worlds, key=jax.random.key(3), trials=500, chunk_size=500)
    many = audit.run_trials(_noisy_sum, *worlds, key=jax.random.key(3), trials=500, chunk_size=64)
    np.testing.assert_array_equal(one, many)


def test_runs_are_independent_between_trials_and_worlds():
    first, second = audit.run_trials(
        _noisy_sum, jnp.zeros(1), jnp.zeros(1), key=jax.random.key(0), trials=20_000
    )
    assert np.unique(np.concatenate([first, second])).size > 39_000
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.03


@pytest.mark.parametrize(("records", "traces"), [(2, 2), (3, 4)])
def test_a_hundred_thousand_runs_share_one_compilation(records, traces):
    # A shape check and a program, shared by the two worlds where their shapes agree.
    chex.clear_trace_counter()
    traced = chex.assert_max_traces(_noisy_sum, n=traces)

    for seed in range(3):
        first, second = audit.run_trials(
            traced, jnp.zeros(2), jnp.ones(records), key=jax.random.key(seed), trials=100_000
        )
        assert first.shape == (100_000,)
        assert abs(second.mean() - first.mean() - records) < 0.02


def test_worlds_that_share_a_program_have_their_own_runs():
    # The same runs as with a record more that changes nothing, where the worlds do not share.
    one, two = (
        audit.run_trials(_noisy_sum, jnp.zeros(2), other, key=jax.random.key(5), trials=500)
        for other in (jnp.ones(2), jnp.array([1.0, 1.0, 0.0]))
    )
    np.testing.assert_allclose(one, two, atol=1e-6)


def test_progress_shows_and_changes_nothing(capsys):
    arguments = (_noisy_sum, jnp.zeros(1), jnp.ones(1))
    quiet = audit.run_trials(*arguments, key=jax.random.key(0), trials=100, chunk_size=50)
    shown = audit.run_trials(
        *arguments, key=jax.random.key(0), trials=100, chunk_size=50, progress=True
    )
    np.testing.assert_array_equal(quiet, shown)


def test_a_vector_release_is_refused_with_advice():
    with pytest.raises(ValueError, match="project a vector release"):
        audit.run_trials(
            lambda key, data: data + jax.random.normal(key, (2,)),
            jnp.zeros(2),
            jnp.ones(2),
            key=jax.random.key(0),
        )


def test_nan_scores_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        audit.run_trials(
            lambda key, data: data.sum() * jnp.nan + jax.random.normal(key),
            jnp.zeros(1),
            jnp.ones(1),
            key=jax.random.key(0),
            trials=10,
        )


@pytest.mark.parametrize("arguments", [{"trials": 0}, {"chunk_size": 0}])
def test_empty_audits_are_refused(arguments):
    with pytest.raises(ValueError, match="must be at least 1"):
        audit.run_trials(_noisy_sum, jnp.zeros(1), jnp.ones(1), key=jax.random.key(0), **arguments)
