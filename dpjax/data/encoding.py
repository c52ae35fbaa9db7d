"""From a table and its schema to the arrays a model trains on.

`from_frame` completes the schema from the rows and says what it learned; `encode` and
`encode_features` go by a complete one, where rows decide nothing but their own encoding.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from dpjax._numerics.persons import number_persons
from dpjax._numerics.warning import DpjaxWarning
from dpjax.data import buckets, cells
from dpjax.data.cells import DataError, class_name
from dpjax.data.schema import Column, Schema, complete_schema
from dpjax.data.single_cells import as_numbers, as_texts


@dataclass(frozen=True)
class Dataset:
    """Features and labels, and what was learned from the rows to make them.

    Fields:
        features: float32 [records, features]; every row has Euclidean norm at most 1.
        labels: int32 [records], class numbers; or float32, a number from −1 to 1 in its range.
        classes: name of each class; () of a number.
        learned: what was read off the rows and is therefore not covered by any ε.
        users: int [records], whom each record belongs to, where not the record is protected.

    Example:
        >>> data = Dataset(np.zeros((2, 3), np.float32), np.array([0, 1], np.int32), ("no", "yes"))
        >>> len(data), data.learned
        (2, ())
    """

    features: Float[np.ndarray, "records features"]
    labels: Int[np.ndarray, " records"] | Float[np.ndarray, " records"]
    classes: tuple[str, ...]
    learned: tuple[str, ...] = ()
    users: Int[np.ndarray, " records"] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def population(self) -> int:
        """How many users there are, or records where each is protected by itself."""
        return len(self) if self.users is None else len(np.unique(number_persons(self.users)))


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
    if target is None and schema is not None:
        target = schema.target
    cells.check_column_names(frame)
    if len(frame) == 0:
        raise DataError("the table has no rows")
    if target is None or target not in frame.columns:
        shown = cells.list_columns(frame)
        raise DataError(f"there is no target column {target!r}; the columns are {shown}")
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
    name, classes = schema.target, schema.classes
    if name not in frame.columns:
        raise DataError(f"the column {name!r}, the target, is missing")
    values = cells.parse_cells(frame[[name]], schema)[name]
    find = class_finder(schema)
    if (error := cells.find_unlabelled(frame.assign(**{name: values}), name)) is not None:
        raise error
    if not schema.classes and schema.target_range is not None:
        column = Column(name, range=schema.target_range)
        labels = _number(values.to_frame(name), column, False)[:, 0].astype(np.float32)
        return Dataset(encode_features(frame, schema), labels, ())
    coded = {value: find(value) for value in values.unique()}
    unknown = [class_name(value) for value, number in coded.items() if number < 0]
    if unknown:
        raise DataError(
            f"the target {name!r} has the value {unknown[0]!r}, which is none of the "
            f"declared classes {', '.join(classes[:20])}"
        )
    if len(classes) < 2:
        raise DataError(f"the target {name!r} is constant ({classes[0]!r}): nothing to learn")
    labels = np.asarray(values.map(coded), dtype=np.int32)
    return Dataset(encode_features(frame, schema), labels, classes)


def encode_features(frame: pd.DataFrame, schema: Schema) -> Float[np.ndarray, "records features"]:
    """The features of a table by a complete schema; neither the target nor other columns are read.

    Of a column that was released with noise, a cell that does not read as a number is missing, with
    one warning that names the columns; of a declared one it is refused.

    Raises:
        DataError: a column is missing (all that are missing are named), or a cell of a column that
            was not released is no number.

    Example:
        >>> schema = Schema((Column("x", range=(0.0, 10.0)),), target="y", classes=("a", "b"))
        >>> encode_features(pd.DataFrame({"x": [0.0, 10.0]}), schema).ravel()
        array([-1.,  1.], dtype=float32)
    """
    return _encode(frame, schema).whole


def encode_columns(
    frame: pd.DataFrame, schema: Schema
) -> dict[str, Float[np.ndarray, "records block"]]:
    """The features of a table by a complete schema, those of each column by its name."""
    return _encode(frame, schema).columns


class _Features(NamedTuple):
    """The features of a table, and the part of them that is each column's."""

    whole: Float[np.ndarray, "records features"]
    columns: dict[str, Float[np.ndarray, "records block"]]


