"""How far what a record moves in one bin of steps overlaps with what it moves in another.

A record that enters the steps S moves CG by v_S = Σ_{s ∈ S} C[:, s], for contributions that are all
one unit vector. Of a random choice of S the price reads ⟨v, v'⟩ of two choices, bounded by how far
apart their bins are. All entries are ≥ 0, so that a sum of n products is off by at most n + 1 units
of roundoff of itself, in whatever order it is added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

_U = 2.0**-53
_SQUARABLE = 1e-140, 1e140  # entries whose squares float64 holds
_UNDERFLOW = 1e-150  # entries below which products lose digits, or vanish
_WHOLE_UP_TO = 2.0**53  # sums of whole numbers below are exact


class Overlaps(NamedTuple):
    """Bounds on inner products of what a record moves by two of its choices.

    Fields:
        most: [epochs, bins]: of a run of 1, 2, … epochs, for two choices whose bins are 0, 1, …
            apart in every epoch; rounded up, and nowhere above its first.
        least_own: at least that of a choice with itself, of the whole run; rounded down.
        least_shared: at least that of two choices, of the whole run; at most `least_own`.
    """

    most: Float[np.ndarray, "epochs bins"]
    least_own: float
    least_shared: float


def overlaps_of_column(
    column: Float[np.ndarray, " steps"], bins: int, epochs: int, redrawn: bool
) -> Overlaps:
    """Return the overlaps of the Toeplitz matrix C[t, s] = c_{t−s}, c ≥ 0.

    Args:
        column: c₀, c₁, …; zero beyond the last.
        bins: steps of an epoch.
        epochs: number of epochs.
        redrawn: whether a record's bin is drawn afresh in every epoch, or is one for all.

    Raises:
        ValueError: an entry below 0, or squares that float64 cannot hold.
    """
    rows = bins * epochs
    c = np.zeros(rows)
    c[: min(rows, len(column))] = column[:rows]
    _check_entries(c)
    if redrawn:
        return _redrawn_of_column(c, bins, epochs)
    # What bin 0 moves; bin j moves the same, j rows later, and so shares the fewer rows with
    # another bin the later both are.
    moved = np.cumsum(c.reshape(epochs, bins), axis=0).ravel()
    ends = bins * np.arange(1, epochs + 1)
    most, least = np.zeros((epochs, bins)), np.zeros(bins)
    for lag in range(bins):
        sums = np.cumsum(moved[: rows - lag] * moved[lag:])
        most[:, lag] = sums[ends - lag - 1]
        least[lag] = sums[rows - bins]
    shared = float(np.min(least[1:], initial=least[0]))
    return _round_outwards(most, float(least[0]), shared, c, rows + 3 * epochs)


def _redrawn_of_column(c: np.ndarray, bins: int, epochs: int) -> Overlaps:
    """The same where bins are drawn afresh: within an epoch, and the most across two of them."""
    rows = len(c)
    ends = bins * np.arange(1, epochs + 1)
    own, least = np.zeros((epochs, bins)), np.zeros((epochs, bins))
    # For two epochs that are f apart: the most in a run of so many epochs, and the least where
    # the later one is that epoch.
    across, least_across = np.zeros((epochs, epochs)), np.full((epochs, epochs), np.inf)
    for lag in range(rows):
        # A pair of steps shares the rows from the later one on: the later it is, the fewer.
        sums = np.cumsum(c[: rows - lag] * c[lag:])
        if lag < bins:
            own[:, lag] = sums[ends - lag - 1]
        last = rows - ends  # rows beyond each epoch
        fits = last < rows - lag
        if lag < bins:
            least[fits, lag] = sums[last[fits]]
        for f in range(max(lag // bins, 1), min(lag // bins + 2, epochs)):
            if lag > (f - 1) * bins and lag < (f + 1) * bins:
                shared = ends - max(lag, f * bins)
                some = shared > 0
                across[some, f] = np.maximum(across[some, f], sums[shared[some] - 1])
                least_across[fits, f] = np.minimum(least_across[fits, f], sums[last[fits]])
    return _add_epochs(own, across, least, least_across, c, rows + 3 * epochs)


def overlaps_of_matrix(
    matrix: Callable[[int], Float[np.ndarray, "rows steps"]], bins: int, epochs: int, redrawn: bool
) -> Overlaps:
    """Return the overlaps of a matrix, given as a function of the number of steps.

    Args:
        matrix: from a number of steps to C of as many columns, entries ≥ 0.
        bins, epochs, redrawn: as of `overlaps_of_column`.

    Raises:
        ValueError: an entry below 0, or squares that float64 cannot hold.
    """
    most, c = np.zeros((epochs, bins)), np.zeros((0, 0))
    own, across = np.zeros((epochs, bins)), np.zeros((epochs, epochs))
    least, least_across = np.zeros((epochs, bins)), np.full((epochs, epochs), np.inf)
    shared = np.inf
    for run in range(1, epochs + 1):
        c = np.asarray(matrix(run * bins), np.float64)
        if c.ndim != 2 or c.shape[1] != run * bins:
            raise ValueError(
                f"strategy must have a matrix of {run * bins} columns for as many steps, got one "
                f"of shape {c.shape}"
            )
        _check_entries(c)
        if redrawn:
            g = (c.T @ c).reshape(run, bins, run, bins)
            for e in range(run):
                for later in range(e + 1, run):
                    f, block = later - e, g[e, :, later]
                    across[run - 1, f] = max(across[run - 1, f], block.max())
                    least_across[later, f] = min(least_across[later, f], block.min())
                high, low = _by_distance(g[e, :, e])
                own[run - 1] = np.maximum(own[run - 1], high)
                least[e] = low
            if run < epochs:
                least_across[:] = np.inf
        else:
            moved = c.reshape(-1, run, bins).sum(1)
            most[run - 1], low = _by_distance(moved.T @ moved)
            least[0], shared = low, float(np.min(low[1:], initial=low[0]))
    operations = len(c) + 3 * epochs
    if redrawn:
        return _add_epochs(own, across, least, least_across, c, operations)
    return _round_outwards(most, float(least[0, 0]), shared, c, operations)


def _by_distance(k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest and the least entry of each diagonal of a symmetric matrix."""
    diagonals = [np.diagonal(k, d) for d in range(len(k))]
    return np.array([d.max() for d in diagonals]), np.array([d.min() for d in diagonals])


