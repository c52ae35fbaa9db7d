"""What dpjax costs on a machine with a GPU, in one command of at most six minutes.

    python -m benchmarks.device                      # into results/device.md
    python -m benchmarks.device --small --out FILE   # a miniature, on whatever there is
    python -m benchmarks.device --only noise fit --out FILE
    python -m benchmarks.device --only images --out FILE    # CIFAR-10 beside the published

Every part is a process of its own and has a limit in seconds: a part that fails is written down
with its error, one that runs out of time with the rows it has made, and the next begins. Table III
of duan2025 takes the time that is left. It reads CIFAR-10 from `DPJAX_SHARED/data` (by default
`shared/data`, here or beside the repository), which is unpacked meanwhile; without it the part says
so.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import export

import dpjax
from benchmarks import image_accuracy, models
from dpjax import accounting as acc
from dpjax import training
from dpjax._numerics.normal import normal, normal_like

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = pathlib.Path(__file__).parent / "results" / "device.md"
WHOLE = 350.0  # seconds of all parts together
_SHARED = next((f for f in (ROOT / "shared", ROOT.parent / "shared") if f.is_dir()), ROOT)
_DATA = pathlib.Path(os.environ.get("DPJAX_SHARED", _SHARED)) / "data"
_IMAGES = "DPJAX_UNPACKED_IMAGES"  # where the part finds what is unpacked meanwhile
_CLIP = 1.0
_RATE = 48.0  # of Table III: the middle one of those that the reduced table tries
_ERRORS = 3  # lines of an error that are shown
Row = Sequence[str]


class Sizes(NamedTuple):
    """How much each part does.

    Fields:
        repeats: timed calls of which the median is taken.
        levels: whether the contour has all of its lines, or its first alone.
        settings, sweeps: of the sweep, and the methods that price it.
        numbers: of noise.
        perceptron, images, recurrent, transformer: arguments of the models of `benchmarks.models`.
        steps: of the run that is resumed.
        rows, batches, divisor: of Table III, and what a batch and its noise are divided by.
    """

    repeats: int = 20
    levels: bool = True
    settings: int = 10_000
    sweeps: tuple[str, ...] = ("rdp", "contour")
    numbers: int = 100_000_000
    perceptron: tuple[Any, ...] = (4_096, (784, 1_024, 1_024))
    images: tuple[Any, ...] = (1_024, (32, 64, 128))
    recurrent: tuple[Any, ...] = (1_024, 128)
    transformer: tuple[Any, ...] = (128, 256, 4, 128, 8_000)
    steps: int = 200
    rows: tuple[str, ...] = ("DP", "GeoDP β=0.1", "G3")
    batches: tuple[int, ...] = (16_384, 8_192)
    divisor: int = 1


SMALL = Sizes(
    repeats=2,
    levels=False,
    settings=300,
    sweeps=("rdp",),
    numbers=10_000,
    perceptron=(8, (6, 5)),
    images=(4, (2, 3), 8),
    recurrent=(4, 3, 4, 5),
    transformer=(2, 64, 1, 4, 16),
    steps=6,
    rows=("DP",),
    batches=(16_384,),
    divisor=1_024,
)


class Part(NamedTuple):
    """One section of the results.

    Fields:
        title: above its table.
        columns: of the table.
        seconds: that it may take.
        rows: makes them, one after another.
    """

    title: str
    columns: Row
    seconds: float
    rows: Callable[[Sizes], Iterator[Row]]


# ------------------------------------------------------------------------------ helpers


def _seconds(value: float) -> str:
    if value >= 1:
        return f"{value:.3g} s"
    return f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} µs"


def _medians(calls: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Seconds of each call by the clock, one after another in every round, after one to warm up."""
    times: list[list[float]] = [[] for _ in calls]
    for number in range(repeats + 1):
        for own, call in zip(times, calls, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(call())
            if number:
                own.append(time.perf_counter() - start)
    return [statistics.median(own) for own in times]


def _median(call: Callable[[], Any], repeats: int) -> float:
    return _medians([call], repeats)[0]


def _compiled(function: Callable[..., Any], *given: Any) -> tuple[Any, float]:
    """The program, and how long it took to trace and compile."""
    start = time.perf_counter()
    program = jax.jit(function).lower(*given).compile()
    return program, time.perf_counter() - start


# ------------------------------------------------------------------------------ the accountant


def _sampled(sigma: Any) -> acc.Mechanism:
    return acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), 0.01), 1_000)


