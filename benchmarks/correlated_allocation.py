"""Random allocation under correlated noise: beside simulation, and beside jax_privacy.

    python -m benchmarks.correlated_allocation --simulate [FROM TO]
    python -m benchmarks.correlated_allocation --compare [--peer PYTHON]

`--simulate` prices 200 random strategies with entries >= 0 and holds each price against the hockey
sticks of 10⁶ draws of the density ratio, in both directions; it fails where one is below by more
than six standard errors, and adds a line to results/correlated_allocation_simulated.csv for each.
`--compare` writes results/correlated_allocation.md: prices and times beside jax_privacy's Monte
Carlo accountant for banded strategies (PYTHON is an interpreter that has it), and how much more
noise the bound asks for than a simulation would. Ways to draw batches and to correlate noise are
compared by `benchmarks.ways_to_train`.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import math
import pathlib
import subprocess
import time
from typing import NamedTuple

import numpy as np

from benchmarks.accounting import _machine
from dpjax import accounting as acc
from dpjax import correlation
from dpjax.correlation import Toeplitz

RESULT = pathlib.Path(__file__).parent / "results" / "correlated_allocation.md"
SIMULATED = RESULT.with_name("correlated_allocation_simulated.csv")
CASES, DRAWS = 200, 1_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class Dense:
    """A strategy by its matrix for the whole run; of fewer steps, its first rows and columns."""

    rows: np.ndarray

    def matrix(self, steps):
        return self.rows[:steps, :steps]


def moved(c, bins, epochs):
    """What a record in each bin moves, one row a bin."""
    return np.stack([c[:, j::bins][:, :epochs].sum(1) for j in range(bins)])


def all_choices(c, bins, epochs):
    """The same for every way to draw a bin in every epoch."""
    places = np.stack(np.meshgrid(*[np.arange(bins)] * epochs, indexing="ij"), -1)
    every = places.reshape(-1, epochs) + bins * np.arange(epochs)
    return c.T[every].sum(1)


def simulate(v, sigma, epsilons, draws, rng):
    """δ(ε) of the two directions with its standard error, [direction, ε, (mean, error)]."""
    k = v @ v.T / sigma**2
    values, axes = np.linalg.eigh(k)
    root = axes * np.sqrt(np.maximum(values, 0.0))
    grow = np.exp(np.asarray(epsilons))
    total, squares, done = 0.0, 0.0, 0
    while done < draws:
        n = min(draws - done, 4_000_000 // len(k) + 1)
        ratio = np.exp(rng.normal(size=(n, len(k))) @ root.T - np.diag(k) / 2).mean(1)[:, None]
        seen = np.stack([np.maximum(ratio - grow, 0.0), np.maximum(1 - ratio * grow, 0.0)])
        total, squares, done = total + seen.sum(1), squares + (seen**2).sum(1), done + n
    mean = total / done
    return np.stack([mean, np.sqrt(np.maximum(squares / done - mean**2, 0.0) / done)], -1)


class Case(NamedTuple):
    """A random strategy and how it is used.

    Fields:
        run: the mechanism.
        moved: what a record moves by each of its choices, one row each.
        sigma: the noise multiplier.
        kind: how the strategy was drawn.
        rng: of its draws.
    """

    run: acc.RandomAllocationCorrelated
    moved: np.ndarray
    sigma: float
    kind: str
    rng: np.random.Generator


def toeplitz(c: np.ndarray, steps: int) -> np.ndarray:
    """The lower-triangular matrix of these coefficients."""
    apart = np.subtract.outer(np.arange(steps), np.arange(steps))
    return np.where(apart >= 0, np.pad(c, (0, steps))[np.maximum(apart, 0)], 0.0)


def draw_case(number: int) -> Case:
    """A random strategy with entries >= 0, bins, epochs and noise: dense, falling, or Toeplitz."""
    rng = np.random.default_rng([51, number])
    bins, epochs = int(rng.integers(2, 13)), int(rng.integers(1, 4))
    redrawn = bool(number % 4 == 3 and bins**epochs <= 64)
    steps, kind = bins * epochs, ("dense", "falling", "Toeplitz")[number % 3]
    if kind == "dense":
        shape = rng.exponential(size=(steps, steps)) ** rng.integers(1, 4)
        strategy: Dense | Toeplitz = Dense(np.tril(shape))
    else:
        column = rng.exponential(size=rng.integers(1, steps + 1)) + 1e-3
        falling = Toeplitz(tuple(np.sort(column)[::-1].tolist()))
        strategy = falling if kind == "falling" else Dense(toeplitz(column, steps))
    c = strategy.matrix(steps)
    v = all_choices(c, bins, epochs) if redrawn else moved(c, bins, epochs)
    sigma = float(np.sqrt(np.max(np.sum(v * v, 1)))) / rng.uniform(0.3, 2.0)
    run = acc.RandomAllocationCorrelated(sigma, strategy, bins, epochs, redrawn=redrawn)
    return Case(run, v, sigma, kind, rng)


EPSILONS = (0.2, 1.0)


def price_and_simulate(number: int, draws: int) -> tuple[Case, np.ndarray, np.ndarray]:
    """(the case, δ by the accountant at each ε, what `simulate` sees)."""
    case = draw_case(number)
    found = np.array([acc.delta(case.run, epsilon) for epsilon in EPSILONS])
    return case, found, simulate(case.moved, case.sigma, EPSILONS, draws, case.rng)


def is_above(found: np.ndarray, seen: np.ndarray) -> bool:
    """Whether no price is below the larger direction by more than six standard errors."""
    return bool(np.all(found >= (seen[..., 0] - 6 * seen[..., 1]).max(0)))


def simulate_cases(first: int, last: int) -> None:
    """Hold the cases against their simulations, and keep a line for each."""
    rows = []
    for number in range(first, last):
        case, found, seen = price_and_simulate(number, DRAWS)
        assert is_above(found, seen), (number, found, seen)
        run = case.run
        row = [number, case.kind, int(run.bins), int(run.epochs), run.redrawn, f"{case.sigma:.4g}"]
        for i, epsilon in enumerate(EPSILONS):
            worse = int(np.argmax(seen[:, i, 0]))
            mean, error = seen[worse, i]
            row += [epsilon, f"{mean:.4e}", f"{error:.1e}", f"{found[i]:.4e}"]
        rows.append(row)
    head = ["case", "strategy", "bins", "epochs", "redrawn", "sigma"]
    head += ["epsilon", "simulated", "error", "bound"] * len(EPSILONS)
    kept = list(csv.reader(SIMULATED.open()))[1:] if SIMULATED.exists() else []
    new = {str(row[0]) for row in rows}
    kept = [row for row in kept if row[0] not in new] + rows
    with SIMULATED.open("w", newline="") as file:
        csv.writer(file).writerows([head, *sorted(kept, key=lambda row: int(row[0]))])


# bands, bins, epochs, noise multiplier, ε
SETTINGS = [
    (4, 64, 1, 2.0, 0.25),
    (8, 64, 1, 3.0, 0.25),
    (8, 100, 4, 4.0, 0.5),
    (16, 100, 10, 8.0, 0.5),
]
SAMPLES = 5_000

# Runs in the peer's own environment; what it prints is one line of JSON.
PEER = """
import json, sys, time
import numpy as np
from importlib.metadata import version
from jax_privacy import batch_selection
from jax_privacy.experimental.monte_carlo import delta_calculation, sample_generation
wanted = json.loads(sys.argv[1])
found = {"version": version("jax_privacy"), "rows": []}
for column, bins, epochs, sigma, epsilon, samples in wanted["settings"]:
    how = batch_selection.BallsInBinsSampling(iterations=bins * epochs, cycle_length=bins)
    c, seen, begin = np.asarray(column), [], time.process_time()
    for positive in (True, False):
        drawn = sample_generation.generate_sample(
            how, sigma, c, seed=1, positive_sample=positive, num_samples=samples)
        loss = np.asarray(sample_generation.compute_privacy_loss(how, drawn, sigma, c))
        loss = loss if positive else -loss
        part = np.maximum(-np.expm1(epsilon - loss), 0.0)
        seen.append([float(part.mean()), float(part.std() / samples ** 0.5)])
    found["rows"].append([max(seen), time.process_time() - begin])
