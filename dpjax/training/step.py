"""The compiled programs of a run, and what was compiled for one that did the same."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import gradients, sampling, transforms
from dpjax.training.blocks import block_draws
from dpjax.training.draws import draws_of
from dpjax.training.feeding import Loading, loading, loading_in_blocks
from dpjax.training.fingerprint import Opaque, array_digest, factors_digest, program_digest
from dpjax.training.recipe import Recipe, arguments_after_example
from dpjax.training.state import state_on
from dpjax.training.update import update_of

# What was compiled last, by what it computes: a run that is repeated compiles nothing again.
_PROGRAMS: collections.OrderedDict[Any, Any] = collections.OrderedDict()
_KEPT = 8


def compiled(recipe: Recipe, example: Any):
    """`_compiled` of the same, or what it returned for a loss and an optimiser that do the same.

    Args:
        recipe: of the step.
        example: the shapes and dtypes of one record.
    """
    _, params, plan, optimizer, capacity, method, failure = recipe[:7]
    loss_takes_key, placement, average = recipe[7:10]
    given = (params, recipe.held, example, *arguments_after_example(loss_takes_key))
    try:
        computes = (
            program_digest(jax.value_and_grad(recipe.loss_of_parts), *given, exact=True),
            factors_digest(recipe.scaling, params, exact=True),
            program_digest(optimizer.update, params, optimizer.init(params), params, exact=True),
            None if average is None else program_digest(average, np.int32(1), exact=True),
        )
    except Opaque:
        return _compiled(recipe)
    parts = (transforms.gaussian_noise, transforms.correlated_noise, gradients.clipped_grad)
    parts += (sampling.inclusion_up_to, sampling.poisson_inclusion, sampling.fixed_batch)
    parts += (sampling.allocation_inclusion, sampling.truncated_poisson)
    settings = (
        array_digest(plan.mechanism),
        plan.correlation,
        plan.clip_norm,
        array_digest(plan.adaptive),
        plan.population,
        capacity,
        method,
        failure,
        loss_takes_key,
        recipe.counted,
        None if placement is None else (placement, tuple(jax.tree.leaves(placement.specs(params)))),
    )
    key = (computes, settings, parts)
    if key not in _PROGRAMS:
        _PROGRAMS[key] = _compiled(recipe)
        while len(_PROGRAMS) > _KEPT:
            _PROGRAMS.popitem(last=False)
    _PROGRAMS.move_to_end(key)
    return _PROGRAMS[key]


class Compiled(NamedTuple):
    """The programs of a run, compiled when they are first called.

    Fields:
        advance: `advance(state, totals, key, data, stop, held=())`: steps until `state["step"]` is
            `stop`; `held` are the values of what is not trained.
            The totals of a row of the metrics travel with the state, so that a row may be worked
            through in any number of calls and still adds up to the same bits; a run that records
            none of them leaves them as they are, and XLA compiles nothing of them. `data` is all
            records, or the `Batch` of the one step that is taken.
        host: how a step's records come from the host.
    """

    advance: Callable[..., Any]
    host: Loading


def _compiled(recipe: Recipe) -> Compiled:
    """The programs of a run."""
    draws = draws_of(recipe.plan, recipe.capacity, recipe.failure)
    update, placement, results = update_of(recipe, draws), recipe.placement, {}
    if placement is not None:
        state = state_on(placement, recipe.params, recipe.plan, recipe.optimizer, recipe.average)
        results = {"out_shardings": (state, placement.sharding())}

    @functools.partial(jax.jit, **results)
    def advance(state, totals, key, data, stop, held=()):
        def step(carry):
            state, seen = update(carry[0], data, key, held)
            return state, jax.tree.map(jnp.add, carry[1], seen) if recipe.counted else carry[1]

        return jax.lax.while_loop(lambda carry: carry[0]["step"] < stop, step, (state, totals))

    if placement is None:
        return Compiled(advance, loading(draws))
    divided = block_draws(recipe.plan, placement, draws, recipe.failure)
    return Compiled(advance, loading_in_blocks(divided, placement))
