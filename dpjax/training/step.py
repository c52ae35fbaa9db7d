"""One step, from the draw to the optimiser's update, and its compiled program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

from dpjax import gradients, sampling, transforms
from dpjax._numerics.keys import fold_in_words
from dpjax.gradients import compensated
from dpjax.gradients.compensated import Compensated
from dpjax.gradients.per_example import accumulation_dtype
from dpjax.training import devices, fingerprint, options, step_config
from dpjax.training import draws as drawing
from dpjax.training.draws import (
    Draws,
    RecordNumbers,
    SamplerShape,
    make_block_draws,
    make_draws,
    make_numbers,
    make_place_draws,
)
from dpjax.training.feed import LoadedBatch, make_loading
from dpjax.training.plan import NoiseRounding, Plan
from dpjax.training.step_config import COUNT, LOSS, NOISE_KEY, SAMPLING, StepConfig

if TYPE_CHECKING:
    from jax.sharding import NamedSharding
    from jaxtyping import Array, ArrayLike, PyTree

    from dpjax._numerics.typing import Number, Params, PRNGKey
    from dpjax.training.typing import RecordTree, RunState, Totals

# A clipped sum, and what is seen of the records in it: see `sum_over_draw`.
_Sums = tuple[Compensated, tuple[jax.Array, ...]]


class Drawn(NamedTuple):
    """The records of one step.

    Fields:
        indices: of the records; a slot without a record has a larger index than all of them.
        size: how many were drawn.
        records: from how many; 0 of a batch that was loaded, which `size` says enough of.
    """

    indices: Array | np.ndarray
    size: Array | np.ndarray
    records: int | Array = 0


# What was compiled last, by what it computes: a run that is repeated compiles nothing again.
_PROGRAMS: dict[Any, Compiled] = {}
_KEPT = 8


def compile_step(config: StepConfig, example: RecordTree) -> Compiled:
    """The programs of a step, compiled anew unless an equal one was compiled before."""
    plan, placement = config.plan, config.placement
    try:
        computes = digest_programs(config, example, exact=True)
    except fingerprint.UnhashableProgram:
        return _compile_step(config)
    layout = placement and (placement, *jax.tree.leaves(placement.specs(config.params)))
    key = (
        tuple(computes.items()),
        fingerprint.array_digest((plan.mechanism, plan.adaptive)),
        (plan.correlation, plan.clip_norm, plan.population),
        (config.capacity, config.method, config.failure, config.loss_takes_key, config.counted),
        config.places,
        layout,
        # A program is another one where a function that it is made of is.
        (gradients.clipped_grad, transforms.gaussian_noise, transforms.correlated_noise),
        (sampling.inclusion_up_to, *(getattr(sampling, name) for name in sampling.__all__)),
    )
    _PROGRAMS[key] = _PROGRAMS.pop(key, None) or _compile_step(config)  # the last one used, last
    while len(_PROGRAMS) > _KEPT:
        del _PROGRAMS[next(iter(_PROGRAMS))]
    return _PROGRAMS[key]


def digest_programs(
    config: StepConfig, example: RecordTree, *, secret: bytes = b"", exact: bool = False
) -> dict[str, str]:
    """Digests of what the loss, the strategy of clipping, the optimiser and the average compute."""
    state = config.optimizer.init(config.params)
    # By their shapes: where the arrays lie is no part of what is computed.
    params, frozen, state = jax.eval_shape(lambda *t: t, config.params, config.frozen, state)
    digest = functools.partial(fingerprint.program_digest, secret=secret, exact=exact)
    if config.makes_sum:
        # As many records as there are: pieces of another size round another sum.
        records = config.plan.population
        batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((records, *x.shape), x.dtype), example)
        loss = digest(lambda *p: config.loss(config.join(*p[:2]))(p[2]), params, frozen, batch)
    else:
        # The derivative has the rules of custom derivatives written out.
        derivative = jax.value_and_grad(config.loss_of_parts)
        keys = (jax.random.key(0),) if config.loss_takes_key else ()
        loss = digest(derivative, params, frozen, example, *keys)
    found = {
        "loss": loss,
        # A strategy of the user's own may keep what it computes with where no field tells.
        "strategy's factors": fingerprint.factors_digest(config.scaling, params, exact=exact),
        "optimiser": digest(config.optimizer.update, params, state, params),
    }
    if config.average is not None:
        found["average"] = digest(config.average, np.int32(1))
    return found


class Compiled(NamedTuple):
    """The programs of a run, compiled when they are first called."""

    # `advance(state, totals, key, data, stop, frozen=(), numbers=None)`: steps until
    # `state["step"]` is `stop`. `data` is all records, or the `LoadedBatch` of one step. Totals
    # travel with the state, so that a row of the metrics adds up to the same bits in any number of
    # calls.
    advance: jax.stages.Wrapped
    # Which records on the host a step draws, and what loads them, see `make_loading`.
    draw: Callable[..., Any]
    load: Callable[..., LoadedBatch]
    numbers: RecordNumbers | None = None  # that `advance` is given where it has places for records


def _compile_step(config: StepConfig) -> Compiled:
    """The programs of a run."""
    draws, placement = make_draws(config.plan, config.capacity, config.failure), config.placement
    own, results, numbers = draws, {}, None
    if config.places is not None:
        slack = step_config.rounding_sensitivity(config.params, draws.largest, config.failure)
        numbers = make_numbers(config.plan, *_noise_stddevs(config.plan, slack))
        draws = make_place_draws(draws, config.places)
    update = make_update(config, draws)
    if placement is not None:
        own = make_block_draws(config.plan, placement, draws, config.failure)
        results = {"out_shardings": (state_shardings(config), placement.sharding())}

    @functools.partial(jax.jit, **results)
    def advance(
        state: RunState,
        totals: Totals,
        key: PRNGKey,
        data: PyTree[Array] | LoadedBatch,
        stop: Array,
        frozen: PyTree[Array] = (),
        numbers: RecordNumbers | None = None,
    ):
        def step(carry: tuple[RunState, Totals]):
            state, seen = update(carry[0], data, key, frozen, numbers)
            return state, jax.tree.map(jnp.add, carry[1], seen) if config.counted else carry[1]

        return jax.lax.while_loop(lambda carry: carry[0]["step"] < stop, step, (state, totals))

    return Compiled(advance, *make_loading(own, placement), numbers)


def state_shardings(config: StepConfig) -> PyTree[NamedSharding]:
    """The shardings of a run's state under its placement."""
    placement = config.placement
    assert placement is not None, "of several devices"
    shapes = jax.eval_shape(lambda params: config.first_state(params, 0), config.params)
    return placement.state(shapes, placement.specs(config.params))


