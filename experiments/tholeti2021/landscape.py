"""Theorem 2: perturbed gradient descent from a strict saddle of a matrix factorisation.

`F(w) = ‖wwᵀ − M‖²/4` with a record per entry of M: `ℓ = n(wᵢwⱼ − Mᵢⱼ)²/4`. Everything about F is
known. Its stationary points are 0 and ±√λₖvₖ, for every eigenpair with λₖ > 0. The Hessian at
±√λₖvₖ has eigenvalues 2λₖ along vₖ and λₖ − λⱼ along vⱼ: ±√λ₁v₁ are the minima, and all others are
strict saddles.
"""

from __future__ import annotations

import math
import pathlib
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting as acc
from dpjax import erm
from experiments.protocol import Rows

SIDE, EIGENVALUES = 40, (1.0, 0.5, 0.25)
# Above every record's gradient along these runs; what is clipped would be another function.
_CLIP = 1e3


class Landscape(NamedTuple):
    """The problem and what is known of it.

    Attributes:
        problem: SIDE² records. vectors: eigenvectors as columns, of falling eigenvalue.
        saddle: √λ₂v₂. minimum: √λ₁v₁; the other one is −√λ₁v₁.
    """

    problem: Any
    vectors: np.ndarray
    saddle: np.ndarray
    minimum: np.ndarray


def _loss(w, record):
    row, column, value = record
    return SIDE**2 * jnp.square(w[row] * w[column] - value) / 4.0


def landscape(seed: int) -> Landscape:
    """The matrix of a seed: random eigenvectors."""
    rng = np.random.default_rng(seed)
    vectors, _ = np.linalg.qr(rng.normal(size=(SIDE, SIDE)))
    kept = vectors[:, : len(EIGENVALUES)]
    matrix = (kept * EIGENVALUES) @ kept.T
    rows, columns = (part.ravel().astype(np.int32) for part in np.indices(matrix.shape))
    records = (jnp.asarray(rows), jnp.asarray(columns), jnp.asarray(matrix.ravel(), jnp.float32))
    problem = erm.differentiable_problem(_loss, records, (SIDE,))
    saddle, minimum = (math.sqrt(EIGENVALUES[k]) * vectors[:, k] for k in (1, 0))
    return Landscape(problem, vectors, saddle, minimum)


def stationary_distance(step_size: float, radius: float) -> float:
    """√E‖w − w*‖² near a minimum, all records and the ball, F replaced by its quadratic part.

    w − w* shrinks by 1 − ηh along an eigenvector of curvature h and is moved by η times noise of
    variance r²/(d + 2): Σₕ ηr²/((d + 2)h(2 − ηh)).

    >>> round(stationary_distance(0.01, 1.0), 4)
    0.0704
    """
    top, *rest = EIGENVALUES
    curvatures = [2 * top, *(top - v for v in rest), *[top] * (SIDE - len(EIGENVALUES))]
    each = (step_size / (h * (2.0 - step_size * h)) for h in curvatures)
    return radius * math.sqrt(math.fsum(each) / (SIDE + 2))


def cell(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """Runs from the saddle at one step size, for a time of `time`/η steps."""
    found = landscape(settings["seeds"])
    batch, _, ball = settings["methods"].partition(", ")
    size, repeats = settings["step size"], settings["repeats"]
    radius = settings["radius"] if ball else 0.0
    steps = math.ceil(settings["time"] / size)
    batch_size = 1 if batch == "one record" else found.problem.n
    saddle = jnp.asarray(found.saddle, jnp.float32)

    def one(key):
        solution = erm.perturbed_gd(
            found.problem,
            key,
            steps=steps,
            step_size=size,
            batch_size=batch_size,
            clip_norm=_CLIP,
            noise_radius=radius,
            init=saddle,
            keep_iterates=True,
        )
        return jnp.asarray(solution.history.iterates)

    mechanism = erm.mechanism_of(
        erm.perturbed_gd, found.problem, radius, steps=steps, batch_size=batch_size, clip_norm=_CLIP
    )
    lost = acc.delta(mechanism, 0.0, adjacency=acc.Adjacency.REPLACE_ONE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that δ is void: it is a column of the table
        paths = [
            np.asarray(jax.jit(one)(key)) for key in jax.random.split(jax.random.key(1), repeats)
        ]
    measured = [_measured(path, found, steps) for path in paths]
    distances = np.array([m[0] for m in measured])
    left = np.array([m[1] for m in measured])
    escaped, near = np.isfinite(left), distances < 0.5
    # A run that has left the saddle and not come near a minimum wanders where the last bit of a
    # float decides on its place, which is then no function of the seed: it is counted alone.
    known = bool(near.all() or not escaped.any())
    return [
        {
            "method": settings["methods"],
            "step size": size,
            "radius": radius,
            "seed": settings["seeds"],
            "steps": steps,
            "runs": repeats,
            "runs that leave the saddle": int(escaped.sum()),
            "median steps to leave": float(np.median(left)) if escaped.all() else None,
            "runs that end near a minimum": int(near.sum()),
            "distance to a minimum": float(np.sqrt(np.mean(np.square(distances))))
            if known
            else None,
            "standard error": float(_error_of_root_mean(distances)) if known else None,
            "largest distance": float(distances.max()) if known else None,
            "δ of the run": float(lost),
        }
    ]


def _measured(path: np.ndarray, found: Landscape, steps: int) -> tuple[float, float]:
    """(root mean square distance to the nearest minimum in the last quarter, steps to leave).

    A run leaves after about 9/η steps, at the latest 15/η, and comes near a minimum as e^{−ηt/2}:
    of what it brings along, the last quarter of 30/η steps has less than a hundredth.
    """
    late = path[3 * steps // 4 :].astype(np.float64)
    near = [np.square(late - sign * found.minimum).sum(1).mean() for sign in (1.0, -1.0)]
    # Half way to the minimum along v₁, which is at 0 in the saddle.
    away = np.abs(path.astype(np.float64) @ found.vectors[:, 0]) > 0.5
    return math.sqrt(min(near)), float(away.argmax() + 1) if away.any() else math.inf


def _error_of_root_mean(values: np.ndarray) -> float:
    squares = np.square(values)
    if len(values) < 2 or squares.mean() == 0:
        return 0.0
    return squares.std(ddof=1) / math.sqrt(len(values)) / (2.0 * math.sqrt(squares.mean()))
