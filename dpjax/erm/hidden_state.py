"""Noisy gradient descent whose intermediate iterates stay hidden: only the last one is released."""

from __future__ import annotations

import functools
from typing import NamedTuple, TypedDict

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dpjax import accounting as acc
from dpjax._numerics.namespace import Values
from dpjax._numerics.normal import normal
from dpjax._numerics.typing import Number, PRNGKey
from dpjax.erm import check
from dpjax.erm.descent import cyclic_gradient, descend, descent_noise, initial_params
from dpjax.erm.problems import Problem
from dpjax.erm.solver import REPLACE_ONE, Budget, Solution, private_solver


class HiddenHistory(NamedTuple):
    """All that a hidden-state solver may tell: its noise. Iterates and losses stay inside.

    Fields:
        noise_std: Langevin scale σ; a step's noise has standard deviation √(2η)σ.

    Example:
        >>> HiddenHistory(noise_std=0.1).noise_std
        0.1
    """

    noise_std: Values


class _Constants(TypedDict):
    """What a step of hidden descent contracts by, and how far apart its iterates may be."""

    strong_convexity: float
    smoothness: float
    diameter: float


def _constants(problem: Problem) -> _Constants:
    return {
        "strong_convexity": problem.strong_convexity,
        "smoothness": problem.smoothness,
        "diameter": 2.0 * problem.radius,
    }


def _gradient_diameter(problem: Problem, clip_norm: float | None) -> float:
    """How far apart two records' gradients are at most, which lie in a ball of the bound, or C."""
    bound = problem.gradient_bound
    return 2.0 * (bound if clip_norm is None else min(float(clip_norm), bound))


def _gd_mechanism(
    problem: Problem,
    noise: Number,
    *,
    steps: int,
    step_size: Number,
    clip_norm: float | None = None,
    **_: object,
) -> acc.Mechanism:
    move = _gradient_diameter(problem, clip_norm) / problem.n
    return acc.NoisyGradientDescent(steps, step_size, noise, move, **_constants(problem))


def _cyclic_gd_mechanism(
    problem: Problem,
    noise: Number,
    *,
    epochs: int,
    batches: int,
    step_size: Number,
    clip_norm: float | None = None,
    **_: object,
) -> acc.Mechanism:
    move = _gradient_diameter(problem, clip_norm) / (problem.n // batches)
    return acc.NoisyCyclicDescent(
        epochs * batches, step_size, noise, move, batches=batches, **_constants(problem)
    )


@private_solver("noise_std", _gd_mechanism, adjacency=REPLACE_ONE)
def noisy_gd(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    steps: int,
    step_size: Number,
    clip_norm: float | None = None,
    init: Array | None = None,
) -> Solution[acc.Mechanism]:
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
    return _release_last(problem, key, budget, steps, None, step_size, clip_norm, init)


@private_solver("noise_std", _cyclic_gd_mechanism, adjacency=REPLACE_ONE, copies_data=True)
def noisy_cyclic_gd(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    epochs: int,
    batches: int,
    step_size: Number,
    clip_norm: float | None = None,
    init: Array | None = None,
) -> Solution[acc.Mechanism]:
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
    steps = epochs * batches
    return _release_last(problem, key, budget, steps, batches, step_size, clip_norm, init)


def _release_last(
    problem: Problem,
    key: PRNGKey,
    budget: Budget,
    steps: int,
    batches: int | None,
    step_size: Number,
    clip_norm: float | None,
    init: Array | None,
) -> Solution[acc.Mechanism]:
    """The run of `noisy_cyclic_gd`, or without batches of `noisy_gd`."""
    check.scalar("step_size", step_size)
    # Below 2/β a step of a convex function does not expand, which both proofs rest on.
    check.step_size_within(step_size, 2.0 / problem.smoothness * (1 - 1e-5), "step_size < 2/beta")
    if clip_norm is None:
        check.bounded_gradient(problem)
    else:
        check.one_score(problem, "clipping in a hidden-state solver")
    noise, mechanism = budget.resolve()
    init = None if init is None else initial_params(problem, init)
    params = _descend_hidden(problem, key, init, step_size, noise, steps, batches, clip_norm)
    return Solution(params, mechanism, HiddenHistory(noise))


@functools.partial(jax.jit, static_argnames=("steps", "batches", "clip_norm"))
def _descend_hidden(
    problem: Problem,
    key: PRNGKey,
    init: Array | None,
    step_size: Number,
    noise: Number,
    steps: int,
    batches: int | None,
    clip_norm: float | None,
) -> Array:
    """The last iterate of noisy descent over all records, or over disjoint batches in turn."""
    init_key, *order_key, noise_key = jax.random.split(key, 2 if batches is None else 3)
    n, dtype = problem.n, problem.dtype
    length = n // (batches or 1)
    if batches is not None:
        # The same disjoint batches in every epoch; whoever is left over is so by the permutation.
        n = length * batches
        problem = problem.batch(jax.random.permutation(order_key[0], problem.n)[:n])
    size, noise = jnp.asarray(step_size, dtype), jnp.asarray(noise, dtype)
    # Langevin units: a step of size η adds N(0, 2ησ²I).
    shake = descent_noise(noise_key, problem, jnp.sqrt(2.0 * size) * noise)
    if init is None:
        init = problem.zeros()
        if problem.strong_convexity > 0:  # the theorem's start, N(0, (2σ²/λ)I)
            std = noise * (2.0 / problem.strong_convexity) ** 0.5
            init = std * normal(init_key, problem.shape, dtype)
    gradient = cyclic_gradient(problem, n, length, clip_norm)
    sizes = jnp.full((steps,), size)
    return descend(problem, problem.project(init), sizes, gradient, noise=shake)[0]
