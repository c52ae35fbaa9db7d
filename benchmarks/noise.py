"""Nanoseconds a number: dpjax's Gaussian noise beside jax.random.normal, in one run.

    python -m benchmarks.noise [--full]

Writes benchmarks/results/noise-<platform>.csv. Medians of alternating calls; the minimum stands
beside them, because the median of a shared machine is its neighbours' as much as its own.
"""

from __future__ import annotations

import argparse
import csv
import pathlib
import time

import jax
import numpy as np

from dpjax._numerics.normal import normal, normal_like

RESULTS = pathlib.Path(__file__).parent / "results"
SHAPES = [(1 << 18,), (784, 1024), (1024, 10), (3, 3, 64, 64), (1 << 21,)]
LARGE = [(1 << 24,), (8192, 8192)]


def alternate(functions, repeats):
    """Seconds of each function, one call of each in turn: [(minimum, median), …].

    On a CPU these are processor seconds, which a shared machine disturbs less than wall-clock ones.
    """
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    for f in functions:
        jax.block_until_ready(f())
    times = np.empty((repeats, len(functions)))
    for row in times:
        for i, f in enumerate(functions):
            start = clock()
            jax.block_until_ready(f())
            row[i] = clock() - start
    return list(zip(times.min(0), np.median(times, 0), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="larger shapes too")
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    key = jax.random.key(0)
    rows = []
    for shape in SHAPES + (LARGE if options.full else []):
        theirs = jax.jit(lambda k, shape=shape: jax.random.normal(k, shape))
        ours = jax.jit(lambda k, shape=shape: normal(k, shape))
        timed = alternate([lambda: theirs(key), lambda: ours(key)], options.repeats)  # noqa: B023
        rows.append(("x".join(map(str, shape)), int(np.prod(shape)), *timed))
    tree = [
        jax.ShapeDtypeStruct(s, np.float32)
        for s in ((784, 1024), (1024,), (1024, 1024), (1024,), (1024, 10), (10,))
    ]
    theirs = jax.jit(
        lambda k: [
            jax.random.normal(q, x.shape)
            for q, x in zip(jax.random.split(k, len(tree)), tree, strict=True)
        ]
    )
    ours = jax.jit(lambda k: normal_like(k, tree))
    timed = alternate([lambda: theirs(key), lambda: ours(key)], options.repeats)
    rows.append(("784-1024-1024-10 perceptron", sum(x.size for x in tree), *timed))

    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"noise-{jax.default_backend()}.csv"
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        columns = ("jax_min_ns", "jax_median_ns", "dpjax_min_ns", "dpjax_median_ns", "ratio_of_min")
        writer.writerow(("shape", "numbers", *columns))
        for name, n, a, b in rows:
            figures = [f"{x / n * 1e9:.3f}" for x in (*a, *b)]
            writer.writerow((name, n, *figures, f"{a[0] / b[0]:.2f}"))
    print(file.read_text())


if __name__ == "__main__":
    main()
