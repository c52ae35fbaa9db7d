"""Convolutions in the layout that a CPU is quick in, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array

from dpjax.gradients.equations import Equation

CONVOLUTION = "conv_general_dilated"
_MOST_GROUPS = 8  # of channels, each of which is a convolution to compile
_LEAST_CHANNELS = 4  # of a group, below which XLA's own program is the quicker one


def in_quick_layout(eqn: Equation) -> Callable[[Sequence[Array]], list[Array]] | None:
    """What evaluates a convolution quickly within a loop, if that is what `eqn` is.

    XLA's quick program for CPUs takes channels last and kernels as [space..., in, out]. It brings
    other layouts into that one, and the derivative with respect to the input is always of another;
    but not within a loop, as that over the steps of a run, where they take many times as long.
    So the layout is chosen here, and a few groups of channels are a convolution each. The values
    are the same up to the order of sums. Other backends choose layouts themselves.
    """
    if eqn.name != CONVOLUTION or jax.default_backend() != "cpu":
        return None
    p, (x, kernel) = eqn.params, eqn.ins
    if not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype != kernel.dtype:
        return None
    if p["batch_group_count"] != 1 or p.get("out_sharding") is not None:
        return None
    left, right, out = p["dimension_numbers"]
    groups, space = p["feature_group_count"], tuple(range(1, x.ndim - 1))
    few = groups <= _MOST_GROUPS and kernel.shape[right[1]] >= _LEAST_CHANNELS
    if not space or (groups > 1 and not few):
        return None
    # XLA's quick program reads beyond its input where padding is negative, as it is in the
    # derivative where it exceeds the kernel: such an input is padded by itself.
    padding, spread = tuple(p["padding"]), tuple(p["lhs_dilation"])
    most = [
        (kernel.shape[axis] - 1) * dilation
        for axis, dilation in zip(right[2:], p["rhs_dilation"], strict=True)
    ]
    fits = all(0 <= end <= m for ends, m in zip(padding, most, strict=True) for end in ends)
    apart = [
        (0, 0, 0),
        *((*ends, k - 1) for ends, k in zip(padding, spread, strict=True)),
        (0,) * 3,
    ]
    settings = {
        "window_strides": p["window_strides"],
        "padding": padding if fits else ((0, 0),) * len(space),
        "lhs_dilation": spread if fits else (1,) * len(space),
        "rhs_dilation": p["rhs_dilation"],
        "precision": p["precision"],
        "preferred_element_type": p["preferred_element_type"],
    }
    last, channel = (0, x.ndim - 1, *space), x.ndim - 1
    of_x, of_kernel = (left[0], *left[2:], left[1]), (*right[2:], right[1], right[0])
    back = [0] * x.ndim  # from [records, space..., channels] to the equation's own order
    for place, axis in enumerate((out[0], *out[2:], out[1])):
        back[axis] = place

    def plain(x: Array, kernel: Array, swapped: bool = False) -> Array:
        ends = (channel - 1, channel) if swapped else (channel, channel - 1)
        shape = jax.lax.ConvDimensionNumbers(last, (*ends, *(d - 1 for d in space)), last)
        return jax.lax.conv_general_dilated(x, kernel, dimension_numbers=shape, **settings)

    @jax.custom_jvp
    def convolve(x: Array, kernel: Array) -> Array:
        return plain(x, kernel)

    def tangent(primals: Any, tangents: Any) -> tuple[Array, Any]:
        (x, kernel), (dx, dkernel) = primals, tangents
        parts: list[Array] = []
        if not isinstance(dx, SymbolicZero):
            # The derivative's own kernel has in and out exchanged: of this one they are as needed.
            parts.append(plain(dx, jnp.swapaxes(kernel, -1, -2), swapped=True))
        if not isinstance(dkernel, SymbolicZero):
            parts.append(plain(x, dkernel))
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
