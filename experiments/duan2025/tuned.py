"""Cells of Tables II and III, each grid widened until its best is inside, and further seeds."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from experiments.duan2025 import deep, prices
from experiments.duan2025.logistic import curve
from experiments.duan2025.methods import METHODS, Setting
from experiments.duan2025.summaries import FREE
from experiments.duan2025.training import UNCLIPPED, Outcome, Run, train
from experiments.protocol import Rows
from experiments.widening import Axis, Point, search


def axes_of(name: str, rates: tuple[float, ...]) -> list[Axis]:
    """What a method is tuned over: the rate, and G3's radius or the weight of a new release.

    >>> [axis.name for axis in axes_of("G3", (48.0, 96.0))]
    ['rate', 'radius']
    """
    rate = Axis("rate", rates)
    if name == "G3":
        return [rate, Axis("radius", (0.5, 1.0))]
    if name == "averaged DP":  # a weight of 1 is DP-SGD
        return [rate, Axis("weight", (0.25, 0.5), most=1.0)]
    return [rate]


def setting_at(name: str, point: Point) -> Setting:
    """The setting at a point of `axes_of`.

    >>> setting_at("averaged DP", (48.0, 0.25)).words
    'rate 48, decay 0.75'
    """
    if name == "G3":
        return Setting(point[0], radius=point[1])
    if name == "averaged DP":
        return Setting(point[0], decay=1.0 - point[1])
    return Setting(point[0])


class Best(NamedTuple):
    """A method at the best of its settings, by seed.

    Attributes:
        setting: the best. edge: the hyperparameters whose best value is the last one tried.
        tried: every setting and what the half that chooses said of it. outcomes: a run a seed.
    """

    setting: Setting
    edge: str
    tried: str
    outcomes: dict[int, Outcome]


def best_of(
    name: str,
    rates: Sequence[float],
    seeds: Sequence[int],
    choose: Callable[[Any], float],
    run: Callable[[Setting, int], Outcome],
) -> Best:
    """Every setting at the first seed until the best is inside, that one at every seed."""
    made: dict[Point, Outcome] = {}

    def scores(points: list[Point]) -> list[float]:
        for point in points:
            made[point] = run(setting_at(name, point), seeds[0])
        return [choose(made[point].params) for point in points]

    found = search(axes_of(name, tuple(rates)), scores)
    setting = setting_at(name, found.best)
    tried = "; ".join(f"{setting_at(name, p).words}: {a:.2f}" for p, a in found.tried.items())
    outcomes = {seeds[0]: made[found.best], **{seed: run(setting, seed) for seed in seeds[1:]}}
    return Best(setting, found.edge, tried, outcomes)


def private(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """A row of a table at a setting inside its grid.

    One half of the test images chooses at the first seed, the other is reported at every seed.
    Batch size and noise are divided by the same number, which keeps the noise Cσ/B of the mean and
    the number of steps; the sampling error of the smaller batch is larger.
    """
    problem, (choose, report) = deep.problem_of(settings, data)
    name, batch_size = settings["methods"].split(", B=")
    method, divisor = METHODS[name], settings["divisor"]
    whole = int(batch_size), settings["sigma"], settings["records priced"]
    run = Run(whole[0] // divisor, whole[1] / divisor, prices.steps(whole[0], whole[2]))
    best = best_of(
        name, settings["rates"], settings["seeds"], choose,
        lambda setting, seed: train(problem, method, run, setting, seed),
    )  # fmt: skip
    return [
        {
            "method": name,
            "B": whole[0],
            "σ": whole[1],
            "B run": run.batch_size,
            "steps": run.steps,
            "attempts": outcome.attempts,
            "accepted": outcome.accepted,
            "seed": seed,
            "accuracy %": report(outcome.params),
            "setting": best.setting.words,
            "edge": best.edge,
            "tried": best.tried,
            "proven ε": prices.proven_epsilon(method, *whole),
        }
        for seed, outcome in best.outcomes.items()
    ]


def noise_free(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """The network without noise and without clipping, on ordinary batches, chosen the same way."""
    problem, (choose, report) = deep.problem_of(settings, data)
    batch_size, records = settings["batch size"], len(problem.data.labels)
    run = Run(batch_size, 0.0, round(settings["epochs"] * records / batch_size))
    best = best_of(
        FREE, settings["rates"], settings["seeds"], choose,
        lambda setting, seed: train(
            problem, METHODS[FREE], run, setting, seed, clip_norm=UNCLIPPED
        ),
    )  # fmt: skip
    return [
        {
            "method": FREE,
            "data set": settings["data"],
            "B": batch_size,
            "σ": 0.0,
            "epochs": settings["epochs"],
            "steps": run.steps,
            "seed": seed,
            "accuracy %": report(outcome.params),
            "setting": best.setting.words,
            "edge": best.edge,
            "tried": best.tried,
            "proven ε": prices.proven_epsilon(METHODS[FREE], batch_size, 0.0, records),
        }
        for seed, outcome in best.outcomes.items()
    ]


def repeated(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """A curve of Figure 5 at the best of its step sizes, its end alone, by further seeds."""
    curves, rate = settings["curve, rate"]
    one = {**settings, "curves": curves, "rates": [rate]}
    one["iterations between points"] = settings["iterations"]
    rows = [row for seed in settings["seeds"] for row in curve({**one, "seeds": seed}, data)]
    return [row for row in rows if row["iteration"] == settings["iterations"]]
