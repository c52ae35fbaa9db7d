"""What scikit-learn hands to an estimator, as a table with its schema; and a public scaler.

`training_rows` and `new_rows` are for the estimators, before fit and predict. `RangeScaler` learns
nothing: its ranges are given, so that ε covers what follows it.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import warnings
from collections.abc import Iterable, Sequence, Sized
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import PRNGKeyArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import assert_all_finite, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_is_fitted,
    validate_data,  # pyrefly: ignore
)

from dpjax import accounting as acc
from dpjax import data
from dpjax._argument_names import suggests_argument_names
from dpjax._digits import format_rounded_up
from dpjax._numerics import checks
from dpjax._numerics.warning import DpjaxWarning
from dpjax.data import class_sizes
from dpjax.data.cells import check_column_names, class_name, with_readable_times
from dpjax.data.single_cells import as_numbers
from dpjax.training.plan import NOTHING_CHOSEN

if TYPE_CHECKING:
    from dpjax.estimators.base import PrivateEstimator
    from dpjax.training.search import Selection


@runtime_checkable
class HasPandas(Protocol):
    """A table of another library, such as polars or pyarrow."""

    def to_pandas(self) -> object:
        """The same as pandas has it."""


# What scikit-learn's users give as records, and as one label or value of each.
TableLike: TypeAlias = np.ndarray | pd.DataFrame | HasPandas | Sequence[Sequence[object]]
LabelsLike: TypeAlias = np.ndarray | pd.Series | pd.Index | pd.DataFrame | Sequence[object]
EndLike: TypeAlias = float | Sequence[float] | np.ndarray
BoundsLike: TypeAlias = data.Schema | str | pathlib.Path | tuple[EndLike, EndLike]

_AS_GIVEN = acc.Disclosure(
    "table-as-given", "nothing was learned from the table before it was given to the estimator"
)


class Encoded(NamedTuple):
    """Records ready to train on."""

    features: np.ndarray  # float32 [records, features], rows of norm at most 1
    target: np.ndarray  # class numbers, or the values of a regression
    schema: data.Schema  # complete: it encodes new rows
    declared: data.Schema  # the public part of it
    learned: tuple[acc.Disclosure, ...]  # what was read off the rows, and no ε covers
    key: PRNGKeyArray  # of the fit
    table: data.PrivateTable | None = None  # by which the schema was completed, or None
    noise: float | None = None  # of a run of a search, which certifies; None: by the budget
    selection: Selection | None = None  # of that search

    @property
    def looks(self) -> acc.Mechanism | None:
        """What was released to complete the schema."""
        return (
            None
            if self.table is None or self.table.mechanism == acc.Composed(())
            else self.table.mechanism
        )

    @property
    def assumptions(self) -> tuple[acc.Disclosure, ...]:
        """What the certificate has to assume of the table."""
        return () if self.table is None else (*NOTHING_CHOSEN, _AS_GIVEN, *self.table.public)

    @property
    def extra_delta(self) -> dict[str, float]:
        """The part of δ that the table takes."""
        return {} if self.table is None else self.table.extra_delta


def encode_rows(estimator: PrivateEstimator, X: TableLike | Encoded) -> np.ndarray:
    """The features of rows to predict, encoded by the estimator's complete schema."""
    if isinstance(X, Encoded):  # held out by a search
        return X.features
    return data.encode_features(_frame(estimator, X, reset=False), estimator.schema_)


