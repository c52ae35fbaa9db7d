"""What a model is worth on the held-out records: counts, with noise where these are private.

A held-out record is in one cell of each release:

TABLE   Its class and the predicted one, within its group if a column is named by which to group;
        records of no class that is known are a cell of their own.
SCORES  Of two classes: one of many public cells of the model's log-odds; `_BINS` about equally
        full ones follow from these counts.
CURVE   Its class and one of these few.
ROW     Whether it is predicted rightly, at each row of the metrics.

Of a number it adds to sums, each time between −1/2 and 1/2, in the unit of half the target's range:

ERRORS  Its squared error, at most 1, less 1/2; also at each ROW.
MEAN    Half its value.
CONSTANT  Its squared error of always predicting that mean, in the same way.
CHOICE  Of a class: half of how much lower the loss of the second of two models is, at most 1.

Accuracy, the larger class's share, precision and recall follow from TABLE, the area under the curve
from CURVE, before negative counts are cut at zero: these estimates are not shifted by the cut.

Beside an estimate `X` stand `X_stddev`, one standard deviation of the noise alone, and `X_margin`,
which is what ± means wherever one is shown: two standard deviations of the noise and of which
records happened to be held out, together. What the held-out records are a sample of has the true
value; the margin is computed from what was released alone, so that it costs nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from dpjax._digits import format_plain
from dpjax._files import JsonObject

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray, PyTree
    from rich.console import Console

    from dpjax import accounting as acc
    from dpjax._numerics.namespace import Values
    from dpjax.data import Dataset
    from dpjax.training import Model

_BINS, _EDGES = 10, np.linspace(-8.0, 8.0, 65)
_MOST = 1 << 15  # of a record's part of a sum, 1/2, as a whole number
_SHOWN, _HIDES = 4, 0.1  # classes in the table on the screen, and noise beyond which a share hides
_NUMBERS = "", "_stddev", "_margin"  # of what an estimate's three numbers are named by
# A share of records, one deviation of its noise, and its margin; None where noise hides it.
_Share: TypeAlias = tuple[float, float, float] | tuple[None, None, None]
PLUS_MINUS = (
    "± is two standard deviations: of the noise, and of which records happened to be held out, "
    "together"
)
_WORDS = {
    "table": "true and predicted classes",
    "scores": f"log-odds in {len(_EDGES) + 1} cells",
    "curve": f"true classes and {_BINS} cells that follow",
    "row": "right predictions",
    "errors": "squared errors",
    "mean": "values",
    "constant": "squared errors of their mean",
    "choice": "differences between two models' losses, each a number from −1 to 1",
}


@dataclass(frozen=True)
class Counts:
    """What is released of held-out private records beside a run, and with how much noise.

    Fields:
        classes: how many there are; 0 where the target is a number.
        rows: of the metrics, each of which is a count.
        stddev: of the noise of TABLE in records, of ERRORS in halves.
        key: the run's.
        chooses: whether CHOICE is released too.
    """

    classes: int
    rows: int
    stddev: float = 0.0
    key: PRNGKeyArray | None = None
    chooses: bool = False

    @property
    def noise(self) -> dict[str, float]:
        """The noise of each release beside the first, which takes 4 tenths of 1/σ² or a third."""
        if not self.classes:
            half = math.sqrt(2.0)
            return {"errors": 1.0, "mean": half, "constant": half, "row": math.sqrt(self.rows)}
        curve = {"scores": 2.0, "curve": math.sqrt(2.0)} if self.classes == 2 else {}
        choice = {"choice": 1.0} if self.chooses else {}
        return {"table": 1.0, **curve, "row": math.sqrt(4 / 3 * self.rows), **choice}

    def is_sum(self, name: str) -> bool:
        """Whether a release is a sum of numbers, and no count."""
        return not self.classes or name == "choice"

    def mechanism(self, stddev: Values) -> acc.Mechanism:
        """What the releases cost whoever is held out: of a person one record is counted."""
        from dpjax import accounting as acc

        parts = []
        for name, noise in self.noise.items():
            one = acc.Histogram(stddev * noise)
            if self.is_sum(name):
                one = acc.DiscreteGaussian(stddev * noise, _MOST)
            parts.append(acc.Repeated(one, self.rows if name == "row" else 1))
        return acc.Composed(tuple(parts))

    def describe(self, records: int) -> str:
        """What is released of so many records, in words."""
        row = _WORDS["row" if self.classes else "errors"]
        words = _WORDS | {"row": f"{row} at {self.rows} steps"}
        listed = [f"{words[name]} ({self.stddev * n:.6g})" for name, n in self.noise.items()]
        how = "counted" if self.classes else "added up, each as a number from −1 to 1"
        return (
            f"Of the {records} held-out records {', '.join(listed)} are {how}, with discrete "
            "Gaussian noise of the standard deviation in brackets"
        )

    def perturb(self, name: str, counts: np.ndarray, params: PyTree) -> np.ndarray:
        """Counts with noise: the same for the same parameters, wherever a run was interrupted."""
        import jax

        from dpjax._numerics.keys import fold_in_words
        from dpjax.data.private_table import SCORE_FOLD
        from dpjax.transforms import discrete_gaussian

        assert self.key is not None, "nothing is counted without one"
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(params):
            digest.update(np.asarray(leaf).tobytes())
        words = np.frombuffer(digest.digest()[:16], np.uint32).tolist()
        key = fold_in_words(self.key, SCORE_FOLD, *words, [*self.noise].index(name))
        stddev = self.stddev * self.noise[name] * (_MOST if self.is_sum(name) else 1)
        return counts + discrete_gaussian(key, stddev, counts.shape)


class Groups(NamedTuple):
    """Groups of records, by the categories of a column.

    Fields:
        column: its name; empty where all records are one group.
        names: of the groups.
        number: of each record's group.
    """

    column: str
    names: list[str]
    number: np.ndarray | int


_WITHOUT_GROUPS = Groups("", [""], 0)


class Evaluation:
    """The held-out records, and what may be shown of a model's predicted classes.

    Args:
        model: of logits.
        held_out: encoded records; the label −1 is of no class that is known.
        counts: how these are perturbed; None where the records are public, or not protected.
        groups: by which the records are counted too.
    """

    metric, within = "test_accuracy", "accuracy"  # in the metrics, and in `evaluation.json`

    def __init__(
        self,
        model: Model,
        held_out: Dataset,
        counts: Counts | None = None,
        groups: Groups | None = None,
    ):
        import jax

        self.counts, self.classes = counts, held_out.classes
        self.groups = groups or _WITHOUT_GROUPS
        self.labels, self.records = np.asarray(held_out.labels), len(held_out)
        features = jax.numpy.asarray(held_out.features)
        predict = jax.jit(jax.vmap(model.apply, in_axes=(None, 0)))
        self._scores = lambda params: np.asarray(predict(params, features))

    def count_right(self, params: PyTree) -> int:
        """How many are predicted rightly, exactly: not to be shown of private records."""
        return int((self._scores(params).argmax(axis=1) == self.labels).sum())

    def row(self, params: PyTree, *, exact: bool = False) -> float:
        """The accuracy as a row of the metrics may show it; `exact` is covered by no ε."""
        right = np.asarray(self.count_right(params), np.int64)
        if self.counts is not None and not exact:
            right = self.counts.perturb("row", right, params)
        # The noisy count alone decides: what follows of it, such as the cut, costs nothing.
        return float(np.clip(right / self.records, 0.0, 1.0))

    def summarise(self, params: PyTree) -> JsonObject:
        """What `evaluation.json` holds of these parameters."""
        scores, size = self._scores(params), len(self.classes)
        column, names, group = self.groups
        cell = np.where(self.labels < 0, size**2, self.labels * size + scores.argmax(axis=1))
        cells = size**2 + 1
        counted, stddev = self._count("table", group * cells + cell, len(names) * cells, params)
        # The number of records is public: least squares divides the excess among the cells.
        tables = (counted + (self.records - counted.sum()) / counted.size).reshape(-1, cells)
        found: dict[str, Any] = {"task": "classification", "margins": PLUS_MINUS}
        found["classes"] = list(self.classes)
        spread = stddev * math.sqrt(len(names))
        # The excess that was divided takes its part of the noise with it.
        noise = spread * math.sqrt(size - size**2 / cells) / self.records
        found |= _describe_table(tables.sum(axis=0), self.classes, spread, noise)
        parts = [_describe_table(table, self.classes, stddev) for table in tables]
        found["by"] = {column: dict(zip(names, parts, strict=True))} if column else None
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
            area = _area(curve.reshape(2, cells), spread)
            found["auc"], found["auc_stddev"], found["auc_margin"] = area
        return found

    def _count(
        self, name: str, cells: np.ndarray, number: int, params: PyTree
    ) -> tuple[np.ndarray, float]:
        """Records in each of so many cells, and the standard deviation of the noise of a count."""
        found = np.bincount(cells, minlength=number)
        if self.counts is None:
            return found, 0.0
        noise = self.counts.stddev * self.counts.noise[name]
        return self.counts.perturb(name, found, params), noise

    def _mean(
        self, name: str, parts: np.ndarray, params: PyTree, exact: bool = False
    ) -> tuple[float, float]:
        """The mean of numbers between −1/2 and 1/2, and the noise of it."""
        if self.counts is None or exact:
            return float(np.mean(parts, dtype=np.float64)), 0.0
        # Discrete noise is priced for whole numbers: each part is cut, and rounded to at most _MOST
        # units, so that no record moves the sum by more; sums of floats depend on their order.
        total = np.asarray(np.rint(2 * _MOST * np.clip(parts, -0.5, 0.5)).astype(np.int64).sum())
        noisy = self.counts.perturb(name, total, params) / (2 * _MOST * self.records)
        stddev = self.counts.stddev * self.counts.noise[name] / 2
        return float(noisy), stddev / self.records

    def losses(self, params: PyTree) -> np.ndarray:
        """−log p of each record's class, exactly; 0 where that is none of those known."""
        import jax

        scores = np.asarray(jax.nn.log_softmax(self._scores(params)), np.float64)
        chosen = scores[np.arange(len(scores)), np.maximum(self.labels, 0)]
        return np.where(self.labels < 0, 0.0, -np.nan_to_num(chosen, nan=-np.inf))

    def mean_lead(self, losses: np.ndarray, others: np.ndarray, params: PyTree) -> float:
        """By how much the other losses are lower on average, no record counting more than 1."""
        with np.errstate(invalid="ignore"):
            leads = np.nan_to_num(np.clip(losses - others, -1.0, 1.0))
        return 2 * self._mean("choice", leads / 2, params)[0]


