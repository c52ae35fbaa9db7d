"""One spelling for NumPy and JAX: what the accountant's cores are written against.

A core begins with `xp = namespace(x, …)`. For concrete values that is NumPy: one setting is
answered without compiling anything. Under jit, vmap and grad it is `jax.numpy`. Both carry the few
loops and special functions that the cores need under one name, and agree to a few units in the last
place. Roots of falling functions are rounded to the side where the function is not positive.
"""

from __future__ import annotations

import functools
import importlib
import math
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar, cast, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from dpjax._numerics.namespace import (
    AnyTree,
    Arguments,
    LoopRows,
    Namespace,
    NumberTree,
    Returned,
    State,
)
from dpjax._numerics.namespace import Numbers as Numbers
from dpjax._numerics.namespace import NumbersLike as NumbersLike
from dpjax._numerics.namespace import Values as Values

Leaf = TypeVar("Leaf")
# One number of a NumPy core's, or several.
HostNumbers = np.ndarray | np.float64

EPS = float(np.finfo(np.float64).eps)
ROUND_UP = 1 + 1e-12  # over what some thousand operations in float64 round a value down by
_LOG_2 = 0.6931471805599453
_PLAIN = {float, int, bool, str, type(None), np.ndarray, np.float64, np.int64, np.bool_}


def _log1p(x: NumbersLike) -> Numbers:
    """log(1 + x), within four units in the last place.

    On CPUs XLA's is off by about 120 units for −√2 + 1 < x < −0.3, where it extends a polynomial
    that is meant for x > 1/√2 − 1; bounds on rounding that count units do not hold of it. There
    log(1 + x) = log(1 + (2x + 1)) − log 2, and 2x + 1 is exact.
    """
    x = jnp.asarray(x)
    low = (x > -0.5) & (x < -0.25)
    return jnp.log1p(jnp.where(low, 2 * x + 1, x)) - jnp.where(low, _LOG_2, 0.0)


def _polyval(coefficients: Numbers | Sequence[float], x: Numbers) -> Numbers:
    """Horner's rule, the highest power first."""
    value = coefficients[0] + 0.0 * x  # of x's shape, and NaN where x is
    for c in coefficients[1:]:
        value = value * x + c
    return value


