"""Tables from files of arrays: NPZ and LIBSVM."""

from __future__ import annotations

import pathlib

import numpy as np
import pandas as pd

from dpjax._extras import extra
from dpjax.data.errors import DataError


def read_npz(path: pathlib.Path, target: str | None) -> pd.DataFrame:
    """One array of features, and the target's vector where the target is named."""
    with np.load(path, allow_pickle=False) as arrays:
        contents = {name: arrays[name] for name in arrays.files}
    listing = ", ".join(f"{name} {list(value.shape)}" for name, value in contents.items())
    for name, value in contents.items():
        if value.dtype.kind not in "biufUS" or (value.dtype.kind in "US" and name != target):
            raise DataError(
                f"{path}: the array {name!r} holds {value.dtype.name}; give real numbers"
                + (" (real and imaginary parts as columns)" if value.dtype.kind == "c" else "")
            )
    if target is not None and target not in contents:
        raise DataError(f"{path} has no array {target!r} for the target; it has {listing}")
    labels = contents.pop(target) if target is not None else None
    tables = [value for value in contents.values() if value.ndim >= 2]
    if labels is not None:
        tables = [value for value in tables if len(value) == len(labels)]
    if len(tables) != 1 or (labels is not None and labels.ndim != 1):
        raise DataError(
            f"{path} needs one vector for the target and one array of as many rows for the "
            f"features; it has {listing}"
        )
    features = tables[0].reshape(len(tables[0]), -1)
    frame = pd.DataFrame(features, columns=[f"x{i}" for i in range(features.shape[1])])
    if target is not None:
        frame[target] = labels
    return frame


def read_libsvm(path: pathlib.Path, target: str | None) -> pd.DataFrame:
    """Sparse rows `label index:value …`; the label becomes the column `target`."""
    with extra("data"):
        from sklearn.datasets import load_svmlight_file

    sparse, labels = load_svmlight_file(str(path))[:2]
    features = np.asarray(sparse.todense())  # pyrefly: ignore
    frame = pd.DataFrame(features, columns=[f"x{i}" for i in range(features.shape[1])])
    frame[target or "label"] = labels
    return frame
