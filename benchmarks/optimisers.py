"""Optimisers that know the noise, beside SGD with momentum: `python -m benchmarks.optimisers`.

    python -m benchmarks.optimisers [--minutes 25] [--tasks TASK …] [--methods METHOD …] [--report]

Writes benchmarks/results/optimisers.md from ../shared/data. Tasks × ε × methods, each at the price
that `training.make_plan` finds. Every method has two values of a number of its own, and for each of
them `TRIALS` learning rates, found by a walk over powers of two from where it starts, on five seeds
and records held out of the training part; the last parameters or the mean of the second half of the
iterates, whichever is better there. What is found is run on other seeds, each with training records
of its own, and scored on the test records. A call is kept in `--cache FOLDER`: a run that was cut
goes on. All of it takes a quarter of an hour of one core.

A method is ahead of the first one, or behind it, where the mean of the differences over ten seeds
is beyond two standard errors of it, and again over ten further seeds; else level. Without any
difference this is said of three in a thousand of the cells.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from jaxtyping import Array, Float, PyTree

from benchmarks import table_data
from benchmarks.optimiser_methods import BASELINE, METHODS, Method
from benchmarks.tables import Verdict, judge
from dpjax import gradients, sampling, training, transforms
from experiments.images import load_mnist

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "optimisers.md"
DATA = ROOT.parent / "shared" / "data"
CACHE = pathlib.Path(tempfile.gettempdir()) / "dpjax-optimisers"
EPSILONS = (1.0, 4.0)
DELTA, OVERFLOW = 1e-5, 1e-9  # the second of the first, for batches that do not fit
MOST_KEPT_OUT = 5_000
TRIALS = 6  # learning rates for each of a method's two numbers
TUNING = tuple(range(1_000, 1_005))
# Ten seeds and ten further ones, five in one call.
REPORTED = tuple(tuple(range(begin, begin + 5)) for begin in (0, 5, 10, 15))
HALVES = (REPORTED[:2], REPORTED[2:])
OUTPUTS = ("last", "average")

Part = tuple[Array, Array]  # features and labels

# --- tasks ---------------------------------------------------------------------------------------


class Task(NamedTuple):
    """Records, a model, and how it is trained and scored.

    Fields:
        about: a sentence for the page.
        pool: features and labels, of which every seed draws its own records to train on.
        held: features and labels of the test part.
        init, logits: first parameters by a key; what the model says of one record.
        kind: "accuracy" of several classes, or "area" under the curve of two, whose logit is one.
        records, batch, steps, clip_norm: of every run.
        start: the first learning rate of SGD.
    """

    about: str
    pool: tuple[np.ndarray, np.ndarray]
    held: tuple[np.ndarray, np.ndarray]
    init: Callable[[Array], PyTree]
    logits: Callable[[PyTree, Array], Array]
    kind: Literal["accuracy", "area"]
    records: int = 10_000
    batch: int = 500
    steps: int = 100
    clip_norm: float = 1.0
    start: float = 4.0

    def loss(self, params: PyTree, example: tuple[Array, Array]) -> Array:
        """Of one record."""
        said, label = self.logits(params, example[0]), example[1]
        if self.kind == "area":
            return optax.sigmoid_binary_cross_entropy(said, label.astype(said.dtype))
        return optax.softmax_cross_entropy_with_integer_labels(said, label)

    def score(self, params: PyTree, part: Part) -> Array:
        """In per cent; 0 of a model that is not finite."""
        said, labels = jax.vmap(functools.partial(self.logits, params))(part[0]), part[1]
        if self.kind == "area":
            found = area(said, labels)
        else:
            found = jnp.mean((jnp.argmax(said, axis=-1) == labels).astype(jnp.float32))
        return jnp.where(jnp.all(jnp.isfinite(said)), 100 * found, jnp.zeros_like(found))


def area(said: Float[Array, " n"], labels: Array) -> Float[Array, ""]:
    """The area under the curve by mean ranks (Mann and Whitney)."""
    ordered = jnp.sort(said)
    below = jnp.searchsorted(ordered, said, side="left")
    ranks = 0.5 * (below + jnp.searchsorted(ordered, said, side="right") + 1).astype(jnp.float32)
    positive = labels.astype(jnp.float32)
    ones = jnp.sum(positive)
    # Ranks less their mean: sums of ranks as such have no place in float32.
    mean = 0.5 * (len(said) + 1)
    return 0.5 + jnp.sum(positive * (ranks - mean)) / (ones * (len(said) - ones))


def encode(frame: pd.DataFrame, public: table_data.Public, *, binned: bool) -> np.ndarray:
    """Public categories as ones and zeros; numbers so too, by tenths of their range, or over it."""
    parts = []
    for name, listed in public.categories.items():
        values = frame[name].astype(str).to_numpy()
        parts.append(values[:, None] == np.array(listed)[None])
    for name, (low, high) in public.ranges.items():
        values = frame[name].to_numpy(np.float64)
        if binned:
            cells = np.clip(10 * (values - low) / (high - low), 0, 9).astype(int)
            parts.append(cells[:, None] == np.arange(10)[None])
        else:
            parts.append(values[:, None] / max(abs(low), abs(high)))
    return np.concatenate(parts, axis=1).astype(np.float32)


def linear(params: PyTree, x: Array) -> Array:
    """The logit of one record."""
    return x @ params["w"] + params["b"]


def table(parts: table_data.Parts, about: str, *, binned: bool, **settings: Any) -> Task:
    """A linear model of two classes."""
    x, held = (encode(frame, parts.public, binned=binned) for frame in (parts.train, parts.held))
    labels = [
        (frame[parts.public.target] == parts.public.classes[1]).to_numpy(np.int32)
        for frame in (parts.train, parts.held)
    ]

    def init(key: Array) -> PyTree:
        del key
        return {"w": jnp.zeros(x.shape[1]), "b": jnp.zeros(())}

    about = f"{about}; a linear model of {x.shape[1] + 1} numbers"
    pool, test = (x, labels[0]), (held, labels[1])
    return Task(about, pool, test, init, linear, "area", **settings)


def adult() -> Task:
    about = "Adult, categories and tenths of the public ranges of its numbers as ones and zeros"
    return table(table_data.adult(DATA, 0), about, binned=True)


def bank() -> Task:
    about = (
        "Bank Marketing, numbers over their public ranges as they are (standard deviations of .02 "
        "to .3), categories as ones and zeros"
    )
    return table(table_data.bank(DATA, 0), about, binned=False, start=16.0)


def fashion() -> Task:
    images = load_mnist(DATA, "fashion-mnist")

    def means(pixels: np.ndarray) -> np.ndarray:
        return pixels.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196)

    def init(key: Array) -> PyTree:
        first, second = jax.random.split(key)
        return {
            "hidden": jax.random.normal(first, (196, 32)) / 14,
            "bias": jnp.zeros(32),
            "out": jax.random.normal(second, (32, 10)) / 32**0.5,
            "end": jnp.zeros(10),
        }

    def logits(params: PyTree, x: Array) -> Array:
        hidden = jax.nn.relu(x @ params["hidden"] + params["bias"])
        return hidden @ params["out"] + params["end"]

    return Task(
        "Fashion-MNIST, means of four pixels; a perceptron of 32 hidden units and 6,634 numbers",
        (means(images.images[:30_000]), images.labels[:30_000]),
        (means(images.test_images), images.test_labels),
        init, logits, "accuracy", start=1.0,
    )  # fmt: skip


TASKS: dict[str, Callable[[], Task]] = {"Adult": adult, "Fashion-MNIST": fashion, "Bank": bank}

# --- one run -------------------------------------------------------------------------------------


class Prices(NamedTuple):
    """What a run of a task is told by its plan."""

    noise_std: float  # in the mean gradient, with what is added for rounding
    capacity: int  # places of a batch


@functools.lru_cache(maxsize=64)
def price(records: int, batch: int, steps: int, clip_norm: float, epsilon: float) -> training.Plan:
    """The plan of a run, with a part of δ for batches that do not fit."""
    return training.make_plan(
        records,
        epsilon=epsilon,
        delta=DELTA,
        steps=steps,
        batch_size=batch,
        clip_norm=clip_norm,
        extra_delta={"overflow of a batch": OVERFLOW},
    )


def make_prices(task: Task, epsilon: float) -> Prices:
    """The noise at ε; the capacity is that of the largest ε, so that programs are shared."""
    plan = price(task.records, task.batch, task.steps, task.clip_norm, epsilon)
    capacity = sampling.poisson_capacity(
        task.records, plan.rate, steps=task.steps, delta=OVERFLOW, epsilon=max(epsilon, *EPSILONS)
    )
    params = jax.eval_shape(task.init, jax.random.key(0))
    dimension = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    slack = gradients.rounding_slack(capacity, dimension)
    return Prices(plan.noise_std(0) * (1 + slack), capacity)


def sum_released(
    task: Task,
    method: Method,
    params: PyTree,
    state: Any,
    direction: PyTree,
    batch: Part,
    mask: Array,
) -> PyTree:
    """The clipped sum of what the method releases: of norm at most the clip norm a record.

    The one along a direction is the derivative by o of the loss at params + o·direction: at o = 0
    it is what finite differences tend to. Scale and direction are functions of no record but
    through earlier releases.
    """
    if method.released != "direction":
        scale = state[0].scale if method.released == "scaled" else None
        return gradients.clipped_grad(task.loss, task.clip_norm)(
            params, batch, mask, scale=scale
        ).sum

    def loss(offset: Array, example: Part) -> Array:
        return task.loss(jax.tree.map(lambda p, u: p + u * offset, params, direction), example)

    clipped = gradients.clipped_grad(loss, task.clip_norm, method="vmap")
    return clipped(jnp.zeros(()), batch, mask).sum


def make_training(
    task: Task, method: Method, capacity: int
) -> Callable[..., tuple[PyTree, PyTree]]:
    """`train(rate, number, noise_std, key, records)`: the last and the averaged parameters."""
    q = task.batch / task.records
    weight = training.tail_average(task.steps // 2)

    def train(
        rate: Array, number: Array, noise_std: Array, key: Array, records: Part
    ) -> tuple[PyTree, PyTree]:
        start, sampling_key, noise_key, along = jax.random.split(key, 4)
        optimiser = method.make(rate, number, noise_std)
        noise = transforms.gaussian_noise(noise_std * task.batch, jax.random.key(0))
        params = task.init(start)

        def step(count: Array, carry: tuple[PyTree, Any, PyTree]) -> tuple[PyTree, Any, PyTree]:
            params, state, average = carry
            drawn = sampling.poisson(
                sampling_key, count, population=task.records, rate=q, capacity=capacity
            )
            batch = jax.tree.map(lambda leaf: leaf[drawn.indices], records)
            direction = draw_direction(jax.random.fold_in(along, count), params)
            total = sum_released(task, method, params, state, direction, batch, drawn.mask)
            noisy, _ = noise.update(total, transforms.NoiseState(noise_key, count))
            mean = jax.tree.map(lambda leaf: leaf / task.batch, noisy)
            if method.released == "direction":
                mean = jax.tree.map(lambda u: u * mean, direction)
            updates, state = optimiser.update(mean, state, params)
            params = optax.apply_updates(params, updates)
            share = weight(count + 1)
            average = jax.tree.map(lambda a, p: a + share * (p - a), average, params)
            return params, state, average

        first = params, optimiser.init(params), params
        last, _, average = jax.lax.fori_loop(0, task.steps, step, first)
        return last, average

    return train


def make_run(task: Task, method: Method, capacity: int) -> Callable[..., Array]:
    """`run(rate, number, noise_std, key, pool, held)`: scores of one seed, in `OUTPUTS`' order.

    Those of records kept out of training stand before those of the test part.
    """
    train = make_training(task, method, capacity)

    def run(
        rate: Array, number: Array, noise_std: Array, key: Array, pool: Part, held: Part
    ) -> Array:
        choice, own = jax.random.split(key)
        order = jax.random.permutation(choice, len(pool[1]))
        chosen = jax.tree.map(lambda leaf: leaf[order[: task.records]], pool)
        kept_out = order[task.records : task.records + MOST_KEPT_OUT]
        both = train(rate, number, noise_std, own, chosen)
        out = jax.tree.map(lambda leaf: leaf[kept_out], pool)
        return jnp.stack([task.score(p, part) for part in (out, held) for p in both])

    return run


def draw_direction(key: Array, params: PyTree) -> PyTree:
    """Standard normal numbers like the parameters."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    return tree.unflatten(
        [jax.random.normal(k, p.shape) for k, p in zip(keys, leaves, strict=True)]
    )


