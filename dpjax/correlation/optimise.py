"""The banded Toeplitz strategy of least error for a workload, by its gradient."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._numerics.checks import Range, choice, one_number
from dpjax._numerics.scope import float64_scope
from dpjax._numerics.toeplitz import summed_columns2
from dpjax.correlation.strategies import Toeplitz, square_root
from dpjax.correlation.workload import Workload, squared_errors


def banded_toeplitz(
    bands: int,
    steps: int | None = None,
    *,
    workload: Workload | None = None,
    separation: int | None = None,
    participations: float = math.inf,
    kind: str = "mean",
) -> Toeplitz:
    """The strategy of so many bands that leaves the least error at equal privacy.

    The logarithm of `Workload.error` is minimised over c₀ = 1, c_i = c_{i−1}·sᵢ with sᵢ in (0, 1),
    so every point on the way is a strategy whose sensitivity is known exactly, also where bands
    reach from one use of a record into its next. L-BFGS, from the banded square root, with
    gradients through the recursion of C⁻¹ in float64.

    Args:
        bands: number of coefficients. As many as `separation` or fewer keep a record's columns
            apart, which amplification by cyclic Poisson sampling needs.
        steps: of a workload of prefix sums; or
        workload: what is made of the releases.
        separation: fewest steps from one use of a record to its next; one use without it.
        participations: how often a record is used at most.
        kind: the error that counts, "mean" or "max", see `Workload.error`.

    Raises:
        ValueError: neither steps nor a workload, or numbers out of range.

    Example:
        >>> from dpjax.correlation import Workload, banded_toeplitz, square_root
        >>> work = Workload(100)
        >>> tuned = banded_toeplitz(10, workload=work, separation=20)
        >>> work.error(tuned, separation=20) < work.error(square_root(10), separation=20)
        True

    References:
        Choquette-Choo et al. 2023; McKenna 2024, "Scaling up the banded matrix factorization
        mechanism".
    """
    from scipy.optimize import minimize  # loaded here: it is slow to import

    bands = int(one_number("bands", bands, Range(1.0, whole=True)))
    choice("kind", kind, ("mean", "max"))
    if (workload is None) == (steps is None):
        raise ValueError("give either steps, of prefix sums, or a workload")
    work = Workload(steps) if workload is None else workload  # pyrefly: ignore
    apart = work.steps if separation is None else separation
    start = square_root(min(bands, work.steps))
    start.sensitivity(work.steps, apart, participations)  # refuses what is out of range
    if start.bands == 1:
        return start
    sizes = (float(work.steps), float(apart), float(participations))

    def objective(logits: Any) -> Any:
        column = jnp.concatenate([jnp.ones(1), jnp.cumprod(jax.nn.sigmoid(logits))])
        errors = squared_errors(work, column)
        size = errors[-1] if kind == "max" and not work.rates else jnp.max(errors)
        size = jnp.mean(errors) if kind == "mean" else size
        return jnp.log(size) + jnp.log(summed_columns2(column, *sizes))

    ratios = np.asarray(start.coefficients)[1:] / np.asarray(start.coefficients)[:-1]
    with float64_scope():
        ask = jax.jit(jax.value_and_grad(objective))

        def value(logits: Any) -> tuple[float, Any]:
            found, slope = ask(logits)
            return float(found), np.asarray(slope)

        found = minimize(
            value,
            np.log(ratios / (1 - ratios)),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 500, "maxcor": 20, "ftol": 1e-14, "gtol": 1e-9},
        )
    ratios = 1 / (1 + np.exp(-found.x))
    tuned = Toeplitz(tuple(np.cumprod(np.concatenate([[1.0], ratios])).tolist()))
    errors = [
        work.error(c, separation=apart, participations=participations, kind=kind)
        for c in (start, tuned)
    ]
    return tuned if errors[1] <= errors[0] else start
