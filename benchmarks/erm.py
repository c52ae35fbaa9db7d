"""Private convex optimisation, side by side: `python -m benchmarks.erm --data FOLDER`.

Adult, 80/20 split: 3 step counts × 3 step sizes × repeats of DP-GD as one sweep, against the same
runs in a Python loop over a jitted step, and against one fit of diffprivlib's logistic regression
(in its own interpreter, `--diffprivlib PYTHON`, because its scikit-learn is an older one).
KDDCup99, 50k to 250k rows: RSGD-AR's time per fit beside objective perturbation's (chen2019,
Figure 3). With `--accuracy` instead: every solver on Adult and Bank at ε in {0.1, 1}, beside
non-private and majority.

Times are medians of interleaved rounds. Results go to benchmarks/results.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import matplotlib.figure
import numpy as np

import dpjax
from dpjax import accounting as acc
from dpjax import erm
from dpjax._numerics.normal import normal
from experiments import data_sets

RESULTS = pathlib.Path(__file__).parent / "results"
STEPS, SIZES = (50, 200, 800), (0.1, 1.0, 5.0)
EPSILONS = (0.1, 1.0)
L2 = 1e-4


def timed(call: Callable) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def problem_of(rows: data_sets.DataSet, l2: float = L2) -> erm.Problem:
    # The one-hot columns of each category already sum to a constant: an intercept would only take
    # its share of the unit norm.
    return erm.logistic_regression(rows.features, rows.labels, l2=l2, intercept=0.0)


# --- the sweep ----------------------------------------------------------------------------------


def loop_rate(problem: erm.Problem, noises: dict, seconds: float) -> float:
    """Runs per second of the whole grid in a Python loop over a jitted step, from a share of it.

    A run of T steps costs T step times: the grid's share of each T is measured and scaled up.
    """

    @jax.jit
    def step(params, key, t, size, noise):
        total = problem.gradient_sum(params, clip_norm=1.0)
        total = total + noise * normal(jax.random.fold_in(key, t), problem.shape, problem.dtype)
        return params - size * (total / problem.n + problem.l2 * params)

    params, key = problem.zeros(), jax.random.key(0)
    jax.block_until_ready(step(params, key, 0, 1.0, 1.0))
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for t in range(50):
            params = step(params, key, t, 1.0, noises[50])
        jax.block_until_ready(params)
        done += 50
    per_step = (time.perf_counter() - start) / done
    return 1.0 / (per_step * statistics.mean(STEPS))


def sweep_table(split: data_sets.Split, repeats: int, rounds: int) -> tuple[list[str], object]:
    problem = problem_of(split.train)
    delta = problem.n**-2.0
    grid = {"steps": list(STEPS), "step_size": list(SIZES)}
    noises = {}
    for steps in STEPS:
        noises[steps] = float(
            erm.calibrate_noise(
                erm.dp_gd, problem, epsilon=0.1, delta=delta, steps=steps, step_size=1.0,
                adjacency=acc.Adjacency.REPLACE_ONE,
            )
        )  # fmt: skip

    def once(seed: int, repeats: int):
        start = time.perf_counter()
        found = erm.sweep(
            erm.dp_gd, problem, grid, repeats=repeats, key=jax.random.key(seed), epsilon=0.1,
            delta=delta, adjacency=acc.Adjacency.REPLACE_ONE, progress=False,
            test=(split.test.features, split.test.labels),
        )  # fmt: skip
        return found, time.perf_counter() - start

    points = len(STEPS) * len(SIZES)
    runs, few = repeats * points, max(1, repeats // 5)
    whole, further, loops = [], [], []
    result = None
    for seed in range(rounds):
        _, short = once(seed, few)
        result, long = once(seed, repeats)
        whole.append(runs / long)
        further.append((repeats - few) * points / (long - short))
        loops.append(loop_rate(problem, noises, seconds=4.0))
    all_in, marginal, theirs = (statistics.median(rates) for rates in (whole, further, loops))
    lines = [
        "| | runs per second | ratio |",
        "|---|---:|---:|",
        f"| Python loop over a jitted step, compiled before | {theirs:.3g} | 1 |",
        f"| one sweep: calibration, compilation, test accuracy included | {all_in:.3g} | "
        f"{all_in / theirs:.1f} |",
        f"| one sweep, each further run ({few} to {repeats} repeats) | {marginal:.3g} | "
        f"{marginal / theirs:.1f} |",
        "",
        f"{runs} runs: steps {list(STEPS)} × step size {list(SIZES)} × {repeats} repeats; "
        f"ε = 0.1, δ = 1/n², replace-one, n = {problem.n}, d = {problem.dimension}; "
        f"medians of {rounds} interleaved rounds.",
        "",
        "```",
        result.summary().to_string(index=False, float_format=lambda v: f"{v:.4g}"),
        "```",
        "",
        f"Best by test accuracy ({result.best().note}): {result.best().setting}",
    ]
    return lines, result


_PEER = """
import sys, time, warnings
import numpy as np
from diffprivlib.models import LogisticRegression
warnings.simplefilter("ignore")
d = np.load(sys.argv[1])
for epsilon in (0.1, 1.0):
    scores, times = [], []
    for seed in range(int(sys.argv[2])):
        model = LogisticRegression(epsilon=epsilon, data_norm=1.0, C=1 / (1e-4 * len(d["y"])),
                                   random_state=seed, max_iter=200)
        start = time.perf_counter()
        model.fit(d["x"], d["y"])
        times.append(time.perf_counter() - start)
        scores.append(model.score(d["tx"], d["ty"]))
    print(epsilon, np.median(times), np.mean(scores), np.std(scores))
