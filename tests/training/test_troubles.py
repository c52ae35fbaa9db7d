"""Damaged files, full disks, two runs in one folder: one clear error, and nothing is lost."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

import jax
import numpy as np
import pytest

from dpjax import training


def bits(found):
    return np.asarray(found.params).tobytes(), found.metrics["train_loss"].tobytes()


@pytest.fixture
def whole(run, tmp_path):
    return bits(run(folder=tmp_path / "whole"))


@pytest.fixture
def stopped(run, stop_at, tmp_path):
    """The folder of a run that stopped at step 4, with the checkpoints of steps 2 and 4."""
    with pytest.raises(stop_at.error):
        run(on_log=stop_at(4))
    folder = tmp_path / "checkpoint"
    assert [path.name[-6:-5] for path in sorted(folder.glob("*.ckpt"))] == ["2", "4"]
    return folder


def newest(folder):
    return sorted(folder.glob("*.ckpt"))[-1]


DAMAGE = {
    "empty": lambda b: b"",
    "one byte": lambda b: b[:1],
    "cut in half": lambda b: b[: len(b) // 2],
    "last byte lost": lambda b: b[:-1],
    "a byte more": lambda b: b + b"\0",
    "a bit flipped early": lambda b: bytes([b[0] ^ 1]) + b[1:],
    "a bit flipped in the header": lambda b: b[:30] + bytes([b[30] ^ 1]) + b[31:],
    "a bit flipped in the numbers": lambda b: b[:-60] + bytes([b[-60] ^ 1]) + b[-59:],
    "a bit flipped in the code": lambda b: b[:-1] + bytes([b[-1] ^ 1]),
    "zeros": lambda b: bytes(len(b)),
    "something else": lambda b: b"PK\x03\x04" + b,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.at_length(every=4)
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(run, stopped, whole, damage):
    path = newest(stopped)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    with pytest.warns(UserWarning, match=r"step-0*4\.ckpt is passed over"):
        found = run(resume=True)
    assert bits(found) == whole


def test_all_checkpoints_damaged_begins_again_with_the_same_key(run, stopped, whole):
    for path in stopped.glob("*.ckpt"):
        path.write_bytes(b"?")
    with (
        pytest.warns(UserWarning, match="passed over"),
        pytest.warns(UserWarning, match="key is not used"),
    ):
        found = run(resume=True, key=jax.random.key(77))
    assert bits(found) == whole


def test_the_newest_checkpoint_removed(run, stopped, whole):
    newest(stopped).unlink()
    assert bits(run(resume=True)) == whole


def test_a_folder_in_the_place_of_a_checkpoint(run, stopped, whole):
    newest(stopped).unlink()
    newest(stopped).with_name("step-000000000005.ckpt").mkdir()
    with pytest.warns(UserWarning, match="passed over"):
        found = run(resume=True)
    assert bits(found) == whole


def test_a_checkpoint_of_another_run_copied_in_is_passed_over(run, stopped, whole, tmp_path):
    run(folder=tmp_path / "other", key=jax.random.key(5))
    other = newest(tmp_path / "other")
    (stopped / other.name).write_bytes(other.read_bytes())
    with pytest.warns(UserWarning, match=r"step-0*6\.ckpt is passed over"):
        found = run(resume=True)
    assert bits(found) == whole


def test_what_a_killed_save_left_behind_is_no_checkpoint(run, stopped, whole):
    (stopped / ".step-000000000006.ckpt.x7").write_bytes(b"half")
    (stopped / ".noise_key.json.x7").write_bytes(b"of another key, which nothing would discard")
    assert bits(run(resume=True)) == whole
    assert not list(stopped.glob(".*"))


def flipped(text):
    content = json.loads(text)
    content["words"][-1] ^= 1
    return json.dumps(content).encode()


GARBLED = {
    "empty": lambda b: b"",
    "cut": lambda b: b[: len(b) // 2],
    "no JSON": lambda b: b"\xff\xfe\x00",
    "a list": lambda b: b"[]",
    "a number": lambda b: b"3",
    "no words": lambda b: b'{"implementation": "threefry2x32"}',
    "another key": flipped,
    "another generator": lambda b: b.replace(b"threefry2x32", b"rbg"),
    "another identity": lambda b: b.replace(b'"clip norm": 1.0', b'"clip norm": 2.0'),
}


@pytest.mark.parametrize("damage", GARBLED)
def test_a_garbled_key_file_is_refused_and_kept(run, stopped, damage):
    file = stopped / "noise_key.json"
    content = GARBLED[damage](file.read_bytes())
    file.write_bytes(content)
    with pytest.raises(training.CheckpointError, match=r"noise_key\.json is damaged .* restore"):
        run(resume=True)
    assert file.read_bytes() == content
    assert newest(stopped).exists()


def test_a_folder_that_is_a_file(run, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(training.CheckpointError, match="choose another folder"):
        run(folder=tmp_path / "file")
    with pytest.raises(training.CheckpointError, match="choose another folder"):
        run(folder=tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_nobody_can_make(run):
    with pytest.raises(training.CheckpointError, match="/proc/nowhere/run: making the folder"):
        run(folder="/proc/nowhere/run")


CODES = {
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "choose a folder that can be written",
    errno.ENOSPC: "free some space and resume",
    errno.EDQUOT: "free some space and resume",
    errno.EIO: "look after the disk, then resume",
}


def refuse(monkeypatch, code, name, after=0):
    """Make the operating system refuse to write a file of this name from now on."""
    original, seen = tempfile.mkstemp, []

    def mkstemp(*args, prefix=None, **kwargs):
        if prefix is not None and name in prefix:
            seen.append(prefix)
            if len(seen) > after:
                raise OSError(code, os.strerror(code))
        return original(*args, prefix=prefix, **kwargs)

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)


@pytest.mark.parametrize("code", CODES)
def test_no_step_is_taken_where_the_key_cannot_be_stored(run, monkeypatch, code, tmp_path):
    refuse(monkeypatch, code, "noise_key")
    rows = []
    message = rf"writing noise_key\.json failed .* nothing was begun; {CODES[code]}"
    with pytest.raises(training.CheckpointError, match=message):
        run(on_log=rows.append)
    assert rows == []
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["lock"]


BEGUN = {"lock", "noise_key.json", "key_by_hand.note"}  # of a run with a key of the user's own


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("after", [0, 1])
def test_a_disk_that_fills_up_loses_nothing(run, monkeypatch, whole, code, after, tmp_path, capfd):
    with monkeypatch.context() as patch:
        refuse(patch, code, ".ckpt", after=after)
        kept = "the checkpoint of step 2 is whole" if after else "nothing is lost"
        with pytest.raises(training.CheckpointError, match=f"{kept}; {CODES[code]}"):
            run()
    names = {path.name for path in (tmp_path / "checkpoint").iterdir()}
    assert names == {*BEGUN, *(["step-000000000002.ckpt"] if after else [])}
    assert "Traceback" not in "".join(capfd.readouterr())
    assert bits(run(resume=True)) == whole


def test_a_real_limit_on_the_size_of_files(run, whole, tmp_path):
    """The operating system itself refuses, in the middle of a write."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    # The key and its identity fit, a checkpoint with its table does not.
    evaluate = {"evaluate": lambda params: {f"column {i}": 0.0 for i in range(1_000)}}
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
    try:
        with pytest.raises(
            training.CheckpointError, match=r"saving step 2 failed .* limit on file"
        ):
            run(**evaluate)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name for path in (tmp_path / "checkpoint").iterdir()} == BEGUN
    assert bits(run(resume=True, **evaluate)) == whole