def count_features(column: dict[str, Any]) -> tuple[int, int]:
    """How many features of an encoded column are cells, and how many stand behind them."""
    if column["kind"] == "ignore":
        return 0, 0
    if column["kind"] == "category":
        return len(column["categories"]) + column.get("buckets", 0), 0
    cuts = column["cuts"]
    # A number has cells, and its scaled value where it has none or stands beside them.
    if cuts is None:
        return 0, 1
    return len(cuts) + 2, int(column.get("line_weight") is not None)


def find_groups(encoding: dict[str, Any], features: np.ndarray, name: str | None) -> Groups:
    """The categories of an encoded column as groups, and which each record is of."""
    start = 0
    for column in encoding["columns"]:
        width, listed = sum(count_features(column)), column["categories"]
        if column["name"] == name and column["kind"] == "category":
            # A block has a 1, scaled, in the place of its category, or none.
            end = start + len(listed)  # behind which are buckets, of values that are not listed
            block = np.pad(features[:, start:end] > 0, ((0, 0), (0, 1)))
            block[:, -1] = ~block.any(axis=1)
            names = [text or _free_name("no value", listed) for text in listed]
            names.append(_free_name("none of these", listed))
            return Groups(column["name"], names, block.argmax(axis=1))
        start += width
    return _WITHOUT_GROUPS


