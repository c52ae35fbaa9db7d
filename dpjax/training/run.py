"""What a run of `fit` is given, in one value, its key, and where its arrays lie."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, ArrayLike, PyTree

from dpjax import accounting as acc
from dpjax._numerics.explicit import (
    automatic,
    automatic_in_force,
    automatic_mesh,
    on_auto_mesh,
    on_explicit_mesh,
    placed_like,
)
from dpjax._numerics.normal import fresh_key
from dpjax._numerics.typing import Loss, Params, PRNGKey
from dpjax._numerics.warning import DpjaxWarning
from dpjax.gradients import Strategy
from dpjax.gradients.choice import ClippingMethod
from dpjax.training import devices, options
from dpjax.training.data import HostData, as_arrays, wrap_host_data
from dpjax.training.devices import Placement
from dpjax.training.parameters import ModelPartition
from dpjax.training.plan import Plan
from dpjax.training.typing import AverageWeights, Evaluate, RecordTree, Row, RunData


@dataclasses.dataclass(frozen=True)
class Watch:
    """What is seen of a run while it goes on, and what may end it."""

    evaluate: Evaluate | None = None  # of what is trained
    log_every: int | None = None
    on_log: Callable[[dict[str, float]], None] | None = None
    log_private_losses: bool = False
    stop_when: Callable[[Row], bool] | None = None
    time_limit: float | None = None


@dataclasses.dataclass(frozen=True)
class Store:
    """What is kept of a run on disk."""

    folder: str | pathlib.Path | None = None
    resume: bool = False
    checkpoint_every: int | None = None
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ledger: acc.LedgerFile | str | pathlib.Path | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """A run as it is executed: on automatic axes, its model in two halves."""

    loss: Loss
    model: ModelPartition
    data: RunData
    plan: Plan
    optimizer: optax.GradientTransformation
    key: PRNGKey | None
    placement: Placement | None  # None on one device
    capacity: int | None
    method: ClippingMethod
    clipping: Strategy
    loss_takes_key: bool
    average: AverageWeights | None
    users: ArrayLike | None
    records_per_user: int | None
    watch: Watch
    store: Store


@dataclasses.dataclass(frozen=True)
class Placed:
    """The arrays of a run on automatic axes, and the way back to those that were given."""

    model: ModelPartition
    data: RunData
    key: PRNGKey | None
    placement: Placement | None
    given: Params  # what is trained, as it was given
    mesh: Mesh | None  # that results are moved back to; None for where the parameters were

    def restore(self, trained: Params) -> Params:
        """What was trained where its likes were given; None stays None."""
        if trained is None:
            return None
        if self.mesh is not None:
            return on_explicit_mesh(trained, self.mesh)
        return placed_like(trained, self.given)

    def gather_for(self, evaluate: Evaluate | None) -> Evaluate | None:
        """The function of parameters on all processes, if they are on several."""
        if evaluate is None or self.placement is None or not self.placement.several:
            return evaluate
        # Every process evaluates the same parameters, on a device of its own.
        return lambda trained: evaluate(jax.tree.map(jnp.asarray, devices.gather(trained)))


@contextlib.contextmanager
def place_run(
    model: ModelPartition,
    data: RunData,
    plan: Plan,
    *,
    key: PRNGKey | None,
    mesh: Mesh | Placement | None,
    users: ArrayLike | None,
) -> Iterator[Placed]:
    """The arrays of a run, those on explicit axes on automatic ones, while these are in force."""
    if isinstance(data, Iterator):
        HostData(data)  # which says why no stream will do
    data = as_arrays(data)
    placement = find_placement(mesh, data)
    run_mesh = None if placement is None else placement.mesh
    records = plan.population if users is None else np.size(users)
    data = wrap_host_data(data, records, divided=placement is not None) or data
    with automatic(model, data), automatic_in_force(run_mesh):
        moved, rows, key = on_auto_mesh((model, data, key))
        if placement is not None:
            placement = dataclasses.replace(placement, mesh=automatic_mesh(placement.mesh))
        back = None if mesh is None else run_mesh
        yield Placed(moved, rows, key, placement, model.trained, back)


def find_placement(mesh: Mesh | Placement | None, data: RunData) -> Placement | None:
    """The placement asked for, or that of records which are divided over devices already."""
    if isinstance(mesh, Placement):
        return mesh
    if isinstance(mesh, Mesh):
        return devices.data_parallel(mesh)
    if mesh is not None:
        raise ValueError(f"mesh must be a jax.sharding.Mesh or a Placement, got {mesh!r}")
    found = set()
    for leaf in jax.tree.leaves(data):
        sharding, placement = getattr(leaf, "sharding", None), None
        if not isinstance(leaf, jax.core.Tracer) and isinstance(sharding, NamedSharding):
            axes, *others = (*sharding.spec, None)  # of the axis of records, and of the others
            if axes is not None and all(entry is None for entry in others):
                own = axes if isinstance(axes, tuple) else (axes,)
                placement = Placement(sharding.mesh, own)  # pyrefly: ignore
        found.add(placement)
    return found.pop() if len(found) == 1 else None


class RunArrays(NamedTuple):
    """The arrays of a run on the devices that it uses."""

    data: RunData  # a tree of arrays, or `HostData`
    params: Params  # what is trained
    frozen: PyTree[Array]  # what is not
    # (data, parameters) as they were given, whole on every process; None for a run of one.
    given: tuple[Any, Any] | None = None

    @property
    def example(self) -> RecordTree:
        """The shapes and dtypes of one record."""
        if isinstance(self.data, HostData):
            return self.data.example
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self.data
        )


def place_arrays(
    placement: Placement | None,
    data: RunData,
    params: Params,
    frozen: PyTree[Array],
    population: int,
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


def choose_key(key: PRNGKey | None, process_mesh: Mesh | None = None) -> PRNGKey:
    """The key that was given, or a fresh one; that of the leader on all processes."""
    options.check_key(key)
    key = fresh_key() if key is None else key
    return key if process_mesh is None else devices.broadcast_key(process_mesh, key)


def is_used(given: PRNGKey | None, key: PRNGKey, folder: str | pathlib.Path | None) -> bool:
    """Whether a run's key was given by hand; a warning where it began with another than that."""
    if given is None:
        return False
    same = jax.random.key_impl(given) == jax.random.key_impl(key) and np.array_equal(
        jax.random.key_data(given), jax.random.key_data(key)
    )
    if not same:
        warnings.warn(
            f"key is not used: the run in {folder} goes on with the key that it began with, which "
            "is stored there; leave key out where resume=True, or choose another folder for a run "
            "with this one",
            DpjaxWarning,
            stacklevel=5,  # the caller of `fit`, whose decorator stands between
        )
    return same
