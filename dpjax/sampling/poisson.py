"""Poisson sampling: each record takes part independently, at a rate that is realised exactly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Array, Bool, Int, Key

from dpjax._numerics.checks import Range, one_number
from dpjax._numerics.keys import folded
from dpjax._numerics.threefry import random_bits
from dpjax._other_names import taught
from dpjax.sampling.batch import Batch, between, number_of, padded, positive

# Inclusion compares 32 random bits with an integer threshold. A float32 uniform has 24 bits, so the
# same comparison on floats would realise a rate that is off by up to 2^-24, unaccounted.
_GRID = 2**32
_RATES = Range(0.0, 1.0, open_low=True)


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
    return threshold(rate) / _GRID


@taught
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
        >>> import jax
        >>> flags = poisson_inclusion(jax.random.key(0), 0, population=1_000, rate=0.5)
        >>> flags.shape, 400 < int(flags.sum()) < 600
        ((1000,), True)
    """
    population, step = positive("population", population), number_of("step", step)
    return inclusion_up_to(key, step, population, largest_word(rate))


def largest_word(rate: float) -> np.uint32:
    """The largest 32-bit word with which a record takes part."""
    return np.uint32(threshold(rate) - 1)


def inclusion_up_to(key: Any, step: Any, population: int, word: Any) -> Array:
    """The flags of `poisson_inclusion` for a rate by its largest word, which may be traced."""
    bits = random_bits(folded(key, step), (population,))
    return bits <= word


@taught
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
        >>> import jax
        >>> batch = poisson(jax.random.key(0), 7, population=1_000, rate=0.1, capacity=200)
        >>> batch.indices.shape, 60 < int(batch.mask.sum()) < 140
        ((200,), True)
    """
    inclusion = poisson_inclusion(key, step, population=population, rate=rate)
    capacity = population if capacity is None else capacity
    return padded(inclusion, between("capacity", capacity, 1, population))


def threshold(rate: float) -> int:
    # rate * 2^32 only shifts the exponent, so it is exact.
    return math.ceil(one_number("rate", rate, _RATES) * _GRID)
