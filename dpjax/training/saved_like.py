"""Trained parameters in the files of the checkpoint that they were loaded from."""

from __future__ import annotations

import json
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from dpjax import accounting as acc
from dpjax._extras import extra
from dpjax._numerics.checks import is_array, is_from_package
from dpjax._numerics.typing import Params
from dpjax.training.kernel_axes import name_leaves
from dpjax.training.saved import write_together

_CERTIFICATE = "certificate.json"
_BESIDE = (".json", ".txt", ".model", ".jinja")  # what stands beside the arrays and is no array
# A number's place is read off the values 1 to 128, which every float of 16 bits or more holds.
_BASE = 128
_FLOATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


def save_like(
    folder: str | pathlib.Path,
    params: Params,
    original: str | pathlib.Path,
    load: Callable[[pathlib.Path], PyTree],
    *,
    certificate: acc.Certificate | None = None,
) -> pathlib.Path:
    """Write parameters in the files of the checkpoint that they were loaded from.

    Files, names, shapes and dtypes stay: what reads the original (the library that trained it, such
    as transformers) reads the result. Where each number goes is found by the loader itself: it
    loads copies of the checkpoint whose numbers say where they stand. No table of names is needed,
    and what was written is loaded again and compared before it is in the folder. A loader may
    rename, transpose, cut, stack and cast; the checkpoint's dtype rounds.

    Args:
        folder: for the files; it must hold no others of their names.
        params: a tree like `load(original)`, such as `merge(fit.params["adapters"])`.
        original: a folder with `*.safetensors`. Its other files that describe a model (.json, .txt,
            .model, .jinja) are copied.
        load: from a folder to the parameters, a tree or an nnx module; called two times and once
            for every factor of 128 in the number of parameters.
        certificate: written as `certificate.json`, bound to the arrays' files.

    Returns:
        The folder.

    Raises:
        ValueError: the original holds no safetensors, the folder holds a file already, params are
            of other paths or shapes than what is loaded, one number of the checkpoint would have
            two values, or the loader changes numbers.

    Guarantee:
        Parameters that are released stay what they are: a function of them and of the original.

    Example:
        >>> import tempfile
        >>> from safetensors.numpy import load_file, save_file
        >>> original, tuned = pathlib.Path(tempfile.mkdtemp()), pathlib.Path(tempfile.mkdtemp())
        >>> save_file({"lm_head.weight": np.ones((2, 3), np.float32)}, original / "a.safetensors")
        >>> def load(folder):
        ...     return {"head": load_file(folder / "a.safetensors")["lm_head.weight"].T}
        >>> new = {"head": jnp.arange(6.0).reshape(3, 2)}
        >>> load_file(save_like(tuned, new, original, load) / "a.safetensors")
        {'lm_head.weight': array([[0., 2., 4.],
               [1., 3., 5.]], dtype=float32)}
    """
    folder, original = pathlib.Path(folder), pathlib.Path(original)
    stored, beside = _Checkpoint.read(original), _read_beside(original)
    for name in (*stored.heads, *beside, _CERTIFICATE):
        if (folder / name).exists():
            raise ValueError(f"folder must not hold {name} already, got {folder}")

    def load_copy(contents: Mapping[str, bytes]) -> dict[str, np.ndarray]:
        # In a folder of its own: a loader may map files into memory, and read them later.
        with tempfile.TemporaryDirectory() as place:
            copy = pathlib.Path(place)
            for name, content in {**beside, **contents}.items():
                (copy / name).write_bytes(content)
            return _find_arrays(load(copy))

    written = _fill(stored, _find_arrays(params), load_copy)
    found = beside | written
    if certificate is not None:
        found = {_CERTIFICATE: certificate.bind_files(written).to_json().encode()} | found
    folder.mkdir(parents=True, exist_ok=True)
    write_together({folder / name: content for name, content in found.items()})
    return folder


def _read_beside(original: pathlib.Path) -> dict[str, bytes]:
    """The files of a checkpoint that describe it."""
    return {
        path.name: path.read_bytes()
        for path in sorted(original.glob("*"))
        if path.suffix in _BESIDE and path.name != _CERTIFICATE
    }


