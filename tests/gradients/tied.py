"""Modules of flax nnx of which one parameter stands in two places, and the loss they are fit by."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx


class TiedWeights(nnx.Module):
    """A look-up table that is the last layer's kernel too."""

    def __init__(self, rngs):
        self.embed = nnx.Param(jax.random.normal(rngs.params(), (5, 3)))
        self.middle = nnx.Linear(3, 3, rngs=rngs)
        self.head = self.embed

    def __call__(self, token):
        return self.head[...] @ jnp.tanh(self.middle(self.embed[...][token]))


class TiedLayer(nnx.Module):
    """One layer under two names."""

    def __init__(self, rngs):
        self.first = nnx.Linear(5, 5, rngs=rngs)
        self.again = self.first

    def __call__(self, token):
        return self.again(jnp.tanh(self.first(jax.nn.one_hot(token, 5))))


def cross_entropy(model, example):
    token, label = example
    return -jax.nn.log_softmax(model(token))[label]
