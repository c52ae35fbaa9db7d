"""What the accountant's cores call on an array namespace: a part of NumPy and `jax.numpy`.

`Numbers` is what a core computes with. At run time that is a NumPy array, a NumPy number or a JAX
array, as `namespace` chose; to a type checker it is `jax.Array`, whose operators, methods and
indexing are those of both. `NumbersLike` is what a core may be given: also a plain number. A
`NumberTree` is open to a checker, and says its leaves to a reader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, Protocol, TypeVar, TypeVarTuple

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Float, PyTree

Numbers = jax.Array
NumbersLike = ArrayLike
NumberTree = PyTree[Numbers]  # of arrays, or of their shapes and dtypes
# What users may give, one number or a sweep: real, so that it can be compared.
Values = Float[jax.Array | np.ndarray | np.floating | np.integer | float, "..."]
Shape = int | Sequence[int]
Axis = int | tuple[int, ...] | None
State = TypeVar("State")
LoopRows = TypeVar("LoopRows")  # a tree of arrays, one row a turn
Returned = TypeVar("Returned")  # what a function of any tree gives
AnyTree = TypeVar("AnyTree")  # comes out as it went in
Given = ParamSpec("Given")  # what a function is given, by place or name
Arguments = TypeVarTuple("Arguments")  # the same by place alone


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
    def polyval(self, coefficients: Numbers | Sequence[float], x: Numbers) -> Numbers: ...
    def interp(self, x: NumbersLike, xp: NumbersLike, fp: NumbersLike) -> Numbers: ...
    def tensordot(self, x: NumbersLike, y: NumbersLike, axes: int = 2) -> Numbers: ...

    # making and reshaping
    def asarray(self, x: NumbersLike | Sequence[NumbersLike]) -> Numbers: ...
    def zeros(self, shape: Shape, dtype: DTypeLike = float) -> Numbers: ...
    def ones(self, shape: Shape, dtype: DTypeLike = float) -> Numbers: ...
    def full(self, shape: Shape, value: NumbersLike) -> Numbers: ...
    def zeros_like(self, x: NumbersLike) -> Numbers: ...
    def ones_like(self, x: NumbersLike) -> Numbers: ...
    def full_like(self, x: NumbersLike, value: NumbersLike) -> Numbers: ...
    def arange(self, stop: int, dtype: DTypeLike | None = None) -> Numbers: ...
    def stack(self, parts: Sequence[NumbersLike], axis: int = 0) -> Numbers: ...
    def concatenate(self, parts: Sequence[NumbersLike], axis: int = 0) -> Numbers: ...
    def append(self, x: NumbersLike, y: NumbersLike) -> Numbers: ...
    def split(self, x: NumbersLike, parts: int | Numbers, axis: int = 0) -> list[Numbers]: ...
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
        self, first: int, last: int, body: Callable[[int, State], State], state: State
    ) -> State: ...
    def while_loop(
        self,
        condition: Callable[[State], bool | Numbers],
        body: Callable[[State], State],
        state: State,
    ) -> State: ...
    def scan(
        self,
        body: Callable[[State, LoopRows], tuple[State, Returned]],
        state: State,
        rows: LoopRows,
        length: int | None = None,
    ) -> tuple[State, Returned]: ...
    def map(
        self,
        function: Callable[[LoopRows], Returned],
        rows: LoopRows,
        batch_size: int | None = None,
    ) -> Returned: ...
    def vmap(self, function: Callable[Given, Returned]) -> Callable[Given, Returned]: ...
