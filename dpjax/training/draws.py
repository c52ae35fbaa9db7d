"""Which records a step works on, in pieces of a fixed size, on one device or several."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from dpjax._numerics.checks import Tracer
from dpjax.training.devices import Placement, is_spec
from dpjax.training.plan import Phase, Plan

# Records up to which a sort costs less than compiling `nonzero` would.
_SORTED = 1 << 14


@dataclasses.dataclass(frozen=True)
class Run:
    """What the samplers of a plan share."""

    population: int  # number of records
    padded: int  # slots for them, a whole number of pieces
    phases: tuple[Phase, ...]  # of the plan
    flags: bool = False  # whether a draw is one flag a record, else the indices of records

    def list_values(self, scheme: Any, value: Callable[[Any], Any]) -> list[Any]:
        """The value of every phase of this kind of scheme; the first one's for the others."""
        schemes = [phase.scheme for phase in self.phases]
        known = [value(one) if type(one) is type(scheme) else None for one in schemes]
        first = next(found for found in known if found is not None)
        return [first if found is None else found for found in known]

    @staticmethod
    def choose(values: list[Any], number: Any) -> Any:
        """The value of a phase: a constant where all phases agree."""
        if number is not None and any(isinstance(value, Tracer) for value in values):
            return jnp.stack(values)[number]
        if number is None or all(value == values[0] for value in values):
            return values[0]
        return jnp.asarray(np.asarray(values))[number]

    def collect(self, inclusion: Any) -> tuple[Any, Any]:
        """The draw of the records whose flag is set."""
        if self.flags:
            return inclusion, jnp.sum(inclusion, dtype=jnp.int32)
        return list_flagged(inclusion, self.padded)

    def draw_first(self, indices: Any, size: Any) -> tuple[Any, Any]:
        """The draw of the records that the first `size` indices number."""
        size = jnp.asarray(size, jnp.int32)
        indices = jnp.pad(indices, (0, self.padded - indices.shape[0]))
        slots = jnp.arange(self.padded, dtype=jnp.int32)
        indices = jnp.where(slots < size, indices, self.population)
        if self.flags:
            indices = jnp.zeros(self.population, bool).at[indices].set(True, mode="drop")
        return indices, size


def list_flagged(inclusion: Any, padded: int) -> tuple[Any, Any]:
    """(indices of the records whose flag is set, in their order; how many they are)."""
    records = inclusion.shape[0]
    if records > _SORTED:
        indices = jnp.nonzero(inclusion, size=padded, fill_value=records)[0].astype(jnp.int32)
        return indices, jnp.sum(inclusion, dtype=jnp.int32)
    # The same records in the same order; a sort compiles in a fifth of the time.
    places = jnp.arange(padded, dtype=jnp.int32)
    drawn = jnp.pad(inclusion, (0, padded - records))
    indices = jnp.sort(places + jnp.where(drawn, 0, records))
    # Counted as they are sorted, or XLA would draw the bits behind the flags once more.
    return indices, jnp.sum(indices < records, dtype=jnp.int32)


class Draws(NamedTuple):
    """The sampler of a plan, of all records or of those of each block of a mesh."""

    # `draw(key, step) -> (indices, size)`, padded with numbers beyond the last record's; of blocks
    # `draw(key, step) -> (flags,)`, one a record, the last block's padding included.
    draw: Callable[[Any, Any], tuple[Any, ...]]
    capacity: int  # records of a piece
    # Records of a step (in a block), more with at most the probability `failure`.
    largest: int
    padded: int  # slots for all records (of a block), a whole number of pieces


