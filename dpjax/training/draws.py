"""The records of a run, and which of them a step draws, in pieces of a fixed size."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import sampling
from dpjax._numerics.checks import Tracer
from dpjax._numerics.keys import fold_in_words, is_threefry
from dpjax._numerics.namespace import Returned
from dpjax.gradients.compensated import PIECES
from dpjax.training.data import HostData, check_representable
from dpjax.training.devices import Placement
from dpjax.training.order import shuffle
from dpjax.training.plan import Phase, Plan
from dpjax.training.schemes import Poisson, Scheme
from dpjax.training.step_config import StepConfig, takes_params_alone
from dpjax.training.users import per_user

if TYPE_CHECKING:
    from jaxtyping import Array, ArrayLike, Bool, PyTree

    from dpjax._numerics.typing import Number, PRNGKey, StepNumber
    from dpjax.training.parameters import ModelPartition
    from dpjax.training.run import RunArrays
    from dpjax.training.typing import RunData

# Records up to which a sort costs less than compiling `nonzero` would.
_SORTED = 1 << 14
# What tells the bits of a step's order from those of its draw: no step has this number.
_ORDER = 0xFFFF_FFFD


OneScheme = TypeVar("OneScheme", bound=Scheme)
OneValue = TypeVar("OneValue", bound="Number | np.integer")


@dataclasses.dataclass(frozen=True)
class SamplerShape:
    """What the samplers of a plan share."""

    population: int  # number of records
    padded: int  # slots for them, a whole number of pieces
    phases: tuple[Phase, ...]  # of the plan
    largest: int  # records of a step, more with at most the probability of a failure
    flags: bool = False  # whether a draw is one flag a record, else the indices of records

    def list_values(
        self, scheme: OneScheme, value: Callable[[OneScheme], Returned]
    ) -> list[Returned]:
        """The value of every phase of this kind of scheme; this one's for the others."""
        schemes = [phase.scheme for phase in self.phases]
        return [value(one if type(one) is type(scheme) else scheme) for one in schemes]

    @staticmethod
    def choose(values: list[OneValue], number: Array | None) -> OneValue | Array:
        """The value of a phase: a constant where all phases agree."""
        if number is not None and any(isinstance(value, Tracer) for value in values):
            return jnp.stack(values)[number]
        if number is None or all(value == values[0] for value in values):
            return values[0]
        return jnp.asarray(np.asarray(values))[number]

    def collect(self, inclusion: Bool[Array, " records"]) -> tuple[Array, Array]:
        """The draw of the records whose flag is set."""
        if self.flags:
            return inclusion, jnp.sum(inclusion, dtype=jnp.int32)
        return list_flagged(inclusion, self.padded)

    def draw_first(self, indices: Array, size: ArrayLike) -> tuple[Array, Array]:
        """The draw of the records that the first `size` indices number."""
        size = jnp.asarray(size, jnp.int32)
        indices = jnp.pad(indices, (0, self.padded - indices.shape[0]))
        slots = jnp.arange(self.padded, dtype=jnp.int32)
        indices = jnp.where(slots < size, indices, self.population)
        if self.flags:
            indices = jnp.zeros(self.population, bool).at[indices].set(True, mode="drop")
        return indices, size


def list_flagged(inclusion: Bool[Array, " records"], padded: int) -> tuple[Array, Array]:
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
    draw: Callable[..., tuple[Array, ...]]
    capacity: int  # records of a piece
    # Records of a step (in a block), more with at most the probability `failure`.
    largest: int
    padded: int  # slots for all records (of a block), a whole number of pieces
    ordered: int = 0  # slots at the front that are in a random order


