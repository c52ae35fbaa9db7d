"""The algorithms that chen2019 compares, with the grids they are tuned over."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from jaxtyping import Array

from dpjax import accounting as acc
from dpjax import erm
from dpjax.erm.solver import Budget, private_solver, solver_spec
from experiments.chen2019.routes import noise_as_published
from experiments.comparison import Method

BATCH = 4000
STYLES = {
    "RSGD-AR": ("#1f4e79", "o"),
    "RSGD-AR, priced as in 2019": ("#7fa8d1", "o"),
    "RSGD (no averaging)": ("#2c7a4b", "v"),
    "NSGD": ("#7cb342", "s"),
    "ObjPert": ("#b5542b", "^"),
    "OutPert-GD": ("#d99a2b", "D"),
    "DP-AGD": ("#7b4fa0", "P"),
    "SGD-MA": ("#c2185b", "X"),
    "SGD-MA, add/remove as in 2019": ("#e9a0bd", "X"),
}
# Every line of the figures but those that are another price of the same run.
METHODS = ("RSGD-AR", "RSGD (no averaging)", "NSGD", "ObjPert", "OutPert-GD", "DP-AGD", "SGD-MA")
ORDERS = 4  # of the batches, that a setting's draws of noise at the end share


def _interval(epochs: int, restarts: int) -> int:
    """τ, for so many averagings in a run."""
    return epochs // restarts


def _ar_mechanism(problem, noise, *, epochs, restarts, **settings):
    price = solver_spec(erm.rsgd_ar).mechanism
    every = _interval(epochs, restarts)
    return price(problem, noise, epochs=epochs, average_every=every, **settings)


@private_solver(
    noise="noise_std",
    mechanism=_ar_mechanism,
    copies_data=True,
    adjacency=acc.Adjacency.REPLACE_ONE,
)
def rsgd_ar(
    problem: erm.Problem,
    key: Array,
    budget: Budget,
    *,
    epochs: int,
    restarts: int,
    batch_size: int,
    step_size,
) -> erm.Solution:
    """RSGD-AR that averages and restarts so many times: τ = epochs / restarts."""
    return erm.rsgd_ar(
        problem,
        key,
        epochs=epochs,
        batch_size=batch_size,
        step_size=step_size,
        average_every=_interval(epochs, restarts),
        **budget.keywords(),
    )


def _noise_of_2019(problem: erm.Problem, epsilon: float, delta: float, setting: dict) -> float:
    """RSGD-AR's σ by the paper's route: Proposition 3, then the classic conversion."""
    run: Any = erm.mechanism_of(rsgd_ar, problem, 1.0, **setting)
    return noise_as_published(run.sensitivities, run.weights, epsilon=epsilon, delta=delta)


def _multiplier_of_2019(problem: erm.Problem, epsilon: float, delta: float, setting: dict) -> float:
    """SGD-MA's σ by Rényi curves and the classic conversion, under add/remove."""
    return float(
        acc.calibrate(
            functools.partial(erm.mechanism_of, erm.sgd_ma, problem, **setting),
            epsilon=epsilon,
            delta=delta,
            method="rdp_classic",
        )
    )


def even_batch(rows: int, size: int = BATCH) -> int:
    """About `size` rows, so that all batches are of one size, or short by a few rows.

    A short last batch is more sensitive than the others and would set the noise of the whole run.
    """
    return -(-rows // max(2, round(rows / size)))


def least_ridge(problem: erm.Problem, epsilon: float, delta: float) -> dict[str, float]:
    """Kifer et al.'s rule n·ridge ≥ 2c/ε, or the problem's own ridge where that is more."""
    jacobian = 2.0 * (problem.smoothness - problem.l2) / (epsilon * problem.n)
    return {"least_ridge": max(jacobian, problem.l2)}


def _objective_mechanism(problem, noise, *, ridge, least_ridge, **_):
    price = solver_spec(erm.objective_perturbation).mechanism
    return price(problem, noise, extra_l2=ridge * least_ridge - problem.l2)


@private_solver(
    noise="noise_std",
    mechanism=_objective_mechanism,
    adjacency=acc.Adjacency.REPLACE_ONE,
    concrete=True,
)
def objective_perturbation(
    problem: erm.Problem, key: Array, budget: Budget, *, ridge: float, least_ridge: float
) -> erm.Solution:
    """Objective perturbation with a ridge of so many times the least."""
    extra = ridge * least_ridge - problem.l2
    return erm.objective_perturbation(problem, key, extra_l2=extra, **budget.keywords())


def needs_unit_rows(name: str) -> bool:
    """Whether a method's price rests on rows of norm 1; the others clip gradients."""
    return name not in ("DP-AGD", "SGD-MA")


def variants(name: str, grid: dict[str, Any], problem: erm.Problem) -> list[Method]:
    """A method with the settings it is tuned over, once a price."""
    limit = 2.0 / (problem.smoothness + problem.strong_convexity)
    shares = [limit * share for share in grid["step share"]]
    batch = {"batch_size": even_batch(problem.n, grid["batch"])}
    cyclic = {"epochs": grid["epochs"], "step_size": shares}
    permuted: dict[str, Any] = {"fixed": batch, "at_the_end": True, "orders": ORDERS}
    if name == "RSGD-AR":
        few = [limit * share for share in grid["step share of RSGD-AR"]]
        tuned = {"epochs": grid["epochs"], "restarts": grid["restarts"], "step_size": few}
        tight = Method(name, rsgd_ar, tuned, **permuted)
        then = dataclasses.replace(tight, name=f"{name}, priced as in 2019", noise=_noise_of_2019)
        return [tight, then]
    if name == "RSGD (no averaging)":
        return [Method(name, erm.rsgd, cyclic, **permuted)]
    if name == "NSGD":
        return [Method(name, erm.nsgd, cyclic, **{**permuted, "orders": 1})]
    if name == "ObjPert":
        tuned = {"ridge": grid["ridge"]}
        return [Method(name, objective_perturbation, tuned, at_epsilon=least_ridge)]
    if name == "OutPert-GD":
        tuned = {"steps": grid["full steps"], "step_size": [1.0, limit]}
        return [Method(name, erm.output_perturbed_gd, tuned, at_the_end=True, orders=1)]
    if name == "DP-AGD":
        tuned = {"planned_steps": grid["planned steps"], "clip_norm": grid["clip norm"]}
        return [Method(name, erm.dp_agd, tuned, noise_of=())]
    tuned = {"steps": grid["sampled steps"], "step_size": grid["step size"]}
    tight = Method(name, erm.sgd_ma, tuned, noise_of=("steps",))
    then = dataclasses.replace(
        tight,
        name=f"{name}, add/remove as in 2019",
        adjacency=acc.Adjacency.ADD_REMOVE,
        noise=_multiplier_of_2019,
    )
    return [tight, then]