def make_draws(plan: Plan, capacity: int | None, failure: float) -> Draws:
    """The sampler of a plan in pieces of `capacity` records; None for pieces of whole draws."""
    n = plan.population
    largest = _largest_draw(plan, n, failure)
    capacity = largest if capacity is None else min(capacity, n)
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1, got {capacity}")
    # Draws with replacement may be more than there are records.
    padded = -(-max(n, largest) // capacity) * capacity
    return Draws(_make_draw(plan, Run(n, padded, plan.phases)), capacity, largest, padded)


def make_block_draws(plan: Plan, placement: Placement, draws: Draws, failure: float) -> Draws:
    """The draws of `make_draws`, record by record the same, as flags for the blocks of a mesh."""
    blocks, rows, n = placement.blocks, placement.rows(plan.population), plan.population
    # By the union bound over the blocks, one of them is larger with at most `failure`.
    largest = _largest_draw(plan, rows, failure / blocks)
    # A block's records are worked through in as many pieces as all are.
    size = -(-largest // -(-draws.largest // draws.capacity))
    inclusion = _make_draw(plan, Run(n, n, plan.phases, flags=True))

    def draw(key, step):
        return (jnp.pad(inclusion(key, step)[0], (0, rows * blocks - n)),)

    return Draws(draw, size, largest, -(-rows // size) * size)


def check_divisible(plan: Plan) -> None:
    """Refuse a plan whose draws cannot be divided over devices."""
    if not all(phase.scheme.by_flags for phase in plan.phases):
        raise ValueError(
            "mesh must be None where records are drawn with replacement, got several devices: what "
            "is divided over them is drawn by one flag a record"
        )


def _make_draw(plan: Plan, run: Run) -> Callable[[Any, Any], tuple[Any, Any]]:
    """The samplers of all phases as one function of (key, step)."""
    schemes = [phase.scheme for phase in plan.phases]
    kinds = [scheme.program_key(plan.population) for scheme in schemes]
    by_kind = dict(zip(kinds, schemes, strict=True))
    branches = [functools.partial(scheme.draw, run) for scheme in by_kind.values()]
    find_phase, branch = make_phase_lookup(plan), [list(by_kind).index(kind) for kind in kinds]

    def draw(key, step):
        number = find_phase(step)
        if len(branches) == 1:
            return branches[0](key, step, number)
        return jax.lax.switch(run.choose(branch, number), branches, key, step, number)

    return draw


def make_phase_lookup(plan: Plan) -> Callable[[Any], Any]:
    """From a step's number to its phase's; None of a plan of one phase."""
    ends = np.cumsum([phase.steps for phase in plan.phases]).astype(np.int32)
    if len(ends) == 1:
        return lambda step: None
    return lambda step: jnp.sum(jnp.asarray(step, jnp.int32) >= ends, dtype=jnp.int32)


def _largest_draw(plan: Plan, rows: int, failure: float) -> int:
    """Records of a step within so many neighbouring ones, exceeded with at most `failure`."""
    return max(phase.scheme.max_size(rows, plan.population, failure) for phase in plan.phases)


def sum_over_blocks(placement: Placement, specs: Any, one_block: Callable[..., Any]) -> Any:
    """`(params, records, *shared) -> (sum, counts)`, added up over `one_block` of every device."""
    # Parameters divided over the records' axes are gathered, and their sums added where they live.
    axes = set(placement.records)
    ours = jax.tree.map(lambda spec: _spec_over_records(spec, axes), specs, is_leaf=is_spec)
    rows: Any = PartitionSpec(placement.records)

    def on_each_device(params, records, shared):
        params = jax.tree.map(_gather_parameter, params, ours)
        total, counts = one_block(params, records, *shared)
        total = jax.tree.map(lambda x, spec: _reduce_sum(x, spec, placement.records), total, ours)
        return total, jax.tree.map(lambda x: jax.lax.psum(x, placement.records), counts)

    mapped = jax.shard_map(
        on_each_device,
        mesh=placement.mesh,
        in_specs=(ours, rows, PartitionSpec()),
        out_specs=(ours, PartitionSpec()),
        axis_names=axes,
        check_vma=False,  # a loss may carry constants through its loops
    )
    return lambda params, records, *shared: mapped(params, records, shared)


def _spec_over_records(spec: PartitionSpec, axes: set[str]) -> PartitionSpec:
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


def _gather_parameter(leaf: Any, spec: PartitionSpec) -> Any:
    for dimension, names in enumerate(spec):
        if names:
            leaf = jax.lax.all_gather(leaf, names, axis=dimension, tiled=True)
    return leaf


def _reduce_sum(total: Any, spec: PartitionSpec, records: tuple[str, ...]) -> Any:
    """The sum over all devices, each of which keeps its own share: a reduce-scatter."""
    left = [axis for axis in records if not any(axis in (names or ()) for names in spec)]
    for dimension, names in enumerate(spec):
        if names:
            total = jax.lax.psum_scatter(total, names, scatter_dimension=dimension, tiled=True)
    return jax.lax.psum(total, tuple(left)) if left else total
