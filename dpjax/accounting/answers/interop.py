"""To and from dp_accounting's `DpEvent`, for runs described there (the optional extra `interop`).

Only events whose meaning is the same on both sides are translated; anything else is refused. An
event does not say which neighbouring relation it is for: pass the adjacency when pricing, here and
there. One price differs although the event is the same, see `differences`.
"""

from __future__ import annotations

import functools
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpjax._numerics.checks import render
from dpjax._numerics.warning import DpjaxWarning
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import (
    BestOf,
    Composed,
    CyclicPoissonCorrelated,
    DiscreteLaplace,
    FixedBatchSampled,
    Gaussian,
    Laplace,
    Mechanism,
    PoissonSampled,
    RandomizedResponse,
    Repeated,
    TruncatedPoissonSampled,
    WithReplacement,
    ZeroConcentrated,
)
from dpjax.accounting.mechanisms.base import walk
from dpjax.accounting.mechanisms.guarantees import AS_ASKED

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


class Difference(NamedTuple):
    """Why an accountant of dp_accounting prices an exported event differently.

    Fields:
        event, accountant, adjacency: the kind of event, which of their accountants prices it
            differently, and under which relation.
        reason: one sentence.
    """

    event: str
    accountant: str
    adjacency: Adjacency
    reason: str


class DifferentPrice(DpjaxWarning):
    """An exported event that an accountant of dp_accounting prices differently.

    Fields:
        differences: what differs and why, see `Difference`.
    """

    def __init__(self, differences: tuple[Difference, ...]) -> None:
        super().__init__("; ".join(d.reason for d in differences))
        self.differences = differences


