"""Largest entries of windows, by slices: their derivative is slow on a CPU otherwise."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dpjax.gradients.equations import Equation

POOLING = "reduce_window_max"
_MOST = 64  # entries of a window, each of which is a slice to compile


def by_slices(eqn: Equation) -> Callable[[Sequence[Array]], list[Array]] | None:
    """What evaluates a pooling of maxima with a quick derivative, if that is what `eqn` is.

    XLA's derivative (a select-and-scatter) visits a window at a time, which takes a CPU 8 to 30
    times as long as comparing one slice of the operand for each entry of the window. Values and
    derivatives are the same: of equal entries the first counts, a NaN stays. Other backends have
    a program of their own, and are left to it.
    """
    if eqn.name != POOLING or jax.default_backend() != "cpu":
        return None
    p, (operand,), (out,) = eqn.params, eqn.ins, eqn.outs
    window = p["window_dimensions"]
    if math.prod(window) > _MOST or not jnp.issubdtype(operand.dtype, jnp.floating):
        return None
    if 0 in out.shape or jnp.finfo(operand.dtype).bits < 16:  # no window fits; no infinity
        return None
    config = [
        (low, high, dilation - 1)
        for (low, high), dilation in zip(p["padding"], p["base_dilation"], strict=True)
    ]
    strides = p["window_strides"]
    lengths = [(size - 1) * step + 1 for size, step in zip(out.shape, strides, strict=True)]

    def entry(padded: Array, place: Sequence[int]) -> Array:
        start = [o * d for o, d in zip(place, p["window_dilation"], strict=True)]
        end = [s + length for s, length in zip(start, lengths, strict=True)]
        return jax.lax.slice(padded, start, end, strides)

    def entries(value: Array, outside: float) -> list[Array]:
        padded = jax.lax.pad(value, jnp.array(outside, value.dtype), config)
        return [entry(padded, place) for place in itertools.product(*map(range, window))]

    @jax.custom_jvp
    def largest(value: Array) -> Array:
        return functools.reduce(jnp.maximum, entries(value, -jnp.inf))

    @largest.defjvp
    def tangent(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        (value,), (change,) = primals, tangents
        found = largest(value)
        counts, total = jnp.ones(found.shape, bool), jnp.zeros_like(found)
        for one, its_change in zip(entries(value, -jnp.inf), entries(change, 0.0), strict=True):
            equal = (one == found) | jnp.isnan(one)
            total = total + jnp.where(counts & equal, its_change, jnp.zeros_like(its_change))
            counts = counts & ~equal
        return found, total

    return lambda operands: [largest(*operands)]
