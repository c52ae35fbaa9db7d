"""The algorithms that yu2020 compares, with the grids they are tuned over."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array

from dpjax import accounting as acc
from dpjax import erm
from dpjax.erm.objective_perturbation import gaussian_budget
from dpjax.erm.solver import Budget, private_solver, solver_spec
from experiments.comparison import Method

L2, RATE = 1e-4, 0.1
STYLES = {
    "DP-GD": ("#1f4e79", "o"),
    "DP-GD, add/remove": ("#8fb4d9", "o"),
    "DP-SGD": ("#2c7a4b", "s"),
    "DP-SGD, add/remove": ("#8fc3a2", "s"),
    "AMP": ("#b5542b", "^"),
    "Out-SGD": ("#d99a2b", "D"),
}
_RESIDUAL_SHARE = 0.1  # of the budget, spent on hiding AMP's solver error


@private_solver(
    noise="noise_multiplier",
    mechanism=solver_spec(erm.dp_sgd).mechanism,
    broadcasts=True,
    traced=("step_size", "clip_norm"),
)
def halved_dp_sgd(
    problem: erm.Problem,
    key: Array,
    budget: Budget,
    *,
    steps: int,
    step_size,
    rate: float,
    clip_norm=1.0,
) -> erm.Solution:
    """DP-SGD whose step size is halved midway (§4), as a function of the first step size."""
    return erm.dp_sgd(
        problem,
        key,
        steps=steps,
        step_size=erm.schedules.halved_midway(step_size, steps),
        rate=rate,
        clip_norm=clip_norm,
        **budget.keywords(),
    )


def _amp_mechanism(problem, noise, *, ridge, least_ridge, residual, **_):
    extra = _extra(problem, ridge, least_ridge)
    price = solver_spec(erm.approximate_minima_perturbation).mechanism
    return price(problem, noise, extra_l2=extra, residual=residual)


def _extra(problem: erm.Problem, ridge: float, least_ridge: float) -> float:
    return max(0.0, ridge * least_ridge - problem.l2)


@private_solver(
    noise="noise_std",
    mechanism=_amp_mechanism,
    adjacency=acc.Adjacency.REPLACE_ONE,
    concrete=True,
)
def amp(
    problem: erm.Problem,
    key: Array,
    budget: Budget,
    *,
    ridge: float,
    least_ridge: float,
    residual: float,
) -> erm.Solution:
    """AMP with a ridge of so many times the least that ε allows.

    Its output noise follows from its share of the budget, `residual` (a μ of GDP).
    """
    tolerance, extra = problem.n**-2.0, _extra(problem, ridge, least_ridge)
    return erm.approximate_minima_perturbation(
        problem,
        key,
        extra_l2=extra,
        gradient_tolerance=tolerance,
        output_noise_std=2.0 * tolerance / (problem.l2 + extra) / residual,
        **budget.keywords(),
    )


def _amp_at(classes: int):
    def settings(problem: erm.Problem, epsilon: float, delta: float) -> dict[str, float]:
        """The least ridge that the Jacobian's part of ε allows, and what hides the solver's error.

        A ridge above the least trades bias for the part of ε that is left to the noise.
        """
        least = 2.0 * (problem.smoothness - problem.l2) * classes / (epsilon * problem.n)
        share = _RESIDUAL_SHARE * gaussian_budget(epsilon, delta) / classes**0.5
        return {"least_ridge": least, "residual": float(share)}

    return settings


def _out_sgd_noise(classes: int):
    def price(problem: erm.Problem, epsilon: float, delta: float, setting: dict) -> float:
        """The accountant's noise, a setting at a time: its step sizes do not come in arrays."""

        def run(noise):
            one = erm.mechanism_of(erm.output_perturbed_sgd, problem, noise, **setting)
            return acc.Repeated(one, classes)

        adjacency = acc.Adjacency.REPLACE_ONE
        return float(acc.calibrate(run, epsilon=epsilon, delta=delta, adjacency=adjacency))

    return price


def method_for(name: str, grid: dict[str, Any], classes: int) -> tuple[Method, bool]:
    """A line of Table 4 with the settings it is tuned over, and whether it needs rows of norm 1.

    Clip norm 1; DP-SGD at rate 0.1 with twice DP-GD's step size, halved midway (§4).
    """
    kind, _, relation = name.partition(", ")
    adjacency = acc.Adjacency.ADD_REMOVE if relation else acc.Adjacency.REPLACE_ONE
    each = classes if classes > 2 else 1
    clip = {"clip_norm": 1.0}
    descent: dict[str, Any] = {"adjacency": adjacency, "noise_of": ("steps",)}
    if kind == "DP-GD":
        tuned = {"steps": grid["steps"], "step_size": grid["step size"]}
        return Method(name, erm.dp_gd, tuned, fixed=clip, **descent), False
    if kind == "DP-SGD":
        tuned = {"steps": grid["steps"], "step_size": [2.0 * s for s in grid["step size"]]}
        return Method(name, halved_dp_sgd, tuned, fixed={**clip, "rate": RATE}, **descent), False
    if kind == "AMP":
        tuned = {"ridge": grid["ridge"]}
        return Method(name, amp, tuned, at_epsilon=_amp_at(each), classes=each), True
    tuned = {"passes": grid["passes"], "step_size": grid["output step size"]}
    price = _out_sgd_noise(each)
    batch = {"batch_size": 50}
    return Method(
        name, erm.output_perturbed_sgd, tuned, fixed=batch, noise=price, at_the_end=True,
        classes=each,
    ), True  # fmt: skip
