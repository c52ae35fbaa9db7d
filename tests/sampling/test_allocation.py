"""Random allocation: every set of steps equally likely, in integers, and nobody dropped."""

from __future__ import annotations

from itertools import combinations
from math import comb

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax import sampling
from dpjax.sampling import samplers


def _flags(steps, chosen, population=20_000, key=0, epochs=(0,)):
    draw = jax.jit(
        lambda epoch, step: sampling.allocation_inclusion(
            jax.random.key(key), epoch, step, population=population, steps=steps, chosen=chosen
        )
    )
    return np.stack([[np.asarray(draw(e, s)) for s in range(steps)] for e in epochs])


@pytest.mark.parametrize(("steps", "chosen"), [(7, 1), (5, 2), (6, 4), (3, 3)])
def test_every_set_of_steps_is_equally_likely(steps, chosen):
    flags = _flags(steps, chosen)[0]
    assert (flags.sum(axis=0) == chosen).all()
    code = (1 << np.arange(steps)) @ flags
    sets = [sum(1 << s for s in some) for some in combinations(range(steps), chosen)]
    counts = [int((code == one).sum()) for one in sets]
    assert len(counts) == comb(steps, chosen)
    if len(counts) > 1:
        assert stats.chisquare(counts).pvalue > 1e-4
        # The same test refuses a step that is favoured by a fifth.
        skewed = np.asarray(counts) * np.where([one & 1 for one in sets], 1.2, 1.0)
        assert stats.chisquare(skewed * sum(counts) / skewed.sum()).pvalue < 1e-4


def test_records_and_epochs_are_independent():
    flags = _flags(4, 1, population=60, epochs=range(800))[:, 2].astype(float) - 0.25
    assert abs(flags.mean()) < 5 * np.sqrt(0.25 * 0.75 / flags.size)
    between = np.abs(flags.T @ flags / len(flags) - 0.1875 * np.eye(60))
    assert between.max() < 5.5 * 0.25 / np.sqrt(len(flags))
    assert abs((flags[1:] * flags[:-1]).mean()) < 5 * 0.1875 / np.sqrt(flags.size)


def test_batch_sizes_vary_as_a_binomial():
    sizes = _flags(4, 1, population=50, epochs=range(600)).sum(axis=2)
    assert (sizes.sum(axis=1) == 50).all()
    first = sizes[:, 0]
    edges = [8, 10, 12, 14, 16]
    observed = np.histogram(first, bins=[-1, *edges, 60])[0]
    cdf = stats.binom.cdf(np.array([*edges, 61]) - 1, 50, 0.25)
    expected = np.diff(np.concatenate([[0], cdf])) * len(first)
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4
    assert first.std() > 2.5  # a shuffled pass would have none


@pytest.mark.parametrize("count", [1, 2, 3, 7, 1000, 65_537, 2**31 - 1])
def test_the_choice_is_exact_in_integers(count):
    words = np.random.default_rng(0).integers(0, 2**32, (3, 500), dtype=np.uint32)
    words[:, 0], words[:, 1], words[1:, 2] = 2**32 - 1, 0, 2**32 - 1
    found = np.asarray(samplers._scale_words(jnp.asarray(words), count))
    whole = [int(a) + (int(b) << 32) + (int(c) << 64) for a, b, c in words.T]
    assert found.tolist() == [count * w >> 96 for w in whole]


def test_a_function_of_key_epoch_and_step_of_one_trace():
    draw = jax.jit(
        chex.assert_max_traces(
            lambda key, epoch, step: sampling.random_allocation(
                key, epoch, step, population=30, steps=3, capacity=20
            ),
            n=1,
        )
    )
    key = jax.random.key(2)
    eager = sampling.random_allocation(key, 5, 1, population=30, steps=3, capacity=20)
    chex.assert_trees_all_equal(draw(key, 5, 1), eager)
    seen = {
        tuple(draw(k, e, s).indices.tolist())
        for k in (key, jax.random.key(3))
        for e in (0, 5)
        for s in (0, 1)
    }
    assert len(seen) == 8
    # An epoch's draws are not those of the Poisson step of the same number.
    flags = sampling.poisson_inclusion(key, 5, population=30, rate=1 / 3)
    assert np.flatnonzero(flags).tolist() != eager.indices[eager.mask].tolist()


def test_a_step_that_does_not_fit_is_emptied_not_truncated():
    fits, settings = set(), {"population": 20, "steps": 12, "chosen": 6}

    @jax.jit
    def draw(step):
        key = jax.random.key(5)
        flags = sampling.allocation_inclusion(key, 0, step, **settings)
        return flags, sampling.random_allocation(key, 0, step, **settings, capacity=10)

    for step in range(12):
        flags, batch = draw(step)
        drawn = int(flags.sum())
        assert int(batch.mask.sum()) == (drawn if drawn <= 10 else 0)
        if drawn <= 10:
            assert batch.indices[batch.mask].tolist() == np.flatnonzero(flags).tolist()
        fits.add(drawn <= 10)
    assert fits == {True, False}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"population": 0}, "population must .* got 0"),
        ({"steps": 0}, "steps must .* got 0"),
        ({"steps": 2**31}, "steps must .* got 2147483648"),
        ({"chosen": 0}, "chosen must be between 1 and the 4 steps there are, got 0"),
        ({"chosen": 5}, "chosen must .* got 5"),
        ({"capacity": 101}, "capacity must .* got 101"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        sampling.random_allocation(
            jax.random.key(0), 0, 0, **({"population": 100, "steps": 4} | call)
        )
