"""The lock of a folder."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
from typing import Any

from dpjax.training.errors import CheckpointError, explained

__all__ = ["Lock"]


class Lock:
    """The right to write into a folder, held by one run until `release` or the process's end.

    The operating system takes it back from a process that is killed, so none is ever left behind.

    Raises:
        CheckpointError: another run holds it, or the folder cannot be written.

    Example:
        >>> import tempfile
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
            >>> import tempfile
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
