"""Draws with replacement: every data set of three records, Balle, Barthe and Gaboardi's theorem."""

from __future__ import annotations

import itertools

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from dpjax import accounting as acc
from dpjax.accounting.pairs.count_law import relative_weight_error, with_replacement_law

ADD_REMOVE, REPLACE_ONE = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE


def _releases(values, draws):
    """Law of the sum of so many draws with replacement: {sum: probability}, by enumeration."""
    found: dict[float, float] = {}
    for batch in itertools.product(values, repeat=draws):
        found[sum(batch)] = found.get(sum(batch), 0.0) + len(values) ** -draws
    return found


def _divergence(p, q, sigma, epsilon):
    """The hockey-stick divergence of two mixtures of normals, by cells on a line."""
    edges = np.linspace(-6 - 9 * sigma, 6 + 9 * sigma, 4001)
    first, second = (
        sum(w * np.diff(stats.norm.cdf(edges, loc=m, scale=sigma)) for m, w in law.items())
        for law in (p, q)
    )
    return float(np.maximum(first - np.exp(epsilon) * second, 0).sum())


def _theorem(sigma, n, m, epsilon):
    """δ' at this ε, which is ε' of the theorem, with a Gaussian's profile for j copies."""
    eta = 1 - (1 - 1 / n) ** m
    inner = np.log1p(np.expm1(epsilon) / eta)
    j = np.arange(1, m + 1)
    mu = 2 * j / sigma
    profile = stats.norm.cdf(mu / 2 - inner / mu)
    profile -= np.exp(inner + stats.norm.logcdf(-mu / 2 - inner / mu))
    return float(stats.binom.pmf(j, m, 1 / n) @ profile)


def _hidden(sigma, n, m, epsilon):
    """δ of Σ_j Bin(m, 1/n)(j) N(2j/σ, 1) against N(0, 1), by cells."""
    j = np.arange(m + 1)
    weight = stats.binom.pmf(j, m, 1 / n)
    j, weight = j[weight > 1e-18], weight[weight > 1e-18]
    y = np.linspace(-9, 9 + 2 * j[-1] / sigma, 4001)
    p = np.diff(stats.norm.sf(y[:, None] - 2 * j / sigma), axis=0) @ weight
    return float(np.maximum(-p + np.exp(epsilon) * np.diff(stats.norm.sf(y)), 0).sum())


def _price(sigma, n, m, epsilon, **how):
    run = acc.WithReplacement(acc.Gaussian(sigma), m, n)
    return acc.delta(run, epsilon, adjacency=REPLACE_ONE, **how)


def _neighbours(draws):
    """The laws of the sum for data sets of three records that differ in the last."""
    for others in itertools.combinations_with_replacement((-1.0, 0.0, 1.0), 2):
        laws = [_releases((*others, z), draws) for z in (-1.0, 0.0, 1.0)]
        yield from itertools.permutations(laws, 2)


@pytest.mark.parametrize("draws", [1, 2, 3])
def test_no_neighbours_of_three_records_are_told_apart_better(draws):
    sigma = 1.7
    for epsilon in (0.0, 0.05, 1.1, 3.0):
        worst = max(_divergence(*laws, sigma, epsilon) for laws in _neighbours(draws))
        assert worst <= _price(sigma, 3, draws, epsilon) <= 1.6 * worst


def test_no_two_steps_are_told_apart_better_by_neighbours_that_change():
    """One step of these neighbours, one of those: all pairs of cells."""
    sigma, draws, epsilon = 2.5, 2, 0.7
    edges = np.linspace(-20, 20, 401)

    def cells(law):
        return sum(w * np.diff(stats.norm.cdf(edges, loc=m, scale=sigma)) for m, w in law.items())

    pairs = [tuple(cells(law) for law in laws) for laws in _neighbours(draws)]
    worst = max(
        np.maximum(np.outer(a, c) - np.exp(epsilon) * np.outer(b, d), 0).sum()
        for (a, b), (c, d) in itertools.product(pairs, pairs)
    )
    run = acc.Repeated(acc.WithReplacement(acc.Gaussian(sigma), draws, 3), 2)
    found = acc.delta(run, epsilon, adjacency=REPLACE_ONE)
    assert worst <= found <= 1.2 * worst


@pytest.mark.parametrize(
    ("sigma", "n", "m", "epsilon"),
    [
        (1.0, 100, 10, 0.5),
        (3.0, 50, 50, 0.0),
        (8.0, 20, 60, 0.7),
        (0.5, 1000, 3, 4.0),
        (5.0, 1, 4, 1.0),
        (40.0, 5000, 200, 0.01),
    ],
)
def test_one_step_lies_between_hidden_copies_and_the_theorem(sigma, n, m, epsilon):
    hidden, theorem = _hidden(sigma, n, m, epsilon), _theorem(sigma, n, m, epsilon)
    assert hidden <= theorem
    assert hidden * (1 - 1e-3) <= _price(sigma, n, m, epsilon) <= theorem * (1 + 1e-4) + 1e-13


