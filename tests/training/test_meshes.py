"""`fit` with data and parameters on automatic and explicit meshes, in force or not."""

from __future__ import annotations

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dpjax import training


def loss(w, example):
    x, y = example
    return jnp.logaddexp(0.0, -(2 * y - 1) * (x @ w))


@functools.cache
def task():
    x = jax.random.normal(jax.random.key(0), (64, 5))
    plan = training.make_plan(64, noise_multiplier=2.0, delta=1e-4, steps=3, batch_size=16)
    return (x, (x[:, 0] > 0).astype(jnp.float32)), plan


def trained(params, data):
    optimizer = optax.sgd(0.5, momentum=0.9)
    return training.fit(
        loss, params, data, task()[1], optimizer=optimizer, key=jax.random.key(0)
    ).params


single = functools.cache(lambda: np.asarray(trained(jnp.zeros(5), task()[0])))


@pytest.mark.parametrize("in_force", [False, True])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.at_length(every=3)
def test_one_and_eight_devices_train_the_same_model(kind, in_force):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,))
    rows, everywhere = (NamedSharding(mesh, PartitionSpec(*s)) for s in (("data",), ()))
    data, params = jax.device_put(task()[0], rows), jax.device_put(jnp.zeros(5), everywhere)
    with jax.set_mesh(mesh) if in_force else contextlib.nullcontext():
        result = trained(params, data)
    np.testing.assert_allclose(result, single(), rtol=1e-5)
    assert result.sharding.mesh.axis_types == (kind,)