def _descent(sigma: Any) -> acc.Mechanism:
    return acc.NoisyGradientDescent(100, 0.1, 0.01, sigma, 0.5, 1.0)


# Of a noise multiplier, and the one at which they are asked.
_QUERIES: dict[str, tuple[Callable[[Any], Any], float]] = {
    "Gaussian: ε": (lambda s: acc.epsilon(acc.Repeated(acc.Gaussian(s), 100), 1e-5), 8.0),
    "Gaussian: δ": (lambda s: acc.delta(acc.Repeated(acc.Gaussian(s), 100), 1.0), 20.0),
    "last iterate: ε": (
        lambda s: acc.epsilon(_descent(s), 1e-5, adjacency="replace-one"),
        0.1,
    ),
    "Rényi: ε": (lambda s: acc.epsilon(_sampled(s), 1e-5, method="rdp"), 1.1),
}
_CONTOUR: dict[str, tuple[Callable[[Any], Any], float]] = {
    "contour: ε": (lambda s: acc.epsilon(_sampled(s), 1e-5, method="contour"), 1.1),
}


def _ask(queries: dict[str, Any], sizes: Sizes) -> Iterator[Row]:
    """Each query as operations of the device, in float64 within a float32 program."""
    number = jax.ShapeDtypeStruct((), jnp.float32)
    for name, (query, sigma) in queries.items():
        start = time.perf_counter()
        # Exported, a program has the operations on a CPU too, where it would call NumPy.
        exported = export.export(jax.jit(query))(number)
        traced = time.perf_counter() - start
        program, compiling = _compiled(exported.call, number)
        at = np.float32(sigma)
        took = _median(lambda: program(at), sizes.repeats)  # noqa: B023
        host = float(query(float(at)))
        start = time.perf_counter()
        query(float(at))
        once = time.perf_counter() - start
        found = float(np.asarray(program(at)))
        apart = f"{found / host - 1:.1e}"
        yield (
            name,
            _seconds(traced),
            _seconds(compiling),
            _seconds(took),
            _seconds(once),
            f"{found:.7g}",
            f"{host:.7g}",
            apart,
        )


def _ask_contour(sizes: Sizes) -> Iterator[Row]:
    """The first line alone, which takes a quarter of the time to compile; then all of them."""
    from unittest import mock

    from dpjax.accounting.contour import method

    with mock.patch.object(method, "_LEVELS", (0,)):
        for row in _ask(_CONTOUR, sizes):
            yield (f"{row[0]}, its first line", *row[1:])
    if sizes.levels:
        yield from _ask(_CONTOUR, sizes)


def _sweep(sizes: Sizes) -> Iterator[Row]:
    """Noise multipliers from .6 to 8: the first call compiles."""
    sigmas = np.geomspace(0.6, 8.0, sizes.settings)
    some = np.linspace(0, sizes.settings - 1, 5).astype(int)
    for name in sizes.sweeps:
        times, found = [], np.zeros(0)
        for _ in range(2):
            start = time.perf_counter()
            found = np.asarray(acc.epsilon(_sampled(sigmas), 1e-5, method=name))
            times.append(time.perf_counter() - start)
        alone = [float(acc.epsilon(_sampled(float(s)), 1e-5, method=name)) for s in sigmas[some]]
        apart = np.max(np.abs(found[some] / np.asarray(alone) - 1))
        infinite = int(np.sum(~np.isfinite(found)))
        yield name, f"{sizes.settings:,}", *map(_seconds, times), f"{apart:.1e}", f"{infinite:,}"


# ------------------------------------------------------------------------------ a step


def _finish(params: Any, total: Any, key: Any, records: int) -> Any:
    """The rest of a step: noise, mean, descent."""
    total = jax.tree.map(lambda g, z: g + _CLIP * z, total, normal_like(key, total))
    return jax.tree.map(lambda p, g: p - 0.1 * g / records, params, total)


