"""Checkpoints of a run, and the file of its secret key, bound to the settings it is used with."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import math
import os
import pathlib
import socket
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import IO, Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import ArrayLike

from dpjax._files import remove_partial, take_lock, write_atomically
from dpjax._numerics.namespace import AnyTree
from dpjax._numerics.typing import PRNGKey
from dpjax._numerics.warning import DpjaxWarning
from dpjax.training import devices
from dpjax.training.devices import broadcast_from_leader
from dpjax.training.fingerprint import as_numpy
from dpjax.training.run_store import NoFolder, RunStore


class CheckpointError(ValueError):
    """A checkpoint that cannot be written or continued; the message says why and what to do.

    Example:
        >>> raise CheckpointError("of another run")
        Traceback (most recent call last):
        ...
        dpjax.training.checkpoint.CheckpointError: of another run
    """


_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space and resume"),
    errno.EFBIG: "raise the limit on file sizes and resume",
    **dict.fromkeys(
        (errno.EROFS, errno.EACCES, errno.EPERM), "choose a folder that can be written"
    ),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "choose another folder"),
    errno.EIO: "look after the disk, then resume",
}


@contextlib.contextmanager
def checkpoint_errors(doing: str, folder: pathlib.Path, kept: str = "") -> Iterator[None]:
    """Turn what the operating system refuses into a CheckpointError that says what to do."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "correct that, or choose another folder")
        reason = error.strerror or str(error)
        raise CheckpointError(f"{folder}: {doing} failed ({reason}); {kept}{advice}") from error


def lock_folder(folder: pathlib.Path) -> IO[str]:
    """The open file that gives one run the right to write into a folder until it is closed."""
    # The operating system closes those of a process that is killed: no lock is ever left behind.
    with checkpoint_errors("locking", folder):
        file = open(folder / "lock", "a+")  # noqa: SIM115 (held until it is closed)
        try:
            take_lock(file)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read().strip()
            file.close()
            raise CheckpointError(
                f"{folder} is in use by another run ({holder or 'just started'}); wait for it "
                "to end, or choose another folder"
            ) from None
    with contextlib.suppress(OSError):  # the holder's name is a courtesy; the lock itself holds
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
    return file


Found = TypeVar("Found")

_KEY_FILE = "noise_key.json"
_MAGIC = b"dpjax checkpoint 1\n"
_KEPT = 2  # one of them is always whole
# Digests, and what the key was made of: an error's text may be copied anywhere.
_NEVER_SHOWN = {"data", "loss", "optimiser", "average", "mechanism's numbers", "seed"}
_NEVER_SHOWN |= {"initial parameters", "frozen parameters", "strategy's factors", "users"}
_NEVER_SHOWN |= {"trainable arrays"}  # as many as the model has


