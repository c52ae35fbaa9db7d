"""Excess-risk bounds of yu2020 and chourasia2021, with their constants.

Inequalities, not orders of magnitude, except where a name says `rate`. They are statements about
expectations under the assumptions listed; curvature and r₁ depend on private data, so that these
are tools to understand a run, not to tune one.
"""

from __future__ import annotations

import math

__all__ = [
    "dp_gd_convex_bound",
    "dp_gd_excess_risk",
    "dp_gd_theorem_bound",
    "dp_gd_theorem_noise_std",
    "dp_sgd_convex_bound",
    "dp_sgd_distance_bound",
    "dp_sgd_excess_risk",
    "dp_sgd_gradient_size",
    "noisy_gd_excess_risk",
    "noisy_gd_lower_rate",
    "noisy_gd_theorem_bound",
    "noisy_gd_theorem_settings",
    "utility_rates",
]


def dp_gd_theorem_noise_std(
    *, n: int, lipschitz: float, steps: int, epsilon: float, delta: float
) -> float:
    """σ = 2√2 L√(T ln(1/δ))/(nε), the noise on the average gradient in yu2020 Algorithm 1.

    Private for replace-one up to ε ≈ 8 (7.97 at δ = 1e-5), and 17 to 28 % more than needed there:
    it states the theorem; `dp_gd` calibrates exactly.

    Example:
        >>> std = dp_gd_theorem_noise_std(n=36176, lipschitz=1.0, steps=800, epsilon=1.0,
        ...                               delta=1e-9)
        >>> round(std, 9)
        0.010066965
    """
    return 2.0 * math.sqrt(2.0 * steps * math.log(1.0 / delta)) * lipschitz / (n * epsilon)


def dp_gd_excess_risk(
    *, step_size, steps, noise_std, dimension, curvature, smoothness, start_distance
) -> float:
    """(β/2)[(1 − ην)^T r₁² + pησ²/ν] ≥ E[F(x_{T+1}) − F*] for any σ, η ≤ 1/β (yu2020 Eq. 9).

    Example:
        >>> dp_gd_excess_risk(step_size=1.0, steps=1, noise_std=0.0, dimension=3, curvature=0.5,
        ...                   smoothness=1.0, start_distance=2.0)
        1.0
    """
    shrink = (1.0 - step_size * curvature) ** steps
    noise = dimension * step_size * noise_std**2 / curvature
    return 0.5 * smoothness * (shrink * start_distance**2 + noise)


def dp_gd_theorem_bound(
    *, n, dimension, lipschitz, smoothness, curvature, start_distance, epsilon, delta
) -> float:
    """yu2020 Theorem 1, ν > 0, T = 2 ln n/(ην): βr₁²/(2n²) + 8βpL² ln n ln(1/δ)/(ν²n²ε²).

    The paper drops the factor 2√2 of its own σ; here it is kept.

    Example:
        >>> bound = dp_gd_theorem_bound(n=1000, dimension=10, lipschitz=1.0, smoothness=0.25,
        ...                             curvature=0.1, start_distance=1.0, epsilon=1.0, delta=1e-5)
        >>> round(bound, 5)
        0.15906
    """
    start = smoothness * start_distance**2 / (2.0 * n**2)
    noise = 8.0 * smoothness * dimension * lipschitz**2 * math.log(n) * math.log(1.0 / delta)
    return start + noise / (curvature * n * epsilon) ** 2


def dp_gd_convex_bound(*, n, dimension, lipschitz, start_distance, epsilon, delta) -> float:
    """yu2020 Theorem 1, ν = 0, η = 1/β, T = nβε/√p, averaged iterate: (r₁²/2 + 8L² ln(1/δ))√p/(nε).

    Example:
        >>> round(dp_gd_convex_bound(n=1000, dimension=4, lipschitz=1.0, start_distance=1.0,
        ...                          epsilon=1.0, delta=1e-5), 5)
        0.18521
    """
    constant = 0.5 * start_distance**2 + 8.0 * lipschitz**2 * math.log(1.0 / delta)
    return constant * math.sqrt(dimension) / (n * epsilon)


