"""What a private step costs beside the plain one, and how that grows.

`python -m benchmarks.scaling` writes benchmarks/results/scaling.md: processor time, memory and time
to compile of three models beside the steps of other libraries that are installed; the same against
batch, width, depth, records and steps, with the slope of each; and on 2 to 8 devices of one CPU the
bytes that the devices exchange in a step, beside those of training without privacy. Memory and
traffic are read off the compiled programs, so they do not depend on who else uses the machine; time
is processor time, of all threads. `--size full` takes the models at the sizes they are trained at;
`--model NAME` prints the rows of one model and writes no file.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

# Eight devices of one CPU, before jax is imported; what runs on one is not changed by the others.
if "jax" not in sys.modules:
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from benchmarks.models import Task, language_model, residual_network
from benchmarks.traffic import traffic
from dpjax import training
from dpjax._numerics.normal import normal_like
from dpjax.training import step as steps
from dpjax.training.devices import Placement, place_parameters, place_rows, place_state
from dpjax.training.loop import zero_totals
from dpjax.training.step_config import first_state

_FILE = pathlib.Path(__file__).parent / "results" / "scaling.md"
_CLIP = 1.0


class Sizes(NamedTuple):
    """Of the models: batch, width, and of texts depth, length and words."""

    images: tuple[int, int]
    transformer: tuple[int, int, int, int, int]
    language: tuple[int, int, int, int, int]


_SIZES = {
    "tiny": Sizes((2, 8), (2, 64, 2, 8, 32), (2, 64, 2, 8, 32)),
    "small": Sizes((8, 16), (16, 128, 6, 64, 1_000), (8, 512, 2, 64, 1_000)),
    "full": Sizes((32, 64), (32, 256, 6, 128, 8_000), (16, 512, 6, 256, 16_000)),
}


class Cost(NamedTuple):
    """Of one program.

    Fields:
        seconds: of the processor, a step, the median.
        megabytes: of temporaries.
        compiling: processor seconds.
    """

    seconds: float
    megabytes: float
    compiling: float


def count_of(tree: Any) -> int:
    """Numbers in a tree of arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


# ------------------------------------------------------------------------------ one step


def moved(params, total, key, records, noise=True):
    """The rest of a step: noise, mean, descent."""
    if noise:
        total = jax.tree.map(lambda g, z: g + _CLIP * z, total, normal_like(key, total))
    return jax.tree.map(lambda p, g: p - 0.1 * g / records, params, total)


def programs(task: Task) -> dict[str, Callable[..., Any]]:
    """step(params, batch, key) of every library that is installed."""
    records = len(jax.tree.leaves(task.batch)[0])

    def plain(params, batch, key):
        total = lambda params: jax.vmap(task.loss, (None, 0))(params, batch).sum()  # noqa: E731
        return moved(params, jax.grad(total)(params), key, records, noise=False)

    def ours(params, batch, key):
        return moved(params, dpjax.clipped_grad(task.loss, _CLIP)(params, batch).sum, key, records)

    def aggregate(params, batch, key):
        gradients = jax.vmap(jax.grad(task.loss), (None, 0))(params, batch)
        private = optax.contrib.differentially_private_aggregate(_CLIP, 1.0, key)
        mean, _ = private.update(gradients, private.init(params))
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, mean)

    found = {"plain": plain, "dpjax": ours, "optax aggregate": aggregate}
    if importlib.util.find_spec("jax_privacy"):
        from jax_privacy import clipping

        in_pieces = [("jax_privacy, pieces of 4", 4)] if records % 4 == 0 else []
        for name, size in [("jax_privacy", None), *in_pieces]:
            options = {"argnums": 0, "batch_argnums": 1, "keep_batch_dim": False}
            options |= {"l2_clip_norm": _CLIP, "microbatch_size": size}
            clipped = clipping.clipped_grad(task.loss, **options)
            found[name] = lambda params, batch, key, clipped=clipped: moved(
                params, clipped(params, batch), key, records
            )
    return found


