"""What the accountant's cores call on an array namespace: a part of NumPy and `jax.numpy`.

`Numbers` is what a core computes with. At run time that is a NumPy array, a NumPy number or a JAX
array, as `namespace` chose; to a type checker it is `jax.Array`, whose operators, methods and
indexing are those of both. `NumbersLike` is what a core may be given: also a plain number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float

Numbers = jax.Array
NumbersLike = ArrayLike
# What users may give, one number or a sweep: real, so that it can be compared.
Values = Float[jax.Array | np.ndarray | np.floating | np.integer | float, "..."]
Shape = int | Sequence[int]
Axis = int | tuple[int, ...] | None
State = TypeVar("State")
AnyTree = TypeVar("AnyTree")


class Unary(Protocol):
    """A function of one array, number by number."""

    def __call__(self, x: NumbersLike, /) -> Numbers: ...


class Binary(Protocol):
    """A function of two arrays that broadcast, number by number; also folded along an axis."""

    def __call__(self, x: NumbersLike, y: NumbersLike, /) -> Numbers: ...


class Reduction(Protocol):
    """A sum, a largest number or the like, along one axis, several or all."""

    def __call__(
        self,
        x: NumbersLike,
        axis: Axis = None,
        *,
        keepdims: bool = False,
        initial: float = ...,
    ) -> Numbers: ...


class Namespace(Protocol):
    """NumPy or JAX. A function that is missing here is one that no core may call."""

    inf: float
    nan: float

    # number by number
    exp: Unary
    expm1: Unary
    log: Unary
    log1p: Unary
    sqrt: Unary
    square: Unary
    abs: Unary
    sin: Unary
    cos: Unary
    arcsin: Unary
    sinh: Unary
    tanh: Unary
    floor: Unary
    ceil: Unary
    sign: Unary
    isfinite: Unary
    isnan: Unary
    isinf: Unary
    # special functions
    erf: Unary
    erfc: Unary
    gammaln: Unary
    ndtri: Unary
    log_ndtr: Unary
    sigmoid: Unary
    # of two
    minimum: Binary
    maximum: Binary
    fmin: Binary
    fmax: Binary
    logaddexp: Binary
    arctan2: Binary
    hypot: Binary
    power: Binary
    mod: Binary
    outer: Binary
    # along axes
    sum: Reduction
    max: Reduction
    min: Reduction
    any: Reduction
    all: Reduction
    prod: Reduction

    def norm(self, x: NumbersLike) -> Numbers: ...
    def argmax(self, x: NumbersLike, axis: int | None = None) -> Numbers: ...
    def argmin(self, x: NumbersLike, axis: int | None = None) -> Numbers: ...
    def cumsum(self, x: NumbersLike, axis: int | None = None) -> Numbers: ...
    def cumprod(self, x: NumbersLike, axis: int | None = None) -> Numbers: ...
    def squeeze(self, x: NumbersLike, axis: Axis = None) -> Numbers: ...
    def where(self, mask: NumbersLike, x: NumbersLike, y: NumbersLike) -> Numbers: ...
    def clip(self, x: NumbersLike, low: NumbersLike, high: NumbersLike) -> Numbers: ...
    def round(self, x: NumbersLike) -> Numbers: ...
    def polyval(self, coefficients: Any, x: NumbersLike) -> Numbers: ...
    def interp(self, x: NumbersLike, xp: NumbersLike, fp: NumbersLike) -> Numbers: ...
    def tensordot(self, x: NumbersLike, y: NumbersLike, axes: Any = 2) -> Numbers: ...

    # making and reshaping
    def asarray(self, x: NumbersLike | Sequence[NumbersLike]) -> Numbers: ...
    def zeros(self, shape: Shape, dtype: Any = float) -> Numbers: ...
    def ones(self, shape: Shape, dtype: Any = float) -> Numbers: ...
    def full(self, shape: Shape, value: NumbersLike) -> Numbers: ...
    def zeros_like(self, x: NumbersLike) -> Numbers: ...
    def ones_like(self, x: NumbersLike) -> Numbers: ...
    def full_like(self, x: NumbersLike, value: NumbersLike) -> Numbers: ...
    def arange(self, stop: int, dtype: Any = None) -> Numbers: ...
    def stack(self, parts: Sequence[NumbersLike], axis: int = 0) -> Numbers: ...
    def concatenate(self, parts: Sequence[NumbersLike], axis: int = 0) -> Numbers: ...
    def append(self, x: NumbersLike, y: NumbersLike) -> Numbers: ...
    def split(self, x: NumbersLike, parts: Any, axis: int = 0) -> list[Numbers]: ...
    def reshape(self, x: NumbersLike, shape: Shape) -> Numbers: ...
    def broadcast_to(self, x: NumbersLike, shape: Shape) -> Numbers: ...
    def broadcast_arrays(self, *arrays: NumbersLike) -> Sequence[Numbers]: ...
    def broadcast_shapes(self, *shapes: Shape) -> tuple[int, ...]: ...
    def take_along_axis(self, x: NumbersLike, index: NumbersLike, axis: int) -> Numbers: ...

    # of traces; plain calls on NumPy
    def stop_gradient(self, x: AnyTree) -> AnyTree: ...
    def barrier(self, x: AnyTree) -> AnyTree: ...

    # loops, of any tree of arrays
    def fori_loop(
        self, first: int, last: int, body: Callable[[Any, State], State], state: State
    ) -> State: ...
    def while_loop(
        self,
        condition: Callable[[State], Any],
        body: Callable[[State], State],
        state: State,
    ) -> State: ...
    def scan(
        self, body: Callable[..., Any], state: State, rows: Any, length: int | None = None
    ) -> tuple[State, Any]: ...
    def map(
        self, function: Callable[..., Any], rows: Any, batch_size: int | None = None
    ) -> Any: ...
    def vmap(self, function: Callable[..., Any]) -> Callable[..., Any]: ...
