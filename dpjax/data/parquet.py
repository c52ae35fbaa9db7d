"""The cells of a private Parquet file, each read by itself and none refused.

The libraries convert whole columns: they refuse one for a single cell, such as a text that is no
UTF-8, a date of the year 10,000 or an hour of 25, and make floats of all lists of whole numbers
where one list has a gap.
"""

from __future__ import annotations

import io
import pathlib
from typing import TYPE_CHECKING

import pandas as pd

from dpjax._extras import extra
from dpjax.data.cells import with_readable_times

if TYPE_CHECKING:
    import pyarrow


def read_parquet_cells(path: pathlib.Path) -> pd.DataFrame:
    """The table of a file: a text that is no UTF-8 has marks in it, and what cannot be is missing.

    A cell of several values (a list, a struct, a map) is none: the type of a column is public.

    Raises:
        ValueError, OSError: a file that is not Parquet, which no cell decides.
    """
    with extra("data"):
        from pyarrow import ArrowException, parquet, types
    schema = parquet.read_schema(path)
    nested = [field.name for field in schema if types.is_nested(field.type)]
    try:
        frame = _convert(path)
        for name in frame.columns.intersection([f.name for f in schema if not _is_plain(f.type)]):
            frame = frame.assign(**{name: with_readable_times(frame[name])})
            # Which decodes texts that pandas may leave in bytes, and finds the zone of times.
            frame[name].to_numpy(object)
    except (ValueError, ArithmeticError, RuntimeError, ArrowException):
        frame = _convert_by_cells(path, schema)  # raises again where no cell is to blame
    return frame.assign(**{name: None for name in nested if name in frame.columns})


def _convert(source: pathlib.Path | io.BytesIO) -> pd.DataFrame:
    # A missing cell makes floats of whole numbers, and others of those beyond 2^53.
    return pd.read_parquet(source, dtype_backend="numpy_nullable")


def _convert_by_cells(path: pathlib.Path, schema: pyarrow.Schema) -> pd.DataFrame:
    """The table, its columns converted by cells where they are not as a whole."""
    from pyarrow import large_binary, parquet, types

    texts = {field.name for field in schema if _is_text(field.type)}
    for place, field in enumerate(schema):
        if field.name in texts:  # as bytes, which may have any values
            schema = schema.set(place, field.with_type(large_binary()))
    try:
        table = parquet.read_table(path, schema=schema)
    except ValueError:  # dictionaries of texts are read as bytes where they pass for plain texts
        table = parquet.read_table(_without_types(path), schema=schema)
    found: dict[str, list[object]] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if types.is_nested(column.type):
            found[name] = [None] * len(column)
        elif name in texts:
            cells = column.to_pylist()
            found[name] = [None if c is None else c.decode("utf-8", "replace") for c in cells]
        elif not (types.is_integer(column.type) or types.is_floating(column.type)):
            found[name] = _list_cells(column)
    # No cell of numbers is refused; the table's index, where pandas wrote one, is read with them.
    numbers = io.BytesIO()
    parquet.write_table(table.select([n for n in table.column_names if n not in found]), numbers)
    numbers.seek(0)
    frame = _convert(numbers) if len(found) < table.num_columns else pd.DataFrame()
    columns = {name: frame[name].array for name in frame.columns} | found
    return pd.DataFrame({n: columns[n] for n in table.column_names if n in columns}, dtype=None)


def _list_cells(column: pyarrow.ChunkedArray) -> list[object]:
    """The cells as Python's objects, None for one that cannot be: halves are tried until it can."""
    from pyarrow import ArrowException

    try:
        return list(with_readable_times(column.to_pandas()).astype(object))
    except (ValueError, ArithmeticError, RuntimeError, ArrowException):
        if len(column) < 2:
            return [None] * len(column)
        middle = len(column) // 2
        return _list_cells(column.slice(0, middle)) + _list_cells(column.slice(middle))


def _is_plain(kind: pyarrow.DataType) -> bool:
    """Whether every cell of such a column has an object, whatever its bits are."""
    from pyarrow import types

    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _is_text(kind: pyarrow.DataType) -> bool:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(kind) or types.is_large_string(kind)


def _without_types(path: pathlib.Path) -> io.BytesIO:
    """The file, of which Arrow reads the types of Parquet and not those that it noted beside."""
    written = bytearray(path.read_bytes())
    footer = len(written) - 8 - int.from_bytes(written[-8:-4], "little")  # by Parquet's format
    name = b"ARROW:schema"
    written[footer:] = written[footer:].replace(name, name.lower())
    return io.BytesIO(bytes(written))
