"""`Toeplitz`, the matrix C whose inverse correlates the noise of a run, and plain choices of it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from dpjax._numerics.checks import Range, number, one_number, shown
from dpjax._numerics.scope import float64_scope
from dpjax._numerics.toeplitz import solve, summed_columns2


@dataclass(frozen=True)
class Toeplitz:
    """The lower-triangular Toeplitz matrix C[t, s] = c_{t−s} of a run's strategy.

    Step t of a run adds (C⁻¹z)ₜ to its sum, z fresh Gaussian noise: whoever adds up the first
    steps' releases then adds up noise that partly cancels. A record's contribution x to step s
    reaches the release as column s of C times x, so the matrix decides the price as well. Only the
    ratio of noise to sensitivity matters, and C may be scaled at will.

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
        c = number("coefficients", _listed(self.coefficients), Range(0.0))
        c = tuple(np.ravel(np.asarray(c, np.float64)).tolist())
        if not c or c[0] == 0 or any(b > a for a, b in itertools.pairwise(c)):
            raise ValueError(
                "coefficients must begin above 0 and never increase, "
                f"got {shown(self.coefficients)}"
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
            >>> from dpjax.correlation import identity
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
        """The first column of C⁻¹ for so many steps; C⁻¹ is Toeplitz as well.

        Example:
            >>> from dpjax.correlation import Toeplitz
            >>> Toeplitz((1.0, 0.5)).inverse(4).tolist()
            [1.0, -0.5, 0.25, -0.125]
        """
        with float64_scope():
            first = np.zeros(steps)
            first[0] = 1.0
            return np.asarray(solve(jnp.asarray(self.coefficients[:steps]), jnp.asarray(first)))

    def matrix(self, steps: int) -> Float[np.ndarray, "steps steps"]:
        """C itself, for checks at small sizes.

        Example:
            >>> from dpjax.correlation import Toeplitz
            >>> Toeplitz((2.0, 1.0)).matrix(2).tolist()
            [[2.0, 0.0], [1.0, 2.0]]
        """
        column = np.zeros(steps)
        kept = self.coefficients[:steps]
        column[: len(kept)] = kept
        return lower_triangular(column, steps)


def lower_triangular(column: Any, steps: int) -> Float[np.ndarray, "steps steps"]:
    """The Toeplitz matrix with this first column."""
    apart = np.subtract.outer(np.arange(steps), np.arange(steps))
    return np.where(apart >= 0, column[np.maximum(apart, 0)], 0.0)


def _listed(values: Any) -> Any:
    return list(values) if isinstance(values, tuple) else values


def identity() -> Toeplitz:
    """Fresh noise at every step: DP-SGD.

    Example:
        >>> from dpjax.correlation import identity
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

    Raises:
        ValueError: bands below 1.

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
