"""The noise that a run adds is the plan's, to two thousandths, whatever it is worked through in."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks.noise_of_plans import draw_noise, list_plans
from dpjax import accounting as acc
from dpjax import correlation, training
from dpjax.gradients import AdaptiveQuantile
from dpjax.training.step_config import failure_probability, rounding_sensitivity

SHAPE = (300, 500)  # 150,000 coordinates
RECORDS = 12


def loss_without_gradient(params, x):
    features = jnp.full(SHAPE[0], 0 * x).astype(params["w"].dtype)
    return jnp.sum(features @ params["w"])


def noise_of(plan, steps, dtype="float32", mesh=None, capacity=None):
    """Every step's mean gradient, of records whose gradients are zero: its noise."""
    params = {"w": jnp.zeros(SHAPE, dtype)}
    data = jnp.ones(plan.population)
    key = jax.random.key(7)
    if mesh is not None:
        found = training.fit(
            loss_without_gradient, params, data, plan, optimizer=optax.sgd(1.0), key=key,
            capacity=capacity, mesh=mesh,
        )  # fmt: skip
        return [-np.asarray(found.params["w"], np.float64)]
    step = training.training_step(
        loss_without_gradient, params, plan, optimizer=optax.sgd(1.0), capacity=capacity
    )
    state, update, drawn = step.init(params), jax.jit(step.update), []
    for _ in range(steps):
        before = np.asarray(state["params"]["w"], np.float64)
        state, _ = update(state, data, key)
        drawn.append(before - np.asarray(state["params"]["w"], np.float64))
        state["params"] = jax.tree.map(jnp.zeros_like, state["params"])
    return drawn


def plan_of(records, noise=1.3, clip_norm=0.5, steps=1):
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(noise), 0.5), steps)
    return training.Plan(run, clip_norm=clip_norm, population=records, delta=1e-5)


def assert_is_noise_of(drawn, stddev):
    """Of n normal numbers the standard deviation is off by 1/√(2n), here to five of these."""
    found = np.sqrt(np.mean(drawn**2))
    off = 5 / np.sqrt(2 * drawn.size)
    assert 1 - off <= found / stddev <= 1.002 + off
    assert abs(np.mean(drawn)) <= 5 * stddev / np.sqrt(drawn.size)


@pytest.mark.at_length(every=3)
@pytest.mark.parametrize("records", [12, 2_000, 20_000])
@pytest.mark.parametrize(
    ("pieces", "dtype"), [(1, "float32"), (1, "bfloat16"), (7, "float32"), (30, "float32")]
)
def test_noise_is_as_planned(records, pieces, dtype):
    plan = plan_of(records)
    capacity = None if pieces == 1 else max(records // pieces, 1)
    (drawn,) = noise_of(plan, 1, dtype, capacity=capacity)
    assert_is_noise_of(drawn, plan.noise_std(0))


@pytest.mark.at_length(every=3)
@pytest.mark.parametrize("devices", [2, 8])
@pytest.mark.parametrize("capacity", [None, 3, 500])
def test_noise_is_as_planned_on_several_devices(devices, capacity):
    plan = plan_of(4_000 if capacity == 500 else 64)
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    (drawn,) = noise_of(plan, 1, mesh=mesh, capacity=capacity)
    assert_is_noise_of(drawn, plan.noise_std(0))


def test_the_slack_is_within_two_thousandths():
    """What the noise is multiplied by beside the plan's multiplier, by formula."""
    for records in (64, 8_192, 65_536, 250_000):
        plan = plan_of(records)
        for size in (10, 1_000, 1_000_000):
            slack = rounding_sensitivity(np.zeros(size), records, failure_probability(plan))
            assert 0 < slack <= 0.002


STRATEGIES = {
    "ring": correlation.square_root(3),
    "redrawn": correlation.inverse_square_root(3),
    "tree": correlation.Tree(),
}


@pytest.mark.at_length(every=3)
@pytest.mark.parametrize("kind", ["phases", "adaptive", *STRATEGIES])
def test_noise_std_is_that_of_every_step(kind):
    if kind == "phases":
        parts = (
            acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.5), 0.5), 2),
            acc.Gaussian(0.7),
        )
        plan = training.Plan(acc.Composed(parts), clip_norm=2.0, population=RECORDS, delta=1e-5)
    elif kind == "adaptive":
        adaptive = AdaptiveQuantile(5.0, RECORDS / 2, learning_rate=1e-9)
        run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.5), 0.5), 2)
        plan = training.Plan(run, clip_norm=2.0, population=RECORDS, delta=1e-5, adaptive=adaptive)
        assert plan.noise_std(0, clip_norm=4.0) == pytest.approx(2 * plan.noise_std(0))
    else:
        plan = correlated_plan(kind)
    for step, drawn in enumerate(noise_of(plan, plan.steps)):
        assert_is_noise_of(drawn, plan.noise_std(step))


def correlated_plan(kind):
    strategy = STRATEGIES[kind]
    return training.make_plan(
        RECORDS, noise_multiplier=1.5, delta=1e-5, steps=6, batch_size=RECORDS // 3, clip_norm=2.0,
        sampling="cyclic", correlation=strategy,
    )  # fmt: skip


@pytest.mark.parametrize("name", list_plans())
@pytest.mark.at_length(every=9)
def test_the_noise_of_every_kind_of_plan_is_as_planned(name):
    case = list_plans()[name]
    assert_is_noise_of(draw_noise(case), case.plan.noise_std(case.step))
    assert 0 < case.plan.rounding_slack <= 0.002


def test_noise_std_refuses_what_it_cannot_answer():
    plan = plan_of(RECORDS)
    with pytest.raises(ValueError, match="step must be"):
        plan.noise_std(1)
    with pytest.raises(ValueError, match="clip_norm must be None where it is not adaptive"):
        plan.noise_std(0, clip_norm=1.0)
