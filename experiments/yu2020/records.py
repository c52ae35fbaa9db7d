"""The records of yu2020 as Iyengar et al. encode them: columns over their maximum, rows as is.

A column's maximum is written down in `data_sets`, or is that of its format; a real deployment has
to take it from somewhere that is not the data.
"""

from __future__ import annotations

import math
import pathlib
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments import data_sets, images


class Task(NamedTuple):
    """Training rows, rows to choose settings on, rows to report; each (features, labels).

    Attributes:
        row_norm: no row is longer, intercept of 1 included, whatever the data.
    """

    train: tuple[np.ndarray, np.ndarray]
    choose: tuple[np.ndarray, np.ndarray]
    report: tuple[np.ndarray, np.ndarray]
    classes: int
    row_norm: float


def task(name: str, data: pathlib.Path, seed: int) -> Task:
    """80 % of the records to train, 10 % to choose settings on, 10 % to report."""
    features, labels, classes, row_norm = _SETS[name](data)
    order = np.random.default_rng(seed).permutation(len(labels))
    first, second = int(0.8 * len(order)), int(0.9 * len(order))
    parts = (order[:first], order[first:second], order[second:])
    return Task(*((features[part], labels[part]) for part in parts), classes, row_norm)


def adult(data: pathlib.Path) -> tuple[np.ndarray, np.ndarray, int, float]:
    """45,222 complete rows: 6 numbers over their maxima, 98 one-hot columns of 8 categories."""
    folder, names = data / "adult", data_sets._ADULT_COLUMNS
    read = {"header": None, "names": names, "skipinitialspace": True, "na_values": "?"}
    parts = [
        data_sets._read(folder / "adult.data.gz", **read),
        data_sets._read(folder / "adult.test.gz", comment="|", **read),
    ]
    table = pd.concat(parts, ignore_index=True).dropna()
    labels = table.pop("income").str.startswith(">50K").to_numpy(np.int32)
    tops = {name: high for name, (_, high) in data_sets._ADULT_RANGES.items()}
    numbers = table[list(tops)].to_numpy(np.float64) / np.array(list(tops.values()))
    hot = pd.get_dummies(table.drop(columns=list(tops)), dtype=np.float32)
    features = np.concatenate([np.clip(numbers, 0.0, 1.0).astype(np.float32), hot], axis=1)
    data_sets._check(folder / "adult.{data,test}.gz", features.shape, (45_222, 104), labels, 11_208)
    # Six numbers of at most 1, eight categories, the intercept.
    return features, labels, 2, math.sqrt(6 + 8 + 1)


def mnist(data: pathlib.Path) -> tuple[np.ndarray, np.ndarray, int, float]:
    """65,000 images: all but the 5,000 that are kept for validation; pixels in [0, 1]."""
    every = images.load_mnist(data)
    pixels = np.concatenate([every.images[5_000:], every.test_images]).reshape(-1, 784)
    digits = np.concatenate([every.labels[5_000:], every.test_labels])
    return (pixels + 1.0) / 2.0, digits, 10, math.sqrt(785)


def kddcup99(data: pathlib.Path) -> tuple[np.ndarray, np.ndarray, int, float]:
    """70,000 rows drawn from the 494,021 of the 10 % subset, as Iyengar et al. do; 1 is an attack.

    38 numbers over their maxima and 80 one-hot columns of 3 categories. Drawn without replacement,
    by a public seed; theirs are drawn with it, their numbers are not scaled.
    """
    features, labels = data_sets.kddcup99_rows(data)
    chosen = np.random.default_rng(0).permutation(len(labels))[:70_000]
    # 38 numbers of at most 1, three categories, the intercept.
    return features[chosen], labels[chosen], 2, math.sqrt(38 + 3 + 1)


_SETS = {"Adult": adult, "MNIST": mnist, "KDDCup99": kddcup99}
