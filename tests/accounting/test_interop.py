"""Round trips through dp_accounting's events, and what is refused."""

from __future__ import annotations

import pytest

from dpjax import accounting as acc
from dpjax.accounting.answers import interop

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
        acc.Composed((acc.ZeroConcentrated(0.1), acc.Gaussian(3.0))),
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
    "event",
    [
        dp_accounting.NonPrivateDpEvent(),
        dp_accounting.LaplaceDpEvent(1.0),
        dp_accounting.ZCDpEvent(0.1, 0.2),
    ],
)
def test_unknown_events_are_refused(event):
    with pytest.raises(TypeError, match=type(event).__name__):
        interop.from_dp_event(dp_accounting.SelfComposedDpEvent(event, 3))


def test_unknown_mechanisms_are_refused():
    with pytest.raises(TypeError, match="UniformBall"):
        interop.to_dp_event(acc.Repeated(acc.UniformBall(1e-3, 10), 3))


def test_zero_concentrated_means_the_same_to_the_other_library():
    for relation in acc.Adjacency:
        run = acc.ZeroConcentrated(0.1, relation.value)
        event = interop.to_dp_event(run, adjacency=relation)
        assert isinstance(event, dp_accounting.ZCDpEvent)
        assert interop.from_dp_event(event, adjacency=relation) == run
        theirs = dp_accounting.rdp.RdpAccountant(neighboring_relation=_RELATIONS[relation])
        theirs.compose(event)
        ours = acc.epsilon(run, 1e-5, adjacency=relation)
        assert ours <= theirs.get_epsilon(1e-5) * (1 + 1e-9)  # on fewer orders
        assert theirs.get_epsilon(1e-5) == pytest.approx(ours, rel=1e-4)


def test_a_guarantee_for_one_relation_is_not_exported_for_the_other():
    with pytest.raises(ValueError, match="adjacency must be 'add-remove'"):
        interop.to_dp_event(acc.ZeroConcentrated(0.1), adjacency="replace-one")


_RELATIONS = {
    acc.Adjacency.ADD_REMOVE: dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    acc.Adjacency.REPLACE_ONE: dp_accounting.NeighboringRelation.REPLACE_ONE,
}


@pytest.mark.parametrize(
    "run", [acc.Gaussian(2.0), acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(2.0), 1, 2), 3)]
)
def test_the_price_that_differs_is_said_and_does(run):
    with pytest.warns(interop.DifferentPrice, match="sensitivity 1") as caught:
        event = interop.to_dp_event(run, adjacency="replace-one")
    (difference,) = caught[0].message.differences  # pyrefly: ignore
    assert difference.accountant == "RdpAccountant"
    assert difference.adjacency is acc.Adjacency.REPLACE_ONE
    theirs = dp_accounting.rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    theirs.compose(event)
    low, _ = acc.epsilon_interval(run, 1e-5, adjacency="replace-one")
    assert theirs.get_epsilon(1e-5) < low


def test_prices_agree_where_nothing_is_said():
    run = acc.Gaussian(2.0)
    pld = dp_accounting.pld.PLDAccountant
    for relation in acc.Adjacency:
        theirs = pld(_RELATIONS[relation]).compose(dp_accounting.GaussianDpEvent(2.0))
        ours = acc.epsilon(run, 1e-5, adjacency=relation)
        assert theirs.get_epsilon(1e-5) == pytest.approx(ours, rel=1e-6)
    assert interop.differences(run) == ()
    assert interop.differences(acc.ZeroConcentrated(0.1), acc.Adjacency.REPLACE_ONE) == ()


def test_sweeps_are_converted_one_by_one():
    with pytest.raises(TypeError, match="noise_multiplier must be one number"):
        interop.to_dp_event(acc.Gaussian([1.0, 2.0]))
