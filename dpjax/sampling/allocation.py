"""Random allocation: each record draws, once an epoch, the steps in which it takes part.

A record's draws depend on no other record's (balls in bins), so that batches differ in size. A
permutation cut into batches of one size is something else, see `cyclic_permutation`, and dearer.

The steps are chosen by integers alone. Of 96 random bits the sampler takes ⌊t·bits/2⁹⁶⌋, so that
every step has a probability within 2⁻⁹⁶ of 1/t: no remainder is taken, and no float rounds. An
epoch's privacy loss moves by less than t·2⁻⁹⁵, far below the 1e-13 that the accountant allows for
its own rounding.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from dpjax._numerics.keys import folded
from dpjax._other_names import taught
from dpjax.sampling.batch import Batch, between, number_of, padded, positive

_WORDS = 3  # of 32 random bits for each draw
_MOST = 1 << 31
# What tells the draws of an epoch from those of a step: no step has this number.
_EPOCHS = 0xFFFF_FFFF


@taught
def random_allocation(
    key: Key[Array, ""],
    epoch: int | Int[Array, ""],
    step: int | Int[Array, ""],
    *,
    population: int,
    steps: int,
    chosen: int = 1,
    capacity: int | None = None,
) -> Batch:
    """The records that take part in step `step` of an epoch of `steps`, padded to `capacity`.

    Each record takes part in `chosen` different steps of every epoch, all sets of them equally
    likely, independently of the other records and of other epochs. Priced by
    `accounting.RandomAllocation`. With `capacity=None` the batch can hold the whole population.
    With a smaller capacity a step that does not fit gives an *empty* batch, never a truncated one,
    as `poisson` does and with the same consequence: reserve `poisson_capacity(population,
    chosen / steps, ...)`, a batch's size being binomial at that rate.

    Args:
        key: a typed JAX key, kept as secret as the data.
        epoch: the epoch's number.
        step: the step's number within the epoch, from 0 to steps − 1.
        population: number of records.
        steps: steps of an epoch, below 2³¹.
        chosen: steps that a record takes part in.
        capacity: slots of the batch.

    Guarantee:
        Probabilities of the sets of steps exact up to chosen·2⁻⁹⁵, given a generator whose bits are
        uniform and independent; the key must stay secret.

    Example:
        >>> key = jax.random.key(0)
        >>> epoch = [random_allocation(key, 0, t, population=9, steps=3) for t in range(3)]
        >>> sorted(int(i) for b in epoch for i, real in zip(b.indices, b.mask) if real)
        [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """
    flags = allocation_inclusion(
        key, epoch, step, population=population, steps=steps, chosen=chosen
    )
    capacity = population if capacity is None else capacity
    return padded(flags, between("capacity", capacity, 1, population))


def allocation_inclusion(
    key: Key[Array, ""],
    epoch: int | Int[Array, ""],
    step: int | Int[Array, ""],
    *,
    population: int,
    steps: int,
    chosen: int = 1,
) -> Bool[Array, " population"]:
    """Random allocation as one flag per record; see `random_allocation`.

    Example:
        >>> flags = [allocation_inclusion(jax.random.key(0), 0, t, population=50, steps=4, chosen=2)
        ...          for t in range(4)]
        >>> set(sum(f.astype(int) for f in flags).tolist())
        {2}
    """
    population, steps = positive("population", population), positive("steps", steps)
    if steps >= _MOST:
        raise ValueError(f"steps must be below 2^31, got {steps}")
    chosen = between("chosen", chosen, 1, steps, "steps")
    epoch, step = number_of("epoch", epoch), number_of("step", step, steps)
    own = folded(key, _EPOCHS, epoch)
    bits = jax.random.bits(own, (chosen, _WORDS, population), dtype=jnp.uint32)
    step = jnp.asarray(step, jnp.uint32)
    # Floyd's algorithm: every set of `chosen` of them is equally likely (Bentley and Floyd 1987).
    taken: list[Any] = []
    for draw in range(chosen):
        last = steps - chosen + draw
        place = _uniform(bits[draw], last + 1)
        repeated = jnp.zeros(population, bool)
        for earlier in taken:
            repeated |= place == earlier
        taken.append(jnp.where(repeated, jnp.uint32(last), place))
    flags = jnp.zeros(population, bool)
    for place in taken:
        flags |= place == step
    return flags


def _uniform(bits: Any, count: int) -> Any:
    """⌊count·bits/2^{32·words}⌋, the words from the least significant to the most."""
    carry = jnp.zeros_like(bits[0])
    for word in bits:
        high, low = _product(word, jnp.uint32(count))
        low = low + carry
        carry = high + (low < carry).astype(jnp.uint32)
    return carry


def _product(a: Any, b: Any) -> tuple[Any, Any]:
    """The 64 bits of a·b as two words, by halves that do not overflow."""
    half, low_half = jnp.uint32(16), jnp.uint32(0xFFFF)
    a_high, a_low, b_high, b_low = a >> half, a & low_half, b >> half, b & low_half
    middle = a_high * b_low + ((a_low * b_low) >> half)
    other = a_low * b_high + (middle & low_half)
    return a_high * b_high + (middle >> half) + (other >> half), a * b
