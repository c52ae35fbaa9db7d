"""Batches and parameters spread over eight devices: auto and explicit meshes give the same."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dpjax import transforms
from dpjax.gradients import clip_and_sum, clipped_grad

METHODS = ("vmap", "ghost")


@functools.cache
def task():
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "b": jnp.zeros(16),
        "e": jax.random.normal(keys[0], (8, 5)),
        "w": jax.random.normal(keys[1], (5, 16)),
    }
    return params, (jax.random.randint(keys[2], (16, 3), 0, 8), jax.random.normal(keys[3], (16,)))


def loss(params, example):
    t, y = example
    h = jnp.tanh(params["e"][t] @ params["w"] + params["b"][None])
    return jnp.sum(h) * y, {"mean": h.mean(0), "one": jnp.ones(())}


def place(tree, mesh, **specs):
    names = jax.tree_util.tree_map_with_path(
        lambda path, _: jax.tree_util.keystr(path, simple=True), tree
    )
    return jax.tree.map(
        lambda x, name: jax.device_put(x, NamedSharding(mesh, specs.get(name, specs["rest"]))),
        tree,
        names,
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("kind", "traced"),
    [(AxisType.Auto, True), (AxisType.Explicit, True), (AxisType.Explicit, False)],
    ids=["auto-jit", "explicit-jit", "explicit-eager"],
)
@pytest.mark.at_length(every=4)
def test_one_and_eight_devices_agree(kind, method, traced):
    params, batch = task()
    mask = jnp.arange(16) != 3
    fn = clipped_grad(loss, 0.5, method, has_aux=True)
    single = jax.jit(fn)(params, batch, mask)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)
    data, none = PartitionSpec("data"), PartitionSpec()
    run = jax.jit(fn) if traced else fn
    for layout in ({"rest": none}, {"w": PartitionSpec(None, "model"), "rest": none}):
        placed = place(params, mesh, **layout)
        out = run(placed, place(batch, mesh, rest=data), place(mask, mesh, rest=data))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), out, single
        )
        if kind == AxisType.Explicit:  # and the types say where everything is
            assert jax.typeof(out.norms).sharding.spec == data
            for name, leaf in out.sum.items():
                assert jax.typeof(leaf).sharding.spec == jax.typeof(placed[name]).sharding.spec


@pytest.mark.parametrize("method", METHODS)
def test_pieces_keys_and_a_mesh_in_force(method):
    params, batch = task()

    def noisy(params, example, key):
        return loss(params, example)[0] * jax.random.uniform(key)

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    fn = jax.jit(clipped_grad(noisy, 0.5, method, microbatch_size=4))
    single = fn(params, batch, rng=jax.random.key(1))
    spread = place(batch, mesh, rest=PartitionSpec("data"))
    with jax.set_mesh(mesh):
        out = fn(params, spread, rng=jax.random.key(1), clip_norm=jnp.float32(0.5))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), out, single)


def test_a_private_step_on_an_explicit_mesh():
    """Clipped sum, noise, optimiser and update: the same parameters as on one device."""
    params, batch = task()
    fn = clipped_grad(lambda p, e: loss(p, e)[0], 0.5)
    tx = optax.chain(
        transforms.gaussian_noise(0.5, jax.random.key(2)), optax.sgd(0.1, momentum=0.9)
    )

    @jax.jit
    def step(params, state, batch):
        updates, state = tx.update(fn(params, batch).sum, state, params)
        return optax.apply_updates(params, updates), state

    single, _ = step(params, tx.init(params), batch)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    for along in (PartitionSpec(), PartitionSpec("data")):
        placed = place(params, mesh, e=along, rest=PartitionSpec())
        spread = place(batch, mesh, rest=PartitionSpec("data"))
        out, _ = step(placed, tx.init(placed), spread)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), out, single)


@functools.cache
def private_transforms():
    key = jax.random.key(5)
    return {
        "clip": transforms.clip_per_example(0.5),
        "gaussian": transforms.gaussian_noise(1.0, key),
        "recentred": transforms.recentred_clipping(0.5, 0.1, 8, key),
        "anisotropic": transforms.anisotropic_clipping(0.5, 0.3, 0.1, 0.1, 8, key),
        "tangent": transforms.tangent_ball(0.5, 0.1, 8, 1.0, 0.1, key),
        "boxed": transforms.boxed_angles(0.5, 0.1, 8, 24, 1.0, 0.1, key),
        "importance": transforms.importance_mean(1.0, 1.0, 100, key),
    }


@pytest.mark.parametrize("traced", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize("name", private_transforms())
@pytest.mark.at_length(every=7)
def test_transforms_of_arrays_on_an_explicit_mesh(name, traced):
    tx = private_transforms()[name]
    updates = {
        "b": jax.random.normal(jax.random.key(1), (16, 8)),
        "w": jax.random.normal(jax.random.key(2), (16, 4, 4)),
    }
    more = {}
    if name == "importance":
        more = {"probabilities": jnp.full(16, 0.1), "sensitivity": jnp.float32(0.2)}
    records = name != "gaussian"
    if not records:
        updates = jax.tree.map(lambda x: x[0], updates)
    params = jax.tree.map(lambda x: x[0] if records else x, updates)
    run = lambda u, s: tx.update(u, s, **more)[0]  # noqa: E731
    run = jax.jit(run) if traced else run
    single = run(updates, tx.init(params))
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    rest = PartitionSpec("model")
    with jax.set_mesh(mesh):
        params = place(params, mesh, rest=rest)
        updates = place(updates, mesh, rest=PartitionSpec("data", *rest) if records else rest)
        out = run(updates, tx.init(params))
    for a, b in zip(jax.tree.leaves(out), jax.tree.leaves(single), strict=True):
        np.testing.assert_allclose(a, b, atol=3e-6)
        assert a.sharding.spec[:1] == rest[:1]


@pytest.mark.parametrize("method", [*METHODS, "function"])
def test_no_gradients_of_several_devices_are_added_up_before_they_are_clipped(method):
    """A map over devices that tracks what varies sums derivatives over them: it is refused."""
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    params, records = jnp.ones(2), jnp.asarray(np.eye(2)[[0, 0, 0, 1] * 2] * 9, jnp.float32)

    def gradient(record):
        return jax.grad(lambda params: params @ record)(params)

    def total(params, records):
        if method == "function":
            own = clip_and_sum(gradient, 1.0)(records).sum
        else:
            own = clipped_grad(lambda p, r: p @ r, 1.0, method)(params, records).sum
        return jax.lax.psum(own, "d")

    specs = {"in_specs": (PartitionSpec(), PartitionSpec("d")), "out_specs": PartitionSpec()}
    mapped = jax.shard_map(total, mesh=mesh, check_vma=False, **specs)
    np.testing.assert_allclose(mapped(params, records), [6.0, 2.0], rtol=1e-5)
    with pytest.raises(ValueError, match="batch must not vary over devices within"):
        jax.shard_map(total, mesh=mesh, **specs)(params, records)
