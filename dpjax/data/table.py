"""Reading a table from CSV, Parquet, NPZ or LIBSVM files, with an error for what cannot be one."""

from __future__ import annotations

import csv
import gzip
import pathlib
import zipfile

import numpy as np
import pandas as pd

from dpjax._extras import extra
from dpjax.data.schema import DataError, Schema

__all__ = ["read_table"]

_FORMATS = ".csv, .tsv, .data, .test or .txt (also .gz), .parquet, .npz, .libsvm or .svm (also .gz)"


def read_table(
    path: str | pathlib.Path, *, target: str | None = None, schema: Schema | None = None
) -> pd.DataFrame:
    """Read a file into a data frame; the format follows from the file's name.

    CSV: comma, semicolon or tab, with a header unless the schema says otherwise; `.gz` is
    decompressed. NPZ: one two-dimensional array of features (columns become `x0`, `x1`, …) and one
    vector named by `target`. LIBSVM: the label becomes the column `target` (default "label"), the
    features `x0`, `x1`, … Parquet: as stored.

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
            frame = _read_csv(path, schema)
        elif kind == "parquet":
            with extra("data"):
                frame = pd.read_parquet(path)
        elif kind == "npz":
            frame = _read_npz(path, target)
        elif kind in ("libsvm", "svm", "svmlight"):
            frame = _read_libsvm(path, target)
        else:
            raise DataError(f"{path.name}: unknown format; dpjax reads {_FORMATS}")
    except DataError:
        raise
    except PermissionError:
        raise DataError(f"{path} cannot be read: permission denied") from None
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} does not read as {kind}: {error}") from None
    frame.columns = [str(name).strip() for name in frame.columns]
    if len(frame) == 0:
        raise DataError(f"{path} has no rows")
    duplicated = frame.columns[frame.columns.duplicated()]
    if len(duplicated):
        raise DataError(f"{path} has two columns named {duplicated[0]!r}")
    return frame


def _read_csv(path: pathlib.Path, schema: Schema | None) -> pd.DataFrame:
    header = schema is None or schema.header
    comment = None if schema is None else schema.comment
    separator = _check_rectangular(path, comment, header)
    frame = pd.read_csv(
        path,
        sep=separator,
        skipinitialspace=True,
        header=0 if header else None,
        comment=comment,
        index_col=False,
        # An empty cell is missing; a category may well be called "NA" or "None".
        keep_default_na=False,
        na_values=["", "nan", "NaN", "NAN"],
    )
    if not header:
        names = schema.names if schema is not None else None
        if names is None or len(names) != frame.shape[1]:
            raise DataError(
                f"{path} has {frame.shape[1]} columns and no header, but the schema names "
                f"{len(names or ())}"
            )
        frame.columns = list(names)
    return frame


def _check_rectangular(path: pathlib.Path, comment: str | None, header: bool) -> str:
    """The separator, once every row is known to have as many cells as the first."""
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    separator, width = ",", None
    with opener(path, "rt", encoding="utf-8", newline="") as lines:
        for line in lines:
            if line.strip() and not (comment and line.startswith(comment)):
                separator = max(",;\t", key=line.count)
                break
        else:
            raise DataError(f"{path} is empty")
        lines.seek(0)
        rows = csv.reader(lines, delimiter=separator, skipinitialspace=True)
        count = 0
        for row in rows:
            if not row or (len(row) == 1 and not row[0].strip()):
                continue
            if comment and row[0].startswith(comment):
                continue
            width = width or len(row)
            if len(row) != width:
                raise DataError(
                    f"{path}, line {rows.line_num}: {len(row)} cells where the first row has "
                    f"{width}; every row needs the same number"
                )
            count += 1
    if count <= header:
        raise DataError(f"{path} has no rows" + (" below its header" if header else ""))
    return separator


def _read_npz(path: pathlib.Path, target: str | None) -> pd.DataFrame:
    with np.load(path, allow_pickle=False) as arrays:
        contents = {name: arrays[name] for name in arrays.files}
    listing = ", ".join(f"{name} {list(value.shape)}" for name, value in contents.items())
    if target is None or target not in contents:
        raise DataError(f"{path} has no array {target!r} for the target; it has {listing}")
    labels = contents.pop(target)
    tables = [value for value in contents.values() if value.ndim >= 2 and len(value) == len(labels)]
    if labels.ndim != 1 or len(tables) != 1:
        raise DataError(
            f"{path} needs one vector for the target and one array of as many rows for the "
            f"features; it has {listing}"
        )
    features = tables[0].reshape(len(labels), -1)
    frame = pd.DataFrame(features, columns=[f"x{i}" for i in range(features.shape[1])])
    frame[target] = labels
    return frame


def _read_libsvm(path: pathlib.Path, target: str | None) -> pd.DataFrame:
    with extra("data"):
        from sklearn.datasets import load_svmlight_file

    sparse, labels = load_svmlight_file(str(path))[:2]
    features = np.asarray(sparse.todense())  # pyrefly: ignore
    frame = pd.DataFrame(features, columns=[f"x{i}" for i in range(features.shape[1])])
    frame[target or "label"] = labels
    return frame
