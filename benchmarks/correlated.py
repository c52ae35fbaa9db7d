"""Correlated noise beside jax_privacy: error at equal ε, time to find a strategy, cost of a step.

    python -m benchmarks.correlated [--peer PYTHON]

Writes benchmarks/results/correlated.md. PYTHON is an interpreter that has jax_privacy, which wants
versions of its own; without it the peer's columns say so. Errors of both strategies come from one
formula here (`Workload.error`, checked by dense linear algebra in the tests), in float64. Times are
processor seconds: this machine is shared.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import correlation, training, transforms

RESULTS = pathlib.Path(__file__).parent / "results"
# steps, bands, steps between two uses of a record
SETTINGS = [(500, 8, 500), (500, 8, 50), (500, 50, 50), (500, 100, 50)]
TREE = ((784, 1024), (1024,), (1024, 1024), (1024,), (1024, 10), (10,))
STEPS = 10

# Runs in the peer's own environment; what it prints is one line of JSON.
PEER = """
import json, sys, time
import jax, jax.numpy as jnp, numpy as np
from importlib.metadata import version
from jax_privacy import noise_addition
from jax_privacy.matrix_factorization import toeplitz
wanted = json.loads(sys.argv[1])
found = {"version": version("jax_privacy"), "jax": version("jax"), "strategies": [], "cost": {}}
for steps, bands, kind in wanted["strategies"]:
    start = time.process_time()
    loss = jnp.mean if kind == "mean" else jnp.max
    c = toeplitz.optimize_banded_toeplitz(n=steps, bands=bands, reduction_fn=loss)
    c = np.asarray(c, np.float64)
    found["strategies"].append([c.tolist(), time.process_time() - start])
tree = [jnp.zeros(s) for s in wanted["tree"]]
for bands in (0, 8):
    if bands:
        c = toeplitz.optimal_max_error_strategy_coefs(bands)
        matrix = toeplitz.inverse_as_streaming_matrix(c)
        tx = noise_addition.matrix_factorization_privatizer(matrix, stddev=1.0, prng_key=0)
    else:
        tx = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=0)
    def step(state, _):
        out, inner = tx.update(tree, state[1])
        return (jax.tree.map(jnp.add, state[0], out), inner), None
    run = jax.jit(lambda s: jax.lax.scan(step, s, None, length=wanted["steps"])[0])
    state = (tree, tx.init(tree))
    jax.block_until_ready(run(state))
    times = []
    for _ in range(4):
        start = time.process_time()
        jax.block_until_ready(run(state))
        times.append(time.process_time() - start)
    found["cost"][str(bands)] = min(times) / wanted["steps"]
print(json.dumps(found))
"""


def peer(python: str | None, wanted: dict) -> dict | None:
    """What jax_privacy finds, or None where there is none."""
    if python is None:
        return None
    command = [python, "-c", PEER, json.dumps(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


NOISES = {
    "white": correlation.identity(),
    "4 bands of C, kept": correlation.square_root(4),
    "8 bands of C, kept": correlation.square_root(8),
    "3 buffers, kept": correlation.BufferedToeplitz((0.99, 0.77, 0.2), (0.18, 0.24, 0.08)),
    "4 bands of C⁻¹, drawn again": correlation.inverse_square_root(4),
    "8 bands of C⁻¹, drawn again": correlation.inverse_square_root(8),
}


def noise_costs() -> dict[str, float]:
    """Processor seconds of a step's noise alone, for a perceptron of 1.9 million numbers."""
    tree, runs = [jnp.zeros(shape) for shape in TREE], {}
    for name, strategy in NOISES.items():
        tx = transforms.correlated_noise(strategy, 1.0, jax.random.key(0))

        def step(state, _, tx=tx):
            out, inner = tx.update(tree, state[1])
            return (jax.tree.map(jnp.add, state[0], out), inner), None

        run = jax.jit(lambda s, step=step: jax.lax.scan(step, s, None, length=STEPS)[0])
        begun = tx.init(tree)._replace(step=jnp.asarray(20, jnp.int32))
        runs[name] = (run, (tree, begun))
    return {name: seconds / STEPS for name, seconds in least(runs).items()}


