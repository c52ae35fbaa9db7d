"""Parameters that stand in several places of a model, such as tied weights.

What two places mean is the library's own meaning. In flax.nnx a variable is one parameter wherever
it stands, and so is every variable of a layer under two names: `nnx.split` has it once. In a plain
tree a place is a parameter, whichever array it begins with: `{"a": zeros, "b": zeros}` are two. In
equinox too, by its documentation, but as one array in two places is nearly always meant as a tie,
such a module is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree, PyTreeDef

from dpjax._numerics.checks import is_from_package
from dpjax.gradients.strategies import path_name


class Ties(NamedTuple):
    """Which places of a tree hold one parameter; see `find_ties`."""

    # The number of the first leaf that holds a leaf's parameter: its own, where it is the first.
    leaves: tuple[int, ...]
    parts: tuple[int, ...]  # the same of variables, and of leaves outside of them

    @property
    def are_first(self) -> list[bool]:
        """Whether each leaf is the first place of its parameter."""
        return [first == number for number, first in enumerate(self.leaves)]

    def unflatten(self, structure: PyTreeDef, values: Iterable[Any]) -> PyTree:
        """The tree of this structure from one value for each first place, tied as it was."""
        given, found = iter(values), []
        for number, first in enumerate(self.leaves):
            found.append(next(given) if first == number else found[first])
        tree = structure.unflatten(found)
        if self.parts == tuple(range(len(self.parts))):
            return tree
        # One variable stands in all places, so that flax and `find_ties` know it again.
        parts, outer = jax.tree.flatten(tree, is_leaf=_is_variable)
        return outer.unflatten([parts[first] for first in self.parts])


def find_ties(tree: PyTree) -> Ties:
    """Which leaves of a tree are one parameter, by the variables of flax.nnx that hold them.

    Where a tree enters `jax.jit` its variables are made anew, and nothing is tied any more.
    """
    seen: dict[int, tuple[int, int]] = {}  # a variable: the number of its part, its first leaf
    leaves: list[int] = []
    parts: list[int] = []
    for number, part in enumerate(jax.tree.leaves(tree, is_leaf=_is_variable)):
        own = number, len(leaves)
        first = seen.setdefault(id(part), own) if _is_variable(part) else own
        held = len(jax.tree.leaves(part))
        leaves += range(first[1], first[1] + held)
        parts.append(first[0])
    return Ties(tuple(leaves), tuple(parts))


def check_copies(tree: PyTree, trained: Sequence[bool]) -> None:
    """Refuse an equinox module that holds one array in two places, at least one of them trained.

    Refused too is one whose Python numbers `jax.jit` made arrays: they would be trained.
    """
    seen: dict[int, tuple[str, bool]] = {}
    flags = iter(trained)
    for path, part in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_equinox)[0]:
        for inner, leaf in jax.tree_util.tree_flatten_with_path(part)[0]:
            name, is_trained = path_name((*path, *inner)), next(flags)
            if not (_is_equinox(part) and isinstance(leaf, np.ndarray | jax.Array)):
                continue
            weak = isinstance(leaf, jax.core.Tracer) and getattr(leaf.aval, "weak_type", False)
            if is_trained and weak:
                raise ValueError(
                    "params must be an equinox module whose Python numbers stay numbers, got "
                    f"{name} made an array by jax.jit, which would be trained: use "
                    "equinox.filter_jit, or give it a dtype (jnp.float32) to train it"
                )
            other, either = seen.setdefault(id(leaf), (name, is_trained))
            if other != name and (either or is_trained):
                raise ValueError(
                    "params must be an equinox module with every array in one place, got one array "
                    f"as {other} and {name}: equinox trains two copies of it; tie them by "
                    "eqx.nn.Shared, or copy one (jnp.copy) to train both"
                )


def _is_variable(part: object) -> bool:
    """Whether a part of a tree is a variable of flax.nnx."""
    return is_from_package(part, "flax.nnx", "Variable")


def _is_equinox(part: object) -> bool:
    """Whether a part of a tree is a module of equinox."""
    return is_from_package(part, "equinox", "Module")
