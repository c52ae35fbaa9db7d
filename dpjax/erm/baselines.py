"""Solvers without privacy: the limits that the private ones are measured against."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from dpjax.erm.problems import Problem
from dpjax.erm.solution import Solution, as_steps, count, positive, start

__all__ = ["LbfgsHistory", "gradient_descent", "lbfgs", "sgd"]


def gradient_descent(
    problem: Problem, *, steps: int, step_size, init: Array | None = None
) -> Solution:
    """w ← Π(w − η∇F(w)), without privacy; Π projects to the problem's ball.

    Args:
        steps: number of steps.
        step_size: a number, or one per step.
        init: initial parameters; the origin if not given.

    Returns:
        Solution with mechanism None and history None.

    Example:
        >>> import dpjax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]], [1, 0], l2=0.1)
        >>> params = gradient_descent(problem, steps=200, step_size=2.0).params
        >>> bool(jnp.linalg.norm(problem.gradient(params)) < 1e-5)
        True
    """
    count("steps", steps)
    positive("step_size", step_size)
    sizes = as_steps(step_size, steps, problem.dtype)
    return Solution(_gradient_descent(problem, start(problem, init), sizes), None, None)


@jax.jit
def _gradient_descent(problem: Problem, params: Array, sizes: Float[Array, " t"]) -> Array:
    def step(params, size):
        return problem.project(params - size * problem.gradient(params)), None

    return jax.lax.scan(step, params, sizes)[0]


def sgd(
    problem: Problem,
    key: Array,
    *,
    steps: int,
    step_size,
    batch_size: int,
    init: Array | None = None,
) -> Solution:
    """Mini-batch stochastic gradient descent, batches drawn with replacement, without privacy.

    Raises:
        ValueError: if batch_size exceeds the number of records.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]], [1, 0], l2=0.1)
        >>> solution = sgd(problem, jax.random.key(0), steps=300, step_size=0.5, batch_size=1)
        >>> bool(problem.accuracy(solution.params, [[1.0], [-1.0]], [1, 0]) == 1.0)
        True
    """
    count("steps", steps)
    count("batch_size", batch_size, high=problem.n)
    positive("step_size", step_size)
    sizes = as_steps(step_size, steps, problem.dtype)
    return Solution(_sgd(problem, key, start(problem, init), sizes, batch_size), None, None)


@functools.partial(jax.jit, static_argnames="batch_size")
def _sgd(problem: Problem, key, params, sizes, batch_size: int) -> Array:
    def step(params, inputs):
        t, size = inputs
        indices = jax.random.randint(jax.random.fold_in(key, t), (batch_size,), 0, problem.n)
        gradient = problem.batch(indices).gradient(params)
        return problem.project(params - size * gradient), None

    return jax.lax.scan(step, params, (jnp.arange(sizes.size), sizes))[0]


class LbfgsHistory(NamedTuple):
    """How L-BFGS ended: the gradient's norm and the number of steps taken.

    Example:
        >>> LbfgsHistory(gradient_norm=1e-7, steps=12).steps
        12
    """

    gradient_norm: Float[Array, ""]
    steps: Int[Array, ""]


def lbfgs(
    problem: Problem, *, tolerance=1e-6, max_steps: int = 500, init: Array | None = None
) -> Solution:
    """The minimiser of F by L-BFGS with a zoom line search (optax), without privacy or projection.

    Stops at ‖∇F‖ ≤ tolerance or after max_steps; `history` says which.

    Example:
        >>> import dpjax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]], [1, 0], l2=0.1)
        >>> solution = lbfgs(problem)
        >>> bool(solution.history.gradient_norm <= 1e-6)
        True
    """
    count("max_steps", max_steps)
    positive("tolerance", tolerance)
    return _lbfgs(problem, start(problem, init), tolerance, max_steps)


@functools.partial(jax.jit, static_argnames="max_steps")
def _lbfgs(problem: Problem, params: Array, tolerance, max_steps: int) -> Solution:
    params, norm, steps = minimise_lbfgs(
        problem.objective, problem.gradient, params, tolerance, max_steps
    )
    return Solution(params, None, LbfgsHistory(norm, steps))


def minimise_lbfgs(objective, gradient, params: Array, tolerance, max_steps: int):
    """(minimiser, gradient norm, steps) of a smooth convex function; traceable."""

    # The line search differentiates the objective; hand it the GLM's own gradient.
    @jax.custom_vjp
    def value(params):
        return objective(params)

    value.defvjp(lambda p: (objective(p), gradient(p)), lambda g, t: (t * g,))

    # Third-party code need not obey strict promotion.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        solver = optax.lbfgs()
        value_and_grad = optax.value_and_grad_from_state(value)

        def more(state):
            _, _, norm, t = state
            return (norm > tolerance) & (t < max_steps)

        def step(state):
            params, inner, _, t = state
            current, slope = value_and_grad(params, state=inner)
            updates, inner = solver.update(
                slope, inner, params, value=current, grad=slope, value_fn=value
            )
            params = optax.apply_updates(params, updates)
            return params, inner, jnp.linalg.norm(gradient(params).ravel()), t + 1

        first = jnp.linalg.norm(gradient(params).ravel())
        state = (params, solver.init(params), first, jnp.asarray(0, jnp.int32))
        params, _, norm, t = jax.lax.while_loop(more, step, state)
    return params, norm, t
