"""Tables II and III: a CNN on MNIST, a ResNet on CIFAR-10 (JPEG), row by row beside the paper."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Sequence

import jax.numpy as jnp

from experiments.common import Rows, Run, track
from experiments.geodp import models, prices, tables, training
from experiments.geodp.tables import LARGE, Row, Table
from experiments.geodp.training import Method, Numbers, Problem
from experiments.images import Images, load_cifar10_jpeg, load_mnist

_FREE, _DP, _G3 = Method("noise-free", "none"), Method("DP"), tables.recentred(0.5)
Accuracy = Callable[..., dict[str, float]]


def _correct(predicted, label):
    return jnp.argmax(predicted) == label


def _accuracies(run: Run, table: Table, problem: Problem) -> tuple[Accuracy, float]:
    """(method, batch size, σ, [rate]) -> {"mean", "spread"} of the accuracy in percent; best rate.

    The smaller grid divides batch and noise by the same number. What reaches the averaged gradient
    is noise of standard deviation Cσ/B: that, and the number of steps, stay as published; the
    sampling error of a smaller batch is larger.
    """
    divisor = run.choose(64, 1, 1_024)
    seeds = run.choose(table.seeds, 3, 1)
    rates = run.choose(table.rates, (2.0, 6.0, 12.0, 24.0, 48.0), (2.0,))
    trainers: dict = {}

    def measure(method: Method, batch_size: int, sigma: float, rate: float) -> dict[str, float]:
        count = run.choose(*(prices.steps(batch_size, table.records),) * 2, 2)
        numbers = Numbers(sigma / divisor, rate, method.bounding_factor, method.radius)
        # Rows that differ in numbers alone share one compilation.
        shape = (
            method._replace(name="", bounding_factor=1.0, radius=1.0),
            batch_size // divisor,
        )
        # One file a run: an interrupted table goes on where it stopped.
        settings = {"row": repr((*shape, numbers)), "steps": count, "seeds": seeds}
        settings["records"] = len(problem.data.labels)

        def compute() -> Rows:
            if shape not in trainers:
                trainers[shape] = training.trainer(problem, *shape)
            found = [100 * trainers[shape](numbers, count, seed).accuracy for seed in range(seeds)]
            mean = sum(found) / seeds
            return [{"mean": mean, "spread": max(found) - min(found)}]

        code = (training, type(problem.model))
        return run.rows(f"{table.name}-{run.size}", settings, compute, code=code)[0]

    tried = {rate: measure(_FREE, LARGE, 0.0, rate)["mean"] for rate in rates}
    best = max(tried, key=lambda rate: tried[rate])

    def accuracy(method: Method, batch_size: int, sigma: float, rate: float = best):
        return measure(method, batch_size, sigma, rate)

    return accuracy, best


def _epsilon(run: Run, table: Table, row: Row, sigma: float) -> float:
    by = run.choose("best", "best", "pld")  # as tight to four digits, and compiles in a second

    def compute() -> Rows:
        priced = row.method, row.batch_size, sigma, table.records
        return [{"ε": prices.proven_epsilon(*priced, by)}]

    settings = {"row": repr(row), "sigma": sigma, "records": table.records}
    return run.rows("price", settings, compute, code=(prices,))[0]["ε"]


def _sigma(run: Run, table: Table, method: Method, sigma: float) -> float:
    def compute() -> Rows:
        return [{"σ": prices.equal_sigma(method, LARGE, sigma, table.records)}]

    settings = {"method": repr(method), "sigma": sigma, "records": table.records}
    return run.rows("sigma", settings, compute, code=(prices,))[0]["σ"]


def _beside(run: Run, table: Table, accuracy: Accuracy) -> Rows:
    """Every published row as measured, and plain DP-SGD and G3 at its batch size and noise."""
    few = tuple(row for row in table.rows if row.method.name not in tables.ONLY_FULL)
    rows = run.choose(few, table.rows, (table.rows[1], table.rows[8]))
    free: dict = {"method": "noise-free", "B": LARGE}
    for sigma in table.sigmas:
        measured = accuracy(_FREE, LARGE, 0.0)
        free[f"published σ={sigma:g}"] = table.noise_free
        free[f"measured σ={sigma:g}"] = measured["mean"]
        free |= {f"DP σ={sigma:g}": math.nan, f"G3 σ={sigma:g}": math.nan}
        free[f"proven ε, σ={sigma:g}"] = math.inf
        free[f"spread σ={sigma:g}"] = measured["spread"]
    out: Rows = [free]
    for row in track(rows, table.name):
        entry: dict = {"method": row.method.name, "B": row.batch_size}
        for sigma, printed in zip(table.sigmas, row.published, strict=True):
            measured = accuracy(row.method, row.batch_size, sigma)
            entry[f"published σ={sigma:g}"] = printed
            entry[f"measured σ={sigma:g}"] = measured["mean"]
            entry[f"DP σ={sigma:g}"] = accuracy(_DP, row.batch_size, sigma)["mean"]
            entry[f"G3 σ={sigma:g}"] = accuracy(_G3, row.batch_size, sigma)["mean"]
            entry[f"proven ε, σ={sigma:g}"] = _epsilon(run, table, row, sigma)
            entry[f"spread σ={sigma:g}"] = measured["spread"]
        out.append(entry)
    return out


def _equal(run: Run, table: Table, accuracy: Accuracy) -> Rows:
    """The mechanisms that keep their promise, each with the noise that makes it cost the same."""
    few = tuple(method for method in tables.SOUND if method.name not in tables.ONLY_FULL_EQUAL)
    dp, sigma = Row(_DP, LARGE, (math.nan, math.nan)), table.real
    out: Rows = []
    for method in track(run.choose(few, tables.SOUND, tables.SOUND[:1]), table.name):
        noise = _sigma(run, table, method, sigma)
        measured = accuracy(method, LARGE, noise)
        out.append(
            {
                "method": method.name,
                "proven ε": _epsilon(run, table, dp, sigma),
                "σ": noise,
                "accuracy %": measured["mean"],
                "spread": measured["spread"],
            }
        )
    return out


def _subset(data: Images, train_size: int, test_size: int) -> Images:
    return Images(
        data.images[:train_size],
        data.labels[:train_size],
        data.test_images[:test_size],
        data.test_labels[:test_size],
    )


def _save(run: Run, table: Table, problem: Problem) -> Sequence[pathlib.Path]:
    accuracy, rate = _accuracies(run, table, problem)
    files = []
    for name, rows in (
        (table.name, _beside(run, table, accuracy)),
        (f"{table.name}_equal", _equal(run, table, accuracy)),
    ):
        files.append(run.save_table(name, [row | {"learning_rate": rate} for row in rows]))
    return files


def problem2(run: Run) -> Problem:
    """The CNN and the part of MNIST that Table II is run with."""
    sizes = run.choose((20_000, 5_000), (60_000, 10_000), (200, 100))
    data = _subset(load_mnist(run.data), *sizes)
    model = models.SmallCNN()
    return Problem(model, models.softmax_loss(model), _correct, data)


def problem3(run: Run) -> Problem:
    """The ResNet and the part of CIFAR-10 (JPEG) that Table III is run with."""
    data = load_cifar10_jpeg(run.data, limit=run.choose(2_000, None, 20))
    data = _subset(data, *run.choose((20_000, 5_000), (50_000, 10_000), (200, 100)))
    model = models.SmallResNet(run.choose((8, 16, 32), (16, 32, 64), (4, 4, 4)))
    return Problem(model, models.softmax_loss(model), _correct, data)


def table2(run: Run) -> Sequence[pathlib.Path]:
    """Table II: test accuracy of a CNN on MNIST, and of its sound rows at equal ε."""
    return _save(run, tables.TABLE2, problem2(run))


def table2_rates(run: Run) -> Sequence[pathlib.Path]:
    """Accuracy at smaller learning rates: does a row of Table II lose by the rate alone?"""
    accuracy, best = _accuracies(run, tables.TABLE2, problem2(run))
    geodp = Method("GeoDP β=0.1", "geodp", bounding_factor=0.1)
    selective = Method("DP+SUR", selective=True)
    rows: Rows = []
    for method in (_DP, _G3, selective, geodp):
        entry: dict = {"method": method.name, "σ": tables.TABLE2.real}
        for divisor in (4, 2, 1):
            rate = best / divisor
            found = accuracy(method, LARGE, tables.TABLE2.real, rate)
            entry[f"rate {rate:g}"] = found["mean"]
            entry[f"spread, rate {rate:g}"] = found["spread"]
        rows.append(entry)
    return [run.save_table("table2_rates", rows)]


def table3(run: Run) -> Sequence[pathlib.Path]:
    """Table III: test accuracy of a ResNet on CIFAR-10 (JPEG), and of its sound rows at equal ε."""
    return _save(run, tables.TABLE3, problem3(run))
