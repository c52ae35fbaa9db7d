"""Enter float64 whatever the caller's default precision, and whatever his trace."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import jax
import numpy as np

_ZERO = np.float32(0.0)


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
