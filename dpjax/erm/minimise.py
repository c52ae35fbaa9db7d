"""Minimisers without privacy: the limits of private solvers, and what some of them perturb."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from dpjax._numerics.namespace import Values
from dpjax._numerics.scope import enable_x64, is_traced
from dpjax._numerics.typing import PRNGKey
from dpjax.erm import _features, check
from dpjax.erm.descent import descend, initial_params, step_sizes
from dpjax.erm.losses import Softmax
from dpjax.erm.problems import Problem
from dpjax.erm.solver import Solution

_NEWTON_DIMENSION = 512  # above this a dense Hessian costs more than L-BFGS does
_HALVINGS = 40


def gradient_descent(
    problem: Problem, *, steps: int, step_size: Values, init: Array | None = None
) -> Solution[None]:
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
    check.settings(problem, steps=steps, step_size=step_size)
    sizes = step_sizes(step_size, steps, problem.dtype)
    return Solution(_take_steps(problem, None, initial_params(problem, init), sizes), None, None)


def sgd(
    problem: Problem,
    key: Array,
    *,
    steps: int,
    step_size: Values,
    batch_size: int,
    init: Array | None = None,
) -> Solution[None]:
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
    check.settings(problem, steps=steps, batch_size=batch_size, step_size=step_size)
    sizes = step_sizes(step_size, steps, problem.dtype)
    params = _take_steps(problem, key, initial_params(problem, init), sizes, batch_size)
    return Solution(params, None, None)


@functools.partial(jax.jit, static_argnames="batch_size")
def _take_steps(
    problem: Problem,
    key: PRNGKey | None,
    params: Array,
    sizes: Array,
    batch_size: int | None = None,
) -> Array:
    """Descent along full gradients, or along those of batches drawn with replacement."""

    def gradient(params: Array, t: Array):
        if key is None or batch_size is None:
            return problem.gradient(params)
        # With replacement: a record may be drawn twice.
        indices = jax.random.randint(jax.random.fold_in(key, t), (batch_size,), 0, problem.n)
        return problem.batch(indices).gradient(params)

    return descend(problem, params, sizes, gradient)[0]


class LbfgsHistory(NamedTuple):
    """How L-BFGS ended: the gradient's norm and the number of steps taken.

    Example:
        >>> LbfgsHistory(gradient_norm=1e-7, steps=12).steps
        12
    """

    gradient_norm: Float[Array, ""]
    steps: Int[Array, ""]


def lbfgs(
    problem: Problem, *, tolerance: Values = 1e-6, max_steps: int = 500, init: Array | None = None
) -> Solution[None]:
    """The minimiser of F by L-BFGS with a zoom line search (optax), without privacy or projection.

    Stops at ‖∇F‖ ≤ tolerance or after max_steps; `history` says which.

    Example:
        >>> import dpjax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]], [1, 0], l2=0.1)
        >>> solution = lbfgs(problem)
        >>> bool(solution.history.gradient_norm <= 1e-6)
        True
    """
    check.settings(problem, max_steps=max_steps, tolerance=tolerance)
    return _lbfgs(problem, initial_params(problem, init), tolerance, max_steps)


@functools.partial(jax.jit, static_argnames="max_steps")
def _lbfgs(problem: Problem, params: Array, tolerance: Values, max_steps: int) -> Solution[None]:
    params, norm, steps = minimise_lbfgs(
        problem.objective, problem.gradient, params, tolerance, max_steps
    )
    return Solution(params, None, LbfgsHistory(norm, steps))


class _SearchState(NamedTuple):
    """A point of L-BFGS, with the norm of the gradient there."""

    params: Array
    inner: optax.OptState
    norm: Array
    steps: Array


def minimise_lbfgs(
    objective: Callable[[Array], Array],
    gradient: Callable[[Array], Array],
    params: Array,
    tolerance: Values,
    max_steps: int,
) -> tuple[Array, Array, Array]:
    """(minimiser, gradient norm, steps) of a smooth convex function; traceable."""

    # The line search differentiates the objective; hand it the GLM's own gradient.
    @jax.custom_vjp
    def value(params: Array):
        return objective(params)

    value.defvjp(lambda p: (objective(p), gradient(p)), lambda g, t: (t * g,))

    # Third-party code need not obey strict promotion.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        solver = optax.lbfgs()
        value_and_grad = optax.value_and_grad_from_state(value)

        def step(state: _SearchState):
            params, inner, _, steps = state
            current, slope = value_and_grad(params, state=inner)
            updates, inner = solver.update(
                slope, inner, params, value=current, grad=slope, value_fn=value
            )
            params = cast(Array, optax.apply_updates(params, updates))
            norm = jnp.linalg.norm(gradient(params).ravel())
            return _SearchState(params, inner, norm, steps + 1)

        first = jnp.linalg.norm(gradient(params).ravel())
        state = _SearchState(params, solver.init(params), first, jnp.asarray(0, jnp.int32))
        last = jax.lax.while_loop(
            lambda s: (s.norm > tolerance) & (s.steps < max_steps), step, state
        )
    return last.params, last.norm, last.steps


def in_float64(run: Callable, problem: Problem, *args: PyTree):
    """`run(problem, *args)` with the data in float64, unless a trace is under way."""
    # The norm of a float32 gradient cannot be trusted below 1e-7, and the stopping rules need less.
    # Inside a user's own trace float64 cannot be entered any more, and the caller's type stays.
    if jnp.result_type(float) == jnp.float64 or is_traced(problem, *args):
        return run(problem, *args)
    with enable_x64(), jax.numpy_dtype_promotion("standard"):

        def widen(leaf: Array):  # labels and columns may be integers
            return leaf.astype(float) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

        out = jax.tree.map(np.asarray, run(jax.tree.map(widen, problem), *args))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, problem.dtype), out)


@functools.partial(jax.jit, static_argnames="max_steps")
def minimise(
    problem: Problem, linear: Array, extra_l2: Values, tolerance: Values, *, max_steps: int = 500
) -> tuple[Array, Float[Array, ""]]:
    """argmin F(w) + ⟨linear, w⟩ + (extra_l2/2)‖w‖², and the norm of its gradient there."""
    # Newton's method with a line search for one score a record and few parameters, else L-BFGS. It
    # may fail to get to `tolerance`: the caller must look at the norm it returns.
    extra_l2 = jnp.asarray(extra_l2, problem.dtype)
    tolerance = jnp.asarray(tolerance, problem.dtype)

    def objective(params: Array):
        penalty = 0.5 * extra_l2 * jnp.sum(jnp.square(params))
        return problem.objective(params) + jnp.sum(linear * params) + penalty

    def gradient(params: Array):
        return problem.gradient(params) + linear + extra_l2 * params

    dense = not _features.is_sparse(problem.features)
    if dense and problem.loss.outputs == 1 and problem.dimension <= _NEWTON_DIMENSION:
        params = _newton(problem, objective, gradient, extra_l2, tolerance, max_steps)
    else:
        params = minimise_lbfgs(objective, gradient, problem.zeros(), tolerance, 4 * max_steps)[0]
    return params, jnp.linalg.norm(gradient(params).ravel())


class _NewtonState(NamedTuple):
    """A point of Newton's method, with the gradient there."""

    params: Array
    slope: Array
    steps: Array
    moving: Array  # whether the last search found a step