def note_rounding(config: StepConfig, draws: Draws) -> None:
    """Tell the plan's certificates by how much more noise this run has than the plan says."""
    slack = step_config.rounding_sensitivity(config.params, draws.largest, config.failure)
    own = NoiseRounding(slack, divided=config.placement is not None)
    if own not in config.plan.rounding:
        config.plan.rounding.append(own)


def make_update(config: StepConfig, draws: Draws) -> Callable[..., tuple[RunState, Totals]]:
    """The pure `update(state, data, key, frozen, numbers) -> (state, seen)` of one step."""
    # `numbers` stand for those of the plan where they are given.
    plan, placement = config.plan, config.placement
    slack = step_config.rounding_sensitivity(config.params, draws.largest, config.failure)
    sum_draw, draw_noise = sum_over_draw(config, draws), _make_noise(plan, slack)
    # XLA multiplies by one over a constant where it would divide by an argument: said here, so that
    # a program that is kept has the same bits.
    scales = [1 / (phase.scheme.rate * plan.population) for phase in plan.phases]
    find_phase = drawing.make_phase_lookup(plan)

    def choose_scale(number: Array | None, numbers: RecordNumbers | None):
        return SamplerShape.choose(scales, number) if numbers is None else numbers.scale

    def update(
        state: RunState,
        data: PyTree[Array] | LoadedBatch,
        key: PRNGKey,
        frozen: PyTree[Array] = (),
        numbers: RecordNumbers | None = None,
    ):
        params, step = state["params"], state["step"]
        clip_norm = state.get("clip_norm", plan.clip_norm)
        total, (*seen, within) = sum_draw(params, data, key, step, frozen, clip_norm, numbers)
        number, carried = find_phase(step), {}
        if plan.adaptive is not None:
            carried["clip_norm"] = _move_clip_norm(plan, clip_norm, within, seen[1], key, step)
        noise, after = draw_noise(params, state, key, number, numbers)
        released = compensated.add_noise(total, noise)  # what privacy is priced for
        if placement is not None:
            released = placement.constrained(released, placement.specs(config.params))
        mean = _scale(released, choose_scale(number, numbers), params)
        return _step_optimizer(config, mean, state) | carried | after, tuple(seen)

    return update