def _fill(
    stored: _Checkpoint,
    given: Mapping[str, np.ndarray],
    load_copy: Callable[[Mapping[str, bytes]], dict[str, np.ndarray]],
) -> dict[str, bytes]:
    """The files with the given arrays where the loader takes them from."""
    before = load_copy(stored.write({}))
    _check_like(given, before)
    probes = [load_copy(stored.write(digit)) for digit in stored.number_places()]
    found = {name: _read_places(name, before, probes, stored.numbers) for name in given}
    places = {name: where for name, where in found.items() if where is not None}
    _check_loaded(before, stored.gather(stored.read_values(), places))
    values = stored.place(given, before, places)
    written = stored.write(values)
    _check_loaded(load_copy(written), stored.gather(values, places))
    return written


class _Piece(NamedTuple):
    """One array of the checkpoint, of floating-point numbers."""

    name: str
    file: str
    begin: int  # its bytes in the file's data
    end: int
    dtype: np.dtype
    first: int  # the number of its first entry among all pieces' entries

    @property
    def size(self) -> int:
        return (self.end - self.begin) // self.dtype.itemsize


def _read_header(file: str, header: bytes, first: int) -> list[_Piece]:
    """The arrays of floating-point numbers that a file's header names."""
    found = []
    for name, entry in json.loads(header).items():
        if entry.get("dtype") in _FLOATS:
            dtype = jnp.dtype(_FLOATS[entry["dtype"]])
            begin, end = entry["data_offsets"]
            found.append(_Piece(name, file, begin, end, dtype, first))
            first += found[-1].size
    return found


EntryNumbers = (
    np.ndarray
)  # of every entry of an array, its number among all entries of the checkpoint


class _Checkpoint(NamedTuple):
    """The files of a checkpoint, whose headers stay as they are."""

    heads: dict[str, bytes]
    bodies: dict[str, bytes]
    pieces: tuple[_Piece, ...]

    @classmethod
    def read(cls, folder: pathlib.Path) -> _Checkpoint:
        """Read the files of a folder."""
        heads, bodies, pieces, first = {}, {}, [], 0
        for path in sorted(folder.glob("*.safetensors")):
            content = path.read_bytes()
            cut = 8 + int.from_bytes(content[:8], "little")
            heads[path.name], bodies[path.name] = content[:cut], content[cut:]
            try:
                pieces += _read_header(path.name, content[8:cut], first)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"original must hold whole safetensors files, got {path}: {error}"
                ) from None
            first = pieces[-1].first + pieces[-1].size if pieces else 0
        if not pieces:
            raise ValueError(
                f"original must hold floating-point numbers in *.safetensors, got {folder}"
            )
        return cls(heads, bodies, tuple(pieces))

    @property
    def numbers(self) -> int:
        """How many numbers all pieces hold."""
        return self.pieces[-1].first + self.pieces[-1].size

    def read_values(self) -> dict[str, np.ndarray]:
        """The values of every piece, flat."""
        return {
            piece.name: np.frombuffer(
                self.bodies[piece.file][piece.begin : piece.end], piece.dtype
            ).copy()
            for piece in self.pieces
        }

    def write(self, values: Mapping[str, np.ndarray]) -> dict[str, bytes]:
        """The files with these values, flat, of the pieces that they are given for."""
        bodies = {name: bytearray(body) for name, body in self.bodies.items()}
        for piece in self.pieces:
            if piece.name in values:
                value = values[piece.name].astype(piece.dtype)
                bodies[piece.file][piece.begin : piece.end] = value.tobytes()
        return {name: self.heads[name] + bytes(body) for name, body in bodies.items()}

    def number_places(self) -> Iterator[dict[str, np.ndarray]]:
        """Values that say where they stand: one digit of every entry's number after the other."""
        unit = 1
        while unit == 1 or unit < self.numbers:
            yield {
                piece.name: np.arange(piece.first, piece.first + piece.size) // unit % _BASE + 1
                for piece in self.pieces
            }
            unit *= _BASE

    def place(
        self,
        given: Mapping[str, np.ndarray],
        before: Mapping[str, np.ndarray],
        places: Mapping[str, EntryNumbers],
    ) -> dict[str, np.ndarray]:
        """The pieces' values where every array is where it was loaded from."""
        values = self.read_values()
        for name, array in given.items():
            if name not in places:
                if not np.array_equal(array, before[name], equal_nan=True):
                    raise ValueError(
                        f"params must change what the checkpoint holds, got another {name}, which "
                        "load takes from elsewhere"
                    )
                continue
            for piece, own, within in self._split(places[name]):
                values[piece.name][within] = array.reshape(-1)[own].astype(piece.dtype)
        for name, where in places.items():
            for piece, own, within in self._split(where):
                wanted = given[name].reshape(-1)[own].astype(piece.dtype)
                if not np.array_equal(values[piece.name][within], wanted, equal_nan=True):
                    raise ValueError(
                        f"params must have one value for every number of the checkpoint, got two "
                        f"for one of {piece.name}, which is loaded as {name} and as another"
                    )
        return values

    def gather(
        self, values: Mapping[str, np.ndarray], places: Mapping[str, EntryNumbers]
    ) -> dict[str, np.ndarray]:
        """What is loaded from these values, as far as it comes from the checkpoint."""
        found = {}
        for name, where in places.items():
            found[name] = np.zeros(where.shape)
            for piece, own, within in self._split(where):
                found[name].reshape(-1)[own] = values[piece.name][within].astype(np.float64)
        return found

    def _split(self, places: EntryNumbers) -> Iterator[tuple[_Piece, np.ndarray, np.ndarray]]:
        """The pieces that an array comes from: which of its entries, and from where in it."""
        flat = places.reshape(-1)
        firsts = np.array([piece.first for piece in self.pieces])
        # Of pieces without entries, which begin where the next one does, the last is taken.
        owner = np.searchsorted(firsts, flat, side="right") - 1
        for number in np.unique(owner):
            own = np.flatnonzero(owner == number)
            yield self.pieces[number], own, flat[own] - firsts[number]


