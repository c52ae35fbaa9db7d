"""Buffered strategies beside jax_privacy's: error at equal ε, and the time to find them.

    python -m benchmarks.buffered [--peer PYTHON]

Writes benchmarks/results/buffered.md. PYTHON is an interpreter that has jax_privacy; without it the
peer's columns say so. Both are given the same workload, uses and number of buffers, three, at
which `buffered_toeplitz.optimize` of jax_privacy starts and ends. Errors of both come from one
formula here (`Workload.error`, checked by dense linear algebra in the tests). Times are processor
seconds.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from dpjax import correlation

RESULTS = pathlib.Path(__file__).parent / "results"
BUFFERS = 3


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
settings, buffers = json.loads(sys.argv[1])
for steps, separation, uses, kind in settings:
    start = time.process_time()
    found = buffered_toeplitz.optimize(
        n=steps, min_sep=separation, max_participations=uses, error=kind,
        min_buffers=buffers, max_buffers=buffers)
    series = [np.asarray(x, np.float64).tolist() for x in (found.buf_decay, found.output_scale)]
    print(json.dumps([series, time.process_time() - start]), flush=True)
"""


def find_theirs(python: str | None, settings: list[Setting]) -> Iterator[list]:
    """jax_privacy's versions, then of each setting the series that it finds and the seconds."""
    if python is None:
        return
    command = [python, "-c", PEER, json.dumps([settings, BUFFERS])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "which was asked for"
        yield from map(json.loads, process.stdout)
    if process.returncode:
        raise RuntimeError(f"{python} ended with {process.returncode}")


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
    uses = {"separation": setting.separation, "participations": setting.participations}
    start = time.process_time()
    ours = correlation.buffered_toeplitz(BUFFERS, setting.steps, **uses, kind=setting.kind)
    took, error = time.process_time() - start, measure_strategy(setting, ours)
    other, ratio = (measure(setting, theirs[0]), None) if theirs else (None, None)
    if other is not None:
        ratio = error / other
    cells = [*setting, f"{error:.5f}", f"{took:.1f}"]
    cells += ["–"] * 3 if theirs is None else [f"{other:.5f}", f"{theirs[1]:.1f}", f"{ratio:.6f}"]
    return "| " + " | ".join(map(str, cells)) + " |", ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter that has jax_privacy")
    python = parser.parse_args().peer
    found = find_theirs(python, SETTINGS)
    version, jax_version = next(found, ("", ""))
    name = f"jax_privacy {version} (jax {jax_version})" if python else "jax_privacy: not installed"
    lines = [
        "# Buffered strategies",
        "",
        f"Written by `python -m benchmarks.buffered`, jax {jax.__version__}, "
        f"{jax.default_backend()}. Beside {name}.",
        "",
        "Error of prefix sums at noise = sensitivity, so at equal ε: root of the mean over the "
        f"steps, or the largest. {BUFFERS} buffers; theirs by `buffered_toeplitz.optimize`.",
        "",
        "| steps | separation | uses | error | ours | ours, s | theirs | theirs, s | ours/theirs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    ratios = []
    for setting in SETTINGS:
        row, ratio = compare(setting, next(found, None))
        lines.append(row)
        ratios += [] if ratio is None else [ratio]
        print(row, flush=True)
    if ratios:
        lines += ["", f"Largest of {len(ratios)} ratios: {max(ratios):.6f}."]
    (RESULTS / "buffered.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
