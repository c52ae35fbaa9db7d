"""`fit` binds a run's key and trains (loop.py, step.py)."""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike, PyTree

from dpjax import accounting as acc
from dpjax._argument_names import accepts_old_names
from dpjax._numerics.keys import name_of_key
from dpjax._numerics.typing import Loss, Params, PRNGKey
from dpjax.gradients import Flat, Strategy
from dpjax.gradients.choice import ClippingMethod
from dpjax.training import devices, draws, loop, options
from dpjax.training.booking import book_once, certify_alone, open_ledger
from dpjax.training.checkpoint import open_folder
from dpjax.training.devices import Placement
from dpjax.training.draws import select_records
from dpjax.training.feed import make_feed
from dpjax.training.identity import identify_run
from dpjax.training.loop import Loop, Metrics, Progress, Saver
from dpjax.training.memory import choose_capacity
from dpjax.training.options import check_functions, check_optimizer
from dpjax.training.parameters import partition_model
from dpjax.training.plan import Plan
from dpjax.training.run import (
    RunArrays,
    Store,
    Training,
    Watch,
    choose_key,
    is_used,
    place_arrays,
    place_run,
)
from dpjax.training.run_store import RunStore
from dpjax.training.step import (
    compile_step,
    note_rounding,
    state_shardings,
)
from dpjax.training.step_config import StepConfig, failure_probability, read_sum
from dpjax.training.typing import (
    AverageWeights,
    Evaluate,
    Row,
    RunData,
    Trainable,
)


class Fit(NamedTuple):
    """What a run leaves.

    Fields:
        params: the released parameters, covered by the plan's certificate, in the tree that `fit`
            was given, with all that is not trained as it was.
        metrics: columns of equal length: step, epsilon (ε spent up to that step) and what
            `evaluate` returned; with `log_private_losses` also train_loss (mean over the batches
            since the last row), nonfinite (records so far whose gradient was NaN or infinite and
            counted as zero) and clipped (the share since the last row whose gradient was above the
            clip norm). Of these only step and epsilon are free of private data.
        average: of the iterates, where `fit` was asked for one; else None. Released as params are.
        steps: how many were taken.
        looks: at how many rows `stop_when` could have stopped; 1 where no session of the run had
            one. What the steps taken cost is `plan.certify(steps=fit.steps, looks=fit.looks)`.
        clip_norm: the last one, where the plan's is adaptive; released as params are.

    Example:
        >>> Fit(params=None, metrics={"step": np.arange(2)}).metrics["step"].tolist()
        [0, 1]
    """

    params: Params
    metrics: dict[str, np.ndarray]
    average: Params | None = None
    steps: int = 0
    looks: int = 1
    clip_norm: float | None = None