needed = [delta_calculation.minimum_samples_to_calibrate(d / 2, d) for d in wanted["deltas"]]
print(json.dumps(found | {"needed": needed}))
"""


def ask_peer(python: str | None, strategies: list[Toeplitz]) -> dict | None:
    """What jax_privacy says of the settings; None where no interpreter is given."""
    if python is None:
        return None
    rows = [[list(c.coefficients), *setting[1:], SAMPLES]
            for c, setting in zip(strategies, SETTINGS, strict=True)]  # fmt: skip
    wanted = json.dumps({"settings": rows, "deltas": [1e-5]})
    done = subprocess.run([python, "-c", PEER, wanted], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def noise_by_simulation(v: np.ndarray, start: float, epsilon: float, delta: float) -> float:
    """About the noise multiplier at which the simulated δ(ε) is what is asked for."""
    low, high = 0.2 * start, start
    for _ in range(8):
        middle = math.sqrt(low * high)
        seen = simulate(v, middle, [epsilon], 50_000, np.random.default_rng(7))[..., 0].max()
        low, high = (low, middle) if seen < delta else (middle, high)
    return math.sqrt(low * high)


def compare_with_peer(python: str | None) -> list[str]:
    """The table beside jax_privacy's Monte Carlo."""
    strategies = [correlation.banded_toeplitz(bands, steps=bins * epochs, separation=bins)
                  for bands, bins, epochs, *_ in SETTINGS]  # fmt: skip
    theirs = ask_peer(python, strategies)
    name = f"jax_privacy {theirs['version']}" if theirs else "jax_privacy: not installed"
    lines = [
        "## δ of banded strategies, balls in bins",
        "",
        f"Ours is an upper bound. Theirs ({name}) is the mean of {SAMPLES:,} samples with its "
        'standard error, the larger direction. "Certify" is the processor time for as many of '
        'their samples as `minimum_samples_to_calibrate` asks for at δ = 1e-5 from 5e-6. "Noise" '
        "is what the bound asks for over what a simulation says is enough, at this ε and its "
        "δ by simulation.",
        "",
        "| bands | bins | epochs | σ | ε | δ, theirs | δ, ours | δ, without amplification | ours | "
        "theirs | certify | noise |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for i, (setting, c) in enumerate(zip(SETTINGS, strategies, strict=True)):
        bands, bins, epochs, sigma, epsilon = setting
        run = acc.RandomAllocationCorrelated(sigma, c, bins, epochs)
        acc.delta(dataclasses.replace(run, noise_multiplier=1.01 * sigma), epsilon)
        began = time.process_time()
        found = acc.delta(run, epsilon)
        took = time.process_time() - began
        order = acc.delta(acc.CorrelatedGaussian(sigma, c, bins * epochs, bins), epsilon)
        v = moved(c.matrix(bins * epochs), bins, epochs)
        seen = simulate(v, sigma, [epsilon], 100_000, np.random.default_rng(3))[..., 0].max()
        wanted = acc.calibrate(
            lambda s, run=run: dataclasses.replace(run, noise_multiplier=s),
            epsilon=epsilon, delta=float(seen),
        )  # fmt: skip
        noise = float(wanted) / noise_by_simulation(v, float(wanted), epsilon, float(seen))
        other, spent, certify = "–", "–", "–"
        if theirs:
            (mean, error), seconds = theirs["rows"][i]
            other, spent = f"{mean:.2e} ± {error:.0e}", f"{seconds:.1f} s"
            certify = f"{seconds / SAMPLES * theirs['needed'][0] / 3600:.1f} h"
        row = [bands, bins, epochs, f"{sigma:g}", f"{epsilon:g}", other, f"{found:.2e}"]
        row += [f"{order:.2e}", f"{1e3 * took:.0f} ms", spent, certify, f"{noise:.2f}"]
        lines.append("| " + " | ".join(map(str, row)) + " |")
    return [*lines, ""]


def main() -> None:
    """Simulate or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", nargs="*", type=int, metavar=("FROM", "TO"))
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter that has jax_privacy")
    options = parser.parse_args()
    if options.simulate is not None:
        simulate_cases(*(options.simulate or (0, CASES)))
    if options.compare:
        lines = ["# Random allocation under correlated noise", ""]
        lines += ["Written by `python -m benchmarks.correlated_allocation --compare`.", ""]
        lines += compare_with_peer(options.peer)
        RESULT.write_text("\n".join([*lines, f"<!-- {_machine()} -->", ""]))


if __name__ == "__main__":
    main()
