"""Which records a release sees: Poisson samples, allocation, batches of one size, shuffles."""

from __future__ import annotations

from dpjax.accounting.mechanisms.base import (
    FieldRelation,
    Mechanism,
    Real,
    number_field,
    register_mechanism,
)

FRESH_BATCH = "each step's batch is drawn uniformly without replacement, in secret"
PUBLIC_DIVISOR = "sums are divided by a public constant, not by the realised batch size"


@register_mechanism
class PoissonSampled(Mechanism):
    """The mechanism applied to a random subset: each record takes part independently with `rate`.

    Worst pairs for `Gaussian` inside (unit clip norm): under ADD_REMOVE
    `(1−q)N(0,σ²) + qN(1,σ²)` against `N(0,σ²)`, both directions; under REPLACE_ONE
    `(1−q)N(0,σ²) + qN(1,σ²)` against `(1−q)N(0,σ²) + qN(−1,σ²)`. The subset must be secret, and the
    sum divided by a constant, never by the realised batch size.

    Fields:
        mechanism: what is done with the subset.
        rate: probability that a record takes part, in [0, 1].

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.PoissonSampled(acc.Gaussian(1.1), rate=0.01).rate
        0.01
    """

    mechanism: Mechanism
    rate: Real = number_field(0.0, 1.0)

    released = "{mechanism}, over a Poisson sample at rate {rate}"

    rests_on = (
        "each record enters each step independently with the sampling rate, in secret",
        PUBLIC_DIVISOR,
    )


@register_mechanism
class TruncatedPoissonSampled(Mechanism):
    """Poisson sampling whose batch is cut at `capacity`: a uniform choice of the drawn is kept.

    With τ the probability that the other records fill the capacity and c the record's own rate
    then, the pair is the sampled one of displacement 1 and `rate` with probability 1 − τ, and of
    displacement 2 and c with probability τ: a record that takes part takes another's place. At
    rate 1 it is a batch of exactly `capacity` records without replacement.

    Fields:
        mechanism: what is done with the batch.
        rate: probability that a record is drawn, in [0, 1].
        population: records of the larger of two neighbouring data sets (public): a whole number
            >= 1. The price is not monotone in it.
        capacity: the most records that are kept, a whole number >= 1.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.TruncatedPoissonSampled(acc.Gaussian(1.0), 0.01, 10_000, capacity=128).capacity
        128

    References:
        Ganesh, McKenna 2025 (arXiv 2508.15089).
    """

    mechanism: Mechanism
    rate: Real = number_field(0.0, 1.0)
    population: Real = number_field(1.0, whole=True)
    capacity: Real = number_field(1.0, whole=True)

    released = (
        "{mechanism}, over at most {capacity} records of a Poisson sample of {population} at rate "
        "{rate}"
    )

    rests_on = (
        "each record is drawn for each step independently with the sampling rate, and which of the "
        "drawn are kept is a uniform choice, in secret",
        "the larger of two neighbouring data sets has as many records as the mechanism says",
        PUBLIC_DIVISOR,
    )


@register_mechanism
class RandomAllocation(Mechanism):
    """One epoch in which each record takes part in `chosen` of the `steps` releases, at random.

    Each record draws its own steps, uniformly without repetition and independently of all other
    records (balls in bins), so that batches differ in size. Worst pair for `Gaussian` inside (unit
    clip norm), one step chosen: (1/t)Σᵢ N(eᵢ, σ²I) against N(0, σ²I) on t coordinates, both
    directions. Several epochs, each drawn afresh, are `Repeated(RandomAllocation(...), epochs)`.

    ADD_REMOVE only: for a replaced record no dominating pair is proven. A shuffled pass over
    batches of fixed size is not this: there a record's step depends on the other records' steps,
    and the price is that of `Shuffled`.

    Fields:
        mechanism: what is done with each batch.
        steps: releases in one epoch, a whole number >= 1.
        chosen: how many of them a record takes part in, a whole number in [1, steps].

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.RandomAllocation(acc.Gaussian(1.0), steps=20).chosen
        1

    References:
        Feldman, Shenfeld 2025, 2026; Dong et al. 2025; Chua et al. 2024 (balls and bins).
    """

    mechanism: Mechanism
    steps: Real = number_field(1.0, whole=True)
    chosen: Real = number_field(1.0, whole=True, default=1)

    def relations(self) -> tuple[FieldRelation, ...]:
        chosen = self.chosen
        return (FieldRelation(("chosen", "steps"), chosen <= self.steps, "at most the steps"),)

    released = "{mechanism}, for {steps} steps of which each record takes part in {chosen}"

    rests_on = (
        "each record draws its steps of every epoch uniformly, independently of the other "
        "records, in secret",
        PUBLIC_DIVISOR,
    )


