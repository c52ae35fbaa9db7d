"""Figure 5: training losses of logistic regression on MNIST over 350 iterations."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np

from experiments.common import Rows, Run, track
from experiments.geodp import training
from experiments.geodp.models import LogisticRegression, binary_loss
from experiments.geodp.training import Method, Numbers, Problem
from experiments.images import Images, load_mnist

ITERATIONS, LEARNING_RATE = 350, 0.5


class Curve(NamedTuple):
    """A line of a panel: a method at the paper's σ and B."""

    panel: str
    method: Method
    sigma: float
    batch_size: int

    @property
    def label(self) -> str:
        beta = f", β = {self.method.bounding_factor:g}" if self.method.noise == "geodp" else ""
        noise = f", σ = {self.sigma:g}" if self.method.noise != "none" else ""
        return f"{self.method.name}, B = {self.batch_size:,}{noise}{beta}"


_FREE, _DP = Method("no noise", "none"), Method("DP")
_G3 = Method("G3 (sound)", "recentred", radius=0.5)


def _geodp(beta: float) -> Method:
    return Method("GeoDP", "geodp", bounding_factor=beta)


CURVES = (
    Curve("a", _FREE, 0.0, 4_096),
    *(Curve("a", m, 1.0, b) for b in (2_048, 4_096) for m in (_DP, _geodp(1.0), _G3)),
    Curve("b", _FREE, 0.0, 2_048),
    *(Curve("b", m, 10.0, 2_048) for m in (_DP, _geodp(1.0), _geodp(0.5), _G3)),
    Curve("c", _FREE, 0.0, 256),
    *(Curve("c", m, s, 256) for s in (0.01, 0.1) for m in (_DP, _geodp(1.0), _G3)),
)


def odd_digits(data: Images) -> Images:
    """Labels 1 for odd digits, pixels in [0, 1].

    The paper's d = 785 is a binary model; it does not name the task. With the background at −1,
    what is left of a gradient clipped to C = 0.1 is mostly background.
    """
    return Images(
        (data.images + 1.0) / 2.0,
        data.labels % 2,
        (data.test_images + 1.0) / 2.0,
        data.test_labels % 2,
    )


def _measure(run: Run, divisor: int, iterations: int, records: int) -> Rows:
    data = odd_digits(load_mnist(run.data))
    data = data._replace(images=data.images[:records], labels=data.labels[:records])
    model = LogisticRegression()
    problem = Problem(model, binary_loss(model), lambda logit, label: (logit > 0) == label, data)
    rows: Rows = []
    trainers: dict = {}
    for curve in track(CURVES, "figure 5"):
        method, batch_size = curve.method, curve.batch_size // divisor
        numbers = Numbers(
            curve.sigma / divisor, LEARNING_RATE, method.bounding_factor, method.radius
        )
        shape = method.noise, batch_size
        if shape not in trainers:
            trainers[shape] = training.trainer(problem, method, batch_size)
        outcome = trainers[shape](numbers, iterations, 0, record_every=max(iterations // 35, 1))
        steps = np.arange(len(outcome.losses)) * max(iterations // 35, 1)
        rows += [
            {
                "panel": curve.panel,
                "curve": curve.label,
                "iteration": int(step),
                "loss": float(loss),
                "accuracy": 100.0 * outcome.accuracy,
            }
            for step, loss in zip(steps, outcome.losses, strict=True)
        ]
    return rows


def table(run: Run) -> Rows:
    """Losses of every curve; the smaller grid divides batch and noise by eight."""
    settings = {
        "divisor": run.choose(8, 1, 16),
        "iterations": run.choose(ITERATIONS, ITERATIONS, 4),
        "records": run.choose(10_000, 60_000, 500),
    }
    return run.rows(
        f"figure5-{run.size}",
        settings,
        lambda: _measure(run, **settings),
        code=(_measure, training, LogisticRegression),
    )


def summary(rows: Rows) -> Rows:
    """Final loss and test accuracy of every curve."""
    last = {(r["panel"], r["curve"]): r for r in rows}
    return [
        {"panel": p, "curve": c, "final loss": r["loss"], "test accuracy %": r["accuracy"]}
        for (p, c), r in last.items()
    ]


def figure5(run: Run) -> Sequence[pathlib.Path]:
    """Figure 5, with the sound mechanism beside the published curves."""
    rows = table(run)
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.2))
    titles = {"a": "σ = 1, β = 1", "b": "σ = 10, B = 2,048", "c": "B = 256, β = 1"}
    colours = {"no noise": "k", "DP": "tab:green", "GeoDP": "tab:red", "G3 (sound)": "tab:purple"}
    for axis, (panel, title) in zip(axes, titles.items(), strict=True):
        curves = dict.fromkeys(r["curve"] for r in rows if r["panel"] == panel)
        seen: dict[str, int] = {}
        for curve in curves:
            some = [r for r in rows if r["panel"] == panel and r["curve"] == curve]
            name = curve.split(", ")[0]
            style = ("-", "--", ":")[seen.get(name, 0)]
            seen[name] = seen.get(name, 0) + 1
            axis.plot(
                [r["iteration"] for r in some],
                [r["loss"] for r in some],
                style,
                color=colours[name],
                label=curve,
                lw=1.4,
            )
        axis.set(xlabel="iteration", title=f"({panel}) {title}", yscale="log")
        axis.legend(fontsize=7)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("training loss")
    figure.tight_layout()
    return [
        run.save_table("figure5", rows),
        run.save_table("figure5_summary", summary(rows)),
        run.save_figure("figure5", figure),
    ]