def compiled(step: Callable[..., Any], *given: Any) -> tuple[Any, float, float]:
    """(the program, megabytes of temporaries, processor seconds to compile)."""
    began = time.process_time()
    program = jax.jit(step).lower(*given).compile()
    took = time.process_time() - began
    analysis: Any = program.memory_analysis()
    return program, analysis.temp_size_in_bytes / 1e6, took


def seconds_of(run: Callable[[], Any], repeats: int) -> float:
    """Processor seconds, the median; the first run, which allocates, is left out."""
    jax.block_until_ready(run())
    found = []
    for _ in range(repeats):
        began = time.process_time()
        jax.block_until_ready(run())
        found.append(time.process_time() - began)
    return statistics.median(found)


def cost(step: Callable[..., Any], task: Task, repeats: int) -> Cost:
    given = task.params, task.batch, jax.random.key(0)
    program, megabytes, compiling = compiled(step, *given)
    return Cost(seconds_of(lambda: program(*given), repeats), megabytes, compiling)


# ------------------------------------------------------------------------------ tables


def head(*names: str) -> str:
    return f"{line(*names)}\n{'|---' * len(names)}|"


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def beside_others(tasks: dict[str, Task], repeats: int) -> Iterator[str]:
    yield head("model", "step", "time, ms", "temporaries, MB", "to compile, s")
    for name, task in tasks.items():
        base = None
        for which, step in programs(task).items():
            one = cost(step, task, repeats)
            base = base or one  # the plain step is the first
            times = one.seconds / base.seconds, one.megabytes / base.megabytes
            cells = [f"{1e3 * one.seconds:,.0f} ({times[0]:.2f}×)"]
            cells += [f"{one.megabytes:,.0f} ({times[1]:.2f}×)", f"{one.compiling:.1f}"]
            yield line(f"{name}, {count_of(task.params):,} parameters", which, *cells)


def slope(sizes: Any, values: Any) -> str:
    """Of log value against log size, by least squares."""
    if min(values) <= 0:
        return "0"
    return f"{np.polyfit(np.log(sizes), np.log(values), 1)[0]:.2f}"


def against(
    task_of: Callable[[int], Task], sizes: list[int], repeats: int
) -> dict[str, list[Cost]]:
    found: dict[str, list[Cost]] = {"dpjax": [], "plain": []}
    for size in sizes:
        task = task_of(size)
        for name, several in found.items():
            several.append(cost(programs(task)[name], task, repeats))
    return found


def growth(small: tuple[int, int, int, int, int], repeats: int) -> Iterator[str]:
    """Against batch, width and depth."""
    batch, width, depth, length, words = small
    language = functools.partial(language_model, length=length, words=words, scanned=True)
    axes: dict[str, tuple[Callable[[int], Task], list[int]]] = {
        "batch": (
            lambda size: language(batch=size, width=width, depth=depth),
            [batch * k for k in (1, 2, 4)],
        ),
        "width": (
            lambda size: language(batch=batch, width=size, depth=depth),
            [width * k for k in (1, 2, 4)],
        ),
        "depth": (
            lambda size: language(batch=batch, width=width, depth=size),
            [depth * k for k in (1, 2, 4)],
        ),
    }
    yield head("against", "", "dpjax", "slope", "plain", "slope")
    for axis, (task_of, sizes) in axes.items():
        found = against(task_of, sizes, repeats)
        for field, unit in (("seconds", 1e3), ("megabytes", 1.0), ("compiling", 1.0)):
            cells = []
            for several in found.values():
                values = [unit * getattr(one, field) for one in several]
                cells += [" / ".join(f"{v:.3g}" for v in values), slope(sizes, values)]
            name = {"seconds": "time, ms", "megabytes": "temporaries, MB"}.get(field)
            shown = " / ".join(map(str, sizes))
            yield line(f"{axis} {shown}", name or "to compile, s", *cells)


