"""JAX keys as plain numbers, and the bits of `jax.random` from a generator that compiles faster.

Operations on plain numbers do not count as a use of the keys.

JAX's own Threefry is a loop over a dozen arrays on a CPU, each of whose updates XLA compiles as a
program of its own; written out, the 20 rounds are one.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, PyTree, UInt32

from dpjax._numerics.checks import is_array
from dpjax._numerics.namespace import AnyTree
from dpjax._numerics.typing import PRNGKey, StepNumber

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
# Two words, side by side or along one axis.
Words = Sequence[UInt32[Array, "..."]] | UInt32[Array, "2"]
_COUNTED = 1 << 32  # places that one word of a counter tells apart


def block(key: Words, counter: Words) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds: the two words that a key of two gives a counter of two.

    References:
        Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".
    """
    shape = jnp.shape(counter[0])
    # Words of one shape, added by `lax`: 140 operations of `jnp` would take longer to trace.
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


def is_threefry(key: PRNGKey) -> bool:
    """Whether `block` gives the bits that `jax.random` has for this key; refuses several keys."""
    own_axes = not jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if jnp.ndim(key) != own_axes:
        raise ValueError(
            f"key must be a single key, got an array of shape {jnp.shape(key)}: use jax.vmap"
        )
    counted = getattr(jax.config, "jax_threefry_partitionable", True)
    return bool(counted) and jax.random.key_impl(key) == "threefry2x32"


def random_bits(key: PRNGKey, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """`jax.random.bits(key, shape, jnp.uint32)`, to the bit.

    A consumer that XLA merges it into draws again what the others draw: give it one.
    """
    size = int(np.prod(shape, dtype=object))
    if not is_threefry(key) or size > _COUNTED:
        return jax.random.bits(key, shape, jnp.uint32)
    place, stride = jnp.zeros(shape, jnp.uint32), 1
    for axis in reversed(range(len(shape))):
        place += lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(stride)
        stride = stride * shape[axis] % _COUNTED
    x, y = block(jax.random.key_data(key), (jnp.zeros_like(place), place))
    return x ^ y


def bits_of_key(key: PRNGKey) -> np.ndarray:
    """A concrete key as NumPy bits, also under a trace."""
    with jax.ensure_compile_time_eval():
        return np.asarray(jax.random.key_data(key))


_NAMED: dict[bytes, tuple[str, bool]] = {}


def name_of_key(key: PRNGKey, *, drawn: bool = False) -> tuple[str, bool]:
    """The name of a key in this process, and whether `fresh_key` drew it.

    The name is random, so that a certificate may hold it: a digest would let whoever guesses a seed
    find out whether it is right.
    """
    digest = hashlib.sha256(bits_of_key(key).tobytes()).digest()
    return _NAMED.setdefault(digest, (secrets.token_hex(8), drawn))


def might_be_key(leaf: ArrayLike) -> bool:
    """Whether an array is keys, typed or as their bits."""
    dtype = jnp.result_type(leaf)
    return dtype == jnp.uint32 or jnp.issubdtype(dtype, jax.dtypes.prng_key)


def bits_of_keys(tree: AnyTree) -> tuple[PyTree[Array], Callable[[PyTree[Array]], AnyTree]]:
    """The tree with typed keys as their bits, and the function that types them again."""
    leaves, structure = jax.tree.flatten(tree)
    kinds = [
        jax.random.key_impl(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else None
        for x in leaves
    ]
    bits = [
        x if kind is None else jax.random.key_data(x) for x, kind in zip(leaves, kinds, strict=True)
    ]

    def typed(tree: PyTree[Array]) -> AnyTree:
        keys = [
            x if kind is None else jax.random.wrap_key_data(x, impl=kind)
            for x, kind in zip(jax.tree.leaves(tree), kinds, strict=True)
        ]
        return structure.unflatten(keys)

    return structure.unflatten(bits), typed


def fold_in_words(key: PRNGKey, *words: StepNumber) -> PRNGKey:
    """`fold_in` of one word after the other, whole numbers below 2^32 or int32 arrays."""
    if not is_array(key):
        raise TypeError(f"key must be one JAX key, such as jax.random.key(seed), got {key!r}")
    for word in words:
        # Python's own numbers beyond 2^31 are no int32.
        key = _folded(key, word if hasattr(word, "dtype") else np.uint32(word))
    return key


@jax.jit
def _folded(key: PRNGKey, word: StepNumber) -> PRNGKey:
    """What `fold_in` is: the block of the key whose counter is the word."""
    if not is_threefry(key):
        return jax.random.fold_in(key, word)
    bits, typed = bits_of_keys(key)
    word = jnp.asarray(word).astype(jnp.uint32)
    return typed(jnp.stack(block(bits, (jnp.zeros_like(word), word))))
