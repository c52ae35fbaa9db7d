"""The matrix C whose inverse correlates the noise of a run: its sensitivity, and plain choices.

`Toeplitz` has few diagonals of C, `BandedInverse` few of C⁻¹: its noise needs no memory. Of a
`BufferedToeplitz` all diagonals are a sum of a few geometric series: it needs one buffer for each.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from dpjax._numerics.checks import Range, number, one_number, render, whole
from dpjax._numerics.scope import float64_scope
from dpjax._numerics.toeplitz import solve, summed_columns2
from dpjax.correlation.banded import Banded
from dpjax.correlation.tree import Tree


@dataclass(frozen=True)
class Toeplitz:
    """The lower-triangular Toeplitz matrix C[t, s] = c_{t−s} of a run's strategy.

    Step t of a run adds (C⁻¹z)ₜ to its sum, z fresh Gaussian noise: summed over steps it partly
    cancels. A record's contribution x to step s reaches the release as column s of C times x, so
    the matrix decides the price as well. C may be scaled at will.

    Fields:
        coefficients: c₀ ≥ c₁ ≥ … ≥ 0 with c₀ > 0, a tuple of floats; zero beyond the last.

    Guarantee:
        Coefficients that increase, are negative or not finite are refused: no closed form of
        their sensitivity is known.

    Example:
        >>> from dpjax.correlation import Toeplitz
        >>> c = Toeplitz((1.0, 0.5, 0.25))
        >>> c.bands, f"{c.sensitivity(steps=10, separation=5):.4f}"
        (3, '1.6202')

    References:
        Kalinin and Lampert 2024, "Banded square root matrix factorization".
    """

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        c = coefficients("coefficients", self.coefficients, Range(0.0))
        if not c or c[0] == 0 or any(b > a for a, b in itertools.pairwise(c)):
            raise ValueError(
                "coefficients must begin above 0 and never increase, "
                f"got {render(self.coefficients)}"
            )
        object.__setattr__(self, "coefficients", c)

    @property
    def bands(self) -> int:
        """Number of coefficients, so of diagonals that are not zero."""
        return len(self.coefficients)

    @property
    def norm(self) -> float:
        """‖c‖, the sensitivity of one use of a record."""
        return math.hypot(*self.coefficients)

    def sensitivity(self, steps: int, separation: int, participations: float = math.inf) -> float:
        """How far one record moves CG, for contributions of norm at most 1; rounded up.

            ‖Σ_{j < k} C[:, j·separation]‖,  k = min(participations, ⌈steps/separation⌉)

        Args:
            steps: number of steps of the run.
            separation: fewest steps from one use of a record to its next.
            participations: how often a record is used at most.

        Raises:
            ValueError: a count that is not a whole number of at least 1.

        Guarantee:
            The largest over all allowed sets of steps, which equally spaced uses from the first
            step on attain; and over contributions of any directions, since C ≥ 0.

        Example:
            >>> identity().sensitivity(steps=100, separation=25)
            2.0

        References:
            Kalinin and Lampert 2024, Theorem 2.
        """
        given = {"steps": steps, "separation": separation}
        rows, apart = (one_number(n, v, Range(1.0, whole=True)) for n, v in given.items())
        times = one_number("participations", participations, Range(1.0, whole=True, infinite=True))
        # Relative to c₀: squares of a strategy at another scale might underflow.
        first, column = self.coefficients[0], np.asarray(self.coefficients)
        with np.errstate(over="ignore"):
            root = math.sqrt(float(summed_columns2(column / first, rows, apart, times)))
        return root * first if self.bands == 1 else math.nextafter(root * first, math.inf)

    def inverse(self, steps: int) -> Float[np.ndarray, " steps"]:
        """The first column of C⁻¹ for so many steps; C⁻¹ is Toeplitz as well."""
        with float64_scope():
            first = jnp.asarray(_pad((1.0,), steps))
            return np.asarray(solve(jnp.asarray(self.coefficients[:steps]), first))

    def matrix(self, steps: int) -> Float[np.ndarray, "steps steps"]:
        """C itself, for checks at small sizes."""
        column = _pad(self.coefficients, steps)
        apart = np.subtract.outer(np.arange(steps), np.arange(steps))
        return np.where(apart >= 0, column[np.maximum(apart, 0)], 0.0)


def coefficients(
    name: str, given: Float[ArrayLike, "..."] | Sequence[float], allowed: Range
) -> tuple[float, ...]:
    """A tuple, list or array of numbers that are allowed as a tuple of floats."""
    listed = list(given) if isinstance(given, tuple) else given
    return tuple(np.ravel(np.asarray(number(name, listed, allowed), np.float64)).tolist())


def _pad(values: tuple[float, ...], steps: int) -> Float[np.ndarray, " steps"]:
    """The first `steps` of the values, and zeros."""
    size = whole("steps", steps, 0)
    return np.pad(np.asarray(values[:size]), (0, max(size - len(values), 0)))


def identity() -> Toeplitz:
    """Fresh noise at every step: DP-SGD.

    Example:
        >>> identity()
        Toeplitz(coefficients=(1.0,))
    """
    return Toeplitz((1.0,))


def square_root(bands: int) -> Toeplitz:
    """The square root of the matrix of prefix sums, cut after so many bands.

        c₀ = 1,  c_i = c_{i−1}·(2i − 1)/(2i).

    With as many bands as steps it is the best Toeplitz strategy for the largest error of a prefix
    sum where every record is used once; for several uses, fewer bands than steps between them.

    Args:
        bands: number of coefficients, at least 1.

    Example:
        >>> from dpjax.correlation import square_root
        >>> square_root(4).coefficients
        (1.0, 0.5, 0.375, 0.3125)

    References:
        Fichtenberger, Henzinger and Upadhyay 2023; Kalinin and Lampert 2024.
    """
    bands = int(one_number("bands", bands, Range(1.0, whole=True)))
    i = np.arange(1, bands)
    return Toeplitz(tuple(np.cumprod(np.concatenate([[1.0], (2 * i - 1) / (2 * i)])).tolist()))


_EPS, _TINY = float(np.finfo(np.float64).eps), float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class BandedInverse:
    """The lower-triangular Toeplitz matrix C whose inverse C⁻¹[t, s] = d_{t−s} has few diagonals.

    Step t of a run adds (C⁻¹z)ₜ = Σ_{l < bands} d_l·zₜ₋ₗ: a few noises, each a function of (key,
    step), so that nothing is kept from step to step. C itself is full, with the coefficients

        c₀ = 1/d₀,  c_t = Σ_{0 < l < bands} (−d_l/d₀)·c_{t−l},

    as many as the run has steps. A record's uses therefore overlap at any distance, and no
    amplification by sampling is known; in a fixed order the error is less than a `Toeplitz`'s.

    Fields:
        inverse_coefficients: d₀ > 0 and d₁, d₂, … ≤ 0, a tuple of floats; zero beyond the last.

    Guarantee:
        The sensitivity is that of `Toeplitz` where c₀ ≥ c₁ ≥ … ≥ 0; others are refused.

    Example:
        >>> from dpjax.correlation import BandedInverse
        >>> c = BandedInverse((1.0, -0.5))
        >>> [round(x, 6) for x in c.column(4).tolist()], f"{c.sensitivity(10, 5):.4f}"
        ([1.0, 0.5, 0.25, 0.125], '1.6579')

    References:
        Kalinin, McKenna, Upadhyay and Lampert 2025, "Back to square roots".
    """

    inverse_coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        given = self.inverse_coefficients
        d = coefficients("inverse_coefficients", given, Range())
        if not d or d[0] <= 0 or any(x > 0 for x in d[1:]):
            raise ValueError(
                "inverse_coefficients must begin above 0 and be at most 0 from there on, "
                f"got {render(given)}"
            )
        if not all(math.isfinite(x / d[0]) for x in d) or not math.isfinite(1 / d[0]):
            raise ValueError(
                f"inverse_coefficients must have a size to be inverted, got {render(given)}"
            )
        # With d_l ≤ 0, c never increases over all steps if it does not over as many as there are
        # bands: c_t − c_{t+1} is a sum of earlier such differences with weights −d_l/d₀ ≥ 0.
        head = np.asarray(_invert(d, len(d)))
        # Equal neighbours may be a rounding apart; `column` is an upper bound all the same.
        if np.any(head[1:] > head[:-1] * (1 + 4 * len(d) ** 2 * _EPS)):
            raise ValueError(
                "inverse_coefficients must invert to coefficients that never increase, "
                f"got {render(given)}"
            )
        object.__setattr__(self, "inverse_coefficients", d)

    @property
    def bands(self) -> int:
        """Number of diagonals of C⁻¹ that are not zero, and of noises that a step draws."""
        return len(self.inverse_coefficients)

    def column(self, steps: int) -> Float[np.ndarray, " steps"]:
        """c₀ ≥ c₁ ≥ … for so many steps, rounded up by some units in the last places."""
        rows = int(one_number("steps", steps, Range(1.0, 1e7, whole=True)))
        d = self.inverse_coefficients
        values = np.asarray(_invert(d, rows))
        # All terms are positive: a step adds at most bands + 1 roundings of half an eps each to
        # what the largest earlier coefficient is off, relatively. This is twice as much.
        values = values * (1 + (np.arange(rows) * (len(d) + 1) + 4) * _EPS)
        values = (values + (_TINY if any(d[1:]) else 0.0)) / d[0]  # products may underflow
        return np.maximum.accumulate(values[::-1])[::-1]

    def sensitivity(self, steps: int, separation: int, participations: float = math.inf) -> float:
        """As `Toeplitz.sensitivity`, over all `steps` coefficients."""
        return self.toeplitz(steps).sensitivity(steps, separation, participations)

    def toeplitz(self, steps: int) -> Toeplitz:
        """This strategy for so many steps as a `Toeplitz`, whose noise is kept, not drawn anew."""
        return Toeplitz(tuple(self.column(steps).tolist()))

    def inverse(self, steps: int) -> Float[np.ndarray, " steps"]:
        """The first column of C⁻¹ for so many steps: d, and zeros."""
        return _pad(self.inverse_coefficients, steps)

    def matrix(self, steps: int) -> Float[np.ndarray, "steps steps"]:
        """C itself, for checks at small sizes."""
        return self.toeplitz(steps).matrix(steps)


@functools.lru_cache(maxsize=32)
def _invert(d: tuple[float, ...], rows: int) -> tuple[float, ...]:
    """C's coefficients for d₀ = 1, from those of C⁻¹; Python's floats, alike on every machine."""
    weights, found = [-x / d[0] for x in d[1:]], [1.0]
    for t in range(1, rows):
        total = 0.0
        for weight, before in zip(weights[:t], found[: -len(weights) - 1 : -1], strict=True):
            total += weight * before
        found.append(total)
    return tuple(found)


def inverse_square_root(bands: int) -> BandedInverse:
    """The inverse of the square root of the matrix of prefix sums, cut after so many bands.

        d₀ = 1,  d_l = d_{l−1}·(2l − 3)/(2l).

    The first `bands` coefficients of C are those of `square_root`; the later ones fall faster.

    Args:
        bands: number of coefficients of the inverse, at least 1.

    Example:
        >>> from dpjax.correlation import inverse_square_root
        >>> inverse_square_root(4).inverse_coefficients
        (1.0, -0.5, -0.125, -0.0625)
        >>> [f"{x:.4f}" for x in inverse_square_root(4).column(6).tolist()]
        ['1.0000', '0.5000', '0.3750', '0.3125', '0.2344', '0.1797']

    References:
        Kalinin, McKenna, Upadhyay and Lampert 2025, "Back to square roots".
    """
    bands = int(one_number("bands", bands, Range(1.0, whole=True)))
    l = np.arange(1, bands)
    ratios = np.concatenate([[1.0], (2 * l - 3) / (2 * l)])
    return BandedInverse(tuple(np.cumprod(ratios).tolist()))


@dataclass(frozen=True)
class BufferedToeplitz:
    """The lower-triangular Toeplitz matrix C whose coefficients are a few geometric series, BLT.

        c₀ = 1,  c_t = Σᵢ ωᵢ·θᵢ^{t−1}.

    A step of a run adds yₜ = zₜ − Σᵢ ωᵢ·sᵢ and keeps, of each series, one sum of the noise so far,
    sᵢ ← θᵢ·sᵢ + yₜ: a buffer of the parameters' size. Two to five come near the best Toeplitz
    matrix of as many coefficients as the run has steps. C is full, as that of a `BandedInverse`.

    Fields:
        decays: θᵢ in [0, 1], a tuple of floats; rounded to float32, in which buffers decay, so that
            what is drawn is what is priced.
        weights: ωᵢ ≥ 0, as many, together at most 1; rounded to float32 too.

    Guarantee:
        For these c₀ ≥ c₁ ≥ … ≥ 0, and the sensitivity is that of `Toeplitz`.

    Example:
        >>> from dpjax.correlation import BufferedToeplitz
        >>> c = BufferedToeplitz(decays=(0.5, 0.25), weights=(0.25, 0.25))
        >>> [round(x, 6) for x in c.column(4).tolist()], f"{c.sensitivity(10, 5):.4f}"
        ([1.0, 0.5, 0.1875, 0.078125], '1.6213')

    References:
        Dvijotham et al. 2024, "Efficient and near-optimal noise generation for streaming
        differential privacy"; McMahan, Xu and Zhang 2024, "A hassle-free algorithm for strong
        differential privacy in federated learning systems".
    """

    decays: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, allowed in {"decays": Range(0.0, 1.0), "weights": Range(0.0, 1.0)}.items():
            rounded = np.asarray(coefficients(name, getattr(self, name), allowed), np.float32)
            # Numbers below the least normal one may be drawn as 0, and so are priced as 0.
            rounded = np.where(rounded < np.finfo(np.float32).tiny, 0.0, rounded)
            object.__setattr__(self, name, tuple(rounded.tolist()))
        if not self.decays:
            raise ValueError("decays must be those of at least one series, got ()")
        if len(self.decays) != len(self.weights):
            raise ValueError(
                f"weights must be as many as decays, {len(self.decays)}, got {len(self.weights)}"
            )
        if math.fsum(self.weights) > 1:
            raise ValueError(
                f"weights must sum to at most 1, the first coefficient, got {self.weights}"
            )

    @property
    def buffers(self) -> int:
        """Number of sums that are kept from step to step."""
        return len(self.decays)

    def column(self, steps: int) -> Float[np.ndarray, " steps"]:
        """c₀ ≥ c₁ ≥ … for so many steps, rounded up by some units in the last places."""
        rows = int(one_number("steps", steps, Range(1.0, 1e7, whole=True)))
        found = np.zeros(rows)
        for decay, weight in zip(self.decays, self.weights, strict=True):
            # One product after the other, alike on every machine, as a library's power is not.
            found[1:] += weight * np.cumprod([1.0] + [decay] * (rows - 2))[: rows - 1]
        # All terms are positive: c_t is off by at most t + buffers roundings of half an eps each,
        # relatively, and by numbers below the least normal one. This is twice as much.
        found = found * (1 + (np.arange(rows) + self.buffers + 4) * _EPS)
        found = found + (2 * self.buffers * _TINY if any(self.weights) else 0.0)
        found[0] = 1.0
        return np.maximum.accumulate(found[::-1])[::-1]

    def sensitivity(self, steps: int, separation: int, participations: float = math.inf) -> float:
        """As `Toeplitz.sensitivity`, over all `steps` coefficients."""
        return self.toeplitz(steps).sensitivity(steps, separation, participations)

    def toeplitz(self, steps: int) -> Toeplitz:
        """This strategy for so many steps as a `Toeplitz`, which keeps the noise of every step."""
        return Toeplitz(tuple(self.column(steps).tolist()))

    def inverse(self, steps: int) -> Float[np.ndarray, " steps"]:
        """The first column of C⁻¹ for so many steps."""
        kept, found = [0.0] * self.buffers, []
        for step in range(whole("steps", steps, 0)):
            # the noise that a single z of 1, at the first step, leaves at this one
            y = float(step == 0) - math.fsum(map(operator.mul, self.weights, kept))
            kept = [decay * s + y for decay, s in zip(self.decays, kept, strict=True)]
            found.append(y)
        return np.asarray(found)

    def matrix(self, steps: int) -> Float[np.ndarray, "steps steps"]:
        """C itself, for checks at small sizes."""
        return self.toeplitz(steps).matrix(steps)


CorrelationStrategy = Toeplitz | BandedInverse | BufferedToeplitz | Banded | Tree
