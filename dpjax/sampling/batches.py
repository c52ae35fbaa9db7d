"""The records of a step, and batches of one size.

Such a batch is drawn without replacement (`fixed_batch`), with replacement (`with_replacement`), or
cut from one secret permutation (`cyclic_permutation`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, UInt

from dpjax._argument_names import suggests_argument_names
from dpjax._numerics.checks import whole
from dpjax._numerics.keys import folded


class Batch(NamedTuple):
    """The records of one step, padded to a static length.

    Fields:
        indices: positions in the data set; padded slots hold 0, so that gathering them is safe.
        mask: True where the slot holds a record of the batch.

    Example:
        >>> Batch(jnp.array([4, 7, 0]), jnp.array([True, True, False])).mask.sum().item()
        2
    """

    indices: Int[Array, " capacity"]
    mask: Bool[Array, " capacity"]


def step_number(name: str, value: Any, steps: int = 1 << 32) -> Any:
    """The number of a step, as it may be folded into a key; of a traced one its type is checked."""
    if isinstance(value, jax.core.Tracer) and jnp.issubdtype(value.dtype, jnp.integer):
        return value
    # What is no whole number would be rounded down, and draw the batch of another step again.
    count = whole(name, value, 0, steps - 1, f"a whole number in [0, {steps})")
    return value if isinstance(value, jax.Array) else np.uint32(count)


def padded(inclusion: Bool[Array, " population"], capacity: int) -> Batch:
    """The records whose flag is set; none of them if they are more than the slots."""
    size = jnp.sum(inclusion, dtype=jnp.int32)
    indices = jnp.nonzero(inclusion, size=capacity, fill_value=0)[0].astype(jnp.int32)
    slots = jnp.arange(capacity, dtype=jnp.int32)
    return Batch(indices, (slots < size) & (size <= capacity))


def at_most(name: str, value: Any, high: int, what: str = "records") -> int:
    """The value as an int from 1 to the number of what there is."""
    if not 1 <= (count := whole(name, value, -math.inf)) <= high:
        raise ValueError(f"{name} must be between 1 and the {high} {what} there are, got {value}")
    return count


@suggests_argument_names
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
    population = whole("population", population)
    batch_size = at_most("batch_size", batch_size, population)
    step = step_number("step", step)
    order = jax.random.permutation(folded(key, step), population)
    return Batch(order[:batch_size].astype(jnp.int32), jnp.ones(batch_size, dtype=bool))


@suggests_argument_names
def with_replacement(
    key: Key[Array, ""], step: int | Int[Array, ""], *, population: int, batch_size: int
) -> Batch:
    """So many independent uniform draws of one record each, drawn afresh for every step.

    A record drawn twice stands in two slots and counts twice. Priced by
    `accounting.WithReplacement`, under replace-one only, and by nothing else: no other scheme lets
    a record count more than once. A draw is 64 random bits modulo the population, so that two
    records' probabilities differ by at most 2⁻⁶⁴.

    Args:
        key, step, population: as of `poisson_inclusion`.
        batch_size: draws of a step; it may exceed the population.

    Example:
        >>> batch = with_replacement(jax.random.key(0), 2, population=3, batch_size=5)
        >>> batch.indices.shape, bool((batch.indices < 3).all()), bool(batch.mask.all())
        ((5,), True, True)
    """
    population = at_most("population", population, (1 << 31) - 1)
    batch_size, step = whole("batch_size", batch_size), step_number("step", step)
    words = jax.random.bits(folded(key, step), (2, batch_size), jnp.uint32)
    indices = _modulo(words, population).astype(jnp.int32)
    return Batch(indices, jnp.ones(batch_size, dtype=bool))


def _modulo(words: UInt[Array, "words draws"], population: int) -> UInt[Array, " draws"]:
    """The number whose 32-bit digits are the words, modulo the population: long division."""
    # `jax.random.randint` is off by up to population/2³² of a probability beyond 2¹⁶ records.
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


@suggests_argument_names
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
    population = whole("population", population)
    batch_size = at_most("batch_size", batch_size, population)
    step = step_number("step", step)
    batches = -(-population // batch_size)
    order = jax.random.permutation(folded(key, 0), population).astype(jnp.int32)
    order = jnp.pad(order, (0, batches * batch_size - population))
    start = (jnp.asarray(step) % batches).astype(jnp.int32) * batch_size
    indices = jax.lax.dynamic_slice(order, (start,), (batch_size,))
    slots = start + jnp.arange(batch_size, dtype=jnp.int32)
    return Batch(indices, slots < population)
