"""How a command ends that cannot go on: Ctrl-C wherever it falls, a closed pipe, a full disk."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from dpjax.cli.inputs import BAD_INPUT, INTERRUPTED, MISTAKE

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def finish_process(command: Callable[[], Any]) -> NoReturn:
    """Run a command as all that a process does, and end the process."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            run(command)
            code: object = 0
        except SystemExit as end:
            code = end.code
        except Exception as error:
            # Python's own exit code is 1, which says that a certificate does not hold.
            sys.excepthook(type(error), error, error.__traceback__)
            code = MISTAKE
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _say("\ninterrupted")
        code = INTERRUPTED
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    # Everything is written by now. Python's own way out ends in the compiler's threads, which a
    # Ctrl-C has left at work: some of these processes died of a signal after their last word.
    os._exit(code if isinstance(code, int) else code is not None)


class Interrupt:
    """The answer to Ctrl-C: an error that begins in a function of the package, or at the second.

    Python raises it wherever it is. In what compiled code calls (a comparison, a collector's
    callback, a module that loads) it ends the process by a signal, is dropped, or becomes an error
    of another kind. So it waits until a function of the package goes on, which is told by Python's
    profiler; special methods, which compiled code calls too, do not count.
    """

    def __init__(self) -> None:
        self.came = self._waits = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        if self._waits or _is_own(frame):
            self._begin()
        self._waits = True
        sys.setprofile(self._at_event)

    def _at_event(self, frame: FrameType | None, event: str, argument: object) -> None:
        if _is_own(frame):
            self._begin()

    def _begin(self) -> NoReturn:
        self._waits = False
        sys.setprofile(None)
        raise KeyboardInterrupt


def _is_own(frame: FrameType | None) -> bool:
    """Whether an error may begin in a frame: one of the package's plain functions, not of above."""
    if frame is None:
        return False
    code = frame.f_code
    own = code.co_filename.startswith(_PACKAGE) and not code.co_name.startswith("__")
    return own and code not in (Interrupt._at_event.__code__, Interrupt._begin.__code__)


def run(command: Callable[[], Any]) -> None:
    """Run a command to its end, which is one line and the exit code that a shell expects."""
    interrupt = Interrupt()
    before = sys.getprofile(), signal.signal(signal.SIGINT, interrupt)
    try:
        try:
            command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except SystemExit as end:
        # Outside of the commands' own handlers the parser of options exits, and says nothing.
        parser = getattr(end.__context__, "__cause__", None)
        if end.code == INTERRUPTED and isinstance(parser, KeyboardInterrupt):
            _say("\ninterrupted")
        raise
    except OSError as error:
        # Python's last flush of what could not be written has to succeed.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        _say(f"error: the answer cannot be written: {error.strerror or error}")
        raise SystemExit(BAD_INPUT) from None
    except Exception:
        # Compiled modules turn a Ctrl-C that meets their import into an error of their own.
        if not interrupt.came:
            raise
        _say("\ninterrupted; nothing was written")
        raise SystemExit(INTERRUPTED) from None
    finally:
        sys.setprofile(before[0])
        signal.signal(signal.SIGINT, before[1])


def exit_on_closed_pipe(quietly: bool) -> None:
    """Whether a write to a closed pipe ends the process, or is an error like others."""
    # By SIGPIPE, as other commands end: exit code 1 would say that a certificate does not hold.
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL if quietly else signal.SIG_IGN)


def _say(words: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(words + "\n")