class Measure:
    """Runs calls, and keeps the data and programs of the task and method that it ran last."""

    def __init__(self, tasks: Mapping[str, Callable[[], Task]], methods: Mapping[str, Method]):
        self._methods = methods
        self._load = functools.lru_cache(maxsize=1)(lambda name: tasks[name]())
        self._program = functools.lru_cache(maxsize=1)(self._compile)

    def _compile(self, task: str, method: str, capacity: int) -> Callable[..., Array]:
        run = make_run(self._load(task), self._methods[method], capacity)
        return jax.jit(jax.vmap(run, in_axes=(None, None, None, 0, None, None)))

    def __call__(self, call: Call) -> Scores:
        """The scores of every seed of a call."""
        task, method = self._load(call.task), self._methods[call.method]
        told = make_prices(task, call.epsilon)
        run = self._program(call.task, call.method, told.capacity)
        keys = jax.vmap(jax.random.key)(jnp.asarray(call.seeds, jnp.uint32))
        parts = [jax.tree.map(jnp.asarray, part) for part in (task.pool, task.held)]
        rate = task.start * method.start * 2.0**call.exponent
        numbers = rate, method.numbers[call.number], told.noise_std
        found = run(*(jnp.asarray(n, jnp.float32) for n in numbers), keys, *parts)
        return np.asarray(found, np.float64).reshape(len(call.seeds), 2, len(OUTPUTS)).tolist()


