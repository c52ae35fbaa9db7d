"""Random allocation beside the public package PLD_accounting: ε, width of the interval, time.

    python -m benchmarks.random_allocation           # into results/random_allocation.md
    python -m benchmarks.random_allocation --quick   # two settings, printed and not kept
    python -m benchmarks.random_allocation --intervals   # the contour's ends beside those kept

Processor time, median of five; every repetition asks at another noise multiplier, so that nothing
is found in a cache. A package that is not installed is left out. PLD_accounting is not asked for
100 epochs of 1,000 steps, where it had no answer after eight minutes.

`--intervals` asks the contour for ε of the 100 random settings of
results/random_allocation_intervals.csv and compares the ends with those kept there, of an
earlier version: they must overlap, and none may be wider by more than a tenth and 1e-12 of ε.
"""

from __future__ import annotations

import argparse
import csv
import pathlib
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np

from benchmarks.accounting import _machine
from dpjax import accounting as acc

_MOST = 10_000  # steps in all that the other package is asked for
RESULTS = pathlib.Path(__file__).parent / "results" / "random_allocation.md"
INTERVALS = RESULTS.with_name("random_allocation_intervals.csv")
# noise multiplier, steps of an epoch, epochs, δ
SETTINGS = [
    (2.0, 20, 1, 1e-5),
    (1.0, 20, 1, 1e-5),
    (1.0, 100, 1, 1e-5),
    (2.0, 100, 10, 1e-6),
    (1.0, 1_000, 100, 1e-6),
    (2.0, 1_000, 100, 1e-6),
    (5.0, 1_000, 100, 1e-6),
    (10.0, 1_000, 100, 1e-6),
    (20.0, 1_000, 100, 1e-6),
]


def ours(method: str) -> Callable:
    def ask(sigma: float, steps: int, epochs: int, delta: float) -> tuple[float, float]:
        run = acc.Repeated(acc.RandomAllocation(acc.Gaussian(sigma), steps), epochs)
        upper = acc.epsilon(run, delta, method=method)
        found = [m for m in acc.methods(run).values() if m.name == method]
        lower = found[0].epsilon_lower(run, delta, acc.Adjacency.ADD_REMOVE)
        return float(np.asarray(lower)), float(upper)

    return ask


def theirs(sigma: float, steps: int, epochs: int, delta: float) -> tuple[float, float]:
    from PLD_accounting import gaussian_allocation_epsilon_range

    ends = gaussian_allocation_epsilon_range(
        delta=delta, sigma=sigma, num_steps=steps, num_epochs=epochs
    )
    return min(ends), max(ends)


def row(name: str, ask: Callable, setting: tuple, repeats: int) -> str:
    sigma, steps, epochs, delta = setting
    times, ends = [], (0.0, np.inf)
    for k in range(repeats):
        began = time.process_time()
        ends = ask(sigma * (1 + 1e-9 * k), steps, epochs, delta)
        times.append(time.process_time() - began)
    low, high = ends
    width = (high - low) / high if np.isfinite(high) else np.inf
    spent = 1e3 * statistics.median(times)
    return (
        f"| σ = {sigma:g}, {steps} steps, {epochs} epochs, δ = {delta:g} | {name} | {low:.8f} | "
        f"{high:.8f} | {width:.1e} | {spent:,.0f} ms |"
    )


def kept() -> list[tuple[tuple[float, int, int, float], float, float]]:
    """The random settings, and the ends of ε that an earlier version gave them."""
    with INTERVALS.open() as file:
        rows = [tuple(map(float, row)) for row in list(csv.reader(file))[1:]]
    return [((s, int(t), int(e), d), low, high) for s, t, e, d, low, high in rows]


def against(setting: tuple, low: float, high: float) -> tuple[str, float, float]:
    """How the contour's ends compare with the ones given; ε; and the time in ms."""
    began = time.process_time()
    new_low, new_high = ours("contour")(*setting)
    spent = 1e3 * (time.process_time() - began)
    if new_low > high or new_high < low:
        verdict = "apart"
    elif new_high - new_low > 1.1 * (high - low) + 1e-12 * high:
        verdict = "wider"
    elif np.isfinite(new_high) and not np.isfinite(high):
        verdict = "new"
    else:
        verdict = "same" if np.isfinite(new_high) else "none"
    return verdict, new_high, spent


def intervals() -> None:
    """Print what has changed for each setting, and how many there are of each kind."""
    found = []
    for setting, low, high in kept():
        found.append(against(setting, low, high))
        if found[-1][0] != "same":
            print(*setting, low, high, *found[-1], flush=True)
    verdicts, _, times = zip(*found, strict=True)
    for verdict in dict.fromkeys(verdicts):
        print(f"{verdict}: {verdicts.count(verdict)} of {len(verdicts)}")
    print(f"upper and lower end together: {statistics.median(times):.0f} ms, median")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--intervals", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.intervals:
        intervals()
        return
    rows = []
    for setting in SETTINGS[:2] if options.quick else SETTINGS:
        for name, ask, repeats in (
            ("contour", ours("contour"), 5),
            ("pld", ours("pld"), 1),
            ("PLD_accounting", theirs, 1),
        ):
            if ask is theirs and setting[1] * setting[2] > _MOST:
                continue
            try:
                rows.append(row(name, ask, setting, repeats))
            except ImportError as error:
                print(f"{name} left out: {error}")
                continue
            print(rows[-1], flush=True)
    head = "| setting | method | lower ε | upper ε | relative width | processor time |"
    text = "\n".join(["## Random allocation", "", head, "|" + "---|" * 6, *rows, ""])
    if not options.quick:
        RESULTS.write_text(f"{text}\n<!-- {_machine()} -->\n")


if __name__ == "__main__":
    main()
