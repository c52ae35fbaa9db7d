"""The noise that runs add, beside what their plans say: 18 plans, 150,000 coordinates, 20 keys.

    python -m benchmarks.noise_of_plans

Writes benchmarks/results/noise_of_plans.md: the measured standard deviation over
`plan.noise_std(step)`, the error of that estimate, and the slack by formula. All gradients are
zero. Some plans need eight devices: XLA_FLAGS=--xla_force_host_platform_device_count=8 on a CPU.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import accounting as acc
from dpjax import correlation, training
from dpjax.gradients import AdaptiveQuantile

RESULT = pathlib.Path(__file__).parent / "results" / "noise_of_plans.md"
_HEAD = """# The noise of 18 plans

Measured by `python -m benchmarks.noise_of_plans`: the standard deviation of a step's noise over
`plan.noise_std(step)` over twenty keys, with the error of that estimate (one standard deviation),
and the slack for rounding, by which the noise is larger by formula. The plans have the same keys:
those of one model and one step draw the same normal numbers, and share the error of their estimate.

| plan | coordinates | measured / planned | error | slack |
|---|---|---|---|---|"""
TREES = {
    "matrix": {"w": (300, 500)},
    "perceptron": {"a": (300, 400), "b": (400,), "c": (400, 74)},
    "table": {"e": (3_000, 50)},
}


KEYS = range(20)


class Measured(NamedTuple):
    """A plan, and how it is run."""

    plan: training.Plan
    model: str = "matrix"
    dtype: str = "float32"
    capacity: int | None = None
    devices: int = 1
    step: int = 0  # whose noise is measured


def plan_of(step: acc.Mechanism, records: int, steps: int = 1, **changes: Any) -> training.Plan:
    """A plan of equal steps."""
    settings = {"clip_norm": 0.5, "population": records, "delta": 1e-5} | changes
    return training.Plan(acc.Repeated(step, steps), **settings)


def poisson(records: int, **changes: Any) -> training.Plan:
    """Samples of half of the records."""
    return plan_of(acc.PoissonSampled(acc.Gaussian(1.3), 0.5), records, **changes)


def correlated(strategy: Any) -> training.Plan:
    """Cyclic batches of a third of the records."""
    return training.make_plan(
        12, noise_multiplier=1.5, delta=1e-5, steps=6, batch_size=4, clip_norm=2.0,
        sampling="cyclic", correlation=strategy,
    )  # fmt: skip


def list_plans() -> dict[str, Measured]:
    """The 18 plans by what is special about them."""
    replace = {"adjacency": acc.Adjacency.REPLACE_ONE}
    noise, adaptive = acc.Gaussian(1.3), AdaptiveQuantile(5.0, 6.0, learning_rate=1e-9)
    schedule = acc.Composed((acc.Repeated(acc.PoissonSampled(noise, 0.5), 2), acc.Gaussian(0.7)))
    phases = training.Plan(schedule, clip_norm=2.0, population=12, delta=1e-5)
    return {
        "Poisson, 6 records": Measured(poisson(12)),
        "Poisson, 1,000 records, perceptron": Measured(poisson(2_000), "perceptron"),
        "Poisson, 10,000 records, a table": Measured(poisson(20_000), "table"),
        "in 30 pieces": Measured(poisson(2_000), "perceptron", capacity=40),
        "a record a piece": Measured(poisson(200), capacity=1),
        "bfloat16": Measured(poisson(2_000), "perceptron", "bfloat16"),
        "float16": Measured(poisson(2_000), "table", "float16"),
        "2 devices": Measured(poisson(64), "perceptron", devices=2),
        "8 devices, in pieces": Measured(poisson(4_000), capacity=500, devices=8),
        "truncated Poisson": Measured(
            plan_of(acc.TruncatedPoissonSampled(noise, 0.5, 60, 30), 60), "perceptron"
        ),
        "random allocation": Measured(plan_of(acc.RandomAllocation(noise, 3), 60), "table"),
        "fixed batches": Measured(plan_of(acc.FixedBatchSampled(noise, 20, 60), 60, **replace)),
        "with replacement": Measured(plan_of(acc.WithReplacement(noise, 20, 60), 60, **replace)),
        "full batches": Measured(plan_of(noise, 60), "perceptron"),
        "phases, the second": Measured(phases, step=2),
        "an adaptive clip norm": Measured(poisson(12, steps=2, adaptive=adaptive), step=1),
        "correlated, a banded inverse": Measured(
            correlated(correlation.inverse_square_root(3)), "perceptron", step=4
        ),
        "correlated, a tree": Measured(correlated(correlation.Tree()), step=3),
    }


def loss_without_gradient(params: Any, x: Any) -> Any:
    """A loss whose gradient is zero."""
    return sum(jnp.sum(leaf) * (0 * x).astype(leaf.dtype) for leaf in jax.tree.leaves(params))


def draw_noise(case: Measured, keys: Iterable[int] = (7,)) -> np.ndarray:
    """The noise of that step's mean gradient, in runs of these keys."""
    params = {k: jnp.zeros(shape, case.dtype) for k, shape in TREES[case.model].items()}
    data, plan = jnp.ones(case.plan.population), case.plan
    if case.devices > 1:
        mesh = jax.make_mesh(
            (case.devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,),
            devices=jax.devices()[: case.devices],
        )  # fmt: skip
        runs = (
            training.fit(
                loss_without_gradient, params, data, plan, optimizer=optax.sgd(1.0),
                key=jax.random.key(key), capacity=case.capacity, mesh=mesh,
            )
            for key in keys
        )  # fmt: skip
        return np.concatenate([flatten(run.params) for run in runs])
    step = training.training_step(
        loss_without_gradient, params, plan, optimizer=optax.sgd(1.0), capacity=case.capacity
    )
    update, drawn = jax.jit(step.update), []
    for key in map(jax.random.key, keys):
        state = step.init(params)
        for _ in range(case.step):
            state, _ = update(state, data, key)
        state["params"] = jax.tree.map(jnp.zeros_like, state["params"])
        drawn.append(flatten(update(state, data, key)[0]["params"]))
    return np.concatenate(drawn)


def flatten(tree: Any) -> np.ndarray:
    """All numbers of a tree."""
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def measure(case: Measured) -> tuple[float, float, int]:
    """(measured over planned standard deviation, the slack by formula, coordinates)."""
    drawn = draw_noise(case, KEYS)
    found = float(np.sqrt(np.mean(drawn**2))) / case.plan.noise_std(case.step)
    slack = case.plan.rounding_slack
    assert slack is not None
    return found, slack, drawn.size


def main() -> None:
    """Measure all plans and write the table."""
    rows = []
    for name, case in list_plans().items():
        found, slack, size = measure(case)
        error = 1 / np.sqrt(2 * size)
        rows.append(f"| {name} | {size:,} | {found:.4f} | {error:.4f} | {slack:.5f} |")
    lines = [_HEAD, *rows, ""]
    RESULT.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
