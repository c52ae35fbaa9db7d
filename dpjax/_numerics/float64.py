"""Evaluate a pure function in float64, whatever the caller's default precision and whatever his
trace.

Accounting in float32 is off by 0.2 % to 170×, yet a library must not switch its user's program to
float64. JAX's x64 switch only works as the outermost scope: entered inside a float32 trace, what is
lowered by being traced anew (`argmin`, `cumsum`) fails. Hence two roads, chosen by the arguments:

* concrete arguments: NumPy for a few settings, a jitted function inside the x64 scope for a sweep,
  worked through by all processors; results as NumPy float64;
* traced arguments: one operation of the program (`scope.ask_in_float64`), which is the first road
  where that runs on a CPU or TPU, and the core's operations, compiled in float64, on a GPU and in
  what is exported. Its `custom_jvp` has the core's Jacobian, by the same roads (so it nests to any
  order), or the one that the caller gives.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpjax._numerics import arrays
from dpjax._numerics.arrays import count_numbers, push_tangents
from dpjax._numerics.explicit import on_one_device
from dpjax._numerics.scope import Rounding as Rounding
from dpjax._numerics.scope import ask_in_float64 as ask_in_float64
from dpjax._numerics.scope import (
    best_device,
    compile_for_host,
    cpu,
    enable_x64,
    processors,
    sweep_devices,
)
from dpjax._numerics.scope import float64_scope as float64_scope
from dpjax._numerics.scope import is_traced as is_traced
from dpjax._numerics.scope import narrow as narrow

_FEW_SETTINGS = 256  # settings of a sweep that NumPy answers one by one: a compilation costs more
_FEW_POOR = 128  # the same of those that are repeated with a finer core
_BATCHES_AT_A_TIME = 16  # batches that a thread of a sweep works through at a time


class Ladder(NamedTuple):
    """Finer cores to repeat an evaluation with, where `poor` says that it is not good enough.

    Fields:
        cores: same signature and result as the first core, ever more costly.
        poor: from the result, arrays with one axis for the whole sweep or for a batch of it (none
            for a single setting), to a mask of that axis.
        merge: from an old and a finer result to the one that is kept; by default the finer.
    """

    cores: tuple[Callable, ...]
    poor: Callable[[Any], jax.Array | np.ndarray]
    merge: Callable[[Any, Any], Any] = lambda old, new: new


def leading(args: Sequence[Any], ndims: Sequence[int]) -> tuple[int, ...]:
    """The sweep's axes: what is in front of each setting's own."""
    return np.broadcast_shapes(
        *(np.shape(a)[: np.ndim(a) - n] for a, n in zip(args, ndims, strict=True))
    )


def setting_shapes(args: Sequence[Any], ndims: Sequence[int]) -> list[jax.ShapeDtypeStruct]:
    """What one setting of each argument is."""
    shapes = [np.shape(a)[np.ndim(a) - n :] for a, n in zip(args, ndims, strict=True)]
    return [jax.ShapeDtypeStruct(shape, np.float64) for shape in shapes]


def batched(
    core: Callable, ndims: tuple[int, ...], batch: int, ladder: Ladder | None = None
) -> Callable:
    """Map `core` over the broadcast leading axes of its arguments, `batch` settings at a time.

    A finer core of the ladder runs where one of a batch needs it, and counts for those that do.
    """
    finer = () if ladder is None else ladder.cores

    def climb(out: Any, row: Sequence[jax.Array], many: bool) -> Any:
        for core in finer:
            poor = ladder.poor(out)  # pyrefly: ignore

            def refine(out: Any, core: Callable = core, poor: Any = poor) -> Any:
                new = ladder.merge(out, (jax.vmap(core) if many else core)(*row))  # pyrefly: ignore

                def pick(a: Any, b: Any) -> Any:
                    mask = poor.reshape(poor.shape + (1,) * (a.ndim - poor.ndim))
                    return jnp.where(mask, b, a)

                return jax.tree.map(pick, out, new)

            out = jax.lax.cond(jnp.any(poor), refine, lambda out: out, out)
        return out

    def run(*args: jax.Array) -> Any:
        lead = leading(args, ndims)
        if lead == ():
            return climb(core(*args), args, many=False)
        size = math.prod(lead)
        if size == 0:
            one = jax.eval_shape(core, *setting_shapes(args, ndims))
            return jax.tree.map(lambda s: jnp.zeros(lead + s.shape, s.dtype), one)
        # Settings are padded to whole batches, so that only one batch shape is compiled.
        width = min(batch, size)
        blocks = -(-size // width)

        def spread(a: jax.Array, n: int) -> jax.Array:
            tail = a.shape[a.ndim - n :]
            flat = jnp.broadcast_to(a, lead + tail).reshape((size, *tail))
            index = jnp.minimum(jnp.arange(blocks * width), size - 1)
            return flat[index].reshape((blocks, width, *tail))

        rows = tuple(spread(a, n) for a, n in zip(args, ndims, strict=True))
        out = jax.lax.map(lambda row: climb(jax.vmap(core)(*row), row, many=True), rows)
        return jax.tree.map(
            lambda o: o.reshape((blocks * width, *o.shape[2:]))[:size].reshape(lead + o.shape[2:]),
            out,
        )

    return run


class CompiledProgram:
    """A core for settings of some shapes: on NumPy for a few, compiled for a sweep.

    Which of the two depends on the question alone, not on what was asked before: the same question
    has the same answer to the last bit.
    """

    def __init__(self, core: Callable, ndims: tuple[int, ...], batch: int):
        self._core, self._ndims = core, ndims
        self._batched = batched(core, ndims, batch)
        # NumPy cannot differentiate: Jacobians are compiled for one setting too.
        self._compile_one = getattr(core, "derivative", False)
        self._compiled: dict[tuple, Any] = {}  # by shapes, device and devices

    def one(self, args: Sequence[np.ndarray], device: Any = None) -> Any:
        """One setting, on NumPy (a derivative: compiled)."""
        if self._compile_one:
            return self.block(args, device)
        with np.errstate(all="ignore"):
            found = self._core(*args)
            if arrays.namespace(found) is arrays.JAX:
                # Written against jax.numpy, which outside of the scope computes in float32.
                with float64_scope(device):
                    found = self._core(*args)
            return arrays.tree_map(np.asarray, found)

    def block(self, args: Sequence[np.ndarray], device: Any, devices: tuple[Any, ...] = ()) -> Any:
        """A block of a sweep, compiled for its shapes; one as large on each of several devices."""
        shapes = tuple([np.shape(a) for a in args])
        key = shapes, device, devices
        if key not in self._compiled:
            function, places = jax.jit(self._batched), [None] * len(args)
            if devices:
                function, places = self._divided(shapes, devices)
            arguments = [
                jax.ShapeDtypeStruct(shape, np.float64, sharding=place)
                for shape, place in zip(shapes, places, strict=True)
            ]
            # A mesh of the caller's is about the caller's arrays, and so is `disable_jit`.
            alone = on_one_device() if devices else contextlib.nullcontext()
            with jax.disable_jit(False), float64_scope(device), alone:
                lowered = function.trace(*arguments).lower()
            self._compiled[key] = compile_for_host(lowered), places
        compiled, places = self._compiled[key]
        # What is compiled does not see the caller's trace.
        alone = on_one_device() if devices else contextlib.nullcontext()
        with jax.disable_jit(False), enable_x64(), alone:
            if devices:
                args = [jax.device_put(a, place) for a, place in zip(args, places, strict=True)]
            return jax.tree.map(np.asarray, compiled(*args))

    def _divided(self, shapes: Sequence[tuple], devices: tuple[Any, ...]) -> tuple[Any, list[Any]]:
        """The program of settings divided over devices that exchange nothing, and its places."""
        mesh = Mesh(np.asarray(devices), ("settings",))
        specs = tuple(
            PartitionSpec("settings") if len(shape) > n else PartitionSpec()
            for shape, n in zip(shapes, self._ndims, strict=True)
        )
        mapped = jax.shard_map(
            self._batched,
            mesh=mesh,
            in_specs=specs,
            out_specs=PartitionSpec("settings"),
            check_vma=False,  # cores carry constants through their loops
        )
        return jax.jit(mapped), [NamedSharding(mesh, spec) for spec in specs]


@functools.lru_cache(maxsize=256)
def program(core: Callable, ndims: tuple[int, ...], batch: int) -> CompiledProgram:
    """The one `Program` of these arguments."""
    return CompiledProgram(core, ndims, batch)


def _rows(a: np.ndarray, n: int, lead: tuple[int, ...], index: np.ndarray) -> np.ndarray:
    """The settings at these flat indices; what all settings share stays as it is."""
    tail = a.shape[a.ndim - n :]
    if math.prod(a.shape[: a.ndim - n]) == 1:
        return a.reshape(tail)
    return np.broadcast_to(a, lead + tail)[np.unravel_index(index, lead)]


def _sweep(
    settings: CompiledProgram,
    args: Sequence[np.ndarray],
    ndims: tuple[int, ...],
    width: int,
    device: Any,
    index: np.ndarray,
    alone: bool,
) -> Any:
    """The settings at these flat indices, in blocks, as many at a time as threads or devices.

    Sizes are padded to powers of two or to whole blocks, so that few are compiled.
    """
    lead = leading(args, ndims)

    def rows(part: np.ndarray) -> list[np.ndarray]:
        return [_rows(a, n, lead, part) for a, n in zip(args, ndims, strict=True)]

    if math.prod(lead) <= _FEW_SETTINGS or len(index) <= _FEW_POOR:
        answers = [settings.one(rows(one), device) for one in index]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *answers)
    threads, devices = (1, ()) if alone else (processors(), sweep_devices())
    # A block that is the whole of a GPU's work is not cut.
    whole = 1 << (-(-len(index) // max(1, len(devices))) - 1).bit_length()
    named = devices[0].platform if devices else jax.default_backend()
    on_cpu = device is not None or named == "cpu"
    width = min(whole, width) if on_cpu else whole
    blocks = -(-len(index) // width)
    devices = devices[:blocks]
    together = max(1, len(devices))
    blocks = -(-blocks // together)
    padded = np.resize(index, blocks * together * width).reshape(blocks, together * width)

    def block(part: np.ndarray) -> Any:
        return settings.block(rows(part), device, devices)

    if blocks == 1 or threads == 1 or devices:
        parts = [block(part) for part in padded]
    else:
        first = block(padded[0])  # compiles, so that the threads do not each
        with ThreadPoolExecutor(threads) as pool:
            parts = [first, *pool.map(block, padded[1:])]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(index)], *parts)


def concrete(
    core: Callable,
    args: Sequence[Any],
    ndims: tuple[int, ...],
    batch: int,
    device: Any,
    ladder: Ladder | None = None,
    alone: bool = True,
) -> Any:
    """Results as NumPy float64, the ladder's where they are poor; alone, a sweep has one thread."""
    args = [np.asarray(a, np.float64) for a in args]
    lead = leading(args, ndims)
    size = math.prod(lead)
    if size == 1 and lead:
        single = [a.reshape(a.shape[a.ndim - n :]) for a, n in zip(args, ndims, strict=True)]
        out = concrete(core, single, ndims, batch, device, ladder)
        return jax.tree.map(lambda o: o.reshape(lead + o.shape), out)

    def ask(core: Callable, index: np.ndarray) -> Any:
        chosen = program(core, ndims, batch)
        if lead == ():
            return chosen.one(args, device)
        return _sweep(chosen, args, ndims, batch * _BATCHES_AT_A_TIME, device, index, alone)

    if size == 0:
        return program(core, ndims, batch).block(args, device)
    out = ask(core, np.arange(size))
    for finer in ladder.cores if ladder is not None else ():
        poor = np.broadcast_to(ladder.poor(out), lead and (size,))  # pyrefly: ignore
        if not poor.any():
            break
        if lead == ():
            out = ladder.merge(out, ask(finer, poor))  # pyrefly: ignore
            continue
        (index,) = np.nonzero(poor)
        old = jax.tree.map(lambda o, index=index: o[index], out)
        kept = ladder.merge(old, ask(finer, index))  # pyrefly: ignore

        def put(whole: np.ndarray, part: np.ndarray, index: np.ndarray = index) -> np.ndarray:
            whole = np.array(whole)
            whole[index] = part
            return whole

        out = jax.tree.map(put, out, kept)
    if lead == ():
        return out
    return jax.tree.map(lambda o: o.reshape(lead + o.shape[1:]), out)


