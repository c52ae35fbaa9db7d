"""Minimising a convex problem to a gradient tolerance, in float64 wherever that can be had."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpjax._numerics.scope import enable_x64
from dpjax.erm import _features
from dpjax.erm.baselines import minimise_lbfgs
from dpjax.erm.problems import Problem

_NEWTON_DIMENSION = 512  # above this a dense Hessian costs more than L-BFGS does
_HALVINGS = 40


class Minimum(NamedTuple):
    """A point and the norm of the gradient there."""

    params: Array
    gradient_norm: Float[Array, ""]


def in_float64(run: Callable, problem: Problem, *args):
    """`run(problem, *args)` with the data in float64, unless a trace is under way.

    The norm of a float32 gradient cannot be trusted below 1e-7, and the stopping rules here need
    less. Inside a user's own trace float64 cannot be entered any more, and the caller's type stays.
    """
    if jnp.result_type(float) == jnp.float64 or _features.is_traced(problem, *args):
        return run(problem, *args)
    with enable_x64(), jax.numpy_dtype_promotion("standard"):
        double = dataclasses.replace(
            problem,
            features=_features.to_dtype(problem.features, jnp.float64),
            labels=problem.labels.astype(jnp.float64)
            if jnp.issubdtype(problem.labels.dtype, jnp.floating)
            else problem.labels,
            norms=problem.norms.astype(jnp.float64),
        )
        out = jax.tree.map(np.asarray, run(double, *args))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, problem.dtype), out)


@functools.partial(jax.jit, static_argnames="max_steps")
def minimise(
    problem: Problem, linear: Array, extra_l2, tolerance, *, max_steps: int = 500
) -> Minimum:
    """argmin F(w) + ⟨linear, w⟩ + (extra_l2/2)‖w‖², to a gradient of norm at most `tolerance`.

    Newton's method with a line search for one score a record and few parameters, else L-BFGS. It
    may fail to get there: the caller must look at the norm it returns.
    """
    extra_l2 = jnp.asarray(extra_l2, problem.dtype)
    tolerance = jnp.asarray(tolerance, problem.dtype)

    def objective(params):
        penalty = 0.5 * extra_l2 * jnp.sum(jnp.square(params))
        return problem.objective(params) + jnp.sum(linear * params) + penalty

    def gradient(params):
        return problem.gradient(params) + linear + extra_l2 * params

    dense = not _features.is_sparse(problem.features)
    if dense and problem.loss.outputs == 1 and problem.dimension <= _NEWTON_DIMENSION:
        params = _newton(problem, objective, gradient, extra_l2, tolerance, max_steps)
    else:
        params = minimise_lbfgs(objective, gradient, problem.zeros(), tolerance, 4 * max_steps)[0]
    return Minimum(params, jnp.linalg.norm(gradient(params).ravel()))


def _newton(problem, objective, gradient, extra_l2, tolerance, max_steps):
    identity = jnp.eye(problem.dimension, dtype=problem.dtype)

    def hessian(params):
        curvature = problem.loss.curvature(problem.features @ params, problem.labels)
        scaled = problem.features * curvature[:, None]
        return scaled.T @ problem.features / problem.n + (problem.l2 + extra_l2) * identity

    def more(state):
        _, slope, t, moving = state
        return (jnp.linalg.norm(slope) > tolerance) & (t < max_steps) & moving

    def step(state):
        params, slope, t, _ = state
        factor = jax.scipy.linalg.cho_factor(hessian(params))
        direction = -jax.scipy.linalg.cho_solve(factor, slope)
        value, descent = objective(params), jnp.sum(slope * direction)
        size_of_slope = jnp.linalg.norm(slope)
        # Next to the minimum the objective is flat to rounding, and the gradient decides. Further
        # away it must not: where few rows have curvature, steps go over the minimum and back.
        flat = -descent <= 1e3 * jnp.finfo(problem.dtype).eps * (1 + jnp.abs(value))

        def too_long(search):
            size, tries = search
            trial = params + size * direction
            enough = objective(trial) <= value + 1e-4 * size * descent
            flatter = flat & (jnp.linalg.norm(gradient(trial)) < 0.9 * size_of_slope)
            return ~(enough | flatter) & (tries < _HALVINGS)

        first = (jnp.ones((), problem.dtype), jnp.zeros((), jnp.int32))
        size, tries = jax.lax.while_loop(too_long, lambda s: (0.5 * s[0], s[1] + 1), first)
        params = params + size * direction
        return params, gradient(params), t + 1, tries < _HALVINGS

    start = problem.zeros()
    state = (start, gradient(start), jnp.zeros((), jnp.int32), jnp.asarray(True))
    return jax.lax.while_loop(more, step, state)[0]