class Checkpoints(RunStore):
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
        with checkpoint_errors("making the folder", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(self.folder)  # before anything is read
        self._secret = b""  # the key of the codes that tell a whole checkpoint; of `bind`

    def bind(
        self,
        fresh: PRNGKey,
        identity: Callable[[PRNGKey], Mapping[str, Any]],
        *,
        resume: bool,
        changeable: Collection[str] = (),
    ) -> PRNGKey:
        """The run's key: the stored one when resuming, else `fresh`, stored before it is used.

        Args:
            fresh: the key of a run that begins here.
            identity: from the key to everything that has to agree for the key to be used again.
            resume: whether a stored key may be used.
            changeable: names of what may differ, since the key has not been used with it; the key
                is bound to what it is now.

        Raises:
            CheckpointError: the folder belongs to another run (the first difference is named), has
                lost its key, or the key file is damaged.
        """
        file = self.folder / _KEY_FILE
        with checkpoint_errors(f"reading {_KEY_FILE}", self.folder):
            remove_partial(file)  # which `discard_key` would not find, and it holds a key
            text = file.read_bytes() if file.exists() else None
            begun = text is not None or bool(self._steps())  # a run was here
        if begun and not resume:
            raise CheckpointError(
                f"{self.folder} holds the checkpoints of an earlier run: resume it, or choose "
                "another folder"
            )
        if begun and text is None:
            raise CheckpointError(
                f"{self.folder} has no {_KEY_FILE}: the run was finished, or the file is lost, and "
                "the remaining steps would be drawn with other noise; start a new run"
            )
        key, stored = (fresh, None) if text is None else _read_key(file, text)
        wanted = json.loads(json.dumps(dict(identity(key))))  # as it is read back
        words = np.asarray(jax.random.key_data(key))
        if stored is not None:
            for name in wanted | stored:
                there, here = stored.get(name), wanted.get(name)
                if there != here and name not in changeable:
                    shown = "" if name in _NEVER_SHOWN else f" ({there} there, {here} here)"
                    raise CheckpointError(
                        f"the checkpoint in {self.folder} belongs to another run: its {name} "
                        f"differs{shown}; resume with the settings it began with, or choose "
                        "another folder"
                    )
        if stored != wanted:  # of a run that begins, or of one whose settings changed
            content = {"implementation": str(jax.random.key_impl(key)), "words": words.tolist()}
            content["identity"] = wanted
            text = json.dumps(content | {"check": _checksum(content)}).encode()
            with checkpoint_errors(f"writing {_KEY_FILE}", self.folder, "nothing was begun; "):
                write_atomically(file, text, private=True)
        self._secret = words.tobytes() + json.dumps(wanted, sort_keys=True).encode()
        return key

    def noted(self, what: str, now: bool) -> bool:
        """Whether this holds now or held in an earlier session of the run; written before a step.

        Raises:
            CheckpointError: the folder took no further file.
        """
        file = self.folder / f"{what}.note"
        with checkpoint_errors(f"noting {what}", self.folder):
            if now and not file.exists():
                write_atomically(file, [b"1"], private=True)
            return file.exists()

    def save(self, step: int, state: AnyTree) -> None:
        """Save a state; returns once it is whole on disk.

        Raises:
            CheckpointError: the folder took no further file; earlier checkpoints are untouched.
        """
        arrays = [as_numpy(leaf) for leaf in jax.tree.leaves(state)]
        leaves = [{"dtype": a.dtype.name, "shape": list(a.shape)} for a in arrays]
        header = {"step": int(step), "leaves": leaves}
        parts = [_MAGIC, json.dumps(header).encode() + b"\n"]  # everything that the code covers
        parts += [np.ascontiguousarray(a).reshape(-1).view(np.uint8).data for a in arrays]
        code = hmac.new(self._secret, digestmod=hashlib.sha256)
        for part in parts:
            code.update(part)
        older = self._steps()
        kept = f"the checkpoint of step {older[-1]} is whole; " if older else "nothing is lost; "
        with checkpoint_errors(f"saving step {step}", self.folder, kept):
            write_atomically(self._path(step), [*parts, code.digest()], private=True)
            for old in [s for s in self._steps() if s < step][: -(_KEPT - 1)]:
                self._path(old).unlink(missing_ok=True)
            for partial in self.folder.glob(".*.ckpt.*"):  # of a process that was killed
                partial.unlink(missing_ok=True)

    def latest(self, like: AnyTree) -> tuple[int, AnyTree] | None:
        """The newest whole (step, state), or None; warns where a damaged one was passed over."""
        with checkpoint_errors("looking for checkpoints", self.folder):
            steps = self._steps()
        for step in reversed(steps):  # the newest first
            try:
                return step, self._load(step, like)
            except (OSError, _DamagedFile) as error:
                reason = getattr(error, "strerror", None) or error
                warnings.warn(
                    f"{self._path(step)} is passed over ({reason}); the run goes on from the "
                    "checkpoint before it, or from its start, to the same result",
                    DpjaxWarning,
                    stacklevel=3,
                )
        return None

    def close(self) -> None:
        """Let another run use the folder."""
        with contextlib.suppress(OSError):
            self._lock.close()

    def _path(self, step: int) -> pathlib.Path:
        return self.folder / f"step-{step:012d}.ckpt"

    def _steps(self) -> list[int]:
        names = (path.name[5:-5] for path in self.folder.glob("step-*.ckpt"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _load(self, step: int, like: AnyTree) -> AnyTree:
        """The state of a step, placed as `like`; raises where its code does not verify."""
        content = self._path(step).read_bytes()
        body = memoryview(content)[:-32]  # SHA-256 has 32 bytes
        code = hmac.new(self._secret, body, hashlib.sha256).digest()
        if not hmac.compare_digest(code, content[-32:]) or not content.startswith(_MAGIC):
            raise _DamagedFile("damaged, or of another run")
        start = content.index(b"\n", len(_MAGIC)) + 1
        specs = json.loads(content[len(_MAGIC) : start])["leaves"]
        leaves, structure = jax.tree.flatten(like)
        values = []
        for leaf, spec in zip(leaves, specs, strict=True):
            shape = tuple(spec["shape"])
            value = np.frombuffer(body, np.dtype(spec["dtype"]), math.prod(shape), start)
            start += value.nbytes
            values.append(_place_like(value.reshape(shape).copy(), leaf))
        return jax.tree.unflatten(structure, values)


class _DamagedFile(Exception):
    pass


def discard_key(folder: pathlib.Path) -> None:
    """Delete the key of a finished run: it is needed no more, and it would undo the noise.

    Example:
        >>> import tempfile
        >>> discard_key(pathlib.Path(tempfile.mkdtemp()))  # nothing there: nothing to do
    """
    (pathlib.Path(folder) / _KEY_FILE).unlink(missing_ok=True)


def _place_like(value: np.ndarray, like: ArrayLike) -> ArrayLike:
    """A stored value where and as the one it replaces was."""
    if not isinstance(like, jax.Array):
        return value
    if jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jax.numpy.asarray(value), impl=jax.random.key_impl(like))
    return jax.device_put(value, like.sharding)


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_key(file: pathlib.Path, text: bytes) -> tuple[PRNGKey, dict[str, object]]:
    """The key, and the settings that it is bound to, from the text of the key file."""
    try:
        content = json.loads(text)
        check = content.pop("check")
        identity = content["identity"]
        if check != _checksum(content):
            raise _DamagedFile("its check sum differs")
        words = np.asarray(content["words"], dtype=np.uint32)  # of the key
        key = jax.random.wrap_key_data(jax.numpy.asarray(words), impl=content["implementation"])
    except (_DamagedFile, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{file} is damaged ({error}): without it the run cannot go on with its own noise; "
            "restore the file, or start a new run in another folder"
        ) from None
    return key, identity


class SharedCheckpoints(RunStore):
    """`Checkpoints` of a run of several processes: the leader reads and writes, all are told."""

    def __init__(self, folder: pathlib.Path, mesh: Mesh):
        self._mesh = mesh
        self._store = self._on_leader(lambda: Checkpoints(folder))

    def bind(
        self, fresh: PRNGKey, identity: Callable[[PRNGKey], Mapping[str, Any]], *, resume: bool
    ) -> PRNGKey:
        """The run's key, see `Checkpoints.bind`; that of the leader on all processes."""
        key = self._ask(lambda store: store.bind(fresh, identity, resume=resume))
        return devices.broadcast_key(self._mesh, fresh if key is None else key)

    def noted(self, what: str, now: bool) -> bool:
        """See `Checkpoints.noted`."""
        found = self._ask(lambda store: store.noted(what, now))
        return bool(broadcast_from_leader(self._mesh, np.uint32(bool(found))))

    def save(self, step: int, state: AnyTree) -> None:
        """Save a state that is gathered from all processes, once."""
        gathered = devices.gather(state)  # all processes take part
        self._ask(lambda store: store.save(step, gathered))

    def latest(self, like: AnyTree) -> tuple[int, AnyTree] | None:
        """The newest whole (step, state) of the leader's folder, placed as `like`; or None."""
        hosts = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
        found = self._ask(lambda store: store.latest(hosts))
        step = int(broadcast_from_leader(self._mesh, np.int64(-1 if found is None else found[0])))
        if step < 0:  # no checkpoint
            return None
        values = broadcast_from_leader(self._mesh, hosts if found is None else found[1])

        def put(value: np.ndarray, leaf: ArrayLike) -> ArrayLike:
            if isinstance(leaf, jax.Array):
                return devices.make_global(value, leaf.sharding)
            return value

        return step, jax.tree.map(put, values, like)

    def close(self) -> None:
        """Let another run use the folder."""
        if self._store is not None:
            self._store.close()

    def _ask(self, act: Callable[[Checkpoints], Found]) -> Found | None:
        """What the leader's store says, None on the others."""

        def act_on_own() -> Found:
            assert self._store is not None, "the leader has a store"
            return act(self._store)

        return self._on_leader(act_on_own)

    def _on_leader(self, act: Callable[[], Found]) -> Found | None:
        """What the leader finds, None on the others; refused on all where it is refused."""
        found = error = None
        if self._mesh.devices.flat[0].process_index == jax.process_index():
            try:
                found = act()
            except Exception as refused:  # the others wait to hear of it
                error = refused
        if int(broadcast_from_leader(self._mesh, np.uint32(error is not None))):
            raise error or CheckpointError(
                "the folder must be usable by the run's first process, got an error there: see "
                "what it says"
            )
        return found


def open_folder(folder: str | pathlib.Path | None, process_mesh: Mesh | None = None) -> RunStore:
    """The checkpoints in a folder, of one process or of several."""
    if folder is None:
        return NoFolder()
    where = pathlib.Path(folder)
    return Checkpoints(where) if process_mesh is None else SharedCheckpoints(where, process_mesh)
