"""Gradient perturbation: every noisy gradient may be released.

With Gaussian noise (yu2020, Abadi et al. 2016), or noise from a ball (tholeti2021), which is for
leaving saddles and not for privacy.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpjax import accounting as acc
from dpjax import sampling
from dpjax._numerics.namespace import Values
from dpjax._numerics.normal import normal
from dpjax._numerics.scope import is_traced
from dpjax._numerics.typing import Number, PRNGKey
from dpjax._numerics.warning import DpjaxWarning
from dpjax.accounting.geometric import ball_displacement
from dpjax.erm import check
from dpjax.erm.descent import descend, descent_noise, initial_params, step_sizes
from dpjax.erm.problems import Objective, Problem
from dpjax.erm.solver import REPLACE_ONE, Budget, Solution, private_solver


class GradientHistory(NamedTuple):
    """The run of a gradient-perturbation solver; the mechanism's price covers all of it.

    Fields:
        noise_multiplier: noise std over clip norm.
        iterates: [steps, …] after every step, or None.

    Example:
        >>> GradientHistory(noise_multiplier=2.0, iterates=None).noise_multiplier
        2.0
    """

    noise_multiplier: Values
    iterates: Array | None


class BallHistory(NamedTuple):
    """The run of `perturbed_gd`; the mechanism's price covers all of it.

    Fields:
        noise_radius: of the ball.
        iterates: [steps, …] after every step, or None.

    Example:
        >>> BallHistory(noise_radius=1.0, iterates=None).noise_radius
        1.0
    """

    noise_radius: Values
    iterates: Array | None


def _dp_gd_mechanism(
    problem: Objective, noise: Number, *, steps: int, **_: object
) -> acc.Mechanism:
    # One record moves a step's sum by C at most, and its noise is σC: the multiplier is σ.
    return acc.Repeated(acc.Gaussian(noise), steps=steps)


def _dp_sgd_mechanism(
    problem: Objective, noise: Number, *, steps: int, rate: Values, **_: object
) -> acc.Mechanism:
    # Priced at the rate that the sampler's integers realise, which may exceed the one asked for.
    realised = np.vectorize(sampling.realised_rate, otypes=[float])(rate)
    rate = realised if realised.ndim else float(realised)
    step = acc.PoissonSampled(acc.Gaussian(noise), rate=rate)
    return acc.Repeated(step, steps=steps)


def _sgd_ma_mechanism(
    problem: Objective, noise: Number, *, steps: int, **_: object
) -> acc.Mechanism:
    return _dp_sgd_mechanism(problem, noise, steps=steps, rate=1.0 / math.sqrt(problem.n))


_perturbs_gradients = functools.partial(
    private_solver, "noise_multiplier", broadcasts=True, traced=("step_size", "clip_norm")
)


@_perturbs_gradients(_dp_gd_mechanism)
def dp_gd(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    steps: int,
    step_size: Values,
    clip_norm: Number = 1.0,
    average: bool = False,
    keep_iterates: bool = False,
    init: Array | None = None,
) -> Solution[acc.Mechanism]:
    """Gradient descent on noisy full gradients (yu2020, Algorithm 1).

    `w ← Π(w − η[(Σᵢ clip(∇ℓᵢ) + σC·Z)/n + l2·w])`, Z ~ N(0, I): the regulariser is public and stays
    outside the clip.

    Args:
        steps: T.
        step_size: η, a number or one per step (`schedules`).
        clip_norm: C > 0, the bound on a record's gradient; a `problem.gradient_bound` clips
            nothing.
        noise_multiplier: σ ≥ 0, noise std on the sum over C; 0 is plain gradient descent.
        average: return the mean of all iterates (the case ν = 0 of yu2020 Theorem 1).
        keep_iterates: record every iterate in the history.
        init: initial parameters, chosen without looking at the data.

    Raises:
        ValueError: if an argument is out of range, or if noise and budget are both given.

    Guarantee:
        T-fold composition of a Gaussian mechanism, tight, under either adjacency (replace-one
        doubles the sensitivity, which the accountant knows); no assumption on data or loss. n is
        public.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 500, [1, 0] * 500, l2=0.01)
        >>> solution = dp_gd(problem, jax.random.key(0), steps=20, step_size=4.0, epsilon=1.0,
        ...                  delta=1e-5)
        >>> bool(acc.epsilon(solution.mechanism, delta=1e-5) <= 1.0)
        True
    """
    options = {"rate": None, "average": average, "keep_iterates": keep_iterates}
    return _perturb(problem, key, budget, steps, step_size, init, clip_norm, options)


@_perturbs_gradients(_dp_sgd_mechanism)
def dp_sgd(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    steps: int,
    step_size: Values,
    rate: float,
    clip_norm: Number = 1.0,
    average: bool = False,
    keep_iterates: bool = False,
    init: Array | None = None,
) -> Solution[acc.Mechanism]:
    """DP-SGD with Poisson batches (Abadi et al. 2016; yu2020, Algorithm 2 with batches).

    `w ← Π(w − η[(Σ_{i∈B} clip(∇ℓᵢ) + σC·Z)/(q·n) + l2·w])`: every record joins B with probability
    q, and the sum is divided by the expected batch size, never by the realised one.

    Args:
        steps, step_size, clip_norm, average, keep_iterates, init: as in `dp_gd`.
        rate: q in (0, 1], a concrete number.
        noise_multiplier: σ ≥ 0, noise std on the sum over C.

    Guarantee:
        T-fold composition of the Poisson-subsampled Gaussian mechanism, priced at the rate the
        sampler realises; the key must stay secret.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 500, [1, 0] * 500, l2=0.01)
        >>> solution = dp_sgd(problem, jax.random.key(0), steps=20, step_size=4.0, rate=0.1,
        ...                   noise_multiplier=2.0)
        >>> bool(acc.epsilon(solution.mechanism, delta=1e-5) < 3.0)
        True
    """
    options = {"rate": float(rate), "average": average, "keep_iterates": keep_iterates}
    return _perturb(problem, key, budget, steps, step_size, init, clip_norm, options)


@_perturbs_gradients(_sgd_ma_mechanism)
def sgd_ma(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    steps: int,
    step_size: Values,
    clip_norm: Number = 1.0,
    init: Array | None = None,
) -> Solution[acc.Mechanism]:
    """DP-SGD with an expected batch of √n, the baseline "SGD-MA" of chen2019 §5.

    The price is the exact one rather than the moments accountant's, which is looser.

    Args:
        steps, step_size, clip_norm, init: as in `dp_gd`.
        noise_multiplier: σ ≥ 0, noise std on the sum over C.

    Guarantee:
        That of `dp_sgd` at rate 1/√n.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 50, [1, 0] * 50, l2=0.01)
        >>> solution = sgd_ma(problem, jax.random.key(0), steps=5, step_size=1.0,
        ...                   noise_multiplier=2.0)
        >>> round(solution.mechanism.mechanism.rate, 6)
        0.1
    """
    settings = {"steps": steps, "step_size": step_size, "clip_norm": clip_norm, "init": init}
    rate = 1.0 / math.sqrt(problem.n)
    return dp_sgd(problem, key, rate=rate, **settings, **budget.keywords())


def _perturb(
    problem: Objective,
    key: PRNGKey,
    budget: Budget,
    steps: int,
    step_size: Values,
    init: Array | None,
    clip_norm: Number,
    options: Any,
    ball: bool = False,
) -> Solution[acc.Mechanism]:
    """The run of a solver: its noise follows from the budget, its loop from the kind of noise."""
    noise, mechanism = budget.resolve()
    first, sizes = initial_params(problem, init), step_sizes(step_size, steps, problem.dtype)
    descent, history = (_add_balls, BallHistory) if ball else (_add_gaussians, GradientHistory)
    params, iterates = descent(problem, key, first, sizes, noise, clip_norm, **options)
    return Solution(params, mechanism, history(noise, iterates))


@functools.partial(jax.jit, static_argnames=("rate", "average", "keep_iterates"))
def _add_gaussians(
    problem: Objective,
    key: PRNGKey,
    params: Array,
    sizes: Array,
    noise: Number,
    clip_norm: Number,
    rate: float | None,
    average: bool,
    keep_iterates: bool,
) -> tuple[Array, Array | None]:
    """Descent along clipped sums with Gaussian noise, of all records or of Poisson samples."""
    noise_key, batch_key = jax.random.split(key)
    clip_norm = jnp.asarray(clip_norm, problem.dtype)
    shake = descent_noise(noise_key, problem, jnp.asarray(noise, problem.dtype) * clip_norm)
    # The expected batch, never the realised one, whose size tells of the records in it.
    expected = problem.n * (1.0 if rate is None else rate)

    def gradient(params: Array, t: Array):
        weights = None
        if rate is not None:
            joins = sampling.poisson_inclusion(batch_key, t, population=problem.n, rate=rate)
            weights = joins.astype(problem.dtype)
        total = problem.gradient_sum(params, clip_norm=clip_norm, weights=weights) + shake(t)
        return total / expected + problem.l2 * params  # ‖Σ clip(∇ℓᵢ)‖ moves by C; l2·w is public

    kept = {"average": average, "keep_iterates": keep_iterates}
    return descend(problem, params, sizes, gradient, **kept)


def _ball_mechanism(
    problem: Objective,
    noise: Number,
    *,
    steps: int,
    batch_size: int = 1,
    clip_norm: Number = 1.0,
    **_: object,
) -> acc.Mechanism:
    """Steps of uniform noise in a ball on fixed batches."""
    # Replacing one record moves the batch average by 2C/b. A ball of radius 0 hides nothing: any
    # displacement of two radii or more is total variation 1.
    displacement = 2.0 * clip_norm / batch_size
    displacement = displacement / noise if is_traced(noise) or noise > 0 else 1e6
    ball = acc.UniformBall(displacement=displacement, dimension=problem.dimension)
    return acc.Repeated(acc.FixedBatchSampled(ball, batch_size, problem.n), steps=steps)


@private_solver(
    "noise_radius", _ball_mechanism, adjacency=REPLACE_ONE, traced=("step_size", "clip_norm")
)
def perturbed_gd(
    problem: Objective,
    key: Array,
    budget: Budget,
    *,
    steps: int,
    step_size: Values,
    batch_size: int = 1,
    clip_norm: Number = 1.0,
    keep_iterates: bool = False,
    init: Array | None = None,
) -> Solution[acc.Mechanism]:
    """Stochastic gradient descent plus noise uniform in a ball (tholeti2021, Algorithm 1).

    `w ← Π(w − η[(1/b)Σ_{i∈B} clip(∇ℓᵢ) + l2·w + ξ])`, ξ uniform in the ball of radius r, B a
    uniform batch drawn afresh (b = 1: one record, as published).

    Args:
        problem: convex, or any made by `differentiable_problem` (a strict saddle, say).
        steps, step_size, batch_size, clip_norm: T, η, b, C.
        noise_radius: r ≥ 0. Of a budget only δ matters here: ε buys nothing.
        keep_iterates: record every iterate in the history.
        init: initial parameters, chosen without looking at the data.

    Raises:
        ValueError: if batch_size > n or an argument is out of range.

    Guarantee:
        (0, δ) with δ = 1 − (1 − (b/n)·TV)^T, TV = I_{Δ²/4}(1/2, (d+1)/2), Δ = 2C/(br), replace-one.
        A guarantee of δ ≥ 1/n is void in practice (publishing one record at random has it): the
        solver then warns. Use it to escape saddles and to study the bound, and Gaussian noise for
        privacy.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 50, [1, 0] * 50, l2=0.1)
        >>> solution = perturbed_gd(problem, jax.random.key(0), steps=20, step_size=0.1,
        ...                         noise_radius=300.0)
        >>> 0 < acc.delta(solution.mechanism, epsilon=0.0, adjacency="replace-one") < 0.01
        True
    """
    if budget.noise is None and budget.epsilon is not None and budget.delta is not None:
        check.positive_values("epsilon", budget.epsilon, allow_zero=True)
        radius = _find_radius(problem, steps, batch_size, clip_norm, budget.delta)
        budget = budget._replace(noise=radius, epsilon=None)
    options = {"batch_size": batch_size, "keep_iterates": keep_iterates}
    solution = _perturb(problem, key, budget, steps, step_size, init, clip_norm, options, ball=True)
    _warn_if_void(solution.mechanism, problem.n, solution.history.noise_radius)
    return solution


def _find_radius(
    problem: Objective, steps: int, batch_size: int, clip_norm: Number, delta: Number
) -> Number:
    """The radius at which 1 − (1 − (b/n)·TV)^T = δ: a closed form, since ε plays no part."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    # Total variation composes as 1 − (1 − (b/n)·TV)^T; solve for TV, then for the displacement.
    per_step = -math.expm1(math.log1p(-delta) / steps)
    variation = min(per_step * problem.n / batch_size, 1.0)  # sampling dilutes TV by b/n
    reach = float(ball_displacement(variation * (1 - 1e-9), problem.dimension))
    return 2.0 * clip_norm / batch_size / reach * (1 + 1e-9)


