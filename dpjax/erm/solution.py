"""What every solver returns, and the checks they share."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpjax._numerics.checks import CLIP_NORMS, scalar
from dpjax.erm._features import is_traced

__all__ = ["Solution"]


class Solution(NamedTuple):
    """The outcome of a solver.

    Fields:
        params: the parameters to release.
        mechanism: what producing them costs, to be priced by `acc.epsilon(solution.mechanism, …)`;
            None for a solver without privacy.
        history: diagnostics of the run, named by the solver's docstring, which also says whether
            the mechanism's price covers them. Release nothing else.

    Example:
        >>> Solution(params=[0.0], mechanism=None, history=None).params
        [0.0]
    """

    params: Any
    mechanism: Any
    history: Any


def start(problem, init: Array | None) -> Array:
    """The initial parameters: the origin unless given."""
    if init is None:
        return problem.zeros()
    init = jnp.asarray(init, problem.dtype)
    if init.shape != problem.shape:
        raise ValueError(f"init must have shape {problem.shape}, got {init.shape}")
    return init


def as_steps(step_size, steps: int, dtype) -> Array:
    """Step sizes [steps] from a number or a schedule of that length."""
    sizes = jnp.asarray(step_size, dtype)
    if sizes.ndim > 1 or (sizes.ndim == 1 and sizes.shape != (steps,)):
        raise ValueError(
            f"step_size must be a number or of shape ({steps},), one a step, got {sizes.shape}"
        )
    return jnp.broadcast_to(sizes, (steps,))


def positive(name: str, value) -> None:
    """Refuse a concrete value that is not positive and finite."""
    if not is_traced(value) and not (np.all(np.asarray(value) > 0) and np.all(np.isfinite(value))):
        raise ValueError(f"{name} must be positive and finite, got {value}")


def clip_bound(value) -> None:
    """Refuse a clip norm that is not one number whose square float32 holds."""
    scalar("clip_norm", value, CLIP_NORMS)


def nonnegative(name: str, value) -> None:
    """Refuse a concrete value that is negative, infinite or NaN."""
    if not is_traced(value) and not (np.all(np.asarray(value) >= 0) and np.all(np.isfinite(value))):
        raise ValueError(f"{name} must be at least 0 and finite, got {value}")


def count(name: str, value, low: int = 1, high: int | None = None, what: str = "records") -> None:
    """Refuse anything that is not an integer in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < low or (high is not None and value > high):
        allowed = f"at least {low}" if high is None else f"between {low} and the {high} {what}"
        raise ValueError(f"{name} must be {allowed}, got {value}")


def within(step_size, limit: float, condition: str) -> None:
    """Refuse a concrete step size above `limit`, naming the condition of the proof that fails."""
    positive("step_size", step_size)
    if not is_traced(step_size):
        largest = float(np.max(np.asarray(step_size)))
        if largest > limit * (1 + 1e-6):
            raise ValueError(f"step_size must obey {condition} = {limit:.6g}, got {largest}")


def strongly_convex(problem, name: str) -> None:
    """Refuse a problem without strong convexity where the proof needs it."""
    if not problem.strong_convexity > 0:
        raise ValueError(f"l2 must be positive for {name}, got {problem.strong_convexity}")


def bounded_gradient(problem) -> None:
    """Refuse a problem whose per-record gradient has no bound."""
    if not math.isfinite(problem.gradient_bound):
        raise ValueError(
            f"gradient_bound must be finite, got {problem.gradient_bound}; "
            "give the problem a radius"
        )


def scalar_scores(problem, name: str) -> None:
    """Refuse a problem with several scores a record."""
    if problem.loss.outputs != 1:
        raise ValueError(
            f"the loss must have one score a record for {name}, got {problem.loss.outputs} "
            "classes; train one_vs_rest"
        )


def split(key: Array, number: int = 2) -> tuple[Array, ...]:
    """Independent keys from one, typed or legacy."""
    return tuple(jax.random.split(key, number))
