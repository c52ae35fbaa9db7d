"""How a command ends that cannot go on: one line, the right exit code, nothing half written."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from dpjax import accounting as acc
from dpjax.cli import app, signals
from dpjax.cli.run import describe_saved_steps

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


def test_a_second_interrupt_that_an_import_turns_into_an_error_is_an_interrupt(capsys):
    def command():
        signal.raise_signal(signal.SIGINT)
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("while initializing the extension") from None

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as end:
        signals.run(command)
    assert end.value.code == 130
    assert capsys.readouterr().err == "\ninterrupted; nothing was written\n"
    assert signal.getsignal(signal.SIGINT) is before


def _from_compiled_code():
    """An interrupt within a comparison that a sort of compiled code asks for."""

    class Number(int):
        def __lt__(self, other):
            signal.raise_signal(signal.SIGINT)
            done.append("compared")
            return int(self) < int(other)

    done = []
    sorted([Number(2), Number(1)])
    return done


def _from_the_collector():
    """An interrupt within a callback of the garbage collector, where Python drops errors."""
    done = []

    def at_collection(phase, info):
        if phase == "start":
            signal.raise_signal(signal.SIGINT)
            done.append("collected")

    gc.callbacks.append(at_collection)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(at_collection)
    return done


@pytest.mark.parametrize("foreign", [_from_compiled_code, _from_the_collector])
def test_an_interrupt_begins_in_a_function_of_the_package(foreign, capsys):
    reached = []

    def command():
        reached.extend(foreign())
        acc.epsilon(acc.Gaussian(1.0), 1e-5)
        reached.append("after it")

    with pytest.raises(KeyboardInterrupt):
        signals.run(command)
    assert len(reached) == 1
    assert capsys.readouterr().err == ""
    assert sys.getprofile() is None


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("signal.raise_signal(signal.SIGINT)", 130),
        ("sys.exit(2)", 2),
        ("sys.exit()", 0),
        ("print('said')", 0),
    ],
)
def test_a_process_ends_with_its_command_and_runs_nothing_after_it(command, code):
    """Tearing down what threads of the compiler still use ended in signals of the system."""
    lines = f"""
import atexit, os, signal, sys
from dpjax.cli import signals
atexit.register(os.abort)
def command():
    {command}
signals.finish_process(command)
"""
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "said\n" * ("said" in command))
    assert done.stderr == ("\ninterrupted\n" if code == 130 else "")


_TRAIN = ("train", "--data", "digits", "--epsilon", "1")


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        ("inspect", _TRAIN, "interrupted; nothing was written"),
        ("typer", _TRAIN, "interrupted; nothing was written"),
        ("dpjax.cli.report", _TRAIN, "interrupted; nothing was written"),
        ("rich.console", _TRAIN, "interrupted"),  # in the command, before its own handlers
        ("pandas", _TRAIN, "interrupted; nothing was written"),
        (
            "dpjax.accounting",
            ("epsilon", "--noise-multiplier", "1", "--delta", "1e-5"),
            "interrupted",
        ),
    ],
)
@pytest.mark.processes
def test_an_interrupt_while_modules_load_is_answered_in_one_line(module, arguments, said, tmp_path):
    lines = f"""
import signal, sys
class Finder:
    def find_spec(name, *_):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.modules.pop({module!r}, None)
sys.meta_path.insert(0, Finder)
sys.argv[1:] = {arguments!r}
from dpjax.__main__ import main
main()
"""
    # In an empty folder: where a run is finished, that is said before its data are read.
    done = subprocess.run(
        [sys.executable, "-c", lines], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.startswith(f"\n{said}")
    assert done.stderr.count("\n") == 2


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ((), "nothing was written"),
        (("lock",), "nothing was written"),
        (("noise_key.json",), "its noise but no step is saved in"),
        (("noise_key.json", "step-000000000003.ckpt"), "the last completed step is saved in"),
    ],
)
def test_an_interrupted_run_claims_what_is_in_its_folder(files, said, tmp_path):
    (tmp_path / "checkpoint").mkdir()
    for name in files:
        (tmp_path / "checkpoint" / name).touch()
    assert describe_saved_steps(tmp_path).startswith(said)
    assert ("--resume goes on" in describe_saved_steps(tmp_path)) == ("saved" in said)


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
