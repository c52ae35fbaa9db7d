"""The table of a data set as its publisher's files hold it: one function a format."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dpjax._extras import extra
from dpjax.data.schema import Column, Schema

__all__ = ["Table"]


class Table(NamedTuple):
    """A data set as it was published: training rows, its official test rows, the target's name.

    Fields:
        schema: what the format itself makes public, such as the range of a pixel; None if nothing.

    Example:
        >>> from dpjax.data import load_table
        >>> table = load_table("digits")
        >>> len(table.train), table.test, table.target
        (1797, None, 'digit')
    """

    train: pd.DataFrame
    test: pd.DataFrame | None
    target: str
    schema: Schema | None = None


def csv_of(content: bytes, columns: list[str] | None = None, **options) -> pd.DataFrame:
    return pd.read_csv(
        io.BytesIO(content), names=columns, skipinitialspace=True, keep_default_na=False, **options
    )


_ADULT = [
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    *("native-country", "income"),
]


def adult(train: bytes, test: bytes) -> Table:
    frames = [csv_of(train, _ADULT), csv_of(test, _ADULT, comment="|")]
    for frame in frames:
        frame["income"] = frame["income"].str.rstrip(".")
    return Table(frames[0], frames[1], "income")


def bank(archive: bytes) -> Table:
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        return Table(csv_of(members.read("bank-full.csv"), sep=";"), None, "y")


def _idx(content: bytes) -> np.ndarray:
    rank = content[3]
    shape = np.frombuffer(content, ">i4", count=rank, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(tuple(shape))


def images(*files: bytes) -> Table:
    parts = []
    for pixels, labels in (files[:2], files[2:]):
        flat: Any = _idx(pixels).reshape(len(_idx(labels)), -1)
        numbers: Any = _idx(labels)
        frame = pd.DataFrame(flat, columns=[f"pixel{i}" for i in range(flat.shape[1])])
        frame.insert(flat.shape[1], "label", numbers)
        parts.append(frame)
    return Table(parts[0], parts[1], "label", _pixels(parts[0], "label", 255))


def _pixels(frame: pd.DataFrame, target: str, largest: int) -> Schema:
    columns = tuple(Column(name, range=(0, largest)) for name in frame.columns if name != target)
    return Schema(columns, target=target, classes=tuple("0123456789"))


def digits() -> Table:
    table = bundled("load_digits", "digit")()
    return table._replace(schema=_pixels(table.train, "digit", 16))


def vowpal(*files: bytes) -> Table:
    """`label |f index:value …` rows as a sparse table of as many columns as the highest index."""
    from scipy import sparse

    rows: list[list[tuple[int, float]]] = []
    labels, sizes = [], []
    for content in files:
        lines = content.decode().splitlines()
        sizes.append(len(lines))
        for line in lines:
            label, _, cells = line.partition("|f")
            labels.append(int(label))
            pairs = (cell.split(":") for cell in cells.split())
            rows.append([(int(index), float(value)) for index, value in pairs])
    width = 1 + max(index for row in rows for index, _ in row)
    matrix = sparse.lil_matrix((len(rows), width), dtype=np.float32)
    for number, row in enumerate(rows):
        for index, value in row:
            matrix[number, index] = value
    frame = pd.DataFrame.sparse.from_spmatrix(  # pyrefly: ignore
        matrix.tocsr(), columns=[f"x{i}" for i in range(width)]
    )
    frame["label"] = labels
    return Table(frame.iloc[: sizes[0]], frame.iloc[sizes[0] :], "label")


def bundled(loader: str, target: str) -> Callable[[], Table]:
    def read() -> Table:
        with extra("data"):
            import sklearn.datasets

        bunch = getattr(sklearn.datasets, loader)()
        frame = pd.DataFrame(bunch.data, columns=[str(n) for n in bunch.feature_names])
        return Table(frame.assign(**{target: bunch.target_names[bunch.target]}), None, target)

    return read
