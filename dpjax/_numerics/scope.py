"""Enter float64 whatever the caller's default precision, and whatever his trace."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._numerics import checks

Rounding = Literal["up", "down", "nearest"]
_ZERO = np.float32(0.0)
# The devices that a block `over_devices` names, in this thread.
_NAMED: contextvars.ContextVar[tuple[Any, ...] | None] = contextvars.ContextVar("devices")


def enable_x64(on: bool = True) -> Any:
    """The context in which JAX's default is float64; its place differs before jax 0.8."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(on)
    from jax import experimental

    return experimental.enable_x64(on)  # pyrefly: ignore


def is_traced(*values: Any) -> bool:
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
def float64_scope(device: Any = None):
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
def cpu() -> Any:
    return jax.devices("cpu")[0]


@functools.cache
def best_device() -> Any:
    # A TPU has no complex128 and emulates float64: the host computes for it.
    return None if jax.default_backend() in ("cpu", "gpu") else cpu()


def processors() -> int:
    """How many may be used at a time."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every platform
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@contextlib.contextmanager
def over_devices(devices: Sequence[Any] | jax.sharding.Mesh) -> Iterator[None]:
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
            f"devices must be some of this process's CPUs or GPUs, got {checks.shown(named)}"
        )
    if len(set(named)) < len(named):
        raise ValueError(f"devices must be named once each, got {checks.shown(named)}")
    token = _NAMED.set(named)
    try:
        yield
    finally:
        _NAMED.reset(token)


def sweep_devices() -> tuple[Any, ...]:
    """The devices that a large sweep is divided over; fewer than two for none."""
    devices = _NAMED.get(None)
    if devices is None:
        devices = tuple(jax.local_devices()) if jax.default_backend() == "gpu" else ()
    # Within a trace arguments cannot be handed out to devices: one takes all.
    return () if devices and is_traced(jax.device_put(_ZERO)) else devices


def call_host(function: Callable, spec: Any, args: Sequence[Any], vmap_method: str) -> Any:
    """`jax.pure_callback` whose float64 stays float64.

    JAX may run the callback in a thread in which x64 is off, and would there cut what goes in and
    what comes out to float32: float64 travels as pairs of 32-bit words. `function` takes and
    returns NumPy arrays; `spec` is the tree of shapes and types of its result.
    """
    leaves, tree = jax.tree.flatten(spec)
    wide = [np.dtype(a.dtype) == np.float64 for a in args]
    wide_out = [np.dtype(s.dtype) == np.float64 for s in leaves]

    def host(*values: Any) -> tuple:
        values = tuple(
            np.array(v).view(np.float64)[..., 0] if w else v
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
    specs = tuple(
        jax.ShapeDtypeStruct((*s.shape, 2), jnp.uint32) if w else s
        for s, w in zip(leaves, wide_out, strict=True)
    )
    found = jax.pure_callback(host, specs, *words, vmap_method=vmap_method)
    return jax.tree.unflatten(
        tree,
        [
            jax.lax.bitcast_convert_type(o, jnp.float64) if w else o
            for o, w in zip(found, wide_out, strict=True)
        ],
    )


def narrow(value: np.ndarray, dtype: Any, rounding: Rounding) -> np.ndarray:
    """Cast to a narrower float without crossing to the unsafe side."""
    if dtype == np.float64:
        return value
    with np.errstate(over="ignore"):  # beyond the narrow range is infinity, which is what we mean
        narrow = value.astype(dtype)
    if rounding == "nearest":
        return narrow
    unsafe = narrow < value if rounding == "up" else narrow > value
    limit = np.asarray(np.inf if rounding == "up" else -np.inf, dtype)
    return np.where(unsafe, np.nextafter(narrow, limit), narrow)
