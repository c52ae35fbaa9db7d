"""Enter float64 whatever the caller's default precision, and whatever his trace."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.interpreters import batching, mlir
from jax.typing import DTypeLike
from jaxtyping import PyTree

from dpjax._numerics import checks
from dpjax._numerics.namespace import NumberTree

if TYPE_CHECKING:
    from jax.extend.core import Primitive
    from jaxlib.mlir import ir

Rounding = Literal["up", "down", "nearest"]
Shapes = tuple[jax.ShapeDtypeStruct, ...]
# The answer to a question, of NumPy's arrays and of traced ones.
Host = Callable[..., PyTree[np.ndarray]]
Operations = Callable[..., NumberTree]
_ZERO = np.float32(0.0)
# The devices that a block `over_devices` names, in this thread.
_NAMED: contextvars.ContextVar[tuple[jax.Device, ...] | None] = contextvars.ContextVar("devices")


def enable_x64(on: bool = True) -> contextlib.AbstractContextManager[None]:
    """The context in which JAX's default is float64; its place differs before jax 0.8."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(on)
    from jax import experimental

    return experimental.enable_x64(on)  # pyrefly: ignore


def is_traced(*values: PyTree) -> bool:
    """True if any leaf of the values is a JAX tracer."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


@contextlib.contextmanager
def plain_rules():
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
def float64_scope(device: jax.Device | None = None) -> Iterator[None]:
    """Enter float64, outside of whatever trace is under way. Let only NumPy values leave it.

    The way out of a trace evaluates constants at once, also those of a core that is then traced
    anew: it is taken only where there is a trace to leave.
    """
    with contextlib.ExitStack() as stack:
        if is_traced(jax.device_put(_ZERO)):
            stack.enter_context(jax.ensure_compile_time_eval())
        stack.enter_context(enable_x64())
        stack.enter_context(plain_rules())
        if device is not None:
            stack.enter_context(jax.default_device(device))
        yield


@functools.cache
def cpu() -> jax.Device:
    return jax.devices("cpu")[0]


@functools.cache
def best_device() -> jax.Device | None:
    # A TPU has no complex128 and emulates float64: the host computes for it.
    return None if jax.default_backend() in ("cpu", "gpu") else cpu()


def processors() -> int:
    """How many may be used at a time."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every platform
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@contextlib.contextmanager
def over_devices(devices: Sequence[jax.Device] | jax.sharding.Mesh) -> Iterator[None]:
    """Divide large sweeps of the accountant over these devices, whatever the default.

    Without it a sweep takes all GPUs of the process, and on CPUs one device with a thread a
    processor: more CPU devices of one machine add none. Every device works through settings of its
    own and exchanges nothing. The answers are those of one device, up to the rounding by which two
    compiled programs differ.

    Args:
        devices: one or several of this process, each once, of one platform that computes in float64
            (no TPU), or a mesh of them.

    Raises:
        ValueError: no devices, those of another process, TPUs, or one device twice.

    Example:
        >>> from dpjax import accounting as acc
        >>> sigmas = np.linspace(1.0, 4.0, 300)
        >>> with acc.over_devices(jax.devices()):
        ...     spread = acc.epsilon(acc.Repeated(acc.Gaussian(sigmas), 100), delta=1e-5)
        >>> one = acc.epsilon(acc.Repeated(acc.Gaussian(sigmas), 100), delta=1e-5)
        >>> bool(np.allclose(spread, one, rtol=1e-12))
        True
    """
    found = devices.devices.flat if isinstance(devices, jax.sharding.Mesh) else devices
    named = tuple(found) if isinstance(found, Iterable) else (found,)
    local = {*jax.local_devices(), *jax.local_devices(backend="cpu")}
    if not named or not set(named) <= local or any(one.platform == "tpu" for one in named):
        raise ValueError(
            f"devices must be some of this process's CPUs or GPUs, got {checks.render(named)}"
        )
    if len(set(named)) < len(named):
        raise ValueError(f"devices must be named once each, got {checks.render(named)}")
    token = _NAMED.set(named)
    try:
        yield
    finally:
        _NAMED.reset(token)


