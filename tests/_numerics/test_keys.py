"""Words folded into a key: the bits of `fold_in`, whatever the key and the words."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from dpjax._numerics.keys import fold_in_words

WORDS = (0, 1, np.uint32(2**32 - 1), 17)


def one_by_one(key, *words):
    return functools.reduce(jax.random.fold_in, words, key)


def bits(key):
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(key) if typed else key)


@pytest.mark.parametrize(
    "key", [jax.random.key(3), jax.random.PRNGKey(3), jax.random.key(3, impl="rbg")]
)
def test_the_bits_are_those_of_one_word_after_the_other(key):
    expected = bits(one_by_one(key, *WORDS))
    assert bits(fold_in_words(key, *WORDS)).tolist() == expected.tolist()
    traced = jax.jit(lambda key, step: fold_in_words(key, 0, step, *WORDS[2:]))(key, jnp.int32(1))
    assert bits(traced).tolist() == expected.tolist()


def test_many_keys_and_many_steps():
    keys, steps = jax.random.split(jax.random.key(0), 5), jnp.arange(5)
    found = jax.vmap(lambda key, step: fold_in_words(key, step, 9))(keys, steps)
    expected = jax.vmap(lambda key, step: one_by_one(key, step, 9))(keys, steps)
    assert bits(found).tolist() == bits(expected).tolist()


def test_a_word_of_each_device():
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])

    def own(key):
        return jax.random.key_data(fold_in_words(key, 5, jax.lax.axis_index("data")))[None]

    spec = PartitionSpec("data")
    found = jax.shard_map(own, mesh=mesh, in_specs=PartitionSpec(), out_specs=spec)(
        jax.random.key(1)
    )
    expected = [bits(one_by_one(jax.random.key(1), 5, place)) for place in range(4)]
    assert np.asarray(found).tolist() == np.asarray(expected).tolist()
