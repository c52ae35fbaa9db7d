"""What a schema leaves open is learned from the rows, and said to be."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dpjax.data.cells import as_floats, check_kind, check_names, check_size, check_variety
from dpjax.data.errors import DataError
from dpjax.data.schema import Column, Schema

__all__ = ["complete_schema"]


def complete_schema(
    frame: pd.DataFrame, target: str, declared: Schema | None = None
) -> tuple[Schema, tuple[str, ...]]:
    """Fill in from the rows what the schema leaves open, and list what was filled in.

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
    check_names(frame)
    declared = declared or Schema(columns=())
    known = {column.name: column for column in declared.columns}
    absent = [name for name in known if name not in frame.columns]
    if absent:
        raise DataError(
            f"the schema declares {absent[0]!r}, which the table does not have; its columns are "
            f"{', '.join(map(str, frame.columns[:20]))}"
        )
    ranges, categories, kinds = [], [], []
    columns = []
    for name in [*known, *(n for n in frame.columns if n not in known and n != target)]:
        values = frame[name]
        column = known.get(name)
        if column is None:
            kinds.append(name)
            column = Column(name, check_kind(frame, name))
        if column.kind == "number" and column.range is None:
            ranges.append(name)
            check_size(frame, name)
            column = replace(column, range=_learned_range(values, name))
        elif column.kind == "category" and column.categories is None:
            categories.append(name)
            found = tuple(sorted({class_name(v) for v in values}))
            if name not in known:
                check_variety(frame, name, len(found))
            column = replace(column, categories=found)
        columns.append(column)
    learned = []
    if kinds and declared.columns:
        learned.append(f"columns absent from the schema, taken as found: {', '.join(kinds)}")
    if ranges:
        learned.append(f"ranges learned from the rows: {', '.join(ranges)}")
    if categories:
        learned.append(f"category lists learned from the rows: {', '.join(categories)}")
    classes = declared.classes
    if classes is None:
        learned.append(f"classes of the target learned from the rows: {target}")
        classes = tuple(_in_order(frame[target]))
    return replace(declared, columns=tuple(columns), target=target, classes=classes), tuple(learned)


def _learned_range(values: pd.Series, name: str) -> tuple[float, float]:
    numbers = as_floats(values)
    if not np.all(np.isfinite(numbers)):
        return (0.0, 1.0)  # the encoder reports the cell; no range could repair it
    low, high = float(numbers.min()), float(numbers.max())
    # Beyond 2^53 the next whole number is the same float.
    return (low, high) if low < high else (low, low + max(1.0, 1e-9 * abs(low)))


def _in_order(values: pd.Series) -> list[str]:
    """Classes in numerical order where they are numbers, else in alphabetical order."""
    if pd.api.types.is_numeric_dtype(values):
        return [class_name(v) for v in sorted(values.unique())]
    return sorted({class_name(v) for v in values})


def class_name(value: Any) -> str:
    """`1.0` and `1` are the same class, and a midnight is its date, as text files write it."""
    if isinstance(value, np.datetime64):
        value = pd.Timestamp(value)
    if isinstance(value, datetime.datetime) and value is not pd.NaT:
        return str(value).removesuffix(" 00:00:00")
    if isinstance(value, bool | np.bool_):  # which is an int, and asks to be a float
        return str(bool(value))
    if isinstance(value, int | np.integer):
        return str(int(value))  # a float would make one class of two beyond 2^53
    number: Any = value
    if isinstance(number, float) or hasattr(number, "is_integer"):
        number = float(number)
        return str(int(number)) if number.is_integer() else str(number)
    return str(value)
