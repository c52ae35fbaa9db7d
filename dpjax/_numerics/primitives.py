"""What JAX's primitives mean, in NumPy. A rule refuses what it does not cover."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

RULES: dict[str, Callable[..., Any]] = {}


def _elementwise(function: Callable, *names: str) -> None:
    for name in names:
        RULES[name] = lambda *values, f=function, **_: f(*values)


for _name, _other in {
    "exp": "exp",
    "exp2": "exp2",
    "log": "log",
    "log1p": "log1p",
    "expm1": "expm1",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "sinh": "sinh",
    "cosh": "cosh",
    "tanh": "tanh",
    "arcsinh": "asinh",
    "sqrt": "sqrt",
    "cbrt": "cbrt",
    "floor": "floor",
    "ceil": "ceil",
    "sign": "sign",
    "square": "square",
    "nextafter": "nextafter",
    "add": "add add_any",
    "subtract": "sub",
    "multiply": "mul",
    "maximum": "max",
    "minimum": "min",
    "negative": "neg",
    "absolute": "abs",
    "isfinite": "is_finite",
    "arctan2": "atan2",
    "power": "pow",
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "invert": "not",
    "asarray": "stop_gradient copy copy_p",
}.items():
    _elementwise(getattr(np, _name), *_other.split())


for _function in (math.erf, math.erfc):
    _elementwise(np.vectorize(_function, otypes=[np.float64]), _function.__name__)
# SciPy loads its parts when they are first used, and most questions spare them.
for _name, _other in {"erf_inv": "erfinv", "lgamma": "gammaln", "digamma": "digamma"}.items():
    _elementwise(lambda x, name=_other: getattr(scipy.special, name)(x), _name)


def _rule(function: Callable) -> Callable:
    RULES[function.__name__.strip("_")] = function
    return function


@_rule
def _div(x: Any, y: Any) -> Any:
    if np.asarray(x).dtype.kind == "f":
        return np.divide(x, y)
    raise NotImplementedError  # whole numbers are cut towards zero


@_rule
def _rsqrt(x: Any, **_: Any) -> Any:
    return 1 / np.sqrt(x)


@_rule
def _integer_pow(x: Any, *, y: int) -> Any:
    return x * x if y == 2 else np.power(x, y)


@_rule
def _clamp(low: Any, x: Any, high: Any) -> Any:
    return np.minimum(np.maximum(x, low), high)


@_rule
def _select_n(which: Any, *cases: Any) -> Any:
    if np.asarray(which).dtype != bool:
        return np.choose(which, cases)
    return np.where(which, cases[1], cases[0])


@_rule
def _convert_element_type(x: Any, *, new_dtype: Any, **_: Any) -> Any:
    return np.asarray(x).astype(new_dtype)


@_rule
def _broadcast_in_dim(x: Any, *, shape: tuple, broadcast_dimensions: tuple, **_: Any) -> Any:
    x = np.asarray(x)
    if len(broadcast_dimensions) < len(shape):
        placed = [1] * len(shape)
        for size, axis in zip(x.shape, broadcast_dimensions, strict=True):
            placed[axis] = size
        x = x.reshape(placed)
    return np.broadcast_to(x, shape)


@_rule
def _reshape(x: Any, *, new_sizes: tuple, dimensions: Any, **_: Any) -> Any:
    if dimensions is not None:
        raise NotImplementedError
    return np.reshape(x, new_sizes)


@_rule
def _squeeze(x: Any, *, dimensions: tuple) -> Any:
    return np.squeeze(x, dimensions)


@_rule
def _expand_dims(x: Any, *, dimensions: tuple) -> Any:
    return np.expand_dims(x, dimensions)


@_rule
def _transpose(x: Any, *, permutation: tuple) -> Any:
    return np.transpose(x, permutation)


@_rule
def _rev(x: Any, *, dimensions: tuple) -> Any:
    return np.flip(x, dimensions)


@_rule
def _slice(x: Any, *, start_indices: tuple, limit_indices: tuple, strides: Any) -> Any:
    strides = strides or (1,) * len(start_indices)
    return x[tuple(map(slice, start_indices, limit_indices, strides))]


@_rule
def _concatenate(*parts: Any, dimension: int) -> Any:
    return np.concatenate(parts, dimension)


@_rule
def _stack(*parts: Any, axis: int) -> Any:
    return np.stack(parts, axis)


@_rule
def _pad(x: Any, value: Any, *, padding_config: tuple) -> Any:
    if any(low < 0 or high < 0 or inner for low, high, inner in padding_config):
        raise NotImplementedError
    return np.pad(x, [pair[:2] for pair in padding_config], constant_values=value)


@_rule
def _iota(*, dtype: Any, shape: tuple, dimension: int, **_: Any) -> Any:
    line = [1] * len(shape)
    line[dimension] = shape[dimension]
    return np.broadcast_to(np.arange(shape[dimension], dtype=dtype).reshape(line), shape)


def _reduction(function: Callable) -> Callable:
    return lambda x, *, axes, **_: function(x, axis=axes)


for _name, _function in {
    "sum": np.sum,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
    "or": np.any,
    "and": np.all,
}.items():
    RULES[f"reduce_{_name}"] = _reduction(_function)
for _function in (np.argmax, np.argmin):
    RULES[_function.__name__] = lambda x, *, axes, index_dtype, f=_function: np.asarray(
        f(x, axis=axes[0])
    ).astype(index_dtype)


def _running(ufunc: np.ufunc) -> Callable:
    def apply(x: Any, *, axis: int, reverse: bool) -> Any:
        if not reverse:
            return ufunc.accumulate(x, axis)
        return np.flip(ufunc.accumulate(np.flip(x, axis), axis), axis)

    return apply


for _name, _ufunc in {
    "cumsum": np.add,
    "cumprod": np.multiply,
    "cummax": np.maximum,
    "cummin": np.minimum,
    "cumlogsumexp": np.logaddexp,
}.items():
    RULES[_name] = _running(_ufunc)


@_rule
def _sort(*operands: Any, dimension: int, num_keys: int, **_: Any) -> Any:
    if len(operands) > 1:
        raise NotImplementedError
    return np.sort(operands[0], axis=dimension)


@_rule
def _dot_general(x: Any, y: Any, *, dimension_numbers: tuple, **_: Any) -> Any:
    (summed_x, summed_y), (batch_x, batch_y) = dimension_numbers
    free_x = [i for i in range(x.ndim) if i not in (*summed_x, *batch_x)]
    free_y = [i for i in range(y.ndim) if i not in (*summed_y, *batch_y)]
    batch = [x.shape[i] for i in batch_x]
    length = math.prod(x.shape[i] for i in summed_x)
    left = np.transpose(x, (*batch_x, *free_x, *summed_x)).reshape((*batch, -1, length))
    right = np.transpose(y, (*batch_y, *summed_y, *free_y)).reshape((*batch, length, -1))
    sizes = (*(x.shape[i] for i in free_x), *(y.shape[i] for i in free_y))
    return np.matmul(left, right).reshape((*batch, *sizes))


def _start(shape: tuple, sizes: tuple, starts: Any) -> tuple[slice, ...]:
    """Where a window of these sizes lies, moved inside as XLA does."""
    lows = (
        int(np.clip(start, 0, full - size))
        for full, size, start in zip(shape, sizes, starts, strict=True)
    )
    return tuple(slice(low, low + size) for low, size in zip(lows, sizes, strict=True))


@_rule
def _dynamic_slice(x: Any, *starts: Any, slice_sizes: tuple) -> Any:
    return x[_start(x.shape, slice_sizes, starts)]


@_rule
def _dynamic_update_slice(x: Any, part: Any, *starts: Any) -> Any:
    x = np.array(x)
    x[_start(x.shape, part.shape, starts)] = part
    return x


@_rule
def _gather(
    x: Any,
    indices: Any,
    *,
    dimension_numbers: Any,
    slice_sizes: tuple,
    mode: Any,
    fill_value: Any,
    **_: Any,
) -> Any:
    numbers = dimension_numbers
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    kept = [d for d in range(x.ndim) if d not in dropped]
    ndim = len(numbers.offset_dims) + indices.ndim - 1
    batch_axes = [i for i in range(ndim) if i not in numbers.offset_dims]

    def along(values: Any, axes: Any) -> Any:
        """Values laid along these axes of the result."""
        shape = [1] * ndim
        for axis, size in zip(axes, np.shape(values), strict=True):
            shape[axis] = size
        return np.reshape(values, shape)

    where: list[Any] = [np.zeros((1,) * ndim, np.int64)] * x.ndim
    outside: Any = False
    for k, d in enumerate(numbers.start_index_map):
        start = indices[..., k].astype(np.int64)
        inside = np.clip(start, 0, x.shape[d] - slice_sizes[d])
        outside = outside | along(start != inside, batch_axes)
        where[d] = along(inside, batch_axes)
    for d, axis in zip(
        numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
    ):
        where[d] = along(np.arange(x.shape[d]), [batch_axes[axis]])
    for axis, d in zip(numbers.offset_dims, kept, strict=True):
        where[d] = where[d] + along(np.arange(slice_sizes[d]), [axis])
    found = x[tuple(where)]
    if "FILL" not in str(mode) or not np.any(outside):
        return found
    if fill_value is None and x.dtype.kind != "f":
        raise NotImplementedError
    return np.where(outside, np.nan if fill_value is None else fill_value, found)
