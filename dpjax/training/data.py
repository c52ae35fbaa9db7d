"""Records that stay on the host, and records grouped by their users."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from dpjax._numerics import checks
from dpjax._numerics.checks import is_from_package
from dpjax.gradients.strategies import path_name
from dpjax.training.fingerprint import array_digest

if TYPE_CHECKING:
    from jax.tree_util import KeyPath


# Arrays in memory up to which a copy on the device is worth its bytes.
_ON_THE_DEVICE = 1 << 28
# Records by whose values a source is known again.
_SAMPLED = 1024
_ARRAYS = (np.ndarray, jax.Array)


@runtime_checkable
class _Source(Protocol):
    """Records that are read by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int | np.ndarray, /) -> PyTree: ...


# From numbers of records to a tree of arrays with a leading axis.
_Reader = Callable[[np.ndarray], PyTree[np.ndarray]]


class HostData:
    """Records on the host, read by number: `fit` loads those that a step drew, and no others.

    Over a mesh a process reads only the records of its own blocks. `fit` makes one by itself where
    its data is a memory map or arrays of more than 256 MB (both without a mesh), a table of pandas,
    polars or Arrow (a record is a dict of its columns), or any object with `__len__` and
    `__getitem__`. Where `source[array of numbers]` gives a batch equal to the records one by one,
    it is used.

    A run's folder knows the data again by its fingerprint. Of arrays in memory it covers every bit.
    Of anything else it covers shapes, dtypes, the number of records, 1,024 records that the run's
    key chooses, of a memory map the file's size and time of change, and the source's attribute
    `fingerprint`, a text, if it has one.

    Args:
        source: the records.
        population: how many they are, to tell a list of records from a list of arrays that share
            an axis of records.

    Raises:
        ValueError: a source without a length or without records by number (a stream), without
            records, or whose records are not numbers of one shape; a sparse matrix; a column of
            whole numbers with missing values.

    Example:
        >>> data = HostData([(np.ones(2), 0), (np.zeros(2), 1)])
        >>> data.records, data.example
        (2, (ShapeDtypeStruct(shape=(2,), dtype=float32), ShapeDtypeStruct(shape=(), dtype=int32)))
        >>> data.load(np.array([1]), slots=1)
        (array([[0., 0.]], dtype=float32), array([1], dtype=int32))
    """

    def __init__(self, source: object, population: int | None = None):
        source = self._source = as_arrays(source)
        self._arrays = not isinstance(source, Iterator) and _is_tree_of_arrays(source, population)
        leaves = jax.tree.leaves(source) if self._arrays else []
        if not (leaves or isinstance(source, _Source)):
            raise ValueError(
                "data must have a length and give records by number, got "
                f"{type(source).__name__}: every record must be drawn with the probability that is "
                "priced, and what a stream gives next, shuffled in a buffer or not, is drawn with "
                "no known one; write the records to a file that can be read at any place"
            )
        self.records = len(leaves[0] if leaves else source)
        if not self.records:
            raise ValueError("data must hold records, got none")
        self._read = _make_reader(source, self.records, self._arrays)  # by numbers of records

        def describe(path: KeyPath, leaf: ArrayLike):
            leaf = np.asarray(leaf)
            if not _is_numeric(leaf.dtype):
                where = f" at {path_name(path)}" if path else ""
                raise ValueError(
                    f"data must hold numbers, got {leaf.dtype}{where}: text, dates, lists and "
                    "objects are encoded first, by dpjax.data.from_frame say"
                )
            native = leaf.dtype.newbyteorder("=")
            return jax.ShapeDtypeStruct(leaf.shape[1:], jax.dtypes.canonicalize_dtype(native))

        # Record 0 tells what all are like.
        first = self._read(np.zeros(1, np.int64))
        self.example = jax.tree_util.tree_map_with_path(describe, first)

    @property
    def arrays(self) -> PyTree[Array] | None:
        """The source where it is a tree of arrays, else None."""
        return self._source if self._arrays else None

    def load(self, indices: np.ndarray, slots: int, otherwise: int = 0) -> PyTree[np.ndarray]:
        """The records of these numbers, as JAX's dtypes; empty slots repeat one of them.

        Args:
            indices: of the records, ascending or not.
            slots: the length of what is returned, at least theirs.
            otherwise: the record that fills empty slots where no number is given.

        Raises:
            ValueError: a record whose shape, structure or kind of number is not that of record 0,
                a source that has become longer or shorter, or a whole number beyond JAX's.
        """
        count, read = len(indices), max(len(indices), 1)
        if not self._arrays and len(self._source) != self.records:
            raise ValueError(f"data must keep its {self.records} records, got {len(self._source)}")
        # What an empty slot holds takes no part, but a loss should be defined there.
        found = self._read(indices if count else np.array([otherwise]))
        structure, expected = jax.tree.structure(found), jax.tree.structure(self.example)
        if structure != expected:
            raise ValueError(f"data must have records like record 0, {expected}, got {structure}")

        def pad(like: jax.ShapeDtypeStruct, leaf: np.ndarray):
            _check_count(leaf, read)
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
            checks.representable("data", leaf[:count], like.dtype)
            out = np.empty((slots, *like.shape), like.dtype)
            out[:count] = leaf[:count]
            out[count:] = leaf[:1]
            return out

        return jax.tree.map(pad, self.example, found)

    def fingerprint(self, secret: bytes) -> str:
        """A digest of the data, as the class says, that is useless to who has not the `secret`."""
        leaves = jax.tree.leaves(self._source) if self._arrays else []
        if leaves and not any(isinstance(leaf, np.memmap) for leaf in leaves):
            return array_digest(self._source, secret=secret)
        digest = hashlib.blake2b(key=secret[:64], digest_size=32)
        shapes, structure = jax.tree.flatten(self.example)
        digest.update(f"{self.records}{structure}{shapes}".encode())
        digest.update(str(getattr(self._source, "fingerprint", "")).encode())
        for leaf in leaves:
            if (file := getattr(leaf, "filename", None)) is not None:
                found = os.stat(file)
                digest.update(f"{found.st_size} {found.st_mtime_ns}".encode())
        seed = int.from_bytes(hashlib.sha256(b"records" + secret).digest()[:8])
        chosen = np.random.default_rng(seed).integers(0, self.records, _SAMPLED)
        some = np.unique(chosen) if self.records > _SAMPLED else np.arange(self.records)
        digest.update(array_digest(self.load(some, len(some)), secret=secret).encode())
        return digest.hexdigest()


