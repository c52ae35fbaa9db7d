"""Expected curvature ν along a path: of four descents on quadratics, and where the minimum is flat.

On F(x) = ⟨x − x*, H(x − x*)⟩/2 every iterate is Gaussian, so that E⟨∇F(x), x − x*⟩/E‖x − x*‖² is
known at each step without a simulation.
"""

from __future__ import annotations

import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting as acc
from dpjax import erm
from dpjax._numerics.scope import enable_x64
from experiments import utility_bounds
from experiments.comparison import certificate_line
from experiments.protocol import Rows
from experiments.yu2020.curvature import _hessian, _quadratic, _regression

DESCENTS = ("plain", "heavy ball", "accelerated", "accelerated, restarted")
_MOMENTUM, _RESTART = 0.9, 25  # of the heavy ball; steps between two restarts
_RANK, _DIMENSION = 10, 40


def momenta(descent: str, steps: int) -> np.ndarray:
    """The momentum of every step: none, constant, or (t − 1)/(t + 2) since the last restart."""
    if descent == "plain":
        return np.zeros(steps)
    if descent == "heavy ball":
        return np.full(steps, _MOMENTUM)
    times = np.arange(steps) % (_RESTART if descent.endswith("restarted") else steps)
    return times / (times + 3.0)


def curvatures_along(
    eigenvalues: np.ndarray, start: np.ndarray, descent: str, steps: int, size: float, noise: float
) -> tuple[np.ndarray, float]:
    """(ν where each gradient is taken, E F(x_T) − F*) from x₀ − x* = `start`, in H's eigenbasis.

    With y = x + γ(x − x₋) the next iterate is y − η∇F(y) + ηξ, or y − η∇F(x) + ηξ for the heavy
    ball; ξ ~ N(0, noise²I).

    >>> found, risk = curvatures_along(np.array([1.0, 0.5]), np.ones(2), "plain", 1, 1.0, 0.0)
    >>> found.tolist(), float(risk)
    ([0.75], 0.0625)
    """
    h, found = np.asarray(eigenvalues, float), []
    # Second moments of (x, x₋): E x², E x·x₋, E x₋².
    here, both, before = (np.square(start) for _ in range(3))
    for gamma in momenta(descent, steps):
        at_x = descent == "heavy ball"
        a, b = 1.0 + gamma, -gamma  # y = a·x + b·x₋
        point = here if at_x else a * a * here + 2 * a * b * both + b * b * before
        found.append(float(h @ point / point.sum()))
        shrink = 1.0 - size * h
        keep, old = (a - size * h, b) if at_x else (a * shrink, b * shrink)
        after = keep**2 * here + 2 * keep * old * both + old**2 * before + (size * noise) ** 2
        here, both, before = after, keep * here + old * both, here
    return np.array(found), float(h @ here) / 2.0


def along(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """ν along four descents of a data set's regression, without noise and with that of an ε."""
    with enable_x64(True):
        objective, minimiser, dimension = _quadratic(settings["data"], data)
        values, vectors = np.linalg.eigh(np.asarray(_hessian(objective, dimension), float))
    start = vectors.T @ -np.asarray(minimiser, float)
    steps, n = settings["steps"], len(_regression(settings["data"], data)[0])
    size = 1.0 / values[-1]
    multiplier = acc.calibrate(
        lambda s: acc.Repeated(acc.Gaussian(s), steps),
        epsilon=settings["epsilon"],
        delta=1.0 / n**2,
        adjacency=acc.Adjacency.REPLACE_ONE,
    )
    rows = []
    for noise, descent in [(s, d) for s in (0.0, float(multiplier) / n) for d in DESCENTS]:
        found, risk = curvatures_along(values, start, descent, steps, size, noise)
        rows.append(
            {
                "data set": settings["data"],
                "descent": descent,
                "noise": noise,
                "steps": steps,
                "minimum curvature": float(values[0]),
                "average curvature": float(values.mean()),
                "ν at the start": float(found[0]),
                "smallest ν": float(found.min()),
                "ν at the end": float(found[-1]),
                "excess risk": risk,
                "at the start": float(values @ np.square(start)) / 2.0,
            }
        )
    return rows


def underdetermined(records: int, seed: int) -> tuple[erm.Problem, np.ndarray]:
    """(a least squares problem with columns that depend on each other, H's eigenvalues).

    40 columns of rank 10: minimisers are a plane, μ = 0, and the least eigenvalue that is not 0 is
    the restricted coefficient.
    """
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(_DIMENSION, _RANK)))
    inner = rng.normal(size=(records, _RANK)) * np.linspace(1.0, 0.5, _RANK)
    rows = inner @ basis.T
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    truth = basis @ rng.normal(size=_RANK)
    targets = rows @ (truth / np.linalg.norm(truth)) + 0.1 * rng.normal(size=records)
    problem = erm.linear_regression(rows, targets, l2=0.0, intercept=0.0, radius=3.0)
    exact = np.asarray(problem.features, float)
    values = np.linalg.eigvalsh(exact.T @ exact / records)
    return problem, values[-_RANK:]


