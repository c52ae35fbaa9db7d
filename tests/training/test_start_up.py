"""What a run compiles before its first row: as few programs as its records and noise need."""

from __future__ import annotations

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import accounting as acc
from dpjax import training
from dpjax.training import step as step_module
from dpjax.training.draws import make_draws
from dpjax.training.loop import zero_totals
from dpjax.training.step_config import first_state

N = 40
NOISE = acc.Gaussian(1.5)
RUNS = {
    "poisson": acc.Repeated(acc.PoissonSampled(NOISE, 0.25), 8),
    "two rates": acc.Composed(
        tuple(acc.Repeated(acc.PoissonSampled(NOISE, rate), 4) for rate in (0.25, 0.5))
    ),
    "truncated": acc.Repeated(acc.TruncatedPoissonSampled(NOISE, 0.25, N, 12), 8),
    "allocation": acc.Repeated(acc.RandomAllocation(NOISE, 4), 2),
    "fixed": acc.Repeated(acc.FixedBatchSampled(NOISE, 7, N), 8),
    "sizes that grow": acc.Composed(
        tuple(acc.Repeated(acc.FixedBatchSampled(NOISE, size, N), 4) for size in (5, 9))
    ),
    "with replacement": acc.Repeated(acc.WithReplacement(NOISE, 7, N), 8),
    "everyone": acc.Repeated(NOISE, 8),
    "in turn": acc.CorrelatedGaussian(2.0, [1.0, 0.5], steps=8, separation=3, participations=3),
}


START = {"w": jnp.zeros(3), "b": jnp.zeros(())}


def loss(params, example):
    return 0.5 * jnp.sum((example - params["w"]) ** 2) + params["b"] ** 2


def plan_of(name):
    return training.Plan(RUNS[name], clip_norm=0.7, population=N, delta=1e-5)


@pytest.mark.parametrize("capacity", [None, 6])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.at_length(every=4)
def test_slots_that_hold_no_record_say_so(name, capacity):
    """Whether a slot takes part is read off it, and those that do come first."""
    draws = make_draws(plan_of(name), capacity, 1e-9)
    draw = jax.jit(draws.draw)
    for step in range(8):
        indices, size = map(np.asarray, draw(jax.random.key(4), step))
        assert indices.shape[0] % draws.capacity == 0
        assert ((indices[:size] >= 0) & (indices[:size] < N)).all()
        assert (indices[size:] >= N).all()


def test_rows_that_are_no_records_take_no_part():
    """Those that stand behind the records in the arrays, where the padded slots point to."""
    plan, data = plan_of("poisson"), jnp.ones((N, 3))
    step = training.training_step(loss, START, plan, optimizer=optax.sgd(0.3), capacity=6)
    update, key = jax.jit(step.update), jax.random.key(3)
    expected, _ = update(step.init(START), data, key)
    more = jnp.concatenate([data, jnp.full((N, 3), 1e3)])
    found, _ = update(step.init(START), more, key)
    chex.assert_trees_all_equal(found["params"], expected["params"])


def program(name):
    """The jaxpr of the loop of a run."""
    plan, optimizer, data = plan_of(name), optax.sgd(0.3), jnp.ones((N, 3))
    recipe = step_module.StepConfig(loss, START, plan, optimizer, None, "auto", 1e-9)
    advance = step_module._compile_step(recipe).advance
    state = first_state(START, plan, optimizer, np.int32(0))
    with jax.debug_key_reuse(False):  # which marks a use by a draw of no numbers
        return jax.make_jaxpr(advance)(state, zero_totals(), jax.random.key(3), data, np.int32(8))


@pytest.mark.parametrize("name", ["poisson", "two rates", "everyone", "in turn"])
def test_no_generator_of_jax_own(name):
    """On a CPU it is ten programs wherever a word is folded or a bit is drawn."""
    text = str(program(name))
    assert re.search(r"= while\[", text)
    assert not re.findall(r"= (threefry2x32|random_bits|random_fold_in|random_split)\b", text)
