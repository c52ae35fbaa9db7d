"""The table of mechanisms that a Gaussian pair N(0, 1) against N(μ, 1) dominates.

Gaussian pairs compose exactly into one, by adding μ². A mechanism in this table composes with
every (subsampled) Gaussian one, and amplifies by sampling where its entry says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array

from dpjax._numerics.arrays import Numbers, namespace
from dpjax._numerics.toeplitz import summed_columns2
from dpjax.accounting.gaussian.shifted_interpolation import best_mu_squared, mu_squared_by_position
from dpjax.accounting.mechanisms import (
    Composed,
    Gaussian,
    Mechanism,
    Repeated,
    Shuffled,
    UserLevel,
)
from dpjax.accounting.mechanisms.base import walk
from dpjax.accounting.mechanisms.correlated import (
    CorrelatedGaussian,
    CyclicMatrixGaussian,
    CyclicPoissonCorrelated,
    MatrixGaussian,
    MinSeparatedCorrelated,
)
from dpjax.accounting.mechanisms.geometric import (
    Anisotropic,
    BoxedAngles,
    RecentredGaussian,
    TangentBall,
)
from dpjax.accounting.mechanisms.whole_runs import NoisyCyclicDescent, NoisyGradientDescent
from dpjax.accounting.typing import Real


class GaussianPair(NamedTuple):
    """μ² of the pair N(0, 1) against N(μ, 1) that dominates a release, for each adjacency.

    Fields:
        add_remove: under ADD_REMOVE.
        replace_one: under REPLACE_ONE.
    """

    add_remove: Real
    replace_one: Real


class Entry(NamedTuple):
    """What the table says of one class.

    Fields:
        pair: from the mechanism, its fields float64 arrays of one common shape, to `GaussianPair`.
        step: whether adding a record moves the release by a contribution of bounded norm, so that
            amplification by sampling applies, and some neighbours attain the pair. False for whole
            runs, of which the pair is an upper bound only.
        sampled: whether a sample around it may be meant. False where it has many steps: a sample
            of each step is another mechanism, and dearer than one sample for all of them.
    """

    pair: Callable[[Any], GaussianPair]
    step: bool = True
    sampled: bool = True


def _moved(mu2: Real) -> GaussianPair:
    # Replacing a record moves the sum by twice what adding one does.
    return GaussianPair(mu2, 4.0 * mu2)


def _gaussian(m: Gaussian) -> GaussianPair:
    return _moved(m.noise_multiplier**-2.0)


def _ratio2(sensitivity: Real, noise_std: Real) -> Array:
    # Without noise there is no privacy, even where the sensitivity underflows.
    xp = namespace(sensitivity, noise_std)
    safe = xp.where(noise_std > 0, noise_std, 1.0)
    return xp.square(xp.where(noise_std > 0, sensitivity / safe, xp.inf))


def _ball(m: RecentredGaussian | TangentBall) -> GaussianPair:
    return _moved(_ratio2(m.radius / m.batch_size, m.noise_std))


def _boxed(m: BoxedAngles) -> GaussianPair:
    xp = namespace(m)
    angle = xp.sqrt(m.dimension + 2.0) * m.bounding_factor * np.pi  # the box's diagonal, √(d+2)·βπ
    return _moved(_ratio2(angle / (2.0 * m.batch_size), m.noise_std))


def _anisotropic(m: Anisotropic) -> GaussianPair:
    parallel = _ratio2(m.parallel_radius / m.batch_size, m.parallel_noise_std)
    perpendicular = _ratio2(m.perpendicular_radius / m.batch_size, m.perpendicular_noise_std)
    return _moved(parallel + perpendicular)  # orthogonal releases: μ² adds up


def correlated_mu2(
    run: CorrelatedGaussian | MinSeparatedCorrelated | CyclicPoissonCorrelated,
    rows: Real,
    apart: Real,
    times: Real,
) -> Numbers:
    """μ² of adding a record that enters so many steps, so far apart, of a strategy's rows."""
    # Relative to c₀: squares of a strategy at another scale might underflow, and cost nothing.
    strategy = namespace(run).asarray(run.strategy)
    first = strategy[0]
    moved2 = summed_columns2(strategy / first, rows, apart, times)
    return moved2 * _ratio2(first, run.noise_multiplier)


