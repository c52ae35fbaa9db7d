"""The algorithms that chen2019 compares: their grids, their prices today and those of 2019.

2019's are what the authors had and their public code of the year before has (DP-AGD's): Proposition
3 for permuted SGD, Rényi orders with the conversion of 2017, the moments accountant up to order 32,
zCDP, and the closed forms of Kifer et al. (2012) and Zhang et al. (2017). Where one record moves a
gradient by R if it is added and by 2R if it is replaced, there is a line for each.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from jaxtyping import Array

from dpjax import accounting as acc
from dpjax import erm
from dpjax.erm.sensitivity import zhang_sensitivity
from dpjax.erm.solver import Budget, private_solver, solver_spec
from experiments.chen2019 import routes
from experiments.comparison import Method

BATCH = 4000
AS_2019, ADDED_2019 = ", as in 2019", ", add/remove as in 2019"
STYLES = {
    "RSGD-AR": ("#1f4e79", "o"),
    "RSGD (no averaging)": ("#2c7a4b", "v"),
    "NSGD": ("#7cb342", "s"),
    "ObjPert": ("#b5542b", "^"),
    "OutPert-GD": ("#d99a2b", "D"),
    "DP-AGD": ("#7b4fa0", "P"),
    "SGD-MA": ("#c2185b", "X"),
}
METHODS = tuple(STYLES)
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


def _permuted_noise_of_2019(solver: Callable) -> Callable:
    def noise(problem: erm.Problem, epsilon: float, delta: float, setting: dict) -> float:
        """σ by Proposition 3 (NSGD: Lemma 1), then the conversion of 2017."""
        run: Any = erm.mechanism_of(solver, problem, 1.0, **setting)
        target = {"epsilon": epsilon, "delta": delta}
        return routes.noise_as_published(run.sensitivities, run.weights, **target)

    return noise


def _objective_noise_of_2019(moved: float) -> Callable:
    def noise(problem: erm.Problem, epsilon: float, delta: float, setting: dict) -> float:
        """σ by Kifer et al. (2012), of a gradient that moves by R or 2R."""
        return routes.objective_noise_of_2012(moved * problem.gradient_bound, epsilon, delta)

    return noise


def _output_noise_of_2019(
    problem: erm.Problem, epsilon: float, delta: float, setting: dict
) -> float:
    """σ by Zhang et al. (2017): the lesser of 3RηT/n and 5R(L + μ)/(nμL), η at most 1/L."""
    found: dict[str, float] = {
        "gradient_bound": problem.gradient_bound,
        "smoothness": problem.smoothness,
        "strong_convexity": problem.strong_convexity,
    }
    flat = 3.0 * problem.gradient_bound * setting["step_size"] * setting["steps"] / problem.n
    move = min(flat, zhang_sensitivity(problem.n, **found))
    return routes.output_noise_of_2017(move, epsilon, delta)


def _adaptive_noise_of_2019(
    problem: erm.Problem, epsilon: float, delta: float, setting: dict
) -> float:
    """DP-AGD's 1/√(2ρ), ρ by the conversion of 2016."""
    return 1.0 / math.sqrt(2.0 * routes.zcdp_of_2016(epsilon, delta))


def _multiplier_of_2019(problem: erm.Problem, epsilon: float, delta: float, setting: dict) -> float:
    """SGD-MA's σ by the moments accountant, under add/remove."""
    run = functools.partial(erm.mechanism_of, erm.sgd_ma, problem, **setting)
    return routes.multiplier_by_moments(run, epsilon, delta)


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
    """A method with the settings it is tuned over, once a price: today's, then 2019's."""
    limit = 2.0 / (problem.smoothness + problem.strong_convexity)
    shares = [limit * share for share in grid["step share"]]
    batch = {"batch_size": even_batch(problem.n, grid["batch"])}
    cyclic = {"epochs": grid["epochs"], "step_size": shares}
    permuted: dict[str, Any] = {"fixed": batch, "at_the_end": True, "orders": ORDERS}
    if name == "ObjPert":
        tuned = {"ridge": grid["ridge"]}
        tight = Method(name, objective_perturbation, tuned, at_epsilon=least_ridge)
        return [
            tight,
            _as_2019(tight, _objective_noise_of_2019(2.0)),
            _as_2019(tight, _objective_noise_of_2019(1.0), acc.Adjacency.ADD_REMOVE),
        ]
    if name == "OutPert-GD":
        tuned = {"steps": grid["full steps"], "step_size": [1.0, limit]}
        tight = Method(name, erm.output_perturbed_gd, tuned, at_the_end=True, orders=1)
        then = _as_2019(tight, _output_noise_of_2019)
        within = {**tuned, "step_size": [1.0, 1.0 / problem.smoothness]}
        return [tight, dataclasses.replace(then, grid=within)]
    if name == "DP-AGD":
        tuned = {"planned_steps": grid["planned steps"], "clip_norm": grid["clip norm"]}
        tight = Method(name, erm.dp_agd, tuned, noise_of=())
        then = _as_2019(tight, _adaptive_noise_of_2019)
        return [tight, then, _as_2019(tight, _adaptive_noise_of_2019, acc.Adjacency.ADD_REMOVE)]
    if name == "SGD-MA":
        tuned = {"steps": grid["sampled steps"], "step_size": grid["step size"]}
        tight = Method(name, erm.sgd_ma, tuned, noise_of=("steps",))
        return [tight, _as_2019(tight, _multiplier_of_2019, acc.Adjacency.ADD_REMOVE)]
    if name == "RSGD-AR":
        few = [limit * share for share in grid["step share of RSGD-AR"]]
        tuned = {"epochs": grid["epochs"], "restarts": grid["restarts"], "step_size": few}
        tight = Method(name, rsgd_ar, tuned, **permuted)
    elif name == "NSGD":
        tight = Method(name, erm.nsgd, cyclic, **{**permuted, "orders": 1})
    else:
        tight = Method(name, erm.rsgd, cyclic, **permuted)
    return [tight, _as_2019(tight, _permuted_noise_of_2019(tight.solver))]


def _as_2019(
    tight: Method, noise: Callable, adjacency: acc.Adjacency = acc.Adjacency.REPLACE_ONE
) -> Method:
    added = adjacency is acc.Adjacency.ADD_REMOVE
    name = tight.name + (ADDED_2019 if added else AS_2019)
    return dataclasses.replace(tight, name=name, noise=noise, adjacency=adjacency)
