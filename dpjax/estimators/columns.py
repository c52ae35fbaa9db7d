"""What scikit-learn hands to an estimator, as a table with its schema."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.utils import assert_all_finite, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data  # pyrefly: ignore

from dpjax import data
from dpjax._numerics import checks
from dpjax.data.cells import check_names
from dpjax.data.learned import class_name


class Encoded(NamedTuple):
    """Records ready to train on.

    Fields:
        features: float32 [records, features], rows of norm at most 1.
        target: class numbers, or the values of a regression.
        schema: complete: it encodes new rows.
        declared: the public part of it.
        learned: what was read off the rows, and is therefore covered by no ε.
    """

    features: np.ndarray
    target: np.ndarray
    schema: data.Schema
    declared: data.Schema
    learned: tuple[str, ...]


def new_rows(estimator: Any, X: Any) -> np.ndarray:
    """The features of rows to predict, encoded by the estimator's complete schema."""
    X = _table(X)
    if not isinstance(X, pd.DataFrame):
        numbers = validate_data(estimator, X, reset=False, ensure_all_finite=False)
        X = _frame(_finite(numbers, estimator.columns_), X, estimator.columns_)
    else:
        check_names(X.rename(columns=str))
        validate_data(estimator, X, reset=False, skip_check_array=True)
        X = X.rename(columns=str)
    return data.encode_features(X, estimator.schema_)


def training_rows(estimator: Any, X: Any, y: Any, *, classes: bool) -> Encoded:
    """The training records; the schema is completed from them where `bounds` leaves it open."""
    X = _table(X)
    if isinstance(X, pd.DataFrame):
        frame = X.rename(columns=str)
        check_names(frame)
        validate_data(estimator, X, reset=True, skip_check_array=True)
        if len(frame) == 0:
            raise ValueError("X must have at least one row, got none")
    else:
        settings = {"ensure_min_samples": 2, "ensure_all_finite": False}
        numbers = validate_data(estimator, X, reset=True, **settings)
        names = _names(estimator, numbers.shape[1])
        frame = _frame(_finite(numbers, names), X, names)
    check_target(y, classes=classes)
    target = column_or_1d(plain_booleans(y), warn=True)
    if not classes:
        target = _values(target)
    if target.dtype.kind == "f":
        assert_all_finite(target, input_name="y")
    check_consistent_length(frame, target)
    estimator.columns_ = list(frame.columns)
    declared = schema_of(estimator.bounds, frame.columns)
    name = declared.target or "target"
    while declared.target is None and name in frame.columns:
        name += "_"
    if not classes:
        declared = dataclasses.replace(declared, classes=())
    frame = frame.assign(**{name: target})
    schema, learned = data.complete_schema(frame, name, declared)
    if classes:
        if len(schema.classes or ()) < 2:
            raise ValueError(f"y must hold at least two classes, got {list(schema.classes or ())}")
        encoded = data.encode(frame, schema)
        return Encoded(encoded.features, encoded.labels, schema, declared, learned)
    return Encoded(data.encode_features(frame, schema), target, schema, declared, learned)


def check_target(y: Any, *, classes: bool) -> None:
    """Refuse what is no column of labels; scikit-learn's words would show all of it."""
    if y is None:
        raise ValueError(
            "y is missing: this estimator requires y to be passed, but the target y is None"
        )
    column = hasattr(y, "__len__") or hasattr(y, "__array__")
    if isinstance(y, str | bytes | dict | set | frozenset) or not column:
        raise ValueError(f"y must be one label a row, got {type(y).__name__}")
    checks.unmasked("y", y)
    if not classes:
        return
    try:
        check_classification_targets(y)
    except TypeError:  # labels that have no order
        kinds = sorted({type(label).__name__ for label in np.asarray(y, dtype=object).ravel()})
        raise ValueError(
            f"y must hold labels of one type, got {' and '.join(kinds)}; write all as texts"
        ) from None


def _values(target: np.ndarray) -> np.ndarray:
    """The target of a regression as floats; decimals are objects to NumPy."""
    try:
        if target.dtype.kind in "biufO":
            return target.astype(np.float64)
    except (TypeError, ValueError):
        pass
    raise ValueError(f"y must hold numbers, got {target.dtype}, such as {target[0]!r}")


def _table(X: Any) -> Any:
    """A table of polars, pyarrow or another library as pandas'; one array would be of one type.

    As floats, True would be the category "1", and two ids beyond 2^53 could be one. The refusals
    are worded here because scikit-learn's show records.
    """
    if isinstance(X, pd.DataFrame):
        return X
    if hasattr(X, "to_pandas"):
        frame = X.to_pandas()
        return frame if isinstance(frame, pd.DataFrame) else _array(X)
    return _array(X)


