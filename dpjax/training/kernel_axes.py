"""Which axes of a model's kernels are inputs, outputs and layers.

What a library says of a kernel is read, nothing is guessed: the class of its module, a table of
names whose shapes agree with each other, or the shape of its bias. Where none of them tells, the
user is asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from dpjax._numerics.checks import is_array, is_from_package, render
from dpjax.gradients.strategies import path_name

Axes = tuple[str, ...]  # "layer", "in" or "out" for each axis of a kernel
_AXIS_WORDS = ("layer", "in", "out")

# Kernels that stand beside each other, as the product that each of them is in: what enters, the
# kernel, what leaves. One letter is one size in all kernels of a line; D is the model's width, N
# and K are heads, H is their width, F is hidden, C counts kernels of one input.
_TABLE: tuple[dict[str, str], ...] = (
    # flax's attention, of linen and of nnx
    {"query": "D,DNH->NH", "key": "D,DKH->KH", "value": "D,DKH->KH", "out": "NH,NHD->D"},
    # tunix's Llama and Qwen
    {"q_proj": "D,DNH->NH", "k_proj": "D,DKH->KH", "v_proj": "D,DKH->KH", "o_proj": "NH,NHD->D"},
    # gemma, and tunix's Gemma
    {
        "q_einsum": "D,NDH->NH",
        "kv_einsum": "D,CKDH->CKH",
        "qkv_einsum": "D,CNDH->CNH",
        "attn_vec_einsum": "NH,NHD->D",
    },
    # gemma's feed-forward block, whose versions differ in the order of the gates' axes
    {"gating_einsum": "D,CFD->CF", "linear": "F,FD->D"},
    {"gating_einsum": "D,CDF->CF", "linear": "F,FD->D"},
)


class KernelShape(NamedTuple):
    """A kernel as a matrix, or as a stack of them."""

    order: tuple[int, ...]  # its axes in the order layers, rows, columns
    layers: tuple[int, ...]
    rows: int
    columns: int
    inputs_are_rows: bool

    @property
    def inputs(self) -> int:
        """How many numbers enter the kernel."""
        return self.rows if self.inputs_are_rows else self.columns


def shape_as_matrix(shape: Sequence[int], axes: Axes) -> KernelShape:
    """A kernel of this shape as a matrix: its inputs are rows, unless its outputs lie before them.

    A kernel whose axes lie in the order layers, outputs, inputs stays as it lies.
    """
    layers, inputs, outputs = (
        [place for place, own in enumerate(axes) if own == word] for word in _AXIS_WORDS
    )
    swapped = axes == ("layer",) * len(layers) + ("out",) * len(outputs) + ("in",) * len(inputs)
    sides = (outputs, inputs) if swapped else (inputs, outputs)
    rows, columns = (math.prod(shape[place] for place in side) for side in sides)
    order = (*layers, *sides[0], *sides[1])
    return KernelShape(order, tuple(shape[place] for place in layers), rows, columns, not swapped)


def name_leaves(tree: PyTree) -> list[tuple[str, object]]:
    """Every leaf of a tree with its path, in order; of a variable of flax.nnx the variable's.

    A module, its state and the pure dict of either have the same names so.
    """
    found: list[tuple[str, object]] = []
    for path, part in jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_variable):
        leaves = jax.tree_util.tree_leaves_with_path(part)
        alone = _is_variable(part) and len(leaves) == 1
        found += [(path_name(path if alone else (*path, *own)), leaf) for own, leaf in leaves]
    return found


def _is_variable(part: object) -> bool:
    return is_from_package(part, "flax.nnx", "Variable")


class KnownModules(NamedTuple):
    """What the classes of a tree's modules say of its arrays, by their paths."""

    axes: dict[str, Axes]
    tables: frozenset[str]  # the arrays of look-up tables
    other: frozenset[str]  # those of convolutions and normalisations, which are no matrix


def read_modules(tree: PyTree) -> KnownModules:
    """Read the axes of kernels off the modules of flax.nnx and equinox that hold them."""
    axes: dict[str, Axes] = {}
    tables: set[str] = set()
    other: set[str] = set()
    for path, node in jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_layer):
        if not _is_layer(node):
            continue
        leaves = [("/".join(filter(None, (path_name(path), n))), x) for n, x in name_leaves(node)]
        kind = type(node).__name__
        if kind in _TABLES:
            tables.update(name for name, _ in leaves)
        elif kind in (*_CONVOLUTIONS, *_NORMS):
            other.update(name for name, _ in leaves)
        else:
            # A stack of biases may have the shape of a kernel.
            kernels = [(name, leaf) for name, leaf in leaves if name.split("/")[-1] != "bias"]
            axes |= {name: found for name, leaf in kernels if (found := _read_layer(node, leaf))}
    return KnownModules(axes, frozenset(tables), frozenset(other))


# Classes by their whole names: a "ConvBlock" may hold what it likes.
_TABLES = ("Embed", "Embedding")
_DENSE = ("Linear", "LinearGeneral")
_CONVOLUTIONS = tuple(f"{c}{d}" for c in ("Conv", "ConvTranspose") for d in ("", "1d", "2d", "3d"))
_NORMS = ("BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm")


