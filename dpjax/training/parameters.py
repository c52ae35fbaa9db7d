"""Which of a model's arrays are trained, and low-rank updates of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Key, PyTree

from dpjax._numerics.checks import Range, is_from_package, one_number, render, representable
from dpjax._numerics.keys import bits_of_keys
from dpjax._numerics.typing import Params, PRNGKey, is_array
from dpjax.gradients import low_rank_sum
from dpjax.gradients.per_example import accumulation_dtype
from dpjax.gradients.strategies import path_name, values_of_leaves
from dpjax.gradients.ties import Ties, check_copies, find_ties
from dpjax.training.devices import put_on_devices
from dpjax.training.options import check_functions, check_integer
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
        [leaf if kind == _TRAINED and first else None for kind, leaf, first in places]
    )

    def join(trained: Params, frozen: PyTree[Array]) -> Params:
        sources = [iter(jax.tree.leaves(trained)), iter(typed(frozen)), iter(halves[_STATIC])]
        return ties.unflatten(structure, [next(sources[kind]) for kind, _ in firsts])

    return ModelPartition(trained, frozen, join, ties)


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


class Lora(NamedTuple):
    """Adapters and what they are adapters of.

    Fields:
        adapters: {path of a kernel: {"a": [rows, rank], "b": [rank, columns]}}, to be trained; of
            a stack of kernels, one a layer, both have an axis of layers before.
        merge: `merge(adapters, base)`, the model with a·b added to every adapted kernel; the
            model that was adapted where `base` is left out.

    Example:
        >>> adapted = lora({"kernel": jnp.eye(2)}, rank=1, key=jax.random.key(0))
        >>> adapted.merge(adapted.adapters)["kernel"].tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """

    adapters: dict[str, dict[str, Array]]
    merge: Callable[..., Params]


def lora(
    params: Params,
    rank: int,
    *,
    key: Key[Array, ""],
    targets: Callable[[str, Array], bool] | None = None,
    scale: float = 1.0,
    stacked: Callable[[str, Array], bool] | None = None,
) -> Lora:
    """Adapters of rank r for the kernels of a model, which stays as it is:

        W = W₀ + A·B,  A [rows, r],  B [r, columns],

    where rows and columns are a kernel's inputs and outputs (of equinox, outputs and inputs). The
    factor on the side of the inputs is drawn, the other is zero, so that the model is at first the
    one that was given.

    Args:
        params: of flax, of equinox, or any tree.
        rank: r; at most the smaller side of a kernel is of use.
        key: draws the adapters; not the run's own.
        targets: of the floating-point arrays of kernels, which: `targets(path, leaf)`; by default
            those named kernel, weight or weights and no embedding.
        scale: of the drawn factor, whose entries have standard deviation scale / √inputs: what
            others call α / r.
        stacked: `stacked(path, leaf)`, whether an array's first axis is one of layers (as of
            `jax.lax.scan`), a kernel each; by default that of all with three axes, except kernels
            with heads of flax's attention (query, key and value [inputs, heads, width], out
            [heads, width, outputs]), and of those with four.

    Returns:
        `Lora(adapters, merge)`. Train `adapters` with the loss `loss(merge(adapters), example)`;
        for a large model let the base be an argument of the compiled step, as in the example.

    Raises:
        ValueError: a rank below 1, a scale out of range, nothing to adapt, a target that is no
            kernel and no stack of kernels, two leaves of one path, a `stacked` of no boolean.
        TypeError: `targets` or `stacked` that is no function.

    Guarantee:
        Only the adapters are clipped and perturbed: the sensitivity is that of their gradient. The
        ghost method clips them without a gradient of any kernel's size; those of a stack where
        `jax.lax.scan` loops over its layers.

    Example:
        >>> import optax
        >>> from dpjax import training
        >>> model = training.mlp(4, 2, hidden=(8,))
        >>> base = model.init(jax.random.key(0))
        >>> adapters, merge = lora(base, rank=2, key=jax.random.key(1))
        >>> list(adapters), adapters["0/weights"]["a"].shape
        (['0/weights', '1/weights'], (4, 2))
        >>> plain = training.cross_entropy(model)
        >>> def loss(params, example):
        ...     return plain(merge(params["adapters"], params["base"]), example)
        >>> data = jnp.ones((8, 4)), jnp.zeros(8, jnp.int32)
        >>> plan = training.make_plan(8, noise_multiplier=1.0, delta=1e-2, steps=2, batch_size=8)
        >>> fit = training.fit(
        ...     loss, {"adapters": adapters, "base": base}, data, plan, method="ghost",
        ...     trainable={"adapters": True, "base": False}, optimizer=optax.sgd(0.1))
        >>> tuned = merge(fit.params["adapters"])

    References:
        Hu et al. 2022, "LoRA: low-rank adaptation of large language models", section 4.1; under
        privacy, Yu et al. 2022, "Differentially private fine-tuning of language models".
    """
    rank = check_integer("rank", rank)
    scale = one_number("scale", scale, Range(0.0, open_low=True))
    check_functions(targets=targets, stacked=stacked)
    heads = _find_attention_kernels(params)  # of three axes that are no stack

    def has_axis_of_layers(path: str, leaf: Array) -> bool:
        return leaf.ndim == (4 if path in heads else 3)

    is_stack = has_axis_of_layers if stacked is None else stacked

    adapters, used = {}, _choose_kernels(params, targets, heads)
    if not used:
        some = _list_paths(params)
        raise ValueError(f"targets must choose an array of the model, got none of {some}")
    for number, (path, leaf) in enumerate(used.items()):
        sides, own = _find_sides(path, leaf, is_stack(path, leaf)), jax.random.fold_in(key, number)
        adapters[path] = _draw_factors(path, leaf, sides, rank, scale, own)

    def merge(adapters: dict[str, dict[str, Array]], base: Params = params) -> Params:
        def add_adapter(place: KeyPath, leaf: Array):
            own = adapters.get(path_name(place))
            return leaf if own is None else low_rank_sum(leaf, own["a"], own["b"])

        return jax.tree_util.tree_map_with_path(add_adapter, base)

    return Lora(adapters, merge)


def _list_paths(params: Params) -> str:
    """The first paths of a tree."""
    names = [path_name(place) for place, _ in jax.tree_util.tree_leaves_with_path(params)]
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


class _Sides(NamedTuple):
    """The shape of a kernel as a matrix, or of a stack of them."""

    layers: tuple[int, ...]  # one number, or none
    rows: int
    columns: int


def _draw_factors(
    path: str, leaf: Array, sides: _Sides, rank: int, scale: float, key: PRNGKey
) -> dict[str, Array]:
    """The two factors of a kernel, whose product is zero at first."""
    (layers, rows, columns), dtype = sides, accumulation_dtype(leaf.dtype)
    shapes = {"a": (*layers, rows, rank), "b": (*layers, rank, columns)}
    # The factor beside the inputs; of equinox a kernel is [outputs, inputs].
    own, inputs = ("b", columns) if path.split("/")[-1] == "weight" else ("a", rows)
    drawn = jax.random.normal(key, shapes[own], dtype)
    drawn = drawn * jnp.asarray(scale / math.sqrt(max(inputs, 1)), dtype)  # 0: nothing is drawn
    return {name: jnp.zeros(shape, dtype) for name, shape in shapes.items()} | {own: drawn}


def _choose_kernels(
    params: Params, targets: Callable[[str, Array], bool] | None, heads: set[str]
) -> dict[str, Array]:
    """The kernels to adapt, by their paths."""

    # The arrays of look-up tables: equinox names them as it names a kernel.
    def is_table(node: object) -> bool:
        return type(node).__name__ in ("Embedding", "Embed")

    nodes = [node for node in jax.tree.leaves(params, is_leaf=is_table) if is_table(node)]
    tables = {id(leaf) for leaf in jax.tree.leaves([jax.tree.leaves(node) for node in nodes])}
    found, seen = {}, set()
    for place, leaf in jax.tree_util.tree_leaves_with_path(params):
        path = path_name(place)
        if path in seen:
            raise ValueError(f"params must have a path of its own for every leaf, got {path} twice")
        seen.add(path)
        if not (is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)):
            continue
        has_axes = leaf.ndim in ((2, 3, 4) if path in heads else (2, 3))
        if targets is None:
            named = path.split("/")[-1] in ("kernel", "weight", "weights")
            chosen = named and "embed" not in path.lower() and id(leaf) not in tables and has_axes
        elif (chosen := targets(path, leaf)) and not has_axes:
            raise ValueError(
                f"targets must choose arrays with two or three axes, got {path} of {leaf.shape}"
            )
        if chosen:
            found[path] = leaf
    return found


def _find_attention_kernels(params: Params) -> set[str]:
    """The kernels with heads: of flax's attention, where its query and its out agree about them."""
    shapes = {
        path_name(place): tuple(getattr(leaf, "shape", ()))
        for place, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    found = set()
    for path, out in shapes.items():
        *module, name, kernel = ("", *path.split("/"))
        query = shapes.get("/".join((*module[1:], "query", kernel)), ())
        if name == "out" and len(out) == len(query) >= 3 and out[-3:-1] == query[-2:]:
            found |= {"/".join((*module[1:], n, kernel)) for n in ("query", "key", "value", "out")}
    return found


def _find_sides(path: str, leaf: Array, stacked: object) -> _Sides:
    """(layers,) or (), rows and columns."""
    if not isinstance(stacked, bool | np.bool_):
        raise ValueError(
            f"stacked must say True or False of every kernel, got {render(stacked)} at {path}"
        )
    layers, shape = leaf.shape[: int(stacked)], leaf.shape[int(stacked) :]
    if len(shape) not in (2, 3):
        raise ValueError(
            f"stacked must leave a kernel two or three axes, got {bool(stacked)} for {path} of "
            f"{leaf.shape}"
        )
    # Axes that are rows: of attention's out its heads and their width.
    cut = 2 if len(shape) == 3 and "out" in path.split("/")[-2:-1] else 1
    return _Sides(layers, math.prod(shape[:cut]), math.prod(shape[cut:]))
