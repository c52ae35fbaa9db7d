"""The records of a step, padded to a static length, and checks of what samplers are given."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int


class Batch(NamedTuple):
    """The records of one step, padded to a static length.

    Fields:
        indices: positions in the data set; padded slots hold 0, so that gathering them is safe.
        mask: True where the slot holds a record of the batch.

    Example:
        >>> import jax
        >>> from dpjax import sampling
        >>> batch = sampling.poisson(jax.random.key(0), 3, population=100, rate=0.1)
        >>> batch.indices.shape, batch.mask.shape
        ((100,), (100,))
    """

    indices: Int[Array, " capacity"]
    mask: Bool[Array, " capacity"]


def whole(name: str, value: Any, kind: str = "a whole number") -> int:
    """The value as an int; Python would take True for 1, and a trace 1.5."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be {kind}, got {value!r}") from None


def positive(name: str, value: Any) -> int:
    if (count := whole(name, value)) < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return count


def number_of(name: str, value: Any, steps: int = 1 << 32) -> Any:
    """The number of a step, as it may be folded into a key; of a traced one its type is checked.

    What is no whole number would be rounded down, and draw the batch of another step again.
    """
    if isinstance(value, jax.core.Tracer) and jnp.issubdtype(value.dtype, jnp.integer):
        return value
    kind = f"a whole number in [0, {steps})"
    count = whole(name, value, kind)
    if not 0 <= count < steps:
        raise ValueError(f"{name} must be {kind}, got {value}")
    return value if isinstance(value, jax.Array) else np.uint32(count)


def padded(inclusion: Bool[Array, " population"], capacity: int) -> Batch:
    """The records whose flag is set; none of them if they are more than the slots."""
    size = jnp.sum(inclusion, dtype=jnp.int32)
    indices = jnp.nonzero(inclusion, size=capacity, fill_value=0)[0].astype(jnp.int32)
    slots = jnp.arange(capacity, dtype=jnp.int32)
    return Batch(indices, (slots < size) & (size <= capacity))


def between(name: str, value: Any, low: int, high: int, what: str = "records") -> int:
    if not low <= (count := whole(name, value)) <= high:
        raise ValueError(
            f"{name} must be between {low} and the {high} {what} there are, got {value}"
        )
    return count
