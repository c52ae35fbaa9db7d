"""Tables II and III: a CNN on MNIST, a ResNet on CIFAR-10 (JPEG), row by row beside the paper."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from dpjax import accounting as acc
from dpjax import gradients
from experiments.common import Rows, Run, track
from experiments.geodp import models, training
from experiments.geodp.training import Method, Numbers, Problem
from experiments.images import Images, load_cifar10_jpeg, load_mnist

DELTA, EPOCHS = 1e-5, 20
_ONLY_FULL = ("GeoDP+IS β=0.1", "GeoDP+SUR β=0.1", "GeoDP+AUTO-S β=0.1", "GeoDP+PSAC β=0.1")
_AUTO_S, _PSAC = gradients.Automatic(), gradients.PerSampleAdaptive()


class Row(NamedTuple):
    """A row of a table: what is run, at which batch size, and the accuracies the paper prints."""

    method: Method
    batch_size: int
    published: tuple[float, float] | None


class Table(NamedTuple):
    """A table: its two noise multipliers, the paper's noise-free accuracy, and its rows."""

    name: str
    sigmas: tuple[float, float]
    noise_free: float
    records: int
    rows: tuple[Row, ...]


def _rows(dp, geodp, sound) -> tuple[Row, ...]:
    """Both tables list the same variants; `dp`, `geodp` give the published accuracies in order."""
    variants = (
        ("", {}),
        ("+IS", {"importance": True}),
        ("+SUR", {"selective": True}),
        ("+AUTO-S", {"strategy": _AUTO_S}),
        ("+PSAC", {"strategy": _PSAC}),
        ("+SUR+PSAC", {"selective": True, "strategy": _PSAC}),
    )
    rows = [Row(Method("DP"), 8_192, dp[0])]
    for (suffix, options), published in zip(variants, dp[1:], strict=True):
        rows.append(Row(Method(f"DP{suffix}", **options), 16_384, published))
    for beta, batch, published in geodp[:3]:
        rows.append(
            Row(Method(f"GeoDP β={beta:g}", "geodp", bounding_factor=beta), batch, published)
        )
    for (suffix, options), published in zip(variants[1:], geodp[3:], strict=True):
        method = Method(f"GeoDP{suffix} β=0.1", "geodp", bounding_factor=0.1, **options)
        rows.append(Row(method, 16_384, published))
    for radius, options in sound:
        suffix = "+PSAC" if "strategy" in options else ""
        name = f"G3{suffix} r={radius:g}C"
        rows.append(Row(Method(name, "recentred", radius=radius, **options), 16_384, None))
    return tuple(rows)


_SOUND = ((0.5, {}), (1.0, {}), (0.5, {"strategy": _PSAC}))
TABLE2 = Table(
    "table2",
    (10.0, 1.0),
    99.11,
    60_000,
    _rows(
        (
            (87.93, 94.25),
            (88.12, 95.52),
            (88.43, 95.63),
            (88.47, 95.75),
            (88.40, 95.71),
            (88.48, 95.83),
            (89.83, 96.91),
        ),
        (
            (0.1, 8_192, (90.31, 96.47)),
            (0.1, 16_384, (93.58, 98.04)),
            (0.5, 8_192, (53.80, 60.31)),
            (93.60, 98.13),
            (93.68, 98.22),
            (93.64, 98.17),
            (94.13, 98.24),
            (95.27, 98.69),
        ),
        _SOUND,
    ),
)
TABLE3 = Table(
    "table3",
    (0.1, 0.01),
    67.43,
    50_000,
    _rows(
        (
            (59.39, 63.27),
            (60.12, 63.84),
            (60.27, 64.07),
            (61.73, 64.83),
            (60.51, 63.91),
            (61.30, 64.71),
            (62.91, 65.60),
        ),
        (
            (1.0, 8_192, (61.47, 65.93)),
            (1.0, 16_384, (63.38, 66.51)),
            (0.1, 16_384, (65.47, 67.35)),
            (65.51, 67.35),
            (65.53, 67.36),
            (65.58, 67.37),
            (65.58, 67.38),
            (66.03, 67.40),
        ),
        _SOUND,
    ),
)


def proven_epsilon(row: Row, sigma: float, records: int) -> float:
    """ε at δ = 1e-5 that the accountant certifies for the row at the paper's own settings.

    Poisson sampling, add/remove, 20 epochs. Selective updates charge every attempt: its training
    step, and the noisy loss difference, a number in [−1, 1] units plus noise of one unit.
    Importance sampling charges its normaliser at every refresh, and is priced at its smallest
    sampling rate, B/n. GeoDP has no guarantee.
    """
    if row.method.noise == "geodp":
        return math.inf
    rate = row.batch_size / records
    steps = _steps(row.batch_size, records)
    parts = [acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), steps)]
    if row.method.selective:
        test = acc.Gaussian(training.LOSS_NOISE / 2.0)
        rate = training.VALIDATION / records
        parts.append(acc.Repeated(acc.PoissonSampled(test, rate), steps))
    if row.method.importance:
        parts.append(acc.Repeated(acc.Gaussian(training.NORMALISER_NOISE), training.REFRESHES))
    return acc.epsilon(acc.Composed(tuple(parts)), delta=DELTA)


