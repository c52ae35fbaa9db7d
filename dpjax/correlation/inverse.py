"""`BandedInverse`, a strategy whose inverse has few diagonals: its noise needs no memory."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from dpjax._numerics.checks import Range, number, one_number, shown
from dpjax.correlation.strategies import Toeplitz, lower_triangular

_EPS, _TINY = float(np.finfo(np.float64).eps), float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class BandedInverse:
    """The lower-triangular Toeplitz matrix C whose inverse C⁻¹[t, s] = d_{t−s} has few diagonals.

    Step t of a run adds (C⁻¹z)ₜ = Σ_{l < bands} d_l·zₜ₋ₗ: a few noises, each a function of (key,
    step), so that nothing is kept from step to step. C itself is full, with the coefficients

        c₀ = 1/d₀,  c_t = Σ_{0 < l < bands} (−d_l/d₀)·c_{t−l},

    as many as the run has steps. A record's uses therefore overlap at any distance, and no
    amplification by sampling is known; in a fixed order the same number of bands leaves less error
    than a `Toeplitz` of as many.

    Fields:
        inverse_coefficients: d₀ > 0 and d₁, d₂, … ≤ 0, a tuple of floats; zero beyond the last.

    Guarantee:
        The sensitivity is that of `Toeplitz` where c₀ ≥ c₁ ≥ … ≥ 0. With d_l ≤ 0 that holds for
        all steps if it holds for as many as there are bands: c_t − c_{t+1} is then a sum of earlier
        such differences with weights −d_l/d₀ ≥ 0. Others are refused.

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
        listed = list(given) if isinstance(given, tuple) else given
        d = np.ravel(np.asarray(number("inverse_coefficients", listed, Range()), np.float64))
        if not d.size or d[0] <= 0 or np.any(d[1:] > 0):
            raise ValueError(
                "inverse_coefficients must begin above 0 and be at most 0 from there on, "
                f"got {shown(given)}"
            )
        d = tuple(d.tolist())
        if not all(math.isfinite(x / d[0]) for x in d) or not math.isfinite(1 / d[0]):
            raise ValueError(
                f"inverse_coefficients must be of a size that can be inverted, got {shown(given)}"
            )
        head = np.asarray(_recursion(tuple(-x / d[0] for x in d[1:]), len(d)))
        # Equal neighbours may be a rounding apart; `column` is an upper bound all the same.
        if np.any(head[1:] > head[:-1] * (1 + 4 * len(d) ** 2 * _EPS)):
            raise ValueError(
                "inverse_coefficients must invert to coefficients that never increase, "
                f"got {shown(given)}"
            )
        object.__setattr__(self, "inverse_coefficients", d)

    @property
    def bands(self) -> int:
        """Number of diagonals of C⁻¹ that are not zero, and of noises that a step draws."""
        return len(self.inverse_coefficients)

    def column(self, steps: int) -> Float[np.ndarray, " steps"]:
        """c₀ ≥ c₁ ≥ … for so many steps, rounded up by some units in the last places.

        Example:
            >>> from dpjax.correlation import inverse_square_root, square_root
            >>> square_root(4).coefficients
            (1.0, 0.5, 0.375, 0.3125)
            >>> [f"{x:.4f}" for x in inverse_square_root(4).column(6).tolist()]
            ['1.0000', '0.5000', '0.3750', '0.3125', '0.2344', '0.1797']
        """
        rows = int(one_number("steps", steps, Range(1.0, 1e7, whole=True)))
        d = self.inverse_coefficients
        values = np.asarray(_recursion(tuple(-x / d[0] for x in d[1:]), rows))
        # All terms are positive: a step adds at most bands + 1 roundings of half an eps each to
        # what the largest earlier coefficient is off, relatively. This is twice as much.
        values = values * (1 + (np.arange(rows) * (len(d) + 1) + 4) * _EPS)
        values = (values + (_TINY if any(d[1:]) else 0.0)) / d[0]  # products may underflow
        return np.maximum.accumulate(values[::-1])[::-1]

    def sensitivity(self, steps: int, separation: int, participations: float = math.inf) -> float:
        """How far one record moves CG, for contributions of norm at most 1; rounded up.

        Arguments, errors and guarantee as of `Toeplitz.sensitivity`, over all `steps` coefficients.

        Example:
            >>> from dpjax.correlation import inverse_square_root
            >>> f"{inverse_square_root(8).sensitivity(100, 100):.4f}"
            '1.3695'
        """
        return self.toeplitz(steps).sensitivity(steps, separation, participations)

    def toeplitz(self, steps: int) -> Toeplitz:
        """The same strategy for so many steps as a `Toeplitz`, whose noise is kept, not drawn anew.

        Example:
            >>> from dpjax.correlation import BandedInverse
            >>> BandedInverse((0.5,)).toeplitz(9).bands
            9
        """
        return Toeplitz(tuple(self.column(steps).tolist()))

    def inverse(self, steps: int) -> Float[np.ndarray, " steps"]:
        """The first column of C⁻¹ for so many steps: d, and zeros.

        Example:
            >>> from dpjax.correlation import BandedInverse
            >>> BandedInverse((1.0, -0.5)).inverse(4).tolist()
            [1.0, -0.5, 0.0, 0.0]
        """
        found = np.zeros(steps)
        kept = self.inverse_coefficients[:steps]
        found[: len(kept)] = kept
        return found

    def matrix(self, steps: int) -> Float[np.ndarray, "steps steps"]:
        """C itself, for checks at small sizes.

        Example:
            >>> from dpjax.correlation import BandedInverse
            >>> BandedInverse((0.5, -0.25)).matrix(2).round(6).tolist()
            [[2.0, 0.0], [1.0, 2.0]]
        """
        return lower_triangular(self.column(steps), steps)


@functools.lru_cache(maxsize=32)
def _recursion(weights: tuple[float, ...], rows: int) -> tuple[float, ...]:
    """1, then each the weighted sum of those before it; Python's floats, alike on every machine."""
    found = [1.0]
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

    Raises:
        ValueError: bands below 1.

    Example:
        >>> from dpjax.correlation import inverse_square_root
        >>> inverse_square_root(4).inverse_coefficients
        (1.0, -0.5, -0.125, -0.0625)

    References:
        Kalinin, McKenna, Upadhyay and Lampert 2025, "Back to square roots".
    """
    bands = int(one_number("bands", bands, Range(1.0, whole=True)))
    l = np.arange(1, bands)
    ratios: Any = np.concatenate([[1.0], (2 * l - 3) / (2 * l)])
    return BandedInverse(tuple(np.cumprod(ratios).tolist()))