"""


def diffprivlib_rows(split: data_sets.Split, python: str | None, fits: int) -> list[str]:
    """diffprivlib's pure-ε objective perturbation: time and accuracy, or why there is none."""
    if python is None:
        return ["diffprivlib: not measured (give its interpreter by --diffprivlib)."]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "adult.npz"
        np.savez(
            file, x=split.train.features, y=split.train.labels, tx=split.test.features,
            ty=split.test.labels,
        )  # fmt: skip
        done = subprocess.run(
            [python, "-c", _PEER, str(file), str(fits)], capture_output=True, text=True
        )
    if done.returncode:
        return [f"diffprivlib: failed: {done.stderr.strip().splitlines()[-1]}"]
    problem = problem_of(split.train)
    lines = ["| one fit | ε | seconds | test accuracy |", "|---|---:|---:|---:|"]
    for line in done.stdout.strip().splitlines():
        epsilon, seconds, mean, std = map(float, line.split())
        lines.append(
            f"| diffprivlib LogisticRegression (pure ε) | {epsilon:g} | {seconds:.3g} | "
            f"{100 * mean:.2f} ± {100 * std:.2f} |"
        )
        for name, settings in (
            ("objective_perturbation, pure ε", {"delta": 0, "adjacency": "replace-one"}),
            ("objective_perturbation, δ = 1/n²", {"delta": problem.n**-2.0}),
        ):
            seconds, scores = [], []
            for seed in range(fits):
                begin = time.perf_counter()
                solution = erm.objective_perturbation(
                    problem, jax.random.key(seed), epsilon=epsilon, **settings
                )
                seconds.append(time.perf_counter() - begin)
                scores.append(
                    float(problem.accuracy(solution.params, split.test.features, split.test.labels))
                )
            lines.append(
                f"| {name} | {epsilon:g} | {statistics.median(seconds):.3g} | "
                f"{100 * np.mean(scores):.2f} ± {100 * np.std(scores):.2f} |"
            )
    return lines


# --- RSGD-AR beside objective perturbation ------------------------------------------------------


def scaling_table(folder: str, rounds: int) -> tuple[list[str], list[tuple[int, float, float]]]:
    data = data_sets.kddcup99(folder)
    order = np.random.default_rng(0).permutation(len(data.labels))
    rows = []
    for n in (50_000, 100_000, 150_000, 200_000, 250_000):
        index = order[:n]
        problem = erm.logistic_regression(data.features[index], data.labels[index], l2=1e-3)
        fits = {
            "rsgd": lambda k, p=problem: erm.rsgd_ar(
                p, k, epochs=10, batch_size=4000, step_size=4.0, noise_std=0.01
            ),
            "objective": lambda k, p=problem: erm.objective_perturbation(p, k, noise_std=10.0),
        }
        for fit in fits.values():
            fit(jax.random.key(0))  # compile
        times: dict[str, list[float]] = {name: [] for name in fits}
        for seed in range(rounds):
            for name, fit in fits.items():
                times[name].append(timed(lambda f=fit, s=seed: f(jax.random.key(s)).params))
        rows.append((n, *(statistics.median(times[name]) for name in ("rsgd", "objective"))))
    lines = [
        "| rows | RSGD-AR, 10 epochs of 4,000 (s) | objective perturbation, to 1e-10 (s) | ratio |",
        "|---:|---:|---:|---:|",
        *(f"| {n:,} | {a:.3g} | {b:.3g} | {a / b:.2f} |" for n, a, b in rows),
        "",
        f"KDDCup99 (10 % subset), d = {data.features.shape[1] + 1}; medians of {rounds} "
        "interleaved rounds, compiled before.",
    ]
    return lines, rows


