"""No record returns too soon, whatever is drawn, and all come as often as they are asked to."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax import accounting as acc
from dpjax.correlation import square_root
from dpjax.sampling import min_separated_inclusion


@functools.cache
def used(rate, separation, population=400, steps=60):
    """Which records are in which step, [steps, population], by one compiled program."""
    sizes = {"population": population, "rate": rate, "separation": separation}
    draw = jax.jit(lambda step: min_separated_inclusion(jax.random.key(0), step, **sizes))
    return np.stack([draw(jnp.asarray(step)) for step in range(steps)])


CASES = [(0.05, 5), (0.2, 5), (0.19, 5), (1.0, 1), (0.3, 1), (1e-3, 40), (0.01, 100)]


@pytest.mark.parametrize(("rate", "separation"), CASES)
@pytest.mark.at_length(every=3)
def test_no_record_returns_too_soon_and_all_come_as_often_as_asked(rate, separation):
    drawn = used(rate, separation)
    for record in drawn.T:
        assert np.all(np.diff(np.flatnonzero(record)) >= separation)
    # Records are independent: the number of each step is binomial, in the first as in the last.
    sizes = drawn.sum(1)
    for size in (*sizes[[0, 1, separation % 60, 59]],):
        assert stats.binomtest(int(size), 400, rate).pvalue > 1e-5
    if rate * separation == 1:
        once = np.diff([np.flatnonzero(r) for r in drawn.T if r.sum() == 60 // separation])
        assert np.all(once == separation)


def test_waits_are_those_of_a_coin():
    """Of 400 records' waits, beyond the shortest, each a number of tails before heads."""
    rate, separation = 0.05, 5
    waits = np.concatenate([np.diff(np.flatnonzero(r)) for r in used(rate, separation).T])
    coin = 1 / (1 / rate - separation + 1)
    tails = waits - separation
    # Waits that end within the run are the shorter ones: those below ten, given that they are.
    short = tails[tails < 10]
    chance = coin * (1 - coin) ** np.arange(10)
    seen = np.bincount(short, minlength=10)
    # A wait of w fits into the run from 60 − w of its steps.
    chance *= 60 - separation - np.arange(10)
    assert stats.chisquare(seen, short.size * chance / chance.sum()).pvalue > 1e-4


def test_a_step_is_a_function_of_key_and_step():
    sizes = {"population": 50, "rate": 0.1, "separation": 4}
    draw = jax.jit(lambda key, step: min_separated_inclusion(key, step, **sizes))
    one, other = (draw(jax.random.key(seed), jnp.asarray(7)) for seed in (1, 2))
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(min_separated_inclusion(jax.random.key(1), 7, **sizes), one)


def test_its_price_is_that_of_every_use_that_fits():
    c = square_root(6)
    run = acc.MinSeparatedCorrelated(2.0, c, 10, 4, 0.05)
    for adjacency in acc.Adjacency:
        dense = acc.epsilon(acc.CorrelatedGaussian(2.0, c, 10, 4), 1e-5, adjacency=adjacency)
        assert acc.epsilon(run, 1e-5, adjacency=adjacency) == dense
        # which a record may not attain, so that nothing is said from below
        assert acc.epsilon_interval(run, 1e-5, adjacency=adjacency) == (0.0, dense)
    with pytest.raises(acc.UnsupportedQuery):
        acc.epsilon(acc.PoissonSampled(run, 0.5), 1e-5)


@pytest.mark.parametrize(
    "bad",
    [{"rate": 0.0}, {"rate": 0.26}, {"rate": float("nan")}, {"separation": 0},
     {"separation": 2.5}, {"separation": 1 << 29}, {"population": 0}, {"step": -1},
     {"step": 0.5}, {"step": 1 << 29}],
)  # fmt: skip
def test_what_is_asked_is_checked(bad):
    given = {"step": 0, "population": 10, "rate": 0.1, "separation": 4} | bad
    with pytest.raises((TypeError, ValueError), match="must"):
        min_separated_inclusion(jax.random.key(0), given.pop("step"), **given)
