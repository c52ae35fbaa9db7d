"""Batches in cyclic order: the loop that all output-perturbation and cyclic solvers share."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpjax.erm.problems import Problem


def batch_sizes(n: int, batch_size: int) -> np.ndarray:
    """Sizes of the ⌈n / batch_size⌉ batches; the last may be short."""
    sizes = np.full(-(-n // batch_size), batch_size)
    sizes[-1] = n - batch_size * (len(sizes) - 1)
    return sizes


def arrange(problem: Problem, key: Array | None, batch_size: int) -> Problem:
    """The records in a random order (their own without a key), padded to whole batches.

    Permuting once costs one copy of the data; every later batch is then a contiguous slice.
    """
    n = problem.n
    order = jnp.arange(n) if key is None else jax.random.permutation(key, n)
    padding = -n % batch_size
    if key is None and padding == 0:
        return problem
    return problem.batch(jnp.concatenate([order, jnp.zeros(padding, order.dtype)]))


def epoch(
    problem: Problem, n: int, batch_size: int, params: Array, step: Callable, carry: Array
) -> tuple[Array, Array]:
    """One pass: `params, carry = step(params, carry, batch, weights, size, position)` per batch."""
    sizes = jnp.asarray(batch_sizes(n, batch_size), problem.dtype)
    slots = jnp.arange(batch_size)

    def body(state, position):
        batch = problem.slice(position * batch_size, batch_size)
        weights = (position * batch_size + slots < n).astype(problem.dtype)
        return step(*state, batch, weights, sizes[position], position), None

    return jax.lax.scan(body, (params, carry), jnp.arange(sizes.size))[0]


def batch_gradient(batch: Problem, params: Array, weights: Float[Array, " b"], size) -> Array:
    """Average gradient of a padded batch, regulariser included."""
    return batch.gradient_sum(params, weights=weights) / size + batch.l2 * params
