"""How far a run has come: what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpjax.training.arguments import check_names


class Progress(NamedTuple):
    """Everything that a run has come to: what a checkpoint holds.

    Fields:
        state: parameters, the optimiser's state, the number of steps done.
        totals: of the losses, records, and non-finite and clipped gradients since the last row.
        table: the rows of the metrics.
        rows: how many of them are complete.
    """

    state: Any
    totals: Any
    table: np.ndarray
    rows: np.int32


def row_done(
    progress: Progress,
    evaluate: Callable[[Any], Any] | None,
    private_losses: bool,
    names: Sequence[str] = (),
) -> Progress:
    """The progress with one more row: from the totals, where asked for, and `evaluate`'s names."""
    table, row = progress.table.copy(), int(progress.rows)
    values: list[float] = []
    if private_losses:
        loss_sum, records, nonfinite, clipped = (float(total) for total in progress.totals)
        mean, share = (loss_sum / records, clipped / records) if records else (np.nan, np.nan)
        values = [mean, table[row - 1, 1] + nonfinite, share]
    if evaluate is not None:
        found = dict(evaluate(progress.state["params"]))
        check_names(found, first=names)
        values += [float(found[name]) for name in names]
    table[row] = values
    return progress._replace(totals=no_totals(), table=table, rows=np.int32(row + 1))


def no_totals() -> tuple[Any, Any, Any, Any]:
    """The totals before any step: sum of losses, records seen, left out, and clipped."""
    return np.float32(0), np.float32(0), np.int32(0), np.int32(0)
