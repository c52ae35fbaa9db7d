"""`make_plan`: a plan from a budget or a noise, a batch size, and a number of steps or epochs."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dpjax import accounting as acc
from dpjax._argument_names import accepts_old_names
from dpjax._numerics.checks import CLIP_NORMS, POSITIVE, Tracer, scalar
from dpjax._numerics.warning import DpjaxWarning
from dpjax.correlation import Toeplitz
from dpjax.correlation.strategies import CorrelationStrategy
from dpjax.gradients import AdaptiveQuantile
from dpjax.training.options import check_functions, check_integer
from dpjax.training.plan import ARITHMETIC, Plan, reserve_delta, warn_of_large_epsilon
from dpjax.training.schemes import BY_NAME, Scheme, choose_scheme

_FOR_ARITHMETIC = 1e-3  # of δ, set aside for arithmetic
# A batch's size: one number, or a function of the step's number.
_BatchSize = int | Callable[[int], int]


class _Sizes(NamedTuple):
    """Whole numbers of a plan, as Python's own."""

    population: int
    batch_size: _BatchSize
    steps: int | None
    capacity: int | None


@accepts_old_names(strategy="correlation")
def make_plan(
    population: int,
    *,
    delta: float,
    batch_size: _BatchSize,
    steps: int | None = None,
    epochs: float | None = None,
    sampling: str = "poisson",
    capacity: int | None = None,
    correlation: CorrelationStrategy | None = None,
    noise_schedule: Callable[[int], float] | None = None,
    clip_norm: float = 1.0,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    adjacency: acc.Adjacency = acc.Adjacency.ADD_REMOVE,
    extra_delta: Mapping[str, float] | None = None,
    unit: str = "record",
    adaptive: AdaptiveQuantile | None = None,
    preceding: acc.Mechanism | None = None,
) -> Plan:
    """A plan: its noise given, or calibrated to a budget (ε, δ).

    Warns where δ is above 1/population, or ε above 10, of what such a budget permits; where the
    noise is given, whose ε may take long to find, `Plan.certify` warns of it.

    Args:
        population: number of records, treated as public.
        delta: in (0, 1); below 1/population, or the guarantee allows publishing one record whole.
        batch_size: expected records a step; all of them if equal to `population`. A function of the
            step's number warms it up.
        steps: number of steps; or
        epochs: expected number of times that each record takes part, for a constant batch.
        sampling: "poisson"; "random-allocation" (each record takes part in one step of every epoch,
            drawn at random; an epoch has ⌈population / batch_size⌉ steps, and a run whole epochs);
            "truncated-poisson" (for fixed memory: of a draw larger than `capacity` a uniform choice
            is kept; priced for the removal of one of the `population` records); "fixed" (batches of
            exactly that size; replace-one only); "with-replacement" (exactly so many draws, of
            which a record may be several and then counts several times; replace-one only, on one
            device, and dearer than "fixed"); "full"; or, with a strategy, "cyclic",
            "cyclic-poisson", "min-separated" or "balls-in-bins". A loader that shuffles is none of
            them.
        capacity: the most records of a step under "truncated-poisson", and only there.
        correlation: of the noise over the steps (`dpjax.correlation`), for sampling "cyclic":
            batches in the order of the data, the same in every pass, no amplification, equal up to
            one record (of 400 records: 40, or 133 and 134); or "cyclic-poisson": Poisson samples of
            as many groups as the `Toeplitz` strategy has bands, in turn, in whole rounds; or
            "min-separated": random batches in which a record returns after at least
            population / batch_size steps, rounded down; no amplification is claimed; or
            "balls-in-bins": each record in one of an epoch's steps at random, the same in every
            epoch, a strategy of any kind whose matrix is >= 0; or "random-allocation": the same
            with a step drawn afresh in every epoch, which costs more.
        noise_schedule: the noise of a step relative to the others, a function of its number; the
            noise multiplier is multiplied by it.
        clip_norm: bound on a record's gradient norm.
        epsilon: the budget to calibrate the noise to; or
        noise_multiplier: noise standard deviation over clip norm.
        adjacency: the neighbouring relation.
        extra_delta: further parts of δ to reserve, by reason; a thousandth of δ is always reserved
            for arithmetic.
        unit: "record", or "user" or "person" where `fit` is given the users of the records:
            population and batch_size then count users.
        adaptive: moves the clip norm with a quantile of the gradients' norms (Andrew et al. 2021),
            from `clip_norm` on: `gradients.AdaptiveQuantile(count_noise=batch_size / 20,
            batch_size=batch_size)`. The noise multiplier then pays for sum and count together.
        preceding: what was released of the same records before, such as the mechanism of a
            `data.PrivateTable`; the budget is that of both together. Of a user it must have used at
            most one record.

    Raises:
        ValueError: an argument out of range, or a budget that no noise can keep.

    Example:
        >>> plan = make_plan(400, epsilon=2.0, delta=1e-5, steps=100, batch_size=100)
        >>> 1.99 < plan.epsilon() <= 2.0
        True
        >>> warm = make_plan(400, noise_multiplier=2.0, delta=1e-5, epochs=2, batch_size=100,
        ...                  noise_schedule=lambda step: 2.0 if step < 3 else 1.0)
        >>> [(phase.steps, phase.step.mechanism.noise_multiplier) for phase in warm.phases]
        [(3, 4.0), (5, 2.0)]
    """
    given = {"steps": steps, "epochs": epochs, "capacity": capacity, "epsilon": epsilon}
    given |= {"noise_multiplier": noise_multiplier}
    population, batch_size, steps, capacity = _check_numbers(population, delta, batch_size, given)
    _check_sampling(sampling, population, capacity, correlation, batch_size, noise_schedule)
    scheme = choose_scheme(sampling, correlation)  # how it samples, and its price
    steps, sizes = _find_steps_and_sizes(scheme, population, batch_size, steps, epochs)
    scalar("clip_norm", clip_norm, CLIP_NORMS)
    check_functions(noise_schedule=noise_schedule)
    extra = reserve_delta(delta, {ARITHMETIC: _FOR_ARITHMETIC * delta}, extra_delta or {})
    relative = [noise_schedule(step) for step in range(steps)] if noise_schedule else [1.0]
    for value in relative:
        scalar("noise_schedule", value, POSITIVE)
    grouped = _group_steps(relative, sizes, steps, scheme.epoch(population, sizes[0]))

    def run(noise: float) -> acc.Mechanism:
        parts = tuple(
            scheme.price(noise * scale, size, population, count, capacity, correlation)
            for (scale, size), count in grouped
        )
        return parts[0] if len(parts) == 1 else acc.Composed(parts)

    if noise_multiplier is None:  # the least noise that keeps the budget
        assert epsilon is not None
        scalar("epsilon", epsilon, POSITIVE)
        found = acc.calibrate(
            run if preceding is None else lambda noise: acc.Composed((preceding, run(noise))),
            epsilon=epsilon,
            delta=delta - sum(extra.values()),
            adjacency=adjacency,
        )
        noise_multiplier = float(np.asarray(found))
    _warn_of_weak_budget(epsilon, delta, population, unit)
    # Of a fixed order a Toeplitz strategy is in the mechanism; others draw noise their own way.
    drawn = None if isinstance(correlation, Toeplitz) and not scheme.in_epochs else correlation
    settings = (clip_norm, population, delta, adjacency, extra, drawn, unit, adaptive, preceding)
    plan = Plan(run(noise_multiplier), *settings)
    object.__setattr__(plan, "_named_budget", epsilon is not None)
    return plan


