"""An adaptive clip norm in a plan: how far it moves, and the noise at both ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from dpjax._numerics.checks import CLIP_NORMS, Range, one_number, shown
from dpjax.gradients import AdaptiveQuantile

__all__ = ["check_noise", "in_numbers", "reach"]

# An adaptive clip norm stays within this factor of the first one.
_FURTHEST = 1e6
# The largest standard deviation of noise whose draws, up to |z| = 9.3, and sums float32 holds.
_MOST_NOISE = 1e36
_HELD = Range(float(np.finfo(np.float32).tiny), _MOST_NOISE)


def reach(clip_norm: float) -> tuple[float, float]:
    """The least and the largest clip norm of a run whose first is given, whatever is drawn.

    They are among those that a plan may have: no gradient's norm vanishes or overflows.

    Example:
        >>> reach(0.5), reach(1e17)
        ((5e-07, 500000.0), (100000000000.0, 1e+19))
    """
    return max(clip_norm / _FURTHEST, CLIP_NORMS.low), min(clip_norm * _FURTHEST, CLIP_NORMS.high)


def in_numbers(adaptive: Any) -> AdaptiveQuantile:
    """The same with numbers alone: a trace may leave them open, a run may not.

    Raises:
        ValueError, TypeError: something else, or a number out of its range.

    Example:
        >>> in_numbers(AdaptiveQuantile(np.float64(2.0), 10)).count_noise
        2.0
    """
    if not isinstance(adaptive, AdaptiveQuantile):
        raise ValueError(f"adaptive must be an AdaptiveQuantile or None, got {shown(adaptive)}")
    found = {}
    for own in dataclasses.fields(adaptive):
        high = 1.0 if own.name == "quantile" else _MOST_NOISE
        allowed = Range(0.0, high, open_low=True, open_high=True)
        found[own.name] = one_number(own.name, getattr(adaptive, own.name), allowed)
    return dataclasses.replace(adaptive, **found)


def check_noise(
    multipliers: Iterable[float], clip_norm: float, adaptive: AdaptiveQuantile | None
) -> None:
    """Refuse noise that float32 does not hold, at any clip norm that a run may have.

    Args:
        multipliers: the noise multipliers that are priced.
        clip_norm: the first one.
        adaptive: how it moves, or None.

    Raises:
        ValueError: such noise, or a count that costs more than its step.

    Example:
        >>> check_noise([1.0, 0.0], 1e19, None)
    """
    for multiplier in multipliers:
        if adaptive is None:
            noise = multiplier * clip_norm
            if multiplier > 0 and noise < _HELD.low:
                raise ValueError(
                    "clip_norm times the noise multiplier must be 0, or at least "
                    f"{_HELD.low:.1e} for float32 to hold the noise, got {noise:g}"
                )
            if not noise <= _MOST_NOISE:
                raise ValueError(
                    "clip_norm times the noise multiplier must be at most "
                    f"{_MOST_NOISE:g} for float32 to hold the noise, got {noise:g}"
                )
            continue
        own = adaptive.gradient_noise(multiplier)
        for end in reach(clip_norm):
            if not _HELD.holds(own * end):
                raise ValueError(
                    f"noise of a step must be in [{_HELD.low:.1e}, {_HELD.high:g}] for float32 to "
                    f"hold it wherever the clip norm moves, got {own * end:g} at clip norm {end:g}"
                )
