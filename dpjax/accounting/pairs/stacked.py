"""A run's steps grouped by their build, and stacked: ten thousand are one vectorised evaluation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard, overload

import jax
import numpy as np
from jax.tree_util import PyTreeDef

from dpjax._numerics import float64
from dpjax._numerics.arrays import Numbers, namespace
from dpjax.accounting.mechanisms import Composed, Mechanism, Repeated, flatten
from dpjax.accounting.mechanisms.base import Kind, map_axes
from dpjax.accounting.mechanisms.steps import Factors
from dpjax.accounting.typing import Real


class Prepared(NamedTuple):
    """Grouped leaves of a mechanism: arrays to pass into a core, and the static key to read them
    by.
    """

    leaves: tuple[Any, ...]
    ndims: tuple[int, ...]
    key: tuple


def times(step: Mechanism, factors: Sequence[Any]) -> Mechanism:
    """The step used as often as its factors' product says."""
    return functools.reduce(Repeated, factors, step)


@overload
def split_run(
    run: Mechanism, own: Callable[[Mechanism], TypeGuard[Kind]]
) -> tuple[list[tuple[Kind, Factors]], Composed]: ...
@overload
def split_run(
    run: Mechanism, own: Callable[[Mechanism], bool]
) -> tuple[list[tuple[Mechanism, Factors]], Composed]: ...
def split_run(
    run: Mechanism, own: Callable[[Mechanism], bool]
) -> tuple[list[tuple[Mechanism, Factors]], Composed]:
    """Steps of one's own (with the factors of their multiplicity), and the rest of a run."""
    mine: list[tuple[Mechanism, Factors]] = []
    rest: list[Mechanism] = []
    for step, factors in flatten(run):
        if own(step):
            mine.append((step, factors))
        else:
            rest.append(times(step, factors))
    return mine, Composed(tuple(rest))


def _stack(values: Sequence[Real]) -> Numbers | np.ndarray:
    """Stack along a new last axis, broadcasting the axes in front; no arithmetic.

    Components come before it: [..., components, steps].
    """
    xp = namespace(values)
    if float64.is_traced(*values):
        return xp.stack(xp.broadcast_arrays(*(xp.asarray(v) for v in values)), axis=-1)
    if all(np.ndim(v) == 0 for v in values):
        return np.asarray(values, np.float64)
    return np.stack(np.broadcast_arrays(*(np.asarray(v, np.float64) for v in values)), axis=-1)


def _merge(leaves: list[Any], factors: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Count identical concrete steps once, and pad to a power of two so that few sizes compile."""
    m = factors.shape[0]
    shapes = [leaf.shape[:-1] for leaf in leaves]
    # where the columns of each leaf lie in a row
    ends = np.cumsum([0, *(math.prod(shape) for shape in shapes)]).tolist()
    rows = np.concatenate([leaf.reshape(-1, m) for leaf in leaves] or [np.zeros((0, m))]).T
    unique, inverse = np.unique(rows, axis=0, return_inverse=True)
    counts = np.zeros(len(unique))
    # equal steps are one, used as often as all together
    np.add.at(counts, inverse.ravel(), np.prod(factors, axis=-1))
    size = 1 << (len(unique) - 1).bit_length()  # the next power of two
    extra = size - len(unique)
    unique = np.concatenate([unique, np.repeat(unique[-1:], extra, axis=0)])
    counts = np.concatenate([counts, np.zeros(extra)])  # padding is used 0 times
    columns = [
        unique.T[a:b].reshape(*shape, size)
        for a, b, shape in zip(ends[:-1], ends[1:], shapes, strict=True)
    ]
    return columns, counts[:, None]


def flatten_run(run: Mechanism) -> Prepared:
    """Group a run's steps by their build and stack their fields."""
    xp = namespace(run)
    if not isinstance(run, Mechanism):
        raise TypeError(f"run must be a mechanism, such as Gaussian(1.1), got {run!r}")
    groups: dict[Any, list[tuple[list[Any], tuple[Any, ...]]]] = {}
    for step, factors in flatten(run):
        leaves, tree = jax.tree.flatten(step)
        axes = tuple(jax.tree.leaves(map_axes(step)))
        tails = tuple(np.shape(x)[np.ndim(x) - n :] for x, n in zip(leaves, axes, strict=True))
        # one build and one number of components
        groups.setdefault((tree, axes, tails), []).append((leaves, factors))
    arrays: list[Any] = []
    ndims: list[int] = []
    key = []
    for (tree, axes, _), members in groups.items():
        columns = [
            _stack(column) for column in zip(*(leaves for leaves, _ in members), strict=True)
        ]
        # multiplicities of nested repetitions, padded by ones
        depth = max(len(f) for _, f in members)
        padded = [
            _stack([*f, *([1.0] * (depth - len(f)))]) if depth else np.ones(1) for _, f in members
        ]
        if float64.is_traced(*padded):
            factors = xp.stack(xp.broadcast_arrays(*(xp.asarray(p) for p in padded)), axis=-2)
        else:
            factors = np.stack(np.broadcast_arrays(*padded), axis=-2)
        flat = all(
            not float64.is_traced(c) and np.ndim(c) == 1 + n
            for c, n in zip(columns, axes, strict=True)
        )
        # a sweep's steps differ from setting to setting: left apart
        if flat and len(members) > 1 and not float64.is_traced(factors) and np.ndim(factors) == 2:
            columns, factors = _merge(columns, np.asarray(factors))
        arrays += [*columns, factors]
        ndims += [*(1 + n for n in axes), 2]
        key.append((tree, len(columns)))
    return Prepared(tuple(arrays), tuple(ndims), tuple(key))


def groups(key: tuple, leaves: Sequence[Any]) -> Iterator[tuple[PyTreeDef, Mechanism, Numbers]]:
    """The groups of `flatten_run`: structure, a step whose fields are arrays, how often."""
    position = 0
    for tree, width in key:
        *fields, factors = leaves[position : position + width + 1]
        position += width + 1
        count = namespace(key, leaves).prod(factors, axis=-1)
        yield tree, jax.tree.unflatten(tree, fields), count
