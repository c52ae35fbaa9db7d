"""How many records of a step are worked on at once where a whole draw does not fit into memory.

A piece is that of `make_draws` unless memory forbids it. Whether it does is asked twice: by an
estimate that costs a trace of the loss, and only where that leaves a doubt by compiling the step,
of which the compiler says what it takes. What was compiled is then run, so that a step that fits,
of records on the device, is compiled once. Of one that does not, a second size tells how memory
grows with the records.
"""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
from typing import TYPE_CHECKING

import jax
import numpy as np

from dpjax.gradients.ghost.programs import Program, trace
from dpjax.training import draws, loop
from dpjax.training.data import HostData
from dpjax.training.feed import LoadedBatch
from dpjax.training.run import RunArrays
from dpjax.training.step import compile_step
from dpjax.training.step_config import StepConfig

if TYPE_CHECKING:
    from dpjax._numerics.typing import PRNGKey
    from dpjax.training.typing import RecordTree

_DOUBTED, _ALLOWED = 0.4, 0.8  # of the memory there is, by the estimate and by the compiler
_COPIES = 2  # of what the derivative of one record computes, held of every record at once
_STATES = 8  # of the parameters: the optimiser's, sums, what rounding took from them, noise
_SMALLER = 8  # times as small is the second size that is compiled


def choose_capacity(config: StepConfig, arrays: RunArrays, key: PRNGKey | None) -> int | None:
    """The largest piece that fits, None where one of the usual size does."""
    # Clip and count in a piece are those of its records whatever its size, so that neither noise
    # nor price follow from it. Of several devices and of a sum of the user's own nothing is asked.
    if config.capacity is not None or config.placement is not None or config.makes_sum:
        return config.capacity
    limit = find_limit(_find_device(arrays))
    usual = draws.make_draws(config.plan, None, config.failure).capacity
    if limit is None or _estimate_bytes(config, arrays.example, usual) <= _DOUBTED * limit:
        return None
    allowed = _ALLOWED * limit
    most = _measure_bytes(config, arrays, key)
    if most is None or most <= allowed or usual == 1:
        return None
    return _find_size(config, arrays, key, usual, most, allowed)


def _find_size(
    config: StepConfig,
    arrays: RunArrays,
    key: PRNGKey | None,
    usual: int,
    most: float,
    allowed: float,
) -> int:
    """The largest size below the usual one of which the compiler says that it fits."""
    size, above = max(usual // _SMALLER, 1), (usual, most)
    while True:
        taken = _measure_bytes(config._replace(capacity=size), arrays, key)
        taken = math.inf if taken is None else taken
        if taken <= allowed:
            break
        if size == 1:
            return 1  # nothing smaller can be tried
        size, above = max(size // _SMALLER, 1), (size, taken)
    # Memory grows with the records along a line; where it is not known, the middle is asked.
    for _ in range(3):
        slope = (above[1] - taken) / (above[0] - size)
        if slope == math.inf:
            guess = math.isqrt(size * above[0])
        else:
            guess = size + int(0.98 * (allowed - taken) / slope) if slope > 0 else size
        guess = min(guess, above[0] - 1)
        guess -= guess % 8 if guess >= 64 else 0
        if guess <= 1.1 * size:
            break
        found = _measure_bytes(config._replace(capacity=guess), arrays, key)
        if found is not None and found <= allowed:
            return guess
        above = guess, math.inf if found is None else found
    return size


def find_limit(device: jax.Device) -> float | None:
    """The bytes that a device can hold, None where nobody knows: not what is free at the moment."""
    # What is free changes from one minute to the next, and a run that goes on would be cut anew.
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return float(stats["bytes_limit"])
    if device.platform != "cpu":
        return None
    found = []
    with contextlib.suppress(AttributeError, OSError, ValueError):  # no such name, no such system
        found.append(float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # of a container
        with contextlib.suppress(OSError, ValueError):
            found.append(float(pathlib.Path("/sys/fs/cgroup", name).read_text()))
    return min(found, default=None)


def _find_device(arrays: RunArrays) -> jax.Device:
    """The device that the parameters lie on."""
    (first, *_) = jax.tree.leaves(arrays.params)
    return next(iter(first.devices()))


def _estimate_bytes(config: StepConfig, example: RecordTree, records: int) -> float:
    """What a step may take at most, by all that the derivative of one record's loss computes."""
    keys = (jax.random.key(0),) if config.loss_takes_key else ()
    derivative = jax.value_and_grad(config.loss_of_parts)
    try:
        program, _ = trace(derivative, config.params, config.frozen, example, *keys)
        own = _count_bytes(program)
    except Exception:  # the step that is compiled next says what is wrong with the loss
        return 0.0
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(config.params))
    return float(_COPIES * records * own + _STATES * size)


def _count_bytes(program: Program) -> int:
    """The bytes of all that a program computes, in every turn of its loops."""
    total = 0
    for equation in program.equations:
        inner, loop_over = equation.programs(), equation.scan()
        turns = 1 if loop_over is None else loop_over.length
        total += turns * sum(map(_count_bytes, inner))
        total += sum(math.prod(out.shape) * out.dtype.itemsize for out in equation.outs)
    return total


def _measure_bytes(config: StepConfig, arrays: RunArrays, key: PRNGKey | None) -> float | None:
    """What the compiler says that a step takes; infinite where it has no memory for it."""
    data = arrays.data
    key = jax.random.key(0) if key is None else key  # of which the kind alone matters
    # The program that is run, which has places where it is kept for runs of other sizes.
    config = config._replace(places=draws.count_places(arrays, key, config))
    if isinstance(data, HostData):
        slots = draws.make_draws(config.plan, config.capacity, config.failure).largest
        # As a loaded batch lies, so that what is compiled here is what it is given to.
        rows = jax.tree.map(lambda x: np.zeros((slots, *x.shape), x.dtype), data.example)
        data = jax.device_put(LoadedBatch(rows, np.zeros(slots, np.int32), np.zeros((), np.int32)))
    elif config.places is not None:
        data = draws.fill_places(data, config.places)
    state = config.first_state(arrays.params, np.int32(0))
    programs = compile_step(config, arrays.example)
    own = () if programs.numbers is None else (programs.numbers,)
    given = state, loop.zero_totals(), key, data, np.int32(1), arrays.frozen, *own
    advance = programs.advance
    try:
        found = advance.lower(*given).compile().memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            return math.inf
        raise
    if found is None:
        return None
    parts = found.argument_size_in_bytes, found.output_size_in_bytes, found.temp_size_in_bytes
    return float(sum(parts) - found.alias_size_in_bytes)
