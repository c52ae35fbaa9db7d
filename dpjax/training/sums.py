"""The clipped sum of the records that a step draws, worked through in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from dpjax import gradients
from dpjax._numerics.keys import folded, unfolded
from dpjax.gradients.per_example import accumulation_dtype
from dpjax.training.blocks import block_draws, sum_over_blocks
from dpjax.training.draws import Draws
from dpjax.training.feeding import Batch
from dpjax.training.recipe import LOSS, SAMPLING, Recipe
from dpjax.training.samplers import listed


def sum_of_draw(recipe: Recipe, draws: Draws) -> Callable[..., Any]:
    """`total(params, data, key, step, held, clip_norm) -> (sum, seen)` of a step's records.

    `seen` are the sum of their losses, how many they are, and how many have a gradient that is not
    finite, above the clip norm, or within it.

    Args:
        recipe: of the step.
        draws: of its plan.
    """
    placement = recipe.placement
    if placement is None:
        of_records = _sum_of_records(recipe, draws.capacity, draws.capacity)

        def of_draw(params, data, key, step, held, clip_norm):
            if isinstance(data, Batch):
                drawn = data.numbers, data.size, None
            else:
                found = draws.draw(unfolded(key, SAMPLING), step)
                drawn = *found, recipe.plan.population
            return of_records(params, data, drawn, key, step, held, clip_norm)

        return of_draw

    specs = placement.specs(recipe.params)
    divided = block_draws(recipe.plan, placement, draws, recipe.failure)
    of_records = _sum_of_records(recipe, divided.capacity, draws.capacity)

    def one_block(params, records, *shared):
        if isinstance(records, Batch):
            drawn = records.numbers, records.size[0], None
            return of_records(params, records, drawn, *shared)
        data, flags, numbers = records
        drawn = *listed(flags, divided.padded), flags.shape[0]
        return of_records(params, data, drawn, *shared, numbers[0])

    over_blocks = sum_over_blocks(placement, specs, one_block)
    rows = placement.sharding(PartitionSpec(placement.records))

    def of_blocks(params, data, key, step, held, clip_norm):
        records = data
        if not isinstance(data, Batch):
            flags = divided.inclusion(unfolded(key, SAMPLING), step)
            flags = jax.lax.with_sharding_constraint(flags, rows)
            records = data, flags, jnp.arange(flags.shape[0], dtype=jnp.int32)
        total, seen = over_blocks(params, records, key, step, held, clip_norm)
        return placement.constrained(total, specs), seen

    return of_blocks


def _sum_of_records(recipe: Recipe, capacity: int, share_of: int) -> Callable[..., Any]:
    """The clipped sum of the records drawn from those whose numbers begin at the first.

    Args:
        recipe: of the step.
        capacity: records of a piece.
        share_of: records for whose rounding the noise allows, see `clipped_grad`.
    """
    plan, loss = recipe.plan, recipe.loss_of_parts
    settings = {"method": recipe.method, "strategy": recipe.scaling, "share_of": share_of}

    def of_records(params, data, drawn, key, step, held, clip_norm, first_record=0):
        def of_trained(params, *example_and_key):
            return loss(params, held, *example_and_key)

        # A number of Python's is a constant of the program; an adaptive clip norm is not.
        bound = plan.clip_norm if plan.adaptive is None else clip_norm
        clipped = gradients.clipped_grad(of_trained, plan.clip_norm, **settings)
        indices, size, records = drawn  # of how many they were: a slot without one has a larger
        slots = jnp.arange(capacity, dtype=jnp.int32)
        keys_of = keys_of_records(key, step) if recipe.loss_takes_key else lambda records: None

        def left(state):
            start = state[0] * capacity
            if isinstance(data, Batch):
                return (start == 0) | (start < size)
            # Those drawn come first. To count them is a sum over all records, which XLA compiles
            # as five programs of a CPU.
            next_one = jax.lax.dynamic_index_in_dim(indices, start, keepdims=False)
            return (start == 0) | ((start < indices.shape[0]) & (next_one < records))

        def piece(state):
            number, totals = state
            start = number * capacity
            rows = jax.lax.dynamic_slice(indices, (start,), (capacity,))
            if isinstance(data, Batch):
                taken = start + slots < size
                batch = jax.tree.map(lambda leaf: leaf[start + slots], data.rows)
            else:
                taken = rows < records
                rows = jnp.where(taken, rows, 0)
                batch = jax.tree.map(lambda leaf: leaf[rows], data)
            # What follows is compiled alike wherever the records come from: the same bits.
            batch, mask = jax.lax.optimization_barrier((batch, taken))
            keys = keys_of(first_record + rows)
            out = clipped(params, batch, mask=mask, rng=keys, clip_norm=bound)
            # A loss that is not finite would hide all others behind it in the mean.
            finite = jnp.where(jnp.isfinite(out.losses), out.losses, jnp.zeros_like(out.losses))
            limit = jnp.asarray(bound, out.norms.dtype)
            above = jnp.isfinite(out.norms) & (out.norms > limit)
            within = mask & (out.norms <= limit)
            counts = out.nonfinite, *(jnp.sum(x, dtype=jnp.int32) for x in (above, within))
            found = (out.sum, jnp.sum(finite, dtype=jnp.float32), *counts)
            return number + 1, jax.tree.map(jnp.add, totals, found)

        zero = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, accumulation_dtype(leaf.dtype)), params
        )
        none = jnp.zeros((), jnp.int32)
        first = (zero, jnp.zeros((), jnp.float32), none, none, none)
        _, (total, loss_sum, *counts) = jax.lax.while_loop(left, piece, (none, first))
        return total, (loss_sum, size.astype(jnp.float32), *counts)

    return of_records


def keys_of_records(key: Any, step: Any) -> Callable[[Any], Any]:
    """From the numbers of records to their keys, which the loss of this step is given.

    A record's key is a function of the run's key, the step and the record's number alone: neither
    its place in the batch nor the pieces that a batch is worked through in change it.
    """
    of_step = folded(key, LOSS, step)
    return jax.vmap(lambda record: jax.random.fold_in(of_step, record))
