"""A loop of `dpjax`'s parts for what `fit` does not express: G3, selective update, importance.

Clipping, noise and tests are those of `dpjax.gradients` and `dpjax.transforms`.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax import clipped_grad, sampling, transforms
from experiments.duan2025.methods import CLIP_NORM, Method

# Selective updates: each record's loss difference is clipped to ±1; DPSUR's noise, over that clip.
LOSS_CLIP, LOSS_NOISE = 1.0, 1.0
VALIDATION = 256  # expected records of the validation batch
MOST_ATTEMPTS = 4  # a run counted by accepted steps ends at this multiple of them
# Importance sampling renews its norms once, half way, releases their sum with this noise
# multiplier, and lets no record take part with more than this multiple of the rate B/n.
NORMALISER_NOISE, RATE_CAP = 10.0, 1.5


class State(NamedTuple):
    """What a step hands on: parameters, the transformations' states, the norms of importance."""

    params: Any
    anchor: Any
    test: Any
    norms: jax.Array
    normaliser: jax.Array


def train(loss, params, data, method: Method, run, setting, key, evaluate=None, log_every=None):
    """(params, attempts, accepted, metrics) of a run; see `training.train`."""
    step = _step(loss, method, run, len(data[1]))
    state, numbers = _start(params, len(data[1]), run), jnp.float32([setting.rate, setting.radius])
    most = run.steps * (MOST_ATTEMPTS if method.selective == "accepted" else 1)
    rows: list[dict[str, float]] = []
    attempts, every = 0, log_every or most

    def row():
        if evaluate is not None:
            rows.append({"step": attempts, **evaluate(state.params)})

    row()
    while attempts < most:
        if method.importance and attempts == run.steps // 2:
            state = _refreshed(loss, method, state, data, jax.random.fold_in(key, most))
        state = step(state, data, key, jnp.int32(attempts), numbers)
        attempts += 1
        if attempts % every == 0:
            row()
        if method.selective == "accepted" and int(state.test.accepted) >= run.steps:
            break
    accepted = int(state.test.accepted) if method.selective else attempts
    metrics = {name: [r[name] for r in rows] for name in rows[0]} if rows else {}
    return state.params, attempts, accepted, metrics


def _start(params, population: int, run) -> State:
    anchor = transforms.recentred_clipping(1.0, 0.0, run.batch_size, jax.random.key(0)).init(params)
    test = _test(run, jax.random.key(0)).init(params)
    # Before the first refresh every record counts alike.
    norms = jnp.full(population, CLIP_NORM, jnp.float32)
    return State(params, anchor, test, norms, jnp.float32(population * CLIP_NORM))


def _test(run, key):
    return transforms.selective_update(
        LOSS_CLIP, LOSS_NOISE, VALIDATION, key, attempts=MOST_ATTEMPTS * run.steps
    )


@functools.lru_cache(maxsize=4)
def _step(loss, method: Method, run, population: int):
    """One jitted step (state, data, key, step, (rate, radius)) -> state."""
    size = run.batch_size
    capacity = min(size + math.ceil(6 * math.sqrt(size)), population)
    per_example = jax.vmap(jax.grad(loss), (None, 0))
    summed = clipped_grad(loss, CLIP_NORM, clipping=method.strategy)

    def geodp(key, mean, clip_norm):
        tx = transforms.spherical_noise(
            run.sigma, clip_norm, size, method.bounding_factor, key, unsafe_no_dp=True
        )
        return tx.update(mean, tx.init(mean))[0]

    def recentred(state, batch, mask, key, radius):
        bound = radius * CLIP_NORM
        tx = transforms.recentred_clipping(bound, run.sigma * bound / size, size, key)
        grads = per_example(state.params, batch)
        before = state.anchor._replace(noise=transforms.NoiseState(key, jnp.int32(0)))
        return tx.update(grads, before, mask=mask)

    def by_importance(state, data, keys, sampled):
        draw = transforms.importance_inclusion(
            sampled,
            0,
            state.norms,
            normaliser=state.normaliser,
            batch_size=size,
            clip_norm=CLIP_NORM,
            rate=min(RATE_CAP * size / population, 1.0),
        )
        rows = jnp.nonzero(draw.included, size=capacity, fill_value=0)[0]
        mask = jnp.arange(capacity) < jnp.sum(draw.included)
        sigma = 0.0 if method.noise == "geodp" else run.sigma
        tx = transforms.importance_mean(
            CLIP_NORM, sigma, population, keys[0], clipping=method.strategy
        )
        grads = per_example(state.params, jax.tree.map(lambda x: x[rows], data))
        mean, _ = tx.update(
            grads,
            tx.init(state.params),
            mask=mask,
            probabilities=draw.probabilities[rows],
            sensitivity=draw.sensitivity,
        )
        return geodp(keys[1], mean, draw.sensitivity) if method.noise == "geodp" else mean

    def by_poisson(state, data, keys, sampled):
        rate = size / population
        rows, mask = sampling.poisson(
            sampled, 0, population=population, rate=rate, capacity=capacity
        )
        batch = jax.tree.map(lambda x: x[rows], data)
        if method.noise == "recentred":
            return batch, mask
        total = summed(state.params, batch, mask).sum
        if method.noise == "gaussian":
            tx = transforms.gaussian_noise(run.sigma * CLIP_NORM, keys[0])
            total = tx.update(total, tx.init(total))[0]
        mean = jax.tree.map(lambda x: x / size, total)
        return geodp(keys[1], mean, CLIP_NORM / size) if method.noise == "geodp" else mean

    def tested(state, update, data, sample_key, noise_key):
        rows, mask = sampling.poisson(
            sample_key,
            0,
            population=population,
            rate=min(VALIDATION / population, 1.0),
            capacity=min(VALIDATION + 128, population),
        )
        batch = jax.tree.map(lambda x: x[rows], data)
        before = state.test._replace(noise=transforms.NoiseState(noise_key, state.test.noise.step))
        return _test(run, noise_key).update(
            update,
            before,
            state.params,
            validation_losses=lambda params: jax.vmap(lambda e: loss(params, e))(batch),
            validation_mask=mask,
        )

    @jax.jit
    def step(state, data, key, number, numbers):
        rate, radius = numbers
        sampled, first, second, third, fourth = jax.random.split(jax.random.fold_in(key, number), 5)
        anchor = state.anchor
        if method.importance:
            mean = by_importance(state, data, (first, second), sampled)
        else:
            mean = by_poisson(state, data, (first, second), sampled)
        if method.noise == "recentred":
            mean, anchor = recentred(state, *mean, first, radius)
        update, test = jax.tree.map(lambda g: -rate * g, mean), state.test
        if method.selective:
            update, test = tested(state, update, data, third, fourth)
        params = jax.tree.map(jnp.add, state.params, update)
        return state._replace(params=params, anchor=anchor, test=test)

    return step


def _refreshed(loss, method: Method, state: State, data, key) -> State:
    """The norms of all clipped gradients, and their private sum: what importance sampling pays."""
    fn = clipped_grad(loss, CLIP_NORM, clipping=method.strategy)
    found = jax.jit(lambda params, data: fn(params, data).norms)(state.params, data)
    factors = method.strategy.factors(jnp.square(found)[None], jnp.float32(CLIP_NORM))[0]
    norms = found * factors
    estimate = transforms.importance_normaliser(norms, CLIP_NORM, NORMALISER_NOISE, key)
    # Three deviations up: an estimate below the true sum would only raise the rate.
    normaliser = estimate + 3.0 * NORMALISER_NOISE * CLIP_NORM
    return state._replace(norms=norms, normaliser=normaliser)
