"""The private step that `fit` compiles, over the plain one: `python -m benchmarks.step`.

Both are one program: `training_step` with its draw of records, clipped sum, noise and optimiser,
and the mean gradient of a batch that is there, with the same noise and optimiser. The draw and the
gather of its records are timed apart, as a program of their own: a plain run has to fetch its batch
too. A sample of varying size stands in more places than a batch of that size ("places"). A call
takes as many steps as fill a third of a second, since `fit` takes those of half a second: a call's
temporary memory is fresh, which costs a CPU more than it costs `fit`. Figures are a step's, the
least of interleaved rounds; memory is what XLA allots beyond arguments and results, and of the
plain step its batch too, which the private one gathers. Of Opacus it is the quicker of hooks and
ghost clipping, on a batch that is there. Peers that are not installed are left out and say so. What
takes too long at a batch is not run at larger ones.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.clipping import Embedding, Perceptron, Recurrent, SmallKernels, Transformer, task
from dpjax import accounting, training
from dpjax._numerics.normal import normal_like
from dpjax.training.draws import Draws, make_draws
from dpjax.training.step_config import failure_probability

CLIP, SIGMA, RATE = 1.0, 1.0, 0.1
BATCHES = (64, 256, 1024, 4096, 16384)
OPTIMIZERS = {"momentum": optax.sgd(RATE, momentum=0.9), "adam": optax.adam(1e-3)}
MOST_SECONDS, MOST_BYTES = 12.0, 8e9  # of a step, beyond which a program is not timed
CALL_SECONDS, MOST_STEPS = 0.3, 256  # of a call
ROUNDS_SECONDS = 8.0  # of a cell's rounds, after which no other is begun


class Model(NamedTuple):
    """A model: its modules, the shape of a record, its classes, and its name in `torch_models`."""

    module: Any
    shape: tuple[int, ...]
    classes: int
    in_torch: str
    tokens: int = 0  # of a vocabulary, where records are tokens


MODELS = {
    "logistic": Model(Perceptron((2,)), (100,), 2, "logistic 100-2"),
    "perceptron": Model(Perceptron((256, 10)), (784,), 10, "perceptron 784-256-10"),
    "wide": Model(Perceptron((1024, 1024, 10)), (784,), 10, "perceptron 784-1024-1024-10"),
    "cnn": Model(SmallKernels(), (32, 32, 3), 10, "CNN, 3 convolutions"),
    "embedding": Model(Embedding(), (64,), 2, "embedding", tokens=10_000),
    "transformer": Model(Transformer(), (64, 16), 10, "transformer"),
    "lstm": Model(Recurrent(), (28, 28), 10, "LSTM"),
}


class Cell(NamedTuple):
    """What was measured of a program; None where it was not run."""

    seconds: float | None
    first: float  # seconds of tracing, compiling and the first call
    megabytes: float
    note: str = ""


def make_plan(batch: int) -> training.Plan:
    """Poisson samples of a quarter of the records, so many on average."""
    run = accounting.Repeated(accounting.PoissonSampled(accounting.Gaussian(SIGMA), 0.25), 1000)
    return training.Plan(run, clip_norm=CLIP, population=4 * batch, delta=1e-5)


def draws_of(batch: int) -> Draws:
    """What a step draws: samples, each of which stands in `capacity` places."""
    plan = make_plan(batch)
    return make_draws(plan, None, failure_probability(plan))


def make_task(name: str, records: int) -> Any:
    """The model and so many records."""
    model = MODELS[name]
    key, shape = jax.random.key(0), (records, *model.shape)
    if model.tokens:
        return task(name, model.module, jax.random.randint(key, shape, 0, model.tokens), 2)
    return task(name, model.module, jax.random.normal(key, shape), model.classes)


def programs(name: str, batch: int, optimizer: Any, alone: bool) -> dict[str, Callable[[], Any]]:
    """What is timed, each a function that makes (jitted function, its arguments)."""
    t, plan = make_task(name, 4 * batch), make_plan(batch)
    some = jax.tree.map(lambda leaf: leaf[:batch], t.batch)
    key = jax.random.key(1)

    def plain():
        def step(params, state, batch, key):
            def mean(params):
                return jax.vmap(t.loss, (None, 0))(params, batch).mean()

            gradient = jax.grad(mean)(params)
            noise = normal_like(key, gradient)
            noisy = jax.tree.map(lambda g, z: g + SIGMA * CLIP / batch_size * z, gradient, noise)
            updates, state = optimizer.update(noisy, state, params)
            return optax.apply_updates(params, updates), state

        batch_size = batch
        return step, (t.params, optimizer.init(t.params), some, key)

    def private():
        step = training.training_step(t.loss, t.params, plan, optimizer=optimizer)
        return step.update, (step.init(t.params), t.batch, key)

    def gather():
        draws = draws_of(batch)

        def take(data, key, step):
            rows = draws.draw(key, step)[0][: draws.capacity]
            return jax.tree.map(lambda leaf: leaf[rows], data)

        return take, (t.batch, key, jnp.int32(0))

    own = {"plain": plain, "gather": gather, "private": private}
    return own if alone else own | peers(t, some, batch, optimizer)


def peers(t: Any, some: Any, batch: int, optimizer: Any) -> dict[str, Callable[[], Any]]:
    """The whole step of jax_privacy on a batch that is there, where it is installed."""
    if not importlib.util.find_spec("jax_privacy"):
        return {}

    def jax_privacy():
        from jax_privacy import clipping

        def step(params, state, batch_of, key):
            clipped = clipping.clipped_grad(
                t.loss, argnums=0, batch_argnums=1, keep_batch_dim=False, l2_clip_norm=CLIP,
                microbatch_size=32,
            )  # fmt: skip
            total = clipped(params, batch_of)
            noise = normal_like(key, total)
            noisy = jax.tree.map(lambda g, z: (g + SIGMA * CLIP * z) / batch, total, noise)
            updates, state = optimizer.update(noisy, state, params)
            return optax.apply_updates(params, updates), state

        return step, (t.params, optimizer.init(t.params), some, jax.random.key(1))

    return {"jax_privacy": jax_privacy}


def opacus_steps(name: str, batch: int, optimizer: str) -> dict[str, Callable[[], Any]]:
    """The private steps of Opacus on a batch that is there, by hooks and by ghost clipping."""
    if not importlib.util.find_spec("opacus"):
        return {}
    from benchmarks import torch_models

    x, y = (np.array(leaf) for leaf in make_task(name, batch).batch)
    rate = 1e-3 if optimizer == "adam" else RATE
    found = torch_models.steps(MODELS[name].in_torch, x, y, CLIP, SIGMA, rate, optimizer)
    found = {what: step for what, step in found.items() if what.startswith("Opacus")}
    parameters = sum(leaf.size for leaf in jax.tree.leaves(make_task(name, 1).params))
    if 4 * parameters * batch > MOST_BYTES:  # what the hooks keep: every record's gradient
        found.pop("Opacus hooks", None)
    return found


def repeated(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`(number, *arguments)`: so many steps in one call, each from what the one before has left."""

    def run(number, *arguments):
        if what == "gather":
            data, key, first = arguments
            none = jax.tree.map(jnp.zeros_like, jax.eval_shape(function, *arguments))
            take = lambda own, _: function(data, key, first + own)  # noqa: E731
            return jax.lax.fori_loop(0, number, take, none)

        def take(_, arguments):
            if what == "private":
                state, data, key = arguments
                return function(state, data, key)[0], data, key
            params, state, batch, key = arguments
            return *function(params, state, batch, key), batch, jax.random.fold_in(key, 1)

        return jax.lax.fori_loop(0, number, take, arguments)[0]

    return run


