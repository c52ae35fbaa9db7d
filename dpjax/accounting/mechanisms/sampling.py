"""Which records a release sees: Poisson samples, fixed batches, shuffled passes."""

from __future__ import annotations

from typing import Any

from dpjax.accounting.mechanisms.base import (
    Mechanism,
    Real,
    Relation,
    number,
    register_mechanism,
)

FRESH_BATCH = "each step's batch is drawn uniformly without replacement, in secret"


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
    rate: Real = number(0.0, 1.0)

    released = "{mechanism}, over a Poisson sample at rate {rate}"

    rests_on = (
        "each record enters each step independently with the sampling rate, in secret",
        "sums are divided by a public constant, not by the realised batch size",
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
    batch_size: Real = number(whole=True)
    population: Real = number(1.0, whole=True)

    def relations(self) -> tuple[Relation, ...]:
        return (batch_fits(self.batch_size, self.population),)

    released = "{mechanism}, over {batch_size} of {population} records without replacement"

    rests_on = (FRESH_BATCH,)


def batch_fits(batch_size: Real, population: Real) -> Relation:
    """No batch has more records than the data set."""
    size: Any = batch_size
    return Relation(("batch_size", "population"), size <= population, "at most the population")


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
    batches: Real = number(1.0, whole=True)

    released = "{mechanism}, for {batches} disjoint batches of a shuffled pass"

    rests_on = ("each pass uses every record in exactly one batch; no amplification is claimed",)
