"""Cut Poisson batches: the drawn records, or a uniform choice of them."""

from __future__ import annotations

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax import sampling

_SETTINGS = {"population": 6, "rate": 0.5, "capacity": 2}


def test_the_drawn_are_kept_or_a_uniform_pair_of_them():
    def both(step):
        key = jax.random.key(3)
        batch = sampling.truncated_poisson(key, step, **_SETTINGS)
        return batch, sampling.poisson_inclusion(key, step, population=6, rate=0.5)

    batches, flags = jax.jit(jax.vmap(both))(jnp.arange(40_000))
    indices, mask, flags = (np.asarray(v) for v in (*batches, flags))
    drawn = flags.sum(axis=1)
    assert (mask.sum(axis=1) == np.minimum(drawn, 2)).all()
    assert (indices[~mask] == 0).all()
    rows = np.arange(len(flags))[:, None]
    assert (flags[rows, indices] | ~mask).all()
    pairs = np.sort(indices[drawn >= 2], axis=1)
    assert (pairs[:, 0] < pairs[:, 1]).all()
    assert stats.chisquare(np.unique(pairs @ [6, 1], return_counts=True)[1]).pvalue > 1e-4
    # Within one draw too: of records 0, 2, 3, 5 each pair is as likely.
    one = drawn == 4
    one &= flags[:, [0, 2, 3, 5]].all(axis=1)
    kept = np.sort(indices[one], axis=1)
    assert {tuple(pair) for pair in kept.tolist()} == set(combinations((0, 2, 3, 5), 2))
    assert stats.chisquare(np.unique(kept @ [6, 1], return_counts=True)[1]).pvalue > 1e-4


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"capacity must .* got 7"):
        sampling.truncated_poisson(jax.random.key(0), 0, **(_SETTINGS | {"capacity": 7}))
    with pytest.raises(ValueError, match=r"rate must .* got 2.0"):
        sampling.truncated_poisson(jax.random.key(0), 0, **(_SETTINGS | {"rate": 2.0}))
