"""The strategies that leave the least error: banded or of banded inverse, found by gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from dpjax._numerics.checks import Range, choice, one_number
from dpjax._numerics.scope import float64_scope
from dpjax._numerics.toeplitz import solve, summed_columns2
from dpjax.correlation.strategies import (
    BandedInverse,
    Toeplitz,
    inverse_square_root,
    square_root,
)
from dpjax.correlation.workload import Workload, squared_errors

Tuned = TypeVar("Tuned", Toeplitz, BandedInverse)


class _Wanted(NamedTuple):
    """What a strategy is tuned for, as it was given."""

    bands: int
    steps: int | None
    workload: Workload | None
    separation: int | None
    participations: float
    kind: str


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

    The logarithm of `Workload.error` is minimised by L-BFGS over c₀ = 1, c_i = c_{i−1}·sᵢ with sᵢ
    in (0, 1), so every point on the way is a strategy whose sensitivity is known exactly, also
    where bands reach from one use of a record into its next.

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

    def search(
        start: Toeplitz, work: Workload, error2: Callable[[Array, Array], Array]
    ) -> Toeplitz:
        ratios = np.asarray(start.coefficients)[1:] / np.asarray(start.coefficients)[:-1]

        def logarithm(logits: Array) -> Array:
            column = jnp.concatenate([jnp.ones(1), jnp.cumprod(jax.nn.sigmoid(logits))])
            return error2(squared_errors(work, column), column)

        shares = 1 / (1 + np.exp(-_minimise(logarithm, np.log(ratios / (1 - ratios)))))
        return Toeplitz(tuple(np.cumprod(np.concatenate([[1.0], shares])).tolist()))

    settings = _Wanted(bands, steps, workload, separation, participations, kind)
    return _tune(square_root, search, settings)


def banded_inverse(
    bands: int,
    steps: int | None = None,
    *,
    workload: Workload | None = None,
    separation: int | None = None,
    participations: float = math.inf,
    kind: str = "mean",
) -> BandedInverse:
    """The strategy whose inverse has so many bands that leaves the least error at equal privacy.

    As `banded_toeplitz`, over C⁻¹: with d₀ = 1 each d_l is a share in [0, 1] of the largest size
    at which C has no coefficient above the one before it.

    Args:
        bands: number of coefficients of C⁻¹, and of noises that a step draws.
        steps, workload, separation, participations, kind: as of `banded_toeplitz`.

    Example:
        >>> from dpjax.correlation import Workload, banded_inverse, banded_toeplitz
        >>> work = Workload(100)
        >>> tuned = [f(4, workload=work, separation=20) for f in (banded_inverse, banded_toeplitz)]
        >>> [f"{work.error(c, separation=20):.2f}" for c in tuned]
        ['6.04', '8.76']

    References:
        Kalinin, McKenna, Upadhyay and Lampert 2025, "Back to square roots", BandInvMF.
    """

    def search(
        start: BandedInverse, work: Workload, error2: Callable[[Array, Array], Array]
    ) -> BandedInverse:
        def logarithm(shares: Array) -> Array:
            inverse = _from_shares(shares)
            column = solve(inverse, jnp.zeros(work.steps).at[0].set(1.0))
            return error2(squared_errors(work, inverse, inverse=True), column)

        with float64_scope():
            # Within bounds, not by logits: a share of 1 is common, and logits do not return from it
            shares = _minimise(logarithm, _to_shares(start), [(0.0, 1.0)] * (start.bands - 1))
            return BandedInverse(tuple(np.asarray(jax.jit(_from_shares)(shares)).tolist()))

    settings = _Wanted(bands, steps, workload, separation, participations, kind)
    return _tune(inverse_square_root, search, settings)


def _from_shares(shares: Array) -> Array:
    """1, d₁, d₂, … from the share that each is of the most at which coefficients still fall."""
    size = shares.shape[0]

    def add_coefficient(
        carry: tuple[Array, Array], given: tuple[Array, Array]
    ) -> tuple[tuple[Array, Array], Array]:
        # c_l = Σ (−d_j)·c_{l−j} ≤ c_{l−1} bounds −d_l by c_{l−1} less the other terms.
        weights, past = carry  # −d₁, −d₂, … so far, and c_{l−1}, c_{l−2}, …, c₀
        share, place = given
        least = jnp.sum(weights * past)
        weight = share * (past[0] - least)  # in [0, the most]
        weights = jnp.where(jnp.arange(size) == place, weight, weights)
        return (weights, jnp.concatenate([(least + weight)[None], past[:-1]])), weight

    first = (jnp.zeros_like(shares), jnp.zeros_like(shares).at[0].set(1.0))
    weights = lax.scan(add_coefficient, first, (shares, jnp.arange(size)))[1]
    return jnp.concatenate([jnp.ones(1, shares.dtype), -weights])


def _to_shares(strategy: BandedInverse) -> np.ndarray:
    """The shares that `_from_shares` takes back."""
    weights = -np.asarray(strategy.inverse_coefficients[1:])
    column, found = strategy.column(strategy.bands), []
    # Each coefficient over the most that it could be, c_{l−1} less the other terms.
    for l, weight in enumerate(weights, 1):
        found.append(weight / (column[l - 1] - column[l - 1 : 0 : -1] @ weights[: l - 1]))
    return np.asarray(found)


def _tune(
    make: Callable[[int], Tuned],
    search: Callable[[Tuned, Workload, Callable[[Array, Array], Array]], Tuned],
    settings: _Wanted,
) -> Tuned:
    """What a search finds from a first strategy on, by checked arguments."""
    bands, steps, workload, separation, participations, kind = settings
    bands = int(one_number("bands", bands, Range(1.0, whole=True)))
    choice("kind", kind, ("mean", "max"))
    if workload is not None and steps is None:
        work = workload
    elif workload is None and steps is not None:
        work = Workload(steps)
    else:
        raise ValueError("give either steps, of prefix sums, or a workload")
    start, apart = make(min(bands, work.steps)), work.steps if separation is None else separation
    start.sensitivity(work.steps, apart, participations)  # refuses what is out of range
    if start.bands == 1:
        return start

    def error2(errors: Array, column: Array) -> Array:
        """The logarithm of the squared error at noise = sensitivity."""
        # Prefix sums' errors rise with the step, so that the largest is the last.
        size = errors[-1] if kind == "max" and not work.rates else jnp.max(errors)
        size = jnp.mean(errors) if kind == "mean" else size
        sizes = (float(work.steps), float(apart), float(participations))
        return jnp.log(size) + jnp.log(summed_columns2(column, *sizes))

    tuned = search(start, work, error2)
    priced = {"separation": apart, "participations": participations, "kind": kind}
    # A search that went astray is not worth less than its start.
    return tuned if work.error(tuned, **priced) <= work.error(start, **priced) else start


def _minimise(
    logarithm: Callable[[Any], Any],
    start: np.ndarray,
    bounds: list[tuple[float, float]] | None = None,
) -> np.ndarray:
    """Where the function is least, from a start on."""
    from scipy.optimize import minimize  # loaded here: it is slow to import

    with float64_scope():
        ask = jax.jit(jax.value_and_grad(logarithm))  # one compilation a search

        def value(at: np.ndarray) -> tuple[float, np.ndarray]:
            found, slope = ask(at)
            return float(found), np.asarray(slope)

        options = {"maxiter": 500, "maxcor": 20, "ftol": 1e-14, "gtol": 1e-9}
        return minimize(value, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
