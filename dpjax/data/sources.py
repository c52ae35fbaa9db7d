"""Named real data sets: found in a folder or fetched from their public source, then checked.

A file the user supplies is checked by its facts (rows, columns, records per class); a file fetched
from the network also by its SHA-256, before it is kept.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import pathlib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dpjax._extras import extra
from dpjax.data.schema import Column, DataError, Schema

__all__ = ["Table", "load_table", "names"]


class Table(NamedTuple):
    """A data set as it was published: training rows, its official test rows, the target's name.

    Fields:
        schema: what the format itself makes public, such as the range of a pixel; None if nothing.

    Example:
        >>> table = load_table("digits")
        >>> len(table.train), table.test, table.target
        (1797, None, 'digit')
    """

    train: pd.DataFrame
    test: pd.DataFrame | None
    target: str
    schema: Schema | None = None


class _File(NamedTuple):
    name: str
    url: str | None = None
    sha256: str | None = None  # of the decompressed bytes


class _Source(NamedTuple):
    files: tuple[_File, ...]
    read: Callable[..., Table]
    facts: dict[str, object]


def names() -> tuple[str, ...]:
    """The data sets that `load_table` knows.

    Example:
        >>> {"digits", "adult", "mnist"} <= set(names())
        True
    """
    return tuple(_SOURCES)


def load_table(name: str, folder: str | pathlib.Path | None = None) -> Table:
    """A named data set, with its facts checked.

    Looks for its files (as published, or compressed by gzip or xz) in `folder`, `folder/name`,
    `$DPJAX_DATA`, then in the cache (`$XDG_CACHE_HOME/dpjax` or `~/.cache/dpjax`), and fetches them
    from their public source into the cache if they are in none. `digits` and `breast-cancer` come
    with scikit-learn and need no network.

    Raises:
        DataError: an unknown name, a file that differs from the published one, or none.

    Example:
        >>> load_table("digits").train.shape
        (1797, 65)
    """
    if name not in _SOURCES:
        raise DataError(f"there is no data set named {name!r}; known are {', '.join(_SOURCES)}")
    source = _SOURCES[name]
    contents, paths = [], []
    for file in source.files:
        content, path = _contents(name, file, folder)
        contents.append(content)
        paths.append(str(path))
    try:
        table = source.read(*contents)
    except (ValueError, KeyError, IndexError, zipfile.BadZipFile) as error:
        raise DataError(f"{' and '.join(paths)} is not {name} as published: {error}") from None
    _check(name, table, source.facts, paths)
    return table


def _contents(name: str, file: _File, folder) -> tuple[bytes, pathlib.Path]:
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "dpjax"
    roots = [pathlib.Path(root) for root in (folder, os.environ.get("DPJAX_DATA")) if root]
    for root in [*roots, cache]:
        for parent in (root, root / name):
            for suffix, opener in (("", open), (".gz", gzip.open), (".xz", lzma.open)):
                path = parent / (file.name + suffix)
                if path.is_file():
                    try:
                        with opener(path, "rb") as stream:
                            return stream.read(), path
                    except (OSError, EOFError, lzma.LZMAError) as error:
                        raise DataError(f"{path} does not read: {error}") from None
    if file.url is None:
        raise DataError(
            f"{name} cannot be fetched: put {file.name} into a folder and name the folder, "
            "or set DPJAX_DATA to it"
        )
    return _fetch(name, file, cache / name)


def _fetch(name: str, file: _File, folder: pathlib.Path) -> tuple[bytes, pathlib.Path]:
    assert file.url is not None
    try:
        with urllib.request.urlopen(file.url, timeout=60) as response:
            raw = response.read()
    except (urllib.error.URLError, OSError) as error:
        raise DataError(
            f"{name}: fetching {file.url} failed ({error}); download it and name its folder"
        ) from None
    suffix = ".gz" if file.url.endswith(".gz") and not file.name.endswith(".gz") else ""
    content = gzip.decompress(raw) if suffix else raw
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise DataError(f"{name}: {file.url} no longer serves the published file; nothing was kept")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (file.name + suffix)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(raw)
    os.replace(partial, path)
    return content, path


def _check(name: str, table: Table, facts: dict[str, object], paths: list[str]) -> None:
    counts = table.train[table.target].value_counts()
    found: dict[str, object] = {
        "rows": len(table.train),
        "test rows": 0 if table.test is None else len(table.test),
        "columns": table.train.shape[1],
        "classes": len(counts),
        "largest class": int(counts.max()),
    }
    for fact, expected in facts.items():
        if found[fact] != expected:
            where = " and ".join(paths) or "the bundled copy"
            raise DataError(
                f"{where} has {found[fact]} {fact} where {name} as published has {expected}: "
                "a different or damaged file"
            )


def _csv(content: bytes, columns: list[str] | None = None, **options) -> pd.DataFrame:
    return pd.read_csv(
        io.BytesIO(content), names=columns, skipinitialspace=True, keep_default_na=False, **options
    )


_ADULT = [
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    *("native-country", "income"),
]


def _adult(train: bytes, test: bytes) -> Table:
    frames = [_csv(train, _ADULT), _csv(test, _ADULT, comment="|")]
    for frame in frames:
        frame["income"] = frame["income"].str.rstrip(".")
    return Table(frames[0], frames[1], "income")


def _bank(archive: bytes) -> Table:
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        return Table(_csv(members.read("bank-full.csv"), sep=";"), None, "y")


def _idx(content: bytes) -> np.ndarray:
    rank = content[3]
    shape = np.frombuffer(content, ">i4", count=rank, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(tuple(shape))


def _images(*files: bytes) -> Table:
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


def _digits() -> Table:
    table = _bundled("load_digits", "digit")()
    return table._replace(schema=_pixels(table.train, "digit", 16))


def _vowpal(*files: bytes) -> Table:
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


def _bundled(loader: str, target: str) -> Callable[[], Table]:
    def read() -> Table:
        with extra("data"):
            import sklearn.datasets

        bunch = getattr(sklearn.datasets, loader)()
        frame = pd.DataFrame(bunch.data, columns=[str(n) for n in bunch.feature_names])
        return Table(frame.assign(**{target: bunch.target_names[bunch.target]}), None, target)

    return read


_BOSTON = [
    "CRIM",
    "ZN",
    "INDUS",
    "CHAS",
    "NOX",
    "RM",
    "AGE",
    "DIS",
    "RAD",
    "TAX",
    "PTRATIO",
    "B",
    "LSTAT",
    "MEDV",
]
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_BROWNLEE = "https://raw.githubusercontent.com/jbrownlee/Datasets/master/"


def _idx_files(base: str, *digests: str) -> tuple[_File, ...]:
    kinds = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        _File(f"{kind}-ubyte", f"{base}{kind}-ubyte.gz", digest)
        for kind, digest in zip(kinds, digests, strict=True)
    )


_SOURCES: dict[str, _Source] = {
    "digits": _Source(
        (),
        _digits,
        {"rows": 1_797, "columns": 65, "classes": 10, "largest class": 183},
    ),
    "breast-cancer": _Source(
        (),
        _bundled("load_breast_cancer", "diagnosis"),
        {"rows": 569, "columns": 31, "classes": 2, "largest class": 357},
    ),
    "adult": _Source(
        (
            _File(
                "adult.data",
                _UCI + "adult/adult.data",
                "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            ),
            _File(
                "adult.test",
                _UCI + "adult/adult.test",
                "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
            ),
        ),
        _adult,
        {"rows": 32_561, "test rows": 16_281, "columns": 15, "classes": 2, "largest class": 24_720},
    ),
    "bank": _Source(
        (
            _File(
                "bank.zip",
                _UCI + "00222/bank.zip",
                "99d7e8eb12401ed278b793984423915411ea8df099e1795f9fefe254f513fe5e",
            ),
        ),
        _bank,
        {"rows": 45_211, "columns": 17, "classes": 2, "largest class": 39_922},
    ),
    "kddcup99": _Source(
        (
            _File(
                "kddcup.data_10_percent",
                "https://ndownloader.figshare.com/files/5976042?name=kddcup.data_10_percent.gz",
                "f8c8267ebcd9c0ed1fd7d6277fe5bfff8732e9b7db8e61b873542b2a534b6f9a",
            ),
        ),
        lambda content: Table(
            _csv(content, [*(f"x{i}" for i in range(41)), "label"]), None, "label"
        ),
        {"rows": 494_021, "columns": 42, "classes": 23, "largest class": 280_790},
    ),
    "mnist": _Source(
        _idx_files(
            _MNIST,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        _images,
        {
            "rows": 60_000,
            "test rows": 10_000,
            "columns": 785,
            "classes": 10,
            "largest class": 6_742,
        },
    ),
    "fashion-mnist": _Source(
        _idx_files(
            _FASHION,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        _images,
        {
            "rows": 60_000,
            "test rows": 10_000,
            "columns": 785,
            "classes": 10,
            "largest class": 6_000,
        },
    ),
    "sonar": _Source(
        (
            _File(
                "sonar.all-data",
                _UCI + "undocumented/connectionist-bench/sonar/sonar.all-data",
                "e90434cdbf00fcf93ffa911fe447ae25606979658e60f1d32e155c3b5240234d",
            ),
        ),
        lambda content: Table(
            _csv(content, [*(f"x{i}" for i in range(60)), "label"]), None, "label"
        ),
        {"rows": 208, "columns": 61, "classes": 2, "largest class": 111},
    ),
    "boston": _Source(
        (
            _File(
                "housing.data",
                _UCI + "housing/housing.data",
                "baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a",
            ),
        ),
        lambda content: Table(
            pd.read_csv(io.BytesIO(content), names=_BOSTON, sep=r"\s+"), None, "MEDV"
        ),
        {"rows": 506, "columns": 14},
    ),
    "admission": _Source(
        (_File("Admission_Predict_Ver1.1.csv"),),
        lambda content: Table(_csv(content).rename(columns=str.strip), None, "Chance of Admit"),
        {"rows": 500, "columns": 9},
    ),
    "swedish-auto": _Source(
        (
            _File(
                "auto-insurance.csv",
                _BROWNLEE + "auto-insurance.csv",
                "d9e3760422d50a8b68176cc233c8b8889badc017f38a1551f2f4ec3efcd9ebe4",
            ),
        ),
        lambda content: Table(_csv(content, ["claims", "payment"]), None, "payment"),
        {"rows": 63, "columns": 2},
    ),
    "swedish-motor": _Source(
        (_File("SwedishMotorInsurance.csv"),),
        lambda content: Table(_csv(content), None, "Payment"),
        {"rows": 2_182, "columns": 7},
    ),
    "rcv1-vw-small": _Source(
        (_File("rcv1_small.dat"), _File("rcv1_small_test.data")),
        _vowpal,
        {"rows": 1_000, "test rows": 500, "classes": 2, "largest class": 541},
    ),
}
