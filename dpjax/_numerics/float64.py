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

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._numerics.concrete import Ladder as Ladder
from dpjax._numerics.concrete import batched, concrete, leading, processors
from dpjax._numerics.concrete import reproducible as reproducible
from dpjax._numerics.scope import best_device, cpu, plain_rules
from dpjax._numerics.scope import float64_scope as float64_scope
from dpjax._numerics.scope import is_traced as is_traced

Rounding = Literal["up", "down", "nearest"]


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
        return concrete(core, args, ndims, batch, best_device(), ladder, processors())
    if jax.config.read("jax_enable_x64"):
        with plain_rules():
            arrays = [jnp.asarray(a, jnp.float64) for a in args]
            inline = ladder.cores[0] if ladder is not None and ladder.cores else core
            return batched(inline, ndims, batch)(*arrays)
    return _callback(core, args, ndims, batch, rounding, ladder)


def _callback(
    core: Callable,
    args: Sequence[Any],
    ndims: tuple[int, ...],
    batch: int,
    rounding: Rounding,
    ladder: Ladder | None,
) -> Any:
    lead = leading(args, ndims)

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
        out = concrete(core, full, ndims, batch, cpu(), ladder)
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
