"""Errors at the call: which argument, what value, what is allowed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from dpjax._numerics.checks import scalar, shown

_MOST = 2**31 - 1  # what a counter of 32 bits holds


def positive(name: str, value: Any, allow_zero: bool = False) -> None:
    """Raise unless a concrete `value` is one number, positive (or zero, if allowed) and finite.

    It has to be so in the widest floats that JAX computes with: as float32, 1e39 is infinite, and
    1e-39 loses digits or is 0.
    """
    if not isinstance(value, float):  # NaN gets the message below
        scalar(name, value)
    if isinstance(value, jax.core.Tracer):
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
    """Raise ValueError unless `value` is a Python integer from 1 to 2³¹ − 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    if value > _MOST:
        raise ValueError(f"{name} must be at most {_MOST}, got {shown(value)}")


def batch_of(updates: Any) -> int:
    """The number of records: the leading axis that all leaves of the updates share."""
    leaves = jax.tree.leaves(updates)
    if not leaves:
        raise ValueError("updates must hold arrays, got none")
    if any(jnp.iscomplexobj(leaf) for leaf in leaves):
        raise ValueError(
            "updates must be real, got complex ones; give real and imaginary parts as leaves"
        )
    sizes = {jnp.shape(leaf)[:1] for leaf in leaves}
    if len(sizes) != 1 or sizes == {()}:
        shapes = [jnp.shape(leaf) for leaf in leaves]
        raise ValueError(
            f"updates must share a leading axis of records over all leaves, got {shapes}"
        )
    return sizes.pop()[0]


def mask_of(records: int, mask: Any, name: str = "mask") -> Bool[Array, " b"]:
    """The mask as booleans, all of them True where it is None; one number for each record.

    A column [b, 1] would broadcast against [b], and every record count as often as there are some.
    """
    if mask is None:
        return jnp.ones(records, bool)
    if jnp.shape(mask) != (records,):
        raise ValueError(f"{name} must have shape ({records},), got {jnp.shape(mask)}")
    return jnp.asarray(mask, bool)


def refuse_unless_unsafe(what: str, instead: str, unsafe_no_dp: bool) -> None:
    """Raise ValueError unless the caller says that he knows there is no guarantee."""
    if unsafe_no_dp is not True:
        raise ValueError(
            f"{what} has no differential-privacy guarantee. Use {instead}; to reproduce published "
            "results anyway pass unsafe_no_dp=True."
        )
