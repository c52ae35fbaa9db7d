"""The strategies that leave the least error: banded, of banded inverse or buffered.

All are found by gradients of the error at equal privacy.
"""

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
from dpjax.correlation.banded import Banded
from dpjax.correlation.strategies import (
    BandedInverse,
    BufferedToeplitz,
    Toeplitz,
    inverse_square_root,
    square_root,
)
from dpjax.correlation.workload import Workload, check_workload, squared_errors

Tuned = TypeVar("Tuned", Toeplitz, BandedInverse, BufferedToeplitz)


class _Wanted(NamedTuple):
    """What a strategy is tuned for, as it was given."""

    size: tuple[str, int]  # what its coefficients are counted by, and how many there are
    steps: int | None
    workload: Workload | None
    separation: int | None
    participations: float
    kind: str

    def find_workload(self) -> Workload:
        """The workload, or the prefix sums of so many steps; refuses both, and another kind."""
        choice("kind", self.kind, ("mean", "max"))
        if self.workload is not None and self.steps is None:
            return check_workload(self.workload)
        if self.workload is None and self.steps is not None:
            return Workload(self.steps)
        raise ValueError("give either steps, of prefix sums, or a workload")


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

        shares = 1 / (1 + np.exp(-_minimise(logarithm, [np.log(ratios / (1 - ratios))])))
        return Toeplitz(tuple(np.cumprod(np.concatenate([[1.0], shares])).tolist()))

    settings = _Wanted(("bands", bands), steps, workload, separation, participations, kind)
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
            shares = _minimise(logarithm, [_to_shares(start)], [(0.0, 1.0)] * (start.bands - 1))
            return BandedInverse(tuple(np.asarray(jax.jit(_from_shares)(shares)).tolist()))

    settings = _Wanted(("bands", bands), steps, workload, separation, participations, kind)
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


def buffered_toeplitz(
    buffers: int,
    steps: int | None = None,
    *,
    workload: Workload | None = None,
    separation: int | None = None,
    participations: float = math.inf,
    kind: str = "mean",
) -> BufferedToeplitz:
    """The strategy of so many buffers that leaves the least error at equal privacy.

    As `banded_toeplitz`, over the poles and zeros of Σ c_t·xᵗ = Π (1 − θ̂ᵢx)/(1 − θᵢx), of which
    each is below the one before it, 1 > θ₁ > θ̂₁ > θ₂ > … > θ̂ᵢ: then, and only then, all weights are
    positive. What is searched are the logarithms of the gaps between −log θ₁ < −log θ̂₁ < …, and
    the last θ̂, down to where c₁ = c₀, from several starts.

    Args:
        buffers: number of geometric series, at most 16: two to five are near the best.
        steps, workload, separation, participations, kind: as of `banded_toeplitz`.

    Example:
        >>> from dpjax.correlation import Workload, banded_toeplitz, buffered_toeplitz
        >>> work = Workload(100)
        >>> kept = [banded_toeplitz(3, workload=work), buffered_toeplitz(2, workload=work)]
        >>> [f"{work.error(c):.2f}" for c in kept]  # two gradients of memory each
        ['4.37', '2.32']

    References:
        McMahan, Xu and Zhang 2024; Pillutla, McMahan and others 2025, "An inversion theorem for
        buffered linear Toeplitz matrices and applications to streaming differential privacy".
    """

    def search(
        start: BufferedToeplitz, work: Workload, error2: Callable[[Array, Array], Array]
    ) -> BufferedToeplitz:
        def logarithm(place: Array) -> Array:
            series = _from_gaps(place)
            later = jnp.arange(work.steps - 1.0)[:, None]
            column = jnp.exp(-later * series.places) @ series.weights
            inverse = -jnp.power(series.zeros, later) @ series.inverse_weights
            one = jnp.ones(1, column.dtype)
            errors = squared_errors(work, jnp.concatenate([one, inverse]), inverse=True)
            return error2(errors, jnp.concatenate([one, column]))

        apart = work.steps if separation is None else min(separation, work.steps)
        # Series that last as long as the run, or as until a record's next use.
        longest = {0.1 / work.steps, 1 / work.steps, 1 / apart}
        starts = [_spread_gaps(start.buffers, first) for first in sorted(longest)]
        # Beyond these bounds neighbours are equal, or a series has ended at once.
        bounds = [(-30.0, 3.0)] * (2 * start.buffers - 1) + [(-30.0, 30.0)]
        with float64_scope():
            found = jax.jit(_from_gaps)(_minimise(logarithm, starts, bounds))
            return _round_series(np.exp(-np.asarray(found.places)), np.asarray(found.weights))

    settings = _Wanted(("buffers", buffers), steps, workload, separation, participations, kind)
    one_number("buffers", buffers, Range(1.0, 16.0, whole=True))
    return _tune(lambda size: BufferedToeplitz((0.0,) * size, (0.0,) * size), search, settings)


