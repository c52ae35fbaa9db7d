"""Objective perturbation: the minimiser of a randomly tilted objective.

Chaudhuri, Monteleoni and Sarwate 2011 (pure ε); Kifer, Smith and Thakurta 2012 (Gaussian tilt),
with the accounting of Redberg, Koskela and Wang 2023; Iyengar et al. 2019 (approximate minima).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpjax import accounting as acc
from dpjax._numerics import float64
from dpjax._numerics.namespace import Values
from dpjax._numerics.normal import normal
from dpjax._numerics.scope import is_traced
from dpjax._numerics.typing import Number, PRNGKey
from dpjax.accounting.gaussian import gaussian_dp
from dpjax.erm import check
from dpjax.erm.descent import exponential
from dpjax.erm.minimise import in_float64, minimise
from dpjax.erm.problems import Problem
from dpjax.erm.solver import REPLACE_ONE, Budget, Solution, private_solver

# The share of the Gaussian budget μ that is spent on hiding the solver's error: 0.5 % more noise.
_RESIDUAL_SHARE = 0.1


class NotConverged(RuntimeError):
    """The minimiser missed its gradient tolerance, so nothing may be released.

    Example:
        >>> issubclass(NotConverged, RuntimeError)
        True
    """


class ObjectiveHistory(NamedTuple):
    """How the perturbed objective was solved.

    Fields:
        noise_std: of the tilt, on the sum objective.
        extra_l2: quadratic term added to l2. Both are independent of the data.
        gradient_norm: of the perturbed objective at the end; not priced.

    Example:
        >>> ObjectiveHistory(noise_std=10.0, extra_l2=0.0, gradient_norm=1e-12).extra_l2
        0.0
    """

    noise_std: Values
    extra_l2: float
    gradient_norm: Float[Array, ""]


class _Minimum(NamedTuple):
    """A minimiser, and whether it may be released."""

    params: Array  # NaN where the tolerance is missed
    norm: Float[Array, ""]  # of the gradient there
    limit: Float[Array, ""]  # that it must not exceed


def choose_extra_l2(problem: Problem, extra_l2: float | None, epsilon: Number | None) -> float:
    """The quadratic term to add: the one given, or Kifer's rule n(l2 + extra) ≥ 2c/ε."""
    extra, epsilon = 0.0, check.read_epsilon(epsilon)
    if extra_l2 is not None:
        check.positive_values("extra_l2", extra_l2, allow_zero=True)
        extra = float(extra_l2)
    elif epsilon is not None:
        least = 2.0 * (problem.smoothness - problem.l2) / (epsilon * problem.n)  # c = β − l2
        extra = max(0.0, least - problem.l2)
    if not problem.l2 + extra > 0:
        raise ValueError(
            f"l2 + extra_l2 must be positive, got {problem.l2 + extra}: objective perturbation "
            "needs a strongly convex objective"
        )
    return extra


def _price_objective(
    problem: Problem,
    noise: Number,
    *,
    extra_l2: float | None = 0.0,
    residual: Number = 0.0,
    **_: object,
) -> acc.Mechanism:
    return acc.ObjectivePerturbation(
        gradient_bound=problem.gradient_bound,
        noise_std=noise,
        smoothness=problem.smoothness - problem.l2,
        regularization=problem.n * (problem.l2 + (extra_l2 or 0.0)),  # λ of the sum objective
        residual=residual,
    )


def _check(problem: Problem, name: str) -> None:
    """Refuse several scores a record, gradients without a bound, and a radius."""
    check.one_score(problem, name)
    check.bounded_gradient(problem)
    if math.isfinite(problem.radius):
        raise ValueError(
            f"radius must be infinite, got {problem.radius}: {name} releases an unconstrained "
            "minimiser"
        )


