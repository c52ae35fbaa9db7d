"""What a run leaves."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dpjax.training.metrics import Metrics
from dpjax.training.plan import Plan
from dpjax.training.progress import Progress

__all__ = ["Fit"]


class Fit(NamedTuple):
    """What a run leaves.

    Fields:
        params: the released parameters, covered by the plan's certificate, in the tree that `fit`
            was given, with all that is not trained as it was.
        metrics: columns of equal length: step, epsilon (ε spent up to that step) and what
            `evaluate` returned; with `log_private_losses` also train_loss (mean over the batches
            since the last row), nonfinite (records whose gradient was NaN or infinite and counted
            as zero, so far) and clipped (the share of the records since the last row whose gradient
            was above the clip norm). Of these only step and epsilon are free of private data.
        average: of the iterates, where `fit` was asked for one; else None. Released as params are.
        steps: how many were taken.
        looks: at how many rows `stop_when` could have stopped; 1 where no session of the run had
            one. What the steps taken cost is `plan.certify(steps=fit.steps, looks=fit.looks)`.
        clip_norm: the last one, where the plan's is adaptive; released as params are.

    Example:
        >>> Fit(params=None, metrics={"step": np.arange(2)}).metrics["step"].tolist()
        [0, 1]
    """

    params: Any
    metrics: dict[str, np.ndarray]
    average: Any = None
    steps: int = 0
    looks: int = 1
    clip_norm: float | None = None


def result_of(progress: Progress, metrics: Metrics, plan: Plan, *, chosen: bool) -> Fit:
    """The result of a run that has come so far.

    Args:
        progress: the last one.
        metrics: of the run.
        plan: which prices the steps taken.
        chosen: whether any session of the run chose by what was released when it ended.
    """
    state, rows = progress.state, int(progress.rows)
    stops = metrics.stops[:rows]
    epsilons = np.asarray([plan.spent(int(stop)) for stop in stops])
    columns = {"step": stops, "epsilon": epsilons, **metrics.columns(progress)}
    looks = len(metrics.stops) - 1 if chosen else 1
    clip_norm = float(state["clip_norm"]) if "clip_norm" in state else None
    steps = int(state["step"])
    return Fit(state["params"], columns, state.get("average"), steps, looks, clip_norm)
