"""Records that stay on the host, and records grouped by their users."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from dpjax._numerics import checks
from dpjax._numerics.checks import is_from_package, render
from dpjax._numerics.persons import number_persons
from dpjax._numerics.typing import Loss, Params, PRNGKey
from dpjax._numerics.warning import DpjaxWarning
from dpjax.gradients.strategies import path_name
from dpjax.training.fingerprint import array_digest

if TYPE_CHECKING:
    from jax.tree_util import KeyPath

    from dpjax.training.typing import RunData, Users

# Arrays in memory up to which a copy on the device is worth its bytes.
_ON_THE_DEVICE = 1 << 28
# Records by whose values a source is known again.
_SAMPLED = 1024
_ARRAYS = (np.ndarray, jax.Array)


@runtime_checkable
class _Source(Protocol):
    """Records that are read by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: Any, /) -> PyTree: ...


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


_INDEX = 2**31 - 1  # rows that JAX counts
_WASTE = 8  # times as many rows as records, from which padding is worth a warning


def per_user(
    loss: Loss, data: RunData, users: ArrayLike, records_per_user: int
) -> tuple[Loss, RunData]:
    """The loss and the data of a run in which a user is the unit of privacy.

    A user's example is a block of its records, padded to `records_per_user`, and its loss is the
    sum of their losses: the gradient that is clipped is the user's summed one. Everything behind it
    (clipping, sampling, noise, price) takes a user for a record. `fit(users=…)` calls it.

    Args:
        loss: `loss(params, example) -> scalar`, of one record; with a key as its third argument a
            key is split off for each.
        data: a tree of arrays with a leading axis of records, or `HostData`, of which a step loads
            the records of the users that it drew.
        users: [records], whom each record belongs to: whole numbers or texts. Texts that say one
            number, such as "17", "17.0" and "017", are one user.
        records_per_user: the most records of one user that are used, the first ones in the order of
            the data: a public number, as rounding depends on it. Memory and time grow with it; ε
            does not change.

    Returns:
        `loss(params, block)` and the blocks: the data's tree with axes [users, records_per_user],
        users in ascending order, and a mask of the rows that are records; of `HostData` they are
        `HostData` too, a record of which is a user's block.

    Raises:
        ValueError: users that are not one axis of as many entries as there are records, or are not
            whole numbers or texts; records_per_user below 1, or so large that this machine's memory
            does not hold the blocks (of `HostData`: one block).

    Guarantee:
        Each user's block is a function of that user's records alone, so that adding or removing a
        user adds or removes one example. One record whose gradient is not finite zeroes its user's.

    Example:
        >>> x = np.array([1.0, 2.0, 4.0], np.float32)
        >>> total, blocks = per_user(lambda w, x: w * x, x, ["ann", "bob", "ann"], 2)
        >>> blocks[0].tolist(), blocks[1].tolist()
        ([[1.0, 4.0], [2.0, 2.0]], [[True, True], [True, False]])
        >>> [float(total(1.0, jax.tree.map(lambda leaf: leaf[i], blocks))) for i in (0, 1)]
        [5.0, 2.0]
    """
    owned = _group_by_user(data, users, records_per_user)
    if isinstance(data, HostData):
        blocks = _UsersOnHost(data, owned)
    else:
        rows, present = owned.rows(np.arange(len(owned.counts)))  # of all users
        records = jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], data)
        blocks = records, jnp.asarray(present)

    def sum_losses(params: Params, example: tuple[PyTree[Array], Array], *key: PRNGKey) -> Array:
        records, mask = example
        keys = [jax.random.split(one, mask.shape[0]) for one in key]
        losses = jax.vmap(loss, (None, 0, *(0 for _ in keys)))(params, records, *keys)
        return jnp.sum(jnp.where(mask, losses, jnp.zeros_like(losses)))

    return sum_losses, blocks


