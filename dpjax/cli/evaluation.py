"""What a model is worth on the held-out records: counts, with noise where these are private.

A held-out record is in one cell of each release:

TABLE   Its class and the predicted one; records of no class that is known are a cell of their own.
SCORES  Of two classes: one of many public cells of the model's log-odds; `_BINS` about equally
        full ones follow from these counts.
CURVE   Its class and one of these few.
ROW     Whether it is predicted rightly, at each row of the metrics.

Accuracy, the larger class's share, precision and recall follow from TABLE, the area under the curve
from CURVE, before negative counts are cut at zero: these estimates are not shifted by the cut.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dpjax import accounting as acc
    from dpjax.data import Dataset
    from dpjax.training import Model

_BINS, _EDGES = 10, np.linspace(-8.0, 8.0, 65)
_SHOWN = 10  # classes in the table on the screen


@dataclass(frozen=True)
class Counts:
    """What is released of held-out private records beside a run, and with how much noise.

    Fields:
        classes: how many there are.
        rows: of the metrics, each of which is a count.
        unit: the most held-out records of one unit of protection.
        stddev: of the noise of TABLE.
        key: the run's.
    """

    classes: int
    rows: int
    unit: int = 1
    stddev: float = 0.0
    key: Any = None

    @property
    def noise(self) -> dict[str, float]:
        """The noise of each release beside TABLE's: of 1/σ² these take 4, 1, 2 and 3 tenths."""
        curve = {"scores": 2.0, "curve": math.sqrt(2.0)} if self.classes == 2 else {}
        return {"table": 1.0, **curve, "row": math.sqrt(4 / 3 * self.rows)}

    def mechanism(self, stddev: Any) -> acc.Mechanism:
        """What the releases cost a unit of protection that is held out."""
        from dpjax import accounting as acc

        several = {"row": self.rows}
        parts = [
            acc.Repeated(acc.Histogram(stddev * noise), several.get(name, 1))
            for name, noise in self.noise.items()
        ]
        whole = acc.Composed(tuple(parts))
        return whole if self.unit == 1 else acc.UserLevel(whole, self.unit)

    def describe(self, records: int) -> str:
        """What is released of so many records, in words."""
        words = {
            "table": "their true and predicted classes",
            "scores": f"their log-odds in {len(_EDGES) + 1} cells",
            "curve": f"their true classes and {_BINS} cells that follow",
            "row": f"the right predictions at {self.rows} steps",
        }
        listed = [f"{words[name]} ({self.stddev * n:.6g})" for name, n in self.noise.items()]
        return (
            f"of the {records} held-out records {', '.join(listed)} are counted, with discrete "
            "Gaussian noise of the standard deviation in brackets"
        )

    def perturb(self, name: str, counts: np.ndarray, params: Any) -> np.ndarray:
        """Counts with noise: the same for the same parameters, wherever a run was interrupted."""
        import jax

        from dpjax._numerics.keys import fold_in_words
        from dpjax.data.private_table import SCORE_FOLD
        from dpjax.transforms import discrete_gaussian

        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(params):
            digest.update(np.asarray(leaf).tobytes())
        words = np.frombuffer(digest.digest()[:16], np.uint32).tolist()
        key = fold_in_words(self.key, SCORE_FOLD, *words, [*self.noise].index(name))
        return counts + discrete_gaussian(key, self.stddev * self.noise[name], counts.shape)


class Evaluation:
    """The held-out records, and what may be shown of a model's predictions of them.

    Args:
        model: of logits.
        held_out: encoded records; the label −1 is of no class that is known.
        counts: how these are perturbed; None where the records are public, or not protected.
    """

    def __init__(self, model: Model, held_out: Dataset, counts: Counts | None = None):
        import jax

        self.counts, self.classes = counts, held_out.classes
        self.labels, self.records = np.asarray(held_out.labels), len(held_out)
        features = jax.numpy.asarray(held_out.features)
        predict = jax.jit(jax.vmap(model.apply, in_axes=(None, 0)))
        self._scores = lambda params: np.asarray(predict(params, features))

    def row(self, params: Any, *, exact: bool = False) -> float:
        """The accuracy as a row of the metrics may show it; `exact` is covered by no ε."""
        right = np.asarray((self._scores(params).argmax(axis=1) == self.labels).sum(), np.int64)
        if self.counts is not None and not exact:
            right = self.counts.perturb("row", right, params)
        return float(np.clip(right / self.records, 0.0, 1.0))

    def summarise(self, params: Any) -> dict[str, Any]:
        """What `evaluation.json` holds of these parameters."""
        scores, size = self._scores(params), len(self.classes)
        cell = np.where(self.labels < 0, size**2, self.labels * size + scores.argmax(axis=1))
        table, stddev = self._count("table", cell, size**2 + 1, params)
        # The number of records is public: least squares divides the excess among the cells.
        table = table + (self.records - table.sum()) / table.size
        found: dict[str, Any] = {"task": "classification", "classes": list(self.classes)}
        found |= _describe_table(table[:-1].reshape(size, size), self.classes, self.records, stddev)
        # The excess that was divided takes its part of the noise with it.
        found["accuracy_stddev"] = stddev * math.sqrt(size - size**2 / table.size) / self.records
        found["auc"], found["auc_stddev"] = None, None
        if size == 2:
            known = self.labels >= 0
            odds, labels = (scores[:, 1] - scores[:, 0])[known], self.labels[known]
            edges = np.unique(odds)  # of public records every score is a cell
            if self.counts is not None:
                many = np.searchsorted(_EDGES, odds)
                edges = _quantiles(self._count("scores", many, len(_EDGES) + 1, params)[0])
            cells = len(edges) + 1
            place = labels * cells + np.searchsorted(edges, odds)
            curve, spread = self._count("curve", place, 2 * cells, params)
            found["auc"], found["auc_stddev"] = _area(curve.reshape(2, cells), spread)
        return found | {"by": None}

    def _count(
        self, name: str, cells: np.ndarray, number: int, params: Any
    ) -> tuple[np.ndarray, float]:
        """Records in each of so many cells, and the standard deviation of the noise of a count."""
        found = np.bincount(cells, minlength=number)
        if self.counts is None:
            return found, 0.0
        noise = self.counts.stddev * self.counts.noise[name]
        return self.counts.perturb(name, found, params), noise