# (−1)ⁿ/(n!(2n + 1)), the highest power first; at 1/2 the next term is 1e−17 of the sum.
_ERF = [(-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(12, -1, -1)]


def _erf(x: Numbers) -> Numbers:
    """erf(x), within four units in the last place: by its series, or by erfc beyond 1/2.

    With the one of JAX 0.7 no program can be exported.
    """
    near = jnp.clip(x, -0.5, 0.5)
    series = 2 / math.sqrt(math.pi) * near * _polyval(_ERF, near * near)
    return jnp.where(abs(x) < 0.5, series, jnp.sign(x) * (1 - jax.lax.erfc(abs(x))))


class _Namespace:
    """The functions of a module, and of one of special functions, which is slow to import."""

    module: types.ModuleType
    special = ""

    def __getattr__(self, name: str) -> Callable[..., Numbers] | float:
        found = getattr(self.module, name, None)
        found = found or getattr(importlib.import_module(self.special), name)
        setattr(self, name, found)  # kept as an attribute: looked up once
        return found


class _Jax(_Namespace):
    """`jax.numpy` and the loops of `jax.lax`."""

    module, special = jnp, "jax.scipy.special"
    log1p = staticmethod(_log1p)
    polyval = staticmethod(_polyval)
    erf = staticmethod(_erf)
    erfc = staticmethod(jax.lax.erfc)
    sigmoid = staticmethod(jax.nn.sigmoid)
    stop_gradient = staticmethod(jax.lax.stop_gradient)
    barrier = staticmethod(jax.lax.optimization_barrier)
    norm = staticmethod(jnp.linalg.norm)
    fori_loop = staticmethod(jax.lax.fori_loop)
    while_loop = staticmethod(jax.lax.while_loop)
    scan = staticmethod(jax.lax.scan)
    map = staticmethod(jax.lax.map)
    vmap = staticmethod(jax.vmap)

    @staticmethod
    def asarray(x: NumbersLike) -> Numbers:
        return jnp.asarray(x, float)

    @staticmethod
    def gammaln(x: NumbersLike) -> Numbers:
        return jax.lax.lgamma(jnp.asarray(x, float))


def tree_map(function: Callable[..., Leaf], *trees: PyTree) -> PyTree[Leaf]:
    """Over tuples, named tuples, dictionaries and None, without a registry."""
    first = trees[0]
    if first is None:
        return None
    if isinstance(first, dict):
        return {k: tree_map(function, *(t[k] for t in trees)) for k in first}
    if isinstance(first, tuple | list):
        parts = [tree_map(function, *parts) for parts in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return function(*trees)


def _rows(tree: AnyTree, i: int) -> AnyTree:
    return tree_map(lambda leaf: leaf[i], tree)


def _first(tree: NumberTree) -> Numbers:
    while isinstance(tree, tuple | list | dict):  # the first leaf tells how many rows there are
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return tree


def _stacked(outs: list[AnyTree]) -> AnyTree:
    return tree_map(lambda *leaves: np.array(leaves), *outs)


class _NumPy(_Namespace):
    """NumPy with the same loops, run by Python."""

    module, special = np, "scipy.special"
    polyval = staticmethod(_polyval)
    # 1/(1 + e^{−x}), which never overflows
    sigmoid = staticmethod(lambda x: np.exp(-np.logaddexp(0.0, -x)))
    stop_gradient = staticmethod(lambda x: x)
    barrier = staticmethod(lambda x: x)
    norm = staticmethod(np.linalg.norm)
    # NumPy's own check their arguments for longer than a setting's few numbers take.
    clip = staticmethod(lambda x, low, high: np.minimum(np.maximum(x, low), high))
    sum = staticmethod(lambda x, axis=None, **how: np.add.reduce(x, axis, **how))
    max = staticmethod(lambda x, axis=None, **how: np.maximum.reduce(x, axis, **how))
    min = staticmethod(lambda x, axis=None, **how: np.minimum.reduce(x, axis, **how))
    any = staticmethod(lambda x, axis=None, **how: np.logical_or.reduce(x, axis, **how))

    @staticmethod
    def stack(parts: Sequence[np.ndarray], axis: int = 0) -> np.ndarray:
        return np.array(parts) if axis == 0 else np.stack(parts, axis)

    @staticmethod
    def asarray(x: NumbersLike) -> np.ndarray:
        return np.asarray(x, np.float64)

    @staticmethod
    def erf(x: NumbersLike) -> HostNumbers:
        return _each(math.erf, x)

    @staticmethod
    def erfc(x: NumbersLike) -> HostNumbers:
        return _each(math.erfc, x)

    @staticmethod
    def gammaln(x: NumbersLike) -> HostNumbers:
        return _each(math.lgamma, x)

    @staticmethod
    def fori_loop(
        first: int, last: int, body: Callable[[int, State], State], state: State
    ) -> State:
        for i in range(first, last):
            state = body(i, state)
        return state

    @staticmethod
    def while_loop(
        condition: Callable[[State], bool], body: Callable[[State], State], state: State
    ) -> State:
        while condition(state):
            state = body(state)
        return state

    @staticmethod
    def scan(
        body: Callable[[State, LoopRows], tuple[State, Returned]],
        state: State,
        rows: LoopRows,
        length: int | None = None,
    ) -> tuple[State, Returned]:
        outs = []
        for i in range(len(_first(rows)) if length is None else length):
            state, out = body(state, _rows(rows, i))
            outs.append(out)
        return state, _stacked(outs)

    @staticmethod
    def map(
        function: Callable[[LoopRows], Returned], rows: LoopRows, batch_size: int | None = None
    ) -> Returned:
        return _stacked([function(_rows(rows, i)) for i in range(len(_first(rows)))])

    @staticmethod
    def vmap(function: Callable[..., Returned]) -> Callable[..., Returned]:
        return lambda *rows: _NumPy.map(lambda row: function(*row), rows)


def _each(function: Callable[[float], float], given: NumbersLike) -> HostNumbers:
    x = np.asarray(given, np.float64)
    if x.ndim == 0:
        return np.float64(function(float(x)))  # Python's own is quicker for one number
    return np.array([function(v) for v in x.ravel().tolist()]).reshape(x.shape)


NUMPY, JAX = cast(Namespace, _NumPy()), cast(Namespace, _Jax())


def namespace(*values: object) -> Namespace:
    """`JAX` if a JAX array or tracer is among the values or their leaves, else `NUMPY`."""
    for value in values:
        if type(value) in _PLAIN:
            continue
        if isinstance(value, tuple | list):
            inner: Iterable[object] = value
        elif isinstance(value, dict):
            inner = value.values()
        elif isinstance(value, jax.Array):
            return JAX
        elif hasattr(value, "__dataclass_fields__"):
            inner = vars(value).values()
        else:
            continue
        if namespace(*inner) is JAX:
            return JAX
    return NUMPY


@overload
def log_sum(x: np.ndarray, axis: int = ...) -> np.ndarray: ...
@overload
def log_sum(x: Numbers, axis: int = ...) -> Numbers: ...
def log_sum(x: Numbers | np.ndarray, axis: int = -1) -> Numbers | np.ndarray:
    """log Σ e^x along an axis, counted from the largest term."""
    xp = namespace(x)
    top = xp.max(x, axis=axis, keepdims=True)
    top = xp.where(xp.isfinite(top), top, 0.0)
    return xp.squeeze(top, axis) + xp.log(xp.sum(xp.exp(x - top), axis=axis))


class with_derivative(Generic[*Arguments, Returned]):
    """A function of arrays whose derivative is given: `jax.custom_jvp`, and a plain call on NumPy.

    Args:
        function: what is differentiated by the rule that `defjvp` sets.
        static: how many leading arguments are not arrays.

    Example:
        >>> from dpjax._numerics.arrays import with_derivative
        >>> double = with_derivative(lambda x: 2 * x)
        >>> double(1.5)
        3.0
    """

    def __init__(self, function: Callable[[*Arguments], Returned], static: int = 0):
        functools.update_wrapper(self, function)
        self._plain = function
        self._traced = jax.custom_jvp(function, nondiff_argnums=tuple(range(static)))
        self._static = static

    def defjvp(self, rule: Callable) -> Callable:
        """Set the rule, as of `jax.custom_jvp`."""
        self._traced.defjvp(rule)
        return rule

    def __call__(self, *args: *Arguments) -> Returned:
        # on NumPy there is nothing to differentiate
        traced = namespace(*args[self._static :]) is JAX
        return (self._traced if traced else self._plain)(*args)


def falling_root(
    function: Callable[[Numbers], tuple[Numbers, Numbers]],
    start: NumbersLike,
    low: NumbersLike,
    high: NumbersLike,
    *,
    tolerance: NumbersLike = 0.0,
    rounds: int = 100,
) -> Numbers:
    """A point just above the root, by Newton's method within a bracket.

    The steps aim at a value of −tolerance/2; one that leaves the bracket (and every eighth, against
    slow progress) is a bisection instead. On a concave function the steps arrive from above, each
    squaring the error. Settings that are done stay as they are: a sweep's answer is a single
    setting's.

    Args:
        function: from x to (value, derivative); where the value is NaN it counts as positive.
        start: where to begin, in [low, high].
        low, high: the value is positive at `low` and not positive at `high`; neither is verified.
        tolerance: a value in [−tolerance, 0] is close enough; otherwise the bracket closes to
            neighbouring floats.
        rounds: at most so many evaluations.

    Returns:
        The least x that was seen with a value that is not positive, or `high`.
    """
    xp = namespace(start, low, high)
    start, low, high = xp.broadcast_arrays(*(xp.asarray(v) for v in (start, low, high)))
    half = 0.5 * xp.asarray(tolerance)

    def step(state: tuple) -> tuple:
        x, low, high, done, count = state
        value, slope = function(x)
        safe = value <= 0
        # the least point known to be above the root
        high = xp.where(safe, xp.minimum(x, high), high)
        low = xp.where(safe, low, xp.maximum(x, low))
        # aims half a tolerance below 0, to end on the safe side
        newton = x - (value + half) / slope
        inside = (newton > low) & (newton < high) & (count % 8 != 7)
        middle = low + (high - low) / 2
        # or the bracket's ends are neighbouring floats
        done = done | (safe & (value >= -2 * half)) | ~((low < middle) & (middle < high))
        return xp.where(done, x, xp.where(inside, newton, middle)), low, high, done, count + 1

    def more(state: tuple) -> Numbers:
        return xp.any(~state[3]) & (state[4] < rounds)

    first = (start, low, high, xp.zeros(start.shape, bool), 0)
    return xp.while_loop(more, step, first)[2]


@overload
def halve(
    low: np.ndarray, high: np.ndarray, is_past: Callable[[np.ndarray], np.ndarray], rounds: int
) -> tuple[np.ndarray, np.ndarray]: ...
@overload
def halve(
    low: Numbers, high: Numbers, is_past: Callable[[Numbers], Numbers | bool], rounds: int
) -> tuple[Numbers, Numbers]: ...
def halve(
    low: NumbersLike, high: NumbersLike, is_past: Callable[..., NumbersLike], rounds: int
) -> tuple[NumbersLike, NumbersLike]:
    """Points on either side of where `is_past` becomes true, between two others, by bisection."""
    xp = namespace(low, high)

    def body(_: int, ends: tuple[Numbers, Numbers]) -> tuple[Numbers, Numbers]:
        low, high = ends
        x = 0.5 * (low + high)
        past = is_past(x)
        return xp.where(past, low, x), xp.where(past, x, high)

    return xp.fori_loop(0, rounds, body, (xp.asarray(low), xp.asarray(high)))


def push_tangents(
    leaf: jax.Array,
    own: jax.ShapeDtypeStruct,
    moved: Sequence[tuple[jax.Array, int]],
    parts: Sequence[NumbersLike],
) -> jax.Array:
    """The change of one result: derivatives times tangents, each with its argument's axes."""
    total = jnp.zeros_like(leaf)
    for (tangent, axes), part in zip(moved, parts, strict=True):
        # The argument's axes lie behind those of the result.
        place = tangent.ndim - axes
        wide = jnp.expand_dims(
            tangent.astype(leaf.dtype), tuple(range(place, place + len(own.shape)))
        )
        change = jnp.asarray(part, leaf.dtype) * wide
        total = total + jnp.sum(change, axis=tuple(range(-axes, 0)))
    return total


def count_numbers(tree: NumberTree) -> int:
    """Numbers in all arrays of a tree."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
