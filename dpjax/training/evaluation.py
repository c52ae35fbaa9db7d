"""Accuracy on held-out records, and what the same model reaches without privacy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float, Int

from dpjax.training.models import Model

__all__ = ["accuracy", "probabilities", "train_without_privacy"]


def accuracy(
    model: Model,
    features: Float[ArrayLike, "records features"],
    labels: Int[ArrayLike, " records"],
) -> Callable[[Any], float]:
    """A compiled function from parameters to the share of records classified correctly.

    Example:
        >>> from dpjax.training.models import logistic
        >>> score = accuracy(logistic(1), jnp.array([[-1.0], [2.0]]), jnp.array([0, 1]))
        >>> score({"weights": jnp.ones(1), "bias": jnp.zeros(())})
        1.0
    """
    features, labels = jnp.asarray(features), jnp.asarray(labels)
    records = labels.size

    @jax.jit
    def correct(params, features, labels):
        guesses = jnp.argmax(jax.vmap(model.apply, in_axes=(None, 0))(params, features), axis=1)
        return jnp.sum(guesses.astype(labels.dtype) == labels, dtype=jnp.int32)

    return lambda params: int(correct(params, features, labels)) / records


def probabilities(
    model: Model, params: Any, features: Float[ArrayLike, "records features"]
) -> Float[np.ndarray, "records classes"]:
    """The probability of each class for each record: the softmax of the model's logits.

    Example:
        >>> from dpjax.training.models import logistic
        >>> params = {"weights": jnp.zeros(1), "bias": jnp.zeros(())}
        >>> probabilities(logistic(1), params, [[3.0]]).tolist()
        [[0.5, 0.5]]
    """
    logits = jax.jit(jax.vmap(model.apply, in_axes=(None, 0)))
    return np.asarray(jax.nn.softmax(logits(params, jnp.asarray(features)), axis=1))


def train_without_privacy(
    loss: Callable[[Any, Any], Float[Array, ""]],
    params: Any,
    data: Any,
    *,
    steps: int = 2_000,
    batch_size: int = 512,
    learning_rate: float = 0.02,
) -> Any:
    """The same model trained without clipping or noise (Adam, cosine decay): NOT private.

    A yardstick for what privacy costs. Its parameters are released by no mechanism; publish neither
    them nor what is computed from them.

    Example:
        >>> data = (jnp.array([[-1.0], [1.0]]), jnp.array([0, 1]))
        >>> from dpjax.training.models import cross_entropy, logistic
        >>> model = logistic(1)
        >>> fitted = train_without_privacy(
        ...     cross_entropy(model), model.init(jax.random.key(0)), data, steps=50)
        >>> float(fitted["weights"][0]) > 0.2
        True
    """
    records = len(jax.tree.leaves(data)[0])
    size = min(batch_size, records)
    data = jax.tree.map(jnp.asarray, data)
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))
    rng = np.random.default_rng(0)
    passes = -(-steps * size // records)
    order = np.concatenate([rng.permutation(records) for _ in range(passes)])[: steps * size]

    def step(data, carry, rows):
        params, state = carry
        batch = jax.tree.map(lambda leaf: leaf[rows], data)

        def mean_loss(params):
            return jnp.mean(jax.vmap(loss, in_axes=(None, 0))(params, batch))

        updates, state = optimizer.update(jax.grad(mean_loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    # The records are an argument, so that no compiled program holds them as constants.
    run = jax.jit(lambda data, carry, rows: jax.lax.scan(partial(step, data), carry, rows)[0])
    rows = jnp.asarray(order.reshape(steps, size), jnp.int32)
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs it
        return run(data, (params, optimizer.init(params)), rows)[0]
