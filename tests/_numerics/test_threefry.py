"""The written-out Threefry has the bits of `jax.random`, whatever key, shape and words."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from dpjax import sampling
from dpjax._numerics import keys as module
from dpjax._numerics.keys import block, fold_in_words, random_bits

KEYS = {
    "typed": lambda: jax.random.key(3),
    "raw": lambda: jax.random.PRNGKey(3),
    "all bits": lambda: jax.random.wrap_key_data(jnp.uint32([0xFEDCBA98, 0x76543210])),
    "rbg": lambda: jax.random.key(3, impl="rbg"),
}


def bits(key, shape):
    return np.asarray(jax.random.bits(key, shape, jnp.uint32))


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # of Random123's kat_vectors, threefry2x32 20
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1,) * 2, (2**32 - 1,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_known_answers(counter, key, words):
    assert tuple(int(word) for word in block(jnp.uint32(key), jnp.uint32(counter))) == words


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (2, 3, 4), (70_001,)])
@pytest.mark.parametrize("name", KEYS)
@pytest.mark.at_length(every=4)
def test_bits_are_those_of_jax_random(name, shape):
    expected = bits(KEYS[name](), shape)
    assert np.array_equal(random_bits(KEYS[name](), shape), expected)
    traced = jax.jit(lambda key: random_bits(key, shape))(KEYS[name]())
    assert traced.dtype == jnp.uint32
    assert np.array_equal(traced, expected)


@pytest.mark.parametrize("counted", [True, False])
def test_bits_follow_the_way_in_which_jax_counts(counted):
    """JAX's older way gives other bits to the same places: those are given then."""
    with jax.threefry_partitionable(counted):
        assert np.array_equal(random_bits(KEYS["typed"](), (5,)), bits(KEYS["typed"](), (5,)))
        found = random_bits(fold_in_words(KEYS["typed"](), 9), (4,))
        assert np.array_equal(found, bits(jax.random.fold_in(KEYS["typed"](), 9), (4,)))


def test_bits_of_many_keys():
    keys = jax.random.split(jax.random.key(0), 6).reshape(2, 3)
    found = jax.vmap(jax.vmap(lambda key: random_bits(key, (5,))))(keys)
    expected = jax.vmap(jax.vmap(lambda key: jax.random.bits(key, (5,))))(keys)
    assert np.array_equal(found, expected)


def test_sharded_bits_are_the_same():
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    rows = NamedSharding(mesh, PartitionSpec("data"))
    found = jax.jit(lambda key: random_bits(key, (1_024,)), out_shardings=rows)(KEYS["typed"]())
    assert np.array_equal(found, bits(KEYS["typed"](), (1_024,)))


@pytest.mark.parametrize("form", [lambda keys: keys, jax.random.key_data])
def test_an_array_of_keys_is_refused(form):
    """As `jax.random` does: its rows are no words of one key."""
    keys = form(jax.random.split(jax.random.key(0), 2))
    draws = (
        lambda keys: random_bits(keys, (2,)),
        lambda keys: fold_in_words(keys, 1),
        lambda keys: sampling.poisson_inclusion(keys, 0, population=2, rate=0.5),
    )
    for draw in draws:
        for call in (draw, jax.jit(draw)):
            with pytest.raises(ValueError, match="key must be a single key, got"):
                call(keys)


def test_bits_are_one_kernel():
    """JAX's own are ten on a CPU: all the rest of what a program of a few numbers costs."""
    program = jax.jit(lambda key: random_bits(key, (1_000,))).lower(KEYS["typed"]())
    text = program.compile().as_text()
    assert text.count(" fusion(") <= 2
    assert text.count(" while(") == 0


def test_a_step_after_another_is_no_new_program():
    """Outside a trace too, where its number is a number of Python's."""

    def drawn(step):
        fold_in_words(jax.random.key(5), step)
        return module._folded._cache_size()

    assert drawn(0) == drawn(1) == drawn(2)