# --- accuracy -----------------------------------------------------------------------------------


def swept(n: int) -> dict[str, tuple[Callable, dict]]:
    """Solvers that a sweep over ε runs, each at one setting for both data sets and budgets."""
    batch = math.ceil(n / 9)  # nine batches of nearly equal size, about 4,000 each
    cyclic = {"epochs": 10, "batch_size": batch, "step_size": 4.0}
    return {
        "dp_gd": (erm.dp_gd, {"steps": 60, "step_size": 10.0, "adjacency": "replace-one"}),
        "dp_sgd": (erm.dp_sgd, {"steps": 60, "rate": 0.1, "step_size": 8.0}),
        "sgd_ma": (erm.sgd_ma, {"steps": 200, "step_size": 2.0}),
        "noisy_gd": (erm.noisy_gd, {"steps": 100, "step_size": 5.0}),
        "noisy_cyclic_gd": (erm.noisy_cyclic_gd, {"epochs": 10, "batches": 10, "step_size": 5.0}),
        "nsgd": (erm.nsgd, cyclic),
        "rsgd": (erm.rsgd, cyclic),
        "rsgd_ar": (erm.rsgd_ar, cyclic),
        "output_perturbed_gd": (erm.output_perturbed_gd, {"steps": 20, "step_size": 4.0}),
        "output_perturbed_sgd": (
            erm.output_perturbed_sgd,
            {"passes": 10, "batch_size": batch, "step_size": 4.0},
        ),
        "dp_agd": (erm.dp_agd, {}),
    }


def looped(n: int, epsilon: float) -> dict[str, Callable]:
    """Solvers whose other settings follow from the budget."""
    budget = {"epsilon": epsilon, "delta": n**-2.0, "adjacency": acc.Adjacency.REPLACE_ONE}
    return {
        "objective_perturbation": lambda p, k: erm.objective_perturbation(p, k, **budget),
        "objective_perturbation, δ = 0": lambda p, k: erm.objective_perturbation(
            p, k, **{**budget, "delta": 0}
        ),
        "approximate_minima_perturbation": lambda p, k: erm.approximate_minima_perturbation(
            p, k, **budget
        ),
        "perturbed_gd": lambda p, k: erm.perturbed_gd(
            p, k, steps=20, step_size=1.0, batch_size=n, **budget
        ),
    }


def accuracy_table(folder: str, repeats: int) -> list[str]:
    lines = []
    for load in (data_sets.adult, data_sets.bank):
        split = data_sets.split(load(folder), seed=0)
        test = (split.test.features, split.test.labels)
        problem = problem_of(split.train, l2=1e-3)
        best = erm.lbfgs(problem, tolerance=1e-5).params
        majority = max(np.mean(split.test.labels), 1 - np.mean(split.test.labels))
        reached = float(problem.accuracy(best, *test))
        lines += [
            "",
            f"## {split.train.name}, n = {problem.n}, logistic regression, l2 = 1e-3, δ = 1/n²",
            "",
            f"Majority {100 * majority:.2f}, non-private (L-BFGS) {100 * reached:.2f}; test "
            f"accuracy in %, mean ± standard deviation of {repeats} runs. Settings were chosen by "
            "eye on these data, which is not private.",
            "",
            "| solver | adjacency | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " |",
            "|---|---|" + "---:|" * len(EPSILONS),
        ]
        for name, (solver, settings) in swept(problem.n).items():
            table = erm.sweep(
                solver, problem, {"epsilon": list(EPSILONS)}, repeats=repeats, test=test,
                key=jax.random.key(0), delta=problem.n**-2.0, progress=False, **settings,
            ).table  # fmt: skip
            add = solver in (erm.dp_sgd, erm.sgd_ma, erm.dp_agd)
            scores = [table.accuracy[table.epsilon == e].to_numpy() for e in EPSILONS]
            lines.append(_row(name, "add-remove" if add else "replace-one", scores))
        calls = [looped(problem.n, epsilon) for epsilon in EPSILONS]
        for name in calls[0]:
            scores = [_scores(call[name], problem, test, repeats) for call in calls]
            lines.append(_row(name, "replace-one", scores))
    return lines