def _is_layer(node: object) -> bool:
    """Whether a part of a tree is a layer whose class says what its arrays are."""
    kind = type(node).__name__
    if kind == "Einsum":
        return isinstance(getattr(node, "einsum_str", None), str)
    if kind in (*_DENSE, *_CONVOLUTIONS, *_NORMS):
        return any(is_from_package(node, package, "Module") for package in ("flax.nnx", "equinox"))
    return kind in _TABLES


def _read_layer(node: object, leaf: object) -> Axes | None:
    """The axes of a layer's array; None where it is no kernel. Axes before its own are layers."""
    shape = tuple(getattr(leaf, "shape", ()))
    if isinstance(equation := getattr(node, "einsum_str", None), str):
        own, sizes = _read_equation(equation), None
    else:
        ins, outs = (
            tuple(size) if isinstance(size, Sequence) else (size,)
            for size in (getattr(node, name, ()) for name in ("in_features", "out_features"))
        )
        own, sizes = ("in",) * len(ins) + ("out",) * len(outs), ins + outs
        if is_from_package(node, "equinox", "Module"):
            own, sizes = own[::-1], (*outs, *ins)
    if own is None or len(shape) < len(own):
        return None
    more = len(shape) - len(own)
    if sizes is not None and shape[more:] != sizes:
        return None
    return ("layer",) * more + own


def _read_equation(equation: str) -> Axes | None:
    """The axes of the second operand of an equation of `einsum`, if it says what they are."""
    left, arrow, leaves = equation.replace(" ", "").partition("->")
    enters, comma, kernel = left.partition(",")
    if not (arrow and comma and kernel.isalpha()):
        return None
    words = {(True, False): "in", (False, True): "out", (True, True): "layer"}
    found = [words.get((letter in enters, letter in leaves)) for letter in kernel]
    named = tuple(word for word in found if word is not None)
    return named if len(named) == len(found) and {"in", "out"} <= set(named) else None


def read_names(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, set[Axes]]:
    """The axes that the table gives kernels whose shapes agree, with those beside them, to it.

    More than one for a kernel where the sizes do not tell the rows of the table apart.
    """
    found: dict[str, set[Axes]] = {}
    for path in shapes:
        for row in _TABLE:
            *_, last = row
            parts = path.split("/")
            for place in range(max(0, len(parts) - 2), len(parts)):  # the name, or the one above
                if parts[place] == last:
                    for name, axes in _match_row(row, parts, place, shapes):
                        found.setdefault(name, set()).add(axes)
    return found


def _match_row(
    row: Mapping[str, str], parts: list[str], place: int, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, Axes]]:
    """The kernels beside a row's last one, if there is one and all agree about every letter."""
    beside = {name: "/".join((*parts[:place], name, *parts[place + 1 :])) for name in row}
    there = {name: shapes[path] for name, path in beside.items() if path in shapes}
    letters = {name: row[name].partition(",")[2].partition("->")[0] for name in there}
    more = {len(shape) - len(letters[name]) for name, shape in there.items()}
    if len(there) < 2 or more not in ({0}, {1}):
        return
    (extra,) = more
    sizes: dict[str, int] = {}
    for name, shape in there.items():
        for letter, size in zip("L" * extra + letters[name], shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                return
    for name in there:
        axes = _read_equation(row[name])
        if axes is not None:
            yield beside[name], ("layer",) * extra + axes


def read_bias(kernel: tuple[int, ...], bias: tuple[int, ...]) -> Axes | None:
    """The axes of a kernel of three axes whose bias has two: a stack of layers, or with heads."""
    stack, heads = bias == (kernel[0], kernel[2]), bias == kernel[1:]
    if stack == heads:
        return None
    return ("layer", "in", "out") if stack else ("in", "out", "out")


def read_axes_of_user(axes: object, leaves: Sequence[tuple[str, object]]) -> dict[str, Axes]:
    """What `axes` says, {end of a path: a word for each axis}, of every leaf that it is about."""
    if axes is None:
        return {}
    if not isinstance(axes, Mapping):
        raise TypeError(
            "axes must be a table {end of a path: words}, such as {'q_einsum/w': 'out in out'}, "
            f"got {render(axes)}"
        )
    found: dict[str, Axes] = {}
    for end in sorted(axes, key=lambda end: len(str(end))):  # a longer end is said of fewer
        own = [(n, x) for n, x in leaves if isinstance(end, str) and f"/{n}".endswith(f"/{end}")]
        if not own:
            raise ValueError(f"axes must name ends of paths of params, got {render(end)}")
        for name, leaf in own:
            found[name] = _read_words(name, leaf, axes[end])
    return found


def _read_words(name: str, leaf: object, said: object) -> Axes:
    words = tuple(said.split()) if isinstance(said, str) else ()
    shape = np.shape(leaf) if is_array(leaf) else ()
    if len(words) != len(shape) or not {"in", "out"} <= set(words) <= set(_AXIS_WORDS):
        raise ValueError(
            f"axes must say layer, in or out of each axis of {name} {shape}, at least one in and "
            f"one out, got {render(said)}"
        )
    return words


def ask_for_axes(name: str, shape: Sequence[int]) -> str:
    """The sentence for a kernel that nothing tells the axes of."""
    words = " ".join(("layer", *["in"] * (len(shape) - 2), "out"))
    return (
        f"axes must say which axes of {name} {tuple(shape)} are layers, inputs and outputs, as in "
        f"axes={{{name!r}: {words!r}}}, or targets leave it out, got nothing: no layout is known "
        "for its name, its shape and what stands beside it"
    )
