"""What the figures and the verdicts take from the tables."""

from __future__ import annotations

import numpy as np
import pandas as pd

from experiments.report import welch

FREE = "noise-free, clipped"
# A noise-free loss that ends higher than this above its lowest point has risen.
_RISE = 1e-3


def steady_rate(rows: pd.DataFrame) -> float:
    """The largest step size of Figure 5 at which the noise-free loss of no panel rises.

    Raises:
        ValueError: if it rises at every step size.

    >>> table = pd.DataFrame({"method": FREE, "panel": "a", "B": 8, "rate": [1.0, 1.0, 2.0, 2.0],
    ...                       "iteration": [0, 1, 0, 1], "loss": [0.7, 0.5, 0.5, 0.6]})
    >>> steady_rate(table)
    1.0
    """
    free = rows[rows["method"] == FREE].sort_values("iteration")
    curves = free.groupby(["rate", "panel", "B"])["loss"]
    steady = (curves.last() - curves.min() <= _RISE).groupby("rate").all()
    if not steady.any():
        raise ValueError(f"rates must have one at which no loss rises, got {set(free['rate'])}")
    return float(steady.index[steady].max())


def ends(rows: pd.DataFrame) -> pd.DataFrame:
    """The last row of every curve at the steady rate: final loss and test accuracy."""
    mine = rows[rows["rate"] == steady_rate(rows)]
    return mine[mine["iteration"] == mine["iteration"].max()].reset_index(drop=True)


def by_method(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy of a table's rows over their seeds, and its standard error.

    The error has two parts: the spread over seeds, and that of 5,000 test images.

    >>> table = pd.DataFrame({"method": "DP", "B": 8, "σ": 1.0, "accuracy %": [90.0, 92.0, 91.0],
    ...                       "seed": [0, 1, 2], "proven ε": 1.0, "setting": "rate 2"})
    >>> found = by_method(table).iloc[0]
    >>> found["accuracy %"], round(found["error"], 2), found["seeds"]
    (91.0, 0.7, 3)
    """
    found = []
    for (method, batch, sigma), some in rows.groupby(["method", "B", "σ"], sort=False):
        values = some["accuracy %"]
        mean, seeds = values.mean(), len(values)
        drawn = values.std(ddof=1) / np.sqrt(seeds) if seeds > 1 else np.nan
        images = np.sqrt(mean * (100.0 - mean) / 5_000)
        first = some.iloc[0]
        found.append(
            {
                "method": method,
                "B": batch,
                "σ": sigma,
                "accuracy %": mean,
                "error": float(np.hypot(drawn, images)),
                "spare": welch((drawn, seeds - 1), (images, np.inf)),
                "seeds": seeds,
                "proven ε": first["proven ε"],
                "setting": first["setting"],
                "edge": first.get("edge", ""),
            }
        )
    return pd.DataFrame(found)
