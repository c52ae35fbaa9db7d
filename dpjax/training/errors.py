"""What can go wrong with a run's folder, as one kind of error."""

from __future__ import annotations

import contextlib
import errno
import pathlib
from collections.abc import Iterator

__all__ = ["CheckpointError"]


class CheckpointError(ValueError):
    """A checkpoint that cannot be written or continued; the message says why and what to do.

    Example:
        >>> raise CheckpointError("of another run")
        Traceback (most recent call last):
        ...
        dpjax.training.errors.CheckpointError: of another run
    """


_ADVICE = {
    errno.ENOSPC: "free some space and resume",
    errno.EDQUOT: "free some space and resume",
    errno.EFBIG: "raise the limit on file sizes and resume",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "choose a folder that can be written",
    errno.EPERM: "choose a folder that can be written",
    errno.ENOTDIR: "choose another folder",
    errno.EEXIST: "choose another folder",
    errno.EIO: "look after the disk, then resume",
}


@contextlib.contextmanager
def explained(doing: str, folder: pathlib.Path, kept: str = "") -> Iterator[None]:
    """Turn what the operating system refuses into a CheckpointError that says what to do."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "correct that, or choose another folder")
        reason = error.strerror or str(error)
        raise CheckpointError(f"{folder}: {doing} failed ({reason}); {kept}{advice}") from error
