"""Low-rank updates of a model's kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpjax._numerics.checks import Range, is_array, one_number, render
from dpjax._numerics.typing import Params, PRNGKey
from dpjax.gradients import low_rank_sum
from dpjax.gradients.per_example import accumulation_dtype
from dpjax.gradients.strategies import path_name
from dpjax.training.options import check_functions, check_integer

if TYPE_CHECKING:
    from jax.tree_util import KeyPath


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
    key: PRNGKey,
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