# --- tuning --------------------------------------------------------------------------------------

# Of every seed, on records kept out and on the test part, each of the last and the averaged.
Scores = list[list[list[float]]]


class Cell(NamedTuple):
    """What is compared."""

    task: str
    epsilon: float
    method: str


class Call(NamedTuple):
    """One run on five seeds; a cell's fields, then the setting."""

    task: str
    epsilon: float
    method: str
    number: int  # which of the method's two
    exponent: int  # of the learning rate, a power of two times the first
    seeds: tuple[int, ...]


Known = dict[Call, Scores]


class Chosen(NamedTuple):
    """The setting that was best on the seeds for tuning."""

    number: int
    exponent: int
    output: int
    at_edge: bool  # whether no larger, or no smaller, rate was tried: the best was not found


def next_exponent(tried: Mapping[int, float], trials: int = TRIALS) -> int | None:
    """Where the walk goes: out by fours while an end is the best, then the nearest to the best."""
    if len(tried) >= trials:
        return None
    for exponent in (0, 2, -2):
        if exponent not in tried:
            return exponent
    best = max(tried, key=lambda exponent: tried[exponent])
    if best in (max(tried), min(tried)):
        return best + 2 if best == max(tried) else best - 2
    nearest = (best + side * away for away in itertools.count(1) for side in (1, -1))
    return next(exponent for exponent in nearest if exponent not in tried)


