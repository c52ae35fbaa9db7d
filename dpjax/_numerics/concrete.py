"""Concrete settings: few on NumPy, many compiled once and worked through by all processors."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpjax._numerics import arrays
from dpjax._numerics.explicit import on_one_device
from dpjax._numerics.scope import enable_x64, float64_scope

_FEW = 256  # settings of a sweep that NumPy answers one by one: a compilation costs more
_FEW_POOR = 128  # the same of those that are repeated with a finer core
_BLOCK = 16  # batches that a thread of a sweep works through at a time
# XLA uses half of a vector unit of 512 bits unless it is told to use all of it. And on CPUs a
# program takes half the time to compile without the emitters, where a release can do without them.
_WIDE: dict[str, Any] = {"xla_cpu_prefer_vector_width": 512}
_OPTIONS: tuple[Any, ...] = ({"xla_cpu_use_fusion_emitters": False, **_WIDE}, _WIDE)


def processors() -> int:
    """How many may be used at a time."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every platform
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def leading(args: Sequence[Any], ndims: Sequence[int]) -> tuple[int, ...]:
    """The sweep's axes: what is in front of each setting's own."""
    return np.broadcast_shapes(
        *(np.shape(a)[: np.ndim(a) - n] for a, n in zip(args, ndims, strict=True))
    )


def batched(core: Callable, ndims: tuple[int, ...], batch: int) -> Callable:
    """Map `core` over the broadcast leading axes of its arguments, `batch` settings at a time."""

    def run(*args: jax.Array) -> Any:
        lead = leading(args, ndims)
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


def _compiled(lowered: Any) -> Any:
    """The program, by the first options that this release of XLA has."""
    for options in _OPTIONS:
        try:
            return lowered.compile(options)
        except Exception:  # no such option, or an error that comes again below
            continue
    return lowered.compile()


class Program:
    """A core for settings of some shapes: on NumPy for a few, compiled for a sweep.

    Which of the two depends on the question alone, not on what was asked before: the same question
    has the same answer to the last bit.

    Args:
        core, ndims, batch: see `float64.evaluate`.
    """

    def __init__(self, core: Callable, ndims: tuple[int, ...], batch: int):
        self._core, self._ndims, self._batch = core, ndims, batch
        # NumPy cannot differentiate: Jacobians are compiled for one setting too.
        self._compile_one = getattr(core, "derivative", False)
        self._function = jax.jit(batched(core, ndims, batch))
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
            function, places = self._function, [None] * len(args)
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
            self._compiled[key] = _compiled(lowered), places
        compiled, places = self._compiled[key]
        # What is compiled does not see the caller's trace.
        alone = on_one_device() if devices else contextlib.nullcontext()
        with jax.disable_jit(False), enable_x64(), alone:
            if devices:
                args = [jax.device_put(a, place) for a, place in zip(args, places, strict=True)]
            return jax.tree.map(np.asarray, compiled(*args))

    def _divided(self, shapes: Sequence[tuple], devices: tuple[Any, ...]) -> tuple[Any, list[Any]]:
        """The program of settings that are divided over devices, and where its arguments lie.

        Every device works through its own settings as one device would; nothing is exchanged.
        """
        mesh = Mesh(np.asarray(devices), ("settings",))
        specs = tuple(
            PartitionSpec("settings") if len(shape) > n else PartitionSpec()
            for shape, n in zip(shapes, self._ndims, strict=True)
        )
        mapped = jax.shard_map(
            batched(self._core, self._ndims, self._batch),
            mesh=mesh,
            in_specs=specs,
            out_specs=PartitionSpec("settings"),
            check_vma=False,  # cores carry constants through their loops
        )
        return jax.jit(mapped), [NamedSharding(mesh, spec) for spec in specs]


@functools.lru_cache(maxsize=256)
def program(core: Callable, ndims: tuple[int, ...], batch: int) -> Program:
    """The one `Program` of these arguments."""
    return Program(core, ndims, batch)


class Ladder(NamedTuple):
    """Finer cores to repeat an evaluation with, where `poor` says that it is not good enough.

    Fields:
        cores: same signature and result as the first core, ever more costly.
        poor: from the result, NumPy arrays with one axis for the whole sweep (none for a single
            setting), to a mask of that axis.
        merge: from an old and a finer result to the one that is kept; by default the finer.
    """

    cores: tuple[Callable, ...]
    poor: Callable[[Any], np.ndarray]
    merge: Callable[[Any, Any], Any] = lambda old, new: new


def _rows(a: np.ndarray, n: int, lead: tuple[int, ...], index: np.ndarray) -> np.ndarray:
    """The settings at these flat indices; what all settings share stays as it is."""
    tail = a.shape[a.ndim - n :]
    if math.prod(a.shape[: a.ndim - n]) == 1:
        return a.reshape(tail)
    return np.broadcast_to(a, lead + tail)[np.unravel_index(index, lead)]


def _sweep(
    settings: Program,
    args: Sequence[np.ndarray],
    ndims: tuple[int, ...],
    width: int,
    device: Any,
    index: np.ndarray,
    threads: int,
    devices: tuple[Any, ...],
) -> Any:
    """The settings at these flat indices, in blocks of one size, as many at a time as threads.

    Or as devices: each takes a block as one device would.

    Sizes are padded to powers of two or to whole blocks, so that few are compiled.
    """
    lead = leading(args, ndims)

    def rows(part: np.ndarray) -> list[np.ndarray]:
        return [_rows(a, n, lead, part) for a, n in zip(args, ndims, strict=True)]

    if math.prod(lead) <= _FEW or len(index) <= _FEW_POOR:
        answers = [settings.one(rows(one), device) for one in index]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *answers)
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
    threads: int = 1,
    devices: tuple[Any, ...] = (),
) -> Any:
    """The core's results as NumPy float64, with the ladder's where they are poor.

    Arguments as of `float64.evaluate`, all of them concrete.
    """
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
        return _sweep(chosen, args, ndims, batch * _BLOCK, device, index, threads, devices)

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
        old = jax.tree.map(lambda o: o[index], out)  # noqa: B023
        kept = ladder.merge(old, ask(finer, index))  # pyrefly: ignore

        def put(whole: np.ndarray, part: np.ndarray, index: np.ndarray = index) -> np.ndarray:
            whole = np.array(whole)
            whole[index] = part
            return whole

        out = jax.tree.map(put, out, kept)
    if lead == ():
        return out
    return jax.tree.map(lambda o: o.reshape(lead + o.shape[1:]), out)