def read_records(
    estimator: PrivateEstimator, X: TableLike, y: LabelsLike, key: PRNGKeyArray, *, classes: bool
) -> Encoded:
    """The training records; the schema is completed from them where `bounds` leaves it open."""
    frame = _frame(estimator, X, reset=True)
    if len(frame) == 0:
        raise ValueError("X must have at least one row, got none")
    private = estimator.preprocessing == "private"
    target = (_read_each_label if private else _read_labels)(y, classes=classes)
    check_consistent_length(frame, target)
    estimator.columns_ = list(frame.columns)
    declared = read_bounds(estimator.bounds, frame.columns)
    # The target needs a name of its own beside the columns.
    name = declared.target or "target"
    while declared.target is None and name in frame.columns:
        name += "_"
    if classes:
        declared = dataclasses.replace(declared, target_range=None)
    else:
        ends = estimator._declare_range() or declared.target_range
        declared = dataclasses.replace(declared, classes=(), target_range=ends)
    if isinstance(target, pd.Series):  # of private records
        frame = frame.assign(**{name: target.set_axis(frame.index)})
        return _release_table(estimator, frame, dataclasses.replace(declared, target=name), key)
    frame = frame.assign(**{name: target})
    schema, learned = data.complete_schema(frame, name, declared)
    if classes:
        if len(schema.classes or ()) < 2:
            raise ValueError(f"y must hold at least two classes, got {list(schema.classes or ())}")
        encoded = data.encode(frame, schema)
        return Encoded(encoded.features, encoded.labels, schema, declared, learned, key)
    return Encoded(data.encode_features(frame, schema), target, schema, declared, learned, key)


def _release_table(
    estimator: PrivateEstimator, frame: pd.DataFrame, declared: data.Schema, key: PRNGKeyArray
) -> Encoded:
    """The same, of which all that is learned is released with noise of the estimator's budget."""
    for setting in ("epsilon", "delta"):
        if not (value := getattr(estimator, setting)):
            raise ValueError(
                f"{setting} must be above 0 with preprocessing='private', got {value!r}"
            )
    name, classes = str(declared.target), declared.classes is None or len(declared.classes) > 0
    known = [column.name for column in declared.columns]

    def make_table(epsilon: float, records: int) -> data.PrivateTable:
        return data.PrivateTable.for_budget(
            [*known, *(n for n in frame.columns if n not in known and n != name)],
            declared,
            records,
            epsilon=epsilon,
            delta=estimator.delta,
            adjacency=acc.Adjacency(estimator.adjacency),
            encoding=estimator._encoding,
            buckets=estimator._encoding == "bins-and-line",
            range_cells=estimator._encoding == "bins-and-line",
        )

    table = make_table(estimator.epsilon, len(frame))
    schema = table.release(frame, key)
    if classes and len(schema.classes or ()) < 2:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DpjaxWarning)  # of tables that are only thought of
            seen = class_sizes.describe_seen(table, estimator.epsilon, make_table)
        cost = format_rounded_up(_price_looks(estimator, table), 4)
        raise ValueError(
            "bounds must declare the classes where fewer than two stand out of the noise, got "
            f"{list(schema.classes or ())} above a count of {table.class_threshold}; {seen}; the "
            f"looks at the records cost epsilon = {cost} at delta = {estimator.delta:g}"
        )
    encoded = data.encode_released(frame, dataclasses.replace(schema, target_range=None))
    target = encoded.labels if classes else frame[name].to_numpy()
    return Encoded(encoded.features, target, schema, declared, (), key, table)


def _price_looks(estimator: PrivateEstimator, table: data.PrivateTable) -> float:
    """The ε of a table's looks alone, at the estimator's δ."""
    left = estimator.delta - sum(table.extra_delta.values())
    adjacency = acc.Adjacency(estimator.adjacency)
    return float(acc.epsilon(table.mechanism, left, adjacency=adjacency))


