"""From a table and its schema to the arrays a model trains on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from dpjax.data.cells import as_floats, check_names, is_no_number, where
from dpjax.data.errors import DataError
from dpjax.data.learned import class_name, complete_schema
from dpjax.data.schema import Column, Schema

__all__ = ["Dataset", "encode", "encode_features", "from_frame", "split"]


@dataclass(frozen=True)
class Dataset:
    """Features and labels, and what was learned from the rows to make them.

    Fields:
        features: float32 [records, features]; every row has Euclidean norm at most 1.
        labels: int32 [records], class numbers.
        classes: name of each class.
        learned: what was read off the rows and is therefore not covered by any ε.

    Example:
        >>> data = Dataset(np.zeros((2, 3), np.float32), np.array([0, 1], np.int32), ("no", "yes"))
        >>> len(data), data.learned
        (2, ())
    """

    features: Float[np.ndarray, "records features"]
    labels: Int[np.ndarray, " records"]
    classes: tuple[str, ...]
    learned: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)


def from_frame(frame: pd.DataFrame, *, target: str | None, schema: Schema | None = None) -> Dataset:
    """Encode a table; what the schema does not declare is learned and listed in `learned`.

    Numbers are clipped to their range and mapped to [−1, 1], categories become one-hot, and every
    feature is divided by √(number of columns), so that a row's norm is at most 1 whatever it holds.

    Raises:
        DataError: a missing or constant target, NaN or infinite cells, text, dates or complex
            numbers in a number, no rows, columns whose names are no texts or not different.

    Example:
        >>> frame = pd.DataFrame({"x": [0.0, 2.0, 1.0], "c": ["u", "v", "u"], "y": ["a", "b", "b"]})
        >>> data = from_frame(frame, target="y")
        >>> data.features.shape, data.labels.tolist(), data.classes
        ((3, 3), [0, 1, 1], ('a', 'b'))
    """
    if target is None:
        target = schema.target if schema is not None else None
    check_names(frame)
    if len(frame) == 0:
        raise DataError("the table has no rows")
    if target is None or target not in frame.columns:
        shown = ", ".join(map(str, frame.columns[:20]))
        raise DataError(f"there is no target column {target!r}; the columns are {shown}")
    if frame[target].isna().any():
        place = where(frame, _first(frame[target].isna()))
        raise DataError(f"the target {target!r} is missing {place}; drop or complete the row")
    complete, learned = complete_schema(frame, target, schema)
    return replace(encode(frame, complete), learned=learned)


def encode(frame: pd.DataFrame, schema: Schema) -> Dataset:
    """Encode a table by a complete schema; rows decide nothing but their own encoding.

    Example:
        >>> schema = Schema((Column("x", range=(0.0, 10.0)),), target="y", classes=("a", "b"))
        >>> frame = pd.DataFrame({"x": [0.0, 5.0, 99.0], "y": ["a", "b", "b"]})
        >>> encode(frame, schema).features.ravel()
        array([-1.,  0.,  1.], dtype=float32)
    """
    assert schema.target is not None
    assert schema.classes is not None
    if schema.target not in frame.columns:
        raise DataError(f"the column {schema.target!r}, the target, is missing")
    labels = _labels(frame, schema)
    return Dataset(encode_features(frame, schema), labels, schema.classes)


def encode_features(frame: pd.DataFrame, schema: Schema) -> Float[np.ndarray, "records features"]:
    """The features of a table by a complete schema; neither the target nor other columns are read.

    Raises:
        DataError: a column is missing (all that are missing are named), or a cell is no number.

    Example:
        >>> schema = Schema((Column("x", range=(0.0, 10.0)),), target="y", classes=("a", "b"))
        >>> encode_features(pd.DataFrame({"x": [0.0, 10.0]}), schema).ravel()
        array([-1.,  1.], dtype=float32)
    """
    used = [column for column in schema.columns if column.kind != "ignore"]
    check_names(frame)
    missing = [repr(column.name) for column in used if column.name not in frame.columns]
    if missing:
        shown = ", ".join(map(str, frame.columns[:20]))
        raise DataError(
            f"the column{'s' * (len(missing) > 1)} {', '.join(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} missing; the columns are {shown}"
        )
    blocks = [
        _number(frame, column)[:, None] if column.kind == "number" else _one_hot(frame, column)
        for column in used
    ]
    if not blocks:
        raise DataError("there is no feature column besides the target")
    return (np.concatenate(blocks, axis=1) / np.sqrt(len(blocks))).astype(np.float32)


def split(data: Dataset, fraction: float = 0.2, seed: int = 0) -> tuple[Dataset, Dataset]:
    """Hold out a uniformly drawn share of the records, by position alone: (training, held out).

    Example:
        >>> data = Dataset(np.zeros((10, 1), np.float32), np.arange(10, dtype=np.int32), ("a",))
        >>> [len(part) for part in split(data, 0.2)]
        [8, 2]
    """
    held_out = round(len(data) * fraction)
    if not 0 < held_out < len(data):
        raise DataError(f"{len(data)} records are too few to hold out a share of {fraction}")
    order = np.random.default_rng(seed).permutation(len(data))
    parts = np.sort(order[held_out:]), np.sort(order[:held_out])
    train, test = (
        replace(data, features=data.features[rows], labels=data.labels[rows]) for rows in parts
    )
    return train, test


def _labels(frame: pd.DataFrame, schema: Schema) -> np.ndarray:
    assert schema.classes is not None
    values = frame[schema.target]
    aliases = dict(schema.aliases)
    numbers = {name: number for number, name in enumerate(schema.classes)}
    names = [class_name(v) for v in values.unique()]
    unknown = [name for name in names if aliases.get(name, name) not in numbers]
    if unknown:
        raise DataError(
            f"the target {schema.target!r} has the value {unknown[0]!r}, which is none of the "
            f"declared classes {', '.join(schema.classes[:20])}"
        )
    if len(numbers) < 2:
        raise DataError(
            f"the target {schema.target!r} is constant ({schema.classes[0]!r}): nothing to learn"
        )
    if len(numbers) > 1_000 or (len(numbers) > 50 and 2 * len(numbers) > len(values)):
        raise DataError(
            f"the target {schema.target!r} has {len(numbers)} different values in {len(values)} "
            "rows: dpjax train classifies; name a column of classes"
        )
    coded = {
        value: numbers[aliases.get(class_name(value), class_name(value))]
        for value in values.unique()
    }
    return np.asarray(values.map(coded), dtype=np.int32)


def _number(frame: pd.DataFrame, column: Column) -> np.ndarray:
    values = frame[column.name]
    if is_no_number(values):
        numbers: Any = np.full(len(values), np.nan)
    else:
        numbers = as_floats(values)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        cell = values.iloc[int(bad[0])]
        advice = (
            "drop or complete these rows"
            if pd.isna(cell) or isinstance(cell, float)
            else "declare the column a category, or correct the cell"
        )
        raise DataError(
            f"column {column.name!r} holds {cell} {where(frame, int(bad[0]))}"
            f" ({len(bad)} such rows): not a finite number; {advice}"
        )
    assert column.range is not None
    low, high = column.range
    numbers = np.clip(numbers, low, high)
    if column.scale == "log":
        low, high, numbers = np.log1p(low), np.log1p(high), np.log1p(numbers)
    return 2 * ((numbers - low) / (high - low)) - 1  # in this order, wide ranges do not overflow


def _one_hot(frame: pd.DataFrame, column: Column) -> np.ndarray:
    values = frame[column.name]
    if values.isna().any():
        place = where(frame, _first(values.isna()))
        raise DataError(
            f"column {column.name!r} has no value {place}; complete it, or write a category "
            "such as 'unknown' there"
        )
    assert column.categories is not None
    listed = pd.Index(column.categories)
    # Every different value is named once; a column of mixed types has values that compare equal
    # and are not (1 and True), so that there each cell is.
    mixed = values.dtype == object and pd.api.types.infer_dtype(values, skipna=False) != "string"
    codes, cells = (np.arange(len(values)), values) if mixed else pd.factorize(values)
    numbers: Any = listed.get_indexer(pd.Index([class_name(v) for v in cells]))[codes]  # -1: none
    encoded = np.zeros((len(values), len(column.categories)))
    rows: Any = np.arange(len(values))
    encoded[rows[numbers >= 0], numbers[numbers >= 0]] = 1.0
    return encoded


def _first(flags: Any) -> int:
    return int(np.argmax(np.asarray(flags)))
