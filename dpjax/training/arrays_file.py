"""A tree of arrays as the bytes of an NPZ file and a description in JSON, and back."""

from __future__ import annotations

import io
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_WIDEST = {"f": 8, "c": 16}  # bytes of a number that JAX knows
# Of damaged or forged files; whatever they do to NumPy, they are refused.
_DAMAGE = (
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    MemoryError,
    OverflowError,
    NotImplementedError,
    RecursionError,
    zipfile.BadZipFile,
    zlib.error,
)


class Packed(NamedTuple):
    """A tree of arrays, ready to be written.

    Fields:
        content: of the NPZ file, one array a leaf.
        leaves: of every leaf the array's name, its path in the tree and its dtype.
        empty: the path and the kind ("dict", "list", "none") of every part without a leaf.

    Example:
        >>> pack({"a": jnp.ones(2), "b": ()}).empty
        [{'path': ['b'], 'kind': 'list'}]
    """

    content: bytes
    leaves: list[dict[str, Any]]
    empty: list[dict[str, Any]]


def pack(params: Any) -> Packed:
    """The file and the description of a tree: dicts, lists and tuples of arrays.

    Raises:
        ValueError: other containers, keys that are no text, leaves that are no numbers.

    Example:
        >>> packed = pack([jnp.ones(2), None])
        >>> unpack(packed.content, packed.leaves, packed.empty)
        [Array([1., 1.], dtype=float32), None]
    """
    arrays: dict[str, np.ndarray] = {}
    leaves, empty = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params, is_leaf=_is_empty):
        if _is_empty(leaf):
            kind = "none" if leaf is None else "dict" if isinstance(leaf, Mapping) else "list"
            empty.append({"path": _steps(path), "kind": kind})
            continue
        value = _numbers(path, leaf)
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "params"
        name = name.replace("\0", "_")  # which ends a name in a ZIP file
        # numpy.savez takes the first two for its own; numpy.load reads x where x.npy is asked for.
        while name in ("file", "allow_pickle") or name in arrays or name.endswith(".npy"):
            name += "_"
        # NumPy's format knows no bfloat16: its bytes are stored, and its name beside them.
        arrays[name] = value if value.dtype.kind in "biufc" else value.view(f"u{value.itemsize}")
        leaves.append({"name": name, "path": _steps(path), "dtype": value.dtype.name})
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # pyrefly: ignore
    return Packed(buffer.getvalue(), leaves, empty)


def unpack(content: bytes, leaves: Any, empty: Any) -> Any:
    """The tree that `pack` packed; a tuple comes back as a list.

    Raises:
        ValueError: the file is no NPZ, or does not hold what the description names.

    Example:
        >>> unpack(b"", [], [])
        Traceback (most recent call last):
        ...
        ValueError: No data left in file
    """
    try:
        _check_sizes(content)
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            values = [(_place(leaf["path"]), _array(arrays, leaf)) for leaf in leaves]
        values += [(_place(part["path"]), _EMPTY[part["kind"]]()) for part in empty]
        return _tree(values)
    except _DAMAGE as error:
        raise ValueError(str(error) or type(error).__name__) from None


_EMPTY: dict[str, Any] = {"dict": dict, "list": list, "none": lambda: None}


def _is_empty(part: Any) -> bool:
    return part is None or (isinstance(part, Mapping | list | tuple) and not part)


def _numbers(path: Any, leaf: Any) -> np.ndarray:
    """A leaf as NumPy's numbers in the byte order of this machine."""
    named = hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    # A Python number is what JAX makes of it.
    plain = isinstance(leaf, bool | int | float | complex) and not isinstance(leaf, np.generic)
    value = np.asarray(None if named else jnp.asarray(leaf) if plain else leaf)
    known = value.dtype.kind == "b" or jax.dtypes.issubdtype(value.dtype, np.number)
    if not known or value.itemsize > _WIDEST.get(value.dtype.kind, 8):
        kind = leaf.dtype if hasattr(leaf, "dtype") else type(leaf).__name__
        name = jax.tree_util.keystr(path)
        raise ValueError(f"params must be a tree of arrays of numbers, got {kind} at {name!r}")
    return value.astype(value.dtype.newbyteorder("="), copy=False)


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


def _check_sizes(content: bytes) -> None:
    """Refuse a file that would grow: `pack` compresses nothing."""
    if not content.startswith(b"PK"):
        return  # NumPy says what it is
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        total = sum(entry.file_size for entry in archive.infolist())
    if total > len(content):
        raise ValueError(f"its arrays must fit into its {len(content)} bytes, got {total}")


def _array(arrays: Any, leaf: Mapping[str, Any]) -> jax.Array:
    stored, kind = arrays[leaf["name"]], jnp.dtype(leaf["dtype"])
    if stored.dtype not in (kind, np.dtype(f"u{kind.itemsize}")):
        raise ValueError(f"{leaf['name']!r} must hold {kind}, got {stored.dtype}")
    narrow = jax.dtypes.canonicalize_dtype(kind)
    if narrow != kind:
        warnings.warn(
            f"the parameter {leaf['name']!r} holds {kind}, read as {narrow}: set jax_enable_x64",
            stacklevel=4,
        )
    return jnp.asarray(stored.view(kind))


def _place(path: Any) -> list[Any]:
    """A path, if it is one."""
    if not isinstance(path, list) or not all(type(step) in (str, int) for step in path):
        raise ValueError(f"path must be a list of keys and places, got {path!r}")
    return path


def _tree(values: list[tuple[list[Any], Any]]) -> Any:
    """Dicts and lists from the leaves' paths."""
    if any(not path for path, _ in values):
        if len(values) > 1:
            raise ValueError(f"path must lead to one parameter, got {len(values)} in one place")
        return values[0][1]
    groups: dict[Any, list[tuple[list[Any], Any]]] = {}
    for path, value in values:
        groups.setdefault(path[0], []).append((path[1:], value))
    if all(isinstance(name, str) for name in groups):
        return {name: _tree(group) for name, group in groups.items()}
    if set(groups) != set(range(len(groups))):
        raise ValueError(f"a list must have places from 0 on, got {list(groups)}")
    return [_tree(groups[place]) for place in range(len(groups))]
