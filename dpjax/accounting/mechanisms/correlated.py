"""Runs under correlated Gaussian noise: in a fixed order, or Poisson-sampled in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from dpjax._numerics.arrays import namespace
from dpjax._numerics.checks import Range
from dpjax._numerics.checks import number as checked
from dpjax._numerics.scope import is_traced
from dpjax.accounting.mechanisms.base import (
    FRESH_NOISE,
    FieldRelation,
    Mechanism,
    Real,
    keep,
    number_field,
    register_mechanism,
)

_CLIPPED = "every record's contribution is clipped to the clip norm before it is summed"
_DRAWN = FRESH_NOISE.replace("the noise is", "the noise before it is correlated is")
_STAYS = "which steps a record may enter is decided without the data, and alike for neighbours"


@runtime_checkable
class HasColumn(Protocol):
    """A Toeplitz strategy that is full: its coefficients are known once the steps are."""

    def column(self, steps: int) -> np.ndarray:
        """Return the coefficients of so many steps."""
        ...


@runtime_checkable
class _HasSensitivities(Protocol):
    """A strategy that says how far a record can move what it correlates."""

    def sensitivities(self, steps: int, separation: int, participations: float) -> np.ndarray:
        """Return the sensitivity of the first 1, 2, …, `steps` steps."""
        ...


@runtime_checkable
class _HasCyclicSensitivities(Protocol):
    """A strategy that says how far a record can move it that is read in a fixed order."""

    def cyclic_sensitivities(
        self, steps: int, separation: int, participations: float
    ) -> np.ndarray:
        """Return the sensitivity of the first 1, 2, …, `steps` steps."""
        ...


class _Correlated(Mechanism):
    """What the two have in common: a strategy, of which certificates keep the numbers."""

    def __post_init__(self) -> None:
        # certificates keep numbers, never an object
        keep(self, "strategy", self._numbers(vars(self)["strategy"]))
        super().__post_init__()

    def _numbers(self, strategy: Real) -> Real:
        return getattr(strategy, "coefficients", strategy)

    def _decreasing(self, strategy: Real) -> tuple[FieldRelation, ...]:
        xp = namespace(strategy)
        c = xp.asarray(strategy)
        begins = xp.sum(c[..., :1], axis=-1) > 0  # of no coefficients the sum is 0
        first = FieldRelation(("strategy",), begins, "one with a first coefficient above 0")
        # the closed form of the sensitivity needs c₀ ≥ c₁ ≥ …
        falls = xp.all(c[..., 1:] <= c[..., :-1], axis=-1)
        return first, FieldRelation(("strategy",), falls, "coefficients that never increase")


class _FullColumn(_Correlated):
    """A run that is priced by the coefficients of all its steps."""

    def _numbers(self, strategy: Real) -> Real:
        """The coefficients of all steps that are priced, of a strategy that computes them."""
        if not isinstance(strategy, HasColumn):
            return super()._numbers(strategy)
        name, steps = f"{type(self).__name__}.steps", vars(self)["steps"]
        if is_traced(steps):
            raise TypeError(
                f"{name} must be known where the strategy computes its coefficients, got a traced "
                "value: give strategy.column(most steps) as the strategy"
            )
        allowed = Range(1.0, 1e7, whole=True)  # as many coefficients are kept
        # of a sweep, as many as its longest run has
        return strategy.column(int(np.max(checked(name, steps, allowed))))

    def relations(self) -> tuple[FieldRelation, ...]:
        return self._decreasing(vars(self)["strategy"])


@register_mechanism
class CorrelatedGaussian(_FullColumn):
    """`steps` sums of clipped contributions with the correlated noise σ·C·(C⁻¹z)ₜ, DP-FTRL.

    C is the lower-triangular Toeplitz matrix of the strategy's coefficients c₀ ≥ c₁ ≥ … ≥ 0 and C
    the clip norm in front; z is fresh standard normal noise. What is released is a function of
    CG + σz, G the steps' sums, one row each: a Gaussian release of sensitivity ‖Σⱼ C[:, tⱼ]‖ over
    the steps tⱼ that a record enters. For these C the largest is at tⱼ = j·separation, and

        μ = ‖Σ_{j < k} C[:, j·separation]‖ / σ,  k = min(participations, ⌈steps/separation⌉),

    exactly; twice that for replacing a record. The noise multiplier is that of z: not multiplied by
    the sensitivity. Every column counts, so a strategy may be scaled at will if σ is too. No
    amplification is claimed: sampling is priced by `CyclicPoissonCorrelated`.

    Fields:
        noise_multiplier: standard deviation of z over the clip norm, >= 0, as `noise_std` of
            `transforms.correlated_noise` over it.
        strategy: c₀, c₁, … as numbers, zero beyond the last, or a strategy of `dpjax.correlation`;
            of one whose matrix is full, the coefficients of all `steps` are taken.
        steps: number of steps, a whole number >= 1.
        separation: fewest steps from one use of a record to its next, a whole number >= 1: the
            number of batches, where a data set is passed through in a fixed order.
        participations: how often a record is used at most; +inf for as often as `separation` lets.

    Example:
        >>> from dpjax import accounting as acc, correlation
        >>> run = acc.CorrelatedGaussian(4.0, correlation.square_root(8), steps=100, separation=20)
        >>> f"{acc.epsilon(run, delta=1e-5):.4f}"
        '3.0649'

    References:
        Denisov et al. 2022, Theorem 2.1 (adaptive inputs); Kalinin and Lampert 2024, Theorem 2.
    """

    noise_multiplier: Real = number_field()
    strategy: Real = number_field(components=True)
    steps: Real = number_field(1.0, whole=True)
    separation: Real = number_field(1.0, whole=True)
    participations: Real = number_field(1.0, whole=True, infinite=True, default=float("inf"))

    released = (
        "{steps} sums of clipped contributions plus noise correlated over the steps by a strategy "
        "of Toeplitz coefficients ({strategy}), of {noise_multiplier} clip norms before it is "
        "correlated"
    )

    rests_on = (
        _CLIPPED,
        _DRAWN,
        _STAYS,
        "no record is used more often, or again sooner, than the mechanism says",
    )


@register_mechanism
class MinSeparatedCorrelated(_FullColumn):
    """As `CorrelatedGaussian` over random batches in which no record returns too soon.

    A record takes part in a step with probability `rate`, and again at the earliest `separation`
    steps later (`sampling.min_separated_inclusion`). No amplification by sampling is claimed: the
    price is that of whoever knows every step's records, of as many uses as fit,

        μ = ‖Σ_{j < k} C[:, j·separation]‖ / σ,  k = ⌈steps/separation⌉,

    an upper bound; twice that for replacing a record.

    Fields:
        noise_multiplier, strategy, steps: as of `CorrelatedGaussian`.
        separation: fewest steps from one use of a record to its next, a whole number >= 1.
        rate: expected share of the records in a step; no part of the price. A sampler realises at
            most 1/separation.

    Example:
        >>> from dpjax import accounting as acc, correlation
        >>> c = correlation.square_root(8)
        >>> run = acc.MinSeparatedCorrelated(4.0, c, steps=100, separation=20, rate=0.04)
        >>> f"{acc.epsilon(run, delta=1e-5):.4f}"
        '3.0649'

    References:
        Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization"; Kalinin and Lampert
        2024, Theorem 2.
    """

    noise_multiplier: Real = number_field()
    strategy: Real = number_field(components=True)
    steps: Real = number_field(1.0, whole=True)
    separation: Real = number_field(1.0, whole=True)
    rate: Real = number_field(0.0, 1.0)

    released = (
        "{steps} sums of clipped contributions, each over a random sample of expected share {rate} "
        "in which no record returns within {separation} steps, plus noise correlated over the "
        "steps by a strategy of Toeplitz coefficients ({strategy}), of {noise_multiplier} clip "
        "norms before it is correlated; no amplification by sampling is claimed"
    )

    rests_on = (
        _CLIPPED,
        _DRAWN,
        _STAYS,
        "no record is used again sooner than the mechanism says",
        "sums are divided by a public constant, not by the realised batch size",
    )


@register_mechanism
class MatrixGaussian(Mechanism):
    """As `CorrelatedGaussian` for a strategy of any form, known by its sensitivities.

    The first t rows of C move by at most `sensitivities[t − 1]` clip norms with one record, for
    records that enter steps at least `separation` apart and at most `participations` times: the
    first t steps are a Gaussian release of μ = sensitivities[t − 1]/σ, twice that for replacing a
    record. Of `dpjax.correlation.Tree` they are exact, and found when the mechanism is built; given
    as numbers, they are taken on trust.

    Fields:
        noise_multiplier: standard deviation of z over the clip norm, >= 0.
        sensitivities: of the first 1, 2, … steps, never decreasing, or a strategy that tells them.
        steps: number of steps, at most as many as there are sensitivities.
        separation: fewest steps from one use of a record to its next, a whole number >= 1.
        participations: how often a record is used at most; +inf for as often as `separation` lets.

    Example:
        >>> from dpjax import accounting as acc, correlation
        >>> run = acc.MatrixGaussian(8.0, correlation.Tree(), steps=100, separation=20)
        >>> f"{acc.epsilon(run, delta=1e-5):.4f}"
        '3.2935'

    References:
        Denisov et al. 2022, Theorem 2.1 (adaptive inputs).
    """

    noise_multiplier: Real = number_field()
    sensitivities: Real = number_field(components=True)
    steps: Real = number_field(1.0, whole=True)
    separation: Real = number_field(1.0, whole=True)
    participations: Real = number_field(1.0, whole=True, infinite=True, default=float("inf"))

    def __post_init__(self) -> None:
        given, sizes = self.sensitivities, (self.steps, self.separation, self.participations)
        if isinstance(given, _HasSensitivities):
            if any(np.ndim(size) or is_traced(size) for size in sizes):
                raise TypeError(
                    "MatrixGaussian.steps must be one number, as the separation and the "
                    f"participations, where a strategy is given, got {sizes}"
                )
            # found once, when the run is built
            keep(self, "sensitivities", self._ask(given)(*sizes))
        super().__post_init__()

    def _ask(self, strategy: _HasSensitivities) -> Callable[..., np.ndarray]:
        """What a strategy tells its sensitivities by."""
        return strategy.sensitivities

    def relations(self) -> tuple[FieldRelation, ...]:
        xp = namespace(self.sensitivities)
        s, steps = xp.asarray(self.sensitivities), self.steps
        # later rows can only add to what a record moves
        rises = xp.all(s[..., :-1] <= s[..., 1:], axis=-1)
        count = np.shape(s)[-1]
        return (
            FieldRelation(("steps",), steps <= float(count), "at most the number of sensitivities"),
            FieldRelation(("sensitivities",), rises, "numbers that never decrease"),
        )

    released = (
        "{steps} sums of clipped contributions plus noise correlated over the steps by a matrix of "
        "known sensitivities ({sensitivities}), of {noise_multiplier} clip norms before it is "
        "correlated"
    )

    rests_on = (
        _CLIPPED,
        _DRAWN,
        _STAYS,
        "no record is used more often, or again sooner, than the mechanism says",
        "the sensitivities are those of the matrix that correlates the noise",
    )


@register_mechanism
class CyclicMatrixGaussian(MatrixGaussian):
    """As `MatrixGaussian` for records read in a fixed order, the same in every epoch.

    A record enters steps of one number modulo `separation` and no others. Columns of the matrix
    that one record uses may then be orthogonal although they overlap.

    Fields:
        noise_multiplier, steps: as of `MatrixGaussian`.
        sensitivities: for such records, of the first 1, 2, … steps, never decreasing; or a
            strategy that tells them as `cyclic_sensitivities`, `dpjax.correlation.Banded`.
        separation: steps from one use of a record to its next, exactly: the number of batches.
        participations: +inf, or at least as often as the steps let.

    Example:
        >>> from dpjax import accounting as acc, correlation
        >>> c = correlation.Banded(((0.8, 0.6, 0.0), (0.8, 0.6, 0.0), (1.0, 0.0, 0.0)))
        >>> run = acc.CyclicMatrixGaussian(2.0, c, steps=3, separation=2)
        >>> f"{acc.epsilon(run, delta=1e-5):.4f}"
        '2.9432'

    References:
        Denisov et al. 2022, Theorem 2.1; Choquette-Choo et al. 2022, "Multi-epoch matrix
        factorization mechanisms for private machine learning".
    """

    def _ask(self, strategy: _HasSensitivities) -> Callable[..., np.ndarray]:
        if not isinstance(strategy, _HasCyclicSensitivities):
            raise TypeError(
                "CyclicMatrixGaussian.sensitivities must be numbers or a strategy with "
                f"cyclic_sensitivities, got {strategy!r}"
            )
        return strategy.cyclic_sensitivities

    rests_on = (
        _CLIPPED,
        _DRAWN,
        _STAYS,
        "a record enters steps of one number modulo the separation and no others",
        "the sensitivities are those of the matrix that correlates the noise",
    )


@register_mechanism
class CyclicPoissonCorrelated(_Correlated):
    """One round of correlated noise over `groups` groups, each Poisson-sampled at its own step.

    The records are split into public groups, and step t samples from group t mod groups alone, each
    record with probability `rate`. Where the strategy has at most so many bands, the columns that a
    record may enter have no row in common: a round costs what one Poisson-sampled Gaussian of noise
    multiplier σ/‖c‖ does, and `Repeated(…, rounds)` is groups·rounds steps under one stream of
    noise. A run that stops within a round is priced as if it ended there.

    Fields:
        noise_multiplier: standard deviation of z over the clip norm, see `CorrelatedGaussian`.
        strategy: c₀, c₁, …, at most `groups` of them, or a strategy of `dpjax.correlation`.
        groups: number of groups, and of steps in a round, a whole number >= 1.
        rate: probability that a record of the step's group takes part; groups·B/n for batches of B
            of n records.

    Example:
        >>> from dpjax import accounting as acc, correlation
        >>> c = correlation.square_root(4)
        >>> step = acc.CyclicPoissonCorrelated(2.0, c, groups=4, rate=0.04)
        >>> f"{acc.epsilon(acc.Repeated(step, 250), delta=1e-5):.4f}"
        '1.8047'

    References:
        Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization", Theorem 4.
    """

    noise_multiplier: Real = number_field()
    strategy: Real = number_field(components=True)
    groups: Real = number_field(1.0, whole=True)
    rate: Real = number_field(0.0, 1.0)

    def relations(self) -> tuple[FieldRelation, ...]:
        bands: int = np.shape(self.strategy)[-1]
        groups = self.groups
        # else two columns of one record share a row
        fits = FieldRelation(
            ("groups",), groups >= bands, "at least the strategy's bands", float(bands)
        )
        return (*self._decreasing(self.strategy), fits)

    released = (
        "{groups} sums of clipped contributions, each over a Poisson sample at rate {rate} of one "
        "of as many groups, plus noise correlated over the steps by a strategy of Toeplitz "
        "coefficients ({strategy}), of {noise_multiplier} clip norms before it is correlated"
    )

    rests_on = (
        _CLIPPED,
        _DRAWN,
        _STAYS,
        "each record enters each step of its group independently with the rate, in secret",
        "sums are divided by a public constant, not by the realised batch size",
    )