def test_ctrl_c_in_the_middle_of_a_save_saves_again(run, whole, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        original, calls = os.fsync, []

        def fsync(handle):
            calls.append(handle)
            if len(calls) == 5:  # the key and the note took two each: the file and the folder
                raise KeyboardInterrupt
            return original(handle)

        patch.setattr(os, "fsync", fsync)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert [path.name for path in (tmp_path / "checkpoint").glob("*.ckpt")] == [
        "step-000000000002.ckpt"
    ]
    assert bits(run(resume=True)) == whole


def test_an_error_of_the_user_s_own_loses_no_step(run, whole, tmp_path):
    def evaluate_once(params, calls=[0]):  # noqa: B006 (counts the calls)
        calls[0] += 1
        if calls[0] == 3:
            raise ZeroDivisionError
        return {}

    with pytest.raises(ZeroDivisionError):
        run(evaluate=evaluate_once, checkpoint_every=None)
    (saved,) = (tmp_path / "checkpoint").glob("*.ckpt")
    assert saved.name == "step-000000000004.ckpt"
    assert bits(run(resume=True, evaluate=lambda params: {}, checkpoint_every=None)) == whole


def test_the_second_run_in_a_folder_is_refused_while_the_first_lasts(run, tmp_path, whole):
    refused = []

    def second(row):
        for resume in (False, True):
            with pytest.raises(training.CheckpointError) as error:
                run(resume=resume)
            refused.append(str(error.value))

    first = run(on_log=second)
    assert f"in use by another run (process {os.getpid()} on" in refused[0]
    assert len(refused) == 8  # two at each of four rows
    assert bits(first) == whole
    assert bits(run(resume=True)) == whole


@pytest.mark.processes
def test_another_process_is_refused_and_a_dead_one_holds_nothing(tmp_path):
    code = (
        "import os, pathlib, sys; from dpjax.training.checkpoint import lock_folder; "
        "lock = lock_folder(pathlib.Path(sys.argv[1])); print('held', flush=True); "
        "sys.stdin.read(); os._exit(9)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(training.CheckpointError, match=f"process {holder.pid} on"):
        training.Checkpoints(tmp_path)
    holder.communicate("")
    assert holder.returncode == 9
    training.Checkpoints(tmp_path).close()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_without_the_right_to_write(run, tmp_path):
    (tmp_path / "checkpoint").mkdir(mode=0o500)
    with pytest.raises(training.CheckpointError, match="choose a folder that can be written"):
        run()


def test_a_lock_that_cannot_be_written(run, tmp_path, monkeypatch):
    folder = pathlib.Path(tmp_path / "checkpoint")
    (folder / "lock").mkdir(parents=True)
    with pytest.raises(training.CheckpointError, match="locking failed"):
        run()
