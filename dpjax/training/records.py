"""Which records a run works on, one example each: arrays, records of the host, or users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.training.placement import Placement, placed, placed_parameters, placed_rows
from dpjax.training.plan import Plan
from dpjax.training.processes import everywhere, gathered
from dpjax.training.sources import HostData
from dpjax.training.users import per_user


class Records(NamedTuple):
    """What a run trains on.

    Fields:
        loss: of one example.
        data: a tree of arrays with a leading axis of examples, or `HostData`.
        owners: where an example is a user: whom each record belongs to, and the most of one.
    """

    loss: Callable[..., Any]
    data: Any
    owners: dict[str, Any]

    @property
    def host(self) -> HostData | None:
        """The data, where it stays on the host."""
        return self.data if isinstance(self.data, HostData) else None


def records_of(loss: Any, data: Any, plan: Plan, users: Any, most: int | None) -> Records:
    """The records of a run, as many as its plan has.

    Args:
        loss: of one record.
        data: as `fit` takes it.
        plan: whose unit is a record or a user.
        users: whom each record belongs to, or None.
        most: records of one user that are used.

    Raises:
        ValueError: see `fit`.
    """
    if (users is None) != (plan.unit == "record"):
        given = "none" if users is None else "some"
        raise ValueError(
            f"users must be given where plan.unit is 'user' and only there, got {given}"
        )
    owners = {}
    if users is not None:
        if most is None:
            raise ValueError("records_per_user must be given with users, got None")
        loss, data = per_user(loss, data, users, most)
        owners = {"users": users, "records per user": int(most)}
    elif most is not None:
        raise ValueError(f"records_per_user must be left out without users, got {most}")
    population = data.records if isinstance(data, HostData) else _count(data)
    if population != plan.population:
        raise ValueError(
            f"data must hold the plan's {plan.population} {plan.unit}s, got {population}"
        )
    return Records(loss, data, owners)


class Placed(NamedTuple):
    """The arrays of a run where it works on them.

    Fields:
        data: a tree of arrays, or `HostData`.
        params: what is trained.
        held: what is not.
        given: (data, parameters) as they were given, whole on every process; None for a run of one.
    """

    data: Any
    params: Any
    held: Any
    given: tuple[Any, Any] | None = None

    @property
    def example(self) -> Any:
        """The shapes and dtypes of one record."""
        if isinstance(self.data, HostData):
            return self.data.example
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self.data
        )


def placed_where(
    placement: Placement | None, records: Records, params: Any, held: Any, population: int
) -> Placed:
    """Records and parameters on the devices that the placement says, or on one."""
    data = records.data
    if placement is None:
        data = jax.tree.map(jnp.asarray, data) if records.host is None else data
        params = jax.tree.map(jnp.asarray, params)
        return Placed(data, params, held)
    given = (data, gathered(params)) if placement.several else None
    if records.host is None:
        data = placed_rows(placement, data, population)
    params = placed_parameters(placement, params)
    put = everywhere if placement.several else placed
    held = jax.tree.map(lambda leaf: put(leaf, placement.sharding()), held)
    return Placed(data, params, held, given)


def _count(data: Any) -> int:
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
    return sizes.pop()
