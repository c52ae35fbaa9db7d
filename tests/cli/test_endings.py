"""How a command ends that cannot go on: one line, the right exit code, nothing half written."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax.cli import app, endings

_QUICK = [sys.executable, "-m", "dpjax", "--version"]


def dpjax(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_an_answer_that_meets_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(_QUICK, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: the answer cannot be written: No space left on device\n"


def test_a_closed_pipe_ends_a_command_by_its_signal():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(_QUICK, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    # Exit code 1 would say that a certificate does not hold.
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


def test_an_interrupt_that_an_import_turns_into_an_error_is_an_interrupt(capsys):
    def command():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("while initializing the extension") from None

    with pytest.raises(SystemExit) as end:
        endings.run(command)
    assert end.value.code == 130
    assert capsys.readouterr().err == "\ninterrupted; nothing was written\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_meets_the_garbage_collector_is_not_lost(capsys):
    def at_collection(phase, info):
        if phase == "start":
            signal.raise_signal(signal.SIGINT)

    def command():
        gc.callbacks.append(at_collection)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(at_collection)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        endings.run(command)
    assert capsys.readouterr().err == ""


def test_verify_says_that_it_was_interrupted(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    path = tmp_path / "certificate.json"
    path.write_text(acc.certify(acc.Gaussian(4.0), 1e-5).to_json())
    monkeypatch.setattr(acc.Certificate, "verify", interrupted)
    found = dpjax("verify", path)
    assert found.exit_code == 130
    assert "interrupted; nothing was written" in found.output


@pytest.mark.parametrize("command", ["verify", "report"])
def test_a_certificate_is_read_no_further_than_certificates_go(command, tmp_path):
    out = () if command == "verify" else ("--out", tmp_path / "report.html")
    endless = dpjax(command, "/dev/zero", *out)
    assert endless.exit_code == 1
    assert "REFUSED: certificate field 'json': must have at most" in endless.output
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG\xff")
    found = dpjax(command, picture, *out)
    assert found.exit_code == 2
    assert found.output == f"error: the certificate must be a text in UTF-8, got {picture}\n"
