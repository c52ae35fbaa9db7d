"""Ctrl-C at a random moment of `dpjax train`: it ends as one that was interrupted, or is done."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

TRIES = int(os.environ.get("DPJAX_INTERRUPTS", "10"))
# Python's own start, before a line of the command: the signal itself, or an error of the start.
_BEFORE = (-signal.SIGINT, 1)


@pytest.fixture
def heard():
    """The signal, which a shell's background jobs ignore, and their children with them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_a_run_that_is_interrupted_anywhere_ends_with_130_and_says_what_is_saved(tmp_path):
    def begun(number):
        options = ("--data", "digits", "--epsilon", "3", "--delta", "1e-4", "--steps", "30")
        return subprocess.Popen(
            [sys.executable, "-m", "dpjax", "train", *options, "--out", tmp_path / str(number)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    begun("warm").communicate()
    began = time.monotonic()
    begun("whole").communicate()
    whole, draw = time.monotonic() - began, random.Random(0)
    for number in range(TRIES):
        # Half of them fall into the first quarter, where modules load.
        process, delay = begun(number), 1.05 * whole * draw.random() ** 2
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
        if process.returncode in _BEFORE:
            assert "dpjax/cli" not in said, (delay, said)
            continue
        assert process.returncode in (0, 130), (delay, process.returncode, said)
        assert process.returncode == 0 or "interrupted" in said, (delay, said)
        saved = any((tmp_path / str(number)).glob("checkpoint/step-*.ckpt"))
        assert saved or "step is saved" not in said.replace("no step is saved", ""), (delay, said)
