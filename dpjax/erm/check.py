"""The checks that solvers and problems share."""

from __future__ import annotations

import math

import numpy as np

from dpjax._numerics.checks import CLIP_NORMS, scalar
from dpjax._numerics.scope import is_traced


def positive(name: str, value) -> None:
    """Refuse a concrete value that is not positive and finite."""
    if not is_traced(value) and not (np.all(np.asarray(value) > 0) and np.all(np.isfinite(value))):
        raise ValueError(f"{name} must be positive and finite, got {value}")


def clip_norm(value) -> None:
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


def step_size_within(step_size, limit: float, condition: str) -> None:
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
    bound = problem.gradient_bound
    if not math.isfinite(bound):
        raise ValueError(f"gradient_bound must be finite, got {bound}; give the problem a radius")


def one_score(problem, name: str) -> None:
    """Refuse a problem with several scores a record."""
    if problem.loss.outputs != 1:
        raise ValueError(
            f"the loss must have one score a record for {name}, got {problem.loss.outputs} "
            "classes; train one_vs_rest"
        )


def class_numbers(name: str, numbers, classes: int) -> None:
    """Refuse concrete class numbers outside 0 … classes − 1."""
    if is_traced(numbers) or not numbers.size:
        return
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"{name} must lie in [0, {classes - 1}] for classes={classes}, got {low} to {high}"
        )
