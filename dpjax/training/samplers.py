"""Which records a step of each sampling scheme works on: one small function a scheme.

A scheme's function is given one phase's mechanism and what the phases share, and returns
`sampler(key, step, number)`, the records of a step as (indices, size): the first `size` of the
padded indices take part, and those after them are no record's number but larger. `number` is the
phase of the step, None where all steps are alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpjax import accounting as acc
from dpjax import sampling
from dpjax.training.phases import Phase, draws_of_batch, kept_of, length_of, rate_of

# Records up to which a sort costs less than compiling `nonzero` would.
_SORTED = 1 << 14

Sampler = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Run:
    """What the phases of a plan share.

    Fields:
        population: number of records.
        padded: slots for them, a whole number of pieces.
        phases: of the plan.
        flags: whether samplers that draw flags return them as they are.
    """

    population: int
    padded: int
    phases: tuple[Phase, ...]
    flags: bool = False

    def values(self, kind: type, value: Callable[[Any], Any]) -> list[Any]:
        """Of every phase's mechanism the value; of those of another kind, which are not asked, the
        first one's."""
        known = [value(p.step) if isinstance(p.step, kind) else None for p in self.phases]
        first = next(found for found in known if found is not None)
        return [first if found is None else found for found in known]

    def listed(self, inclusion: Any) -> tuple[Any, Any]:
        """The records whose flag is set, in the order of the data."""
        if self.flags:
            return inclusion, jnp.sum(inclusion, dtype=jnp.int32)
        return listed(inclusion, self.padded)

    def first(self, indices: Any, size: Any) -> tuple[Any, Any]:
        """The first `size` of the indices, padded."""
        size = jnp.asarray(size, jnp.int32)
        indices = jnp.pad(indices, (0, self.padded - indices.shape[0]))
        slots = jnp.arange(self.padded, dtype=jnp.int32)
        return jnp.where(slots < size, indices, self.population), size


def listed(inclusion: Any, padded: int) -> tuple[Any, Any]:
    """(indices of the records whose flag is set, in their order; how many they are)."""
    records = inclusion.shape[0]
    if records > _SORTED:
        indices = jnp.nonzero(inclusion, size=padded, fill_value=records)[0].astype(jnp.int32)
        return indices, jnp.sum(inclusion, dtype=jnp.int32)
    # The same records in the same order; a sort compiles in a fifth of the time.
    places = jnp.arange(padded, dtype=jnp.int32)
    drawn = jnp.pad(inclusion, (0, padded - records))
    indices = jnp.sort(places + jnp.where(drawn, 0, records))
    # Counted as they are sorted, or XLA would draw the bits behind the flags once more.
    return indices, jnp.sum(indices < records, dtype=jnp.int32)


def chosen(values: list[Any], number: Any) -> Any:
    """The value of a phase: a constant where all phases agree."""
    if number is None or all(value == values[0] for value in values):
        return values[0]
    return jnp.asarray(np.asarray(values))[number]


def _poisson(mechanism: Any, run: Run) -> Sampler:
    """Every record on its own; phases that differ in their rate alone share a program."""
    n, rate = run.population, rate_of(mechanism)

    def sampler(key, step, number):
        if number is None:
            return run.listed(sampling.poisson_inclusion(key, step, population=n, rate=rate))
        words = run.values(type(mechanism), lambda one: sampling.largest_word(rate_of(one)))
        return run.listed(sampling.inclusion_up_to(key, step, n, chosen(words, number)))

    return sampler


def _fixed(step: Any, run: Run) -> Sampler:
    """The first records of a uniform order are a uniform batch, whatever their number."""
    sizes = run.values(type(step), draws_of_batch)

    def sampler(key, step, number):
        settings = {"population": run.population, "batch_size": max(sizes)}
        batch = sampling.fixed_batch(key, step, **settings)
        return run.first(batch.indices, chosen(sizes, number))

    return sampler


