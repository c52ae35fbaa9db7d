"""How a command ends that cannot go on: Ctrl-C wherever it falls, a closed pipe, a full disk."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from dpjax.cli.inputs import BAD_INPUT, INTERRUPTED

_AGAIN = 0.01  # seconds until an interrupt that was lost is sent again


def run(command: Callable[[], Any]) -> None:
    """Run a command to its end, which is one line and the exit code that a shell expects.

    A reader that has closed the pipe ends it as other commands end, by SIGPIPE: exit code 1 would
    say that a certificate does not hold.

    Example:
        >>> run(lambda: None)
    """
    interrupted = False

    def interrupt(number: int, frame: Any) -> None:
        nonlocal interrupted
        interrupted = True
        signal.default_int_handler(number, frame)

    before = sys.unraisablehook, signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = interrupt_again
    try:
        try:
            command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        _write_no_more()
        _say(f"error: the answer cannot be written: {error.strerror or error}")
        raise SystemExit(BAD_INPUT) from None
    except Exception:
        # Compiled modules turn a Ctrl-C that meets their import into an error of their own.
        if not interrupted:
            raise
        _say("\ninterrupted; nothing was written")
        raise SystemExit(INTERRUPTED) from None
    finally:
        sys.unraisablehook = before[0]
        signal.signal(signal.SIGINT, before[1])


def interrupt_again(lost: Any) -> None:
    """Send a Ctrl-C again that met a callback of the garbage collector, where Python drops it.

    Example:
        >>> interrupt_again.__name__
        'interrupt_again'
    """
    if lost.exc_type is KeyboardInterrupt:
        threading.Timer(_AGAIN, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(lost)


def end_by_closed_pipes(quietly: bool) -> None:
    """Whether a write to a closed pipe ends the process, or is an error like others.

    Example:
        >>> end_by_closed_pipes(False)
    """
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL if quietly else signal.SIG_IGN)


def _write_no_more() -> None:
    """Let Python's last flush of what could not be written succeed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _say(words: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(words + "\n")
