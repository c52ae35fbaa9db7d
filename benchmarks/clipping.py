"""The price of per-example clipping, side by side: python -m benchmarks.clipping [--quick] [--peers].

Every method is timed on the same models, data and machine in interleaved rounds; the figure is the
median. Ratios are to JAX's own non-private step with the same noise added. Memory is XLA's own
figure for the compiled step (arguments, outputs and temporaries). PyTorch's peers run on the CPU.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import dpjax
from dpjax._numerics.normal import normal_like

CLIP, SIGMA, RATE = 1.0, 1.0, 0.1


class Task(NamedTuple):
    """A model with its data: `loss(params, example)`, and the same over a batch."""

    name: str
    loss: Any
    params: Any
    batch: Any
    records: int
    torch: Any = None


class Perceptron(nn.Module):
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        for width in self.widths[:-1]:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.widths[-1])(x)


class ConvNet(nn.Module):
    """The two-convolution network of the DP-SGD tutorials for MNIST (Papernot et al.)."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(16, (8, 8), strides=2, padding="SAME")(x))
        x = nn.max_pool(x, (2, 2), strides=(1, 1))
        x = nn.relu(nn.Conv(32, (4, 4), strides=2, padding="VALID")(x))
        x = nn.max_pool(x, (2, 2), strides=(1, 1))
        return nn.Dense(10)(nn.relu(nn.Dense(32)(x.reshape(*x.shape[:-3], -1))))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x))
        y = nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x))
        return x + nn.Dense(x.shape[-1])(nn.gelu(y))


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(256)(x) + self.param("position", nn.initializers.normal(0.02), (64, 256))
        for _ in range(4):
            x = Block()(x)
        return nn.Dense(10)(nn.LayerNorm()(x).mean(-2))


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.RNN(nn.OptimizedLSTMCell(128))(x)[..., -1, :])


class Embedding(nn.Module):
    @nn.compact
    def __call__(self, t):
        return nn.Dense(2)(nn.Embed(10_000, 64)(t).mean(-2))


def task(name: str, model: nn.Module, x: Any, classes: int) -> Task:
    records = x.shape[0]
    y = jax.random.randint(jax.random.key(1), (records,), 0, classes)
    params = model.init(jax.random.key(2), x[0])

    def loss(params, example):
        logits = model.apply(params, example[0])
        return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])

    return Task(name, loss, params, (x, y), records)


def tasks() -> list[Task]:
    x = functools.partial(jax.random.normal, jax.random.key(0))
    words = jax.random.randint(jax.random.key(3), (256, 64), 0, 10_000)
    return [
        task("logistic 105→2", Perceptron((2,)), x((4096, 105)), 2),
        task("softmax 784→10", Perceptron((10,)), x((4096, 784)), 10),
        task("perceptron 784-1024-1024-10", Perceptron((1024, 1024, 10)), x((256, 784)), 10),
        task("CNN, 2 convolutions", ConvNet(), x((512, 28, 28, 1)), 10),
        task("transformer, 4 blocks", Transformer(), x((64, 64, 16)), 10),
        task("LSTM 28×28→128", Recurrent(), x((256, 28, 28)), 10),
        task("embedding 10,000×64", Embedding(), words, 2),
    ]


def finish(params, total, key, records, noise):
    """The rest of a private step: noise, average, descent."""
    if noise:
        total = jax.tree.map(lambda g, z: g + SIGMA * CLIP * z, total, normal_like(key, total))
    return jax.tree.map(lambda p, g: p - RATE * g / records, params, total)


def steps(t: Task) -> dict[str, Any]:
    """step(params, batch, key) of every JAX method."""

    def plain(noise):
        def step(params, batch, key):
            def mean(params):
                return jax.vmap(t.loss, (None, 0))(params, batch).sum()

            return finish(params, jax.grad(mean)(params), key, t.records, noise)

        return step

    def ours(method):
        def step(params, batch, key):
            total = dpjax.clipped_grad(t.loss, CLIP, method)(params, batch).sum
            return finish(params, total, key, t.records, True)

        return step

    def vmap_of_grad(params, batch, key):
        grads = jax.vmap(jax.grad(t.loss), (None, 0))(params, batch)
        norms = jax.vmap(optax.global_norm)(grads)
        factors = jnp.minimum(1.0, CLIP / norms)
        total = jax.tree.map(lambda g: jax.vmap(jnp.multiply)(factors, g).sum(0), grads)
        return finish(params, total, key, t.records, True)

    def optax_aggregate(params, batch, key):
        grads = jax.vmap(jax.grad(t.loss), (None, 0))(params, batch)
        aggregate = optax.contrib.differentially_private_aggregate(CLIP, SIGMA, key)
        mean, _ = aggregate.update(grads, aggregate.init(params))
        return jax.tree.map(lambda p, g: p - RATE * g, params, mean)

    return {
        "non-private": plain(False),
        "non-private + noise": plain(True),
        "dpjax ghost": ours("ghost"),
        "dpjax vmap": ours("vmap"),
        "vmap of grad": vmap_of_grad,
        "optax aggregate": optax_aggregate,
    }
