"""Which chosen settings of the committed tables lie at an end of the grid they were chosen from.

A method whose best setting is the last one tried may do better at one further out: its accuracy is
a lower bound of what it reaches. It can show that it is ahead, and not that it is behind
(`report.is_ahead`). `widening.search` has no such end; tables made by it say so themselves.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd


class Tried(NamedTuple):
    """The values of a hyperparameter that a choice was among.

    Attributes:
        chosen: the value. values: all that were tried.
        least: the value beyond which there is nothing smaller. most: nothing larger.
    """

    chosen: float
    values: Sequence[float]
    least: float = -math.inf
    most: float = math.inf


Grid = Callable[[Mapping], Mapping[str, Tried]]


def words(grid: Mapping[str, Tried]) -> str:
    """The hyperparameters whose chosen value is the last one tried; empty if none is.

    >>> words({"steps": Tried(50, (50, 200)), "passes": Tried(1, (1, 5), least=1)})
    'steps (least)'
    >>> words({"rate": Tried(48, (48,))})
    'rate (alone)'
    """
    found = []
    for name, one in grid.items():
        # The tables have six digits.
        low = one.chosen <= min(one.values) * (1 + 1e-4) and one.chosen > one.least * (1 + 1e-4)
        high = one.chosen >= max(one.values) * (1 - 1e-4) and one.chosen < one.most * (1 - 1e-4)
        which = "alone" if low and high else "least" if low else "largest" if high else ""
        found += [f"{name} ({which})"] if which else []
    return ", ".join(found)


def marked(paper: str, name: str, frame: pd.DataFrame) -> pd.DataFrame:
    """A committed table with a column "edge", where its paper says what its grids were.

    Args:
        paper: its folder. name: of the table. frame: its rows.
    """
    grid = grids(paper).get(name)
    if "edge" in frame:
        return frame.assign(edge=[e if isinstance(e, str) else "" for e in frame["edge"]])
    if grid is None:
        return frame
    return frame.assign(edge=[words(grid(row)) for row in frame.to_dict("records")])


def grids(paper: str) -> Mapping[str, Grid]:
    """The tables of a paper whose settings are chosen, each with the grid of a row."""
    if importlib.util.find_spec(f"experiments.{paper}") is None:
        return {}
    found = importlib.import_module(f"experiments.{paper}.protocol")
    return getattr(found, "CHOSEN", {})


def labelled(setting: str) -> dict[str, float]:
    """The values in a label of `comparison.label`.

    >>> labelled("steps=50, step_size=3.2")
    {'steps': 50.0, 'step_size': 3.2}
    """
    parts = (part.split("=") for part in setting.split(", "))
    return {name: float(value) for name, value in parts}


def spoken(setting: str) -> dict[str, float]:
    """The values in a setting of duan2025's tables.

    >>> spoken("rate 48, radius 0.5C"), spoken("rate 48, decay 0.25")["decay"]
    ({'rate': 48.0, 'radius': 0.5, 'decay': 0.0}, 0.25)
    """
    found = {"rate": math.nan, "radius": 1.0, "decay": 0.0}
    return found | {
        n: float(v) for n, v in re.findall(r"(rate|radius|decay) ([0-9.e+-]+)", setting)
    }


def of_all_tried(chosen: str, tried: str) -> dict[str, Tried]:
    """The grid of a row that lists every setting it was chosen among.

    >>> words(of_all_tried("rate 48", "rate 48: 94.54; rate 96: 94.26"))
    'rate (least)'
    """
    every = [spoken(part.partition(":")[0]) for part in tried.split("; ")]
    mine = spoken(chosen)
    varied = {n: sorted({one[n] for one in every}) for n in mine}
    limits = {"decay": {"least": 0.0}}
    return {
        n: Tried(mine[n], values, **limits.get(n, {}))
        for n, values in varied.items()
        if len(values) > 1 or n == "rate"
    }
