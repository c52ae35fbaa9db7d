"""Which records each step of a plan works on, and how many they are at most."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting as acc
from dpjax import sampling
from dpjax.training.phases import IN_TURN, draws_of_batch, kept_of, rate_of
from dpjax.training.plan import Plan
from dpjax.training.samplers import SCHEMES, Run, Sampler, chosen, kind_of


class Draws(NamedTuple):
    """The sampler of a plan.

    Fields:
        draw: `draw(key, step) -> (indices, size)`; the indices are padded to whole pieces with
            numbers beyond the last record's.
        capacity: records of a piece.
        largest: records of a step, exceeded with at most the probability that `draws_of` was given.
    """

    draw: Callable[[Any, Any], tuple[Any, Any]]
    capacity: int
    largest: int


def draws_of(plan: Plan, capacity: int | None, failure: float) -> Draws:
    """The sampler of a plan, whose draws are worked through in pieces of `capacity` records.

    Args:
        plan: its phases say how records are sampled.
        capacity: None for pieces that hold whole draws.
        failure: with what probability a step may have more records than `largest`.
    """
    n, steps = plan.population, [phase.step for phase in plan.phases]
    largest = max(_largest(step, n, failure) for step in steps)
    capacity = largest if capacity is None else min(capacity, n)
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1, got {capacity}")
    # Draws with replacement may be more than there are records.
    run = Run(n, -(-max(n, largest) // capacity) * capacity, plan.phases)
    return Draws(_draw(plan, run, lambda sampler: sampler), capacity, largest)


def check_divided(plan: Plan) -> None:
    """Refuse a plan whose draws cannot be divided over devices.

    Raises:
        ValueError: records are drawn with replacement.
    """
    if any(isinstance(phase.step, acc.WithReplacement) for phase in plan.phases):
        raise ValueError(
            "mesh must be None where records are drawn with replacement, got several devices: what "
            "is divided over them is drawn by one flag a record"
        )


def inclusion_of(plan: Plan) -> Callable[[Any, Any], Any]:
    """`inclusion(key, step)`: the same draws as one flag a record."""
    check_divided(plan)
    n = plan.population

    def flagged(sampler: Sampler) -> Callable[[Any, Any, Any], Any]:
        def flags(key, step, number):
            found, _ = sampler(key, step, number)
            if found.dtype == bool:
                return found
            return jnp.zeros(n, bool).at[found].set(True, mode="drop")

        return flags

    return _draw(plan, Run(n, n, plan.phases, flags=True), flagged)


def _draw(plan: Plan, run: Run, form: Callable[[Sampler], Callable]) -> Callable[[Any, Any], Any]:
    """The samplers of all phases, in the form wanted, as one function of (key, step)."""
    steps = [phase.step for phase in plan.phases]
    kinds = [kind_of(step, plan.population) for step in steps]
    samplers = {
        kind: form(SCHEMES[type(step)](step, run)) for kind, step in zip(kinds, steps, strict=True)
    }
    branches = list(samplers.values())
    phase, branch = phase_of(plan), [list(samplers).index(kind) for kind in kinds]

    def draw(key, step):
        number = phase(step)
        if len(branches) == 1:
            return branches[0](key, step, number)
        return jax.lax.switch(chosen(branch, number), branches, key, step, number)

    return draw


def phase_of(plan: Plan) -> Callable[[Any], Any]:
    """From a step's number to its phase's."""
    ends = np.cumsum([phase.steps for phase in plan.phases]).astype(np.int32)
    if len(ends) == 1:
        return lambda step: None
    return lambda step: jnp.sum(jnp.asarray(step, jnp.int32) >= ends, dtype=jnp.int32)


def largest_of_block(plan: Plan, rows: int, failure: float) -> int:
    """Records of a step within so many neighbouring ones, exceeded with at most `failure`."""
    return max(_largest(phase.step, plan.population, failure, rows) for phase in plan.phases)


def _largest(step: Any, population: int, failure: float, rows: int | None = None) -> int:
    """Records of a step, among `rows` neighbouring ones, exceeded with at most `failure`."""
    rows = population if rows is None else rows
    binomial = functools.partial(sampling.poisson_capacity, steps=1, delta=failure, epsilon=0.0)
    if isinstance(step, acc.PoissonSampled | acc.RandomAllocation):
        return binomial(rows, rate_of(step))
    if isinstance(step, acc.CyclicPoissonCorrelated):
        group = -(-rows // int(np.asarray(step.groups)))
        return binomial(group, float(np.asarray(step.rate)))
    if isinstance(step, IN_TURN):
        return -(-rows // int(np.asarray(step.separation)))
    if isinstance(step, acc.WithReplacement):
        return draws_of_batch(step)
    if isinstance(step, acc.TruncatedPoissonSampled):
        return min(kept_of(step), rows, binomial(rows, rate_of(step)))
    return _hypergeometric(population, rows, round(rate_of(step) * population), failure)


def _hypergeometric(population: int, rows: int, batch: int, failure: float) -> int:
    """Records of a uniform batch among `rows`, exceeded with at most `failure`.

    P(≥ k) ≤ exp(−batch·KL(k/batch, rows/population)) for k above the mean, as for draws with
    replacement (Hoeffding 1963, Theorems 1 and 4).
    """
    most, share = min(batch, rows), rows / population
    for k in range(int(batch * share) + 1, most + 1):
        part = k / batch
        rest = (1 - part) * math.log((1 - part) / (1 - share)) if part < 1 else 0.0
        if batch * (part * math.log(part / share) + rest) >= -math.log(failure):
            return k - 1
    return most