def _programs(task: models.Task) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """step(params, batch, key): plain with noise, and private."""
    records = len(jax.tree.leaves(task.batch)[0])

    def plain(params, batch, key):
        def total(params):
            return jax.vmap(task.loss, (None, 0))(params, batch).sum()

        return _finish(params, jax.grad(total)(params), key, records)

    def private(params, batch, key):
        total = dpjax.clipped_grad(task.loss, _CLIP)(params, batch).sum
        return _finish(params, total, key, records)

    return plain, private


def _models(sizes: Sizes) -> dict[str, Callable[[], models.Task]]:
    return {
        "perceptron": lambda: models.perceptron(*sizes.perceptron),
        "CNN": lambda: models.convolutional(*sizes.images),
        "LSTM": lambda: models.recurrent(*sizes.recurrent),
        "transformer": lambda: models.language_model(*sizes.transformer),
    }


def _steps(sizes: Sizes) -> Iterator[Row]:
    for name, make in _models(sizes).items():
        task, key = make(), jax.random.key(0)
        numbers = sum(leaf.size for leaf in jax.tree.leaves(task.params))
        records = len(jax.tree.leaves(task.batch)[0])
        given = task.params, task.batch, key
        made = [_compiled(step, *given) for step in _programs(task)]
        calls = [functools.partial(program, *given) for program, _ in made]
        times = _medians(calls, sizes.repeats)
        memory = [p.memory_analysis().temp_size_in_bytes / 1e6 for p, _ in made]
        compiling = [took for _, took in made]
        yield (
            name,
            f"{numbers:,}",
            f"{records:,}",
            *map(_seconds, times),
            f"{times[1] / times[0]:.2f}",
            *(f"{one:,.0f} MB" for one in memory),
            *map(_seconds, compiling),
        )


def _noise(sizes: Sizes) -> Iterator[Row]:
    """Time a number, and the moments of what is drawn beside those of a normal law."""
    count = sizes.numbers
    draws = {"jax.random.normal": jax.random.normal, "dpjax": normal}
    for name, draw in draws.items():
        program, _ = _compiled(lambda key, draw=draw: draw(key, (count,)), jax.random.key(0))
        took = _median(lambda: program(jax.random.key(0)), min(sizes.repeats, 5))  # noqa: B023

        @jax.jit
        def moments(z):
            # Sums of few numbers each first: one of 1e8 in float32 would lose its digits.
            rows = z.reshape(-1, 1_000)
            means = [jnp.mean(rows**power, axis=1) for power in (1, 2, 4)]
            return means, jnp.mean(jnp.abs(rows) > 4.0, axis=1), jnp.max(jnp.abs(z))

        means, far, most = jax.device_get(moments(program(jax.random.key(1))))
        first, second, fourth = (float(np.mean(m, dtype=np.float64)) for m in means)
        root = np.sqrt(count)
        # In standard errors of a normal law: those of z, z² and z⁴ are 1, √2 and √96 over √n.
        off = first * root, (second - 1) * root / np.sqrt(2), (fourth - 3) * root / np.sqrt(96)
        share = float(np.mean(far, dtype=np.float64)) / 6.334248e-5  # 2Φ(−4)
        yield (
            name,
            f"{count:,}",
            _seconds(took),
            f"{took / count * 1e9:.3g}",
            *(f"{one:+.2f}" for one in off),
            f"{share:.3f}",
            f"{float(most):.2f}",
        )


# ------------------------------------------------------------------------------ a run


class _Stopped(Exception):
    """What interrupts a run."""


def _bits(found: training.Fit) -> list[bytes]:
    columns = [np.asarray(found.metrics[name]).tobytes() for name in sorted(found.metrics)]
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(found.params)] + columns


