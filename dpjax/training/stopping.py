"""When a run stops before the last step of its plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from dpjax._numerics.checks import Range, one_number


class Stopping:
    """Whether a run stops: asked after every row, and after every call of the compiled loop.

    Args:
        stop_when: of a row's step, ε and what `evaluate` returned, whether it is the last one.
        time_limit: seconds from now on.
    """

    def __init__(
        self, stop_when: Callable[[Mapping[str, float]], bool] | None, time_limit: float | None
    ):
        if time_limit is not None:
            one_number("time_limit", time_limit, Range(0.0, open_low=True, infinite=True))
        self._stop_when = stop_when
        self._until = float("inf") if time_limit is None else time.monotonic() + time_limit
        self.last_row_done = False

    def see(self, row: Mapping[str, float]) -> None:
        """A row that is done; a resumed run sees those before again, and stops at the same one."""
        if self._stop_when is not None and row["step"] > 0 and bool(self._stop_when(row)):
            self.last_row_done = True

    def time_is_up(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._until