def repeat(step: Callable[[], Any], number: int) -> None:
    """So many steps of a library that has no compiled loop."""
    for _ in range(number):
        step()


def measure(
    name: str, batch: int, optimizer: str, rounds: int, over: dict[str, Cell], alone: bool
) -> dict[str, Cell]:
    """Every program of a cell in interleaved rounds, but what was over at a smaller batch."""
    found: dict[str, Cell] = {}
    ready = {}
    for what, make in programs(name, batch, OPTIMIZERS[optimizer], alone).items():
        if what in over:
            found[what] = over[what]
            continue
        began = time.perf_counter()
        try:
            function, arguments = make()
            one = jnp.int32(1)
            compiled = jax.jit(repeated(what, function)).lower(one, *arguments).compile()
        except Exception as error:  # of a peer's, or no memory: the other programs go on
            print(f"{name} {batch} {what}: {error}", file=sys.stderr)
            found[what] = Cell(None, 0.0, 0.0, f"failed: {type(error).__name__}")
            continue
        bytes_taken = compiled.memory_analysis().temp_size_in_bytes
        if what == "plain":  # the private step's batch is among its temporaries
            bytes_taken += sum(leaf.nbytes for leaf in jax.tree.leaves(arguments[2]))
        if bytes_taken > MOST_BYTES:
            found[what] = Cell(None, 0.0, bytes_taken / 1e6, "over 8 GB")
            continue
        jax.block_until_ready(compiled(one, *arguments))
        first, began = time.perf_counter() - began, time.perf_counter()
        jax.block_until_ready(compiled(one, *arguments))
        seconds = time.perf_counter() - began
        if seconds > MOST_SECONDS:
            found[what] = Cell(None, first, bytes_taken / 1e6, f"over {MOST_SECONDS:.0f} s")
            continue
        steps = max(2, min(MOST_STEPS, round(CALL_SECONDS / seconds)))
        call = functools.partial(compiled, jnp.int32(steps), *arguments)
        ready[what] = call, steps, first, bytes_taken / 1e6
    for what, step in ({} if alone else opacus_steps(name, batch, optimizer)).items():
        if what in over:
            found[what] = over[what]
            continue
        began = time.perf_counter()
        step()
        first, began = time.perf_counter() - began, time.perf_counter()
        step()
        seconds = time.perf_counter() - began
        if seconds > MOST_SECONDS:
            found[what] = Cell(None, first, 0.0, f"over {MOST_SECONDS:.0f} s")
            continue
        steps = max(2, min(MOST_STEPS, round(CALL_SECONDS / seconds)))
        ready[what] = functools.partial(repeat, step, steps), steps, first, 0.0
    least = dict.fromkeys(ready, float("inf"))
    started = time.perf_counter()
    for number in range(rounds):
        if number and time.perf_counter() - started > ROUNDS_SECONDS:
            break
        for what, (call, steps, *_) in ready.items():
            began = time.perf_counter()
            jax.block_until_ready(call())
            least[what] = min(least[what], (time.perf_counter() - began) / steps)
    return found | {what: Cell(least[what], *ready[what][2:]) for what in ready}