def test_the_lower_end_is_a_record_replaced_by_what_all_others_are():
    """Σ_j w_j N(2j/σ, 1) against N(0, 1), by cells, and twice by all pairs of them."""
    sigma, n, m, delta = 2.0, 30, 10, 1e-4
    j = np.arange(m + 1)
    y = np.linspace(-8, 8 + 2 * 5 / sigma, 2001)
    shifted = np.diff(stats.norm.cdf(y[:, None] - 2 * j / sigma), axis=0)
    p, q = shifted @ stats.binom.pmf(j, m, 1 / n), shifted[:, 0]
    run = acc.WithReplacement(acc.Gaussian(sigma), m, n)
    for steps in (1, 2):
        low, high = acc.epsilon_interval(acc.Repeated(run, steps), delta, adjacency=REPLACE_ONE)
        many = [np.outer(v, v) if steps == 2 else v for v in (p, q)]
        truth = max(np.maximum(a - np.exp(low) * b, 0).sum() for a, b in (many, many[::-1]))
        assert delta * (1 - 1e-3) <= truth <= delta * (1 + 1e-2)
        assert 0 < low <= high <= 1.7 * low


def test_no_draw_costs_nothing_and_one_draw_is_a_fixed_batch_of_one():
    assert _price(1.0, 10, 0, 0.0) <= 1e-12
    one, fixed = (
        acc.Repeated(kind(acc.Gaussian(2.0), 1, 40), 20)
        for kind in (acc.WithReplacement, acc.FixedBatchSampled)
    )
    mine, other = (
        acc.epsilon(run, 1e-6, adjacency=REPLACE_ONE, method="pld") for run in (one, fixed)
    )
    assert mine == pytest.approx(other, rel=5e-5)
    assert mine <= acc.epsilon(fixed, 1e-6, adjacency=REPLACE_ONE, method="rdp")


def test_every_draw_of_one_record_is_a_release_of_all_copies():
    run = acc.WithReplacement(acc.Gaussian(8.0), 4, 1)
    whole = acc.epsilon(acc.Gaussian(2.0), 1e-5, adjacency=REPLACE_ONE)
    assert whole <= acc.epsilon(run, 1e-5, adjacency=REPLACE_ONE) <= whole * (1 + 1e-4)


def test_it_is_dearer_than_a_batch_without_replacement_and_rises_with_the_draws():
    found = [_price(2.0, 100, m, 0.3) for m in (5, 50, 300)]
    fixed = acc.FixedBatchSampled(acc.Gaussian(2.0), 50, 100)
    assert np.all(np.diff(found) > 0)
    assert found[1] > acc.delta(fixed, 0.3, adjacency=REPLACE_ONE)


def test_many_rare_draws_are_priced_between_ends_that_are_close():
    run = acc.Repeated(acc.WithReplacement(acc.Gaussian(1.0), 256, 60_000), 2_000)
    low, high = acc.epsilon_interval(run, 1e-6, adjacency=REPLACE_ONE)
    assert 13.5 < low < 14.02  # 14.018 by a grid four times as fine
    assert 14.02 < high < 14.75
    fixed = acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(1.0), 256, 60_000), 2_000)
    assert high > acc.epsilon(fixed, 1e-6, adjacency=REPLACE_ONE)


def test_what_no_theorem_covers_is_refused_by_name():
    run = acc.WithReplacement(acc.Gaussian(1.0), 2, 10)
    with pytest.raises(acc.UnsupportedQuery, match="WithReplacement is priced for REPLACE_ONE"):
        acc.epsilon(run, 1e-5, adjacency=ADD_REMOVE)
    for inner in (acc.PoissonSampled(acc.Gaussian(1.0), 0.1), acc.PureDP(0.1, "replace-one")):
        with pytest.raises(acc.UnsupportedQuery, match="WithReplacement"):
            acc.epsilon(acc.WithReplacement(inner, 2, 10), 1e-5, adjacency=REPLACE_ONE)


def test_no_noise_is_no_privacy():
    run = acc.WithReplacement(acc.Gaussian(0.0), 2, 10)
    assert acc.epsilon(run, 1e-5, adjacency=REPLACE_ONE) == np.inf