# ------------------------------------------------------------------------------ the loop of `fit`


class Loop(NamedTuple):
    """The compiled loop of `fit`, and what it is called with but for the last step."""

    program: Any
    given: tuple[Any, ...]


def loop(task: Task, data: Any, batch: int, placement: Placement | None = None) -> Loop:
    records, optimizer = len(jax.tree.leaves(data)[0]), optax.sgd(0.1)
    plan = training.make_plan(
        records, noise_multiplier=1.0, delta=1e-9, steps=1_000, batch_size=batch
    )
    params, rows = task.params, jax.tree.map(jnp.asarray, data)
    state = first_state(params, plan, optimizer, np.int32(0))
    if placement is not None:
        params = place_parameters(placement, params)
        rows = place_rows(placement, data, records)
        state = first_state(params, plan, optimizer, np.int32(0))
        state = place_state(placement, state)
    example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)
    recipe = steps.StepConfig(task.loss, params, plan, optimizer, None, "auto", 1e-12)
    advance: Any = steps.compile_step(recipe._replace(placement=placement), example).advance
    given = state, zero_totals(), jax.random.key(0), rows
    return Loop(advance.lower(*given, np.int32(2)).compile(), given)


def records_and_steps(small: tuple[int, int, int, int, int], repeats: int) -> Iterator[str]:
    """Against the records of the data, and the steps of a run."""
    batch, width, depth, length, words = small
    task = language_model(batch, width, depth, length, words)
    yield head("against", "", "dpjax", "slope")
    sizes, times, spaces = [], [], []
    for records in (1_000, 10_000, 100_000, 1_000_000):
        data = np.resize(np.asarray(task.batch), (records, length + 1))
        found = loop(task, data, batch)
        analysis: Any = found.program.memory_analysis()
        once = seconds_of(lambda f=found: f.program(*f.given, np.int32(4)), repeats) / 4
        sizes.append(records)
        times.append(1e3 * once)
        spaces.append(analysis.temp_size_in_bytes / 1e6)
    shown = " / ".join(f"{size:,}" for size in sizes)
    for name, values in (("time a step, ms", times), ("temporaries, MB", spaces)):
        written = " / ".join(f"{v:.3g}" for v in values)
        yield line(f"records {shown}", name, written, slope(sizes, values))
    found = loop(task, np.resize(np.asarray(task.batch), (1_000, length + 1)), batch)
    numbers = [4, 16, 64]
    times = [
        1e3 * seconds_of(lambda n=number: found.program(*found.given, np.int32(n)), repeats)
        for number in numbers
    ]
    written = " / ".join(f"{v:.3g}" for v in times)
    shown = " / ".join(map(str, numbers))
    yield line(f"steps {shown}", "time, ms", written, slope(numbers, times))


# ------------------------------------------------------------------------------ devices


def plain_on_mesh(task: Task, placement: Placement) -> tuple[dict[str, int], float]:
    """(traffic, megabytes of temporaries a device) without privacy, the batch divided."""
    params = place_parameters(placement, task.params)
    records = len(jax.tree.leaves(task.batch)[0])
    rows = place_rows(placement, task.batch, records)
    layout = jax.tree.map(lambda leaf: leaf.sharding, params)

    def step(params, batch):
        total = lambda params: jax.vmap(task.loss, (None, 0))(params, batch).sum()  # noqa: E731
        return moved(params, jax.grad(total)(params), None, records, noise=False)

    program = jax.jit(step, out_shardings=layout).lower(params, rows).compile()
    analysis: Any = program.memory_analysis()
    return traffic(str(program.as_text())), analysis.temp_size_in_bytes / 1e6