def _step_optimizer(config: StepConfig, mean: Params, state: RunState) -> RunState:
    """The parameters after the optimiser's step along the noisy mean, its state, the average."""
    updates, inner = config.optimizer.update(mean, state["optimizer"], state["params"])
    new = optax.apply_updates(state["params"], updates)
    out = {"params": new, "optimizer": inner, "step": state["step"] + 1}
    if config.average is not None:
        out["average"] = options.next_average(state["average"], new, config.average(out["step"]))
    return out


def _scale(released: Params, scale: ArrayLike, params: Params) -> Params:
    """The noisy sum times a public constant, in the parameters' dtypes."""

    def multiply(leaf: Array, like: Array):
        # Rounding to the parameters' dtype comes after the noise: it only post-processes.
        return (leaf * jnp.asarray(scale, leaf.dtype)).astype(like.dtype)

    return jax.tree.map(multiply, released, params)


def _move_clip_norm(
    plan: Plan, clip_norm: Number, within: Array, size: Array, key: PRNGKey, step: Array
) -> Array:
    """The clip norm of the next step, from a noisy count of the records within this one's."""
    assert plan.adaptive is not None, "whose clip norm it is"
    counting = fold_in_words(key, COUNT, step)
    count = 2 * within - size.astype(jnp.int32)  # of records, each ±1: halves are exact
    moved = plan.adaptive.moved(clip_norm, 0.5 * count.astype(jnp.float32), counting)
    return jnp.clip(moved, *options.clip_norm_range(plan.clip_norm)).astype(jnp.float32)


def _make_noise(plan: Plan, slack: float) -> Callable[..., tuple[Params, RunState]]:
    """`draw_noise(params, state, key, number, numbers) -> (noise, carried)` of a phase's step."""
    stddevs = _noise_stddevs(plan, slack)

    def draw_independent(
        params: Params,
        state: RunState,
        key: PRNGKey,
        number: Array | None,
        numbers: RecordNumbers | None,
    ):
        stddev = SamplerShape.choose(stddevs, number) if numbers is None else numbers.stddev
        if plan.adaptive is not None:
            stddev = jnp.asarray(stddev, jnp.float32) * state["clip_norm"]
        noise = transforms.gaussian_noise(stddev, jax.random.key(0))
        before = transforms.NoiseState(fold_in_words(key, NOISE_KEY), state["step"])
        return noise.update(_wide_zeros(params), before)[0], {}

    def draw_correlated(
        params: Params,
        state: RunState,
        key: PRNGKey,
        number: Array | None,
        numbers: RecordNumbers | None,
    ):
        del number, numbers  # one phase, whose steps' noise is that of the strategy
        strategy = plan.strategy
        assert strategy is not None, "as was asked below"
        noise = transforms.correlated_noise(strategy, stddevs[0], jax.random.key(0))
        own = fold_in_words(key, NOISE_KEY)
        before = transforms.CorrelatedState(own, state["step"], state["noise"])
        drawn, after = noise.update(_wide_zeros(params), before)
        return drawn, {"noise": after.past}  # pyrefly: ignore

    return draw_independent if plan.strategy is None else draw_correlated


def _wide_zeros(params: Params) -> Params:
    """Zeros like the parameters, in the dtypes in which their gradients are summed."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, accumulation_dtype(leaf.dtype)), params)


def _noise_stddevs(plan: Plan, slack: float) -> list[Number]:
    """The noise's standard deviation in each phase, over the clip norm where that is adaptive."""
    multipliers = [phase.scheme.noise_multiplier for phase in plan.phases]
    if plan.is_traced:
        return [options.make_traced_stddev(own, plan.clip_norm, slack) for own in multipliers]
    if plan.adaptive is None:
        return [multiplier * (1 + slack) * plan.clip_norm for multiplier in multipliers]
    # Three roundings follow: of this number, of the clip norm, and of their product.
    up = (1 + slack) * (1 + 2 * float(np.finfo(np.float32).eps))
    return [plan.adaptive.gradient_noise(multiplier) * up for multiplier in multipliers]


