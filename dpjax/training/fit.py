"""The private training loop: one compiled step, driven entirely by the plan that is priced."""

from __future__ import annotations

import math
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key

from dpjax import accounting as acc
from dpjax import gradients, sampling, transforms
from dpjax._numerics.normal import fresh_key
from dpjax.training.checkpoint import Checkpoints, keyed_digest
from dpjax.training.plan import ARITHMETIC, Plan

__all__ = ["Fit", "fit"]

_SECONDS_BETWEEN_CHECKPOINTS = 5.0
_ROWS = 40  # of the metrics, unless told otherwise


class Fit(NamedTuple):
    """What a run leaves.

    Fields:
        params: the released parameters, covered by the plan's certificate.
        metrics: columns of equal length: step, epsilon (ε spent up to that step), train_loss (mean
            over the batches since the last row), nonfinite (records whose gradient was NaN or
            infinite and counted as zero, so far), and what `evaluate` returned. Of these only step
            and epsilon are free of private data.

    Example:
        >>> Fit(params=None, metrics={"step": np.arange(2)}).metrics["step"].tolist()
        [0, 1]
    """

    params: Any
    metrics: dict[str, np.ndarray]


def fit(
    loss: Callable[[Any, Any], Float[Array, ""]],
    params: Any,
    data: Any,
    plan: Plan,
    *,
    optimizer: optax.GradientTransformation,
    key: Key[Array, ""] | None = None,
    evaluate: Callable[[Any], Mapping[str, float]] | None = None,
    log_every: int | None = None,
    capacity: int | None = None,
    method: str = "auto",
    folder: str | pathlib.Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    identity: Mapping[str, Any] | None = None,
    on_log: Callable[[dict[str, float]], None] | None = None,
) -> Fit:
    """Train privately, executing exactly the mechanism that `plan` prices.

    Each step draws records by the plan's sampler, sums their gradients clipped to the plan's norm,
    adds the plan's noise, divides by the plan's *expected* batch size and hands the result to the
    optimiser. Sampling and noise are functions of (key, step). A Poisson draw larger than
    `capacity` is worked through in several pieces of that size, never truncated, so that the
    sampler is exact and no δ has to be reserved for it. The whole run shares one compilation.

    Args:
        loss: `loss(params, example) -> scalar`, of one record.
        params: any tree of floating arrays: flax linen, nnx (as a pure dict), or plain.
        data: a tree of arrays with a leading axis of `plan.population` records.
        plan: mechanism, clip norm and public constants.
        optimizer: any optax optimiser.
        key: decides batches and noise, and must stay secret; by default 64 unpredictable bits.
        evaluate: `evaluate(params) -> {name: number}`, recorded at every row of the metrics.
        log_every: steps between rows; by default the run gives about 40.
        capacity: records worked on at once, which bounds memory; by default a size that a draw
            almost never exceeds.
        method: how per-example gradients are clipped, see `clipped_grad`.
        folder: where checkpoints go; none are written without it.
        resume: continue from the newest checkpoint in `folder`, if there is one.
        checkpoint_every: steps between checkpoints, rounded up to rows; by default one every five
            seconds. Where a checkpoint falls does not change the result.
        identity: anything else that has to agree for a checkpoint to be continued.
        on_log: called with every new row.

    Returns:
        Parameters and metrics. A run that is killed and resumed returns the same bits.

    Raises:
        ValueError: data that is not `plan.population` records, parameters that are not floating.
        CheckpointError: a checkpoint of another run.

    Example:
        >>> x = jnp.array([[0.0], [1.0], [2.0], [3.0]])
        >>> run = acc.Repeated(acc.Gaussian(1e-3), 60)
        >>> plan = Plan(run, clip_norm=10.0, population=4, delta=1e-5)
        >>> def loss(w, example):
        ...     return 0.5 * (example @ w - 2 * example[0]) ** 2
        >>> options = {"optimizer": optax.sgd(0.2), "key": jax.random.key(0)}
        >>> result = fit(loss, jnp.zeros(1), x, plan, **options)
        >>> round(float(result.params[0]), 2)
        2.0
    """
    population = _records(data)
    if population != plan.population:
        raise ValueError(f"data must hold the plan's {plan.population} records, got {population}")
    if not all(
        jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in jax.tree.leaves(params)
    ):
        raise ValueError("params must be floating-point arrays, got another type")
    if log_every is None:
        log_every = max(1, math.ceil(plan.steps / _ROWS))
    data = jax.tree.map(jnp.asarray, data)
    key = fresh_key() if key is None else key
    store = None if folder is None else Checkpoints(pathlib.Path(folder))
    try:
        if store is not None:
            key = store.key(key, resume=resume)
        names = ["train_loss", "nonfinite", *(evaluate(params) if evaluate else ())]
        stops = np.unique([*range(0, plan.steps, log_every), plan.steps])
        epsilons = np.concatenate([[0.0], _prices(plan, stops[1:])])
        failure = _failure(plan, float(epsilons[-1]))
        advance = _compile(loss, params, plan, optimizer, capacity, method, failure)
        state = {
            "params": jax.tree.map(jnp.asarray, params),
            "optimizer": optimizer.init(params),
            "step": jnp.zeros((), jnp.int32),
        }
        table = np.full((len(stops), len(names)), np.nan)
        table[0, 1] = 0
        done = 0
        who: dict[str, Any] = {}
        if store is not None:
            who = _identity(
                plan, state, log_every, keyed_digest(key, jax.tree.leaves(data)), identity
            )
            found = store.latest(who, {"state": state, "table": table}) if resume else None
            if found is not None:
                done = int(np.searchsorted(stops, found[0]))
                state, table = jax.tree.map(jnp.asarray, found[1]["state"]), found[1]["table"]
        if done == 0:
            table[0, 2:] = _evaluated(evaluate, params)
            if store is not None:
                store.save(0, {"state": state, "table": table}, who)
        saved_at, saved_step = time.monotonic(), int(stops[done])
        for row in range(len(stops)):
            if row > done:
                stop = int(stops[row])
                state, totals = advance(state, key, data, jnp.asarray(stop, jnp.int32))
                loss_sum, records, nonfinite = (float(total) for total in totals)
                table[row, 0] = loss_sum / records if records else np.nan
                table[row, 1] = table[row - 1, 1] + nonfinite
                table[row, 2:] = _evaluated(evaluate, state["params"])
                due = (
                    time.monotonic() - saved_at > _SECONDS_BETWEEN_CHECKPOINTS
                    if checkpoint_every is None
                    else stop - saved_step >= checkpoint_every
                )
                if store is not None and (due or stop == plan.steps):
                    store.save(stop, {"state": state, "table": table}, who)
                    saved_at, saved_step = time.monotonic(), stop
            if on_log is not None:
                values = dict(zip(names, table[row].tolist(), strict=True))
                on_log({"step": int(stops[row]), "epsilon": float(epsilons[row]), **values})
    finally:
        if store is not None:
            store.close()
    columns = {name: table[:, column] for column, name in enumerate(names)}
    columns["nonfinite"] = columns["nonfinite"].astype(np.int64)
    return Fit(state["params"], {"step": stops, "epsilon": epsilons, **columns})


