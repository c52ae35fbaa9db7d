"""The private training loop: one compiled step, driven entirely by the plan that is priced."""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, ArrayLike, Float, Key

from dpjax._numerics.checks import shown
from dpjax._numerics.explicit import (
    automatic,
    automatic_in_force,
    automatic_mesh,
    on_auto_mesh,
    on_explicit_mesh,
    placed_like,
)
from dpjax._numerics.keys import bits_of_key, might_be_key
from dpjax._numerics.normal import fresh_key
from dpjax._other_names import taught
from dpjax.gradients import Flat, Strategy
from dpjax.training.arguments import check_functions, check_key, check_names, whole
from dpjax.training.checkpoint import Checkpoints
from dpjax.training.feeding import FromHost, OnDevice
from dpjax.training.fingerprint import program_digest, text_digest
from dpjax.training.identity import identity_of_run
from dpjax.training.pacing import Saver
from dpjax.training.parts import Parts, parts_of
from dpjax.training.placement import (
    Placement,
    placed,
    placed_parameters,
    placed_rows,
    placed_state,
    placement_of,
)
from dpjax.training.plan import Plan
from dpjax.training.processes import (
    SharedCheckpoints,
    agreed,
    as_placed,
    everywhere,
    everywhere_key,
    gathered,
    same_key,
)
from dpjax.training.progress import Progress, no_totals, row_done
from dpjax.training.sources import HostData, on_host
from dpjax.training.speed import Speed
from dpjax.training.step import Recipe, compiled, failure_probability, first_state, first_state_on
from dpjax.training.stopping import Stopping
from dpjax.training.users import per_user

__all__ = ["Fit", "fit"]

_ROWS = 40  # of the metrics, unless told otherwise


class Fit(NamedTuple):
    """What a run leaves.

    Fields:
        params: the released parameters, covered by the plan's certificate, in the tree that `fit`
            was given, with all that is not trained as it was.
        metrics: columns of equal length: step, epsilon (ε spent up to that step) and what
            `evaluate` returned; with `log_private_losses` also train_loss (mean over the batches
            since the last row), nonfinite (records whose gradient was NaN or infinite and counted
            as zero, so far) and clipped (the share of the records since the last row whose gradient
            was above the clip norm). Of these only step and epsilon are free of private data.
        average: of the iterates, where `fit` was asked for one; else None. Released as params are.
        steps: how many were taken.
        looks: at how many rows `stop_when` could have stopped; 1 where no session of the run had
            one. What the steps taken cost is `plan.certify(steps=fit.steps, looks=fit.looks)`.
        clip_norm: the last one, where the plan's is adaptive; released as params are.

    Example:
        >>> Fit(params=None, metrics={"step": np.arange(2)}).metrics["step"].tolist()
        [0, 1]
    """

    params: Any
    metrics: dict[str, np.ndarray]
    average: Any = None
    steps: int = 0
    looks: int = 1
    clip_norm: float | None = None


def _of_the_trained_part(train: Callable[..., Fit]) -> Callable[..., Fit]:
    """What is inside trains a tree of floating arrays; what is outside gives and gets a model."""

    @functools.wraps(train)
    def whole(loss, params, data, plan, *, trainable=None, evaluate=None, **options):
        parts = parts_of(params, trainable)
        check_functions(evaluate=evaluate)
        if evaluate is not None:
            options["evaluate"] = lambda trained: evaluate(_beside(parts, trained))
        result = train(loss, parts, data, plan, **options)
        found = parts.whole(result.params), parts.whole(result.average)
        return result._replace(params=found[0], average=found[1])

    return whole


def _beside(parts: Parts, trained: Any) -> Any:
    """The model for `evaluate`: what is not trained lies on the devices of what is."""
    first: Any = next(leaf for leaf in jax.tree.leaves(trained) if leaf is not None)
    if not isinstance(first, jax.Array):
        return parts.whole(trained)
    place: Any = first.sharding
    if isinstance(place, NamedSharding):
        place = NamedSharding(place.mesh, PartitionSpec())
    return parts.join(trained, jax.tree.map(lambda leaf: placed(leaf, place), parts.held))


