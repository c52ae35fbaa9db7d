"""Bets canary by canary within one run: the best cheat by enumeration, and honest runs."""

from __future__ import annotations

import functools
import itertools
import math

import jax
import numpy as np
import pytest
from scipy.stats import norm

from dpjax import audit


def _reveals(m, epsilon, shown):
    """P[output | coins]: all coins with probability `shown`, each by randomised response else."""
    right = 1.0 / (1.0 + math.exp(-epsilon))
    coins = np.array(list(itertools.product((0, 1), repeat=m)))
    agree = (coins[:, None] == coins[None]).sum(axis=2)
    responses = right**agree * (1.0 - right) ** (m - agree)
    return np.concatenate([shown * np.eye(2**m), (1.0 - shown) * responses], axis=1)


def _delta(channel, m, epsilon):
    """δ(ε) of a channel over every coin, and all values of the others, by its definition."""
    coins = np.arange(2**m)
    return max(
        float(np.maximum(channel[coins] - math.exp(epsilon) * channel[coins ^ (1 << j)], 0.0)
              .sum(axis=1).max())
        for j in range(m)
    )  # fmt: skip


def _best_cheat(channel, start, m, level):
    """The largest P[p-value ever ≤ level] over all orders, guesses and abstentions."""
    coins = np.array(list(itertools.product((0, 1), repeat=m)))[:, ::-1]

    @functools.cache
    def state(path):
        return state(path[:-1]).update(path[-1]) if path else start

    @functools.cache
    def is_reached(path):
        return bool(state(path).p_value <= level)

    def best(path, mass, left):
        # `mass` [2^m]: of the coins that agree with what is revealed, at one output.
        if is_reached(path):
            return float(mass.sum())
        ways = [0.0]
        for i in left:
            parts, rest = [np.where(coins[:, i] == b, mass, 0.0) for b in (0, 1)], left - {i}
            for guess in (0, 1):
                ways.append(sum(best((*path, b == guess), parts[b], rest) for b in (0, 1)))
            ways.append(sum(best(path, parts[b], rest) for b in (0, 1)))  # an abstention
        return max(ways)

    return sum(best((), column / 2**m, frozenset(range(m))) for column in channel.T)


def _right_in_a_row(start, count):
    return float(functools.reduce(lambda state, _: state.update(True), range(count), start).p_value)


@pytest.mark.parametrize(("epsilon", "shown"), [(0.0, 0.0), (0.0, 0.1), (0.4, 0.05)])
def test_the_best_cheat_is_kept_to_the_level(epsilon, shown):
    m = 3
    channel = _reveals(m, epsilon, shown)
    delta = _delta(channel, m, epsilon)
    assert delta == pytest.approx(shown, abs=1e-12)
    start = audit.start_guesses(epsilon, delta * (1.0 + 1e-12), canaries=m)
    for count in (1, 2, 3):
        level = _right_in_a_row(start, count)
        assert _best_cheat(channel, start, m, level) <= level * (1.0 + 1e-12)
    assert level < 0.8


def test_a_cheat_that_is_shown_all_coins_breaks_a_claim_without_delta():
    # What is charged for δ is needed: without it, the same cheat is too often believed.
    channel = _reveals(3, 0.0, 0.3)
    wrong = audit.start_guesses(0.0, 0.0, canaries=3)
    level = _right_in_a_row(wrong, 3)
    assert _best_cheat(channel, wrong, 3, level) > 0.38 > 0.32 > level
    with pytest.raises(ValueError, match="delta must be below"):
        audit.start_guesses(0.0, 0.3, canaries=3)


@pytest.mark.parametrize("seed", range(4))
def test_a_random_channel_that_mixes_the_coins_is_kept_to_the_level(seed):
    rng = np.random.default_rng(seed)
    channel = rng.dirichlet(np.full(5, 4.0), size=4)
    epsilon = next(e for e in np.linspace(0.0, 5.0, 51) if _delta(channel, 2, e) < 0.1)
    start = audit.start_guesses(epsilon, _delta(channel, 2, epsilon) + 1e-12, canaries=2)
    for count in (1, 2):
        level = _right_in_a_row(start, count)
        assert 0.0 < _best_cheat(channel, start, 2, level) <= level


def test_randomised_response_at_delta_zero_has_a_mean_of_one_at_every_guess():
    """All paths of six guesses at ε = 1, stopped as a cheat would stop."""
    epsilon, right, stopped = 1.0, 1.0 / (1.0 + math.exp(-1.0)), 0.0
    paths = [(audit.start_guesses(epsilon, 0.0, canaries=6), 1.0)]
    for depth in range(6):
        following = []
        for found, chance in paths:
            for hit, one in ((True, right), (False, 1.0 - right)):
                new, reached = found.update(hit), chance * one
                wealth = float(np.mean(np.exp(new.log_wealth)))
                if wealth >= 1.1 or depth == 5:
                    stopped += reached * wealth
                else:
                    following.append((new, reached))
        paths = following
    assert 1.0 - 1e-9 < stopped <= 1.0


def _first_rejections(start, rng, scores_of, level, runs):
    """Of every run the guess at which it is first refuted, or +inf: the surest canaries first."""
    m, batches = start.canaries, []
    for _ in range(runs):
        coins = rng.random(m) < 0.5
        sure = scores_of(coins)
        order = np.argsort(-np.abs(sure), kind="stable")
        batches.append(((sure > 0.0) == coins)[order])

    def last(rights):
        step = lambda state, hit: (lambda new: (new, new.rejects(level)))(state.update(hit))  # noqa: E731
        return jax.lax.scan(step, start, rights)[1]

    path = np.asarray(jax.jit(jax.vmap(last))(np.array(batches)))
    return np.where(path.any(axis=1), np.argmax(path, axis=1) + 1.0, math.inf)


