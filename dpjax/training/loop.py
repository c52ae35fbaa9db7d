"""The training loop: calls of the compiled step, metrics, checkpoints, early stopping, speed."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from dpjax._digits import format_rounded_up
from dpjax._numerics.checks import Range, one_number
from dpjax._numerics.typing import Params
from dpjax.training.checkpoint import CheckpointError
from dpjax.training.devices import broadcast_from_leader
from dpjax.training.options import SHOWN, check_integer, check_metric_names
from dpjax.training.plan import Plan
from dpjax.training.run_store import RunStore
from dpjax.training.typing import Evaluate, Row, RunState, Totals


class Feed(Protocol):
    """Takes steps on the records of a run, wherever they come from."""

    def stop(self, step: int) -> int:
        """The step before which a call that begins at this one ends."""
        ...

    def advance(
        self, state: RunState, totals: Totals, step: int, stop: int
    ) -> tuple[RunState, Totals]:
        """The state and the totals after the steps from `step` to before `stop`."""
        ...

    def record_timing(self, steps: int, seconds: float) -> None:
        """Be told how long so many steps took."""

    def close(self) -> None:
        """Let go of what loads the records."""


class Progress(NamedTuple):
    """Everything that a run has come to: what a checkpoint holds."""

    state: RunState  # parameters, the optimiser's state, the number of steps done
    totals: (
        Totals  # of the losses, records, and non-finite and clipped gradients since the last row
    )
    table: np.ndarray  # the rows of the metrics
    rows: np.int32  # how many of them are complete


def zero_totals() -> Totals:
    """The totals before any step: sum of losses, records seen, left out, and clipped."""
    return np.float32(0), np.float32(0), np.int32(0), np.int32(0)


_ROWS = 40  # of the metrics, unless told otherwise
_PRIVATE = ("train_loss", "nonfinite", "clipped")


class Metrics(NamedTuple):
    """The rows of a run's metrics."""

    plan: Plan  # whose ε is spent
    every: int  # steps between two rows
    stops: np.ndarray  # after which steps there is a row
    # What a row has of the parameters; or None.
    evaluate: Evaluate | None
    # Names of what a row has of the training records; none unless asked for.
    private: tuple[str, ...]
    first: Mapping[str, float]  # what `evaluate` returned before the first step

    @property
    def names(self) -> list[str]:
        """The names of the columns beside the step and ε."""
        return [*self.private, *self.first]

    def table(self) -> np.ndarray:
        """All rows; NaN but for the one before the first step."""
        table = np.full((len(self.stops), len(self.names)), np.nan)
        own = [np.nan, 0.0, np.nan][: len(self.private)]  # of the private columns
        table[0] = [*own, *map(float, self.first.values())]
        return table

    def add_row(self, progress: Progress) -> Progress:
        """The progress with one more row."""
        table, row = progress.table.copy(), int(progress.rows)
        values: list[float] = []
        if self.private:
            loss_sum, records, nonfinite, clipped = (float(total) for total in progress.totals)
            mean, share = (loss_sum / records, clipped / records) if records else (np.nan, np.nan)
            values = [mean, table[row - 1, 1] + nonfinite, share]  # nonfinite adds up over rows
        if self.evaluate is not None:
            found = dict(self.evaluate(progress.state["params"]))
            check_metric_names(found, first=self.first)
            values += [float(found[name]) for name in self.first]
        table[row] = values
        return progress._replace(totals=zero_totals(), table=table, rows=np.int32(row + 1))

    def row(self, progress: Progress, row: int) -> dict[str, float]:
        """The step, ε, and columns of a row that is done."""
        values = dict(zip(self.names, progress.table[row].tolist(), strict=True))
        step = int(self.stops[row])
        return {"step": step, "epsilon": self.plan.spent(step), **values}

    def columns(self, progress: Progress) -> dict[str, np.ndarray]:
        """The columns beside the step and ε, as far as they are done."""
        rows = int(progress.rows)
        found = {name: progress.table[:rows, i] for i, name in enumerate(self.names)}
        if self.private:
            found["nonfinite"] = found["nonfinite"].astype(np.int64)
        return found


