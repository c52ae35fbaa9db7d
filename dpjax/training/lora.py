"""Low-rank adapters of a model's dense and attention kernels, which are trained in their place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from dpjax._numerics.checks import Range, one_number, shown
from dpjax.gradients import low_rank_sum
from dpjax.gradients.arguments import path_name
from dpjax.gradients.per_example import accumulation_dtype
from dpjax.training.arguments import check_functions, whole

__all__ = ["Lora", "lora"]


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
    merge: Callable[..., Any]


def lora(
    params: Any,
    rank: int,
    *,
    key: Key[Array, ""],
    targets: Callable[[str, Any], bool] | None = None,
    scale: float = 1.0,
    stacked: Callable[[str, Any], bool] | None = None,
) -> Lora:
    """Adapters of rank r for the kernels of a model, which stays as it is:

        W = W₀ + A·B,  A [rows, r],  B [r, columns],

    where rows and columns are a kernel's inputs and outputs (of equinox, outputs and inputs). The
    factor on the side of the inputs is drawn, the other is zero, so that the model is at first the
    one that was given. Kernels of several layers in one array, as a model whose layers are in
    `jax.lax.scan` has them, get an adapter each.

    Args:
        params: of flax, of equinox, or any tree.
        rank: r; at most the smaller side of a kernel is of use.
        key: draws the adapters; not the run's own.
        targets: of the floating-point arrays of kernels, which: `targets(path, leaf)`; by default
            those named kernel, weight or weights and no embedding.
        scale: of the drawn factor, whose entries have standard deviation scale / √inputs: what
            others call α / r.
        stacked: `stacked(path, leaf)`, whether an array's first axis is one of layers, a kernel
            each; by default that of all with three axes, except the kernels with heads of flax's
            attention (query, key and value [inputs, heads, width], out [heads, width, outputs]),
            and of those with four.

    Returns:
        `Lora(adapters, merge)`. Train `adapters` with the loss `loss(merge(adapters), example)`;
        for a large model let the base be an argument of the compiled step, as in the example.

    Raises:
        ValueError: a rank below 1, a scale out of range, nothing to adapt, a target that is no
            kernel and no stack of kernels, or two leaves of one path; a `stacked` that says
            something other than True or False.
        TypeError: `targets` or `stacked` that is no function.

    Guarantee:
        Only the adapters change and only they are clipped and perturbed: the sensitivity is that of
        their gradient. The ghost method clips them without a gradient of any kernel's size; those
        of a stack where `jax.lax.scan` loops over its layers.

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
    rank = whole("rank", rank)
    scale = one_number("scale", scale, Range(0.0, open_low=True))
    check_functions(targets=targets, stacked=stacked)
    heads = _heads(params)
    if stacked is None:
        stacked = lambda path, leaf: leaf.ndim == (4 if path in heads else 3)  # noqa: E731
    adapters, used = {}, _chosen(params, targets)
    if not used:
        raise ValueError(f"targets must choose an array of the model, got none of {_some(params)}")
    for number, (path, leaf) in enumerate(used.items()):
        layers, rows, columns = _sides(path, leaf, stacked(path, leaf))
        dtype = accumulation_dtype(leaf.dtype)
        drawn_right = path.split("/")[-1] == "weight"  # of equinox: [outputs, inputs]
        inputs = columns if drawn_right else rows
        shape = (*layers, rank, columns) if drawn_right else (*layers, rows, rank)
        drawn = jax.random.normal(jax.random.fold_in(key, number), shape, dtype)
        drawn = drawn * jnp.asarray(scale / math.sqrt(max(inputs, 1)), dtype)  # 0: nothing is drawn
        other = (*layers, rows, rank) if drawn_right else (*layers, rank, columns)
        zero = jnp.zeros(other, dtype)
        a, b = (zero, drawn) if drawn_right else (drawn, zero)
        adapters[path] = {"a": a, "b": b}

    def merge(adapters: Any, base: Any = params) -> Any:
        paths, structure = jax.tree_util.tree_flatten_with_path(base)
        leaves = []
        for place, leaf in paths:
            own = adapters.get(path_name(place))
            leaves.append(leaf if own is None else low_rank_sum(leaf, own["a"], own["b"]))
        return structure.unflatten(leaves)

    return Lora(adapters, merge)


def _chosen(params: Any, targets: Callable[[str, Any], bool] | None) -> dict[str, Any]:
    tables, heads = _tables(params), _heads(params)
    kernels = lambda path: (2, 3, 4) if path in heads else (2, 3)  # noqa: E731
    found, seen = {}, set()
    for place, leaf in jax.tree_util.tree_leaves_with_path(params):
        path = path_name(place)
        if path in seen:
            raise ValueError(f"params must have a path of its own for every leaf, got {path} twice")
        seen.add(path)
        if not (hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)):
            continue
        if targets is not None:
            if not targets(path, leaf):
                continue
            if leaf.ndim not in kernels(path):
                raise ValueError(
                    f"targets must choose arrays with two or three axes, got {path} of {leaf.shape}"
                )
        elif leaf.ndim not in kernels(path) or id(leaf) in tables or not _is_kernel(path):
            continue
        found[path] = leaf
    return found


def _is_kernel(path: str) -> bool:
    return path.split("/")[-1] in ("kernel", "weight", "weights") and "embed" not in path.lower()


def _tables(params: Any) -> set[int]:
    """The arrays of look-up tables: equinox names them as it names a kernel."""
    is_table = lambda node: type(node).__name__ in ("Embedding", "Embed")  # noqa: E731
    nodes = jax.tree.leaves(params, is_leaf=is_table)
    return {id(leaf) for node in nodes if is_table(node) for leaf in jax.tree.leaves(node)}


def _heads(params: Any) -> set[str]:
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


def _sides(path: str, leaf: Any, stacked: Any) -> tuple[tuple[int, ...], int, int]:
    """(layers,) or (), rows and columns: those of attention are (inputs, heads · width) or
    (heads · width, outputs)."""
    if not isinstance(stacked, bool | np.bool_):
        raise ValueError(
            f"stacked must say True or False of every kernel, got {shown(stacked)} for {path}"
        )
    leading = int(stacked)
    layers, shape = leaf.shape[:leading], leaf.shape[leading:]
    if len(shape) not in (2, 3):
        raise ValueError(
            f"stacked must leave a kernel two or three axes, got {bool(stacked)} for {path} of "
            f"{leaf.shape}"
        )
    closing = len(shape) == 3 and "out" in path.split("/")[-2:-1]
    cut = 2 if closing else 1
    return layers, math.prod(shape[:cut]), math.prod(shape[cut:])


def _some(params: Any) -> str:
    names = [path_name(place) for place, _ in jax.tree_util.tree_leaves_with_path(params)]
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
