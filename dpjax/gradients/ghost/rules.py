"""Per-primitive rules: the per-example gradient of a parameter as a sum of outer products.

Wherever a parameter meets a batched value in a matrix product, a convolution or a table look-up,
the gradient of record i is Σₜ rows[i, t] ⊗ columns[i, t], where the rows come from the forward
pass and the columns from the backward pass. Norms and clipped sums follow from the two factors.
Convolutions and poolings of maxima are evaluated in forms that a CPU is quick in.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.lax import GatherScatterMode
from jaxtyping import Array

from dpjax.gradients.ghost.programs import Equation, ParameterView


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OuterProducts:
    """Gradients Σₜ rows ⊗ columns, one per record b and independent block g."""

    rows: (
        Array  # [b, g, t, k], or [b, t] row numbers where rows are one-hot (a look-up; then g = 1)
    )
    columns: Array  # [b, g, t, n]

    @property
    def is_lookup(self) -> bool:
        return self.rows.ndim == 2


@dataclasses.dataclass(frozen=True, eq=False)
class Rule:
    """How one equation's parameter gets its gradient."""

    name: str  # for the table of `explain_clipping`
    layout: object  # two uses of a parameter add up as outer products if their layouts agree
    # (saved input, output cotangent), both [b, ...], to `OuterProducts` of one scan step.
    factor: Callable[[Array, Array], OuterProducts]
    unpack: Callable[[Array], Array]  # gradients [..., g, k, n] to the shape of the view
    sizes: tuple[int, int, int, int]  # (g, t, k, n)
    saved: int  # which operand of the equation is the saved input


Cut = tuple[int, int, int]  # (axis, start, stop): the view is only that piece of the operand


def find_rule(eqn: Equation, slot: int, view: ParameterView, cut: Cut | None = None) -> Rule | None:
    """The rule for the parameter in operand `slot` of an equation, or None."""
    if cut is not None and eqn.name != "dot_general":
        return None
    # A parameter is real: of its complex gradient only the real part counts, in no product of
    # complex factors' norms.
    if any(jnp.issubdtype(aval.dtype, jnp.complexfloating) for aval in (*eqn.ins, *eqn.outs)):
        return None
    if eqn.name == "dot_general":
        return _matrix_product_rule(eqn, slot, view, cut)
    others = {
        CONVOLUTION: _convolution_rule,
        "gather": _gather_rule,
        "dynamic_slice": _row_slice_rule,
    }
    return others[eqn.name](eqn, slot, view) if eqn.name in others else None


def _matrix_product_rule(eqn: Equation, slot: int, view: ParameterView, cut: Cut | None) -> Rule:
    """The rule of `dot_general`: rows from the other operand, columns from the cotangent."""
    contract, batch = eqn.params["dimension_numbers"]
    w, x = eqn.ins[slot], eqn.ins[1 - slot]
    shape_w = list(w.shape)
    if cut is not None:
        shape_w[cut[0]] = cut[2] - cut[1]
    w_contract, x_contract = _order_sums(contract[slot], contract[1 - slot], view)
    w_batch, x_batch = tuple(batch[slot]), tuple(batch[1 - slot])
    w_free = tuple(d for d in range(w.ndim) if d not in w_contract + w_batch)
    x_free = tuple(d for d in range(x.ndim) if d not in x_contract + x_batch)
    sizes = (
        math.prod(shape_w[d] for d in w_batch),
        math.prod(x.shape[d] for d in x_free),
        math.prod(shape_w[d] for d in w_contract),
        math.prod(shape_w[d] for d in w_free),
    )
    # The output holds the batch dimensions, then the left operand's free ones, then the right's.
    dimensions = iter(range(w.ndim + x.ndim))
    free = (w_free, x_free) if slot == 0 else (x_free, w_free)
    out_batch, *both = (tuple(next(dimensions) for _ in of) for of in (w_batch, *free))
    out_w, out_x = both if slot == 0 else reversed(both)

    flip, layout = _orient(view.dims, w_batch, w_contract, w_free)

    def cut_piece(value: Array, along_w: tuple[int, ...], along_value: tuple[int, ...]):
        if cut is None or cut[0] not in along_w:
            return value
        axis = 1 + along_value[along_w.index(cut[0])]
        return jax.lax.slice_in_dim(value, cut[1], cut[2], axis=axis)

    def factor(saved: Array, cotangent: Array):
        saved = cut_piece(cut_piece(saved, w_contract, x_contract), w_batch, x_batch)
        cotangent = cut_piece(cut_piece(cotangent, w_free, out_w), w_batch, out_batch)
        rows = _merge_groups(saved, (x_batch, x_free, x_contract), sizes[:3])
        columns = _merge_groups(
            cotangent, (out_batch, out_x, out_w), (sizes[0], sizes[1], sizes[3])
        )
        return OuterProducts(columns, rows) if flip else OuterProducts(rows, columns)

    order = w_batch + w_contract + w_free
    shape = tuple(shape_w[d] for d in order)

    def unpack(gradient: Array):
        if flip:
            gradient = jnp.swapaxes(gradient, -1, -2)
        lead = gradient.shape[:-3]
        gradient = gradient.reshape(lead + shape)
        back = tuple(len(lead) + int(d) for d in np.argsort(order))
        return gradient.transpose(tuple(range(len(lead))) + back)

    g, t, k, n = sizes
    return Rule(
        "matrix product", layout, factor, unpack, (g, t, n, k) if flip else sizes, saved=1 - slot
    )