def _find_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """The floating-point arrays of a tree, by their paths; refuses a tree that has none."""
    if is_from_package(tree, "flax.nnx", "Module"):
        with extra("train"):
            from flax import nnx

        tree = nnx.state(tree)  # a module may be declared to be no tree, as those of tunix are
    found = {
        name: np.array(leaf)
        for name, leaf in name_leaves(tree)
        if is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)
    }
    if not found:
        raise ValueError(
            "params must hold floating-point arrays, like what load gives, got none in "
            f"{type(tree).__name__}"
        )
    return found


def _check_like(given: Mapping[str, np.ndarray], before: Mapping[str, np.ndarray]) -> None:
    """Refuse parameters that are not those that are loaded."""
    for name in sorted({*given, *before}):
        shapes = [tree[name].shape if name in tree else None for tree in (before, given)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"params must have the paths and shapes that load gives, {name} of {shapes[0]}, "
                f"got {shapes[1]}"
            )


def _read_places(
    name: str,
    before: Mapping[str, np.ndarray],
    probes: list[dict[str, np.ndarray]],
    numbers: int,
) -> EntryNumbers | None:
    """Where the entries of an array were loaded from; None where it is from elsewhere."""
    digits = [probe[name].astype(np.float64) for probe in probes]
    if all(np.array_equal(digit, before[name].astype(np.float64)) for digit in digits):
        return None
    if not all(((d >= 1) & (d <= _BASE) & (d == np.round(d))).all() for d in digits):
        raise ValueError(_WHY_NO_PLACE.format(name))
    places = np.zeros(before[name].shape, np.int64)
    for digit in reversed(digits):
        places = places * _BASE + digit.astype(np.int64) - 1
    if (places >= numbers).any():
        raise ValueError(_WHY_NO_PLACE.format(name))
    return places


_WHY_NO_PLACE = (
    "load must move numbers and change none (rename, transpose, cut, stack, cast), got others for "
    "{}: write the files by the library that trained the original"
)


def _check_loaded(loaded: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    """Refuse files from which something else is loaded than was to be written."""
    for name, array in wanted.items():
        found = loaded[name]
        if not np.array_equal(found, array.astype(found.dtype), equal_nan=True):
            raise ValueError(_WHY_NO_PLACE.format(name))
