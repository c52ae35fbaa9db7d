"""Cells of Table 2 and Figure 1: the curvatures of four linear regressions."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._numerics.scope import enable_x64
from dpjax.data import load_table
from experiments import curvature
from experiments.protocol import Rows
from experiments.yu2020.published import TABLE2

# Ranges and maxima are read off the data, so that nothing here is private, nor is it meant to be.
# Found by trying, until the printed minima came out: which columns, and what divides them.
_DROPPED = {"admission": ("Serial No.",)}
_OVER_THE_MAXIMUM = ("sonar", "boston", "swedish-motor")
_NOTES = {
    "admission": "columns from 0 to 1",
    "sonar": "columns over their maximum, without the first row, which a header would take; the "
    "average is printed as if cut to two digits",
    "boston": "columns over their maximum",
    "swedish-motor": "columns over their maximum, all seven, target included",
}


def _regression(name: str, data: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """(features scaled as `_NOTES` says, targets) in float64."""
    table = load_table(name, data)
    frame = table.train
    targets = frame[table.target]
    if targets.dtype.kind not in "if":
        targets = targets.astype("category").cat.codes
    kept = frame.drop(columns=list(_DROPPED.get(name, ())))
    if name != "swedish-motor":
        kept = kept.drop(columns=[table.target])
    first = 1 if name == "sonar" else 0
    features = kept.to_numpy(np.float64)[first:]
    if name in _OVER_THE_MAXIMUM:
        features = features / np.abs(features).max(0)
    else:
        low, high = features.min(0), features.max(0)
        features = (features - low) / (high - low)
    return features, targets.to_numpy(np.float64)[first:]


def _quadratic(name: str, data: pathlib.Path):
    """(objective, minimiser, p) of F(x) = ‖Sx − t‖²/(2n), as float64 JAX values."""
    features, targets = _regression(name, data)
    low, high = targets.min(), targets.max()
    targets = (targets - low) / (high - low)
    minimiser = np.linalg.lstsq(features, targets, rcond=None)[0]
    rows, truth = jnp.asarray(features), jnp.asarray(targets)

    def objective(params):
        return 0.5 * jnp.mean(jnp.square(rows @ params - truth))

    return objective, jnp.asarray(minimiser), features.shape[1]


def _hessian(objective, dimension: int):
    """Along every coordinate in turn: the trace exactly, and still without forming ∇² at once."""
    at = jnp.zeros(dimension)
    return jax.vmap(lambda v: curvature.hessian_vector_product(objective, at, v))(
        jnp.eye(dimension)
    )


def extremes(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Smallest and average eigenvalue of the Hessian of one data set."""
    name = settings["data"]
    minimum, average = TABLE2[name]
    with enable_x64(True):
        objective, _, dimension = _quadratic(name, data)
        low, _ = curvature.extreme_curvatures(objective, jnp.zeros(dimension), jax.random.key(0))
        trace = float(jnp.trace(_hessian(objective, dimension)))
    return [
        {
            "data set": name,
            "features": dimension,
            "minimum published": minimum,
            "minimum measured": float(low),
            "average published": average,
            "average measured": trace / dimension,
            "note": _NOTES[name],
        }
    ]


def expected(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """ν of one data set against the noise, by Equation 5 and by simulation."""
    name, rows = settings["data"], []
    with enable_x64(True):
        objective, minimiser, dimension = _quadratic(name, data)
        at, products = jnp.zeros(dimension), _hessian(objective, dimension)
        trace = float(jnp.trace(products))
        smallest = float(jnp.linalg.eigvalsh(products)[0])
        for i, noise in enumerate(np.geomspace(1e-3, 10.0, settings["points"])):
            value = curvature.expected_curvature(objective, at, minimiser, noise, trace)
            simulated = curvature.expected_curvature_monte_carlo(
                objective, at, minimiser, noise, jax.random.key(i), samples=4096
            )
            rows.append(
                {
                    "data set": name,
                    "noise in the iterate": float(noise),
                    "expected curvature": float(value),
                    "simulated": float(simulated.value),
                    "simulated low": float(simulated.low),
                    "simulated high": float(simulated.high),
                    "average curvature": trace / dimension,
                    "minimum curvature": smallest,
                }
            )
    return rows