@private_solver("noise_std", _price_objective, concrete=True)
def objective_perturbation(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    extra_l2: float | None = None,
    tolerance: float | None = None,
) -> Solution[acc.Mechanism]:
    """The exact minimiser of `Σᵢℓᵢ(w) + (n/2)(l2 + extra_l2)‖w‖² + ⟨b, w⟩`.

    With δ > 0, b ~ N(0, noise_std²I) (Kifer 2012), priced exactly for generalised linear models.
    With δ = 0, ‖b‖ ~ Gamma(d, 2R/ε') in a uniform direction (Chaudhuri 2011, Algorithm 2): pure ε,
    replace-one, and extra_l2 follows from ε.

    Args:
        extra_l2: added to the problem's l2; by default just enough for n(l2 + extra_l2) ≥ 2c/ε
            (Kifer's rule; c = β − l2), or 0 if noise_std is given; with δ = 0 it follows from ε.
        noise_std: of b, on the *sum* objective; 0 is the non-private minimiser.
        tolerance: gradient norm of the average objective that counts as a minimum: 1e-10 in float64
            (used whenever the call is not inside a trace), 1e-6 in float32.

    Raises:
        NotConverged: if the tolerance is not met (under a trace the parameters are NaN).
        ValueError: several scores a record, no regularisation, or a radius.

    Guarantee:
        ObjectivePerturbation: `δ(ε) ≤ 2δ_G(R/σ, ε − ln(1 + c/λ))` under add/remove, the two-record
        form under replace-one, for one score a record. Conditional on an *exact* minimiser: what is
        left of the gradient is below `tolerance`, but not accounted; use
        `approximate_minima_perturbation` where it must be.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 50, [1, 0] * 50, l2=0.1)
        >>> solution = objective_perturbation(problem, jax.random.key(0), epsilon=1.0, delta=1e-5)
        >>> bool(acc.epsilon(solution.mechanism, delta=1e-5) <= 1.0)
        True
    """
    _check(problem, "objective_perturbation")
    if budget.noise is None and budget.epsilon is not None and budget.delta == 0:
        if extra_l2 is not None:
            raise ValueError(f"extra_l2 must be None for delta = 0, which sets it, got {extra_l2}")
        return _solve_pure(problem, key, budget.epsilon, budget.adjacency, tolerance)
    extra = choose_extra_l2(problem, extra_l2, budget.epsilon)
    noise, mechanism = budget.resolve(extra_l2=extra)
    out = in_float64(_solve_gaussian, problem, key, noise, extra, tolerance, 0.0)
    return _release_solution(out, mechanism, noise, extra)


def _solve_gaussian(
    problem: Problem,
    key: PRNGKey,
    noise: Number,
    extra_l2: float,
    tolerance: float | None,
    output_std: Number,
) -> _Minimum:
    """The minimiser tilted by N(0, noise²I), with N(0, output_std²I) added to it."""
    tilt_key, output_key = jax.random.split(key)
    dtype = problem.dtype
    # The tilt is of the sum objective, and what is minimised is the mean: over n.
    linear = jnp.asarray(noise, dtype) * normal(tilt_key, problem.shape, dtype) / problem.n
    params, norm, limit = _minimise_tilted(problem, linear, extra_l2, tolerance)
    shake = jnp.asarray(output_std, dtype) * normal(output_key, problem.shape, dtype)
    return _Minimum(params + shake, norm, limit)


def _solve_gamma(
    problem: Problem, key: PRNGKey, privacy: Number, extra_l2: float, tolerance: float | None
) -> _Minimum:
    """The minimiser tilted by a vector of Gamma length in a uniform direction."""
    size_key, direction_key = jax.random.split(key)
    dtype = problem.dtype
    size = jnp.sum(exponential(size_key, (problem.dimension,), dtype))  # Gamma(d, 1)
    # A Gaussian over its length is uniform on the sphere.
    direction = normal(direction_key, problem.shape, dtype)
    length = size * (2.0 * problem.gradient_bound / privacy)
    linear = length * direction / jnp.linalg.norm(direction) / problem.n
    return _minimise_tilted(problem, linear, extra_l2, tolerance)


def _minimise_tilted(
    problem: Problem, linear: Array, extra_l2: float, tolerance: float | None
) -> _Minimum:
    """The minimiser of the problem tilted by a vector."""
    # One limit for the solver and for the check, fixed before the data are seen. Solve a little
    # past it.
    if tolerance is None:
        tolerance = 1e-10 if problem.dtype == jnp.float64 else 1e-6
    limit = jnp.asarray(tolerance, problem.dtype)
    params, norm = minimise(problem, linear, extra_l2, 0.5 * limit)
    # Fail closed: a minimiser that was not reached is not released, and a NaN does not pass either.
    return _Minimum(jnp.where(norm <= limit, params, jnp.nan), norm, limit)


def _release_solution(
    out: _Minimum, mechanism: acc.Mechanism, noise: Values, extra: float
) -> Solution[acc.Mechanism]:
    """The solution, unless its gradient is above the tolerance."""
    params, norm, limit = out
    if not is_traced(norm) and not np.all(np.asarray(norm) <= np.asarray(limit)):
        raise NotConverged(
            f"the gradient's norm is {float(np.max(np.asarray(norm))):.3g}, above the tolerance "
            f"{float(np.max(np.asarray(limit))):.3g}: nothing is released. Raise l2 or the "
            "tolerance, before looking at the data again"
        )
    return Solution(params, mechanism, ObjectiveHistory(noise, extra, norm))


def _solve_pure(
    problem: Problem, key: PRNGKey, epsilon: Number, adjacency: str, tolerance: float | None
) -> Solution[acc.Mechanism]:
    """Pure objective perturbation (Chaudhuri et al. 2011, Algorithm 2)."""
    check.positive_values("epsilon", epsilon)
    if acc.Adjacency(adjacency) is not REPLACE_ONE:
        raise ValueError(
            "delta must be positive under add/remove, got 0: pure objective perturbation "
            "(Chaudhuri 2011) is proved for adjacency=Adjacency.REPLACE_ONE only"
        )
    if problem.l2 == 0:
        raise ValueError("l2 must be positive for pure objective perturbation, got 0")
    privacy, extra = chaudhuri_constants(
        n=problem.n, l2=problem.l2, smoothness=problem.smoothness - problem.l2, epsilon=epsilon
    )
    out = in_float64(_solve_gamma, problem, key, privacy, extra, tolerance)
    scale = 2.0 * problem.gradient_bound / privacy  # of the Gamma length
    return _release_solution(out, acc.PureDP(float(epsilon), "replace-one"), scale, extra)


