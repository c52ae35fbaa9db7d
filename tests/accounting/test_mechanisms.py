"""Mechanisms: pytrees, checks at construction, traces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting as acc

EXAMPLES = [
    acc.Gaussian(1.0),
    acc.UniformBall(0.1, 3),
    acc.PoissonSampled(acc.Gaussian(1.0), 0.1),
    acc.FixedBatchSampled(acc.Gaussian(1.0), 1, 10),
    acc.Shuffled(acc.Gaussian(1.0), 4),
    acc.Repeated(acc.Gaussian(1.0), 4),
    acc.Composed((acc.Gaussian(1.0), acc.Gaussian(2.0))),
    acc.NoisyGradientDescent(10, 0.1, 0.1, 0.1, 1.0, 2.0),
    acc.NoisyCyclicDescent(10, 0.1, 0.1, 0.1, 1.0, 2.0, 5),
    acc.RecentredGaussian(1.0, 0.1, 10),
    acc.BoxedAngles(0.1, 0.1, 10, 5),
    acc.TangentBall(0.1, 0.1, 10),
    acc.Anisotropic(1.0, 0.1, 0.1, 0.1, 10),
    acc.GeoDP(1.0, 0.1, 10, 5, unsafe_no_dp=True),
]


@pytest.mark.parametrize("run", EXAMPLES, ids=lambda m: type(m).__name__)
def test_pytree_round_trip_and_immutability(run):
    leaves, tree = jax.tree.flatten(run)
    assert jax.tree.unflatten(tree, leaves) == run
    assert type(run).__name__ in acc.registered_mechanisms()
    name = next(iter(run.__dataclass_fields__))
    with pytest.raises(AttributeError):
        setattr(run, name, 1)
    jax.jit(lambda m: m)(run)  # tracers and outputs pass the checks
    jax.tree.map(lambda _: None, run)


def test_every_mechanism_of_the_vocabulary_is_exemplified():
    shown = {type(m).__name__ for m in EXAMPLES} | {"RandomizedSensitivity"}
    modules = {c.__module__ for c in (acc.Gaussian, acc.RandomizedSensitivity, acc.GeoDP)}
    registered = acc.registered_mechanisms().items()
    assert {n for n, c in registered if c.__module__ in modules} == shown


BAD = [
    (lambda: acc.Gaussian(-1.0), r"Gaussian.noise_multiplier .*>= 0, got -1.0"),
    (lambda: acc.Gaussian(np.nan), "got nan"),
    (lambda: acc.Gaussian(np.inf), "finite"),
    (lambda: acc.Gaussian(jnp.array([1.0, -2.0])), "got -2.0"),
    (lambda: acc.PoissonSampled(acc.Gaussian(1.0), 1.5), r"rate .*<= 1, got 1.5"),
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