def row(name: str, batch: int, optimizer: str, cells: dict[str, Cell], alone: bool) -> str:
    """One line of the table."""
    plain, gather, private = (cells[what] for what in ("plain", "gather", "private"))

    def time_of(cell: Cell | None) -> str:
        if cell is None:
            return "–" if alone else "not installed"
        return cell.note if cell.seconds is None else f"{1e3 * cell.seconds:.3g}"

    ratio = whole = "–"
    if plain.seconds and gather.seconds and private.seconds:
        whole = f"{private.seconds / plain.seconds:.2f}"
        ratio = f"{private.seconds / (plain.seconds + gather.seconds):.2f}"
    memory = f"{plain.megabytes:,.0f} / {private.megabytes:,.0f}"
    first = f"{plain.first:.1f} / {private.first:.1f}"
    opacus = [cell for what, cell in cells.items() if what.startswith("Opacus")]
    quicker = min(opacus, key=lambda cell: cell.seconds or float("inf"), default=None)
    peers = cells.get("jax_privacy"), quicker
    times = " | ".join(map(time_of, (plain, gather, private, *peers)))
    of = f"{name} | {batch:,} | {draws_of(batch).capacity:,} | {optimizer}"
    return f"| {of} | {times} | {whole} | {ratio} | {memory} | {first} |"