def _check_numbers(
    population: int, delta: float, batch_size: _BatchSize, given: dict[str, Any]
) -> _Sizes:
    """The whole numbers; refuses those out of range, and a noise given twice or not at all."""
    size = 1 if callable(batch_size) else batch_size  # a schedule is checked step by step
    needed = {"population": population, "delta": delta, "batch_size": size}
    for name, value in (needed | given).items():
        if name in needed or value is not None:
            scalar(name, value)
        if isinstance(value, Tracer) and name != "noise_multiplier":
            raise ValueError(
                f"{name} must be a number, got a traced one: nothing but clip_norm and "
                "noise_multiplier may be traced"
            )
    if not 1 <= population < math.inf:
        raise ValueError(f"population must be at least 1, got {population}")
    if (given["epsilon"] is None) == (given["noise_multiplier"] is None):
        raise ValueError("give either epsilon, a budget, or noise_multiplier, the noise itself")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, got {delta}")

    def read(name: str, value: int) -> int:
        return check_integer(name, value, low=-math.inf)

    steps, capacity = given["steps"], given["capacity"]
    return _Sizes(
        read("population", population),
        batch_size if callable(batch_size) else read("batch_size", batch_size),
        None if steps is None else read("steps", steps),
        None if capacity is None else read("capacity", capacity),
    )