def _newton(
    problem: Problem,
    objective: Callable[[Array], Array],
    gradient: Callable[[Array], Array],
    extra_l2: Values,
    tolerance: Values,
    max_steps: int,
) -> Array:
    """Newton's method with backtracking, from the origin, for one score a record."""
    loss = problem.loss
    assert not isinstance(loss, Softmax), "for one score a record"
    identity = jnp.eye(problem.dimension, dtype=problem.dtype)

    def hessian(params: Array):
        curvature = loss.curvature(problem.features @ params, problem.labels)
        scaled = problem.features * curvature[:, None]  # ∇²F = Xᵀ diag(ℓ'') X/n + μI
        return scaled.T @ problem.features / problem.n + (problem.l2 + extra_l2) * identity

    def is_unfinished(state: _NewtonState):
        is_steep = jnp.linalg.norm(state.slope) > tolerance
        return is_steep & (state.steps < max_steps) & state.moving

    def step(state: _NewtonState):
        params, slope, steps, _ = state
        factor = jax.scipy.linalg.cho_factor(hessian(params))
        direction = -jax.scipy.linalg.cho_solve(factor, slope)
        value, descent = objective(params), jnp.sum(slope * direction)
        size_of_slope = jnp.linalg.norm(slope)
        # Next to the minimum the objective is flat to rounding, and the gradient decides. Further
        # away it must not: where few rows have curvature, steps go over the minimum and back.
        flat = -descent <= 1e3 * jnp.finfo(problem.dtype).eps * (1 + jnp.abs(value))

        def too_long(search: tuple[Array, Array]):
            size, tries = search
            trial = params + size * direction
            # Armijo's rule: a share of the decrease that the slope promises.
            enough = objective(trial) <= value + 1e-4 * size * descent
            flatter = flat & (jnp.linalg.norm(gradient(trial)) < 0.9 * size_of_slope)
            return ~(enough | flatter) & (tries < _HALVINGS)

        first = (jnp.ones((), problem.dtype), jnp.zeros((), jnp.int32))
        size, tries = jax.lax.while_loop(too_long, lambda s: (0.5 * s[0], s[1] + 1), first)
        params = params + size * direction
        return _NewtonState(params, gradient(params), steps + 1, tries < _HALVINGS)

    start = problem.zeros()
    none = jnp.zeros((), jnp.int32)
    state = _NewtonState(start, gradient(start), none, jnp.asarray(True))
    return jax.lax.while_loop(is_unfinished, step, state).params
