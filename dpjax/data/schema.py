"""What is publicly known about a table: its columns, their ranges and categories, the classes.

Ranges and category lists read off the private rows are themselves a release that no ε covers. A
schema declares them beforehand; whatever it leaves open is learned, and listed as learned. The
complete schema travels with a model as plain values, in which what was learned is marked.
"""

from __future__ import annotations

import json
import math
import pathlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dpjax._files import JsonObject
from dpjax.data import cells
from dpjax.data.cells import DataError, class_name, tidy_text

if TYPE_CHECKING:
    from dpjax.accounting import Disclosure

# A model is a file of somebody else's: a number in it must not take all memory.
_MOST_BUCKETS = 65_536


@dataclass(frozen=True)
class Column:
    """One feature column.

    Fields:
        name: its name in the table's header (or, without a header, the name given to its position).
        kind: "number", "category" or "ignore".
        range: (low, high) of a number, in the column's own units; values beyond it are clipped.
        categories: the values a category may take; any other value encodes as none of them, or
            where the column has buckets as one of these.
        scale: "linear", "log" for log(1 + x) of a non-negative number, or "asinh" for
            asinh((x − centre)/width).
        centre, width: of a number whose scale is "asinh", in its own units; width > 0.
        cuts: instead of a range: a feature for every cell between them, and one for no number.
        line_weight: u of a number that has cuts and a range: beside the cells, whose features are
            √(1 − u²) or 0, one feature u times the scaled number; 0 < u < 1.
        released: whether its range, cuts or categories were released with noise, by which its kind
            may be wrong: each cell is then read by itself, and one that is not of the kind is
            missing, where a declared column's is refused.
        buckets: how many features behind those of the categories all other values share, each in
            the one that `data.buckets` places it in, at most 65,536. A missing value is the
            category "".

    Example:
        >>> Column("age", "number", range=(17, 90)).range
        (17, 90)
    """

    name: str
    kind: str = "number"
    range: tuple[float, float] | None = None
    categories: tuple[str, ...] | None = None
    scale: str = "linear"
    centre: float = 0.0
    width: float = 1.0
    cuts: tuple[float, ...] | None = None
    line_weight: float | None = None
    # Not in its text, which runs of earlier versions bound their keys to.
    released: bool = field(default=False, repr=False)
    buckets: int = field(default=0, repr=False)

    def __post_init__(self):
        where = f"column {self.name!r}"
        if self.kind not in ("number", "category", "ignore"):
            raise DataError(f"{where}: kind is {self.kind!r}; use number, category or ignore")
        if self.scale not in ("linear", "log", "asinh"):
            raise DataError(f"{where}: scale is {self.scale!r}; use linear, log or asinh")
        if not (math.isfinite(self.centre) and math.isfinite(self.width) and self.width > 0):
            raise DataError(f"{where}: width must be above 0, and centre a number")
        if self.cuts is not None and not (
            np.all(np.isfinite(self.cuts)) and np.all(np.diff(self.cuts) > 0)
        ):
            raise DataError(f"{where}: cuts must rise")
        has_both = self.cuts is not None and self.range is not None
        if has_both != (self.line_weight is not None) or not 0 < (self.line_weight or 0.5) < 1:
            raise DataError(
                f"{where}: line_weight must be above 0 and below 1 of a number that has cuts and a "
                f"range, and None of another, got {self.line_weight!r}"
            )
        if self.range is not None:
            try:
                low, high = map(float, self.range)  # of whole numbers two may be one float
            except OverflowError:
                low, high = -math.inf, math.inf
            if not (math.isfinite(low) and math.isfinite(high - low) and low < high):
                raise DataError(
                    f"{where}: range is {list(self.range)}; give [low, high], low < high"
                )
            if self.scale == "log" and low < 0:
                raise DataError(f"{where}: a log scale needs a range that starts at 0 or above")
            first, last = self.scale_numbers(np.array([low, high])).tolist()
            tells = first < last and math.isfinite(last - first)
            if not (tells or self.released):  # a release is refused nowhere
                raise DataError(
                    f"{where}: the ends of range {list(self.range)} are one number on the scale "
                    f"{self.scale!r}; use linear"
                )
        if self.categories is not None:
            _tidy(self, "categories", f"{where}: categories")
            cells.check_visible(f"{where}: categories", self.categories)
            if len(set(self.categories)) != len(self.categories):
                raise DataError(f"{where}: a category is listed twice")
        has_missing = self.kind == "category" and "" in (self.categories or ())
        is_count = type(self.buckets) is int and 0 <= self.buckets <= _MOST_BUCKETS
        if not is_count or (self.buckets and not has_missing):
            raise DataError(
                f"{where}: buckets must be a whole number from 0 to {_MOST_BUCKETS:,}, and 0 but "
                f'of a category that lists "", got {self.buckets!r}'
            )

    def scale_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers as their scale has them, before its range becomes −1 to 1."""
        if self.scale == "log":
            return np.log1p(numbers)
        if self.scale == "asinh":
            with np.errstate(over="ignore"):
                return np.arcsinh((numbers - self.centre) / self.width)
        return numbers


@dataclass(frozen=True)
class Schema:
    """The public description of a table.

    Fields:
        columns: its feature columns, in the order of the encoding.
        target: the column to predict.
        classes: the target's values, in the order of the class numbers; () of a number.
        target_range: (low, high) of a target that is a number, to which it is clipped; in a file
            the `range` of the column of that name.
        header: whether the file's first line names the columns; without one, `names` does.
        names: every column of the file in order (target included) when there is no header.
        aliases: other spellings of classes, such as {"<=50K.": "<=50K"}.
        comment: lines that start with this character are skipped.
        missing: texts that stand for no value, such as "?" and "NA", beside an empty cell. Where
            there are any (("",) is empty cells alone), a number without a value is encoded as the
            middle of its range, where it has cuts as a cell of its own, and a category as none;
            else such a row is refused.
        separator: what stands between the cells of a line; None: a comma, semicolon or tab, by the
            first line.
        decimal, thousands: what numbers are written with: "," and "." read "1.234,5".

    Example:
        >>> Schema(columns=(Column("age", range=(17, 90)),), target="income").columns[0].name
        'age'
    """

    columns: tuple[Column, ...]
    target: str | None = None
    classes: tuple[str, ...] | None = None
    header: bool = True
    names: tuple[str, ...] | None = None
    aliases: tuple[tuple[str, str], ...] = ()
    comment: str | None = None
    missing: tuple[str, ...] = ()
    decimal: str = "."
    thousands: str | None = None
    separator: str | None = None
    target_range: tuple[float, float] | None = None

    def __post_init__(self):
        _tidy(self, "missing", "missing")
        if not _is_mark(self.decimal) or self.decimal.isspace():
            raise DataError(f'decimal must be one mark, such as ",", got {self.decimal!r}')
        if self.thousands is not None and not _is_mark(self.thousands):
            raise DataError(
                f'thousands must be one mark, such as "." or " ", got {self.thousands!r}'
            )
        if self.separator is not None and (
            not _is_mark(self.separator) or self.separator in '"\r\n'
        ):
            raise DataError(f'separator must be one mark, such as ";", got {self.separator!r}')
        if self.decimal == self.thousands:
            raise DataError(f"decimal and thousands must differ, got {self.decimal!r} for both")
        if self.classes is not None:
            _tidy(self, "classes", "classes")
            cells.check_visible("classes", self.classes)
        aliases = tuple((tidy_text(k), tidy_text(v)) for k, v in self.aliases)
        object.__setattr__(self, "aliases", aliases)


def _is_mark(text: object) -> bool:
    """One character that is not part of a number in another way."""
    return isinstance(text, str) and len(text) == 1 and not text.isalnum() and text not in "+-−"


def _tidy(owner: Schema | Column, field: str, what: str) -> None:
    """Compares the texts of a field as cells are compared; a category 1 would match no cell."""
    values = getattr(owner, field)
    listed = isinstance(values, tuple | list)
    other = [value for value in values if not isinstance(value, str)] if listed else [values]
    if other:
        raise DataError(f'{what} must be a tuple of texts, got {other[0]!r}; write 1 as "1"')
    object.__setattr__(owner, field, tuple(map(tidy_text, values)))


_HOW = ("comment", "missing", "decimal", "thousands", "separator")
_KEYS = {"target", "classes", "header", "names", "aliases", "columns", *_HOW}
_COLUMN_KEYS = {"name", "kind", "range", "categories", "scale"}


def read_schema(path: str | pathlib.Path) -> Schema:
    """Read a schema from TOML or JSON.

    The keys are those of `Schema`; `columns` is a list of tables with the keys of `Column`, where
    `categories` implies the kind "category". Without a header, `names` defaults to the columns in
    order followed by the target.

    Raises:
        DataError: a missing file, a syntax error, an unknown key or an impossible value.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "schema.toml"
        >>> _ = file.write_text('target = "y"\\n[[columns]]\\nname = "x"\\nrange = [0, 1]\\n')
        >>> read_schema(file).columns[0].range
        (0.0, 1.0)
    """
    path = pathlib.Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read the schema {path}: {error.strerror or error}") from None
    try:
        raw = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return _schema(raw)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"the schema {path} does not parse: {error}") from None
    except DataError as error:
        raise DataError(f"the schema {path}: {error}") from None


def _schema(raw: Any) -> Schema:
    """The schema that the keys of a file describe."""
    if not isinstance(raw, dict):
        raise DataError("the top level must be a table of keys")
    _check_keys("key", raw, _KEYS)
    listed = raw.get("columns", [])
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise DataError("columns must be a list of tables, each with a name")
    # As `dpjax schema` marks them.
    if undecided := [repr(one.get("name")) for one in listed if one.get("kind") == "decide"]:
        raise DataError(
            f"the kind of {', '.join(undecided)} is still to be decided: number, category or ignore"
        )
    columns = [_declared_column(entry) for entry in listed]
    names = [column.name for column in columns]
    if len(set(names)) != len(names):
        raise DataError("a column is declared twice")
    for where, one in (
        ("", raw.get("classes")),
        *((e["name"], e.get("categories")) for e in listed),
    ):
        if one == []:
            what = f"column {where!r}: categories" if where else "classes"
            raise DataError(
                f"{what} must list some, got none; leave the key out to have them found"
            )
    header, target = raw.get("header", True), raw.get("target")
    names = raw.get("names", names if target is None or target in names else [*names, target])
    classes = raw.get("classes")
    written: Any = {key: raw[key] for key in _HOW if key in raw}
    if isinstance(written.get("missing"), list):
        written["missing"] = tuple(written["missing"])
    return Schema(
        columns=tuple(column for column in columns if column.name != target),
        target=target,
        classes=None if classes is None else tuple(str(c) for c in classes),
        header=bool(header),
        names=None if header else tuple(names),
        aliases=tuple((str(k), str(v)) for k, v in raw.get("aliases", {}).items()),
        target_range=next((column.range for column in columns if column.name == target), None),
        **written,
    )


def _declared_column(entry: dict) -> Column:
    _check_keys("column key", entry, _COLUMN_KEYS)
    if "name" not in entry:
        raise DataError(f"a column has no name: {entry}")
    ends, categories = entry.get("range"), entry.get("categories")
    pair = isinstance(ends, list) and len(ends) == 2
    if ends is not None and not (pair and all(isinstance(end, int | float) for end in ends)):
        raise DataError(f"column {entry['name']!r}: range is {ends}; give [low, high]")
    return Column(
        name=entry["name"],
        kind=entry.get("kind", "number" if categories is None else "category"),
        range=None if ends is None else (float(ends[0]), float(ends[1])),
        categories=None if categories is None else tuple(str(c) for c in categories),
        scale=entry.get("scale", "linear"),
    )


def _check_keys(what: str, given: dict, allowed: set[str]) -> None:
    unknown = sorted(set(given) - allowed)
    if unknown:
        raise DataError(f"unknown {what} {unknown[0]!r}; known are {', '.join(sorted(allowed))}")


_OTHERWISE = 'leave the column out by kind = "ignore" in a schema, or declare its categories there'
_NO_CLASSES = (
    "a number is predicted by --task regression (dpjax train) or estimators.DPLinearRegression, or "
    "name its classes in a schema"
)


def complete_schema(
    frame: pd.DataFrame, target: str, declared: Schema | None = None, *, number: bool = False
) -> tuple[Schema, tuple[Disclosure, ...]]:
    """Fill in from the rows what the schema leaves open, and list what was filled in.

    Of a target that is a `number`, declared to have no classes (()), the range is filled in too.
    Returns the complete schema and one line for everything that was learned from the rows: these
    lines belong into the certificate's list of what ε does not cover. The lines name columns, never
    values.

    Example:
        >>> frame = pd.DataFrame({"x": [0.0, 2.0], "y": ["a", "b"]})
        >>> schema, learned = complete_schema(frame, "y")
        >>> schema.columns[0].range, schema.classes
        ((0.0, 2.0), ('a', 'b'))
        >>> learned
        ('ranges learned from the rows: x', 'classes of the target learned from the rows: y')
    """
    from dpjax.accounting import Disclosure  # loaded here: reading a table needs no accountant

    cells.check_column_names(frame)
    declared = declared or Schema(columns=())
    frame = cells.parse_cells(frame, replace(declared, target=target))
    known = {column.name: column for column in declared.columns}
    absent = [name for name in known if name not in frame.columns]
    if absent:
        raise DataError(
            f"the schema declares {absent[0]!r}, which the table does not have; its columns are "
            f"{cells.list_columns(frame)}"
        )
    declares_any = any(column.kind != "ignore" for column in declared.columns)
    columns: list[Column] = []
    errors: list[DataError] = []  # of all columns, so that one look at the table decides them
    for name in [*known, *(n for n in frame.columns if n not in known and n != target)]:
        try:
            columns.append(_complete_column(frame, name, known.get(name), declared))
        except DataError as error:
            errors.append(error)
    classes = declared.classes
    target_range, learns_range = declared.target_range, number and declared.target_range is None
    try:
        if (error := cells.find_unlabelled(frame, target)) is not None:
            raise error
        classes = _find_classes(frame, target) if classes is None else classes
        if learns_range:
            target_range = cells.learn_range(frame, target, bool(declared.missing))
    except DataError as error:
        errors.append(error)
    cells.raise_together(errors)
    new = [c for c in columns if c != known.get(c.name)]
    as_found = [c.name for c in new if declares_any and c.name not in known]
    found = {
        "ranges learned from the rows": [c.name for c in new if c.kind == "number"]
        + [target] * learns_range,
        "category lists learned from the rows": [c.name for c in new if c.kind == "category"],
        "classes of the target learned from the rows": [target] if declared.classes is None else [],
    }
    learned = [
        Disclosure("learned-from-rows", f"{what}: {', '.join(names)}")
        for what, names in found.items()
        if names
    ]
    if as_found:
        text = f"columns absent from the schema, taken as found: {', '.join(as_found)}"
        learned = [Disclosure("columns-as-found", text), *learned]
    complete = replace(declared, columns=tuple(columns), target=target, classes=classes)
    return replace(complete, target_range=target_range), tuple(learned)


def _complete_column(
    frame: pd.DataFrame, name: str, known: Column | None, declared: Schema
) -> Column:
    """The column, with what is open of it as the rows have it."""
    column = known or Column(name, cells.check_kind(frame, name, declared))
    if column.kind == "number" and column.range is None:
        column = replace(column, range=cells.learn_range(frame, name, bool(declared.missing)))
    elif column.kind == "category" and column.categories is None:
        listed = tuple(sorted({class_name(v) for v in frame[name].dropna()}))
        cells.check_visible(f"column {name!r}", listed)
        if known is None:
            cells.check_variety(f"column {name!r}", len(listed), len(frame), _OTHERWISE)
        column = replace(column, categories=listed)
    if column.kind != "ignore":
        error = cells.find_gap(frame, name, column.kind, bool(declared.missing))
        if error is not None:
            raise error
    return column


def _find_classes(frame: pd.DataFrame, target: str) -> tuple[str, ...]:
    """The target's values in their order: of numbers "10" after "9"."""
    values = frame[target]
    numeric = pd.api.types.is_numeric_dtype(values)
    ordered = sorted(values.unique()) if numeric else sorted({class_name(v) for v in values})
    classes = tuple(class_name(v) for v in ordered)
    cells.check_visible(f"the target {target!r}", classes)
    cells.check_variety(
        f"the target {target!r}", len(classes), len(frame), _NO_CLASSES, numbers=numeric
    )
    return classes


