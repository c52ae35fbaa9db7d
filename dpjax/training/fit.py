"""The private training loop: one compiled step, driven entirely by the plan that is priced."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike, Float, Key

from dpjax._numerics.normal import fresh_key
from dpjax._other_names import taught
from dpjax.gradients import Flat, Strategy
from dpjax.training.arguments import check_functions, check_key, check_strategy, whole
from dpjax.training.conversion import of_the_trained_part, on_any_mesh
from dpjax.training.draws import check_divided
from dpjax.training.feeding import feed_of
from dpjax.training.loop import Loop
from dpjax.training.metrics import interval, metrics_of
from dpjax.training.pacing import Saver
from dpjax.training.placement import Placement
from dpjax.training.plan import Plan
from dpjax.training.processes import everywhere_key, same_key
from dpjax.training.recipe import Recipe
from dpjax.training.records import placed_where, records_of
from dpjax.training.result import Fit, result_of
from dpjax.training.slack import failure_probability
from dpjax.training.speed import Speed
from dpjax.training.start import check_own_key, first_progress, known_again, opened
from dpjax.training.step import compiled
from dpjax.training.stopping import Stopping

__all__ = ["fit"]


@taught
@of_the_trained_part
@on_any_mesh
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
            default where the arrays are. Arrays are then placed there, block by block; memory maps
            too, unless they are `HostData`: of records on the host every process loads those of its
            own blocks that a step drew.
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
        >>> import jax.numpy as jnp
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
    del trainable
    placement: Any = mesh  # what `on_any_mesh` made of it
    joined: Any = placement.mesh if placement is not None and placement.several else None
    if placement is not None:
        check_divided(plan)
    records = records_of(loss, data, plan, users, records_per_user)
    check_strategy(strategy)
    check_functions(evaluate=evaluate, on_log=on_log, stop_when=stop_when, average=average)
    log_every = interval(plan, log_every)
    capacity = None if capacity is None else whole("capacity", capacity)
    if checkpoint_every is not None:
        checkpoint_every = whole("checkpoint_every", checkpoint_every)
    parts: Any = params  # what `of_the_trained_part` made of them
    lying = placed_where(placement, records, parts.trained, parts.held, plan.population)
    metrics = metrics_of(plan, log_every, evaluate, log_private_losses, lying.params)
    key = fresh_key() if key is None else key
    check_key(key)
    key = key if joined is None else same_key(joined, key)
    stopping, speed = Stopping(stop_when, time_limit), Speed(plan)
    recipe = Recipe(
        records.loss,
        lying.params,
        plan,
        optimizer,
        capacity,
        method,
        failure_probability(plan, plan.spent(plan.steps)),
        loss_takes_key,
        placement,
        average,
        strategy,
        jax.eval_shape(lambda: lying.held),
        parts.join,
        bool(metrics.private),
    )
    settings = {"rows of the metrics": log_every, "columns of the metrics": metrics.names}
    settings |= {"capacity": capacity, "method": method, **dict(identity or {})}
    chosen = stop_when is not None  # by what was released, when the run ends
    store = opened(folder, joined)
    try:
        progress = first_progress(recipe, metrics)
        if store is not None:
            known = known_again(recipe, lying, records.owners, settings)
            key = store.bind(key, known, resume=resume)
            chosen = store.noted("stop_when", chosen)
            found = store.latest(progress)
            progress = progress if found is None else found[1]
        check_own_key(key, progress.state["optimizer"])
        programs = compiled(recipe, lying.example)
        loop = Loop(
            programs.advance,
            key if joined is None else everywhere_key(placement, key),
            lying.held,
            feed_of(lying.data, programs, key, plan.steps),
            Saver(store, checkpoint_every, progress),
            metrics,
            stopping,
            speed,
            on_log,
            joined,
        )
        progress = loop.run(progress)
    finally:
        if store is not None:
            store.close()
    return result_of(progress, metrics, plan, chosen=chosen)