def _encode(frame: pd.DataFrame, schema: Schema) -> _Features:
    """The features, with a warning of cells that do not read as a number."""
    used, read = _read_features(frame, schema)
    if unread := _describe_unread(frame, read, used, schema):
        warnings.warn(unread, DpjaxWarning, stacklevel=3)
    return _encode_cells(used, read, schema)


def _encode_cells(used: list[Column], frame: pd.DataFrame, schema: Schema) -> _Features:
    """The features of cells that are read."""
    if not used:
        raise DataError("there is no feature column besides the target")
    has_missing = bool(schema.missing)
    ends = np.cumsum([_count_features(column) for column in used]).tolist()
    # Written in place: of a table with many categories a copy is as large as all else.
    found = _Features(np.zeros((len(frame), ends[-1]), np.float32), {})
    # A block is one number in [−1, 1] or at most one 1, of norm at most 1: of d blocks the norm is
    # at most √d, and of the quotient 1 up to float32's rounding, whatever the cells hold.
    root = np.sqrt(len(used))
    for column, start, end in zip(used, [0, *ends[:-1]], ends, strict=True):
        block = found.columns[column.name] = found.whole[:, start:end]
        if column.kind == "number":
            block[:] = _number(frame, column, has_missing) / root
            continue
        if (error := cells.find_gap(frame, column.name, "category", has_missing)) is not None:
            raise error
        # One feature a category and a bucket; a value that is of none of them has no 1.
        places = _category_numbers(frame[column.name], column)
        listed = np.flatnonzero(places >= 0)
        block[listed, places[listed]] = 1 / root
    return found


def _count_features(column: Column) -> int:
    """How many features a column has."""
    if column.kind == "category":
        return len(column.categories or ()) + column.buckets
    if column.cuts is None:
        return 1
    return len(column.cuts) + 2 + (column.line_weight is not None)


def describe_unlisted(frame: pd.DataFrame, schema: Schema) -> str | None:
    """How many cells hold a category that the schema does not list, None where none does."""
    used, read = _read_features(frame, schema)
    counts = []
    for column in used:
        if column.kind == "category":
            values = read[column.name]
            other = np.sum(values.notna() & (_category_numbers(values, column) < 0))
            counts += [f"{column.name} ({other:,})"] if other else []
    listed = ", ".join(counts)
    return f"cells in none of the known categories, taken for none: {listed}" if counts else None


def _describe_unread(
    frame: pd.DataFrame, read: pd.DataFrame, used: list[Column], schema: Schema
) -> str:
    """How many cells of released numbers hold something that is none; "" where none does."""
    counts = []
    for column in used:
        if column.released and column.kind == "number":
            absent = np.isnan(read[column.name].to_numpy())
            other = np.sum(as_texts(frame[column.name][absent], schema) != "")
            counts += [f"{column.name} ({other:,})"] if other else []
    # The look at a column's kind was noisy, or new rows are of another kind than the records.
    advice = "declare a column's kind in a schema when training"
    listed = ", ".join(counts)
    return f"cells that are no numbers, taken as missing: {listed}; {advice}" if counts else ""


def _read_features(frame: pd.DataFrame, schema: Schema) -> tuple[list[Column], pd.DataFrame]:
    """The feature columns of a complete schema, and their cells; refuses what is not there."""
    used = _find_features(frame, schema)
    read = cells.parse_cells(frame[[column.name for column in used]], schema)
    own = _read_each([column for column in used if column.released], frame, schema)
    if own:
        attrs = read.attrs
        read = pd.DataFrame({n: own.get(str(n), values) for n, values in read.items()}, read.index)
        read.attrs = attrs
    return used, read


