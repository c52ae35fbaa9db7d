"""Which of a model's arrays are trained."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from dpjax._numerics.checks import is_array, is_from_package, render, representable
from dpjax._numerics.keys import bits_of_keys
from dpjax._numerics.typing import Params
from dpjax.gradients.strategies import path_name, values_of_leaves
from dpjax.gradients.ties import Ties, check_copies, find_ties
from dpjax.training.devices import put_on_devices
from dpjax.training.typing import Evaluate, Trainable

if TYPE_CHECKING:
    from jax.tree_util import KeyPath

_TRAINED, _FROZEN, _STATIC = range(3)


class ModelPartition(NamedTuple):
    """A model in two halves: what is trained, and the arrays that are not."""

    trained: Params  # the model's tree with None for every leaf that is not trained
    frozen: PyTree[
        Array
    ]  # frozen parameters, counters and keys (as their bits), in the order of the leaves
    # `join(trained, frozen)`, the model again; what is no array lies in it.
    join: Callable[[Params, PyTree[Array]], Params]
    ties: Ties  # which places of the model hold one parameter

    def restore(self, trained: Params) -> Params:
        """The model with other values of what is trained; None stays None."""
        return None if trained is None else self.join(trained, self.frozen)

    def evaluate_whole(self, evaluate: Evaluate | None) -> Evaluate | None:
        """A function of the model as one of what is trained."""
        if evaluate is None:
            return None
        return lambda trained: evaluate(self._restore_where(trained))

    def _restore_where(self, trained: Params) -> Params:
        """The model with what is not trained on the devices of what is."""
        first = next(leaf for leaf in jax.tree.leaves(trained) if leaf is not None)
        if not isinstance(first, jax.Array):
            return self.restore(trained)
        place = first.sharding
        if isinstance(place, NamedSharding):
            place = NamedSharding(place.mesh, PartitionSpec())
        frozen = jax.tree.map(lambda leaf: put_on_devices(leaf, place), self.frozen)
        return self.join(trained, frozen)


def partition_model(
    model: Params, trainable: Trainable | None = None, ties: Ties | None = None
) -> ModelPartition:
    """The trained half of a model, its real floating-point arrays that are wanted, and the rest.

    A parameter in several places is kept at the first of them; `ties` says of a traced model what
    can no longer be seen of it.
    """
    if is_from_package(model, "flax.nnx", "Optimizer"):
        raise ValueError(
            "params must be the module, got an nnx.Optimizer: give the module as params, and the "
            "optax optimiser as optimizer"
        )
    paths, structure = jax.tree_util.tree_flatten_with_path(model)
    if ties is None or len(ties.leaves) != len(paths):
        ties = find_ties(model)
    wanted = _read_trainable(trainable, paths, model)  # one answer a leaf
    _check_tied(ties, wanted, paths)
    kinds = [_find_kind(leaf, asked) for (_, leaf), asked in zip(paths, wanted, strict=True)]
    _check_trained(paths, kinds)
    _check_modules(model, iter(kind == _TRAINED for kind in kinds))
    check_copies(model, [kind == _TRAINED for kind in kinds])
    leaves = [leaf for _, leaf in paths]
    firsts = list(itertools.compress(zip(kinds, leaves, strict=True), ties.are_first))
    halves = {kind: [leaf for own, leaf in firsts if own == kind] for kind in range(3)}
    frozen, typed = bits_of_keys([jnp.asarray(leaf) for leaf in halves[_FROZEN]])
    places = zip(kinds, leaves, ties.are_first, strict=True)
    trained = structure.unflatten(
        [_give_dtype(leaf) if kind == _TRAINED and first else None for kind, leaf, first in places]
    )

    def join(trained: Params, frozen: PyTree[Array]) -> Params:
        sources = [iter(jax.tree.leaves(trained)), iter(typed(frozen)), iter(halves[_STATIC])]
        return ties.unflatten(structure, [next(sources[kind]) for kind, _ in firsts])

    return ModelPartition(trained, frozen, join, ties)


def _give_dtype(leaf: Array) -> Array:
    """The array with a dtype of its own, where JAX took it from a Python number."""
    # A step's result has one: what is called with it would be compiled a second time.
    weak = isinstance(leaf, jax.Array) and leaf.aval.weak_type
    return jnp.asarray(leaf, leaf.dtype) if weak else leaf


def _check_tied(ties: Ties, wanted: list[bool], paths: list[tuple[KeyPath, Any]]) -> None:
    """Refuse to train a parameter at one of its places and not at another."""
    for number, first in enumerate(ties.leaves):
        if wanted[number] != wanted[first]:
            places = [path_name(paths[place][0]) for place in (first, number)]
            raise ValueError(
                f"trainable must say the same of {places[0]} and {places[1]}, which are one "
                f"parameter, got {wanted[first]} and {wanted[number]}"
            )


def _find_kind(leaf: object, is_wanted: bool) -> int:
    """Whether a leaf is trained, an array that is not, or no array."""
    if not is_array(leaf):
        return _STATIC
    return _TRAINED if is_wanted and jnp.issubdtype(leaf.dtype, jnp.inexact) else _FROZEN


def _check_trained(paths: list[tuple[KeyPath, Any]], kinds: list[int]) -> None:
    """Refuse a model of which nothing is trained, complex numbers, and numbers beyond JAX's."""
    leaves = [leaf for _, leaf in paths]
    if _TRAINED not in kinds:
        able = any(_find_kind(leaf, True) == _TRAINED for leaf in leaves)
        left_out = "trainable that leaves all of them out"
        got = left_out if able else _describe_untrainable(leaves)
        raise ValueError(f"params must hold a floating-point array that is trained, got {got}")
    if not any(leaf.size for leaf, kind in zip(leaves, kinds, strict=True) if kind == _TRAINED):
        raise ValueError("params must hold a number that is trained, got arrays without entries")
    for (path, leaf), kind in zip(paths, kinds, strict=True):
        if kind == _TRAINED and jnp.iscomplexobj(leaf):
            raise ValueError(
                f"params must be real, got {path_name(path)} of {leaf.dtype}; split real and "
                "imaginary parts"
            )
        if kind == _FROZEN and isinstance(leaf, np.ndarray | np.generic):
            representable("params", leaf, jax.dtypes.canonicalize_dtype(leaf.dtype))