def _free_name(name: str, listed: list[str]) -> str:
    """A name for a group without a text of its own, in brackets where a category has it."""
    while name in listed:
        name = f"({name})"
    return name


class NumberEvaluation(Evaluation):
    """The held-out records, and what may be shown of a model's predicted numbers.

    Args:
        model, held_out, counts: as of `Evaluation`.
        ends: the target's range, to which predictions are clipped too.
    """

    metric, within = "test_error", "root_mean_squared_error"

    def __init__(
        self, model: Model, held_out: Dataset, counts: Counts | None, ends: Sequence[float]
    ):
        super().__init__(model, held_out, counts)
        self.half = (ends[1] - ends[0]) / 2

    def row(self, params: PyTree, *, exact: bool = False) -> float:
        """The root mean squared error as a row of the metrics may show it."""
        return self._root("row", self._errors(params), params, exact).error

    def summarise(self, params: PyTree) -> JsonObject:
        """What `evaluation.json` holds of these parameters."""
        found = self._root("errors", self._errors(params), params)
        mean = np.clip(2 * self._mean("mean", self.labels / 2, params)[0], -1.0, 1.0)
        constant = self._root("constant", np.minimum((self.labels - mean) ** 2, 1.0), params)
        return {
            "task": "regression",
            "margins": PLUS_MINUS,
            "root_mean_squared_error": found.error,
            "stddev": found.noise,
            "margin": found.margin,
            "baseline_error": constant.error,
            "baseline_stddev": constant.noise,
            "baseline_margin": constant.margin,
            "records": self.records,
        }

    def _errors(self, params: PyTree) -> np.ndarray:
        """Squared errors, none above that of predicting the middle of the range."""
        guesses = np.clip(self._scores(params)[:, 0].astype(np.float64), -1.0, 1.0)
        return np.minimum(np.nan_to_num((guesses - self.labels) ** 2, nan=1.0), 1.0)

    def _root(self, name: str, errors: np.ndarray, params: PyTree, exact: bool = False) -> _Root:
        """In the target's own unit: the root of a mean of numbers between 0 and 1."""
        mean, noise = self._mean(name, errors - 0.5, params, exact)
        mean = max(mean + 0.5, 0.0)
        # No number between 0 and 1 deviates more than a coin of its mean (Bhatia, Davis 2000), so
        # that of private errors nothing beside the mean need be released.
        sampling = _deviate(min(mean, 1.0), self.records)
        if self.counts is None and self.records > 1:
            sampling = float(np.std(errors, ddof=1, dtype=np.float64)) / math.sqrt(self.records)
        margin, root = 2 * math.hypot(noise, sampling), math.sqrt(mean)
        # The root is concave: below its place it moves by more, but where it is cut at zero.
        apart = max(root - math.sqrt(max(mean - margin, 0.0)), math.sqrt(mean + margin) - root)
        above = math.sqrt(mean + noise) - root
        return _Root(self.half * root, self.half * above, self.half * apart)