HEAD = (
    "| model | batch | places | optimiser | plain | draw and gather | private | jax_privacy "
    "| Opacus | private / plain | private / (plain + gather) | MB, plain and batch / private "
    "| first call, s |\n" + "|---" * 13 + "|\n"
)


class Row(NamedTuple):
    """A line of the table, and the cell that it is of."""

    model: str
    batch: int
    optimizer: str
    line: str

    def place(self) -> tuple[int, int, int]:
        """Where it stands in the table."""
        return [*MODELS].index(self.model), self.batch, [*OPTIMIZERS].index(self.optimizer)


def read_rows(file: pathlib.Path | None) -> list[Row]:
    """The rows that an earlier run has left."""
    if file is None or not file.exists():
        return []
    return [Row(*json.loads(line)) for line in file.read_text().splitlines()]


def write_table(file: pathlib.Path, rows: list[Row], rounds: int) -> None:
    """The table, sorted, of all rows so far."""
    device = jax.devices()[0]
    lines = (row.line for row in sorted(rows, key=Row.place))
    file.write_text(
        "# A private step as it is run, beside a plain one\n\n"
        f"Milliseconds, the least of up to {rounds} interleaved rounds. Device: "
        f"{device.device_kind} ({device.platform}), {len(os.sched_getaffinity(0))} of "
        f"{os.cpu_count()} cores; jax {jax.__version__}; load average {os.getloadavg()[0]:.1f} "
        f"at the end. Made by `python -m benchmarks.step {' '.join(sys.argv[1:])}`.\n\n"
        f"{HEAD}" + "\n".join(lines) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--batches", nargs="*", type=int, default=list(BATCHES))
    parser.add_argument(
        "--optimizers", nargs="*", default=list(OPTIMIZERS), choices=list(OPTIMIZERS)
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--alone", action="store_true", help="without peers")
    parser.add_argument("--minutes", type=float, default=10.0, help="no cell is begun after them")
    parser.add_argument(
        "--out", type=pathlib.Path,
        help="a file for the table; beside it, ending in .jsonl, the rows, which another run keeps",
    )  # fmt: skip
    options = parser.parse_args()
    store = options.out and options.out.with_suffix(".jsonl")
    rows, began = read_rows(store), time.monotonic()
    done = {row[:3] for row in rows}
    over: dict[tuple[str, str], dict[str, Cell]] = {}  # what takes too long, by model and optimiser
    print(HEAD, end="", flush=True)
    cells = itertools.product(options.batches, options.models, options.optimizers)
    for batch, name, optimizer in cells:  # small batches first: what is cut off is the dearest
        if (name, batch, optimizer) in done:
            continue
        if time.monotonic() - began > 60 * options.minutes:
            print(f"{options.minutes:g} minutes are over: the same command goes on", flush=True)
            break
        try:
            known = over.setdefault((name, optimizer), {})
            found = measure(name, batch, optimizer, options.rounds, known, options.alone)
            known |= {what: cell for what, cell in found.items() if cell.note.startswith("over")}
            line = row(name, batch, optimizer, found, options.alone)
        except Exception as error:  # it is said, and the next cell goes on
            print(f"{name} {batch} {optimizer}: {error}", file=sys.stderr)
            line = (
                f"| {name} | {batch:,} | | {optimizer} | failed: {type(error).__name__} |"
                + 8 * " |"
            )
        rows.append(Row(name, batch, optimizer, line))
        print(line, flush=True)
        if options.out:
            with store.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            write_table(options.out, rows, options.rounds)
        jax.clear_caches()


if __name__ == "__main__":
    main()