class Derivative(NamedTuple):
    """A core's derivative, given as a core of its own.

    Fields:
        core: the signature of the first; returns (out, Jacobian), the latter with a tuple over the
            arguments in place of every leaf of out.
        ladder: as of the first core, on such pairs.
        out: shapes of one setting's out.
    """

    core: Callable | None
    ladder: Ladder | None
    out: Any


@functools.lru_cache(maxsize=256)
def _with_jacobian(core: Callable, wrt: tuple[int, ...], reverse: bool) -> Callable:
    """(result, Jacobian) of a core, always compiled: NumPy has no derivatives."""
    transform = jax.jacrev if reverse else jax.jacfwd

    def both(*args: jax.Array) -> tuple[Any, Any]:
        def twice(*args: jax.Array) -> tuple[object, object]:
            return (core(*args),) * 2

        jacobian, out = transform(twice, argnums=wrt, has_aux=True)(*args)
        return out, jacobian

    both.derivative = True  # see `Program`  # pyrefly: ignore
    return both


def evaluate(
    core: Callable,
    args: Sequence[Any],
    ndims: Sequence[int],
    *,
    batch: int = 8,
    rounding: Rounding = "nearest",
    ladder: Ladder | None = None,
    derivative: Derivative | None = None,
) -> Any:
    """Evaluate `core` in float64 over the broadcast leading axes of `args`.

    Args:
        core: pure function of float64 arrays, one setting at a time, returning a pytree of arrays.
            Compiled programs are cached by its identity, so make it once.
        args, ndims: numbers, arrays or tracers; argument i has `ndims[i]` axes that belong to one
            setting, and those in front broadcast together to the shape of the sweep.
        batch: settings evaluated together; a sweep runs over blocks of this many.
        rounding: direction of the final cast to float32 inside a float32 program.
        ladder: finer cores for the settings that need them; it is differentiated only where a
            derivative is given.
        derivative: where it is given, derivatives are its, once, also in a float64 program.

    Returns:
        The pytree of `core` with the sweep's axes in front: NumPy float64 for concrete arguments,
        traced values otherwise, with derivatives of any order (a given derivative: once).
    """
    ndims = tuple(ndims)
    if not is_traced(*args):
        return concrete(core, args, ndims, batch, best_device(), ladder, alone=False)
    return _evaluate_traced(core, args, ndims, batch, rounding, ladder, derivative)


