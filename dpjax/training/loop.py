"""The loop of a run: steps, rows and checkpoints, until the plan or the user ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from dpjax.training.metrics import Metrics
from dpjax.training.pacing import Saver
from dpjax.training.processes import agreed
from dpjax.training.progress import Progress, no_totals
from dpjax.training.speed import Speed
from dpjax.training.stopping import Stopping


class Loop(NamedTuple):
    """What a run's loop works with.

    Fields:
        advance: of `Compiled`.
        key: of the run, on its devices.
        held: what is not trained.
        feed: gives the records of a step.
        saver: of checkpoints.
        metrics: which rows there are.
        stopping: whether the run ends early.
        speed: of the run.
        on_log: is shown every row; or None.
        joined: the mesh of a run of several processes, else None.
    """

    advance: Callable[..., Any]
    key: Any
    held: Any
    feed: Any
    saver: Saver
    metrics: Metrics
    stopping: Stopping
    speed: Speed
    on_log: Callable[[dict[str, float]], None] | None
    joined: Any

    def run(self, progress: Progress) -> Progress:
        """The progress at the end of the run; what was done is saved if an error ends it."""
        try:
            for done in self._turns(progress):
                progress = done
        except BaseException:
            if self.joined is None:  # what one process would save, the others have to hand over
                self.saver.rescue(progress)
            raise
        finally:
            self.feed.close()
        return progress

    def _turns(self, progress: Progress) -> Iterator[Progress]:
        """The progress after every call of the compiled loop and after every row."""
        stops, saver, stopping = self.metrics.stops, self.saver, self.stopping
        timed_out, due = False, None
        for row in range(int(progress.rows)):
            self._report(progress, row)
        while progress.rows < len(stops) and not (timed_out or stopping.last_row_done):
            row = int(progress.rows)
            while (step := int(progress.state["step"])) < stops[row] and not timed_out:
                stop = self._next_stop(step, int(stops[row]))
                progress = self._advanced(progress, step, stop)
                yield progress
                timed_out, due = self._time_is_up(stop)
                if stop < stops[row]:
                    saver.save_if_due(progress, last=timed_out, due=due)
            if int(progress.state["step"]) < stops[row]:
                break
            progress = self.metrics.done(progress)
            yield progress
            saver.save_if_due(progress, timed_out or progress.rows == len(stops), due)
            self._report(progress, row)
        if stopping.last_row_done:
            saver.save_if_due(progress, last=True)

    def _next_stop(self, step: int, row: int) -> int:
        """The step at which the next call of the compiled loop returns, at the latest the row's."""
        stop = min(row, self.saver.stop(step), self.feed.stop(step))
        return stop if self.joined is None else int(agreed(self.joined, np.int64(stop)))

    def _advanced(self, progress: Progress, step: int, stop: int) -> Progress:
        """One call of the compiled loop."""
        began = time.monotonic()
        state, totals = self.advance(
            progress.state,
            progress.totals,
            self.key,
            self.feed.at(step),
            np.int32(stop),
            self.held,
        )
        jax.block_until_ready(state)
        seconds = time.monotonic() - began
        self.feed.took(stop - step, seconds)
        self.speed.took(step, stop, seconds)
        return progress._replace(
            state=state, totals=totals if self.metrics.private else no_totals()
        )

    def _time_is_up(self, stop: int) -> tuple[bool, bool | None]:
        """Whether the run ends here, and whether its processes agree that a checkpoint is due."""
        timed_out = stop < self.metrics.plan.steps and self.stopping.time_is_up()
        if self.joined is None:
            return timed_out, None
        told = np.array([timed_out, self.saver.due(stop)], np.uint32)  # clocks differ
        timed_out, due = map(bool, agreed(self.joined, told))
        return timed_out, due

    def _report(self, progress: Progress, row: int) -> None:
        """Show a row that is done, and let it end the run."""
        values = self.metrics.row(progress, row)
        if self.on_log is not None:
            self.on_log(values | self.speed.row(progress.state["params"]))
        self.stopping.see(self.metrics.public(values))
        if self.joined is not None:
            last = agreed(self.joined, np.uint32(self.stopping.last_row_done))
            self.stopping.last_row_done = bool(last)
