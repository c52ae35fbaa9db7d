"""Tables from text: every row as long as the first, every cell found again by its line."""

from __future__ import annotations

import csv
import gzip
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dpjax.data.cells import Lines
from dpjax.data.errors import DataError
from dpjax.data.schema import Schema


class _Scan(NamedTuple):
    separator: str
    lines: np.ndarray
    width: int


def read_csv(path: pathlib.Path, schema: Schema | None, target: str | None) -> pd.DataFrame:
    """The table; its first line names the columns unless the schema says otherwise."""
    header = schema is None or schema.header
    comment = None if schema is None else schema.comment
    if target is None and schema is not None:
        target = schema.target
    names = None if header or schema is None else schema.names
    scan = _scan(path, comment, header, target, names)
    if not header and (names is None or len(names) != scan.width):
        listed = len(names or ())
        # A file to predict on may lack the target.
        names = tuple(name for name in names or () if name != target)
        if len(names) != scan.width:
            raise DataError(
                f"{path} has {scan.width} columns and no header, but the schema names {listed}"
            )
    frame = pd.read_csv(
        path,
        sep=scan.separator,
        skipinitialspace=True,
        header=0 if header else None,
        comment=comment,
        index_col=False,
        low_memory=False,
        # An empty cell is missing; a category may well be called "NA" or "None".
        keep_default_na=False,
        na_values=["", "nan", "NaN", "NAN"],
    )
    if not header:
        frame.columns = list(names or ())
    if len(frame) == len(scan.lines):
        frame.attrs["lines"] = Lines(path, scan.lines)
    return frame


def _rows(path: pathlib.Path, separator: str, comment: str | None) -> Iterator[tuple[int, list]]:
    """The first line and the cells of every row that is neither empty nor a comment."""
    with _opened(path) as text:
        rows = csv.reader(text, delimiter=separator, skipinitialspace=True)
        before = 0
        for row in rows:
            line, before = before + 1, rows.line_num
            empty = not row or (len(row) == 1 and not row[0].strip())
            if not empty and not (comment and row[0].startswith(comment)):
                yield line, row


def _opened(path: pathlib.Path) -> Any:
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    return opener(path, "rt", encoding="utf-8-sig", newline="")


def _scan(path, comment: str | None, header: bool, target: str | None, names) -> _Scan:
    """Separator, lines and width, once every row is known to be as long as the first."""
    with _opened(path) as text:
        written = (x for x in text if x.strip() and not (comment and x.startswith(comment)))
        first = next(written, None)
        if first is None:
            raise DataError(f"{path} is empty")
        separator = max(",;\t", key=first.count)
    width, column, lines = 0, None, []
    spellings: dict[float, tuple[str, int]] = {}
    for line, row in _rows(path, separator, comment):
        if not width:
            width = len(row)
            known = [cell.strip() for cell in row] if header else list(names or ())
            _check_names(path, known)
            column = known.index(target) if target in known else None
            if header:
                continue
        if len(row) != width:
            raise DataError(
                f"{path}, line {line}: {len(row)} cells where the first row has {width}; every "
                "row needs the same number"
            )
        lines.append(line)
        if column is not None and column < width:
            _check_class(path, target, row[column].strip(), line, spellings)
    if not lines:
        raise DataError(f"{path} has no rows" + (" below its header" if header else ""))
    return _Scan(separator, np.asarray(lines), width)


def _check_names(path: pathlib.Path, known: list[str]) -> None:
    twice = [name for number, name in enumerate(known) if name in known[:number]]
    if twice:
        raise DataError(f"{path} has two columns named {twice[0]!r}; rename one of them")


def _check_class(path, target, cell: str, line: int, spellings: dict) -> None:
    """Refuse classes that differ as text and agree as numbers, such as 01 and 1."""
    try:
        number = float(cell)
    except ValueError:
        return
    other, first = spellings.setdefault(number, (cell, line))
    if other != cell:
        raise DataError(
            f"{path}: the target {target!r} is {other!r} in line {first} and {cell!r} in line "
            f"{line}, the same number; write one class in one way"
        )
