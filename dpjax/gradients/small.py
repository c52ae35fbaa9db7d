"""Small leaves as one array: what is done to each of them is compiled, and run, once for all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

# Numbers of a leaf below which a copy of it costs less than a kernel of its own.
_SMALL = 1024


class Joining(NamedTuple):
    """Which leaves lie in one array.

    Fields:
        groups: the leaves' places, those of one array together.
        shapes: of the leaves, without the axes that they share.

    Example:
        >>> joining = joining_of([np.ones(2), np.ones((3, 1)), np.ones((64, 64))])
        >>> joining.groups
        ((0, 1), (2,))
        >>> one, _ = joining.join([np.ones((5, 2)), np.ones((5, 3, 1)), np.ones((5, 64, 64))])
        >>> one.shape, joining.split([one.sum(0), np.ones((64, 64))])[1].shape
        ((5, 5), (3, 1))
    """

    groups: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]

    def join(self, leaves: Sequence[Any]) -> list[Any]:
        """The arrays, from leaves with the same axes before those of their shapes."""
        found = []
        for group in self.groups:
            if len(group) == 1:
                found.append(leaves[group[0]])
                continue
            flat = []
            for place in group:
                leaf, axes = leaves[place], len(self.shapes[place])
                shared = jnp.shape(leaf)[: jnp.ndim(leaf) - axes]
                flat.append(jnp.reshape(leaf, (*shared, math.prod(self.shapes[place]))))
            found.append(jnp.concatenate(flat, axis=-1))
        return found

    def split(self, arrays: Sequence[Any]) -> list[Any]:
        """The leaves, from arrays without other axes."""
        found: list[Any] = [None] * len(self.shapes)
        for group, array in zip(self.groups, arrays, strict=True):
            if len(group) == 1:
                found[group[0]] = array
                continue
            stops = np.cumsum([math.prod(self.shapes[place]) for place in group])[:-1]
            for place, flat in zip(group, jnp.split(array, stops), strict=True):
                found[place] = flat.reshape(self.shapes[place])
        return found


def joining_of(
    leaves: Sequence[Any], kinds: Sequence[int] | None = None, below: int = _SMALL
) -> Joining:
    """Small leaves of one dtype and one kind together, every other by itself.

    Args:
        leaves: arrays, or shapes and dtypes.
        kinds: a number a leaf; None for all alike.
        below: the numbers that a small leaf has fewer of.

    Example:
        >>> joining_of([np.ones(2), np.ones(2), np.ones(2)], kinds=[0, 1, 0]).groups
        ((0, 2), (1,))
    """
    groups: dict[Any, list[int]] = {}
    for place, leaf in enumerate(leaves):
        small = math.prod(leaf.shape) < below
        kind = kinds[place] if kinds is not None else 0
        groups.setdefault((leaf.dtype, kind) if small else place, []).append(place)
    return Joining(tuple(map(tuple, groups.values())), tuple(tuple(x.shape) for x in leaves))