def dense(key, shape):
    return {"w": jax.random.normal(key, shape) / shape[0] ** 0.5, "b": jnp.zeros(shape[1])}


def perceptron():
    """784-512-1024-10: 0.94 million numbers."""
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = [(784, 512), (512, 1024), (1024, 10)]
    params = [dense(key, shape) for key, shape in zip(keys, sizes, strict=True)]

    def logits(params, image):
        hidden = image.ravel()
        for layer in params[:-1]:
            hidden = jax.nn.relu(hidden @ layer["w"] + layer["b"])
        return hidden @ params[-1]["w"] + params[-1]["b"]

    return params, logits


def convolutional():
    """Two convolutions and two dense layers of tanh for MNIST: 26,010 numbers."""
    keys = jax.random.split(jax.random.key(0), 4)
    filters = [(8, 8, 1, 16), (4, 4, 16, 32)]
    params = {
        "filters": [
            {"w": 0.1 * jax.random.normal(key, shape), "b": jnp.zeros(shape[-1])}
            for key, shape in zip(keys[:2], filters, strict=True)
        ],
        "dense": [dense(keys[2], (512, 32)), dense(keys[3], (32, 10))],
    }

    def logits(params, image):
        hidden = image[None]
        for layer, padding in zip(params["filters"], ("SAME", "VALID"), strict=True):
            hidden = jax.lax.conv_general_dilated(
                hidden, layer["w"], (2, 2), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            hidden = jnp.tanh(hidden + layer["b"])
            hidden = jax.lax.reduce_window(
                hidden, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID"
            )
        first, last = params["dense"]
        hidden = jnp.tanh(hidden.ravel() @ first["w"] + first["b"])
        return hidden @ last["w"] + last["b"]

    return params, logits


def step_costs(model, batch: int, steps: int = 16) -> dict[str, float]:
    """Processor seconds of a whole step of `fit`, with each noise in place of the other.

    Several steps a call, as `fit` takes them: a call copies the kept noises once.
    """
    params, logits = model
    records = 4 * batch
    data = (jax.random.normal(jax.random.key(1), (records, 28, 28, 1)), jnp.zeros(records, int))

    def loss(params, example):
        found = logits(params, example[0])
        return optax.softmax_cross_entropy_with_integer_labels(found, example[1])

    runs = {}
    for name in ("white", "8 bands of C, kept", "8 bands of C⁻¹, drawn again"):
        plan = training.make_plan(
            records, noise_multiplier=1.0, delta=1e-5, steps=100, batch_size=batch,
            sampling="cyclic", correlation=NOISES[name],
        )  # fmt: skip
        step = training.training_step(loss, params, plan, optimizer=optax.sgd(0.1))

        def several(state, _, step=step):
            return step.update(state, data, jax.random.key(2))[0], None

        run = jax.jit(lambda s, several=several: jax.lax.scan(several, s, None, length=steps)[0])
        # Past the first steps, which have fewer noises to draw again.
        runs[name] = (run, step.init(params) | {"step": jnp.asarray(20, jnp.int32)})
    return {name: seconds / steps for name, seconds in least(runs, repeats=5).items()}


def least(runs: dict, repeats: int = 4) -> dict[str, float]:
    """Processor seconds of each, the least of alternating calls."""
    for run, state in runs.values():
        jax.block_until_ready(run(state))
    times = {name: [] for name in runs}
    for _ in range(repeats):
        for name, (run, state) in runs.items():
            start = time.process_time()
            jax.block_until_ready(run(state))
            times[name].append(time.process_time() - start)
    return {name: min(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter that has jax_privacy")
    options = parser.parse_args()
    asked = [(*setting, kind) for setting in SETTINGS for kind in ("mean",)]
    wanted = [(steps, bands, kind) for steps, bands, _, kind in asked]
    theirs = peer(options.peer, {"strategies": wanted, "tree": TREE, "steps": STEPS})
    name = f"jax_privacy {theirs['version']} (jax {theirs['jax']})" if theirs else "jax_privacy"
    lines = [
        "# Correlated noise",
        "",
        f"Written by `python -m benchmarks.correlated`, jax {jax.__version__}, "
        f"{jax.default_backend()}. Beside {name}{'' if theirs else ': not installed'}.",
        "",
        "Error of prefix sums at noise = sensitivity, so at equal ε: root of the mean over the "
        "steps, or the largest. Theirs is the strategy of `optimize_banded_toeplitz`, which counts "
        "one use of a record; ours that of `correlation.banded_toeplitz`, which counts them all. "
        "C⁻¹ is ours of as many bands of the inverse, `correlation.banded_inverse`, drawn again.",
        "",
        f"Load of the machine (2 cores) at the start: {os.getloadavg()[0]:.1f}; seconds are of the "
        "processor.",
        "",
        "| steps | separation | bands | error | white | theirs | ours | ours/theirs | theirs, s "
        "| ours, s | C⁻¹ | C⁻¹/theirs | C⁻¹, s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for i, (steps, bands, separation, kind) in enumerate(asked):
        work = correlation.Workload(steps)
        how = {"separation": separation, "kind": kind}
        start = time.process_time()
        ours = correlation.banded_toeplitz(bands, workload=work, **how)
        took = time.process_time() - start
        error = work.error(ours, **how)
        row = [steps, separation, bands, kind, f"{work.error(correlation.identity(), **how):.3f}"]
        start = time.process_time()
        inverse = correlation.banded_inverse(bands, workload=work, **how)
        also = time.process_time() - start
        left = work.error(inverse, **how)
        other, ratio, their_time, beside = "–", "–", "–", "–"
        if theirs:
            column, seconds = theirs["strategies"][i]
            # Their float32 may leave the last coefficients out of order by one rounding.
            strategy = correlation.Toeplitz(tuple(np.minimum.accumulate(column).tolist()))
            value = work.error(strategy, **how)
            other, ratio, their_time = f"{value:.5f}", f"{error / value:.6f}", f"{seconds:.1f}"
            beside = f"{left / value:.6f}"
        row += [other, f"{error:.5f}", ratio, their_time, f"{took:.1f}"]
        row += [f"{left:.5f}", beside, f"{also:.1f}"]
        lines.append("| " + " | ".join(map(str, row)) + " |")
        print(lines[-1], flush=True)
    noise = noise_costs()
    lines += [
        "",
        "## Cost of a step",
        "",
        "Processor milliseconds of the noise alone, 1.9 million numbers (784-1024-1024-10).",
        "",
        "| noise | ours, ms | over our white noise | theirs, ms | over their white noise |",
        "|---|---|---|---|---|",
    ]
    peers = {"white": "0", "8 bands of C, kept": "8"}
    for name, seconds in noise.items():
        other, ratio = "–", "–"
        if theirs and name in peers:
            cost = theirs["cost"][peers[name]]
            other, ratio = f"{1e3 * cost:.1f}", f"{cost / theirs['cost']['0']:.2f}"
        mine = f"{seconds / noise['white']:.2f}"
        lines.append(f"| {name} | {1e3 * seconds:.1f} | {mine} | {other} | {ratio} |")
    lines += [
        "",
        "A whole step of `fit`: clipped per-example gradients, noise, SGD.",
        "",
        "| model | records | white, ms | 8 bands of C, kept | 8 bands of C⁻¹, drawn again |",
        "|---|---|---|---|---|",
    ]
    models = {
        "convolutional, 26,010 numbers": (convolutional(), (64, 256)),
        "784-512-1024-10, 0.94 million": (perceptron(), (64, 256, 1024)),
    }
    for label, (model, batches) in models.items():
        for batch in batches:
            white, *others = step_costs(model, batch).values()
            ratios = " | ".join(f"× {seconds / white:.3f}" for seconds in others)
            lines.append(f"| {label} | {batch} | {1e3 * white:.1f} | {ratios} |")
            print(lines[-1], flush=True)
    file = RESULTS / "correlated.md"
    file.write_text("\n".join(lines) + "\n")
    print(file.read_text())


if __name__ == "__main__":
    main()
