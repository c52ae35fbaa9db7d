"""The compiled step of a run: sample, clip, add noise, hand to the optimiser."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import gradients, sampling, transforms
from dpjax._other_names import taught
from dpjax.gradients.per_example import accumulation_dtype
from dpjax.training.averaging import first_average, next_average
from dpjax.training.blocks import block_draws, sum_over_blocks
from dpjax.training.draws import Draws, chosen, draws_of, listed, phase_of
from dpjax.training.feeding import Batch
from dpjax.training.fingerprint import Opaque, array_digest, factors_digest, program_digest
from dpjax.training.parts import parts_of
from dpjax.training.phases import noise_of, rate_of
from dpjax.training.placement import Placement
from dpjax.training.plan import ARITHMETIC, Plan

__all__ = ["TrainingStep", "training_step"]

# What was compiled last, by what it computes: a run that is repeated compiles nothing again.
_PROGRAMS: collections.OrderedDict[Any, Any] = collections.OrderedDict()
_KEPT = 8
# Whose sums' rounding is always paid for: up to as many devices, a run has one noise.
_DEVICES = 8
# What each key made of the run's own is for: sampling, noise, a loss that takes one, a count.
_SAMPLING, _NOISE, _LOSS, _COUNT = 0, 1, 2, 3
# An adaptive clip norm stays within this factor of the first one: finite, whatever is drawn.
_FURTHEST = 1e6


class TrainingStep(NamedTuple):
    """One step of `fit` as pure functions, which may be traced, scanned and vmapped.

    Fields:
        init: `init(params) -> state`: the parameters, the optimiser's state and the step's number.
        update: `update(state, data, key) -> (state, seen)`, the step whose number is in the state;
            `seen` (sum of losses, records, those not finite, those clipped) is private.

    Example:
        >>> step = TrainingStep(init=lambda params: {"params": params}, update=lambda *a: a[:2])
        >>> step.init(1)
        {'params': 1}
    """

    init: Callable[[Any], dict[str, Any]]
    update: Callable[[dict[str, Any], Any, Any], tuple[dict[str, Any], Any]]


@taught
def training_step(
    loss: Callable[[Any, Any], Any],
    params: Any,
    plan: Plan,
    *,
    optimizer: optax.GradientTransformation,
    capacity: int | None = None,
    method: Any = "auto",
    strategy: gradients.Strategy = gradients.Flat(),  # noqa: B008 (frozen)
    trainable: Any = None,
    loss_takes_key: bool = False,
) -> TrainingStep:
    """The step that `fit` compiles, for audits of the loop itself and for loops of one's own.

    Batch and noise of step t are functions of (key, t): `plan.steps` updates from `init(params)`
    give the parameters that `fit` returns for the same key.

    Args:
        loss: `loss(params, example) -> scalar`, of one record.
        params: any tree, see `fit`.
        plan: mechanism, clip norm and public constants.
        optimizer: any optax optimiser.
        capacity: records worked on at once, see `fit`.
        method: how per-example gradients are clipped, see `clipped_grad`.
        strategy: how a gradient is scaled, see `fit`.
        trainable: which floating-point arrays are trained, see `fit`.
        loss_takes_key: whether it is `loss(params, example, key)`, see `fit`.

    Returns:
        A `TrainingStep`, in whose state `params` has None for every leaf that is not trained.

    Raises:
        ValueError: `capacity` below 1.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from dpjax import training
        >>> plan = training.make_plan(8, noise_multiplier=1.0, delta=1e-5, steps=1, batch_size=4)
        >>> step = training.training_step(
        ...     lambda w, x: w * x, jnp.zeros(()), plan, optimizer=optax.sgd(1.0))
        >>> once = lambda key: step.update(step.init(jnp.zeros(())), jnp.ones(8), key)[0]["params"]
        >>> jax.vmap(once)(jax.random.split(jax.random.key(0), 100)).shape
        (100,)
    """
    failure = failure_probability(plan, plan.spent(plan.steps))
    trained, held, join = parts_of(params, trainable)
    made_of = (loss, trained, plan, optimizer, capacity, method, failure, loss_takes_key)
    recipe = Recipe(*made_of, strategy=strategy, held=held, join=join)
    update = functools.partial(_update(recipe, draws_of(plan, capacity, failure)), held=held)

    def init(params):
        trained = parts_of(params, trainable).trained
        return first_state(trained, plan, optimizer, jnp.zeros((), jnp.int32))

    return TrainingStep(init, update)


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


class Recipe(NamedTuple):
    """What a step is made of.

    Fields:
        loss: of one record.
        params: the first parameters, for their shapes and where they lie.
        plan: mechanism, clip norm and public constants.
        optimizer: any optax optimiser.
        capacity: records worked on at once; None for whole draws.
        method: how per-example gradients are clipped.
        failure: probability with which the bounds on rounding and on a batch's size may fail.
        loss_takes_key: whether the loss has a key as its third argument.
        placement: of records and parameters on several devices, None on one.
        average: the weights of an average of the iterates, or None.
        strategy: how a gradient is scaled.
        held: what is not trained, arrays or their shapes; each step is given its values.
        join: the model from the parameters and what is held; None for the parameters themselves.
    """

    loss: Any
    params: Any
    plan: Plan
    optimizer: Any
    capacity: int | None
    method: Any
    failure: float
    loss_takes_key: bool = False
    placement: Placement | None = None
    average: Callable[[Any], Any] | None = None
    strategy: gradients.Strategy = gradients.Flat()
    held: Any = ()
    join: Callable[[Any, Any], Any] | None = None

    @property
    def loss_of_parts(self) -> Callable[..., Any]:
        """`loss(params, held, example)`, of what is trained and what is not."""

        def of_parts(params, held, *example_and_key):
            model = params if self.join is None else self.join(params, held)
            return self.loss(model, *example_and_key)

        return of_parts

    @property
    def scaling(self) -> gradients.Strategy:
        """The strategy with the groups of these parameters worked out."""
        found: Any = self.strategy
        if isinstance(found, gradients.AdaptiveQuantile):
            raise ValueError(
                "strategy must not be AdaptiveQuantile, whose count has a price: give it to "
                f"make_plan(adaptive=...), got {found}"
            )
        return found.bind(self.params) if hasattr(found, "bind") else found


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
            through in any number of calls and still adds up to the same bits. `data` is all
            records, or the `Batch` of the one step that is taken.
        draw: `draw(key, step) -> (indices, size)`, the records of a step.
        draws: how many they are.
    """

    advance: Callable[..., Any]
    draw: Callable[..., Any]
    draws: Draws