@accepts_old_names(strategy="clipping")
def fit(
    loss: Loss,
    params: Params,
    data: RunData,
    plan: Plan,
    *,
    optimizer: optax.GradientTransformation,
    key: PRNGKey | None = None,
    mesh: Mesh | Placement | None = None,
    evaluate: Evaluate | None = None,
    log_every: int | None = None,
    capacity: int | None = None,
    method: ClippingMethod = "auto",
    clipping: Strategy = Flat(),
    trainable: Trainable | None = None,
    loss_takes_key: bool = False,
    folder: str | pathlib.Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    identity: Mapping[str, Any] | None = None,
    on_log: Callable[[dict[str, float]], None] | None = None,
    log_private_losses: bool = False,
    users: ArrayLike | None = None,
    records_per_user: int | None = None,
    average: AverageWeights | None = None,
    stop_when: Callable[[Row], bool] | None = None,
    time_limit: float | None = None,
    ledger: acc.LedgerFile | str | pathlib.Path | None = None,
) -> Fit:
    """Train privately, executing exactly the mechanism that `plan` prices.

    Each step draws records by the plan's sampler, sums their gradients clipped to the plan's norm,
    adds the plan's noise, divides by the plan's *expected* batch size and hands the result to the
    optimiser. Sampling and noise are functions of (key, step). A draw larger than `capacity` is
    worked through in several pieces of that size, never truncated.

    Args:
        loss: `loss(params, example) -> scalar`, of one record; or `loss(params, example, key)`. Or
            `clip(params) -> dpjax.clip_and_sum(function, plan.clip_norm)`, whose sum stands for the
            gradients': `function(example)` returns a tree like params, such as the negative update
            of a client after several local steps (DP-FedAvg, with `optax.sgd(1.0)`).
        params: any tree: of flax linen, nnx (as a pure dict), an equinox module, or plain. Trained
            are its floating-point arrays; all else comes back as it was.
        data: a tree of arrays with a leading axis of `plan.population` records; or records on the
            host, of which a step loads those it drew: a memory map, a table, a list of records, any
            object with `__len__` and `__getitem__` (see `HostData`).
        plan: mechanism, clip norm and public constants.
        optimizer: any optax optimiser.
        key: decides batches and noise, and must stay secret; by default 64 unpredictable bits. A
            run that is resumed keeps the key that it began with; another one is a warning.
        mesh: devices to run on, a mesh for `data_parallel(mesh)`, or `fully_sharded(mesh)`; by
            default where the arrays are. Arrays are placed there block by block, also memory maps
            that are not `HostData`, of which every process loads what its own blocks drew.
        evaluate: `evaluate(params) -> {name: number}`, recorded at every row of the metrics.
        log_every: steps between rows; by default the run gives about 40.
        capacity: records worked on at once; by default a size that one draw in fifty exceeds, or
            where that does not fit into the device's memory the largest that does, as the compiled
            step says. It changes neither the noise nor the price. At least an 8,192nd of the
            largest draw.
        method: how per-example gradients are clipped, see `clipped_grad`.
        clipping: how a gradient is scaled, see `dpjax.gradients`: `PerGroup` clips groups of
            parameters each to a norm of its own, the root of whose squares is `plan.clip_norm`.
        trainable: which of the floating-point arrays are trained: `trainable(path, leaf) -> bool`
            with a path such as "dense_0/kernel", or a tree of booleans as `optax.masked` takes, a
            prefix of `params`. The others have no gradient, no noise and no part in the clip norm.
        loss_takes_key: whether the loss takes a key, for dropout or augmentation: one a record,
            `fold_in(fold_in(fold_in(key, 2), step), record's number)`.
        folder: where checkpoints go; none are written without it.
        resume: continue the run in `folder` from its newest whole checkpoint, or begin one there.
        checkpoint_every: steps between checkpoints; by default one every half minute, and one when
            the run is interrupted. The result does not depend on it.
        identity: anything else that has to agree for a checkpoint to be continued.
        on_log: called with every new row and, since the last one, steps_per_second and expected
            records_per_second, and memory, the most bytes that a device (or the process) held so
            far; `progress_line(row)` is one line of it.
        log_private_losses: record train_loss, nonfinite and clipped, exact functions of the
            training records that ε does not cover; nothing else in the result is one.
        users: whom each record of the data belongs to, for a plan whose unit is the user, see
            `training.per_user`: users are sampled, and a user's summed gradient is clipped once.
        records_per_user: with `users`, the most records of one that are used, a public number.
        average: `exponential_average(decay)` or `tail_average(begin)`, or any function from a
            step's number 1, 2, … to the weight of its parameters in a running mean, which is kept
            beside the parameters, free of privacy cost.
        stop_when: called with every row's step, epsilon and what `evaluate` returned; the run stops
            where it is true. Neither it nor `evaluate` may look at anything else that depends on
            the training records; `plan.certify(steps=..., looks=...)` then certifies the run.
        ledger: a file of `accounting.LedgerFile`, or its path: the whole plan is booked there once,
            before the first step, also if the run is killed; or refused.
        time_limit: seconds after which the run stops at the end of a step, resumable where there is
            a folder. That running time depends on the records is covered by no ε.

    Returns:
        Parameters and metrics. A run that is killed and resumed returns the same bits: its key is
        stored, bound to everything it is used with, before the first step.

    Raises:
        ValueError: data that is not `plan.population` records (or users), users without a plan of
            that unit or such a plan without users, parameters none of which is trained, batch
            statistics or random numbers of a flax module among them, an optimiser that needs more
            than the noisy gradient or draws from the run's own key, `resume` without a folder.
        BudgetExceeded: the ledger cannot pay for the plan; nothing was begun.
        CheckpointError: a folder of another run (other data, plan, loss, optimiser, …), one that is
            in use, or one that cannot be written.

    Example:
        >>> from dpjax import accounting as acc
        >>> x = jnp.array([[0.0], [1.0], [2.0], [3.0]])
        >>> run = acc.Repeated(acc.Gaussian(1e-3), 60)
        >>> plan = Plan(run, clip_norm=10.0, population=4, delta=1e-5)
        >>> def loss(w, example):
        ...     return 0.5 * (example @ w - 2 * example[0]) ** 2
        >>> result = fit(
        ...     loss, jnp.zeros(1), x, plan, optimizer=optax.sgd(0.2), key=jax.random.key(0))
        >>> round(float(result.params[0]), 2)
        2.0
    """
    model = partition_model(params, trainable)
    check_functions(evaluate=evaluate)
    with place_run(model, data, plan, key=key, mesh=mesh, users=users) as placed:
        watched = placed.gather_for(model.evaluate_whole(evaluate))
        run = Training(
            loss=loss,
            model=placed.model,
            data=placed.data,
            plan=plan,
            optimizer=optimizer,
            key=placed.key,
            placement=placed.placement,
            capacity=capacity,
            method=method,
            clipping=clipping,
            loss_takes_key=loss_takes_key,
            average=average,
            users=users,
            records_per_user=records_per_user,
            watch=Watch(watched, log_every, on_log, log_private_losses, stop_when, time_limit),
            store=Store(folder, resume, checkpoint_every, identity or {}, ledger),
        )
        found = _fit(run)
    return found._replace(
        params=model.restore(placed.restore(found.params)),
        average=model.restore(placed.restore(found.average)),
    )


