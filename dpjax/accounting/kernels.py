"""Bounds of one mechanism as functions of its fields: evaluated in float64 for every setting."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jaxtyping import Array

from dpjax._numerics import float64
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.mechanisms import Mechanism


@functools.lru_cache(maxsize=256)
def _core(kernel: Callable, tree: Any, adjacency: Adjacency | None, given: int) -> Callable:
    def core(*args: Array) -> Any:
        return kernel(jax.tree.unflatten(tree, args[given:]), adjacency, *args[:given])

    return core


def ask(
    kernel: Callable,
    run: Mechanism,
    adjacency: Adjacency | None,
    *given: Any,
    ndims: Sequence[int] = (),
    batch: int = 8,
    rounding: float64.Rounding = "up",
) -> Any:
    """`kernel(run, adjacency, *given)` for every setting of a run whose fields are single numbers.

    Args:
        kernel: pure function of one setting, at module level (compilations are cached by it).
        run, adjacency: what is asked about.
        given: further arguments, which broadcast with the run's fields.
        ndims: how many trailing axes of each belong to one setting; by default none.
        batch, rounding: see `float64.evaluate`.
    """
    leaves, tree = jax.tree.flatten(run)
    axes = (*(ndims or (0,) * len(given)), *((0,) * len(leaves)))
    core = _core(kernel, tree, adjacency, len(given))
    return float64.evaluate(core, (*given, *leaves), axes, batch=batch, rounding=rounding)


def asked(kernel: Callable, rounding: float64.Rounding = "up") -> Callable:
    """The same as a part of a `Method`: a function of the run, what is given and the adjacency."""

    def answer(run: Mechanism, given: Any, adjacency: Adjacency) -> Any:
        return ask(kernel, run, adjacency, given, rounding=rounding)

    return answer
