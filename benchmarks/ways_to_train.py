"""Ways to draw batches and to correlate noise: the error they leave, and a model trained by each.

    python -m benchmarks.ways_to_train

Writes benchmarks/results/ways_to_train.md: three runs that users have, each calibrated to one ε by
`training.compare_noise`, and a linear model of MNIST (from ../shared/data) trained by the best of
every way. The learning rate of each is the power of two that is best on held-out records, found by
climbing, so that it is never at the end of what was tried; the test set is read at that rate alone.
"""

from __future__ import annotations

import math
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.accounting import _machine
from dpjax import training
from experiments.images import load_mnist

RESULT = pathlib.Path(__file__).parent / "results" / "ways_to_train.md"
DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
DELTA, SEEDS = 1e-6, 5
FIRST = (-1, 0, 1)  # powers of two that are tried first, as learning rates
FARTHEST = 12  # and the last


class Regime(NamedTuple):
    """What a user has."""

    records: int
    batch_size: int
    epochs: int
    epsilon: float


REGIMES = {
    "few epochs, much noise": Regime(10_000, 100, 2, 0.5),
    "many epochs": Regime(10_000, 200, 20, 4.0),
    "a stream, each record once": Regime(50_000, 100, 1, 1.0),
}
WAYS = {
    "fresh noise, Poisson samples": ("poisson", "fresh"),
    "fresh noise, balls in bins": ("balls-in-bins", "fresh"),
    "bands, groups in turn": ("cyclic-poisson", "Toeplitz"),
    "bands, balls in bins": ("balls-in-bins", "Toeplitz"),
    "bands of C⁻¹, balls in bins": ("balls-in-bins", "BandedInverse"),
    "buffered, balls in bins": ("balls-in-bins", "BufferedToeplitz"),
    "bands, in order": ("cyclic", "Toeplitz"),
    "bands of C⁻¹, in order": ("cyclic", "BandedInverse"),
    "buffered, in order": ("cyclic", "BufferedToeplitz"),
}


def kind_of(strategy: Any) -> str:
    """What a strategy is called in `WAYS`."""
    if strategy is None or getattr(strategy, "bands", 0) == 1:
        return "fresh"
    return type(strategy).__name__


class Trained(NamedTuple):
    """What the best rate of a way comes to, in %, one number a seed."""

    rate: float
    held_out: np.ndarray
    test: np.ndarray


def climb(score: Callable[[int], np.ndarray]) -> tuple[int, dict[int, np.ndarray]]:
    """The power whose mean score is best, with one tried on either side, and all that was tried."""
    tried = {power: score(power) for power in FIRST}
    while True:
        best = max(tried, key=lambda power: float(np.mean(tried[power])))
        further = best + 1 if best == max(tried) else best - 1 if best == min(tried) else None
        if further is None or abs(further) > FARTHEST:
            return best, tried
        tried[further] = score(further)


def train_and_score(plan: training.Plan, parts: Sequence[Any], seeds: int = SEEDS) -> Trained:
    """A linear model by a plan, at the rate that is best on the second of three parts."""
    features, classes = parts[0][0].shape[1], int(parts[0][1].max()) + 1
    model = training.softmax(features, classes)
    start = model.init(jax.random.key(0))

    def right(params: Any, part: Any) -> jax.Array:
        scores = jax.vmap(lambda x: model.apply(params, x))(part[0])
        return 100 * jnp.mean(jnp.argmax(scores, -1) == part[1])

    @jax.jit
    def run(rate: jax.Array, keys: jax.Array, train: Any, held_out: Any, test: Any) -> Any:
        step = training.training_step(
            training.cross_entropy(model), start, plan, optimizer=optax.sgd(rate)
        )

        def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            state = jax.lax.fori_loop(
                0, plan.steps, lambda _, s: step.update(s, train, key)[0], step.init(start)
            )
            return right(state["params"], held_out), right(state["params"], test)

        return jax.vmap(one)(keys)

    keys = jax.random.split(jax.random.key(1), seeds)
    arrays = [jax.tree.map(jnp.asarray, part) for part in parts]
    found: dict[int, np.ndarray] = {}

    def score(power: int) -> np.ndarray:
        found[power] = np.asarray(run(jnp.float32(2.0**power), keys, *arrays), np.float64)
        return found[power][0]

    best, _ = climb(score)
    return Trained(2.0**best, *found[best])


def level_with_best(scores: Sequence[np.ndarray | None]) -> list[bool]:
    """Which means are within two standard errors of the difference to the best."""
    means = [-math.inf if s is None else float(np.mean(s)) for s in scores]
    best = int(np.argmax(means))
    top = scores[best]
    assert top is not None, "one way at least was trained"
    found = []
    for mean, own in zip(means, scores, strict=True):
        error = (
            0.0
            if own is None
            else math.sqrt((np.var(own, ddof=1) + np.var(top, ddof=1)) / len(top))
        )
        found.append(mean >= means[best] - 2 * error)
    return found


def compare(regime: Regime) -> dict[str, training.Compared]:
    """The best of every way by its error, for those that the regime has."""
    found = training.compare_noise(
        regime.records, epsilon=regime.epsilon, delta=DELTA, batch_size=regime.batch_size,
        epochs=regime.epochs, bands=(4, 8, 16), buffers=(2, 3),
    )  # fmt: skip
    best: dict[str, training.Compared] = {}
    for name, (sampling, kind) in WAYS.items():
        own = [
            one for one in found if one.sampling == sampling and kind_of(one.correlation) == kind
        ]
        best |= {name: own[0]} if own else {}
    return best