_LEARNED = "learned from private rows, not covered by ε"
_PUBLIC = "public, from a schema"
RELEASED = "released with noise, covered by ε"


def describe_encoding(
    complete: Schema, declared: Schema | None = None, *, learned: str = _LEARNED
) -> JsonObject:
    """A complete schema as JSON values: columns in order, ranges, categories, classes.

    Args:
        complete: what `complete_schema` returned.
        declared: what was public beforehand; whatever it left open is marked as not covered.
        learned: the mark of what it left open, but for columns that were released.

    Example:
        >>> schema = Schema((Column("x", range=(0.0, 1.0)),), target="y", classes=("a", "b"))
        >>> describe_encoding(schema)["columns"][0]["origin"]
        'learned from private rows, not covered by ε'
        >>> described_schema(describe_encoding(schema, schema)) == schema
        True
    """
    known = {column.name: column for column in declared.columns} if declared else {}
    columns = []
    for column in complete.columns:
        given, found = known.get(column.name), (column.range, column.categories, column.cuts)
        public = given is not None and (given.range, given.categories, given.cuts) == found
        if given is not None and column.kind == "number" and not column.released:
            # The cells of a declared range follow from it.
            public |= given.cuts is None and given.range is not None and given.range == column.range
        origin = _PUBLIC if public else RELEASED if column.released else learned
        remark = remark_on(column) if origin == RELEASED else ""
        # Buckets stand where there are any: other columns are written as before there were such.
        left_out = {"released"} if column.buckets else {"released", "buckets"}
        fields = {name: value for name, value in _as_json(column).items() if name not in left_out}
        columns.append({**fields, "origin": origin} | ({"remark": remark} if remark else {}))
    number: dict[str, Any] = {}
    if not complete.classes and complete.target_range is not None:
        origin = _PUBLIC if declared and declared.target_range else learned
        ends = list(complete.target_range)
        number = {"target_range": ends, "origin of the target_range": origin}
    return {
        "columns": columns,
        "target": complete.target,
        "classes": list(complete.classes or ()),
        "origin of the classes": _PUBLIC if declared and declared.classes else learned,
        "aliases": dict(complete.aliases),
        "header": complete.header,
        "names": None if complete.names is None else list(complete.names),
        **{name: value for name, value in _as_json(complete).items() if name in _HOW},
        **number,
    }


