"""Files that are whole or absent."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

__all__ = ["lock_file", "remove_partial", "take_lock", "write_atomically"]


def write_atomically(
    path: pathlib.Path, content: bytes | Iterable[Any], *, private: bool = False
) -> None:
    """Write a file so that a crash leaves the old content or the new one, nothing in between.

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
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # for the owner alone
    try:
        with os.fdopen(handle, "wb") as file:
            for part in [content] if isinstance(content, bytes) else content:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        if not private:
            umask = os.umask(0)  # to be read it has to be set
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)  # in one step: old or new, nothing in between
    except BaseException:  # an interrupt leaves no partial file either
        pathlib.Path(name).unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def _flush_folder(folder: pathlib.Path) -> None:
    """Make a rename last through a loss of power, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