class _Series(NamedTuple):
    """C and C⁻¹ as sums of geometric series, a weight ≥ 0 for each."""

    places: Array  # −log θᵢ
    weights: Array
    zeros: Array  # θ̂ᵢ
    inverse_weights: Array  # those of C⁻¹ are their negatives


def _from_gaps(place: Array) -> _Series:
    """The series of gaps whose logarithms are given, and of the last θ̂ as a logit."""
    after = jnp.tri(place.shape[0] - 1)  # of −log θ₁, −log θ̂₁, …, the gaps up to it
    gaps = jnp.exp(place[:-1])
    ends = jnp.exp(-(after @ gaps))
    # A distance is the sum of the gaps between, so that nothing cancels: those up to the later
    # place that are not up to the earlier one; and |θ − θ'| the larger one times 1 − e^{−distance}.
    between = jnp.abs(after[:, None, :] - after[None, :, :]) @ gaps
    differences = jnp.maximum(ends[:, None], ends[None, :]) * -jnp.expm1(-between)
    # c₁ = Σ θᵢ − Σ θ̂ᵢ ≤ 1 leaves this much for what the last θ̂ is below the last θ.
    rest = 1 - jnp.sum(jnp.diagonal(differences, 1)[::2])
    below = rest * jax.nn.sigmoid(place[-1])
    last = differences[-1] + below  # of the last θ̂ to each of the others
    differences = jnp.concatenate([differences, last[None]])
    differences = jnp.concatenate([differences, jnp.append(last, 1.0)[:, None]], axis=1)
    # log 1 for a place and itself
    logs = jnp.log(jnp.where(jnp.eye(place.shape[0], dtype=bool), 1.0, differences))
    # Partial fractions: the residue at θᵢ is Π_j (θᵢ − θ̂_j) / Π_{j ≠ i} (θᵢ − θ_j), which is > 0
    # as each θ̂_j lies between neighbours; and with the two sets exchanged, < 0.
    weights = jnp.exp(jnp.sum(logs[::2, 1::2], axis=1) - jnp.sum(logs[::2, ::2], axis=1))
    inverse = jnp.exp(jnp.sum(logs[1::2, ::2], axis=1) - jnp.sum(logs[1::2, 1::2], axis=1))
    zeros = jnp.append(ends[1::2], ends[-1] - below)
    return _Series((after @ gaps)[::2], weights, zeros, inverse)


def _spread_gaps(buffers: int, first: float) -> np.ndarray:
    """Logarithms of gaps whose sums grow by one ratio from `first` to 2, and half of the rest."""
    sums = np.geomspace(min(first, 1.0), 2.0, 2 * buffers - 1)
    return np.append(np.log(np.diff(sums, prepend=0.0)), 0.0)


def _round_series(decays: np.ndarray, weights: np.ndarray) -> BufferedToeplitz:
    """The strategy with weights that sum to at most 1 after rounding to float32."""
    rounded = weights.astype(np.float32)
    while math.fsum(rounded.tolist()) > 1:
        rounded = np.nextafter(rounded, np.float32(0.0))
    return BufferedToeplitz(tuple(decays.tolist()), tuple(rounded.tolist()))