def _find_features(frame: pd.DataFrame, schema: Schema) -> list[Column]:
    """The feature columns of a complete schema; refuses what is not there."""
    used = [column for column in schema.columns if column.kind != "ignore"]
    cells.check_column_names(frame)
    missing = [repr(column.name) for column in used if column.name not in frame.columns]
    if missing:
        several = len(missing) > 1
        raise DataError(
            f"the column{'s' * several} {', '.join(missing)} {'are' if several else 'is'} missing; "
            f"the columns are {cells.list_columns(frame)}"
        )
    return used


def _read_each(columns: list[Column], frame: pd.DataFrame, schema: Schema) -> dict[str, np.ndarray]:
    """The cells of columns, each read by itself as one of its column's kind, by name."""
    kinds = {"number": as_numbers, "category": as_texts}
    return {one.name: kinds[one.kind](frame[one.name], schema) for one in columns}


def encode_released(frame: pd.DataFrame, schema: Schema, *, unknown: int = 0) -> Dataset:
    """Encode private records by what was released of them, each by itself, refusing none.

    A cell that is no number is missing, a text that was not released is none of the categories, or
    in its bucket where its column has such (`data.buckets`), and a record of a class that was not
    released counts as one of the first class, to be trained on; of a target that is to be a number
    and is none as the middle of its range.

    Args:
        frame: the records.
        schema: complete, as `PrivateTable.release` returns it.
        unknown: the label of a class that was not released: −1 for records to be predicted.

    Returns:
        Features of norm at most 1 a record, and labels; `classes` may be fewer than two.

    Example:
        >>> columns = (Column("x", range=(0.0, 10.0)),)
        >>> schema = Schema(columns, target="y", classes=("a", "b"), missing=("",))
        >>> frame = pd.DataFrame({"x": ["0", "ten", "10"], "y": ["a", "c", "b"]})
        >>> data = encode_released(frame, schema)
        >>> data.features.ravel().tolist(), data.labels.tolist()
        ([-1.0, 0.0, 1.0], [0, 0, 1])
    """
    used = _find_features(frame, schema)
    # The records are private: no warning may say whether one of them holds no number.
    read = pd.DataFrame(_read_each(used, frame, schema))
    features = _encode_cells(used, read, schema).whole
    if not schema.classes and schema.target_range is not None:
        numbers = pd.DataFrame({"target": as_numbers(frame[schema.target], schema)})
        column = Column("target", range=schema.target_range)
        return Dataset(features, _number(numbers, column, True)[:, 0].astype(np.float32), ())
    find, labels = class_finder(schema), as_texts(frame[schema.target], schema)
    found = {text: unknown if (number := find(text)) < 0 else number for text in set(labels)}
    coded = np.asarray([found[text] for text in labels], np.int32)
    return Dataset(features, coded, schema.classes or ())


def split(data: Dataset, fraction: float = 0.2, seed: int = 0) -> tuple[Dataset, Dataset]:
    """Hold out a uniformly drawn share of the records, by position alone: (training, held out).

    Of records that have users it is a share of these, each with all records.

    Example:
        >>> data = Dataset(np.zeros((10, 1), np.float32), np.arange(10, dtype=np.int32), ("a",))
        >>> [len(part) for part in split(data, 0.2)]
        [8, 2]
    """
    owner = np.arange(len(data))
    if data.users is not None:
        owner = number_persons(data.users)
    count, what = data.population, "records" if data.users is None else "users"
    held_out = round(count * fraction)
    if not 0 < held_out < count:
        raise DataError(f"{count} {what} are too few to hold out a share of {fraction}")
    # By number alone: which are held out is a function of how many there are, and of no cell.
    held = np.zeros(count, bool)
    held[np.random.default_rng(seed).permutation(count)[:held_out]] = True
    parts = ~held[owner], held[owner]
    arrays = {name: getattr(data, name) for name in ("features", "labels", "users")}
    arrays = {name: values for name, values in arrays.items() if values is not None}
    train, test = (replace(data, **{n: v[rows] for n, v in arrays.items()}) for rows in parts)
    return train, test


