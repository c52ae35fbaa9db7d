"""What gives a run its records: arrays of the device, or records loaded a step ahead."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from dpjax._numerics.explicit import on_one_device
from dpjax._numerics.keys import folded
from dpjax._numerics.scope import enable_x64
from dpjax.training import devices
from dpjax.training.data import HostData, check_representable, per_user
from dpjax.training.devices import Placement
from dpjax.training.draws import Draws
from dpjax.training.plan import Plan
from dpjax.training.step_config import SAMPLING, takes_params_alone


def select_records(
    loss: Any, data: Any, plan: Plan, users: Any, most: int | None, parts: Any, placement: Any
) -> tuple[Any, Any, dict[str, Any]]:
    """Loss and data of the plan's records, and of users whose they are and the most of one."""
    check, rows = getattr(loss, "check_data", None), data
    if (users is None) != (plan.unit == "record"):
        given = "none" if users is None else "some"
        raise ValueError(
            f"users must be given where plan.unit is 'user' and only there, got {given}"
        )
    owners = {}
    if users is not None:
        if most is None:
            raise ValueError("records_per_user must be given with users, got None")
        if takes_params_alone(loss):
            raise ValueError(
                "users must be None where loss makes a clip_and_sum, got some: let a record be "
                "all that one user has"
            )
        loss, data = per_user(loss, data, users, most)
        owners = {"users": users, "records per user": int(most)}
    elif most is not None:
        raise ValueError(f"records_per_user must be left out without users, got {most}")
    population = data.records if isinstance(data, HostData) else _count_records(data)
    if population != plan.population:
        raise ValueError(
            f"data must hold the plan's {plan.population} {plan.unit}s, got {population}"
        )
    # Where one process sees all records, the loss may refuse those that it is not made for.
    if check is not None and not (placement is not None and placement.several):
        rows = rows.arrays if isinstance(rows, HostData) else rows
        check(parts.restore(parts.trained), rows)
    return loss, data, owners


def _count_records(data: Any) -> int:
    leaves = jax.tree.leaves(data)
    sizes = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in leaves}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"data must share one leading axis of records, got {sizes}")
    for leaf in leaves:
        kind = getattr(leaf, "dtype", None)
        if isinstance(kind, np.dtype) and kind.kind in "OSUVMm":
            raise ValueError(
                f"data must be numbers, got {kind}: text, dates and objects are encoded first, by "
                "dpjax.data.from_frame say"
            )
        if isinstance(leaf, np.ndarray | jax.Array):
            check_representable(leaf)
    return sizes.pop()


class RunArrays(NamedTuple):
    """The arrays of a run where it works on them."""

    data: Any  # a tree of arrays, or `HostData`
    params: Any  # what is trained
    frozen: Any  # what is not
    # (data, parameters) as they were given, whole on every process; None for a run of one.
    given: tuple[Any, Any] | None = None

    @property
    def example(self) -> Any:
        """The shapes and dtypes of one record."""
        if isinstance(self.data, HostData):
            return self.data.example
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self.data
        )


def place_arrays(
    placement: Placement | None, data: Any, params: Any, frozen: Any, population: int
) -> RunArrays:
    """Records and parameters on the devices that the placement says, or on one."""
    on_host = isinstance(data, HostData)
    if placement is None:
        data = data if on_host else jax.tree.map(jnp.asarray, data)
        return RunArrays(data, jax.tree.map(jnp.asarray, params), frozen)
    given = (data, devices.gather(params)) if placement.several else None
    data = data if on_host else devices.place_rows(placement, data, population)
    put = devices.make_global if placement.several else devices.put_on_devices
    frozen = jax.tree.map(lambda leaf: put(leaf, placement.sharding()), frozen)
    return RunArrays(data, devices.place_parameters(placement, params), frozen, given)


# A call of the compiled loop lasts about so long, so that an interrupt is heeded soon.
_SECONDS_A_CALL = 0.5
# Steps that are loaded while the device works.
_AHEAD = 2


class Batch(NamedTuple):
    """The records of one step, loaded."""

    rows: Any  # the records, padded to whole pieces
    numbers: Any  # of the records in the data
    size: Any  # how many of them take part


class OnDevice:
    """Runs steps on records of the device: each call of the program takes about half a second."""

    def __init__(self, advance: Callable[..., Any], data: Any):
        self._advance, self._data, self._steps = advance, data, 1

    def stop(self, step: int) -> int:
        return step + self._steps

    def advance(self, state: Any, totals: Any, step: int, stop: int) -> Any:
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


