"""What training reads off a mechanism: its phases, their sizes, and whether it can run them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dpjax import accounting as acc
from dpjax.correlation import BandedInverse, Tree
from dpjax.sampling import realised_rate

# The steps that training runs as they are priced.
_RUN = (
    acc.PoissonSampled,
    acc.TruncatedPoissonSampled,
    acc.RandomAllocation,
    acc.FixedBatchSampled,
    acc.WithReplacement,
    acc.Gaussian,
)


# Correlated noise over batches in turn, without amplification.
IN_TURN = acc.CorrelatedGaussian | acc.MatrixGaussian


class Phase(NamedTuple):
    """Some steps in a row that are alike.

    Fields:
        step: the mechanism of one of them, or of one epoch of random allocation.
        steps: how many steps there are, in whole epochs of random allocation.
    """

    step: Any
    steps: int

    def uses(self, steps: Any) -> Any:
        """How many mechanisms the first `steps` steps begin: an epoch is paid when it begins."""
        return np.ceil(np.clip(steps, 0, self.steps) / length_of(self.step))


def length_of(step: Any) -> int:
    """Steps of training that one mechanism is: those of an epoch, for random allocation."""
    if isinstance(step, acc.CyclicPoissonCorrelated):
        return int(np.asarray(step.groups))
    several = acc.RandomAllocation | IN_TURN
    return int(np.asarray(step.steps)) if isinstance(step, several) else 1


def kept_of(step: Any) -> int:
    """The most records that a batch which is cut may hold."""
    return int(np.asarray(step.capacity))


def draws_of_batch(step: Any) -> int:
    """The records of a batch of fixed size, or its draws with replacement."""
    return int(np.asarray(step.batch_size))


def noise_of(step: Any) -> float:
    """Noise standard deviation over clip norm, of one step."""
    return float(np.asarray(getattr(step, "mechanism", step).noise_multiplier))


def rate_of(step: Any) -> float:
    """Probability that a given record is drawn for one step; with replacement, how often it is."""
    if isinstance(step, acc.PoissonSampled | acc.TruncatedPoissonSampled):
        return float(np.asarray(step.rate))
    if isinstance(step, acc.FixedBatchSampled | acc.WithReplacement):
        return float(np.asarray(step.batch_size)) / float(np.asarray(step.population))
    if isinstance(step, acc.RandomAllocation):
        return float(np.asarray(step.chosen)) / float(np.asarray(step.steps))
    if isinstance(step, IN_TURN):
        return 1.0 / number_of(step.separation)
    if isinstance(step, acc.CyclicPoissonCorrelated):
        return number_of(step.rate) / number_of(step.groups)
    return 1.0


def number_of(value: Any) -> float:
    return float(np.asarray(value))


CORRELATED = IN_TURN | acc.CyclicPoissonCorrelated


def mechanism_of(phase: Phase, steps: Any) -> Any:
    """The mechanism of the first steps of a phase, one or several numbers of them."""
    if not isinstance(phase.step, IN_TURN):
        uses = phase.uses(steps)
        return acc.Repeated(phase.step, int(uses) if np.ndim(uses) == 0 else uses)
    steps = np.clip(steps, 0, phase.steps)
    begun = dataclasses.replace(phase.step, steps=np.maximum(steps, 1.0))
    return acc.Repeated(begun, np.minimum(steps, 1.0))


def unrolled(mechanism: Any) -> Iterator[Phase]:
    if isinstance(mechanism, acc.Composed):
        for part in mechanism.mechanisms:
            yield from unrolled(part)
    elif isinstance(mechanism, acc.Repeated):
        times = int(np.asarray(mechanism.steps))
        inner = list(unrolled(mechanism.mechanism))
        if len(inner) == 1:
            yield Phase(inner[0].step, inner[0].steps * times)
        else:
            for _ in range(times):
                yield from inner
    else:
        yield Phase(mechanism, length_of(mechanism))


def check_step(step: Any, population: int) -> None:
    """Refuse a step that training does not run exactly."""
    if isinstance(step, CORRELATED):
        _check_correlated(step, population)
        return
    if not isinstance(step, _RUN):
        names = ", ".join(kind.__name__ for kind in _RUN[:-1])
        raise ValueError(f"the step must be {names} or {_RUN[-1].__name__}, got {step}")
    if not isinstance(getattr(step, "mechanism", step), acc.Gaussian):
        raise ValueError(f"the step must sample from a Gaussian mechanism, got {step}")
    counted = acc.FixedBatchSampled | acc.TruncatedPoissonSampled | acc.WithReplacement
    if isinstance(step, counted) and step.population != population:
        raise ValueError(
            f"the mechanism must sample from {population} records, got {step.population}"
        )
    sized = acc.FixedBatchSampled | acc.WithReplacement
    if isinstance(step, sized) and draws_of_batch(step) < 1:
        raise ValueError(f"batch_size must be at least 1, got {step.batch_size}")
    drawn = acc.PoissonSampled | acc.TruncatedPoissonSampled
    if isinstance(step, drawn) and rate_of(step) != realised_rate(rate_of(step)):
        raise ValueError(
            "rate must be one that the sampler realises exactly, got "
            f"{step.rate}; price sampling.realised_rate(rate)"
        )


def check_same(strategy: Any, run: Any) -> None:
    """Refuse a strategy that is not the one which the mechanism prices, to the last bit."""
    if isinstance(run, acc.MatrixGaussian):
        _check_tree(strategy, run)
        return
    if not isinstance(strategy, BandedInverse) or not isinstance(run, acc.CorrelatedGaussian):
        raise ValueError(
            "correlation must be a BandedInverse, of a run that is one CorrelatedGaussian, got "
            f"{strategy!r} of {type(run).__name__}"
        )
    column = strategy.column(int(number_of(run.steps)))
    if not np.array_equal(column, np.asarray(run.strategy)):
        raise ValueError(
            "correlation must be the strategy that the mechanism prices over all its steps, got "
            f"{strategy!r}"
        )


def _check_tree(strategy: Any, run: acc.MatrixGaussian) -> None:
    if not isinstance(strategy, Tree):
        raise ValueError(
            "correlation must be a Tree for a run that is one MatrixGaussian, whose sensitivities "
            f"do not say how to draw its noise, got {strategy!r}"
        )
    sizes = (number_of(v) for v in (run.steps, run.separation, run.participations))
    known = strategy.sensitivities(*sizes)  # pyrefly: ignore
    if not np.array_equal(known, np.asarray(run.sensitivities)):
        raise ValueError(
            "correlation must be the strategy that the mechanism prices over all its steps, got "
            f"{strategy!r} of other sensitivities"
        )


def _check_correlated(step: Any, population: int) -> None:
    cyclic = isinstance(step, IN_TURN)
    groups = int(number_of(step.separation if cyclic else step.groups))
    if groups > population:
        raise ValueError(
            f"the mechanism must have at most {population} groups, one a record, got {groups}"
        )
    passes = math.ceil(number_of(step.steps) / groups) if cyclic else 0
    if cyclic and number_of(step.participations) < passes:
        raise ValueError(
            f"participations must be as many as passes are run, {passes}, got {step.participations}"
        )
    if not cyclic and float(step.rate) != realised_rate(float(step.rate)):
        raise ValueError(
            "rate must be one that the sampler realises exactly, got "
            f"{step.rate}; price sampling.realised_rate(rate)"
        )
