"""Any model and any mesh, for a loop that knows floating arrays on automatic axes alone."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dpjax._numerics.explicit import (
    automatic,
    automatic_in_force,
    automatic_mesh,
    on_auto_mesh,
    on_explicit_mesh,
    placed_like,
)
from dpjax.training.arguments import check_functions
from dpjax.training.parts import Parts, parts_of
from dpjax.training.placement import placed, placement_of
from dpjax.training.processes import gathered
from dpjax.training.sources import HostData, on_host


def of_the_trained_part(train: Callable[..., Any]) -> Callable[..., Any]:
    """What is inside trains a tree of floating arrays; what is outside gives and gets a model."""

    @functools.wraps(train)
    def whole(loss, params, data, plan, *, trainable=None, evaluate=None, **options):
        parts = parts_of(params, trainable)
        check_functions(evaluate=evaluate)
        if evaluate is not None:
            options["evaluate"] = lambda trained: evaluate(_beside(parts, trained))
        result = train(loss, parts, data, plan, **options)
        found = parts.whole(result.params), parts.whole(result.average)
        return result._replace(params=found[0], average=found[1])

    return whole


def _beside(parts: Parts, trained: Any) -> Any:
    """The model for `evaluate`: what is not trained lies on the devices of what is."""
    first: Any = next(leaf for leaf in jax.tree.leaves(trained) if leaf is not None)
    if not isinstance(first, jax.Array):
        return parts.whole(trained)
    place: Any = first.sharding
    if isinstance(place, NamedSharding):
        place = NamedSharding(place.mesh, PartitionSpec())
    return parts.join(trained, jax.tree.map(lambda leaf: placed(leaf, place), parts.held))


def _of_whole_parameters(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """Every process evaluates the same parameters, on a device of its own."""
    return lambda params: evaluate(jax.tree.map(jnp.asarray, gathered(params)))


def on_any_mesh(train: Callable[..., Any]) -> Callable[..., Any]:
    """Arrays on explicit axes train on automatic ones of the same devices, and come back."""

    @functools.wraps(train)
    def placed(loss, params, data, plan, *, key=None, mesh=None, **options):
        if isinstance(data, Iterator):
            HostData(data)  # which says why no stream will do
        placement = placement_of(mesh, data)
        devices = None if placement is None else placement.mesh
        users = options.get("users")
        records = plan.population if users is None else np.size(users)
        data = on_host(data, records, divided=placement is not None) or data
        with automatic(params, data), automatic_in_force(devices):
            moved, rows, key = on_auto_mesh((params, data, key))
            if placement is not None:
                placement = dataclasses.replace(placement, mesh=automatic_mesh(devices))
                if placement.several and options.get("evaluate") is not None:
                    options["evaluate"] = _of_whole_parameters(options["evaluate"])
            result = train(loss, moved, rows, plan, key=key, mesh=placement, **options)

        def back(tree):
            if tree is None:
                return None
            if mesh is not None:
                return on_explicit_mesh(tree, devices)
            return placed_like(tree, params.trained)

        return result._replace(params=back(result.params), average=back(result.average))

    return placed