def _steps(batch_size: int, records: int) -> int:
    return round(EPOCHS * records / batch_size)


def _accuracy(predicted, label):
    return jnp.argmax(predicted) == label


def _measure(run: Run, table: Table, problem: Problem) -> Rows:
    """Accuracy of every row; the smaller grid divides batch and noise by the same number.

    What reaches the averaged gradient is noise of standard deviation Cσ/B: dividing both keeps it,
    and the number of steps, as published; the sampling error of a smaller batch is larger.
    """
    divisor = run.choose(128, 1, 1_024)
    seeds = run.choose(1, 3, 1)
    rates = run.choose((2.0, 6.0), (0.5, 2.0, 6.0), (2.0,))
    few = tuple(row for row in table.rows if row.method.name not in _ONLY_FULL)
    rows = run.choose(few, table.rows, (table.rows[1], table.rows[8]))

    trainers: dict = {}

    def accuracy(row: Row, sigma: float, learning_rate: float) -> float:
        steps = run.choose(*(_steps(row.batch_size, table.records),) * 2, 2)
        method, batch_size = row.method, row.batch_size // divisor
        numbers = Numbers(sigma / divisor, learning_rate, method.bounding_factor, method.radius)
        # Rows that differ in numbers alone share one compilation.
        shape = method._replace(name="", bounding_factor=1.0, radius=1.0), batch_size
        # One file a run: an interrupted table goes on where it stopped.
        settings = {"row": repr((*shape, numbers)), "steps": steps, "seeds": seeds}
        settings["records"] = len(problem.data.labels)

        def compute() -> Rows:
            if shape not in trainers:
                trainers[shape] = training.trainer(problem, method, batch_size)
            found = [trainers[shape](numbers, steps, seed).accuracy for seed in range(seeds)]
            return [{"accuracy": 100.0 * sum(found) / seeds}]

        code = (training, type(problem.model))
        return run.rows(f"{table.name}-{run.size}", settings, compute, code=code)[0]["accuracy"]

    free = Row(Method("noise-free", "none"), 16_384, None)
    tried = {rate: accuracy(free, 0.0, rate) for rate in rates}
    best = max(tried, key=lambda rate: tried[rate])
    out: Rows = [
        {
            "method": "noise-free",
            "B": 16_384,
            **{f"published σ={s:g}": table.noise_free for s in table.sigmas},
            **{f"measured σ={s:g}": tried[best] for s in table.sigmas},
            **{f"proven ε, σ={s:g}": math.inf for s in table.sigmas},
            "learning_rate": best,
        }
    ]
    for row in track(rows, table.name):
        published = row.published or (math.nan, math.nan)
        entry: dict = {"method": row.method.name, "B": row.batch_size}
        for sigma, printed in zip(table.sigmas, published, strict=True):
            entry[f"published σ={sigma:g}"] = printed
            entry[f"measured σ={sigma:g}"] = accuracy(row, sigma, best)
            entry[f"proven ε, σ={sigma:g}"] = proven_epsilon(row, sigma, table.records)
        entry["learning_rate"] = best
        out.append(entry)
    return out


def _subset(data: Images, train_size: int, test_size: int) -> Images:
    return Images(
        data.images[:train_size],
        data.labels[:train_size],
        data.test_images[:test_size],
        data.test_labels[:test_size],
    )


def rows2(run: Run) -> Rows:
    """Rows of Table II."""
    data = _subset(load_mnist(run.data), *run.choose((10_000, 2_000), (60_000, 10_000), (200, 100)))
    model = models.SmallCNN()
    return _measure(run, TABLE2, Problem(model, models.softmax_loss(model), _accuracy, data))


def rows3(run: Run) -> Rows:
    """Rows of Table III."""
    data = load_cifar10_jpeg(run.data, limit=run.choose(1_000, None, 20))
    data = _subset(data, *run.choose((10_000, 2_000), (50_000, 10_000), (200, 100)))
    model = models.SmallResNet(run.choose((8, 16, 32), (16, 32, 64), (4, 4, 4)))
    return _measure(run, TABLE3, Problem(model, models.softmax_loss(model), _accuracy, data))


def table2(run: Run) -> Sequence[pathlib.Path]:
    """Table II: test accuracy of a CNN on MNIST."""
    return [run.save_table("table2", rows2(run))]


def table3(run: Run) -> Sequence[pathlib.Path]:
    """Table III: test accuracy of a ResNet on CIFAR-10 (JPEG)."""
    return [run.save_table("table3", rows3(run))]