def tuned(known: Known, cell: Cell, number: int) -> dict[int, list[float]]:
    """By exponent, the mean on records kept out of the last and the averaged parameters."""
    return {
        call.exponent: np.mean([seed[0] for seed in scores], axis=0).tolist()
        for call, scores in known.items()
        if call[:3] == cell and call.number == number and call.seeds == TUNING
    }


def choose(known: Known, cell: Cell) -> Chosen:
    """The best of all that was tried on the seeds for tuning."""
    found = {
        (number, exponent, output): mean
        for number in (0, 1)
        for exponent, means in tuned(known, cell, number).items()
        for output, mean in enumerate(means)
    }
    number, exponent, output = max(found, key=lambda setting: found[setting])
    tried = tuned(known, cell, number)
    return Chosen(number, exponent, output, exponent in (max(tried), min(tried)))


def next_call(known: Known, cell: Cell) -> Call | None:
    """What a cell lacks: trials, then the chosen setting on the other seeds."""
    for number in (0, 1):
        best = {exponent: max(means) for exponent, means in tuned(known, cell, number).items()}
        exponent = next_exponent(best)
        if exponent is not None:
            return Call(*cell, number, exponent, TUNING)
    chosen = choose(known, cell)
    for seeds in REPORTED:
        call = Call(*cell, chosen.number, chosen.exponent, seeds)
        if call not in known:
            return call
    return None


