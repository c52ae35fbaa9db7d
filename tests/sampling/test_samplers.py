"""Samplers against their distributions, and the capacity against the exact binomial tail."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax import sampling

KEY_SEED = 20_260_101


@pytest.mark.parametrize("rate", [0.003, 0.1, 0.5, 0.97])
def test_poisson_includes_each_record_at_its_rate(rate):
    steps, population = 4_000, 50
    draw = jax.jit(
        jax.vmap(
            lambda t: sampling.poisson_inclusion(
                jax.random.key(KEY_SEED), t, population=population, rate=rate
            )
        )
    )
    flags = np.asarray(draw(jnp.arange(steps)))
    # All 200,000 flags together, then each record alone (Bonferroni), two-sided, at p = 1e-4.
    assert stats.binomtest(int(flags.sum()), flags.size, rate).pvalue > 1e-4
    each = [stats.binomtest(int(k), steps, rate).pvalue for k in flags.sum(axis=0)]
    assert min(each) > 1e-4 / population
    # The same test refuses a rate that is 5 % off (where the sample can tell them apart).
    if rate in (0.1, 0.5):
        assert stats.binomtest(int(flags.sum()), flags.size, rate * 1.05).pvalue < 1e-4


def test_poisson_flags_are_independent_between_records_and_steps():
    draw = jax.vmap(
        lambda t: sampling.poisson_inclusion(jax.random.key(1), t, population=40, rate=0.5)
    )
    flags = np.asarray(draw(jnp.arange(4_000)), dtype=float) * 2 - 1
    between_records = np.abs((flags.T @ flags) / 4_000 - np.eye(40))
    between_steps = np.abs((flags[1:] * flags[:-1]).mean(axis=0))
    assert between_records.max() < 5.5 / np.sqrt(4_000)
    assert between_steps.max() < 5.0 / np.sqrt(4_000)


def test_batch_size_is_binomial():
    population, rate = 300, 0.2
    sizes = jax.vmap(
        lambda t: sampling.poisson(
            jax.random.key(3), t, population=population, rate=rate, capacity=120
        ).mask.sum()
    )(jnp.arange(3_000))
    edges = [45, 50, 55, 60, 65, 70, 75]
    observed = np.histogram(sizes, bins=[-1, *edges, population])[0]
    cdf = stats.binom.cdf(np.array([*edges, population]) - 1, population, rate)
    expected = np.diff(np.concatenate([[0], cdf])) * 3_000
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4


def test_padded_batch_lists_exactly_the_included_records():
    for step in range(5):
        flags = sampling.poisson_inclusion(jax.random.key(5), step, population=64, rate=0.3)
        batch = sampling.poisson(jax.random.key(5), step, population=64, rate=0.3, capacity=40)
        assert batch.indices[batch.mask].tolist() == np.flatnonzero(flags).tolist()
        assert (np.asarray(batch.indices[~batch.mask]) == 0).all()


def test_a_draw_that_does_not_fit_is_emptied_not_truncated():
    sizes = set()
    for step in range(40):
        flags = sampling.poisson_inclusion(jax.random.key(5), step, population=20, rate=0.5)
        batch = sampling.poisson(jax.random.key(5), step, population=20, rate=0.5, capacity=10)
        drawn = int(flags.sum())
        assert int(batch.mask.sum()) == (drawn if drawn <= 10 else 0)
        sizes.add(drawn > 10)
    assert sizes == {True, False}


def test_rate_one_takes_everybody_and_the_rate_is_realised_exactly():
    assert bool(sampling.poisson_inclusion(jax.random.key(0), 0, population=999, rate=1.0).all())
    assert sampling.realised_rate(1.0) == 1.0
    for rate in (1e-9, 0.01, 1 / 3, 256 / 60_000, 0.999_999_999_9):
        realised = sampling.realised_rate(rate)
        assert 0 <= realised - rate < 2**-32
        assert Fraction(realised) * 2**32 == int(realised * 2**32)


def test_batches_are_a_function_of_key_and_step():
    draw = jax.jit(
        lambda key, step: sampling.poisson(key, step, population=100, rate=0.2, capacity=50)
    )
    eager = sampling.poisson(jax.random.key(2), 9, population=100, rate=0.2, capacity=50)
    chex.assert_trees_all_equal(draw(jax.random.key(2), 9), eager)
    others = [draw(jax.random.key(2), 8), draw(jax.random.key(4), 9)]
    assert all(other.indices.tolist() != eager.indices.tolist() for other in others)
    together = jax.vmap(draw, in_axes=(None, 0))(jax.random.key(2), jnp.arange(3) + 8)
    assert together.indices[1].tolist() == eager.indices.tolist()


def test_one_trace_for_all_steps():
    draw = jax.jit(
        chex.assert_max_traces(
            lambda key, step: sampling.poisson(key, step, population=50, rate=0.5, capacity=40), n=1
        )
    )
    for step in range(5):
        draw(jax.random.key(0), jnp.asarray(step))


def test_fixed_batch_is_uniform_without_replacement():
    draw = jax.jit(
        jax.vmap(
            lambda t: (
                sampling.fixed_batch(
                    jax.random.key(KEY_SEED), t, population=5, batch_size=2
                ).indices
            )
        )
    )
    pairs = np.sort(np.asarray(draw(jnp.arange(5_000))), axis=1)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    _, counts = np.unique(pairs, axis=0, return_counts=True)
    assert len(counts) == comb(5, 2)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_cyclic_permutation_visits_everyone_once_an_epoch_in_one_order():
    def epoch(number):
        seen = []
        for t in range(number * 4, number * 4 + 4):
            batch = sampling.cyclic_permutation(jax.random.key(8), t, population=11, batch_size=3)
            seen += batch.indices[batch.mask].tolist()
        return seen

    assert sorted(epoch(0)) == list(range(11))
    assert epoch(0) == epoch(1) == epoch(7)
    assert epoch(0) != list(range(11))


def test_overflow_probability_is_the_binomial_tail_from_above():
    def exact(n, rate, capacity):
        q = Fraction(sampling.realised_rate(rate))
        return sum(comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(capacity + 1, n + 1))

    for n, rate, capacity in [(30, 0.2, 12), (60, 0.05, 20), (100, 0.5, 90), (40, 0.9, 39)]:
        bound, truth = sampling.overflow_probability(n, rate, capacity), exact(n, rate, capacity)
        assert truth <= Fraction(bound) <= truth * (1 + Fraction(1, 10**8))


def test_capacity_is_the_smallest_that_keeps_the_reserve():
    n, rate, steps, reserve, epsilon = 1_437, 0.25, 400, 1e-8, 3.0
    capacity = sampling.poisson_capacity(n, rate, steps=steps, delta=reserve, epsilon=epsilon)

    def cost(k):
        return steps * (1 + np.exp(epsilon)) * stats.binom.sf(k, n, rate)

    assert cost(capacity) <= reserve < cost(capacity - 1)
    assert sampling.poisson_capacity(50, 0.9, steps=10, delta=1e-12, epsilon=1.0) == 50
    # No finite ε: only a batch that can hold everybody is safe.
    assert sampling.poisson_capacity(50, 0.1, steps=10, delta=1e-6, epsilon=np.inf) == 50


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"rate": 0.0}, "rate must .* got 0.0"),
        ({"rate": 1.5}, "rate must .* got 1.5"),
        ({"rate": float("nan")}, "rate must .* got nan"),
        ({"population": 0}, "population must .* got 0"),
        ({"capacity": 0}, "capacity must .* got 0"),
        ({"capacity": 101}, "capacity must .* got 101"),
    ],
)
def test_bad_arguments_are_named(call, message):
    arguments = {"population": 100, "rate": 0.1} | call
    with pytest.raises(ValueError, match=message):
        sampling.poisson(jax.random.key(0), 0, **arguments)
    with pytest.raises(ValueError, match="got 7"):
        sampling.fixed_batch(jax.random.key(0), 0, population=5, batch_size=7)


_DRAWS = {
    "poisson": lambda step, **of: sampling.poisson(
        jax.random.key(0), step, **{"population": 9, "rate": 0.5, **of}
    ),
    "truncated": lambda step, **of: sampling.truncated_poisson(
        jax.random.key(0), step, **{"population": 9, "rate": 0.5, "capacity": 2, **of}
    ),
    "fixed": lambda step, **of: sampling.fixed_batch(
        jax.random.key(0), step, **{"population": 9, "batch_size": 2, **of}
    ),
    "replacement": lambda step, **of: sampling.with_replacement(
        jax.random.key(0), step, **{"population": 9, "batch_size": 2, **of}
    ),
    "cyclic": lambda step, **of: sampling.cyclic_permutation(
        jax.random.key(0), step, **{"population": 9, "batch_size": 2, **of}
    ),
    "allocation": lambda step, **of: sampling.random_allocation(
        jax.random.key(0), 0, step, **{"population": 9, "steps": 4, **of}
    ),
    "epoch": lambda epoch, **of: sampling.random_allocation(
        jax.random.key(0), epoch, 0, **{"population": 9, "steps": 4, **of}
    ),
}


@pytest.mark.parametrize("name", _DRAWS)
def test_a_step_that_is_no_step_is_refused_where_it_would_repeat_another(name):
    for step in (1.5, 1.0, "1", None, True, -1, 2**32, np.float32(1), jnp.ones(())):
        # 1.5 was step 1 drawn again.
        with pytest.raises(ValueError, match=r"(step|epoch) must be a whole number .*, got"):
            _DRAWS[name](step)
    for population in (2.5, 9.0, "9", None, True):
        with pytest.raises(ValueError, match="population must be a whole number, got"):
            _DRAWS[name](1, population=population)


@pytest.mark.parametrize("name", ["fixed", "replacement", "cyclic"])
def test_whole_numbers_of_numpy_and_jax_draw_what_those_of_python_do(name):
    expected = _DRAWS[name](1)
    chex.assert_trees_all_equal(_DRAWS[name](np.int64(1), population=np.int64(9)), expected)
    chex.assert_trees_all_equal(_DRAWS[name](jnp.int32(1)), expected)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("fixed", {"batch_size": 2.5}, r"batch_size must be a whole number, got 2\.5"),
        ("replacement", {"batch_size": "2"}, "batch_size must be a whole number, got '2'"),
        ("cyclic", {"batch_size": None}, "batch_size must be a whole number, got None"),
        ("poisson", {"capacity": 2.5}, r"capacity must be a whole number, got 2\.5"),
        ("truncated", {"capacity": None}, "capacity must be a whole number, got None"),
        ("allocation", {"steps": 2.5}, r"steps must be a whole number, got 2\.5"),
        ("allocation", {"chosen": 1.5}, r"chosen must be a whole number, got 1\.5"),
        ("allocation", {"steps": 1}, r"step must be a whole number in \[0, 1\), got 1"),
    ],
)
def test_counts_that_are_none_are_refused_by_name(name, given, message):
    with pytest.raises(ValueError, match=message):
        _DRAWS[name](1, **given)


@pytest.mark.parametrize("rate", ["0.5", None, True])
def test_a_rate_that_is_no_number_is_refused_by_name(rate):
    with pytest.raises(TypeError, match=r"rate must be a number"):
        _DRAWS["poisson"](1, rate=rate)