def start_metrics(
    plan: Plan, every: int | None, evaluate: Evaluate | None, private: bool, params: Params
) -> Metrics:
    """The metrics of a run that begins with these parameters, which are evaluated."""
    every = max(1, math.ceil(plan.steps / _ROWS)) if every is None else every
    every = check_integer("log_every", every)
    first = dict(evaluate(params)) if evaluate else {}
    check_metric_names(first)
    stops = np.unique([*range(0, plan.steps, every), plan.steps])  # the last step has a row
    return Metrics(plan, every, stops, evaluate, _PRIVATE if private else (), first)


# A checkpoint takes at most a twentieth of the time, however slow the disk.
_SECONDS_BETWEEN_CHECKPOINTS, _TIMES_A_SAVE = 30.0, 20.0


class Saver:
    """When a checkpoint is due, and what is saved when a run is interrupted."""

    def __init__(self, store: RunStore, every: int | None, progress: Progress):
        self._store, self._every, self._saved = store, every, _count_done(progress)
        self._at, self._took, self._failed = time.monotonic(), 0.0, False

    def stop(self, step: int) -> int:
        """The step at which the next checkpoint falls, where steps count."""
        if self._every is None:
            return np.iinfo(np.int32).max
        return max(self._saved[0] + self._every, step + 1)

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint of this step is due."""
        if self._every is not None:
            return step - self._saved[0] >= self._every
        wait = max(_SECONDS_BETWEEN_CHECKPOINTS, _TIMES_A_SAVE * self._took)
        return time.monotonic() - self._at > wait

    def save_on_error(self, progress: Progress) -> None:
        """Save the last completed step, unless saving is what failed."""
        if _count_done(progress) != self._saved and not self._failed:
            with contextlib.suppress(Exception):  # the caller has to hear of the interruption
                self.save(progress)

    def save(self, progress: Progress) -> None:
        """Save the progress; returns once it is on disk."""
        began = time.monotonic()
        try:
            self._store.save(int(progress.state["step"]), progress)
        except CheckpointError:
            self._failed = True
            raise
        self._at, self._saved = time.monotonic(), _count_done(progress)
        self._took = self._at - began


def _count_done(progress: Progress) -> tuple[int, int]:
    """How many steps and rows are done."""
    return int(progress.state["step"]), int(progress.rows)


class Speed:
    """Steps and expected records a second since the last row, and the most memory taken so far."""

    def __init__(self, plan: Plan):
        self._plan, self._calls = plan, 0
        self._sums = np.zeros(3)  # steps, expected records, seconds

    def record_timing(self, first: int, stop: int, seconds: float) -> None:
        """One call of the compiled loop: its first step, the step after its last, and its time."""
        if self._calls == 1:  # the one before compiled: it counts where a row has no other
            self._sums = np.zeros(3)
        self._calls += 1
        begun, records = 0, 0.0
        for phase in self._plan.phases:
            steps = min(stop, begun + phase.steps) - max(first, begun)  # of both
            records += max(0, steps) * phase.scheme.rate * self._plan.population
            begun += phase.steps
        self._sums += stop - first, records, seconds

    def row(self, params: Params) -> dict[str, float]:
        """What is shown of the calls since the last row; NaN where there were none."""
        *done, seconds = self._sums.tolist()
        rates = [number / seconds if seconds > 0 else math.nan for number in done]
        self._sums = np.zeros(3)
        return dict(zip(SHOWN, (*rates, peak_memory(params)), strict=True))


def peak_memory(params: Params) -> float:
    """The most bytes that a device of these arrays has held, else this process; NaN if unknown."""
    stats = [device.memory_stats() or {} for device in _list_devices(params)]
    found = [stat["peak_bytes_in_use"] for stat in stats if "peak_bytes_in_use" in stat]
    if found:
        return float(max(found))
    try:
        import resource
    except ImportError:  # Windows
        return math.nan
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, else KiB
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def _list_devices(params: Params) -> set[jax.Device]:
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
    parts = [f"step {int(row['step']):,}", f"ε {format_rounded_up(row['epsilon'], 4)}"]
    for name, value in row.items():
        if name not in ("step", "epsilon", *SHOWN) and not math.isnan(value):
            parts.append(f"{name} {value:.4g}")
    units = ("{:,.4g} steps/s", "{:,.0f} records/s", "{:,.0f} MB")
    for name, unit in zip(SHOWN, units, strict=True):
        value = row.get(name, math.nan) / (1e6 if name == "memory" else 1.0)
        if not math.isnan(value):
            parts.append(unit.format(value))
    return ", ".join(parts)


def find_deadline(time_limit: float | None) -> float:
    """When a run stops that begins now, by `time.monotonic`."""
    if time_limit is None:
        return math.inf
    limit = Range(0.0, open_low=True, infinite=True)
    return time.monotonic() + one_number("time_limit", time_limit, limit)


@dataclasses.dataclass
class Loop:
    """The calls of the compiled loop, the rows between them, and the checkpoints after them."""

    feed: Feed  # takes steps on the run's records
    saver: Saver
    metrics: Metrics
    stop_when: Callable[[Row], bool] | None
    deadline: float  # of `time.monotonic`
    on_log: Callable[[dict[str, float]], None] | None  # is shown every row
    mesh: Mesh | None  # of a run of several processes, else None
    is_last_row: bool = False

    def __post_init__(self):
        self.speed = Speed(self.metrics.plan)

    def run(self, progress: Progress) -> Progress:
        """The progress at the end of the run; what was done is saved if an error ends it."""
        try:
            for reached in self._iterate(progress):
                progress = reached
        except BaseException:
            if self.mesh is None:  # what one process would save, the others have to hand over
                self.saver.save_on_error(progress)
            raise
        finally:
            self.feed.close()
        return progress

    def _iterate(self, progress: Progress) -> Iterator[Progress]:
        """The progress after every call of the compiled loop and after every row."""
        stops, saver = self.metrics.stops, self.saver
        timed_out = due = False
        for row in range(int(progress.rows)):  # the first one, and those of earlier sessions
            self._report(progress, row)
        while progress.rows < len(stops) and not (timed_out or self.is_last_row):
            row = int(progress.rows)
            while (step := int(progress.state["step"])) < stops[row] and not timed_out:
                (stop,) = self._agree(min(stops[row], saver.stop(step), self.feed.stop(step)))
                progress = self._advance(progress, step, stop)
                yield progress
                late = stop < self.metrics.plan.steps and time.monotonic() >= self.deadline
                timed_out, due = self._agree(late, saver.is_due(stop))
                if stop < stops[row] and (timed_out or due):
                    saver.save(progress)
            if int(progress.state["step"]) < stops[row]:
                break
            progress = self.metrics.add_row(progress)
            yield progress
            if timed_out or due or progress.rows == len(stops):
                saver.save(progress)
            self._report(progress, row)
        if self.is_last_row:
            saver.save(progress)

    def _agree(self, *numbers: int | np.integer | bool) -> list[int]:
        """The leader's numbers on every process: clocks, and what users' functions say, differ."""
        found = np.array(numbers, np.int64)
        if self.mesh is not None:
            found = broadcast_from_leader(self.mesh, found)
        return found.tolist()

    def _advance(self, progress: Progress, step: int, stop: int) -> Progress:
        """One call of the compiled loop."""
        began = time.monotonic()
        state, totals = self.feed.advance(progress.state, progress.totals, step, stop)
        jax.block_until_ready(state)  # so that the time is that of the work
        seconds = time.monotonic() - began
        self.feed.record_timing(stop - step, seconds)
        self.speed.record_timing(step, stop, seconds)
        totals = totals if self.metrics.private else zero_totals()
        return progress._replace(state=state, totals=totals)

    def _report(self, progress: Progress, row: int) -> None:
        """Show a row that is done, and let it end the run."""
        values = self.metrics.row(progress, row)
        if self.on_log is not None:
            self.on_log(values | self.speed.row(progress.state["params"]))
        if self.stop_when is not None and values["step"] > 0 and not self.is_last_row:
            # What it may see depends on the training records through the parameters alone. A
            # resumed run sees earlier rows again, and stops at the same one.
            private = self.metrics.private
            seen = {name: value for name, value in values.items() if name not in private}
            self.is_last_row = bool(self.stop_when(seen))
        self.is_last_row = bool(self._agree(self.is_last_row)[0])
