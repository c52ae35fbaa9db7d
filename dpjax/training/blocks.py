"""A step's clipped sum over records that are divided over devices.

Every device works through the records of its own block that the step drew, and only sums of
gradients travel: no record leaves its device, no gradient of one record, and no norm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from dpjax.training.draws import Draws, inclusion_of, largest_of_block
from dpjax.training.placement import Placement
from dpjax.training.plan import Plan

__all__ = ["BlockDraws", "block_draws", "sum_over_blocks"]


class BlockDraws(NamedTuple):
    """The sampler of a plan whose records are divided in blocks.

    Fields:
        inclusion: `inclusion(key, step)`, a flag a record, the last block's padding included.
        padded: slots for the records of a block, a whole number of pieces.
        capacity: records of a piece of one block.
        largest: records of a block in a step, exceeded with at most the probability that
            `block_draws` was given.
    """

    inclusion: Callable[[Any, Any], Any]
    padded: int
    capacity: int
    largest: int


def block_draws(plan: Plan, placement: Placement, draws: Draws, failure: float) -> BlockDraws:
    """The draws of `draws_of`, record by record the same, block by block.

    Args:
        plan: its phases say how records are sampled.
        placement: of the records.
        draws: of the plan; a block's records are worked through in as many pieces as all are.
        failure: with what probability a step may need more of them.
    """
    blocks, rows, n = placement.blocks, placement.rows(plan.population), plan.population
    largest = largest_of_block(plan, rows, failure / blocks)
    size = -(-largest // -(-draws.largest // draws.capacity))
    inclusion = inclusion_of(plan)

    def padded(key, step):
        return jnp.pad(inclusion(key, step), (0, rows * blocks - n))

    return BlockDraws(padded, -(-rows // size) * size, size, largest)


def sum_over_blocks(placement: Placement, specs: Any, one_block: Callable[..., Any]) -> Any:
    """`total(params, records, *shared)`: the sum of what `one_block` finds of every block.

    Parameters that are divided over the records' axes are gathered, and their sums are added up
    where they live (a reduce-scatter).

    Args:
        placement: of records and parameters.
        specs: of the parameters.
        one_block: `one_block(params, records, *shared) -> (sum, counts)` of one device's records,
            a tree whose leading axes are divided.
    """
    axes = set(placement.records)
    is_spec = lambda spec: isinstance(spec, PartitionSpec)  # noqa: E731
    ours = jax.tree.map(lambda spec: _manual(spec, axes), specs, is_leaf=is_spec)
    rows: Any = PartitionSpec(placement.records)

    def everywhere(params, records, shared):
        whole = jax.tree.map(_gathered, params, ours)
        total, counts = one_block(whole, records, *shared)
        total = jax.tree.map(lambda x, spec: _added(x, spec, placement.records), total, ours)
        return total, jax.tree.map(lambda x: jax.lax.psum(x, placement.records), counts)

    mapped = jax.shard_map(
        everywhere,
        mesh=placement.mesh,
        in_specs=(ours, rows, PartitionSpec()),
        out_specs=(ours, PartitionSpec()),
        axis_names=axes,
        check_vma=False,  # a loss may carry constants through its loops
    )

    return lambda params, records, *shared: mapped(params, records, shared)


def _manual(spec: PartitionSpec, axes: set[str]) -> PartitionSpec:
    """The part of a parameter's layout that is along the records' axes."""
    entries = []
    for entry in spec:
        names = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
        own = tuple(name for name in names if name in axes)
        if own and len(own) < len(names):
            raise ValueError(
                f"mesh must divide no dimension over axes of records and others, got {spec}"
            )
        entries.append(own or None)
    return PartitionSpec(*entries)


def _gathered(leaf: Any, spec: PartitionSpec) -> Any:
    for dimension, names in enumerate(spec):
        if names:
            leaf = jax.lax.all_gather(leaf, names, axis=dimension, tiled=True)
    return leaf


def _added(total: Any, spec: PartitionSpec, records: tuple[str, ...]) -> Any:
    left = list(records)
    for dimension, names in enumerate(spec):
        if names:
            left = [name for name in left if name not in names]
            total = jax.lax.psum_scatter(total, names, scatter_dimension=dimension, tiled=True)
    return jax.lax.psum(total, tuple(left)) if left else total