def _check_count(leaf: np.ndarray, records: int) -> None:
    if leaf.shape[:1] != (records,):
        raise ValueError(
            f"data must give the {records} records it is asked for, got an array of shape "
            f"{leaf.shape}"
        )


def check_representable(leaf: np.ndarray | jax.Array, name: str = "data") -> None:
    """Refuse an array's whole numbers beyond those that JAX keeps."""
    native = leaf.dtype.newbyteorder("=")
    checks.representable(name, leaf, jax.dtypes.canonicalize_dtype(native))


def _is_numeric(dtype: np.dtype) -> bool:
    # To NumPy a time is a whole number.
    return dtype.kind == "b" or (dtype.kind != "m" and jnp.issubdtype(dtype, jnp.number))


def _is_sparse(values: object) -> bool:
    """Whether this is a sparse matrix of SciPy's, which NumPy takes for one object."""
    return any(is_from_package(values, "scipy.sparse", kind) for kind in ("sparray", "spmatrix"))


def _check_dense(name: str, values: object) -> None:
    """Refuse a sparse matrix: what it does not store is part of the records."""
    if _is_sparse(values):
        raise ValueError(
            f"{name} must be a dense array, got a scipy.sparse {type(values).__name__}: give its "
            "toarray(), or training.HostData of an object with __len__ and __getitem__ that makes "
            "one row dense at a time"
        )


