"""How a run comes by its records: from the device, or from the host a step ahead."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec

from dpjax._numerics.explicit import on_one_device
from dpjax._numerics.keys import unfolded
from dpjax._numerics.scope import enable_x64
from dpjax.training.blocks import BlockDraws
from dpjax.training.draws import Draws
from dpjax.training.pacing import Pace
from dpjax.training.placement import Placement
from dpjax.training.recipe import SAMPLING
from dpjax.training.sources import HostData

# Steps that are loaded while the device works.
_AHEAD = 2


class Batch(NamedTuple):
    """The records of one step, loaded.

    Fields:
        rows: the records, padded to whole pieces.
        numbers: of the records in the data.
        size: how many of them take part.
    """

    rows: Any
    numbers: Any
    size: Any


class OnDevice:
    """Records that are on the device: a call of the compiled loop takes many steps."""

    def __init__(self, data: Any):
        self._data, self._pace = data, Pace()

    def stop(self, step: int) -> int:
        return self._pace.stop(step)

    def at(self, step: int) -> Any:
        del step
        return self._data

    def took(self, steps: int, seconds: float) -> None:
        self._pace.took(steps, seconds)

    def close(self) -> None:
        pass


class Loading(NamedTuple):
    """How a step's records come from the host.

    Fields:
        draw: `draw(key, step)`, which they are; compiled when it is first called.
        load: `load(data, *drawn) -> Batch`, from the data and what `draw` returned.
    """

    draw: Callable[..., Any]
    load: Callable[..., Batch]


def loading(draws: Draws) -> Loading:
    """Of records for one device.

    Args:
        draws: of the plan.
    """

    def draw(key, step):
        return draws.draw(unfolded(key, SAMPLING), step)

    def load(data, indices, size):
        count = int(size)
        # As many pieces as a step almost never exceeds: one shape, compiled once.
        slots = _whole_pieces(max(count, draws.largest), draws.capacity)
        numbers = np.zeros(slots, np.int32)
        numbers[:count] = np.asarray(indices)[:count]
        rows = data.load(numbers[:count], slots)
        return jax.device_put(Batch(rows, numbers, np.int32(count)))

    return Loading(jax.jit(draw), load)


def loading_in_blocks(divided: BlockDraws, placement: Placement) -> Loading:
    """Of records whose blocks are those of a mesh: a process loads those of its own devices.

    Args:
        divided: the draws of the plan.
        placement: of the records.
    """
    along = placement.sharding(PartitionSpec(placement.records))

    def draw(key, step):
        return (divided.inclusion(unfolded(key, SAMPLING), step),)

    def load(data, flags):
        drawn = [np.flatnonzero(own) for own in np.split(np.asarray(flags), placement.blocks)]
        counts = np.array([len(own) for own in drawn], np.int32)
        slots = _whole_pieces(max(counts.max(), divided.largest), divided.capacity)
        length = len(flags) // placement.blocks

        @functools.cache  # devices may share a block
        def block(number):
            records = (drawn[number] + number * length).astype(np.int32)
            numbers = np.zeros(slots, np.int32)
            numbers[: len(records)] = records
            first = min(number * length, data.records - 1)  # no record of another process is read
            return jax.tree.leaves((data.load(records, slots, otherwise=first), numbers))

        def divided_leaf(place, like):
            shape = (placement.blocks * slots, *like.shape)
            read = lambda index: block((index[0].start or 0) // slots)[place]  # noqa: E731
            return jax.make_array_from_callback(shape, along, read)

        like = (data.example, jax.ShapeDtypeStruct((), np.int32))
        leaves, structure = jax.tree.flatten(like)
        arrays = [divided_leaf(place, leaf) for place, leaf in enumerate(leaves)]
        sizes = jax.make_array_from_callback(counts.shape, along, lambda index: counts[index])
        rows, numbers = structure.unflatten(arrays)
        return Batch(rows, numbers, sizes)

    return Loading(jax.jit(draw), load)


def _whole_pieces(records: int, capacity: int) -> int:
    return -(-int(records) // capacity) * capacity


class FromHost:
    """Records that are loaded by a thread while the device works on those of the step before.

    Sampling is a function of (key, step), so the thread can be ahead. The draws are made on the
    CPU: a draw looks at a number for each record, and the device need not hold so many.
    """

    def __init__(self, data: HostData, host: Loading, key: Any, steps: int):
        self._data, self._host, self._steps = data, host, steps
        self._cpu = _cpu()
        self._key = jax.device_put(key, self._cpu)
        # What holds in a scope holds in the thread that opened it, not in the one that loads.
        self._target: Any = getattr(jax.config, "jax_default_device", None)
        self._wide = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "records")
        self._coming: dict[int, concurrent.futures.Future] = {}

    def stop(self, step: int) -> int:
        return step + 1

    def at(self, step: int) -> Batch:
        """The records of a step; those of the next ones begin to be loaded."""
        for number in range(step, min(step + 1 + _AHEAD, self._steps)):
            if number not in self._coming:
                with on_one_device():
                    drawn = self._host.draw(self._key, jax.device_put(np.int32(number), self._cpu))
                self._coming[number] = self._thread.submit(self._load, *drawn)
        return self._coming.pop(step).result()

    def took(self, steps: int, seconds: float) -> None:
        pass

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _load(self, *drawn: Any) -> Batch:
        with jax.default_device(self._target), enable_x64(self._wide):
            return self._host.load(self._data, *drawn)


def feed_of(data: Any, programs: Any, key: Any, steps: int) -> OnDevice | FromHost:
    """What gives a run its records.

    Args:
        data: a tree of arrays, or `HostData`.
        programs: of the run.
        key: of the run.
        steps: of its plan.
    """
    if isinstance(data, HostData):
        return FromHost(data, programs.host, key, steps)
    return OnDevice(data)


def _cpu() -> Any:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # a process that was told to have no CPU device
        return jax.local_devices()[0]
