"""How a run comes by its records: from the device, or from the host a step ahead."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from dpjax._numerics.explicit import on_one_device
from dpjax.training.draws import Draws
from dpjax.training.pacing import Pace
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


class FromHost:
    """Records that are loaded by a thread while the device works on those of the step before.

    Sampling is a function of (key, step), so the thread can be ahead. The draws are made on the
    CPU: a draw looks at a number for each record, and the device need not hold so many.
    """

    def __init__(self, data: HostData, draws: Draws, draw: Callable, key: Any, steps: int):
        self._data, self._draws, self._draw, self._steps = data, draws, draw, steps
        self._cpu = _cpu()
        self._key = jax.device_put(key, self._cpu)
        self._target: Any = getattr(jax.config, "jax_default_device", None)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "records")
        self._coming: dict[int, concurrent.futures.Future] = {}

    def stop(self, step: int) -> int:
        return step + 1

    def at(self, step: int) -> Batch:
        """The records of a step; those of the next ones begin to be loaded."""
        for number in range(step, min(step + 1 + _AHEAD, self._steps)):
            if number not in self._coming:
                with on_one_device():
                    drawn = self._draw(self._key, jax.device_put(np.int32(number), self._cpu))
                self._coming[number] = self._thread.submit(self._load, *drawn)
        return self._coming.pop(step).result()

    def took(self, steps: int, seconds: float) -> None:
        pass

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _load(self, indices: Any, size: Any) -> Batch:
        capacity, count = self._draws.capacity, int(size)
        # As many pieces as a step almost never exceeds: one shape, compiled once.
        pieces = -(-max(count, self._draws.largest) // capacity)
        numbers = np.zeros(pieces * capacity, np.int32)
        numbers[:count] = np.asarray(indices)[:count]
        rows = self._data.load(numbers[:count], len(numbers))
        with jax.default_device(self._target):
            return jax.device_put(Batch(rows, numbers, np.int32(count)))


def feed_of(data: Any, programs: Any, key: Any, steps: int) -> OnDevice | FromHost:
    """What gives a run its records.

    Args:
        data: a tree of arrays, or `HostData`.
        programs: of the run.
        key: of the run.
        steps: of its plan.
    """
    if isinstance(data, HostData):
        return FromHost(data, programs.draws, programs.draw, key, steps)
    return OnDevice(data)


def _cpu() -> Any:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # a process that was told to have no CPU device
        return jax.local_devices()[0]