class _UserGroups(NamedTuple):
    """Which records are whose."""

    order: np.ndarray  # the records, sorted by their users, of one user in the order of the data
    first: np.ndarray  # [users], where a user's records begin in it
    counts: np.ndarray  # [users], how many a user owns
    most: int  # how many of them are used

    def rows(self, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which records make these users' blocks, and which of them are more than padding."""
        place = np.arange(self.most)  # within a block
        present = place < self.counts[users, None]
        # Padding repeats the user's first record: what is finite stays so, nobody else's is near.
        return self.order[self.first[users, None] + np.where(present, place, 0)], present


class _UsersOnHost(HostData):
    """Users whose records stay on the host: a record of this is a user's block and its mask."""

    def __init__(self, records: HostData, owned: _UserGroups):
        self._of, self._owned, self.records = records, owned, len(owned.counts)

        def pad(like: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((owned.most, *like.shape), like.dtype)

        self.example = (
            jax.tree.map(pad, records.example),
            pad(jax.ShapeDtypeStruct((), np.dtype(bool))),
        )

    def load(self, indices: np.ndarray, slots: int, otherwise: int = 0) -> PyTree[np.ndarray]:
        """The blocks of these users, see `HostData.load`; no record is read twice."""
        users = np.asarray(indices) if len(indices) else np.array([otherwise])
        rows, present = self._owned.rows(users)
        own = np.cumsum(present).reshape(present.shape) - 1  # where a block's record is loaded
        places = np.where(present, own, own[:, :1])
        found = self._of.load(rows[present], int(present.sum()))
        slot = np.where(np.arange(slots) < len(users), np.arange(slots), 0)
        return jax.tree.map(lambda leaf: leaf[places[slot]], found), present[slot]

    def fingerprint(self, secret: bytes) -> str:
        """That of the records: whose they are is compared beside it."""
        return self._of.fingerprint(secret)


def as_user_array(users: Users) -> np.ndarray:
    """The users as an array. Of a list it holds what the list does: NumPy would join 1 and "1"."""
    return np.asarray(users, None if hasattr(users, "__array__") else object)


def _check_size(most: int, users: int, record: int) -> None:
    """Refuse blocks of more rows than JAX counts, or more bytes than the machine has memory."""
    row = record + 17  # the record; of which number it is, twice; whether it is padding
    largest = _INDEX
    if hasattr(os, "sysconf"):
        largest = min(largest, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // row)
    if most * users > largest:
        whose = "one user" if users == 1 else f"{users} users"
        raise ValueError(
            f"records_per_user must be at most {largest // users} for {whose} of {record} bytes a "
            f"record on this machine, as every user is padded to it, got {most}"
        )


def _check_data(data: RunData, users: np.ndarray) -> int:
    """Refuse data of another length than the users'; how many bytes a record has."""
    if isinstance(data, HostData):
        leaves, sizes = jax.tree.leaves(data.example), {(data.records,)}
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    else:
        leaves = jax.tree.leaves(data)
        if not all(isinstance(leaf, np.ndarray | jax.Array | np.generic) for leaf in leaves):
            raise ValueError(
                "data must be a tree of arrays where users are given, got "
                f"{sorted({type(leaf).__name__ for leaf in leaves})}"
            )
        for leaf in leaves:
            check_representable(leaf)
        sizes = {np.shape(leaf)[:1] for leaf in leaves}
        size = sum(leaf.nbytes for leaf in leaves) // max(users.size, 1)
    if users.ndim != 1 or sizes != {users.shape}:
        raise ValueError(
            f"users must name the user of each record, one axis as long as the data's, got shape "
            f"{users.shape} for data of {sorted(sizes)}"
        )
    return size


def _group_by_user(data: RunData, users: Users, most: int) -> _UserGroups:
    """Which records of the data are whose, if all of it is allowed."""
    users = as_user_array(users)
    record = _check_data(data, users)
    if users.dtype.kind not in "iuUSO":
        raise ValueError(f"users must be whole numbers or texts, got {users.dtype}")
    # Sorted beside NaN or None, which have no order, one user could become two.
    names = users.tolist() if users.dtype.kind == "O" else []
    kinds = [(k,) for k in (str, bytes) if names and isinstance(names[0], k)]
    kind = kinds[0] if kinds else (int, np.integer)
    for name in names:
        if isinstance(name, bool) or not isinstance(name, kind):
            raise ValueError(
                "users must all be whole numbers or all be texts, got "
                f"{render(names[0])} and {render(name)}"
            )
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
        raise ValueError(f"records_per_user must be a whole number of at least 1, got {most!r}")
    owner = number_persons(users)
    counts = np.bincount(owner)
    _check_size(int(most), 1 if isinstance(data, HostData) else len(counts), record)
    used, rows = int(np.minimum(counts, most).sum()), int(most) * len(counts)
    if rows > _WASTE * used:
        warnings.warn(
            f"records_per_user = {most} pads {len(counts)} users of {int(np.median(counts))} "
            f"records at the median to {rows} rows, for {used} records: a smaller one saves memory "
            "and time",
            DpjaxWarning,
            stacklevel=3,
        )
    order = np.argsort(owner, kind="stable")  # in the order of the data
    return _UserGroups(order, np.cumsum(counts) - counts, counts, int(most))
