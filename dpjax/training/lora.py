"""Low-rank adapters of a model's dense and attention kernels, which are trained in their place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from dpjax._numerics.checks import Range, one_number
from dpjax.gradients import low_rank_sum
from dpjax.gradients.arguments import path_name
from dpjax.gradients.per_example import accumulation_dtype
from dpjax.training.arguments import whole

__all__ = ["Lora", "lora"]


class Lora(NamedTuple):
    """Adapters and what they are adapters of.

    Fields:
        adapters: {path of a kernel: {"a": [rows, rank], "b": [rank, columns]}}, to be trained.
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
        targets: of the floating-point arrays with two or three axes, which: `targets(path, leaf)`;
            by default those named kernel, weight or weights and no embedding.
        scale: of the drawn factor, whose entries have standard deviation scale / √inputs: what
            others call α / r.

    Returns:
        `Lora(adapters, merge)`. Train `adapters` with the loss `loss(merge(adapters), example)`;
        for a large model let the base be an argument of the compiled step, as in the example.

    Raises:
        ValueError: a rank below 1, a scale out of range, nothing to adapt, a target without two
            or three axes, or two leaves of one path.

    Guarantee:
        Only the adapters change and only they are clipped and perturbed: the sensitivity is that of
        their gradient. The ghost method clips them without a gradient of any kernel's size.

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
    adapters, used = {}, _chosen(params, targets)
    if not used:
        raise ValueError(f"targets must choose an array of the model, got none of {_some(params)}")
    for number, (path, leaf) in enumerate(used.items()):
        rows, columns = _sides(path, leaf)
        dtype = accumulation_dtype(leaf.dtype)
        drawn_right = path.split("/")[-1] == "weight"  # of equinox: [outputs, inputs]
        inputs = columns if drawn_right else rows
        shape = (rank, columns) if drawn_right else (rows, rank)
        drawn = jax.random.normal(jax.random.fold_in(key, number), shape, dtype)
        drawn = drawn * jnp.asarray(scale / math.sqrt(inputs), dtype)
        zero = jnp.zeros((rows, rank) if drawn_right else (rank, columns), dtype)
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
    tables = _tables(params)
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
            if leaf.ndim not in (2, 3):
                raise ValueError(
                    f"targets must choose arrays with two or three axes, got {path} of {leaf.shape}"
                )
        elif leaf.ndim not in (2, 3) or id(leaf) in tables or not _is_kernel(path):
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


def _sides(path: str, leaf: Any) -> tuple[int, int]:
    """Rows and columns: of attention, (inputs, heads · width), or (heads · width, outputs)."""
    closing = leaf.ndim == 3 and "out" in path.split("/")[-2:-1]
    cut = 2 if closing else 1
    return math.prod(leaf.shape[:cut]), math.prod(leaf.shape[cut:])


def _some(params: Any) -> str:
    names = [path_name(place) for place, _ in jax.tree_util.tree_leaves_with_path(params)]
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
