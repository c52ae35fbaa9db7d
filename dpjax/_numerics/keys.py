"""JAX keys as plain numbers, for operations that would count as a use of the keys."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._numerics.threefry import block, written_out


def bits_of_key(key: Any) -> np.ndarray:
    """A concrete key as NumPy bits, also under a trace.

    Example:
        >>> bits_of_key(jax.random.key(7)).tolist()
        [0, 7]
    """
    with jax.ensure_compile_time_eval():
        return np.asarray(jax.random.key_data(key))


def might_be_key(leaf: Any) -> bool:
    """Whether an array is keys, typed or as their bits.

    Example:
        >>> might_be_key(jax.random.key(7)), might_be_key(jnp.zeros(2))
        (True, False)
    """
    dtype = jnp.result_type(leaf)
    return dtype == jnp.uint32 or jnp.issubdtype(dtype, jax.dtypes.prng_key)


def bits_of_keys(tree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The tree with typed keys as their bits, and the function that types them again."""
    leaves, structure = jax.tree.flatten(tree)
    kinds = [
        jax.random.key_impl(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else None
        for x in leaves
    ]
    bits = [
        x if kind is None else jax.random.key_data(x) for x, kind in zip(leaves, kinds, strict=True)
    ]

    def typed(tree):
        keys = [
            x if kind is None else jax.random.wrap_key_data(x, impl=kind)
            for x, kind in zip(jax.tree.leaves(tree), kinds, strict=True)
        ]
        return structure.unflatten(keys)

    return structure.unflatten(bits), typed


class Unfolded(NamedTuple):
    """A key and the words that are still to be folded into it.

    What draws from it folds them all in one loop. No function of `jax.random` takes one, so that
    none draws from a key before its words are in it.

    Fields:
        key: a JAX key, typed or raw.
        words: whole numbers below 2^32, or int32 arrays.
    """

    key: Any
    words: tuple[Any, ...]


def unfolded(key: Any, *words: Any) -> Any:
    """The key with these words still to be folded into it, after those that wait already.

    Example:
        >>> key = jax.random.key(7)
        >>> bool(folded(unfolded(key, 1), 2) == folded(key, 1, 2))
        True
    """
    key, earlier = key if isinstance(key, Unfolded) else (key, ())
    # Of Python's own numbers, those beyond 2^31 are no int32.
    new = (word if hasattr(word, "dtype") else np.uint32(word) for word in words)
    return Unfolded(key, (*earlier, *new))


def folded(key: Any, *words: Any) -> Any:
    """`fold_in` of one word after the other, which is compiled once however many they are.

    Every `fold_in` of a program is a generator of its own to a compiler that shares nothing, and a
    step of private training would have six; one in a loop has the same bits.

    Args:
        key: a JAX key, typed or raw, or one whose first words wait: `unfolded(key, *first)`.
        words: whole numbers below 2^32, or int32 arrays.

    Example:
        >>> key = jax.random.key(7)
        >>> bool(folded(key, 1, 2) == jax.random.fold_in(jax.random.fold_in(key, 1), 2))
        True
    """
    key, words = unfolded(key, *words)
    return _folded(key, *_apart(key, words)) if words else key


def first_bits(key: Any, count: int) -> Any:
    """`jax.random.bits(folded(key), (count,), jnp.uint32)`, in the loop that folds the words.

    Args:
        key: as `folded` takes it.
        count: of the words, a few: each is a lane of the loop.

    Example:
        >>> key = jax.random.key(7)
        >>> own = jax.random.fold_in(jax.random.fold_in(key, 1), 2)
        >>> first_bits(unfolded(key, 1, 2), 4).tolist() == jax.random.bits(own, (4,)).tolist()
        True
    """
    key, words = unfolded(key)
    if not written_out(key) or not words:
        return jax.random.bits(folded(unfolded(key, *words)), (count,), jnp.uint32)
    return _first_bits(key, *_apart(key, words), count)


def _apart(key: Any, words: tuple[Any, ...]) -> tuple[tuple[int | None, ...], tuple[Any, ...]]:
    """The words that a program may hold as constants, None in place of the others; and those.

    Outside a trace it holds none: there the next step would be another program.
    """
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((key, words))):
        return (None,) * len(words), words
    known = tuple(int(word) if isinstance(word, np.generic) else None for word in words)
    return known, tuple(word for word in words if not isinstance(word, np.generic))


def _word(known: tuple[int | None, ...], others: tuple[Any, ...], number: Any) -> Any:
    """The word of this number. Joined in an array, they would be a program of their own."""
    word = jnp.asarray(np.array([one or 0 for one in known], np.uint32))[number]
    places = [place for place, one in enumerate(known) if one is None]
    for place, other in zip(places, others, strict=True):
        word = jnp.where(number == place, jnp.asarray(other).astype(jnp.uint32), word)
    return word


@functools.partial(jax.jit, static_argnums=1)
def _folded(key: Any, known: tuple[int | None, ...], others: tuple[Any, ...]) -> Any:
    bits, typed = bits_of_keys(key)

    def fold(number, bits):
        word = _word(known, others, number)
        if written_out(key):
            # What `fold_in` is: the block of the key whose counter is the word.
            return jnp.stack(block(bits, (jnp.zeros_like(bits[0]), word)))
        return bits_of_keys(jax.random.fold_in(typed(bits), word))[0]

    return typed(jax.lax.fori_loop(0, len(known), fold, _varying(bits, others)))


@functools.partial(jax.jit, static_argnums=(1, 3))
def _first_bits(
    key: Any, known: tuple[int | None, ...], others: tuple[Any, ...], count: int
) -> Any:
    """The last fold has one counter a lane: word i of a key is the two words of its block i."""
    first = bits_of_keys(key)[0]
    # Counted from one, they are a constant; from zero, XLA would write them by a program.
    lanes = jnp.asarray(np.arange(1, count + 1, dtype=np.uint32))

    def fold(number, bits):
        last = number == len(known)
        own = [jnp.where(number == 0, word, x) for word, x in zip(first, bits, strict=True)]
        word = _word((*known, 0), others, number)
        counter = jnp.where(last, lanes, word + np.uint32(1)) - np.uint32(1)
        x, y = block(own, (jnp.zeros_like(lanes), counter))
        return jnp.where(last, x ^ y, x), y

    start = _varying(lanes, (first, others))
    return jax.lax.fori_loop(0, len(known) + 1, fold, (start, start))[0]


def _varying(bits: Any, others: Any) -> Any:
    """The bits, varying over the devices of a `shard_map` where the others do."""
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return bits
    for leaf in jax.tree.leaves(others):
        # Zero times a number varies where the number does.
        zeros = jnp.asarray(leaf).astype(jnp.uint32) * np.uint32(0)
        bits = bits + jnp.sum(zeros, dtype=jnp.uint32)
    return bits
