"""Files that are whole or absent, whoever is killed while writing one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dpjax import _files
from dpjax import accounting as acc

posix = pytest.mark.skipif(os.name != "posix", reason="elsewhere nothing is removed")

# A process that writes the file of its argument, and waits in the middle of it.
_WRITER = """
import pathlib, sys, time
from dpjax._files import write_atomically
def parts():
    yield b"half"
    print("writing", flush=True)
    time.sleep(60)
write_atomically(pathlib.Path(sys.argv[1]), parts())
"""


@posix
def test_what_a_killed_writer_leaves_is_removed_by_the_next_and_nothing_else(tmp_path):
    file = tmp_path / "a.json"
    others = [".a.json.swp", ".a.json.original", ".b.json.abcdefgh.part", "a.json.part"]
    for name in others:  # an editor's, a user's, another file's
        (tmp_path / name).write_text("kept")
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(file)], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writing\n"
        writers[0].kill()
        writers[0].wait()
        partial = [*tmp_path.glob(".a.json.*.part")]
        assert len(partial) == 2
        _files.write_atomically(file, b"whole")
        assert file.read_bytes() == b"whole"
        assert len([*tmp_path.glob(".a.json.*.part")]) == 1  # of the writer that is alive
        writers[1].kill()
        writers[1].wait()
        _files.write_atomically(file, b"again")
        assert sorted(os.listdir(tmp_path)) == sorted([*others, "a.json"])
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()


@posix
def test_the_next_booking_removes_what_a_killed_one_left(tmp_path):
    ledger = acc.LedgerFile(tmp_path / "ledger.json")
    ledger.create(acc.Ledger(3.0, 1e-5))
    (tmp_path / ".ledger.json.ab1_cd2e.part").write_text('{"half"')  # as a killed one leaves it
    ledger.book(acc.certify(acc.Gaussian(9.0), 1e-6))
    assert sorted(os.listdir(tmp_path)) == ["ledger.json", "ledger.json.lock"]


def test_a_writer_whose_file_is_taken_for_abandoned_makes_another(tmp_path, monkeypatch):
    """Between making a file and locking it another process may have removed it."""
    file, real, taken = tmp_path / "a.json", _files.take_lock, []

    def take(opened, *, wait=False):
        if not taken:
            taken.append(opened)
            (partial,) = tmp_path.iterdir()
            partial.unlink()
        real(opened, wait=wait)

    monkeypatch.setattr(_files, "take_lock", take)
    _files.write_atomically(file, b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert file.read_bytes() == b"whole"


def test_a_writer_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    file = tmp_path / "a.json"
    _files.write_atomically(file, b"old")

    def parts():
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _files.write_atomically(file, parts())
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert file.read_bytes() == b"old"
