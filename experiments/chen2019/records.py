"""The records of chen2019: Adult as a9a, Bank, and one's own extracts of IPUMS, not normalised.

a9a is Platt's encoding of Adult (LIBSVM's a9a and a9a.t): the values of eight categories and the
bins of six numbers, 123 binary columns; with a constant it has the 124 of Table 1. The bins are
quintiles of the training file, read off all of its rows and written down here as public constants.
"""

from __future__ import annotations

import functools
import math
import pathlib
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpjax import erm
from experiments import data_sets

L2, HUBER = 1e-3, 0.5
TASKS = ("logistic", "svm")
# First values of the bins after the first one; a capital gain or loss is there or not.
_CUTS = {
    "age": (26, 33, 41, 50),
    "fnlwgt": (106_648, 158_662, 196_338, 259_873),
    "education-num": (9, 10, 11, 13),
    "capital-gain": (1,),
    "capital-loss": (1,),
    "hours-per-week": (35, 40, 41, 48),
}
# The order of the published description, which is that of a9a's columns.
_VALUES = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov "
    "Without-pay Never-worked",
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th "
    "12th Masters 1st-4th 10th Doctorate 5th-6th Preschool",
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed "
    "Married-spouse-absent Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
    "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
    "Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native-country": "United-States Cambodia England Puerto-Rico Canada Germany "
    "Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras Philippines "
    "Italy Poland Jamaica Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador "
    "Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador "
    "Trinadad&Tobago Peru Hong Holand-Netherlands",
}


class Task(NamedTuple):
    """Training rows, rows to choose settings on, rows to report; each (features, labels).

    Attributes:
        row_norm: no row is longer, intercept of 1 included, whatever the data.
    """

    train: tuple[np.ndarray, np.ndarray]
    choose: tuple[np.ndarray, np.ndarray]
    report: tuple[np.ndarray, np.ndarray]
    row_norm: float


@functools.lru_cache(maxsize=1)
def task(name: str, data: pathlib.Path, seed: int) -> Task:
    """80 % of the records to train, 10 % to choose settings on, 10 % to report."""
    features, labels, row_norm = _SETS[name](data)
    order = np.random.default_rng(seed).permutation(len(labels))
    first, second = int(0.8 * len(order)), int(0.9 * len(order))
    parts = (order[:first], order[first:second], order[second:])
    return Task(*((features[part], labels[part]) for part in parts), row_norm)


def problem(kind: str, rows: tuple[np.ndarray, np.ndarray], row_norm: float) -> erm.Problem:
    """Logistic regression or huberised SVM; rows longer than `row_norm` are cut to it."""
    if kind == "logistic":
        return erm.logistic_regression(*rows, l2=L2, feature_norm=row_norm)
    return erm.huber_svm(*rows, l2=L2, width=HUBER, feature_norm=row_norm)


def a9a(data: pathlib.Path) -> tuple[np.ndarray, np.ndarray, float]:
    """48,842 rows of 123 binary columns, a9a then a9a.t; a missing value has no column."""
    folder = data / "adult"
    read = {
        "header": None, "names": data_sets._ADULT_COLUMNS, "skipinitialspace": True,
        "na_values": "?",
    }  # fmt: skip
    parts = [
        data_sets._read(folder / "adult.data.gz", **read),
        data_sets._read(folder / "adult.test.gz", comment="|", **read),
    ]
    table = pd.concat(parts, ignore_index=True)
    labels = table.pop("income").str.startswith(">50K").to_numpy(np.int32)
    features = np.concatenate([_binary(table[name]) for name in table], axis=1)
    data_sets._check(folder / "adult.{data,test}.gz", features.shape, (48_842, 123), labels, 11_687)
    # One column of each of 14 attributes, and the intercept.
    return features, labels, math.sqrt(14 + 1)


def _binary(column: pd.Series) -> np.ndarray:
    """A column a value, or a bin."""
    name = str(column.name)
    if name in _CUTS:
        which = np.searchsorted(_CUTS[name], column.to_numpy(), side="right")
        return np.eye(len(_CUTS[name]) + 1, dtype=np.float32)[which]
    values = _VALUES[name].split()
    known = column.dropna().isin(values)
    if not known.all():
        raise ValueError(f"{name} must be one of {values}, got {column.dropna()[~known].iloc[0]!r}")
    return (column.to_numpy()[:, None] == np.array(values, object)).astype(np.float32)


def bank(data: pathlib.Path) -> tuple[np.ndarray, np.ndarray, float]:
    """45,211 rows, the 32 columns of Lee and Kifer's file over their ranges."""
    return _bounded(*data_sets.bank_rows(data))


def ipums(name: str, data: pathlib.Path) -> tuple[np.ndarray, np.ndarray, float]:
    """One's own extract, its columns in [0, 1]."""
    return _bounded(*data_sets.ipums_rows(data, name))


def _bounded(features: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    # Entries in [0, 1], and the intercept.
    return features, labels, math.sqrt(features.shape[1] + 1)


_SETS = {"a9a": a9a, "Bank": bank}
_SETS |= {name: functools.partial(ipums, name) for name in ("IPUMS-US", "IPUMS-BR")}
