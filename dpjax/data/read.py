"""Reading a table from CSV, Parquet, NPZ or LIBSVM files, with an error for what cannot be one."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import pathlib
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import IO, Any

import numpy as np
import pandas as pd

from dpjax._extras import extra
from dpjax.data.cells import (
    UNNAMED,
    DataError,
    Lines,
    may_be_thousands,
    parse_cells,
    parse_decimal,
    raise_together,
    tidy_text,
    unclear_point_error,
)
from dpjax.data.parquet import read_parquet_cells
from dpjax.data.records import Records, find_line_end
from dpjax.data.schema import Column, Schema

_FORMATS = ".csv, .tsv, .data, .test or .txt (also .gz), .parquet, .npz, .libsvm or .svm (also .gz)"


# An empty cell is missing; a category may well be called "NA" or "None".
_NAN = frozenset(("nan", "NaN", "NAN"))
_NOTHING = ["", *sorted(_NAN)]

# In a frame's `attrs`: what its file shows besides its records, by how it is divided into them.
DIVISION = "division"
BROKEN_QUOTES = (
    "a quote in the file is opened and not closed, and the lines behind it are taken for one "
    "record: that it is so, and which lines are one record, is not covered by ε"
)


def read_table(
    path: str | pathlib.Path,
    *,
    target: str | None = None,
    schema: Schema | None = None,
    as_written: bool = False,
    is_complete: bool = False,
) -> pd.DataFrame:
    """Read a file into a data frame; the format follows from the file's name.

    CSV: comma, semicolon or tab, with a header unless the schema says otherwise; `.gz` is
    decompressed. NPZ: one array of features (columns become `x0`, `x1`, …) and, where `target` is
    given, one vector of that name. LIBSVM: the label becomes the column `target` (default
    "label"), the features `x0`, `x1`, … Parquet: as stored.

    A record of a CSV file is that of RFC 4180, whatever its cells hold and however long they are.
    A quote that is opened and not closed takes the lines below it into its cell: that is refused,
    or said in `attrs["division"]` where the table is read `as_written`.

    Of a CSV file `as_written` keeps every cell as a text and refuses none, for a `PrivateTable`: a
    row of another length than the header is one of empty cells. Without a header, the schema says
    how many there are, and what separates them (a comma unless it says otherwise). Of a LIBSVM file
    it keeps the columns that the schema names, and indices count from 1. Of a Parquet file a cell
    that cannot be converted, or holds several values, is missing.

    Of rows to predict the schema is a model's and `is_complete`: in a CSV file neither the target
    nor columns that the schema does not name are read as anything but texts, and none is refused.

    Raises:
        DataError: a missing or unreadable file, ragged rows, no rows, duplicate columns.

    Example:
        >>> import tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "tiny.csv"
        >>> _ = file.write_text("x,y\\n1,a\\n2,b\\n")
        >>> read_table(file).shape
        (2, 2)
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise DataError(f"there is no file {path}")
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file: {_FORMATS}")
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    try:
        if kind in ("csv", "tsv", "data", "test", "txt"):
            given = path, schema or Schema(()), target
            frame = _read_texts(*given) if as_written else _read_csv(*given, is_complete)
        elif kind == "parquet":
            _check_parquet_names(path)
            frame = read_parquet_cells(path) if as_written else _read_parquet(path)
        elif kind == "npz":
            frame = _read_npz(path, target)
        elif kind in ("libsvm", "svm", "svmlight"):
            read = _read_named_libsvm if as_written else _read_libsvm
            frame = read(path, schema or Schema(()), target)
        else:
            raise DataError(f"{path.name}: unknown format; dpjax reads {_FORMATS}")
    except DataError:
        raise
    except PermissionError:
        raise DataError(f"{path} cannot be read: permission denied") from None
    except UnicodeDecodeError:
        raise DataError(
            f"{path} is not text in UTF-8; save it so (a spreadsheet calls it CSV UTF-8)"
        ) from None
    except (OSError, EOFError, ValueError, csv.Error, zipfile.BadZipFile) as error:
        raise DataError(f"{path} does not read as {kind}: {error}") from None
    frame.columns = [tidy_text(str(name)) for name in frame.columns]
    if len(frame) == 0:
        raise DataError(f"{path} has no rows")
    duplicated = frame.columns[frame.columns.duplicated()]
    if len(duplicated):
        raise DataError(f"{path} has two columns named {duplicated[0]!r}")
    return frame


