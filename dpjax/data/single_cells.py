"""Each cell of a column read by itself, as a text, a number or an id; none is refused.

For private records, where no cell may decide how another one is read, and for new rows beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from dpjax.data import cells
from dpjax.data.cells import class_name
from dpjax.data.schema import Schema


def as_texts(column: pd.Series, schema: Schema) -> np.ndarray:
    """Each cell as a text, by itself: "" where there is none; what looks alike is alike."""
    return _cell_by_cell(column, lambda cell: _text(cell, schema))


def as_ids(column: pd.Series, schema: Schema) -> np.ndarray:
    """Each cell as an id that `number_persons` takes: a number of a text without its marks."""
    return _cell_by_cell(column, lambda cell: _id(cell, schema))


def as_numbers(column: pd.Series, schema: Schema) -> np.ndarray:
    """Each cell as a finite number, by itself, or NaN; float64."""
    found = _cell_by_cell(column, lambda cell: _float(cell, schema)).astype(np.float64)
    # A code for no value is one however it is written: -9.0 as -9.
    codes = [float(code) for code in map(cells.parse_number, schema.missing) if code is not None]
    return np.where(np.isin(found, codes), np.nan, found) if codes else found


_Read = TypeVar("_Read")
# By cells of a file or of memory: numbers of too many digits, several values, half a character, a
# time beyond the years of a zone's table, an object whose text is an error of any kind.
_UNREADABLE = Exception


def _cell_by_cell(column: pd.Series, read: Callable[[Any], Any]) -> np.ndarray:
    """A function of every cell, applied once to cells that are alike."""
    if pd.api.types.is_numeric_dtype(column):
        codes, different = pd.factorize(column)
        return np.asarray([*map(read, different), read(None)], dtype=object)[codes]
    given = list_objects(column)
    if set(map(type, given)) <= {str}:
        read_text = {cell: _read_or_missing(cell, read) for cell in set(given)}
        return np.asarray([read_text[cell] for cell in given], dtype=object)
    known: dict[Any, Any] = {}
    found = []
    for cell in given:
        # 1 and True are equal and no one cell: a record must not decide how another is read.
        try:
            name = (type(cell), str(cell))
            if name not in known:
                known[name] = read(cell)
            found.append(known[name])
        except _UNREADABLE:
            found.append(read(None))
    return np.asarray(found, dtype=object)


def list_objects(column: pd.Series) -> list[object]:
    """The cells as Python's objects, None for one that cannot be: halves are tried until it can."""
    try:
        return list(cells.with_readable_times(column).to_numpy(object))
    except _UNREADABLE:
        if len(column) < 2:
            return [None] * len(column)
        middle = len(column) // 2
        return list_objects(column.iloc[:middle]) + list_objects(column.iloc[middle:])


def _read_or_missing(cell: object, read: Callable[[Any], _Read]) -> _Read:
    """What a text is read as; as no text where it is unreadable."""
    try:
        return read(cell)
    except _UNREADABLE:
        return read(None)


def _text(cell: object, schema: Schema) -> str:
    if cell is None or cell is pd.NaT or cell is pd.NA or cell != cell:
        return ""
    text = cells.strip_invisible(class_name(cell))
    text.encode()  # half a character is in no text that could be written down
    return "" if text in schema.missing else text


def _id(cell: object, schema: Schema) -> str:
    """A number as Python writes it, as `_float` reads it; else the text of the cell."""
    text = _text(cell, schema)
    marks = (schema.decimal, schema.thousands) if isinstance(cell, str) else (".", None)
    return cells.parse_number(text, *marks) or text


def _float(cell: object, schema: Schema) -> float:
    if isinstance(cell, bool | np.bool_):
        return float(cell)
    text = _text(cell, schema)
    parsed = (
        cells.parse_number(text, schema.decimal, schema.thousands)
        if isinstance(cell, str)
        else text
    )
    try:
        value = float(parsed or "nan")
    except (ValueError, OverflowError):
        return math.nan
    return value if math.isfinite(value) else math.nan
