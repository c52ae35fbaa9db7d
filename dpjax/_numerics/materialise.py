"""`materialised`: keep XLA from computing a value again for everything that reads it."""

from __future__ import annotations

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
        zeros = lambda *_: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)  # noqa: E731
        return lax.cond(true, fn, zeros, *args)

    def elsewhere(*args):
        return lax.optimization_barrier(fn(*args))

    return lax.platform_dependent(*args, cpu=on_cpu, default=elsewhere)
