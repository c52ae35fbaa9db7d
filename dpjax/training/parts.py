"""Which leaves of a model are trained; the others are carried along and come back as they were."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._numerics.checks import shown
from dpjax._numerics.keys import bits_of_keys
from dpjax.gradients.arguments import path_name, spread

__all__ = ["Parts", "parts_of"]

_TRAINED, _HELD, _STATIC = range(3)


class Parts(NamedTuple):
    """A model in two halves: what is trained, and the arrays that are not.

    Fields:
        trained: the model's tree with None for every leaf that is not trained.
        held: frozen parameters, counters and keys (as their bits), in the order of the leaves.
        join: `join(trained, held)`, the model again; what is no array lies in it.

    Example:
        >>> parts = parts_of({"w": jnp.ones(2), "steps": jnp.zeros((), jnp.int32), "act": "relu"})
        >>> [name for name, leaf in parts.trained.items() if leaf is not None]
        ['w']
        >>> parts.join({"w": 2 * jnp.ones(2), "steps": None, "act": None}, parts.held)["act"]
        'relu'
    """

    trained: Any
    held: Any
    join: Callable[[Any, Any], Any]

    def whole(self, trained: Any) -> Any:
        """The model with other values of what is trained; None stays None."""
        return None if trained is None else self.join(trained, self.held)


@dataclasses.dataclass(frozen=True)
class _Join:
    structure: Any
    kinds: tuple[int, ...]
    static: tuple[Any, ...]
    typed: Callable[[Any], Any]

    def __call__(self, trained: Any, held: Any) -> Any:
        sources = [iter(jax.tree.leaves(trained)), iter(self.typed(held)), iter(self.static)]
        return self.structure.unflatten([next(sources[kind]) for kind in self.kinds])


def parts_of(model: Any, trainable: Any = None) -> Parts:
    """The trained half of a model and the rest.

    Trained are the leaves that are real floating-point arrays, as `equinox.is_inexact_array` has
    them: numbers of Python's own, functions and arrays of whole numbers or keys are not.

    Args:
        model: any tree.
        trainable: of these, which: `trainable(path, leaf)` with a path such as "dense_0/kernel",
            or a tree of booleans that is the model's or a prefix of it; None for all.

    Raises:
        ValueError: nothing to train, a complex parameter, or a mask of another structure.

    Example:
        >>> model = {"body": {"w": jnp.ones(2)}, "head": {"w": jnp.ones(3)}}
        >>> parts = parts_of(model, {"body": False, "head": True})
        >>> parts.trained["body"], len(parts.held)
        ({'w': None}, 1)
        >>> parts_of(model, lambda path, leaf: path.startswith("body")).trained["head"]
        {'w': None}
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(model)
    leaves = [leaf for _, leaf in paths]
    arrays = [hasattr(leaf, "dtype") and hasattr(leaf, "shape") for leaf in leaves]
    inexact = [
        array and jnp.issubdtype(leaf.dtype, jnp.inexact)
        for leaf, array in zip(leaves, arrays, strict=True)
    ]
    wanted = _wanted(trainable, paths, model)
    trains = [a and b for a, b in zip(inexact, wanted, strict=True)]
    if not any(trains):
        why = "none" if not any(inexact) else "trainable that leaves all of them out"
        raise ValueError(f"params must hold a floating-point array that is trained, got {why}")
    if not any(leaf.size for leaf, trained in zip(leaves, trains, strict=True) if trained):
        raise ValueError("params must hold a number that is trained, got arrays without entries")
    for (path, leaf), trained in zip(paths, trains, strict=True):
        if trained and jnp.iscomplexobj(leaf):
            raise ValueError(
                f"params must be real, got {path_name(path)} of {leaf.dtype}; split real and "
                "imaginary parts"
            )
    kinds = [
        _TRAINED if trained else _HELD if array else _STATIC
        for trained, array in zip(trains, arrays, strict=True)
    ]
    held, typed = bits_of_keys(
        [jnp.asarray(x) for x, kind in zip(leaves, kinds, strict=True) if kind == _HELD]
    )
    static = tuple(x for x, kind in zip(leaves, kinds, strict=True) if kind == _STATIC)
    trained = structure.unflatten([x if t else None for x, t in zip(leaves, trains, strict=True)])
    return Parts(trained, held, _Join(structure, tuple(kinds), static, typed))


def _wanted(trainable: Any, paths: Any, model: Any) -> list[bool]:
    if trainable is None:
        return [True] * len(paths)
    # A tree of booleans may be a module, and be callable too.
    if callable(trainable) and jax.tree_util.all_leaves([trainable]):
        found = [trainable(path_name(path), leaf) for path, leaf in paths]
    else:
        found = spread("trainable", trainable, model, of="booleans")
    for flag in found:
        if not isinstance(flag, bool | np.bool_):
            raise ValueError(f"trainable must say True or False of every leaf, got {shown(flag)}")
    return [bool(flag) for flag in found]
