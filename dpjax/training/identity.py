"""What a run's key is bound to: everything that decides what its noise is added to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import dpjax
from dpjax.training.fingerprint import array_digest, program_digest
from dpjax.training.sources import HostData
from dpjax.training.step import Recipe, arguments_after_example


def identity_of_run(
    recipe: Recipe, data: Any, example: Any, key: Any, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Names and values that all have to agree before a stored key draws noise again.

    With one of them changed, the same key would add the same noise to another sum, and the
    difference of the two outputs would be free of noise. Digests are keyed by the run's key.
    """
    loss, params, plan, optimizer = recipe[:4]
    secret = np.asarray(jax.random.key_data(key)).tobytes()
    state = optimizer.init(params)
    given = (params, example, *arguments_after_example(recipe.loss_takes_key))
    return {
        **settings,
        "data": data.fingerprint(secret)
        if isinstance(data, HostData)
        # Without the padding of blocks: a run may go on on another number of devices.
        else array_digest(
            jax.tree.map(lambda leaf: leaf[: plan.population], data), secret=secret
        ),
        "mechanism": repr(plan.mechanism),
        # To the last bit: the line above rounds arrays.
        "mechanism's numbers": array_digest(plan.mechanism),
        # C and C⁻¹ have one price, and draw other noise.
        **({} if plan.correlation is None else {"strategy": repr(plan.correlation)}),
        "clip norm": plan.clip_norm,
        "records": plan.population,
        "delta": plan.delta,
        "reserved delta": dict(plan.extra_delta),
        "adjacency": plan.adjacency.value,
        "initial parameters": array_digest(params, secret=secret),
        # The derivative has the rules of custom derivatives written out.
        "loss": program_digest(jax.value_and_grad(loss), *given, secret=secret),
        "optimiser": program_digest(optimizer.update, params, state, params, secret=secret)
        + array_digest(state, secret=secret),
        "software": f"dpjax {dpjax.__version__}, jax {jax.__version__}",
    }
