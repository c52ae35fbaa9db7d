"""A table whose encoding is released with noise: ranges, quantiles, categories and classes.

Every look at the records is a histogram of each column, of which a record is in one cell, so that
neighbours differ by √d in the L2 norm where a record is added, by √(2d) where one is replaced:

FIRST   Of numbers the records in each cell of a public signed grid of powers of two; of texts and
        of the target the records of each value that occurs. These are no public list: a value
        leaves only with a noisy count above the threshold t. Of a record that alone holds its
        values in d columns one is shown with probability at most 1 − Π(1 − P(Y ≥ t)) ≤ δ_T, by
        noise that is independent of all else that is released. Without these values the outputs
        are those of histograms over cells that both data sets have; with them the pair is composed
        with ({none: 1}, {none: 1 − δ_T, some: δ_T}), or under replace-one with two such that do not
        meet, which `ApproximateDP(0, δ_T)` dominates: δ(ε) grows by at most δ_T.
        Of a column that nothing is known of the grid comes first, with a cell for other texts and
        one for missing cells, which say whether it holds numbers; its texts have a look after it.
NEXT    Of numbers again, in cells that follow from the look before by how much these held: running
        sums are a noisy distribution function. Every further look (`zooms`) divides the cells that
        hold most again, for columns that are narrow and far from 0.

The classes may have a look of their own, with less noise and a lower threshold: a model lacks a
class that is hidden, and hardly misses a rare category. All histograms together move by the root of
Σ 1/σ² in units of their noise, each with its own σ.

What follows is computed from these counts alone (post-processing), and each record is encoded by
itself. So it is with texts that stay hidden: how many buckets they share follows from the noisy
counts of the values that were released and the number of records, which is public, and which bucket
a text falls in from the text alone (`buckets`). Nothing is refused on account of a cell: one that
does not parse is no number.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import PRNGKeyArray

from dpjax import accounting as acc
from dpjax._files import JsonObject
from dpjax._numerics.checks import Range, choice, one_number
from dpjax._numerics.keys import fold_in_words
from dpjax._numerics.warning import DpjaxWarning
from dpjax.data import buckets, range_cells
from dpjax.data.cells import DataError, check_column_names, list_columns, parse_number
from dpjax.data.schema import Column, Schema
from dpjax.data.single_cells import as_numbers, as_texts
from dpjax.transforms import discrete_gaussian

ENCODINGS = ("bins-and-line", "tail-bins", "asinh", "range", "standard", "grid")
# Folds of a run's key. Training takes low ones, solvers those of their rounds, and key i of
# `jax.random.split` is fold i; samplers take the two highest.
TABLE_FOLD, SPLIT_FOLD, SCORE_FOLD, ROW_FOLD = 0xFFFF_FFF0, 0xFFFF_FFF1, 0xFFFF_FFF2, 0xFFFF_FFF7

_LOW, _HIGH = -32, 64  # exponents of the grid: smaller numbers count as zero, larger as beyond
_POWERS = 2.0 ** np.arange(_LOW, _HIGH + 1)
_GRID = np.concatenate([-_POWERS[::-1], [0.0], _POWERS])
_CELLS = 64  # of a column in the looks after the first, at most
_MOST_STDDEV = 1e15  # of which four times still is a whole number of 64 bits
_KIND_NOISE = 4.0  # relative, of a look at the kinds alone: a majority needs no exact counts
_WIDEST_RUN = 8  # cells of the grid, from x to 256 x, in which all records may be thought to lie
_LEAST_EVIDENCE = 3.0  # in log-likelihood, for such a run
_SHARE, _MOST_SHARE = 0.03, 0.5  # of the budget, as ρ
_RECORDS_PER_NOISE = 150  # what the standard deviation of a count should be a part of
# Where texts may be listed, for as much of the budget as this: a threshold of five to six
# deviations hides categories of less than 1.5 % of the records, else of less than 4 %.
_RECORDS_PER_LIST_NOISE, _LIST_SHARE = 400, 0.15
# The classes' own look: a threshold is five to six deviations: about 1 % of the records.
_CLASS_SHARE, _MOST_CLASS_SHARE, _RECORDS_PER_CLASS_NOISE = 0.01, 0.1, 450
# The weight of a whole number's feature beside those of its cells, see
# docs/decisions/private-tables.md.
_LINE_WEIGHT = 0.9
_TAILS = np.array([0.005, 0.01, 0.02, 0.05])
_THRESHOLD = acc.Disclosure("lone-value", "a value that one record alone holds is released")


@dataclass(frozen=True)
class PrivateTable:
    """How a table's encoding is learned from private records: which looks, with how much noise.

    Raises:
        DataError: a declared column that the table does not have.
        ValueError: an argument out of range.

    Fields:
        columns: the feature columns by name, in the order of the encoding.
        schema: what is public, with the target's name; it wins column by column.
        records: how many there are, treated as public.
        stddev: of the noise of a count, in records, from 3 to 1e15.
        numeric: which undeclared columns hold numbers; None: a noisy count of the cells that parse
            decides.
        encoding: of numbers: "tail-bins" (a feature for each cell between deciles and tail
            quantiles), "asinh", "range", "standard" (each one feature), "bins-and-line" (tail-bins
            and asinh beside each other, from the same counts) or "grid" (a feature for each cell of
            the public grid, of which nothing is learned).
        zooms: further looks at numbers, a public number.
        threshold_delta: δ_T, the part of δ for values that one record alone holds.
        target_stddev: of the noise of a count of a class; None: stddev.
        rough_kinds: as tables of before 0.2 were released: kinds by a look of their own with four
            times the noise, and numbers that do not stand out thought to lie nowhere.
        buckets: whether texts that are not released share a few public buckets (`data.buckets`),
            where by the noisy counts of the others there are such; else they are none.
        range_cells: whether a number whose range is declared, and no cuts, has cells of that range
            beside its line (`data.range_cells`), which reads no record.

    Guarantee:
        `release` is what `mechanism` prices, but for `extra_delta`, under both adjacencies. Names
        and types of the columns are public: a frame's types must not depend on single records.

    Example:
        >>> import jax
        >>> people = pd.DataFrame({"age": ["20", "70"] * 500, "job": ["a", "b"] * 500})
        >>> table = PrivateTable(("age", "job"), Schema((), target="paid"), 1_000, stddev=5.0)
        >>> schema = table.release(people.assign(paid=["no", "yes"] * 500), jax.random.key(0))
        >>> schema.classes, schema.columns[1].categories
        (('no', 'yes'), ('', 'a', 'b'))
        >>> round(acc.epsilon(table.mechanism, 1e-6), 1)
        2.0

    References:
        Korolova et al. 2009, "Releasing search queries and clicks privately" (the threshold);
        Canonne, Kamath, Steinke 2020, Proposition 25 (the noise's tail).
    """

    columns: tuple[str, ...]
    schema: Schema
    records: int
    stddev: float
    numeric: tuple[str, ...] | None = None
    encoding: str = "tail-bins"
    zooms: int = 0
    threshold_delta: float = 1e-6
    target_stddev: float | None = None
    rough_kinds: bool = False
    buckets: bool = False
    range_cells: bool = False

    def __post_init__(self):
        choice("encoding", self.encoding, ENCODINGS)
        one_number("records", self.records, Range(1.0, whole=True))
        one_number("stddev", self.stddev, Range(3.0, _MOST_STDDEV))
        if self.target_stddev is not None:
            one_number("target_stddev", self.target_stddev, Range(3.0, _MOST_STDDEV))
        one_number("zooms", self.zooms, Range(0.0, 8.0, whole=True))
        delta = Range(0.0, 1.0, open_low=True, open_high=True)
        one_number("threshold_delta", self.threshold_delta, delta)
        if self.schema.target is None:
            raise ValueError("schema must name the target, got None")
        for at, name in enumerate(self.columns):
            if name in self.columns[:at] or name == self.schema.target:
                taken = "the target" if name == self.schema.target else "twice the same"
                raise DataError(f"columns must name features, each once, got {name!r}, {taken}")
        declared = [column.name for column in self.schema.columns]
        for what, names in (("the schema", declared), ("numeric", self.numeric or ())):
            absent = [name for name in names if name not in self.columns]
            if absent:
                raise DataError(
                    f"{what} names {absent[0]!r}, which is no feature column of the table; its "
                    f"columns are {', '.join(self.columns[:20])}"
                )

    @property
    def _kinds(self) -> dict[str, str]:
        """What is learned of each column: "number", "category", or "any" where the kind is too."""
        declared = {column.name: column for column in self.schema.columns}
        found = {}
        for name in self.columns:
            column = declared.get(name)
            if column is not None:
                is_open = column.range is column.cuts is None
                if column.kind == "category":  # of which a range says nothing
                    is_open = column.categories is None
                if column.kind != "ignore" and is_open:
                    found[name] = column.kind
            elif self.numeric is None:
                found[name] = "any"
            else:
                found[name] = "number" if name in self.numeric else "category"
        return found

    @property
    def _histograms(self) -> tuple[int, int, int]:
        """How many there are of the kinds, in the first look, and in each of the next, at most.

        The classes' is not among them where it has noise of its own.
        """
        # A column of unknown kind counts as whichever it is found to be: how many histograms are
        # priced must not depend on what was released. Of one by whose first look the kind is told
        # texts have a second one, as numbers have.
        kinds = [*self._kinds.values()]
        unknown, numbers = kinds.count("any"), kinds.count("number") + kinds.count("any")
        numbers *= self.encoding != "grid"
        lists = self._lists - unknown - self._has_own_look
        target = int(self._learns_range)
        alone = unknown * self._has_kind_look
        return alone, lists + max(numbers, unknown) + target, numbers + target

    @property
    def _has_kind_look(self) -> bool:
        """Whether the kinds are told by a look of their own: of a grid there is no other."""
        return self.rough_kinds or self.encoding == "grid"

    @property
    def _learns_range(self) -> bool:
        """Whether the target is a number whose range nobody has given."""
        return self.schema.classes == () and self.schema.target_range is None

    @property
    def _has_own_look(self) -> bool:
        """Whether the classes are found by counts of less noise than those of the columns."""
        return self.schema.classes is None and self.target_stddev is not None

    @property
    def _of_classes(self) -> PrivateTable:
        """This table with the noise of the classes' counts."""
        return replace(self, stddev=self.target_stddev or self.stddev, target_stddev=None)

    @property
    def _lists(self) -> int:
        """How many columns have values that are no public list, at most."""
        texts = [kind for kind in self._kinds.values() if kind != "number"]
        return len(texts) + (self.schema.classes is None)

    @property
    def mechanism(self) -> acc.Mechanism:
        """What `release` releases: histograms, one a column and look."""
        unknown, first, following = self._histograms
        counted = {_KIND_NOISE: unknown, 1.0: first + following * (1 + self.zooms)}
        parts = [
            acc.Repeated(acc.Histogram(noise * self.stddev), steps)
            for noise, steps in counted.items()
            if steps
        ]
        if self._has_own_look:
            parts.append(acc.Repeated(acc.Histogram(self._of_classes.stddev), 1))
        return parts[0] if len(parts) == 1 else acc.Composed(tuple(parts))

    @property
    def extra_delta(self) -> dict[str, float]:
        """The part of δ for the threshold, by reason; none where all values are declared."""
        return {_THRESHOLD: self.threshold_delta} if self._lists else {}

    @property
    def threshold(self) -> int:
        """The noisy count above which a value that occurs is released."""
        if not self._lists:
            return 0
        # P(Y ≥ t) ≤ P(N(0, σ²) ≥ t − 1) (Canonne, Kamath, Steinke 2020, Proposition 25), of which d
        # independent ones are all below with probability 1 − δ_T; a record alone counts 1.
        from scipy.special import ndtri

        each = -math.expm1(math.log1p(-self.threshold_delta) / self._lists)
        return 1 + math.ceil(-self.stddev * float(ndtri(each)) * (1 + 1e-9))

    @property
    def class_threshold(self) -> int:
        """The noisy count above which a class is released."""
        return self._of_classes.threshold

    @property
    def public(self) -> tuple[acc.Disclosure, ...]:
        """What of the table's encoding the release takes as public, one sentence each."""
        declared = self.schema.columns
        lists = {
            "ranges of {}": [c.name for c in declared if c.range is not None or c.cuts is not None],
            "categories of {}": [c.name for c in declared if c.categories is not None],
            "which columns hold numbers ({})": list(self.numeric or ()),
            "classes of {}": [str(self.schema.target)] if self.schema.classes else [],
            "range of {}": [str(self.schema.target)] if self.schema.target_range else [],
        }
        given = [what.format(", ".join(names)) for what, names in lists.items() if names]
        own = acc.Disclosure(
            "columns-public",
            "names and types of the columns are public, and so are the number of records and how "
            "a file is divided into them",
        )
        said = (f"public: {what}: given by the user" for what in given)
        return (*(acc.Disclosure("given-as-public", text) for text in said), own)

    def release(self, frame: pd.DataFrame, key: PRNGKeyArray) -> Schema:
        """Look at the records with noise; the complete schema is covered by `mechanism`.

        Args:
            frame: the records; cells as texts or of any type.
            key: the run's key, which training may have too: the table draws from a fold of its own.

        Returns:
            A schema with a range or cuts for every number, the categories of every text (the first
            is "", a missing value), and the classes, fewer than two where the noise hides them, or
            the range of a target that is a number, from its quantile .5 % to 99.5 %.
        """
        check_column_names(frame)
        for name in (*self.columns, self.schema.target):
            if name not in frame.columns:
                raise DataError(
                    f"the column {name!r} is missing; the columns are {list_columns(frame)}"
                )
        known = {column.name: column for column in self.schema.columns}
        columns = []
        for place, name in enumerate(self.columns):
            column, kind = known.get(name) or Column(name), self._kinds.get(name)
            if kind is not None:
                look = _Looks(self, fold_in_words(key, TABLE_FOLD, place))
                numbers = as_numbers(frame[name], self.schema)
                texts, first = as_texts(frame[name], self.schema), None
                if kind == "any" and self._has_kind_look:
                    kind = look.kind(numbers, texts)
                elif kind == "any":
                    kind, first = look.kind_and_counts(numbers, texts)
                column = replace(column, kind=kind, released=True)
                if kind == "category":
                    column = replace(column, **look.categories(texts))
                else:
                    column = replace(column, **look.encoding(numbers, first))
            elif self.range_cells and column.kind == "number" and column.cuts is None:
                column = range_cells.divide(column, _LINE_WEIGHT)
            columns.append(column)
        classes, ends = self.schema.classes, self.schema.target_range
        # A fold behind those of the columns: each has noise of its own, as the price takes it.
        look = _Looks(self._of_classes, fold_in_words(key, TABLE_FOLD, len(self.columns)))
        target = frame[self.schema.target]
        if classes is None:
            classes = _in_order(look.values(as_texts(target, self.schema))[0])
        if self._learns_range:  # its tails are clipped as those of a column of this encoding are
            plain = _Looks(replace(self, encoding="range"), look.key)
            ends = plain.encoding(as_numbers(target, self.schema))["range"]
        missing = self.schema.missing or ("",)
        found = replace(self.schema, columns=tuple(columns), classes=classes, missing=missing)
        return replace(found, target_range=ends)

    @classmethod
    def for_budget(
        cls, columns: Sequence[str], schema: Schema, records: int, *, epsilon: float, delta: float,
        adjacency: acc.Adjacency = acc.Adjacency.ADD_REMOVE, share: float | None = None,
        target_share: float | None = None, **settings: Any,
    ) -> PrivateTable:  # fmt: skip
        """The table whose looks take a share of a budget (ε, δ), of it as ρ = μ²/2.

        A tenth of δ is set aside for the threshold. By default the looks at the columns take 3 %,
        and more where a count's noise would be above 1/150 of the records, or, if there may be
        categories, up to 15 % where it would be above 1/400; the classes' own look takes 1 %, and
        more where its noise would be above 1/450, up to a tenth. Together they take a half at most;
        it warns where that is not enough for the columns.

        Args:
            columns, schema, records: as the fields.
            epsilon, delta, adjacency: the budget of the whole run.
            share: the looks' part of it, in (0, 1).
            target_share: the part of the budget for the classes' own look, below `share`; 0: they
                are counted with the noise of the columns, which is then that of before the look
                of their own: at most 1/150 of the records.
            **settings: further fields: numeric, encoding, zooms, threshold_delta, buckets,
                range_cells (where records times ε are enough for them, `range_cells.pays`).

        Example:
            >>> schema = Schema((), target="y")
            >>> table = PrivateTable.for_budget(("x",), schema, 10_000, epsilon=1.0, delta=1e-5)
            >>> table.stddev < 10_000 / 150
            True
        """
        settings = {"threshold_delta": delta / 10, **settings}
        if settings.get("range_cells"):
            settings["range_cells"] = range_cells.pays(records, epsilon)
        one_number("threshold_delta", settings["threshold_delta"], Range(0.0, delta, True, True))
        table = cls(tuple(columns), schema, records, stddev=3.0, **settings)
        if table.mechanism == acc.Composed(()):
            return table
        mu = 1 / float(np.asarray(acc.calibrate(acc.Gaussian, epsilon=epsilon, delta=delta)))
        # A histogram takes 1/σ² of μ², and twice that where a record is replaced: a rule to choose
        # the noise by. What it costs is priced by `mechanism`.
        each = 2 if adjacency is acc.Adjacency.REPLACE_ONE else 1
        most = _MOST_SHARE if share is None else one_number("share", share, _PART)
        own = _share_of_classes(table, each / (records * mu) ** 2, most, target_share)
        if own:
            table = replace(table, target_stddev=max(3.0, math.sqrt(each / own) / mu))
        unknown, first, following = table._histograms
        weight = each * (unknown / _KIND_NOISE**2 + first + following * (1 + table.zooms))
        if not weight:  # nothing but the classes is found, by all of a share that was given
            alone = max(3.0, math.sqrt(each / (target_share or share or own)) / mu)
            return replace(table, stddev=alone, target_stddev=alone)
        per_noise = weight / (records * mu) ** 2
        needed = per_noise * _RECORDS_PER_NOISE**2
        if share is None and needed > most - own:
            least = math.ceil(records * math.sqrt(needed / (most - own)))
            warnings.warn(
                f"records should be at least {least:,} for so many columns at epsilon = "
                f"{epsilon:g}, got {records:,}: noise hides much of the ranges, categories and "
                "classes; declare them in a schema",
                DpjaxWarning,
                stacklevel=2,
            )
        if target_share is None and any(kind != "number" for kind in table._kinds.values()):
            needed = max(needed, min(per_noise * _RECORDS_PER_LIST_NOISE**2, _LIST_SHARE))
        others = min(max(_SHARE, needed), most - own) if share is None else share - own
        return replace(table, stddev=max(3.0, math.sqrt(weight / others) / mu))


_PART = Range(0.0, 1.0, open_low=True, open_high=True)


def _share_of_classes(
    table: PrivateTable, per_record: float, most: float, given: float | None
) -> float:
    """The part of the budget for the classes' own look; 0 where none is taken.

    `per_record` is what a count with noise of as many records as there are would take.
    """
    if given is not None:
        given = one_number("target_share", given, Range(0.0, most, open_high=True))
    if table.schema.classes is not None:
        return 0.0
    if given is not None:
        return given
    needed = per_record * _RECORDS_PER_CLASS_NOISE**2
    # A quarter at most of a share that was given: the columns' looks are many.
    return min(max(_CLASS_SHARE, needed), _MOST_CLASS_SHARE, most / 4)


class _Looks:
    """Noisy counts of one column, each look with noise of its own."""

    def __init__(self, table: PrivateTable, key: PRNGKeyArray):
        self.table, self.key = table, key

    def noisy(
        self, counts: np.ndarray | Sequence[int], look: int, scale: float = 1.0
    ) -> np.ndarray:
        """Counts with the noise of `Histogram`, those of one look drawn once."""
        counts = np.asarray(counts, np.int64)
        return counts + discrete_gaussian(
            fold_in_words(self.key, look), scale * self.table.stddev, counts.shape
        )

    def kind_and_counts(self, numbers: np.ndarray, texts: np.ndarray) -> tuple[str, np.ndarray]:
        """FIRST of a column of unknown kind: the kind, and the counts as of a column of numbers."""
        parsed = np.isfinite(numbers) & ~np.isin(texts, ("True", "False"))
        place = 2 + np.searchsorted(_GRID, np.where(parsed, numbers, 0.0), side="left")
        place = np.where(parsed, place, np.where(texts == "", 0, 1))
        # A fold before those of the looks that a known kind has.
        counts = self.noisy(np.bincount(place, minlength=len(_GRID) + 3), 0)
        missing, other = counts[:2].tolist()
        # A number if more cells parse than are other texts, where records = parsed + other +
        # missing; missing cells that are no more than noise are taken for none.
        missing = missing if missing > 2 * self.table.stddev else 0
        kind = "category" if 2 * other > self.table.records - missing else "number"
        return kind, counts[1:]

    def kind(self, numbers: np.ndarray, texts: np.ndarray) -> str:
        """By a look of its own: a number if more cells parse than are other texts, as "True" is."""
        parsed = np.isfinite(numbers) & ~np.isin(texts, ("True", "False"))
        other = ~parsed & (texts != "")
        cells = [parsed.sum(), other.sum(), len(texts) - parsed.sum() - other.sum()]
        counts = self.noisy(cells, 0, _KIND_NOISE)
        return "number" if counts[0] > counts[1] else "category"

    def values(self, texts: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
        """FIRST, of texts: the values that stand out, by their letters, and noisy counts of those.

        The first value is "", whose count is there if it stands out as another's does.
        """
        values, counts = np.unique(texts, return_counts=True)
        counts = self.noisy(counts, 1)
        # Above it: a value that one record alone holds counts 1, and passes with the threshold's δ.
        kept = counts > self.table.threshold
        # That a value may be missing is public.
        return ("", *(value for value in values[kept].tolist() if value)), counts[kept]

    def categories(self, texts: np.ndarray) -> JsonObject:
        """The fields of `Column` that say how the texts are encoded."""
        (listed, counts), own = self.values(texts), self.table
        if not own.buckets:
            return {"categories": listed}
        shared = buckets.choose_count(own.records, counts, own.stddev, own.threshold)
        return {"categories": listed, "buckets": shared}

    def distribution(
        self, numbers: np.ndarray, first: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """FIRST, if it is not taken yet, and NEXT: edges, and shares of the numbers up to each."""
        edges, counts, last = _GRID, np.zeros(1), 2 + self.table.zooms
        cells = int(np.clip(self.table.records / (6 * self.table.stddev), 4, _CELLS))
        for look in range(1, last + 1):
            # The first cell holds what is no number, the last what is above all edges.
            place = 1 + np.searchsorted(edges, np.nan_to_num(numbers), side="left")
            place = np.where(np.isnan(numbers), 0, place)
            if look > 1 or first is None:
                first = self.noisy(np.bincount(place, minlength=len(edges) + 2), look)
            counts = first.astype(float)
            if look < last:
                records = None if self.table.rough_kinds else self.table.records
                edges = _divide(edges, counts[2:-1], self.table.stddev, cells, records)
        # A cell that is wider than one of the grid held nothing in a look before: noise there would
        # put a quantile of the tails anywhere in it.
        within = np.searchsorted(_GRID, edges[:-1], "right") == np.searchsorted(_GRID, edges[1:])
        empty = np.concatenate([[False, True], ~within, [True]])
        empty[2:-1] |= empty[1:-2] & empty[3:]  # and one that stands alone between two such
        empty &= counts <= _least_seen(len(counts), self.table.stddev)
        counts[~empty] += (self.table.records - counts[~empty].sum()) / max((~empty).sum(), 1)
        counts[empty] = 0.0  # the number of records is public, and shared among the others
        running = np.maximum(nearest_rising(np.cumsum(counts[1:])), 0.0)
        return edges, running[:-1] / max(running[-1], 1.0)

    def encoding(self, numbers: np.ndarray, first: np.ndarray | None = None) -> JsonObject:
        """The fields of `Column` that say how the numbers are encoded."""
        how = self.table.encoding
        if how == "grid":
            return {"cuts": tuple(_GRID.tolist())}
        edges, shares = self.distribution(numbers, first)

        def quantile(q: np.ndarray | Sequence[float] | float) -> np.ndarray:
            return _quantile(edges, shares, np.asarray(q, np.float64))

        found: dict[str, Any] = {}
        if how in ("tail-bins", "bins-and-line"):
            # The deviation of a share in the middle; tails below it are noise.
            spread = self.table.stddev * math.sqrt(len(edges)) / 2 / self.table.records
            tails = _TAILS[spread < _TAILS]
            cuts = np.unique(quantile(np.concatenate([np.arange(1, 10) / 10, tails, 1 - tails])))
            found = {"cuts": tuple(cuts.tolist())}
            if how == "tail-bins":
                return found
            found["line_weight"] = _LINE_WEIGHT
        if how == "standard":
            middles = np.concatenate([edges[:1], (edges[1:] + edges[:-1]) / 2])
            mass = np.diff(shares, prepend=0.0)
            mass = mass / max(mass.sum(), 1e-9)
            mean = float(mass @ middles)
            deviation = math.sqrt(float(mass @ (middles - mean) ** 2))
            ends = _widen(mean - 3 * deviation, mean + 3 * deviation)
            return {"range": ends, "scale": "linear"}
        low, high = _widen(*quantile([_TAILS[0], 1 - _TAILS[0]]))
        if how in ("asinh", "bins-and-line"):
            gaps = (quantile(1 - q) - quantile(q) for q in (0.25, 0.1, *_TAILS[::-1]))
            width = next((float(gap) for gap in gaps if gap > 0), 1.0)
            centre = float(quantile(0.5))
            line = {"range": (low, high), "scale": "asinh", "centre": centre, "width": width}
            return found | line
        # Many powers of two between the upper quartile and the top.
        far = low >= 0 and high > 64 * max(float(quantile(0.75)), 1e-9 * high, 1.0)
        return {"range": (low, high), "scale": "log" if far else "linear"}


def nearest_rising(values: np.ndarray) -> np.ndarray:
    """The sequence that never falls and is nearest to the values in the sum of squares."""
    # Pool adjacent violators (Ayer et al. 1955): a run of values that fall becomes its mean.
    # `scipy.optimize` has it too, and takes a quarter of a second to import.
    means: list[float] = []
    sizes: list[int] = []
    for value in values.tolist():
        mean, size = value, 1
        while means and means[-1] >= mean:
            mean = (means[-1] * sizes[-1] + mean * size) / (sizes[-1] + size)
            size += sizes.pop()
            means.pop()
        means.append(mean)
        sizes.append(size)
    return np.repeat(means, sizes)


def _divide(
    edges: np.ndarray, counts: np.ndarray, stddev: float, cells: int, records: int | None
) -> np.ndarray:
    """Edges of about as many cells: those that hold something divided by how much they hold.

    Where no cell stands out of the noise it is the likeliest run of cells for so many records.
    Where none is likely, and without a number of records, what is above 0 is told from the rest.
    """
    if len(counts) == 0:
        return edges
    kept = np.flatnonzero(counts > _least_seen(len(counts), stddev))
    if len(kept) == 0 and records is not None:
        kept = _find_likeliest(counts, records, stddev)
    if len(kept) == 0:
        return np.zeros(1)
    low, high = edges[kept], edges[kept + 1]
    # Zero, or one float: there is nothing between.
    whole = (high - low <= _POWERS[0]) | (high - low <= 1e-12 * np.abs(high))
    mass = np.where(whole, 0.0, counts[kept])
    pieces = np.maximum(1, np.round(cells * mass / max(mass.sum(), 1.0))).astype(int)
    parts = [np.linspace(a, b, n + 1) for a, b, n in zip(low, high, pieces, strict=True)]
    return np.unique(np.concatenate(parts))


def _find_likeliest(counts: np.ndarray, records: int, stddev: float) -> np.ndarray:
    """The run of neighbouring cells, as full as each other, in which all records likeliest lie.

    None, where no run is likelier by `_LEAST_EVIDENCE` than that all counts are noise.
    """
    sums, found = np.concatenate([[0.0], np.cumsum(counts)]), np.arange(0)
    best = 2 * stddev**2 * _LEAST_EVIDENCE
    for size in range(1, min(_WIDEST_RUN, len(counts)) + 1):
        held = sums[size:] - sums[:-size]
        # Under normal noise the log-likelihood is −Σ(c − m)²/2σ², with m = n/size within the run
        # and 0 elsewhere: beside no run at all that is n (2 Σ c − n)/size over 2σ², Σ over the run.
        gain = records * (2 * held - records) / size
        start = int(gain.argmax())
        if gain[start] > best:
            best, found = float(gain[start]), np.arange(start, start + size)
    return found


def _least_seen(cells: int, stddev: float) -> float:
    """The count that one of so many empty cells shows with probability 1/20 at most."""
    from scipy.special import ndtri

    return -stddev * float(ndtri(0.05 / cells))


def _quantile(edges: np.ndarray, shares: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The number below which a share q lies, linear between edges."""
    above = np.clip(np.searchsorted(shares, q), 0, len(edges) - 1)
    below = np.maximum(above - 1, 0)
    gap = shares[above] - shares[below]
    part = (np.clip(q, shares[below], shares[above]) - shares[below]) / np.where(gap > 0, gap, 1.0)
    width = edges[above] - edges[below]
    # What counts as zero is zero: a cut within its cell would set it apart from nothing.
    return edges[below] + width * np.where((gap > 0) & (width > _POWERS[0]), part, 1.0)


def _widen(low: float, high: float) -> tuple[float, float]:
    """A range that is one, also where all numbers are alike."""
    low, high = float(low), float(high)
    return (low, high) if high > low else (low, low + max(1.0, 1e-9 * abs(low)))


def _in_order(values: tuple[str, ...]) -> tuple[str, ...]:
    """Classes as numbers in their order where all are, without the missing one."""
    classes = [value for value in values if value]
    numbers = {value: parse_number(value) for value in classes}
    if all(number is not None for number in numbers.values()):
        classes.sort(key=lambda value: float(numbers[value] or 0.0))
    return tuple(classes)
