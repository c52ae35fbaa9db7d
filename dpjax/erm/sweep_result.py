"""What a sweep found: a tidy table of its runs, and the choice of a setting."""

from __future__ import annotations

import math
import pathlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Array

from dpjax import accounting as acc
from dpjax._extras import extra
from dpjax._numerics.normal import normal
from dpjax.erm import check

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Choice(NamedTuple):
    """A setting picked from a sweep.

    Fields:
        setting: the hyperparameters.
        private: whether the choice itself is priced.
        note: in words.
        mechanism: all runs and the choice, or None if it is not private.

    Example:
        >>> Choice({"steps": 50}, False, "not private", None).private
        False
    """

    setting: dict[str, Any]
    private: bool
    note: str
    mechanism: acc.Mechanism | None


class SweepResult(NamedTuple):
    """Every run of a sweep.

    Fields:
        table: one row a run: the hyperparameters, `noise`, `repeat`, and the metrics. `objective`
            is a function of the training data and `accuracy` of the test data: neither is private.
        params: [runs, …], in the table's order.
        settings: one dictionary per grid point.
        mechanisms: what one run of it costs.
        names: the hyperparameters that vary.
        test_size: rows behind `accuracy`, or None.

    Example:
        >>> import pandas as pd
        >>> SweepResult(pd.DataFrame({"steps": [1]}), None, [{}], [None], ("steps",), None).names
        ('steps',)
    """

    table: pd.DataFrame
    params: Array | np.ndarray
    settings: list[dict[str, Any]]
    mechanisms: list[Any]
    names: tuple[str, ...]
    test_size: int | None

    def summary(self) -> pd.DataFrame:
        """Mean and standard deviation of the metrics for every setting.

        Example:
            >>> import pandas as pd
            >>> table = pd.DataFrame({"steps": [1, 1], "objective": [0.5, 0.7], "repeat": [0, 1]})
            >>> SweepResult(table, None, [{}], [None], ("steps",), None).summary().shape
            (1, 4)
        """
        metrics = [m for m in ("objective", "accuracy") if m in self.table]
        keys = [*self.names, *(["noise"] if "noise" in self.table else [])]
        grouped = self.table.groupby(keys, sort=False, dropna=False)[metrics]
        out = grouped.agg(["mean", "std"])
        out.columns = [f"{metric}_{part}" for metric, part in out.columns]
        out["runs"] = self.table.groupby(keys, sort=False, dropna=False).size()
        return out.reset_index()

    def to_csv(self, path: str | pathlib.Path) -> None:
        """Write the table."""
        self.table.to_csv(path, index=False)

    def best(self, metric: str = "accuracy") -> Choice:
        """The best setting on average. **Not private**: it was chosen by looking at the data."""
        means = self._mean_split_by_setting(metric)
        index = int(np.argmax(means) if metric == "accuracy" else np.argmin(means))
        which = f"best mean {metric} of {len(self.settings)} settings"
        return Choice(self.settings[index], False, f"NOT PRIVATE: {which}, read off the data", None)

    def choose_privately(self, key: Array, *, noise_multiplier: float) -> Choice:
        """The setting of best noisy test accuracy, its price included.

        The numbers of correct test rows, averaged over repeats, form a vector of k counts that one
        test record moves by at most √k; N(0, noise_multiplier²·k) is added to each before the
        maximum is taken. `mechanism` composes every run of the sweep with that Gaussian, which
        holds whether test and training records are distinct or not.
        """
        check.positive_values("noise_multiplier", noise_multiplier)
        if self.test_size is None:
            raise ValueError(
                "test is missing: a private choice needs a sweep with test=(features, labels)"
            )
        counts = self._mean_split_by_setting("accuracy") * self.test_size
        # Every count moves by at most 1: their vector by √k.
        std = noise_multiplier * math.sqrt(len(counts))
        noisy = counts + std * np.asarray(normal(key, (len(counts),)), np.float64)
        repeats = int(self.table["repeat"].max()) + 1
        runs = tuple(acc.Repeated(mechanism, repeats) for mechanism in self.mechanisms)
        mechanism = acc.Composed((*runs, acc.Gaussian(noise_multiplier)))
        note = f"private: noisy maximum of {len(counts)} accuracies; price it with all runs"
        return Choice(self.settings[int(np.argmax(noisy))], True, note, mechanism)

    def _mean_split_by_setting(self, metric: str) -> np.ndarray:
        if metric not in self.table:
            raise ValueError(f"metric must be one of {list(self.table.columns)}, got {metric!r}")
        values = self.table.groupby("setting", sort=True)[metric].mean()
        return np.asarray(values, np.float64)

    def plot(self, metric: str = "accuracy") -> Figure:
        """Mean ± one standard deviation of the metric for every setting, as a figure."""
        with extra("erm"):
            from matplotlib.figure import Figure

        grouped = self.table.groupby("setting", sort=True)[metric]
        mean, spread = (np.asarray(part) for part in (grouped.mean(), grouped.std(ddof=0)))

        def show(value: object) -> str:
            return f"{value:g}" if isinstance(value, float) else str(value)

        names = [", ".join(f"{n} {show(point[n])}" for n in self.names) for point in self.settings]
        figure = Figure(figsize=(7.0, 0.9 + 0.32 * len(names)), layout="constrained")
        axes, rows = figure.subplots(), np.arange(len(names))
        axes.errorbar(mean, rows, xerr=spread, fmt="o", markersize=5, capsize=3, color="#1f4e79")
        axes.set_yticks(rows, names)
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        repeats = int(self.table["repeat"].max()) + 1
        axes.set_xlabel(f"{metric}, mean ± standard deviation of {repeats} runs")
        return figure
