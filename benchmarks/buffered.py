"""Buffered strategies beside jax_privacy's: error at equal ε, and the time to find them.

    python -m benchmarks.buffered [--peer PYTHON]

Writes benchmarks/results/buffered.md. PYTHON is an interpreter that has jax_privacy; without it the
peer's columns say so. Both are given the same workload, uses and number of buffers: theirs chooses
how many, at most five, as its defaults do. Errors of both come from one formula here
(`Workload.error`, checked by dense linear algebra in the tests). Times are processor seconds.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import time
from typing import NamedTuple

import jax
import numpy as np

from dpjax import correlation

RESULTS = pathlib.Path(__file__).parent / "results"
MOST = 5  # buffers


class Setting(NamedTuple):
    """A run, how a record is used in it, and the error that counts."""

    steps: int
    separation: int
    participations: int
    kind: str


USES = [(100, 100, 1), (100, 10, 10), (500, 500, 1), (500, 50, 10), (2000, 2000, 1),
        (2000, 200, 10)]  # fmt: skip
SETTINGS = [Setting(*uses, kind) for uses in USES for kind in ("mean", "max")]

# Runs in the peer's own environment; what it prints is one line of JSON a setting.
PEER = """
import json, sys, time
import numpy as np
from importlib.metadata import version
from jax_privacy.matrix_factorization import buffered_toeplitz
print(json.dumps([version("jax_privacy"), version("jax")]), flush=True)
settings, most = json.loads(sys.argv[1])
for steps, separation, uses, kind in settings:
    start = time.process_time()
    found = buffered_toeplitz.optimize(
        n=steps, min_sep=separation, max_participations=uses, error=kind, max_buffers=most)
    series = [np.asarray(x, np.float64).tolist() for x in (found.buf_decay, found.output_scale)]
    print(json.dumps([series, time.process_time() - start]), flush=True)
"""


def find_theirs(python: str, settings: list[Setting]) -> tuple[str, list]:
    """jax_privacy's versions, and of each setting the series that it finds and the seconds."""
    command = [python, "-c", PEER, json.dumps([settings, MOST])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (version, jax_version), *found = map(json.loads, done.stdout.splitlines())
    return f"jax_privacy {version} (jax {jax_version})", found


def measure(setting: Setting, series: tuple[list[float], list[float]]) -> float:
    """The error of two lists, the ratios and the weights of geometric series, in float64."""
    decays, weights = map(np.asarray, series)
    powers = decays ** np.arange(setting.steps - 1.0)[:, None]
    column = np.concatenate([[1.0], powers @ weights])
    # The last coefficients may be out of order by one rounding.
    return measure_strategy(setting, correlation.Toeplitz(np.minimum.accumulate(column)))


def measure_strategy(setting: Setting, strategy: correlation.strategies.CorrelationStrategy):
    """The error at noise = sensitivity."""
    work = correlation.Workload(setting.steps)
    uses = {"separation": setting.separation, "participations": setting.participations}
    return work.error(strategy, **uses, kind=setting.kind)


def compare(setting: Setting, theirs: list | None) -> tuple[str, float | None]:
    """A row of the table, and our error over theirs."""
    buffers = len(theirs[0][0]) if theirs else 3
    uses = {"separation": setting.separation, "participations": setting.participations}
    start = time.process_time()
    ours = correlation.buffered_toeplitz(buffers, setting.steps, **uses, kind=setting.kind)
    took, error = time.process_time() - start, measure_strategy(setting, ours)
    other, ratio = (measure(setting, theirs[0]), None) if theirs else (None, None)
    if other is not None:
        ratio = error / other
    cells = [*setting, buffers, f"{error:.5f}", f"{took:.1f}"]
    cells += ["–"] * 3 if theirs is None else [f"{other:.5f}", f"{theirs[1]:.1f}", f"{ratio:.6f}"]
    return "| " + " | ".join(map(str, cells)) + " |", ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter that has jax_privacy")
    python = parser.parse_args().peer
    name, found = find_theirs(python, SETTINGS) if python else ("jax_privacy: not installed", [])
    lines = [
        "# Buffered strategies",
        "",
        f"Written by `python -m benchmarks.buffered`, jax {jax.__version__}, "
        f"{jax.default_backend()}. Beside {name}.",
        "",
        "Error of prefix sums at noise = sensitivity, so at equal ε: root of the mean over the "
        "steps, or the largest. As many buffers as jax_privacy's `buffered_toeplitz.optimize` "
        "chooses.",
        "",
        "| steps | separation | uses | error | buffers | ours | ours, s | theirs | theirs, s "
        "| ours/theirs |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios = []
    for place, setting in enumerate(SETTINGS):
        row, ratio = compare(setting, found[place] if found else None)
        lines.append(row)
        ratios += [] if ratio is None else [ratio]
        print(row, flush=True)
    if ratios:
        lines += ["", f"Largest of {len(ratios)} ratios: {max(ratios):.6f}."]
    (RESULTS / "buffered.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