def _frame(estimator: PrivateEstimator, X: TableLike, *, reset: bool) -> pd.DataFrame:
    """The rows as a table with texts for names, once scikit-learn has seen their columns."""
    # Rows to train on (`reset`) say what the columns are; others have to have those of `fit`.
    rows = _table_or_array(X)
    if isinstance(rows, pd.DataFrame):
        frame = rows.rename(columns=str)
        check_column_names(frame)
        validate_data(estimator, rows, reset=reset, skip_check_array=True)
        return frame
    private = estimator.preprocessing == "private" if reset else estimator._private
    settings: dict[str, Any] = {"ensure_all_finite": False, "ensure_min_samples": 1 + reset}
    if private:  # as given: to convert them all would let one cell decide how others are read
        settings["dtype"] = None
    try:
        numbers = validate_data(estimator, rows, reset=reset, **settings)
    except ValueError as error:
        if "could not convert" not in str(error):
            raise
        # Text has a place in tables alone, whose columns have types.
        raise ValueError(
            "X must hold numbers where it is an array, got text; give a pandas.DataFrame, whose "
            "columns of text are categories"
        ) from None
    names: list[str] = [f"x{number}" for number in range(numbers.shape[1])]
    if not reset:
        names = estimator.columns_
    elif hasattr(estimator, "feature_names_in_"):  # of what else has named columns
        names = [str(name) for name in estimator.feature_names_in_]
    elif isinstance(estimator.bounds, data.Schema) and len(estimator.bounds.columns) == len(names):
        names = [column.name for column in estimator.bounds.columns]
    if private:
        kind = numbers.dtype if numbers.dtype.kind in "biuf" else object
        return pd.DataFrame(numbers, columns=names, dtype=kind)
    schema = read_bounds(estimator.bounds, names) if reset else estimator.schema_
    # scikit-learn's refusal says neither where a cell is nor what to do here.
    bad = np.argwhere(~np.isfinite(numbers) & ~(np.isnan(numbers) & bool(schema.missing)))
    if len(bad):
        row, column = bad[0]
        cell = "NaN" if np.isnan(numbers[row, column]) else f"{numbers[row, column]:g}"
        raise ValueError(
            f"X must hold finite numbers, got {cell} in row {row} of column {names[column]!r} "
            f"({len(np.unique(bad[:, 0]))} such rows); drop or complete these rows"
        )
    frame = pd.DataFrame(numbers, columns=names)
    if isinstance(rows, np.ndarray) and rows.dtype.kind == "O":
        # In an array of objects, booleans and whole numbers stay such.
        given = pd.DataFrame(rows, columns=names).infer_objects()
        kept = [name for name in names if given[name].dtype.kind in "biu"]
        frame[kept] = given[kept]
    return frame


def _read_labels(y: LabelsLike, *, classes: bool) -> np.ndarray:
    """The target as one array; refuses what is no class or number."""
    y = make_plain(y)
    check_target(y, classes=classes)
    target = column_or_1d(y, warn=True)
    if not classes:
        try:  # decimals are objects to NumPy, and dates would become numbers
            numeric = target.astype(np.float64) if target.dtype.kind in "biufO" else None
        except (TypeError, ValueError):
            numeric = None
        if numeric is None:
            example = target.tolist()[0]
            raise ValueError(f"y must hold numbers, got {target.dtype}, such as {example!r}")
        target = numeric
    if target.dtype.kind == "f":
        assert_all_finite(target, input_name="y")
    return target


def _read_each_label(y: LabelsLike, *, classes: bool) -> pd.Series:
    """The target of private records: no label refuses the others or decides how they are read."""
    _check_column(y)
    if isinstance(y, pd.DataFrame) and y.shape[1] == 1:
        y = y.iloc[:, 0]
    if isinstance(y, pd.Series | pd.Index | pd.api.extensions.ExtensionArray):
        target = pd.Series(y).reset_index(drop=True)
    elif hasattr(y, "__array__"):
        values = column_or_1d(y, warn=True)
        target = pd.Series(values, dtype=None if values.dtype.kind in "biufmM" else object)
    else:  # as one array a label 2 among booleans would make 1 of True
        target = pd.Series(list(y), dtype=object)
    if not classes:
        if target.dtype.kind not in "biufO":
            raise ValueError(f"y must hold numbers, got {target.dtype}")
        cells = [float(cell) if isinstance(cell, bool | np.bool_) else cell for cell in target]
        return pd.Series(as_numbers(pd.Series(cells, dtype=object), data.Schema(())))
    return target


def check_target(y: LabelsLike, *, classes: bool) -> None:
    """Refuse what is no column of labels; scikit-learn's words would show all of it."""
    _check_column(y)
    if not classes:
        return
    absent = pd.isna(np.atleast_1d(np.asarray(y, dtype=object)))
    if absent.any():
        raise ValueError(
            f"y must hold a label for every row, got none (Input y contains NaN) in row "
            f"{np.argwhere(absent)[0][0]}; drop or complete the row"
        )
    try:
        check_classification_targets(y)
    except TypeError:  # labels that have no order
        kinds = sorted({type(label).__name__ for label in np.asarray(y, dtype=object).ravel()})
        raise ValueError(
            f"y must hold labels of one type, got {' and '.join(kinds)}; write all as texts"
        ) from None


