"""Named real data sets: found in a folder or fetched from their public source, then checked.

A file the user supplies is checked by its facts (rows, columns, records per class); a file fetched
from the network also by its SHA-256, before it is kept.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import pathlib
import urllib.error
import urllib.request
import zipfile

from dpjax.data.catalogue import SOURCES, PublishedFile
from dpjax.data.errors import DataError
from dpjax.data.published import Table

__all__ = ["load_table", "names"]


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


def _contents(name: str, file: PublishedFile, folder) -> tuple[bytes, pathlib.Path]:
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


def _fetch(name: str, file: PublishedFile, folder: pathlib.Path) -> tuple[bytes, pathlib.Path]:
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
