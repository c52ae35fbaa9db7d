"""Models of one record in plain JAX, for the benchmarks that also run beside other libraries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class Task(NamedTuple):
    """A loss of one record, its parameters, and a batch."""

    loss: Callable[[Any, Any], Any]
    params: Any
    batch: Any


def residual_network(batch: int, width: int = 64, size: int = 32) -> Task:
    """ResNet-18 with GroupNorm on square images (He et al. 2016, as for CIFAR-10)."""
    keys = (jax.random.fold_in(jax.random.key(0), n) for n in itertools.count())
    groups = min(32, width // 2)

    def weights(size, inner, outer):
        shape = (size, size, inner, outer)
        return jax.random.normal(next(keys), shape) * math.sqrt(2 / (size * size * inner))

    def normal(channels):
        return {"scale": jnp.ones(channels), "shift": jnp.zeros(channels)}

    params: dict[str, Any] = {"first": weights(3, 3, width)}
    inner = width
    for number, stride in enumerate([1, 1, 2, 1, 2, 1, 2, 1]):
        outer = width << (number // 2)
        block = {"one": weights(3, inner, outer), "two": weights(3, outer, outer)}
        block |= {"a": normal(inner), "b": normal(outer)}
        if stride > 1:
            block["short"] = weights(1, inner, outer)
        params[f"block{number}"], inner = block, outer
    params |= {"last": normal(inner), "head": jnp.zeros((inner, 10))}

    def convolved(x, kernel, stride=1):
        layout = ("NHWC", "HWIO", "NHWC")
        args = (x[None], kernel, (stride, stride), "SAME")
        return jax.lax.conv_general_dilated(*args, dimension_numbers=layout)[0]

    def activated(x, p):
        grouped = x.reshape(-1, groups, x.shape[-1] // groups)
        centred = grouped - grouped.mean((0, 2), keepdims=True)
        scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean((0, 2), keepdims=True) + 1e-5)
        return jax.nn.relu(scaled.reshape(x.shape) * p["scale"] + p["shift"])

    def loss(params, example):
        x = convolved(example[0], params["first"])
        for number, stride in enumerate([1, 1, 2, 1, 2, 1, 2, 1]):
            p = params[f"block{number}"]
            y = activated(x, p["a"])
            short = convolved(y, p["short"], stride) if "short" in p else x
            y = activated(convolved(y, p["one"], stride), p["b"])
            x = short + convolved(y, p["two"])
        logits = activated(x, params["last"]).mean((0, 1)) @ params["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])

    images = jax.random.normal(jax.random.key(1), (batch, size, size, 3))
    return Task(loss, params, (images, jax.random.randint(jax.random.key(2), (batch,), 0, 10)))


def language_model(
    batch: int, width: int, depth: int, length: int, words: int, scanned: bool = False
) -> Task:
    """A causal transformer; `scanned`: its blocks in a loop, recomputed in the backward pass."""
    keys = iter(jax.random.split(jax.random.key(0), 6))
    heads, size = max(1, width // 64), min(width, 64)

    def matrix(*shape):
        return jax.random.normal(next(keys), shape) / math.sqrt(shape[-2])

    blocks = {"qkv": matrix(depth, width, 3 * width), "out": matrix(depth, width, width)}
    blocks |= {"up": matrix(depth, width, 4 * width), "down": matrix(depth, 4 * width, width)}
    params: dict[str, Any] = {"embedding": matrix(words, width), "head": matrix(width, words)}
    if scanned:
        params["blocks"] = blocks
    else:
        params["blocks"] = [{k: v[i] for k, v in blocks.items()} for i in range(depth)]
    mask = jnp.tril(jnp.ones((length, length), bool))

    def normalised(x):
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)

    def block(x, p):
        qkv = (normalised(x) @ p["qkv"]).reshape(length, 3, heads, size)
        q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2]
        scores = jnp.einsum("qhd,khd->hqk", q, k) / math.sqrt(size)
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        x = x + jnp.einsum("hqk,khd->qhd", weights, v).reshape(length, width) @ p["out"]
        return x + jax.nn.gelu(normalised(x) @ p["up"]) @ p["down"], None

    def loss(params, tokens):
        x = params["embedding"][tokens[:-1]]
        if scanned:
            x, _ = jax.lax.scan(jax.checkpoint(block), x, params["blocks"])
        else:
            for p in params["blocks"]:
                x, _ = block(x, p)
        logits = normalised(x) @ params["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[1:]).mean()

    tokens = jax.random.randint(jax.random.key(1), (batch, length + 1), 0, words)
    return Task(loss, params, tokens)


def _labelled(logits: Callable[[Any, Any], Any], params: Any, inputs: Any) -> Task:
    """The task of ten classes, of labels that mean nothing."""

    def loss(params, example):
        found = logits(params, example[0])
        return optax.softmax_cross_entropy_with_integer_labels(found, example[1])

    labels = jax.random.randint(jax.random.key(2), inputs.shape[:1], 0, 10)
    return Task(loss, params, (inputs, labels))


def _layers(shapes: Sequence[tuple[int, ...]]) -> list[dict[str, Any]]:
    """A matrix or a kernel and a bias for each shape, whose last axis is that of the outputs."""
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [
        {
            "weights": jax.random.normal(key, shape) * math.sqrt(2 / math.prod(shape[:-1])),
            "bias": jnp.zeros(shape[-1]),
        }
        for key, shape in zip(keys, shapes, strict=True)
    ]


def perceptron(batch: int, widths: tuple[int, ...]) -> Task:
    """Dense layers with ReLU between them, the first width that of the inputs, into ten classes."""

    def logits(params, x):
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["weights"] + layer["bias"])
        return x @ params[-1]["weights"] + params[-1]["bias"]

    inputs = jax.random.normal(jax.random.key(1), (batch, widths[0]))
    return _labelled(logits, _layers(list(itertools.pairwise((*widths, 10)))), inputs)


def convolutional(batch: int, widths: tuple[int, ...], size: int = 32) -> Task:
    """Convolutions of 3 × 3 on square images, each followed by a pooling of 2 × 2."""

    def logits(params, x):
        for layer in params[:-1]:
            layout = ("NHWC", "HWIO", "NHWC")
            kernel = layer["weights"]
            x = jax.lax.conv_general_dilated(
                x[None], kernel, (1, 1), "SAME", dimension_numbers=layout
            )[0]
            x = jax.nn.relu(x + layer["bias"])
            x = x.reshape(x.shape[0] // 2, 2, x.shape[1] // 2, 2, -1).max((1, 3))
        return x.reshape(-1) @ params[-1]["weights"] + params[-1]["bias"]

    kernels = [(3, 3, *pair) for pair in itertools.pairwise((3, *widths))]
    last = ((size >> len(widths)) ** 2 * widths[-1], 10)
    inputs = jax.random.normal(jax.random.key(1), (batch, size, size, 3))
    return _labelled(logits, _layers([*kernels, last]), inputs)


def recurrent(batch: int, width: int, length: int = 28, features: int = 28) -> Task:
    """A layer of LSTM cells over a sequence, and ten classes of its last state."""

    def logits(params, x):
        gates, last = params

        def cell(state, row):
            hidden, memory = state
            found = jnp.concatenate([row, hidden]) @ gates["weights"] + gates["bias"]
            take, keep, new, show = jnp.split(found, 4)
            memory = jax.nn.sigmoid(keep) * memory + jax.nn.sigmoid(take) * jnp.tanh(new)
            return (jax.nn.sigmoid(show) * jnp.tanh(memory), memory), None

        (hidden, _), _ = jax.lax.scan(cell, (jnp.zeros(width), jnp.zeros(width)), x)
        return hidden @ last["weights"] + last["bias"]

    inputs = jax.random.normal(jax.random.key(1), (batch, length, features))
    return _labelled(logits, _layers([(features + width, 4 * width), (width, 10)]), inputs)
