"""Processor seconds before the first rows of `fit`, beside a plain jitted step; and many leaves.

    python -m benchmarks.start_up
    python -m benchmarks.start_up --beside FOLDER

On scikit-learn's digits: a plain step of softmax regression (traced, compiled, run once), the first
`fit` up to its first trained row, a second, identical `fit`, and one of a new process that finds
the compiled programs in JAX's cache. Then the noise of a tree of 1,000 small leaves; the step of
`benchmarks.clipping`'s convolutional network, traced and compiled, the least of three; and new
processes, the least of five: `import jax` alone, and `dpjax epsilon`. Prints one JSON object.

With `--beside` new processes run the package of another checkout and this one's in turn, on the
same libraries, and `results/start_up.md` is written: medians of the processor time, and of the
ratios of pairs that ran one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import optax

from dpjax import data, training, transforms

BATCH = 359
QUERY = "-m dpjax epsilon --noise-multiplier 1.1 --rate 0.01 --steps 1000 --delta 1e-5"
_HERE = pathlib.Path(__file__).resolve()
_RESULT = _HERE.parent / "results" / "start_up.md"
_FIRST_EPSILON = """
from dpjax import accounting as acc
acc.epsilon(acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.1), 0.01), 1_000), 1e-5)
"""
_FIRST_FIT = "a first `fit` up to its first trained row, with its imports"
_FIT_ALONE = "the same, without them"
# What runs in new processes of either checkout. `-P` leaves this file's folder out of the path,
# so that names are those of the checkout.
_ALONE = {
    "`import jax`": ["-c", "import jax"],
    "`import dpjax.accounting`": ["-c", "import dpjax.accounting"],
    "the same, and a first ε": ["-c", _FIRST_EPSILON],
    "`dpjax epsilon`": QUERY.split(),
    _FIRST_FIT: ["-P", str(_HERE), "--first"],
}
_HEAD = """\
# Start beside an earlier checkout

Measured by `python -m benchmarks.start_up --beside FOLDER`: processor seconds of new processes, the
package of another checkout and this one's in turn, whose bytecode is compiled. Medians of {rounds}
pairs; beside them the median of the pairs' own ratios, and the ratios between which half of them
lie. Before is commit {before}, now {now}.

| a new process | before | now | now over before | half of the pairs | now over `import jax` |
|---|---|---|---|---|---|
"""


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


def _in_checkout(folder: pathlib.Path, arguments: list[str]) -> tuple[float, str]:
    """Processor time of Python with the package of a checkout, and what it prints."""
    settings = os.environ | {"PYTHONPATH": str(folder)}
    settings.pop("JAX_COMPILATION_CACHE_DIR", None)  # everything is compiled anew
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        cwd=folder,
        env=settings,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, done.stdout


def _commit(folder: pathlib.Path) -> str:
    words = ["git", "-C", str(folder), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def compare_beside(folder: pathlib.Path, rounds: int) -> str:
    """The table of both checkouts: each round runs everything in both, the order in turn."""
    from benchmarks.accounting import _machine

    here = _HERE.parents[1]
    took = {name: {"before": [], "now": []} for name in (*_ALONE, _FIT_ALONE)}
    for number in range(rounds + 1):  # the first compiles bytecode, and is left out
        order = [("before", folder), ("now", here)]
        for name, arguments in _ALONE.items():
            for when, checkout in order if number % 2 else order[::-1]:
                found, printed = _in_checkout(checkout, arguments)
                if number:
                    took[name][when].append(found)
                if number and name == _FIRST_FIT:
                    took[_FIT_ALONE][when].append(float(printed))
    plain = statistics.median([*took["`import jax`"]["before"], *took["`import jax`"]["now"]])
    rows = []
    for name, both in took.items():
        ratios = [b / a for a, b in zip(both["before"], both["now"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        before, now = (statistics.median(both[when]) for when in ("before", "now"))
        rows.append(
            f"| {name} | {before:.2f} | {now:.2f} | {middle:.3f} | {low:.3f} to {high:.3f} | "
            f"{now / plain:.2f} |"
        )
    head = _HEAD.format(rounds=rounds, before=_commit(folder), now=_commit(here))
    return f"{head}{chr(10).join(rows)}\n\n<!-- {_machine()} -->\n"


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
        command = [sys.executable, "-m", "benchmarks.start_up", "--kept", folder]
        runs = [subprocess.run(command, check=True, capture_output=True) for _ in range(2)]
    return float(runs[-1].stdout)


def compilations() -> dict[str, float]:
    """Processor time until a step is compiled, without clipping and with it, both with noise."""
    from benchmarks import clipping  # here: another checkout's first fit has no use for it

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
    """Measure and print, or write the table beside another checkout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=pathlib.Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=15, help="pairs of processes")
    parser.add_argument("--kept", help="a first fit with this folder for compiled programs")
    parser.add_argument("--first", action="store_true", help="a first fit, and no more")
    given = parser.parse_args()
    if given.beside is not None:
        _RESULT.write_text(compare_beside(given.beside.resolve(), given.rounds))
        return
    if given.first or given.kept:
        if given.kept:
            jax.config.update("jax_compilation_cache_dir", given.kept)
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
