"""One secret permutation, cut into batches that are visited in turn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from dpjax._numerics.keys import folded
from dpjax._other_names import taught
from dpjax.sampling.batch import Batch, between, number_of, positive


@taught
def cyclic_permutation(
    key: Key[Array, ""], step: int | Int[Array, ""], *, population: int, batch_size: int
) -> Batch:
    """Batch `step mod m` of one secret permutation, drawn once from the key; m = ⌈n / batch_size⌉.

    Each epoch visits every record once, in the same order. The last batch is padded when
    `batch_size` does not divide n. There is no amplification by subsampling: priced by
    `accounting.Shuffled`, or by the hidden-state bounds where only the last iterate is released.

    Example:
        >>> key = jax.random.key(0)
        >>> epoch = [cyclic_permutation(key, t, population=5, batch_size=2) for t in range(3)]
        >>> sorted(int(i) for b in epoch for i, real in zip(b.indices, b.mask) if real)
        [0, 1, 2, 3, 4]
    """
    population = positive("population", population)
    batch_size = between("batch_size", batch_size, 1, population)
    step = number_of("step", step)
    batches = -(-population // batch_size)
    order = jax.random.permutation(folded(key, 0), population).astype(jnp.int32)
    order = jnp.pad(order, (0, batches * batch_size - population))
    start = (jnp.asarray(step) % batches).astype(jnp.int32) * batch_size
    indices = jax.lax.dynamic_slice(order, (start,), (batch_size,))
    slots = start + jnp.arange(batch_size, dtype=jnp.int32)
    return Batch(indices, slots < population)