def fill(
    known: Known,
    cells: Iterable[Cell],
    measure: Callable[[Call], Scores],
    keep: Callable[[Call, Scores], None] = lambda call, scores: None,
    until: float = math.inf,
) -> None:
    """Measure what the cells lack, until a moment of `time.monotonic`."""
    for cell in cells:
        while time.monotonic() < until and (call := next_call(known, cell)) is not None:
            known[call] = measure(call)
            keep(call, known[call])


# --- verdicts ------------------------------------------------------------------------------------


def by_seed(known: Known, cell: Cell, calls: Sequence[tuple[int, ...]]) -> dict[int, float]:
    """Scores on the test part at the chosen setting; none where a call is missing."""
    if next_call(known, cell) is not None:
        return {}
    chosen, found = choose(known, cell), {}
    for seeds in calls:
        scores = known[Call(*cell, chosen.number, chosen.exponent, seeds)]
        found |= {seed: one[1][chosen.output] for seed, one in zip(seeds, scores, strict=True)}
    return found


def compare(known: Known, cell: Cell, other: str = BASELINE) -> tuple[Verdict, Verdict]:
    """The method's verdicts beside another's, on ten seeds and on ten further ones."""
    rival = cell._replace(method=other)
    first, second = (judge(by_seed(known, cell, h), by_seed(known, rival, h)) for h in HALVES)
    return first, second


def find_rival(known: Known, cell: Cell) -> str:
    """Which of what optax has was better in a cell on the seeds for tuning."""
    scores = {}
    for method in (BASELINE, "Adam"):
        own = cell._replace(method=method)
        means = [m for number in (0, 1) for m in tuned(known, own, number).values()]
        scores[method] = max((max(mean) for mean in means), default=-math.inf)
    return max(scores, key=lambda method: scores[method])


def decide(first: Verdict, second: Verdict) -> str:
    """The word of both where they agree; level where they do not; none where one is missing."""
    if "none" in (first.word, second.word):
        return "none"
    return first.word if first.word == second.word else "level"


# --- the report ----------------------------------------------------------------------------------