def _check_parquet_names(path: pathlib.Path) -> None:
    """Refuse columns of one name, of which the libraries read none."""
    with extra("data"):
        from pyarrow import ArrowException, parquet
    try:
        names = pd.Index(parquet.read_schema(path).names)
    except ArrowException as error:
        raise ValueError(str(error)) from None
    if names.has_duplicates:
        raise DataError(f"{path} has two columns named {names[names.duplicated()][0]!r}")


def _read_parquet(path: pathlib.Path) -> pd.DataFrame:
    """The table as pandas reads it, whose errors are ValueErrors."""
    with extra("data"):
        from pyarrow import ArrowException
    try:
        return pd.read_parquet(path)
    except ArrowException as error:
        raise ValueError(str(error)) from None


def _read_csv(
    path: pathlib.Path, schema: Schema, target: str | None, is_complete: bool
) -> pd.DataFrame:
    """The table; its first line names the columns unless the schema says otherwise."""
    target = schema.target if target is None else target
    rows = _Rows(path, schema, target)
    names = rows.names
    if is_complete:
        known = {column.name for column in schema.columns}
        others = [Column(name, "ignore") for name in names if name not in known]
        schema, target = replace(schema, columns=(*schema.columns, *others)), None
    # As text, of which a category is made cell by cell: pandas reads 01 as 1, and "true" as True,
    # wherever no other row says otherwise. What is no feature may say whose a row is. Of a released
    # number, too, every cell is read by itself.
    texts = {column.name for column in schema.columns if column.kind != "number" or column.released}
    texts |= {target} if schema.classes else set()
    texts |= set(names) if (schema.decimal, schema.thousands) != (".", None) else set()
    # Written anew with every cell in quotes, so that pandas finds the same records.
    source = io.BytesIO()
    text = io.TextIOWrapper(source, encoding="utf-8", newline="")
    writer, lines = csv.writer(text, quoting=csv.QUOTE_ALL), []
    for line, row in _check_rows(rows, target):
        lines.append(line)
        writer.writerow(row)
    text.detach().seek(0)
    if not lines:
        raise DataError(f"{path} has no rows" + (" below its header" if schema.header else ""))
    how: dict[str, Any] = {
        "dtype": dict.fromkeys(texts, str),
        "names": names,
        "header": None,
        "index_col": False,
        "low_memory": False,
        "keep_default_na": False,
        "na_values": _NOTHING,
    }
    frame = pd.read_csv(source, **how)
    frame.attrs["lines"] = Lines(path, np.asarray(lines))
    if asked := [name for name in names if may_be_thousands(frame[name])]:
        source.seek(0)
        how |= {"dtype": str, "usecols": asked}
        written = pd.read_csv(source, **how)
        errors = (unclear_point_error(frame, name, written[name]) for name in asked)
        raise_together([error for error in errors if error is not None])
    return parse_cells(frame, replace(schema, target=target))


def _check_rows(rows: _Rows, target: str | None) -> Iterator[tuple[int, list[str]]]:
    """The rows and their lines, once each is known to be as long as the first."""
    path, names = rows.path, rows.names
    column = names.index(target) if target in names else None
    spellings: dict[Decimal, tuple[str, int]] = {}
    for line, row in rows.read():
        if len(row) != len(names):
            _refuse_broken(rows)
            raise DataError(
                f"{path}, line {line}: {len(row)} cells where the first row has {len(names)}; "
                "every row needs the same number"
            )
        cell = "" if column is None else row[column].strip()
        # Classes that differ as text and agree as numbers, such as 01 and 1, would be one or two.
        if (number := parse_decimal(cell)) is not None:
            other, before = spellings.setdefault(number, (cell, line))
            if other != cell:
                raise DataError(
                    f"{path}: the target {target!r} is {other!r} in line {before} and {cell!r} in "
                    f"line {line}, the same number; write one class in one way"
                )
        yield line, row
    _refuse_broken(rows)


