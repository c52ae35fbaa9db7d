"""Checkpoints by orbax, the secret key beside them, and the identity of the run they belong to."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import pathlib
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from dpjax._extras import extra

__all__ = ["CheckpointError", "Checkpoints", "discard_key", "write_atomically"]

_KEY_FILE = "noise_key.json"


class CheckpointError(ValueError):
    """A checkpoint that cannot be continued; the message says why and what to do.

    Example:
        >>> raise CheckpointError("of another run")
        Traceback (most recent call last):
        ...
        dpjax.training.checkpoint.CheckpointError: of another run
    """


def write_atomically(path: pathlib.Path, content: bytes, *, private: bool = False) -> None:
    """Write a file so that a crash leaves the old content or the new one, nothing in between.

    Example:
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
        >>> write_atomically(path, b"whole")
        >>> path.read_text()
        'whole'
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if not private:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        pathlib.Path(name).unlink(missing_ok=True)
        raise


class Checkpoints:
    """The checkpoints of one run in one folder: atomic, the last two kept.

    The key that decides batches and noise lies beside them in `noise_key.json`, readable by the
    owner alone: whoever has it can subtract the noise; `discard_key` deletes it. The folder holds
    no hash of the records that could be tested without that key.

    Example:
        >>> store = Checkpoints(pathlib.Path(tempfile.mkdtemp()) / "checkpoint")
        >>> store.save(3, {"w": np.ones(2)}, {"records": 10})
        >>> store.latest({"records": 10}, {"w": np.zeros(2)})
        (3, {'w': array([1., 1.])})
    """

    def __init__(self, folder: pathlib.Path):
        with extra("train"):
            import orbax.checkpoint as ocp

        self.folder = pathlib.Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        self._ocp = ocp
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    def key(self, fresh: jax.Array, *, resume: bool) -> jax.Array:
        """The run's key: the stored one when resuming, else `fresh`, stored before it is used."""
        file = self.folder / _KEY_FILE
        if resume and file.exists():
            stored = json.loads(file.read_text())
            words = np.asarray(stored["words"], dtype=np.uint32)
            return jax.random.wrap_key_data(jax.numpy.asarray(words), impl=stored["implementation"])
        if self._manager.latest_step() is not None:
            raise CheckpointError(
                f"{self.folder} has no {_KEY_FILE}: the run was finished, or the file is lost, and "
                "the remaining steps would be drawn with other noise; start a new run"
                if resume
                else f"{self.folder} holds the checkpoints of an earlier run: resume it, or choose "
                "another folder"
            )
        content = {
            "implementation": str(jax.random.key_impl(fresh)),
            "words": np.asarray(jax.random.key_data(fresh)).tolist(),
        }
        write_atomically(file, json.dumps(content).encode(), private=True)
        return fresh

    def save(self, step: int, state: Any, identity: Mapping[str, Any]) -> None:
        """Save a state; returns once it is whole on disk."""
        args = self._ocp.args
        state = jax.tree.map(np.asarray, state)
        self._manager.save(
            step,
            args=args.Composite(
                state=args.StandardSave(state), identity=args.JsonSave(dict(identity))
            ),
            force=True,
        )
        self._manager.wait_until_finished()

    def latest(self, identity: Mapping[str, Any], like: Any) -> tuple[int, Any] | None:
        """The newest (step, state), or None; refused unless the run is the same.

        Raises:
            CheckpointError: the first thing that differs.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        args = self._ocp.args
        try:
            named: Any = self._manager.restore(
                step, args=args.Composite(identity=args.JsonRestore())
            )
            stored = named.identity
        except (ValueError, KeyError, OSError) as error:
            raise CheckpointError(f"{self.folder}/{step} is damaged: {error}") from error
        wanted = json.loads(json.dumps(dict(identity)))
        for name in sorted({*stored, *wanted}):
            if stored.get(name) != wanted.get(name):
                shown = (
                    ""
                    if name == "data"
                    else f" ({stored.get(name)} there, {wanted.get(name)} here)"
                )
                raise CheckpointError(
                    f"the checkpoint in {self.folder} belongs to another run: its {name} differs"
                    f"{shown}; resume with the settings it began with, or choose another folder"
                )
        like = jax.tree.map(np.asarray, like)
        found: Any = self._manager.restore(
            step, args=args.Composite(state=args.StandardRestore(like))
        )
        return step, jax.tree.map(np.asarray, found.state)

    def close(self) -> None:
        """Release orbax's threads."""
        self._manager.close()


def discard_key(folder: pathlib.Path) -> None:
    """Delete the key of a finished run: it is needed no more, and it would undo the noise.

    Example:
        >>> discard_key(pathlib.Path(tempfile.mkdtemp()))  # nothing there: nothing to do
    """
    (pathlib.Path(folder) / _KEY_FILE).unlink(missing_ok=True)


def keyed_digest(key: jax.Array, arrays: Iterable[Any]) -> str:
    """A digest of the records that only the holder of the key can check a guess against."""
    digest = hmac.new(np.asarray(jax.random.key_data(key)).tobytes(), digestmod=hashlib.sha256)
    for array in arrays:
        array = np.ascontiguousarray(array)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()