def read_parts(records: int) -> list[Any]:
    """The records of a regime, 10,000 for the choice of rates, and the test set, 14 x 14 pixels."""
    images = load_mnist(DATA)

    def shrink(pictures: np.ndarray) -> np.ndarray:  # means of 2 x 2 pixels, in [0, 1]
        squares = pictures.reshape(len(pictures), 14, 2, 14, 2)
        return ((squares.mean(axis=(2, 4)).reshape(len(pictures), -1) + 1) / 2).astype(np.float32)

    flat, test = shrink(images.images), shrink(images.test_images)
    return [
        (flat[:records], images.labels[:records]),
        (flat[50_000:], images.labels[50_000:]),
        (test, images.test_labels),
    ]


class Cell(NamedTuple):
    """A way in a regime."""

    noise: training.Compared
    trained: Trained


def run_regime(name: str, regime: Regime) -> dict[str, Cell]:
    """Every way in a regime; prints each."""
    parts, cells = read_parts(regime.records), {}
    for way, one in compare(regime).items():
        began = time.process_time()
        cells[way] = Cell(one, train_and_score(one.plan, parts))
        found = cells[way].trained
        print(f"{name} | {way} | {one.error:.4f} | {found.rate:g} | {found.test.mean():.2f} | "
              f"{time.process_time() - began:.0f} s", flush=True)  # fmt: skip
    return cells


def size_of(strategy: Any) -> str:
    """How many bands or buffers a strategy has, in words."""
    kind = kind_of(strategy)
    if kind == "fresh":
        return ""
    if kind == "BufferedToeplitz":
        return f", {strategy.buffers} buffers"
    return f", {strategy.bands} bands"


def write_table(columns: dict[str, dict[str, Cell]]) -> list[str]:
    """Error and accuracy of every way, a pair of columns a regime; the best of each is bold."""
    heads = [f"{name}: {part}" for name in columns for part in ("error", "accuracy, %")]
    lines = [f"| way | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    marks = {
        name: dict(zip(WAYS, level_with_best(
            [cells[way].trained.test if way in cells else None for way in WAYS]), strict=True))
        for name, cells in columns.items()
    }  # fmt: skip
    for way in WAYS:
        row = [way]
        for name, cells in columns.items():
            if way not in cells:
                row += ["–", "–"]
                continue
            noise, trained = cells[way]
            least = noise.error == min(cell.noise.error for cell in cells.values())
            spread = trained.test.std(ddof=1)
            error, right = f"{noise.error:.3f}", f"{trained.test.mean():.1f} ± {spread:.1f}"
            row += [
                f"**{error}**" if least else error,
                f"**{right}**" if marks[name][way] else right,
            ]
        lines.append(f"| {' | '.join(row)} |")
    return lines


def write_details(columns: dict[str, dict[str, Cell]]) -> list[str]:
    """What each way was: noise multiplier, size, rate, and accuracy on the held-out records."""
    lines = ["| run | way | noise multiplier | learning rate | held out, % | test, % |"]
    lines.append("|---|---|---|---|---|---|")
    for name, cells in columns.items():
        for way, (noise, trained) in cells.items():
            row = [name, f"{way}{size_of(noise.correlation)}", f"{noise.noise_multiplier:.3f}"]
            row += [f"{trained.rate:g}", f"{trained.held_out.mean():.2f}"]
            row += [f"{trained.test.mean():.2f} ± {trained.test.std(ddof=1):.2f}"]
            lines.append(f"| {' | '.join(row)} |")
    return lines


def write_page(columns: dict[str, dict[str, Cell]]) -> list[str]:
    """The results of the runs that were made."""
    settings = "; ".join(
        f"{name}: {r.records:,} records, batches of {r.batch_size}, "
        f"{r.epochs} {'epoch' if r.epochs == 1 else 'epochs'}, ε = {r.epsilon:g}"
        for name, r in REGIMES.items()
    )
    return [
        "# Ways to train at equal ε",
        "",
        "Written by `python -m benchmarks.ways_to_train`.",
        "",
        f"{settings}; δ = {DELTA:g}, clip norm 1. Error: standard deviation of the noise in an "
        "iterate (root of the mean over the steps; rate 1, sums of mean gradients, no momentum), "
        "the best of 4, 8 and 16 bands, or of 2 and 3 buffers, by `training.compare_noise`. "
        "Accuracy: test images of MNIST, shrunk to 14 x 14 pixels, that a linear model of 1,970 "
        "numbers has right after the last step of SGD, mean and standard deviation of "
        f"{SEEDS} keys; rates are powers of two, the best on 10,000 held-out records. Bold: the "
        "least error, and every accuracy that is within two standard errors of the best.",
        "",
        "## Error and accuracy",
        "",
        *write_table(columns),
        "",
        "## Noise and learning rates",
        "",
        *write_details(columns),
        "",
        f"{time.process_time():.0f} seconds of the processor.",
        "",
        f"<!-- {_machine()} -->",
        "",
    ]


def main() -> None:
    """Train by every way in every regime and write the results."""
    if not (DATA / "mnist").is_dir():
        print("skipped: ../shared/data/mnist is absent")
        return
    columns: dict[str, dict[str, Cell]] = {}
    for name, regime in REGIMES.items():
        columns[name] = run_regime(name, regime)
        RESULT.write_text("\n".join(write_page(columns)))


if __name__ == "__main__":
    main()
