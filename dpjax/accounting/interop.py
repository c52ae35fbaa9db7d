"""To and from dp_accounting's `DpEvent`, for runs described there (the optional extra `interop`).

Only events whose meaning is the same on both sides are translated; anything else is refused. An
event does not say which neighbouring relation it is for: pass the adjacency when pricing here.
"""

from __future__ import annotations

from typing import Any

from dpjax.accounting.mechanisms import (
    Composed,
    FixedBatchSampled,
    Gaussian,
    Mechanism,
    PoissonSampled,
    Repeated,
)


def _number(value: Any) -> float:
    """A field as a plain number; arrays of settings have no counterpart there."""
    return float(value)


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise ImportError(
            "dp_accounting is not installed; it comes with the extra: pip install 'dpjax[interop]'"
        ) from error
    return dp_accounting


def from_dp_event(event: Any) -> Mechanism:
    """The mechanism an event of dp_accounting describes.

    Args:
      event: a `GaussianDpEvent`, `PoissonSampledDpEvent`, `SampledWithoutReplacementDpEvent`,
        `SelfComposedDpEvent` or `ComposedDpEvent`, nested as one likes.

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
    library = _library()
    if isinstance(event, library.GaussianDpEvent):
        return Gaussian(event.noise_multiplier)
    if isinstance(event, library.PoissonSampledDpEvent):
        return PoissonSampled(from_dp_event(event.event), event.sampling_probability)
    if isinstance(event, library.SampledWithoutReplacementDpEvent):
        inner = from_dp_event(event.event)
        return FixedBatchSampled(inner, event.sample_size, event.source_dataset_size)
    if isinstance(event, library.SelfComposedDpEvent):
        return Repeated(from_dp_event(event.event), event.count)
    if isinstance(event, library.ComposedDpEvent):
        return Composed(tuple(from_dp_event(part) for part in event.events))
    raise TypeError(
        f"{type(event).__name__} has no counterpart here; Gaussian, PoissonSampled, "
        "SampledWithoutReplacement, SelfComposed and Composed events have"
    )


def to_dp_event(mechanism: Mechanism) -> Any:
    """The event of dp_accounting that describes a mechanism.

    Args:
      mechanism: built from `Gaussian`, `PoissonSampled`, `FixedBatchSampled`, `Repeated` and
        `Composed`, with plain numbers in its fields.

    Raises:
      TypeError: any other mechanism; nothing is guessed.
      ImportError: dp_accounting is not installed.

    Example:
      >>> from dpjax import accounting as acc
      >>> from dpjax.accounting import interop
      >>> interop.to_dp_event(acc.PoissonSampled(acc.Gaussian(1.0), 0.01)).sampling_probability
      0.01
    """
    library = _library()
    if isinstance(mechanism, Gaussian):
        return library.GaussianDpEvent(_number(mechanism.noise_multiplier))
    if isinstance(mechanism, PoissonSampled):
        inner = to_dp_event(mechanism.mechanism)
        return library.PoissonSampledDpEvent(_number(mechanism.rate), inner)
    if isinstance(mechanism, FixedBatchSampled):
        return library.SampledWithoutReplacementDpEvent(
            int(_number(mechanism.population)),
            int(_number(mechanism.batch_size)),
            to_dp_event(mechanism.mechanism),
        )
    if isinstance(mechanism, Repeated):
        return library.SelfComposedDpEvent(
            to_dp_event(mechanism.mechanism), int(_number(mechanism.steps))
        )
    if isinstance(mechanism, Composed):
        return library.ComposedDpEvent([to_dp_event(part) for part in mechanism.mechanisms])
    raise TypeError(
        f"{type(mechanism).__name__} has no counterpart in dp_accounting; "
        "Gaussian, PoissonSampled, FixedBatchSampled, Repeated and Composed have"
    )