def devices(small: tuple[int, int, int, int, int]) -> Iterator[str]:
    """Traffic and memory a device, in one step of `fit` and of plain training."""
    batch, width, depth, length, words = small
    names = ["devices", "divided", "dpjax, bytes", "plain, bytes", "more", "8 bytes a record"]
    yield head(*names, "dpjax, MB", "plain, MB")
    for number in (2, 4, 8):
        records = max(batch, number) * 8
        task = language_model(records, width, depth, length, words, scanned=True)
        kinds = (jax.sharding.AxisType.Auto,)
        mesh = jax.make_mesh((number,), ("data",), kinds, devices=jax.devices()[:number])
        for divided in (training.data_parallel, training.fully_sharded):
            placement = divided(mesh)
            found = loop(task, task.batch, records // 8, placement)
            analysis: Any = found.program.memory_analysis()
            ours = traffic(str(found.program.as_text())), analysis.temp_size_in_bytes / 1e6
            plain = plain_on_mesh(task._replace(batch=task.batch[: records // 8]), placement)
            cells = [
                ", ".join(f"{k} {v:,}" for k, v in sorted(one[0].items())) for one in (ours, plain)
            ]
            more = sum(ours[0].values()) - sum(plain[0].values())
            cells = [cell or "none" for cell in cells]
            cells += [f"{more:+,}", f"{8 * records // 8:,}", f"{ours[1]:.1f}", f"{plain[1]:.1f}"]
            yield line(str(number), divided.__name__, *cells)


def tasks_of(sizes: Sizes) -> dict[str, Callable[[], Task]]:
    """The models, by what the report calls them; made when they are called."""
    images, width = sizes.images
    batch, *shape = sizes.transformer
    return {
        f"language model of width {sizes.language[1]}, batch {sizes.language[0]}": (
            lambda: language_model(*sizes.language, scanned=True)
        ),
        f"transformer, {shape[1]} layers of width {shape[0]}, batch {batch}": (
            lambda: language_model(*sizes.transformer)
        ),
        f"ResNet-18 of width {width}, batch {images}": lambda: residual_network(images, width),
    }


def models(size: str, repeats: int, chosen: str) -> Iterator[str]:
    """The table of those models whose name holds `chosen`."""
    tasks = tasks_of(_SIZES[size])
    yield "## Models\n\nIn brackets the multiple of the plain step."
    yield from beside_others({n: make() for n, make in tasks.items() if chosen in n}, repeats)


def sections(size: str, repeats: int) -> Iterator[str]:
    """The report, part by part: the quick parts first."""
    load = os.getloadavg()[0]
    small = (8, 64, 2, 32, 500) if size != "tiny" else (2, 64, 1, 8, 32)
    yield "# A private step beside the plain one"
    yield (
        "Processor time of a step (all threads), the median; temporaries of the compiled program; "
        "processor time to trace and compile. Plain steps add no noise."
    )
    yield (
        "## Devices\n\nBytes that a device is given in one step, by collective, loops counted by "
        "their passes; the same of plain training on as many records; their difference, beside 8 "
        "bytes for each record of the batch; and megabytes of temporaries a device."
    )
    yield from devices(small)
    yield "## Records and steps\n\nThe compiled loop of `fit` at a constant expected batch."
    yield from records_and_steps(small, repeats)
    yield (
        "## Growth\n\nA language model whose blocks are in a loop. Slopes are of log value against "
        "log size: 1 where one is proportional to the other."
    )
    yield from growth(small, repeats)
    yield from models(size, repeats, "")
    yield (
        f"Load of the machine {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end, "
        f"{os.cpu_count()} cores; jax {jax.__version__}; {repeats} repeats. Made by "
        f"`python -m benchmarks.scaling --size {size}`."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=list(_SIZES), default="small")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, default=_FILE)
    parser.add_argument("--model", help="print the rows of models whose name holds this, no more")
    options = parser.parse_args()
    if options.model is not None:
        for part in models(options.size, options.repeats, options.model):
            print(part, flush=True)
        return
    options.out.parent.mkdir(exist_ok=True)
    text = ""
    for part in sections(options.size, options.repeats):
        in_table = part.startswith("|") and text.endswith("|")
        text += ("\n" if in_table else "\n\n" if text else "") + part
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