def class_finder(schema: Schema) -> Callable[[object], int]:
    """Finds the number of a label's class, −1 for none, by the spellings that the schema knows."""
    find, aliases = _finder(schema.classes or ()), dict(schema.aliases)
    return lambda label: find(aliases.get(class_name(label), class_name(label)))


def _finder(listed: tuple[str, ...]) -> Callable[[object], int]:
    """Finds which of the listed texts a value is, −1 for none: as text, as seen, or as a number."""
    exact = {name: number for number, name in enumerate(listed)}
    seen = {cells.strip_invisible(name): number for name, number in exact.items()}
    # "01" is found by the whole number 1, which pandas makes of it in a file of numbers alone, and
    # where "1" is listed too only by itself.
    values: dict[Decimal, int] = {}
    for name, number in exact.items():
        if (value := cells.parse_decimal(name)) is not None:
            values[value] = -1 if value in values else number

    def find(value: object) -> int:
        name = class_name(value)
        if name in exact:
            return exact[name]
        if (number := seen.get(cells.strip_invisible(name))) is not None:
            return number
        number = cells.parse_decimal(name)
        return -1 if number is None else values.get(number, -1)

    return find


def _bucket_finder(column: Column) -> Callable[[object], int]:
    """Finds the listed text that a value is, or the bucket that it falls in, behind them."""
    listed = column.categories or ()
    find_listed = _finder(listed)

    def find(value: object) -> int:
        if (number := find_listed(value)) >= 0:
            return number
        text = cells.canonical_text(class_name(value))
        # A number counts as the float next to it: some readers keep no other of its digits.
        exact = cells.parse_decimal(text)
        if exact is not None and math.isfinite(rounded := float(exact)):
            text = cells.canonical_text(str(rounded))
        return len(listed) + buckets.place(column.name, text, column.buckets)

    return find


def _number(frame: pd.DataFrame, column: Column, missing: bool) -> np.ndarray:
    """One feature in [−1, 1], a missing number the middle; or one a cell between cuts; or both."""
    if (error := cells.find_gap(frame, column.name, "number", missing)) is not None:
        raise error
    numbers = cells.to_floats(frame[column.name])
    absent = frame[column.name].isna().to_numpy()
    if column.cuts is not None:
        cell = np.searchsorted(column.cuts, numbers, side="left")
        cell = np.where(absent, len(column.cuts) + 1, cell)
        cells_of = (cell[:, None] == np.arange(len(column.cuts) + 2)).astype(np.float64)
        if column.line_weight is None:
            return cells_of
        # u² of the square of the number, at most 1, and 1 − u² of that of its cell: 1 together.
        line = _number(frame, replace(column, cuts=None, line_weight=None), missing)
        weight = column.line_weight
        return np.concatenate([math.sqrt(1 - weight**2) * cells_of, weight * line], axis=1)
    assert column.range is not None
    low, high = column.scale_numbers(np.array(column.range, np.float64))
    numbers = column.scale_numbers(np.clip(numbers, *column.range))
    if not (low < high and math.isfinite(high - low)):  # its scale tells no two apart
        return np.zeros((len(numbers), 1))
    scaled = 2 * ((numbers - low) / (high - low)) - 1  # in this order, wide ranges do not overflow
    return np.where(absent, 0.0, scaled)[:, None]


def _category_numbers(values: pd.Series, column: Column) -> np.ndarray:
    """Which of the column's features each cell has a 1 in, −1 for none."""
    assert column.categories is not None
    find = _bucket_finder(column) if column.buckets else _finder(column.categories)
    # Every different value is named once; a column of mixed types has values that compare equal
    # and are not (1 and True), so that there each cell is. A missing one is none.
    mixed = values.dtype == object and pd.api.types.infer_dtype(values, skipna=True) != "string"
    codes, given = (np.arange(len(values)), values) if mixed else pd.factorize(values)
    nothing = find("")  # where "" is listed, a missing value is that category
    named = [nothing if pd.isna(cell) else find(cell) for cell in given]
    return np.asarray([*named, nothing])[codes]  # factorize codes a missing value as −1