def _evaluate_traced(
    core: Callable,
    args: Sequence[Any],
    ndims: tuple[int, ...],
    batch: int,
    rounding: Rounding,
    ladder: Ladder | None,
    derivative: Derivative | None,
) -> Any:
    lead = leading(args, ndims)
    dtype = jnp.zeros(()).dtype  # the program's default

    def aligned(a: Any, n: int) -> Any:
        # Concrete float64 would be cut to float32 on entering the trace: keep it outside.
        if not is_traced(a):
            return np.asarray(a, np.float64)
        return a.reshape((1,) * (len(lead) - (a.ndim - n)) + a.shape)

    args = [aligned(a, n) for a, n in zip(args, ndims, strict=True)]
    traced = [i for i, a in enumerate(args) if is_traced(a)]

    cores = setting_shapes(args, ndims)
    if derivative is not None:
        inner = derivative.out
    else:
        with float64_scope():
            inner = jax.eval_shape(core, *cores)
    spec = jax.tree.map(lambda s: jax.ShapeDtypeStruct(lead + s.shape, dtype), inner)

    def answer(xp: Any, run: Callable, values: Sequence[Any]) -> Any:
        full, shape = _complete(args, ndims, traced, lead, values)
        return jax.tree.map(
            lambda o, s: xp.broadcast_to(narrow(o, dtype, rounding), shape + s.shape),
            run(*full),
            inner,
        )

    def host(*values: Any) -> Any:
        return answer(np, lambda *a: concrete(core, a, ndims, batch, cpu(), ladder), values)

    def operations(*values: jax.Array) -> Any:
        return answer(jnp, batched(core, ndims, batch, ladder), values)

    @jax.custom_jvp
    def call(*values: jax.Array) -> Any:
        return ask_in_float64(host, operations, spec, values)

    @call.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple:
        moving = [k for k, t in enumerate(tangents) if t.dtype != jax.dtypes.float0]
        given = dict(zip(traced, primals, strict=True))
        full = [given.get(i, a) for i, a in enumerate(args)]
        wrt = tuple(traced[k] for k in moving)
        if not moving:
            return call(*primals), jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec)
        if derivative is not None:  # the answer and its derivatives from one question
            out, jacobian = _given(derivative, full, ndims, batch, rounding, cores, wrt)
        elif ladder is not None:
            raise NotImplementedError("a core with a ladder needs a derivative of its own")
        else:  # by JAX, the cheaper way around
            few = count_numbers(inner) < count_numbers([cores[i] for i in wrt])
            both = _with_jacobian(core, wrt, reverse=few)
            jacobian = _evaluate_traced(both, full, ndims, batch, "nearest", None, None)[1]
            out = call(*primals)
        flat, tree = jax.tree.flatten(out)
        moved = [(tangents[k], len(cores[traced[k]].shape)) for k in moving]
        each = zip(flat, jax.tree.leaves(inner), tree.flatten_up_to(jacobian), strict=True)
        return out, jax.tree.unflatten(tree, [push_tangents(o, s, moved, p) for o, s, p in each])

    return call(*(args[i] for i in traced))


