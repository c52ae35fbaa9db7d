"""What is publicly known about a table: its columns, their ranges and categories, the classes.

Ranges and category lists read off the private rows are themselves a release that no ε covers. A
schema declares them beforehand; whatever it leaves open is learned, and listed as learned.
"""

from __future__ import annotations

import json
import math
import pathlib
import tomllib
from dataclasses import dataclass
from typing import Any

from dpjax.data.errors import DataError

__all__ = ["Column", "Schema", "read_schema"]


@dataclass(frozen=True)
class Column:
    """One feature column.

    Fields:
        name: its name in the table's header (or, without a header, the name given to its position).
        kind: "number", "category" or "ignore".
        range: (low, high) of a number, in the column's own units; values beyond it are clipped.
        categories: the values a category may take; any other value encodes as none of them.
        scale: "linear", or "log" for log(1 + x) of a non-negative number.

    Example:
        >>> Column("age", "number", range=(17, 90)).range
        (17, 90)
    """

    name: str
    kind: str = "number"
    range: tuple[float, float] | None = None
    categories: tuple[str, ...] | None = None
    scale: str = "linear"

    def __post_init__(self):
        where = f"column {self.name!r}"
        if self.kind not in ("number", "category", "ignore"):
            raise DataError(f"{where}: kind is {self.kind!r}; use number, category or ignore")
        if self.scale not in ("linear", "log"):
            raise DataError(f"{where}: scale is {self.scale!r}; use linear or log")
        if self.range is not None:
            low, high = self.range
            if not (math.isfinite(low) and math.isfinite(high - low) and low < high):
                raise DataError(
                    f"{where}: range is {list(self.range)}; give [low, high], low < high"
                )
            if self.scale == "log" and low < 0:
                raise DataError(f"{where}: a log scale needs a range that starts at 0 or above")
        if self.categories is not None:
            _check_texts(f"{where}: categories", self.categories)
        if self.categories is not None and len(set(self.categories)) != len(self.categories):
            raise DataError(f"{where}: a category is listed twice")


@dataclass(frozen=True)
class Schema:
    """The public description of a table.

    Fields:
        columns: its feature columns, in the order of the encoding.
        target: the column to predict.
        classes: the target's values, in the order of the class numbers.
        header: whether the file's first line names the columns; without one, `names` does.
        names: every column of the file in order (target included) when there is no header.
        aliases: other spellings of classes, such as {"<=50K.": "<=50K"}.
        comment: lines that start with this character are skipped.

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

    def __post_init__(self):
        if self.classes is not None:
            _check_texts("classes", self.classes)


def _check_texts(what: str, values: Any) -> None:
    """Cells are compared as texts: a category 1 would match none of them."""
    listed = isinstance(values, tuple | list)
    other = [value for value in values if not isinstance(value, str)] if listed else [values]
    if other:
        raise DataError(f'{what} must be a tuple of texts, got {other[0]!r}; write 1 as "1"')


_KEYS = {"target", "classes", "header", "names", "aliases", "comment", "columns"}
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
        >>> read_schema(file).columns
        (Column(name='x', kind='number', range=(0.0, 1.0), categories=None, scale='linear'),)
    """
    path = pathlib.Path(path)
    try:
        text = path.read_text(encoding="utf-8")
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
    if not isinstance(raw, dict):
        raise DataError("the top level must be a table of keys")
    _known("key", raw, _KEYS)
    listed = raw.get("columns", [])
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise DataError("columns must be a list of tables, each with a name")
    columns = []
    for entry in listed:
        _known("column key", entry, _COLUMN_KEYS)
        if "name" not in entry:
            raise DataError(f"a column has no name: {entry}")
        bounds = entry.get("range")
        if bounds is not None and (
            not isinstance(bounds, list)
            or len(bounds) != 2
            or not all(isinstance(b, int | float) for b in bounds)
        ):
            raise DataError(f"column {entry['name']!r}: range is {bounds}; give [low, high]")
        categories = entry.get("categories")
        kind = entry.get("kind", "number" if categories is None else "category")
        columns.append(
            Column(
                name=entry["name"],
                kind=kind,
                range=None if bounds is None else (float(bounds[0]), float(bounds[1])),
                categories=None if categories is None else tuple(str(c) for c in categories),
                scale=entry.get("scale", "linear"),
            )
        )
    names = [column.name for column in columns]
    if len(set(names)) != len(names):
        raise DataError("a column is declared twice")
    header, target = raw.get("header", True), raw.get("target")
    if not header and "names" in raw:
        names = list(raw["names"])
    elif not header:
        names = [*names, *([target] if target is not None and target not in names else [])]
    classes = raw.get("classes")
    return Schema(
        columns=tuple(column for column in columns if column.name != target),
        target=target,
        classes=None if classes is None else tuple(str(c) for c in classes),
        header=bool(header),
        names=None if header else tuple(names),
        aliases=tuple((str(k), str(v)) for k, v in raw.get("aliases", {}).items()),
        comment=raw.get("comment"),
    )


def _known(what: str, given: dict, allowed: set[str]) -> None:
    unknown = sorted(set(given) - allowed)
    if unknown:
        raise DataError(f"unknown {what} {unknown[0]!r}; known are {', '.join(sorted(allowed))}")
