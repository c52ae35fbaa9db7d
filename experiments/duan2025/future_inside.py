"""The paper's future work once more, each grid widened until the best setting is inside."""

from __future__ import annotations

import pathlib
from typing import Any

from dpjax import accounting as acc
from dpjax import sampling
from experiments.comparison import certificate_line
from experiments.duan2025.future import SIZES, Numbers, _accuracy, _data, train
from experiments.protocol import Rows
from experiments.widening import Axis, Point, search

METHODS = ("DP", "averaged DP", "G3")
_RATES = {
    "SGD": (1.0, 4.0, 16.0),
    "Adam": (0.01, 0.04, 0.16),
    "federated averaging": (0.5, 2.0, 8.0),
}


def axes_of(method: str, optimiser: str) -> list[Axis]:
    """What a method is tuned over: the rate, and G3's radius or the weight of a new release.

    >>> [[axis.name for axis in axes_of(name, "Adam")] for name in METHODS]
    [['rate'], ['rate', 'weight'], ['rate', 'radius']]
    """
    rate = Axis("rate", _RATES[optimiser])
    if method == "averaged DP":
        return [rate, Axis("weight", (0.25, 0.5), most=1.0)]
    return [rate, Axis("radius", (0.25, 0.5))] if method == "G3" else [rate]


def numbers_at(method: str, point: Point) -> Numbers:
    """The numbers of a run at a point of `axes_of`; a weight of 1 is DP-SGD.

    >>> numbers_at("averaged DP", (2.0, 0.25)), numbers_at("G3", (2.0, 0.5)).radius
    (Numbers(rate=2.0, radius=1.0, decay=0.75, recentred=0.0), 0.5)
    """
    if method == "averaged DP":
        return Numbers(point[0], 1.0, 1.0 - point[1], 0.0)
    if method == "G3":
        return Numbers(point[0], point[1], 0.0, 1.0)
    return Numbers(point[0], 1.0, 0.0, 0.0)


def cell(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Accuracy of a method under an optimiser, its setting chosen at the first seed."""
    method, optimiser = settings["methods"], settings["optimiser"]
    size = SIZES[optimiser]
    units, choose, report = _data(optimiser, size.units, data)
    rate = sampling.realised_rate(size.batch / size.units)

    def price(sigma):
        return acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), size.steps)

    sigma = float(acc.calibrate(price, epsilon=settings["epsilon"], delta=size.delta))
    seeds, made = settings["seeds"], {}

    def scores(points: list[Point]) -> list[float]:
        for point in points:
            numbers = numbers_at(method, point)
            made[point] = train(optimiser, size, units, numbers, sigma, seeds[0])
        return [_accuracy(made[point], choose) for point in points]

    found = search(axes_of(method, optimiser), scores)
    numbers = numbers_at(method, found.best)
    certificate = certificate_line(
        price(sigma), size.delta, adjacency=acc.Adjacency.ADD_REMOVE, records=size.units,
        method=f"{method}, {optimiser}", data="MNIST, odd digits", target=settings["epsilon"],
        not_covered=["the setting, chosen by accuracy on held-out rows"],
    )  # fmt: skip
    rows = []
    for seed in seeds:
        params = made[found.best]
        if seed != seeds[0]:
            params = train(optimiser, size, units, numbers, sigma, seed)
        rows.append(
            {
                "optimiser": optimiser,
                "method": method,
                "epsilon": settings["epsilon"],
                "units": size.units,
                "σ": sigma,
                "seed": seed,
                "accuracy %": 100 * _accuracy(params, report),
                "rate": numbers.rate,
                "radius over C": numbers.radius,
                "decay": numbers.decay,
                "edge": found.edge,
                "settings tried": len(found.tried),
                "certificate": certificate,
            }
        )
    return rows