def _complete(args: list, ndims: tuple, traced: list, lead: tuple, values: Any) -> tuple:
    """All arguments, of which the traced ones have these values, and the axes of the sweep."""
    full, more = list(args), ()
    for i, value in zip(traced, values, strict=True):
        full[i] = value.astype(np.float64)
        more = value.shape[: value.ndim - ndims[i] - len(lead)]  # axes that vmap put in front
    for i, a in enumerate(full):
        if i not in traced:
            full[i] = a.reshape((1,) * (len(more + lead) - (a.ndim - ndims[i])) + a.shape)
    return full, more + lead


def _given(
    derivative: Derivative,
    args: Sequence[Any],
    ndims: tuple[int, ...],
    batch: int,
    rounding: Rounding,
    cores: Sequence[jax.ShapeDtypeStruct],
    wrt: tuple[int, ...],
) -> tuple[Any, Any]:
    """The answer with the derivatives that are given of it."""
    if derivative.core is None:
        raise NotImplementedError("this bound is differentiable once, not twice")
    shapes = (derivative.out, jax.tree.map(lambda _: tuple(cores), derivative.out))
    once = Derivative(None, None, shapes)
    out, jacobian = _evaluate_traced(
        derivative.core, args, ndims, batch, rounding, derivative.ladder, once
    )
    tree = jax.tree.structure(derivative.out)
    some = [tuple(one[i] for i in wrt) for one in tree.flatten_up_to(jacobian)]
    return out, tree.unflatten(some)


def to_float(value: Any) -> Any:
    """A concrete scalar as a Python float, anything else as it is."""
    return float(value) if isinstance(value, np.ndarray) and value.ndim == 0 else value
