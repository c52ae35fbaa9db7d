"""Kill a run at random moments from its start on, resume it, and compare the bits.

    python -m benchmarks.killed_runs --kills 50

Each trial starts a run in a folder of its own, kills it (SIGKILL) after a time drawn uniformly from
the length of a whole run, resumes it to the end and compares every array with those of a run that
was left alone. One process imports the libraries and forks before JAX starts, so that a trial costs
a run and no import. Prints one JSON object: how many were killed at which stage, and how many of
the resumed ones ended with the same bits.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import signal
import tempfile
import time

import jax
import numpy as np
import optax

from dpjax import accounting as acc
from dpjax import training

STEPS = 40


def run(folder: pathlib.Path) -> None:
    """A Poisson-sampled run with momentum and two metrics; its result goes beside the folder."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    model = training.logistic(3)
    step = acc.PoissonSampled(acc.Gaussian(2.0), 0.25)
    plan = training.Plan(acc.Repeated(step, STEPS), clip_norm=1.0, population=80, delta=1e-5)
    score = training.accuracy(model, x, y)
    found = training.fit(
        training.cross_entropy(model),
        model.init(jax.random.key(0)),
        (x, y),
        plan,
        optimizer=optax.sgd(0.5, momentum=0.9),
        key=jax.random.key(7),
        folder=folder / "checkpoint",
        resume=True,
        checkpoint_every=3,
        log_every=2,
        evaluate=lambda params: {"accuracy": score(params)},
        on_log=lambda row: time.sleep(0.05),
    )
    np.savez(folder / "partial.npz", **found.params, **found.metrics)
    os.replace(folder / "partial.npz", folder / "result.npz")


def started(folder: pathlib.Path) -> int:
    """The process number of a run that has just begun."""
    folder.mkdir(exist_ok=True)
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        run(folder)
        code = 0
    finally:
        os._exit(code)


def finished(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """The arrays that a run ends with, resumed where it was killed."""
    _, status = os.waitpid(started(folder), 0)
    if status:
        raise RuntimeError(f"the run in {folder} did not end: {status}")
    with np.load(folder / "result.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def stage(folder: pathlib.Path) -> str:
    """How far a killed run had come."""
    if (folder / "result.npz").exists():
        return "finished"
    if list(folder.glob("checkpoint/step-*.ckpt")):
        return "with a checkpoint"
    return "with its key" if (folder / "checkpoint/noise_key.json").exists() else "before its key"


def main() -> None:
    """Run the trials and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        jax.config.update("jax_compilation_cache_dir", str(root / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        finished(root / "first")  # fills the cache of compiled programs
        began = time.monotonic()
        whole = finished(root / "whole")
        length = time.monotonic() - began
        stages: dict[str, int] = {}
        same = 0
        for trial in range(options.kills):
            folder = root / f"{trial}"
            child = started(folder)
            time.sleep(chance.uniform(0.0, length))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            reached = stage(folder)
            stages[reached] = stages.get(reached, 0) + 1
            found = finished(folder)
            same += found.keys() == whole.keys() and all(
                found[name].tobytes() == whole[name].tobytes() for name in whole
            )
    print(json.dumps({"kills": options.kills, "same bits": same, "killed": stages}))


if __name__ == "__main__":
    main()
