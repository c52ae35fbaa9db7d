"""Output perturbation of gradient descent (Zhang et al. 2017) and of SGD (Wu et al. 2017)."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpjax import accounting as acc
from dpjax._numerics.normal import normal
from dpjax.erm import _cyclic
from dpjax.erm.problems import Problem
from dpjax.erm.randomized_sgd import OutputHistory
from dpjax.erm.sensitivity import descent_sensitivity, scheduled_sensitivities
from dpjax.erm.solution import (
    Solution,
    bounded_gradient,
    count,
    nonnegative,
    start,
    strongly_convex,
    within,
)
from dpjax.erm.solver import Budget, private_solver

__all__ = ["output_perturbed_gd", "output_perturbed_sgd"]


def _constants(problem):
    return {
        "gradient_diameter": problem.gradient_diameter,
        "strong_convexity": problem.strong_convexity,
        "smoothness": problem.smoothness,
    }


def _gd_mechanism(problem, noise, *, steps, step_size, **_):
    move = descent_sensitivity(problem.n, steps, step_size, **_constants(problem))
    return acc.RandomizedSensitivity(move[..., None], np.ones(1), noise)


@private_solver(
    noise="noise_std",
    mechanism=_gd_mechanism,
    adjacency=acc.Adjacency.REPLACE_ONE,
)
def output_perturbed_gd(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    steps: int,
    step_size,
    init: Array | None = None,
) -> Solution:
    """Gradient descent with noise on the result (Zhang et al. 2017), at its tight sensitivity.

    `Δ = (ηS/n)(1 − ρ^T)/(1 − ρ)`, S = 2R, which is at most 2R/(nμ) for η ≤ 2/(L + μ); released:
    w_T + N(0, noise_std² I).

    Args:
        steps: T.
        step_size: a constant η ≤ 2/L, where gradient descent does not expand.
        noise_std: standard deviation of the noise per coordinate.
        init: initial parameters, chosen without looking at the data.

    Raises:
        ValueError: if η > 2/L, or the loss has no gradient bound.

    Guarantee:
        A Gaussian mechanism, replace-one, conditional on what the problem enforces.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 50, [1, 0] * 50, l2=0.1)
        >>> solution = output_perturbed_gd(problem, jax.random.key(0), steps=20, step_size=4.0,
        ...                                noise_std=0.5)
        >>> bool(solution.mechanism.sensitivities[0] <= 2 / (100 * 0.1))
        True
    """
    count("steps", steps)
    within(step_size, 2.0 / problem.smoothness, "step_size <= 2/L")
    bounded_gradient(problem)
    make = functools.partial(_gd_mechanism, problem, steps=steps, step_size=step_size)
    noise = budget.resolve(make)
    mechanism = make(noise)
    params = _descend(problem, key, start(problem, init), step_size, noise, steps)
    return Solution(params, mechanism, OutputHistory(noise, mechanism.sensitivities))


@functools.partial(jax.jit, static_argnames="steps")
def _descend(problem, key, params, step_size, noise, steps):
    size = jnp.asarray(step_size, problem.dtype)

    def step(_, params):
        return problem.project(params - size * problem.gradient(params))

    params = jax.lax.fori_loop(0, steps, step, params)
    return params + jnp.asarray(noise, problem.dtype) * normal(key, params.shape, problem.dtype)


def _schedule(problem, schedule, step_size, passes, batch_size, exponent):
    batches = len(_cyclic.batch_sizes(problem.n, batch_size))
    times = np.arange(1.0, passes * batches + 1.0)
    beta = problem.smoothness
    offset = float(problem.n) ** exponent
    if schedule == "constant":
        return jnp.broadcast_to(jnp.asarray(step_size), times.shape)
    if schedule == "decreasing":
        return 2.0 / (beta * (times + offset))
    if schedule == "sqrt":
        return 2.0 / (beta * (np.sqrt(times) + offset))
    return np.minimum(1.0 / beta, 1.0 / (problem.strong_convexity * times))


def _sgd_mechanism(
    problem, noise, *, passes, batch_size, schedule="constant", step_size=None, exponent=0.5, **_
):
    sizes = _cyclic.batch_sizes(problem.n, batch_size)
    steps = _schedule(problem, schedule, step_size, passes, batch_size, exponent)
    moves = scheduled_sensitivities(sizes, steps, **_constants(problem))
    return acc.RandomizedSensitivity(moves.max(axis=-1, keepdims=True), np.ones(1), noise)


@private_solver(
    noise="noise_std",
    mechanism=_sgd_mechanism,
    copies_data=True,
    adjacency=acc.Adjacency.REPLACE_ONE,
)
def output_perturbed_sgd(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    passes: int,
    batch_size: int,
    schedule: str = "constant",
    step_size=None,
    exponent: float = 0.5,
    init: Array | None = None,
) -> Solution:
    """Permutation-based SGD with noise on the result: bolt-on privacy (Wu et al. 2017).

    Step t uses η = `step_size` ("constant", η ≤ 2/β), 2/(β(t + n^c)) ("decreasing"),
    2/(β(√t + n^c)) ("sqrt"), or min(1/β, 1/(γt)) ("strongly_convex", γ = l2). The sensitivity is
    the recurrence for the worst position, never above the paper's closed forms
    (`sensitivity.bolton_sensitivity`) where those apply, and right for a short last batch too.

    Args:
        passes: k.
        batch_size: b ≤ n.
        schedule, step_size, exponent: see above; exponent is c.
        noise_std: standard deviation of the noise per coordinate.
        init: initial parameters, chosen without looking at the data.

    Raises:
        ValueError: if a condition fails: η > 2/β, l2 = 0 for "strongly_convex", b > n.

    Guarantee:
        A Gaussian mechanism, replace-one, whatever the permutation; conditional on what the problem
        enforces.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 50, [1, 0] * 50, l2=0.1)
        >>> solution = output_perturbed_sgd(problem, jax.random.key(0), passes=3, batch_size=10,
        ...                                 schedule="strongly_convex", noise_std=0.5)
        >>> bool(solution.mechanism.sensitivities[0] <= 2 / (0.1 * 100) * (1 + 1e-9))
        True
    """
    count("passes", passes)
    count("batch_size", batch_size, high=problem.n)
    nonnegative("exponent", exponent)
    bounded_gradient(problem)
    if schedule not in ("constant", "decreasing", "sqrt", "strongly_convex"):
        raise ValueError(
            f"schedule must be constant, decreasing, sqrt or strongly_convex, got {schedule!r}"
        )
    if schedule == "strongly_convex":
        strongly_convex(problem, 'schedule="strongly_convex"')
    if (schedule == "constant") == (step_size is None):
        raise ValueError(
            "step_size must come with the constant schedule, and with no other, got "
            f"step_size={step_size} and schedule={schedule!r}"
        )
    if step_size is not None:
        within(step_size, 2.0 / problem.smoothness, "step_size <= 2/beta")
    chosen = {
        "passes": passes,
        "batch_size": batch_size,
        "schedule": schedule,
        "step_size": step_size,
        "exponent": exponent,
    }
    make = functools.partial(_sgd_mechanism, problem, **chosen)
    noise = budget.resolve(make)
    mechanism = make(noise)
    sizes = _schedule(problem, schedule, step_size, passes, batch_size, exponent)
    sizes = jnp.asarray(sizes, problem.dtype)
    params = _permuted(problem, key, start(problem, init), sizes, noise, batch_size)
    return Solution(params, mechanism, OutputHistory(noise, mechanism.sensitivities))


@functools.partial(jax.jit, static_argnames="batch_size")
def _permuted(problem, key, params, sizes, noise, batch_size):
    noise_key, order_key = jax.random.split(key)
    data = _cyclic.arrange(problem, order_key, batch_size)
    per_pass = sizes.reshape(-1, len(_cyclic.batch_sizes(problem.n, batch_size)))

    def one_pass(params, sizes):
        def step(params, carry, batch, weights, length, position):
            gradient = _cyclic.batch_gradient(batch, params, weights, length)
            return problem.project(params - sizes[position] * gradient), carry

        return _cyclic.epoch(data, problem.n, batch_size, params, step, jnp.zeros(()))[0], None

    params = jax.lax.scan(one_pass, params, per_pass)[0]
    return params + jnp.asarray(noise, params.dtype) * normal(noise_key, params.shape, params.dtype)