def column_normalised(
    bands: int,
    steps: int | None = None,
    *,
    workload: Workload | None = None,
) -> Banded:
    """The matrix of so many bands and columns of length 1 that leaves the least mean error.

    The best for records that return after `bands` steps or later, however often: each use then
    costs as much as another, whichever its step. The logarithm of ‖AC⁻¹‖² is minimised by L-BFGS
    over the numbers below the diagonal, relative to it.

    Args:
        bands: number of diagonals, at most the steps from one use of a record to its next.
        steps, workload: as of `banded_toeplitz`; a matrix is held whole, so few thousands.

    Raises:
        ValueError: neither steps nor a workload, or numbers out of range.

    Example:
        >>> from dpjax.correlation import Workload, banded_toeplitz, column_normalised
        >>> work, passes = Workload(40), {"separation": 10}
        >>> tried = [banded_toeplitz(10, workload=work, **passes), column_normalised(10, 40)]
        >>> [f"{work.error(c, **passes):.2f}" for c in tried]
        ['4.41', '4.31']

    References:
        Choquette-Choo et al. 2023; McKenna 2024, "Scaling up the banded matrix factorization
        mechanism".
    """
    work = _Wanted(("bands", bands), steps, workload, None, 1.0, "mean").find_workload()
    size = min(int(one_number("bands", bands, Range(1.0, whole=True))), work.steps)
    rows = np.add.outer(np.arange(size), np.arange(work.steps))  # [band, column]
    inside, moved = rows < work.steps, work.matrix().T
    rows = np.minimum(rows, work.steps - 1)

    def normalise(below: Array) -> Array:
        table = jnp.concatenate([jnp.ones((1, work.steps)), below.reshape(size - 1, work.steps)])
        table = jnp.where(inside, table, 0.0)
        return table / jnp.linalg.norm(table, axis=0)

    def logarithm(below: Array) -> Array:
        places = (rows, np.broadcast_to(np.arange(work.steps), rows.shape))
        c = jnp.zeros((work.steps, work.steps)).at[places].add(normalise(below))
        left = jax.scipy.linalg.solve_triangular(c, moved, trans=1, lower=True)
        return jnp.log(jnp.sum(left * left))

    start = np.repeat(np.asarray(square_root(size).coefficients)[1:], work.steps)
    with float64_scope():
        below = _minimise(logarithm, [start]) if size > 1 else start
        return Banded(tuple(map(tuple, np.asarray(normalise(jnp.asarray(below))).T.tolist())))


def _tune(
    make: Callable[[int], Tuned],
    search: Callable[[Tuned, Workload, Callable[[Array, Array], Array]], Tuned],
    wanted: _Wanted,
) -> Tuned:
    """What a search finds from a first strategy on, by checked arguments."""
    name, given = wanted.size
    size, work = int(one_number(name, given, Range(1.0, whole=True))), wanted.find_workload()
    start = make(min(size, work.steps))
    apart = work.steps if wanted.separation is None else wanted.separation
    start.sensitivity(work.steps, apart, wanted.participations)  # refuses what is out of range
    if work.steps == 1 or (size == 1 and not isinstance(start, BufferedToeplitz)):
        return start

    def error2(errors: Array, column: Array) -> Array:
        """The logarithm of the squared error at noise = sensitivity."""
        # Prefix sums' errors rise with the step, so that the largest is the last.
        largest = errors[-1] if not work.rates else jnp.max(errors)
        error = jnp.mean(errors) if wanted.kind == "mean" else largest
        sizes = (float(work.steps), float(apart), float(wanted.participations))
        return jnp.log(error) + jnp.log(summed_columns2(column, *sizes))

    tuned = search(start, work, error2)
    priced = {"separation": apart, "participations": wanted.participations, "kind": wanted.kind}
    # A search that went astray is not worth less than its start.
    return tuned if work.error(tuned, **priced) <= work.error(start, **priced) else start


def _minimise(
    logarithm: Callable[[Any], Any],
    starts: list[np.ndarray],
    bounds: list[tuple[float, float]] | None = None,
) -> np.ndarray:
    """Where the function is least, of all that is found from the starts on."""
    from scipy.optimize import minimize  # loaded here: it is slow to import

    with float64_scope():
        ask = jax.jit(jax.value_and_grad(logarithm))  # one compilation a search

        def value(at: np.ndarray) -> tuple[float, np.ndarray]:
            found, slope = ask(at)
            return float(found), np.asarray(slope)

        options = {"maxiter": 500, "maxcor": 20, "ftol": 1e-14, "gtol": 1e-9}
        how = {"jac": True, "method": "L-BFGS-B", "bounds": bounds, "options": options}
        found = [minimize(value, start, **how) for start in starts]
        return min(found, key=lambda one: one.fun).x
