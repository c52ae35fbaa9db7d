"""A trained model in a folder: its parameters, architecture and certificate."""

from __future__ import annotations

import hashlib
import io
import json
import pathlib
import warnings
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from dpjax import accounting as acc
from dpjax._extras import extra
from dpjax._files import write_atomically
from dpjax._numerics.checks import is_array, is_from_package, representable
from dpjax._numerics.typing import Params
from dpjax._numerics.warning import DpjaxWarning
from dpjax.training.models import Model, build_model

if TYPE_CHECKING:
    from jax.tree_util import KeyPath

_FORMAT = 2
_ARRAYS = {1: "params.npz", 2: "model.safetensors"}  # of each format
_MODEL, _CERTIFICATE = "model.json", "certificate.json"


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

    params: Params
    model: Model | None
    encoding: dict[str, Any] | None
    certificate: acc.Certificate | None


def save_model(
    folder: str | pathlib.Path,
    params: Params,
    model: Model | None = None,
    *,
    encoding: Mapping[str, Any] | None = None,
    certificate: acc.Certificate | None = None,
) -> pathlib.Path:
    """Write everything that is needed to predict, each file whole or absent.

    `model.safetensors` holds one array per parameter, named after its path, and opens in any
    library that reads safetensors; `model.json` says what they belong to and holds their digest;
    `certificate.json` is the certificate. Needs the extra `train`.

    Args:
        folder: made if need be; it must hold no other model.
        params: a tree of arrays: dicts (keys are texts, or whole numbers, as in nnx's pure dicts of
            lists), lists and tuples; a tuple comes back as a list.
        model: where it is one of `logistic`, `softmax`, `mlp`, its architecture is saved too.
        encoding: anything that JSON can hold; `dpjax.data.describe_encoding` makes one.
        certificate: the plan's, `plan.certify()`, or that of a whole `search`, which cost more than
            its plan says; written bound to the two other files.

    Returns:
        The folder.

    Raises:
        ValueError: the folder holds another model, params are not a tree of arrays, or model is a
            module itself.

    Example:
        >>> import tempfile
        >>> from dpjax.training import logistic
        >>> model = logistic(features=2)
        >>> folder = save_model(tempfile.mkdtemp(), model.init(jax.random.key(0)), model)
        >>> sorted(path.name for path in folder.iterdir())
        ['model.json', 'model.safetensors']
    """
    folder = pathlib.Path(folder)
    if (folder / _MODEL).exists() or (folder / _CERTIFICATE).exists():
        raise ValueError(f"folder must hold no other model, got {folder}")
    _check_modules(model, params)
    content, leaves, empty = _pack(params)
    architecture = None if model is None else model.architecture
    if model is not None and architecture is not None:
        _check_shapes(params, model)
    description = {
        "format": _FORMAT,
        "architecture": architecture,
        "encoding": None if encoding is None else dict(encoding),
        "parameters": leaves,
        "empty parts": empty,
        f"sha256 of {_ARRAYS[_FORMAT]}": hashlib.sha256(content).hexdigest(),
    }
    # All of it is in memory before any of it is written.
    text = json.dumps(description, indent=1, ensure_ascii=False).encode()
    folder.mkdir(parents=True, exist_ok=True)
    files = {folder / _ARRAYS[_FORMAT]: content}
    if certificate is not None:
        bound = certificate.bind_files({_ARRAYS[_FORMAT]: content, _MODEL: text})
        files[folder / _CERTIFICATE] = bound.to_json().encode()
    files[folder / _MODEL] = text  # the last: no model is read without its certificate
    write_together(files)
    return folder


def write_together(files: Mapping[pathlib.Path, bytes]) -> None:
    """Write all of these files, or none where one of them cannot be written."""
    written: list[pathlib.Path] = []
    try:
        for path, content in files.items():
            write_atomically(path, content)
            written.append(path)
    except BaseException:  # a full disk: what is left would have the next attempt refused
        for path in written:
            path.unlink(missing_ok=True)
        raise


