"""Privacy against steps for the last iterate of noisy gradient descent, by every bound there is."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from dpjax import accounting as acc
from dpjax.accounting.last_iterate.descent import descent_bounds
from dpjax.accounting.last_iterate.tracing_diffusion import tracing_rate
from experiments.common import Run

# The paper's setting: α = 30, S_g = 4, n = 5000, σ = 0.02, η = 0.02, β = 4.
_ORDER, _SENSITIVITY, _NOISE, _STEP, _SMOOTHNESS = 30.0, 4 / 5000, 0.02, 0.02, 4.0
_CONVEXITIES = (0.5, 1.0, 2.0, 4.0)
LINES = {
    "composition": ("#777777", "-"),
    "tracing diffusion (e^{-ληK/2})": ("#b5542b", "-"),
    "tracing diffusion, as printed (e^{-ηK/2})": ("#b5542b", ":"),
    "tracing diffusion, best γ(t)": ("#d99a2b", "-"),
    "numerical solution, γ = 1/2": ("#b5542b", "o"),
    "numerical solution, best γ(t)": ("#d99a2b", "o"),
    "shifted interpolation": ("#1f4e79", "-"),
    "exact, quadratic of curvature λ": ("#111111", "--"),
    "lower bound (λ = 1)": ("#2c7a4b", ":"),
}


def _run(steps, convexity: float, smoothness: float = _SMOOTHNESS) -> acc.NoisyGradientDescent:
    return acc.NoisyGradientDescent(steps, _STEP, _NOISE, _SENSITIVITY, convexity, smoothness)


def _figure1_rows(points: int) -> list[dict[str, Any]]:
    steps = np.unique(np.round(np.geomspace(1, 2_000, points)))
    rows = []
    for convexity in _CONVEXITIES:
        run = _run(steps, convexity)
        by_theorem = descent_bounds(run)
        printed = _SENSITIVITY**2 / (convexity * _NOISE**2) * -np.expm1(-_STEP * steps / 2)
        curves = {
            "composition": np.square(by_theorem.composition) / 2,
            "tracing diffusion (e^{-ληK/2})": tracing_rate(run, "published"),
            "tracing diffusion, as printed (e^{-ηK/2})": printed,
            "tracing diffusion, best γ(t)": tracing_rate(run, "optimal"),
            "shifted interpolation": np.square(by_theorem.strongly_convex) / 2,
            "exact, quadratic of curvature λ": tracing_rate(_run(steps, convexity), "quadratic"),
        }
        if convexity == 1.0:
            curves["lower bound (λ = 1)"] = tracing_rate(run, "lower")
        for name, rate in curves.items():
            for k, value in zip(steps, np.asarray(rate), strict=True):
                rows.append(_row(convexity, name, k, value))
        for k in steps[:: max(1, len(steps) // 8)]:
            for name, gamma in (("γ = 1/2", 0.5), ("best γ(t)", None)):
                value = _numerical(convexity, _STEP * k, gamma)
                rows.append(_row(convexity, f"numerical solution, {name}", k, value))
    return rows


def _numerical(convexity: float, time: float, gamma: float | None) -> float:
    """RDP/α at `time` by the inequality itself: a' = S²/(4γσ²) − λ(1−γ)a, a(0) = 0 (Equation 12).

    γ = √(S²/(4σ²λa)), at most 1, is the best at every time.
    """
    drive = (_SENSITIVITY / _NOISE) ** 2 / 4

    def slope(_: float, a: np.ndarray) -> np.ndarray:
        best = min(1.0, float(np.sqrt(drive / max(convexity * a[0], 1e-300))))
        chosen = best if gamma is None else gamma
        return drive / chosen - convexity * (1 - chosen) * a

    found = solve_ivp(slope, (0.0, time), np.zeros(1), rtol=1e-10, atol=1e-14)
    return float(found.y[0, -1])


def _row(convexity: float, bound: str, steps: float, rate: float) -> dict[str, Any]:
    return {
        "strong convexity": convexity,
        "bound": bound,
        "steps": int(steps),
        "RDP at α = 30": float(_ORDER * rate),
        "epsilon at δ = 1e-5": float(acc.zcdp_to_epsilon(rate, 1e-5)),
    }


def figure1(run: Run) -> list[pathlib.Path]:
    """Rényi privacy of the last iterate against steps, four curvatures, every bound."""
    import matplotlib.pyplot as plt

    settings = {"points": run.choose(40, 120, 5)}
    rows = run.rows("figure1", settings, lambda: _figure1_rows(**settings))
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 7.0), layout="constrained", sharex=True)
    for axis, convexity in zip(axes.flat, _CONVEXITIES, strict=True):
        for name, (colour, style) in LINES.items():
            mine = [r for r in rows if r["strong convexity"] == convexity and r["bound"] == name]
            if not mine:
                continue
            axis.plot(
                [r["steps"] for r in mine],
                [r["RDP at α = 30"] for r in mine],
                style,
                color=colour,
                ms=4,
                mfc="none",
                label=name,
            )
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylim(5e-4, 1.2)
        axis.set_title(f"strong convexity λ = {convexity:g}", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    for axis in axes[1]:
        axis.set_xlabel("steps K")
    for axis in axes[:, 0]:
        axis.set_ylabel("Rényi privacy at α = 30")
    handles, labels = axes[0, 1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.suptitle(
        "chourasia2021: only the last iterate leaves (S = 4, n = 5000, σ = 0.02, η = 0.02, β = 4)",
        fontsize=10,
    )
    return [run.save_table("figure1", rows), run.save_figure("figure1", figure)]
