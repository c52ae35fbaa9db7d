"""The best of a grid that is widened until its best is inside.

A best setting at an end of its grid says that the grid ends too early. That end is moved out, one
value at a time, until a setting on either side of the best one has been tried and is no better.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Point = tuple[float, ...]


class Axis(NamedTuple):
    """A hyperparameter of a search.

    Attributes:
        name: in words. values: from where the search starts, from the least to the largest.
        factor: between a value and the next one further out.
        least: no value may be smaller, and at this one there is nothing further out.
        most: no value may be larger, the same way.
    """

    name: str
    values: tuple[float, ...]
    factor: float = 2.0
    least: float = 0.0
    most: float = math.inf


class Found(NamedTuple):
    """What a search ends with.

    Attributes:
        best: the setting of the highest score, the first of equals.
        tried: every setting and its score, in the order they were tried.
        edge: the hyperparameters whose best value is the last one tried, in words; empty if none.
    """

    best: Point
    tried: Mapping[Point, float]
    edge: str


def search(
    axes: Sequence[Axis], score: Callable[[list[Point]], Sequence[float]], *, at_most: int = 60
) -> Found:
    """Tries all of the first grid, then what lies one value further out than the best setting.

    Args:
        axes: what is varied.
        score: the scores of some settings, of which more is better; NaN is never the best.
        at_most: so many settings at most are tried; where that ends the search, `edge` says so.

    Raises:
        ValueError: if the score of no setting is a number.

    >>> found = search([Axis("rate", (1.0, 2.0))], lambda p: [-abs(x - 9.0) for (x,) in p])
    >>> found.best, list(found.tried), found.edge
    ((8.0,), [(1.0,), (2.0,), (4.0,), (8.0,), (16.0,)], '')
    >>> search([Axis("rate", (1.0, 2.0))], lambda p: [x for (x,) in p], at_most=3).edge
    'rate (largest)'
    """
    tried: dict[Point, float] = {}

    def add(points: list[Point]) -> None:
        tried.update(zip(points, score(points), strict=True))

    add([*itertools.product(*(axis.values for axis in axes))])
    while True:
        known = {point: s for point, s in tried.items() if not math.isnan(s)}
        if not known:
            raise ValueError(f"score must be a number for some setting, got {tried}")
        best = max(known, key=lambda point: known[point])
        further = _further(axes, best, tried)
        if not further or len(tried) + len(further) > at_most:
            return Found(best, tried, ", ".join(further))
        add([*further.values()])


def _further(axes: Sequence[Axis], best: Point, tried: Mapping[Point, float]) -> dict[str, Point]:
    """The settings beside the best one that were not tried, by the end that each lies at."""
    found = {}
    for i, axis in enumerate(axes):
        beside = [p[i] for p in tried if (*p[:i], *p[i + 1 :]) == (*best[:i], *best[i + 1 :])]
        ends = (
            ("least", min(beside), max(best[i] / axis.factor, axis.least)),
            ("largest", max(beside), min(best[i] * axis.factor, axis.most)),
        )
        for word, end, value in ends:
            if best[i] == end != value:
                found[f"{axis.name} ({word})"] = (*best[:i], value, *best[i + 1 :])
    return found