def sweep_devices() -> tuple[jax.Device, ...]:
    """The devices that a large sweep is divided over; fewer than two for none."""
    devices = _NAMED.get(None)
    if devices is None:
        devices = tuple(jax.local_devices()) if jax.default_backend() == "gpu" else ()
    # Within a trace arguments cannot be handed out to devices: one takes all.
    return () if devices and is_traced(jax.device_put(_ZERO)) else devices


def _call_host(function: Host, specs: Shapes, args: Sequence[jax.Array]) -> list[jax.Array]:
    """`jax.pure_callback` whose float64 stays float64.

    JAX may run the callback in a thread in which x64 is off, and would there cut what goes in and
    what comes out to float32: float64 travels as pairs of 32-bit words. `function` takes and
    returns NumPy arrays; `specs` are the shapes and types of its result.
    """
    wide, wide_out = ([np.dtype(a.dtype) == np.float64 for a in row] for row in (args, specs))

    def host(*values: np.ndarray) -> tuple[np.ndarray, ...]:
        values = tuple(
            np.array(v).view(np.float64)[..., 0] if w else np.asarray(v)
            for v, w in zip(values, wide, strict=True)
        )
        found = jax.tree.leaves(function(*values))
        return tuple(
            np.array(o, np.float64, order="C")[..., None].view(np.uint32) if w else o
            for o, w in zip(found, wide_out, strict=True)
        )

    words = [
        jax.lax.bitcast_convert_type(a, jnp.uint32) if w else a
        for a, w in zip(args, wide, strict=True)
    ]
    types = tuple(
        jax.ShapeDtypeStruct((*s.shape, 2), jnp.uint32) if w else s
        for s, w in zip(specs, wide_out, strict=True)
    )
    found = jax.pure_callback(host, types, *words)
    return [
        jax.lax.bitcast_convert_type(o, jnp.float64) if w else o
        for o, w in zip(found, wide_out, strict=True)
    ]


# XLA uses half of a vector unit of 512 bits unless it is told to use all of it. And on CPUs a
# program takes half the time to compile without the emitters, where a release can do without them.
_WIDE: dict[str, Any] = {"xla_cpu_prefer_vector_width": 512}
_OPTIONS: tuple[dict[str, Any], ...] = (
    {"xla_cpu_use_fusion_emitters": False, **_WIDE},
    _WIDE,
)


