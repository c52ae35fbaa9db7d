"""Per-primitive rules: the per-example gradient of a parameter as a sum of outer products.

Wherever a parameter meets a batched value in a matrix product, a convolution or a table look-up,
the gradient of record i is Σₜ rows[i, t] ⊗ columns[i, t], where the rows come from the forward
pass and the columns from the backward pass. Norms and clipped sums follow from the two factors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from dpjax.gradients.equations import Equation
from dpjax.gradients.parameters import ParameterView


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OuterProducts:
    """Gradients Σₜ rows ⊗ columns, one per record b and independent block g.

    Fields:
        rows: [b, g, t, k], or [b, t] row numbers where rows are one-hot (a look-up; then g = 1).
        columns: [b, g, t, n].
    """

    rows: Any
    columns: Any

    @property
    def is_lookup(self) -> bool:
        return self.rows.ndim == 2


@dataclasses.dataclass(frozen=True, eq=False)
class Rule:
    """How one equation's parameter gets its gradient.

    Fields:
        name: for the table of `explain_clipping`.
        layout: two uses of a parameter may be added up as outer products if their layouts agree.
        factor: (saved input, output cotangent), both [b, ...], to `OuterProducts` of one scan step.
        unpack: gradients [..., g, k, n] of the outer products to the shape of the view.
        sizes: (g, t, k, n).
        saved: which operand of the equation is the saved input.
    """

    name: str
    layout: Any
    factor: Callable[[Any, Any], OuterProducts]
    unpack: Callable[[Any], Any]
    sizes: tuple[int, int, int, int]
    saved: int


Cut = tuple[int, int, int]


def find_rule(eqn: Equation, slot: int, view: ParameterView, cut: Cut | None = None) -> Rule | None:
    """The rule for the parameter in operand `slot` of an equation, or None.

    The shapes in the equation are those of a single record. `cut` = (axis, start, stop) says that
    the view is only that piece of the operand.
    """
    if cut is not None and eqn.name != "dot_general":
        return None
    # A parameter is real: of its complex gradient only the real part counts, in no product of
    # complex factors' norms.
    if any(jnp.issubdtype(aval.dtype, jnp.complexfloating) for aval in (*eqn.ins, *eqn.outs)):
        return None
    match eqn.name:
        case "dot_general":
            return _matrix_product(eqn, slot, view, cut)
        case "conv_general_dilated":
            return _convolution(eqn, slot, view)
        case "gather":
            return _gather(eqn, slot, view)
        case "dynamic_slice":
            return _row_slice(eqn, slot, view)
    return None


def _matrix_product(eqn: Equation, slot: int, view: ParameterView, cut: Cut | None) -> Rule:
    contract, batch = eqn.params["dimension_numbers"]
    w, x = eqn.ins[slot], eqn.ins[1 - slot]
    shape_w = list(w.shape)
    if cut is not None:
        shape_w[cut[0]] = cut[2] - cut[1]
    w_contract, x_contract = tuple(contract[slot]), tuple(contract[1 - slot])
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
    first, free_first = len(w_batch), (len(w_free) if slot == 0 else len(x_free))
    out_batch = tuple(range(first))
    left = tuple(range(first, first + free_first))
    right = tuple(range(first + free_first, first + len(w_free) + len(x_free)))
    out_w, out_x = (left, right) if slot == 0 else (right, left)

    # Canonical orientation: the parameter's lowest dimension is in the rows. Then two uses of one
    # parameter, one of them transposed, still add up.
    dims = view.dims
    flip, layout = False, object()
    if dims is not None:
        named = tuple(tuple(dims[d] for d in group) for group in (w_batch, w_contract, w_free))
        ranks = [min((d for d in group if d is not None), default=w.ndim) for group in named[1:]]
        flip = ranks[1] < ranks[0]
        layout = ("outer", named[0], *(named[:0:-1] if flip else named[1:]))

    def piece(value, along_w, along_value):
        if cut is None or cut[0] not in along_w:
            return value
        axis = 1 + along_value[along_w.index(cut[0])]
        return jax.lax.slice_in_dim(value, cut[1], cut[2], axis=axis)

    def factor(saved, cotangent):
        saved = piece(piece(saved, w_contract, x_contract), w_batch, x_batch)
        cotangent = piece(piece(cotangent, w_free, out_w), w_batch, out_batch)
        rows = _grouped(saved, (x_batch, x_free, x_contract), sizes[:3])
        columns = _grouped(cotangent, (out_batch, out_x, out_w), (sizes[0], sizes[1], sizes[3]))
        return OuterProducts(columns, rows) if flip else OuterProducts(rows, columns)

    order = w_batch + w_contract + w_free
    shape = tuple(shape_w[d] for d in order)

    def unpack(gradient):
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


def _grouped(value: Any, groups: Sequence[tuple[int, ...]], sizes: Sequence[int]) -> Any:
    """[b, ...] with the dimensions of each group brought together and merged."""
    order = (0, *(d + 1 for group in groups for d in group))
    return value.transpose(order).reshape(value.shape[0], *sizes)


def _convolution(eqn: Equation, slot: int, view: ParameterView) -> Rule | None:
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

    def patches(saved):
        """[b, g, t, k]: what the kernel sees at every output position, channels last."""
        order = (lhs_spec[0], *lhs_spec[2:], lhs_spec[1])
        value = saved.transpose((0, *(d + 1 for d in order)))  # [b, n, space..., c]
        spread = [
            (low, high, dilation - 1)
            for (low, high), dilation in zip(p["padding"], p["lhs_dilation"], strict=True)
        ]
        config = [(0, 0, 0)] * 2 + spread + [(0, 0, 0)]
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

    def factor(saved, cotangent):
        order = (out_spec[0], *out_spec[2:], out_spec[1])
        g = cotangent.transpose((0, *(d + 1 for d in order)))  # [b, n, space..., c_out]
        g = g.reshape(g.shape[0], positions, groups, outputs)
        return OuterProducts(patches(saved), g.transpose(0, 2, 1, 3))

    def unpack(gradient):
        lead = len(gradient.shape[:-3])
        gradient = gradient.reshape((*gradient.shape[:-2], *kernel, per_group, outputs))
        # From [..., g, space..., in, out] to [..., g and out, in, space...].
        order = (lead, lead + axes + 2, lead + axes + 1, *range(lead + 1, lead + axes + 1))
        gradient = gradient.transpose((*range(lead), *order))
        gradient = gradient.reshape((*gradient.shape[:lead], groups * outputs, per_group, *kernel))
        back = tuple(lead + int(d) for d in np.argsort(rhs_spec))
        return gradient.transpose((*range(lead), *back))

    layout = object() if view.dims is None else ("convolution", groups, rhs_spec, view.dims)
    return Rule("convolution", layout, factor, unpack, sizes, saved=0)


def _rows_layout(view: ParameterView) -> Any:
    if view.dims is None:
        return object()
    return ("outer", (), view.dims[:1], view.dims[1:])


def _wide(tokens: Any) -> Any:
    """Numbers of rows in a dtype that holds the number of all rows, which 8 and 16 bits may not."""
    return tokens.astype(jnp.int32) if jnp.iinfo(tokens.dtype).bits < 32 else tokens


def _gather(eqn: Equation, slot: int, view: ParameterView) -> Rule | None:
    numbers, sizes = eqn.params["dimension_numbers"], tuple(eqn.params["slice_sizes"])
    table, indices = eqn.ins[0], eqn.ins[1]
    whole_rows = (
        slot == 0
        and tuple(numbers.collapsed_slice_dims) == (0,)
        and tuple(numbers.start_index_map) == (0,)
        and not numbers.operand_batching_dims
        and sizes == (1, *table.shape[1:])
    )
    if not whole_rows:
        return None
    mode = GatherScatterMode.from_any(eqn.params["mode"])
    offset = tuple(numbers.offset_dims)
    out = eqn.outs[0]
    lead = tuple(d for d in range(out.ndim) if d not in offset)
    positions, width = math.prod(indices.shape[:-1]), math.prod(table.shape[1:])

    def factor(saved, cotangent):
        tokens = _wide(saved).reshape(saved.shape[0], positions)
        columns = _grouped(cotangent, ((), lead, offset), (1, positions, width))
        if mode == GatherScatterMode.CLIP:
            tokens = jnp.clip(tokens, 0, table.shape[0] - 1)
        else:  # rows outside the table are filled, not read: no gradient
            inside = (tokens >= 0) & (tokens < table.shape[0])
            columns = jnp.where(inside[:, None, :, None], columns, jnp.zeros_like(columns))
            tokens = jnp.where(inside, tokens, jnp.zeros_like(tokens))
        return OuterProducts(tokens, columns)

    return _lookup(table, view, factor, positions, width)


def _row_slice(eqn: Equation, slot: int, view: ParameterView) -> Rule | None:
    table = eqn.ins[0]
    if slot != 0 or tuple(eqn.params["slice_sizes"]) != (1, *table.shape[1:]):
        return None
    width = math.prod(table.shape[1:])

    def factor(saved, cotangent):
        tokens = jnp.clip(_wide(saved).reshape(-1, 1), 0, table.shape[0] - 1)
        return OuterProducts(tokens, cotangent.reshape(-1, 1, 1, width))

    return _lookup(table, view, factor, 1, width)


def _lookup(table: Any, view: ParameterView, factor: Callable, positions: int, width: int) -> Rule:
    def unpack(gradient):
        return gradient.reshape(gradient.shape[:-3] + table.shape)

    sizes = (1, positions, table.shape[0], width)
    return Rule("table look-up", _rows_layout(view), factor, unpack, sizes, saved=1)