class _Root(NamedTuple):
    """The root of a mean of squares, one deviation of its noise, and its margin."""

    error: float
    noise: float
    margin: float


def _deviate(share: float, count: float) -> float:
    """The standard deviation of a share by which records happened to be counted.

    With two records more on either side (Agresti, Coull 1998): a share of 0 or 1 has one too.
    """
    count = max(count, 0.0) + 4
    share = (share * (count - 4) + 2) / count
    return math.sqrt(share * (1 - share) / count)


def _describe_table(
    cells: np.ndarray, classes: tuple[str, ...], stddev: float, noise: float | None = None
) -> JsonObject:
    """What follows from true (rows) and predicted classes (columns), and a cell of no class."""
    # Where the number of records is known, `noise` is that of shares in all of them.
    size = len(classes)
    table = cells[:-1].reshape(size, size)
    right, largest = np.diag(table), table[table.sum(axis=1).argmax()]
    found: dict[str, Any] = {
        "confusion": np.maximum(np.rint(table), 0).astype(int).tolist(),
        "stddev": stddev,
        "records": max(round(float(cells.sum())), 0),
        "auc": None,
        "auc_stddev": None,
        "auc_margin": None,
    }
    for what, part in (("accuracy", right), ("largest_class_share", largest)):
        share = _ratio(part, cells, stddev, noise)
        found[what], found[f"{what}_stddev"], found[f"{what}_margin"] = share
    found["lead_margin"] = _lead_margin(found, table, float(cells.sum()))
    for what, lines in (("precision", table.T), ("recall", table)):
        shares = [_ratio(right[k : k + 1], lines[k], stddev) for k in range(size)]
        for name, values in zip(_NUMBERS, zip(*shares, strict=True), strict=True):
            found[f"{what}{name}"] = dict(zip(classes, values, strict=True))
    return found