def _compiled(recipe: Recipe) -> Compiled:
    """The programs of a run."""
    draws = draws_of(recipe.plan, recipe.capacity, recipe.failure)
    update, placement, results = _update(recipe, draws), recipe.placement, {}
    if placement is not None:
        state = state_on(placement, recipe.params, recipe.plan, recipe.optimizer, recipe.average)
        results = {"out_shardings": (state, placement.sharding())}

    @functools.partial(jax.jit, **results)
    def advance(state, totals, key, data, stop, held=()):
        def step(carry):
            state, seen = update(carry[0], data, key, held)
            return state, jax.tree.map(jnp.add, carry[1], seen)

        return jax.lax.while_loop(lambda carry: carry[0]["step"] < stop, step, (state, totals))

    @jax.jit
    def draw(key, step):
        return draws.draw(jax.random.fold_in(key, _SAMPLING), step)

    return Compiled(advance, draw, draws)


def _update(recipe: Recipe, draws: Draws):
    """The pure `update(state, data, key, held) -> (state, seen)` of one step."""
    _, params, plan, optimizer, _, method, failure, loss_takes_key, placement, average = recipe[:10]
    loss, settings = recipe.loss_of_parts, {"method": method, "strategy": recipe.scaling}
    draw, capacity, largest = draws
    settings["share_of"] = capacity
    slack = slack_of(params, capacity, largest, failure)
    if placement is not None:
        specs = placement.specs(params)
        divided = block_draws(plan, placement, -(-largest // capacity), failure)
        slack = slack_of(params, capacity, largest, failure, placement.blocks)
        capacity = divided.capacity
    phase = phase_of(plan)
    stddevs = _stddevs(plan, slack)
    divisors = [rate_of(p.step) * plan.population for p in plan.phases]

    def sum_of(params, data, drawn, key, step, held, clip_norm, first_record=0):
        """The clipped sum of the records drawn from those whose numbers begin at the first."""

        def of_trained(params, *example_and_key):
            return loss(params, held, *example_and_key)

        # A number of Python's is a constant of the program; an adaptive clip norm is not.
        bound = plan.clip_norm if plan.adaptive is None else clip_norm
        clipped = gradients.clipped_grad(of_trained, plan.clip_norm, **settings)
        indices, size = drawn
        slots = jnp.arange(capacity, dtype=jnp.int32)
        keys_of = keys_of_records(key, step) if loss_takes_key else lambda records: None

        def piece(number, totals):
            start = number * capacity
            rows = jax.lax.dynamic_slice(indices, (start,), (capacity,))
            if isinstance(data, Batch):
                batch = jax.tree.map(lambda leaf: leaf[start + slots], data.rows)
            else:
                batch = jax.tree.map(lambda leaf: leaf[rows], data)
            # What follows is compiled alike wherever the records come from: the same bits.
            batch, mask = jax.lax.optimization_barrier((batch, start + slots < size))
            keys = keys_of(first_record + rows)
            out = clipped(params, batch, mask=mask, rng=keys, clip_norm=bound)
            # A loss that is not finite would hide all others behind it in the mean.
            finite = jnp.where(jnp.isfinite(out.losses), out.losses, jnp.zeros_like(out.losses))
            limit = jnp.asarray(bound, out.norms.dtype)
            above = jnp.isfinite(out.norms) & (out.norms > limit)
            within = mask & (out.norms <= limit)
            counts = out.nonfinite, *(jnp.sum(x, dtype=jnp.int32) for x in (above, within))
            found = (out.sum, jnp.sum(finite, dtype=jnp.float32), *counts)
            return jax.tree.map(jnp.add, totals, found)

        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, _at_least_float32(leaf)), params)
        none = jnp.zeros((), jnp.int32)
        first = (zero, jnp.zeros((), jnp.float32), none, none, none)
        pieces = jnp.maximum(1, (size + capacity - 1) // capacity)
        total, loss_sum, *counts = jax.lax.fori_loop(0, pieces, piece, first)
        return total, (loss_sum, size.astype(jnp.float32), *counts)

    def batch_sum(params, data, key, step, held, clip_norm):
        if isinstance(data, Batch):
            return sum_of(params, data, (data.numbers, data.size), key, step, held, clip_norm)
        sampling_key = jax.random.fold_in(key, _SAMPLING)
        if placement is None:
            return sum_of(params, data, draw(sampling_key, step), key, step, held, clip_norm)

        def one_block(params, data, flags, first_record, key, step, held, clip_norm):
            drawn = listed(flags, divided.padded)
            return sum_of(params, data, drawn, key, step, held, clip_norm, first_record)

        over_blocks = sum_over_blocks(placement, specs, one_block)
        flags = divided.inclusion(sampling_key, step)
        total, seen = over_blocks(params, data, flags, key, step, held, clip_norm)
        return placement.constrained(total, specs), seen

    def update(state, data, key, held=()):
        params = state["params"]
        clip_norm = state.get("clip_norm", plan.clip_norm)
        total, (*seen, within) = batch_sum(params, data, key, state["step"], held, clip_norm)
        number = phase(state["step"])
        # Noise is a function of (key, step), both given at each call: no key is compiled into
        # the program, and none travels with the state into a checkpoint.
        noise_key = jax.random.fold_in(key, _NOISE)
        carried, stddev = {}, chosen(stddevs, number)
        if plan.adaptive is not None:
            counting = jax.random.fold_in(jax.random.fold_in(key, _COUNT), state["step"])
            count = 2 * within - seen[1].astype(jnp.int32)  # of records, each ±1: halves are exact
            moved = plan.adaptive.moved(clip_norm, 0.5 * count.astype(jnp.float32), counting)
            ends = plan.clip_norm / _FURTHEST, plan.clip_norm * _FURTHEST
            carried["clip_norm"] = jnp.clip(moved, *ends).astype(jnp.float32)
            stddev = jnp.asarray(stddev, jnp.float32) * clip_norm
        if plan.strategy is None:
            noise = transforms.gaussian_noise(stddev, jax.random.key(0))
            noisy, _ = noise.update(total, transforms.NoiseState(noise_key, state["step"]))
        else:
            noise = transforms.correlated_noise(plan.strategy, stddevs[0], jax.random.key(0))
            before = transforms.CorrelatedState(noise_key, state["step"], state["noise"])
            noisy, after = noise.update(total, before)
            carried["noise"] = after.past  # pyrefly: ignore
        if placement is not None:
            noisy = placement.constrained(noisy, specs)
        divisor = chosen(divisors, number)
        # Rounding to the parameters' dtype comes after the noise: it only post-processes.
        mean = jax.tree.map(
            lambda leaf, like: (leaf / jnp.asarray(divisor, leaf.dtype)).astype(like.dtype),
            noisy,
            params,
        )
        updates, inner = optimizer.update(mean, state["optimizer"], params)
        new = optax.apply_updates(params, updates)
        if average is not None:
            weight = average(state["step"] + 1)
            carried["average"] = next_average(state["average"], new, weight)
        return {"params": new, "optimizer": inner, "step": state["step"] + 1, **carried}, tuple(
            seen
        )

    return update


def _stddevs(plan: Plan, slack: float) -> list[float]:
    """Of every phase, the noise's standard deviation; over the clip norm where that is adaptive."""
    multipliers = [noise_of(phase.step) * (1 + slack) for phase in plan.phases]
    if plan.adaptive is None:
        return [multiplier * plan.clip_norm for multiplier in multipliers]
    # Three roundings follow: of this number, of the clip norm, and of their product.
    up = (1 + slack) * (1 + 2 * float(np.finfo(np.float32).eps))
    return [plan.adaptive.gradient_noise(noise_of(phase.step)) * up for phase in plan.phases]


def keys_of_records(key: Any, step: Any) -> Callable[[Any], Any]:
    """From the numbers of records to their keys, which the loss of this step is given.

    A record's key is a function of the run's key, the step and the record's number alone: neither
    its place in the batch nor the pieces that a batch is worked through in change it.
    """
    of_step = jax.random.fold_in(jax.random.fold_in(key, _LOSS), step)
    return jax.vmap(lambda record: jax.random.fold_in(of_step, record))


def arguments_after_example(loss_takes_key: bool) -> tuple[Any, ...]:
    """What a loss is given after a record, to trace it: a key, or nothing."""
    return (jax.random.key(0),) if loss_takes_key else ()


def failure_probability(plan: Plan, epsilon: float) -> float:
    """How often, a step, the bounds on rounding, on the batch's size and on its shares' may fail.

    Such a failure costs at most (1 + e^ε) times its probability; the three of them, over
    all steps, have to fit into what the plan reserves of δ for arithmetic.
    """
    reserve = plan.extra_delta.get(ARITHMETIC, 1e-15)
    return max(reserve / (3 * plan.steps * (1 + math.exp(min(epsilon, 300.0)))), 1e-150)


def slack_of(params, capacity: int, largest: int, failure: float, devices: int = _DEVICES) -> float:
    """By how much float rounding can raise the sensitivity of a sum worked through in pieces.

    Each piece is off by its own slack; adding up k sums rounds k − 1 times, each time by at most
    one unit round-off of the whole sum, on either neighbour. The sums are those of pieces and then
    those of devices, in whatever order they are added. Eight devices are allowed for on one too:
    up to as many, a run has the same noise on any number of them.
    """
    dimension = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(params))
    pieces = -(-largest // capacity)
    additions = pieces + max(devices, _DEVICES) - 2
    round_off = float(np.finfo(np.float32).eps) / 2
    one = gradients.rounding_slack(capacity, dimension, failure=failure / pieces)
    return pieces * one + 2 * largest * additions * round_off


def _at_least_float32(leaf):
    return accumulation_dtype(leaf.dtype)
