"""Files that are whole or absent."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any, TypeAlias

__all__ = ["lock_file", "remove_partial", "take_lock", "write_atomically"]

# What a JSON file holds: values of any kind, each by its name.
JsonObject: TypeAlias = dict[str, Any]

_PARTIAL = ".part"  # what the name of a file ends in while it is written


def write_atomically(
    path: pathlib.Path, content: bytes | Iterable[Any], *, private: bool = False
) -> None:
    """Write a file so that a crash leaves the old content or the new one, nothing in between.

    What a process that was killed has left beside the file is removed by the next that writes it.

    Args:
        path: the file.
        content: its bytes, or parts of them in order.
        private: whether only the owner may read it.

    Raises:
        OSError: it cannot be written; the error names the file, which is as it was.

    Example:
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
        >>> write_atomically(path, b"whole")
        >>> path.read_text()
        'whole'
    """
    try:
        _write(path, content, private)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def take_lock(file: IO[Any], *, wait: bool = False) -> None:
    """Make an open file this process's own until it is closed; the system closes those of the dead.

    Raises:
        OSError: another process has it, and `wait` is false.
    """
    if os.name == "posix":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    else:
        import msvcrt

        # Beyond the text, so that others can read it.
        file.seek(1 << 20)
        mode = getattr(msvcrt, "LK_LOCK" if wait else "LK_NBLCK")
        getattr(msvcrt, "locking")(file.fileno(), mode, 1)  # noqa: B009
        file.seek(0)


@contextlib.contextmanager
def lock_file(path: pathlib.Path) -> Iterator[None]:
    """Hold the lock of a file, beside it, while it is read and replaced; waits for others.

    Example:
        >>> with lock_file(pathlib.Path(tempfile.mkdtemp()) / "a.txt"):
        ...     pass
    """
    # Beside it: the file itself is replaced, and a lock stays with what was replaced.
    with open(path.with_name(f"{path.name}.lock"), "a+") as file:
        take_lock(file, wait=True)
        yield


def remove_partial(path: pathlib.Path) -> None:
    """Remove what a process that was killed left of this file, while no other one writes it.

    Example:
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> (folder / ".a.txt.x1").touch()
        >>> remove_partial(folder / "a.txt")
        >>> list(folder.iterdir())
        []
    """
    for other in path.parent.iterdir():
        if other.name.startswith(f".{path.name}."):
            other.unlink(missing_ok=True)


def _write(path: pathlib.Path, content: bytes | Iterable[Any], private: bool) -> None:
    _remove_abandoned(path)
    file, name = _open_beside(path)
    try:
        with file:
            for part in [content] if isinstance(content, bytes) else content:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            if not private:
                umask = os.umask(0)  # to be read it has to be set
                os.umask(umask)
                os.chmod(name, 0o666 & ~umask)
            if os.name == "posix":  # while it is locked; elsewhere an open file cannot be renamed
                os.replace(name, path)
        if os.name != "posix":
            os.replace(name, path)  # in one step: old or new, nothing in between
    except BaseException:  # an interrupt leaves no partial file either
        pathlib.Path(name).unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def _open_beside(path: pathlib.Path) -> tuple[IO[bytes], str]:
    """A new file beside another, for the owner alone, and locked for as long as it is written."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PARTIAL)
        file = os.fdopen(handle, "wb")
        if os.name != "posix":
            return file, name
        take_lock(file, wait=True)
        # Between the two another process may have taken it for abandoned.
        if os.path.exists(name):
            return file, name
        file.close()


def _remove_abandoned(path: pathlib.Path) -> None:
    """Remove what writers that were killed left beside this file, and nothing that one writes.

    A writer holds the lock of its file, which the system gives back when the process ends. Where an
    open file cannot be renamed the lock ends before the writing does, and nothing is removed.
    """
    if os.name != "posix":
        return
    made = re.compile(re.escape(f".{path.name}.") + r"[a-z0-9_]{8}" + re.escape(_PARTIAL))
    names: list[str] = []
    with contextlib.suppress(OSError):  # a folder that may be written need not be readable
        names = os.listdir(path.parent)
    for other in map(path.parent.joinpath, names):
        if made.fullmatch(other.name):
            # Another process may be removing it, or it is somebody else's.
            with contextlib.suppress(OSError), other.open("rb") as file:
                take_lock(file)
                other.unlink(missing_ok=True)


def _flush_folder(folder: pathlib.Path) -> None:
    """Make a rename last through a loss of power, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