def _add_epochs(
    own: np.ndarray,
    across: np.ndarray,
    least: np.ndarray,
    least_across: np.ndarray,
    c: np.ndarray,
    operations: int,
) -> Overlaps:
    """Sums over pairs of epochs, each bounded by its own largest or least."""
    epochs = len(own)
    number = np.arange(1, epochs + 1)[:, None]
    pairs = np.maximum(number - np.arange(epochs), 0) * (np.arange(epochs) > 0)
    most = 2 * np.sum(pairs * across, axis=1, keepdims=True) + number * own
    low = np.min(least[:, 1:], axis=1, initial=np.inf)
    low = np.minimum(low, least[:, 0])
    # One and the same allocation in every epoch: by the epoch where it gains least.
    gain = float(np.min(least[:, 0] - low))
    # Where there is an epoch f before.
    there = np.isfinite(least_across) & (np.arange(epochs) < number) & (np.arange(epochs) > 0)
    met = np.where(there, least_across, 0.0)
    shared = float(np.sum(low) + 2 * np.sum(met))
    return _round_outwards(most, shared + epochs * gain, shared, c, operations)


def _check_entries(c: np.ndarray) -> None:
    largest = float(np.max(c, initial=0.0))
    if not np.all(c >= 0):
        raise ValueError(
            f"strategy must have entries >= 0, got {float(c[~(c >= 0)].flat[0])}: for others no "
            "price of random allocation is known"
        )
    if largest and not _SQUARABLE[0] <= largest <= _SQUARABLE[1]:
        raise ValueError(
            f"strategy must have a largest entry in [{_SQUARABLE[0]:g}, {_SQUARABLE[1]:g}], got "
            f"{largest:g}: scale it and the noise alike"
        )


def _round_outwards(
    most: np.ndarray, least_own: float, least_shared: float, c: np.ndarray, operations: int
) -> Overlaps:
    """Bounds that allow for so many roundings of sums of products; none of whole numbers."""
    whole = np.all(c == np.rint(c)) and np.max(most, initial=0.0) < _WHOLE_UP_TO
    slack = 0.0 if whole else 4 * (operations + 8) * _U
    small = float(np.min(c, where=c > 0, initial=np.inf)) < _UNDERFLOW
    high = most * (1 + slack) + (operations + 8) * 4e-323 * small
    # CAUCHY: ⟨v, v'⟩ ≤ max ‖v‖², whatever roundings say.
    high = np.minimum(high, high[:, :1])
    own, shared = max(least_own * (1 - slack), 0.0), max(least_shared * (1 - slack), 0.0)
    return Overlaps(high, own, min(own, shared))
