"""Roots of falling functions, rounded to the side where the function is not positive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpjax._numerics.arrays import namespace


def falling_root(
    function: Callable[[Any], tuple[Any, Any]],
    start: Any,
    low: Any,
    high: Any,
    *,
    tolerance: Any = 0.0,
    rounds: int = 100,
) -> Any:
    """A point just above the root, by Newton's method within a bracket.

    The steps aim at a value of −tolerance/2; one that leaves the bracket (and every eighth, against
    slow progress) is a bisection instead. On a concave function the steps arrive from above, each
    squaring the error. Settings that are done stay as they are: a sweep's answer is a single
    setting's.

    Args:
        function: from x to (value, derivative); where the value is NaN it counts as positive.
        start: where to begin, in [low, high].
        low, high: the value is positive at `low` and not positive at `high`; neither is verified.
        tolerance: a value in [−tolerance, 0] is close enough; otherwise the bracket closes to
            neighbouring floats.
        rounds: at most so many evaluations.

    Returns:
        The least x that was seen with a value that is not positive, or `high`.
    """
    xp: Any = namespace(start, low, high)
    start, low, high = xp.broadcast_arrays(*(xp.asarray(v) for v in (start, low, high)))
    half = 0.5 * xp.asarray(tolerance)

    def step(state: tuple) -> tuple:
        x, low, high, done, count = state
        value, slope = function(x)
        safe = value <= 0
        high = xp.where(safe, xp.minimum(x, high), high)
        low = xp.where(safe, low, xp.maximum(x, low))
        newton = x - (value + half) / slope
        inside = (newton > low) & (newton < high) & (count % 8 != 7)
        middle = low + (high - low) / 2
        done = done | (safe & (value >= -2 * half)) | ~((low < middle) & (middle < high))
        return xp.where(done, x, xp.where(inside, newton, middle)), low, high, done, count + 1

    def more(state: tuple) -> Any:
        return xp.any(~state[3]) & (state[4] < rounds)

    first = (start, low, high, xp.zeros(start.shape, bool), 0)
    return xp.while_loop(more, step, first)[2]