def _describe_untrainable(leaves: list[Any]) -> str:
    """What a tree without arrays is, and how its parameters are made."""
    for leaf in leaves:
        kind = leaf if isinstance(leaf, type) else type(leaf)
        made = "training.from_linen(module, features of one record)"
        if is_from_package(kind, "flax.nnx", "Module"):
            made = f"training.from_nnx({kind.__name__})"
        elif not is_from_package(kind, "flax.linen", "Module"):
            continue
        return f"the {kind.__name__} itself: give model.init(key) of model = {made}"
    classes = [leaf.__name__ for leaf in leaves if isinstance(leaf, type)]
    return f"the class {classes[0]}: give one that is built" if classes else "none"


def _check_modules(model: Params, trains: Iterator[bool]) -> None:
    """Refuse what a module holds besides parameters and no gradient of one record is taken of."""

    def is_module(part: object):
        kinds = ("flax.nnx", "Variable"), ("equinox", "State"), ("equinox.nn", "BatchNorm")
        return any(is_from_package(part, *kind) for kind in kinds)

    statistics = []
    for path, part in jax.tree_util.tree_flatten_with_path(model, is_leaf=is_module)[0]:
        trained = [next(trains) for _ in jax.tree.leaves(part)]
        if is_from_package(part, "flax.nnx", "RngState"):
            raise ValueError(
                f"params must hold no random numbers of an nnx module, got {path_name(path)}: "
                "dropout would keep one mask for the whole run; write model = "
                "training.from_nnx(lambda rngs: Net(rngs=rngs)), give fit model.init(key) and "
                "loss_takes_key=True, and use model.apply(params, features, key) in the loss"
            )
        unfrozen = is_from_package(part, "equinox.nn", "BatchNorm") and not part.inference
        stored = path[:1] == (jax.tree_util.DictKey("batch_stats"),)
        stored |= is_from_package(part, "flax.nnx", "BatchStat") or is_from_package(
            part, "equinox", "State"
        )
        if unfrozen or (stored and any(trained)):
            statistics.append(path_name(path) or type(part).__name__)
    if statistics:
        raise ValueError(
            f"params must hold no batch statistics, got {', '.join(statistics[:3])}: batch "
            "normalisation mixes records, which no clipping of one record's gradient bounds; use "
            "GroupNorm or LayerNorm, or freeze them: use_running_average=True (of equinox, "
            "inference=True) and fit(trainable=...) without them"
        )


def _read_trainable(
    trainable: Trainable | None, paths: list[tuple[KeyPath, Any]], model: Params
) -> list[bool]:
    """Whether each leaf is to be trained, from a function, a tree of booleans or None for all."""
    if trainable is None:
        return [True] * len(paths)
    # A tree of booleans may be a module, and be callable too.
    if callable(trainable) and jax.tree_util.all_leaves([trainable]):
        found = [trainable(path_name(path), leaf) for path, leaf in paths]
    else:
        found = values_of_leaves("trainable", trainable, model, of="booleans")
    for flag in found:
        if not isinstance(flag, bool | np.bool_):
            raise ValueError(f"trainable must say True or False of every leaf, got {render(flag)}")
    return [bool(flag) for flag in found]