_ID = re.compile(r"(^|.*[\W_])(p?id|uid|nr|no|key|number)$|.*[a-z](Id|ID|Nr|No)$")


def is_named_as_id(name: str) -> bool:
    """Whether a column's name says that it numbers persons, stays or other things."""
    return _ID.fullmatch(name) is not None


def remark_on(column: Column) -> str:
    """What to say of a column of which noise hid all, or that is an id."""
    if column.kind == "ignore":
        return ""
    if column.categories == ("",):
        return "no value stood out of the noise"
    # One cut: all that stood out is in one cell of the public grid. Without cuts a range of (0, 1)
    # is what becomes of no number at all, and of zeros alone.
    has_one_cut = column.cuts is not None and len(column.cuts) <= 1
    if has_one_cut or (column.cuts is None and column.range == (0.0, 1.0)):
        return "at most one number stood out of the noise"
    return "an id by its name" if is_named_as_id(column.name) else ""


def _as_json(part: Column | Schema) -> JsonObject:
    """Its fields, with lists for tuples."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(part).items()}


def described_schema(description: Mapping[str, Any]) -> Schema:
    """The complete schema that `describe_encoding` described.

    Raises:
        DataError: something is missing from the description.

    Example:
        >>> schema = Schema((Column("x", range=(0.0, 1.0)),), target="y", classes=("a", "b"))
        >>> described_schema(describe_encoding(schema)).classes
        ('a', 'b')
    """
    try:
        columns = tuple(_column(column) for column in description["columns"])
        given = description.get("target_range")
        ends = None if given is None else (float(given[0]), float(given[1]))
        schema = Schema(
            columns,
            target=description["target"],
            classes=tuple(description["classes"]),
            header=description["header"],
            names=None if description["names"] is None else tuple(description["names"]),
            aliases=tuple(description["aliases"].items()),
            comment=description["comment"],
            missing=tuple(description.get("missing", ())),  # models of before 0.2 lack these
            decimal=description.get("decimal", "."),
            thousands=description.get("thousands"),
            separator=description.get("separator"),
            target_range=None if ends is None else Column("y", range=ends).range,
        )
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"the encoding is incomplete: {error}") from None
    names = [column.name for column in columns]
    if len(set(names)) != len(names):
        raise DataError("the encoding names a column twice")
    _check_list("classes", description["classes"])
    return schema


def _column(described: Mapping[str, Any]) -> Column:
    """One complete column: a number has its range, a category its categories."""
    limits, categories, kind = described["range"], described["categories"], described["kind"]
    cuts = described.get("cuts")  # models of before 0.2 lack it, centre and width
    weight = described.get("line_weight")
    if kind == "number" and (cuts is None or weight is not None):
        low, high = limits
        limits = (float(low), float(high))
    if kind == "category":
        _check_list("categories", categories)
    return Column(
        name=described["name"],
        kind=kind,
        range=None if limits is None else tuple(limits),
        categories=None if categories is None else tuple(categories),
        scale=described["scale"],
        centre=float(described.get("centre", 0.0)),
        width=float(described.get("width", 1.0)),
        cuts=None if cuts is None else tuple(map(float, cuts)),
        line_weight=None if weight is None else float(weight),
        released=described.get("origin") == RELEASED,
        buckets=described.get("buckets", 0),
    )


def _check_list(what: str, values: object) -> None:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"the encoding must list its {what} as texts, got {values!r}")
