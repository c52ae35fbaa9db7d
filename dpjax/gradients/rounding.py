"""What floating point may add to the sensitivity of a clipped sum."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

# The longest run of additions, in records, of one batch's sum: see `run_length`.
_BUDGET = 2**16


def run_length(batch_size: int) -> int:
    """How many records are added up in one run before the runs are added pairwise."""
    # The error of a sum grows with (records) × (length of a run): short runs for large batches keep
    # the slack at one or two percent in float32.
    return max(32, _BUDGET // max(batch_size, 1))


def runs(batch_size: int, share_of: int | None = None) -> tuple[int, int]:
    """(number of runs, records a run) with the runs' lengths at most `run_length(batch_size)`."""
    # A share of a batch is cut into runs as short as those of the whole batch, `share_of` records.
    number = -(-batch_size // run_length(share_of or batch_size))
    return number, -(-batch_size // number)


def additions(batch_size: int, pieces: int = 1) -> int:
    """Roundings that a term of a sum over so many records meets, in each of so many pieces."""
    number, length = runs(batch_size)
    # The compensated total of several pieces is off by two round-offs, and some to second order.
    return length + math.ceil(math.log2(number)) + 3 * (pieces > 1)


def pairwise_sum(parts: Array) -> Array:
    """The sum over the leading axis, by halves: its rounding error grows with the logarithm."""
    while parts.shape[0] > 1:
        half = parts.shape[0] // 2
        added = parts[:half] + parts[half : 2 * half]
        parts = jnp.concatenate([added, parts[2 * half :]]) if parts.shape[0] % 2 else added
    return parts[0]


def in_runs(value: Array, share_of: int | None = None) -> Array:
    """[batch, ...] as [runs, records a run, ...], padded with zeros at the end."""
    number, length = runs(value.shape[0], share_of)
    padding = number * length - value.shape[0]
    if padding:
        value = jnp.pad(value, [(0, padding)] + [(0, 0)] * (value.ndim - 1))
    return value.reshape(number, length, *value.shape[1:])


def rounding_slack(
    batch_size: int,
    dimension: int,
    dtype: DTypeLike = jnp.float32,
    failure: float = 1e-12,
    *,
    microbatch_size: int | None = None,
) -> float:
    """The relative increase of a clipped sum's sensitivity that float rounding can cause.

    Multiply the sensitivity (or the noise's standard deviation) by `1 + rounding_slack(...)`.

    Assumes rounding to nearest, and that a record's gradient is what the program computed, whatever
    its own error. Not covered: the ghost method where a record's positions cancel almost entirely,
    Σₜ‖xₜ‖‖yₜ‖ ≫ ‖Σₜ xₜ⊗yₜ‖; there the norm is rounded up instead.

    Args:
        batch_size: the number of records in one sum, padding included.
        dimension: the number of parameters.
        dtype: the dtype of the sum and the norms.
        failure: the probability with which the model of the norms may fail.
        microbatch_size: the size of the pieces, if `clipped_grad` was given one. Pieces that it
            chooses itself are so short that the whole batch's slack covers them.

    Raises:
        ValueError: if a count is not positive, or `failure` not in (0, 1).

    Example:
        >>> f"{rounding_slack(256, 1_900_000):.4f}", f"{rounding_slack(4096, 212):.4f}"
        ('0.0052', '0.0190')
        >>> f"{rounding_slack(256, 1_900_000, dtype='float64'):.1e}"
        '9.7e-12'
    """
    if batch_size < 1 or dimension < 1:
        raise ValueError(
            f"batch_size and dimension must be at least 1, got {batch_size!r} and {dimension!r}"
        )
    if microbatch_size is not None and microbatch_size < 1:
        raise ValueError(f"microbatch_size must be at least 1, or None, got {microbatch_size!r}")
    if not 0 < failure < 1:
        raise ValueError(f"failure must be in (0, 1), got {failure!r}")
    # Derived for dpjax. With u the unit round-off, a sum of b terms in runs of m additions is
    # off by at most γ·Σ|terms|, γ = m·u/(1 − m·u), entry by entry; over the vector and over records
    # of norm at most C that is γ·b·C. The sums of two neighbouring batches are both off by that
    # much: 2·γ·b in units of C.
    u = float(jnp.finfo(dtype).eps) / 2
    pieces = -(-batch_size // (microbatch_size or batch_size))
    run = additions(microbatch_size if microbatch_size and pieces > 1 else batch_size, pieces)
    run = max(run, additions(1, batch_size))  # pieces that `clipped_grad` may choose
    # The factors are made from norms, sums of `dimension` squares; a run that long has no useful
    # worst case, so there the errors are taken as independent with mean zero (Higham and Mary 2019,
    # "A new approach to probabilistic rounding error analysis", Theorem 2.4), for all records and
    # entries at once but for the probability `failure`: λ·√dimension·u/2, λ = √(2·ln(2·b/failure)).
    # The same bound replaces γ where it is smaller.
    confidence = math.sqrt(2 * math.log(2 * batch_size * dimension / failure))
    gamma = min(run, confidence * math.sqrt(run)) * u
    norm = min(dimension, confidence * math.sqrt(dimension)) * u / 2
    return 2 * batch_size * gamma / (1 - gamma) + norm / (1 - norm)
