"""A trained model on disk: parameters, architecture, encoding and certificate in one folder."""

from __future__ import annotations

import hashlib
import io
import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting as acc
from dpjax.training.files import write_atomically
from dpjax.training.models import Model, built

__all__ = ["SavedModel", "load_model", "save_model"]

_FORMAT = 1
_PARAMS, _MODEL, _CERTIFICATE = "params.npz", "model.json", "certificate.json"


class SavedModel(NamedTuple):
    """What `load_model` finds.

    Fields:
        params: the parameters.
        model: `init` and `apply`; None for an architecture that was not described and not given.
        encoding: how a record becomes features, and the names of the classes; what was learned from
            private rows is marked there. None if nothing was said.
        certificate: what the parameters cost, if it was saved.

    Example:
        >>> SavedModel(params={}, model=None, encoding=None, certificate=None).params
        {}
    """

    params: Any
    model: Model | None
    encoding: dict[str, Any] | None
    certificate: acc.Certificate | None


def save_model(
    folder: str | pathlib.Path,
    params: Any,
    model: Model | None = None,
    *,
    encoding: Mapping[str, Any] | None = None,
    certificate: acc.Certificate | None = None,
) -> pathlib.Path:
    """Write everything that is needed to predict: params.npz, model.json, certificate.json.

    Each file is whole or absent. `params.npz` holds one array per parameter, by its path;
    `model.json` says what they belong to, and holds their digest.

    Args:
        folder: made if need be; it must hold no other model.
        params: a tree of arrays: dicts, lists and tuples.
        model: where it is one of `logistic`, `softmax`, `mlp`, its architecture is saved too.
        encoding: anything that JSON can hold; `dpjax.data.describe_encoding` makes one.
        certificate: the plan's, `plan.certify()`.

    Returns:
        The folder.

    Raises:
        ValueError: the folder holds another model, or params are not a tree of arrays.

    Example:
        >>> import tempfile
        >>> from dpjax.training import logistic
        >>> model = logistic(features=2)
        >>> folder = save_model(tempfile.mkdtemp(), model.init(jax.random.key(0)), model)
        >>> sorted(path.name for path in folder.iterdir())
        ['model.json', 'params.npz']
    """
    folder = pathlib.Path(folder)
    if (folder / _MODEL).exists():
        raise ValueError(f"folder must hold no other model, got {folder}")
    arrays, leaves = {}, []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        value = np.asarray(leaf)
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "params"
        name = name + "_" if name == "file" else name  # which numpy.savez takes for its own
        # NumPy's format knows no bfloat16: its bytes are stored, and its name beside them.
        known = value.dtype.kind in "biufc"
        arrays[name] = value if known else np.ascontiguousarray(value).view(f"u{value.itemsize}")
        leaves.append({"name": name, "path": _steps(path), "dtype": value.dtype.name})
    if len(arrays) != len(leaves):
        raise ValueError(f"params must have one path a leaf, got {sorted(arrays)}")
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # pyrefly: ignore
    description = {
        "format": _FORMAT,
        "architecture": None if model is None else model.architecture,
        "encoding": None if encoding is None else dict(encoding),
        "parameters": leaves,
        "sha256 of params.npz": hashlib.sha256(buffer.getvalue()).hexdigest(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / _PARAMS, buffer.getvalue())
    write_atomically(
        folder / _MODEL, json.dumps(description, indent=1, ensure_ascii=False).encode()
    )
    if certificate is not None:
        write_atomically(folder / _CERTIFICATE, certificate.to_json().encode())
    return folder


def load_model(folder: str | pathlib.Path, model: Model | None = None) -> SavedModel:
    """Read what `save_model` wrote, in any process.

    Args:
        folder: of the model.
        model: for an architecture of your own, such as a flax module; the others are rebuilt.

    Raises:
        ValueError: there is no model, a file of it is damaged, or it was written by a newer dpjax.

    Example:
        >>> import tempfile
        >>> from dpjax.training import logistic
        >>> model = logistic(features=2)
        >>> folder = save_model(tempfile.mkdtemp(), model.init(jax.random.key(0)), model)
        >>> found = load_model(folder)
        >>> found.model.apply(found.params, jnp.ones(2)).shape
        (2,)
    """
    folder = pathlib.Path(folder)
    folder = folder.parent if folder.name == _MODEL else folder
    missing = [name for name in (_MODEL, _PARAMS) if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"folder must hold a model ({_MODEL}, {_PARAMS}), got {folder}")
    try:
        description = json.loads((folder / _MODEL).read_text(encoding="utf-8"))
        form, leaves = description["format"], description["parameters"]
        digest = description["sha256 of params.npz"]
        architecture, encoding = description["architecture"], description["encoding"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{_MODEL} must be whole, got {folder / _MODEL}: {error}") from None
    if form != _FORMAT:
        raise ValueError(f"{_MODEL} must be of format {_FORMAT}, got {form}: use a newer dpjax")
    content = (folder / _PARAMS).read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(
            f"{_PARAMS} must be the file that {_MODEL} describes, got another in {folder}"
        )
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        values = [
            (leaf["path"], jnp.asarray(arrays[leaf["name"]].view(jnp.dtype(leaf["dtype"]))))
            for leaf in leaves
        ]
    if model is None and architecture is not None:
        model = built(architecture)
    certificate = None
    if (folder / _CERTIFICATE).is_file():
        certificate = acc.Certificate.from_json((folder / _CERTIFICATE).read_text(encoding="utf-8"))
    return SavedModel(_tree(values), model, encoding, certificate)


def _steps(path: Any) -> list[Any]:
    """A leaf's path in JSON: text for a key, a number for a place in a list."""
    steps = []
    for entry in path:
        if isinstance(entry, jax.tree_util.SequenceKey):
            steps.append(entry.idx)
        elif isinstance(entry, jax.tree_util.DictKey) and isinstance(entry.key, str):
            steps.append(entry.key)
        else:
            raise ValueError(f"params must be dicts with text keys, lists and tuples, got {entry}")
    return steps


def _tree(values: list[tuple[list[Any], Any]]) -> Any:
    """Dicts and lists from the leaves' paths; a tuple comes back as a list."""
    if len(values) == 1 and not values[0][0]:
        return values[0][1]
    groups: dict[Any, list[tuple[list[Any], Any]]] = {}
    for path, value in values:
        groups.setdefault(path[0], []).append((path[1:], value))
    if all(isinstance(name, int) for name in groups):
        return [_tree(groups[number]) for number in sorted(groups)]
    return {name: _tree(group) for name, group in groups.items()}
