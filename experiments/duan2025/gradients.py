"""The synthetic data set: per-example gradients collected while a CNN trains on CIFAR-10."""

from __future__ import annotations

import functools
import pathlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from experiments.duan2025.models import SmallCNN, initialise, softmax_loss
from experiments.images import load_cifar10_jpeg

DIMENSION = 20_000
_LEARNING_RATE = 0.01


@functools.lru_cache(maxsize=1)
def collect(data: pathlib.Path, images_per_class: int, epochs: int, pool: int) -> np.ndarray:
    """Gradients [pool, 20 000] of a CNN (31,340 parameters) trained by SGD with batches of one.

    As in the paper, one gradient per training image and 20,000 of its coordinates, drawn once at
    random. The paper keeps 450,000 gradients of nine epochs (36 GB); here an evenly spaced sample
    of the same trajectory is kept, large enough for the largest batch of the figures.
    """
    return _train(load_cifar10_jpeg(data, limit=images_per_class), epochs, pool)


def _train(images, epochs: int, pool: int) -> np.ndarray:
    model = SmallCNN()
    params = initialise(model, jax.random.key(0), images.images.shape[1:])
    flat, restore = ravel_pytree(params)
    rng = np.random.default_rng(0)
    kept = np.sort(rng.permutation(flat.size)[: min(DIMENSION, flat.size)])
    order = np.concatenate([rng.permutation(len(images.labels)) for _ in range(epochs)])
    every = max(len(order) // pool, 1)
    loss = softmax_loss(model)

    @partial(jax.jit, donate_argnums=0)
    def chunk(flat, batch):
        def step(flat, example):
            gradient = jax.grad(lambda w: loss(restore(w), example))(flat)
            return flat - _LEARNING_RATE * gradient, gradient

        flat, gradients = jax.lax.scan(step, flat, batch)
        return flat, gradients[-1][jnp.asarray(kept)]

    pooled = []
    for i in range(min(pool, len(order) // every)):
        rows = order[i * every : (i + 1) * every]
        flat, gradient = chunk(flat, (images.images[rows], images.labels[rows]))
        pooled.append(np.asarray(gradient))
    return np.stack(pooled)
