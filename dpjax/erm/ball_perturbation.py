"""Perturbed gradient descent with noise from a ball (tholeti2021): for saddles, not for privacy."""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dpjax import accounting as acc
from dpjax import sampling
from dpjax._numerics.normal import normal
from dpjax._numerics.scope import is_traced
from dpjax.accounting.geometric.ball import ball_displacement
from dpjax.erm import check
from dpjax.erm.descent import descend, initial_params, step_sizes
from dpjax.erm.solver import REPLACE_ONE, Budget, Solution, private_solver


class BallHistory(NamedTuple):
    """The run of `perturbed_gd`; the mechanism's price covers all of it.

    Fields:
        noise_radius: of the ball.
        iterates: [steps, …] after every step, or None.

    Example:
        >>> BallHistory(noise_radius=1.0, iterates=None).noise_radius
        1.0
    """

    noise_radius: Any
    iterates: Array | None


def _mechanism(problem, noise, *, steps, batch_size=1, clip_norm=1.0, **_):
    # Replacing one record moves the batch average by 2C/b. A ball of radius 0 hides nothing: any
    # displacement of two radii or more is total variation 1.
    displacement = 2.0 * clip_norm / batch_size
    displacement = displacement / noise if is_traced(noise) or noise > 0 else 1e6
    ball = acc.UniformBall(displacement=displacement, dimension=problem.dimension)
    return acc.Repeated(acc.FixedBatchSampled(ball, batch_size, problem.n), steps=steps)


@private_solver(
    "noise_radius", _mechanism, adjacency=REPLACE_ONE, traced=("step_size", "clip_norm")
)
def perturbed_gd(
    problem, key: Array, budget: Budget, *, steps: int, step_size, batch_size: int = 1,
    clip_norm=1.0, keep_iterates: bool = False, init: Array | None = None,
) -> Solution:  # fmt: skip
    """Stochastic gradient descent plus noise uniform in a ball (tholeti2021, Algorithm 1).

    `w ← Π(w − η[(1/b)Σ_{i∈B} clip(∇ℓᵢ) + l2·w + ξ])`, ξ uniform in the ball of radius r, B a
    uniform batch drawn afresh (b = 1: one record, as published).

    Args:
        problem: convex, or any made by `differentiable_problem` (a strict saddle, say).
        steps, step_size, batch_size, clip_norm: T, η, b, C.
        noise_radius: r ≥ 0. Of a budget only δ matters here: ε buys nothing.
        keep_iterates: record every iterate in the history.
        init: initial parameters, chosen without looking at the data.

    Raises:
        ValueError: if batch_size > n or an argument is out of range.

    Guarantee:
        (0, δ) with δ = 1 − (1 − (b/n)·TV)^T, TV = I_{Δ²/4}(1/2, (d+1)/2), Δ = 2C/(br), replace-one.
        A guarantee of δ ≥ 1/n is void in practice (publishing one record at random has it): the
        solver then warns. Use it to escape saddles and to study the bound, and Gaussian noise for
        privacy.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 50, [1, 0] * 50, l2=0.1)
        >>> solution = perturbed_gd(problem, jax.random.key(0), steps=20, step_size=0.1,
        ...                         noise_radius=300.0)
        >>> 0 < acc.delta(solution.mechanism, epsilon=0.0, adjacency="replace-one") < 0.01
        True
    """
    if budget.noise is None and budget.epsilon is not None and budget.delta is not None:
        check.positive("epsilon", budget.epsilon, allow_zero=True)
        radius = _radius_for(problem, steps, batch_size, clip_norm, budget.delta)
        budget = budget._replace(noise=radius, epsilon=None)
    noise, mechanism = budget.resolve()
    _warn_if_void(mechanism, problem.n, noise)
    first, sizes = initial_params(problem, init), step_sizes(step_size, steps, problem.dtype)
    params, iterates = _descend(
        problem, key, first, sizes, noise, clip_norm, batch_size, keep_iterates
    )
    return Solution(params, mechanism, BallHistory(noise, iterates))


def _radius_for(problem, steps, batch_size, clip_norm, delta) -> float:
    """The radius at which 1 − (1 − (b/n)·TV)^T = δ: a closed form, since ε plays no part."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    # Total variation composes as 1 − (1 − (b/n)·TV)^T; solve for TV, then for the displacement.
    per_step = -math.expm1(math.log1p(-delta) / steps)
    variation = min(per_step * problem.n / batch_size, 1.0)  # sampling dilutes TV by b/n
    reach = float(ball_displacement(variation * (1 - 1e-9), problem.dimension))
    return 2.0 * clip_norm / batch_size / reach * (1 + 1e-9)


def _warn_if_void(mechanism, n, noise) -> None:
    if is_traced(noise, mechanism) or noise == 0:
        return
    lost = acc.delta(mechanism, epsilon=0.0, adjacency=REPLACE_ONE)
    if lost >= 1.0 / n:
        warnings.warn(
            f"ball noise gives (0, {lost:.3g}) here, and delta >= 1/n = {1.0 / n:.3g} protects "
            "nobody; raise noise_radius, or use Gaussian noise",
            stacklevel=5,  # of the call, through what wraps a solver
        )


@functools.partial(jax.jit, static_argnames=("batch_size", "keep_iterates"))
def _descend(problem, key, params, sizes, noise, clip_norm, batch_size, keep_iterates):
    batch_key, direction_key, size_key = jax.random.split(key, 3)
    dtype, shape = problem.dtype, problem.shape
    radius, clip_norm = jnp.asarray(noise, dtype), jnp.asarray(clip_norm, dtype)

    def ball(t):
        direction = normal(jax.random.fold_in(direction_key, t), shape, dtype)
        uniform = jax.random.uniform(jax.random.fold_in(size_key, t), (), dtype)
        # A share r^d of the ball lies within radius r.
        length = radius * uniform ** (1.0 / problem.dimension)
        return length * direction / jnp.linalg.norm(direction.ravel())

    def gradient(params, t):
        if batch_size == 1:
            indices = jax.random.randint(jax.random.fold_in(batch_key, t), (1,), 0, problem.n)
        else:
            drawn = {"population": problem.n, "batch_size": batch_size}
            indices = sampling.fixed_batch(batch_key, t, **drawn).indices
        batch = problem.batch(indices)
        average = batch.gradient_sum(params, clip_norm=clip_norm) / batch_size
        # The noise before the regulariser, on whose grid the average must not be rounded.
        return (average + ball(t)) + problem.l2 * params

    return descend(problem, params, sizes, gradient, keep_iterates=keep_iterates)