@register_mechanism
class FixedBatchSampled(Mechanism):
    """The mechanism applied to a uniform batch of fixed size, drawn without replacement.

    REPLACE_ONE only: adding a record changes the law of every other record's presence. The worst
    pair is `(1−q)N(0,σ²) + qN(2,σ²)` against `N(0,σ²)` and its reverse, q = batch_size/population,
    which is strictly worse than Poisson sampling's replace-one pair, so the one never stands in for
    the other.

    Fields:
        mechanism: what is done with the batch.
        batch_size: records in a batch, a whole number in [0, population].
        population: records in the data set (public), a whole number >= 1.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.FixedBatchSampled(acc.Gaussian(4.0), batch_size=256, population=60_000).population
        60000
    """

    mechanism: Mechanism
    batch_size: Real = number_field(whole=True)
    population: Real = number_field(1.0, whole=True)

    def relations(self) -> tuple[FieldRelation, ...]:
        return (batch_fits(self.batch_size, self.population),)

    released = "{mechanism}, over {batch_size} of {population} records without replacement"

    rests_on = (FRESH_BATCH,)


def batch_fits(batch_size: Real, population: Real) -> FieldRelation:
    """No batch has more records than the data set."""
    size = batch_size
    return FieldRelation(("batch_size", "population"), size <= population, "at most the population")


@register_mechanism
class WithReplacement(Mechanism):
    """The mechanism applied to `batch_size` draws with replacement from the records.

    A record that is drawn j times counts j times. REPLACE_ONE only: of n ± 1 records every other
    record's share changes too, and no theorem is known. J ~ Bin(batch_size, 1/population) draws
    are the record that differs, η being the probability of any. Upper ends are Balle, Barthe and
    Gaboardi's: a fixed batch's pair of displacement 2j and rate η, with the number j of copies
    released. Lower ends are those of `Σ_j P(J = j) N(2j, σ²)` against `N(0, σ²)`, which a record
    attains whose replacement is like all the others.

    Fields:
        mechanism: what is done with the batch.
        batch_size: draws of a step, a whole number >= 0.
        population: records in the data set (public), a whole number >= 1.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.WithReplacement(acc.Gaussian(4.0), batch_size=256, population=60_000).batch_size
        256

    References:
        Balle, Barthe, Gaboardi 2018 (arXiv 1807.01647), Theorem 10.
    """

    mechanism: Mechanism
    batch_size: Real = number_field(whole=True)
    population: Real = number_field(1.0, whole=True)

    released = "{mechanism}, over {batch_size} draws with replacement from {population} records"

    rests_on = (
        "each draw of each step is uniform over the records, independent of all others, in secret",
    )


@register_mechanism
class Shuffled(Mechanism):
    """One pass over the data in `batches` disjoint batches, in the order of one secret permutation.

    Every record takes part in exactly one of the pass's releases, so a pass costs what one release
    of the mechanism costs. No amplification by subsampling may be claimed. Several passes, over the
    same or a fresh permutation, are `Repeated(Shuffled(...), steps=passes)`. Under ADD_REMOVE the
    record's slot must stay empty (a padded batch) rather than shift the others.

    Fields:
        mechanism: what is done with each batch.
        batches: releases in one pass, a whole number >= 1.

    Example:
        >>> from dpjax import accounting as acc
        >>> acc.Shuffled(acc.Gaussian(4.0), batches=20).batches
        20
    """

    mechanism: Mechanism
    batches: Real = number_field(1.0, whole=True)

    released = "{mechanism}, for {batches} disjoint batches of a shuffled pass"

    rests_on = ("each pass uses every record in exactly one batch; no amplification is claimed",)


# Ways in which a record may not be drawn at all.
DRAWN = PoissonSampled, TruncatedPoissonSampled, FixedBatchSampled, WithReplacement
