"""The command line: `dpjax`, and `python -m dpjax`."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command, which is loaded only once a Ctrl-C has an answer.

    Example:
        >>> main.__module__
        'dpjax.__main__'
    """
    signal.signal(signal.SIGINT, _leave)  # before anything slow is imported
    from dpjax.cli import main as command

    command()


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once: nothing is begun, and modules that are half loaded answer in errors."""
    if sys.stderr is not None:  # a program without a console has none
        sys.stderr.write("\ninterrupted; nothing was written\n")
        sys.stderr.flush()
    os._exit(130)  # 128 + SIGINT, as shells expect of an interrupted command


if __name__ == "__main__":
    main()
