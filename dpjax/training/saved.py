"""A trained model on disk: parameters, architecture, encoding and certificate in one folder."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from dpjax import accounting as acc
from dpjax._files import write_atomically
from dpjax.training.arrays_file import pack, unpack
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

    Each file is whole or absent. `params.npz` holds one array per parameter, named after its path;
    `model.json` says what they belong to, and holds their digest.

    Args:
        folder: made if need be; it must hold no other model.
        params: a tree of arrays: dicts, lists and tuples; a tuple comes back as a list.
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
    if (folder / _MODEL).exists() or (folder / _CERTIFICATE).exists():
        raise ValueError(f"folder must hold no other model, got {folder}")
    packed = pack(params)
    architecture = None if model is None else model.architecture
    if model is not None and architecture is not None:
        _check_fit(params, model)
    description = {
        "format": _FORMAT,
        "architecture": architecture,
        "encoding": None if encoding is None else dict(encoding),
        "parameters": packed.leaves,
        "empty parts": packed.empty,
        "sha256 of params.npz": hashlib.sha256(packed.content).hexdigest(),
    }
    # All of it is in memory before any of it is written.
    text = json.dumps(description, indent=1, ensure_ascii=False).encode()
    folder.mkdir(parents=True, exist_ok=True)
    files = {folder / _PARAMS: packed.content}
    if certificate is not None:
        files[folder / _CERTIFICATE] = certificate.to_json().encode()
    files[folder / _MODEL] = text  # the last: no model is read without its certificate
    written: list[pathlib.Path] = []
    try:
        for path, content in files.items():
            write_atomically(path, content)
            written.append(path)
    except BaseException:  # a full disk: what is left would have the next attempt refused
        for path in written:
            path.unlink(missing_ok=True)
        raise
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
        >>> found.model.apply(found.params, np.ones(2, np.float32)).shape
        (2,)
    """
    folder = pathlib.Path(folder)
    folder = folder.parent if folder.name == _MODEL else folder
    missing = [name for name in (_MODEL, _PARAMS) if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"folder must hold a model ({_MODEL}, {_PARAMS}), got {folder}")
    description = _description(folder / _MODEL)
    content = (folder / _PARAMS).read_bytes()
    if hashlib.sha256(content).hexdigest() != description["sha256 of params.npz"]:
        raise ValueError(
            f"{_PARAMS} must be the file that {_MODEL} describes, got another in {folder}"
        )
    try:
        # Without "empty parts" it was written by a dpjax that knew none.
        params = unpack(content, description["parameters"], description.get("empty parts", []))
    except ValueError as error:
        raise ValueError(
            f"{_PARAMS} must hold the arrays that {_MODEL} names, got {folder / _PARAMS}: {error}"
        ) from None
    architecture = description["architecture"]
    if model is None and architecture is not None:
        model = built(architecture)
        _check_fit(params, model)
    certificate = None
    if (folder / _CERTIFICATE).is_file():
        certificate = acc.Certificate.from_json((folder / _CERTIFICATE).read_bytes())
    return SavedModel(params, model, description["encoding"], certificate)


def _description(path: pathlib.Path) -> dict[str, Any]:
    """What model.json says, with the keys that this version reads."""
    try:
        found = json.loads(path.read_bytes())
        if type(found) is not dict:
            raise ValueError(f"it must be a table, got {type(found).__name__}")
        form = found["format"]
        if type(form) is int and form > _FORMAT:
            raise ValueError(f"format must be {_FORMAT}, got {form}: use a newer dpjax")
        if type(form) is not int or form != _FORMAT:
            raise ValueError(f"format must be {_FORMAT}, got {form!r}")
        for name in ("architecture", "encoding", "parameters", "sha256 of params.npz"):
            found[name]
        if not isinstance(found["encoding"], dict | None):
            raise ValueError(f"encoding must be a table, got {type(found['encoding']).__name__}")
        return found
    except KeyError as error:
        raise ValueError(f"{_MODEL} must be whole, got {path}: it lacks {error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{_MODEL} must be whole, got {path}: {error}") from None


def _check_fit(params: Any, model: Model) -> None:
    """Refuse parameters of other names or shapes than the architecture's own."""

    def shapes(tree):
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {jax.tree_util.keystr(path): np.shape(leaf) for path, leaf in leaves}

    wanted = shapes(jax.eval_shape(model.init, jax.random.key(0)))
    if shapes(params) != wanted:
        raise ValueError(
            f"params must be those of the architecture {model.architecture}, of shapes {wanted}, "
            f"got {shapes(params)}"
        )
