"""Poisson sampling cut at a capacity: of a draw that does not fit, a uniform choice is kept."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from dpjax._numerics.keys import folded
from dpjax._other_names import taught
from dpjax.sampling.batch import Batch, between, number_of, positive
from dpjax.sampling.poisson import poisson_inclusion

# What tells the choice among the drawn from the draw itself: no step has this number.
_CHOICE = 0xFFFF_FFFE


@taught
def truncated_poisson(
    key: Key[Array, ""],
    step: int | Int[Array, ""],
    *,
    population: int,
    rate: float,
    capacity: int,
) -> Batch:
    """The records of `poisson_inclusion`, or `capacity` of them chosen uniformly if they are more.

    For memory that must be fixed. Priced by `accounting.TruncatedPoissonSampled`, and only by it:
    the choice makes a record's place depend on the others. The batch is padded to `capacity`.

    Args:
        key: a typed JAX key, kept as secret as the data.
        step: the step's number.
        population: number of records.
        rate: probability that a record is drawn, in (0, 1]; `realised_rate(rate)` is realised.
        capacity: the most records that are kept.

    Example:
        >>> batch = truncated_poisson(jax.random.key(0), 3, population=100, rate=0.5, capacity=20)
        >>> batch.indices.shape, int(batch.mask.sum()), len(set(batch.indices.tolist()))
        ((20,), 20, 20)
    """
    population, step = positive("population", population), number_of("step", step)
    capacity = between("capacity", capacity, 1, population)
    flags = poisson_inclusion(key, step, population=population, rate=rate)
    own = folded(key, _CHOICE, step)
    order = jax.random.permutation(own, population).astype(jnp.int32)
    # The drawn records first, each group in the uniform order: the first of them are a uniform set.
    drawn = order[jnp.argsort(~flags[order], stable=True)][:capacity]
    mask = jnp.arange(capacity, dtype=jnp.int32) < jnp.sum(flags, dtype=jnp.int32)
    return Batch(jnp.where(mask, drawn, 0), mask)
