"""Curvature of an objective: smallest, average and expected (yu2020, Definition 3 and Equation 5).

The iterate of noisy gradient descent is `x = (x' − ηg) − ηz`: the noise in it has standard
deviation
**η·σ**, step size times gradient noise, and that is the `noise_std` of Definition 3, not σ.

Everything here is a function of private data: diagnostics, never an input to a private run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matfree import decomp, eig, stochtrace

from dpjax._numerics.normal import normal
from dpjax.erm import check
from dpjax.erm.losses import Logistic
from dpjax.erm.problems import Problem

__all__ = [
    "CurvatureEstimate",
    "average_curvature",
    "expected_curvature",
    "expected_curvature_logistic",
    "expected_curvature_monte_carlo",
    "expected_curvature_on_ball",
    "extreme_curvatures",
    "hessian_trace",
    "hessian_vector_product",
    "noise_in_iterate",
]


class CurvatureEstimate(NamedTuple):
    """A Monte-Carlo estimate with its confidence interval.

    Example:
        >>> CurvatureEstimate(0.5, 0.4, 0.6).low
        0.4
    """

    value: Float[Array, ""]
    low: Float[Array, ""]
    high: Float[Array, ""]


def noise_in_iterate(step_size: float, gradient_noise_std: float) -> float:
    """η·σ, the noise scale at which Definition 3 must be read for noisy gradient descent.

    For `dp_gd`, gradient_noise_std = noise_multiplier · clip_norm / n.

    Example:
        >>> noise_in_iterate(0.5, 0.1)
        0.05
    """
    return step_size * gradient_noise_std


def hessian_vector_product(
    objective: Callable, params: Float[Array, "*p"], vector: Float[Array, "*p"]
) -> Float[Array, "*p"]:
    """∇²F(w)·v by forward over reverse differentiation; the Hessian is never formed.

    Example:
        >>> square = lambda w: jnp.sum(w**2)
        >>> hessian_vector_product(square, jnp.ones(2), jnp.array([1.0, 2.0])).tolist()
        [2.0, 4.0]
    """
    return jax.jvp(jax.grad(objective), (params,), (vector,))[1]


def _flat(objective: Callable, params: Array) -> tuple[Callable, Array]:
    """The objective of a flat vector, so that matfree sees vectors alone."""
    return lambda flat: objective(flat.reshape(params.shape)), params.ravel()


def hessian_trace(
    objective: Callable, params: Float[Array, "*p"], key: Array, *, samples: int = 64
) -> CurvatureEstimate:
    """tr ∇²F(w) by Hutchinson's estimator with random signs, and ± two standard errors.

    Example:
        >>> quadratic = lambda w: jnp.sum(jnp.arange(1.0, 4.0) * w**2) / 2
        >>> estimate = hessian_trace(quadratic, jnp.ones(3), jax.random.key(0))
        >>> float(estimate.value)
        6.0
    """
    check.count("samples", samples, low=2)
    function, flat = _flat(objective, params)
    # matfree is written for JAX's usual promotion rules.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        sampler = stochtrace.sampler_signs(flat, num=samples)
        estimate = stochtrace.estimator_monte_carlo_mean_and_sem(
            stochtrace.monte_carlo_trace(), sampler
        )
        mean, error = estimate(lambda v: hessian_vector_product(function, flat, v), key)
    return CurvatureEstimate(mean, mean - 2.0 * error, mean + 2.0 * error)


def average_curvature(
    objective: Callable, params: Float[Array, "*p"], key: Array, *, samples: int = 64
) -> CurvatureEstimate:
    """tr(∇²F(w))/p, the mean eigenvalue (yu2020, Table 2).

    Example:
        >>> estimate = average_curvature(lambda w: jnp.sum(jnp.arange(1.0, 4.0) * w**2) / 2,
        ...                              jnp.ones(3), jax.random.key(0))
        >>> float(estimate.value)
        2.0
    """
    trace = hessian_trace(objective, params, key, samples=samples)
    return CurvatureEstimate(*(part / params.size for part in trace))


def extreme_curvatures(
    objective: Callable, params: Float[Array, "*p"], key: Array, *, steps: int | None = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(smallest, largest) eigenvalue of ∇²F(w) by Lanczos with full reorthogonalisation.

    With steps = p (the default up to p = 500) exact to rounding; with fewer the smallest is
    estimated from above and the largest from below.

    Example:
        >>> low, high = extreme_curvatures(lambda w: jnp.sum(jnp.arange(1.0, 4.0) * w**2) / 2,
        ...                                jnp.ones(3), jax.random.key(0))
        >>> round(float(low), 4), round(float(high), 4)
        (1.0, 3.0)
    """
    steps = min(params.size, 500) if steps is None else steps
    check.count("steps", steps, high=params.size, what="parameters")
    function, flat = _flat(objective, params)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        solve = eig.eigh_partial(decomp.tridiag_sym(steps, reortho="full"))
        first = normal(key, flat.shape, flat.dtype)
        values, _ = solve(lambda v: hessian_vector_product(function, flat, v), first)
    return jnp.min(values), jnp.max(values)