def _row(name: str, adjacency: str, scores: list[np.ndarray]) -> str:
    cells = [f"{100 * np.mean(s):.2f} ± {100 * np.std(s):.2f}" for s in scores]
    line = f"| {name} | {adjacency} | " + " | ".join(cells) + " |"
    print(time.strftime("%H:%M:%S"), line, flush=True)
    return line


def _scores(solve: Callable, problem: erm.Problem, test, repeats: int) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # perturbed_gd says that its δ is void; the table shows it
        return np.array(
            [
                float(problem.accuracy(solve(problem, jax.random.key(seed)).params, *test))
                for seed in range(repeats)
            ]
        )


def picture(rows: list[tuple[int, float, float]], path: pathlib.Path) -> None:
    figure = matplotlib.figure.Figure(figsize=(5.5, 3.4), layout="constrained")
    axes = figure.subplots()
    n, ours, theirs = (np.array(column) for column in zip(*rows, strict=True))
    axes.plot(n / 1e3, ours, "o-", color="#1f4e79", label="RSGD-AR, 10 epochs")
    axes.plot(n / 1e3, theirs, "s--", color="#b5541c", label="objective perturbation")
    axes.set_xlabel("rows of KDDCup99 (thousands)")
    axes.set_ylabel("seconds per fit")
    axes.set_ylim(bottom=0)
    axes.set_title("RSGD-AR takes a fraction of the time of objective perturbation", fontsize=10)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder that holds adult/, bank/, kddcup99/")
    parser.add_argument("--accuracy", action="store_true", help="only the table of accuracies")
    parser.add_argument("--only", nargs="*", choices=["sweep", "peers", "scaling"])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--diffprivlib", help="python of an environment that has diffprivlib")
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    head = (
        f"dpjax {dpjax.__version__}, jax {jax.__version__}, {jax.devices()[0].device_kind} × "
        f"{jax.device_count()}."
    )
    if arguments.accuracy:
        table = accuracy_table(arguments.data, arguments.repeats)
        text = ["# Every solver on Adult and Bank", "", head, *table]
        (RESULTS / "erm_accuracy.md").write_text("\n".join(text) + "\n")
        return

    def write(name: str, title: str, lines: list[str]) -> None:
        text = "\n".join([f"# {title}", "", head, "", *lines]) + "\n"
        (RESULTS / f"erm_{name}.md").write_text(text)
        print(text, flush=True)

    wanted = arguments.only or ["sweep", "peers", "scaling"]
    split = data_sets.split(data_sets.adult(arguments.data), seed=0)
    if "sweep" in wanted:
        lines, result = sweep_table(split, arguments.repeats, arguments.rounds)
        drawn = result.plot()
        drawn.axes[0].set_title("50 large steps reach the best accuracy at ε = 0.1", fontsize=10)
        drawn.savefig(RESULTS / "erm_sweep.png", dpi=150)
        picture_line = "![accuracy of every setting](erm_sweep.png)"
        write("sweep", "DP-GD on Adult: a sweep against a loop", [*lines, "", picture_line])
    if "peers" in wanted:
        peers = diffprivlib_rows(split, arguments.diffprivlib, fits=10)
        write("peers", "One fit on Adult beside diffprivlib", peers)
    if "scaling" in wanted:
        lines, rows = scaling_table(arguments.data, arguments.rounds)
        picture(rows, RESULTS / "erm_scaling.png")
        picture_line = "![seconds per fit](erm_scaling.png)"
        write("scaling", "RSGD-AR beside objective perturbation", [*lines, "", picture_line])


if __name__ == "__main__":
    jnp.zeros(1).block_until_ready()
    main()