def load_model(folder: str | pathlib.Path, model: Model | None = None) -> SavedModel:
    """Read what `save_model` wrote, in any process, also what an older dpjax wrote.

    Args:
        folder: of the model.
        model: for an architecture of your own, such as a flax module; the others are rebuilt.

    Raises:
        ValueError: there is no model, a file of it is damaged, or it was written by a newer dpjax.
        CertificateError: the certificate in the folder names other files than this model's, was
            changed after it was made, or contradicts itself.

    Example:
        >>> import tempfile
        >>> from dpjax.training import logistic
        >>> model = logistic(features=2)
        >>> folder = save_model(tempfile.mkdtemp(), model.init(jax.random.key(0)), model)
        >>> found = load_model(folder)
        >>> found.model.apply(found.params, np.ones(2, np.float32)).shape
        (2,)
    """
    _check_modules(model)
    folder = pathlib.Path(folder)
    folder = folder.parent if folder.name == _MODEL else folder
    found = _read_description(folder / _MODEL) if (folder / _MODEL).is_file() else None
    file = folder / _ARRAYS[found["format"] if found else _FORMAT]
    if found is None or not file.is_file():
        raise ValueError(f"folder must hold a model ({_MODEL}, {file.name}), got {folder}")
    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != found[f"sha256 of {file.name}"]:
        raise ValueError(
            f"{file.name} must be the file that {_MODEL} describes, got another in {folder}"
        )
    try:
        params = _unpack(content, found)
    except (ImportError, Warning):  # without safetensors, or of numbers wider than JAX's here
        raise
    except Exception as error:  # a damaged or forged file, whatever it does to the libraries
        why = str(error) or type(error).__name__
        raise ValueError(
            f"{file.name} must hold the arrays that {_MODEL} names, got {file}: {why}"
        ) from None
    architecture = found["architecture"]
    if model is None and architecture is not None:
        model = build_model(architecture)  # of this package
        _check_shapes(params, model)
    certificate = None
    if (folder / _CERTIFICATE).is_file():
        certificate = acc.Certificate.from_json((folder / _CERTIFICATE).read_bytes())
        files = {_MODEL, file.name}
        if certificate.subject and not files <= set(certificate.subject):
            names = ", ".join(sorted(certificate.subject))
            raise acc.CertificateError(
                "subject", f"must name {' and '.join(sorted(files))}, got {names}: it is of another"
            )
        certificate.check_files(folder)
    return SavedModel(params, model, found["encoding"], certificate)


