"""Batches of a fixed number of draws, with replacement: a record can be in one several times."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, UInt

from dpjax._numerics.keys import folded
from dpjax._other_names import taught
from dpjax.sampling.batch import Batch, between, number_of, positive


@taught
def with_replacement(
    key: Key[Array, ""], step: int | Int[Array, ""], *, population: int, batch_size: int
) -> Batch:
    """So many independent uniform draws of one record each, drawn afresh for every step.

    A record drawn twice stands in two slots and counts twice. Priced by
    `accounting.WithReplacement`, under replace-one only, and by nothing else: no other scheme lets
    a record count more than once. A draw is 64 random bits modulo the population, so that two
    records' probabilities differ by at most 2⁻⁶⁴.

    Args:
        key: a typed JAX key, kept as secret as the data.
        step: the step's number.
        population: number of records.
        batch_size: draws of a step; it may exceed the population.

    Example:
        >>> batch = with_replacement(jax.random.key(0), 2, population=3, batch_size=5)
        >>> batch.indices.shape, bool((batch.indices < 3).all()), bool(batch.mask.all())
        ((5,), True, True)
    """
    population = between("population", population, 1, (1 << 31) - 1)
    batch_size, step = positive("batch_size", batch_size), number_of("step", step)
    words = jax.random.bits(folded(key, step), (2, batch_size), jnp.uint32)
    indices = _modulo(words, population).astype(jnp.int32)
    return Batch(indices, jnp.ones(batch_size, dtype=bool))


def _modulo(words: UInt[Array, "words draws"], population: int) -> UInt[Array, " draws"]:
    """The number whose 32-bit digits are the words, modulo the population: long division.

    `jax.random.randint` is off by up to population/2³² of a probability beyond 2¹⁶ records.
    """
    width = 32 - population.bit_length()  # bits that a remainder leaves free in a word
    rest = jnp.zeros(words.shape[1], jnp.uint32)
    for word in words:
        left = 32
        while left:
            taken = min(width, left)
            left -= taken
            digit = (word >> left) & jnp.uint32((1 << taken) - 1)
            rest = ((rest << taken) | digit) % jnp.uint32(population)
    return rest