def check_present(name: str, column: Any) -> None:
    """Refuse missing values in a column of pandas, polars or Arrow, except among floats (NaN)."""
    dtype = getattr(column, "dtype", getattr(column, "type", None))
    if isinstance(column, _ARRAYS) or dtype is None or isinstance(dtype, np.dtype):
        return
    if hasattr(column, "isna"):  # pandas
        floats, missing = dtype.kind == "f", bool(np.any(column.isna()))
    elif hasattr(column, "null_count"):  # polars, where it is a method, and Arrow
        floats = str(dtype) in ("Float32", "Float64", "halffloat", "float", "double")
        missing = bool(column.null_count() if callable(column.null_count) else column.null_count)
    else:
        return
    if missing and not floats:
        raise ValueError(
            f"{name} must have every value, got {dtype} with missing ones: fill them in, or leave "
            "those records out"
        )


def as_array(name: str, values: object) -> PyTree[Array]:
    """The values as an array whose every number JAX keeps; the one of a file is not read."""
    own = values.dtype if type(values) is np.ndarray else np.dtype(object)
    if own.isnative and (own.kind in "fb" or (own.kind in "iu" and own.itemsize < 8)):
        return values  # the commonest case, of which a list of records has many
    checks.unmasked(name, values)
    _check_dense(name, values)
    check_present(name, values)
    if not isinstance(values, _ARRAYS) or isinstance(values, np.ma.MaskedArray):
        try:
            values = np.asarray(values)
        except ValueError:  # NumPy's own speaks of broadcasting, or of inhomogeneous shapes
            raise ValueError(
                f"{name} must have records of one shape, got lists of several lengths: pad them to "
                "one"
            ) from None
    if not isinstance(values.dtype, np.dtype):  # keys
        return values
    if not _is_numeric(values.dtype):
        raise ValueError(
            f"{name} must be numbers, got {values.dtype}: text, dates and objects are encoded "
            "first, by dpjax.data.from_frame say"
        )
    if isinstance(values, np.memmap):  # of a file only what is drawn is read
        return values
    if values.dtype.kind == "V" and jnp.issubdtype(values.dtype, jnp.integer):
        values = values.astype(np.int8)  # from 2 or 4 bits, by which JAX picks no class
    check_representable(values, name)
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def as_arrays(data: object) -> PyTree[Array]:
    """The tree of arrays, whatever library's, as those of NumPy and JAX; all else as it is."""
    if isinstance(data, Iterator):  # which is no tree
        return data
    # One thing alone that is no array may be a table.
    kinds = _ARRAYS if jax.tree.structure(data) == jax.tree.structure(0) else object

    def convert(leaf: object):
        is_array = hasattr(leaf, "__array__") and not isinstance(leaf, np.generic)
        converted = (is_array and isinstance(leaf, kinds)) or _is_sparse(leaf)
        return as_array("data", leaf) if converted else leaf

    return jax.tree.map(convert, data)


def wrap_host_data(data: object, population: int, divided: bool = False) -> HostData | None:
    """The data as `HostData` where it is to stay on the host, None where it goes to the device."""
    if isinstance(data, HostData):
        return data
    if isinstance(data, Iterator):
        return HostData(data)  # which says why not
    if _is_tree_of_arrays(data, population):
        own = [leaf for leaf in jax.tree.leaves(data) if isinstance(leaf, np.ndarray)]
        large = sum(leaf.nbytes for leaf in own) > _ON_THE_DEVICE  # too large to copy
        stays = large or any(isinstance(leaf, np.memmap) for leaf in own)
        return HostData(data, population) if stays and not divided else None
    tree = jax.tree.structure(data) != jax.tree.structure(0)
    if tree and not (isinstance(data, list) and len(data) == population):
        return None  # arrays that do not agree about their records, or nothing at all
    return None if isinstance(data, _ARRAYS) else HostData(data, population)


def _is_tree_of_arrays(data: object, population: int | None) -> bool:
    leaves = jax.tree.leaves(data)
    if not leaves or not all(isinstance(leaf, _ARRAYS) and leaf.ndim for leaf in leaves):
        return False
    sizes = {leaf.shape[0] for leaf in leaves}
    of_records = isinstance(data, list) and len(data) == population and sizes != {population}
    return len(sizes) == 1 and not of_records


