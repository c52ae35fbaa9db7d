"""`fit(mesh=…)` over the devices of two processes that `jax.distributed` joins on the loopback."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import optax
import pytest

from dpjax import accounting as acc
from dpjax import training

RECORDS, STEPS = 30, 4  # not a multiple of four: the last block is padded


def loss(params, example):
    return jax.numpy.square(jax.numpy.tanh(example @ params["w"]) @ params["v"] - example[0])


def start():
    rng = np.random.default_rng(1)
    w = rng.normal(size=(64, 64)).astype(np.float32) / 8
    return {"w": w, "v": np.full(64, 0.1, np.float32)}


def records():
    return np.random.default_rng(0).normal(size=(RECORDS, 64)).astype(np.float32)


def plan_of(kind):
    mechanism = {
        "poisson": acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.25), STEPS),
        "allocation": acc.RandomAllocation(acc.Gaussian(1.0), STEPS),
    }[kind]
    return training.Plan(mechanism, clip_norm=0.5, population=RECORDS, delta=1e-4)


def trained(kind, divided, mesh, data, **options):
    settings = {"optimizer": optax.sgd(1.0, momentum=0.9), "key": jax.random.key(3)}
    settings |= {"log_every": 1, "evaluate": lambda p: {"size": float(abs(p["w"]).sum())}}
    placement = getattr(training, divided)(mesh)
    return training.fit(loss, start(), data, plan_of(kind), mesh=placement, **settings | options)


def mesh_of(devices):
    return jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])


# ------------------------------------------------------------------------------ a process


def process(number, address, out, folder):
    """What each of the two does; run by `python test_processes.py`."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, 2, number)
    assert (jax.process_count(), len(jax.local_devices()), len(jax.devices())) == (2, 2, 4)
    mesh = jax.make_mesh((4,), ("data",))
    # The rows of the other process: a sum that one of them entered would be NaN.
    own = records()
    own[16:] = own[16:] if number else np.nan
    own[:16] = np.nan if number else own[:16]
    found: dict[str, Any] = {}
    for kind, divided in (("poisson", "fully_sharded"), ("allocation", "data_parallel")):
        # Each has a key of its own; that of the first process counts.
        key = jax.random.key(3 + number)
        data = training.HostData(own) if kind == "allocation" else own
        result = trained(kind, divided, mesh, data, key=key, log_private_losses=True)
        for name, leaf in result.params.items():
            share = leaf.addressable_shards[0].data.size
            assert share == (
                leaf.size // 4 if (name, divided) == ("w", "fully_sharded") else leaf.size
            )
            gather = jax.jit(
                lambda x: x,
                out_shardings=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()),
            )
            found[f"{kind} {name}"] = np.asarray(gather(leaf))
        for name, column in result.metrics.items():
            found[f"{kind} {name}"] = column
    np.savez(f"{out}{number}.npz", **found)

    def killed(row):
        if row["step"] == 2 and number == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    options = {"folder": folder, "checkpoint_every": 1, "on_log": killed}
    trained("poisson", "fully_sharded", mesh, records(), **options)


if __name__ == "__main__":
    process(int(sys.argv[1]), *sys.argv[2:])


# ------------------------------------------------------------------------------ the tests


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two processes found before one of them was killed, and the folder that they left."""
    place = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = re.sub(r"device_count=\d+", "device_count=2", os.environ["XLA_FLAGS"])
    given = [f"127.0.0.1:{port}", str(place / "found"), str(place / "run")]
    both = [
        subprocess.Popen(
            [sys.executable, __file__, str(number), *given],
            env=os.environ | {"XLA_FLAGS": flags},
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (0, 1)
    ]
    try:
        _, said = both[1].communicate(timeout=300)
    finally:
        for one in both:
            one.kill()
    other = both[0].communicate()[1]
    if "gloo" in said.lower() + other.lower() and "not" in said and both[1].returncode == 1:
        pytest.skip(f"this jax has no collectives between processes on CPUs: {said[-300:]}")
    assert both[1].returncode == -signal.SIGKILL, said[-3000:] + other[-3000:]
    found = [dict(np.load(place / f"found{number}.npz")) for number in (0, 1)]
    return found, place / "run"


@functools.cache
def alone(kind, divided):
    return trained(kind, divided, mesh_of(4), records(), log_private_losses=True)


@pytest.mark.parametrize(
    ("kind", "divided"), [("poisson", "fully_sharded"), ("allocation", "data_parallel")]
)
@pytest.mark.processes
def test_two_processes_train_what_one_does_and_load_their_own_rows(two, kind, divided):
    found, _ = two
    expected = alone(kind, divided)
    for one in found:
        for name in ("w", "v"):
            leaf = one[f"{kind} {name}"]
            np.testing.assert_allclose(leaf, expected.params[name], rtol=1e-5, atol=5e-6)
            np.testing.assert_array_equal(leaf, found[0][f"{kind} {name}"])
        for name, column in expected.metrics.items():
            # The draws are those of all records: their number is in the mean loss and the shares.
            np.testing.assert_allclose(one[f"{kind} {name}"], column, rtol=1e-5)
        np.testing.assert_array_equal(one[f"{kind} epsilon"], expected.metrics["epsilon"])


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.processes
def test_one_of_them_killed_the_run_ends_at_the_same_place_on_any_devices(two, tmp_path, devices):
    folder = tmp_path / "run"
    shutil.copytree(two[1], folder)
    assert max(folder.glob("*.ckpt")).name == "step-000000000002.ckpt"
    steps = []
    options = {"folder": folder, "resume": True, "on_log": lambda row: steps.append(row)}
    found = trained("poisson", "fully_sharded", mesh_of(devices), records(), **options)
    expected = alone("poisson", "fully_sharded")
    for name in ("w", "v"):
        np.testing.assert_allclose(found.params[name], expected.params[name], rtol=1e-5, atol=5e-6)
    np.testing.assert_array_equal(found.metrics["epsilon"], expected.metrics["epsilon"])
    np.testing.assert_allclose(found.metrics["size"], expected.metrics["size"], rtol=1e-5)
    assert [np.isnan(row["steps_per_second"]) for row in steps] == [True, True, True, False, False]
