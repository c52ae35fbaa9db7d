"""Round trips through dp_accounting's events, and what is refused."""

from __future__ import annotations

import importlib

import numpy as np
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
        acc.Repeated(acc.TruncatedPoissonSampled(acc.Gaussian(1.5), 0.01, 1_000, 20), 9),
        acc.Composed((acc.Gaussian(3.0), acc.Repeated(_POISSON, 7))),
        acc.Composed((acc.ZeroConcentrated(0.1, "add-remove"), acc.Gaussian(3.0))),
        acc.PoissonSampled(acc.Laplace(2.0), 0.1),
        acc.Composed((acc.DiscreteLaplace(0.5, 4), acc.BestOf(acc.Gaussian(3.0), 5.0))),
        acc.BestOf(acc.Laplace(3.0), 5.0, "logarithmic"),
        acc.BestOf(acc.Laplace(3.0), 5.0, "poisson"),
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
    drawn = interop.to_dp_event(acc.WithReplacement(acc.Gaussian(1.0), 10, 1_000))
    assert type(drawn) is dp_accounting.SampledWithReplacementDpEvent
    assert (drawn.sample_size, drawn.source_dataset_size) == (10, 1_000)


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.NonPrivateDpEvent(),
        dp_accounting.UnsupportedDpEvent(),
        dp_accounting.dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.5, 0.5]),
        dp_accounting.RandomizedResponseDpEvent(0.0, 3),
        dp_accounting.dp_event.DiscreteLaplaceDpEvent(0.0, 3),
        dp_accounting.dp_event.RepeatAndSelectDpEvent(dp_accounting.GaussianDpEvent(1.0), 3.0, 0.5),
        dp_accounting.ZCDpEvent(0.1, 0.2),
    ],
)
def test_unknown_events_are_refused(event):
    with pytest.raises(TypeError, match=type(event).__name__):
        interop.from_dp_event(dp_accounting.SelfComposedDpEvent(event, 3))


def test_unknown_mechanisms_are_refused():
    with pytest.raises(TypeError, match="UniformBall"):
        interop.to_dp_event(acc.Repeated(acc.UniformBall(1e-3, 10), 3))
    for step in (acc.RandomAllocation(acc.Gaussian(1.0), 9), acc.Shuffled(acc.Gaussian(1.0), 9)):
        with pytest.raises(TypeError, match=type(step).__name__):
            interop.to_dp_event(step)


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
        interop.to_dp_event(acc.ZeroConcentrated(0.1, "add-remove"), adjacency="replace-one")


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
    (said,) = [one.message for one in caught if one.category is interop.DifferentPrice]
    (difference,) = said.differences
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


def test_what_is_written_in_other_numbers_is_read_back():
    run = acc.RandomizedResponse(0.7, 5)
    event = interop.to_dp_event(run)
    assert event.num_buckets == 5
    assert interop.from_dp_event(event).epsilon == pytest.approx(0.7, rel=1e-14)
    keeps = 1 - event.noise_parameter + event.noise_parameter / 5
    assert keeps / (event.noise_parameter / 5) == pytest.approx(np.exp(0.7))
    run = acc.DiscreteLaplace(1.3, 3)
    event = interop.to_dp_event(run)
    assert event.noise_parameter == pytest.approx(1 / 3.9)
    assert interop.from_dp_event(event).noise_multiplier == pytest.approx(1.3, rel=1e-14)


def test_events_with_one_counterpart():
    nothing = acc.Composed(())
    assert interop.from_dp_event(dp_accounting.NoOpDpEvent()) == nothing
    assert interop.from_dp_event(dp_accounting.RandomizedResponseDpEvent(0.3, 1)) == nothing
    for steps, depth in ((1, 1), (2, 2), (3, 2), (4, 3), ([10, 1600, 3], 11)):
        tree = dp_accounting.SingleEpochTreeAggregationDpEvent(2.0, steps)
        assert interop.from_dp_event(tree) == acc.Repeated(acc.Gaussian(2.0), depth)
        for relation in (acc.Adjacency.REPLACE_ONE, "Replace One"):
            with pytest.raises(TypeError, match="SingleEpochTreeAggregationDpEvent"):
                interop.from_dp_event(tree, adjacency=relation)


@pytest.mark.parametrize("accountant", ["pld.PLDAccountant", "rdp.RdpAccountant"])
def test_no_step_is_an_event_that_costs_their_accountants_nothing(accountant):
    package, name = accountant.split(".")
    accountant = getattr(importlib.import_module(f"dp_accounting.{package}"), name)
    step = acc.Gaussian(2.0)
    none = acc.Repeated(step, 0)
    spent = {}
    for run in (none, acc.Repeated(none, 3), acc.Composed((none, step)), step):
        assert acc.epsilon(interop.from_dp_event(interop.to_dp_event(run)), 1e-5) == acc.epsilon(
            run, 1e-5
        )
        spent[run] = accountant().compose(interop.to_dp_event(run)).get_epsilon(1e-5)
    assert [*spent.values()][:2] == [0, 0]
    assert spent[acc.Composed((none, step))] == spent[step] > 0


