"""How long one call of the compiled loop lasts, and when a checkpoint is due."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np

from dpjax.training.errors import CheckpointError
from dpjax.training.progress import Progress

# A checkpoint takes at most a twentieth of the time, however slow the disk.
_SECONDS_BETWEEN_CHECKPOINTS, _TIMES_A_SAVE = 30.0, 20.0
# A call of the compiled loop lasts about so long, so that an interrupt is heeded soon.
_SECONDS_A_CALL = 0.5


class Pace:
    """How many steps one call of the compiled loop takes, so that it lasts about half a second."""

    def __init__(self):
        self._steps = 1

    def stop(self, step: int) -> int:
        return step + self._steps

    def took(self, steps: int, seconds: float) -> None:
        if seconds < _SECONDS_A_CALL / 2 and steps >= self._steps:
            self._steps *= 4
        elif seconds > 2 * _SECONDS_A_CALL:
            self._steps = max(1, int(steps * _SECONDS_A_CALL / seconds))


class Saver:
    """When a checkpoint is due, and what is saved when a run is interrupted."""

    def __init__(self, store: Any, every: int | None, progress: Progress):
        self._store, self._every = store, every
        self._steps, self._rows = int(progress.state["step"]), int(progress.rows)
        self._at, self._took, self._failed = time.monotonic(), 0.0, False

    def stop(self, step: int) -> int:
        """The step at which the next checkpoint falls, where steps count."""
        if self._store is None or self._every is None:
            return np.iinfo(np.int32).max
        return max(self._steps + self._every, step + 1)

    def save_if_due(self, progress: Progress, last: bool = False, due: bool | None = None) -> None:
        """Save where it is due by itself, or as the processes of a run have agreed that it is."""
        if last or (self.due(int(progress.state["step"])) if due is None else due):
            self._save(progress)

    def due(self, step: int) -> bool:
        """Whether a checkpoint of this step is due."""
        if self._every is not None:
            return step - self._steps >= self._every
        wait = max(_SECONDS_BETWEEN_CHECKPOINTS, _TIMES_A_SAVE * self._took)
        return time.monotonic() - self._at > wait

    def rescue(self, progress: Progress) -> None:
        """Save the last completed step, unless saving is what failed."""
        new = (int(progress.state["step"]), int(progress.rows)) != (self._steps, self._rows)
        if new and not self._failed:
            with contextlib.suppress(Exception):  # the caller has to hear of the interruption
                self._save(progress)

    def _save(self, progress: Progress) -> None:
        if self._store is None:
            return
        began = time.monotonic()
        try:
            self._store.save(int(progress.state["step"]), progress)
        except CheckpointError:
            self._failed = True
            raise
        self._at = time.monotonic()
        self._took = self._at - began
        self._steps, self._rows = int(progress.state["step"]), int(progress.rows)
