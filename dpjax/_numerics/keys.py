"""JAX keys as plain numbers, for operations that would count as a use of the keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


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