def _gaussian_delta(mu, epsilon):
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def test_honest_gaussian_canaries_are_refuted_in_at_most_five_per_cent():
    rng, m, epsilon = np.random.default_rng(3), 200, 3.0
    delta = _gaussian_delta(0.8, epsilon)  # m·δ is a part of the level
    start = audit.start_guesses(epsilon, delta, canaries=m)
    assert 0.005 < m * delta < 0.04

    def scores(mu):
        return lambda coins: mu * (coins + rng.normal(size=m) / mu - 0.5)

    assert np.sum(_first_rejections(start, rng, scores(0.8), 0.05, 1_000) < math.inf) <= 50
    # The same with four times less noise is found, so that the count can fail.
    found = _first_rejections(start, rng, scores(3.2), 0.05, 50)
    assert np.sum(found < math.inf) >= 45


def test_canaries_that_are_shown_with_delta_keep_the_level():
    rng, m, delta = np.random.default_rng(4), 50, 4e-4
    start = audit.start_guesses(0.0, delta, canaries=m)

    def scores(coins):
        shown = (rng.random(m) < delta) | (rng.random() < delta)
        return np.where(shown, np.where(coins, 9.0, -9.0), rng.normal(size=m))

    assert np.sum(_first_rejections(start, rng, scores, 0.05, 1_000) < math.inf) <= 50


def test_a_mistake_is_found_with_fewer_guesses_than_a_fixed_number_takes():
    # Randomised response with ε = 2 where 1 is claimed.
    rng, level = np.random.default_rng(5), 1e-3
    right = 1.0 / (1.0 + math.exp(-2.0))
    start = audit.start_guesses(1.0, 1e-8, canaries=1_000)
    found = _first_rejections(
        start, rng, lambda c: np.where((rng.random(c.size) < right) == c, 1.0, -1.0), level, 30
    )
    assert np.mean(found) < 140

    def seen(guesses):
        counts = {"canaries": 1_000, "guesses": guesses, "delta": 1e-8}
        return sum(
            audit.one_run_bound(correct=int(c), **counts).contradicts(1.0)
            for c in rng.binomial(guesses, right, size=30)
        )

    # A fixed number finds it as surely where it is twice as large, and not where it is not.
    assert seen(140) < 30
    assert seen(300) == 30


def test_traced_bets_are_never_more_and_stop_at_the_last_canary():
    start = audit.start_guesses(0.5, 1e-4, canaries=8)
    update = jax.jit(lambda state, hit, guessed: state.update(hit, guessed))
    found, traced = start, start
    for hit, guessed in [(True, True), (False, False), (True, True), (False, True), (True, True)]:
        found, traced = found.update(hit, guessed), update(traced, hit, guessed)
        assert float(found.p_value) <= float(traced.p_value) <= 1.0
    assert (int(found.guesses), int(found.correct)) == (4, 3)
    assert (int(traced.guesses), int(traced.correct)) == (4, 3)
    assert (traced.canaries, traced.delta) == (8, 1e-4)  # no leaf, so not rounded
    for _ in range(20):
        traced = update(traced, True, True)
    assert int(traced.guesses) == 8
    assert "8 guesses about 8 canaries" in traced.describe()


def test_the_p_value_is_that_of_the_largest_wealth_and_joins_runs():
    stakes, epsilon, m, delta = np.array([0.05, 0.12, 0.3, 0.6, 0.9]), 0.7, 40, 1e-5
    found = audit.start_guesses(epsilon, delta, canaries=m)
    for hit in [True] * 20 + [False] * 3:
        found = found.update(hit)
    largest = np.mean((1.0 + stakes * math.exp(-epsilon)) ** 20)
    assert float(found.p_value) == pytest.approx(1.0 / largest + m * delta, rel=1e-9)
    assert float(found.p_value) >= 1.0 / largest + m * delta
    joined = audit.start_evidence(audit.PiecewiseCurve(epsilon, delta))
    for _ in range(3):
        joined = joined.multiply(found.p_value)
    assert float(joined.log_evidence) > 0.0
    assert float(audit.start_guesses(1.0, 0.0, canaries=5).p_value) == 1.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epsilon": -1.0}, "epsilon must be at least 0"),
        ({"epsilon": math.nan}, "epsilon must be at least 0"),
        ({"epsilon": None}, "epsilon must be at least 0"),
        ({"epsilon": math.inf}, "epsilon must be at least 0 and finite"),
        ({"delta": -1e-9}, "delta must lie in"),
        ({"delta": "1e-5"}, "delta must lie in"),
        ({"delta": 0.05}, "delta must be below 0.5/canaries"),
        ({"canaries": 0}, "canaries must be at least 1"),
        ({"canaries": 2.5}, "canaries must be a whole number"),
        ({"canaries": True}, "canaries must be a whole number"),
    ],
)
def test_arguments_are_checked(given, said):
    with pytest.raises(ValueError, match=said):
        audit.start_guesses(**({"epsilon": 1.0, "delta": 1e-6, "canaries": 10} | given))


def test_guesses_are_checked():
    start = audit.start_guesses(1.0, 1e-6, canaries=1)
    for bad in (None, math.nan, 0.5, "yes", [], np.array([True]), 1j):
        with pytest.raises(ValueError, match="right must be"):
            start.update(bad)
        with pytest.raises(ValueError, match="guessed must be"):
            start.update(True, bad)
    with pytest.raises(ValueError, match="right must be one boolean"):
        jax.jit(start.update)(np.array([True, False]))
    with pytest.raises(ValueError, match="guesses must be at most canaries = 1"):
        start.update(True).update(True)
    with pytest.raises(ValueError, match="level must lie"):
        start.rejects(0.7)