def _resume(sizes: Sizes) -> Iterator[Row]:
    """Each run whole, and another that is interrupted and resumed: are they the same bits?"""
    some = {name: make for name, make in _models(sizes).items() if name in ("perceptron", "LSTM")}
    for name, make in some.items():
        task = make()
        records = len(jax.tree.leaves(task.batch)[0])
        plan = training.make_plan(
            records, noise_multiplier=1.0, delta=1e-5, steps=sizes.steps, batch_size=records // 2
        )
        after = sizes.steps // 2

        def run(folder: pathlib.Path, **more: Any) -> training.Fit:
            return training.fit(
                task.loss,  # noqa: B023
                task.params,  # noqa: B023
                task.batch,  # noqa: B023
                plan,  # noqa: B023
                optimizer=optax.adam(1e-3),
                key=jax.random.key(0),
                log_every=max(1, sizes.steps // 20),
                folder=folder,
                **more,
            )

        def stop(row: dict[str, float]) -> None:
            if row["step"] >= after:  # noqa: B023
                raise _Stopped

        with tempfile.TemporaryDirectory() as folder:
            times, place = [], pathlib.Path(folder)
            start = time.perf_counter()
            whole = _bits(run(place / "whole"))
            times.append(time.perf_counter() - start)
            try:
                run(place / "cut", on_log=stop)
            except _Stopped:
                pass
            else:
                raise AssertionError("the run was not interrupted")
            start = time.perf_counter()
            same = _bits(run(place / "cut", resume=True)) == whole
            times.append(time.perf_counter() - start)
        taken = f"{after:,} of {sizes.steps:,}"
        yield name, taken, *map(_seconds, times), "yes" if same else "NO"


# ------------------------------------------------------------------------------ Table III


def unpack_images(file: pathlib.Path) -> subprocess.Popen[bytes] | None:
    """A process that writes CIFAR-10's images into a file; None where the data set is not there."""
    if not any(_DATA.glob("cifar10-jpeg/*.tar.xz")):
        return None
    # Whole or absent; where it fails, that is what the file's neighbour says.
    code = """
import pathlib, sys, numpy as np
from experiments.images import load_cifar10_jpeg
file = pathlib.Path(sys.argv[2])
try:
    np.savez(file.with_suffix(".part.npz"), *load_cifar10_jpeg(pathlib.Path(sys.argv[1])))
    file.with_suffix(".part.npz").rename(file)
except Exception as error:
    file.with_suffix(".failed").write_text(repr(error))
"""
    return subprocess.Popen([sys.executable, "-c", code, str(_DATA), str(file)], cwd=ROOT)


def _load_images(sizes: Sizes) -> Any:
    """CIFAR-10 as it was unpacked; of a miniature, noise of its shape."""
    from experiments.images import Images

    if sizes.divisor > 1:
        draw = np.random.default_rng(0)
        parts = []
        for count in (500, 100):
            parts.append(draw.uniform(-1, 1, (count, 32, 32, 3)).astype(np.float32))
            parts.append(draw.integers(0, 10, count).astype(np.int32))
        return Images(*parts)
    if not os.environ.get(_IMAGES):
        raise FileNotFoundError(f"no CIFAR-10 in {_DATA}/cifar10-jpeg")
    file = pathlib.Path(os.environ[_IMAGES])
    while not file.exists():  # it is being unpacked; this part's limit ends the wait
        if (failed := file.with_suffix(".failed")).exists():
            raise RuntimeError(f"CIFAR-10 could not be unpacked: {failed.read_text()}")
        time.sleep(0.5)
    with np.load(file) as arrays:
        return Images(*(arrays[name] for name in arrays.files))


def _table3(sizes: Sizes) -> Iterator[Row]:
    """Rows of Table III at σ = .1 with one learning rate and one seed, as each run goes on."""
    from experiments.duan2025 import models as networks
    from experiments.duan2025 import prices, published
    from experiments.duan2025.methods import METHODS, Setting
    from experiments.duan2025.training import Problem, Run, accuracy, train

    images, sigma = _load_images(sizes), 0.1
    network = networks.SmallResNet((2, 2, 2) if sizes.divisor > 1 else (16, 32, 64))
    loss = networks.softmax_loss(network)
    problem = Problem(network, loss, lambda found, label: jnp.argmax(found) == label, images)
    right = accuracy(problem, images.test_images, images.test_labels)
    for batch in sizes.batches:
        for name in sizes.rows:
            steps = 2 if sizes.divisor > 1 else prices.steps(batch, len(images.labels))
            run = Run(batch // sizes.divisor, sigma / sizes.divisor, steps)
            every = max(1, steps // 5)

            def follow(report, name=name, run=run, every=every):
                setting = Setting(_RATE)
                train(problem, METHODS[name], run, setting, 0, evaluate=report, log_every=every)

            start, printed = time.perf_counter(), published.accuracy(name, batch, sigma, "table3")
            for number, params in enumerate(_reports(follow)):
                yield (
                    name,
                    f"{batch:,}",
                    f"{run.batch_size:,}",
                    f"{min(number * every, steps):,} of {steps:,}",
                    _seconds(time.perf_counter() - start),
                    f"{right(params):.2f} %",
                    "–" if printed is None else f"{printed:.2f} %",
                )


def _scattered(sizes: Sizes) -> Iterator[Row]:
    """A private linear model on scattering features of CIFAR-10, beside the published accuracy."""
    (setting,) = (one for one in image_accuracy.SETTINGS if one.name == "cifar10")
    if sizes.divisor > 1:
        setting = setting._replace(epochs=1)
    images = _load_images(sizes)
    start = time.perf_counter()
    train = image_accuracy.features(images.images), images.labels
    test = image_accuracy.features(images.test_images), images.test_labels
    made = time.perf_counter() - start
    batch = max(1, image_accuracy.BATCH // sizes.divisor)
    row = image_accuracy.measure(setting, train, test, 1, batch=batch)
    yield (f"{len(images.labels):,}", _seconds(made), *row)


def _reports(follow: Callable[[Callable[[Any], dict[str, float]]], None]) -> Iterator[Any]:
    """What a function reports to its argument, while it runs."""
    found: queue.Queue[Any] = queue.Queue()

    def report(params: Any) -> dict[str, float]:
        found.put(jax.device_get(params))
        return {}

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        done = pool.submit(follow, report)
        while not done.done() or not found.empty():
            with contextlib.suppress(queue.Empty):
                yield found.get(timeout=0.2)
        done.result()  # raises what it raised


_QUERY_COLUMNS = (
    "query",
    "traced in",
    "compiled in",
    "a call",
    "NumPy on the host",
    "value",
    "the host's",
    "apart",
)
_TAILS = ("share beyond 4σ, of the right one", "largest")
_MEMORY = ("memory, plain", "private", "compiled in, plain", "private")
PARTS: dict[str, Part] = {
    "accountant": Part(
        "The accountant's queries as operations of the device",
        _QUERY_COLUMNS,
        40.0,
        functools.partial(_ask, _QUERIES),
    ),
    "noise": Part(
        "Noise; what is drawn is off by so many standard errors",
        ("by", "numbers", "a call", "ns a number", "mean", "variance", "fourth moment", *_TAILS),
        15.0,
        _noise,
    ),
    "steps": Part(
        "A private step beside a plain one with the same noise",
        ("model", "parameters", "batch", "plain", "private", "ratio", *_MEMORY),
        75.0,
        _steps,
    ),
    "fit": Part(
        "`fit`, interrupted and resumed",
        ("model", "interrupted after steps", "whole run", "rest, resumed", "same bits"),
        40.0,
        _resume,
    ),
    "sweep": Part(
        "A sweep of noise multipliers",
        ("method", "settings", "first call", "second call", "apart from single ones", "infinite"),
        40.0,
        _sweep,
    ),
    "contour": Part(
        "The contour as operations of the device: what it costs",
        _QUERY_COLUMNS,
        75.0,
        _ask_contour,
    ),
    "table3": Part(
        "duan2025, Table III at σ = 0.1: one learning rate, one seed",
        ("method", "B", "B run", "steps", "took", "accuracy", "the paper's"),
        WHOLE,
        _table3,
    ),
    "images": Part(
        "CIFAR-10 at ε = 3 on scattering features",
        ("images", "features took", *image_accuracy.COLUMNS),
        WHOLE,
        _scattered,
    ),
}
ON_REQUEST = ("images",)  # by --only: the six minutes are the others'
_USUAL = [name for name in PARTS if name not in ON_REQUEST]


# ------------------------------------------------------------------------------ the command


class Made(NamedTuple):
    """What became of a part: its rows, its seconds, and why there are no more; "" where all are."""

    rows: list[Row]
    seconds: float
    why: str = ""


def command_of(name: str, small: bool) -> list[str]:
    """The command of a part, which prints a row a line."""
    return [sys.executable, "-m", "benchmarks.device", "--part", name, *["--small"] * small]


def run_part(command: Sequence[str], limit: float, say: Callable[[str], None]) -> Made:
    """Run a part in a process of its own, for so many seconds at most."""
    start, rows = time.monotonic(), []
    with tempfile.TemporaryFile() as errors:
        # What was compiled before would be compiled in no time.
        own = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
        child = subprocess.Popen(command, cwd=ROOT, env=own, stdout=subprocess.PIPE, stderr=errors)
        lines: queue.Queue[bytes] = queue.Queue()

        def read() -> None:
            for line in child.stdout or ():
                lines.put(line)
            lines.put(b"")  # the end

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        why = ""
        try:
            while line := lines.get(timeout=max(0.0, start + limit - time.monotonic())):
                rows.append(json.loads(line))
                say(f"  {' | '.join(rows[-1])}")
            if child.wait():
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip().split("\n")
                why = f"Failed, exit {child.returncode}: {' '.join(said[-_ERRORS:])}"
        except queue.Empty:
            why = f"Stopped after {limit:.0f} s"
        finally:
            child.kill()
            child.wait()
            reader.join()
            if child.stdout is not None:
                child.stdout.close()
    return Made(rows, time.monotonic() - start, why)


def write_part(part: Part, made: Made) -> str:
    """A section of the results."""
    lines = [f"## {part.title}", ""]
    if made.rows:
        rows = [part.columns, ["---"] * len(part.columns), *made.rows]
        lines += ["| " + " | ".join(row) + " |" for row in rows] + [""]
    lines.append(f"{made.why or 'All of it'} ({made.seconds:.0f} s).")
    return "\n".join(lines) + "\n"


def describe_machine() -> str:
    """The device and the versions."""
    device = jax.devices()[0]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jaxlib", "numpy")]
    kind = "a device" if device.platform != "cpu" else "NO device: figures of a CPU"
    return (
        f"On {kind}: {device.device_kind} ({device.platform}, {len(jax.devices())} of them), "
        f"{os.cpu_count()} processors. dpjax {dpjax.__version__}, {', '.join(versions)}, Python "
        f"{platform.python_version()}."
    )


def ask_machine() -> str:
    """The same from a process of its own: this one must hold none of the device's memory."""
    command = [sys.executable, "-m", "benchmarks.device", "--describe"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def measure(names: Sequence[str], small: bool, out: pathlib.Path) -> None:
    """All parts one after another, each written as soon as it is there."""
    start = time.monotonic()
    machine = ask_machine()
    title = "What dpjax costs on a device" + (", in miniature" if small else "")
    sections = [f"# {title}\n\n{machine}\nMade by `python -m benchmarks.device`.\n"]
    print(machine, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "images.npz"
        reading = unpack_images(file) if {"table3", "images"} & {*names} and not small else None
        if reading is not None:
            os.environ[_IMAGES] = str(file)
        try:
            for name in names:
                part, left = PARTS[name], WHOLE - (time.monotonic() - start)
                limit = min(part.seconds, left)
                print(f"{name}: at most {limit:.0f} s of the {left:.0f} s left", flush=True)
                say = functools.partial(print, flush=True)
                made = Made([], 0.0, "No time was left")
                if left > 1:
                    made = run_part(command_of(name, small), limit, say)
                sections.append(write_part(part, made))
                out.write_text("\n".join(sections))
                if made.why:
                    print(f"  {made.why}", flush=True)
        finally:
            if reading is not None:
                reading.kill()
                reading.wait()
    print(f"written to {out} in {time.monotonic() - start:.0f} s")


def main(given: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device", description=__doc__)
    parser.add_argument("--small", action="store_true", help="a miniature")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=_USUAL)
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--describe", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(given)
    if asked.describe:
        print(describe_machine())
    elif asked.part:
        for row in PARTS[asked.part].rows(SMALL if asked.small else Sizes()):
            print(json.dumps(list(row)), flush=True)
    elif asked.small and asked.out == RESULTS:
        parser.error("--out is missing: a miniature is not kept among the results")
    else:
        measure(asked.only, asked.small, asked.out)


if __name__ == "__main__":
    main()