def dp_sgd_distance_bound(*, step, dimension, lipschitz, noise_multiplier, curvature) -> float:
    """E‖x_t − x*‖² ≤ 2L²(1 + pσ²)/(tν²), η_t = 1/(νt), noise Lσ per coordinate (yu2020, Eq. 13).

    Example:
        >>> dp_sgd_distance_bound(step=10, dimension=4, lipschitz=1.0, noise_multiplier=0.5,
        ...                       curvature=1.0)
        0.4
    """
    spread = 1.0 + dimension * noise_multiplier**2
    return 2.0 * lipschitz**2 * spread / (step * curvature**2)


def dp_sgd_gradient_size(*, lipschitz, clip_norm, dimension, noise_multiplier, batch) -> float:
    """G ≥ √E‖g‖² of a step of `dp_sgd` that clips nothing: G² = L² + (C/b)²(b + pσ²).

    L bounds ‖∇F‖ and C a record's gradient; b is the expected size of a Poisson batch, whose sum
    over b has mean ∇F and variance at most C²/b. For yu2020's Algorithm 2, one record drawn
    uniformly, L²(1 + pσ²) takes its place.

    Example:
        >>> dp_sgd_gradient_size(lipschitz=1.0, clip_norm=1.0, dimension=4, noise_multiplier=5.0,
        ...                      batch=10.0)
        1.449137674618944
    """
    sampled = (clip_norm / batch) ** 2 * (batch + dimension * noise_multiplier**2)
    return math.sqrt(lipschitz**2 + sampled)


def dp_sgd_excess_risk(*, steps, gradient_size, curvature) -> float:
    """17G²(1 + ln T)/(νT) ≥ E[F(x_T) − F*] for η_t = 1/(νt) (yu2020 Theorem 2, ν > 0).

    Theorem 1 of Shamir and Zhang 2013, whose proof uses curvature only towards x*, in E‖x_t − x*‖²
    ≤ 2G²/(ν²t); there Definition 3's ν serves, if it holds along the path, its start included.

    Example:
        >>> round(dp_sgd_excess_risk(steps=10_000, gradient_size=1.5, curvature=0.1), 4)
        0.3905
    """
    return 17.0 * gradient_size**2 * (1.0 + math.log(steps)) / (curvature * steps)


def dp_sgd_convex_bound(*, steps, gradient_size, diameter) -> float:
    """2DG(2 + ln T)/√T ≥ E[F(x_T) − F*] for η_t = D/(G√t) (yu2020 Theorem 2, ν = 0).

    Theorem 2 of Shamir and Zhang 2013: the iterates are projected to a set of diameter D, which
    yu2020's Algorithm 2 leaves out.

    Example:
        >>> round(dp_sgd_convex_bound(steps=10_000, gradient_size=1.5, diameter=1.0), 4)
        0.3363
    """
    return 2.0 * diameter * gradient_size * (2.0 + math.log(steps)) / math.sqrt(steps)


def noisy_gd_theorem_settings(
    *, n, dimension, lipschitz, smoothness, strong_convexity, epsilon, delta
) -> tuple[float, float, int]:
    """(σ, η, K) of chourasia2021 Theorem 3, σ in Langevin units (`noisy_gd`'s noise_std).

    σ² = 8L²(ε + 2 ln(1/δ))/(λε²n²), η = λ/(2β²), K = (2β²/λ²) ln(n²ε²/(4 ln(1/δ) d)).

    Example:
        >>> noise_std, step_size, steps = noisy_gd_theorem_settings(
        ...     n=1000, dimension=5, lipschitz=1.0, smoothness=1.0, strong_convexity=0.5,
        ...     epsilon=1.0, delta=1e-5)
        >>> round(noise_std, 5), step_size, steps
        (0.01961, 0.25, 68)
    """
    spread = epsilon + 2.0 * math.log(1.0 / delta)
    variance = 8.0 * lipschitz**2 * spread / (strong_convexity * (epsilon * n) ** 2)
    inside = (n * epsilon) ** 2 / (4.0 * math.log(1.0 / delta) * dimension)
    if inside <= 1:
        raise ValueError(
            f"n^2 epsilon^2 / (4 ln(1/delta) d) must exceed 1, got {inside:.3g}: "
            "n is too small for this budget"
        )
    steps = math.ceil(2.0 * (smoothness / strong_convexity) ** 2 * math.log(inside))
    return math.sqrt(variance), strong_convexity / (2.0 * smoothness**2), steps


