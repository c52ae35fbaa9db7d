"""The bits of `jax.random` from a generator that compiles in less time.

JAX's own Threefry is a loop over a dozen arrays on a CPU, each of whose updates XLA compiles as a
program of its own; written out, the 20 rounds are one.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_COUNTED = 1 << 32  # places that one word of a counter tells apart


def block(key: Any, counter: Any) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds: the two words that a key of two gives a counter of two.

    Args:
        key: two words, uint32 arrays.
        counter: two words, of a shape that the key's broadcast to.

    Example:
        >>> key, counter = jnp.uint32([0, 0]), jnp.uint32([0, 0])
        >>> [hex(word) for word in block(key, counter)]
        ['0x6b200159', '0x99ba4efe']

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
    """Whether `block` gives the bits that `jax.random` has for this key.

    Raises:
        ValueError: an array of keys, whose rows would be taken for the words of one.
    """
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

    Args:
        key: a JAX key, typed or raw.
        shape: of the bits.

    Example:
        >>> key = jax.random.key(7)
        >>> bool((random_bits(key, (5,)) == jax.random.bits(key, (5,), jnp.uint32)).all())
        True
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
