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
import pathlib
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import correlation, gradients, transforms

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


def noise_costs() -> dict[str, float]:
    """Processor seconds of a step's noise alone, for a perceptron of 1.9 million numbers."""
    tree = [jnp.zeros(shape) for shape in TREE]
    chains = {"0": transforms.gaussian_noise(1.0, jax.random.key(0))}
    for bands in (4, 8):
        strategy = correlation.square_root(bands)
        chains[str(bands)] = transforms.correlated_noise(strategy, 1.0, jax.random.key(0))
    runs = {}
    for name, tx in chains.items():

        def step(state, _, tx=tx):
            out, inner = tx.update(tree, state[1])
            return (jax.tree.map(jnp.add, state[0], out), inner), None

        run = jax.jit(lambda s, step=step: jax.lax.scan(step, s, None, length=STEPS)[0])
        runs[name] = (run, (tree, tx.init(tree)))
    return {name: seconds / STEPS for name, seconds in least(runs).items()}


def step_costs(batch: int) -> dict[str, float]:
    """The same for a whole step: per-example gradients of the perceptron, clipped, noise, SGD."""
    key = jax.random.key(0)
    params = [0.03 * jax.random.normal(key, shape) for shape in TREE]
    data = (jax.random.normal(key, (batch, 784)), jnp.zeros(batch, jnp.int32))

    def loss(p, example):
        h = jax.nn.relu(example[0] @ p[0] + p[1])
        h = jax.nn.relu(h @ p[2] + p[3])
        logits = h @ p[4] + p[5]
        return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])

    clipped = gradients.clipped_grad(loss, 1.0)
    chains = {
        "0": transforms.gaussian_noise(1.0, key),
        "8": transforms.correlated_noise(correlation.square_root(8), 1.0, key),
    }
    runs = {}
    for name, noise in chains.items():
        tx = optax.chain(noise, optax.scale(1 / batch), optax.sgd(0.1))

        def step(state, _, tx=tx):
            p, inner = state
            updates, inner = tx.update(clipped(p, data).sum, inner, p)
            return (optax.apply_updates(p, updates), inner), None

        run = jax.jit(lambda s, step=step: jax.lax.scan(step, s, None, length=3)[0])
        runs[name] = (run, (params, tx.init(params)))
    return {name: seconds / 3 for name, seconds in least(runs, repeats=3).items()}


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
        "one use of a record; ours that of `correlation.banded_toeplitz`, which counts them all.",
        "",
        "| steps | separation | bands | error | white | theirs | ours | ours/theirs | theirs, s "
        "| ours, s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for i, (steps, bands, separation, kind) in enumerate(asked):
        work = correlation.Workload(steps)
        how = {"separation": separation, "kind": kind}
        start = time.process_time()
        ours = correlation.banded_toeplitz(bands, workload=work, **how)
        took = time.process_time() - start
        error = work.error(ours, **how)
        row = [steps, separation, bands, kind, f"{work.error(correlation.identity(), **how):.3f}"]
        other, ratio, their_time = "–", "–", "–"
        if theirs:
            column, seconds = theirs["strategies"][i]
            # Their float32 may leave the last coefficients out of order by one rounding.
            strategy = correlation.Toeplitz(tuple(np.minimum.accumulate(column).tolist()))
            value = work.error(strategy, **how)
            other, ratio, their_time = f"{value:.5f}", f"{error / value:.6f}", f"{seconds:.1f}"
        row += [other, f"{error:.5f}", ratio, their_time, f"{took:.1f}"]
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
    for bands, seconds in noise.items():
        label = "white" if bands == "0" else f"{bands} bands"
        other, ratio = "–", "–"
        if theirs and bands in theirs["cost"]:
            other = f"{1e3 * theirs['cost'][bands]:.1f}"
            ratio = f"{theirs['cost'][bands] / theirs['cost']['0']:.2f}"
        mine = f"{seconds / noise['0']:.2f}"
        lines.append(f"| {label} | {1e3 * seconds:.1f} | {mine} | {other} | {ratio} |")
    lines += [
        "",
        "A whole step: clipped per-example gradients of the same perceptron, noise, SGD.",
        "",
        "| records | white, ms | 8 bands, ms | ratio |",
        "|---|---|---|---|",
    ]
    for batch in (64,):
        found = step_costs(batch)
        white, banded = found["0"], found["8"]
        ratio = f"{banded / white:.3f}"
        lines.append(f"| {batch} | {1e3 * white:.1f} | {1e3 * banded:.1f} | {ratio} |")
    file = RESULTS / "correlated.md"
    file.write_text("\n".join(lines) + "\n")
    print(file.read_text())


if __name__ == "__main__":
    main()