def make_draws(plan: Plan, capacity: int | None, failure: float) -> Draws:
    """The sampler of a plan in pieces of `capacity` records; None for pieces of usual draws."""
    n = plan.population
    largest = _largest_draw(plan, n, failure)
    capacity = _usual_draw(plan, n, largest) if capacity is None else min(capacity, n)
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1, got {capacity}")
    capacity = max(capacity, -(-largest // PIECES))  # of more pieces the rounding adds up
    # Draws with replacement may be more than there are records.
    padded = -(-max(n, largest) // capacity) * capacity
    # In a random order come the slots of the largest draw and some more, so that a program that is
    # kept serves numbers of records about the same. Their number says nothing of the pieces.
    ordered = min(_round_up_slots(largest), max(n, largest))
    run = SamplerShape(n, padded, plan.phases, ordered)
    return Draws(_make_draw(plan, run), capacity, largest, padded, ordered)


class RecordNumbers(NamedTuple):
    """What sets two runs of a program with places apart; the numbers of a plan of one phase."""

    records: int | Array  # how many of the places hold one
    word: (
        np.uint32 | Array
    )  # the largest with which a record takes part, see `sampling.largest_word`
    stddev: Number  # of the noise that is added to a sum
    scale: Number  # of the noisy sum: one over the expected number of records


# Bytes of records up to which they are copied into places.
_MOST_COPIED = 1 << 28


def count_places(arrays: RunArrays, key: PRNGKey, config: StepConfig) -> int | None:
    """For how many records there is a place in a program that is kept; None for no program."""
    # A program that is kept on disk serves other runs only where nothing of it is of this one
    # alone. How many records there are to train on may be chance, as where records are held out by
    # a coin each. Flags are drawn by number: those of the first records are what they were.
    plan, data = config.plan, arrays.data
    if not jax.config.jax_compilation_cache_dir or config.placement or isinstance(data, HostData):  # pyrefly: ignore
        return None
    plain = plan.adaptive is plan.strategy is None and not plan.is_traced
    if not (plain and [type(phase.scheme) for phase in plan.phases] == [Poisson]):
        return None
    if not is_threefry(key) or sum(leaf.nbytes for leaf in jax.tree.leaves(data)) > _MOST_COPIED:
        return None
    return _round_up_records(plan.population)


def _round_up_records(records: int) -> int:
    """A number of places for so many records, the same for others about as many."""
    unit = 1 << max(records.bit_length() - 4, 0)  # an eighth of the records or less
    return -(-records // unit) * unit


def fill_places(data: PyTree[Array], places: int) -> PyTree[Array]:
    """Records with empty ones behind them."""

    def fill(leaf: Array):
        behind = ((0, places - len(leaf)), *((0, 0),) * (leaf.ndim - 1))
        return jnp.asarray(np.pad(np.asarray(leaf), behind))  # on the host nothing is compiled

    return jax.tree.map(fill, data)


def make_numbers(plan: Plan, stddev: Number) -> RecordNumbers:
    """The numbers of a plan, whose noise has this standard deviation."""
    word = sampling.largest_word(plan.rate)
    return RecordNumbers(plan.population, word, stddev, 1 / (plan.rate * plan.population))


def make_place_draws(draws: Draws, places: int) -> Draws:
    """The draws of `make_draws` of plain Poisson sampling by `draw(key, step, numbers)`."""
    padded = -(-max(places, draws.largest) // draws.capacity) * draws.capacity

    def draw(key: PRNGKey, step: StepNumber, numbers: RecordNumbers):
        flags = sampling.inclusion_up_to(key, step, places, numbers.word)
        drawn, size = list_flagged(flags & (jnp.arange(places) < numbers.records), padded)
        return _put_in_order(key, step, drawn, draws.ordered, places), size

    return draws._replace(draw=draw, padded=padded)


def make_block_draws(plan: Plan, placement: Placement, draws: Draws, failure: float) -> Draws:
    """The draws of `make_draws`, record by record the same, as flags for the blocks of a mesh."""
    blocks, rows, n = placement.blocks, placement.rows(plan.population), plan.population
    # By the union bound over the blocks, one of them is larger with at most `failure`.
    largest = _largest_draw(plan, rows, failure / blocks)
    # Pieces of a usual draw, or a block's share of those that were asked for.
    size = _usual_draw(plan, rows, largest)
    if draws.capacity < _usual_draw(plan, n, draws.largest):
        size = -(-largest // -(-draws.largest // draws.capacity))
    inclusion = _make_draw(plan, SamplerShape(n, n, plan.phases, n, flags=True))

    def draw(key: PRNGKey, step: StepNumber):
        return (jnp.pad(inclusion(key, step)[0], (0, rows * blocks - n)),)

    return Draws(draw, size, largest, -(-rows // size) * size)


def check_divisible(plan: Plan) -> None:
    """Refuse a plan whose draws cannot be divided over devices."""
    if not all(phase.scheme.by_flags for phase in plan.phases):
        raise ValueError(
            "mesh must be None where records are drawn with replacement, got several devices: what "
            "is divided over them is drawn by one flag a record"
        )


def _make_draw(plan: Plan, run: SamplerShape) -> Callable[..., tuple[Array, Array]]:
    """The samplers of all phases as one function of (key, step)."""
    schemes = [phase.scheme for phase in plan.phases]
    kinds = [scheme.program_key(plan.population) for scheme in schemes]
    by_kind = dict(zip(kinds, schemes, strict=True))
    branches = [functools.partial(_draw_in_order, run, scheme) for scheme in by_kind.values()]
    find_phase, branch = make_phase_lookup(plan), [list(by_kind).index(kind) for kind in kinds]

    def draw(key: PRNGKey, step: StepNumber):
        number = find_phase(step)
        if len(branches) == 1:
            return branches[0](key, step, number)
        return jax.lax.switch(run.choose(branch, number), branches, key, step, number)

    return draw


def _draw_in_order(
    run: SamplerShape, scheme: Scheme, key: PRNGKey, step: StepNumber, number: Array | None
) -> tuple[Array, Array]:
    """The scheme's draw, in a random order where that hides the records' places."""
    drawn, size = scheme.draw(run, key, step, number)
    if run.flags or scheme.keeps_places:
        return drawn, size
    return _put_in_order(key, step, drawn, run.largest, run.population), size


def _put_in_order(
    key: PRNGKey, step: StepNumber, drawn: Array, ordered: int, records: int
) -> Array:
    """The drawn records, those of the first so many slots in a random order."""
    # What is beyond the largest draw is a record with at most the probability of a failure.
    own = fold_in_words(key, _ORDER, step)
    front = shuffle(own, drawn[:ordered], records, below=_round_up_records(records))
    return jnp.concatenate([front, drawn[ordered:]])


def make_phase_lookup(plan: Plan) -> Callable[[StepNumber], Array | None]:
    """From a step's number to its phase's; None of a plan of one phase."""
    ends = np.cumsum([phase.steps for phase in plan.phases]).astype(np.int32)
    if len(ends) == 1:
        return lambda step: None
    return lambda step: jnp.sum(jnp.asarray(step, jnp.int32) >= ends, dtype=jnp.int32)


def _largest_draw(plan: Plan, rows: int, failure: float) -> int:
    """Records of a step within so many neighbouring ones, exceeded with at most `failure`."""
    return max(phase.scheme.max_size(rows, plan.population, failure) for phase in plan.phases)


# How often a draw may be larger than a piece: it then takes a second one. A piece that almost no
# draw exceeds would be twice as large at 250 records, and a third at 1,000.
_RARE = 0.02
_UNITS = ((1024, 64), (128, 16))  # (from so many records on, whole multiples of)


def _usual_draw(plan: Plan, rows: int, largest: int) -> int:
    """Records of a piece that most steps' draws fit in."""
    usual = _largest_draw(plan, rows, _RARE)
    slots = _round_up_slots(usual)
    # A unit less is enough where draws beyond it, each of which costs a second piece, stay rare.
    less = slots - _slot_unit(slots)
    enough = slots > usual and less >= _largest_draw(plan, rows, 2 * _RARE)
    return min(less if enough else slots, largest)


def _slot_unit(slots: int) -> int:
    """A unit that is small beside so many slots, in whole multiples of which they are given."""
    return next((unit for start, unit in _UNITS if slots >= start), 1)


def _round_up_slots(slots: int) -> int:
    """A whole multiple of a unit that is small beside the number of slots."""
    return -(-slots // _slot_unit(slots)) * _slot_unit(slots)


class Selected(NamedTuple):
    """What is trained on: by record, or by user."""

    loss: Callable[..., Any]
    data: RunData
    owners: dict[str, Any]  # what a checkpoint must know of the users


def select_records(
    loss: Callable[..., Any],
    data: RunData,
    plan: Plan,
    users: ArrayLike | None,
    most: int | None,
    parts: ModelPartition,
    placement: Placement | None,
) -> Selected:
    """The loss and the data by record or by user, and what a checkpoint must know of the users."""
    check, rows = getattr(loss, "check_data", None), data
    if (users is None) != (plan.unit == "record"):
        given = "none" if users is None else "some"
        raise ValueError(
            f"users must be given where plan.unit is 'user' or 'person' and only there, got {given}"
        )
    owners = {}
    if users is not None:
        if most is None:
            raise ValueError("records_per_user must be given with users, got None")
        if takes_params_alone(loss):
            raise ValueError(
                "users must be None where loss makes a clip_and_sum, got some: let a record be "
                "all that one user has"
            )
        loss, data = per_user(loss, data, users, most)
        owners = {"users": users, "records per user": int(most)}
    elif most is not None:
        raise ValueError(f"records_per_user must be left out without users, got {most}")
    population = data.records if isinstance(data, HostData) else _count_records(data)
    if population != plan.population:
        raise ValueError(
            f"data must hold the plan's {plan.population} {plan.unit}s, got {population}"
        )
    # Where one process sees all records, the loss may refuse those that it is not made for.
    if check is not None and not (placement is not None and placement.several):
        rows = rows.arrays if isinstance(rows, HostData) else rows
        check(parts.restore(parts.trained), rows)
    return Selected(loss, data, owners)


def _count_records(data: PyTree[Array]) -> int:
    leaves = jax.tree.leaves(data)
    sizes = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in leaves}
    if len(sizes) != 1 or 0 in sizes:
        if any(isinstance(leaf, bool | int | float) for leaf in leaves):
            if isinstance(data, list):  # of records, more or fewer than the plan's
                return len(data)
            raise ValueError(
                "data must be arrays with a leading axis of records, got lists of Python's "
                "numbers: give numpy.asarray of each list"
            )
        raise ValueError(f"data must share one leading axis of records, got {sizes}")
    for leaf in leaves:
        if isinstance(leaf, np.memmap):  # the others are checked where `fit` begins
            check_representable(leaf)
    return sizes.pop()