def _check_column(y: object) -> None:
    """Refuse what is none of one label a row, whatever the labels are."""
    if y is None:
        raise ValueError(
            "y is missing: this estimator requires y to be passed, but the target y is None"
        )
    column = isinstance(y, Sized) or hasattr(y, "__array__")
    if isinstance(y, str | bytes | dict | set | frozenset) or not column:
        raise ValueError(f"y must be one label a row, got {type(y).__name__}")
    dtype = getattr(y, "dtype", None)
    if getattr(dtype, "kind", "") == "c":  # scikit-learn would show records
        raise ValueError(f"y must hold no complex numbers, got {dtype}")
    checks.unmasked("y", y)


_TABLE_OF = {"LazyFrame": "; X.collect() is one", "dict": "; pandas.DataFrame(X) is one"}


def _table_or_array(X: TableLike) -> np.ndarray | pd.DataFrame:
    """A table of polars, pyarrow or another library as pandas', else an array [rows, columns]."""
    # As one array of floats a table would make True the category "1", and one id of two beyond
    # 2^53; so a list keeps the type of every number.
    frame = X.to_pandas() if isinstance(X, HasPandas) else X
    if isinstance(frame, pd.DataFrame):
        return frame
    checks.unmasked("X", X)
    kind = type(X).__name__
    array: Any = X  # of any library that says how many axes it has, such as SciPy
    if isinstance(X, list | tuple):
        array = np.asarray(X, dtype=object)
    elif not hasattr(X, "ndim"):
        array = np.asarray(X)
    if array.ndim == 2 and not np.iscomplexobj(array):
        return array
    # Worded here because scikit-learn's refusals show records.
    if array.ndim == 2:
        found = f"{array.dtype} (Complex data not supported)"
    elif array.ndim:
        found = f"an array of shape {tuple(array.shape)}; Reshape your data"
    else:
        found = kind + _TABLE_OF.get(kind, "")
    raise ValueError(
        "X must be a table of pandas, polars or pyarrow, or an array of real numbers "
        f"[rows, columns], got {found}"
    )


def read_bounds(bounds: BoundsLike | None, names: Iterable[object]) -> data.Schema:
    """What is public: nothing, a schema, the file of one, or (low, high) of the columns."""
    if bounds is None:
        return data.Schema(())
    if isinstance(bounds, data.Schema):
        return bounds
    if isinstance(bounds, str | pathlib.Path):
        return data.read_schema(bounds)
    try:
        names = list(names)
        low, high = _per_column(bounds, len(names))
    except (TypeError, ValueError):
        raise ValueError(
            f"bounds must be a schema, the file of one, or (low, high), got {bounds!r}"
        ) from None
    sides = zip(names, low.tolist(), high.tolist(), strict=True)
    return data.Schema(tuple(data.Column(str(name), range=(a, b)) for name, a, b in sides))


def _per_column(ends: Iterable[EndLike], columns: int) -> list[np.ndarray]:
    """Each end of a range as one number a column."""
    return [np.broadcast_to(np.asarray(end, np.float64), (columns,)) for end in ends]


def make_plain(y: LabelsLike) -> LabelsLike:
    """Labels as scikit-learn reads them: it makes floats of booleans, and some times end it."""
    if isinstance(y, pd.api.extensions.ExtensionArray | pd.Index):
        y = pd.Series(y)
    if isinstance(y, pd.Series | pd.DataFrame):
        kinds = [y.dtype] if isinstance(y, pd.Series) else [*y.dtypes]
        if any(isinstance(kind, pd.DatetimeTZDtype) for kind in kinds):
            return (
                with_readable_times(y) if isinstance(y, pd.Series) else y.apply(with_readable_times)
            )
        if all(map(pd.api.types.is_bool_dtype, kinds)) and not np.any(y.isna()):
            return y.to_numpy(bool)
    return y