def _describe_table(
    table: np.ndarray, classes: tuple[str, ...], records: float, stddev: float
) -> dict[str, Any]:
    """What follows from a table of true (rows) and predicted classes (columns)."""
    right, size = np.diag(table), len(classes)
    by_class: dict[str, Any] = {}
    for what, lines in (("precision", table.T), ("recall", table)):
        shares, noise = zip(*(_share(lines, k, stddev) for k in range(size)), strict=True)
        by_class[what] = dict(zip(classes, shares, strict=True))
        by_class[f"{what}_stddev"] = dict(zip(classes, noise, strict=True))
    return {
        "confusion": np.maximum(np.rint(table), 0).astype(int).tolist(),
        "stddev": stddev,
        "records": records,
        "accuracy": float(np.clip(right.sum() / records, 0.0, 1.0)),
        "largest_class_share": float(np.clip(table.sum(axis=1).max() / records, 0.0, 1.0)),
        "largest_class_share_stddev": stddev * math.sqrt(size) / records,
        **by_class,
    }


def _share(lines: np.ndarray, k: int, stddev: float) -> tuple[float | None, float | None]:
    """The share of line k in its diagonal, and its noise; None where the line is lost in noise."""
    total = float(lines[k].sum())
    if total <= 2 * stddev * math.sqrt(len(lines)):
        return None, None
    share = float(np.clip(lines[k, k] / total, 0.0, 1.0))
    # To first order: one more in the diagonal moves the share by (1 − s)/N, elsewhere by −s/N.
    moved = math.sqrt((1 - share) ** 2 + (len(lines) - 1) * share**2)
    return share, stddev * moved / total


def _quantiles(counts: np.ndarray) -> np.ndarray:
    """Log-odds that divide the records into about equal parts, by counts between `_EDGES`."""
    running = np.maximum.accumulate(np.maximum(np.cumsum(counts), 0))[:-1]
    parts = np.arange(1, _BINS) / _BINS * running[-1]
    return np.interp(parts, running, _EDGES)


def _area(curve: np.ndarray, stddev: float) -> tuple[float | None, float | None]:
    """The area under the curve of counts a cell, and its noise; ties within a cell count half."""
    negative, positive = curve
    least = 2 * stddev * math.sqrt(len(negative))
    if min(negative.sum(), positive.sum()) <= least:
        return None, None
    losses, wins = negative / negative.sum(), positive / positive.sum()
    below = np.cumsum(losses) - losses / 2  # of a positive in a cell: negatives that it is above
    above = 1 - np.cumsum(wins) + wins / 2
    area = float(below @ wins)
    # To first order in the noise: what one record more in a cell changes, of cells independently.
    moved = [(below - area) / positive.sum(), (above - area) / negative.sum()]
    return float(np.clip(area, 0.0, 1.0)), stddev * float(np.linalg.norm(moved))


def compare(found: dict[str, Any]) -> str | None:
    """In words, that a model is no better than one without features; None where it is."""
    noise = math.hypot(found["accuracy_stddev"], found["largest_class_share_stddev"])
    if found["accuracy"] - found["largest_class_share"] > 2 * noise:
        return None
    rows = [sum(row) for row in found["confusion"]]
    largest, clearly = found["classes"][rows.index(max(rows))], " clearly" if noise else ""
    return (
        f"the model is not{clearly} better than always answering {largest!r}, which is right for "
        f"{found['largest_class_share']:.1%} of the held-out records"
    )


def show(console: Any, found: dict[str, Any]) -> None:
    """The evaluation as a small table, each number with the standard deviation of its noise."""
    from rich.table import Table

    table = Table(title=f"On {found['records']:,} held-out records", title_justify="left")
    table.add_column("measure")
    table.add_column("value", justify="right")
    table.add_column("± noise", justify="right")

    def add(name: str, value: float | None, noise: float | None) -> None:
        shown = "none can be told" if value is None else f"{value:.1%}"
        table.add_row(name, shown, f"{noise:.1%}" if noise else "")

    add("accuracy", found["accuracy"], found["accuracy_stddev"])
    share = found["largest_class_share"], found["largest_class_share_stddev"]
    add("share of the largest class", *share)
    if len(found["classes"]) == 2:
        add("area under the curve", found["auc"], found["auc_stddev"])
    for name in found["classes"][:_SHOWN]:
        for what in ("precision", "recall"):
            add(f"{what} of {name}", found[what][name], found[f"{what}_stddev"][name])
    console.print(table)
    if len(found["classes"]) > _SHOWN:
        console.print("the other classes are in evaluation.json")
    if (said := compare(found)) is not None:
        console.print(f"warning: {said}", style="yellow")