def compile_for_host(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """The program, by the first options that this release of XLA has."""
    for options in _OPTIONS:
        try:
            return lowered.compile(options)
        except Exception:  # no such option, or an error that comes again below
            continue
    return lowered.compile()


# What a traced program asks in float64, as one operation. JAX lowers `argmin`, `cumsum` and special
# functions by tracing them anew, in the precision of the program: within this one that is float64.
@functools.cache
def _ask_operation() -> Primitive:
    """The operation, with its rules."""
    # `jax.extend` brings all of Pallas, a twentieth of the time of `import jax`, and is needed here
    # within a trace alone.
    from jax.extend.core import Primitive

    ask = Primitive("ask_in_float64")
    ask.multiple_results = True
    ask.def_impl(_answer)
    ask.def_abstract_eval(_say_shapes)
    batching.primitive_batchers[ask] = _batch
    mlir.register_lowering(ask, _lower)
    return ask


def ask_in_float64(
    host: Host,
    operations: Operations | None,
    spec: PyTree[jax.ShapeDtypeStruct],
    args: Sequence[jax.Array],
) -> NumberTree:
    """The answer to a question that a traced program asks in float64.

    A program compiled for a CPU calls NumPy, which answers as soon, and need not be compiled; so
    does one for a TPU, which emulates float64: bounds charge the rounding of IEEE's. One that is
    compiled for a GPU, or exported, has the operations in it.

    Args:
        host: from NumPy arrays to a tree of them; further axes in front of all arguments, which
            vmap adds, are in front of the answer.
        operations: the same of traced arrays, within the float64 scope; None where there are none:
            then the host is called wherever the program runs.
        spec: the tree of shapes and types of the answer.
        args: arrays or tracers.
    """
    leaves, tree = jax.tree.flatten(spec)
    specs = tuple(jax.ShapeDtypeStruct(s.shape, s.dtype) for s in leaves)
    found = _ask_operation().bind(*args, host=host, operations=operations, specs=specs)
    return jax.tree.unflatten(tree, found)


def _answer(
    *values: jax.Array, host: Host, operations: Operations | None, specs: Shapes
) -> list[jax.Array]:
    found = jax.tree.leaves(host(*map(np.asarray, values)))
    return [jnp.asarray(o, s.dtype) for o, s in zip(found, specs, strict=True)]


def _say_shapes(
    *avals: jax.core.ShapedArray, specs: Shapes, **_: Host | Operations | None
) -> list[jax.core.ShapedArray]:
    return [jax.core.ShapedArray(s.shape, s.dtype) for s in specs]


def _batch(
    values: Sequence[jax.Array],
    axes: Sequence[int | None],
    *,
    specs: Shapes,
    **how: Host | Operations | None,
) -> tuple[list[jax.Array], list[int]]:
    mapped = zip(values, axes, strict=True)
    (size,) = {v.shape[a] for v, a in mapped if a is not None}
    values = [
        jnp.broadcast_to(v, (size, *v.shape)) if a is None else jnp.moveaxis(v, a, 0)
        for v, a in zip(values, axes, strict=True)
    ]
    specs = tuple(jax.ShapeDtypeStruct((size, *s.shape), s.dtype) for s in specs)
    return _ask_operation().bind(*values, specs=specs, **how), [0] * len(specs)


def _lower(
    ctx: mlir.LoweringRuleContext,
    *values: ir.Value,
    host: Host,
    operations: Operations | None,
    specs: Shapes,
) -> Sequence[ir.Value | Sequence[ir.Value]]:
    module = ctx.module_context
    # Where a release of JAX does not say so, the host is called, which every platform can.
    exported = getattr(getattr(module, "lowering_parameters", None), "for_export", False)
    if operations is None or not (exported or set(module.platforms) <= {"cuda", "rocm"}):
        return mlir.lower_fun(lambda *v: _call_host(host, specs, v))(ctx, *values)
    avals = [a for a in ctx.avals_in if isinstance(a, jax.core.ShapedArray)]  # all of them
    given = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    with float64_scope():
        block = export.export(jax.jit(operations), platforms=module.platforms)(*given)
    return mlir.lower_fun(lambda *v: jax.tree.leaves(block.call(*v)))(ctx, *values)


@overload
def narrow(value: np.ndarray, dtype: DTypeLike, rounding: Rounding) -> np.ndarray: ...
@overload
def narrow(value: jax.Array, dtype: DTypeLike, rounding: Rounding) -> jax.Array: ...
def narrow(
    value: np.ndarray | jax.Array, dtype: DTypeLike, rounding: Rounding
) -> np.ndarray | jax.Array:
    """Cast to a narrower float without crossing to the unsafe side."""
    if dtype == np.float64:
        return value
    limit = np.asarray(np.inf if rounding == "up" else -np.inf, dtype)
    if isinstance(value, jax.Array):
        # A cast to float32 and back may be compiled away.
        near = jax.lax.reduce_precision(value, 8, 23)
        single = near.astype(dtype)
        if rounding == "nearest":
            return single
        unsafe = near < value if rounding == "up" else near > value
        single = jnp.where(unsafe, jnp.nextafter(single, limit), single)
        # Below the least normal number float32 may be taken for 0: one further out, or 0, is safe.
        tiny = np.finfo(dtype).tiny
        out = (value > 0) == (rounding == "up")
        least = jnp.where(out, jnp.sign(value).astype(dtype) * tiny, jnp.zeros_like(single))
        return jnp.where(abs(value) < float(tiny), least, single)
    with np.errstate(over="ignore"):  # beyond the narrow range is infinity, which is what we mean
        narrow = value.astype(dtype)
    if rounding == "nearest":
        return narrow
    unsafe = narrow < value if rounding == "up" else narrow > value
    return np.where(unsafe, np.nextafter(narrow, limit), narrow)
