"""Where a run begins: its first state, and the folder that knows it again."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._numerics.keys import bits_of_key, might_be_key
from dpjax.training.checkpoint import Checkpoints
from dpjax.training.identity import identity_of_run
from dpjax.training.metrics import Metrics
from dpjax.training.placement import placed_state
from dpjax.training.processes import SharedCheckpoints, as_placed
from dpjax.training.progress import Progress, no_totals
from dpjax.training.recipe import Recipe
from dpjax.training.records import Placed
from dpjax.training.sources import HostData
from dpjax.training.state import first_state, first_state_on


def first_progress(recipe: Recipe, metrics: Metrics) -> Progress:
    """Before the first step: its row of the metrics is done."""
    _, params, plan, optimizer = recipe[:4]
    placement, average = recipe.placement, recipe.average
    if placement is not None and placement.several:
        state = first_state_on(placement, params, plan, optimizer, average)
    else:
        state = first_state(params, plan, optimizer, np.int32(0), average)
        state = state if placement is None else placed_state(placement, state)
    return Progress(state, no_totals(), metrics.table(), np.int32(1))


def opened(folder: str | pathlib.Path | None, joined: Any) -> Any:
    """The checkpoints in a folder, or None.

    Args:
        folder: of the run, or None.
        joined: the mesh of a run of several processes, else None.

    Raises:
        CheckpointError: the folder is in use, or cannot be written.
    """
    if folder is None:
        return None
    where = pathlib.Path(folder)
    return Checkpoints(where) if joined is None else SharedCheckpoints(where, joined)


def known_again(
    recipe: Recipe, lying: Placed, owners: Mapping[str, Any], settings: Mapping[str, Any]
) -> Callable[[Any], dict[str, Any]]:
    """From a run's key to all that has to agree before the key draws noise again."""

    def identity(key: Any) -> dict[str, Any]:
        kept, data = recipe, lying.data
        if lying.given is not None:
            # The leader has to see all of it, and sees its own copies.
            data, params = lying.given
            data = data if isinstance(data, HostData) else as_placed(data)
            kept = recipe._replace(params=jax.tree.map(jnp.asarray, params))
        return identity_of_run(kept, data, lying.example, key, settings, lying.held, owners)

    return identity


def check_own_key(key: Any, optimizer_state: Any) -> None:
    """Noise that the optimiser draws from the run's keys could undo the run's own.

    Raises:
        ValueError: the optimiser draws from one of them.
    """
    theirs = [x for x in jax.tree.leaves(optimizer_state) if might_be_key(x)]
    if not theirs:
        return
    own = [key, *(jax.random.fold_in(key, number) for number in range(4))]
    mine = {bits_of_key(one).tobytes() for one in own}
    if any(bits_of_key(one).tobytes() in mine for one in theirs):
        raise ValueError("optimizer must draw noise from keys of its own, got the key of the run")
