"""`materialised`: keep XLA from computing a value again for everything that reads it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def materialised(fn: Callable[..., Any], *args: Any) -> Any:
    """fn(*args), written to memory once and read from there.

    XLA's CPU backend merges a cheap-looking producer into each of its readers, and drops
    optimization barriers before it does; a conditional whose predicate it cannot see through is
    what it does not merge. Elsewhere a barrier is enough, and a conditional would wait for the
    device.

    Args:
        fn: a function of arrays to a tree of arrays.
        args: its arguments, trees of arrays.
    """

    def on_cpu(*args):
        shapes = jax.eval_shape(fn, *args)
        true = lax.optimization_barrier(jnp.bool_(True))
        return lax.cond(true, fn, functools.partial(_zeros, shapes), *args)

    def elsewhere(*args):
        return lax.optimization_barrier(fn(*args))

    return lax.platform_dependent(*args, cpu=on_cpu, default=elsewhere)


def _zeros(shapes: Any, *args: Any) -> Any:
    """Zeros that vary over the devices of a `shard_map` where what is made of `args` does."""
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return zeros
    unequal = [jnp.any(x != x) for x in jax.tree.leaves(args)]
    either = functools.reduce(jnp.logical_or, unequal, jnp.bool_(False))
    return jax.tree.map(lambda zero: jnp.where(either, zero, zero), zeros)
