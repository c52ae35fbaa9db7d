"""Kinds of models against brute force in float64: the method that runs, norms, clipped sums.

Layers by themselves are in test_ghost.py and test_random_networks.py; here are the ways in which
models put them together.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax._numerics.scope import enable_x64
from dpjax.gradients import clipped_grad
from dpjax.gradients.methods import choose_clipping
from dpjax.gradients.per_example import make_scalar_loss, split_trainable
from dpjax.gradients.ties import find_ties

RECORDS, LENGTH, WIDTH = 5, 4, 6


def weights(*shapes):
    rng = np.random.default_rng(7)
    return {name: 0.5 * rng.normal(size=shape) for name, shape in shapes}


def rotated(x):
    """Rotary position encoding: halves of the width turned by an angle of the position."""
    angle = jnp.arange(1.0, LENGTH + 1)[:, None] * 0.5 ** jnp.arange(1.0, WIDTH // 2 + 1)[None]
    a, b = jnp.split(x, 2, axis=1)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([a * cosine - b * sine, a * sine + b * cosine], axis=1)


def rotary_attention(p, x):
    """Queries and keys share their projection; the output is the embedding's transpose."""
    h = jnp.tanh(x @ p["embed"])
    q, k = rotated(h @ p["qk"]), rotated(jnp.sin(h) @ p["qk"])
    return jnp.sin(jax.nn.softmax(q @ k.T) @ (h @ p["v"]) @ p["embed"].T)


def mixture_of_experts(p, x):
    gates = jax.nn.softmax(x @ p["gate"])
    top, chosen = jax.lax.top_k(gates, 2)
    outs = jnp.einsum("td,edh->teh", x, p["experts"])
    taken = jnp.take_along_axis(jnp.tanh(outs), chosen[:, :, None], axis=1)
    return jnp.einsum("tk,tkh->th", top, taken)


def routed_experts(p, x):
    """Each token reads the weights of one expert: a look-up of whole matrices, used twice."""
    chosen = jnp.argmax(x @ jax.lax.stop_gradient(p["gate"]), axis=1)
    matrices = p["experts"][chosen]
    h = jnp.tanh(jnp.einsum("td,tdh->th", x, matrices))
    return h + jnp.einsum("td,tdh->th", h, p["experts"][chosen[::-1]])


def lora(p, x):
    frozen = jax.lax.stop_gradient(p["base"])
    return jnp.tanh(x @ frozen + (x @ p["down"]) @ p["up"]) @ frozen.T


@jax.custom_vjp
def quantised(x):
    return jnp.round(8 * x) / 8


quantised.defvjp(lambda x: (quantised(x), None), lambda _, g: (g,))


def straight_through(p, x):
    return jnp.sin(quantised(jnp.tanh(x @ p["a"])) @ p["b"] + quantised(x @ p["b"]))


def weight_decay(p, x):
    penalty = sum(jnp.sum(w**2) for w in jax.tree.leaves(p))
    return jnp.tanh(x @ p["a"]) @ p["b"] + 0.1 * penalty


def dropout(p, x, key):
    one, two = jax.random.split(key)
    keep = jax.random.bernoulli(one, 0.5, x.shape)
    h = jnp.tanh(jnp.where(keep, x, 0.0) @ p["a"])
    return (h * jax.random.uniform(two, h.shape, h.dtype)) @ p["b"]


def gated_recurrence(p, x):
    """Checkpointed steps, one of two cells by the step's number, the state fed back."""

    def step(h, slot):
        t, row = slot
        new = jnp.tanh(row @ p["a"] + h @ p["b"])
        return jax.lax.cond(t % 2 == 0, lambda: new, lambda: h + jnp.sin(new @ p["a"])), new

    h, rows = jax.lax.scan(jax.checkpoint(step), jnp.zeros(WIDTH), (jnp.arange(LENGTH), x))
    return rows + h[None]


def siamese(p, x):
    """One tower for two halves of a record, and a table looked up for both."""

    def tower(rows):
        token = jnp.argmax(rows, axis=1)
        return jnp.tanh((p["table"][token] + rows) @ p["a"])

    return tower(x) - tower(x[::-1])


SQUARE = ("a", (WIDTH, WIDTH)), ("b", (WIDTH, WIDTH))
ZOO = {
    rotary_attention: weights(("embed", (WIDTH, WIDTH)), ("qk", (WIDTH,) * 2), ("v", (WIDTH,) * 2)),
    mixture_of_experts: weights(("experts", (3, WIDTH, WIDTH)), ("gate", (WIDTH, 3))),
    routed_experts: weights(("experts", (3, WIDTH, WIDTH)), ("gate", (WIDTH, 3))),
    lora: weights(("base", (WIDTH, WIDTH)), ("down", (WIDTH, 2)), ("up", (2, WIDTH))),
    straight_through: weights(*SQUARE),
    weight_decay: weights(*SQUARE),
    dropout: weights(*SQUARE),
    gated_recurrence: weights(*SQUARE),
    siamese: weights(("a", (WIDTH, WIDTH)), ("table", (WIDTH, WIDTH))),
}
# Leaves without a rule of their own, copied once per record.
COPIED = {weight_decay: {"a", "b"}}


@pytest.mark.parametrize("model", ZOO, ids=lambda model: model.__name__)
@pytest.mark.at_length(every=3)
def test_models_of_every_kind(model):
    with_key = model is dropout

    def loss(params, x, *key):
        out = model(params, x, *key)
        return jnp.sum(jnp.sin(out) * jnp.arange(1.0, out.size + 1).reshape(out.shape))

    with enable_x64():
        params = ZOO[model]
        batch = np.random.default_rng(3).normal(size=(RECORDS, LENGTH, WIDTH))
        keys = jax.random.split(jax.random.key(1), RECORDS)
        gradient = jax.jit(jax.grad(loss))
        rows = []
        for i in range(RECORDS):
            one = gradient(params, batch[i], *([keys[i]] if with_key else []))
            rows.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(one)]))
        rows = np.array(rows)
        norms = np.linalg.norm(rows, axis=1)
        clip_norm = float(np.median(norms))
        rng = jax.random.split(jax.random.key(1), RECORDS) if with_key else None
        out = jax.jit(functools.partial(clipped_grad(loss, clip_norm, "ghost")))(
            params, batch, rng=rng
        )
        total = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(out.sum)])
        trained, rebuild = split_trainable(params, find_ties(params))
        one = make_scalar_loss(loss, rebuild, False, with_key)
        choice = choose_clipping("ghost", one, trained, (batch, rng))
    assert choice.method == "ghost", choice.reason
    copied = {row.parameter for row in choice.rows if row.rule == "copied"}
    assert copied == COPIED.get(model, set())
    np.testing.assert_allclose(out.norms, norms, rtol=1e-11)
    expected = np.minimum(1, clip_norm / norms) @ rows
    assert np.linalg.norm(total - expected) <= 1e-11 * np.linalg.norm(expected)
