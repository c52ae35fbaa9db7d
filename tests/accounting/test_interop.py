"""Round trips through dp_accounting's events, and what is refused."""

from __future__ import annotations

import pytest

from dpjax import accounting as acc
from dpjax.accounting import interop

dp_accounting = pytest.importorskip("dp_accounting")

_POISSON = acc.PoissonSampled(acc.Gaussian(1.5), 0.01)


@pytest.mark.parametrize(
    "mechanism",
    [
        acc.Gaussian(2.0),
        _POISSON,
        acc.Repeated(_POISSON, 100),
        acc.FixedBatchSampled(acc.Gaussian(1.0), 10, 1_000),
        acc.Composed((acc.Gaussian(3.0), acc.Repeated(_POISSON, 7))),
    ],
)
def test_round_trip(mechanism):
    assert interop.from_dp_event(interop.to_dp_event(mechanism)) == mechanism


def test_event_means_the_same_to_the_other_library():
    event = interop.to_dp_event(acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 1_000))
    assert isinstance(event, dp_accounting.SelfComposedDpEvent)
    assert event.count == 1_000
    assert event.event.sampling_probability == 0.01
    assert event.event.event.noise_multiplier == 1.0


def test_sizes_of_fixed_batches_keep_their_places():
    event = interop.to_dp_event(acc.FixedBatchSampled(acc.Gaussian(1.0), 10, 1_000))
    assert (event.sample_size, event.source_dataset_size) == (10, 1_000)


@pytest.mark.parametrize(
    "event", [dp_accounting.NonPrivateDpEvent(), dp_accounting.LaplaceDpEvent(1.0)]
)
def test_unknown_events_are_refused(event):
    with pytest.raises(TypeError, match=type(event).__name__):
        interop.from_dp_event(dp_accounting.SelfComposedDpEvent(event, 3))


def test_unknown_mechanisms_are_refused():
    with pytest.raises(TypeError, match="UniformBall"):
        interop.to_dp_event(acc.Repeated(acc.UniformBall(1e-3, 10), 3))
