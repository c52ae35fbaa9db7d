"""Which values of its parameter a function that makes a mechanism accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpjax._numerics import checks
from dpjax.accounting.mechanisms import Mechanism

MakeMechanism = Callable[[Any], Mechanism]

_LEAST, _MOST = 2.0**-40, 2.0**40  # the parameters that are searched


def _accepts(make: MakeMechanism, value: float) -> bool:
    try:
        run = make(value)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        return False
    if not isinstance(run, Mechanism):
        raise TypeError(f"make_mechanism must return a mechanism, got {checks.shown(run)}")
    return True


def is_whole(make: MakeMechanism) -> bool:
    """Whether the mechanism takes whole numbers only, as `Repeated.steps` does."""
    if _accepts(make, 1.375) or _accepts(make, 0.6875):
        return False
    good = [v for v in (2.0**k for k in range(0, 20, 4)) if _accepts(make, v)]
    return bool(good) and not any(_accepts(make, v - f) for v in good for f in (0.25, 0.375))


def _start(make: MakeMechanism) -> float:
    """A parameter that the mechanism accepts, the nearest power of two to one."""
    for exponent in range(41):
        for value in (2.0**exponent, 2.0**-exponent):
            if _accepts(make, value):
                return value
    raise ValueError(
        "make_mechanism must accept some value of its parameter between "
        f"{_LEAST:.3g} and {_MOST:.3g}, got none"
    )


def _limit(make: MakeMechanism, good: float, bad: float, whole: bool) -> float:
    """The last parameter accepted on the way from one that is to one that is not."""
    while abs(bad - good) > (1.0 if whole else 1e-12 * good):
        middle = 0.5 * (good + bad)
        middle = np.floor(middle) if whole else middle
        if middle in (good, bad):
            break
        good, bad = (middle, bad) if _accepts(make, middle) else (good, middle)
    return float(good)


class Ends:
    """The parameters within which to search; those that the mechanism refuses are found out."""

    def __init__(self, make: MakeMechanism, whole: bool, bounds: tuple[float, float] | None):
        self._make, self._whole, self._known = make, whole, bounds is not None
        self.low, self.high = bounds or (1.0 if whole else _LEAST, _MOST)
        self.good = [*bounds] if bounds else [_start(make)] * 2

    def inside(self, value: np.ndarray) -> np.ndarray:
        """The nearest parameters that are accepted."""
        for reach in (float(np.min(value)), float(np.max(value))):
            reach = min(max(reach, self.low), self.high)
            if self._known or self.good[0] <= reach <= self.good[1]:
                continue
            k = int(reach > self.good[1])
            if not _accepts(self._make, reach):
                reach = _limit(self._make, self.good[k], reach, self._whole)
                self.low, self.high = (self.low, reach) if k else (reach, self.high)
            self.good[k] = reach
        return np.clip(value, self.low, self.high)