def _refuse_broken(rows: _Rows) -> None:
    """Refuse a file of which a quote that is not closed has been read."""
    if rows.broken is not None:
        raise DataError(
            f"{rows.path}, line {rows.broken}: a cell begins with a quote that is not closed, and "
            'takes the lines below into itself; close it, or write a quote within quotes twice ("")'
        )


def _read_texts(path: pathlib.Path, schema: Schema, target: str | None) -> pd.DataFrame:
    """The table with every cell as it is written."""
    rows = _Rows(path, schema, target, as_written=True)
    width = len(rows.names)
    cells = [row if len(row) == width else [""] * width for _, row in rows.read()]
    columns = zip(*cells, strict=True) if cells else [[]] * width
    frame = pd.DataFrame(
        {name: _empty_nothing(own) for name, own in zip(rows.names, columns, strict=True)},
        columns=rows.names,
        dtype=object,
    )
    if rows.broken is not None:
        frame.attrs[DIVISION] = BROKEN_QUOTES
    return frame


def _empty_nothing(cells: Sequence[str]) -> list[str]:
    """The cells of a column, of which those that stand for nothing are empty."""
    if _NAN.isdisjoint(cells):
        return list(cells)
    return ["" if cell in _NAN else cell for cell in cells]


class _Rows:
    """The rows of a file of cells: the names of its columns, and what is below them."""

    def __init__(
        self, path: pathlib.Path, schema: Schema, target: str | None, *, as_written: bool = False
    ):
        self.path, self._header = path, schema.header
        # The first of private records decides nothing; a header is no record.
        is_private = as_written and not schema.header
        given = list(schema.names or ()) if is_private else []
        if is_private and not given:
            raise DataError(
                f"{path} has no header: a schema must name its columns, as the first record of a "
                "private file does not say how many there are"
            )
        opening, end = "", "\n"
        if not given:
            opening, end = self._open(schema.comment, as_written)
        usual = "\t" if ".tsv" in path.name.lower() else ","
        separator = schema.separator or (usual if given else max(",;\t", key=opening.count))
        self._records = Records(_lines(path, end, as_written), separator, schema.comment)
        self._rows = iter(self._records)
        first = next(self._rows, None)
        if first is None:
            raise DataError(f"{path} is empty")
        if schema.header and any("\0" in name for name in first[1]):
            # Read so, whether a letter of a record is taken for a line end depends on the letter.
            raise DataError(
                f"{path} is not text in UTF-8, got a first line with NUL in it, as UTF-16 has; "
                "save it so (a spreadsheet calls it CSV UTF-8)"
            )
        # A quote that is not closed would make names of records, which nothing protects.
        if as_written and schema.header and any("\n" in x or "\r" in x for x in first[1]):
            raise DataError(
                f"{path}: the names of the columns must stand in one line, got a quote in the "
                "first one that is not closed there"
            )
        if schema.header:
            self.names = [tidy_text(cell) or f"{UNNAMED}{at}" for at, cell in enumerate(first[1])]
        else:
            self._rows = itertools.chain([first], self._rows)
            self.names = self._given_names(schema, target, len(given) or len(first[1]))
        twice = pd.Index(self.names).duplicated()
        if twice.any():  # of a private file without a header these are cells of a record
            one = "in one way in its first line" if as_written else repr(self.names[twice.argmax()])
            raise DataError(f"{path} has two columns named {one}; rename one of them")

    def read(self) -> Iterator[tuple[int, list[str]]]:
        """The first line and the cells of every record, once."""
        return self._rows

    @property
    def broken(self) -> int | None:
        """The place of the first record that is read and whose quotes are not closed."""
        return self._records.broken

    def _open(self, comment: str | None, as_written: bool) -> tuple[str, str]:
        """The first line that is neither blank nor a comment, and what ends lines."""
        end = "\n"
        if self._header:  # the first record decides nothing
            with _open_text(self.path, as_written, "\n") as text:
                end = find_line_end(text.readline())
        lines = _lines(self.path, end, as_written)
        kept = (x for x in lines if x.strip() and not (comment and x.startswith(comment)))
        return next(kept, ""), end

    def _given_names(self, schema: Schema, target: str | None, width: int) -> list[str]:
        """The names in the schema of a file without a header that has so many columns."""
        names = list(schema.names or ())
        if len(names) != width:  # a file to predict on may lack the target
            names = [name for name in names if name != target]
        if len(names) != width:
            raise DataError(
                f"{self.path} has {width} columns and no header, but the schema names "
                f"{len(schema.names or ())}"
            )
        return names