class Loading(NamedTuple):
    """How a step's records come from the host."""

    draw: Callable[..., Any]  # `draw(key, step)`, which they are; compiled when it is first called
    # `load(data, *drawn) -> Batch`, from the data and what `draw` returned.
    load: Callable[..., Batch]


def make_loading(draws: Draws, placement: Placement | None) -> Loading:
    """Of records for one device, or of blocks: a process loads those of its own devices."""
    load = _load_batch if placement is None else functools.partial(_load_blocks, placement)
    draw = jax.jit(lambda key, step: draws.draw(folded(key, SAMPLING), step))
    return Loading(draw, functools.partial(load, draws))


def _load_batch(draws: Draws, data: HostData, indices: Any, size: Any) -> Batch:
    count = int(size)
    slots = _count_slots(count, draws)
    records = np.asarray(indices)[:count].astype(np.int32)
    numbers = np.pad(records, (0, slots - count))
    return jax.device_put(Batch(data.load(records, slots), numbers, np.int32(count)))


def _load_blocks(placement: Placement, draws: Draws, data: HostData, flags: Any) -> Batch:
    drawn = [np.flatnonzero(own) for own in np.split(np.asarray(flags), placement.blocks)]
    counts = np.array([len(own) for own in drawn], np.int32)  # of every block
    slots = _count_slots(counts.max(), draws)
    length = len(flags) // placement.blocks  # of a block

    @functools.cache  # devices may share a block
    def block(number):
        records = (drawn[number] + number * length).astype(np.int32)
        numbers = np.pad(records, (0, slots - len(records)))
        first = min(number * length, data.records - 1)  # no record of another process is read
        return jax.tree.leaves((data.load(records, slots, otherwise=first), numbers))

    along = placement.sharding(PartitionSpec(placement.records))

    def make_leaf(place, like):
        shape = (placement.blocks * slots, *like.shape)
        read = lambda index: block((index[0].start or 0) // slots)[place]  # noqa: E731
        return jax.make_array_from_callback(shape, along, read)

    leaves, structure = jax.tree.flatten((data.example, jax.ShapeDtypeStruct((), np.int32)))
    sizes = jax.make_array_from_callback(counts.shape, along, lambda index: counts[index])
    rows, numbers = structure.unflatten([make_leaf(k, leaf) for k, leaf in enumerate(leaves)])
    return Batch(rows, numbers, sizes)


def _count_slots(records: int, draws: Draws) -> int:
    """As many pieces as a step almost never exceeds: one shape, compiled once."""
    return -(-max(int(records), draws.largest) // draws.capacity) * draws.capacity


class FromHost:
    """Runs steps on records that a thread loads while the device works on the step before."""

    def __init__(self, advance: Any, data: HostData, loading: Loading, key: Any, steps: int):
        self._advance, self._data, self._loading, self._steps = advance, data, loading, steps
        try:
            self._cpu = jax.local_devices(backend="cpu")[0]
        except RuntimeError:  # a process that was told to have no CPU device
            self._cpu = jax.local_devices()[0]
        # A draw looks at a number for each record: the device need not hold so many.
        self._key = jax.device_put(key, self._cpu)
        # What holds in a scope holds in the thread that opened it, not in the one that loads.
        self._target: Any = getattr(jax.config, "jax_default_device", None)
        self._wide = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "records")
        self._coming: dict[int, concurrent.futures.Future] = {}

    def stop(self, step: int) -> int:
        return step + 1

    def advance(self, state: Any, totals: Any, step: int, stop: int) -> Any:
        """The state and the totals after this step; the records of the next begin to be loaded."""
        for number in range(step, min(step + 1 + _AHEAD, self._steps)):
            if number not in self._coming:
                with on_one_device():
                    at = jax.device_put(np.int32(number), self._cpu)
                    drawn = self._loading.draw(self._key, at)
                self._coming[number] = self._thread.submit(self._load, *drawn)
        rows = self._coming.pop(step).result()  # waits until it is there
        return self._advance(state, totals, rows, np.int32(stop))

    def record_timing(self, steps: int, seconds: float) -> None:
        pass

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _load(self, *drawn: Any) -> Batch:
        with jax.default_device(self._target), enable_x64(self._wide):
            return self._loading.load(self._data, *drawn)