def restricted(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """DP-GD of Theorem 1 where μ = 0 < ν: its risk, the bound in ν, and ν along its path."""
    n, epsilon, repeats = settings["records"], settings["epsilon"], settings["repeats"]
    problem, values = underdetermined(n, settings["seeds"])
    rows = np.asarray(problem.features, float)
    least, most = float(values[0]), float(values[-1])
    size, delta = 1.0 / most, 1.0 / n**2
    steps = math.ceil(2.0 * math.log(n) / (size * least))
    adjacency = acc.Adjacency.REPLACE_ONE
    fixed = {"steps": steps, "step_size": size, "clip_norm": problem.gradient_bound}
    budget = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    multiplier = float(erm.calibrate_noise(erm.dp_gd, problem, **budget, **fixed))

    @jax.jit
    def run(problem, keys):
        given = {**fixed, "noise_multiplier": multiplier, "keep_iterates": True}

        def one_run(key):
            return jnp.asarray(erm.dp_gd(problem, key, **given).history.iterates)

        return jax.vmap(one_run)(keys)

    keys = jax.random.split(jax.random.key(settings["seeds"]), repeats)
    points = np.asarray(run(problem, keys), float)  # [runs, steps, p]
    hessian = rows.T @ rows / n
    # The minimiser of least norm; the nearest one to x shares x's part in the kernel of H.
    best = np.linalg.pinv(hessian) @ (rows.T @ np.asarray(problem.labels, float) / n)
    start = float(best @ best)
    away = np.concatenate([np.broadcast_to(-best, (repeats, 1, best.size)), points], axis=1)
    away[:, 1:] -= best
    inside = away @ np.linalg.pinv(hessian) @ hessian
    rises = np.einsum("rtp,pq,rtq->t", away, hessian, away)
    nearest = rises / np.square(inside).sum((0, 2))
    one = rises / np.square(away).sum((0, 2))
    risks = np.einsum("rp,pq,rq->r", away[:, -1], hessian, away[:, -1]) / 2.0
    bounds = {
        name: utility_bounds.dp_gd_excess_risk(
            step_size=size, steps=steps, noise_std=multiplier * problem.gradient_bound / n,
            dimension=problem.dimension, curvature=nu, smoothness=most,
            start_distance=math.sqrt(start),
        )
        for name, nu in (("path", float(nearest.min())), ("coefficient", least))
    }  # fmt: skip
    certificate = certificate_line(
        erm.mechanism_of(erm.dp_gd, problem, multiplier, **fixed),
        delta,
        adjacency=adjacency,
        records=n,
        method="DP-GD, underdetermined",
        data=settings["data"],
        target=epsilon,
        not_covered=["the curvatures that step size and number of steps are made from"],
    )
    return [
        {
            "epsilon": epsilon,
            "records": n,
            "steps": steps,
            "noise multiplier": multiplier,
            "restricted coefficient": least,
            "ν from the nearest minimiser": float(nearest.min()),
            "ν from one minimiser": float(one.min()),
            "excess risk": float(risks.mean()),
            "standard error": float(risks.std(ddof=1) / math.sqrt(repeats)),
            "at the start": float(best @ hessian @ best) / 2.0,
            "bound by ν": bounds["path"],
            "bound by the restricted coefficient": bounds["coefficient"],
            "bound by μ = 0": math.inf,
            "runs": repeats,
            "certificate": certificate,
        }
    ]
