"""Figure 2 and Theorem 1: what ball noise protects, and what Gaussian noise costs instead."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting as acc
from dpjax.accounting.geometric.ball import ball_delta, ball_displacement
from experiments.common import Run, track
from experiments.comparison import certificate_line

_DIMENSIONS = (1, 2, 5, 10, 50, 100, 1000)


def _simulated(displacement: float, dimension: int, samples: int) -> tuple[float, float]:
    """TV of two unit balls by drawing from one and asking if the other holds it: (mean, 3 s.e.)."""
    way_key, size_key = jax.random.split(jax.random.key(dimension))
    # Only the coordinate along the shift matters, and the distance across it.
    way = np.asarray(jax.random.normal(way_key, (samples, min(dimension, 64))), np.float64)
    along = way[:, 0]
    rest = np.square(way[:, 1:]).sum(1)
    if dimension > 64:
        more = jax.random.chisquare(jax.random.fold_in(way_key, 1), dimension - 64, (samples,))
        rest = rest + np.asarray(more, np.float64)
    uniform = np.asarray(jax.random.uniform(size_key, (samples,)), np.float64)
    radius = uniform ** (1.0 / dimension) / np.sqrt(np.square(along) + rest)
    outside = np.square(along * radius - displacement) + rest * np.square(radius) > 1.0
    mean = outside.mean()
    return float(mean), float(3 * np.sqrt(mean * (1 - mean) / samples))


def _figure2_rows(points: int, samples: int) -> list[dict[str, Any]]:
    rows = []
    for dimension in _DIMENSIONS:
        for displacement in np.linspace(0.02, 2.0, points):
            mean, error = _simulated(displacement, dimension, samples)
            rows.append(
                {
                    "dimension": dimension,
                    "sensitivity": float(displacement),
                    "delta": float(ball_delta(displacement, dimension)),
                    "simulated": mean,
                    "simulated error": error,
                }
            )
    return rows


def figure2(run: Run) -> list[pathlib.Path]:
    """Figure 2: δ of one step against sensitivity and dimension, with a simulation beside it."""
    import matplotlib.pyplot as plt

    settings = {"points": run.choose(25, 100, 4), "samples": run.choose(50_000, 400_000, 2_000)}
    rows = run.rows("figure2", settings, lambda: _figure2_rows(**settings))
    figure, axis = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    colours = plt.get_cmap("viridis")(np.linspace(0.0, 0.85, len(_DIMENSIONS)))
    for dimension, colour in zip(_DIMENSIONS, colours, strict=True):
        mine = [row for row in rows if row["dimension"] == dimension]
        shift = [row["sensitivity"] for row in mine]
        axis.plot(shift, [row["delta"] for row in mine], color=colour, label=f"d = {dimension}")
        axis.errorbar(
            shift,
            [row["simulated"] for row in mine],
            [row["simulated error"] for row in mine],
            fmt=".",
            ms=3,
            lw=0.8,
            color=colour,
        )
    axis.set_xlabel("sensitivity Δ over the ball's radius")
    axis.set_ylabel("δ of one release, at every ε ≥ 0")
    axis.set_title("tholeti2021, Figure 2 (lines: exact; points: simulation)", fontsize=10)
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    return [run.save_table("figure2", rows), run.save_figure("figure2", figure)]


_TOTAL = 1e-5  # δ of a whole run
_GAUSSIANS = (0.001, 0.1, 1.0)  # ε of the Gaussian runs it is held against


def _ball(dimension: int, n: int, steps: int) -> tuple[float, acc.Mechanism]:
    """(radius/Δ, run) of the smallest ball whose T draws of one record of n cost a total of δ."""
    each = -np.expm1(np.log1p(-_TOTAL) / steps) * n
    if each >= 1.0:
        return 0.0, acc.Repeated(acc.UniformBall(2.0, dimension), steps)
    # Rounded towards less displacement, so that the total is kept.
    displacement = float(ball_displacement(each, dimension)) * (1 - 1e-9)
    ball = acc.UniformBall(displacement, dimension)
    return 1.0 / displacement, acc.Repeated(acc.FixedBatchSampled(ball, 1, n), steps)


def _gaussian(sigma: Any, n: int, steps: int) -> acc.Mechanism:
    return acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(sigma), 1, n), steps)


def _gaussian_stds(n: int, steps: int, method: str) -> list[float]:
    """Std per coordinate over Δ of the Gaussians that keep (ε, δ); Δ = 2C moves σ by a half."""
    sigmas = acc.calibrate(
        lambda s: _gaussian(s, n, steps),
        epsilon=np.asarray(_GAUSSIANS),
        delta=_TOTAL,
        adjacency=acc.Adjacency.REPLACE_ONE,
        method=method,
    )
    return [float(sigma) / 2 for sigma in sigmas]


def _theorem1_rows(settings: list[tuple[int, int]], method: str) -> list[dict[str, Any]]:
    rows = []
    for n, steps in track(settings, "tholeti2021: Gaussian noise of the same δ"):
        stds = _gaussian_stds(n, steps, method)
        for dimension in (10, 1000):
            ball = acc.UniformBall(displacement=0.1, dimension=dimension)
            drawn = acc.Repeated(acc.FixedBatchSampled(ball, 1, n), steps)
            passes = acc.Repeated(acc.Shuffled(ball, n), max(1, steps // n))
            price = {
                name: acc.delta(mechanism, 0.0, adjacency=acc.Adjacency.REPLACE_ONE)
                for name, mechanism in (("independent", drawn), ("shuffled", passes))
            }
            radius, run = _ball(dimension, n, steps)
            certificates = [
                certificate_line(
                    mechanism,
                    _TOTAL,
                    adjacency=acc.Adjacency.REPLACE_ONE,
                    records=n,
                    method=name,
                    data=f"d = {dimension}, T = {steps}",
                    target=epsilon,
                    method_of_price=price_by,
                )
                for name, mechanism, epsilon, price_by in (
                    ("ball noise", run, 0.0, "best"),
                    ("Gaussian noise", _gaussian(2 * stds[-1], n, steps), _GAUSSIANS[-1], method),
                )
            ]
            rows.append(
                {
                    "dimension": dimension,
                    "records": n,
                    "steps": steps,
                    "δ, independent draws (Theorem 1)": price["independent"],
                    "δ, shuffled passes": price["shuffled"],
                    "radius/Δ for a total δ of 1e-5": radius,
                    "its std per coordinate/Δ": float(radius / np.sqrt(dimension + 2)),
                    **{
                        f"Gaussian std/Δ for ({epsilon:g}, 1e-5)": std
                        for epsilon, std in zip(_GAUSSIANS, stds, strict=True)
                    },
                    "certificates": certificates,
                }
            )
    return rows


def theorem1(run: Run) -> list[pathlib.Path]:
    """Theorem 1's total δ against n and T, and the Gaussian noise that costs as much."""
    import matplotlib.pyplot as plt

    settings = run.choose(
        [(1_000, 1_000), (10_000, 10_000), *((60_000, t) for t in (600, 6_000, 60_000))],
        [(n, t * n // 100) for n in (1_000, 10_000, 60_000) for t in (1, 10, 100)],
        [(60_000, 6)],
    )
    method = run.choose("best", "best", "rdp")  # the tight one takes minutes
    code = (_ball, _gaussian, _gaussian_stds, _theorem1_rows)
    rows = []
    for setting in settings:
        rows += run.rows(
            "theorem1",
            {"setting": setting, "total": _TOTAL, "epsilons": _GAUSSIANS, "method": method},
            lambda setting=setting: _theorem1_rows([setting], method),
            code=code,
        )
    certificates = [line for row in rows for line in row["certificates"]]
    table = [{k: v for k, v in row.items() if k != "certificates"} for row in rows]
    figure, axis = plt.subplots(figsize=(6.6, 4.4), layout="constrained")
    largest = max(n for n, _ in settings)
    for dimension, colour in ((10, "#d99a2b"), (1000, "#b5542b")):
        mine = [r for r in table if r["dimension"] == dimension and r["records"] == largest]
        axis.plot(
            [r["steps"] for r in mine],
            [r["its std per coordinate/Δ"] for r in mine],
            marker="o",
            color=colour,
            label=f"ball, d = {dimension}: (0, 1e-5)",
        )
    mine = [r for r in table if r["dimension"] == 10 and r["records"] == largest]
    for epsilon, colour in zip(_GAUSSIANS, ("#7fa8d1", "#3f74a8", "#1f4e79"), strict=True):
        axis.plot(
            [r["steps"] for r in mine],
            [r[f"Gaussian std/Δ for ({epsilon:g}, 1e-5)"] for r in mine],
            marker="s",
            color=colour,
            label=f"Gaussian, any d: ({epsilon:g}, 1e-5)",
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel(f"steps T, one of n = {largest:,} records each")
    axis.set_ylabel("noise std per coordinate / sensitivity Δ")
    axis.set_title("tholeti2021, Theorem 1: ball and Gaussian noise at the same δ", fontsize=10)
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    return [
        run.save_table("theorem1", table),
        run.save_figure("theorem1", figure),
        run.save_certificates("theorem1", certificates),
    ]


def _escape(noise_radius: float, steps: int, repeats: int) -> np.ndarray:
    """Distance from the saddle along its descent direction, [repeats, steps]."""
    from dpjax import erm

    # F(w) = (w₀² − w₁²)/2 + w₁⁴/4: a strict saddle at 0 (curvature −1), minima at w₁ = ±1. The
    # records' linear terms cancel, so that only noise can break the tie.
    examples = jnp.array([[0.05, 0.0], [-0.05, 0.0]] * 50)
    problem = erm.differentiable_problem(
        lambda w, z: w[0] ** 2 / 2 - w[1] ** 2 / 2 + w[1] ** 4 / 4 + z @ w, examples, (2,)
    )

    def one(key):
        solution = erm.perturbed_gd(
            problem,
            key,
            steps=steps,
            step_size=0.1,
            clip_norm=5.0,
            noise_radius=noise_radius,
            keep_iterates=True,
        )
        return jnp.abs(solution.history.iterates[:, 1])

    import warnings

    with warnings.catch_warnings():
        # The point here is the escape; its privacy is void, and `theorem1` says so.
        warnings.simplefilter("ignore")
        return np.asarray([one(key) for key in jax.random.split(jax.random.key(0), repeats)])


def saddle(run: Run) -> list[pathlib.Path]:
    """Escape from a strict saddle: distance against steps, with ball noise and without."""
    import matplotlib.pyplot as plt

    steps, repeats = run.choose(200, 400, 40), run.choose(20, 100, 2)
    settings = {"steps": steps, "repeats": repeats, "radii": [0.0, 0.01, 0.1, 1.0]}
    distances = run.arrays(
        "saddle",
        settings,
        lambda: {str(r): _escape(r, steps, repeats) for r in settings["radii"]},
    )
    figure, axis = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    colours = plt.get_cmap("viridis")(np.linspace(0.0, 0.85, len(distances)))
    rows = []
    for (radius, distance), colour in zip(distances.items(), colours, strict=True):
        middle = np.median(distance, axis=0)
        low, high = np.quantile(distance, [0.1, 0.9], axis=0)
        times = np.arange(1, steps + 1)
        axis.plot(times, middle, color=colour, label=f"radius {radius}")
        axis.fill_between(times, low, high, color=colour, alpha=0.2, lw=0)
        escaped = (distance > 0.5).any(1)
        first = np.where(escaped, (distance > 0.5).argmax(1) + 1, np.nan)
        rows.append(
            {
                "noise radius": float(radius),
                "runs escaped": int(escaped.sum()),
                "runs": len(escaped),
                "median steps to escape": float(np.median(first)) if escaped.all() else None,
                "median final distance": float(middle[-1]),
            }
        )
    axis.axhline(1.0, lw=0.8, ls=":", color="#555555")
    axis.set_xlabel("steps")
    axis.set_ylabel("distance from the saddle, |w₁|")
    axis.set_title("Escape from a strict saddle (median and 10–90 % of runs)", fontsize=10)
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    return [run.save_table("saddle", rows), run.save_figure("saddle", figure)]