def sum_over_draw(config: StepConfig, draws: Draws) -> Callable[..., _Sums]:
    """`sum_draw(params, data, key, step, frozen, clip_norm, numbers) -> (sum, seen)` of a step."""
    # `seen` are the sum of their losses, how many they are, and how many have a gradient that is
    # not finite, above the clip norm, or within it.
    placement = config.placement
    if placement is None:
        sum_records = _sum_over_records(config, draws.capacity)

        def sum_draw(
            params: Params,
            data: PyTree[Array] | LoadedBatch,
            key: PRNGKey,
            step: Array,
            frozen: PyTree[Array],
            clip_norm: Number,
            numbers: RecordNumbers | None = None,
        ):
            if isinstance(data, LoadedBatch):
                drawn = Drawn(data.numbers, data.size)
            elif numbers is not None:
                assert config.places is not None, "of which these are the numbers"
                indices, size = draws.draw(fold_in_words(key, SAMPLING), step, numbers)
                drawn = Drawn(indices, size, config.places)
            else:
                indices, size = draws.draw(fold_in_words(key, SAMPLING), step)
                drawn = Drawn(indices, size, config.plan.population)
            return sum_records(params, data, drawn, key, step, frozen, clip_norm)

        return sum_draw

    return _sum_over_blocks(config, draws, placement)


def _sum_over_blocks(
    config: StepConfig, draws: Draws, placement: devices.Placement
) -> Callable[..., _Sums]:
    """`sum_draw` of records that are divided over devices."""
    specs = placement.specs(config.params)
    divided = make_block_draws(config.plan, placement, draws, config.failure)
    sum_records = _sum_over_records(config, divided.capacity)

    def sum_block(params: Params, records: PyTree[Array], *shared: PyTree):
        if isinstance(records, LoadedBatch):
            drawn = Drawn(records.numbers, records.size[0])
            return sum_records(params, records, drawn, *shared)
        data, flags, numbers = records
        drawn = Drawn(*drawing.list_flagged(flags, divided.padded), flags.shape[0])
        return sum_records(params, data, drawn, *shared, numbers[0])

    over_blocks = devices.sum_over_blocks(placement, specs, sum_block, draws.largest)
    rows, lay_out = placement.sharding(PartitionSpec(placement.records)), placement.constrained

    def sum_blocks(
        params: Params,
        data: PyTree[Array] | LoadedBatch,
        key: PRNGKey,
        step: Array,
        frozen: PyTree[Array],
        clip_norm: Number,
        numbers: RecordNumbers | None = None,
    ):
        del numbers  # which are of a program of one device
        records = data
        if not isinstance(data, LoadedBatch):
            (flags,) = divided.draw(fold_in_words(key, SAMPLING), step)
            flags = jax.lax.with_sharding_constraint(flags, rows)
            records = data, flags, jnp.arange(flags.shape[0], dtype=jnp.int32)
        total, seen = over_blocks(params, records, key, step, frozen, clip_norm)
        return Compensated(*(lay_out(tree, specs) for tree in total)), seen

    return sum_blocks


def _sum_over_records(config: StepConfig, capacity: int) -> Callable[..., _Sums]:
    """The clipped sum of the records drawn from those whose numbers begin at the first."""
    plan = config.plan
    clip = _clip_sums(config) if config.makes_sum else _clip_gradients(config)

    def sum_records(
        params: Params,
        data: PyTree[Array] | LoadedBatch,
        drawn: Drawn,
        key: PRNGKey,
        step: Array,
        frozen: PyTree[Array],
        clip_norm: Number,
        first_record: ArrayLike = 0,
    ):
        # A number of Python's is a constant of the program; an adaptive clip norm is not.
        bound = plan.clip_norm if plan.adaptive is None else clip_norm
        slots = jnp.arange(capacity, dtype=jnp.int32)
        # A record's key is a function of the run's, the step and the record's number alone: neither
        # its place in the batch nor the pieces that a batch is worked through in change it.
        step_key = fold_in_words(key, LOSS, step) if config.loss_takes_key else None

        def piece(state: PyTree[Array]):
            number, totals = state
            batch, mask, rows = _take_piece(data, drawn, number * capacity, slots)
            keys = step_key
            if keys is not None:
                keys = jax.vmap(functools.partial(jax.random.fold_in, keys))(first_record + rows)
            found = _add_up(clip(params, frozen, batch, mask, keys, bound), mask, bound)
            sums = compensated.add_carried(totals[0], found[0])
            return number + 1, (sums, *map(jnp.add, totals[1:], found[1:]))

        zero = compensated.carry_zeros(_wide_zeros(params))
        none = jnp.zeros((), jnp.int32)
        first = (zero, jnp.zeros((), jnp.float32), none, none, none)
        is_left = lambda state: _is_piece_left(data, drawn, state[0] * capacity)  # noqa: E731
        _, (total, loss_sum, *counts) = jax.lax.while_loop(is_left, piece, (none, first))
        return compensated.as_pair(total), (loss_sum, jnp.asarray(drawn.size, jnp.float32), *counts)

    return sum_records