class Cache:
    """Calls in a file of one JSON line each."""

    def __init__(self, folder: pathlib.Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "calls.jsonl"

    def read(self) -> Known:
        """All calls that are known; a line that was cut off while it was written is none."""
        found: Known = {}
        for line in self.file.read_text().splitlines() if self.file.exists() else ():
            try:
                said = json.loads(line)
            except json.JSONDecodeError:
                continue
            *rest, seeds = said["call"]
            found[Call(*rest, tuple(seeds))] = said["scores"]
        return found

    def add(self, call: Call, scores: Scores) -> None:
        """Keep one call, and say it."""
        with self.file.open("a") as file:
            file.write(json.dumps({"call": call, "scores": scores}) + "\n")
        means = np.mean(scores, axis=0)
        print(*call[:5], call.seeds[0], np.round(means, 2).tolist(), flush=True)


def show_difference(found: Verdict) -> str:
    """A difference and its standard error, in points."""
    return "–" if found.word == "none" else f"{found.difference:+.2f} ± {found.error:.2f}"


def show_cell(known: Known, cell: Cell, start: float) -> str | None:
    """A row of the report; None of a cell that is not complete."""
    scores = by_seed(known, cell, REPORTED)
    if not scores:
        return None
    method, chosen = METHODS[cell.method], choose(known, cell)
    mean = statistics.fmean(scores.values())
    error = statistics.stdev(scores.values()) / math.sqrt(len(scores))
    rate = f"{start * method.start * 2.0**chosen.exponent:.3g}"
    rate += " (at an end)" if chosen.at_edge else ""
    first, second = compare(known, cell)
    word = "–" if cell.method == BASELINE else decide(first, second)
    cells = [cell.method, f"{cell.epsilon:g}", f"{mean:.2f} ± {error:.2f}"]
    cells += ["–", "–"] if word == "–" else [show_difference(first), show_difference(second)]
    own = f"{method.numbers[chosen.number]:g}"
    return "| " + " | ".join([*cells, word, rate, own, OUTPUTS[chosen.output]]) + " |"


WORDS = ("ahead", "level", "behind")


def name_winners(known: Known, cells: Sequence[Cell]) -> list[str]:
    """A row for every method: in how many cells it is ahead, level or behind, and where ahead."""
    lines = ["| method | beside SGD: ahead | level | behind | points ahead, in the further seeds |"]
    lines[0] += " beside the better of SGD and Adam: ahead | level | behind |"
    lines.append("|---|---:|---:|---:|---|---:|---:|---:|")
    for name in METHODS:
        if name == BASELINE:
            continue
        own = [cell for cell in cells if cell.method == name]
        found = {cell: compare(known, cell) for cell in own}
        words = {cell: decide(*both) for cell, both in found.items()}
        where = [
            f"{cell.task}, ε = {cell.epsilon:g}: {found[cell][1].difference:.2f}"
            for cell in own
            if words[cell] == "ahead"
        ]
        count = [list(words.values()).count(word) for word in WORDS]
        said = "; ".join(where) or ("tried, no gain" if sum(count) else "not measured")
        rivals = [decide(*compare(known, cell, find_rival(known, cell))) for cell in own]
        against = [rivals.count(word) for word in WORDS] if name != "Adam" else ["–"] * 3
        lines.append("| " + " | ".join(map(str, (name, *count, said, *against))) + " |")
    return lines


def report(known: Known, tasks: Mapping[str, Task]) -> str:
    """The page."""
    cells = [Cell(t, e, m) for t in tasks for e in EPSILONS for m in METHODS]
    lines = [
        "# Optimisers beside SGD with momentum",
        "",
        f"Written by `python -m benchmarks.optimisers`: δ = {DELTA:g}, add/remove, Poisson "
        f"batches, on {jax.devices()[0].device_kind}. "
        f"Every method had {2 * TRIALS} trials: {TRIALS} learning rates at each of two "
        "values of a number of its own, on five seeds and records kept out, and the last "
        "parameters or the mean of the second half of the iterates, whichever is better there. "
        "What is shown is of twenty other seeds, each with training records of its own, on the "
        "test records: the mean ± its standard error, and the differences to SGD with momentum at "
        "equal seeds, over ten of them and over the ten others. Ahead or behind: by two standard "
        "errors in both. Without any difference this is said of three in a thousand of the cells.",
        "",
        "The clip norm is one for all methods, and was not tuned. Scaled before the clip: "
        "gradients over their released second moments, clipped, made noisy and multiplied back "
        "(`transforms.scale_then_privatise`). DOPPLER: its start is corrected as published, which "
        "takes first steps of the whole rate. Zeroth order: the derivative along one normal "
        "direction a step, a single number a record, clipped and made noisy as such.",
        "",
        "## What wins",
        "",
        *name_winners(known, cells),
    ]
    for name, task in tasks.items():
        lines += [
            "",
            f"## {name}",
            "",
            f"{task.about}. {task.records:,} records, batches of {task.batch:,}, {task.steps} "
            f"steps, clip norm {task.clip_norm:g}; "
            + ("area under the curve" if task.kind == "area" else "accuracy")
            + " in per cent.",
            "",
            "| method | ε | score | difference | again | verdict | rate | own number | output |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for cell in (c for c in cells if c.task == name):
            row = show_cell(known, cell, task.start)
            lines.append(row or f"| {cell.method} | {cell.epsilon:g} |" + " – |" * 7)
    lines += ["", "A method's own number: " + "; ".join(
        f"{name}: {method.about}, {method.numbers[0]:g} or {method.numbers[1]:g}"
        for name, method in METHODS.items()
    ) + ".", ""]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--cache", type=pathlib.Path, default=CACHE)
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="write the page and measure nothing")
    arguments = parser.parse_args()
    if not DATA.is_dir():
        print("skipped: ../shared/data is absent")
        return
    began, cache = time.monotonic(), Cache(arguments.cache)
    known = cache.read()
    cells = [Cell(t, e, m) for t in arguments.tasks for m in arguments.methods for e in EPSILONS]
    if not arguments.report:
        until = began + 60 * arguments.minutes
        fill(known, cells, Measure(TASKS, METHODS), cache.add, until)
    tasks = {name: TASKS[name]() for name in TASKS}
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    arguments.out.write_text(report(known, tasks))


if __name__ == "__main__":
    main()
