"""Constants published with private convex solvers, for reference."""

from __future__ import annotations

import math

from dpjax.accounting import Adjacency

__all__ = ["amp_constants", "kifer_noise_std"]


def kifer_noise_std(
    *,
    gradient_bound: float,
    epsilon: float,
    delta: float,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> float:
    """`ζ√(8 ln(2/δ) + 4ε)/ε`, the published tilt (Kifer et al. 2012), ζ doubled for replace-one.

    The published constant is that of one record added or removed; replacing one moves the gradient
    by 2ζ. The quadratic term must be at least 2c/ε.

    Example:
        >>> from experiments.published_constants import kifer_noise_std
        >>> round(kifer_noise_std(gradient_bound=1.0, epsilon=1.0, delta=1e-8), 6)
        12.526397
    """
    zeta = gradient_bound * (2.0 if Adjacency(adjacency) is Adjacency.REPLACE_ONE else 1.0)
    return zeta * math.sqrt(8.0 * math.log(2.0 / delta) + 4.0 * epsilon) / epsilon


def amp_constants(
    *,
    n: int,
    gradient_bound: float,
    smoothness: float,
    epsilon: float,
    delta: float,
    rank: int = 2,
    gradient_tolerance: float | None = None,
    tilt_share: float = 0.9,
    output_share: float = 0.01,
) -> tuple[float, float, float]:
    """(Λ, σ₁, σ₂) of approximate minima perturbation as published (Iyengar et al. 2019, Alg. 1).

    ε₂ = output_share·ε, ε₁ = ε − ε₂, ε₃ = tilt_share·ε₁; Λ = rank·c/(ε₁ − ε₃) on the sum objective;
    σ₁ = (2R/n)(1 + √(2 ln(1/δ₁)))/ε₃ on the average; σ₂ = (nγ/Λ)(1 + √(2 ln(1/δ₂)))/ε₂. The
    published σ₂ counts the error of one data set's solver; both may err, so that the solver here
    hides twice that.

    Example:
        >>> from experiments.published_constants import amp_constants
        >>> [round(c, 6) for c in amp_constants(n=36176, gradient_bound=1.0, smoothness=0.25,
        ...                                     epsilon=1.0, delta=1e-8)]
        [5.050505, 0.000439, 0.004262]
    """
    gamma = n**-2.0 if gradient_tolerance is None else gradient_tolerance
    epsilon_2, delta_2 = output_share * epsilon, output_share * delta
    epsilon_1, delta_1 = epsilon - epsilon_2, delta - delta_2
    epsilon_3 = tilt_share * epsilon_1
    ridge = rank * smoothness / (epsilon_1 - epsilon_3)
    tilt = 2.0 * gradient_bound / n * (1.0 + math.sqrt(2.0 * math.log(1.0 / delta_1))) / epsilon_3
    output = n * gamma / ridge * (1.0 + math.sqrt(2.0 * math.log(1.0 / delta_2))) / epsilon_2
    return ridge, tilt, output
