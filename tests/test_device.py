"""The command for a machine with a GPU: its parts in miniature, and what becomes of a bad one.

The contour's part compiles for a minute what tests/exact/test_exported.py does; Table III's is
tested beside the experiments.
"""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import device

# Each part is a process of its own, and compiles.
pytestmark = pytest.mark.processes


@pytest.fixture
def rows(lenient_promotion):
    """A part's rows in this process."""

    def make(name):
        found = list(device.PARTS[name].rows(device.SMALL))
        assert all(len(row) == len(device.PARTS[name].columns) for row in found)
        assert all(isinstance(cell, str) for row in found for cell in row)
        return [dict(zip(device.PARTS[name].columns, row, strict=True)) for row in found]

    return make


def test_queries_of_the_device_say_what_the_host_says(rows):
    found = rows("accountant")
    assert len(found) == 4
    # A float32 program rounds up, by a unit at most.
    assert all(0.0 <= float(row["apart"]) <= 1.3e-7 for row in found)


def test_a_sweep_says_what_single_questions_say(rows):
    (row,) = rows("sweep")
    assert (row["settings"], row["infinite"]) == ("300", "0")
    assert float(row["apart from single ones"]) < 1e-8


def test_all_models_take_a_private_step(rows):
    found = {row["model"]: row for row in rows("steps")}
    assert list(found) == ["perceptron", "CNN", "LSTM", "transformer"]
    assert found["perceptron"]["parameters"] == "95"  # 6·5 + 5, 5·10 + 10
    assert all(float(row["ratio"]) > 0 for row in found.values())


def test_images_are_trained_on_and_compared_with_the_published(rows):
    (row,) = rows("images")
    assert (row["images"], row["data"], row["published, %"]) == ("500", "cifar10", "69.3")
    assert 0.0 <= float(row["average, %"]) <= 40.0  # of noise there is nothing to learn


def test_noise_has_the_moments_of_a_normal_law(rows):
    found = rows("noise")
    assert [row["by"] for row in found] == ["jax.random.normal", "dpjax"]
    for row in found:
        assert all(abs(float(row[name])) < 5 for name in ("mean", "variance", "fourth moment"))


def test_a_run_that_is_interrupted_ends_with_the_same_bits(rows):
    found = rows("fit")
    assert [row["same bits"] for row in found] == ["yes", "yes"]
    assert found[0]["interrupted after steps"] == "3 of 6"


def _says(code):
    return [sys.executable, "-c", code]


ROW = 'print(\'["a", "b"]\', flush=True); '


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (ROW, ""),
        (ROW + "raise ValueError('no memory')", "ValueError: no memory"),
        (ROW + "import os; os.abort()", "Failed, exit -6"),
        (ROW + "import time; time.sleep(60)", "Stopped after 4 s"),
    ],
)
def test_a_part_that_fails_or_takes_too_long_keeps_its_rows(code, why):
    heard = []
    made = device.run_part(_says(code), 4.0, heard.append)
    assert made.rows == [["a", "b"]]
    assert heard == ["  a | b"]
    assert why in made.why
    assert (made.why == "") == (why == "")


def test_the_rest_goes_on_after_a_part_that_fails(tmp_path, monkeypatch, capsys):
    codes = {
        "noise": "raise MemoryError('all of it')",
        "fit": f"print({json.dumps(list('12345'))!r})".replace("'", '"""'),
    }
    monkeypatch.setattr(device, "command_of", lambda name, small: _says(codes[name]))
    monkeypatch.setattr(device, "ask_machine", lambda: "On a device: H100 (gpu).\n")
    out = tmp_path / "device.md"
    device.measure(list(codes), True, out)
    text = out.read_text()
    assert "H100" in text
    assert "MemoryError: all of it" in text
    assert "| 1 | 2 | 3 | 4 | 5 |" in text
    assert text.index("MemoryError") < text.index("| 1 |")
    assert "fit: at most" in capsys.readouterr().out


def test_a_cpu_is_not_taken_for_a_device():
    assert device.describe_machine().startswith("On NO device: figures of a CPU")
    with pytest.raises(SystemExit):  # a miniature is not kept among the results
        device.main(["--small"])


def test_all_of_it_takes_six_minutes_at_most():
    assert device.WHOLE <= 360 - 10  # to begin and to end
    apart = ("table3", *device.ON_REQUEST)
    fixed = [part.seconds for name, part in device.PARTS.items() if name not in apart]
    assert sum(fixed) < device.WHOLE - 60  # what is left to the last