@private_solver("noise_std", _price_objective, adjacency=REPLACE_ONE, concrete=True)
def approximate_minima_perturbation(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    extra_l2: float | None = None,
    gradient_tolerance: float | None = None,
    output_noise_std: Number | None = None,
) -> Solution[acc.Mechanism]:
    """Objective perturbation whose minimiser may be approximate (Iyengar et al. 2019, Algorithm 1).

    Minimise the tilted objective until the average objective's gradient is at most γ, then add
    N(0, output_noise_std²I) to hide what is left: the point is within γ/(l2 + extra_l2) of the
    minimum on either data set.

    Args:
        extra_l2: as in `objective_perturbation`.
        gradient_tolerance: γ, fixed in advance: 1/n² by default, and not below 1e-6 in float32. It
            is never relaxed on failure: a tolerance that depends on the data is a leak.
        noise_std, output_noise_std: of the tilt (on the sum objective) and of the output; both, or
            neither and a budget.

    Raises:
        NotConverged: if γ is not met, so that the run fails closed (under a trace: NaN).

    Guarantee:
        ObjectivePerturbation with a residual Gaussian of ratio 2γ/((l2 +
        extra_l2)·output_noise_std): twice the published displacement, since both data sets' solvers
        may err, each to its own side (derived for dpjax: condition on the exact minimiser, compose
        with the output's Gaussian).

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 50, [1, 0] * 50, l2=0.1)
        >>> solution = approximate_minima_perturbation(problem, jax.random.key(0), epsilon=1.0,
        ...                                            delta=1e-5)
        >>> bool(acc.epsilon(solution.mechanism, delta=1e-5, adjacency="replace-one") <= 1.0)
        True
    """
    _check(problem, "approximate_minima_perturbation")
    extra = choose_extra_l2(problem, extra_l2, budget.epsilon)
    if gradient_tolerance is None:
        double = jnp.result_type(float) == jnp.float64 or not is_traced(problem, key, budget.noise)
        gradient_tolerance = problem.n**-2.0 if double else max(problem.n**-2.0, 1e-6)
    # ‖w − w*‖ ≤ ‖∇‖/μ by strong convexity, on either data set.
    displacement = 2.0 * gradient_tolerance / (problem.l2 + extra)
    if budget.noise is not None:
        if output_noise_std is None:
            raise ValueError("output_noise_std is missing: noise_std must come with it")
        check.scalar("output_noise_std", output_noise_std)
        check.positive_values("output_noise_std", output_noise_std, allow_zero=True)
        # Without output noise there is no privacy: a ratio so large that every bound is infinite.
        least = jnp.maximum if is_traced(output_noise_std) else max
        residual = displacement / least(output_noise_std, 1e-30)
    else:
        if budget.epsilon is None or budget.delta is None or output_noise_std is not None:
            raise ValueError(
                "give either noise_std and output_noise_std, or a budget (epsilon, delta)"
            )
        check.read_delta(budget.delta)
        residual = _RESIDUAL_SHARE * gaussian_budget(budget.epsilon, budget.delta)
        output_noise_std = displacement / residual
    noise, mechanism = budget.resolve(extra_l2=extra, residual=residual)
    out = in_float64(
        _solve_gaussian, problem, key, noise, extra, gradient_tolerance, output_noise_std
    )
    return _release_solution(out, mechanism, noise, extra)


def gaussian_budget(epsilon: Number, delta: Number) -> float:
    """μ(ε, δ): the largest μ for which μ-GDP implies (ε, δ) (Balle and Wang 2018), rounded down."""
    return float(float64.evaluate(gaussian_dp.mu, [epsilon, delta], [0, 0], rounding="down"))


def chaudhuri_constants(
    *, n: int, l2: float, smoothness: float, epsilon: Number
) -> tuple[Number, float]:
    """(ε', extra l2) of pure objective perturbation (Chaudhuri et al. 2011, Algorithm 2)."""
    # ε' = ε − ln(1 + 2c/(nΛ) + c²/(nΛ)²), extra = 0; if that is not positive, ε' = ε/2 and
    # extra = c/(n(e^{ε/4} − 1)) − Λ.
    # 1 + 2c/(nΛ) + c²/(nΛ)² = (1 + c/(nΛ))².
    prime = epsilon - 2.0 * math.log1p(smoothness / (n * l2))
    if prime > 0:
        return prime, 0.0
    return epsilon / 2.0, max(0.0, smoothness / (n * math.expm1(epsilon / 4.0)) - l2)
