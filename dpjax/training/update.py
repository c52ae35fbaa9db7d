"""One step: the clipped sum, its noise, the mean, and what the optimiser makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import transforms
from dpjax._numerics.keys import folded, unfolded
from dpjax.training.adaptive import reach
from dpjax.training.averaging import next_average
from dpjax.training.draws import Draws, phase_of
from dpjax.training.phases import noise_of, rate_of
from dpjax.training.plan import Plan
from dpjax.training.recipe import COUNT, NOISE, Recipe
from dpjax.training.samplers import chosen
from dpjax.training.slack import devices_paid_for, slack_of
from dpjax.training.sums import sum_of_draw


def update_of(recipe: Recipe, draws: Draws) -> Callable[..., Any]:
    """The pure `update(state, data, key, held) -> (state, seen)` of one step.

    Args:
        recipe: of the step.
        draws: of its plan.
    """
    plan, optimizer, placement, average = (
        recipe.plan,
        recipe.optimizer,
        recipe.placement,
        recipe.average,
    )
    total_of, noisy = sum_of_draw(recipe, draws), _noise_of_plan(plan, _slack(recipe, draws))
    divisors = [rate_of(p.step) * plan.population for p in plan.phases]
    phase = phase_of(plan)

    def update(state, data, key, held=()):
        params, step = state["params"], state["step"]
        clip_norm = state.get("clip_norm", plan.clip_norm)
        total, (*seen, within) = total_of(params, data, key, step, held, clip_norm)
        number, carried = phase(step), {}
        if plan.adaptive is not None:
            carried["clip_norm"] = _moved(plan, clip_norm, within, seen[1], key, step)
        released, after = noisy(total, state, key, number)
        carried |= after
        if placement is not None:
            released = placement.constrained(released, placement.specs(recipe.params))
        divisor = chosen(divisors, number)
        # Rounding to the parameters' dtype comes after the noise: it only post-processes.
        mean = jax.tree.map(
            lambda leaf, like: (leaf / jnp.asarray(divisor, leaf.dtype)).astype(like.dtype),
            released,
            params,
        )
        updates, inner = optimizer.update(mean, state["optimizer"], params)
        new = optax.apply_updates(params, updates)
        if average is not None:
            carried["average"] = next_average(state["average"], new, average(step + 1))
        return {"params": new, "optimizer": inner, "step": step + 1, **carried}, tuple(seen)

    return update


def _slack(recipe: Recipe, draws: Draws) -> float:
    """By how much rounding can raise the sensitivity of a step's sum."""
    given = recipe.params, draws.capacity, draws.largest, recipe.failure
    return slack_of(*given, devices_paid_for(recipe.placement))


def _moved(plan: Plan, clip_norm: Any, within: Any, records: Any, key: Any, step: Any) -> Any:
    """The clip norm of the next step, from a noisy count of the records within this one's."""
    adaptive: Any = plan.adaptive
    counting = folded(key, COUNT, step)
    count = 2 * within - records.astype(jnp.int32)  # of records, each ±1: halves are exact
    moved = adaptive.moved(clip_norm, 0.5 * count.astype(jnp.float32), counting)
    return jnp.clip(moved, *reach(plan.clip_norm)).astype(jnp.float32)


def _noise_of_plan(plan: Plan, slack: float) -> Callable[..., Any]:
    """`noisy(total, state, key, number) -> (sum, carried)`, the noise of a phase's step added.

    Noise is a function of (key, step), both given at each call: no key is compiled into the
    program, and none travels with the state into a checkpoint.
    """
    stddevs = _stddevs(plan, slack)

    def independent(total, state, key, number):
        stddev = chosen(stddevs, number)
        if plan.adaptive is not None:
            stddev = jnp.asarray(stddev, jnp.float32) * state["clip_norm"]
        noise = transforms.gaussian_noise(stddev, jax.random.key(0))
        before = transforms.NoiseState(unfolded(key, NOISE), state["step"])
        return noise.update(total, before)[0], {}

    def correlated(total, state, key, number):
        del number  # one phase, whose steps' noise is that of the strategy
        strategy: Any = plan.strategy
        noise = transforms.correlated_noise(strategy, stddevs[0], jax.random.key(0))
        own = unfolded(key, NOISE)
        before = transforms.CorrelatedState(own, state["step"], state["noise"])
        released, after = noise.update(total, before)
        return released, {"noise": after.past}  # pyrefly: ignore

    return independent if plan.strategy is None else correlated


def _stddevs(plan: Plan, slack: float) -> list[float]:
    """Of every phase, the noise's standard deviation; over the clip norm where that is adaptive."""
    multipliers = [noise_of(phase.step) * (1 + slack) for phase in plan.phases]
    if plan.adaptive is None:
        return [multiplier * plan.clip_norm for multiplier in multipliers]
    # Three roundings follow: of this number, of the clip norm, and of their product.
    up = (1 + slack) * (1 + 2 * float(np.finfo(np.float32).eps))
    return [plan.adaptive.gradient_noise(noise_of(phase.step)) * up for phase in plan.phases]