def _compile(
    loss, params, plan: Plan, optimizer, capacity: int | None, method: Any, failure: float
):
    """The jitted `advance(state, key, data, stop)`."""
    draw, capacity, largest = _sampler(plan, capacity, failure)
    clipped = gradients.clipped_grad(loss, plan.clip_norm, method)
    slack = _slack(params, capacity, largest, failure)
    stddev = plan.noise_multiplier * plan.clip_norm * (1 + slack)
    # Noise is a function of (key, step), both given at each call: no key is compiled into the
    # program, and none travels with the state into a checkpoint.
    perturb = transforms.gaussian_noise(stddev, jax.random.key(0)).update

    def batch_sum(params, data, key, step):
        indices, size = draw(key, step)
        slots = jnp.arange(capacity, dtype=jnp.int32)

        def piece(number, totals):
            start = number * capacity
            rows = jax.lax.dynamic_slice(indices, (start,), (capacity,))
            batch = jax.tree.map(lambda leaf: leaf[rows], data)
            out = clipped(params, batch, mask=start + slots < size)
            # A loss that is not finite would hide all others behind it in the mean.
            finite = jnp.where(jnp.isfinite(out.losses), out.losses, jnp.zeros_like(out.losses))
            found = (out.sum, jnp.sum(finite, dtype=jnp.float32), out.nonfinite)
            return jax.tree.map(jnp.add, totals, found)

        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, _at_least_float32(leaf)), params)
        first = (zero, jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))
        pieces = jnp.maximum(1, (size + capacity - 1) // capacity)
        total, loss_sum, nonfinite = jax.lax.fori_loop(0, pieces, piece, first)
        return total, (loss_sum, size.astype(jnp.float32), nonfinite)

    @jax.jit
    def advance(state, key, data, stop):
        sampling_key, noise_key = (jax.random.fold_in(key, number) for number in (0, 1))

        def step(carry):
            state, totals = carry
            params = state["params"]
            total, seen = batch_sum(params, data, sampling_key, state["step"])
            noisy, _ = perturb(total, transforms.NoiseState(noise_key, state["step"]))
            # Rounding to the parameters' dtype comes after the noise: it only post-processes.
            mean = jax.tree.map(
                lambda leaf, like: (leaf / plan.expected_batch_size).astype(like.dtype),
                noisy,
                params,
            )
            updates, inner = optimizer.update(mean, state["optimizer"], params)
            new = optax.apply_updates(params, updates)
            state = {"params": new, "optimizer": inner, "step": state["step"] + 1}
            return state, jax.tree.map(jnp.add, totals, seen)

        none = (jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))
        return jax.lax.while_loop(lambda carry: carry[0]["step"] < stop, step, (state, none))

    return advance