def _fit(run: Training) -> Fit:
    """Train what is trained of a model, and return it alone."""
    found, watch, kept = _prepare(run), run.watch, run.store
    config, arrays, metrics = found.config, found.arrays, found.metrics
    with contextlib.closing(open_folder(kept.folder, config.process_mesh)) as store:
        progress = _first_progress(config, metrics)
        bound = store.bind(
            choose_key(run.key, config.process_mesh),
            functools.partial(identify_run, config, arrays, metrics, found.owners, kept.identity),
            resume=kept.resume,
        )
        stops_early = store.noted("stop_when", watch.stop_when is not None)
        by_hand = is_used(run.key, bound, kept.folder)
        _note_run(config, bound, store, found.ledger, by_hand=by_hand)
        progress = (store.latest(progress) or (0, progress))[1]
        options.check_own_key(bound, progress.state["optimizer"])
        config = config._replace(places=draws.count_places(arrays, bound, config))
        progress = Loop(
            make_feed(compile_step(config, arrays.example), arrays, bound, config),
            Saver(store, found.every, progress),
            metrics,
            watch.stop_when,
            found.deadline,
            watch.on_log,
            config.process_mesh,
        ).run(progress)
    return _make_result(progress, metrics, stops_early)


class _Prepared(NamedTuple):
    """A run that was checked, before anything of it is written."""

    config: StepConfig
    arrays: RunArrays
    metrics: Metrics
    owners: Mapping[str, Any]  # what a checkpoint must know of the users
    ledger: acc.LedgerFile | None
    every: int | None  # steps between checkpoints
    deadline: float


