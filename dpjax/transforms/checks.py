"""Errors at the call: which argument, what value, what is allowed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def positive(name: str, value: Any, allow_zero: bool = False) -> None:
    """Raise ValueError unless a concrete `value` is positive (or zero, if allowed) and finite.

    It has to be so in the widest floats that JAX computes with: as float32, 1e39 is infinite, and
    1e-39 loses digits or is 0.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
        return
    # NumPy: under a trace even constants of jax.numpy are traced.
    array = np.asarray(value)
    known = np.finfo(jax.dtypes.canonicalize_dtype(np.float64))
    inside = (array >= known.tiny) & (array <= known.max)
    if not np.all(inside | (array == 0) if allow_zero else inside):
        least = "zero or positive" if allow_zero else "positive"
        raise ValueError(f"{name} must be {least} and finite as {known.dtype}, got {value!r}")


def random_key(key: Any) -> None:
    """Raise ValueError unless `key` is one JAX key, typed or as its bits."""
    dtype, shape = getattr(key, "dtype", None), jnp.shape(key) if hasattr(key, "dtype") else None
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    bits = dtype == jnp.uint32 and shape in ((2,), (4,))
    if not (shape == () if typed else bits):
        raise ValueError(
            "key must be one JAX key, such as jax.random.key(seed) or transforms.fresh_key(), got "
            f"{key!r}"
        )


def whole(name: str, value: Any) -> None:
    """Raise ValueError unless `value` is a Python integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")


def batch_of(updates: Any) -> int:
    """The number of records: the leading axis that all leaves of the updates share."""
    leaves = jax.tree.leaves(updates)
    if not leaves:
        raise ValueError("updates must hold arrays, got none")
    sizes = {jnp.shape(leaf)[:1] for leaf in leaves}
    if len(sizes) != 1 or sizes == {()}:
        shapes = [jnp.shape(leaf) for leaf in leaves]
        raise ValueError(
            f"updates must share a leading axis of records over all leaves, got {shapes}"
        )
    return sizes.pop()[0]


def refuse_unless_unsafe(what: str, instead: str, unsafe_no_dp: bool) -> None:
    """Raise ValueError unless the caller says that he knows there is no guarantee."""
    if unsafe_no_dp is not True:
        raise ValueError(
            f"{what} has no differential-privacy guarantee. Use {instead}; to reproduce published "
            "results anyway pass unsafe_no_dp=True."
        )
