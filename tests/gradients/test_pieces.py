"""Pieces of a batch: the same sums, small errors however many, and only where they pay."""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax._numerics.scope import enable_x64
from dpjax.gradients import clipped_grad, rounding_slack
from dpjax.gradients.choice import MethodChoice
from dpjax.gradients.clipping import map_pieces
from dpjax.gradients.compensated import without_error
from dpjax.gradients.methods import choose_clipping, cut_evenly, piece_size

VMAP = MethodChoice("vmap", "", None, ())


@pytest.fixture
def one_device(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)


def recurrent(params, example):
    def cell(h, x):
        return jnp.tanh(x @ params["in"] + h @ params["out"]), None

    h, _ = jax.lax.scan(cell, jnp.zeros(64), example[0])
    return jnp.sum(h), None


def recurrent_task(records):
    key = jax.random.split(jax.random.key(0), 3)
    params = {
        "in": 0.1 * jax.random.normal(key[0], (16, 64)),
        "out": 0.1 * jax.random.normal(key[1], (64, 64)),
    }
    return params, (jax.random.normal(key[2], (records, 100, 16)),)


def dense(params, example):
    return jnp.sum(jnp.tanh(example[0] @ params["w"]) @ params["v"]), None


def test_recurrence_goes_in_pieces_and_dense_layers_at_once(one_device):
    params, batch = recurrent_task(512)
    choice = choose_clipping("ghost", recurrent, params, batch)
    assert 8 <= piece_size(choice, recurrent, params, batch) <= 32
    small = (batch[0][:16],)
    assert (
        piece_size(choose_clipping("ghost", recurrent, params, small), recurrent, params, small)
        == 16
    )
    wide = {"w": jnp.zeros((512, 2048)), "v": jnp.zeros((2048, 10))}
    rows = (jnp.zeros((4096, 512)),)
    assert piece_size(choose_clipping("ghost", dense, wide, rows), dense, wide, rows) == 4096
    # The same layers, with every per-example gradient written out.
    assert piece_size(VMAP, dense, wide, rows) == 8


def test_convolutions_by_vmap_go_at_once(one_device):
    model = nn.Conv(64, (5, 5))
    images = (jnp.zeros((512, 28, 28, 16)),)
    params = model.init(jax.random.key(0), images[0][0])

    def loss(params, example):
        return jnp.sum(jax.jit(model.apply)(params, example[0])), None

    assert piece_size(VMAP, loss, params, images) == 512


def test_several_devices_share_the_whole_batch():
    assert jax.device_count() > 1
    params, batch = recurrent_task(512)
    assert (
        piece_size(choose_clipping("ghost", recurrent, params, batch), recurrent, params, batch)
        == 512
    )


@pytest.mark.parametrize("method", ["ghost", "vmap"])
@pytest.mark.at_length(every=2)
def test_pieces_give_the_sums_of_the_whole(method, one_device):
    params, batch = recurrent_task(70)

    def loss(params, example):
        return recurrent(params, example)[0]

    whole = clipped_grad(loss, 0.5, method, microbatch_size=None)(params, batch)
    cut = clipped_grad(loss, 0.5, method, microbatch_size=32)(params, batch)
    auto = clipped_grad(loss, 0.5, method)(params, batch)
    for other in (cut, auto):
        np.testing.assert_allclose(other.norms, whole.norms, rtol=1e-5)
        for name in params:
            np.testing.assert_allclose(other.sum[name], whole.sum[name], rtol=2e-5, atol=1e-6)


def test_the_error_of_many_pieces_is_that_of_one_rounding():
    values = jnp.full(40_000, 0.1, jnp.float32)  # equal terms round the same way again and again

    def piece(part, _, mask):
        return (without_error(jnp.sum(jnp.where(mask, part, 0.0))),)

    exact = np.sum(np.asarray(values, np.float64))
    unit = np.finfo(np.float32).eps / 2
    (pair,) = jax.jit(lambda v: map_pieces(piece, (v, v), jnp.ones(v.shape, bool), 1))(values)
    assert abs(float(pair.total) - exact) <= unit * exact
    assert abs(float(pair.total) + float(pair.error) - exact) <= 40_000 * 2 * unit**2 * exact
    plain, _ = jax.lax.scan(lambda s, x: (s + x, None), jnp.float32(0), values)
    assert abs(float(plain) - exact) > 10 * unit * exact  # so the check above can fail


