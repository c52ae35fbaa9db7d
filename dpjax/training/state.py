"""What a run carries from step to step, and where it lies."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dpjax import transforms
from dpjax.training.averaging import first_average
from dpjax.training.placement import Placement
from dpjax.training.plan import Plan


def first_state(params, plan: Plan, optimizer, step, average=None) -> dict[str, Any]:
    """What a run carries from step to step; the noise of the last ones where it is correlated."""
    state = {"params": params, "optimizer": optimizer.init(params), "step": step}
    if average is not None:
        state["average"] = first_average(params)
    if plan.adaptive is not None:
        state["clip_norm"] = jnp.asarray(plan.clip_norm, jnp.float32)
    if plan.strategy is None:
        return state
    noise = transforms.correlated_noise(plan.strategy, 1.0, jax.random.key(0))
    return state | {"noise": noise.init(params).past}  # pyrefly: ignore


def state_on(placement: Placement, params, plan: Plan, optimizer, average=None) -> Any:
    """The shardings of a run's state under a placement."""
    first = lambda params: first_state(params, plan, optimizer, 0, average)  # noqa: E731
    shapes = jax.eval_shape(first, params)
    return placement.state(shapes, placement.specs(params))


def first_state_on(placement: Placement, params, plan: Plan, optimizer, average=None) -> Any:
    """`first_state` of parameters on devices of several processes, made where it lies."""
    first = lambda params: first_state(params, plan, optimizer, jnp.int32(0), average)  # noqa: E731
    shardings = state_on(placement, params, plan, optimizer, average)
    return jax.jit(first, out_shardings=shardings)(params)