def _warn_if_void(mechanism: acc.Mechanism, n: int, noise: Values) -> None:
    """Warn of a δ of at least 1/n, which protects nobody."""
    if is_traced(noise, mechanism) or noise == 0:
        return
    lost = acc.delta(mechanism, epsilon=0.0, adjacency=REPLACE_ONE)
    if lost >= 1.0 / n:
        warnings.warn(
            f"ball noise gives (0, {lost:.3g}) here, and delta >= 1/n = {1.0 / n:.3g} protects "
            "nobody; raise noise_radius, or use Gaussian noise",
            DpjaxWarning,
            stacklevel=5,  # of the call, through what wraps a solver
        )


@functools.partial(jax.jit, static_argnames=("batch_size", "keep_iterates"))
def _add_balls(
    problem: Objective,
    key: PRNGKey,
    params: Array,
    sizes: Array,
    noise: Number,
    clip_norm: Number,
    batch_size: int,
    keep_iterates: bool,
) -> tuple[Array, Array | None]:
    """Descent along clipped averages of fixed batches with noise from a ball."""
    batch_key, direction_key, size_key = jax.random.split(key, 3)
    dtype, shape = problem.dtype, problem.shape
    radius, clip_norm = jnp.asarray(noise, dtype), jnp.asarray(clip_norm, dtype)

    def ball(t: Array):
        direction = normal(jax.random.fold_in(direction_key, t), shape, dtype)
        uniform = jax.random.uniform(jax.random.fold_in(size_key, t), (), dtype)
        # A share r^d of the ball lies within radius r.
        length = radius * uniform ** (1.0 / problem.dimension)
        return length * direction / jnp.linalg.norm(direction.ravel())

    def gradient(params: Array, t: Array):
        if batch_size == 1:
            indices = jax.random.randint(jax.random.fold_in(batch_key, t), (1,), 0, problem.n)
        else:
            drawn = {"population": problem.n, "batch_size": batch_size}
            indices = sampling.fixed_batch(batch_key, t, **drawn).indices
        batch = problem.batch(indices)
        average = batch.gradient_sum(params, clip_norm=clip_norm) / batch_size
        # The noise before the regulariser, on whose grid the average must not be rounded.
        return (average + ball(t)) + problem.l2 * params

    return descend(problem, params, sizes, gradient, keep_iterates=keep_iterates)
