"""Batches of a fixed size, without replacement, drawn afresh for every step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from dpjax._numerics.keys import folded
from dpjax._other_names import taught
from dpjax.sampling.batch import Batch, between, number_of, positive


@taught
def fixed_batch(
    key: Key[Array, ""], step: int | Int[Array, ""], *, population: int, batch_size: int
) -> Batch:
    """A uniform batch of exactly `batch_size` distinct records, drawn afresh for every step.

    Priced by `accounting.FixedBatchSampled`, under replace-one only: it is strictly worse than
    Poisson sampling of the same rate, and must never be priced as that.

    Example:
        >>> batch = fixed_batch(jax.random.key(0), 2, population=10, batch_size=4)
        >>> len(set(batch.indices.tolist())), bool(batch.mask.all())
        (4, True)
    """
    population = positive("population", population)
    batch_size = between("batch_size", batch_size, 1, population)
    step = number_of("step", step)
    order = jax.random.permutation(folded(key, step), population)
    return Batch(order[:batch_size].astype(jnp.int32), jnp.ones(batch_size, dtype=bool))
