"""Output perturbation of cyclic mini-batch SGD, sensitivity computed step by step (chen2019)."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpjax import accounting as acc
from dpjax._numerics.normal import normal
from dpjax.accounting.gaussian.randomized_sensitivity import batch_sensitivities
from dpjax.erm import _cyclic
from dpjax.erm.problems import Problem
from dpjax.erm.solution import (
    Solution,
    bounded_gradient,
    count,
    positive,
    split,
    start,
)
from dpjax.erm.solver import Budget, private_solver

__all__ = ["OutputHistory", "nsgd", "rsgd", "rsgd_ar"]


class OutputHistory(NamedTuple):
    """What an output-perturbation solver added; every field is independent of the data.

    Fields:
        noise_std: standard deviation of the noise per coordinate.
        sensitivities: [m] bound on how far one replaced record in batch j moves the parameters.

    Example:
        >>> OutputHistory(noise_std=0.1, sensitivities=[0.01]).noise_std
        0.1
    """

    noise_std: Any
    sensitivities: Any


def _sensitivities(problem, *, epochs, step_size, batch_size, average_every=None, **_):
    return batch_sensitivities(
        _cyclic.batch_sizes(problem.n, batch_size),
        epochs=epochs,
        step_size=step_size,
        average_every=average_every,
        gradient_radius=problem.gradient_bound,
        strong_convexity=problem.strong_convexity,
        smoothness=problem.smoothness,
    )


def _permuted_mechanism(problem, noise, *, batch_size, **hyperparameters):
    sizes = _cyclic.batch_sizes(problem.n, batch_size)
    moves = _sensitivities(problem, batch_size=batch_size, **hyperparameters)
    return acc.RandomizedSensitivity(moves, sizes / problem.n, noise)


def _worst_case_mechanism(problem, noise, **hyperparameters):
    moves = _sensitivities(problem, **hyperparameters)
    worst = moves.max(axis=-1, keepdims=True)
    return acc.RandomizedSensitivity(worst, np.ones(1), noise)


def _rsgd_ar_mechanism(problem, noise, *, average_every=5, **hyperparameters):
    return _permuted_mechanism(problem, noise, average_every=average_every, **hyperparameters)


@private_solver(
    noise="noise_std",
    mechanism=_worst_case_mechanism,
    copies_data=True,
    adjacency=acc.Adjacency.REPLACE_ONE,
)
def nsgd(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    epochs: int,
    batch_size: int,
    step_size,
    init: Array | None = None,
) -> Solution:
    """Cyclic SGD over the records in their own order, worst-case noise (chen2019, Algorithm 1).

    Epoch s uses step size η₀/s. A record in batch j moves the result by at most
    `Δ_j = Σ_t (S η_t/|B_j|) Π_{s>t} ρ_s`, ρ = max(|1 − ημ|, |1 − ηL|); released: w + N(0,
    noise_std² I).

    Args:
        epochs, batch_size, step_size, init: as in `rsgd_ar`.
        noise_std: standard deviation of the noise per coordinate.

    Raises:
        ValueError: as `rsgd_ar`.

    Guarantee:
        That of `rsgd_ar`, at the worst position instead of a random one.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 50, [1, 0] * 50, l2=0.1)
        >>> solution = nsgd(problem, jax.random.key(0), epochs=2, batch_size=20, step_size=1.0,
        ...                 noise_std=1.0)
        >>> solution.mechanism.sensitivities.shape
        (1,)
    """
    return _run(problem, key, budget, epochs, batch_size, step_size, None, False, init)


@private_solver(
    noise="noise_std",
    mechanism=_permuted_mechanism,
    copies_data=True,
    adjacency=acc.Adjacency.REPLACE_ONE,
)
def rsgd(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    epochs: int,
    batch_size: int,
    step_size,
    init: Array | None = None,
) -> Solution:
    """`nsgd` over one secret random permutation: the sensitivity is drawn with a record's position.

    At the same first step size and more than a few averaging intervals this needs less noise than
    `rsgd_ar`, whose restarts raise the sensitivity.

    Args:
        epochs, batch_size, step_size, init: as in `rsgd_ar`.
        noise_std: standard deviation of the noise per coordinate.

    Raises:
        ValueError: as `rsgd_ar`.

    Guarantee:
        That of `rsgd_ar`.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 50, [1, 0] * 50, l2=0.1)
        >>> solution = rsgd(problem, jax.random.key(0), epochs=2, batch_size=20, step_size=1.0,
        ...                 noise_std=1.0)
        >>> solution.mechanism.sensitivities.shape
        (5,)
    """
    return _run(problem, key, budget, epochs, batch_size, step_size, None, True, init)


@private_solver(
    noise="noise_std",
    mechanism=_rsgd_ar_mechanism,
    copies_data=True,
    adjacency=acc.Adjacency.REPLACE_ONE,
)
def rsgd_ar(
    problem: Problem,
    key: Array,
    budget: Budget,
    *,
    epochs: int,
    batch_size: int,
    step_size,
    average_every: int = 5,
    init: Array | None = None,
) -> Solution:
    """RSGD-AR: permuted cyclic SGD, periodic averaging, step-size restart (chen2019, Algorithm 3).

    Every `average_every` = τ epochs the parameters become the mean of the last mτ iterates and the
    step size, η₀/h in the h-th epoch since, starts again. Released: w + N(0, noise_std² I).

    Args:
        epochs: passes over the data.
        batch_size: records a batch, at most n. The last may be short, and is then the most
            sensitive by far: prefer ⌈n/m⌉ for m batches.
        step_size: η₀ > 0. Beyond 2/L a step expands; the sensitivity then grows but stays a bound.
        average_every: τ.
        noise_std: standard deviation of the noise per coordinate; 0 is the non-private twin.
        init: initial parameters, chosen without looking at the data.

    Raises:
        ValueError: if batch_size > n, or the loss has no gradient bound.

    Guarantee:
        RandomizedSensitivity over the position of the replaced record, with weights |B_j|/n
        (chen2019 Prop. 3; the hockey-stick mixture prices it 1.2 to 1.4 times below the paper).
        Conditional on what the problem enforces: ‖x‖ ≤ feature_norm, a convex L-smooth loss. The
        regulariser cancels in the difference of two gradients, hence no bound on ‖w‖. The key (and
        so the permutation) must stay secret; n is public.

    Example:
        >>> import dpjax, jax
        >>> problem = dpjax.erm.logistic_regression([[1.0], [-1.0]] * 50, [1, 0] * 50, l2=0.1)
        >>> solution = rsgd_ar(problem, jax.random.key(0), epochs=10, batch_size=20, step_size=1.0,
        ...                    epsilon=1.0, delta=1e-5)
        >>> bool(acc.epsilon(solution.mechanism, delta=1e-5, adjacency="replace-one") <= 1.0)
        True
    """
    count("average_every", average_every)
    return _run(problem, key, budget, epochs, batch_size, step_size, average_every, True, init)


def _run(problem, key, budget, epochs, batch_size, step_size, average_every, permute, init):
    count("epochs", epochs)
    count("batch_size", batch_size, high=problem.n)
    positive("step_size", step_size)
    bounded_gradient(problem)
    chosen: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "step_size": step_size}
    if average_every is not None:
        chosen["average_every"] = average_every
    moves = _sensitivities(problem, **chosen)
    if permute:
        weights = _cyclic.batch_sizes(problem.n, batch_size) / problem.n
    else:
        moves, weights = moves.max(axis=-1, keepdims=True), np.ones(1)
    make = functools.partial(acc.RandomizedSensitivity, moves, weights)
    noise = budget.resolve(make)
    params = _descend(
        problem,
        key,
        start(problem, init),
        step_size,
        noise,
        epochs,
        batch_size,
        average_every,
        permute,
    )
    return Solution(params, make(noise), OutputHistory(noise, moves))


@functools.partial(jax.jit, static_argnames=("epochs", "batch_size", "average_every", "permute"))
def _descend(problem, key, params, step_size, noise, epochs, batch_size, average_every, permute):
    noise_key, order_key = split(key)
    n, dtype = problem.n, problem.dtype
    data = _cyclic.arrange(problem, order_key if permute else None, batch_size)
    interval = epochs + 1 if average_every is None else average_every
    iterates = len(_cyclic.batch_sizes(n, batch_size)) * interval

    def one_epoch(carry, s):
        params, total = carry
        since = s % interval  # epochs since the last restart
        size = jnp.asarray(step_size, dtype) / (since + 1).astype(dtype)

        def step(params, total, batch, weights, length, position):
            gradient = _cyclic.batch_gradient(batch, params, weights, length)
            params = problem.project(params - size * gradient)
            return params, total + params

        params, total = _cyclic.epoch(data, n, batch_size, params, step, total)
        restart = since == interval - 1
        params = jnp.where(restart, total / iterates, params)
        return (params, jnp.where(restart, jnp.zeros_like(total), total)), None

    state = (params, jnp.zeros_like(params))
    (params, _), _ = jax.lax.scan(one_epoch, state, jnp.arange(epochs, dtype=jnp.int32))
    std: Float[Array, ""] = jnp.asarray(noise, dtype)
    return params + std * normal(noise_key, params.shape, dtype)
