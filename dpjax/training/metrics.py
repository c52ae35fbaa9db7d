"""At which steps a run has a row of its metrics, and what is in one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dpjax.training.arguments import check_names, whole
from dpjax.training.plan import Plan
from dpjax.training.progress import Progress, row_done

_ROWS = 40  # of the metrics, unless told otherwise
_PRIVATE = ("train_loss", "nonfinite", "clipped")


class Metrics(NamedTuple):
    """The rows of a run's metrics.

    Fields:
        plan: whose ε is spent.
        stops: after which steps there is a row.
        evaluate: of the parameters, what a row has of them; or None.
        private: names of what a row has of the training records; none unless asked for.
        first: what `evaluate` returned before the first step.
    """

    plan: Plan
    stops: np.ndarray
    evaluate: Callable[[Any], Mapping[str, float]] | None
    private: tuple[str, ...]
    first: Mapping[str, float]

    @property
    def names(self) -> list[str]:
        """Of the columns beside the step and ε."""
        return [*self.private, *self.first]

    def table(self) -> np.ndarray:
        """All rows; NaN but for the one before the first step."""
        table = np.full((len(self.stops), len(self.names)), np.nan)
        own = [np.nan, 0.0, np.nan][: len(self.private)]
        table[0] = [*own, *map(float, self.first.values())]
        return table

    def done(self, progress: Progress) -> Progress:
        """The progress with one more row."""
        return row_done(progress, self.evaluate, bool(self.private), list(self.first))

    def row(self, progress: Progress, row: int) -> dict[str, float]:
        """The step, ε, and columns of a row that is done."""
        values = dict(zip(self.names, progress.table[row].tolist(), strict=True))
        step = int(self.stops[row])
        return {"step": step, "epsilon": self.plan.spent(step), **values}

    def public(self, row: Mapping[str, float]) -> dict[str, float]:
        """What a row has that depends on the training records through the parameters alone."""
        return {name: value for name, value in row.items() if name not in self.private}

    def columns(self, progress: Progress) -> dict[str, np.ndarray]:
        """The columns beside the step and ε, as far as they are done."""
        rows = int(progress.rows)
        found = {name: progress.table[:rows, i] for i, name in enumerate(self.names)}
        if self.private:
            found["nonfinite"] = found["nonfinite"].astype(np.int64)
        return found


def interval(plan: Plan, log_every: Any) -> int:
    """Steps between two rows: those asked for, or as many as give the run about 40 rows."""
    every = max(1, math.ceil(plan.steps / _ROWS)) if log_every is None else log_every
    return whole("log_every", every)


def metrics_of(plan: Plan, every: int, evaluate: Any, private: bool, params: Any) -> Metrics:
    """The metrics of a run that begins with these parameters, which are evaluated.

    Raises:
        ValueError: `evaluate` returns a name that a row has by itself.
    """
    first = dict(evaluate(params)) if evaluate else {}
    check_names(first)
    stops = np.unique([*range(0, plan.steps, every), plan.steps])
    return Metrics(plan, stops, evaluate, _PRIVATE if private else (), first)
