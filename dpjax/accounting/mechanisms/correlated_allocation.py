"""A run under correlated Gaussian noise whose records draw their steps at random."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np

from dpjax._numerics.checks import Range, one_number
from dpjax._numerics.overlaps import Overlaps, overlaps_of_column, overlaps_of_matrix
from dpjax.accounting.mechanisms.base import (
    FRESH_NOISE,
    FieldRelation,
    Mechanism,
    Real,
    keep,
    number_field,
    register_mechanism,
)
from dpjax.accounting.mechanisms.correlated import HasColumn
from dpjax.accounting.mechanisms.sampling import PUBLIC_DIVISOR

_MOST_STEPS = 1 << 20  # of a Toeplitz matrix, and bins times steps
_MOST_COLUMNS = 4096  # of a matrix that is formed


@runtime_checkable
class _HasMatrix(Protocol):
    """A strategy that is known by its matrix."""

    def matrix(self, steps: int) -> np.ndarray:
        """Return C of so many columns."""
        ...


def allocation_overlaps(strategy: Any, bins: int, epochs: int, redrawn: bool) -> Overlaps:
    """How far what a record moves by two of its allocations overlaps, at most and at least.

    Args:
        strategy: one of `dpjax.correlation`, or anything with `matrix(steps)`, its entries ≥ 0.
        bins, epochs, redrawn: as of `RandomAllocationCorrelated`.

    Raises:
        ValueError: entries below 0 or that are none, or too many steps.

    Example:
        >>> from dpjax import correlation
        >>> allocation_overlaps(correlation.Toeplitz((1.0, 1.0)), 3, 1, False).most.tolist()
        [[2.0, 1.0, 0.0]]
    """
    size = {"bins": bins, "epochs": epochs}
    bins, epochs = (int(one_number(n, v, Range(1.0, 2.0**20, whole=True))) for n, v in size.items())
    redrawn = redrawn and bins > 1  # of one bin nothing is drawn
    column = _find_column(strategy, bins * epochs)
    most = _MOST_COLUMNS if column is None else _MOST_STEPS
    if bins * epochs > most:
        raise ValueError(
            f"epochs must be at most {most // bins}, {most} steps of {bins} bins, got {epochs}"
        )
    if column is not None:
        return overlaps_of_column(column, bins, epochs, redrawn)
    return overlaps_of_matrix(strategy.matrix, bins, epochs, redrawn)


def _find_column(strategy: Any, steps: int) -> np.ndarray | None:
    """The first column of a Toeplitz matrix of so many steps; None of any other."""
    if isinstance(strategy, HasColumn):
        return np.asarray(strategy.column(min(steps, _MOST_STEPS)), np.float64)
    found = getattr(strategy, "coefficients", None)
    return None if found is None else np.asarray(found, np.float64)


@register_mechanism
class RandomAllocationCorrelated(Mechanism):
    """`epochs` passes of `bins` steps under correlated noise, each record in one bin at random.

    Step t of an epoch sums the records of bin t, and C⁻¹ correlates the noise over all steps, as in
    `CorrelatedGaussian`; C is any matrix with entries >= 0. A record draws its bin uniformly and
    independently of all others: once, for all epochs (balls in bins), or afresh in every epoch
    (`redrawn`). With v_j what a record in bin j moves, a sum of columns of C, and K_ij =
    ⟨v_i, v_j⟩/σ², the outputs are no easier to tell apart, whatever contributions are chosen on the
    way, than by the density ratio

        (1/b)Σⱼ exp(Yⱼ − K'ⱼⱼ/2), Y Gaussian of covariance K',  K' >= K entry by entry,

    and K' is taken such that this is a Gaussian release and a `RandomAllocation` together. Redrawn
    under the identity it is `Repeated(RandomAllocation(Gaussian(σ), bins), epochs)`. ADD_REMOVE
    only, as `RandomAllocation`.

    Fields:
        noise_multiplier: standard deviation of z over the clip norm, see `CorrelatedGaussian`.
        overlaps: σ²K of two allocations whose bins are 0, 1, … apart, at most: as many as `bins`
            for a run of one epoch, then those of two epochs, and so on; or a strategy of
            `dpjax.correlation`, or anything with a `matrix(steps)`, that tells them. Given as
            numbers, they are taken on trust.
        bins: steps of an epoch, a whole number >= 1.
        epochs: number of epochs, a whole number >= 1, at most as many as there are overlaps of.
        least_own: of one allocation with itself, at least; for lower ends, 0 where unknown.
        least_shared: of any two, at least; at most `least_own`.
        redrawn: whether a record draws its bin anew in every epoch.

    Guarantee:
        An upper bound for adaptive gradients. A lower end is shown by a record whose gradients are
        all one unit vector.

    Example:
        >>> from dpjax import accounting as acc, correlation
        >>> c = correlation.square_root(8)
        >>> run = acc.RandomAllocationCorrelated(4.0, c, bins=100, epochs=2)
        >>> in_order = acc.CorrelatedGaussian(4.0, c, steps=200, separation=100)
        >>> acc.epsilon(run, delta=1e-5) < 0.5 * acc.epsilon(in_order, delta=1e-5)
        True

    References:
        Kahane 1985, "Sur le chaos multiplicatif" (fixed vectors); Choquette-Choo et al. 2025,
        "Near exact privacy amplification for matrix mechanisms" (balls in bins, by simulation);
        for adaptive gradients, and the bounds K', derived for dpjax (`pairs/raised_overlaps.py`).
    """

    noise_multiplier: Real = number_field()
    overlaps: Real = number_field(components=True)
    bins: Real = number_field(1.0, whole=True)
    epochs: Real = number_field(1.0, whole=True, default=1.0)
    least_own: Real = number_field(default=0.0)
    least_shared: Real = number_field(default=0.0)
    redrawn: bool = False

    def __post_init__(self) -> None:
        run: Any = self
        if isinstance(run.overlaps, _HasMatrix):
            found = allocation_overlaps(run.overlaps, run.bins, run.epochs, run.redrawn)
            keep(self, "overlaps", found.most.ravel())
            keep(self, "least_own", found.least_own)
            keep(self, "least_shared", found.least_shared)
        super().__post_init__()

    def relations(self) -> tuple[FieldRelation, ...]:
        run: Any = self
        count = float(np.shape(run.overlaps)[-1])
        least = run.least_shared <= run.least_own
        return (
            FieldRelation(
                ("epochs", "bins"),
                run.epochs * run.bins <= count,
                f"at most what the {count:.0f} overlaps are of",
            ),
            FieldRelation(("least_shared", "least_own"), least, "at most least_own"),
        )

    def own_steps(self) -> Real:
        return self.bins * self.epochs

    released = (
        "{bins} sums of clipped contributions in each of {epochs} epochs, each record in one of "
        "them at random (redrawn in every epoch: {redrawn}), plus noise correlated over the steps "
        "by a matrix of known overlaps ({overlaps}), of {noise_multiplier} clip norms before it is "
        "correlated"
    )

    rests_on = (
        "every record's contribution is clipped to the clip norm before it is summed",
        FRESH_NOISE.replace("the noise is", "the noise before it is correlated is"),
        "each record draws its bin uniformly, independently of the other records, in secret, once "
        "for all epochs or anew in each as the mechanism says",
        "the overlaps are those of the matrix that correlates the noise, whose entries are at "
        "least 0",
        PUBLIC_DIVISOR,
    )
