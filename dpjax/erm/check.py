"""The checks that solvers and problems share."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dpjax._numerics.checks import CLIP_NORMS, Range, one_number, scalar
from dpjax._numerics.namespace import Values
from dpjax._numerics.scope import is_traced

if TYPE_CHECKING:
    import jax

    from dpjax.erm.problems import Objective, Problem


def positive_values(name: str, value: object, allow_zero: bool = False) -> None:
    """Refuse a concrete value that is not finite and positive (or 0, if allowed)."""
    if value is None or isinstance(value, str):
        scalar(name, value)
    if is_traced(value):
        return
    above = np.asarray(value) >= 0 if allow_zero else np.asarray(value) > 0
    if not (np.all(above) and np.all(np.isfinite(np.asarray(value)))):
        least = "at least 0" if allow_zero else "positive"
        raise ValueError(f"{name} must be {least} and finite, got {value}")


def count(
    name: str, value: object, low: int = 1, high: int | None = None, what: str = "records"
) -> None:
    """Refuse anything that is not an integer in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < low or (high is not None and value > high):
        allowed = f"at least {low}" if high is None else f"between {low} and the {high} {what}"
        raise ValueError(f"{name} must be {allowed}, got {value}")


def read_epsilon(epsilon: object) -> float | None:
    """ε of a budget as one number above 0; None, without a budget, stays None."""
    limits = Range(0.0, open_low=True)
    return None if epsilon is None else one_number("epsilon", epsilon, limits)


def read_delta(delta: object) -> float:
    """δ of a budget as one number strictly between 0 and 1."""
    return one_number("delta", delta, Range(0.0, 1.0, open_low=True, open_high=True))


def _check_positive_number(name: str, value: Values) -> None:
    scalar(name, value)
    positive_values(name, value)


# What a solver's hyperparameter of that name must be.
_RULES: dict[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(("steps", "epochs", "passes", "average_every", "max_steps"), count),
    **dict.fromkeys(("planned_steps", "max_iterations"), count),
    **dict.fromkeys(("step_size", "tolerance", "gradient_tolerance"), positive_values),
    **dict.fromkeys(("max_step_size", "loss_bound", "growth"), _check_positive_number),
    "rate": functools.partial(scalar, allowed=Range(0.0, 1.0, open_low=True)),
    "candidates": functools.partial(count, low=2),
    # One number, whose square float32 holds.
    "clip_norm": functools.partial(scalar, allowed=CLIP_NORMS),
}


def settings(problem: Objective, **given: Any) -> None:
    """Refuse hyperparameters of a solver that are not what their names promise."""
    for name, value in given.items():
        if name in ("batch_size", "batches"):
            count(name, value, high=problem.n)
        elif name in _RULES:
            _RULES[name](name, value)


def step_size_within(step_size: Values, limit: float, condition: str) -> None:
    """Refuse a concrete step size above `limit`, naming the condition of the proof that fails."""
    if not is_traced(step_size):
        largest = float(np.max(np.asarray(step_size)))
        if largest > limit * (1 + 1e-6):
            raise ValueError(f"step_size must obey {condition} = {limit:.6g}, got {largest}")


def bounded_gradient(problem: Objective) -> None:
    """Refuse a problem whose per-record gradient has no bound."""
    bound = problem.gradient_bound
    if not math.isfinite(bound):
        raise ValueError(f"gradient_bound must be finite, got {bound}; give the problem a radius")


def one_score(problem: Problem, name: str) -> None:
    """Refuse a problem with several scores a record."""
    if problem.loss.outputs != 1:
        raise ValueError(
            f"the loss must have one score a record for {name}, got {problem.loss.outputs} "
            "classes; train one_vs_rest"
        )


def class_numbers(name: str, numbers: jax.Array, classes: int) -> None:
    """Refuse concrete class numbers outside 0 … classes − 1."""
    if is_traced(numbers) or not numbers.size:
        return
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"{name} must lie in [0, {classes - 1}] for classes={classes}, got {low} to {high}"
        )
