"""An encoding as plain values, to travel with a model; what was learned from rows is marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpjax.data.errors import DataError
from dpjax.data.schema import Column, Schema

__all__ = ["describe_encoding", "described_schema"]

_LEARNED = "learned from private rows, not covered by ε"
_PUBLIC = "public, from a schema"


def describe_encoding(complete: Schema, declared: Schema | None = None) -> dict[str, Any]:
    """A complete schema as JSON values: columns in order, ranges, categories, classes.

    Args:
        complete: what `complete_schema` returned.
        declared: what was public beforehand; whatever it left open is marked as not covered.

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
        given = known.get(column.name)
        public = given is not None and (given.range, given.categories) == (
            column.range,
            column.categories,
        )
        columns.append(
            {
                "name": column.name,
                "kind": column.kind,
                "range": None if column.range is None else list(column.range),
                "categories": None if column.categories is None else list(column.categories),
                "scale": column.scale,
                "origin": _PUBLIC if public else _LEARNED,
            }
        )
    return {
        "columns": columns,
        "target": complete.target,
        "classes": list(complete.classes or ()),
        "origin of the classes": _PUBLIC if declared and declared.classes else _LEARNED,
        "aliases": dict(complete.aliases),
        "header": complete.header,
        "names": None if complete.names is None else list(complete.names),
        "comment": complete.comment,
    }


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
        schema = Schema(
            columns,
            target=description["target"],
            classes=tuple(description["classes"]),
            header=description["header"],
            names=None if description["names"] is None else tuple(description["names"]),
            aliases=tuple(description["aliases"].items()),
            comment=description["comment"],
        )
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"the encoding is incomplete: {error}") from None
    names = [column.name for column in columns]
    if len(set(names)) != len(names):
        raise DataError("the encoding names a column twice")
    _check_texts("classes", description["classes"])
    return schema


def _column(described: Mapping[str, Any]) -> Column:
    """One complete column: a number has its range, a category its categories."""
    limits, categories, kind = described["range"], described["categories"], described["kind"]
    if kind == "number":
        low, high = limits
        limits = (float(low), float(high))
    if kind == "category":
        _check_texts("categories", categories)
    return Column(
        name=described["name"],
        kind=kind,
        range=None if limits is None else tuple(limits),
        categories=None if categories is None else tuple(categories),
        scale=described["scale"],
    )


def _check_texts(what: str, values: Any) -> None:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"the encoding must list its {what} as texts, got {values!r}")