def _read_description(path: pathlib.Path) -> dict[str, Any]:
    """What model.json says, with the keys that this version reads."""
    try:
        found = json.loads(path.read_bytes())
        if type(found) is not dict:
            raise ValueError(f"it must be a table, got {type(found).__name__}")
        form = found["format"]
        if type(form) is not int or form not in _ARRAYS:
            newer = ": use a newer dpjax" if type(form) is int and form > _FORMAT else ""
            raise ValueError(f"format must be {_FORMAT}, got {form!r}{newer}")
        for name in ("architecture", "encoding", "parameters", f"sha256 of {_ARRAYS[form]}"):
            found[name]
        if not isinstance(found["encoding"], dict | None):
            raise ValueError(f"encoding must be a table, got {type(found['encoding']).__name__}")
        return found
    except (KeyError, ValueError, RecursionError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{_MODEL} must be whole, got {path}: {why}") from None


def _check_modules(model: object, params: Params = None) -> None:
    """Refuse a module itself as model or parameters, with what to give of it."""
    if not isinstance(model, Model | None):
        raise ValueError(
            f"model must be a Model, as from_nnx(make) or from_linen(module, example) makes, got "
            f"{type(model).__name__}: leave it out for a module of your own"
        )
    ways = {
        ("flax.linen", "Module"): 'module.init(key, features)["params"]',
        ("flax.nnx", "Module"): "nnx.to_pure_dict(nnx.state(module, nnx.Param))",
        ("flax.nnx", "State"): "nnx.to_pure_dict(state)",
        ("equinox", "Module"): "jax.tree.leaves(equinox.filter(module, equinox.is_array))",
    }
    for kind, way in ways.items():
        if is_from_package(params, *kind):
            raise ValueError(
                f"params must be a tree of dicts, lists and tuples of arrays, got a {kind[1]} of "
                f"{kind[0]}: give {way}"
            )


def _check_shapes(params: Params, model: Model) -> None:
    """Refuse parameters of other names or shapes than the architecture's own."""

    def shapes(tree: PyTree):
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {jax.tree_util.keystr(path): np.shape(leaf) for path, leaf in leaves}

    wanted = shapes(jax.eval_shape(model.init, jax.random.key(0)))
    if shapes(params) != wanted:
        raise ValueError(
            f"params must be those of the architecture {model.architecture}, of shapes {wanted}, "
            f"got {shapes(params)}"
        )


_WIDEST = {"f": 8, "c": 16}  # bytes of a number that JAX knows
# What safetensors calls NumPy's dtypes; any other, such as complex128, is stored as its bytes.
_CODES = {"bool": "BOOL", "bfloat16": "BF16"} | {
    f"{kind}{bits}": f"{kind[0].upper()}{bits}"
    for kind in ("int", "uint", "float")
    for bits in (8, 16, 32, 64)
}
_EMPTY: dict[str, Any] = {"dict": dict, "list": list, "none": lambda: None}


class _StoredArray(TypedDict):
    """What model.json says of an array."""

    name: str
    path: list[str | int | dict[str, int]]
    dtype: str
    shape: tuple[int, ...]


class _EmptyPart(TypedDict):
    """What model.json says of a part of the tree without arrays."""

    path: list[str | int | dict[str, int]]
    kind: str


def _pack(params: Params) -> tuple[bytes, list[_StoredArray], list[_EmptyPart]]:
    """The file of a tree's arrays, what model.json says of each, and the kinds of empty parts."""
    arrays: dict[str, np.ndarray] = {}
    leaves: list[_StoredArray] = []
    empty: list[_EmptyPart] = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params, is_leaf=_is_empty):
        if _is_empty(leaf):
            kind = "none" if leaf is None else "dict" if isinstance(leaf, Mapping) else "list"
            empty.append(_EmptyPart(path=_path_as_json(path), kind=kind))
            continue
        value = _as_numbers(path, leaf)
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "params"
        while name == "__metadata__" or name in arrays:  # the first is the format's own
            name += "_"
        own = value.dtype.name in _CODES
        arrays[name] = value if own else np.frombuffer(value.tobytes(), np.uint8)
        where, dtype = _path_as_json(path), value.dtype.name
        leaves.append(_StoredArray(name=name, path=where, dtype=dtype, shape=value.shape))
    with extra("train"):
        from safetensors.numpy import save
    return save(arrays), leaves, empty


def _unpack(content: bytes, found: Mapping[str, Any]) -> PyTree:
    """The tree that was packed; a tuple comes back as a list."""
    if found["format"] == 1:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            total = sum(entry.file_size for entry in archive.infolist())
        # Nothing in it was compressed: a file that would grow is not ours.
        if total > len(content):
            raise ValueError(f"its arrays must fit into its {len(content)} bytes, got {total}")
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = {n: _Stored(x.dtype.name, x.shape, x.tobytes()) for n, x in stored.items()}
    else:
        with extra("train"):
            from safetensors import deserialize
        parts = deserialize(content)
        arrays = {n: _Stored(part["dtype"], part["shape"], part["data"]) for n, part in parts}
    values = [(leaf["path"], _read_array(arrays, leaf)) for leaf in found["parameters"]]
    # Without "empty parts" it was written by a dpjax that knew none.
    values += [(part["path"], _EMPTY[part["kind"]]()) for part in found.get("empty parts", [])]
    return _build_tree([(_read_path(path), value) for path, value in values])