def noisy_gd_excess_risk(
    *, step_size, steps, noise_std, dimension, smoothness, strong_convexity, start_distance_squared
) -> float:
    """(β/2)[q^K r₀² + 2ησ²d/(1 − q)] ≥ E[F(θ_K) − F*], q = 1 − 2ηλ + η²β² < 1, minimiser inside C.

    Derived for dpjax: θ ↦ θ − η∇F(θ) shrinks squared distances by q, projection does not expand,
    independent noise adds 2ησ²d, and smoothness turns distance into risk. r₀² is E‖θ₀ − θ*‖².

    Example:
        >>> noisy_gd_excess_risk(step_size=0.5, steps=0, noise_std=0.0, dimension=1, smoothness=1.0,
        ...                      strong_convexity=1.0, start_distance_squared=2.0)
        1.0
    """
    q = 1.0 - 2.0 * step_size * strong_convexity + (step_size * smoothness) ** 2
    if not q < 1:
        raise ValueError(
            "step_size must be below 2*lambda/beta^2 = "
            f"{2.0 * strong_convexity / smoothness**2:.6g}, got {step_size}"
        )
    noise = 2.0 * step_size * noise_std**2 * dimension / (1.0 - q)
    return 0.5 * smoothness * (q**steps * start_distance_squared + noise * (1.0 - q**steps))


def noisy_gd_theorem_bound(
    *, n, dimension, lipschitz, smoothness, strong_convexity, start_distance, epsilon, delta
) -> float:
    """chourasia2021 Theorem 3 with its constant: `noisy_gd_excess_risk` at the theorem's settings.

    The start is drawn from N(0, (2σ²/λ)I), so r₀² = ‖θ*‖² + 2σ²d/λ. Of order
    βdL² ln(1/δ)/(ε²λ²n²), as published.

    Example:
        >>> bound = noisy_gd_theorem_bound(n=10_000, dimension=5, lipschitz=1.0, smoothness=1.0,
        ...                                strong_convexity=0.5, start_distance=1.0, epsilon=1.0,
        ...                                delta=1e-5)
        >>> 0 < bound < 1e-4
        True
    """
    noise_std, step_size, steps = noisy_gd_theorem_settings(
        n=n,
        dimension=dimension,
        lipschitz=lipschitz,
        smoothness=smoothness,
        strong_convexity=strong_convexity,
        epsilon=epsilon,
        delta=delta,
    )
    return noisy_gd_excess_risk(
        step_size=step_size,
        steps=steps,
        noise_std=noise_std,
        dimension=dimension,
        smoothness=smoothness,
        strong_convexity=strong_convexity,
        start_distance_squared=start_distance**2
        + 2.0 * noise_std**2 * dimension / strong_convexity,
    )


def noisy_gd_lower_rate(*, n: int, dimension: int, epsilon: float) -> float:
    """min{1, d/(ε²n²)}: the rate no private algorithm beats (chourasia2021 Theorem 4), no constant.

    Example:
        >>> noisy_gd_lower_rate(n=100, dimension=1, epsilon=1.0)
        0.0001
    """
    return min(1.0, dimension / (epsilon * n) ** 2)


def utility_rates(
    *,
    n: int,
    dimension: int,
    epsilon: float,
    smoothness: float,
    strong_convexity: float,
    curvature: float,
) -> dict[str, tuple[float, float]]:
    """yu2020 Table 1 as numbers: method -> (convex, strongly convex rate), constants 1, no ln(1/δ).

    Rates, to compare how methods scale; not bounds. NaN where the table has no entry.

    Example:
        >>> rates = utility_rates(n=1000, dimension=10, epsilon=1.0, smoothness=1.0,
        ...                       strong_convexity=0.01, curvature=0.1)
        >>> rates["DP-GD"][1] < rates["gradient (GD), minimum curvature"][1]
        True
    """
    p, log_n = dimension, math.log(n)
    flat = math.sqrt(p) / (n * epsilon)
    curved = p / (n * epsilon) ** 2
    mu, nu, beta = strong_convexity, curvature, smoothness
    gd = min(flat, beta * curved * log_n / nu**2)
    sgd = min(flat * log_n, curved * log_n / nu)
    return {
        "objective": (flat, curved / mu),
        "output": ((math.sqrt(beta) * flat) ** (2.0 / 3.0), beta * curved / mu**2),
        "gradient (SGD), minimum curvature": (flat * log_n**1.5, curved * log_n**2 / mu),
        "gradient (GD), minimum curvature": (math.nan, beta * curved * log_n**2 / mu**2),
        "DP-GD": (gd, gd),
        "DP-SGD": (sgd, sgd),
    }
