"""Cells of Table II whose grid is widened until the best setting is inside, and of more seeds."""

from __future__ import annotations

import pathlib
from typing import Any

from experiments.duan2025 import deep, prices
from experiments.duan2025.logistic import curve
from experiments.duan2025.methods import METHODS, Setting
from experiments.duan2025.training import Run, train
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


def private(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """A row of a table as `deep.private` makes it, at a setting inside its grid.

    One half of the test images chooses at the first seed, the other is reported at every seed.
    """
    problem, (choose, report) = deep._problem(settings, data)
    name, batch_size = settings["methods"].split(", B=")
    method, divisor, seeds = METHODS[name], settings["divisor"], settings["seeds"]
    whole = int(batch_size), settings["sigma"], settings["records priced"]
    run = Run(whole[0] // divisor, whole[1] / divisor, prices.steps(whole[0], whole[2]))
    made: dict[Point, Any] = {}

    def scores(points: list[Point]) -> list[float]:
        for point in points:
            made[point] = train(problem, method, run, setting_at(name, point), seeds[0])
        return [choose(made[point].params) for point in points]

    found = search(axes_of(name, tuple(settings["rates"])), scores)
    setting, rows = setting_at(name, found.best), []
    tried = "; ".join(f"{setting_at(name, p).words}: {a:.2f}" for p, a in found.tried.items())
    for seed in seeds:
        first = seed == seeds[0]
        outcome = made[found.best] if first else train(problem, method, run, setting, seed)
        rows.append(
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
                "setting": setting.words,
                "edge": found.edge,
                "tried": tried,
                "proven ε": prices.proven_epsilon(method, *whole),
            }
        )
    return rows


def repeated(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """A curve of Figure 5 at the best of its step sizes, its end alone, by further seeds."""
    curves, rate = settings["curve, rate"]
    one = {**settings, "curves": curves, "rates": [rate]}
    one["iterations between points"] = settings["iterations"]
    rows = [row for seed in settings["seeds"] for row in curve({**one, "seeds": seed}, data)]
    return [row for row in rows if row["iteration"] == settings["iterations"]]
