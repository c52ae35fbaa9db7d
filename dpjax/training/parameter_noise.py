"""How much of a run's noise is left in the parameters that it releases."""

from __future__ import annotations

import numpy as np
from jaxtyping import ArrayLike

from dpjax._numerics import checks
from dpjax._numerics.checks import BELOW_ONE, Range, one_number

_NOT_NEGATIVE = Range(0.0)


def parameter_noise_std(
    noise_stds: ArrayLike,
    learning_rate: float,
    *,
    momentum: float = 0.0,
    averaged: int = 1,
) -> float:
    """The standard deviation of the noise in each released parameter, at most, of gradient descent:

        η·√(Σₛ σₛ²·cₛ²),  cₛ = (1/A)·Σₜ (1 − mᵗ⁻ˢ⁺¹)/(1 − m) over t > T − A, t ≥ s,

    of noise σₛ in the mean gradient of step s = 1, …, T, rate η, momentum m, and the mean of the
    last A iterates released. Noise that entered at step s has moved an iterate t by
    η·(1 + m + … + mᵗ⁻ˢ) times itself where the loss is linear in the parameters, and there the
    value is exact. Where the loss curves upwards, descent takes noise back.

    Args:
        noise_stds: [steps] of each step's mean gradient, in every coordinate: `Plan.noise_std`.
        learning_rate: η, of `optax.sgd(learning_rate, momentum)`.
        momentum: m, in [0, 1).
        averaged: A: of how many of the last iterates the mean is released; 1: the last alone.

    Returns:
        The standard deviation, also of ⟨a, parameters⟩ for every vector a of norm 1.

    Raises:
        ValueError: no steps, a negative or infinite number, or more averaged than steps.

    Guarantee:
        Exact for a loss that is linear in the parameters. An upper bound for a convex quadratic
        loss of which descent at this rate is stable, η·λ ≤ 2(1 + m) for every eigenvalue λ of its
        second derivative: with r₁r₂ = m the roots of z² − (1 + m − ηλ)z + m, noise moves an
        iterate k steps later by hₖ = Σᵢ r₁ⁱr₂ᵏ⁻ⁱ along that eigenvector, |hₖ| is at most
        Σᵢ mⁱ, what it is at λ = 0 (of complex roots by the means of mⁱ and mᵏ⁻ⁱ; of real ones since
        cosh grows), and so is every mean of them. Of other losses it is no bound, but what it would
        be were the loss quadratic between the path and itself without noise. It is of noise alone,
        not of which records happened to be in the data or were drawn for a step.

    Example:
        >>> round(parameter_noise_std(np.full(100, 0.02), 0.5), 6)  # .5 · .02 · √100
        0.1
        >>> parameter_noise_std(np.full(100, 0.02), 0.5, averaged=50) < 0.1
        True
    """
    stds = np.asarray(noise_stds, np.float64)
    if stds.ndim != 1 or stds.size == 0 or not np.all(np.isfinite(stds) & (stds >= 0)):
        raise ValueError(
            f"noise_stds must be finite numbers of at least 0, one a step, got {noise_stds!r}"
        )
    rate = one_number("learning_rate", learning_rate, _NOT_NEGATIVE)
    m = one_number("momentum", momentum, BELOW_ONE)
    count, steps = checks.whole("averaged", averaged, most=stds.size), stds.size
    # How far noise has moved an iterate k steps later, and the sums of these from k = 0 on.
    moved = -np.expm1(np.arange(1, steps + 1) * np.log(m)) / (1 - m) if m else np.ones(steps)
    sums = np.concatenate([[0.0], np.cumsum(moved)])
    left = np.arange(steps, 0, -1)  # iterates from a step's own on
    weights = (sums[left] - sums[np.maximum(left - count, 0)]) / count
    # Numbers up to 1 are squared: squares of noise near the ends of the floats would not be finite.
    largest = float(np.max(stds * weights))
    if largest == 0:
        return 0.0
    return float(rate * largest * np.sqrt(np.sum((stds * weights / largest) ** 2)))
