"""Kill at random moments from the start on, resume, and end with the same bits.

`python -m benchmarks.killed_runs --kills 50` is the same with more of them.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.processes
def test_killed_at_random_moments_and_resumed_ends_with_the_same_bits():
    command = [sys.executable, "-m", "benchmarks.killed_runs", "--kills", "3", "--seed", "4"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["same bits"] == found["kills"] == sum(found["killed"].values()) == 3
