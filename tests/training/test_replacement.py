"""Training on draws with replacement: the sampler's law, its price, and where it is refused."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from dpjax import accounting as acc
from dpjax import sampling, training
from dpjax.training.draws import make_draws

REPLACED = acc.Adjacency.REPLACE_ONE
SETTINGS = {"delta": 1e-5, "noise_multiplier": 2.0, "adjacency": REPLACED}


def plan_of(population, size, **changes):
    given = {**SETTINGS, "steps": 3, "sampling": "with-replacement"} | changes
    return training.make_plan(population, batch_size=size, **given)


def batches(plan, steps):
    """The records of so many steps, one row a step."""
    draws = make_draws(plan, None, 1e-9)
    draw = jax.vmap(draws.draw, (None, 0))
    indices, sizes = jax.jit(draw)(jax.random.key(11), jnp.arange(steps))
    assert len(set(sizes.tolist())) == 1
    return np.asarray(indices)[:, : int(sizes[0])]


def test_every_sequence_of_draws_is_as_likely_as_any_other():
    """Of 3 records, 3 draws: 27 sequences, which are uniform and independent if those are."""
    found = batches(plan_of(3, 3), 5_400)
    counts = [np.sum((found == one).all(axis=1)) for one in itertools.product(range(3), repeat=3)]
    assert sum(counts) == len(found)
    assert stats.chisquare(counts).pvalue > 1e-3
    # The same test finds draws without replacement, and steps that repeat each other.
    distinct = batches(plan_of(3, 3, sampling="fixed"), 5_400)
    counts = [np.sum((distinct == o).all(axis=1)) for o in itertools.product(range(3), repeat=3)]
    assert stats.chisquare(counts).pvalue < 1e-9
    follow, _, _ = np.histogram2d(found[:-1, 0], found[1:, 0], bins=3)
    assert stats.chi2_contingency(follow).pvalue > 1e-3


@pytest.mark.at_length
def test_the_price_is_that_of_what_is_drawn():
    plan = plan_of(400, 100, steps=20)
    assert plan.mechanism == acc.Repeated(acc.WithReplacement(acc.Gaussian(2.0), 100, 400), 20)
    assert plan.expected_batch_size == 100
    fixed = plan_of(400, 100, steps=20, sampling="fixed")
    assert fixed.epsilon() < plan.epsilon() < np.inf
    budget = plan_of(400, 100, steps=20, noise_multiplier=None, epsilon=3.0)
    assert 2.99 < budget.epsilon() <= 3.0
    with pytest.raises(acc.UnsupportedQuery, match="REPLACE_ONE only"):
        plan_of(400, 100, adjacency=acc.Adjacency.ADD_REMOVE).epsilon()


def test_batches_that_grow_are_draws_of_their_size():
    plan = plan_of(5, lambda step: 1 + step)
    assert [phase.step.batch_size for phase in plan.phases] == [1, 2, 3]
    draws = make_draws(plan, None, 1e-9)
    assert [int(draws.draw(jax.random.key(0), step)[1]) for step in range(3)] == [1, 2, 3]


def test_more_draws_than_records_in_pieces(monkeypatch):
    """Ten draws of one record, its gradient clipped to 1, without noise worth mentioning."""
    monkeypatch.setattr(acc, "epsilon", lambda run, *_, **__: np.ones(np.shape(run.steps)))
    step = acc.WithReplacement(acc.Gaussian(1e-6), 10, 1)
    plan = training.Plan(acc.Repeated(step, 1), 1.0, 1, 1e-5, adjacency=REPLACED)
    for capacity in (None, 1):
        found = training.fit(
            lambda w, x: w * x,
            jnp.zeros(()),
            np.full(1, 3.0, np.float32),
            plan,
            optimizer=optax.sgd(1.0),
            key=jax.random.key(0),
            capacity=capacity,
            log_private_losses=True,
        )
        assert found.params == pytest.approx(-1.0, abs=1e-4)  # 10 · 1 / 10
        assert found.metrics["clipped"][1] == 1.0


@pytest.mark.parametrize("held", ["device", "host"])
def test_users_count_once_a_draw(monkeypatch, held):
    """Each user's gradients point along an axis of the user's own, so a step's sum counts draws."""
    monkeypatch.setattr(acc, "epsilon", lambda run, *_, **__: np.ones(np.shape(run.steps)))
    owner = np.array([0, 1, 1, 2, 2, 2, 3, 4, 4])
    axes = np.eye(5, dtype=np.float32)[owner]
    step = acc.WithReplacement(acc.Gaussian(1e-6), 12, 5)
    settings = {"adjacency": REPLACED, "unit": "user"}
    plan = training.Plan(acc.Repeated(step, 1), 1.0, 5, 1e-5, **settings)
    found = training.fit(
        lambda w, x: w @ x,
        jnp.zeros(5),
        training.HostData(axes) if held == "host" else axes,
        plan,
        optimizer=optax.sgd(1.0),
        key=jax.random.key(4),
        users=owner,
        records_per_user=3,
    )
    counts = -12 * np.asarray(found.params)
    assert counts.sum() == pytest.approx(12, abs=1e-3)
    assert counts == pytest.approx(np.rint(counts), abs=1e-3)
    assert counts.max() > 2  # of twelve draws of five users: one is drawn three times


def test_several_devices_are_refused_before_a_key_is_bound(tmp_path):
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    with pytest.raises(ValueError, match="mesh must be None where records are drawn with repl"):
        training.fit(
            lambda w, x: w * x,
            jnp.zeros(()),
            np.ones(4, np.float32),
            plan_of(4, 2),
            optimizer=optax.sgd(1.0),
            mesh=mesh,
            folder=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


def test_a_mechanism_of_other_records_is_refused():
    run = acc.Repeated(acc.WithReplacement(acc.Gaussian(1.0), 2, 50), 3)
    with pytest.raises(ValueError, match="sample from 100 records, got 50"):
        training.Plan(run, 1.0, 100, 1e-5, adjacency=REPLACED)


def test_a_step_draws_at_least_one_record():
    for kind in (acc.WithReplacement, acc.FixedBatchSampled):
        run = acc.Repeated(kind(acc.Gaussian(1.0), 0, 100), 3)
        with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
            training.Plan(run, 1.0, 100, 1e-5, adjacency=REPLACED)


def test_beside_other_steps_of_a_run():
    """More draws than records, then a batch and a Poisson sample of these: each by its own law."""
    gaussian = acc.Gaussian(2.0)
    kinds = (
        acc.WithReplacement(gaussian, 7, 5),
        acc.FixedBatchSampled(gaussian, 3, 5),
        acc.PoissonSampled(gaussian, 0.5),
        acc.PoissonSampled(gaussian, 0.25),
    )
    plan = training.Plan(acc.Composed(kinds), 1.0, 5, 1e-5, adjacency=REPLACED)
    draw, key = jax.jit(make_draws(plan, 4, 1e-9).draw), jax.random.key(3)
    draws = [draw(key, step) for step in range(4)]
    found = [np.asarray(rows)[: int(size)].tolist() for rows, size in draws]
    assert draws[0][0].shape == (8,)
    assert len(found[0]) == 7
    assert len(set(found[1])) == len(found[1]) == 3
    for step, rate in ((2, 0.5), (3, 0.25)):
        flags = sampling.poisson_inclusion(key, step, population=5, rate=rate)
        assert found[step] == np.flatnonzero(flags).tolist()
