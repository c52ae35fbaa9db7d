"""The papers' tabular data sets, preprocessed as chen2019 §5 and yu2020 §4 did.

Categories become one-hot columns, numbers are scaled to [0, 1], rows to unit norm. The functions
read the published files from a folder that the caller names, and check the published counts.

What of this depends on the data: the category lists and the numeric ranges below were read off the
whole data set by the papers' authors, and are written down here as public constants, so that
preprocessing a row looks at no other row. Dropping incomplete rows, one-hot encoding and scaling to
unit norm act on each row alone. A real deployment has to take its lists and ranges from somewhere
that is not the data.
"""

from __future__ import annotations

import lzma
import pathlib
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments import images

NOT_COVERED = "the category lists and numeric ranges, read off the whole data set"
_ADULT_RANGES = {
    "age": (17.0, 90.0),
    "fnlwgt": (12285.0, 1490400.0),
    "education-num": (1.0, 16.0),
    "capital-gain": (0.0, 99999.0),
    "capital-loss": (0.0, 4356.0),
    "hours-per-week": (1.0, 99.0),
}
_ADULT_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "income",
)  # fmt: skip
# The columns of Lee and Kifer's file that are not 0/1 already.
_BANK_RANGES = {
    0: (18.0, 95.0),
    18: (-8019.0, 102127.0),
    23: (36.0, 391.0),
    24: (0.0, 4918.0),
    25: (1.0, 63.0),
    27: (0.0, 871.0),
    28: (0.0, 275.0),
}
_KDD_CATEGORIES = (1, 2, 3)
_KDD_TOPS = {
    0: 58329.0, 4: 693375640.0, 5: 5155468.0, 7: 3.0, 8: 3.0, 9: 30.0, 10: 5.0, 12: 884.0, 14: 2.0,
    15: 993.0, 16: 28.0, 17: 2.0, 18: 8.0, 22: 511.0, 23: 511.0, 31: 255.0, 32: 255.0,
}  # fmt: skip


class DataSet(NamedTuple):
    """A binary classification task: features [n, d] of unit norm rows, labels [n] in {0, 1}."""

    name: str
    features: np.ndarray
    labels: np.ndarray


class Split(NamedTuple):
    """Training and test rows."""

    train: DataSet
    test: DataSet


def adult(folder: str | pathlib.Path) -> DataSet:
    """Adult: 45,222 complete rows, 6 numbers and 98 one-hot columns; label 1 is `>50K` (11,208)."""
    folder = pathlib.Path(folder) / "adult"
    read = {"header": None, "names": _ADULT_COLUMNS, "skipinitialspace": True, "na_values": "?"}
    parts = [
        _read(folder / "adult.data.gz", **read),
        _read(folder / "adult.test.gz", comment="|", **read),
    ]
    table = pd.concat(parts, ignore_index=True).dropna()
    labels = table.pop("income").str.startswith(">50K").to_numpy(np.int32)
    numbers = _scaled(table, _ADULT_RANGES)
    hot = pd.get_dummies(table.drop(columns=list(_ADULT_RANGES)), dtype=np.float32)
    features = np.concatenate([numbers, hot.to_numpy()], axis=1)
    _check(folder / "adult.{data,test}.gz", features.shape, (45_222, 104), labels, 11_208)
    return DataSet("Adult", _unit(features), labels)


def bank(folder: str | pathlib.Path) -> DataSet:
    """Bank marketing: 45,211 rows, the 32 columns of Lee and Kifer's file (5,289 positive)."""
    features, labels = bank_rows(folder)
    return DataSet("Bank", _unit(features), labels)


