"""JAX keys as plain numbers, for operations that would count as a use of the keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


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


def folded(key: Any, *words: Any) -> Any:
    """`fold_in` of one word after the other, which is compiled once however many they are.

    Every `fold_in` of a program is a generator of its own to a compiler that shares nothing, and a
    step of private training would have six; one in a loop has the same bits.

    Args:
        key: a JAX key, typed or raw.
        words: whole numbers below 2^32, or int32 arrays.

    Example:
        >>> key = jax.random.key(7)
        >>> bool(folded(key, 1, 2) == jax.random.fold_in(jax.random.fold_in(key, 1), 2))
        True
    """
    return _folded(key, jnp.stack([jnp.asarray(word).astype(jnp.uint32) for word in words]))


@jax.jit
def _folded(key: Any, words: Any) -> Any:
    bits, typed = bits_of_keys(key)

    def fold(number, bits):
        return bits_of_keys(jax.random.fold_in(typed(bits), words[number]))[0]

    # Zero times a word varies over the devices of a mesh where the words do, as the result will.
    return typed(jax.lax.fori_loop(0, words.shape[0], fold, bits + words[0] * np.uint32(0)))
