"""Files that are whole or absent, and the lock of a folder."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import tempfile
from collections.abc import Iterable
from typing import Any

from dpjax.training.errors import CheckpointError, explained

__all__ = ["Lock", "write_atomically"]


def write_atomically(
    path: pathlib.Path, content: bytes | Iterable[Any], *, private: bool = False
) -> None:
    """Write a file so that a crash leaves the old content or the new one, nothing in between.

    Args:
        path: the file.
        content: its bytes, or parts of them in order.
        private: whether only the owner may read it.

    Example:
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
        >>> write_atomically(path, b"whole")
        >>> path.read_text()
        'whole'
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            for part in [content] if isinstance(content, bytes) else content:
                file.write(part)
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


class Lock:
    """The right to write into a folder, held by one run until `release` or the process's end.

    The operating system takes it back from a process that is killed, so none is ever left behind.

    Raises:
        CheckpointError: another run holds it, or the folder cannot be written.

    Example:
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> lock = Lock(folder)
        >>> Lock(folder)
        Traceback (most recent call last):
        ...
        dpjax.training.errors.CheckpointError: ... is in use by another run ...
        >>> lock.release()
    """

    def __init__(self, folder: pathlib.Path):
        with explained("locking", folder):
            self._file = open(folder / "lock", "a+")  # noqa: SIM115 (held until released)
            try:
                _take(self._file)
            except (BlockingIOError, PermissionError):
                self._file.seek(0)
                holder = self._file.read().strip()
                self._file.close()
                raise CheckpointError(
                    f"{folder} is in use by another run ({holder or 'just started'}); wait for it "
                    "to end, or choose another folder"
                ) from None
        with contextlib.suppress(OSError):  # the holder's name is a courtesy; the lock itself holds
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()}")
            self._file.flush()

    def release(self) -> None:
        """Let the next run in.

        Example:
            >>> Lock(pathlib.Path(tempfile.mkdtemp())).release()
        """
        with contextlib.suppress(OSError):
            self._file.close()


def _take(file: Any) -> None:
    if os.name == "posix":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        import msvcrt

        # Beyond the text, so that others can read it.
        file.seek(1 << 20)
        getattr(msvcrt, "locking")(file.fileno(), getattr(msvcrt, "LK_NBLCK"), 1)  # noqa: B009
        file.seek(0)
