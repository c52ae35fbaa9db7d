"""Records that stay on the host, of which a step loads only those it drew."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._numerics import checks
from dpjax.training.fingerprint import array_digest

__all__ = ["HostData"]

# Arrays in memory up to which a copy on the device is worth its bytes.
_ON_THE_DEVICE = 1 << 28
# Records by whose values a source is known again.
_SAMPLED = 1024
_ARRAYS = (np.ndarray, jax.Array)
_WHY_NO_STREAM = (
    "every record must be drawn with the probability that is priced, and what a stream gives next, "
    "shuffled in a buffer or not, is drawn with no known one; write the records to a file that can "
    "be read at any place"
)


class HostData:
    """Records on the host, read by number: `fit` loads those that a step drew, and no others.

    Over a mesh every device is given the records of its own block that were drawn, and a process
    reads no others. `fit` makes one by itself where its data is a memory map, arrays of more than
    256 MB (both without a mesh, over which arrays are divided), a pandas or Arrow table (a record
    is a dict of its columns), or any object with `__len__` and `__getitem__`, such as a list of
    records. Where `source[array of numbers]` gives a batch, equal to the records one by one, it is
    used; otherwise records are read one by one, and stacked.

    A run's folder knows the data again by its fingerprint. Of arrays in memory it covers every bit.
    Of anything else it covers shapes, dtypes, the number of records, 1,024 records that the run's
    key chooses, and of a memory map the file's size and time of change; a source that says more of
    itself has an attribute `fingerprint`, a text, which is covered too.

    Args:
        source: the records.
        population: how many they are. It tells a list of records from a list of arrays that share
            an axis of records, which any list of equally long arrays is taken for without it.

    Raises:
        ValueError: a source without a length or without records by number (a stream), without
            records, or whose records are not numbers of one shape.

    Example:
        >>> data = HostData([(np.ones(2), 0), (np.zeros(2), 1)])
        >>> data.records, data.example
        (2, (ShapeDtypeStruct(shape=(2,), dtype=float32), ShapeDtypeStruct(shape=(), dtype=int32)))
        >>> data.load(np.array([1]), slots=1)
        (array([[0., 0.]], dtype=float32), array([1], dtype=int32))
    """

    def __init__(self, source: Any, population: int | None = None):
        self._source = source
        self._arrays = not isinstance(source, Iterator) and _is_tree_of_arrays(source, population)
        if self._arrays:
            for leaf in (leaves := jax.tree.leaves(source)):
                checks.unmasked("data", leaf)
            self.records = len(leaves[0])
        elif hasattr(source, "__len__") and hasattr(source, "__getitem__"):
            self.records = len(source)
        else:
            raise ValueError(
                "data must have a length and give records by number, got "
                f"{type(source).__name__}: {_WHY_NO_STREAM}"
            )
        if not self.records:
            raise ValueError("data must hold records, got none")
        self._read = _reader(source, self.records, self._arrays)
        first = self._read(np.zeros(1, np.int64))
        self.example = jax.tree.map(_shape_of_record, first)

    def load(self, indices: np.ndarray, slots: int, otherwise: int = 0) -> Any:
        """The records of these numbers, as JAX's dtypes; empty slots repeat one of them.

        Args:
            indices: of the records, ascending or not.
            slots: the length of what is returned, at least theirs.
            otherwise: the record that fills empty slots where no number is given.

        Raises:
            ValueError: a record whose shape, structure or kind of number is not that of record 0,
                or a source that has become longer or shorter.
        """
        count = len(indices)
        if not self._arrays and len(self._source) != self.records:
            raise ValueError(f"data must keep its {self.records} records, got {len(self._source)}")
        # What an empty slot holds takes no part, but a loss should be defined there.
        found = self._read(indices if count else np.array([otherwise]))
        if jax.tree.structure(found) != jax.tree.structure(self.example):
            raise ValueError(
                f"data must have records like record 0, {jax.tree.structure(self.example)}, got "
                f"{jax.tree.structure(found)}"
            )

        def padded(like, leaf):
            if leaf.shape[:1] != (max(count, 1),):
                raise ValueError(
                    f"data must give the {max(count, 1)} records it is asked for, got an array of "
                    f"shape {leaf.shape}"
                )
            if not np.can_cast(leaf.dtype, like.dtype, "same_kind"):
                raise ValueError(
                    f"data must have records of one kind, {like.dtype} as record 0, got "
                    f"{leaf.dtype}"
                )
            if leaf.shape[1:] != like.shape:
                raise ValueError(
                    f"data must have records of one shape, {like.shape} as record 0, got "
                    f"{leaf.shape[1:]}"
                )
            out = np.empty((slots, *like.shape), like.dtype)
            out[:count] = leaf[:count]
            out[count:] = leaf[:1]
            return out

        return jax.tree.map(padded, self.example, found)

    def fingerprint(self, secret: bytes) -> str:
        """A digest that is another one where the data is, within what the class says of it.

        Args:
            secret: makes the digest useless to who does not have it.
        """
        leaves = jax.tree.leaves(self._source) if self._arrays else []
        if leaves and not any(isinstance(leaf, np.memmap) for leaf in leaves):
            return array_digest(self._source, secret=secret)
        digest = hashlib.blake2b(key=secret[:64], digest_size=32)
        shapes = [(leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(self.example)]
        structure = jax.tree.structure(self.example)
        digest.update(f"{self.records}{structure}{shapes}".encode())
        digest.update(str(getattr(self._source, "fingerprint", "")).encode())
        for leaf in leaves:
            file = getattr(leaf, "filename", None)
            if file is not None:
                found = os.stat(file)
                digest.update(f"{found.st_size} {found.st_mtime_ns}".encode())
        seed = int.from_bytes(hashlib.sha256(b"records" + secret).digest()[:8])
        chosen = np.random.default_rng(seed).integers(0, self.records, _SAMPLED)
        some = np.unique(chosen) if self.records > _SAMPLED else np.arange(self.records)
        digest.update(array_digest(self.load(some, len(some)), secret=secret).encode())
        return digest.hexdigest()


def on_host(data: Any, population: int, divided: bool = False) -> HostData | None:
    """The data as `HostData` where it is to stay on the host, None where it goes to the device.

    Args:
        data: as `fit` takes it.
        population: how many records it has.
        divided: whether arrays are divided over the devices of a mesh.
    """
    if isinstance(data, HostData):
        return data
    if isinstance(data, Iterator):
        return HostData(data)  # which says why not
    if _is_tree_of_arrays(data, population):
        if divided:
            return None
        own = [leaf for leaf in jax.tree.leaves(data) if isinstance(leaf, np.ndarray)]
        large = sum(leaf.nbytes for leaf in own) > _ON_THE_DEVICE
        mapped = any(isinstance(leaf, np.memmap) for leaf in own)
        return HostData(data, population) if large or mapped else None
    tree = jax.tree.structure(data) != jax.tree.structure(0)
    if tree and not (isinstance(data, list) and len(data) == population):
        return None  # arrays that do not agree about their records, or nothing at all
    return None if isinstance(data, _ARRAYS) else HostData(data, population)


def _is_tree_of_arrays(data: Any, population: int | None) -> bool:
    leaves = jax.tree.leaves(data)
    if not leaves or not all(isinstance(leaf, _ARRAYS) and leaf.ndim for leaf in leaves):
        return False
    sizes = {leaf.shape[0] for leaf in leaves}
    of_records = isinstance(data, list) and len(data) == population and sizes != {population}
    return len(sizes) == 1 and not of_records


def _reader(source: Any, records: int, arrays: bool) -> Callable[[np.ndarray], Any]:
    """From numbers of records to a tree of arrays with a leading axis."""
    if arrays:
        return lambda rows: jax.tree.map(lambda leaf: np.asarray(leaf[rows]), source)
    if hasattr(source, "iloc"):  # pandas, where source[...] takes columns
        return lambda rows: _columns(source.iloc[rows])
    if hasattr(source, "column_names") and hasattr(source, "take"):  # Arrow
        return lambda rows: {
            str(name): _stacked(list(column.to_pylist()))
            if str(column.type).startswith(("fixed_size_list", "list"))
            else column.to_numpy()
            for name, column in zip(source.column_names, source.take(rows).columns, strict=True)
        }

    def one_by_one(rows):
        found = [source[int(row)] for row in rows]
        structures = {jax.tree.structure(record) for record in found}
        if len(structures) > 1:
            raise ValueError(
                f"data must have records of one structure, got {sorted(map(str, structures))}"
            )
        return jax.tree.map(lambda *leaves: _stacked(leaves), *found)

    return _at_once(source) if _reads_batches(source, one_by_one, records) else one_by_one


def _at_once(source: Any) -> Callable[[np.ndarray], Any]:
    return lambda rows: jax.tree.map(np.asarray, source[rows])


def _reads_batches(source: Any, one_by_one: Callable[..., Any], records: int) -> bool:
    """Whether an array of numbers gives the batch of those records, to the last bit."""
    ends = np.unique([0, records // 2, records - 1])
    try:
        found = _at_once(source)(ends)
    except Exception:  # whatever it raises: it takes no array
        return False
    expected = one_by_one(ends)
    return jax.tree.structure(found) == jax.tree.structure(expected) and all(
        one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
        for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    )


def _columns(part: Any) -> Any:
    if not hasattr(part, "columns"):
        return part.to_numpy()
    return {str(name): part[name].to_numpy() for name in part.columns}


def _stacked(leaves: Any) -> np.ndarray:
    shapes = {np.shape(leaf) for leaf in leaves}
    if len(shapes) > 1:
        raise ValueError(f"data must have records of one shape, got {sorted(shapes)}")
    return np.stack([np.asarray(leaf) for leaf in leaves])


def _shape_of_record(leaf: Any) -> jax.ShapeDtypeStruct:
    leaf = np.asarray(leaf)
    if not (leaf.dtype == bool or jnp.issubdtype(leaf.dtype, jnp.number)):
        raise ValueError(f"data must hold numbers, got {leaf.dtype}")
    return jax.ShapeDtypeStruct(leaf.shape[1:], jax.dtypes.canonicalize_dtype(leaf.dtype))
