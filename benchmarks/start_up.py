"""Processor seconds before the first rows of `fit`, beside a plain jitted step; and many leaves.

    python -m benchmarks.start_up

On scikit-learn's digits: a plain step of softmax regression (traced, compiled, run once), the first
`fit` up to its first trained row, a second, identical `fit`, and one of a new process that finds
the compiled programs in JAX's cache. Then the noise of a tree of 1,000 small leaves; the step of
`benchmarks.clipping`'s convolutional network, traced and compiled, the least of three; and new
processes, the least of five: `import jax` alone, and `dpjax epsilon`. Prints one JSON object.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import optax

from benchmarks import clipping
from dpjax import data, training, transforms

BATCH = 359
QUERY = "-m dpjax epsilon --noise-multiplier 1.1 --rate 0.01 --steps 1000 --delta 1e-5"


def seconds(function) -> float:
    """Processor time of one call."""
    began = time.process_time()
    function()
    return time.process_time() - began


def in_a_new_process(*arguments: str) -> float:
    """Processor time of Python with these arguments, the least of five."""
    found = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def digits():
    """The loss, its first parameters and the records."""
    table = data.load_table("digits")
    records = data.from_frame(table.train, target=table.target, schema=table.schema)
    x, y = jnp.asarray(records.features), jnp.asarray(records.labels)
    model = training.softmax(x.shape[1], 10)
    jax.block_until_ready(jax.jit(lambda a: a + 1)(jnp.ones(3)))  # the backend itself
    return training.cross_entropy(model), model.init(jax.random.key(0)), x, y


def first_row(loss, params, x, y) -> float:
    """Processor time of `fit` up to its first trained row."""
    settings = {"delta": 1e-4, "steps": 200, "batch_size": BATCH, "clip_norm": 0.5}
    plan = training.make_plan(len(y), epsilon=3.0, **settings)
    rows: list[float] = []
    began = time.process_time()
    training.fit(
        loss,
        params,
        (x, y),
        plan,
        optimizer=optax.sgd(2.0, momentum=0.9),
        on_log=lambda row: rows.append(time.process_time() - began),
    )
    return rows[1]


def first_row_of_kept_programs() -> float:
    """The same in a new process, after another has filled JAX's cache."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.start_up", folder]
        runs = [subprocess.run(command, check=True, capture_output=True) for _ in range(2)]
    return float(runs[-1].stdout)


def compilations() -> dict[str, float]:
    """Processor time until a step is compiled, without clipping and with it, both with noise."""
    (task,) = (t for t in clipping.tasks() if t.name == "CNN, 2 convolutions")
    steps, found = clipping.steps(task), {}
    for name in ("non-private + noise", "dpjax ghost"):
        took = []
        for _ in range(3):
            jax.clear_caches()
            program = jax.jit(steps[name])
            took.append(
                seconds(
                    lambda p=program: p.lower(task.params, task.batch, jax.random.key(0)).compile()
                )
            )
        found[f"{name}, compiled"] = min(took)
    return found


def main() -> None:
    """Measure and print."""
    if len(sys.argv) > 1:
        jax.config.update("jax_compilation_cache_dir", sys.argv[1])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        print(first_row(*digits()))
        return
    loss, params, x, y = digits()

    def plain():
        optimizer = optax.sgd(2.0, momentum=0.9)

        @jax.jit
        def step(params, state, rows):
            def mean(params):
                return jnp.mean(jax.vmap(loss, (None, 0))(params, (x[rows], y[rows])))

            updates, state = optimizer.update(jax.grad(mean)(params), state, params)
            return optax.apply_updates(params, updates), state

        jax.block_until_ready(step(params, optimizer.init(params), jnp.arange(BATCH)))

    found = {"plain step": seconds(plain)}
    for name in ("first fit", "second fit"):
        found[f"{name}, first trained row"] = first_row(loss, params, x, y)
    found["fit of kept programs, first trained row"] = first_row_of_kept_programs()
    leaves = [jnp.zeros((3, number % 7 + 1)) for number in range(1_000)]
    noise = transforms.gaussian_noise(1.0, jax.random.key(0))
    state = noise.init(leaves)
    found["noise of 1,000 leaves"] = seconds(
        lambda: jax.jit(noise.update).lower(leaves, state).compile()
    )
    found |= compilations()
    found["import jax, new process"] = in_a_new_process("-c", "import jax")
    found["dpjax epsilon, new process"] = in_a_new_process(*QUERY.split())
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


if __name__ == "__main__":
    main()