def _prices(plan: Plan, steps: np.ndarray) -> np.ndarray:
    """ε after each of `steps`; queries of one length share one compilation of the accountant."""
    padded = np.pad(steps, (0, max(0, _ROWS - len(steps))), mode="edge")
    return np.atleast_1d(plan.epsilon(padded))[: len(steps)]


def _failure(plan: Plan, epsilon: float) -> float:
    """How often, a step, the bounds on rounding and on the batch's size may fail.

    Such a failure costs at most (1 + e^ε) times its probability; the two of them, over all steps,
    have to fit into what the plan reserves of δ for arithmetic.
    """
    reserve = plan.extra_delta.get(ARITHMETIC, 1e-15)
    return max(reserve / (2 * plan.steps * (1 + math.exp(min(epsilon, 300.0)))), 1e-150)


def _slack(params, capacity: int, largest: int, failure: float) -> float:
    """By how much float rounding can raise the sensitivity of a sum worked through in pieces.

    Each piece is off by its own slack; adding up k pieces rounds k − 1 times, each time by at most
    one unit round-off of the whole sum, on either neighbour.
    """
    dimension = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(params))
    pieces = -(-largest // capacity)
    round_off = float(np.finfo(np.float32).eps) / 2
    one = gradients.rounding_slack(capacity, dimension, failure=failure / pieces)
    return pieces * one + 2 * largest * (pieces - 1) * round_off


def _sampler(plan: Plan, capacity: int | None, failure: float):
    """`draw(key, step) -> (indices, size)`, the size of a piece, and the largest size expected."""
    n, step_mechanism = plan.population, plan.step
    if isinstance(step_mechanism, acc.PoissonSampled):
        largest = sampling.poisson_capacity(n, plan.rate, steps=1, delta=failure, epsilon=0.0)
    else:
        largest = round(plan.expected_batch_size)
    capacity = largest if capacity is None else min(capacity, n)
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1, got {capacity}")
    padded = -(-n // capacity) * capacity

    def fixed(key, step):
        batch = sampling.fixed_batch(
            key, step, population=n, batch_size=int(np.asarray(step_mechanism.batch_size))
        )
        size = len(batch.indices)
        indices = jnp.pad(batch.indices, (0, padded - size))
        return indices, jnp.full((), size, jnp.int32)

    def poisson(key, step):
        inclusion = sampling.poisson_inclusion(key, step, population=n, rate=plan.rate)
        indices = jnp.nonzero(inclusion, size=padded, fill_value=0)[0].astype(jnp.int32)
        return indices, jnp.sum(inclusion, dtype=jnp.int32)

    def everyone(key, step):
        del key, step
        order = jnp.arange(padded, dtype=jnp.int32)
        return jnp.where(order < n, order, 0), jnp.full((), n, jnp.int32)

    if isinstance(step_mechanism, acc.FixedBatchSampled):
        return fixed, capacity, largest
    sampler = poisson if isinstance(step_mechanism, acc.PoissonSampled) else everyone
    return sampler, capacity, largest


def _identity(plan: Plan, state, log_every: int, digest: str, extra) -> dict[str, Any]:
    shapes = jax.tree.map(lambda leaf: f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}", state)
    return {
        "mechanism": repr(plan.mechanism),
        "clip norm": plan.clip_norm,
        "records": plan.population,
        "delta": plan.delta,
        "adjacency": plan.adjacency.value,
        "rows of the metrics": log_every,
        "model and optimiser": str(shapes),
        "data": digest,
        **dict(extra or {}),
    }


def _evaluated(evaluate, params) -> list[float]:
    return [] if evaluate is None else [float(value) for value in evaluate(params).values()]


def _at_least_float32(leaf):
    return jnp.promote_types(jnp.result_type(leaf), jnp.float32)


def _records(data: Any) -> int:
    leaves = jax.tree.leaves(data)
    sizes = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in leaves}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"data must share one leading axis of records, got {sizes}")
    return sizes.pop()
