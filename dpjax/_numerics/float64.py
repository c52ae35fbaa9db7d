"""Evaluate a pure function in float64, whatever the caller's default precision and whatever his
trace.

Accounting in float32 is off by 0.2 % to 170×, yet a library must not switch its user's program to
float64. JAX's x64 switch only works as the outermost scope: entered inside a float32 trace,
gathers, sorts and special functions fail at lowering. Hence three roads, chosen by the arguments:

* concrete arguments: a jitted function inside `jax.enable_x64(True)`, results as NumPy float64; one
  setting is worth a compilation only if it is asked for often, and interpreted till then;
* traced arguments in a float32 program: `jax.pure_callback` to the first road, with a `custom_jvp`
  whose Jacobian is the function's own, evaluated by the same three roads (so it nests to any
  order);
* traced arguments in a float64 program: inlined.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._numerics.interpreter import Interpreted

# A question about one setting is answered this often before a program is compiled for it, which
# costs as much as some hundred answers; not at all where an answer itself is that much work.
_PATIENCE, _LONG = 32, 200_000

_ZERO = np.float32(0.0)

Rounding = Literal["up", "down", "nearest"]


def is_traced(*values: Any) -> bool:
    """True if any leaf of the values is a JAX tracer.

    >>> is_traced(1.0, (2.0, None))
    False
    """
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


@contextlib.contextmanager
def _plain_rules():
    # The cores are written once, for NumPy's promotion rules and with intended infinities; the
    # caller's stricter settings are about the caller's code.
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.debug_nans(False),
        jax.debug_infs(False),
    ):
        yield


@contextlib.contextmanager
def float64_scope(device: Any = None):
    """Enter float64, outside of whatever trace is under way. Let only NumPy values leave it.

    Only under a trace: elsewhere it would evaluate every constant of a core that is being traced.

    >>> with float64_scope():
    ...     value = np.asarray(jnp.ones(2) / 3)
    >>> value.dtype
    dtype('float64')
    """
    with contextlib.ExitStack() as stack:
        if is_traced(jax.device_put(_ZERO)):
            stack.enter_context(jax.ensure_compile_time_eval())
        stack.enter_context(jax.enable_x64(True))
        stack.enter_context(_plain_rules())
        if device is not None:
            stack.enter_context(jax.default_device(device))
        yield


@functools.cache
def _cpu() -> Any:
    return jax.devices("cpu")[0]


@functools.cache
def _best_device() -> Any:
    # A TPU has no complex128 and emulates float64: the host computes for it.
    return None if jax.default_backend() in ("cpu", "gpu") else _cpu()


def _leading(args: Sequence[Any], ndims: Sequence[int]) -> tuple[int, ...]:
    return np.broadcast_shapes(
        *(np.shape(a)[: np.ndim(a) - n] for a, n in zip(args, ndims, strict=True))
    )


def _batched(core: Callable, ndims: tuple[int, ...], batch: int) -> Callable:
    """Map `core` over the broadcast leading axes of its arguments, `batch` settings at a time."""

    def run(*args: jax.Array) -> Any:
        lead = _leading(args, ndims)
        if lead == ():
            return core(*args)
        size = math.prod(lead)
        if size == 0:
            cores = [
                jax.ShapeDtypeStruct(a.shape[a.ndim - n :], a.dtype)
                for a, n in zip(args, ndims, strict=True)
            ]
            return jax.tree.map(
                lambda s: jnp.zeros(lead + s.shape, s.dtype), jax.eval_shape(core, *cores)
            )
        # Settings are padded to whole batches, so that only one batch shape is compiled.
        width = min(batch, size)
        blocks = -(-size // width)

        def spread(a: jax.Array, n: int) -> jax.Array:
            tail = a.shape[a.ndim - n :]
            flat = jnp.broadcast_to(a, lead + tail).reshape((size, *tail))
            index = jnp.minimum(jnp.arange(blocks * width), size - 1)
            return flat[index].reshape((blocks, width, *tail))

        rows = tuple(spread(a, n) for a, n in zip(args, ndims, strict=True))
        out = jax.lax.map(lambda row: jax.vmap(core)(*row), rows)
        return jax.tree.map(
            lambda o: o.reshape((blocks * width, *o.shape[2:]))[:size].reshape(lead + o.shape[2:]),
            out,
        )

    return run


@functools.lru_cache(maxsize=256)
def _compiled(core: Callable, ndims: tuple[int, ...], batch: int) -> Callable:
    return jax.jit(_batched(core, ndims, batch))


@functools.lru_cache(maxsize=256)
def _interpreted(compiled: Callable, shapes: tuple[tuple[int, ...], ...]) -> Interpreted:
    arguments = [jax.ShapeDtypeStruct(shape, np.float64) for shape in shapes]
    return Interpreted(compiled.trace(*arguments))  # pyrefly: ignore


class Ladder(NamedTuple):
    """Finer cores to repeat an evaluation with, where `poor` says that it is not good enough.

    Fields:
        cores: same signature and result as the first core, ever more costly.
        poor: from the result, NumPy arrays with the sweep's axes, to a mask of those axes.
        merge: from an old and a finer result to the one that is kept; by default the finer.

    >>> Ladder((), lambda out: out < 0).cores
    ()
    """

    cores: tuple[Callable, ...]
    poor: Callable[[Any], np.ndarray]
    merge: Callable[[Any, Any], Any] = lambda old, new: new


def _once(
    core: Callable, args: Sequence[Any], ndims: tuple[int, ...], batch: int, device: Any
) -> Any:
    compiled = _compiled(core, ndims, batch)
    with float64_scope(device):
        if _leading(args, ndims) == ():
            answer = _interpreted(compiled, tuple(np.shape(a) for a in args))
            if answer.calls < _PATIENCE and answer.work < _LONG:
                return answer(*args)
        return jax.tree.map(np.asarray, compiled(*args))


def _concrete(
    core: Callable,
    args: Sequence[Any],
    ndims: tuple[int, ...],
    batch: int,
    device: Any,
    ladder: Ladder | None = None,
) -> Any:
    args = [np.asarray(a, np.float64) for a in args]
    out = _once(core, args, ndims, batch, device)
    lead = _leading(args, ndims)
    for finer in ladder.cores if ladder is not None else ():
        poor = np.broadcast_to(ladder.poor(out), lead)  # pyrefly: ignore
        if not poor.any():
            break
        if lead == ():
            out = ladder.merge(out, _once(finer, args, ndims, batch, device))  # pyrefly: ignore
            continue
        # Only the poor settings, padded so that few sizes are compiled.
        (index,) = np.nonzero(poor.ravel())
        padded = np.resize(index, max(batch, 1 << (len(index) - 1).bit_length()))
        rows = []
        for a, n in zip(args, ndims, strict=True):
            tail = a.shape[a.ndim - n :]
            rows.append(np.broadcast_to(a, lead + tail).reshape((-1, *tail))[padded])
        better = _once(finer, rows, ndims, batch, device)

        flat = jax.tree.map(lambda o: np.array(o).reshape((-1, *o.shape[len(lead) :])), out)
        old = jax.tree.map(lambda f: f[index], flat)  # noqa: B023
        new = jax.tree.map(lambda b: b[: len(index)], better)  # noqa: B023
        kept = ladder.merge(old, new)  # pyrefly: ignore

        def put(whole: np.ndarray, part: np.ndarray, index: np.ndarray = index) -> np.ndarray:
            whole[index] = part
            return whole.reshape(lead + whole.shape[1:])

        out = jax.tree.map(put, flat, kept)
    return out


@functools.lru_cache(maxsize=256)
def _jacobian(core: Callable, wrt: tuple[int, ...], reverse: bool) -> Callable:
    transform = jax.jacrev if reverse else jax.jacfwd
    return transform(core, argnums=wrt)


def _narrow(value: np.ndarray, dtype: Any, rounding: Rounding) -> np.ndarray:
    """Cast to a narrower float without crossing to the unsafe side."""
    with np.errstate(over="ignore"):  # beyond the narrow range is infinity, which is what we mean
        narrow = value.astype(dtype)
    if rounding == "nearest":
        return narrow
    unsafe = narrow < value if rounding == "up" else narrow > value
    limit = np.asarray(np.inf if rounding == "up" else -np.inf, dtype)
    return np.where(unsafe, np.nextafter(narrow, limit), narrow)


def evaluate(
    core: Callable,
    args: Sequence[Any],
    ndims: Sequence[int],
    *,
    batch: int = 8,
    rounding: Rounding = "nearest",
    ladder: Ladder | None = None,
) -> Any:
    """Evaluate `core` in float64 over the broadcast leading axes of `args`.

    Arguments:
        core: pure function of float64 arrays, one setting at a time, returning a pytree of arrays.
            Compiled programs are cached by its identity, so make it once (module level, or
            `functools.lru_cache` around the factory that closes over static options).
        args: numbers, arrays or tracers. Argument i has `ndims[i]` axes that belong to one setting;
            the axes in front broadcast together to the shape of the sweep.
        ndims: see `args`.
        batch: settings evaluated together; a sweep runs over blocks of this many.
        rounding: direction of the final cast to float32 inside a float32 program.
        ladder: finer cores for the settings that need them. Inlined, its first core alone is used;
            derivatives are always those of `core`.

    Returns:
        The pytree of `core` with the sweep's axes in front: NumPy float64 for concrete arguments,
        traced values otherwise. Inside a float32 program reverse and forward derivatives of any
        order are those of `core`.

    >>> def squares(x):
    ...     return x * x
    >>> evaluate(squares, [np.arange(3.0)], [0])
    array([0., 1., 4.])
    >>> float(jax.grad(lambda x: evaluate(squares, [x], [0]))(3.0))
    6.0
    """
    ndims = tuple(ndims)
    if not is_traced(*args):
        return _concrete(core, args, ndims, batch, _best_device(), ladder)
    if jax.config.read("jax_enable_x64"):
        with _plain_rules():
            arrays = [jnp.asarray(a, jnp.float64) for a in args]
            inline = ladder.cores[0] if ladder is not None and ladder.cores else core
            return _batched(inline, ndims, batch)(*arrays)
    return _callback(core, args, ndims, batch, rounding, ladder)


def _callback(
    core: Callable,
    args: Sequence[Any],
    ndims: tuple[int, ...],
    batch: int,
    rounding: Rounding,
    ladder: Ladder | None,
) -> Any:
    lead = _leading(args, ndims)

    def aligned(a: Any, n: int) -> Any:
        # Concrete float64 would be cut to float32 on entering the trace: keep it outside.
        if not is_traced(a):
            return np.asarray(a, np.float64)
        shape = a.shape
        return a.reshape((1,) * (len(lead) - (len(shape) - n)) + shape)

    args = [aligned(a, n) for a, n in zip(args, ndims, strict=True)]
    traced = [i for i, a in enumerate(args) if is_traced(a)]

    cores = [
        jax.ShapeDtypeStruct(np.shape(a)[np.ndim(a) - n :], np.float64)
        for a, n in zip(args, ndims, strict=True)
    ]
    with float64_scope():
        inner = jax.eval_shape(core, *cores)
    spec = jax.tree.map(lambda s: jax.ShapeDtypeStruct(lead + s.shape, jnp.float32), inner)

    def host(*values: Any) -> Any:
        full = list(args)
        extra = 0
        for i, value in zip(traced, values, strict=True):
            full[i] = np.asarray(value, np.float64)
            extra = full[i].ndim - ndims[i] - len(lead)
        for i, a in enumerate(full):
            if i not in traced:  # under vmap the traced ones grew axes in front
                full[i] = a.reshape((1,) * (extra + len(lead) - (a.ndim - ndims[i])) + a.shape)
        out = _concrete(core, full, ndims, batch, _cpu(), ladder)
        wanted = np.broadcast_shapes(*(np.shape(v)[:extra] for v in values)) + lead
        return jax.tree.map(
            lambda o, s: np.broadcast_to(_narrow(o, np.float32, rounding), wanted + s.shape),
            out,
            inner,
        )

    @jax.custom_jvp
    def call(*values: jax.Array) -> Any:
        return jax.pure_callback(host, spec, *values, vmap_method="expand_dims")

    @call.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple:
        out = call(*primals)
        moving = [k for k, t in enumerate(tangents) if t.dtype != jax.dtypes.float0]
        if not moving:
            return out, jax.tree.map(jnp.zeros_like, out)
        full = list(args)
        for i, value in zip(traced, primals, strict=True):
            full[i] = value
        wrt = tuple(traced[k] for k in moving)
        inputs = sum(math.prod(cores[i].shape) for i in wrt)
        outputs = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(inner))
        jacobian = evaluate(_jacobian(core, wrt, outputs < inputs), full, ndims, batch=batch)

        def push(leaf: jax.Array, own: jax.ShapeDtypeStruct, parts: tuple) -> jax.Array:
            total = jnp.zeros_like(leaf)
            for k, part in zip(moving, parts, strict=True):
                i = traced[k]
                tail = cores[i].shape
                part = jnp.asarray(part, leaf.dtype)
                tangent = tangents[k].astype(leaf.dtype)
                t_lead = tangent.shape[: tangent.ndim - len(tail)]
                tangent = tangent.reshape(t_lead + (1,) * len(own.shape) + tail)
                tangent = jnp.broadcast_to(tangent, part.shape)
                axes = tuple(range(part.ndim - len(tail), part.ndim))
                total = total + jnp.sum(part * tangent, axis=axes)
            return total

        flat, tree = jax.tree.flatten(out)
        owns = jax.tree.leaves(inner)
        parts = tree.flatten_up_to(jacobian)
        dots = [push(o, s, p) for o, s, p in zip(flat, owns, parts, strict=True)]
        return out, jax.tree.unflatten(tree, dots)

    return call(*(args[i] for i in traced))


def plain(value: Any) -> Any:
    """A concrete scalar as a Python float, anything else as it is.

    >>> plain(np.asarray(1.5))
    1.5
    """
    return float(value) if isinstance(value, np.ndarray) and value.ndim == 0 else value
