"""GeoDP's perturbation as published, against its algorithm written with angles in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import transforms
from dpjax._numerics.normal import normal
from dpjax.transforms.noise import fold_noise_key


def published(g, z, sigma, clip_norm, batch_size, beta):
    """Duan et al. 2025, Algorithm 1, lines 6-9, on the sum: angles as for the average."""
    g, z = np.asarray(g, np.float64), np.asarray(z, np.float64)
    d = len(g)
    theta = np.array([np.arctan2(np.linalg.norm(g[k + 1 :]), g[k]) for k in range(d - 2)])
    theta = np.append(theta, np.arctan2(g[-1], g[-2]))
    theta = theta + np.sqrt(d + 2) * beta * np.pi * sigma / batch_size * z[: d - 1]
    r = np.linalg.norm(g) + clip_norm * sigma * z[d - 1]
    return r * np.append(np.cos(theta), 1) * np.append(1, np.cumprod(np.sin(theta)))


@pytest.mark.parametrize("sigma", [0.0, 0.1, 10.0])
@pytest.mark.parametrize("d", [2, 40, 3000])
@pytest.mark.at_length(every=4)
def test_is_algorithm_1(d, sigma):
    key = jax.random.key(5)
    g = jnp.asarray(np.random.default_rng(d + 1).standard_normal(d).astype(np.float32)) * 50
    tx = transforms.spherical_noise(sigma, 1.5, 64, 0.5, key, unsafe_no_dp=True)
    out, _ = jax.jit(tx.update)(g, tx.init(g))
    # The same draw: one number a coordinate, padded to a multiple of 32, the d-th for the norm.
    now, _ = fold_noise_key(tx.init(g), "spherical", g)
    z = normal(now, (d + -d % 32,))
    expected = published(g, z, sigma, 1.5, 64, 0.5)
    np.testing.assert_allclose(out, expected, atol=3e-6 * np.linalg.norm(g))


def test_trees_zeros_and_steps():
    key = jax.random.key(6)
    tx = transforms.spherical_noise(1.0, 1.0, 64, 0.5, key, unsafe_no_dp=True)
    tree = {"a": jnp.zeros((3, 2)), "b": jnp.zeros(2, jnp.bfloat16)}
    first, state = tx.update(tree, tx.init(tree))
    second, state = tx.update(tree, state)
    assert int(state.step) == 2
    assert first["b"].dtype == jnp.bfloat16
    assert all(np.all(np.isfinite(x.astype(jnp.float32))) for x in jax.tree.leaves(first))
    assert not np.array_equal(first["a"], second["a"])
