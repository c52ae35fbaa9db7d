"""Noisy gradient descent whose intermediate iterates stay hidden: only the last one is released."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dpjax import accounting as acc
from dpjax._numerics.normal import normal
from dpjax.erm import _cyclic
from dpjax.erm.problems import Problem
from dpjax.erm.solution import (
    Solution,
    bounded_gradient,
    clip_bound,
    count,
    scalar_scores,
    split,
    start,
    within,
)
from dpjax.erm.solver import Budget, private_solver

__all__ = ["HiddenHistory", "noisy_cyclic_gd", "noisy_gd"]


class HiddenHistory(NamedTuple):
    """All that a hidden-state solver may tell: its noise. Iterates and losses stay inside.

    Fields:
        noise_std: Langevin scale σ; a step's noise has standard deviation √(2η)σ.

    Example:
        >>> HiddenHistory(noise_std=0.1).noise_std
        0.1
    """

    noise_std: Array


def _move(problem, clip_norm) -> float:
    """Diameter of the set of one record's (clipped) gradients."""
    if clip_norm is None:
        return problem.gradient_diameter
    return 2.0 * min(float(clip_norm), problem.gradient_bound)


def _constants(problem):
    return {
        "strong_convexity": problem.strong_convexity,
        "smoothness": problem.smoothness,
        "diameter": 2.0 * problem.radius,
    }


def _noisy_gd_mechanism(problem, noise, *, steps, step_size, clip_norm=None, **_):
    move = _move(problem, clip_norm) / problem.n
    return acc.NoisyGradientDescent(steps, step_size, noise, move, **_constants(problem))


