"""The picture of a training run: accuracy and ε spent, against the step."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from dpjax.plotting.appearance import COLOURS, picture_path, reference_line, save_picture, style

__all__ = ["plot_training"]

_ACCURACY, _EPSILON, *_ = COLOURS


@matplotlib.rc_context(style())
def plot_training(
    metrics: Mapping[str, np.ndarray],
    path: str | pathlib.Path,
    *,
    title: str = "",
    delta: float | None = None,
    reference: float | None = None,
    budget: float | None = None,
) -> pathlib.Path:
    """Draw test accuracy (upper panel) and ε spent so far (lower panel) to a file.

    Args:
        metrics: columns `step`, `epsilon` and `test_accuracy` of equal length, as `fit` returns.
        path: where the picture goes: PNG, PDF, SVG or JPEG, by its suffix.
        title: what was trained.
        delta: the δ at which ε holds, for the label.
        reference: accuracy of the same model without privacy, drawn as a line.
        budget: the ε that was asked for, drawn as a line.

    Example:
        >>> import tempfile
        >>> metrics = {name: np.array([0.0, 1.0]) for name in ("step", "epsilon", "test_accuracy")}
        >>> plot_training(metrics, pathlib.Path(tempfile.mkdtemp()) / "run.png").name
        'run.png'
    """
    path = picture_path(path)
    steps = np.asarray(metrics["step"])
    figure = Figure(figsize=(7.2, 5.6))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.35, 1))
    if title:
        figure.suptitle(title, x=0.02, ha="left")
    values = np.asarray(metrics["test_accuracy"])
    upper.plot(steps, values, color=_ACCURACY)
    _end_label(upper, steps[-1], values[-1], f"{values[-1]:.1%}", _ACCURACY, below=True)
    upper.set_ylabel("test accuracy")
    upper.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    top = max(float(values.max()), reference or 0.0)
    bottom = float(np.min(values[1:])) if len(values) > 2 else float(values.min())
    margin = 0.12 * max(top - bottom, 0.02)
    upper.set_ylim(max(0.0, bottom - margin), top + margin)  # words over the highest line
    if reference is not None:
        reference_line(upper, reference, f"same model without privacy: {reference:.1%}")
    spent = np.asarray(metrics["epsilon"])
    lower.plot(steps, spent, color=_EPSILON)
    _end_label(lower, steps[-1], spent[-1], f"{spent[-1]:.3g}", _EPSILON, below=True)
    lower.set_ylabel("ε spent" + (f"  (δ = {delta:g})" if delta is not None else ""))
    lower.set_xlabel("step")
    lower.set_xlim(0, max(float(steps[-1]), 1.0))
    lower.set_ylim(0, 1.15 * max(float(spent[-1]), budget or 0.0, 1e-9))
    if budget is not None:
        reference_line(lower, budget, f"budget: {budget:g}")
    save_picture(figure, path)
    return path


def _end_label(axes, x, y, text: str, color: str, *, below: bool) -> None:
    axes.plot([x], [y], "o", color=color, clip_on=False)
    axes.annotate(
        text,
        (x, y),
        xytext=(-6, -6 if below else 6),
        textcoords="offset points",
        ha="right",
        va="top" if below else "bottom",
        fontsize=10,
        fontweight="bold",
        color=color,
    )
