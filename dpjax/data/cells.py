"""Cells that spoil a column, named by their line."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pandas as pd

from dpjax.data.errors import DataError

# Beyond this, the width of a range is not a float32.
_LARGEST = 1e30

# What pandas calls a column of objects that are all numbers; a missing one is None or NaN.
_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal")


class Lines:
    """Which line of which file a row was read from, counted as an editor does.

    Kept in the frame's `attrs`, which pandas copies along; this says that one copy is enough.
    """

    def __init__(self, path: pathlib.Path, numbers: np.ndarray):
        self.path, self.numbers = path, numbers

    def __deepcopy__(self, memo: Any) -> Lines:
        return self

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


def where(frame: pd.DataFrame, position: int) -> str:
    """The place of a row: the line of its file, or its number where there is no file."""
    lines, index = frame.attrs.get("lines"), frame.index
    whole = isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1
    if lines is None or not whole or len(lines.numbers) != len(frame):
        return f"in row {position}"
    return f"in line {lines.numbers[position]} of {lines.path.name}"


def check_names(frame: pd.DataFrame) -> None:
    """Refuse names that are no texts (of several levels they are tuples) or are given twice."""
    other = [name for name in frame.columns if not isinstance(name, str)]
    if other:
        raise DataError(
            f"the columns must have texts for names, got {other[0]!r}; give each one, by "
            'frame.columns = ["age", …]'
        )
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise DataError(f"the table has two columns named {twice[0]!r}")


def is_no_number(values: pd.Series) -> bool:
    """Whether a column holds dates, times or complex numbers, of which pandas makes real ones."""
    kind = values.dtype
    if isinstance(kind, pd.CategoricalDtype):
        kind = kind.categories.dtype
    if isinstance(kind, pd.PeriodDtype) or getattr(kind, "kind", "O") in "mMc":
        return True
    return bool(pd.api.types.is_object_dtype(kind)) and any(isinstance(c, complex) for c in values)


def check_kind(frame: pd.DataFrame, name: str) -> str:
    """Whether an undeclared column is a number or a category; neither for one that is spoilt.

    One cell such as "4O" turns a column of numbers into text, and as a category every number of it
    would become a feature of its own. So a column of which most cells are numbers has to be all
    numbers, unless a schema says otherwise.
    """
    values = frame[name]
    if pd.api.types.is_complex_dtype(values):
        raise DataError(f"column {name!r} holds complex numbers; give two columns of real ones")
    if pd.api.types.is_numeric_dtype(values):
        return "number"
    if pd.api.types.infer_dtype(values, skipna=True) in _NUMBERS:
        return "number"
    cells = [str(cell).strip() for cell in values[values.notna()]]
    bad = np.flatnonzero([not _is_number(cell) for cell in cells])
    meant = sum(_is_number(cell.replace(",", "").rstrip("%")) for cell in cells)
    if 2 * meant > len(cells) and len(bad):
        at = int(np.flatnonzero(values.notna().to_numpy())[bad[0]])
        raise DataError(
            f"column {name!r} holds {cells[bad[0]]!r} {where(frame, at)}, and numbers in "
            f"{len(cells) - len(bad)} of {len(cells)} rows; correct the cell, drop the row, or "
            "declare the column a category in a schema"
        )
    return "category"


def as_floats(values: pd.Series) -> np.ndarray:
    """The cells of a column, float64; NaN for what is no number, or one too large for a float."""
    if values.dtype == object:  # its integers may be of any size
        too_large = lambda cell: isinstance(cell, int) and abs(cell) > 2**1023  # noqa: E731
        values = pd.Series([np.nan if too_large(c) else c for c in values], dtype=object)
    numbers: Any = pd.to_numeric(values, errors="coerce")
    return numbers.to_numpy(np.float64, na_value=np.nan)


def check_size(frame: pd.DataFrame, name: str) -> None:
    """Refuse a number so large that no range could be learned from it."""
    numbers = as_floats(frame[name])
    large = np.flatnonzero(np.isfinite(numbers) & (np.abs(numbers) > _LARGEST))
    if len(large):
        at = int(large[0])
        raise DataError(
            f"column {name!r} holds {numbers[at]:g} {where(frame, at)}, beyond {_LARGEST:g}; "
            "correct the cell, or declare the column's range in a schema"
        )


def check_variety(frame: pd.DataFrame, name: str, different: int) -> None:
    """Refuse names, dates and free text: each would be a feature, and written into the model."""
    if different > 50 and 2 * different > len(frame):
        raise DataError(
            f"column {name!r} has {different} different values in {len(frame)} rows, and as a "
            "category each would become a feature and be written into the model; leave the column "
            'out by kind = "ignore" in a schema, or declare its categories there'
        )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
