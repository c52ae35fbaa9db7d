"""Table 1 as slopes: the least excess risk of four ways of perturbing by n, p and ε.

Every method has the same (ε, δ), replace-one, and as many steps as serve it best; DP-SGD has the
sampling rate and the step size that serve it best, too. What Table 1 bounds is the risk at one
setting each, so that its rates are upper ones.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting as acc
from dpjax import erm
from experiments.chourasia2021.lower_bound import _excess, problem_for
from experiments.protocol import Rows
from experiments.widening import Axis, Found, Point, search
from experiments.yu2020.methods import halved_dp_sgd

METHODS = ("objective", "output", "DP-GD", "DP-SGD")
_STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_STEPS_OF_BATCHES = (2, 8, 32, 128)
# The first step over 1/β, halved midway: of §4, where it is 2, and shorter ones, for in small
# batches the risk of a step is mostly the error of the batch.
_SIZES = (0.125, 0.5, 2.0)
_RATES = (1 / 64, 1 / 8, 1 / 2, 1.0)
_AT_MOST = 120  # settings of a search
_AT_ONCE = 20  # runs of one program
_ADJACENCY = acc.Adjacency.REPLACE_ONE
Risks = Callable[[Point, jax.Array], np.ndarray]


def axes_of(name: str, n: int) -> list[Axis]:
    """What a method is tuned over, from its first grid on.

    No run has fewer than one step; no batch has less than one record on average, or more than all.
    """
    if name == "objective":
        return []
    if name != "DP-SGD":
        return [Axis("steps", tuple(map(float, _STEPS)), 2.0, least=1.0)]
    return [
        Axis("sampling rate", _RATES, 4.0, least=1 / n, most=1.0),
        Axis("steps", tuple(map(float, _STEPS_OF_BATCHES)), 2.0, least=1.0),
        Axis("step size", _SIZES, 2.0),
    ]


def choose(axes: list[Axis], risks: Risks, keys: jax.Array) -> Found:
    """The setting of the least mean risk over some keys, the same ones for every setting.

    A first grid is coarse; a second one lies about its best, a factor of 2 apart.
    """
    if not axes:
        return Found((), {(): 0.0}, "")
    known: dict[Point, float] = {}

    def score(points: list[Point]) -> list[float]:
        for point in points:
            if point not in known:
                known[point] = -float(risks(point, jax.random.clone(keys)).mean())
        return [known[point] for point in points]

    coarse = search(axes, score, at_most=_AT_MOST)
    about = [_about(axis, value) for axis, value in zip(axes, coarse.best, strict=True)]
    fine = search(about, score, at_most=_AT_MOST)
    return Found(fine.best, known, fine.edge)


def _about(axis: Axis, value: float) -> Axis:
    """A half of a value, the value and its double, within the ends of an axis."""
    values = {max(value / 2.0, axis.least), value, min(2.0 * value, axis.most)}
    return axis._replace(values=tuple(sorted(values)), factor=2.0)


def cell(settings: dict[str, Any], data: pathlib.Path) -> Rows:
    """The least mean excess risk of every method on drawn records, a row a method.

    Settings are chosen by some draws of the noise and reported by others.
    """
    n, dimension, repeats = (settings[k] for k in ("records", "dimension", "repeats"))
    budget = {"epsilon": settings["epsilon"], "delta": settings["delta"]}
    problem = problem_for(settings["data"], n, dimension, settings["l2"], settings["seeds"])
    best = erm.lbfgs(problem).params
    keys = jax.random.split(jax.random.key(settings["seeds"]), (len(METHODS), 2))
    rows = []
    for name, (choose_key, report_key) in zip(METHODS, keys, strict=True):
        released = _releasing(name, problem, budget)

        def risks(point: Point, keys: jax.Array, released=released) -> np.ndarray:
            return np.asarray(_excess(problem, released(point, keys), best), np.float64)

        draws = jax.random.split(choose_key, settings["draws to choose"])
        found = choose(axes_of(name, n), risks, draws)
        reported = risks(found.best, jax.random.split(report_key, repeats))
        rate, steps, size = _read(name, found.best)
        rows.append(
            {
                "method": name,
                "records": n,
                "dimension": dimension,
                "epsilon": budget["epsilon"],
                "seed": settings["seeds"],
                "excess risk": float(reported.mean()),
                "standard error": float(reported.std(ddof=1) / repeats**0.5),
                "steps": steps,
                "rate": rate if name == "DP-SGD" else None,
                "step size": size if name == "DP-SGD" else None,
                "settings tried": len(found.tried),
                "edge": found.edge,
            }
        )
    return rows


def _read(name: str, point: Point) -> tuple[float, int, float]:
    """The sampling rate, the number of steps and the first step over 1/β of a setting."""
    if name == "DP-SGD":
        rate, steps, size = point
        return rate, round(steps), size
    return 1.0, round(point[0]) if point else 1, 1.0


def _releasing(
    name: str, problem: erm.Problem, budget: dict[str, float]
) -> Callable[[Point, jax.Array], jax.Array]:
    """What leaves at the end of a run a key, as a function of the setting and the keys."""
    if name == "objective":
        solve = functools.partial(erm.approximate_minima_perturbation, problem, **budget)
        return lambda _, keys: jnp.stack([solve(key).params for key in keys])
    shortest = 1.0 / problem.smoothness
    solver, noise_name, clip = {
        "output": (erm.output_perturbed_gd, "noise_std", {}),
        "DP-GD": (erm.dp_gd, "noise_multiplier", {"clip_norm": problem.gradient_bound}),
        "DP-SGD": (halved_dp_sgd, "noise_multiplier", {"clip_norm": problem.gradient_bound}),
    }[name]

    @functools.cache
    def noise_at(fixed: tuple[tuple[str, Any], ...]) -> float:
        """The noise of a number of steps and a rate, whatever the step size of DP-SGD."""
        spent = {**budget, "adjacency": _ADJACENCY, **dict(fixed), "step_size": shortest, **clip}
        return float(erm.calibrate_noise(solver, problem, **spent))

    def released(point: Point, keys: jax.Array) -> jax.Array:
        rate, steps, size = _read(name, point)
        fixed: tuple[tuple[str, Any], ...] = (("steps", steps),)
        fixed += (("rate", rate),) if name == "DP-SGD" else ()
        if name == "output":  # its price rests on a step size that is known
            fixed += (("step_size", size * shortest),)
            given = {noise_name: noise_at(fixed)}
        else:
            given = {"step_size": size * shortest, noise_name: noise_at(fixed), **clip}
        parts = [keys[i : i + _AT_ONCE] for i in range(0, len(keys), _AT_ONCE)]
        return jnp.concatenate([_run(solver, fixed, problem, part, given) for part in parts])

    return released


@functools.partial(jax.jit, static_argnums=(0, 1))
def _run(
    solver: Callable,
    fixed: tuple[tuple[str, Any], ...],
    problem: erm.Problem,
    keys: jax.Array,
    given: dict[str, float],
) -> jax.Array:
    """The parameters of a run a key, as one program."""
    return jax.vmap(lambda key: solver(problem, key, **dict(fixed), **given).params)(keys)
