"""Ways to draw batches and to correlate noise, by the error that they leave at one ε."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpjax import accounting as acc
from dpjax._argument_names import suggests_argument_names
from dpjax._numerics.warning import OldNameWarning
from dpjax.correlation import (
    Workload,
    banded_inverse,
    banded_toeplitz,
    buffered_toeplitz,
    identity,
)
from dpjax.correlation.strategies import CorrelationStrategy
from dpjax.training.make_plan import make_plan
from dpjax.training.options import check_integer
from dpjax.training.plan import Plan


class Compared(NamedTuple):
    """One way to draw batches and to correlate noise, calibrated to a budget.

    Fields:
        sampling, correlation: as of `make_plan`; None where noise is fresh at every step.
        noise_multiplier: the least that keeps the budget.
        error: the root of the mean over the steps of the noise's variance in a coordinate of the
            iterates, for rate 1: of sums of mean gradients, in units of the gradient.
        plan: the plan itself.

    Example:
        >>> Compared._fields[:2]
        ('sampling', 'correlation')
    """

    sampling: str
    correlation: CorrelationStrategy | None
    noise_multiplier: float
    error: float
    plan: Plan

    @property
    def strategy(self) -> CorrelationStrategy | None:
        """`correlation`, by the name that it had before."""
        warnings.warn(
            "Compared.strategy is 'correlation' now: the old name will go in a later version",
            OldNameWarning,
            stacklevel=2,
        )
        return self.correlation


@suggests_argument_names
def compare_noise(
    population: int,
    *,
    epsilon: float,
    delta: float,
    batch_size: int,
    epochs: int,
    momentum: float = 0.0,
    bands: Sequence[int] = (2, 4, 8, 16, 32),
    buffers: Sequence[int] = (3,),
    secret: bool = True,
    clip_norm: float = 1.0,
) -> list[Compared]:
    """Calibrate Poisson samples, groups in turn, balls in bins and a fixed order to one budget.

    Fresh noise is tried under Poisson samples and balls in bins; of every number of bands, a
    `banded_toeplitz` in a fixed order, under groups in turn (as many as bands) and under balls in
    bins, and a `banded_inverse` in a fixed order and under balls in bins; of every number of
    buffers a `buffered_toeplitz`, the same two ways. All are tuned for a fixed order. Adds up to
    some seconds a strategy.

    Args:
        population, epsilon, delta, batch_size, clip_norm: as of `make_plan`; ⌈population /
            batch_size⌉ steps are an epoch.
        epochs: whole number of epochs.
        momentum: of the descent whose iterates count, see `correlation.Workload`.
        bands: numbers of bands to try; those beyond an epoch's steps are left out.
        buffers: numbers of buffers to try, of runs with more steps than twice as many.
        secret: whether samples may be drawn in secret; if not, a fixed order alone is tried.

    Returns:
        What was tried, the least error first.

    Raises:
        ValueError: numbers that `make_plan` refuses.

    Guarantee:
        Every plan keeps the budget under add-remove. The error is that of noise alone: what samples
        vary by comes on top of it.

    Example:
        >>> found = compare_noise(400, epsilon=2.0, delta=1e-5, batch_size=50, epochs=2, bands=(),
        ...                       buffers=())
        >>> [f"{one.sampling} {one.error:.3f}" for one in found]
        ['poisson 0.086', 'balls-in-bins 0.090', 'cyclic 0.164']

    References:
        Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization".
    """
    epochs = check_integer("epochs", epochs)
    bins = math.ceil(population / check_integer("batch_size", batch_size, high=population))
    work = Workload(bins * epochs, momentum)
    few = [b for b in (check_integer("bands", b) for b in bands) if 1 < b <= bins]
    some = [b for b in (check_integer("buffers", b) for b in buffers) if 2 * b < work.steps]
    found = []
    for sampling, strategy in _list_ways(work, bins, (few, some), secret):
        if sampling == "cyclic-poisson" and batch_size * getattr(strategy, "bands", 1) > population:
            continue  # a batch would be larger than its group
        plan = make_plan(
            population,
            epsilon=epsilon,
            delta=delta,
            batch_size=batch_size,
            steps=work.steps,
            sampling=sampling,
            correlation=strategy,
            clip_norm=clip_norm,
            adjacency=acc.Adjacency.ADD_REMOVE,
        )
        errors = work.errors(identity() if strategy is None else strategy)
        size = float(np.sqrt(np.mean(errors**2)))
        size *= plan.noise_multiplier * clip_norm / plan.expected_batch_size
        found.append(Compared(sampling, strategy, plan.noise_multiplier, size, plan))
    return sorted(found, key=lambda one: one.error)


def _list_ways(
    work: Workload, bins: int, sizes: tuple[Sequence[int], Sequence[int]], secret: bool
) -> list[tuple[str, CorrelationStrategy | None]]:
    """The samplings and strategies that are compared, tuned for a fixed order."""
    bands, buffers = sizes
    toeplitz = [banded_toeplitz(b, workload=work, separation=bins) for b in bands]
    full = [
        *(banded_inverse(b, workload=work, separation=bins) for b in bands),
        *(buffered_toeplitz(b, workload=work, separation=bins) for b in buffers),
    ]
    tried: list[tuple[str, CorrelationStrategy | None]] = []
    if secret:
        tried += [("poisson", None), ("balls-in-bins", identity())]
        tried += [("cyclic-poisson", c) for c in toeplitz]
        tried += [("balls-in-bins", c) for c in (*toeplitz, *full)]
    return [*tried, *(("cyclic", c) for c in (identity(), *toeplitz, *full))]
