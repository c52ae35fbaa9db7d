"""How fast a run is and how much memory it takes, for whoever watches it."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import jax

from dpjax._digits import rounded_up
from dpjax.training.arguments import SHOWN
from dpjax.training.phases import rate_of
from dpjax.training.plan import Plan

__all__ = ["Speed", "progress_line"]


class Speed:
    """Steps and records a second since the last row, and the most memory taken so far.

    Records are those that the plan expects of these steps, a public number: how many were drawn is
    private. The first call of the compiled loop, which compiles it, counts only where a row has no
    other. What `evaluate` and checkpoints take is not counted.

    Args:
        plan: of the run.

    Example:
        >>> from dpjax.training import make_plan
        >>> plan = make_plan(400, noise_multiplier=2.0, delta=1e-5, steps=100, batch_size=100)
        >>> speed = Speed(plan)
        >>> speed.took(0, 1, seconds=9.0)  # compiles
        >>> speed.took(1, 21, seconds=2.0)
        >>> row = speed.row(None)
        >>> round(row["steps_per_second"], 6), round(row["records_per_second"], 6)
        (10.0, 1000.0)
    """

    def __init__(self, plan: Plan):
        self._plan, self._calls = plan, 0
        self._clear()

    def _clear(self) -> None:
        self._steps, self._records, self._seconds = 0, 0.0, 0.0

    def took(self, first: int, stop: int, seconds: float) -> None:
        """One call of the compiled loop: its first step, the step after its last, and its time."""
        if self._calls == 1:
            self._clear()
        self._calls += 1
        self._steps += stop - first
        self._records += _expected(self._plan, first, stop)
        self._seconds += seconds

    def row(self, params: Any) -> dict[str, float]:
        """What is shown of the calls since the last row; NaN where there were none.

        Args:
            params: of the run, on the devices whose memory is meant.
        """
        none = self._seconds <= 0
        steps = math.nan if none else self._steps / self._seconds
        records = math.nan if none else self._records / self._seconds
        self._clear()
        return dict(zip(SHOWN, (steps, records, most_memory(params)), strict=True))


def _expected(plan: Plan, first: int, stop: int) -> float:
    """Records that the plan expects of the steps from `first` to before `stop`."""
    records, begun = 0.0, 0
    for phase in plan.phases:
        steps = min(stop, begun + phase.steps) - max(first, begun)
        records += max(0, steps) * rate_of(phase.step) * plan.population
        begun += phase.steps
    return records


def most_memory(params: Any) -> float:
    """The most bytes that a device of these arrays has held, or else this process; NaN if unknown.

    Example:
        >>> most_memory(None) > 1e6
        True
    """
    stats = [device.memory_stats() or {} for device in _devices_of(params)]
    found = [stat["peak_bytes_in_use"] for stat in stats if "peak_bytes_in_use" in stat]
    if found:
        return float(max(found))
    try:
        import resource
    except ImportError:  # Windows
        return math.nan
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def _devices_of(params: Any) -> set[Any]:
    arrays = [leaf for leaf in jax.tree.leaves(params) if isinstance(leaf, jax.Array)]
    return {device for leaf in arrays for device in leaf.sharding.addressable_devices}


def progress_line(row: Mapping[str, float]) -> str:
    """One line of a row, as `fit` hands it to `on_log`.

    Args:
        row: step, epsilon, and whatever else there is; what is NaN is left out.

    Returns:
        A text without an end of line.

    Example:
        >>> row = {"step": 40, "epsilon": 1.25, "accuracy": 0.9, "steps_per_second": 12.5}
        >>> progress_line(row | {"records_per_second": 1250.0, "memory": 2.5e9})
        'step 40, ε 1.25, accuracy 0.9, 12.5 steps/s, 1,250 records/s, 2,500 MB'
    """
    parts = [f"step {int(row['step']):,}", f"ε {rounded_up(row['epsilon'], 4)}"]
    for name, value in row.items():
        if name not in ("step", "epsilon", *SHOWN) and not math.isnan(value):
            parts.append(f"{name} {value:.4g}")
    units = ("{:,.4g} steps/s", "{:,.0f} records/s", "{:,.0f} MB")
    for name, unit in zip(SHOWN, units, strict=True):
        value = row.get(name, math.nan) / (1e6 if name == "memory" else 1.0)
        if not math.isnan(value):
            parts.append(unit.format(value))
    return ", ".join(parts)