class _Stored(NamedTuple):
    """An array as a file holds it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def _read_array(arrays: Mapping[str, _Stored], leaf: Mapping[str, Any]) -> jax.Array:
    """The array that an entry of model.json names, if it is of that dtype and shape."""
    (held, shape, data), kind = arrays[leaf["name"]], jnp.dtype(leaf["dtype"])
    # A format holds the bytes of what it does not know, the first one as unsigned numbers as wide.
    if held not in (kind.name, _CODES.get(kind.name), "U8", "uint8", f"uint{8 * kind.itemsize}"):
        raise ValueError(f"{leaf['name']!r} must hold {kind}, got {held}")
    stored = np.frombuffer(data, kind).reshape(leaf.get("shape", shape))
    narrow = jax.dtypes.canonicalize_dtype(kind)  # as JAX holds it here
    representable(repr(leaf["name"]), stored, narrow)
    if narrow != kind:
        warnings.warn(
            f"the parameter {leaf['name']!r} holds {kind}, read as {narrow}: set jax_enable_x64",
            DpjaxWarning,
            stacklevel=4,
        )
    return jnp.asarray(stored)


def _is_empty(part: object) -> bool:
    return part is None or (isinstance(part, Mapping | list | tuple) and not part)


def _as_numbers(path: KeyPath, leaf: object) -> np.ndarray:
    """A leaf as NumPy's numbers in the byte order of this machine."""
    named = is_array(leaf) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    # A Python number is what JAX makes of it.
    plain = isinstance(leaf, bool | int | float | complex) and not isinstance(leaf, np.generic)
    value = np.asarray(None if named else jnp.asarray(leaf) if plain else leaf)
    known = value.dtype.kind == "b" or jax.dtypes.issubdtype(value.dtype, np.number)
    if not known or value.itemsize > _WIDEST.get(value.dtype.kind, 8):
        kind = leaf.dtype if is_array(leaf) else type(leaf).__name__
        name = jax.tree_util.keystr(path)
        raise ValueError(f"params must be a tree of arrays of numbers, got {kind} at {name!r}")
    # safetensors takes the memory as it lies: in rows, and in this machine's byte order.
    return value.astype(value.dtype.newbyteorder("="), order="C", copy=False)


class _NumberKey(NamedTuple):
    """A whole number that is the key of a dict, and no place in a list."""

    key: int


def _path_as_json(path: KeyPath) -> list[str | int | dict[str, int]]:
    """A leaf's path in JSON: text for a key, {"key": number} for another, a number for a place."""
    found: list[str | int | dict[str, int]] = []
    for entry in path:
        step = getattr(entry, "key", None)
        if isinstance(entry, jax.tree_util.SequenceKey):
            found.append(entry.idx)
        elif isinstance(step, str):
            found.append(step)
        elif type(step) is int:
            found.append(_NumberKey(step)._asdict())
        else:
            raise ValueError(
                "params must be dicts whose keys are texts or whole numbers, lists and tuples, got "
                f"{entry}"
            )
    return found


def _read_path(path: object) -> list[str | int | _NumberKey]:
    """A path as `_path_as_json` wrote it."""
    steps = path if isinstance(path, list) else [None]
    found = [
        _NumberKey(step["key"])
        if isinstance(step, dict) and step.keys() == {"key"} and type(step["key"]) is int
        else step
        for step in steps
    ]
    if not all(type(step) in (str, int, _NumberKey) for step in found):
        raise ValueError(f"path must be a list of keys and places, got {path!r}")
    return found


def _build_tree(values: list[tuple[list[Any], Any]]) -> PyTree:
    """Dicts and lists from the leaves' paths."""
    if any(not path for path, _ in values):
        if len(values) > 1:
            raise ValueError(f"path must lead to one parameter, got {len(values)} in one place")
        return values[0][1]
    groups: dict[Any, list[tuple[list[Any], Any]]] = {}
    for path, value in values:
        groups.setdefault(path[0], []).append((path[1:], value))  # by their first step
    if all(isinstance(name, str) for name in groups):
        return {name: _build_tree(group) for name, group in groups.items()}
    if all(isinstance(name, _NumberKey) for name in groups):
        return {name.key: _build_tree(group) for name, group in groups.items()}
    if set(groups) != set(range(len(groups))):
        raise ValueError(f"a list must have places from 0 on, got {list(groups)}")
    return [_build_tree(groups[place]) for place in range(len(groups))]
