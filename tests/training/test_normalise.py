"""Normalisations of one record: as flax has them, and private as any model."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import clipped_grad, training
from dpjax.training import group_normalise, standardise_weights


def test_groups_are_normalised_as_flax_does():
    x = jax.random.normal(jax.random.key(0), (5, 4, 6))
    module = nn.GroupNorm(num_groups=3, epsilon=1e-5, use_bias=False, use_scale=False)
    expected = module.apply({}, x[None])[0]
    np.testing.assert_allclose(group_normalise(x, 3), expected, atol=2e-5)


def test_kernels_have_mean_zero_and_the_variance_of_their_inputs():
    kernel = jax.random.normal(jax.random.key(0), (3, 3, 2, 5)) + 2
    found = standardise_weights({"kernel": kernel, "bias": jnp.ones(5)}, epsilon=1e-8)
    np.testing.assert_array_equal(found["bias"], 1.0)
    flat = np.asarray(found["kernel"], np.float64).reshape(18, 5)
    np.testing.assert_allclose(flat.mean(axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose(flat.var(axis=0), 1 / 18, rtol=1e-5)
    # The convolutions of equinox have their outputs first.
    turned = standardise_weights(jnp.moveaxis(kernel, -1, 0), output_axis=0, epsilon=1e-8)
    np.testing.assert_allclose(jnp.moveaxis(turned, 0, -1), found["kernel"], atol=1e-6)


@pytest.mark.at_length
def test_a_model_with_both_is_clipped_as_any():
    def apply(params, x):
        params = standardise_weights(params)
        return group_normalise(x @ params["first"], 2) @ params["last"]

    keys = jax.random.split(jax.random.key(1), 3)
    params = {
        "first": jax.random.normal(keys[0], (4, 6)),
        "last": jax.random.normal(keys[1], (6, 2)),
    }
    x = jax.random.normal(keys[2], (7, 4))
    y = jnp.array([0, 1, 0, 1, 1, 0, 1])
    loss = training.cross_entropy(training.Model(lambda key: params, apply))
    found = clipped_grad(loss, clip_norm=0.3)(params, (x, y))
    rows = [jax.grad(loss)(params, (x[k], y[k])) for k in range(7)]
    norms = [np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in row.values())) for row in rows]
    for name in params:
        expected = sum(
            np.asarray(row[name]) * min(1, 0.3 / norm)
            for row, norm in zip(rows, norms, strict=True)
        )
        np.testing.assert_allclose(found.sum[name], expected, atol=2e-5)


def test_what_has_no_groups_is_refused():
    for x, groups in ((jnp.ones(6), 4), (jnp.ones(()), 1)):
        with pytest.raises(ValueError, match="groups must divide the"):
            group_normalise(x, groups)
    with pytest.raises(ValueError, match="epsilon must be positive"):
        group_normalise(jnp.ones(4), 2, epsilon=0.0)
    with pytest.raises(ValueError, match="epsilon must be positive"):
        standardise_weights(jnp.ones((2, 2)), epsilon=-1.0)
