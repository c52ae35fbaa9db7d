"""The samplers: which records a step sees.

Batches of one size are drawn without replacement (`fixed_batch`), with replacement
(`with_replacement`), or cut from one secret permutation (`cyclic_permutation`). In the others
records take part independently of each other. Cut at a capacity (`truncated_poisson`), a uniform
choice of a draw that does not fit is kept. In random allocation each record draws, once an epoch,
the steps in which it takes part; a permutation cut into batches costs more privacy.
"""

from __future__ import annotations

import bisect
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Int, UInt

from dpjax._argument_names import suggests_argument_names
from dpjax._numerics.checks import Range, one_number, scalar, whole
from dpjax._numerics.keys import fold_in_words, random_bits
from dpjax._numerics.typing import PRNGKey, StepNumber


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


def check_step(name: str, value: StepNumber, steps: int = 1 << 32) -> np.uint32 | Array:
    """The number of a step, as it may be folded into a key; of a traced one its type is checked."""
    if isinstance(value, jax.core.Tracer) and jnp.issubdtype(value.dtype, jnp.integer):
        return value
    # What is no whole number would be rounded down, and draw the batch of another step again.
    count = whole(name, value, 0, steps - 1, f"a whole number in [0, {steps})")
    return value if isinstance(value, jax.Array) else np.uint32(count)


def _make_batch(inclusion: Bool[Array, " population"], capacity: int | None) -> Batch:
    """The records whose flag is set; none of them if they are more than the slots."""
    population = inclusion.shape[0]
    capacity = population if capacity is None else _check_count("capacity", capacity, population)
    size = jnp.sum(inclusion, dtype=jnp.int32)
    indices = jnp.nonzero(inclusion, size=capacity, fill_value=0)[0].astype(jnp.int32)
    slots = jnp.arange(capacity, dtype=jnp.int32)
    return Batch(indices, (slots < size) & (size <= capacity))


def _check_count(name: str, value: int, high: int, what: str = "records") -> int:
    """The value as an int from 1 to the number of what there is."""
    if not 1 <= (count := whole(name, value, -math.inf)) <= high:
        raise ValueError(f"{name} must be between 1 and the {high} {what} there are, got {value}")
    return count


@suggests_argument_names
def fixed_batch(key: PRNGKey, step: StepNumber, *, population: int, batch_size: int) -> Batch:
    """A uniform batch of exactly `batch_size` distinct records, drawn afresh for every step.

    Priced by `accounting.FixedBatchSampled`, under replace-one only: it is strictly worse than
    Poisson sampling of the same rate, and must never be priced as that.

    Example:
        >>> batch = fixed_batch(jax.random.key(0), 2, population=10, batch_size=4)
        >>> len(set(batch.indices.tolist())), bool(batch.mask.all())
        (4, True)
    """
    population = whole("population", population)
    batch_size = _check_count("batch_size", batch_size, population)
    step = check_step("step", step)
    order = jax.random.permutation(fold_in_words(key, step), population)
    # The first records of a uniform order are a uniform set of that size.
    return Batch(order[:batch_size].astype(jnp.int32), jnp.ones(batch_size, dtype=bool))


@suggests_argument_names
def with_replacement(key: PRNGKey, step: StepNumber, *, population: int, batch_size: int) -> Batch:
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
    population = _check_count("population", population, (1 << 31) - 1)
    batch_size, step = whole("batch_size", batch_size), check_step("step", step)
    words = jax.random.bits(fold_in_words(key, step), (2, batch_size), jnp.uint32)
    indices = _reduce_modulo(words, population).astype(jnp.int32)
    return Batch(indices, jnp.ones(batch_size, dtype=bool))