def restore_class_values(names: tuple[str, ...], target: LabelsLike) -> np.ndarray:
    """The classes as values of the target's own type, in the order of the class numbers."""
    # Names that are no such values, where a schema's aliases lead to them, stay names.
    target = np.asarray(target).ravel()
    kind = target.dtype.kind
    if kind == "b" and set(names) <= {"True", "False"}:
        return np.asarray([name == "True" for name in names])
    try:
        if kind in "iuf":
            wide = [int(name) if kind in "iu" else float(name) for name in names]
            values = np.asarray(wide)
            with np.errstate(over="ignore"):
                narrow = values.astype(target.dtype)
            # A declared class that the labels' type cannot hold, 300 in uint8, would be another.
            return narrow if narrow.tolist() == wide else values
    except ValueError:
        pass
    given = {class_name(value): value for value in pd.unique(target)}
    if kind in "Ubiuf":  # as wide as the longest, which the target may not hold
        return np.asarray([given.get(name, name) if kind == "U" else name for name in names])
    return np.asarray([given.get(name, name) for name in names], dtype=target.dtype)


def restore_released_classes(names: tuple[str, ...], target: LabelsLike) -> np.ndarray:
    """The released classes in the target's type, of which no label decides."""
    column = target.iloc[:, 0] if isinstance(target, pd.DataFrame) else target
    kind = getattr(column, "dtype", None)
    if isinstance(kind, pd.CategoricalDtype):
        kind = kind.categories.dtype
    if isinstance(kind, pd.api.extensions.ExtensionDtype):
        kind = np.dtype(kind.type)
    if not isinstance(kind, np.dtype):  # a list has none but that of its classes
        whole = all(re.fullmatch("0|-?[1-9][0-9]{0,17}", name) for name in names)
        kind = np.dtype(bool if set(names) <= {"True", "False"} else int if whole else object)
    kind = kind if kind.kind in "biufU" else np.dtype(object)
    return restore_class_values(names, np.empty(0, kind))


@suggests_argument_names
@dataclasses.dataclass(eq=False, repr=False)
class RangeScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Maps every column from a public range to [0, 1], and clips what lies beyond it.

    x ↦ (min(max(x, low), high) − low) / (high − low). In a pipeline it stands where
    `StandardScaler` and `MinMaxScaler` would learn from the private records.

    Args:
        low, high: the range, known beforehand: a number each, or one for every column.

    Guarantee:
        `fit` reads the number and the names of the columns and no cell of them, so that an
        estimator after it may say preprocessing="public".

    Example:
        >>> RangeScaler(18, 90).fit_transform([[18.0], [54.0], [120.0]]).ravel().tolist()
        [0.0, 0.5, 1.0]
    """

    low: EndLike = 0.0
    high: EndLike = 1.0

    def fit(self, X: TableLike, y: LabelsLike | None = None) -> RangeScaler:
        """Check the ranges against the number of columns.

        Args:
            X: a frame or an array of numbers, one row a record.
            y: not read.

        Returns:
            The scaler.
        """
        self._ends(validate_data(self, X).shape[1])
        return self

    def transform(self, X: TableLike) -> np.ndarray:
        """The rows scaled.

        Args:
            X: a frame or an array with the columns of `fit`.
        """
        check_is_fitted(self)
        rows: np.ndarray = validate_data(self, X, reset=False, dtype=np.float64)
        low, high = self._ends(rows.shape[1])
        return (np.clip(rows, low, high) - low) / (high - low)

    def _ends(self, columns: int) -> tuple[np.ndarray, np.ndarray]:
        """The range of each column."""
        try:
            low, high = _per_column((self.low, self.high), columns)
        except (TypeError, ValueError):
            low, high = np.ones(columns), np.zeros(columns)
        if not (np.all(low < high) and np.all(np.isfinite(high - low))):
            raise ValueError(
                f"low and high must be numbers, low below high, or one for each of the {columns} "
                f"columns, got {self.low!r} and {self.high!r}"
            )
        return low, high