def _prepare(run: Training) -> _Prepared:
    """The run with its arrays placed and its step's settings; refuses what cannot be trained."""
    plan, placement, watch, kept = run.plan, run.placement, run.watch, run.store
    if kept.resume and kept.folder is None:
        raise ValueError("folder must be given with resume=True, got None")
    if plan.is_traced:
        raise ValueError("plan must hold numbers, got traced ones: use training_step")
    ledger = None
    if kept.ledger is not None:
        ledger = open_ledger(kept.ledger, plan, resume=kept.resume)
    if placement is not None:
        draws.check_divisible(plan)
    chosen = select_records(
        run.loss, run.data, plan, run.users, run.records_per_user, run.model, placement
    )
    _check_run(run)
    capacity, every = options.check_counts(
        capacity=run.capacity, checkpoint_every=kept.checkpoint_every
    )
    arrays = place_arrays(
        placement, chosen.data, run.model.trained, run.model.frozen, plan.population
    )
    metrics = loop.start_metrics(
        plan, watch.log_every, watch.evaluate, watch.log_private_losses, arrays.params
    )
    deadline = loop.find_deadline(watch.time_limit)
    config = _configure(run, chosen.loss, arrays, capacity, counted=bool(metrics.private))
    config = _settle(config, run.model.frozen, arrays, run.key)
    return _Prepared(config, arrays, metrics, chosen.owners, ledger, every, deadline)


def _check_run(run: Training) -> None:
    """Refuse a way to clip, functions and an optimiser that no run has."""
    watch = run.watch
    options.check_clipping(run.clipping)
    check_functions(
        evaluate=watch.evaluate,
        on_log=watch.on_log,
        stop_when=watch.stop_when,
        average=run.average,
    )
    check_optimizer(run.optimizer, run.model.trained)


def _configure(
    run: Training, loss: Loss, arrays: RunArrays, capacity: int | None, *, counted: bool
) -> StepConfig:
    """The settings of the run's step, for a loss of one record or of one user."""
    return StepConfig(
        loss=loss,
        params=arrays.params,
        plan=run.plan,
        optimizer=run.optimizer,
        capacity=capacity,
        method=run.method,
        failure=failure_probability(run.plan),
        loss_takes_key=run.loss_takes_key,
        placement=run.placement,
        average=run.average,
        clipping=run.clipping,
        frozen=jax.eval_shape(lambda: arrays.frozen),
        join=run.model.join,
        counted=counted,
    )


def _settle(
    config: StepConfig, frozen: PyTree[Array], arrays: RunArrays, key: PRNGKey | None
) -> StepConfig:
    """The settings as they are of a loss that makes a sum, and in pieces that fit into memory."""
    options.check_key(key)  # before there is a folder
    config = read_sum(config, frozen)
    return config._replace(capacity=choose_capacity(config, arrays, key))


def _note_run(
    config: StepConfig,
    key: PRNGKey,
    store: RunStore,
    ledger: acc.LedgerFile | None,
    *,
    by_hand: bool,
) -> None:
    """Tell the plan's certificates of rounding and key, and book the whole run under its name."""
    plan = config.plan
    note_rounding(config, draws.make_draws(plan, config.capacity, config.failure))
    by_hand = store.noted("key_by_hand", by_hand and not name_of_key(key)[1])
    if (named := name_of_key(key, drawn=not by_hand)) not in plan.keys:
        plan.keys.append(named)
    if ledger is not None:
        book_once(certify_alone(plan, named), store, ledger)


def _first_progress(config: StepConfig, metrics: Metrics) -> Progress:
    """The progress before the first step, with the first row of the metrics."""
    placement, params = config.placement, config.params
    if config.process_mesh is not None:  # made where it lies
        first = jax.jit(config.first_state, out_shardings=state_shardings(config))
        state = first(params, jnp.int32(0))
    else:
        state = config.first_state(params, np.int32(0))
        state = state if placement is None else devices.place_state(placement, state)
    return Progress(state, loop.zero_totals(), metrics.table(), np.int32(1))


def _make_result(progress: Progress, metrics: Metrics, stops_early: bool) -> Fit:
    """The result of a run that has come so far."""
    looks, state = len(metrics.stops) - 1 if stops_early else 1, progress.state
    stops = metrics.stops[: int(progress.rows)]
    epsilons = np.asarray([metrics.plan.spent(int(stop)) for stop in stops])
    columns = {"step": stops, "epsilon": epsilons, **metrics.columns(progress)}
    clip_norm = float(state["clip_norm"]) if "clip_norm" in state else None
    return Fit(state["params"], columns, state.get("average"), int(state["step"]), looks, clip_norm)
