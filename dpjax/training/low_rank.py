"""Low-rank updates of a model's kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from dpjax._numerics.checks import Range, is_array, one_number, render
from dpjax._numerics.typing import Params, PRNGKey
from dpjax.gradients import low_rank_sum
from dpjax.gradients.per_example import accumulation_dtype
from dpjax.gradients.ties import find_ties
from dpjax.training.devices import put_on_devices
from dpjax.training.kernel_axes import (
    Axes,
    KernelShape,
    KnownModules,
    ask_for_axes,
    name_leaves,
    read_axes_of_user,
    read_bias,
    read_modules,
    read_names,
    shape_as_matrix,
)
from dpjax.training.options import check_functions, check_integer


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
    axes: Mapping[str, str] | None = None,
) -> Lora:
    """Adapters of rank r for the kernels of a model, which stays as it is:

        W = W₀ + A·B,  A [rows, r],  B [r, columns],

    where rows and columns are a kernel's inputs and outputs, or its outputs and inputs where these
    lie first, as in equinox. The factor on the side of the inputs is drawn, the other is zero, so
    that the model is at first the one that was given.

    An array of two axes is [inputs, outputs], under the name weight [outputs, inputs]. Layouts of
    more axes are known of `nnx.Linear`, `nnx.LinearGeneral`, `nnx.MultiHeadAttention`, modules with
    an `einsum_str` (nnx, tunix) and `equinox.nn.Linear`; by names and shapes that agree, of flax
    linen's attention, of gemma, and of tunix's Gemma, Llama and Qwen; and of kernels beside a bias
    that shows them (linen's Dense in a scan, DenseGeneral). Any other is asked for.

    Args:
        params: of flax (linen, or an nnx module, its state, or the pure dict of it), of equinox, or
            any tree. A variable of nnx has the path of its own, without the `value` in it.
        rank: r; an adapter may hold no more numbers than its kernel.
        key: draws the adapters; not the run's own.
        targets: of the floating-point arrays of kernels, which: `targets(path, leaf)`; by default
            those named kernel, weight, weights or w, and those of the layouts below, of two axes or
            more, but no embedding and no convolution.
        scale: of the drawn factor, whose entries have standard deviation scale / √inputs: what
            others call α / r.
        stacked: `stacked(path, leaf)`, whether an array's first axis is one of layers (as of
            `jax.lax.scan`), a kernel each: of kernels whose layout is not known. What is left of
            three axes is then [inputs, heads, width], of a kernel under "out" [heads, width,
            outputs].
        axes: {end of a path: "layer", "in" or "out" for each axis}, such as
            `{"q_einsum/w": "out in out"}` for [heads, inputs, width], before all that is known.
            Each layer has an adapter, its inputs together are one side of it, its outputs the
            other.

    Returns:
        `Lora(adapters, merge)`. Train `adapters` with the loss `loss(merge(adapters), example)`;
        for a large model let the base be an argument of the compiled step, as in the example.

    Raises:
        ValueError: a rank below 1, or so large that an adapter is larger than its kernel, a scale
            out of range, nothing to adapt, a target that is no kernel, one whose axes are not
            known, two leaves of one path, a `stacked` of no boolean, `axes` of no path or other
            words.
        TypeError: `targets` or `stacked` that is no function, `axes` that is no table.

    Guarantee:
        Only the adapters are clipped and perturbed: the sensitivity is that of their gradient. The
        ghost method clips them without a gradient of any kernel's size; those of a stack where
        `jax.lax.scan` loops over its layers.

    Example:
        >>> import optax
        >>> from dpjax import training
        >>> model = training.mlp(4, 2, hidden=(8,))
        >>> base = model.init(jax.random.key(0))
        >>> adapters, merge = lora(base, rank=1, key=jax.random.key(1))
        >>> list(adapters), adapters["0/weights"]["a"].shape
        (['0/weights', '1/weights'], (4, 1))
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
    places, firsts = _name_places(params)
    known = _Layouts.read(params, axes, stacked)

    adapters, shapes = {}, {}
    chosen = _choose_kernels({name: places[name] for name in firsts.values()}, targets, known)
    for number, (path, leaf) in enumerate(chosen.items()):
        shapes[path] = shape_as_matrix(leaf.shape, known.find(path, leaf))
        _check_size(path, leaf, rank, shapes[path])
        own = jax.random.fold_in(key, number)
        adapters[path] = _draw_factors(leaf, shapes[path], rank, scale, own)
    if not adapters:
        raise ValueError(
            f"targets must choose an array of the model, got none of {_list_some(places)}"
        )

    def merge(adapters: dict[str, dict[str, Array]], base: Params = params) -> Params:
        def add_adapter(name: str, leaf: object) -> object:
            path = firsts.get(name, name)
            own = adapters.get(path)
            return leaf if own is None or not is_array(leaf) else _add(leaf, own, shapes[path])

        leaves = [add_adapter(name, leaf) for name, leaf in name_leaves(base)]
        return jax.tree.unflatten(jax.tree.structure(base), leaves)

    return Lora(adapters, merge)


