"""Multi-class classification by one binary problem per class, the privacy budget shared."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from dpjax import accounting as acc
from dpjax._numerics.namespace import Values
from dpjax._numerics.typing import Number, PRNGKey
from dpjax.erm import check
from dpjax.erm._features import Features
from dpjax.erm.objective_perturbation import choose_extra_l2
from dpjax.erm.problems import Problem
from dpjax.erm.solver import Budget, PrivateSolver, Solution, solver_spec


def one_vs_rest(
    solver: PrivateSolver,
    problem: Problem,
    key: Array,
    *,
    classes: int,
    class_labels: ArrayLike,
    epsilon: Values | None = None,
    delta: Number | None = None,
    adjacency: str | None = None,
    **hyperparameters: Any,
) -> Solution[acc.Mechanism]:
    """Train one binary classifier per class with any private solver; params [d, classes].

    Every record takes part in all the runs, so they compose: the noise is calibrated for `classes`
    repetitions of the solver's mechanism, which is cheaper than giving each (ε/k, δ/k).

    Args:
        solver: any private solver for one score a record.
        problem: a binary problem on the features; its own labels are not used.
        classes: how many; declared, because a count taken from the data is not public.
        class_labels: [n], numbers 0 … classes − 1.
        epsilon, delta, adjacency: budget of all the runs together; or the solver's noise argument.
        hyperparameters: the solver's.

    Guarantee:
        That of the solver's mechanism, repeated `classes` times. With delta = 0 (pure objective
        perturbation) each class gets ε/classes.

    Example:
        >>> import dpjax, jax, jax.numpy as jnp
        >>> x = jnp.eye(3).repeat(200, axis=0)
        >>> y = jnp.arange(3).repeat(200)
        >>> binary = dpjax.erm.logistic_regression(x, y == 0, l2=1e-3)
        >>> solution = one_vs_rest(dpjax.erm.dp_gd, binary, jax.random.key(0), classes=3,
        ...                        class_labels=y, noise_multiplier=2.0, steps=30, step_size=4.0)
        >>> bool((predict_class(binary, solution.params, x) == y).mean() > 0.9)
        True
    """
    check.count("classes", classes, low=2)
    check.one_score(problem, "one_vs_rest")
    spec = solver_spec(solver)
    adjacency = acc.Adjacency(spec.adjacency if adjacency is None else adjacency)
    make = functools.partial(spec.mechanism, problem, adjacency=adjacency)
    numbers = jnp.asarray(class_labels)
    if numbers.shape != (problem.n,):
        raise ValueError(f"class_labels must have shape ({problem.n},), got {numbers.shape}")
    check.class_numbers("class_labels", numbers, classes)
    # One class against all others: ±1 labels, a row a class.
    sides = jnp.where(numbers[None, :] == jnp.arange(classes)[:, None], 1.0, -1.0)
    sides = sides.astype(problem.dtype)
    keys = jax.random.split(key, classes)

    epsilon = check.read_epsilon(epsilon)
    pure = epsilon is not None and delta == 0  # pure guarantees add up
    if pure:
        settings = {**hyperparameters, "epsilon": epsilon / classes, "delta": 0}
    else:
        if epsilon is not None and "extra_l2" not in hyperparameters and spec.concrete:
            # Each run's share of ε sets how much regularisation its Jacobian needs.
            hyperparameters["extra_l2"] = choose_extra_l2(problem, None, epsilon / classes)
        given = hyperparameters.pop(spec.noise, None)

        def price(noise: Values) -> acc.Mechanism:
            return acc.Repeated(make(noise, **hyperparameters), classes)

        noise, _ = Budget(spec.noise, given, epsilon, delta, adjacency, price).resolve()
        settings = {**hyperparameters, spec.noise: noise}

    def train(side: Array, key: PRNGKey) -> Solution[acc.Mechanism]:
        binary = dataclasses.replace(problem, labels=side)
        return solver(binary, key, adjacency=adjacency, **settings)

    if spec.concrete:
        runs = [train(side, k) for side, k in zip(sides, keys, strict=True)]
        params = jnp.stack([run.params for run in runs], axis=-1)
        return Solution(params, acc.Repeated(runs[0].mechanism, classes), None)
    params = jax.vmap(lambda side, k: train(side, k).params, out_axes=-1)(sides, keys)
    mechanism = make(settings[spec.noise], **hyperparameters)
    return Solution(params, acc.Repeated(mechanism, classes), None)


def predict_class(problem: Problem, params: Array, features: Features | ArrayLike) -> Array:
    """The class of highest score, params [d, classes] as from `one_vs_rest`.

    Example:
        >>> import dpjax
        >>> problem = dpjax.erm.logistic_regression([[1.0]], [1], l2=0.0, intercept=0.0)
        >>> predict_class(problem, jnp.array([[1.0, -1.0]]), [[1.0], [-1.0]]).tolist()
        [0, 1]
    """
    return jnp.argmax(problem.scores(params, features), axis=-1)