def test_every_event_is_converted_or_refused_by_name():
    """Of the module as it is installed: a kind of event that is new there has to be looked at."""
    inner = dp_accounting.GaussianDpEvent(1.0)
    examples = {
        "NoOpDpEvent": (), "NonPrivateDpEvent": (), "UnsupportedDpEvent": (),
        "RandomizedResponseDpEvent": (0.5, 3), "GaussianDpEvent": (1.0,),
        "LaplaceDpEvent": (1.0,), "DiscreteLaplaceDpEvent": (0.5, 2),
        "SelfComposedDpEvent": (inner, 2), "ComposedDpEvent": ([inner],),
        "PoissonSampledDpEvent": (0.1, inner), "SampledWithReplacementDpEvent": (100, 10, inner),
        "SampledWithoutReplacementDpEvent": (100, 10, inner),
        "SingleEpochTreeAggregationDpEvent": (1.0, 8), "RepeatAndSelectDpEvent": (inner, 2.0, 1.0),
        "MixtureOfGaussiansDpEvent": (1.0, [0.0, 1.0], [0.5, 0.5]), "ZCDpEvent": (0.1,),
        "TruncatedSubsampledGaussianDpEvent": (100, 0.1, 20, 1.0),
    }  # fmt: skip
    events = {
        name
        for name, kind in vars(dp_accounting.dp_event).items()
        if isinstance(kind, type) and name.endswith("DpEvent") and name != "DpEvent"
    }
    assert events == set(examples)
    for name, fields in examples.items():
        event = getattr(dp_accounting.dp_event, name)(*fields)
        try:
            run = interop.from_dp_event(event)
        except TypeError as refusal:
            assert name in str(refusal)  # noqa: PT017
            assert "(" + name + " is" in str(refusal)  # noqa: PT017
            continue
        again = interop.from_dp_event(interop.to_dp_event(run))
        assert type(again) is type(run)


def test_laplace_under_replace_one_is_told_apart():
    with pytest.warns(interop.DifferentPrice, match="LaplaceDpEvent"):
        event = interop.to_dp_event(acc.Laplace(2.0), adjacency=acc.Adjacency.REPLACE_ONE)
    theirs = dp_accounting.rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    theirs.compose(event)
    low, _ = acc.epsilon_interval(acc.Laplace(2.0), 1e-5, adjacency="replace-one")
    assert theirs.get_epsilon(1e-5) < low


# The functions of jax_privacy 2.0 (`experimental.accounting`) with the events that they return, and
# ε at δ = 1e-5 by dp_accounting 0.6's PLD accountant, an upper bound as ours is.
_GAUSSIAN = dp_accounting.GaussianDpEvent
_CUT = dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent
_JAX_PRIVACY = [
    (
        "dpsgd_event(3, 512, 0.1)",
        dp_accounting.PoissonSampledDpEvent(0.1, _GAUSSIAN(3.0)),
        512,
        3.3481388,
    ),
    (
        "dpsgd_event(1, 1000, 1)",
        dp_accounting.PoissonSampledDpEvent(1.0, _GAUSSIAN(1.0)),
        1000,
        633.9298895,
    ),
    ("truncated_dpsgd_event", _CUT(10_000, 0.01, 130, 1.0), 100, 2.0896400),
    (
        "amplified_bandmf_event, 8 bands",
        dp_accounting.PoissonSampledDpEvent(0.05, _GAUSSIAN(2.0)),
        64,
        0.8809104,
    ),
    ("truncated_amplified_bandmf_event", _CUT(1_000, 0.05, 80, 2.0), 64, 0.8821969),
]


@pytest.mark.parametrize(
    ("name", "event", "count", "theirs"), _JAX_PRIVACY, ids=lambda v: str(v)[:34]
)
def test_what_jax_privacy_builds_converts_both_ways(name, event, count, theirs):
    whole = dp_accounting.SelfComposedDpEvent(event, count)
    run = interop.from_dp_event(whole)
    assert interop.to_dp_event(run) == whole
    assert 0.99 * theirs < acc.epsilon(run, 1e-5) <= theirs


def test_fixed_batches_of_jax_privacy_are_for_replacing():
    fixed = dp_accounting.SampledWithoutReplacementDpEvent(10_000, 100, _GAUSSIAN(1.0))
    run = interop.from_dp_event(dp_accounting.SelfComposedDpEvent(fixed, 100))
    with pytest.raises(acc.UnsupportedQuery, match="add-remove"):
        acc.epsilon(run, 1e-5)
    assert acc.epsilon(run, 1e-5, adjacency="replace-one") > 0