@pytest.mark.parametrize("sigma", [1e-3, 1e-4, 1e-6])
def test_next_to_no_noise_costs_no_more_than_all_copies_at_once(sigma):
    """Losses lie so far apart that no grid tells them: it was +inf, where a Gaussian's is known."""
    run = acc.Repeated(acc.WithReplacement(acc.Gaussian(sigma), 2, 10), 3)
    found = acc.epsilon(run, 1e-5, adjacency=REPLACE_ONE)
    whole = acc.epsilon(acc.Repeated(acc.Gaussian(sigma / 2), 3), 1e-5, adjacency=REPLACE_ONE)
    # Both copies are drawn in all three steps with probability 1e-6, in two of them with 3e-4.
    rare = acc.epsilon(acc.Repeated(acc.Gaussian(sigma / 2), 2), 0.5, adjacency=REPLACE_ONE)
    assert rare <= found <= whole * (1 + 1e-9)
    assert acc.delta(run, 1.0, adjacency=REPLACE_ONE) <= 1


@pytest.mark.parametrize(
    ("draws", "records", "population"),
    [
        (1e8, 1, 3e8),
        (1e8, 2, 3),
        (1e8, 1e9 - 1, 1e9),  # of the others a draw meets one in 1e9: 1 − k/n has seven digits
        (1e8, 1, 1e9 - 1),
        (300, 1e12 - 1, 1e12),
        (50, 9_999, 10_000),
        (1e5, 1, 7e15),
    ],
)
def test_a_share_that_is_rounded_is_within_what_is_said_of_the_masses(draws, records, population):
    """Against the binomial law of k/n itself, at 50 digits, wherever it weighs 1e-30 or more."""
    law = with_replacement_law(draws, records, population)
    first, mass = law.masses()
    j = first + np.arange(len(mass))
    listed = np.flatnonzero(mass > 1e-30)
    some = np.unique(np.concatenate([listed[:: max(len(listed) // 40, 1)], listed[[0, -1]]]))
    with mp.workdps(50):
        n, q = mp.mpf(draws), mp.mpf(records) / mp.mpf(population)
        for place in some:
            i = mp.mpf(j[place])
            log = mp.loggamma(n + 1) - mp.loggamma(i + 1) - mp.loggamma(n - i + 1)
            truth = mp.exp(log + i * mp.log(q) + (n - i) * mp.log1p(-q))
            assert abs(float(mass[place] / truth - 1)) <= relative_weight_error(law)


@pytest.mark.parametrize("n", [1e6, 1e8])
@pytest.mark.parametrize(("sigma", "epsilon", "width"), [(6.0, 0.5, 4e-6), (2.0, 0.5, 2e-4)])
def test_one_of_very_many_draws_lies_between_its_ends(n, sigma, epsilon, width):
    """As many draws as records: the sum of the theorem at 30 digits.

    What places of a grid are rounded by grows with the square of the largest number that is laid on
    it: not of all draws at once, which a record that is drawn 1e-40 of the time is not charged.
    """
    with mp.workdps(30):
        none = mp.exp(n * mp.log1p(-1 / mp.mpf(n)))
        inner = mp.log(1 + mp.expm1(epsilon) / (1 - none))
        truth, weight = mp.mpf(0), none
        for j in range(1, 40):
            weight *= (mp.mpf(n) - j + 1) / (j * (mp.mpf(n) - 1))
            mu = mp.mpf(2 * j) / sigma
            profile = mp.ncdf(mu / 2 - inner / mu) - mp.exp(inner) * mp.ncdf(-mu / 2 - inner / mu)
            truth += weight * profile
    found = _price(sigma, n, n, epsilon)
    assert float(truth) <= found <= float(truth) * (1 + width)


@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE_ONE])
@pytest.mark.parametrize(
    "step",
    [
        acc.TruncatedPoissonSampled(acc.Gaussian(2.0), 0.01, 1_000, 20),
        acc.UserLevel(acc.FixedBatchSampled(acc.Gaussian(2.0), 10, 100), 3),
        acc.WithReplacement(acc.Gaussian(2.0), 10, 100),
    ],
)
def test_what_has_no_curve_says_so_by_name(step, adjacency):
    """Neither a Rényi curve nor a contour: who has a price says which method gives it."""
    run = acc.Composed((acc.Repeated(step, 3), acc.Gaussian(5.0)))
    named = type(step).__name__
    priced = bool(acc.methods(run, adjacency))
    curve = f"no Rényi curve is known of {named}.*method='pld' answers" if priced else named
    with pytest.raises(acc.UnsupportedQuery, match=curve):
        acc.rdp(run, [2.0, 8.0], adjacency=adjacency)
    for method in ("rdp", "contour"):
        for ask in (acc.epsilon, acc.delta):
            answer = rf"method '{method}'.*method='pld'.* answers" if priced else named
            with pytest.raises(acc.UnsupportedQuery, match=answer):
                ask(run, 1e-3, adjacency=adjacency, method=method)
