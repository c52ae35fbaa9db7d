"""Draws with replacement: uniform, independent, a record as often as it is drawn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax import sampling


def test_every_sequence_of_draws_is_as_likely():
    def draw(step):
        return sampling.with_replacement(jax.random.key(5), step, population=3, batch_size=4)

    batch = jax.jit(jax.vmap(draw))(jnp.arange(40_000))
    assert bool(batch.mask.all())
    numbers = np.asarray(batch.indices) @ 3 ** np.arange(4)
    counts = np.bincount(numbers, minlength=81)
    assert counts.size == 81
    assert stats.chisquare(counts).pvalue > 1e-4
    again = draw(17).indices
    np.testing.assert_array_equal(again, batch.indices[17])


@pytest.mark.parametrize("population", [1, 3, 60_000, (1 << 24) + 7, (1 << 31) - 1])
def test_a_draw_is_64_bits_modulo_the_population(population):
    key, size = jax.random.key(1), 50
    batch = sampling.with_replacement(key, 4, population=population, batch_size=size)
    high, low = np.asarray(jax.random.bits(jax.random.fold_in(key, 4), (2, size), jnp.uint32))
    truth = [(int(h) * 2**32 + int(l)) % population for h, l in zip(high, low, strict=True)]
    assert batch.indices.tolist() == truth


def test_bad_arguments_are_named():
    for name in ("population", "batch_size"):
        settings = {"population": 4, "batch_size": 2} | {name: 0}
        with pytest.raises(ValueError, match=rf"{name} must .* got 0"):
            sampling.with_replacement(jax.random.key(0), 0, **settings)