def _make_reader(source: Any, records: int, arrays: bool) -> _Reader:
    """From numbers of records to a tree of arrays with a leading axis."""
    if arrays:
        return lambda rows: jax.tree.map(lambda leaf: np.asarray(leaf[rows]), source)
    if hasattr(source, "iloc"):  # pandas, where source[...] takes columns
        if not hasattr(source, "columns"):
            check_present("data", source)
            return lambda rows: source.iloc[rows].to_numpy()
        return _make_column_reader(source, lambda rows: source.iloc[rows].items())
    if hasattr(source, "column_names") and hasattr(source, "take"):  # Arrow
        names = source.column_names
        return _make_column_reader(
            source, lambda rows: zip(names, source.take(rows).columns, strict=True)
        )
    if is_from_package(source, "polars", "DataFrame"):  # where source[0] is a frame of one row
        return _make_column_reader(
            source, lambda rows: ((column.name, column) for column in source[rows].get_columns())
        )
    if is_from_package(source, "polars", "Series"):
        check_present("data", source)

    def one_by_one(rows: np.ndarray):
        found = [source[int(row)] for row in rows]
        structures = {jax.tree.structure(record) for record in found}
        if len(structures) > 1:
            raise ValueError(
                "data must have records of one structure, lists of one length among them, got "
                f"{sorted(map(str, structures))}: pad lists to one length"
            )
        return jax.tree.map(lambda *leaves: _stack_records(leaves), *found)

    return _make_batch_reader(source) if _is_batched(source, one_by_one, records) else one_by_one


def _make_column_reader(
    source: Any, take: Callable[[np.ndarray], Iterable[tuple[str, Any]]]
) -> _Reader:
    """A reader of a table: a dict of its columns, from the table's own way to take rows."""
    if hasattr(source, "items"):  # pandas
        columns = source.items()
    else:
        columns = ((name, source[name]) for name in getattr(source, "column_names", source.columns))
    for name, column in columns:
        check_present(f"data's column {name}", column)

    def read_column(column: Any):
        # The lists of Arrow and of polars are records of one shape.
        if str(getattr(column, "type", "")).startswith(("fixed_size_list", "list")):
            return _stack_records(list(column.to_pylist()))
        if str(getattr(column, "dtype", "")).startswith("List("):
            return _stack_records(column.to_list())
        return column.to_numpy()

    return lambda rows: {str(name): read_column(column) for name, column in take(rows)}


def _make_batch_reader(source: _Source) -> _Reader:
    """A reader that asks for ascending, distinct numbers: h5py takes no others."""

    def read(rows: np.ndarray):
        asked, back = np.unique(rows, return_inverse=True)  # and where each was asked for
        found = jax.tree.map(np.asarray, source[asked])
        if np.array_equal(asked, rows):
            return found
        for leaf in jax.tree.leaves(found):
            _check_count(leaf, len(asked))
        return jax.tree.map(lambda leaf: leaf[back], found)

    return read


def _is_batched(source: _Source, one_by_one: _Reader, records: int) -> bool:
    """Whether an array of numbers gives the batch of those records, to the last bit."""
    ends = np.unique([0, records // 2, records - 1])  # three records, read both ways
    try:
        found = _make_batch_reader(source)(ends)
    except Exception:  # whatever it raises: it takes no array
        return False
    expected = one_by_one(ends)
    return jax.tree.structure(found) == jax.tree.structure(expected) and all(
        one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
        for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    )


def _stack_records(leaves: Sequence[ArrayLike]) -> np.ndarray:
    shapes = {np.shape(leaf) for leaf in leaves}
    if len(shapes) > 1:
        raise ValueError(
            f"data must have records of one shape, got {sorted(shapes)}: pad them to one"
        )
    return np.stack([np.asarray(leaf) for leaf in leaves])