def _reduce_modulo(words: UInt[Array, "words draws"], population: int) -> UInt[Array, " draws"]:
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
    key: PRNGKey, step: StepNumber, *, population: int, batch_size: int
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
    batch_size = _check_count("batch_size", batch_size, population)
    step = check_step("step", step)
    batches = -(-population // batch_size)
    order = jax.random.permutation(fold_in_words(key, 0), population).astype(jnp.int32)
    order = jnp.pad(order, (0, batches * batch_size - population))
    start = (jnp.asarray(step) % batches).astype(jnp.int32) * batch_size
    indices = jax.lax.dynamic_slice(order, (start,), (batch_size,))
    slots = start + jnp.arange(batch_size, dtype=jnp.int32)
    return Batch(indices, slots < population)


# Inclusion compares 32 random bits with an integer threshold. A float32 uniform has 24 bits, so the
# same comparison on floats would realise a rate that is off by up to 2^-24, unaccounted.
_COINS = 2**32
_RATES = Range(0.0, 1.0, open_low=True)


def realised_rate(rate: float) -> float:
    """The inclusion probability that `poisson` realises: `rate` rounded up to a multiple of 2⁻³².

    Price this number, not the one asked for.

    Raises:
        ValueError: if `rate` is not in (0, 1].

    Example:
        >>> realised_rate(0.25), 0.0 < realised_rate(0.1) - 0.1 < 2**-32
        (0.25, True)
    """
    return _threshold(rate) / _COINS


def _threshold(rate: float) -> int:
    """The number of 32-bit words with which a record takes part."""
    # rate·2³² only shifts the exponent, so it is exact; rounding up errs towards less privacy.
    return math.ceil(one_number("rate", rate, _RATES) * _COINS)


@suggests_argument_names
def poisson_inclusion(
    key: PRNGKey, step: StepNumber, *, population: int, rate: float
) -> Bool[Array, " population"]:
    """Poisson sampling as one flag per record, True with probability `realised_rate(rate)`.

    The flags are independent between records and, for distinct steps under one key, between steps.

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
    population, step = whole("population", population), check_step("step", step)
    return inclusion_up_to(key, step, population, largest_word(rate))


def largest_word(rate: float) -> np.uint32:
    """The largest 32-bit word with which a record takes part."""
    return np.uint32(_threshold(rate) - 1)


def inclusion_up_to(
    key: PRNGKey, step: StepNumber, population: int, word: UInt[ArrayLike, ""]
) -> Array:
    """The flags of `poisson_inclusion` for a rate by its largest word, which may be traced."""
    bits = random_bits(fold_in_words(key, step), (population,))
    return bits <= word


@suggests_argument_names
def poisson(
    key: PRNGKey,
    step: StepNumber,
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
    return _make_batch(poisson_inclusion(key, step, population=population, rate=rate), capacity)


def overflow_probability(population: int, rate: float, capacity: int) -> float:
    """An upper bound on P(Binomial(n, q) > capacity), the chance that a Poisson draw does not fit.

    Example:
        >>> 0.0 < overflow_probability(1_000, 0.1, 180) < 1e-10
        True
    """
    population = whole("population", population)
    scalar("capacity", capacity)
    from scipy import special

    if capacity >= population:
        return 0.0
    # P(X > k) = I_q(k+1, n-k); scipy's relative error is below 1e-10 on the range met here.
    tail = float(special.betainc(capacity + 1, population - capacity, realised_rate(rate)))
    return min(1.0, tail * (1 + 1e-9) + 2.3e-308)  # the tail may have underflowed to 0


@suggests_argument_names
def poisson_capacity(
    population: int, rate: float, *, steps: int, delta: float, epsilon: float
) -> int:
    """The smallest capacity whose overflows, over all steps, cost at most `delta`.

    Smallest K with `steps · (1 + e^ε) · P(Binomial(n, q) > K) ≤ delta`. Certify the run at
    (ε, δ_total − delta) for the ideal sampler, and pass `delta` as the extra.

    Guarantee:
        The sampler that empties a draw larger than K is within total variation distance P(overflow)
        of the ideal one, on either neighbour; the triangle inequality for (ε, δ) counts one side
        times e^ε.

    Example:
        >>> capacity = poisson_capacity(60_000, 256 / 60_000, steps=14_062, delta=1e-8, epsilon=3.0)
        >>> 256 < capacity < 400
        True
    """
    steps, population = whole("steps", steps), whole("population", population, -math.inf)
    scalar("delta", delta)
    scalar("epsilon", epsilon)
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be at least 0, got {epsilon}")
    log_budget = math.log(delta) - math.log(steps) - float(np.logaddexp(0.0, epsilon))

    def fits(capacity: int) -> bool:
        tail = overflow_probability(population, rate, capacity)
        return tail == 0.0 or math.log(tail) <= log_budget

    return max(bisect.bisect_left(range(population), True, key=fits), 1)


# What tells the choice among the drawn from the draw itself: no step has this number.
_CHOICE = 0xFFFF_FFFE


@suggests_argument_names
def truncated_poisson(
    key: PRNGKey,
    step: StepNumber,
    *,
    population: int,
    rate: float,
    capacity: int,
) -> Batch:
    """The records of `poisson_inclusion`, or `capacity` of them chosen uniformly if they are more.

    For memory that must be fixed. Priced by `accounting.TruncatedPoissonSampled`, and only by it:
    the choice makes a record's place depend on the others. The batch is padded to `capacity`.

    Args:
        key, step, population, rate: as of `poisson_inclusion`.
        capacity: the most records that are kept.

    Example:
        >>> batch = truncated_poisson(jax.random.key(0), 3, population=100, rate=0.5, capacity=20)
        >>> batch.indices.shape, int(batch.mask.sum()), len(set(batch.indices.tolist()))
        ((20,), 20, 20)
    """
    population, step = whole("population", population), check_step("step", step)
    capacity = _check_count("capacity", capacity, population)
    flags = poisson_inclusion(key, step, population=population, rate=rate)
    own = fold_in_words(key, _CHOICE, step)
    order = jax.random.permutation(own, population).astype(jnp.int32)
    # The drawn records first, each group in the uniform order: the first of them are a uniform set.
    drawn = order[jnp.argsort(~flags[order], stable=True)][:capacity]
    mask = jnp.arange(capacity, dtype=jnp.int32) < jnp.sum(flags, dtype=jnp.int32)
    return Batch(jnp.where(mask, drawn, 0), mask)


# Allocation chooses steps by integers alone. Of 96 random bits it takes ⌊t·bits/2⁹⁶⌋, so that every
# step has a probability within 2⁻⁹⁶ of 1/t: no remainder is taken, and no float rounds. An epoch's
# privacy loss moves by less than t·2⁻⁹⁵, far below the 1e-13 that the accountant allows for its own
# rounding.
_WORDS = 3  # of 32 random bits for each draw
_MOST_COUNTED = 1 << 31
# What tells the draws of an epoch from those of a step: no step has this number.
_EPOCHS = 0xFFFF_FFFF


@suggests_argument_names
def random_allocation(
    key: PRNGKey,
    epoch: StepNumber,
    step: StepNumber,
    *,
    population: int,
    steps: int,
    chosen: int = 1,
    capacity: int | None = None,
) -> Batch:
    """The records that take part in step `step` of an epoch of `steps`, padded to `capacity`.

    Each record takes part in `chosen` different steps of every epoch, all sets of them equally
    likely, independently of the other records and of other epochs. Priced by
    `accounting.RandomAllocation`. A smaller capacity than the population has the consequence that
    it has for `poisson`: reserve `poisson_capacity(population, chosen / steps, ...)`.

    Args:
        key, population: as of `poisson_inclusion`.
        epoch: the epoch's number.
        step: the step's number within the epoch, from 0 to steps − 1.
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
    return _make_batch(flags, capacity)


def allocation_inclusion(
    key: PRNGKey,
    epoch: StepNumber,
    step: StepNumber,
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
    population, steps = whole("population", population), whole("steps", steps)
    if steps >= _MOST_COUNTED:
        raise ValueError(f"steps must be below 2^31, got {steps}")
    chosen = _check_count("chosen", chosen, steps, "steps")
    epoch, step = check_step("epoch", epoch), check_step("step", step, steps)
    own = fold_in_words(key, _EPOCHS, epoch)
    bits = jax.random.bits(own, (chosen, _WORDS, population), dtype=jnp.uint32)
    step = jnp.asarray(step, jnp.uint32)
    # Floyd's algorithm: every set of `chosen` of them is equally likely (Bentley and Floyd 1987).
    taken: list[Any] = []

    def is_taken(place: Array):
        same = (place == earlier for earlier in taken)
        return functools.reduce(jnp.logical_or, same, jnp.zeros(population, bool))

    for draw, last in enumerate(range(steps - chosen, steps)):
        place = _scale_words(bits[draw], last + 1)
        taken.append(jnp.where(is_taken(place), jnp.uint32(last), place))
    return is_taken(step)


def _scale_words(bits: Array, count: int) -> Array:
    """⌊count·bits/2^{32·words}⌋, the words from the least significant to the most."""
    carry = jnp.zeros_like(bits[0])
    for word in bits:  # long multiplication, a digit of 32 bits at a time
        high, low = _multiply_words(word, jnp.uint32(count))
        low = low + carry
        carry = high + (low < carry).astype(jnp.uint32)
    return carry


def _multiply_words(a: Array, b: Array) -> tuple[Array, Array]:
    """The 64 bits of a·b as two words, by halves that do not overflow."""
    half, low_half = jnp.uint32(16), jnp.uint32(0xFFFF)
    a_high, a_low, b_high, b_low = a >> half, a & low_half, b >> half, b & low_half
    middle = a_high * b_low + ((a_low * b_low) >> half)
    other = a_low * b_high + (middle & low_half)
    return a_high * b_high + (middle >> half) + (other >> half), a * b