def _lead_margin(found: dict[str, Any], table: np.ndarray, total: float) -> float | None:
    """The margin of how much more often a model is right than its largest class is true."""
    if found["accuracy"] is None or found["largest_class_share"] is None or not total > 0:
        return None
    largest, right = table.sum(axis=1).argmax(), np.diag(table)
    # A record makes a difference of one where a smaller class is found, −1 where the largest is
    # not, else 0: its variance is at most the share of these, less the square of the mean.
    differ = right.sum() - 2 * right[largest] + table[largest].sum()
    lead = found["accuracy"] - found["largest_class_share"]
    sampling = math.sqrt(max(float(differ) / total - lead**2, 0.0) / total)
    noise = found["accuracy_stddev"], found["largest_class_share_stddev"]
    return 2 * math.hypot(*noise, sampling)


def _ratio(
    part: np.ndarray, whole: np.ndarray, stddev: float, noise: float | None = None
) -> _Share:
    """The share of some cells in all, its noise and margin; None where all are lost in noise.

    `noise` is that of the share itself, of a whole whose number of records is known.
    """
    total = float(whole.sum())
    if total <= (2 * stddev * math.sqrt(whole.size) if noise is None else 0.0):
        return None, None, None
    share = float(np.clip(part.sum() / total, 0.0, 1.0))
    if noise is None:
        # To first order one more in the part moves the share by (1 − s)/N, elsewhere by −s/N.
        moved = part.size * (1 - share) ** 2 + (whole.size - part.size) * share**2
        noise = stddev * math.sqrt(moved) / total
    return share, noise, 2 * math.hypot(noise, _deviate(share, total))


def _quantiles(counts: np.ndarray) -> np.ndarray:
    """Log-odds that divide the records into about equal parts, by counts between `_EDGES`."""
    running = np.maximum.accumulate(np.maximum(np.cumsum(counts), 0))[:-1]
    parts = np.arange(1, _BINS) / _BINS * running[-1]
    return np.interp(parts, running, _EDGES)