def _noisy_cyclic_mechanism(problem, noise, *, epochs, batches, step_size, clip_norm=None, **_):
    move = _move(problem, clip_norm) / (problem.n // batches)
    return acc.NoisyCyclicDescent(
        epochs * batches, step_size, noise, move, batches=batches, **_constants(problem)
    )


@private_solver(
    noise="noise_std",
    mechanism=_noisy_gd_mechanism,
    adjacency=acc.Adjacency.REPLACE_ONE,
)
def noisy_gd(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    steps: int,
    step_size,
    clip_norm: float | None = None,
    init: Array | None = None,
) -> Solution:
    """Noisy gradient descent, last iterate only (chourasia2021, Algorithm 1).

    `θ ← Π(θ − η∇F(θ) + √(2η)σZ)`, θ₀ ~ Π(N(0, (2σ²/λ)I)) (the origin if λ = l2 = 0).

    Args:
        steps: K.
        step_size: a constant η < 2/β.
        clip_norm: bound on a record's gradient below `problem.gradient_bound`; for one score a
            record clipping keeps the loss convex and β-smooth, because the regulariser stays
            outside.
        noise_std: σ.
        init: initial parameters, instead of the theorem's draw; must not depend on the data.

    Raises:
        ValueError: if η ≥ 2/β, the gradient has no bound, or a softmax loss is clipped.

    Guarantee:
        NoisyGradientDescent, priced by the better of hidden-state and composition bounds;
        conditional on convexity, β-smoothness (enforced by the problem) and on nothing but `params`
        leaving. The gradient sensitivity is the replace-one one, which also covers add/remove.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 500, [1, 0] * 500, l2=0.1)
        >>> solution = noisy_gd(problem, jax.random.key(0), steps=200, step_size=1.0,
        ...                     noise_std=0.01)
        >>> more = noisy_gd(problem, jax.random.key(0), steps=20_000, step_size=1.0, noise_std=0.01)
        >>> price = [acc.epsilon(s.mechanism, delta=1e-5, adjacency="replace-one")
        ...          for s in (solution, more)]
        >>> bool(price[1] < 1.01 * price[0])
        True
    """
    count("steps", steps)
    _checks(problem, step_size, clip_norm)
    make = functools.partial(
        _noisy_gd_mechanism, problem, steps=steps, step_size=step_size, clip_norm=clip_norm
    )
    noise = budget.resolve(make)
    first = None if init is None else start(problem, init)
    params = _descend(problem, key, first, step_size, noise, steps, clip_norm)
    return Solution(params, make(noise), HiddenHistory(noise))


@private_solver(
    noise="noise_std",
    mechanism=_noisy_cyclic_mechanism,
    copies_data=True,
    adjacency=acc.Adjacency.REPLACE_ONE,
)
def noisy_cyclic_gd(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    epochs: int,
    batches: int,
    step_size,
    clip_norm: float | None = None,
    init: Array | None = None,
) -> Solution:
    """Noisy gradient descent over batches in cyclic order, shuffled once, last iterate only.

    The same `batches` disjoint batches of ⌊n/batches⌋ records in every epoch; the remainder, chosen
    by the permutation, is left out. Start and noise as in `noisy_gd`.

    Args:
        epochs: passes over the data.
        batches: in an epoch, at most n.
        step_size, clip_norm, init: as in `noisy_gd`.
        noise_std: σ.

    Raises:
        ValueError: as `noisy_gd`.

    Guarantee:
        NoisyCyclicDescent, the position-aware bound averaged over the secret position, far below
        composition; conditional as `noisy_gd`, and the key must stay secret. A record is in batch j
        with probability at most 1/batches.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 500, [1, 0] * 500, l2=0.1)
        >>> solution = noisy_cyclic_gd(problem, jax.random.key(0), epochs=20, batches=10,
        ...                            step_size=1.0, noise_std=0.05)
        >>> solution.mechanism.steps
        200
    """
    count("epochs", epochs)
    count("batches", batches, high=problem.n)
    _checks(problem, step_size, clip_norm)
    make = functools.partial(
        _noisy_cyclic_mechanism,
        problem,
        epochs=epochs,
        batches=batches,
        step_size=step_size,
        clip_norm=clip_norm,
    )
    noise = budget.resolve(make)
    first = None if init is None else start(problem, init)
    params = _cycle(problem, key, first, step_size, noise, epochs, batches, clip_norm)
    return Solution(params, make(noise), HiddenHistory(noise))


def _checks(problem, step_size, clip_norm) -> None:
    within(step_size, 2.0 / problem.smoothness * (1 - 1e-5), "step_size < 2/beta")
    if clip_norm is None:
        bounded_gradient(problem)
    else:
        clip_bound(clip_norm)
        scalar_scores(problem, "clipping in a hidden-state solver")


def _initial(problem, key, init, noise):
    if init is not None:
        return problem.project(init)
    if problem.strong_convexity == 0:
        return problem.zeros()
    std = jnp.asarray(noise, problem.dtype) * (2.0 / problem.strong_convexity) ** 0.5
    return problem.project(std * normal(key, problem.shape, problem.dtype))


@functools.partial(jax.jit, static_argnames=("steps", "clip_norm"))
def _descend(problem, key, init, step_size, noise, steps, clip_norm):
    init_key, noise_key = split(key)
    dtype = problem.dtype
    size = jnp.asarray(step_size, dtype)
    std = jnp.sqrt(2.0 * size) * jnp.asarray(noise, dtype)

    def step(t, params):
        total = problem.gradient_sum(params, clip_norm=clip_norm)
        gradient = total / problem.n + problem.l2 * params
        shake = std * normal(jax.random.fold_in(noise_key, t), problem.shape, dtype)
        return problem.project(params - size * gradient + shake)

    return jax.lax.fori_loop(0, steps, step, _initial(problem, init_key, init, noise))


@functools.partial(jax.jit, static_argnames=("epochs", "batches", "clip_norm"))
def _cycle(problem, key, init, step_size, noise, epochs, batches, clip_norm):
    init_key, order_key, noise_key = split(key, 3)
    dtype = problem.dtype
    length = problem.n // batches
    order = jax.random.permutation(order_key, problem.n)[: length * batches]
    data = problem.batch(order)
    size = jnp.asarray(step_size, dtype)
    std = jnp.sqrt(2.0 * size) * jnp.asarray(noise, dtype)

    def one_epoch(s, params):
        def step(params, carry, batch, weights, length, position):
            total = batch.gradient_sum(params, clip_norm=clip_norm)
            gradient = total / length + problem.l2 * params
            shake_key = jax.random.fold_in(noise_key, s * batches + position)
            shake = std * normal(shake_key, problem.shape, dtype)
            return problem.project(params - size * gradient + shake), carry

        return _cyclic.epoch(data, length * batches, length, params, step, jnp.zeros(()))[0]

    return jax.lax.fori_loop(0, epochs, one_epoch, _initial(problem, init_key, init, noise))
