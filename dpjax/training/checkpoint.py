"""Checkpoints, the secret key beside them, and what that key is bound to.

A run is a function of its key, so the key file alone makes it resumable from the first moment on;
checkpoints only save time. One file a checkpoint: a line that says what it is, a line of JSON, the
arrays' bytes, and a message authentication code under the run's key, which tells a whole checkpoint
of this run from a damaged one and from one of another run.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import pathlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from dpjax._files import remove_partial, write_atomically
from dpjax.training.errors import CheckpointError, explained
from dpjax.training.files import Lock
from dpjax.training.fingerprint import concrete

__all__ = ["Checkpoints", "discard_key"]

_KEY_FILE = "noise_key.json"
_MAGIC = b"dpjax checkpoint 1\n"
_KEPT = 2
# Digests, and what the key was made of.
_NEVER_SHOWN = {"data", "loss", "optimiser", "mechanism's numbers", "seed"}
_NEVER_SHOWN |= {"initial parameters", "frozen parameters", "strategy's factors"}


class Checkpoints:
    """The checkpoints of one run in one folder, which it locks: each whole or absent, two kept.

    The key that decides batches and noise lies beside them in `noise_key.json`, readable by the
    owner alone, with the identity of the run it belongs to: whoever has it can subtract the noise;
    `discard_key` deletes it. The folder holds no hash of the records that could be tested without
    that key.

    Raises:
        CheckpointError: another run holds the folder, or it cannot be written.

    Example:
        >>> import tempfile
        >>> store = Checkpoints(pathlib.Path(tempfile.mkdtemp()) / "checkpoint")
        >>> key = store.bind(jax.random.key(0), lambda key: {"records": 10}, resume=False)
        >>> store.save(3, {"w": np.ones(2)})
        >>> store.latest({"w": np.zeros(2)})
        (3, {'w': array([1., 1.])})
        >>> store.close()
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = pathlib.Path(folder).absolute()
        with explained("making the folder", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(self.folder)
        self._secret: bytes | None = None

    def bind(
        self, fresh: jax.Array, identity: Callable[[jax.Array], Mapping[str, Any]], *, resume: bool
    ) -> jax.Array:
        """The run's key: the stored one when resuming, else `fresh`, stored before it is used.

        Args:
            fresh: the key of a run that begins here.
            identity: from the key to everything that has to agree for the key to be used again.
            resume: whether a stored key may be used.

        Raises:
            CheckpointError: the folder belongs to another run (the first difference is named), has
                lost its key, or the key file is damaged.

        Example:
            >>> import tempfile
            >>> store = Checkpoints(pathlib.Path(tempfile.mkdtemp()))
            >>> key = store.bind(jax.random.key(0), lambda key: {"records": 10}, resume=True)
            >>> store.bind(jax.random.key(0), lambda key: {"records": 11}, resume=True)
            Traceback (most recent call last):
            ...
            dpjax.training.errors.CheckpointError: ... its records differs (10 there, 11 here)...
            >>> store.close()
        """
        file = self.folder / _KEY_FILE
        with explained(f"reading {_KEY_FILE}", self.folder):
            remove_partial(file)  # which `discard_key` would not find, and it holds a key
            text = file.read_bytes() if file.exists() else None
            begun = text is not None or bool(self._steps())
        if begun and not resume:
            raise CheckpointError(
                f"{self.folder} holds the checkpoints of an earlier run: resume it, or choose "
                "another folder"
            )
        if text is not None:
            key, stored = _read_key(file, text)
            wanted = json.loads(json.dumps(dict(identity(key))))
            _same(self.folder, stored, wanted)
        elif begun:
            raise CheckpointError(
                f"{self.folder} has no {_KEY_FILE}: the run was finished, or the file is lost, and "
                "the remaining steps would be drawn with other noise; start a new run"
            )
        else:
            key, wanted = fresh, json.loads(json.dumps(dict(identity(fresh))))
            with explained(f"writing {_KEY_FILE}", self.folder, "nothing was begun; "):
                write_atomically(file, _key_text(key, wanted), private=True)
        self._secret = _bytes_of(key) + json.dumps(wanted, sort_keys=True).encode()
        return key

    def noted(self, what: str, now: bool) -> bool:
        """Whether this holds now or held in an earlier session of the run; written before a step.

        Raises:
            CheckpointError: the folder took no further file.

        Example:
            >>> import tempfile
            >>> store = Checkpoints(pathlib.Path(tempfile.mkdtemp()))
            >>> store.noted("stop_when", True), store.noted("stop_when", False)
            (True, True)
            >>> store.close()
        """
        file = self.folder / f"{what}.note"
        with explained(f"noting {what}", self.folder):
            if now and not file.exists():
                write_atomically(file, [b"1"], private=True)
            return file.exists()

    def save(self, step: int, state: Any) -> None:
        """Save a state; returns once it is whole on disk.

        Raises:
            CheckpointError: the folder took no further file; earlier checkpoints are untouched.

        Example:
            >>> import tempfile
            >>> store = Checkpoints(pathlib.Path(tempfile.mkdtemp()))
            >>> key = store.bind(jax.random.key(0), lambda key: {}, resume=False)
            >>> store.save(1, np.ones(2))
            >>> store.close()
        """
        arrays = [np.ascontiguousarray(concrete(leaf)) for leaf in jax.tree.leaves(state)]
        shapes = [np.shape(concrete(leaf)) for leaf in jax.tree.leaves(state)]
        header = {
            "step": int(step),
            "leaves": [
                {"dtype": a.dtype.name, "shape": list(s)}
                for a, s in zip(arrays, shapes, strict=True)
            ],
        }
        parts = [_MAGIC, json.dumps(header).encode() + b"\n"]
        parts += [array.reshape(-1).view(np.uint8).data for array in arrays]
        code = hmac.new(self._key_of_codes(), digestmod=hashlib.sha256)
        for part in parts:
            code.update(part)
        older = self._steps()
        kept = f"the checkpoint of step {older[-1]} is whole; " if older else "nothing is lost; "
        with explained(f"saving step {step}", self.folder, kept):
            write_atomically(self._path(step), [*parts, code.digest()], private=True)
            for old in [s for s in self._steps() if s < step][: -(_KEPT - 1)]:
                self._path(old).unlink(missing_ok=True)
            for partial in self.folder.glob(".*.ckpt.*"):  # of a process that was killed
                partial.unlink(missing_ok=True)

    def latest(self, like: Any) -> tuple[int, Any] | None:
        """The newest whole (step, state), or None; warns where a damaged one was passed over.

        Example:
            >>> import tempfile
            >>> store = Checkpoints(pathlib.Path(tempfile.mkdtemp()))
            >>> key = store.bind(jax.random.key(0), lambda key: {}, resume=False)
            >>> store.latest(np.ones(2)) is None
            True
            >>> store.close()
        """
        with explained("looking for checkpoints", self.folder):
            steps = self._steps()
        for step in reversed(steps):
            try:
                return step, self._load(step, like)
            except (OSError, _Damaged) as error:
                reason = getattr(error, "strerror", None) or error
                warnings.warn(
                    f"{self._path(step)} is passed over ({reason}); the run goes on from the "
                    "checkpoint before it, or from its start, to the same result",
                    stacklevel=3,
                )
        return None

    def close(self) -> None:
        """Let another run use the folder.

        Example:
            >>> import tempfile
            >>> Checkpoints(pathlib.Path(tempfile.mkdtemp())).close()
        """
        self._lock.release()

    def _key_of_codes(self) -> bytes:
        assert self._secret is not None, "bind comes first"
        return self._secret

    def _path(self, step: int) -> pathlib.Path:
        return self.folder / f"step-{step:012d}.ckpt"

    def _steps(self) -> list[int]:
        names = (path.name[5:-5] for path in self.folder.glob("step-*.ckpt"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _load(self, step: int, like: Any) -> Any:
        content = self._path(step).read_bytes()
        body, found = memoryview(content)[:-32], content[-32:]
        code = hmac.new(self._key_of_codes(), body, hashlib.sha256).digest()
        if not hmac.compare_digest(code, found) or not content.startswith(_MAGIC):
            raise _Damaged("damaged, or of another run")
        end = content.index(b"\n", len(_MAGIC)) + 1
        header = json.loads(content[len(_MAGIC) : end])
        leaves, structure = jax.tree.flatten(like)
        values, start = [], end
        for leaf, spec in zip(leaves, header["leaves"], strict=True):
            dtype, shape = np.dtype(spec["dtype"]), tuple(spec["shape"])
            count = int(np.prod(shape, dtype=np.int64))
            value = np.frombuffer(body, dtype, count, start).reshape(shape).copy()
            start += value.nbytes
            values.append(_placed(value, leaf))
        return jax.tree.unflatten(structure, values)


class _Damaged(Exception):
    pass


def discard_key(folder: pathlib.Path) -> None:
    """Delete the key of a finished run: it is needed no more, and it would undo the noise.

    Example:
        >>> import tempfile
        >>> discard_key(pathlib.Path(tempfile.mkdtemp()))  # nothing there: nothing to do
    """
    (pathlib.Path(folder) / _KEY_FILE).unlink(missing_ok=True)


def _placed(value: np.ndarray, like: Any) -> Any:
    """A stored value where and as the one it replaces was."""
    if not isinstance(like, jax.Array):
        return value
    if jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jax.numpy.asarray(value), impl=jax.random.key_impl(like))
    return jax.device_put(value, like.sharding)


def _bytes_of(key: jax.Array) -> bytes:
    return np.asarray(jax.random.key_data(key)).tobytes()


def _key_text(key: jax.Array, identity: Mapping[str, Any]) -> bytes:
    content = {
        "implementation": str(jax.random.key_impl(key)),
        "words": np.asarray(jax.random.key_data(key)).tolist(),
        "identity": identity,
    }
    return json.dumps({**content, "check": _check(content)}).encode()


def _check(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_key(file: pathlib.Path, text: bytes) -> tuple[jax.Array, dict[str, Any]]:
    try:
        content = json.loads(text)
        check = content.pop("check")
        identity = content["identity"]
        if check != _check(content):
            raise _Damaged("its check sum differs")
        words = np.asarray(content["words"], dtype=np.uint32)
        key = jax.random.wrap_key_data(jax.numpy.asarray(words), impl=content["implementation"])
    except (_Damaged, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{file} is damaged ({error}): without it the run cannot go on with its own noise; "
            "restore the file, or start a new run in another folder"
        ) from None
    return key, identity


def _same(folder: pathlib.Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in [*wanted, *(n for n in stored if n not in wanted)]:
        there, here = stored.get(name), wanted.get(name)
        if there != here:
            shown = "" if name in _NEVER_SHOWN else f" ({there} there, {here} here)"
            raise CheckpointError(
                f"the checkpoint in {folder} belongs to another run: its {name} differs{shown}; "
                "resume with the settings it began with, or choose another folder"
            )
