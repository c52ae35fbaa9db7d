"""The binary tree of DP-FTRL: a row of C for each dyadic block of steps, and its sensitivity."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from dpjax._numerics.checks import Range, one_number, whole

# What may happen in a block: uses, steps that are blocked after it, and its rows' squares.
_Outcome = tuple[int, int, int]


@dataclass(frozen=True)
class Tree:
    """Binary tree aggregation: a row of C for each dyadic block of steps that a prefix sum uses.

    The sum of the first T steps is that of one block for each binary digit of T that is 1, and its
    noise the sum of these blocks' noises: popcount(T) of them. Row (h, i), i even, of C is 1 at the
    2ʰ steps from i·2ʰ on and 0 elsewhere. A block with i odd ends where its parent does, is in no
    prefix sum, and is not released. Step t of a run adds the noise of the block of T = t + 1 that
    is new and takes off those of the blocks that it is made of, two draws a step on average, each a
    function of (key, block). The sensitivity is found by dynamic programming over the blocks, exact
    in integers.

    Example:
        >>> from dpjax.correlation import Tree
        >>> tree = Tree()
        >>> f"{tree.sensitivity(8, 8):.4f}", tree.matrix(3).tolist()
        ('2.0000', [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])

    References:
        Dwork et al. 2010; Chan, Shi and Song 2011; Kairouz et al. 2021, "Practical and private
        (deep) learning without sampling or shuffling".
    """

    def sensitivity(self, steps: int, separation: int, participations: float = math.inf) -> float:
        """How far one record moves CG, for contributions of norm at most 1; rounded up.

        Args:
            steps, separation, participations: as of `Toeplitz.sensitivity`.

        Raises:
            ValueError: a count that is not a whole number of at least 1, or steps above 2^20.

        Guarantee:
            The largest over all allowed sets of steps; over contributions of any directions, since
            C ≥ 0.
        """
        return float(self.sensitivities(steps, separation, participations)[-1])

    def sensitivities(
        self, steps: int, separation: int, participations: float = math.inf
    ) -> Float[np.ndarray, " steps"]:
        """The sensitivity of the first 1, 2, …, `steps` steps."""
        few = Range(1.0, 2.0**20, whole=True)
        rows = int(one_number("steps", steps, few))
        apart = one_number("separation", separation, Range(1.0, whole=True))
        times = one_number("participations", participations, Range(1.0, whole=True, infinite=True))
        apart = int(min(apart, rows))
        limit = None if times >= -(-rows // apart) else int(times)
        squares = np.asarray(_squared_sensitivities(rows, apart, limit), np.float64)
        return np.nextafter(np.sqrt(squares), np.inf)  # the root is rounded to nearest

    def matrix(self, steps: int) -> Float[np.ndarray, "blocks steps"]:
        """C itself, a row for each block in the order in which they end, for small sizes."""
        found, rows = [], whole("steps", steps, 0)
        for end in range(1, rows + 1):
            height = (end & -end).bit_length() - 1  # of the longest block that ends here
            found.append([float(end - 2**height <= s < end) for s in range(rows)])
        return np.asarray(found)


@functools.lru_cache(maxsize=32)
def _squared_sensitivities(steps: int, apart: int, limit: int | None) -> tuple[int, ...]:
    """The square of the sensitivity of the first 1, 2, …, `steps` steps."""

    @functools.cache
    def block(height: int, blocked: int) -> tuple[_Outcome, ...]:
        """What may happen in a block's descendants, where its first steps are blocked."""
        if blocked >= 1 << height:
            return ((0, blocked - (1 << height), 0),)
        if height == 0:
            return ((0, 0, 0), (1, apart - 1, 0))
        halves = (
            (k + more, left, value + k * k + rest)
            for k, after, value in block(height - 1, blocked)
            for more, left, rest in block(height - 1, after)
        )
        return _drop_dominated(halves, limit)

    # The first T steps are the blocks of T's binary digits, longest first.
    ways: list[tuple[_Outcome, ...]] = [((0, 0, 0),)]
    for end in range(1, steps + 1):
        low = end & -end  # the length of the last block
        longer = (
            (uses + k if limit else 0, left, before + k * k + value)
            for uses, after, before in ways[end - low]
            for k, left, value in block(low.bit_length() - 1, after)
        )
        ways.append(_drop_dominated(longer, limit))
    return tuple(max(value for _, _, value in found) for found in ways[1:])


def _drop_dominated(outcomes: Iterable[_Outcome], limit: int | None) -> tuple[_Outcome, ...]:
    """Without those that another one is at least as good as for all that may follow."""
    # Fewer blocked steps and a larger square are better, and so are more uses, which count in the
    # blocks around, unless their number is limited.
    kept: list[_Outcome] = []
    allowed = outcomes if limit is None else (o for o in outcomes if o[0] <= limit)
    for k, left, value in sorted(set(allowed), key=lambda o: (-o[0], o[1], -o[2])):
        if not any(
            (k == uses if limit else True) and after <= left and square >= value
            for uses, after, square in kept
        ):
            kept.append((k, left, value))
    return tuple(kept)
