"""Reading a table from CSV, Parquet, NPZ or LIBSVM files, with an error for what cannot be one."""

from __future__ import annotations

import pathlib
import zipfile

import pandas as pd

from dpjax._extras import extra
from dpjax.data.array_table import read_libsvm, read_npz
from dpjax.data.csv_table import read_csv
from dpjax.data.errors import DataError
from dpjax.data.schema import Schema

__all__ = ["read_table"]

_FORMATS = ".csv, .tsv, .data, .test or .txt (also .gz), .parquet, .npz, .libsvm or .svm (also .gz)"


def read_table(
    path: str | pathlib.Path, *, target: str | None = None, schema: Schema | None = None
) -> pd.DataFrame:
    """Read a file into a data frame; the format follows from the file's name.

    CSV: comma, semicolon or tab, with a header unless the schema says otherwise; `.gz` is
    decompressed. NPZ: one array of features (columns become `x0`, `x1`, …) and, where `target` is
    given, one vector of that name. LIBSVM: the label becomes the column `target` (default
    "label"), the features `x0`, `x1`, … Parquet: as stored.

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
            frame = read_csv(path, schema, target)
        elif kind == "parquet":
            with extra("data"):
                frame = pd.read_parquet(path)
        elif kind == "npz":
            frame = read_npz(path, target)
        elif kind in ("libsvm", "svm", "svmlight"):
            frame = read_libsvm(path, target)
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
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} does not read as {kind}: {error}") from None
    frame.columns = [str(name).strip() for name in frame.columns]
    if len(frame) == 0:
        raise DataError(f"{path} has no rows")
    duplicated = frame.columns[frame.columns.duplicated()]
    if len(duplicated):
        raise DataError(f"{path} has two columns named {duplicated[0]!r}")
    return frame
