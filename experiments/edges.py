"""Which chosen settings of the committed tables lie at an end of the grid they were chosen from.

A method whose best setting is the last one tried may do better at one further out: its accuracy is
a lower bound of what it reaches. It can show that it is ahead, and not that it is behind
(`report.is_ahead`). `widening.search` has no such end; tables made by it say so themselves.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
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
