"""The records of a step, padded to a static length, and checks of what samplers are given."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
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


def positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def padded(inclusion: Bool[Array, " population"], capacity: int) -> Batch:
    """The records whose flag is set; none of them if they are more than the slots."""
    size = jnp.sum(inclusion, dtype=jnp.int32)
    indices = jnp.nonzero(inclusion, size=capacity, fill_value=0)[0].astype(jnp.int32)
    slots = jnp.arange(capacity, dtype=jnp.int32)
    return Batch(indices, (slots < size) & (size <= capacity))


def between(name: str, value: int, low: int, high: int, what: str = "records") -> None:
    if not low <= value <= high:
        raise ValueError(
            f"{name} must be between {low} and the {high} {what} there are, got {value}"
        )
