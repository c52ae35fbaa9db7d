"""Privacy against steps for the last iterate of noisy gradient descent, by every bound there is."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from dpjax import accounting as acc
from dpjax.accounting.last_iterate import descent_bounds
from dpjax.accounting.tracing_diffusion import tracing_rate
from experiments.protocol import Rows

# The paper's setting: α = 30, S_g = 4, n = 5000, σ = 0.02, η = 0.02, β = 4.
_ORDER, _SENSITIVITY, _NOISE, _STEP, _SMOOTHNESS = 30.0, 4 / 5000, 0.02, 0.02, 4.0


def _run(steps, convexity: float, smoothness: float = _SMOOTHNESS) -> acc.NoisyGradientDescent:
    return acc.NoisyGradientDescent(steps, _STEP, _NOISE, _SENSITIVITY, convexity, smoothness)


def cell(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Every bound at one curvature."""
    convexity = settings["strong convexity"]
    steps = np.unique(np.round(np.geomspace(1, settings["steps up to"], settings["points"])))
    run = _run(steps, convexity)
    by_theorem = descent_bounds(run)
    printed = _SENSITIVITY**2 / (convexity * _NOISE**2) * -np.expm1(-_STEP * steps / 2)
    curves = {
        "composition": np.square(by_theorem.composition) / 2,
        "tracing diffusion (e^{-ληK/2})": tracing_rate(run, "published"),
        "tracing diffusion, as printed (e^{-ηK/2})": printed,
        "tracing diffusion, best γ(t)": tracing_rate(run, "optimal"),
        "shifted interpolation": np.square(by_theorem.strongly_convex) / 2,
        "exact, quadratic of curvature λ": tracing_rate(run, "quadratic"),
    }
    if convexity == 1.0:
        curves["lower bound (λ = 1)"] = tracing_rate(run, "lower")
    rows = [
        _row(convexity, name, k, value)
        for name, rate in curves.items()
        for k, value in zip(steps, np.asarray(rate), strict=True)
    ]
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