def _on_any_mesh(train: Callable[..., Fit]) -> Callable[..., Fit]:
    """Arrays on explicit axes train on automatic ones of the same devices, and come back."""

    @functools.wraps(train)
    def placed(loss, params, data, plan, *, key=None, mesh=None, **options):
        if isinstance(data, Iterator):
            HostData(data)  # which says why no stream will do
        placement = placement_of(mesh, data)
        devices = None if placement is None else placement.mesh
        if placement is None and options.get("users") is None:  # users' blocks are made below
            data = on_host(data, plan.population) or data
        with automatic(params, data), automatic_in_force(devices):
            moved, rows, key = on_auto_mesh((params, data, key))
            if placement is not None:
                placement = dataclasses.replace(placement, mesh=automatic_mesh(devices))
            result = train(loss, moved, rows, plan, key=key, mesh=placement, **options)

        def back(tree):
            if tree is None:
                return None
            if mesh is not None:
                return on_explicit_mesh(tree, devices)
            return placed_like(tree, params.trained)

        return result._replace(params=back(result.params), average=back(result.average))

    return placed


@taught
@_of_the_trained_part
@_on_any_mesh
def fit(
    loss: Callable[..., Float[Array, ""]],
    params: Any,
    data: Any,
    plan: Plan,
    *,
    optimizer: optax.GradientTransformation,
    key: Key[Array, ""] | None = None,
    mesh: Mesh | Placement | None = None,
    evaluate: Callable[[Any], Mapping[str, float]] | None = None,
    log_every: int | None = None,
    capacity: int | None = None,
    method: str = "auto",
    strategy: Strategy = Flat(),  # noqa: B008 (frozen)
    trainable: Callable[[str, Any], bool] | Any | None = None,
    loss_takes_key: bool = False,
    folder: str | pathlib.Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    identity: Mapping[str, Any] | None = None,
    on_log: Callable[[dict[str, float]], None] | None = None,
    log_private_losses: bool = False,
    users: ArrayLike | None = None,
    records_per_user: int | None = None,
    average: Callable[[Any], Any] | None = None,
    stop_when: Callable[[Mapping[str, float]], bool] | None = None,
    time_limit: float | None = None,
) -> Fit:
    """Train privately, executing exactly the mechanism that `plan` prices.

    Each step draws records by the plan's sampler, sums their gradients clipped to the plan's norm,
    adds the plan's noise, divides by the plan's *expected* batch size and hands the result to the
    optimiser. Sampling and noise are functions of (key, step). A Poisson draw larger than
    `capacity` is worked through in several pieces of that size, never truncated, so that the
    sampler is exact and no δ has to be reserved for it. The whole run shares one compilation.

    Args:
        loss: `loss(params, example) -> scalar`, of one record; or `loss(params, example, key)`.
        params: any tree: of flax linen, nnx (as a pure dict), an equinox module, or plain. Trained
            are its floating-point arrays; all else (functions, numbers of Python's own, counters,
            keys) is carried along and comes back as it was.
        data: a tree of arrays with a leading axis of `plan.population` records; or records on the
            host, of which a step loads those it drew: a memory map, a table, a list of records, any
            object with `__len__` and `__getitem__` (see `HostData`).
        plan: mechanism, clip norm and public constants.
        optimizer: any optax optimiser.
        key: decides batches and noise, and must stay secret; by default 64 unpredictable bits.
        mesh: devices to run on, a mesh for `data_parallel(mesh)`, or `fully_sharded(mesh)`; by
            default where the arrays are. Arrays are then placed there, block by block.
        evaluate: `evaluate(params) -> {name: number}`, recorded at every row of the metrics.
        log_every: steps between rows; by default the run gives about 40.
        capacity: records worked on at once, which bounds memory; by default a size that a draw
            almost never exceeds.
        method: how per-example gradients are clipped, see `clipped_grad`.
        strategy: how a gradient is scaled, see `dpjax.gradients`: `PerGroup` clips groups of
            parameters each to a norm of its own, the root of whose squares is `plan.clip_norm`.
        trainable: which of the floating-point arrays are trained: `trainable(path, leaf) -> bool`
            with a path such as "dense_0/kernel", or a tree of booleans as `optax.masked` takes, a
            prefix of `params`. The others are frozen: no gradient, no noise, no optimiser's state,
            and no part in the clip norm.
        loss_takes_key: whether the loss takes a key, for dropout or augmentation: one a record,
            `fold_in(fold_in(fold_in(key, 2), step), record's number)`, so that a resumed run, or
            one with another `capacity`, repeats it.
        folder: where checkpoints go; none are written without it.
        resume: continue the run in `folder` from its newest whole checkpoint, or begin one there.
        checkpoint_every: steps between checkpoints; by default one every half minute, and one of
            the last completed step when the run is interrupted (Ctrl-C, an exception). Where a
            checkpoint falls does not change the result.
        identity: anything else that has to agree for a checkpoint to be continued.
        on_log: called with every new row, and with what is not kept: steps_per_second and
            records_per_second (expected ones) since the last row, and memory, the most bytes that a
            device held so far, or else the process; `progress_line(row)` is one line of it.
        log_private_losses: record train_loss, nonfinite and clipped, exact functions of the
            training records that ε does not cover; nothing else in the result is one.
        users: whom each record of the data belongs to, for a plan whose unit is the user: users are
            sampled, and a user's summed gradient is clipped once (`training.per_user`).
        records_per_user: with `users`, the most records of one that are used, the first ones in the
            order of the data: a public number.
        average: `exponential_average(decay)` or `tail_average(begin)`, or any function from a
            step's number 1, 2, … to the weight of its parameters in a running mean: kept beside the
            parameters, free of privacy cost.
        stop_when: called with every row's step, epsilon and what `evaluate` returned; the run stops
            where it is true. It may look at nothing else that depends on the training records, and
            neither may `evaluate`: then it post-processes what is released, and
            `plan.certify(steps=..., looks=...)` certifies the steps taken.
        time_limit: seconds after which the run stops at the end of a step, resumable where there is
            a folder. That running time depends on the records is covered by no ε.

    Returns:
        Parameters and metrics. A run that is killed and resumed returns the same bits: its key is
        stored, bound to everything it is used with, before the first step.

    Raises:
        ValueError: data that is not `plan.population` records (or users), users without a plan of
            that unit or such a plan without users, parameters none of which is trained, an
            optimiser that draws from the run's own key, `resume` without a folder.
        CheckpointError: a folder of another run (other data, plan, loss, optimiser, …), one that is
            in use, or one that cannot be written.

    Example:
        >>> x = jnp.array([[0.0], [1.0], [2.0], [3.0]])
        >>> from dpjax import accounting as acc
        >>> run = acc.Repeated(acc.Gaussian(1e-3), 60)
        >>> plan = Plan(run, clip_norm=10.0, population=4, delta=1e-5)
        >>> def loss(w, example):
        ...     return 0.5 * (example @ w - 2 * example[0]) ** 2
        >>> options = {"optimizer": optax.sgd(0.2), "key": jax.random.key(0)}
        >>> result = fit(loss, jnp.zeros(1), x, plan, **options)
        >>> round(float(result.params[0]), 2)
        2.0
    """
    if resume and folder is None:
        raise ValueError("folder must be given with resume=True, got None")
    placement: Any = mesh  # what `_on_any_mesh` made of it
    several = placement is not None and placement.several
    joined: Any = placement.mesh if several else None
    if several and evaluate is not None:
        of_devices = evaluate
        # Every process evaluates the same parameters, on a device of its own.
        evaluate = lambda params: of_devices(jax.tree.map(jnp.asarray, gathered(params)))  # noqa: E731
    params, held, join = params  # what `_of_the_trained_part` made of them
    del trainable
    host = data if isinstance(data, HostData) else None
    if host is not None and placement is not None:
        raise ValueError("data must be arrays where mesh is given, got HostData")
    if (users is None) != (plan.unit == "record"):
        given = "none" if users is None else "some"
        raise ValueError(
            f"users must be given where plan.unit is 'user' and only there, got {given}"
        )
    who_owns = {}
    if users is not None:
        if records_per_user is None:
            raise ValueError("records_per_user must be given with users, got None")
        if host is not None:
            raise ValueError("data must be arrays where users are given, got records on the host")
        loss, data = per_user(loss, data, users, records_per_user)
        who_owns = {"users": users, "records per user": int(records_per_user)}
    elif records_per_user is not None:
        raise ValueError(f"records_per_user must be left out without users, got {records_per_user}")
    population = _records(data) if host is None else host.records
    if population != plan.population:
        raise ValueError(
            f"data must hold the plan's {plan.population} {plan.unit}s, got {population}"
        )
    if not isinstance(strategy, Strategy):
        raise ValueError(f"strategy must be a Strategy of dpjax.gradients, got {shown(strategy)}")
    check_functions(evaluate=evaluate, on_log=on_log, stop_when=stop_when, average=average)
    every = max(1, math.ceil(plan.steps / _ROWS)) if log_every is None else log_every
    log_every = whole("log_every", every)
    capacity = None if capacity is None else whole("capacity", capacity)
    if checkpoint_every is not None:
        checkpoint_every = whole("checkpoint_every", checkpoint_every)
    if placement is not None:
        first_params, records = gathered(params) if several else None, data
        data = placed_rows(placement, data, population)
        params = placed_parameters(placement, params)
        put = everywhere if several else placed
        held = jax.tree.map(lambda leaf: put(leaf, placement.sharding()), held)
    else:
        data = jax.tree.map(jnp.asarray, data) if host is None else host
        params = jax.tree.map(jnp.asarray, params)
    first = dict(evaluate(params)) if evaluate else {}
    check_names(first)
    private = ["train_loss", "nonfinite", "clipped"] if log_private_losses else []
    names = [*private, *first]
    stops = np.unique([*range(0, plan.steps, log_every), plan.steps])
    table = np.full((len(stops), len(names)), np.nan)
    table[0] = [*[np.nan, 0.0, np.nan][: len(private)], *map(float, first.values())]
    key = fresh_key() if key is None else key
    check_key(key)
    if several:
        key = same_key(joined, key)
    stopping, speed = Stopping(stop_when, time_limit), Speed(plan)
    failure = failure_probability(plan, plan.spent(plan.steps))
    made_of = (loss, params, plan, optimizer, capacity, method, failure, loss_takes_key)
    recipe = Recipe(*made_of, placement, average, strategy, jax.eval_shape(lambda: held), join)
    example = _one_of(data) if host is None else host.example
    store: Any = None
    if folder is not None:
        where = pathlib.Path(folder)
        store = SharedCheckpoints(where, joined) if several else Checkpoints(where)
    chosen = stop_when is not None  # by what was released, when the run ends
    try:
        if placement is not None and several:
            state = first_state_on(placement, params, plan, optimizer, average)
        else:
            state = first_state(params, plan, optimizer, np.int32(0), average)
        if placement is not None and not several:
            state = placed_state(placement, state)
        progress = Progress(state, no_totals(), table, np.int32(1))
        if store is not None:

            def who(key):
                settings = {"rows of the metrics": log_every, "columns of the metrics": names}
                settings |= {"capacity": capacity, "method": method, **dict(identity or {})}
                if who_owns:
                    secret = np.asarray(jax.random.key_data(key)).tobytes()
                    named = [str(user) for user in np.asarray(who_owns["users"]).tolist()]
                    settings |= who_owns | {"users": text_digest(named, secret=secret)}
                if average is not None:
                    settings["average"] = program_digest(average, np.int32(1))
                if several:  # the leader has to see all of it, and sees its own copies
                    kept = recipe._replace(params=jax.tree.map(jnp.asarray, first_params))
                    return identity_of_run(kept, as_placed(records), example, key, settings, held)
                return identity_of_run(recipe, data, example, key, settings, held)

            key = store.bind(key, who, resume=resume)
            chosen = store.noted("stop_when", chosen)
            found = store.latest(progress)
            progress = progress if found is None else found[1]
        _check_own_key(key, state["optimizer"])
        programs = compiled(recipe, example)
        used_key = everywhere_key(placement, key) if several else key

        def report(row):
            values = dict(zip(names, progress.table[row].tolist(), strict=True))
            values = {"step": int(stops[row]), "epsilon": plan.spent(int(stops[row])), **values}
            if on_log is not None:
                on_log(values | speed.row(progress.state["params"]))
            stopping.see({name: values[name] for name in values if name not in private})
            if several:
                last = agreed(joined, np.uint32(stopping.last_row_done))
                stopping.last_row_done = bool(last)

        if host is None:
            feed = OnDevice(data)
        else:
            feed = FromHost(host, programs.draws, programs.draw, key, plan.steps)
        timed_out = False
        saver = Saver(store, checkpoint_every, progress)
        try:
            for row in range(int(progress.rows)):
                report(row)
            due = None
            while progress.rows < len(stops) and not (timed_out or stopping.last_row_done):
                row = int(progress.rows)
                while (step := int(progress.state["step"])) < stops[row] and not timed_out:
                    stop = min(int(stops[row]), saver.stop(step), feed.stop(step))
                    if several:  # clocks differ
                        stop = int(agreed(joined, np.int64(stop)))
                    began = time.monotonic()
                    state, totals = programs.advance(
                        progress.state,
                        progress.totals,
                        used_key,
                        feed.at(step),
                        np.int32(stop),
                        held,
                    )
                    jax.block_until_ready(state)
                    seconds = time.monotonic() - began
                    feed.took(stop - step, seconds)
                    speed.took(step, stop, seconds)
                    totals = totals if log_private_losses else no_totals()
                    progress = progress._replace(state=state, totals=totals)
                    timed_out = stop < plan.steps and stopping.time_is_up()
                    due = None
                    if several:
                        told = np.array([timed_out, saver.due(stop)], np.uint32)
                        timed_out, due = map(bool, agreed(joined, told))
                    if stop < stops[row]:
                        saver.save_if_due(progress, last=timed_out, due=due)
                if int(progress.state["step"]) < stops[row]:
                    break
                progress = row_done(progress, evaluate, log_private_losses, list(first))
                saver.save_if_due(progress, timed_out or progress.rows == len(stops), due)
                report(row)
            if stopping.last_row_done:
                saver.save_if_due(progress, last=True)
        except BaseException:
            if not several:  # what one process would save, the others have to hand over
                saver.rescue(progress)
            raise
        finally:
            feed.close()
    finally:
        if store is not None:
            store.close()
    rows = int(progress.rows)
    columns = {name: progress.table[:rows, column] for column, name in enumerate(names)}
    if log_private_losses:
        columns["nonfinite"] = columns["nonfinite"].astype(np.int64)
    stops, looks = stops[:rows], len(stops) - 1 if chosen else 1
    epsilons = np.asarray([plan.spent(int(stop)) for stop in stops])
    metrics = {"step": stops, "epsilon": epsilons, **columns}
    state = progress.state
    clip_norm = float(state["clip_norm"]) if "clip_norm" in state else None
    steps = int(state["step"])
    return Fit(state["params"], metrics, state.get("average"), steps, looks, clip_norm)


def _check_own_key(key: Any, optimizer_state: Any) -> None:
    """Noise that the optimiser draws from the run's keys could undo the run's own."""
    theirs = [x for x in jax.tree.leaves(optimizer_state) if might_be_key(x)]
    if not theirs:
        return
    own = [key, *(jax.random.fold_in(key, number) for number in range(4))]
    mine = {bits_of_key(one).tobytes() for one in own}
    if any(bits_of_key(one).tobytes() in mine for one in theirs):
        raise ValueError("optimizer must draw noise from keys of its own, got the key of the run")


def _one_of(data: Any) -> Any:
    """The shapes and dtypes of one record."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), data)


def _records(data: Any) -> int:
    leaves = jax.tree.leaves(data)
    sizes = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in leaves}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"data must share one leading axis of records, got {sizes}")
    return sizes.pop()