def differences(
    mechanism: Mechanism, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> tuple[Difference, ...]:
    """Which accountants of dp_accounting would price the mechanism's event differently, and why.

    Under REPLACE_ONE their `RdpAccountant` takes `GaussianDpEvent(σ)` at sensitivity 1, alone and
    sampled, and `LaplaceDpEvent` too; their `PLDAccountant` takes the first at 2 and refuses the
    second, and this accountant takes both at 2. At σ = 2, δ = 1e-5 the three say 2.166,
    4.377 and 4.377.

    Example:
        >>> from dpjax import accounting as acc
        >>> from dpjax.accounting import interop
        >>> interop.differences(acc.Gaussian(2.0), acc.Adjacency.REPLACE_ONE)[0].accountant
        'RdpAccountant'

    References:
        dp_accounting 0.6; issue 378 of google/differential-privacy.
    """
    adjacency = Adjacency(adjacency)
    if adjacency is Adjacency.ADD_REMOVE:
        return ()
    kinds = {type(step) for step in walk(mechanism)}
    return tuple(
        Difference(event, "RdpAccountant", adjacency, _REASON.format(event=event, instead=instead))
        for kind, event, instead in _DIFFERENT
        if kind in kinds
    )


_DIFFERENT = (
    (Gaussian, "GaussianDpEvent", "use PLDAccountant, or price here"),
    (Laplace, "LaplaceDpEvent", "price here"),
)
_REASON = (
    "RdpAccountant of dp_accounting takes {event} under REPLACE_ONE at sensitivity 1, but "
    "replacing one record moves a clipped sum by up to 2 clip norms: its ε is too small for this "
    "mechanism; {instead}"
)
# The shape of the law of the number of runs, as their event has it.
_LAWS = {"geometric": 1.0, "logarithmic": 0.0, "poisson": np.inf}
# What has no counterpart here, and why.
_REFUSED = {
    "NonPrivateDpEvent": "a release without a guarantee",
    "UnsupportedDpEvent": "a release that says nothing of itself",
    "MixtureOfGaussiansDpEvent": "a Gaussian of random sensitivity",
}


def _library() -> ModuleType:
    try:
        from dp_accounting import dp_event
    except ImportError as error:
        raise ImportError(
            f'{error}; install it with: pip install "dpjax[interop]"', name=error.name
        ) from error
    return dp_event


def from_dp_event(event: DpEvent, *, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Mechanism:
    """The mechanism an event of dp_accounting describes.

    Args:
        event: a `GaussianDpEvent`, `LaplaceDpEvent`, `DiscreteLaplaceDpEvent`,
            `RandomizedResponseDpEvent` (with noise), `ZCDpEvent` (of ξ = 0), `NoOpDpEvent`,
            `SingleEpochTreeAggregationDpEvent`, `RepeatAndSelectDpEvent` (of shape 0, 1 or ∞),
            `PoissonSampledDpEvent`, `SampledWithoutReplacementDpEvent`,
            `SampledWithReplacementDpEvent`, `TruncatedSubsampledGaussianDpEvent`,
            `SelfComposedDpEvent` or `ComposedDpEvent`, nested as one likes. A tree becomes the
            Gaussian releases of the nodes that one record enters.
        adjacency: the relation that a `ZCDpEvent` holds for, which the event does not say.

    Raises:
        TypeError: any other event; nothing is guessed.
        ImportError: dp_accounting is not installed.

    Example:
        >>> import dp_accounting
        >>> from dpjax.accounting import interop
        >>> event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 10)
        >>> interop.from_dp_event(event)
        Repeated(mechanism=Gaussian(noise_multiplier=2.0), steps=10)
    """
    library, adjacency = _library(), Adjacency(adjacency)

    def read(event: DpEvent) -> Mechanism:
        if isinstance(event, library.GaussianDpEvent):
            return Gaussian(event.noise_multiplier)
        if isinstance(event, library.LaplaceDpEvent):
            return Laplace(event.noise_multiplier)
        if isinstance(event, library.DiscreteLaplaceDpEvent) and event.noise_parameter > 0:
            scale = 1 / event.noise_parameter  # theirs is the decay a whole number
            return DiscreteLaplace(scale / event.sensitivity, event.sensitivity)
        if isinstance(event, library.RandomizedResponseDpEvent) and event.noise_parameter > 0:
            if event.num_buckets == 1:  # one answer only: nothing is released
                return Composed(())
            odds = event.num_buckets * (1 - event.noise_parameter) / event.noise_parameter
            return RandomizedResponse(float(np.log1p(odds)), event.num_buckets)
        if isinstance(event, library.NoOpDpEvent):
            return Composed(())
        if isinstance(event, library.SingleEpochTreeAggregationDpEvent):
            if adjacency is Adjacency.REPLACE_ONE:
                raise TypeError(
                    "event must be no SingleEpochTreeAggregationDpEvent under REPLACE_ONE, for "
                    f"which its sensitivity is not stated, got {render(event)}"
                )
            steps = int(np.max(event.step_counts))
            return Repeated(Gaussian(event.noise_multiplier), steps.bit_length())
        if isinstance(event, library.RepeatAndSelectDpEvent):
            laws = {shape: law for law, shape in _LAWS.items()}  # from their shape
            if event.shape in laws:  # of other shapes no price is known here
                return BestOf(read(event.event), event.mean, laws[event.shape])
        if isinstance(event, library.ZCDpEvent) and event.xi == 0:
            return ZeroConcentrated(event.rho, adjacency.value)
        if isinstance(event, library.PoissonSampledDpEvent):
            return PoissonSampled(read(event.event), event.sampling_probability)
        if isinstance(event, library.TruncatedSubsampledGaussianDpEvent):
            return TruncatedPoissonSampled(
                Gaussian(event.noise_multiplier),
                event.sampling_probability,
                event.dataset_size,
                event.truncated_batch_size,
            )
        if isinstance(event, library.SampledWithoutReplacementDpEvent):
            return FixedBatchSampled(
                read(event.event), event.sample_size, event.source_dataset_size
            )
        if isinstance(event, library.SampledWithReplacementDpEvent):
            return WithReplacement(read(event.event), event.sample_size, event.source_dataset_size)
        if isinstance(event, library.SelfComposedDpEvent):
            return Repeated(read(event.event), event.count)
        if isinstance(event, library.ComposedDpEvent):
            return Composed(tuple(read(part) for part in event.events))
        kind = type(event).__name__
        why = f" ({kind} is {_REFUSED[kind]})" if kind in _REFUSED else ""
        raise TypeError(
            "event must be a Gaussian, Laplace, DiscreteLaplace, RandomizedResponse (with noise), "
            "ZC (of xi = 0), NoOp, SingleEpochTreeAggregation, RepeatAndSelect (of shape 0, 1 or "
            "inf), PoissonSampled, SampledWithoutReplacement, SampledWithReplacement, "
            f"TruncatedSubsampledGaussian, SelfComposed or Composed event, "
            f"got {render(event)}{why}"
        )

    return read(event)


def _one_number(step: Mechanism, name: str) -> float:
    """A field of a mechanism, refused where it is a sweep."""
    value = getattr(step, name)
    if np.ndim(value):
        raise TypeError(
            f"{type(step).__name__}.{name} must be one number, got an array: convert each "
            "setting by itself"
        )
    return float(value)


def _write(library: ModuleType, step: Mechanism, adjacency: Adjacency) -> DpEvent:
    """The event of one mechanism and its parts."""
    write = functools.partial(_write, library, adjacency=adjacency)
    number = _one_number
    if isinstance(step, Gaussian):
        return library.GaussianDpEvent(number(step, "noise_multiplier"))
    if isinstance(step, Laplace):
        return library.LaplaceDpEvent(number(step, "noise_multiplier"))
    if isinstance(step, DiscreteLaplace) and number(step, "noise_multiplier") > 0:
        moved = int(number(step, "sensitivity"))  # theirs is a whole number
        scale = number(step, "noise_multiplier") * moved
        return library.DiscreteLaplaceDpEvent(1 / scale, moved)
    if isinstance(step, RandomizedResponse):
        buckets = int(number(step, "categories"))
        uniform = buckets / (buckets + np.expm1(number(step, "epsilon")))
        return library.RandomizedResponseDpEvent(float(uniform), buckets)
    if isinstance(step, BestOf) and step.distribution in _LAWS:
        law = _LAWS[step.distribution]
        return library.RepeatAndSelectDpEvent(
            write(step.mechanism), number(step, "expected_trials"), law
        )
    if isinstance(step, ZeroConcentrated):
        if step.adjacency not in (AS_ASKED, adjacency.value):
            raise ValueError(
                f"adjacency must be {step.adjacency!r}, which the ZeroConcentrated release "
                f"holds for, got {adjacency.value!r}"
            )
        return library.ZCDpEvent(number(step, "rho"))
    if isinstance(step, PoissonSampled):
        return library.PoissonSampledDpEvent(number(step, "rate"), write(step.mechanism))
    if isinstance(step, TruncatedPoissonSampled) and isinstance(step.mechanism, Gaussian):
        return library.TruncatedSubsampledGaussianDpEvent(
            dataset_size=int(number(step, "population")),
            sampling_probability=number(step, "rate"),
            truncated_batch_size=int(number(step, "capacity")),
            noise_multiplier=number(step.mechanism, "noise_multiplier"),
        )
    if isinstance(step, FixedBatchSampled):
        sizes = int(number(step, "population")), int(number(step, "batch_size"))
        return library.SampledWithoutReplacementDpEvent(*sizes, write(step.mechanism))
    if isinstance(step, WithReplacement):
        sizes = int(number(step, "population")), int(number(step, "batch_size"))
        return library.SampledWithReplacementDpEvent(*sizes, write(step.mechanism))
    if isinstance(step, Repeated):
        steps, once = int(number(step, "steps")), write(step.mechanism)
        # Their accountants refuse a count of 0, or divide by it.
        return library.SelfComposedDpEvent(once, steps) if steps else library.NoOpDpEvent()
    if isinstance(step, Composed):
        return library.ComposedDpEvent([write(part) for part in step.mechanisms])
    raise TypeError(
        "mechanism must be built from Gaussian, Laplace, DiscreteLaplace (with noise), "
        "RandomizedResponse, ZeroConcentrated, BestOf, PoissonSampled, FixedBatchSampled, "
        "WithReplacement, TruncatedPoissonSampled of a Gaussian, "
        f"Repeated and Composed, got {type(step).__name__}"
    )


def to_dp_event(mechanism: Mechanism, *, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> DpEvent:
    """The event of dp_accounting that describes a mechanism.

    Asked with an adjacency under which one of their accountants differs, it warns: see
    `differences`. `Repeated(x, 0)` is their `NoOpDpEvent`.

    Args:
        mechanism: built from `Gaussian`, `Laplace`, `DiscreteLaplace`, `RandomizedResponse`,
            `ZeroConcentrated`, `BestOf`, `PoissonSampled`, `FixedBatchSampled`,
            `WithReplacement`, `TruncatedPoissonSampled` of a Gaussian, `Repeated` and `Composed`,
            with plain numbers in its fields.
        adjacency: the relation that the event will be priced under. Only `ZeroConcentrated` knows
            its own, and must agree.

    Raises:
        TypeError: any other mechanism, or an array of settings; nothing is guessed.
        ValueError: a `ZeroConcentrated` of the other relation.
        ImportError: dp_accounting is not installed.

    Example:
        >>> from dpjax import accounting as acc
        >>> from dpjax.accounting import interop
        >>> interop.to_dp_event(acc.PoissonSampled(acc.Gaussian(1.0), 0.01)).sampling_probability
        0.01
    """
    library = _library()
    adjacency = Adjacency(adjacency)

    event = _write(library, mechanism, adjacency)
    found = differences(mechanism, adjacency)
    if found:
        warnings.warn(DifferentPrice(found), stacklevel=2)
    return event


def from_bandmf(config: Any) -> Mechanism:
    """The mechanism of a `BandMFExecutionPlanConfig` of jax_privacy, read by its fields.

    Its noise multiplier is for a strategy of unit norm and its groups are as many as the strategy
    has bands: σ here is that multiplier times ‖c‖, and a run ⌈iterations/bands⌉ rounds.

    Args:
        config: with `strategy`, `iterations`, `sampling_prob` and `noise_multiplier`.

    Raises:
        TypeError: a noise multiplier that is left to be calibrated (calibrate here instead), a
            truncated batch, columns of unit norm (their C is not Toeplitz), or their replace-one
            relation, whose noise is twice as large at the same multiplier.
        ValueError: coefficients that increase, or numbers out of range.

    Example:
        >>> import types
        >>> from dpjax.accounting import interop
        >>> config = types.SimpleNamespace(
        ...     strategy=[0.8, 0.6], iterations=9, sampling_prob=0.2, noise_multiplier=3.0)
        >>> interop.from_bandmf(config).steps
        5.0

    References:
        jax_privacy 2.0, `experimental.execution_plan`.
    """
    if config.noise_multiplier is None:
        raise TypeError("noise_multiplier must be a number, got None: calibrate here instead")
    for name in ("truncated_batch_size", "column_normalize"):
        if getattr(config, name, None):
            raise TypeError(f"{name} must not be set, got {render(getattr(config, name))}")
    relation = getattr(getattr(config, "accountant", None), "neighboring_relation", None)
    if getattr(relation, "name", "") == "REPLACE_ONE":
        raise TypeError(
            "accountant must be for a relation under which a record is left out, got REPLACE_ONE"
        )
    column = np.asarray(config.strategy, np.float64)
    sigma = float(config.noise_multiplier) * float(np.linalg.norm(column))  # theirs is over ‖c‖
    one = CyclicPoissonCorrelated(sigma, column, float(column.size), float(config.sampling_prob))
    return Repeated(one, float(-(-int(config.iterations) // column.size)))
