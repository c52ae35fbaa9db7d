"""Which records a training step sees.

Every sampler is a pure function of `(key, step)` with static shapes: a batch is a vector of record
indices and a mask that says which of its slots are real. Re-running a step after a crash draws the
same batch, and batches of any size share one compilation.

The sampler that trains has to be the sampler that is priced: `poisson` belongs to
`accounting.PoissonSampled`, `fixed_batch` to `accounting.FixedBatchSampled`, `cyclic_permutation`
to `accounting.Shuffled`, and none of them may stand in for another.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

__all__ = [
    "Batch",
    "cyclic_permutation",
    "fixed_batch",
    "overflow_probability",
    "poisson",
    "poisson_capacity",
    "poisson_inclusion",
    "realised_rate",
]

# Inclusion compares 32 random bits with an integer threshold. A float32 uniform has 24 bits, so the
# same comparison on floats would realise a rate that is off by up to 2^-24, unaccounted.
_GRID = 2**32


class Batch(NamedTuple):
    """The records of one step, padded to a static length.

    Fields:
        indices: positions in the data set; padded slots hold 0, so that gathering them is safe.
        mask: True where the slot holds a record of the batch.

    Example:
        >>> batch = poisson(jax.random.key(0), 3, population=100, rate=0.1)
        >>> batch.indices.shape, batch.mask.shape
        ((100,), (100,))
    """

    indices: Int[Array, " capacity"]
    mask: Bool[Array, " capacity"]


def realised_rate(rate: float) -> float:
    """The inclusion probability that `poisson` realises: `rate` rounded up to a multiple of 2⁻³².

    Price this number, not the one asked for. Rounding up errs towards less privacy claimed.

    Raises:
        ValueError: if `rate` is not in (0, 1].

    Example:
        >>> realised_rate(0.25)
        0.25
        >>> 0.0 < realised_rate(0.1) - 0.1 < 2**-32
        True
    """
    return _threshold(rate) / _GRID


def poisson_inclusion(
    key: Key[Array, ""], step: int | Int[Array, ""], *, population: int, rate: float
) -> Bool[Array, " population"]:
    """Poisson sampling as one flag per record, True with probability `realised_rate(rate)`.

    The flags are independent between records and, for distinct steps under one key, between steps.
    Use it where a step can be split over several padded batches, so that no draw is ever too large.

    Args:
        key: a typed JAX key, kept as secret as the data: the amplification by sampling that the
            accountant claims holds only while nobody knows who took part.
        step: the step's number.
        population: number of records.
        rate: inclusion probability in (0, 1], a concrete number.

    Example:
        >>> flags = poisson_inclusion(jax.random.key(0), 0, population=1_000, rate=0.5)
        >>> flags.shape, 400 < int(flags.sum()) < 600
        ((1000,), True)
    """
    _positive("population", population)
    return inclusion_up_to(key, step, population, largest_word(rate))


def largest_word(rate: float) -> np.uint32:
    """The largest 32-bit word with which a record takes part."""
    return np.uint32(_threshold(rate) - 1)


def inclusion_up_to(key: Any, step: Any, population: int, word: Any) -> Array:
    """The flags of `poisson_inclusion` for a rate by its largest word, which may be traced."""
    bits = jax.random.bits(jax.random.fold_in(key, step), (population,), dtype=jnp.uint32)
    return bits <= word


def poisson(
    key: Key[Array, ""],
    step: int | Int[Array, ""],
    *,
    population: int,
    rate: float,
    capacity: int | None = None,
) -> Batch:
    """Poisson sampling, padded to `capacity`: every record takes part independently.

    `P(record i in batch) = realised_rate(rate)`. With `capacity=None` the batch can hold the
    whole population and no draw can overflow. With a smaller capacity, a draw that does not fit
    gives an *empty* batch (the step then releases noise alone), never a truncated one, so that the
    records kept are never chosen by the overflow. The sampler then differs from the ideal one with
    probability p = `overflow_probability` a step, and (ε, δ) of the ideal sampler over T steps
    becomes (ε, δ + T·p·(1 + e^ε)): choose the capacity by `poisson_capacity`, which reserves it.

    Guarantee:
        Exact inclusion probabilities, given a generator whose bits are uniform and independent; the
        key must stay secret (sampling amplifies privacy only while it is unknown who took part).

    Example:
        >>> batch = poisson(jax.random.key(0), 7, population=1_000, rate=0.1, capacity=200)
        >>> batch.indices.shape, 60 < int(batch.mask.sum()) < 140
        ((200,), True)
    """
    inclusion = poisson_inclusion(key, step, population=population, rate=rate)
    if capacity is None:
        capacity = population
    _between("capacity", capacity, 1, population)
    size = jnp.sum(inclusion, dtype=jnp.int32)
    indices = jnp.nonzero(inclusion, size=capacity, fill_value=0)[0].astype(jnp.int32)
    slots = jnp.arange(capacity, dtype=jnp.int32)
    return Batch(indices, (slots < size) & (size <= capacity))


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
    _positive("population", population)
    _between("batch_size", batch_size, 1, population)
    order = jax.random.permutation(jax.random.fold_in(key, step), population)
    return Batch(order[:batch_size].astype(jnp.int32), jnp.ones(batch_size, dtype=bool))


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
    _positive("population", population)
    _between("batch_size", batch_size, 1, population)
    batches = -(-population // batch_size)
    order = jax.random.permutation(jax.random.fold_in(key, 0), population).astype(jnp.int32)
    order = jnp.pad(order, (0, batches * batch_size - population))
    start = (jnp.asarray(step, jnp.int32) % batches) * batch_size
    indices = jax.lax.dynamic_slice(order, (start,), (batch_size,))
    slots = start + jnp.arange(batch_size, dtype=jnp.int32)
    return Batch(indices, slots < population)


def overflow_probability(population: int, rate: float, capacity: int) -> float:
    """An upper bound on P(Binomial(n, q) > capacity), the chance that a Poisson draw does not fit.

    The exact tail (regularised incomplete beta function), rounded up by its evaluation error.

    Example:
        >>> 0.0 < overflow_probability(1_000, 0.1, 180) < 1e-10
        True
        >>> overflow_probability(1_000, 0.1, 1_000)
        0.0
    """
    _positive("population", population)
    from scipy import special

    if capacity >= population:
        return 0.0
    # P(X > k) = I_q(k+1, n-k); scipy's relative error is below 1e-10 on the range met here.
    tail = float(special.betainc(capacity + 1, population - capacity, realised_rate(rate)))
    return min(1.0, tail * (1 + 1e-9) + 2.3e-308)  # the tail may have underflowed to 0


def poisson_capacity(
    population: int, rate: float, *, steps: int, delta: float, epsilon: float
) -> int:
    """The smallest capacity whose overflows, over all steps, cost at most `delta`.

    Smallest K with `steps · (1 + e^ε) · P(Binomial(n, q) > K) ≤ delta`: the sampler that empties a
    draw larger than K is within total variation distance P(overflow) of the ideal one, on either
    neighbour, and the triangle inequality for (ε, δ) counts one side times e^ε. Certify the run at
    (ε, δ_total − delta) for the ideal sampler, and pass `delta` as the extra.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> capacity = poisson_capacity(60_000, 256 / 60_000, steps=14_062, delta=1e-8, epsilon=3.0)
        >>> 256 < capacity < 400
        True
    """
    _positive("steps", steps)
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be at least 0, got {epsilon}")
    log_budget = math.log(delta) - math.log(steps) - float(np.logaddexp(0.0, epsilon))
    low, high = 0, population  # invariant: `high` fits
    while low < high:
        middle = (low + high) // 2
        tail = overflow_probability(population, rate, middle)
        if tail == 0.0 or math.log(tail) <= log_budget:
            high = middle
        else:
            low = middle + 1
    return max(high, 1)


def _threshold(rate: float) -> int:
    rate = float(rate)
    if not 0 < rate <= 1:
        raise ValueError(f"rate must be in (0, 1], got {rate}")
    return math.ceil(rate * _GRID)  # rate * 2^32 only shifts the exponent, so it is exact


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def _between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(
            f"{name} must be between {low} and the {high} records there are, got {value}"
        )
