"""Mechanisms: pytrees, checks at construction, traces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax.accounting.mechanisms import base, validity
from tests.accounting.mechanism_examples import EXAMPLES, WRAPPERS

BY_NAME = {"argvalues": EXAMPLES, "ids": [type(m).__name__ for m in EXAMPLES]}
_PACKAGE = "dpjax.accounting.mechanisms"


@pytest.mark.parametrize("run", **BY_NAME)
def test_pytree_round_trip_and_immutability(run):
    leaves, tree = jax.tree.flatten(run)
    again = jax.tree.unflatten(tree, leaves)
    assert type(again) is type(run)
    for one, other in zip(jax.tree.leaves(again), leaves, strict=True):
        np.testing.assert_array_equal(one, other)
    assert type(run).__name__ in acc.registered_mechanisms()
    name = next(iter(run.__dataclass_fields__))
    with pytest.raises(AttributeError):
        setattr(run, name, 1)
    jax.jit(lambda m: m)(run)  # tracers and outputs pass the checks


@pytest.mark.parametrize("run", **BY_NAME)
@pytest.mark.parametrize("leaf", [None, object(), jax.ShapeDtypeStruct((), np.float32), -1.0])
def test_jax_may_build_mechanisms_of_anything(run, leaf):
    jax.tree.map(lambda _: leaf, run)  # placeholders of a vmap, gradients


def test_what_jax_built_is_checked_when_a_query_is_asked():
    run = jax.tree.map(lambda sigma: -sigma, acc.Repeated(acc.Gaussian(1.0), 2))
    with pytest.raises(ValueError, match="must be"):
        validity.validate(run)


def test_every_mechanism_is_exemplified():
    shown = {type(m).__name__ for m in EXAMPLES}
    registered = acc.registered_mechanisms().items()
    assert {n for n, c in registered if c.__module__.startswith(_PACKAGE)} == shown
    assert shown <= set(acc.__all__)


@pytest.mark.parametrize("adjacency", list(acc.Adjacency))
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("run", **BY_NAME)
def test_wrapping_never_loses_an_assumption_or_raises_a_tier(run, wrap, adjacency):
    wrapped = wrap(run)
    before, after = (base.all_assumptions(m, adjacency) for m in (run, wrapped))
    assert set(before) <= set(after)
    assert len(set(after)) == len(after)
    order = base.TIERS.index
    assert order(base.weakest_tier(wrapped)) >= order(base.weakest_tier(run))
    assert run.describe() in wrapped.describe()


@pytest.mark.parametrize("run", **BY_NAME)
def test_every_mechanism_says_what_is_released_and_what_it_rests_on(run):
    assert isinstance(run.describe(), str)
    assert not run.describe().startswith(type(run).__name__)
    leaves_something_out = isinstance(run, acc.Repeated | acc.Composed | acc.GeoDP)
    for adjacency in acc.Adjacency:
        assert bool(run.assumptions(adjacency)) is not leaves_something_out


BAD = [
    (lambda: acc.Gaussian(-1.0), r"Gaussian.noise_multiplier .*>= 0, got -1.0"),
    (lambda: acc.Gaussian(np.nan), "got nan"),
    (lambda: acc.Gaussian(np.inf), "finite"),
    (lambda: acc.Gaussian(jnp.array([1.0, -2.0])), "got -2.0"),
    (lambda: acc.PoissonSampled(acc.Gaussian(1.0), 1.5), r"rate must be in \[0, 1\], got 1.5"),
    (lambda: acc.PoissonSampled(acc.Gaussian(1.0), [0.1, -0.1]), "got -0.1"),
    (lambda: acc.FixedBatchSampled(acc.Gaussian(1.0), 11, 10), "at most the population"),
    (lambda: acc.FixedBatchSampled(acc.Gaussian(1.0), 1.5, 10), "whole number"),
    (lambda: acc.Repeated(acc.Gaussian(1.0), -1), "steps"),
    (lambda: acc.Repeated(acc.Gaussian(1.0), 1.5), "whole number"),
    (lambda: acc.Shuffled(acc.Gaussian(1.0), 0), "batches"),
    (lambda: acc.UniformBall(0.1, 0), "dimension"),
    (lambda: acc.RandomizedSensitivity([1.0], [0.5], 1.0), "sum to one"),
    (lambda: acc.NoisyGradientDescent(1, 0.0, 0.1, 0.1, 1.0, 2.0), "step_size"),
    (lambda: acc.BoxedAngles(1.5, 0.1, 10, 5), "bounding_factor"),
    (lambda: acc.GeoDP(1.0, 0.1, 10, 5), "unsafe_no_dp=True"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_values_name_field_value_and_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: acc.Gaussian("1.0"),
        lambda: acc.PoissonSampled(1.0, 0.1),
        lambda: acc.Repeated(1.0, 3),
        lambda: acc.Composed(acc.Gaussian(1.0)),
    ],
)
def test_wrong_types(make):
    with pytest.raises(TypeError):
        make()


def test_edges_are_allowed():
    acc.Gaussian(0.0)
    acc.PoissonSampled(acc.Gaussian(1.0), 0.0)
    acc.PoissonSampled(acc.Gaussian(1.0), 1.0)
    acc.Repeated(acc.Gaussian(1.0), 0)
    acc.Composed(())


def test_tracers_are_not_checked():
    assert jax.jit(lambda s: acc.Gaussian(s).noise_multiplier)(-1.0) == -1.0


def test_adjacency_by_name():
    assert acc.Adjacency("replace_one") is acc.Adjacency.REPLACE_ONE
    assert acc.Adjacency("Add-Remove") is acc.Adjacency.ADD_REMOVE
    with pytest.raises(ValueError, match="nope"):
        acc.Adjacency("nope")


@pytest.mark.parametrize("run", **BY_NAME)
@pytest.mark.parametrize("wrap", [lambda run: run, *WRAPPERS.values()])
def test_equal_where_every_entry_is(run, wrap):
    again = jax.tree.map(lambda leaf: leaf + 0, run)
    more = jax.tree.map(lambda leaf: leaf + 1, run)
    assert wrap(run) == wrap(again)
    assert wrap(run) != wrap(more)
    assert wrap(run) != acc.Laplace(7.0)


def test_arrays_are_equal_by_shape_and_entry():
    sweep = acc.Gaussian(np.array([1.0, 2.0]))
    assert sweep == acc.Gaussian(np.array([1.0, 2.0]))
    assert sweep != acc.Gaussian(np.array([1.0, 3.0]))
    assert acc.Gaussian(np.array([1.0, 1.0])) != acc.Gaussian(1.0)
    assert len({acc.Gaussian(1.0), acc.Gaussian(1), acc.Gaussian(2.0)}) == 2
    # The same traced number, which has no truth value to be compared by.
    assert jax.jit(lambda s: s if acc.Gaussian(s) == acc.Gaussian(s) else -s)(2.0) == 2.0
