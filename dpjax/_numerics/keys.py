"""JAX keys as plain numbers, and the bits of `jax.random` from a generator that compiles faster.

Operations on plain numbers do not count as a use of the keys.

JAX's own Threefry is a loop over a dozen arrays on a CPU, each of whose updates XLA compiles as a
program of its own; written out, the 20 rounds are one.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_COUNTED = 1 << 32  # places that one word of a counter tells apart


def block(key: Any, counter: Any) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds: the two words that a key of two gives a counter of two.

    References:
        Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".
    """
    shape = jnp.shape(counter[0])
    # Of one shape, and added by `lax`: 140 operations of `jnp` would take longer to trace.
    first, second, parity = (
        lax.broadcast_in_dim(word, shape, ()) if jnp.ndim(word) == 0 else word
        for word in (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    )
    keys = (first, second, parity)
    x, y = lax.add(counter[0], first), lax.add(counter[1], second)
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            x = lax.add(x, y)
            left = lax.shift_left(y, np.uint32(turn))
            right = lax.shift_right_logical(y, np.uint32(32 - turn))
            y = lax.bitwise_xor(lax.bitwise_or(left, right), x)
        x = lax.add(x, keys[(group + 1) % 3])
        y = lax.add(lax.add(y, keys[(group + 2) % 3]), np.uint32(group + 1))
    return x, y


def written_out(key: Any) -> bool:
    """Whether `block` gives the bits that `jax.random` has for this key; refuses several keys."""
    own_axes = not jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if jnp.ndim(key) != own_axes:
        raise ValueError(
            f"key must be a single key, got an array of shape {jnp.shape(key)}: use jax.vmap"
        )
    counted = getattr(jax.config, "jax_threefry_partitionable", True)
    return bool(counted) and jax.random.key_impl(key) == "threefry2x32"


def random_bits(key: Any, shape: tuple[int, ...]) -> Any:
    """`jax.random.bits(key, shape, jnp.uint32)`, to the bit.

    A consumer that XLA merges it into draws again what the others draw: give it one.
    """
    size = int(np.prod(shape, dtype=object))
    if not written_out(key) or size > _COUNTED:
        return jax.random.bits(key, shape, jnp.uint32)
    place, stride = jnp.zeros(shape, jnp.uint32), 1
    for axis in reversed(range(len(shape))):
        place += lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(stride)
        stride = stride * shape[axis] % _COUNTED
    x, y = block(jax.random.key_data(key), (jnp.zeros_like(place), place))
    return x ^ y


def bits_of_key(key: Any) -> np.ndarray:
    """A concrete key as NumPy bits, also under a trace."""
    with jax.ensure_compile_time_eval():
        return np.asarray(jax.random.key_data(key))


_NAMED: dict[bytes, tuple[str, bool]] = {}


def name_of_key(key: Any, *, drawn: bool = False) -> tuple[str, bool]:
    """The name of a key in this process, and whether `fresh_key` drew it.

    The name is random, so that a certificate may hold it: a digest would let whoever guesses a seed
    find out whether it is right.
    """
    digest = hashlib.sha256(bits_of_key(key).tobytes()).digest()
    return _NAMED.setdefault(digest, (secrets.token_hex(8), drawn))


def might_be_key(leaf: Any) -> bool:
    """Whether an array is keys, typed or as their bits."""
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
    """The key with these words still to be folded into it, after those that wait already."""
    key, earlier = key if isinstance(key, Unfolded) else (key, ())
    # Of Python's own numbers, those beyond 2^31 are no int32.
    new = (word if hasattr(word, "dtype") else np.uint32(word) for word in words)
    return Unfolded(key, (*earlier, *new))


def folded(key: Any, *words: Any) -> Any:
    """`fold_in` of one word after the other, which is compiled once however many they are.

    Every `fold_in` of a program is a generator of its own to a compiler that shares nothing, and a
    step of private training would have six; one in a loop has the same bits.
    """
    key, words = unfolded(key, *words)
    return _folded(key, *_apart(key, words)) if words else key


def first_bits(key: Any, count: int) -> Any:
    """`jax.random.bits(folded(key), (count,), jnp.uint32)`, in the loop that folds the words."""
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
