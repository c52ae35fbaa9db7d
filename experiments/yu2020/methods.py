"""The algorithms that yu2020 compares, with the grids they are tuned over."""

from __future__ import annotations

from jaxtyping import Array

from dpjax import accounting as acc
from dpjax import erm
from dpjax.erm.published_constants import gaussian_budget
from dpjax.erm.solver import Budget, private_solver, spec_of
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
    mechanism=spec_of(erm.dp_sgd).mechanism,
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


@private_solver(
    noise="noise_std",
    mechanism=spec_of(erm.approximate_minima_perturbation).mechanism,
    adjacency=acc.Adjacency.REPLACE_ONE,
    concrete=True,
)
def amp(
    problem: erm.Problem,
    key: Array,
    budget: Budget,
    *,
    extra_l2: float,
    residual: float,
) -> erm.Solution:
    """AMP whose output noise follows from its share of the budget, `residual` (a μ of GDP)."""
    tolerance = problem.n**-2.0
    return erm.approximate_minima_perturbation(
        problem,
        key,
        extra_l2=extra_l2,
        gradient_tolerance=tolerance,
        output_noise_std=2.0 * tolerance / (problem.l2 + extra_l2) / residual,
        **budget.keywords(),
    )


def _amp_at(classes: int):
    def settings(problem: erm.Problem, epsilon: float, delta: float) -> dict[str, float]:
        ridge = 2.0 * (problem.smoothness - problem.l2) * classes / (epsilon * problem.n)
        share = _RESIDUAL_SHARE * gaussian_budget(epsilon, delta) / classes**0.5
        return {"extra_l2": max(0.0, ridge - problem.l2), "residual": float(share)}

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


def methods(classes: int, clip_norm: float, records: int, size: str) -> list[Method]:
    """The private lines of Table 4: the paper's grid in a full run, the middle of it otherwise.

    Clip norm 1, and 0.5 with twice the step sizes for high dimension; DP-SGD at rate 0.1 with twice
    DP-GD's step size, halved midway (§4).
    """
    steps = {"tiny": [5], "small": [50, 200], "full": [50, 200, 800]}[size]
    rates = {"tiny": [1.0], "small": [1.0, 5.0], "full": [0.1, 1.0, 5.0]}[size]
    if classes > 2 and size == "small":  # ten times the work a step: what does best at ε = 1
        steps, rates = [200], [5.0]
    passes = {"tiny": [1], "small": [5], "full": [1, 5, 10, 20]}[size]
    scale = 2.0 if clip_norm < 1 else 1.0
    clip = {"clip_norm": clip_norm}
    sampled = {**clip, "rate": RATE}
    gd = {"steps": steps, "step_size": [scale * r for r in rates]}
    sgd = {"steps": steps, "step_size": [2 * scale * r for r in rates]}
    alone = {"noise_of": ("steps",)}
    unpaired = {"adjacency": acc.Adjacency.ADD_REMOVE, **alone}
    each = classes if classes > 2 else 1
    return [
        Method("DP-GD", erm.dp_gd, gd, fixed=clip, **alone),
        Method("DP-GD, add/remove", erm.dp_gd, gd, fixed=clip, **unpaired),
        Method("DP-SGD", halved_dp_sgd, sgd, fixed=sampled, **alone),
        Method("DP-SGD, add/remove", halved_dp_sgd, sgd, fixed=sampled, **unpaired),
        Method(
            "AMP", amp, {}, at_epsilon=_amp_at(each), classes=each, repeats=2 if each > 1 else None
        ),
        Method(
            "Out-SGD",
            erm.output_perturbed_sgd,
            {"passes": passes, "step_size": [0.1, 1.0] if size != "tiny" else [1.0]},
            fixed={"batch_size": min(50, records)},
            noise=_out_sgd_noise(each),
            at_the_end=True,
            classes=each,
        ),
    ]