def _lines(path: pathlib.Path, end: str, as_written: bool) -> Iterator[str]:
    with _open_text(path, as_written, end) as text:
        yield from text


def _open_text(path: pathlib.Path, as_written: bool, end: str) -> IO[str]:
    """The text of a file, in lines that end with LF or CR and with nothing else."""
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    errors = "replace" if as_written else "strict"
    return opener(path, "rt", encoding="utf-8-sig", errors=errors, newline=end)


def _read_npz(path: pathlib.Path, target: str | None) -> pd.DataFrame:
    """One array of features, and the target's vector where the target is named."""
    with np.load(path, allow_pickle=False) as arrays:
        contents = {name: arrays[name] for name in arrays.files}
    listing = ", ".join(f"{name} {list(value.shape)}" for name, value in contents.items())
    for name, value in contents.items():
        if value.dtype.kind not in "biufUS" or (value.dtype.kind in "US" and name != target):
            raise DataError(
                f"{path}: the array {name!r} holds {value.dtype.name}; give real numbers"
                + (" (real and imaginary parts as columns)" if value.dtype.kind == "c" else "")
            )
    if target is not None and target not in contents:
        raise DataError(f"{path} has no array {target!r} for the target; it has {listing}")
    labels = contents.pop(target) if target is not None else None
    tables = [value for value in contents.values() if value.ndim >= 2]
    if labels is not None:
        tables = [value for value in tables if len(value) == len(labels)]
    if len(tables) != 1 or (labels is not None and labels.ndim != 1):
        raise DataError(
            f"{path} needs one vector for the target and one array of as many rows for the "
            f"features; it has {listing}"
        )
    frame = pd.DataFrame(tables[0].reshape(len(tables[0]), -1)).add_prefix("x")
    return frame if target is None else frame.assign(**{target: labels})


def _read_libsvm(path: pathlib.Path, schema: Schema, target: str | None) -> pd.DataFrame:
    """Sparse rows `label index:value …`; the label becomes the column `target`."""
    with extra("data"):
        from sklearn.datasets import load_svmlight_file

    sparse, labels = load_svmlight_file(str(path))[:2]
    table = pd.DataFrame(sparse.toarray()).add_prefix("x")  # pyrefly: ignore
    return table.assign(**{target or "label": labels})


def _read_named_libsvm(path: pathlib.Path, schema: Schema, target: str | None) -> pd.DataFrame:
    """The columns that the schema names, as they are written; `x0` has the index 1."""
    # Which columns there are, and whether indices begin at 0, would be read off single records.
    label = target or "label"
    names = [column.name for column in schema.columns if column.name != label]
    if not names or not all(re.fullmatch("x(0|[1-9][0-9]*)", name) for name in names):
        raise DataError(
            f"{path}: a schema must name its columns x0, x1, … (of the indices 1, 2, …), since no "
            f"private record may say which there are; got {', '.join(names[:20]) or 'none'}"
        )
    named = {str(int(name[1:]) + 1): name for name in names}
    rows = []
    lines = _lines(path, "\n", as_written=True)  # a CR is a blank within one
    for cells in (line.partition("#")[0].split() for line in lines):
        pairs = (cell.partition(":") for cell in cells[1:])
        given = {named[index]: value for index, _, value in pairs if index in named}
        if cells:
            written = cells[0].removeprefix("+")
            rows.append({**dict.fromkeys(names, "0"), **given, label: written})
    return pd.DataFrame(rows, columns=[*names, label], dtype=object)