def bank_rows(folder: str | pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """The features and labels of `bank`, columns in [0, 1], rows not normalised."""
    file = pathlib.Path(folder) / "bank" / "BANK.dat.xz"
    table = _read(file, sep=r"\s+", header=None)
    labels = table.pop(32).to_numpy(np.int32)
    rest = table.drop(columns=list(_BANK_RANGES)).to_numpy(np.float32)
    features = np.concatenate([_scaled(table, _BANK_RANGES), rest], axis=1)
    _check(file, features.shape, (45_211, 32), labels, 5_289)
    return features, labels


def kddcup99(folder: str | pathlib.Path) -> DataSet:
    """KDD Cup 1999, 10 % subset, the columns of `kddcup99_rows`; 1 is an attack."""
    features, labels = kddcup99_rows(folder)
    return DataSet("KDDCup99", _unit(features), labels)


def kddcup99_rows(folder: str | pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """494,021 rows, 38 numbers over their maxima and 80 one-hot columns, rows not normalised."""
    file = pathlib.Path(folder) / "kddcup99" / "kddcup.data_10_percent.gz"
    table = _read(file, header=None)
    labels = (table.pop(41) != "normal.").to_numpy(np.int32)
    hot = pd.get_dummies(table[list(_KDD_CATEGORIES)].astype(str), dtype=np.float32)
    tops = {c: (0.0, _KDD_TOPS.get(c, 1.0)) for c in table if c not in _KDD_CATEGORIES}
    features = np.concatenate([_scaled(table, tops), hot.to_numpy()], axis=1)
    _check(file, features.shape, (494_021, 118), labels, 396_743)
    return features, labels


def ipums_rows(folder: str | pathlib.Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """IPUMS-BR or IPUMS-US, which may not be passed on: the features and labels of one's own file.

    `<folder>/ipums/<name>.csv` separated by commas, or .dat by blanks (also .gz or .xz): one row a
    record, with or without a line of names, the 0/1 label last. Columns of text are categories and
    become one column a value, numbers are scaled to [0, 1], as in the paper: 38,000 rows × 53
    columns (BR) and 40,000 × 58 (US), label and constant counted or not. Rows are not normalised.
    Values and ranges are read off the file, which ε does not cover.
    """
    places = sorted((pathlib.Path(folder) / "ipums").glob(f"{name}.*"))
    if not places:
        raise FileNotFoundError(f"no {name}.csv or .dat in {pathlib.Path(folder) / 'ipums'}")
    file = places[0]
    sep = "," if ".csv" in file.name else r"\s+"
    table = _read(file, sep=sep, header=None, dtype=str, skipinitialspace=True)
    if table.iloc[0, -1] not in ("0", "1"):
        table = table.iloc[1:]  # the names of the columns
    if table.isna().to_numpy().any() or not set(table.iloc[:, -1]) <= {"0", "1"}:
        raise ValueError(f"{file}: the last column must be a label in {{0, 1}}, and no cell empty")
    label = table.pop(table.columns[-1]).to_numpy(np.int32)
    read = table.apply(pd.to_numeric, errors="coerce").replace([np.inf, -np.inf], np.nan)
    text = read.columns[read.isna().any()]
    # Counted before they are made: a number that does not read would be a column a value.
    found = len(table), table.shape[1] - len(text) + int(table[text].nunique().sum())
    rows, columns = {"IPUMS-BR": (38_000, 53), "IPUMS-US": (40_000, 58)}[name]
    if found[0] != rows or not columns - 2 <= found[1] <= columns:
        raise ValueError(f"{file} has {found} features; the paper's has {(rows, columns)}")
    values = read.drop(columns=text).to_numpy(np.float64)
    low, high = np.minimum(values.min(0), 0.0), np.maximum(values.max(0), 1.0)
    parts = [(values - low) / (high - low)]
    parts += [pd.get_dummies(table[column]).to_numpy(np.float64) for column in text]
    return np.concatenate(parts, axis=1).astype(np.float32), label


class Sparse(NamedTuple):
    """A binary task in LIBSVM format: features in CSR form, rows of unit norm; labels in {0, 1}."""

    name: str
    features: Any
    labels: np.ndarray


def rcv1_extract(folder: str | pathlib.Path) -> tuple[Sparse, Sparse]:
    """RCV1's small extract in Vowpal Wabbit's format: (1,000 rows, 500 rows), 47,118 columns.

    A stand-in for the LIBSVM file. Rows have unit norm as published; nothing is read off the data.
    """
    from scipy import sparse

    root = pathlib.Path(folder) / "rcv1-vw-small"
    facts = {"rcv1_small.dat": (1_000, 459), "rcv1_small_test.data": (500, 245)}
    parts = []
    for name, (rows, positives) in facts.items():
        file = root / f"{name}.xz"
        if not file.is_file():
            raise FileNotFoundError(f"no {file.name} in {root}: name the data folder by --data")
        with lzma.open(file, "rt") as stream:
            lines = [line.partition("|f") for line in stream]
        cells = [[cell.split(":") for cell in line[2].split()] for line in lines]
        ends = np.cumsum([0] + [len(row) for row in cells])
        columns = np.array([int(cell[0]) for row in cells for cell in row])
        values = np.array([float(cell[1]) for row in cells for cell in row], np.float32)
        labels = np.array([int(line[0]) > 0 for line in lines], np.int32)
        matrix = sparse.csr_matrix((values, columns, ends), shape=(len(lines), 47_118))
        _check(file, matrix.shape, (rows, 47_118), labels, positives)
        parts.append(Sparse("RCV1 (extract)", matrix, labels))
    return parts[0], parts[1]


def mnist(folder: str | pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """All 70,000 images of MNIST: (pixels [n, 784] as rows of unit norm, digits [n]).

    Nothing is read off the data: pixels have the range of their format.
    """
    every = images.load_mnist(pathlib.Path(folder))
    pixels = np.concatenate([every.images, every.test_images]).reshape(-1, 784)
    digits = np.concatenate([every.labels, every.test_labels])
    _check(
        pathlib.Path(folder) / "mnist" / "*-ubyte.gz",
        pixels.shape,
        (70_000, 784),
        digits == 1,
        6_742 + 1_135,
    )
    return _unit((pixels + 1.0) / 2.0), digits


# Features of the published files. Rows: 72,309 of real-sim; RCV1's training
# file has 20,242 and its test file 677,399, of which yu2020 takes 50,000 without saying which.
_LIBSVM = {"real-sim": 20_958, "rcv1": 47_236}


def has_libsvm(folder: str | pathlib.Path, name: str) -> bool:
    """Whether the user has put the file into the data folder."""
    return _libsvm_file(folder, name) is not None


def _libsvm_file(folder: str | pathlib.Path, name: str) -> pathlib.Path | None:
    root = pathlib.Path(folder)
    for parent in (root / name, root):
        files = [f for f in sorted(parent.glob(f"{name}*")) if f.is_file()]
        if files:
            return files[0]
    return None


def libsvm(folder: str | pathlib.Path, *, name: str) -> Sparse:
    """real-sim or RCV1 as LIBSVM publishes them (`real-sim.bz2`, `rcv1_train.binary.bz2`, …).

    The file is `<folder>/<name>/<name>*` or `<folder>/<name>*`, plain or compressed by gzip or
    bzip2. Rows are scaled to unit norm, each on its own; nothing is read off the data.
    """
    from sklearn.datasets import load_svmlight_file
    from sklearn.preprocessing import normalize

    file = _libsvm_file(folder, name)
    if file is None:
        raise FileNotFoundError(f"{name}: no file {name}* in {folder} or {folder}/{name}")
    try:
        features, labels = load_svmlight_file(
            str(file), n_features=_LIBSVM[name], dtype=np.float32, zero_based=False
        )
    except ValueError as error:
        raise ValueError(
            f"{file} is not {name} as LIBSVM publishes it, {_LIBSVM[name]} features: {error}"
        ) from None
    if set(np.unique(labels)) != {-1.0, 1.0}:
        raise ValueError(f"{file} has labels {np.unique(labels)[:5]}; {name} has -1 and 1")
    return Sparse(name, normalize(features), (labels > 0).astype(np.int32))


def split(data: DataSet, *, seed: int, train_share: float = 0.8) -> Split:
    """A random split; the seed is public."""
    order = np.random.default_rng(seed).permutation(len(data.labels))
    cut = int(train_share * len(order))
    return Split(*(_rows(data, part) for part in (order[:cut], order[cut:])))


def _rows(data: DataSet, index: np.ndarray) -> DataSet:
    return DataSet(data.name, data.features[index], data.labels[index])


def _scaled(table: pd.DataFrame, ranges: dict) -> np.ndarray:
    low, high = np.array(list(ranges.values())).T
    values = table[list(ranges)].to_numpy(np.float64)
    return np.clip((values - low) / (high - low), 0.0, 1.0).astype(np.float32)


def _unit(features: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(features.astype(np.float64), axis=1, keepdims=True)
    return (features / np.maximum(norms, 1e-30)).astype(np.float32)


def _read(file: pathlib.Path, **options) -> pd.DataFrame:
    if not file.is_file():
        raise FileNotFoundError(f"no {file.name} in {file.parent}: name the data folder by --data")
    try:
        return pd.read_csv(file, **options)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{file} does not read: {error}") from None


def _check(file: pathlib.Path, shape, expected, labels: np.ndarray, positives: int) -> None:
    found = int(labels.sum())
    if shape != expected or found != positives:
        raise ValueError(
            f"{file} has shape {shape} with {found} positives after preprocessing; the published "
            f"file {expected} with {positives}: another or a damaged file"
        )