def _area(curve: np.ndarray, stddev: float) -> _Share:
    """The area under the curve of counts a cell, noise and margin; ties in a cell count half."""
    negative, positive = curve
    least = 2 * stddev * math.sqrt(len(negative))
    if min(negative.sum(), positive.sum()) <= least:
        return None, None, None
    losses, wins = negative / negative.sum(), positive / positive.sum()
    below = np.cumsum(losses) - losses / 2  # of a positive in a cell: negatives that it is above
    above = 1 - np.cumsum(wins) + wins / 2
    area = float(below @ wins)
    # To first order in the noise: what one record more in a cell changes, of cells independently.
    moved = [(below - area) / positive.sum(), (above - area) / negative.sum()]
    area, noise = float(np.clip(area, 0.0, 1.0)), stddev * float(np.linalg.norm(moved))
    # The variance by which records were drawn is at most A(1 − A)/min(m, n) (Birnbaum, Klose 1957).
    sampling = _deviate(area, float(min(negative.sum(), positive.sum())))
    return area, noise, 2 * math.hypot(noise, sampling)


def compare(found: dict[str, Any]) -> str | None:
    """In words, that a model is no better than one without features; None where it is."""
    if found["task"] == "regression":
        better = found["baseline_error"] - found["root_mean_squared_error"]
        # Where errors rise together, as those of one record do, the difference has less.
        margin = math.hypot(found["margin"], found["baseline_margin"])
        other = f"predicting the mean, whose error is {format_plain(found['baseline_error'], 4)}"
    else:
        better = found["accuracy"] - found["largest_class_share"]
        margin = found["lead_margin"]
        rows = [sum(row) for row in found["confusion"]]
        other = (
            f"answering {found['classes'][rows.index(max(rows))]!r}, which is right for "
            f"{found['largest_class_share']:.1%} of the held-out records"
        )
    if better > margin:
        return None
    said = f"the model is not{' clearly' * (-margin < better < margin)} better than always {other}"
    # Where a class is rare the likeliest answer may always be the other, and the order still tell.
    if found.get("auc") is not None and found["auc"] - found["auc_margin"] > 0.5:
        return f"{said}; the order of its probabilities tells the classes apart, see the area"
    return f"{said}: it was not worth its ε; give more records or a larger --epsilon"


def is_hidden(value: float | None, noise: float | None) -> bool:
    """Whether the noise of a share hides it, so that it is not shown."""
    return value is None or (noise or 0.0) > _HIDES


def show(console: Console, found: dict[str, Any]) -> None:
    """The evaluation as a small table, each number with its margin, and what that is."""
    from rich.table import Table

    table = Table(title=f"On {found['records']:,} held-out records", title_justify="left")
    table.add_column("measure")
    table.add_column("value", justify="right")
    table.add_column("±", justify="right")

    def add(name: str, part: dict[str, Any], what: str, one: str | None = None) -> None:
        value, noise, margin = (
            part[f"{what}{end}"] if one is None else part[f"{what}{end}"][one] for end in _NUMBERS
        )
        none = "hidden by noise" if part["stddev"] else "no such record"
        table.add_row(
            name,
            none if is_hidden(value, noise) else f"{value:.1%}",
            "" if margin is None else f"{margin:.1%}",
        )

    if found["task"] == "regression":
        error, margin = found["root_mean_squared_error"], found["margin"]
        table.add_row("root mean squared error", format_plain(error, 4), format_plain(margin, 2))
        error, margin = found["baseline_error"], found["baseline_margin"]
        row = "of always predicting the mean"
        table.add_row(row, format_plain(error, 4), format_plain(margin, 2))
    else:
        add("accuracy", found, "accuracy")
        add("share of the largest class", found, "largest_class_share")
        if len(found["classes"]) == 2:
            add("area under the curve", found, "auc")
        for name in found["classes"][:_SHOWN]:
            for what in ("precision", "recall"):
                add(f"{what} of {name}", found, what, name)
        for column, groups in (found["by"] or {}).items():
            for name, part in groups.items():
                add(f"accuracy where {column} is {name}", part, "accuracy")
    console.print(table)
    console.print(PLUS_MINUS)
    if len(found.get("classes", ())) > _SHOWN:
        console.print("the other classes are in evaluation.json")
    if (said := compare(found)) is not None:
        console.print(f"warning: {said}", style="yellow")
