"""Where compiled programs are kept, and that they hold no records and no keys."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib

import numpy as np
import pytest

from dpjax.cli import compiled

_NAMES = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_ENABLE_COMPILATION_CACHE",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
)


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    for name in _NAMES:
        monkeypatch.setenv(name, "")  # so that it is as it was afterwards
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "dpjax" / "compiled"


def test_programs_are_kept_in_a_folder_of_the_user_alone(fresh):
    compiled.keep_programs()
    (folder,) = fresh.iterdir()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("how", ["false", "0", "off"])
def test_nothing_is_kept_where_it_is_not_wanted(fresh, monkeypatch, how):
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", how)
    compiled.keep_programs()
    assert not fresh.exists()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_a_folder_of_the_users_own_is_left_as_it_is(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "own"))
    compiled.keep_programs()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "own")
    assert not fresh.exists()


@pytest.mark.skipif(os.name != "posix", reason="of the modes of POSIX")
def test_programs_that_others_may_write_are_not_run(fresh, monkeypatch):
    compiled.keep_programs()
    (folder,) = fresh.iterdir()
    folder.chmod(0o777)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    compiled.keep_programs()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_the_older_half_goes_where_there_is_too_much(fresh, monkeypatch):
    compiled.keep_programs()
    (folder,) = fresh.iterdir()
    for number in range(10):
        file = folder / f"{number}-cache"
        file.write_bytes(bytes(100))
        os.utime(file, (number, number))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    compiled.keep_programs()
    assert len(list(folder.iterdir())) == 10
    monkeypatch.setattr(compiled, "_MOST_BYTES", 999)
    compiled._remove_oldest(folder)
    assert sorted(file.name for file in folder.iterdir()) == [f"{n}-cache" for n in range(5, 10)]


_RUN = """
import sys
import jax, numpy as np
from dpjax import training
from dpjax.training.descent import add_places
from dpjax.training.tables import TableSettings
n, width, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
jax.config.update("jax_compilation_cache_dir", folder)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.config.update("jax_compilation_cache_expect_pgle", False)
hits = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **given: hits.append(given.get("fun_name"))
    if name.endswith("cache_retrieval_time_sec") else None)
x = np.frombuffer(b"\\x5a\\x31\\x7e\\x3d", np.float32) * np.ones((n, width), np.float32)
made = TableSettings.choose(n, columns=7, steps=3, batch_size=64)
plan = training.make_plan(n, noise_multiplier=2.0 + n / 1e6, delta=1e-5, **made.plan_settings)
places = made.count_places(width)
model = made.training_model(places)
key = jax.random.wrap_key_data(np.array([0x6b3a91c4, 0x29d7f05e], np.uint32))
result = training.fit(
    made.loss(places), model.init(jax.random.key(0)), (add_places(x, places), np.arange(n) % 2),
    plan, optimizer=made.optimizer(plan.noise_multiplier), key=key)
print(np.asarray(result.params["weights"]).tobytes().hex(), "/", *sorted(
    file for file in __import__("os").listdir(folder) if file.startswith("jit_advance")))
"""


def _run(records, width, folder):
    environment = {name: value for name, value in os.environ.items() if name not in _NAMES}
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(records), str(width), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip().split(" / ")


@pytest.mark.at_length
def test_runs_of_other_sizes_share_a_program_that_holds_no_records_and_no_key(tmp_path):
    _, first = _run(2_001, 21, tmp_path)
    _, second = _run(2_040, 22, tmp_path)  # whose learning rate is another, too
    assert first == second  # no other program was compiled
    secrets = [b"\x5a\x31\x7e\x3d", *np.array([0x6B3A91C4, 0x29D7F05E], np.uint32)]
    contents = [file.read_bytes() for file in tmp_path.iterdir() if file.name.endswith("-cache")]
    assert contents
    for content in map(_unpack, contents):
        assert not any(bytes(secret) in content for secret in secrets)
    assert any(b"HloModule" in _unpack(one) or b"advance" in _unpack(one) for one in contents)


def _unpack(content):
    try:
        import zstandard
    except ImportError:
        return zlib.decompress(content)
    return zstandard.ZstdDecompressor().decompress(content)
