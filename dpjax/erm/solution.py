"""What every solver returns, and the checks and the budget handling they share."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpjax import accounting as acc
from dpjax.erm._features import is_traced
from dpjax.erm.problems import Problem

__all__ = ["Solution", "calibrate_noise", "mechanism_of"]


class Solution(NamedTuple):
    """The outcome of a solver.

    params: the parameters to release.
    mechanism: what producing them costs, to be priced by `acc.epsilon(solution.mechanism, …)`;
        None for a solver without privacy.
    history: diagnostics of the run, named by the solver's docstring, which also says whether the
        mechanism's price covers them. Release nothing else.

    >>> Solution(params=[0.0], mechanism=None, history=None).params
    [0.0]
    """

    params: Any
    mechanism: Any
    history: Any


class SolverSpec(NamedTuple):
    """What a sweep must know of a solver.

    noise: name of its noise argument. mechanism: (problem, noise, **hyperparameters) -> mechanism.
    adjacency: its default. broadcasts: whether `mechanism` takes an array for every hyperparameter.
    traced: hyperparameters that may vary within one compiled program. concrete: whether it wants
    float64, and so must not be traced. copies_data: whether every run permutes a copy of the data.
    """

    noise: str
    mechanism: Callable[..., Any]
    adjacency: Any
    broadcasts: bool
    traced: tuple[str, ...]
    concrete: bool
    copies_data: bool


_SPECS: dict[Callable, SolverSpec] = {}


def private_solver(
    *,
    noise: str,
    mechanism: Callable[..., Any],
    broadcasts: bool = False,
    traced: tuple[str, ...] = ("step_size",),
    concrete: bool = False,
    copies_data: bool = False,
):
    """Register a solver; see `SolverSpec`."""

    def register(solver):
        default = inspect.signature(solver).parameters["adjacency"].default
        _SPECS[solver] = SolverSpec(
            noise, mechanism, default, broadcasts, traced, concrete, copies_data
        )
        return solver

    return register


def spec_of(solver: Callable) -> SolverSpec:
    """The registered noise argument and mechanism of a private solver."""
    if solver not in _SPECS:
        names = ", ".join(sorted(f.__name__ for f in _SPECS))
        name = getattr(solver, "__name__", solver)
        raise ValueError(f"solver is {name}: it is not a private solver; those are {names}")
    return _SPECS[solver]


def mechanism_of(solver: Callable, problem: Problem, noise, **hyperparameters):
    """The mechanism that `solver` would report for this noise, without running it.

    >>> import dpjax
    >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]], [1, 0], l2=0.1)
    >>> mechanism_of(dpjax.erm.dp_gd, problem, 3.0, steps=4, step_size=1.0).steps
    4
    """
    return spec_of(solver).mechanism(problem, noise, **hyperparameters)


def calibrate_noise(
    solver: Callable, problem: Problem, *, epsilon, delta, adjacency=None, **hyperparameters
):
    """The smallest noise with which `solver` keeps the budget; default adjacency: the solver's.

    >>> import dpjax
    >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]], [1, 0], l2=0.1)
    >>> sigma = calibrate_noise(dpjax.erm.dp_gd, problem, epsilon=1.0, delta=1e-5, steps=4,
    ...                         step_size=1.0)
    >>> round(float(sigma), 2)
    7.46
    """
    spec = spec_of(solver)
    adjacency = spec.adjacency if adjacency is None else adjacency
    return acc.calibrate(
        lambda noise: spec.mechanism(problem, noise, adjacency=adjacency, **hyperparameters),
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
    )


def resolve_noise(name: str, noise, mechanism, epsilon, delta, adjacency):
    """The noise given, or the smallest that keeps the budget given: exactly one of the two."""
    if (noise is None) == (epsilon is None):
        raise ValueError(
            f"give either {name} or a budget (epsilon, delta), not "
            f"{'both' if noise is not None else 'neither'}"
        )
    if noise is not None:
        nonnegative(name, noise)
        return noise
    if delta is None:
        raise ValueError("delta is missing: a budget is epsilon together with delta")
    return acc.calibrate(mechanism, epsilon=epsilon, delta=delta, adjacency=adjacency)


def start(problem, init: Array | None) -> Array:
    """The initial parameters: the origin unless given."""
    if init is None:
        return problem.zeros()
    init = jnp.asarray(init, problem.dtype)
    if init.shape != problem.shape:
        raise ValueError(f"init has shape {init.shape}: the parameters have shape {problem.shape}")
    return init


def as_steps(step_size, steps: int, dtype) -> Array:
    """Step sizes [steps] from a number or a schedule of that length."""
    sizes = jnp.asarray(step_size, dtype)
    if sizes.ndim > 1 or (sizes.ndim == 1 and sizes.shape != (steps,)):
        raise ValueError(
            f"step_size has shape {sizes.shape}: give a number or one per step, ({steps},)"
        )
    return jnp.broadcast_to(sizes, (steps,))


def positive(name: str, value) -> None:
    """Refuse a concrete value that is not positive and finite."""
    if not is_traced(value) and not (np.all(np.asarray(value) > 0) and np.all(np.isfinite(value))):
        raise ValueError(f"{name} is {value}: it must be positive and finite")


def nonnegative(name: str, value) -> None:
    """Refuse a concrete value that is negative, infinite or NaN."""
    if not is_traced(value) and not (np.all(np.asarray(value) >= 0) and np.all(np.isfinite(value))):
        raise ValueError(f"{name} is {value}: it must be at least 0 and finite")


def count(name: str, value, low: int = 1, high: int | None = None, what: str = "records") -> None:
    """Refuse anything that is not an integer in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ValueError(f"{name} is {value!r}: it must be an integer")
    if value < low or (high is not None and value > high):
        allowed = f"at least {low}" if high is None else f"between {low} and the {high} {what}"
        raise ValueError(f"{name} is {value}: it must be {allowed}")


def within(step_size, limit: float, condition: str) -> None:
    """Refuse a concrete step size above `limit`, naming the condition of the proof that fails."""
    positive("step_size", step_size)
    if not is_traced(step_size):
        largest = float(np.max(np.asarray(step_size)))
        if largest > limit * (1 + 1e-6):
            raise ValueError(f"step_size is {largest}: the proof needs {condition} = {limit:.6g}")


def strongly_convex(problem, name: str) -> None:
    """Refuse a problem without strong convexity where the proof needs it."""
    if not problem.strong_convexity > 0:
        raise ValueError(f"l2 is {problem.strong_convexity}: {name} needs strong convexity, l2 > 0")


def bounded_gradient(problem) -> None:
    """Refuse a problem whose per-record gradient has no bound."""
    if not math.isfinite(problem.gradient_bound):
        raise ValueError(
            f"gradient_bound is {problem.gradient_bound}: the sensitivity needs a bounded "
            "gradient; give the problem a radius"
        )


def scalar_scores(problem, name: str) -> None:
    """Refuse a problem with several scores a record."""
    if problem.loss.outputs != 1:
        raise ValueError(
            f"{name} is proved for one score a record, not for {problem.loss.outputs} classes; "
            "train one_vs_rest"
        )


def split(key: Array, number: int = 2) -> tuple[Array, ...]:
    """Independent keys from one, typed or legacy."""
    return tuple(jax.random.split(key, number))
