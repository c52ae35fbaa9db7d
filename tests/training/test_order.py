"""The order of a step's batch: uniform, and all that a sum tells of the records' places."""

from __future__ import annotations

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from dpjax import accounting as acc
from dpjax import correlation, training
from dpjax.gradients import rounding_slack
from dpjax.gradients.compensated import run_shape, sum_over_records
from dpjax.training import order
from dpjax.training.draws import make_draws
from dpjax.training.order import shuffle
from dpjax.training.plan import EMPTY_PLACE, IF_DIVIDED, SAME_ANYWHERE

RECORDS = 60
SAMPLED = {
    "poisson": acc.PoissonSampled(acc.Gaussian(0.8), 0.5),
    "cut": acc.TruncatedPoissonSampled(acc.Gaussian(0.8), 0.5, RECORDS, 20),
    "allocation": acc.RandomAllocation(acc.Gaussian(0.8), 3),
    "everybody": acc.Gaussian(0.8),
}


def plan_of(step, **changes):
    settings = {"clip_norm": 0.7, "population": RECORDS, "delta": 1e-5} | changes
    return training.Plan(acc.Repeated(step, 3), **settings)


@pytest.mark.parametrize("packed", [True, False])
def test_every_order_is_as_likely_as_any_other(packed, monkeypatch):
    """Four of nine records in 24 orders; slots without one stay behind, whatever they hold."""
    if not packed:
        monkeypatch.setattr(order, "_TIED", 0)
    drawn = jnp.asarray([0, 3, 5, 8, 9, 70, 1_000_000], jnp.int32)
    keys = jax.random.split(jax.random.key(0), 24_000)
    found = np.asarray(jax.jit(jax.vmap(lambda key: shuffle(key, drawn, 9)))(keys))
    assert np.all(found[:, 4:] >= 9)
    counts = collections.Counter(map(tuple, found[:, :4].tolist()))
    assert set(counts) == set(itertools.permutations([0, 3, 5, 8]))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_an_order_with_a_tie_is_drawn_again(monkeypatch):
    """Of numbers of two bits: were ties broken by the record's number, the first would lead."""
    words = order._random_words
    monkeypatch.setattr(
        order, "_random_words", lambda key, n, width: words(key, n, width) >> np.uint64(61 - width)
    )
    drawn, keys = jnp.arange(3, dtype=jnp.int32), jax.random.split(jax.random.key(1), 12_000)
    found = np.asarray(jax.jit(jax.vmap(lambda key: shuffle(key, drawn, 3)))(keys))
    counts = collections.Counter(map(tuple, found.tolist()))
    assert len(counts) == 6
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


@pytest.mark.parametrize("kind", SAMPLED)
def test_a_draw_comes_in_another_order_each_step(kind):
    plan = plan_of(SAMPLED[kind])
    draw, orders = jax.jit(make_draws(plan, None, 1e-12).draw), []
    for step in range(2):
        indices, size = draw(jax.random.key(2), step)
        own = np.asarray(indices)[: int(size)]
        assert len(set(own.tolist())) == size
        assert np.all(own < RECORDS)
        assert np.all(np.asarray(indices)[int(size) :] >= RECORDS)
        assert np.any(np.diff(own) < 0)
        orders.append(own.tolist())
    assert orders[0] != orders[1]
    again = np.asarray(draw(jax.random.key(2), 1)[0])
    assert again[: len(orders[1])].tolist() == orders[1]


