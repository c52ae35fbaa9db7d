"""What a run's key is bound to: everything that decides what its noise is added to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import dpjax
from dpjax.training.fingerprint import (
    array_digest,
    factors_digest,
    program_digest,
    source_digest,
    strategy_digest,
    text_digest,
)
from dpjax.training.recipe import Recipe, arguments_after_example
from dpjax.training.slack import devices_paid_for
from dpjax.training.sources import HostData


def identity_of_run(
    recipe: Recipe,
    data: Any,
    example: Any,
    key: Any,
    settings: Mapping[str, Any],
    held: Any = (),
    owners: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Names and values that all have to agree before a stored key draws noise again.

    With one of them changed, the same key would add the same noise to another sum, and the
    difference of the two outputs would be free of noise. Digests are keyed by the run's key.
    """
    _, params, plan, optimizer = recipe[:4]
    secret = np.asarray(jax.random.key_data(key)).tobytes()
    state = optimizer.init(params)
    # By their shapes: where the arrays lie is no part of what is computed.
    shapes, shapes_of_state = jax.eval_shape(lambda *trees: trees, params, state)
    given = (shapes, recipe.held, example, *arguments_after_example(recipe.loss_takes_key))
    if owners:
        named = [str(user) for user in np.asarray(owners["users"]).tolist()]
        settings = {**settings, **owners, "users": text_digest(named, secret=secret)}
    if recipe.average is not None:
        settings = {**settings, "average": program_digest(recipe.average, np.int32(1))}
    # The same draws of another scale, subtracted, are the draws.
    if devices_paid_for(recipe.placement) != devices_paid_for(None):
        settings = {**settings, "number of devices": devices_paid_for(recipe.placement)}
    return {
        **settings,
        "data": data.fingerprint(secret)
        if isinstance(data, HostData)
        else array_digest(_without_padding(data, plan.population), secret=secret),
        "mechanism": repr(plan.mechanism),
        # To the last bit: the line above rounds arrays.
        "mechanism's numbers": array_digest(plan.mechanism),
        # C and C⁻¹ have one price, and draw other noise.
        **({} if plan.correlation is None else {"strategy": repr(plan.correlation)}),
        "clip norm": plan.clip_norm,
        **({} if plan.adaptive is None else {"adaptive clip norm": repr(plan.adaptive)}),
        "records": plan.population,
        "delta": plan.delta,
        "reserved delta": dict(plan.extra_delta),
        "adjacency": plan.adjacency.value,
        "initial parameters": array_digest(params, secret=secret),
        "frozen parameters": array_digest(held, secret=secret),
        "strategy of clipping": strategy_digest(recipe.scaling),
        # A strategy of the user's own may keep what it computes with where no field tells.
        "strategy's factors": factors_digest(recipe.scaling, shapes),
        # The derivative has the rules of custom derivatives written out.
        "loss": program_digest(jax.value_and_grad(recipe.loss_of_parts), *given, secret=secret),
        "optimiser": program_digest(
            optimizer.update, shapes, shapes_of_state, shapes, secret=secret
        )
        + array_digest(state, secret=secret),
        "software": f"dpjax {dpjax.__version__} ({source_digest()}), jax {jax.__version__}",
    }


def _without_padding(data: Any, population: int) -> Any:
    """The records alone: a run may go on on a number of devices that pads them differently."""
    return jax.tree.map(
        lambda leaf: leaf if len(leaf) == population else np.asarray(leaf)[:population], data
    )
