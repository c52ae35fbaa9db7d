"""Tight δ(ε) and ε(δ) of sampled Gaussian steps: the privacy profile as a contour integral.

For steps with losses L under P and K(z) = log E_P[e^{zL}], on any line Re z = c > 0,

    δ(ε) = (1/2πi) ∫ exp(ΣnK(z) − zε) / (z(z + 1)) dz.

A pair of distributions is its two log-densities (`pairs.pair`); all else is derived from them, once
for every pair. Every error has a bound that is added to the upper end and taken from the lower:

* over the sample space (`tilt`, `half`): the trapezoid rule on a line, Gauss's on a half-line, what
  is cut, and how fast the transform falls along the line;
* along the line (`line`): what the sum takes besides δ(ε), by Poisson summation, and what lies
  beyond its end;
* rounding: a multiple of the unit roundoff times the condition of every sum.

One line serves all ε (`interval`), where it goes is looked for (`saddle`), and one step needs none
(`single_step`). What the finest line cannot resolve is left to loss distributions.

References:
  Inversion of the two-sided Laplace transform of (1 − e^{ε−l})₊, which is e^{−zε}/(z(z+1)) at −z;
  Zhu, Dong, Wang 2022, Algorithm 1 (characteristic functions of dominating pairs); the error
  bounds were derived for dpjax.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Array, Float

from dpjax._numerics.arrays import namespace
from dpjax.accounting.contour import composition, interval
from dpjax.accounting.contour.composition import Composition as Composition
from dpjax.accounting.contour.composition import Steps as Steps
from dpjax.accounting.contour.interval import Bounds as Bounds

UNDERFLOW = 1e-300  # δ of a release is never 0, though it may be below the least float


def _bounds(
    question: str, run: Composition, given: Array, signs: tuple[int, ...], level: int | None
) -> tuple[Array, Array, Array, Array]:
    """Return both ends, and where nothing is released and where nothing can be said."""
    xp: Any = namespace(run, given)
    impossible = composition.impossible(run)
    run = composition.clean(run)
    idle = run.gaussian_mu2 + sum(xp.sum(g.count) for g in run.steps.values()) == 0
    kernel = composition.as_run(run)
    if level is None:
        lower, upper = interval.of_single_step(question, kernel, signs, given)
    else:
        lower, upper = interval.bounds(question, kernel, signs, given, level)
    return lower, upper, idle & ~impossible, impossible | xp.isnan(upper)


def _settle(lower: Array, upper: Array, nothing: Array, unknown: Array) -> Bounds:
    """0 where nothing is released, (0, ∞) where nothing can be said."""
    xp: Any = namespace(lower, upper, nothing, unknown)
    upper = xp.where(unknown, xp.inf, xp.where(nothing, 0.0, upper))
    none = nothing | unknown | xp.isnan(lower)
    return Bounds(xp.where(none, 0.0, xp.minimum(lower, upper)), upper)


def delta(
    run: Composition, epsilon: Float[Array, ""], signs: tuple[int, ...], level: int | None
) -> Bounds:
    """Certified bounds on δ(ε), the worse of the directions.

    Args:
        run: what is composed.
        epsilon: ε ≥ 0.
        signs: (1, −1) for add/remove, (1,) where all pairs are symmetric.
        level: how finely, see `interval.LEVELS`; None for a single step, without a line.

    Returns:
        `Bounds`; the upper end is at most the total variation distance. Float64 only.

    Example:
        >>> import numpy as np
        >>> from dpjax.accounting.contour import integral as contour
        >>> steps = contour.Steps(np.array([1.0]), np.array([0.01]), np.array([1e3]))
        >>> run = contour.Composition(np.float64(0.0), {"poisson": steps})
        >>> with np.errstate(all="ignore"):
        ...     bounds = contour.delta(run, np.float64(2.0), (1, -1), 0)
        >>> print(f"{bounds.upper:.6e}")
        2.665572e-06
    """
    xp: Any = namespace(run, epsilon, signs)
    most = xp.minimum(composition.total_variation(composition.clean(run)), 1.0)
    found = _bounds("delta", run, xp.clip(epsilon, 0.0, 1e6), signs, level)
    bounds, unknown = _settle(*found), found[3]
    # Beyond 1e6 the value there still bounds; below 0 we say 1.
    upper = xp.minimum(xp.maximum(bounds.upper, UNDERFLOW), most)
    upper = xp.where((epsilon >= 0) & ~unknown, upper, 1.0)
    return Bounds(xp.where(epsilon <= 1e6, xp.minimum(bounds.lower, upper), 0.0), upper)


def epsilon(
    run: Composition, delta: Float[Array, ""], signs: tuple[int, ...], level: int | None
) -> Bounds:
    """Certified bounds on ε(δ), the worse of the directions.

    Args:
        run: what is composed.
        delta: δ in (0, 1); below 1e-290 nothing is said.
        signs: (1, −1) for add/remove, (1,) where all pairs are symmetric.
        level: how finely, see `interval.LEVELS`; None for a single step, without a line.

    Returns:
        `Bounds`. Float64 only; jit and vmap. Derivatives are those of `derivative`.

    Example:
        >>> import numpy as np
        >>> from dpjax.accounting.contour import integral as contour
        >>> steps = contour.Steps(np.array([1.0]), np.array([0.01]), np.array([1e3]))
        >>> run = contour.Composition(np.float64(0.0), {"poisson": steps})
        >>> with np.errstate(all="ignore"):
        ...     bounds = contour.epsilon(run, np.float64(1e-5), (1, -1), 0)
        >>> print(f"{bounds.lower:.8f} {bounds.upper:.8f}")
        1.82823667 1.82823667
    """
    xp: Any = namespace(run, delta, signs)
    safe = xp.clip(delta, 1e-290, 1 - 1e-12)
    lower, upper, idle, unknown = _bounds("epsilon", run, safe, signs, level)
    impossible = composition.impossible(run)
    # δ(0) is at most the total variation distance: nothing to integrate where that is enough.
    enough = composition.total_variation(composition.clean(run)) <= delta
    free = (enough | idle | (delta >= 1)) & ~impossible
    return _settle(lower, upper, free, (unknown | ~(delta >= 1e-290)) & ~free)
