"""A lower-triangular matrix C of few diagonals, each column with numbers of its own."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from dpjax._numerics.checks import Range, items, number, one_number, render, whole

_MOST = 1 << 22  # numbers of a matrix


@dataclass(frozen=True, repr=False)
class Banded:
    """The lower-triangular matrix whose column t is columns[t], from the diagonal on.

    The last columns of a `Toeplitz` are cut, and so shorter than the others, though each use of a
    record is paid at the length of the longest. Here every column may have the same length. Step t
    of a run adds yₜ = (zₜ − Σ_{0 < l < bands} C[t, t−l]·yₜ₋ₗ)/C[t, t] and keeps the last bands − 1
    noises y, as of a `Toeplitz`.

    Fields:
        columns: one tuple a step, as many numbers in each as there are bands: C[t, t] > 0,
            C[t+1, t], …, of any sign; those beyond the last row are 0. Rounded to float32, in
            which the noise is drawn, so that what is drawn is what is priced.

    Guarantee:
        The sensitivity is exact where records return after `bands` steps or later: the columns of
        one record then have no row in common, so that their squares add up, whatever the
        directions of its contributions. Other uses are refused.

    Example:
        >>> from dpjax.correlation import Banded
        >>> c = Banded(((0.6, 0.8), (0.6, 0.8), (1.0, 0.0)))
        >>> c.bands, c.steps, f"{c.sensitivity(steps=3, separation=2):.4f}"
        (2, 3, '1.4142')

    References:
        Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization", Theorem 3.
    """

    columns: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        given = items("columns", self.columns, "one tuple of numbers a step")
        sizes = {np.size(column) for column in given}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(
                f"columns must be one a step, of one length of at least 1, got lengths {sizes}"
            )
        if len(given) * max(sizes) > _MOST:
            raise ValueError(f"columns must hold at most {_MOST} numbers, got {len(given)} columns")
        with np.errstate(over="ignore"):  # what is too large is refused below
            table = np.asarray(number("columns", given, Range()), np.float32)
        if table.ndim != 2:
            raise ValueError(
                f"columns must be one tuple of numbers a step, got {render(self.columns)}"
            )
        # Numbers below the least normal one may be drawn as 0, and so are priced as 0.
        table = np.where(np.abs(table) < np.finfo(np.float32).tiny, np.float32(0.0), table)
        outside = np.add.outer(np.arange(len(given)), np.arange(table.shape[1])) >= len(given)
        if np.any(table[:, 0] <= 0) or not np.all(np.isfinite(table)) or np.any(table[outside]):
            raise ValueError(
                "columns must begin above 0, be finite in float32 and 0 beyond the last row, got "
                f"{render(self.columns)}"
            )
        object.__setattr__(self, "columns", tuple(map(tuple, table.astype(float).tolist())))

    def __repr__(self) -> str:
        digest = hashlib.sha256(np.asarray(self.columns).tobytes()).hexdigest()[:16]
        return f"Banded(steps={self.steps}, bands={self.bands}, sha256={digest})"

    @property
    def steps(self) -> int:
        """Number of steps of the run that it is for."""
        return len(self.columns)

    @property
    def bands(self) -> int:
        """Number of diagonals."""
        return len(self.columns[0])

    def sensitivity(self, steps: int, separation: int, participations: float = math.inf) -> float:
        """How far one record moves CG, for contributions of norm at most 1; rounded up.

        Args:
            steps: number of steps of the run, at most those of the matrix.
            separation: fewest steps from one use of a record to its next: at least `bands`, or
                as many as there are steps.
            participations: how often a record is used at most.

        Raises:
            ValueError: a count that is out of range.

        Guarantee:
            The largest over all allowed sets of steps.
        """
        return float(self.sensitivities(steps, separation, participations)[-1])

    def sensitivities(
        self, steps: int, separation: int, participations: float = math.inf
    ) -> Float[np.ndarray, " steps"]:
        """The sensitivity of the first 1, 2, …, `steps` steps."""
        rows = int(one_number("steps", steps, Range(1.0, self.steps, whole=True)))
        apart = one_number("separation", separation, Range(1.0, whole=True))
        times = one_number("participations", participations, Range(1.0, whole=True, infinite=True))
        apart = int(min(apart, rows))
        if apart < min(self.bands, rows):
            raise ValueError(
                f"separation must be at least {self.bands}, the bands of the strategy, got {apart}"
            )
        # What column t adds to the square: of the first l + 1 of its rows in partial[t, l].
        partial = np.cumsum(np.square(np.asarray(self.columns)[:rows]), axis=1)
        whole, best = partial[:, -1], np.zeros(rows)
        for _ in range(int(min(times, -(-rows // apart))) - 1):
            # `best[t]`: of at most so many uses up to step t
            best = np.maximum.accumulate(whole + _delay(best, apart))
        before = _delay(best, apart)
        # Only the last use is cut, in a column that began less than `bands` rows ago.
        found = np.zeros(rows)
        for lag in range(min(self.bands, rows)):
            found[lag:] = np.maximum(found[lag:], (partial[:, lag] + before)[: rows - lag])
        found = np.maximum.accumulate(found)
        # Sums of positive terms: as many roundings as bands and uses, and this is twice as much.
        slack = (self.bands + rows / apart + 8) * float(np.finfo(np.float64).eps)
        return np.nextafter(np.sqrt(found * (1 + slack)), np.inf)

    def cyclic_sensitivities(
        self, steps: int, separation: int, participations: float = math.inf
    ) -> Float[np.ndarray, " steps"]:
        """The sensitivity of the first 1, 2, …, `steps` steps for records read in a fixed order.

        A record enters all steps of one number modulo `separation` and no others, of which columns
        may overlap: ‖Σ C[:, t] xₜ‖² ≤ Σ |Gₛₜ| over its steps s and t, G = CᵀC, for contributions
        of any directions; and equal where all Gₛₜ are ≥ 0 or s = t.

        Args:
            steps: number of steps of the run, at most those of the matrix.
            separation: steps from one use of a record to its next, exactly.
            participations: as often as the steps let, or more.

        Raises:
            ValueError: a count that is out of range.
        """
        rows = int(one_number("steps", steps, Range(1.0, self.steps, whole=True)))
        apart = int(min(one_number("separation", separation, Range(1.0, whole=True)), rows))
        uses = -(-rows // apart)
        one_number("participations", participations, Range(uses, whole=True, infinite=True))
        c, found = self.matrix(rows), np.zeros(rows)
        # Each Gₛₜ is off by at most so many roundings of ‖C[:, s]‖·‖C[:, t]‖, twice as much here.
        slack = (2 * rows + 8) * float(np.finfo(np.float64).eps)
        for first in range(apart):
            own = c[:, first::apart]
            gram = np.cumsum(own[:, :, None] * own[:, None, :], axis=0)
            lengths = np.sum(np.sqrt(np.cumsum(own * own, axis=0)), axis=1)
            found = np.maximum(found, np.sum(np.abs(gram), axis=(1, 2)) + slack * lengths**2)
        # More rows move no less: the bound of more rows is one of fewer, where it is less.
        found = np.minimum.accumulate(found[::-1])[::-1]
        return np.nextafter(np.sqrt(found * (1 + slack)), np.inf)

    def inverse_row(self, step: int) -> Float[np.ndarray, " steps"]:
        """Row `step` of C⁻¹, of which y is made at that step."""
        size = int(one_number("step", step, Range(0.0, self.steps - 1.0, whole=True))) + 1
        found = np.zeros(size)
        found[-1] = 1 / self.columns[size - 1][0]
        for t in range(size - 2, -1, -1):  # wᵀC = e, from the last column back
            column = np.asarray(self.columns[t])
            below = found[t + 1 : t + self.bands]
            found[t] = -(column[1 : 1 + below.size] @ below) / column[0]
        return found

    def matrix(self, steps: int) -> Float[np.ndarray, "steps steps"]:
        """C itself, its first `steps` rows and columns."""
        found, rows = np.zeros((self.steps, self.steps)), whole("steps", steps, 0)
        for t, column in enumerate(self.columns):
            entries = column[: self.steps - t]
            found[t : t + len(entries), t] = entries
        return found[:rows, :rows]


def _delay(values: np.ndarray, steps: int) -> np.ndarray:
    """The values of so many steps before, and 0 before the first."""
    return np.concatenate([np.zeros(steps), values])[: values.size]