def _order_sums(
    of_w: Sequence[int], of_x: Sequence[int], view: ParameterView
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dimensions that are summed over, in the order of the parameter's own."""
    dims = view.dims

    def place(pair: tuple[int, int]) -> int:
        found = pair[0] if dims is None else dims[pair[0]]
        return -1 if found is None else found

    pairs = sorted(zip(of_w, of_x, strict=True), key=place)
    return tuple(d for d, _ in pairs), tuple(d for _, d in pairs)


def _orient(dims: tuple[int | None, ...] | None, *groups: tuple[int, ...]) -> tuple[bool, object]:
    """The layout of a product's outer products, and whether it exchanges rows and columns."""
    # The parameter's lowest dimension is in the rows: then two uses of one parameter, one of them
    # transposed, still add up.
    if dims is None:
        return False, object()
    named = [tuple(dims[d] for d in group) for group in groups]
    ranks = [min((d for d in group if d is not None), default=len(dims)) for group in named[1:]]
    flip = ranks[1] < ranks[0]
    return flip, ("outer", named[0], *(named[:0:-1] if flip else named[1:]))


def _merge_groups(value: Array, groups: Sequence[tuple[int, ...]], sizes: Sequence[int]) -> Array:
    """[b, ...] with the dimensions of each group brought together and merged."""
    order = (0, *(d + 1 for group in groups for d in group))
    return value.transpose(order).reshape(value.shape[0], *sizes)


def _convolution_rule(eqn: Equation, slot: int, view: ParameterView) -> Rule | None:
    """The rule of a convolution: rows are the patches that the kernel sees."""
    p = eqn.params
    if slot != 1 or p["batch_group_count"] != 1:
        return None
    lhs_spec, rhs_spec, out_spec = p["dimension_numbers"]
    x, w, y = eqn.ins[0], eqn.ins[1], eqn.outs[0]
    groups = p["feature_group_count"]
    kernel = tuple(w.shape[d] for d in rhs_spec[2:])
    out_space = tuple(y.shape[d] for d in out_spec[2:])
    records = x.shape[lhs_spec[0]]
    per_group = w.shape[rhs_spec[1]]
    outputs = w.shape[rhs_spec[0]] // groups
    positions = records * math.prod(out_space)
    sizes = (groups, positions, per_group * math.prod(kernel), outputs)

    axes = len(kernel)

    def extract_patches(saved: Array):
        """[b, g, t, k]: what the kernel sees at every output position, channels last."""
        order = (lhs_spec[0], *lhs_spec[2:], lhs_spec[1])
        value = saved.transpose((0, *(d + 1 for d in order)))  # [b, n, space..., c]
        pairs = zip(p["padding"], p["lhs_dilation"], strict=True)
        spread = ((*ends, dilation - 1) for ends, dilation in pairs)
        config = [(0, 0, 0), (0, 0, 0), *spread, (0, 0, 0)]
        stacked = jax.lax.pad(value, jnp.zeros((), value.dtype), config)
        # One axis after the other: as many slices as the sum of the kernel's sides, not their
        # product, each of which is compiled.
        for d, (width, size) in enumerate(zip(kernel, out_space, strict=True)):
            stride, dilation = p["window_strides"][d], p["rhs_dilation"][d]
            length = (size - 1) * stride + 1
            taken = [
                jax.lax.slice_in_dim(stacked, o * dilation, o * dilation + length, stride, 2 + d)
                for o in range(width)
            ]
            stacked = jnp.stack(taken, axis=-2)  # [b, n, space..., kernel so far..., c]
        b = stacked.shape[0]
        stacked = stacked.reshape(b, positions, math.prod(kernel), groups, per_group)
        return stacked.transpose(0, 3, 1, 2, 4).reshape(b, groups, positions, sizes[2])

    def factor(saved: Array, cotangent: Array):
        order = (out_spec[0], *out_spec[2:], out_spec[1])
        g = cotangent.transpose((0, *(d + 1 for d in order)))  # [b, n, space..., c_out]
        g = g.reshape(g.shape[0], positions, groups, outputs)
        return OuterProducts(extract_patches(saved), g.transpose(0, 2, 1, 3))

    def unpack(gradient: Array):
        lead = len(gradient.shape[:-3])
        gradient = gradient.reshape((*gradient.shape[:-2], *kernel, per_group, outputs))
        # From [..., g, space..., in, out] to the kernel's order, in which g and out are one.
        places = [(0, axes + 2), (axes + 1,), *((1 + axis,) for axis in range(axes))]
        back = (lead + d for axis in np.argsort(rhs_spec) for d in places[axis])
        return gradient.transpose((*range(lead), *back)).reshape(gradient.shape[:lead] + w.shape)

    layout = object() if view.dims is None else ("convolution", groups, rhs_spec, view.dims)
    return Rule("convolution", layout, factor, unpack, sizes, saved=0)


def _widen_tokens(tokens: Array) -> Array:
    """Numbers of rows in a dtype that holds the number of all rows, which 8 and 16 bits may not."""
    return tokens.astype(jnp.int32) if jnp.iinfo(tokens.dtype).bits < 32 else tokens


def _gather_rule(eqn: Equation, slot: int, view: ParameterView) -> Rule | None:
    """The rule of a table look-up by `gather`: rows are one-hot, given by their numbers."""
    numbers, (table, indices) = eqn.params["dimension_numbers"], eqn.ins[:2]
    axes = tuple(numbers.collapsed_slice_dims), tuple(numbers.start_index_map)
    of_rows = axes == ((0,), (0,)) and not numbers.operand_batching_dims
    if slot != 0 or not of_rows or tuple(eqn.params["slice_sizes"]) != (1, *table.shape[1:]):
        return None
    mode = GatherScatterMode.from_any(eqn.params["mode"])
    offset = tuple(numbers.offset_dims)
    lead = tuple(d for d in range(eqn.outs[0].ndim) if d not in offset)
    positions, width = math.prod(indices.shape[:-1]), math.prod(table.shape[1:])

    def factor(saved: Array, cotangent: Array):
        tokens = _widen_tokens(saved).reshape(saved.shape[0], positions)
        columns = _merge_groups(cotangent, ((), lead, offset), (1, positions, width))
        if mode == GatherScatterMode.CLIP:
            tokens = jnp.clip(tokens, 0, table.shape[0] - 1)
        else:  # rows outside the table are filled, not read: no gradient
            inside = (tokens >= 0) & (tokens < table.shape[0])
            columns = jnp.where(inside[:, None, :, None], columns, jnp.zeros_like(columns))
            tokens = jnp.where(inside, tokens, jnp.zeros_like(tokens))
        return OuterProducts(tokens, columns)

    return _lookup_rule(table, view, factor, positions, width)


def _row_slice_rule(eqn: Equation, slot: int, view: ParameterView) -> Rule | None:
    """The rule of a look-up of one row by `dynamic_slice`."""
    table = eqn.ins[0]
    if slot != 0 or tuple(eqn.params["slice_sizes"]) != (1, *table.shape[1:]):
        return None
    width = math.prod(table.shape[1:])

    def factor(saved: Array, cotangent: Array):
        tokens = jnp.clip(_widen_tokens(saved).reshape(-1, 1), 0, table.shape[0] - 1)
        return OuterProducts(tokens, cotangent.reshape(-1, 1, 1, width))

    return _lookup_rule(table, view, factor, 1, width)


def _lookup_rule(
    table: jax.core.ShapedArray, view: ParameterView, factor: Callable, positions: int, width: int
) -> Rule:
    def unpack(gradient: Array):
        return gradient.reshape(gradient.shape[:-3] + table.shape)

    sizes, dims = (1, positions, table.shape[0], width), view.dims
    layout = object() if dims is None else ("outer", (), dims[:1], dims[1:])
    return Rule("table look-up", layout, factor, unpack, sizes, saved=1)


CONVOLUTION = "conv_general_dilated"
_MOST_GROUPS = 8  # of channels, each of which is a convolution to compile
_LEAST_CHANNELS = 4  # of a group, below which XLA's own program is the quicker one


def find_quick_convolution(eqn: Equation) -> Callable[[Sequence[Array]], list[Array]] | None:
    """What evaluates a convolution quickly within a loop, if that is what `eqn` is."""
    # XLA's quick program for CPUs takes channels last and kernels as [space..., in, out]. It brings
    # other layouts into that one, and the derivative with respect to the input is always of
    # another; but not within a loop, as that over the steps of a run, where they take many times as
    # long. So the layout is chosen here, and a few groups of channels are a convolution each. The
    # values are the same up to the order of sums. Other backends choose layouts themselves.
    if eqn.name != CONVOLUTION or jax.default_backend() != "cpu":
        return None
    p, (x, kernel) = eqn.params, eqn.ins
    left, right, out = p["dimension_numbers"]
    groups, space = p["feature_group_count"], tuple(range(1, x.ndim - 1))
    few = groups <= _MOST_GROUPS and kernel.shape[right[1]] >= _LEAST_CHANNELS
    if (
        not jnp.issubdtype(x.dtype, jnp.floating)
        or x.dtype != kernel.dtype
        or p["batch_group_count"] != 1
        or p.get("out_sharding") is not None
        or not space
        or (groups > 1 and not few)
    ):
        return None
    # XLA's quick program reads beyond its input where padding is negative, as it is in the
    # derivative where it exceeds the kernel: such an input is padded by itself.
    padding, spread = tuple(p["padding"]), tuple(p["lhs_dilation"])
    sides = zip(right[2:], p["rhs_dilation"], strict=True)
    most = [(kernel.shape[axis] - 1) * dilation for axis, dilation in sides]
    fits = all(0 <= end <= m for ends, m in zip(padding, most, strict=True) for end in ends)
    inner = ((*ends, k - 1) for ends, k in zip(padding, spread, strict=True))
    apart = [(0, 0, 0), *inner, (0, 0, 0)]
    kept = ("window_strides", "rhs_dilation", "precision", "preferred_element_type")
    settings = {name: p[name] for name in kept}
    settings["padding"] = padding if fits else ((0, 0),) * len(space)
    settings["lhs_dilation"] = spread if fits else (1,) * len(space)
    last, channel = (0, x.ndim - 1, *space), x.ndim - 1
    of_x, of_kernel = (left[0], *left[2:], left[1]), (*right[2:], right[1], right[0])
    # From [records, space..., channels] to the equation's own order.
    back = [int(place) for place in np.argsort((out[0], *out[2:], out[1]))]

    def convolve_last(x: Array, kernel: Array, swapped: bool = False) -> Array:
        ends = (channel - 1, channel) if swapped else (channel, channel - 1)
        shape = jax.lax.ConvDimensionNumbers(last, (*ends, *(d - 1 for d in space)), last)
        return jax.lax.conv_general_dilated(x, kernel, dimension_numbers=shape, **settings)

    @jax.custom_jvp
    def convolve(x: Array, kernel: Array) -> Array:
        return convolve_last(x, kernel)

    def tangent(
        primals: tuple[Array, Array], tangents: tuple[Array | SymbolicZero, Array | SymbolicZero]
    ) -> tuple[Array, Array]:
        (x, kernel), (dx, dkernel) = primals, tangents
        parts: list[Array] = []
        if not isinstance(dx, SymbolicZero):
            # The derivative's own kernel has in and out exchanged: of this one they are as needed.
            parts.append(convolve_last(dx, jnp.swapaxes(kernel, -1, -2), swapped=True))
        if not isinstance(dkernel, SymbolicZero):
            parts.append(convolve_last(x, dkernel))
        value = convolve(x, kernel)
        return value, sum(parts[1:], start=parts[0])

    convolve.defjvp(tangent, symbolic_zeros=True)

    def evaluate(operands: Sequence[Array]) -> list[Array]:
        x, kernel = operands
        x, kernel = x.transpose(of_x), kernel.transpose(of_kernel)
        x = x if fits else jax.lax.pad(x, jnp.zeros((), x.dtype), apart)
        xs, kernels = (jnp.split(value, groups, axis=-1) for value in (x, kernel))
        found = [convolve(*pair) for pair in zip(xs, kernels, strict=True)]
        return [(jnp.concatenate(found, -1) if groups > 1 else found[0]).transpose(back)]

    return evaluate


POOLING = "reduce_window_max"
_MOST_SLICES = 64  # entries of a window, each of which is a slice to compile


def find_quick_pooling(eqn: Equation) -> Callable[[Sequence[Array]], list[Array]] | None:
    """What evaluates a pooling of maxima with a quick derivative, if that is what `eqn` is."""
    # XLA's derivative (a select-and-scatter) visits a window at a time, which takes a CPU 8 to 30
    # times as long as comparing one slice of the operand for each entry of the window. Values and
    # derivatives are the same: of equal entries the first counts, a NaN stays. Other backends have
    # a program of their own.
    if eqn.name != POOLING or jax.default_backend() != "cpu":
        return None
    p, (operand,), (out,) = eqn.params, eqn.ins, eqn.outs
    window = p["window_dimensions"]
    if math.prod(window) > _MOST_SLICES or not jnp.issubdtype(operand.dtype, jnp.floating):
        return None
    if 0 in out.shape or jnp.finfo(operand.dtype).bits < 16:  # no window fits; no infinity
        return None
    pairs = zip(p["padding"], p["base_dilation"], strict=True)
    config = [(*ends, dilation - 1) for ends, dilation in pairs]
    strides = p["window_strides"]
    lengths = [(size - 1) * step + 1 for size, step in zip(out.shape, strides, strict=True)]

    def entry(padded: Array, place: Sequence[int]) -> Array:
        start = [o * d for o, d in zip(place, p["window_dilation"], strict=True)]
        end = [s + length for s, length in zip(start, lengths, strict=True)]
        return jax.lax.slice(padded, start, end, strides)

    def entries(value: Array, outside: float) -> list[Array]:
        padded = jax.lax.pad(value, jnp.array(outside, value.dtype), config)
        return [entry(padded, place) for place in itertools.product(*map(range, window))]

    @jax.custom_jvp
    def largest(value: Array) -> Array:
        return functools.reduce(jnp.maximum, entries(value, -jnp.inf))

    @largest.defjvp
    def tangent(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        (value,), (change,) = primals, tangents
        found = largest(value)
        counts, total = jnp.ones(found.shape, bool), jnp.zeros_like(found)
        for one, its_change in zip(entries(value, -jnp.inf), entries(change, 0.0), strict=True):
            equal = (one == found) | jnp.isnan(one)
            total = total + jnp.where(counts & equal, its_change, jnp.zeros_like(its_change))
            counts = counts & ~equal
        return found, total

    return lambda operands: [largest(*operands)]
