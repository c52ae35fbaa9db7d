"""Uniform points of spheres and balls, against their exact radial and marginal laws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax._numerics.directions import ball_like, sphere_like, squared_norm
from dpjax._numerics.normal import normal_like


def draws(sample, dimension, n=20_000, seed=0):
    keys = jax.random.split(jax.random.key(seed), n)
    return np.asarray(jax.vmap(lambda k: sample(k, jnp.zeros(dimension)))(keys), np.float64)


@pytest.mark.parametrize("dimension", [1, 2, 3, 50])
@pytest.mark.at_length(every=2)
def test_ball_radius_and_marginal(dimension):
    """‖x‖^d is uniform, and x₁² is Beta(1/2, (d + 1)/2)."""
    x = draws(ball_like, dimension)
    radius = np.linalg.norm(x, axis=1)
    assert radius.max() <= 1 + 2e-6
    assert stats.kstest(radius**dimension, "uniform").pvalue > 1e-4
    assert stats.kstest(x[:, 0] ** 2, stats.beta(0.5, (dimension + 1) / 2).cdf).pvalue > 1e-4


@pytest.mark.parametrize("dimension", [1, 50, 5_000])
def test_the_ball_is_never_smaller_than_it_is_priced(dimension):
    """Every draw is at least as long as that of the same normals in float64."""
    tree = jnp.zeros(dimension)

    def drawn(sample):
        keys = jax.random.split(jax.random.key(4), 500)
        found = jax.vmap(sample)(keys)
        return jax.tree.map(lambda x: np.asarray(x, np.float64), found)

    point = drawn(lambda k: ball_like(k, tree))
    z, spare = drawn(lambda k: normal_like(k, (tree, jnp.zeros(2))))
    norm = np.linalg.norm(z, axis=1)
    exact = norm / np.sqrt(norm**2 + (spare**2).sum(axis=1))
    grown = np.linalg.norm(point, axis=1) / exact
    assert grown.min() >= 1
    assert grown.max() <= 1 + 2e-6


def test_a_wrong_ball_is_rejected():
    """The sphere's law fails the ball's test, and the ball without its two extra normals too."""
    x = draws(sphere_like, 3)
    assert stats.kstest(np.linalg.norm(x, axis=1) ** 3, "uniform").pvalue < 1e-6


@pytest.mark.parametrize("dimension", [2, 3, 50])
def test_sphere_norm_and_marginal(dimension):
    x = draws(sphere_like, dimension)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=2e-6)
    assert stats.kstest(x[:, 0] ** 2, stats.beta(0.5, (dimension - 1) / 2).cdf).pvalue > 1e-4
    assert np.abs(x.mean(0)).max() < 5 / np.sqrt(len(x) * dimension)


def test_one_vector_for_the_whole_tree():
    tree = {"w": jnp.zeros((7, 9)), "b": jnp.zeros(3, jnp.bfloat16)}
    point = sphere_like(jax.random.key(1), tree)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), point) == jax.tree.map(
        lambda x: (x.shape, x.dtype), tree
    )
    assert float(squared_norm(point)) == pytest.approx(1, abs=1e-3)


def test_squared_norm_of_ten_million():
    """A single running float32 sum is off by 10 % and more here."""
    x = np.full(10_000_000, 0.1, np.float32)
    assert float(squared_norm(jnp.asarray(x))) == pytest.approx(1e7 * float(x[0]) ** 2, rel=1e-6)