def test_the_slack_is_one_number_for_all_pieces():
    for records in (1, 40, 4096, 20_000):
        for in_place in (False, True):
            slack = functools.partial(rounding_slack, records, 100, in_place=in_place)
            assert slack(microbatch_size=max(records // 7, 1)) == slack()
    for most in (1, 2, 32, 333, 999, 1000):
        assert cut_evenly(1000, most) <= most
        assert -(-1000 // cut_evenly(1000, most)) == -(-1000 // most)


def checkpointed(params, x):
    """Six layers of attention and a perceptron, scanned, each under `jax.checkpoint`."""

    def block(h, p):
        q, k, v = jnp.split(h @ p["qkv"], 3, axis=1)
        h = h + jax.nn.softmax(q @ k.T) @ v @ p["out"]
        return h + jax.nn.gelu(h @ p["up"]) @ p["down"], None

    h, _ = jax.lax.scan(jax.checkpoint(block), x, params["layers"])
    return jnp.sum(jnp.tanh(h.mean(0) @ params["head"]))


def layered(layers, width=32):
    """Parameters of `checkpointed`."""
    key = jax.random.split(jax.random.key(0), 5)

    def weights(k, *shape):
        return 0.1 * jax.random.normal(key[k], shape)

    return {
        "head": weights(0, width, 3),
        "layers": {
            "down": weights(1, layers, 4 * width, width),
            "out": weights(2, layers, width, width),
            "qkv": weights(3, layers, width, 3 * width),
            "up": weights(4, layers, width, 4 * width),
        },
    }


@pytest.mark.parametrize(
    ("method", "layers", "width", "records"), [("ghost", 6, 32, 24), ("auto", 4, 128, 16)]
)
@pytest.mark.at_length(every=2)
def test_checkpoints_are_honoured(method, layers, width, records, one_device):
    """At most twice the temporary memory of the plain gradient, and the sums of the whole.

    Of the wide layers "auto" forms per-example gradients.
    """
    params = layered(layers, width)
    batch = jax.random.normal(jax.random.key(1), (records, 64, width))

    def compiled(function):
        return jax.jit(function).lower(params, batch).compile()

    def plain(params, batch):
        return jax.grad(lambda p: jax.vmap(checkpointed, (None, 0))(p, batch).sum())(params)

    clipped = compiled(clipped_grad(checkpointed, 1.0, method))
    whole = compiled(clipped_grad(checkpointed, 1.0, method, microbatch_size=None))
    least, cut, uncut = (
        c.memory_analysis().temp_size_in_bytes for c in (compiled(plain), clipped, whole)
    )
    assert cut <= 2 * least < uncut
    a, b = clipped(params, batch), whole(params, batch)
    np.testing.assert_allclose(a.norms, b.norms, rtol=1e-4)
    for one, other in zip(jax.tree.leaves(a.sum), jax.tree.leaves(b.sum), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def test_several_devices_remember_no_more_of_a_layer_than_norms_need():
    """What the layer's parameters meet and its cotangents, beside the sums: no inner values."""
    assert jax.device_count() > 1
    batch = jax.random.normal(jax.random.key(1), (8, 64, 32))
    clipped = clipped_grad(checkpointed, 1.0, "ghost", microbatch_size=None)

    def taken(layers):
        program = jax.jit(clipped).lower(layered(layers), batch).compile()
        return program.memory_analysis().temp_size_in_bytes

    needed = 4 * 8 * 64 * ((32 + 96) + (32 + 32) + (32 + 128) + (128 + 32))
    parameters = 4 * (32 * 96 + 32 * 32 + 2 * 32 * 128)
    assert taken(6) - taken(2) <= 4 * 1.25 * (needed + parameters)


@pytest.mark.parametrize("records", [2, 8])
@pytest.mark.at_length(every=2)
def test_blocks_are_run_again_where_one_record_is_too_much(records, one_device):
    params = layered(6)
    batch = jax.random.normal(jax.random.key(1), (records, 16, 32))
    plan = choose_clipping("ghost", lambda p, x: (checkpointed(p, x), None), params, batch).plan
    assert plan.remat.recompute == (records == 2)
    assert 1 <= plan.remat.fitting < records + (records == 2)
    with enable_x64():
        params, batch = jax.tree.map(lambda x: x.astype(jnp.float64), (params, batch))
        found = jax.jit(clipped_grad(checkpointed, 0.3, "ghost"))(params, batch)
        total = jax.tree.map(jnp.zeros_like, params)
        for record in batch:
            own = jax.grad(checkpointed)(params, record)
            norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(own)))
            factor = jnp.minimum(1.0, 0.3 / norm)
            total = jax.tree.map(lambda t, leaf, f=factor: t + f * leaf, total, own)
        for one, other in zip(jax.tree.leaves(found.sum), jax.tree.leaves(total), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-14)
