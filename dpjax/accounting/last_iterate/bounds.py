"""μ² of the Gaussian pair that dominates the last iterate of noisy gradient descent."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array

from dpjax._numerics.arrays import namespace
from dpjax.accounting.last_iterate.shifted_interpolation import (
    bounded_descent_mu2,
    contraction_gap,
    cyclic_mu2,
    descent_mu2,
)


def units(run: Any) -> tuple[Array, Array, Array]:
    """Displacement of an update, its noise, and their ratio."""
    xp: Any = namespace(run)
    shift = run.step_size * run.gradient_sensitivity
    noise = xp.sqrt(2.0 * run.step_size) * run.noise_std
    quiet = noise <= 0
    ratio = xp.where(quiet, xp.inf, shift / xp.where(quiet, 1.0, noise))
    return shift, noise, xp.where(shift > 0, ratio, 0.0)


def bounds2(run: Any) -> tuple[Array, Array, Array]:
    """μ² by each argument, for one setting or broadcast fields."""
    xp: Any = namespace(run)
    shift, noise, ratio = units(run)
    steps = xp.asarray(run.steps)
    gap = contraction_gap(run.step_size, run.strong_convexity, run.smoothness)
    moves = (ratio > 0) & (steps > 0)
    finite = xp.where(xp.isfinite(ratio) & moves, ratio, 1.0)
    known = moves & xp.isfinite(ratio)

    def settle(value: Array) -> Array:
        return xp.where(known, value, xp.where(moves, xp.inf, 0.0))

    composition = steps * xp.square(finite) * (1 + 1e-15)
    convex = xp.where(gap > 0, descent_mu2(gap, steps, finite), xp.inf)
    expands = (run.step_size * run.smoothness > 2) | (run.strong_convexity > run.smoothness)
    bounded = bounded_descent_mu2(
        gap,
        steps,
        xp.where(known, shift, 1.0),
        xp.where(known, noise, 1.0),
        xp.asarray(run.diameter),
    )
    bounded = xp.where(expands, xp.inf, bounded)
    return settle(composition), settle(convex), settle(bounded)


def least2(run: Any) -> Array:
    xp: Any = namespace(run)
    composition, convex, bounded = bounds2(run)
    return xp.minimum(composition, xp.minimum(convex, bounded))


def position2(run: Any, since_last: Array) -> Array:
    """μ² of the record whose last use is r = since_last + 1 updates before the end."""
    xp: Any = namespace(run, since_last)
    _, _, ratio = units(run)
    gap = contraction_gap(run.step_size, run.strong_convexity, run.smoothness)
    steps, batches = xp.asarray(run.steps), xp.asarray(run.batches)
    uses = xp.maximum(xp.ceil((steps - since_last) / batches), 0.0)
    finite = xp.where(xp.isfinite(ratio), ratio, 1.0)
    value = cyclic_mu2(gap, since_last + 1.0, uses, batches, finite)
    return xp.where(xp.isfinite(ratio) | (uses == 0), value, xp.inf)