def _add(leaf: Array, own: dict[str, Array], shape: KernelShape) -> Array:
    """A kernel with its adapter's product added."""
    own = {side: _bring(factor, leaf) for side, factor in own.items()}
    if shape.order == tuple(range(leaf.ndim)):
        return low_rank_sum(leaf, own["a"], own["b"])
    added = low_rank_sum(leaf.transpose(shape.order), own["a"], own["b"])
    back = [shape.order.index(axis) for axis in range(leaf.ndim)]
    return added.transpose(back)


def _bring(factor: Array, leaf: Array) -> Array:
    """The factor on the devices of the kernel, which is larger and may have been put on others."""
    placed = [x for x in (factor, leaf) if isinstance(x, jax.Array)]
    if len(placed) < 2 or any(isinstance(x, jax.core.Tracer) for x in placed):
        return factor
    place = leaf.sharding
    if factor.sharding.device_set == place.device_set:
        return factor
    if isinstance(place, NamedSharding):
        place = NamedSharding(place.mesh, PartitionSpec())
    return put_on_devices(factor, place)


def _list_some(places: dict[str, object]) -> str:
    """The first paths of a tree."""
    return ", ".join(list(places)[:5]) + (", …" if len(places) > 5 else "")


def _name_places(params: Params) -> tuple[dict[str, object], dict[str, str]]:
    """The leaves of a tree by their paths, and for each path the first one of its parameter."""
    # What stands in several places of an nnx module is one kernel, with one adapter.
    found: dict[str, object] = {}
    for name, leaf in name_leaves(params):
        if name in found:
            raise ValueError(f"params must have a path of its own for every leaf, got {name} twice")
        found[name] = leaf
    names, firsts = list(found), find_ties(params).leaves
    return found, {name: names[first] for name, first in zip(names, firsts, strict=True)}


def _draw_factors(
    leaf: Array, shape: KernelShape, rank: int, scale: float, key: PRNGKey
) -> dict[str, Array]:
    """The two factors of a kernel, whose product is zero at first."""
    dtype = accumulation_dtype(leaf.dtype)
    sides = {"a": (*shape.layers, shape.rows, rank), "b": (*shape.layers, rank, shape.columns)}
    own = "a" if shape.inputs_are_rows else "b"
    drawn = jax.random.normal(key, sides[own], dtype)
    drawn = drawn * jnp.asarray(scale / math.sqrt(max(shape.inputs, 1)), dtype)  # 0: none is drawn
    return {name: jnp.zeros(side, dtype) for name, side in sides.items()} | {own: drawn}