def _correlated(m: CorrelatedGaussian) -> GaussianPair:
    return _moved(correlated_mu2(m, m.steps, m.separation, m.participations))


def _min_separated(m: MinSeparatedCorrelated) -> GaussianPair:
    return _moved(correlated_mu2(m, m.steps, m.separation, namespace(m).asarray(np.inf)))


def _matrix(m: MatrixGaussian) -> GaussianPair:
    xp = namespace(m)
    listed = xp.asarray(m.sensitivities)  # along the first axis
    count = listed.shape[0]
    last = xp.clip(m.steps, 1.0, float(count)).astype(int) - 1  # row of the last step
    shape = (count, *np.broadcast_shapes(listed.shape[1:], last.shape))
    listed = xp.broadcast_to(listed, shape)
    moved = xp.take_along_axis(listed, xp.broadcast_to(last, shape[1:])[None], axis=0)[0]
    return _moved(_ratio2(xp.where(m.steps <= count, moved, xp.inf), m.noise_multiplier))


# Gradient sensitivities are those of the adjacency that is asked for.
def _descent(run: NoisyGradientDescent) -> GaussianPair:
    mu2 = best_mu_squared(run)
    return GaussianPair(mu2, mu2)


def _cyclic(run: NoisyCyclicDescent) -> GaussianPair:
    """The record of the worst batch."""
    mu2 = mu_squared_by_position(run, namespace(run).zeros(()))
    return GaussianPair(mu2, mu2)


DOMINATED: dict[type, Entry] = {
    Anisotropic: Entry(_anisotropic),
    BoxedAngles: Entry(_boxed),
    CorrelatedGaussian: Entry(_correlated, sampled=False),
    # The bound on a record's columns may not be attained.
    CyclicMatrixGaussian: Entry(_matrix, step=False, sampled=False),
    Gaussian: Entry(_gaussian),
    MatrixGaussian: Entry(_matrix, sampled=False),
    # A record does not use all the steps that it might: an upper bound.
    MinSeparatedCorrelated: Entry(_min_separated, step=False, sampled=False),
    NoisyCyclicDescent: Entry(_cyclic, step=False),
    NoisyGradientDescent: Entry(_descent, step=False),
    RecentredGaussian: Entry(_ball),
    TangentBall: Entry(_ball),
}


def gaussian_pair(step: Mechanism) -> GaussianPair:
    """Total Gaussian pair of a step whose kind is `gaussian`, all of it on the same records."""
    if type(step) in DOMINATED:
        return DOMINATED[type(step)].pair(step)
    if isinstance(step, Shuffled):  # one pass over disjoint batches
        return gaussian_pair(step.mechanism)
    if isinstance(step, Repeated):
        inner = gaussian_pair(step.mechanism)
        return GaussianPair(step.steps * inner.add_remove, step.steps * inner.replace_one)
    if isinstance(step, UserLevel):
        inner, k = gaussian_pair(step.mechanism), step.records * step.records
        return GaussianPair(k * inner.add_remove, k * inner.replace_one)
    assert isinstance(step, Composed)
    pairs = [gaussian_pair(part) for part in step.mechanisms]
    return GaussianPair(sum(p.add_remove for p in pairs), sum(p.replace_one for p in pairs))


def whole_run(step: Mechanism) -> bool:
    """Whether it has a part of which the pair is an upper bound only."""
    return any(type(part) in DOMINATED and not DOMINATED[type(part)].step for part in walk(step))


def samplable(step: Mechanism) -> bool:
    """Whether sampling the records of a step amplifies it."""
    if type(step) in DOMINATED:
        return DOMINATED[type(step)].step and DOMINATED[type(step)].sampled
    if isinstance(step, Composed):
        return all(samplable(part) for part in step.mechanisms)
    return not isinstance(step, Shuffled | UserLevel) and samplable(step.mechanism)  # pyrefly: ignore
