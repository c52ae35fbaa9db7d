"""Enter float64 whatever the caller's default precision, and whatever his trace."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from dpjax._numerics import checks

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
