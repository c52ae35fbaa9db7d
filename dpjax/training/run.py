"""What a run of `fit` is given, in one value, and where its arrays lie."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import ArrayLike

from dpjax import accounting as acc
from dpjax._numerics.explicit import (
    automatic,
    automatic_in_force,
    automatic_mesh,
    on_auto_mesh,
    on_explicit_mesh,
    placed_like,
)
from dpjax._numerics.typing import Loss, Params, PRNGKey
from dpjax.gradients import Strategy
from dpjax.gradients.methods import ClippingMethod
from dpjax.training import devices
from dpjax.training.data import HostData, as_arrays, wrap_host_data
from dpjax.training.devices import Placement
from dpjax.training.draws import find_placement
from dpjax.training.parameters import ModelPartition
from dpjax.training.plan import Plan
from dpjax.training.typing import AverageWeights, Evaluate, Row, RunData


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
    strategy: Strategy
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
