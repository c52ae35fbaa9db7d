"""Named real data sets: found in a folder or fetched from their public source, then checked.

A file the user supplies is checked by its facts (rows, columns, records per class); a file fetched
from the network also by its SHA-256, before it is kept. Each format has one function that reads it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import lzma
import os
import pathlib
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dpjax._extras import extra
from dpjax._files import write_atomically
from dpjax.data.cells import DataError
from dpjax.data.schema import Column, Schema


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


class PublishedFile(NamedTuple):
    """One file of a data set; without an address, the user has to supply it."""

    name: str
    url: str | None = None
    sha256: str | None = None  # of the decompressed bytes


class Source(NamedTuple):
    """A data set: its files, the function that reads them, and the facts they are checked by."""

    files: tuple[PublishedFile, ...]
    read: Callable[..., Table]
    facts: dict[str, int]


# ------------------------------------------------------------------------------ formats


def _parse_csv(content: bytes, columns: list[str] | None = None, **options: Any) -> pd.DataFrame:
    return pd.read_csv(
        io.BytesIO(content), names=columns, skipinitialspace=True, keep_default_na=False, **options
    )


def _csv(target: str, columns: list[str] | None = None, **options: Any) -> Callable[..., Table]:
    """A reader of one CSV file without test rows."""

    def read(content: bytes) -> Table:
        # Some published headers have blanks at their ends.
        frame = _parse_csv(content, columns, **options).rename(columns=str.strip)
        return Table(frame, None, target)

    return read


def _read_adult(train: bytes, test: bytes) -> Table:
    frames = [_parse_csv(train, _ADULT), _parse_csv(test, _ADULT, comment="|")]
    for frame in frames:  # the test file ends its classes with a full stop
        frame["income"] = frame["income"].str.rstrip(".")
    return Table(frames[0], frames[1], "income")


def _read_bank(archive: bytes) -> Table:
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        return _csv("y", sep=";")(members.read("bank-full.csv"))


def _parse_idx(content: bytes) -> np.ndarray:
    rank = content[3]
    shape = np.frombuffer(content, ">i4", count=rank, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(tuple(shape))


def _read_images(*files: bytes) -> Table:
    parts = []
    arrays = [_parse_idx(content) for content in files]
    for pixels, labels in zip(arrays[::2], arrays[1::2], strict=True):
        flat = pixels.reshape(len(labels), -1)
        frame = pd.DataFrame(flat).add_prefix("pixel")
        frame.insert(flat.shape[1], "label", labels)
        parts.append(frame)
    return Table(parts[0], parts[1], "label", _pixel_schema(parts[0], "label", 255))


def _pixel_schema(frame: pd.DataFrame, target: str, largest: int) -> Schema:
    columns = tuple(Column(name, range=(0, largest)) for name in frame.columns if name != target)
    return Schema(columns, target=target, classes=tuple("0123456789"))


def _read_digits() -> Table:
    table = _bundled("load_digits", "digit")()
    return table._replace(schema=_pixel_schema(table.train, "digit", 16))


def _read_vowpal(*files: bytes) -> Table:
    """`label |f index:value …` rows as a sparse table of as many columns as the highest index."""
    from scipy import sparse

    lines = [content.decode().splitlines() for content in files]
    labels, rows, columns, values = [], [], [], []
    for number, line in enumerate(itertools.chain(*lines)):
        label, _, cells = line.partition("|f")
        labels.append(int(label))
        for index, value in (cell.split(":") for cell in cells.split()):
            rows.append(number)
            columns.append(int(index))
            values.append(float(value))
    matrix = sparse.csr_matrix((np.asarray(values, np.float32), (rows, columns)))
    frame = pd.DataFrame.sparse.from_spmatrix(matrix).add_prefix("x")  # pyrefly: ignore
    frame["label"] = labels
    return Table(frame.iloc[: len(lines[0])], frame.iloc[len(lines[0]) :], "label")


def _bundled(loader: str, target: str) -> Callable[[], Table]:
    """A reader of a data set that comes with scikit-learn."""

    def read() -> Table:
        with extra("data"):
            import sklearn.datasets

        bunch = getattr(sklearn.datasets, loader)()
        frame = pd.DataFrame(bunch.data, columns=[str(n) for n in bunch.feature_names])
        return Table(frame.assign(**{target: bunch.target_names[bunch.target]}), None, target)

    return read


# ------------------------------------------------------------------------------ data sets

_ADULT = [
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    *("native-country", "income"),
]
_BOSTON = [
    *("CRIM", "ZN", "INDUS", "CHAS", "NOX", "RM", "AGE", "DIS", "RAD", "TAX", "PTRATIO"),
    *("B", "LSTAT", "MEDV"),
]
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_BROWNLEE = "https://raw.githubusercontent.com/jbrownlee/Datasets/master/"
_IDX = [
    f"{part}-{kind}-ubyte.gz"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
]


def _numbered(count: int) -> list[str]:
    """Names of a table of which the publisher names no column: x0, x1, …, label."""
    return [*(f"x{number}" for number in range(count)), "label"]


def _facts(rows: int, columns: int, classes: int = 0, largest: int = 0, test: int = 0) -> dict:
    """What is checked of a table: rows, columns, and where they are known classes and test rows."""
    found = {"rows": rows, "test rows": test, "columns": columns, "classes": classes}
    return {name: n for name, n in (found | {"largest class": largest}).items() if n}


# How a data set is read, the facts it is checked by, and the addresses of its files: a name alone
# where the user has to supply the file.
_PUBLISHED: dict[str, tuple[Any, ...]] = {
    "digits": (_read_digits, _facts(1_797, 65, 10, 183)),
    "breast-cancer": (_bundled("load_breast_cancer", "diagnosis"), _facts(569, 31, 2, 357)),
    "adult": (
        _read_adult,
        _facts(32_561, 15, 2, 24_720, test=16_281),
        *(f"{_UCI}adult/adult.{part}" for part in ("data", "test")),
    ),
    "bank": (_read_bank, _facts(45_211, 17, 2, 39_922), _UCI + "00222/bank.zip"),
    "kddcup99": (
        _csv("label", _numbered(41)),
        _facts(494_021, 42, 23, 280_790),
        "https://ndownloader.figshare.com/files/5976042?name=kddcup.data_10_percent.gz",
    ),
    "mnist": (
        _read_images,
        _facts(60_000, 785, 10, 6_742, test=10_000),
        *(_MNIST + file for file in _IDX),
    ),
    "fashion-mnist": (
        _read_images,
        _facts(60_000, 785, 10, 6_000, test=10_000),
        *(_FASHION + file for file in _IDX),
    ),
    "sonar": (
        _csv("label", _numbered(60)),
        _facts(208, 61, 2, 111),
        _UCI + "undocumented/connectionist-bench/sonar/sonar.all-data",
    ),
    "boston": (_csv("MEDV", _BOSTON, sep=r"\s+"), _facts(506, 14), _UCI + "housing/housing.data"),
    "admission": (_csv("Chance of Admit"), _facts(500, 9), "Admission_Predict_Ver1.1.csv"),
    "swedish-auto": (
        _csv("payment", ["claims", "payment"]),
        _facts(63, 2),
        _BROWNLEE + "auto-insurance.csv",
    ),
    "swedish-motor": (_csv("Payment"), _facts(2_182, 7), "SwedishMotorInsurance.csv"),
    # A sparse table has as many columns as its highest index, which is no fact of interest.
    "rcv1-vw-small": (
        _read_vowpal,
        _facts(1_000, 0, 2, 541, test=500),
        *("rcv1_small.dat", "rcv1_small_test.data"),
    ),
}
# SHA-256 of the files that are fetched, decompressed, in the order of their addresses.
_DIGESTS: dict[str, tuple[str, ...]] = {
    "adult": (
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    ),
    "bank": ("99d7e8eb12401ed278b793984423915411ea8df099e1795f9fefe254f513fe5e",),
    "kddcup99": ("f8c8267ebcd9c0ed1fd7d6277fe5bfff8732e9b7db8e61b873542b2a534b6f9a",),
    "mnist": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    "fashion-mnist": (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    "sonar": ("e90434cdbf00fcf93ffa911fe447ae25606979658e60f1d32e155c3b5240234d",),
    "boston": ("baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a",),
    "swedish-auto": ("d9e3760422d50a8b68176cc233c8b8889badc017f38a1551f2f4ec3efcd9ebe4",),
}


def _list_files(addresses: Sequence[str], digests: Sequence[str]) -> tuple[PublishedFile, ...]:
    """The files at these addresses, each of the name that its address ends in."""
    names = [a.replace("?name=", "/").rpartition("/")[2].removesuffix(".gz") for a in addresses]
    if not digests:
        return tuple(map(PublishedFile, names))
    return tuple(map(PublishedFile, names, addresses, digests))


SOURCES = {
    name: Source(_list_files(addresses, _DIGESTS.get(name, ())), read, facts)
    for name, (read, facts, *addresses) in _PUBLISHED.items()
}


# ------------------------------------------------------------------------------ finding them


def names() -> tuple[str, ...]:
    """The data sets that `load_table` knows.

    Example:
        >>> {"digits", "adult", "mnist"} <= set(names())
        True
    """
    return tuple(SOURCES)


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
    if name not in SOURCES:
        raise DataError(f"there is no data set named {name!r}; known are {', '.join(SOURCES)}")
    source = SOURCES[name]
    found = [_find(name, file, folder) for file in source.files]
    places = " and ".join(str(path) for _, path in found) or "the bundled copy"
    try:
        table = source.read(*(content for content, _ in found))
    except (ValueError, KeyError, IndexError, zipfile.BadZipFile) as error:
        raise DataError(f"{places} is not {name} as published: {error}") from None
    counts = table.train[table.target].value_counts()
    shape = len(table.train), table.train.shape[1], len(counts), int(counts.max())
    # A fact that is not stated of the published file is none to be held against this one.
    actual = _facts(*shape, test=0 if table.test is None else len(table.test))
    for fact, expected in source.facts.items():
        if actual.get(fact, 0) != expected:
            raise DataError(
                f"{places} has {actual.get(fact, 0)} {fact} where {name} as published has "
                f"{expected}: a different or damaged file"
            )
    return table


def _find(
    name: str, file: PublishedFile, folder: str | os.PathLike[str] | None
) -> tuple[bytes, pathlib.Path]:
    """The decompressed bytes of a file and where they lie, fetched if they lie nowhere."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "dpjax"
    roots = [pathlib.Path(root) for root in (folder, os.environ.get("DPJAX_DATA"), cache) if root]
    openers: dict[str, Any] = {"": open, ".gz": gzip.open, ".xz": lzma.open}
    parents = [parent for root in roots for parent in (root, root / name)]
    for parent, (suffix, opener) in itertools.product(parents, openers.items()):
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
    try:
        with urllib.request.urlopen(file.url, timeout=60) as response:
            raw = response.read()
    except OSError as error:  # urllib's own errors are some
        raise DataError(
            f"{name}: fetching {file.url} failed ({error}); download it and name its folder"
        ) from None
    suffix = ".gz" if file.url.endswith(".gz") and not file.name.endswith(".gz") else ""
    content = gzip.decompress(raw) if suffix else raw
    # What is kept is believed ever after, so it is checked before.
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise DataError(f"{name}: {file.url} no longer serves the published file; nothing was kept")
    path = cache / name / (file.name + suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, raw)
    return content, path
