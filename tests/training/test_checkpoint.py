"""Kill at any moment, resume, and end with the same bits."""

from __future__ import annotations

import json
import os
import pathlib
import random
import shutil
import signal
import stat
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import accounting as acc
from dpjax import training
from dpjax.training.checkpoint import keyed_digest

STEPS = 60

# The run of the kill test: a Poisson-sampled plan, momentum, a checkpoint at nearly every row.
SCRIPT = """
import pathlib, sys, time
import jax, jax.numpy as jnp, numpy as np, optax
from dpjax import accounting as acc, training

folder, pause = pathlib.Path(sys.argv[1]), float(sys.argv[2])
rng = np.random.default_rng(0)
x = rng.normal(size=(80, 3)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.int32)
model = training.logistic(3)
plan = training.Plan(
    acc.Repeated(acc.PoissonSampled(acc.Gaussian(2.0), 0.25), 60),
    clip_norm=1.0, population=80, delta=1e-5)

def log(row):
    print(row["step"], flush=True)
    time.sleep(pause)

score = training.accuracy(model, x, y)
found = training.fit(
    training.cross_entropy(model), model.init(jax.random.key(0)), (x, y), plan,
    optimizer=optax.sgd(0.5, momentum=0.9), key=jax.random.key(7), folder=folder, resume=True,
    checkpoint_every=4, log_every=2, evaluate=lambda p: {"accuracy": score(p)}, on_log=log)
np.savez(folder.parent / "result.npz", **found.params, **found.metrics)
"""


def start(folder: pathlib.Path, cache: pathlib.Path, pause: float) -> subprocess.Popen:
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-c", SCRIPT, str(folder / "checkpoint"), str(pause)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def finish(folder: pathlib.Path, cache: pathlib.Path) -> dict[str, np.ndarray]:
    process = start(folder, cache, pause=0.0)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    with np.load(folder / "result.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def test_killed_at_random_steps_and_resumed_ends_with_the_same_bits(tmp_path):
    cache = tmp_path / "compiled"
    whole = finish(tmp_path / "whole", cache)
    chance = random.Random(20_260_101)
    reached = []
    for target in sorted(chance.sample(range(6, STEPS - 4), 3)):
        process = start(tmp_path / "killed", cache, pause=0.02)
        assert process.stdout is not None
        seen = 0
        for line in process.stdout:
            seen = int(line)
            if seen >= target:
                break
        time.sleep(chance.uniform(0.0, 0.15))  # anywhere within a step, a row or a save
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)  # also closes the pipes
        assert process.returncode == -signal.SIGKILL
        reached.append(seen)
    assert 0 < reached[0] < reached[-1] < STEPS
    assert not (tmp_path / "killed" / "result.npz").exists()
    resumed = finish(tmp_path / "killed", cache)
    assert set(whole) == set(resumed) >= {"weights", "bias", "epsilon", "train_loss", "accuracy"}
    for name, values in whole.items():
        assert values.tobytes() == resumed[name].tobytes(), name


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A short run in `tmp_path`, with what the test changes of it."""
    monkeypatch.setattr(acc, "epsilon", lambda run, *_, **__: np.ones(np.shape(run.steps)))
    x = np.arange(12, dtype=np.float32).reshape(6, 2) / 12

    def call(data=x, steps=6, noise=1.0, clip_norm=1.0, **options):
        plan = training.Plan(
            acc.Repeated(acc.Gaussian(noise), steps),
            clip_norm=clip_norm,
            population=len(data),
            delta=1e-5,
        )
        settings = {"optimizer": optax.sgd(0.1, momentum=0.9), "key": jax.random.key(2)} | options
        return training.fit(
            lambda w, row: jnp.sum((w - row) ** 2),
            jnp.zeros(2),
            data,
            plan,
            folder=tmp_path / "checkpoint",
            log_every=2,
            checkpoint_every=2,
            **settings,
        )

    return call


class Interrupted(Exception):
    pass


def stop_at(step):
    def on_log(row):
        if row["step"] >= step:
            raise Interrupted

    return on_log


def test_resume_keeps_the_stored_key_not_the_new_one(run, tmp_path):
    with pytest.raises(Interrupted):
        run(on_log=stop_at(2))
    resumed = run(resume=True, key=jax.random.key(99))
    shutil.rmtree(tmp_path / "checkpoint")
    whole = run()
    assert np.asarray(resumed.params).tobytes() == np.asarray(whole.params).tobytes()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"clip_norm": 2.0}, r"its clip norm differs \(1.0 there, 2.0 here\)"),
        ({"noise": 2.0}, "its mechanism differs"),
        ({"data": np.ones((6, 2), np.float32)}, "its data differs"),
        ({"data": np.ones((7, 2), np.float32)}, "its data differs"),
        ({"optimizer": optax.sgd(0.1)}, "its model and optimiser differs"),
        ({"identity": {"learning rate": 3}}, "its learning rate differs"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_and_kept(run, tmp_path, changes, named):
    with pytest.raises(Interrupted):
        run(on_log=stop_at(2))
    before = sorted(path.name for path in (tmp_path / "checkpoint").iterdir())
    with pytest.raises(training.CheckpointError, match=named):
        run(resume=True, **changes)
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == before


def test_a_new_run_does_not_write_into_an_old_one(run):
    run()
    with pytest.raises(training.CheckpointError, match="resume it, or choose another folder"):
        run()


def test_without_its_key_a_run_is_not_continued(run, tmp_path):
    run()
    training.discard_key(tmp_path / "checkpoint")
    with pytest.raises(training.CheckpointError, match=r"has no noise_key\.json"):
        run(resume=True)


def test_the_key_lies_beside_the_checkpoint_and_never_in_it(run, tmp_path):
    key = jax.random.key(123_456_789)
    with pytest.raises(Interrupted):
        run(on_log=stop_at(4), key=key)
    folder = tmp_path / "checkpoint"
    secret = folder / "noise_key.json"
    assert json.loads(secret.read_text())["words"] == np.asarray(jax.random.key_data(key)).tolist()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    words = np.asarray(jax.random.key_data(key)).tobytes()
    for path in folder.rglob("*"):
        if path.is_file() and path != secret:
            assert words not in path.read_bytes()


def test_the_data_digest_needs_the_key():
    rows = np.arange(6.0)
    first, second = (keyed_digest(jax.random.key(k), [rows]) for k in (1, 2))
    assert first != second
    assert first == keyed_digest(jax.random.key(1), [rows.copy()])
    assert first != keyed_digest(jax.random.key(1), [rows + 1e-9])
    assert first != keyed_digest(jax.random.key(1), [rows.astype(np.float32)])


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    training.write_atomically(path, b"old")

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        training.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
