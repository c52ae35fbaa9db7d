"""Wall time to 96.5 % on MNIST at ε = 1, beside jax_privacy and Opacus, in one run.

    python -m benchmarks.end_to_end [--jax-privacy PYTHON] [--opacus PYTHON] [--rounds 2]

PYTHON is an interpreter that has the library and NumPy; a library without one is left out and says
so. Features are computed once and kept in `--features FOLDER`, 1.1 GB; what they cost is the same
for all and is not counted. The libraries run in turn, a process a run, in every round (`--at-once`:
together, where only processor time can be compared); `benchmarks.end_to_end_libraries` says what is
timed. Writes benchmarks/results/end_to_end.md from ../shared/data; says so where that is absent.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from benchmarks import end_to_end_libraries as libraries
from benchmarks.image_accuracy import features
from experiments.images import load_mnist

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "end_to_end.md"
DATA = ROOT.parent / "shared" / "data"


def kept_features(folder: pathlib.Path, data: pathlib.Path, every: int) -> pathlib.Path:
    """A folder with the four arrays, written once; of the features one in `every`."""
    if every > 1:
        whole = kept_features(folder, data, 1)
        folder = folder / f"every-{every}"
        folder.mkdir(exist_ok=True)
        for name in libraries.Data._fields:
            found = np.load(whole / f"{name}.npy", mmap_mode="r")
            chosen = found if found.ndim == 1 else found[:, ::every]
            np.save(folder / f"{name}.npy", np.ascontiguousarray(chosen))
        return folder
    if all((folder / f"{name}.npy").exists() for name in libraries.Data._fields):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    images = load_mnist(data)
    for name, pixels, labels in (
        ("train", images.images, images.labels),
        ("test", images.test_images, images.test_labels),
    ):
        np.save(folder / ("labels.npy" if name == "train" else "test_labels.npy"), labels)
        np.save(folder / f"{name}.npy", features(pixels))
    return folder


def one_run(python: str, library: str, folder: pathlib.Path, seed: int) -> dict[str, Any]:
    """What `benchmarks.end_to_end_libraries` prints in that interpreter."""
    module = ["-m", "benchmarks.end_to_end_libraries", library, str(folder), "--seed", str(seed)]
    done = subprocess.run(
        [python, *module],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:  # the others are measured all the same
        print(done.stderr[-2000:], file=sys.stderr, flush=True)
        return {"seconds": None, "looks": []}
    return json.loads(done.stdout.strip().split("\n")[-1])


def line(library: str, runs: list[dict[str, Any]], base: list[dict[str, Any]]) -> str:
    """A row: medians over the rounds, ratios within each."""
    if any(run["seconds"] is None for run in runs):
        best = max((look[1] for run in runs for look in run["looks"]), default=0.0)
        said = f"not reached, {best:.2f} % at best" if best else "failed"
        return f"| {library} | {said} | | | | | | |"

    def median(of: str) -> float:
        return statistics.median(run[of] for run in runs)

    def ratio(of: str) -> str:
        pairs = zip(runs, base, strict=True)
        return f"{statistics.median(own[of] / ours[of] for own, ours in pairs):.2f}×"

    cells = [
        library,
        f"{median('seconds'):.1f}",
        ratio("seconds"),
        f"{median('processor'):.1f}",
        ratio("processor"),
        f"{median('calibrated'):.2f}",
        " / ".join(str(run["step"]) for run in runs),
        f"{median('noise_multiplier'):.4f}",
    ]
    return f"| {' | '.join(cells)} |"


def report(
    found: dict[str, list[dict[str, Any]]],
    absent: list[str],
    rounds: int,
    options: argparse.Namespace,
) -> str:
    base = found["dpjax"]
    how = "interleaved"
    if options.at_once:
        how = "all libraries at once, so that wall time is that of a busy machine"
    which = "scattering features"
    if options.every > 1:
        which = f"one in {options.every} of the scattering features"
    text = [
        f"# Time to {libraries.TARGET} % on MNIST at ε = {libraries.EPSILON:g}",
        "",
        f"Written by `python -m benchmarks.end_to_end`: a linear model on {which}, δ = "
        f"{libraries.DELTA:g}, Poisson batches of {libraries.BATCH:,} expected, a plan of "
        f"{libraries.EPOCHS} epochs, rate {libraries.RATE:g}, momentum {libraries.MOMENTUM}, clip "
        f"norm {libraries.CLIP}, the same for all; the noise is each library's own calibration. "
        f"Seconds from features in memory to the first look (every {libraries.EVERY} steps) at or "
        f"above the target on the test images, calibration and compilation included. Rounds: "
        f"{rounds}, {how}; medians over them, of ratios within each; {os.cpu_count()} cores that "
        "others used too, so that processor time is the steadier figure.",
        "",
        "| library | wall, s | to dpjax's | processor, s | to dpjax's | calibration, s | steps | "
        "noise multiplier |",
        "|---|---|---|---|---|---|---|---|",
    ]
    text += [line(library, runs, base) for library, runs in found.items()]
    if absent:
        text += ["", f"Not measured, no interpreter was given: {', '.join(absent)}."]
    return "\n".join([*text, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jax-privacy", metavar="PYTHON")
    parser.add_argument("--opacus", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--features",
        type=pathlib.Path,
        default=pathlib.Path(tempfile.gettempdir()) / "mnist-scattering-features",
    )
    parser.add_argument("--every", type=int, default=1, help="use one feature in so many")
    parser.add_argument("--at-once", action="store_true", help="the libraries of a round together")
    parser.add_argument("--data", type=pathlib.Path, default=DATA, help="holds mnist/")
    options = parser.parse_args()
    if not (options.data / "mnist").is_dir():
        print(f"skipped: {options.data / 'mnist'} is absent")
        return
    folder = kept_features(options.features, options.data, options.every)
    owners = {"dpjax": sys.executable, "jax_privacy": options.jax_privacy, "Opacus": options.opacus}
    pythons = {name: owners[name.split(",")[0]] for name in libraries.LIBRARIES}
    absent = [name for name, python in pythons.items() if python is None]
    found: dict[str, list[dict[str, Any]]] = {}
    taking_part = {name: python for name, python in pythons.items() if python is not None}
    workers = len(taking_part) if options.at_once else 1
    for number in range(options.rounds):
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            runs = {
                name: pool.submit(one_run, python, name, folder, number)
                for name, python in taking_part.items()
            }
            for name, run in runs.items():
                print(name, json.dumps(run.result()), flush=True)
                found.setdefault(name, []).append(run.result())
        RESULTS.write_text(report(found, absent, number + 1, options))


if __name__ == "__main__":
    main()
