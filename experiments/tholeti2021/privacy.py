"""Figure 2 and Theorem 1: what ball noise protects, and what Gaussian noise costs instead."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import numpy as np

from dpjax import accounting as acc
from dpjax.accounting.geometric import ball_delta, ball_displacement
from experiments.comparison import certificate_line
from experiments.protocol import Rows


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


def one_step(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """δ of one step in one dimension, exact and simulated."""
    dimension, rows = settings["dimension"], []
    for displacement in np.linspace(0.02, 2.0, settings["points"]):
        mean, error = _simulated(displacement, dimension, settings["samples"])
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


_TOTAL = 1e-5  # δ of a whole run
GAUSSIANS = (0.001, 0.1, 1.0)  # ε of the Gaussian runs it is held against


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
        epsilon=np.asarray(GAUSSIANS),
        delta=_TOTAL,
        adjacency=acc.Adjacency.REPLACE_ONE,
        method=method,
    )
    return [float(sigma) / 2 for sigma in sigmas]


def whole_run(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Total δ of T steps, and the Gaussian noise that costs as much."""
    (n, steps), method, rows = settings["records and steps"], settings["price"], []
    stds = _gaussian_stds(n, steps, method)
    for dimension in settings["dimension"]:
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
                ("Gaussian noise", _gaussian(2 * stds[-1], n, steps), GAUSSIANS[-1], method),
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
                    for epsilon, std in zip(GAUSSIANS, stds, strict=True)
                },
                "certificates": certificates,
            }
        )
    return rows