def _check_size(path: str, leaf: Array, rank: int, shape: KernelShape) -> None:
    """Refuse an adapter that is larger than what it adapts: its axes are wrong, or it is no use."""
    size = rank * (shape.rows + shape.columns) * math.prod(shape.layers)
    if size > leaf.size > 0:
        raise ValueError(
            f"rank must make every adapter no larger than its kernel, got {rank} for {path} "
            f"{leaf.shape}: {size:,} numbers for its {leaf.size:,}; leave it out by targets and "
            "train it whole, or say its axes by axes"
        )


class _Layouts(NamedTuple):
    """All that is known of the axes of a model's arrays."""

    said: dict[str, Axes]  # by the user
    modules: KnownModules
    named: dict[str, set[Axes]]
    shapes: dict[str, tuple[int, ...]]
    stacked: Callable[[str, Array], bool] | None

    @classmethod
    def read(
        cls,
        params: Params,
        axes: Mapping[str, str] | None,
        stacked: Callable[[str, Array], bool] | None,
    ) -> _Layouts:
        """Read a model and what its user says of it."""
        leaves = name_leaves(params)
        shapes = {name: tuple(np.shape(leaf)) for name, leaf in leaves if is_array(leaf)}
        said, modules = read_axes_of_user(axes, leaves), read_modules(params)
        return cls(said, modules, read_names(shapes), shapes, stacked)

    def is_kernel(self, path: str, leaf: Array) -> bool:
        """Whether an array is adapted where nobody says which are."""
        if path in self.said:
            return True
        if path in self.modules.tables or path in self.modules.other or "embed" in path.lower():
            return False
        if path in self.named or path in self.modules.axes:
            return True
        # Of four axes are convolutions, of linen too.
        return leaf.ndim in (2, 3) and path.split("/")[-1] in ("kernel", "weight", "weights", "w")

    def find(self, path: str, leaf: Array) -> Axes:
        """The axes of a kernel, by the first that tells."""
        if path in self.said:
            return self.said[path]
        if path in self.modules.axes:
            return self.modules.axes[path]
        if len(named := self.named.get(path, set())) == 1:
            return next(iter(named))
        if self.stacked is not None:
            return _read_stack(path, leaf, self.stacked(path, leaf))
        if leaf.ndim == 2:
            return _matrix(path)
        *above, _ = path.split("/")
        bias = self.shapes.get("/".join((*above, "bias")), ())
        if leaf.ndim == 3 and not named and (axes := read_bias(leaf.shape, bias)):
            return axes
        raise ValueError(ask_for_axes(path, leaf.shape))


def _matrix(path: str) -> Axes:
    """The axes of a matrix: of equinox its outputs are the first."""
    return ("out", "in") if path.split("/")[-1] == "weight" else ("in", "out")


def _read_stack(path: str, leaf: Array, stacked: object) -> Axes:
    """The axes of a kernel of which it is said whether it is a stack."""
    if not isinstance(stacked, bool | np.bool_):
        raise ValueError(
            f"stacked must say True or False of every kernel, got {render(stacked)} at {path}"
        )
    layers = ("layer",) * int(stacked)
    rest = leaf.ndim - len(layers)
    if rest not in (2, 3):
        raise ValueError(
            f"stacked must leave a kernel two or three axes, got {bool(stacked)} for {path} of "
            f"{leaf.shape}"
        )
    if rest == 2:
        return layers + _matrix(path)
    # Axes that are inputs: of attention's out its heads and their width.
    return layers + (
        ("in", "in", "out") if "out" in path.split("/")[-2:-1] else ("in", "out", "out")
    )


def _choose_kernels(
    places: dict[str, object], targets: Callable[[str, Array], bool] | None, known: _Layouts
) -> dict[str, Array]:
    """The kernels to adapt, by their paths."""
    found = {}
    for path, leaf in places.items():
        if not (is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)):
            continue
        if targets is None:
            chosen = known.is_kernel(path, leaf)
        elif (chosen := targets(path, leaf)) and leaf.ndim < 2:
            raise ValueError(
                f"targets must choose arrays of two axes or more, got {path} of {leaf.shape}"
            )
        if chosen:
            found[path] = leaf
    return found