def expected_curvature(
    objective: Callable,
    params: Float[Array, "*p"],
    minimiser: Float[Array, "*p"],
    noise_std,
    trace: Float[Array, ""] | float,
) -> Float[Array, ""]:
    """ν = (tr(H)τ² + ⟨∇F(x), x − x*⟩)/(pτ² + ‖x − x*‖²), τ = noise_std (yu2020, Equation 5).

    Exact for quadratics, a second-order approximation otherwise.

    Args:
        minimiser: x*, the minimiser closest to the start.
        noise_std: τ = ησ (`noise_in_iterate`).
        trace: tr ∇²F(x), exact or from `hessian_trace`.

    Example:
        >>> quadratic = lambda w: jnp.sum(jnp.array([1.0, 3.0]) * w**2) / 2
        >>> params = jnp.array([1.0, 0.0])
        >>> float(expected_curvature(quadratic, params, jnp.zeros(2), 1.0, trace=4.0))
        1.6666666269302368
    """
    check.positive_values("noise_std", noise_std)
    away = params - minimiser
    pull = jnp.sum(jax.grad(objective)(params) * away)
    variance = jnp.square(jnp.asarray(noise_std, params.dtype))
    return (trace * variance + pull) / (params.size * variance + jnp.sum(jnp.square(away)))


def expected_curvature_on_ball(trace, smallest, dimension: int, noise_std, radius):
    """inf of ν over ‖x − x*‖ ≤ R for a quadratic: (tr(H)τ² + μR²)/(pτ² + R²).

    Definition 3 quantifies over *all* x, where the infimum for a quadratic is its smallest
    eigenvalue μ: ν exceeds μ only on a bounded set, and this is by how much. It is attained in the
    direction of the smallest eigenvector, at distance R (μ is at most the average curvature).

    Example:
        >>> expected_curvature_on_ball(4.0, 1.0, 2, 1.0, 1.0)
        1.6666666666666667
    """
    return (trace * noise_std**2 + smallest * radius**2) / (dimension * noise_std**2 + radius**2)


def expected_curvature_monte_carlo(
    objective: Callable,
    params: Float[Array, "*p"],
    minimiser: Float[Array, "*p"],
    noise_std,
    key: Array,
    *,
    samples: int = 1024,
    z_score: float = 3.0,
) -> CurvatureEstimate:
    """Definition 3 at one point by simulation: E⟨∇F(x̃), x̃ − x*⟩ / E‖x̃ − x*‖², x̃ = x − τz.

    The interval is that of a ratio of means by the delta method, ± z_score standard errors.

    Example:
        >>> quadratic = lambda w: jnp.sum(jnp.array([1.0, 3.0]) * w**2) / 2
        >>> settings = jnp.array([1.0, 0.0]), jnp.zeros(2), 1.0
        >>> found = expected_curvature_monte_carlo(quadratic, *settings, jax.random.key(0))
        >>> bool(found.low < 5 / 3 < found.high)
        True
    """
    check.count("samples", samples, low=2)
    check.positive_values("noise_std", noise_std)
    scale = jnp.asarray(noise_std, params.dtype)
    noise = normal(key, (samples, *params.shape), params.dtype)

    def one(z):
        away = params - scale * z - minimiser
        pull = jnp.sum(jax.grad(objective)(params - scale * z) * away)
        return pull, jnp.sum(jnp.square(away))

    top, bottom = jax.lax.map(one, noise, batch_size=min(samples, 64))
    ratio = jnp.mean(top) / jnp.mean(bottom)
    error = jnp.std(top - ratio * bottom, ddof=1) / (jnp.mean(bottom) * math.sqrt(samples))
    return CurvatureEstimate(ratio, ratio - z_score * error, ratio + z_score * error)


@functools.cache
def _hermite(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return points, weights / weights.sum()


def expected_curvature_logistic(
    problem: Problem, params: Float[Array, " d"], minimiser: Float[Array, " d"], noise_std
) -> Float[Array, ""]:
    """ν of Definition 3 for logistic regression without approximation: one quadrature per example.

    The score of a noisy iterate is N(⟨x, w⟩, τ²‖x‖²), and by Stein's identity
    `E⟨∇ℓ(x̃), x̃ − x*⟩ = E[ℓ'(s)]⟨xᵢ, w − w*⟩ + τ²‖xᵢ‖² E[ℓ''(s)]`, each a one-dimensional mean.

    Example:
        >>> import dpjax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]], [1, 0], l2=0.1, intercept=0.0)
        >>> round(float(expected_curvature_logistic(problem, jnp.zeros(1), jnp.zeros(1), 0.5)), 3)
        0.336
    """
    if not isinstance(problem.loss, Logistic):
        raise ValueError(f"the problem's loss must be Logistic, got {type(problem.loss).__name__}")
    check.positive_values("noise_std", noise_std)
    tau = jnp.asarray(noise_std, problem.dtype)
    points, weights = (jnp.asarray(a, problem.dtype) for a in _hermite(64))
    centre = problem.features @ params
    scores = centre[:, None] + (tau * problem.norms)[:, None] * points[None, :]
    labels = jnp.broadcast_to(problem.labels[:, None], scores.shape)
    slope = problem.loss.slope(scores, labels) @ weights
    bend = problem.loss.curvature(scores, labels) @ weights
    away = params - minimiser
    pull = slope * (problem.features @ away) + jnp.square(tau * problem.norms) * bend
    spread = problem.dimension * jnp.square(tau) + jnp.sum(jnp.square(away))
    ridge = problem.l2 * (jnp.sum(params * away) + problem.dimension * jnp.square(tau))
    return (jnp.mean(pull) + ridge) / spread