def _array(X: Any) -> Any:
    """What is no table, if it has rows and columns; a list keeps the type of every number."""
    checks.unmasked("X", X)
    kind = type(X).__name__
    if isinstance(X, list | tuple):
        X = np.asarray(X, dtype=object)
    elif not hasattr(X, "ndim"):
        X = np.asarray(X)
    if X.ndim == 2 and not np.iscomplexobj(X):
        return X
    if X.ndim == 2:
        found = f"{X.dtype} (Complex data not supported)"
    elif X.ndim:
        found = f"an array of shape {tuple(X.shape)}; Reshape your data"
    else:
        found = kind + _TABLE_OF.get(kind, "")
    raise ValueError(
        "X must be a table of pandas, polars or pyarrow, or an array of real numbers "
        f"[rows, columns], got {found}"
    )


_TABLE_OF = {"LazyFrame": "; X.collect() is one", "dict": "; pandas.DataFrame(X) is one"}


def _finite(numbers: np.ndarray, names: list[str]) -> np.ndarray:
    """The numbers of an array; scikit-learn's refusal says neither where nor what to do here."""
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        row, column = bad[0]
        cell = "NaN" if np.isnan(numbers[row, column]) else f"{numbers[row, column]:g}"
        raise ValueError(
            f"X must hold finite numbers, got {cell} in row {row} of column {names[column]!r} "
            f"({len(np.unique(bad[:, 0]))} such rows); drop or complete these rows"
        )
    return numbers


def _frame(numbers: np.ndarray, X: Any, names: list[str]) -> pd.DataFrame:
    """An array as a table; from an array of objects, booleans and whole numbers stay such."""
    frame = pd.DataFrame(numbers, columns=names)
    if isinstance(X, np.ndarray) and X.dtype.kind == "O":
        given = pd.DataFrame(X, columns=names).infer_objects()
        kept = [name for name in names if given[name].dtype.kind in "biu"]
        frame[kept] = given[kept]
    return frame


def _names(estimator: Any, width: int) -> list[str]:
    """The columns of an array: those of a schema that has as many, else x0, x1, …"""
    named = getattr(estimator, "feature_names_in_", None)  # of what else has named columns
    if named is not None:
        return [str(name) for name in named]
    if isinstance(estimator.bounds, data.Schema) and len(estimator.bounds.columns) == width:
        return [column.name for column in estimator.bounds.columns]
    return [f"x{number}" for number in range(width)]


def schema_of(bounds: Any, names: Any) -> data.Schema:
    """What is public: nothing, a schema, the file of one, or (low, high) of the columns."""
    if bounds is None:
        return data.Schema(())
    if isinstance(bounds, data.Schema):
        return bounds
    if isinstance(bounds, str | pathlib.Path):
        return data.read_schema(bounds)
    try:
        low, high = (
            np.broadcast_to(np.asarray(side, np.float64), (len(names),)) for side in bounds
        )
    except (TypeError, ValueError):
        raise ValueError(
            f"bounds must be a schema, the file of one, or (low, high), got {bounds!r}"
        ) from None
    sides = zip(names, low.tolist(), high.tolist(), strict=True)
    return data.Schema(tuple(data.Column(str(name), range=(a, b)) for name, a, b in sides))


def plain_booleans(y: Any) -> Any:
    """Booleans of pandas' or pyarrow's type as NumPy's; scikit-learn makes floats of them."""
    if isinstance(y, pd.api.extensions.ExtensionArray | pd.Index):
        y = pd.Series(y)
    if isinstance(y, pd.Series | pd.DataFrame):
        kinds = [y.dtype] if isinstance(y, pd.Series) else y.dtypes
        if all(map(pd.api.types.is_bool_dtype, kinds)) and not np.any(y.isna()):
            return y.to_numpy(bool)
    return y


def class_values(names: tuple[str, ...], target: Any) -> np.ndarray:
    """The classes as values of the target's own type, in the order of the class numbers.

    Names that are no such values, where a schema's aliases lead to them, stay names.
    """
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
    if kind in "Ubiuf":
        return np.asarray(names)  # as wide as the longest, which the target may not hold
    given = {class_name(value): value for value in pd.unique(target)}
    return np.asarray([given.get(name, name) for name in names], dtype=target.dtype)
