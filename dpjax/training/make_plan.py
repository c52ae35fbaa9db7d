"""A plan from what a user knows: a budget or a noise, a batch size, a number of steps or epochs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpjax import accounting as acc
from dpjax._numerics.checks import CLIP_NORMS, one_number, scalar
from dpjax._other_names import taught
from dpjax.correlation import BandedInverse, Toeplitz, Tree
from dpjax.gradients import AdaptiveQuantile
from dpjax.sampling import realised_rate
from dpjax.training.arguments import positive
from dpjax.training.plan import ARITHMETIC, Plan

__all__ = ["make_plan"]

_IN_TURN = ("cyclic", "cyclic-poisson")
_INDEPENDENT = ("poisson", "truncated-poisson", "random-allocation", "fixed", "with-replacement")
_SAMPLING = (*_INDEPENDENT, "full", *_IN_TURN)
_SHARE = 1e-3  # of δ, set aside for arithmetic


@taught
def make_plan(
    population: int,
    *,
    delta: float,
    batch_size: int | Callable[[int], int],
    steps: int | None = None,
    epochs: float | None = None,
    sampling: str = "poisson",
    capacity: int | None = None,
    strategy: Toeplitz | BandedInverse | Tree | None = None,
    noise_schedule: Callable[[int], float] | None = None,
    clip_norm: float = 1.0,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    adjacency: acc.Adjacency = acc.Adjacency.ADD_REMOVE,
    extra_delta: Mapping[str, float] | None = None,
    unit: str = "record",
    adaptive: AdaptiveQuantile | None = None,
) -> Plan:
    """A plan: its noise given, or calibrated to a budget (ε, δ).

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
            is kept, which costs ε; priced for the removal of one of the `population` records, and
            one more than these may cost more); "fixed" (batches of exactly that size; replace-one
            only); "with-replacement" (exactly so many draws, of which a record may be several and
            then counts several times; replace-one only, on one device, and dearer than "fixed");
            "full"; or, with a strategy, "cyclic" or "cyclic-poisson". A loader that shuffles
            is none of them.
        capacity: the most records of a step under "truncated-poisson", and only there.
        strategy: correlates the noise over the steps (`dpjax.correlation`), for sampling "cyclic":
            batches in the order of the data, the same in every pass, no amplification, which must
            be equal up to one record (of 400 records: 40, or 133 and 134); or "cyclic-poisson":
            Poisson samples of as many groups as the strategy has bands, in turn, for the next
            multiple of as many steps, which takes a `Toeplitz`.
        noise_schedule: the noise of a step relative to the others, a function of its number; the
            calibrated noise multiplier, or the given one, is multiplied by it.
        clip_norm: bound on a record's gradient norm.
        epsilon: the budget to calibrate the noise to; or
        noise_multiplier: noise standard deviation over clip norm.
        adjacency: the neighbouring relation.
        extra_delta: further parts of δ to reserve, by reason; a thousandth of δ is always reserved
            for arithmetic.
        unit: "record", or "user" where `fit` is given the users of the records: population and
            batch_size then count users.
        adaptive: moves the clip norm with a quantile of the gradients' norms (Andrew et al. 2021),
            from `clip_norm` on: `gradients.AdaptiveQuantile(count_noise=batch_size / 20,
            batch_size=batch_size)`. The noise multiplier, given or calibrated, then pays for the
            sum and the count together.

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
    numbers = {
        "population": population,
        "delta": delta,
        "batch_size": 1 if callable(batch_size) else batch_size,
        "steps": steps,
        "epochs": epochs,
        "capacity": capacity,
        "epsilon": epsilon,
        "noise_multiplier": noise_multiplier,
    }
    for name, value in numbers.items():
        if value is not None or name in ("population", "delta", "batch_size"):
            scalar(name, value)
    if not 1 <= population < math.inf:
        raise ValueError(f"population must be at least 1, got {population}")
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError("give either epsilon, a budget, or noise_multiplier, the noise itself")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, got {delta}")
    if sampling not in _SAMPLING:
        names = f"{', '.join(_SAMPLING[:-1])} or {_SAMPLING[-1]}"
        raise ValueError(f"sampling must be {names}, got {sampling!r}")
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
    if (strategy is not None) != (sampling in _IN_TURN):
        raise ValueError(
            "strategy must be given for sampling cyclic and cyclic-poisson, and for no other: "
            f"correlated noise has no price there, got {strategy!r} for {sampling!r}"
        )
    if strategy is not None and (callable(batch_size) or noise_schedule is not None):
        raise ValueError(
            "batch_size must be a number, and noise_schedule None, where noise is correlated, got "
            f"{batch_size!r} and {noise_schedule!r}"
        )
    if (steps is None) == (epochs is None):
        raise ValueError("give either steps or epochs, the length of the run")
    if steps is None:
        positive("epochs", epochs or 0.0)
        if callable(batch_size):
            raise ValueError("give steps where batch_size is a function of them")
        steps = max(1, math.ceil(epochs * population / max(batch_size, 1)))  # pyrefly: ignore
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    sizes = [batch_size(step) for step in range(steps)] if callable(batch_size) else [batch_size]
    for size in sizes:
        scalar("batch_size", size)
    length = 1
    if sampling == "random-allocation":
        if callable(batch_size):
            raise ValueError(
                f"batch_size must be one number for random allocation, got {batch_size}"
            )
        length = max(1, math.ceil(population / max(batch_size, 1)))
        if epochs is not None:
            steps = length * math.ceil(epochs)
        if steps % length:
            raise ValueError(
                f"steps must be a multiple of the {length} of an epoch for random allocation, "
                f"got {steps}"
            )
    for size in sizes:
        if not 1 <= size <= population:
            raise ValueError(
                f"batch_size must be between 1 and {population}, all the records, got {size}"
            )
        if sampling == "full" and size != population:
            raise ValueError(f"batch_size must be {population} for full batches, got {size}")
    one_number("clip_norm", clip_norm, CLIP_NORMS)
    extra = {ARITHMETIC: _SHARE * delta, **(extra_delta or {})}
    if sum(extra.values()) >= delta:
        raise ValueError(
            f"delta must exceed the {sum(extra.values()):.3g} reserved for "
            f"{', '.join(extra)}, got {delta}"
        )
    relative = [noise_schedule(step) for step in range(steps)] if noise_schedule else [1.0]
    for value in relative:
        scalar("noise_schedule", value)
        positive("noise_schedule", value)
    settings = [
        (relative[step % len(relative)], sizes[step % len(sizes)])
        for step in range(steps if len(relative) * len(sizes) > 1 else 1)
    ]
    grouped = [(pair, sum(1 for _ in same)) for pair, same in itertools.groupby(settings)]
    if len(settings) > 1 and any(count % length for _, count in grouped):
        raise ValueError(
            f"noise_schedule must be constant within the {length} steps of an epoch for random "
            f"allocation, got runs of {[count for _, count in grouped]}"
        )
    if len(settings) == 1:
        grouped = [(settings[0], steps)]

    def run(noise: float) -> acc.Mechanism:
        if strategy is not None:
            return _in_turn(noise, strategy, steps, sizes[0], population, sampling)
        parts = tuple(
            acc.Repeated(
                _step(noise * scale, size, population, sampling, capacity), count // length
            )
            for (scale, size), count in grouped
        )
        return parts[0] if len(parts) == 1 else acc.Composed(parts)

    if noise_multiplier is None:
        assert epsilon is not None
        positive("epsilon", epsilon)
        found = acc.calibrate(
            run, epsilon=epsilon, delta=delta - sum(extra.values()), adjacency=adjacency
        )
        noise_multiplier = float(np.asarray(found))
    drawn = strategy if isinstance(strategy, BandedInverse | Tree) else None
    given = (clip_norm, population, delta, adjacency, extra, drawn, unit, adaptive)
    return Plan(run(noise_multiplier), *given)


