"""How the records that a step draws reach it: they are on the device, or come from the host."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec

from dpjax._numerics.explicit import on_one_device
from dpjax._numerics.keys import fold_in_words
from dpjax._numerics.scope import enable_x64
from dpjax.training import devices
from dpjax.training.data import HostData
from dpjax.training.devices import Placement
from dpjax.training.draws import Draws, fill_places
from dpjax.training.run import RunArrays
from dpjax.training.step_config import SAMPLING, StepConfig

if TYPE_CHECKING:
    from jaxtyping import Array, PyTree

    from dpjax._numerics.typing import PRNGKey
    from dpjax.training.step import Compiled
    from dpjax.training.typing import RunState, Totals

# A call of the compiled loop lasts about so long, so that an interrupt is heeded soon.
_SECONDS_A_CALL = 0.5
# Steps that are loaded while the device works.
_AHEAD = 2


class LoadedBatch(NamedTuple):
    """The records of one step, loaded."""

    rows: PyTree[Array]  # the records, padded
    numbers: Array | np.ndarray  # of the records in the data
    size: Array | np.ndarray  # how many of them take part


class OnDevice:
    """Runs steps on records of the device: each call of the program takes about half a second."""

    def __init__(self, advance: Callable[..., Any], data: PyTree[Array]):
        self._advance, self._data, self._steps = advance, data, 1

    def stop(self, step: int) -> int:
        return step + self._steps

    def advance(
        self, state: RunState, totals: Totals, step: int, stop: int
    ) -> tuple[RunState, Totals]:
        """The state and the totals after the steps from `step` to before `stop`."""
        del step
        return self._advance(state, totals, self._data, np.int32(stop))

    def record_timing(self, steps: int, seconds: float) -> None:
        if seconds < _SECONDS_A_CALL / 2 and steps >= self._steps:
            self._steps *= 4  # grows until a call takes long enough
        elif seconds > 2 * _SECONDS_A_CALL:
            self._steps = max(1, int(steps * _SECONDS_A_CALL / seconds))  # shrinks at once

    def close(self) -> None:
        pass


def make_loading(
    draws: Draws, placement: Placement | None
) -> tuple[Callable[..., tuple[Array, ...]], Callable[..., LoadedBatch]]:
    """What draws a step's records, `draw(key, step)`, and what loads them from the host."""
    # `load(data, *drawn) -> LoadedBatch`; of blocks a process loads those of its own devices.
    load = _load_batch if placement is None else functools.partial(_load_blocks, placement)
    draw = jax.jit(lambda key, step: draws.draw(fold_in_words(key, SAMPLING), step))
    return draw, functools.partial(load, draws)


def _load_batch(draws: Draws, data: HostData, indices: Array, size: Array) -> LoadedBatch:
    count = int(size)
    slots = _count_slots(count, draws)
    records = np.asarray(indices)[:count].astype(np.int32)
    numbers = np.pad(records, (0, slots - count))
    return jax.device_put(
        LoadedBatch(data.load(records, slots), numbers, np.asarray(count, np.int32))
    )


def _load_blocks(placement: Placement, draws: Draws, data: HostData, flags: Array) -> LoadedBatch:
    """The batch of a step over a mesh: each process loads the blocks of its own devices."""
    drawn = [np.flatnonzero(own) for own in np.split(np.asarray(flags), placement.blocks)]
    counts = np.array([len(own) for own in drawn], np.int32)  # of every block
    slots = _count_slots(counts.max(), draws)
    length = len(flags) // placement.blocks  # of a block

    @functools.cache  # devices may share a block
    def block(number: int):
        records = (drawn[number] + number * length).astype(np.int32)
        numbers = np.pad(records, (0, slots - len(records)))
        first = min(number * length, data.records - 1)  # no record of another process is read
        return jax.tree.leaves((data.load(records, slots, otherwise=first), numbers))

    along = placement.sharding(PartitionSpec(placement.records))

    def make_leaf(place: int, like: jax.ShapeDtypeStruct):
        shape = (placement.blocks * slots, *like.shape)

        def read(index):
            return block((index[0].start or 0) // slots)[place]

        return jax.make_array_from_callback(shape, along, read)

    leaves, structure = jax.tree.flatten((data.example, jax.ShapeDtypeStruct((), np.int32)))
    sizes = jax.make_array_from_callback(counts.shape, along, lambda index: counts[index])
    rows, numbers = structure.unflatten([make_leaf(k, leaf) for k, leaf in enumerate(leaves)])
    return LoadedBatch(rows, numbers, sizes)


def _count_slots(records: int, draws: Draws) -> int:
    """As many as a step almost never exceeds: one shape, compiled once."""
    return max(1, -(-int(records) // draws.largest)) * draws.largest


class FromHost:
    """Runs steps on records that a thread loads while the device works on the step before."""

    def __init__(
        self,
        advance: Callable[..., tuple[RunState, Totals]],
        data: HostData,
        programs: Compiled,
        key: PRNGKey,
        steps: int,
    ):
        self._advance, self._data, self._programs, self._steps = advance, data, programs, steps
        try:
            self._cpu = jax.local_devices(backend="cpu")[0]
        except RuntimeError:  # a process that was told to have no CPU device
            self._cpu = jax.local_devices()[0]
        # A draw looks at a number for each record: the device need not hold so many.
        self._key = jax.device_put(key, self._cpu)
        # What holds in a scope holds in the thread that opened it, not in the one that loads.
        self._target = getattr(jax.config, "jax_default_device", None)
        self._wide = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "records")
        self._coming: dict[int, concurrent.futures.Future] = {}

    def stop(self, step: int) -> int:
        return step + 1

    def advance(
        self, state: RunState, totals: Totals, step: int, stop: int
    ) -> tuple[RunState, Totals]:
        """The state and the totals after this step; the records of the next begin to be loaded."""
        for number in range(step, min(step + 1 + _AHEAD, self._steps)):
            if number not in self._coming:
                with on_one_device():
                    at = jax.device_put(np.int32(number), self._cpu)
                    drawn = self._programs.draw(self._key, at)
                self._coming[number] = self._thread.submit(self._load, *drawn)
        rows = self._coming.pop(step).result()  # waits until it is there
        return self._advance(state, totals, rows, np.int32(stop))

    def record_timing(self, steps: int, seconds: float) -> None:
        pass

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _load(self, *drawn: Array) -> LoadedBatch:
        with jax.default_device(self._target), enable_x64(self._wide):
            return self._programs.load(self._data, *drawn)


def make_feed(
    programs: Compiled, arrays: RunArrays, key: PRNGKey, config: StepConfig
) -> OnDevice | FromHost:
    """What advances a run on its records, which are on the device or come from the host."""
    placement, run_key = config.placement, key
    if placement is not None and placement.several:
        run_key = devices.make_global_key(placement, key)
    own = () if programs.numbers is None else (programs.numbers,)

    def advance(state: RunState, totals: Totals, rows: PyTree[Array], stop: np.int32):
        return programs.advance(state, totals, run_key, rows, stop, arrays.frozen, *own)

    if isinstance(arrays.data, HostData):
        return FromHost(advance, arrays.data, programs, key, config.plan.steps)
    data = arrays.data if config.places is None else fill_places(arrays.data, config.places)
    return OnDevice(advance, data)
