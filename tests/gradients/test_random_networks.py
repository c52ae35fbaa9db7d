"""Networks drawn at random: the ghost method's norms and sums are those of the gradients."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax._numerics.scope import enable_x64
from dpjax.gradients import clipped_grad

WIDTH, LENGTH, BATCH = 4, 3, 5

# Layers map [LENGTH, WIDTH] to the same shape; each uses `p`, with leaves w [WIDTH, WIDTH],
# b [WIDTH] and e [LENGTH, WIDTH].


def dense(p, h):
    return jnp.tanh(h @ p["w"] + p["b"][None])


def dense_transposed(p, h):
    return jnp.sin(h @ p["w"].T)


def twice(p, h):
    return jnp.tanh(jnp.tanh(h @ p["w"]) @ p["w"].T)


def mixing(p, h):
    return h + jnp.einsum("ti,sj,ij->ts", h, p["e"], p["w"]) @ h


def look_up(p, h):
    row = jnp.argmax(h, axis=1)
    return h + p["w"][row] + p["e"]


def convolution(p, h):
    kernel = jnp.stack([p["w"], p["w"].T, p["w"]])  # [space, in, out]
    return jnp.tanh(
        jax.lax.conv_general_dilated(
            h[None], kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )[0]
    )


def plain_convolution(p, h):
    kernel = p["w"].reshape(2, 2, WIDTH)  # two groups of two channels, [space, in, out]
    return (
        h
        + jax.lax.conv_general_dilated(
            h[None],
            kernel,
            (1,),
            "SAME",
            feature_group_count=2,
            dimension_numbers=("NWC", "WIO", "NWC"),
        )[0]
    )


def normalisation(p, h):
    scaled = (h - h.mean(1, keepdims=True)) / jnp.sqrt(h.var(1, keepdims=True) + 0.1)
    return scaled * p["b"][None] + p["e"]


def recurrent(p, h):
    def step(c, x):
        c = jnp.tanh(x @ p["w"] + p["b"] + c)
        return c, c

    return jax.lax.scan(step, p["b"], h)[1]


def repeated(p, h):
    return jax.lax.scan(lambda c, _: (jnp.sin(c @ p["w"]), None), h, None, length=2)[0]


def rows_scanned(p, h):
    return jax.lax.scan(lambda c, w: (jnp.tanh(c + w[None] * h), None), h, p["w"])[0]


def branch(p, h):
    return jax.lax.cond(h[0, 0] > 0, lambda: h @ p["w"], lambda: jnp.sin(h) + p["b"][None])


def pieces(p, h):
    left, right = jnp.split(p["w"], 2, axis=1)
    return jnp.concatenate([jnp.tanh(h @ left), h @ right], axis=1)


def gated(p, h):
    return jax.nn.softmax(h @ p["w"]) * h + jax.checkpoint(lambda e: jax.nn.gelu(e * h))(p["e"])


LAYERS = (
    dense,
    dense_transposed,
    twice,
    mixing,
    look_up,
    convolution,
    plain_convolution,
    normalisation,
    recurrent,
    repeated,
    rows_scanned,
    branch,
    pieces,
    gated,
)


@st.composite
def networks(draw):
    """(layer, index of its parameters) for up to four layers; an index may come twice (tied)."""
    layers = draw(st.lists(st.sampled_from(LAYERS), min_size=1, max_size=4))
    return [(layer, draw(st.integers(0, len(layers) - 1))) for layer in layers]


@pytest.mark.at_length
@hypothesis.given(networks(), st.integers(0, 2**20))
@hypothesis.settings(max_examples=8)
@hypothesis.example([(layer, k) for k, layer in enumerate(LAYERS[:7])], 0)
@hypothesis.example([(layer, k) for k, layer in enumerate(LAYERS[7:])], 1)
@hypothesis.example([(dense, 0), (dense_transposed, 0), (repeated, 0), (look_up, 0)], 2)
@hypothesis.example([(recurrent, 0), (plain_convolution, 0), (pieces, 0)], 3)
def test_random_networks(layers, seed):
    keys = jax.random.split(jax.random.key(seed), 4)
    count = max(k for _, k in layers) + 1
    params = {
        "b": jax.random.normal(keys[0], (count, WIDTH)),
        "e": jax.random.normal(keys[1], (count, LENGTH, WIDTH)),
        "w": jax.random.normal(keys[2], (count, WIDTH, WIDTH)),
    }
    params = [jax.tree.map(lambda a, k=k: a[k], params) for k in range(count)]

    def loss(params, h):
        for layer, k in layers:
            h = layer(params[k], h)
        return jnp.sum(jnp.sin(h) * jnp.arange(1.0, h.size + 1).reshape(h.shape))

    with enable_x64():
        params = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
        batch = np.random.default_rng(seed).normal(size=(BATCH, LENGTH, WIDTH))
        per_example = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, batch)
        leaves = [np.asarray(g).reshape(BATCH, -1) for g in jax.tree.leaves(per_example)]
        gradients = np.concatenate(leaves, axis=1)
        norms = np.linalg.norm(gradients, axis=1)
        clip_norm = float(np.median(norms)) + 1e-3
        out = jax.jit(clipped_grad(loss, clip_norm, "ghost"))(params, batch)
        total = np.concatenate([np.asarray(s).ravel() for s in jax.tree.leaves(out.sum)])
    np.testing.assert_allclose(out.norms, norms, rtol=1e-12, atol=1e-14)
    expected = np.minimum(1, clip_norm / np.maximum(norms, 1e-300)) @ gradients
    assert np.linalg.norm(total - expected) <= 1e-12 * np.linalg.norm(expected)