def _in_turn(
    noise: Any, strategy: Any, steps: int, size: int, population: int, kind: str
) -> acc.Mechanism:
    if kind == "cyclic":
        batches = _equal_batches(size, population)
        if isinstance(strategy, Tree):
            known: Any = strategy.sensitivities(steps, batches)
            return acc.MatrixGaussian(noise, known, steps, batches)  # pyrefly: ignore
        return acc.CorrelatedGaussian(noise, strategy, steps, batches)  # pyrefly: ignore
    if not isinstance(strategy, Toeplitz):
        raise ValueError(
            "strategy must be a Toeplitz for cyclic-poisson sampling: of a tree, or where C⁻¹ "
            f"is banded, C has no bands, and no amplification is known, got {strategy!r}"
        )
    groups = strategy.bands
    if size * groups > population:
        raise ValueError(
            f"batch_size must be at most {population // groups}, the records of one of "
            f"{groups} groups, got {size}"
        )
    rate = realised_rate(size * groups / population)
    one = acc.CyclicPoissonCorrelated(noise, strategy, groups, rate)  # pyrefly: ignore
    return acc.Repeated(one, math.ceil(steps / groups))


def _equal_batches(size: int, population: int) -> int:
    """The number of batches of that size, up to one record, that a pass consists of."""
    fewest, most = population // size, -(-population // size)
    for batches in (fewest, most):
        if population // batches <= size <= -(-population // batches):
            return batches
    sizes = sorted({-(-population // batches) for batches in (fewest, most)})
    raise ValueError(
        f"batch_size must divide the {population} records into batches equal up to one record "
        f"(such as {' or '.join(map(str, sizes))}) for cyclic sampling, got {size}"
    )


def _step(noise: Any, size: int, population: int, kind: str, capacity: int | None) -> Any:
    gaussian: Any = acc.Gaussian(noise)
    if kind == "fixed":
        return acc.FixedBatchSampled(gaussian, size, population)  # pyrefly: ignore
    if kind == "with-replacement":
        return acc.WithReplacement(gaussian, size, population)  # pyrefly: ignore
    if kind == "random-allocation":
        return acc.RandomAllocation(gaussian, math.ceil(population / size))  # pyrefly: ignore
    rate = realised_rate(size / population)
    if capacity is not None:
        return acc.TruncatedPoissonSampled(gaussian, rate, population, capacity)  # pyrefly: ignore
    return acc.PoissonSampled(gaussian, rate) if rate < 1 else gaussian  # pyrefly: ignore