def _replaced(step: Any, run: Run) -> Sampler:
    """A record stands in as many slots as it was drawn; the first draws are draws like all."""
    sizes = run.values(type(step), draws_of_batch)
    settings = {"population": run.population, "batch_size": max(sizes)}

    def sampler(key, step, number):
        batch = sampling.with_replacement(key, step, **settings)
        return run.first(batch.indices, chosen(sizes, number))

    return sampler


def _everyone(step: Any, run: Run) -> Sampler:
    del step

    def sampler(key, step, number):
        del key, step, number
        order = jnp.arange(run.padded, dtype=jnp.int32)
        return order, jnp.full((), run.population, jnp.int32)

    return sampler


def _allocated(step: Any, run: Run) -> Sampler:
    """Random allocation: an epoch's choices are a function of the epoch's number in the run."""
    length = length_of(step)
    settings = {
        "population": run.population,
        "steps": length,
        "chosen": int(np.asarray(step.chosen)),
    }
    begins = [0, *np.cumsum([phase.steps for phase in run.phases])[:-1].tolist()]
    epochs = [
        phase.steps // length_of(phase.step) * isinstance(phase.step, acc.RandomAllocation)
        for phase in run.phases
    ]
    earlier = [0, *np.cumsum(epochs)[:-1].tolist()]

    def sampler(key, step, number):
        since = jnp.asarray(step, jnp.int32) - chosen(begins, number)
        epoch = chosen(earlier, number) + since // length
        return run.listed(sampling.allocation_inclusion(key, epoch, since % length, **settings))

    return sampler


def _truncated(step: Any, run: Run) -> Sampler:
    most = min(kept_of(step), run.population)
    settings = {"population": run.population, "rate": rate_of(step), "capacity": most}

    def sampler(key, step, number):
        del number
        batch = sampling.truncated_poisson(key, step, **settings)
        return run.first(batch.indices, jnp.sum(batch.mask, dtype=jnp.int32))

    return sampler


def _in_turn(step: Any, run: Run) -> Sampler:
    """Batches in the order of the data: those whose number is the step's, modulo the separation."""
    n, batches = run.population, int(np.asarray(step.separation))
    most = -(-n // batches)

    def sampler(key, step, number):
        del key, number
        first = jnp.asarray(step, jnp.int32) % batches
        indices = first + batches * jnp.minimum(jnp.arange(run.padded, dtype=jnp.int32), most)
        return indices, (n - first + batches - 1) // batches

    return sampler


def _sampled_in_turn(step: Any, run: Run) -> Sampler:
    """A Poisson sample of the group whose turn it is."""
    groups, rate = int(np.asarray(step.groups)), float(np.asarray(step.rate))

    def sampler(key, step, number):
        del number
        inclusion = sampling.poisson_inclusion(key, step, population=run.population, rate=rate)
        place = jnp.arange(run.population, dtype=jnp.int32)
        own = place % groups == jnp.asarray(step, jnp.int32) % groups
        return run.listed(inclusion & own)

    return sampler


SCHEMES: dict[type, Callable[[Any, Run], Sampler]] = {
    acc.PoissonSampled: _poisson,
    acc.TruncatedPoissonSampled: _truncated,
    acc.RandomAllocation: _allocated,
    acc.FixedBatchSampled: _fixed,
    acc.WithReplacement: _replaced,
    acc.Gaussian: _everyone,
    acc.CorrelatedGaussian: _in_turn,
    acc.MatrixGaussian: _in_turn,
    acc.CyclicPoissonCorrelated: _sampled_in_turn,
}


def kind_of(step: Any, population: int) -> tuple[Any, ...]:
    """What phases have to share for one sampler to serve them all."""
    if isinstance(step, acc.RandomAllocation):
        return type(step), length_of(step), int(np.asarray(step.chosen))
    if isinstance(step, acc.TruncatedPoissonSampled):
        return type(step), rate_of(step), min(kept_of(step), population)
    return (type(step),)
