"""Averages of a run's iterates, kept beside them: post-processing, free of privacy cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._numerics.checks import Range, one_number
from dpjax.gradients.per_example import accumulation_dtype
from dpjax.training.arguments import whole

__all__ = ["exponential_average", "tail_average"]


def exponential_average(decay: float) -> Callable[[Any], Any]:
    """Weights of an exponential average without bias, for `fit(average=...)`:

        average after T steps = Σₜ decayᵀ⁻ᵗ·paramsₜ / Σₜ decayᵀ⁻ᵗ,  t = 1, …, T.

    Args:
        decay: in [0, 1): the average remembers about 1 / (1 − decay) steps.

    Returns:
        From a step's number t = 1, 2, … to the weight of its parameters.

    Raises:
        ValueError: `decay` out of range.

    Guarantee:
        Post-processing of the released iterates: no privacy cost.

    Example:
        >>> weight = exponential_average(0.5)
        >>> [round(float(weight(t)), 4) for t in (1, 2, 3)]
        [1.0, 0.6667, 0.5714]
    """
    decay = one_number("decay", decay, Range(0.0, 1.0, open_high=True))
    if decay == 0:
        return lambda step: jnp.ones((), jnp.float32)
    log = math.log(decay)

    def weight(step):
        # (1 − d) / (1 − dᵗ), where differences from 1 of a decay close to it would lose digits.
        own = jnp.asarray(math.expm1(log), jnp.float32)
        return own / jnp.expm1(jnp.asarray(step, jnp.float32) * jnp.asarray(log, jnp.float32))

    return weight


def tail_average(begin: int) -> Callable[[Any], Any]:
    """Weights of the mean of all iterates after step `begin`, for `fit(average=...)`.

    Until then the average is the iterate itself.

    Args:
        begin: steps left out, at least 0.

    Returns:
        From a step's number t = 1, 2, … to the weight of its parameters.

    Raises:
        ValueError: `begin` below 0.

    Guarantee:
        Post-processing of the released iterates: no privacy cost.

    Example:
        >>> weight = tail_average(2)
        >>> [float(weight(t)) for t in (1, 2, 3, 4)]
        [1.0, 1.0, 1.0, 0.5]
    """
    begin = whole("begin", begin, low=0)

    def weight(step):
        since = jnp.maximum(jnp.asarray(step, jnp.int32) - begin, 1)
        return 1 / since.astype(jnp.float32)

    return weight


def first_average(params: Any) -> Any:
    """The average before any step, in float32 at least: 16 bits would stop moving."""
    return jax.tree.map(lambda leaf: leaf.astype(accumulation_dtype(leaf.dtype)), params)


def next_average(average: Any, params: Any, weight: Any) -> Any:
    """The average with the parameters of one more step."""
    weight = jnp.asarray(weight)
    # Without it the compiler may take 16-bit parameters as they were before they were rounded.
    params = jax.lax.optimization_barrier(params)
    return jax.tree.map(
        lambda mean, leaf: mean + (leaf.astype(mean.dtype) - mean) * weight.astype(mean.dtype),
        average,
        params,
    )
