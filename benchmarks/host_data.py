"""Peak memory and time to the first row of `fit` on records that are a file.

`python -m benchmarks.host_data --gigabytes 2` writes a file of random records, trains a few steps
in a process of its own, and prints one line of JSON: peak resident memory beyond that of a process
that has imported the same, the memory of JAX's arrays, and seconds to the first and last row.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

FEATURES = 1024
_CHILD = """
import json, resource, sys, time
import jax, jax.numpy as jnp, numpy as np, optax
from dpjax import training

path, records, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
plan = training.make_plan(
    records, noise_multiplier=1.0, delta=1e-8, steps=steps, batch_size=256)
plan.spent(steps)
optimizer, key = optax.sgd(0.1), jax.random.key(0)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
def loss(w, x):
    return jnp.mean((jnp.tanh(x @ w) - x[:16]) ** 2)
start = jnp.zeros((1024, 16))
small = np.zeros((16, 1024), np.float32)
training.fit(loss, start, small, training.make_plan(
    16, noise_multiplier=1.0, delta=1e-4, steps=1, batch_size=4), optimizer=optimizer, key=key)
before, rows = peak(), []
data = np.memmap(path, np.float32, "r", shape=(records, 1024))
began, cpu = time.monotonic(), time.process_time()
found = training.fit(loss, start, data, plan, optimizer=optimizer, key=key, log_every=steps // 4,
    on_log=lambda row: rows.append((row["step"], time.monotonic() - began)))
print(json.dumps({
    "peak GB beyond the imports": round(peak() - before, 3),
    "GB of JAX's arrays at the end": round(
        sum(x.nbytes for x in jax.live_arrays()) / 2**30, 3),
    "seconds to the first row after step 0": round(rows[1][1], 1),
    "seconds": round(time.monotonic() - began, 1),
    "processor seconds": round(time.process_time() - cpu, 1),
}))
"""


def write(path: pathlib.Path, records: int) -> None:
    """Random records, a few thousand at a time."""
    import numpy as np

    rng = np.random.default_rng(0)
    block = rng.normal(size=(4096, FEATURES)).astype(np.float32)
    with path.open("wb") as file:
        for start in range(0, records, len(block)):
            file.write(np.roll(block, start, axis=1)[: records - start].tobytes())


def measure(gigabytes: float, steps: int, path: pathlib.Path) -> dict[str, float]:
    records = int(gigabytes * 2**30 / (4 * FEATURES))
    if not path.exists():
        write(path, records)
    command = [sys.executable, "-c", _CHILD, str(path), str(records), str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return {"gigabytes": gigabytes, "records": records, **json.loads(done.stdout)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.5, 2.0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--folder", type=pathlib.Path, help="where the files are kept")
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = settings.folder or pathlib.Path(temporary)
        for size in settings.gigabytes:
            path = folder / f"records-{size:g}.bin"
            print(json.dumps(measure(size, settings.steps, path)), flush=True)
