"""The algorithms that chen2019 compares, with the grids they are tuned over."""

from __future__ import annotations

import functools
from typing import Any

from dpjax import accounting as acc
from dpjax import erm
from experiments.chen2019.routes import noise_by_route
from experiments.comparison import Method

BATCH, L2, HUBER = 4000, 1e-3, 0.5
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


def _noise_of_2019(problem: erm.Problem, epsilon: float, delta: float, setting: dict) -> float:
    """RSGD-AR's σ by the paper's route: Proposition 3, then the classic conversion."""
    run: Any = erm.mechanism_of(erm.rsgd_ar, problem, 1.0, **setting)
    routes = noise_by_route(run.sensitivities, run.weights, epsilon=epsilon, delta=delta)
    return routes.classic


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


def even_batch(rows: int) -> int:
    """About 4,000 rows, so that all batches are of one size, or short by a few rows.

    4,000 exactly would leave a last batch of 176 of Adult's 36,176 training rows, which is 23 times
    as sensitive as the others and would set the noise of the whole run.
    """
    return -(-rows // max(2, round(rows / BATCH)))


def kifer_ridge(problem: erm.Problem, epsilon: float, delta: float) -> dict[str, float]:
    """Kifer et al.'s rule n(l2 + extra) ≥ 2c/ε: how much regularisation the Jacobian needs."""
    ridge = 2.0 * (problem.smoothness - problem.l2) / (epsilon * problem.n)
    return {"extra_l2": max(0.0, ridge - problem.l2)}


def methods(problem: erm.Problem, size: str) -> list[Method]:
    """Every private line of Figures 1 and 2, with the grid of a small or a full run."""
    batch = even_batch(problem.n)
    limit = 2.0 / (problem.smoothness + problem.strong_convexity)
    small = size != "full"
    epochs = [5] if size == "tiny" else [10, 20] if small else [5, 10, 20, 50]
    # Up to the largest step that contracts: at a tenth of it ten epochs learn the majority alone.
    shares = [1.0] if size == "tiny" else [0.125, 0.4, 1.0] if small else [0.05, 0.125, 0.4, 0.7, 1]
    rates = [limit * share for share in shares]
    ma_steps = [20] if size == "tiny" else [400] if small else [200, 400, 1000, 4000]
    ma_rates = [1.0] if size == "tiny" else [1.0, 4.0] if small else [0.3, 1.0, 3.0, 6.0]
    gd_steps = [10] if size == "tiny" else [20, 60] if small else [10, 20, 60, 200]
    cyclic = {"epochs": epochs, "step_size": rates}
    descent = {"steps": ma_steps, "step_size": ma_rates}
    batches = {"batch_size": batch}
    return [
        Method("RSGD-AR", erm.rsgd_ar, cyclic, fixed=batches, at_the_end=True),
        Method(
            "RSGD-AR, priced as in 2019",
            erm.rsgd_ar,
            cyclic,
            fixed=batches,
            noise=_noise_of_2019,
            at_the_end=True,
        ),
        Method("RSGD (no averaging)", erm.rsgd, cyclic, fixed=batches, at_the_end=True),
        Method("NSGD", erm.nsgd, cyclic, fixed=batches, at_the_end=True),
        Method("ObjPert", erm.objective_perturbation, {}, at_epsilon=kifer_ridge),
        Method(
            "OutPert-GD",
            erm.output_perturbed_gd,
            {"steps": gd_steps, "step_size": [limit / 4, limit]},
            at_the_end=True,
        ),
        Method("DP-AGD", erm.dp_agd, {"planned_steps": [60] if small else [30, 60, 120]}),
        Method("SGD-MA", erm.sgd_ma, descent, noise_of=("steps",)),
        Method(
            "SGD-MA, add/remove as in 2019",
            erm.sgd_ma,
            descent,
            adjacency=acc.Adjacency.ADD_REMOVE,
            noise=_multiplier_of_2019,
            noise_of=("steps",),
        ),
    ]