def test_a_record_that_moves_into_the_place_of_another_moves_two_runs():
    """Of a record whose norm is next to nothing: all that the sums differ by is their rounding."""
    records = 20_000
    length = run_shape(1).records
    values = np.where(np.arange(records) % length < length // 2, 1.0, 0.75 * 2.0**-19)
    values = np.float32(values)[:, None]
    values[0] = 1e-9
    summed = jax.jit(lambda rows: sum_over_records(lambda own: jnp.einsum("ik->k", own), (rows,)))

    def total(rows):
        pair = summed(rows)
        return float(np.float64(pair.total[0]) + np.float64(pair.error[0]))

    moved = values.copy()
    moved[0], moved[-1] = values[-1], 0.0
    moved_up = np.concatenate([values[1:], np.zeros((1, 1), np.float32)])
    assert abs(total(values) - total(moved) - 1e-9) <= rounding_slack(records, 1, in_place=True)
    assert abs(total(values) - total(moved_up) - 1e-9) <= rounding_slack(records, 1)


def test_certificates_say_what_the_bound_on_rounding_rests_on():
    plan = plan_of(SAMPLED["poisson"])
    assert IF_DIVIDED in plan.certify().assumptions  # on how many devices is not known yet
    assert plan.rounding_slack is None
    data = jnp.ones((RECORDS, 2))

    def loss(w, x):
        return w @ x

    training.fit(loss, jnp.zeros(2), data, plan, optimizer=optax.sgd(0.1), key=jax.random.key(0))
    certificate = plan.certify()
    assert SAME_ANYWHERE in certificate.assumptions
    assert not {IF_DIVIDED, EMPTY_PLACE} & set(certificate.assumptions)
    assert certificate.declared["rounding_slack"] == plan.rounding_slack
    assert 0 < plan.rounding_slack <= 2e-3
    assert certificate.verify().epsilon == certificate.epsilon
    read = acc.Certificate.from_json(certificate.to_json())
    assert read == certificate
    assert read.to_json() == certificate.to_json()
    assert "rounding_slack" not in certificate.describe()  # a thousandth is not worth a line
    many = acc.certify(acc.Gaussian(4.0), delta=1e-5, declared={"rounding_slack": 2.1e-3})
    assert "rounding_slack = 0.0021" in many.describe()
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    training.fit(
        loss, jnp.zeros(2), data, plan, optimizer=optax.sgd(0.1), key=jax.random.key(1), mesh=mesh
    )  # fmt: skip
    assert EMPTY_PLACE in plan.certify().assumptions


@pytest.mark.parametrize(
    ("step", "adjacency", "assumed"),
    [
        (acc.FixedBatchSampled(acc.Gaussian(2.0), 20, RECORDS), "replace_one", None),
        (acc.PoissonSampled(acc.Gaussian(2.0), 0.5), "replace_one", None),
        (acc.PoissonSampled(acc.Gaussian(2.0), 0.5), "add_remove", IF_DIVIDED),
    ],
)
def test_where_one_record_is_exchanged_nothing_is_assumed_of_places(step, adjacency, assumed):
    plan = plan_of(step, adjacency=getattr(acc.Adjacency, adjacency.upper()))
    found = {IF_DIVIDED, EMPTY_PLACE} & set(plan.certify().assumptions)
    assert found == ({assumed} if assumed else set())


def test_cyclic_batches_still_assume_an_empty_place():
    plan = training.make_plan(
        RECORDS, noise_multiplier=1.5, delta=1e-5, steps=6, batch_size=RECORDS // 3,
        sampling="cyclic", correlation=correlation.square_root(3),
    )  # fmt: skip
    assert EMPTY_PLACE in plan.certify().assumptions


def test_a_step_has_at_most_so_many_pieces_as_the_bound_allows():
    """Of 20,000 records at least three are worked on at once."""
    plan = training.Plan(acc.Gaussian(1.0), clip_norm=1.0, population=20_000, delta=1e-5)
    draws = make_draws(plan, 1, 1e-12)
    assert draws.capacity == 3
    assert draws.padded % 3 == 0


@pytest.mark.parametrize("records", [7, 64, 256, 1_000, 1_024, 4_096, 16_384])
def test_a_piece_holds_most_draws_and_little_more(records):
    """At most one draw of 25 needs a second piece, and none of a size that is fixed."""
    rate, population = 0.25, 4 * records
    sampled = plan_of(acc.PoissonSampled(acc.Gaussian(1.0), rate), population=population)
    piece = make_draws(sampled, None, 1e-12).capacity
    draw = stats.binom(population, rate)
    assert draw.sf(piece) <= 0.04
    assert piece - draw.ppf(0.98) <= max(1, piece / 16)
    step = acc.FixedBatchSampled(acc.Gaussian(1.0), records, population)
    fixed = plan_of(step, population=population, adjacency="replace-one")
    assert make_draws(fixed, None, 1e-12).capacity == records
