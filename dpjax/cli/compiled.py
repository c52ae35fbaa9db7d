"""Where the commands keep compiled programs, so that one answers at once the second time.

A program holds shapes and the settings of a model. Records, keys, and the numbers that follow from
how many records a run drew for training are its arguments, and stand in none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import platform
import stat

_MOST_BYTES, _MOST_FILES = 200_000_000, 2_000  # beyond which half of the files, the oldest, go


def keep_programs() -> None:
    """Tell JAX, which is not loaded yet, where to keep compiled programs.

    `JAX_COMPILATION_CACHE_DIR` names another folder, `JAX_ENABLE_COMPILATION_CACHE=false` none.
    """
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    if os.environ.get("JAX_ENABLE_COMPILATION_CACHE", "").lower() in ("false", "0", "no", "off"):
        return
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    folder = cache / "dpjax" / "compiled" / _name_machine()
    with contextlib.suppress(OSError):  # a home that cannot be written: programs are compiled anew
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_own(folder):
            _remove_oldest(folder)
            os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)


def _name_machine() -> str:
    """A name for processors that run the same programs, as a home may be that of several."""
    text = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        kinds = ("flags", "Features", "model name")
        text += sorted({line for line in lines if line.startswith(kinds)})
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]


def _is_own(folder: pathlib.Path) -> bool:
    """Whether nobody else may put programs there, which would be run."""
    if not hasattr(os, "getuid"):  # Windows, where a user's folders are that user's
        return True
    found = folder.stat()
    others = stat.S_IWGRP | stat.S_IWOTH
    return found.st_uid == os.getuid() and not found.st_mode & others


def _remove_oldest(folder: pathlib.Path) -> None:
    """Remove the older half of the files where they are too many or too large."""
    found = []
    for file in folder.iterdir():
        with contextlib.suppress(OSError):  # another process has removed it
            one = file.stat()
            found.append((one.st_mtime, one.st_size, file))
    if len(found) <= _MOST_FILES and sum(size for _, size, _ in found) <= _MOST_BYTES:
        return
    for *_, file in sorted(found)[: -(-len(found) // 2)]:
        file.unlink(missing_ok=True)