def _check_sampling(
    sampling: str,
    population: int,
    capacity: int | None,
    correlation: CorrelationStrategy | None,
    batch_size: _BatchSize,
    schedule: Callable[[int], float] | None,
) -> None:
    """Refuse a scheme that there is not, and what it does not take."""
    if sampling not in BY_NAME:
        *names, last = BY_NAME
        raise ValueError(f"sampling must be {', '.join(names)} or {last}, got {sampling!r}")
    cut = sampling == "truncated-poisson"
    if cut and (capacity is None or not 1 <= capacity <= population):
        raise ValueError(
            f"capacity must be between 1 and {population}, all the records, got {capacity}"
        )
    if not cut and capacity is not None:
        raise ValueError(
            f"capacity must be left out unless sampling is truncated-poisson, got {capacity}: the "
            "size of the pieces that a step is worked through in is an argument of fit"
        )
    if (correlation is not None) != choose_scheme(sampling, correlation).correlated:
        raise ValueError(
            "correlation must be given for sampling cyclic, cyclic-poisson, min-separated and "
            "balls-in-bins, may be for random-allocation, and for no other: correlated noise has "
            f"no price there, got {correlation!r} for {sampling!r}"
        )
    if correlation is not None and (callable(batch_size) or schedule is not None):
        raise ValueError(
            "batch_size must be a number, and noise_schedule None, where noise is correlated, got "
            f"{batch_size!r} and {schedule!r}"
        )


def _find_steps_and_sizes(
    scheme: type[Scheme],
    population: int,
    batch_size: _BatchSize,
    steps: int | None,
    epochs: float | None,
) -> tuple[int, list[int]]:
    """The number of steps, whole epochs of random allocation, and the batch size of each or all."""
    if (steps is None) == (epochs is None):
        raise ValueError("give either steps or epochs, the length of the run")
    if steps is None:
        assert epochs is not None, "as was just asked"
        scalar("epochs", epochs, POSITIVE)
        if callable(batch_size):
            raise ValueError("give steps where batch_size is a function of them")
        steps = max(1, math.ceil(epochs * population / max(batch_size, 1)))
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    sizes = [batch_size(step) for step in range(steps)] if callable(batch_size) else [batch_size]
    sizes = [check_integer("batch_size", size, low=-math.inf) for size in sizes]
    for size in sizes:
        if not 1 <= size <= population:
            raise ValueError(
                f"batch_size must be between 1 and {population}, all the records, got {size}"
            )
        if scheme.name == "full" and size != population:
            raise ValueError(f"batch_size must be {population} for full batches, got {size}")
    if scheme.in_epochs:
        if callable(batch_size):
            raise ValueError(
                f"batch_size must be one number for random allocation, got {batch_size}"
            )
        length = scheme.epoch(population, batch_size)  # steps of an epoch
        steps = steps if epochs is None else length * math.ceil(epochs)
        if steps % length:
            raise ValueError(
                f"steps must be a multiple of the {length} of an epoch for random allocation, "
                f"got {steps}"
            )
    return steps, sizes


def _group_steps(
    relative: list[float], sizes: list[int], steps: int, length: int
) -> list[tuple[tuple[float, int], int]]:
    """(relative noise, batch size) of equal steps in a row, and how many steps they are."""
    if len(relative) * len(sizes) == 1 or steps == 1:
        return [((relative[0], sizes[0]), steps)]
    pairs = [(relative[step % len(relative)], sizes[step % len(sizes)]) for step in range(steps)]
    grouped = [(pair, len(list(same))) for pair, same in itertools.groupby(pairs)]
    if any(count % length for _, count in grouped):  # an epoch is priced as one
        raise ValueError(
            f"noise_schedule must be constant within the {length} steps of an epoch for random "
            f"allocation, got runs of {[count for _, count in grouped]}"
        )
    return grouped


def _warn_of_weak_budget(epsilon: float | None, delta: float, population: int, unit: str) -> None:
    """Warn of a δ above 1/population, and of an ε above 10."""
    if delta > 1 / population:  # releasing one record whole would be allowed
        warnings.warn(
            f"delta must be below 1 / {population} {unit}s to mean anything, got {delta:g}: such a "
            f"δ allows one whole {unit} to be published",
            DpjaxWarning,
            stacklevel=4,
        )
    if epsilon is not None:
        warn_of_large_epsilon(epsilon, unit, stacklevel=4)