def _is_piece_left(data: PyTree[Array] | LoadedBatch, drawn: Drawn, start: Array) -> Array:
    """Whether there is a piece that begins at this slot; the first there always is."""
    indices, size, records = drawn
    if isinstance(data, LoadedBatch):
        return (start == 0) | (start < size)
    # Those drawn come first. To count them is a sum over all records, which XLA compiles as five
    # programs of a CPU.
    next_one = jax.lax.dynamic_index_in_dim(indices, start, keepdims=False)
    return (start == 0) | ((start < indices.shape[0]) & (next_one < records))


def _take_piece(
    data: PyTree[Array] | LoadedBatch, drawn: Drawn, start: Array, slots: Array
) -> tuple[PyTree[Array], Array, Array]:
    """The records of the piece that begins at this slot, which slots have one, their numbers."""
    indices, size, records = drawn
    if isinstance(data, LoadedBatch):
        # The last piece may reach beyond the slots, of which the last one is taken in its place.
        places = jnp.minimum(start + slots, indices.shape[0] - 1)
        rows, taken = indices[places], start + slots < size
        batch = jax.tree.map(lambda leaf: leaf[places], data.rows)
    else:
        rows = jax.lax.dynamic_slice(indices, (start,), slots.shape)
        taken = rows < records
        rows = jnp.where(taken, rows, 0)
        batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], data)
    # What follows is compiled alike wherever the records come from: the same bits.
    return *jax.lax.optimization_barrier((batch, taken)), rows


def _add_up(
    out: gradients.ClippedGradient, mask: Array, bound: Number
) -> tuple[Compensated, Array, *tuple[Array, ...]]:
    """The sum of a piece's gradients, that of its losses, and its counts, see `sum_over_draw`."""
    # A loss that is not finite would hide all others behind it in the mean.
    finite = jnp.where(jnp.isfinite(out.losses), out.losses, jnp.zeros_like(out.losses))
    limit = jnp.asarray(bound, out.norms.dtype)
    above = jnp.isfinite(out.norms) & (out.norms > limit)
    within = mask & (out.norms <= limit)
    counts = out.nonfinite, *(jnp.sum(x, dtype=jnp.int32) for x in (above, within))
    total = compensated.without_error(out.sum)
    if out.error is not None:
        total = total._replace(error=out.error)
    return (total, jnp.sum(finite, dtype=jnp.float32), *counts)


def _clip_gradients(config: StepConfig) -> Callable[..., gradients.ClippedGradient]:
    """`clip(params, frozen, batch, mask, keys, bound)`, the clipped sum of the loss's gradients."""
    settings = {"method": config.method, "clipping": config.scaling}

    def clip(
        params: Params,
        frozen: PyTree[Array],
        batch: PyTree[Array],
        mask: Array,
        keys: PRNGKey | None,
        bound: Number,
    ):
        def loss_of_trained(params: Params, *example_and_key: PyTree):
            return config.loss_of_parts(params, frozen, *example_and_key)

        clipped = gradients.clipped_grad(loss_of_trained, config.plan.clip_norm, **settings)
        return clipped(params, batch, mask=mask, rng=keys, clip_norm=bound)

    return clip


def _clip_sums(config: StepConfig) -> Callable[..., gradients.ClippedGradient]:
    """`clip(...)` by the user's `clip_and_sum`, whose second output counts as losses."""

    def clip(
        params: Params,
        frozen: PyTree[Array],
        batch: PyTree[Array],
        mask: Array,
        keys: PRNGKey | None,
        bound: Number,
    ):
        del keys
        out = config.loss(config.join(params, frozen))(batch, mask, clip_norm=bound)
        # The noise allows for the rounding of sums of these sizes and this precision, no other.
        wanted = jax.tree.map(lambda x: (x.shape, accumulation_dtype(x.dtype)), params)
        found = jax.tree.map(lambda x: (x.shape, x.dtype), out.sum)
        if found != wanted:
            raise ValueError(
                "the function of clip_and_sum must return a tree like the parameters that are "
                f"trained, got {found} for {wanted}"
            )
        one_each = getattr(out.values, "shape", None) == mask.shape
        losses = jnp.where(mask, out.values if one_each else 0.0, 0.0)
        nonfinite = jnp.sum(mask & ~jnp.isfinite(out.norms), dtype=jnp.int32)
        return gradients.ClippedGradient(out.sum, out.norms, losses, nonfinite, error=out.error)

    return clip
