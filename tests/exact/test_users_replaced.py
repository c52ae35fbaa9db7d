"""All records of a user replaced in a sample: every small data set, 30 digits, both laws."""

from __future__ import annotations

import functools
import itertools

import jax
import mpmath as mp
import numpy as np
import pytest
from scipy import special, stats

from dpjax import accounting as acc
from dpjax.accounting.answers.methods import METHODS
from dpjax.accounting.pairs.added_records import ReplacedRecordsPair
from dpjax.accounting.pairs.count_law import (
    Binomial,
    Hypergeometric,
    merge_weights,
    relative_weight_error,
)
from dpjax.accounting.pairs.on_grid import loss, places

ADD_REMOVE, REPLACE_ONE = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE
VALUES = (-1, 0, 1)
SETTINGS = ((0.9, 0.3), (2.5, 0.0), (0.9, 1.5))  # σ, ε
_CELLS = 1e-13  # rounding of a sum of cells


def _fixed(sigma, size, population, records):
    return acc.UserLevel(acc.FixedBatchSampled(acc.Gaussian(sigma), size, population), records)


def _redrawn(sigma, draws, population, records):
    return acc.UserLevel(acc.WithReplacement(acc.Gaussian(sigma), draws, population), records)


def _poisson(sigma, rate, records):
    return acc.UserLevel(acc.PoissonSampled(acc.Gaussian(sigma), rate), records)


def _delta(run, epsilon, **how):
    return acc.delta(run, epsilon, adjacency=REPLACE_ONE, **how)


# --- every data set whose records are −1, 0 or 1, and every user's records in it


def _batches(kind, n, m):
    """Every batch as a tuple of places, with its probability."""
    if kind == "fixed":
        found = list(itertools.combinations(range(n), m))
        return [(batch, 1 / len(found)) for batch in found]
    if kind == "redrawn":
        return [(batch, n**-m) for batch in itertools.product(range(n), repeat=m)]
    subsets = itertools.product((0, 1), repeat=n)  # m is the sampling rate
    return [
        ([i for i in range(n) if some[i]], m ** sum(some) * (1 - m) ** (n - sum(some)))
        for some in subsets
    ]


@functools.cache
def _laws(kind, n, k, m):
    """For all records of others: the laws of the sum, a row for all records of the user."""
    most = n if kind == "poisson" else m
    batches = _batches(kind, n, m)
    found = []
    for others in itertools.combinations_with_replacement(VALUES, n - k):
        rows = []
        for own in itertools.combinations_with_replacement(VALUES, k):
            values, row = (*others, *own), np.zeros(2 * most + 1)
            for batch, probability in batches:
                row[most + sum(values[i] for i in batch)] += probability
            rows.append(row)
        found.append(np.array(rows))
    return found


def _cells(rows, sigma):
    """Masses of cells under the sums and their noise."""
    most = (rows.shape[-1] - 1) // 2
    edges = np.linspace(-most - 8 * sigma, most + 8 * sigma, 801)
    sums = np.arange(-most, most + 1)
    return rows @ np.diff(stats.norm.cdf(edges, loc=sums[:, None], scale=sigma), axis=1)


def _worst(kind, n, k, m, sigma, epsilon):
    worst = 0.0
    for rows in _laws(kind, n, k, m):
        law = _cells(rows, sigma)
        gap = law[:, None] - np.exp(epsilon) * law[None]
        worst = max(worst, float(np.maximum(gap, 0).sum(axis=2).max()))
    return worst


@pytest.mark.parametrize(
    ("n", "k", "m"), [(3, 2, 1), (4, 2, 2), (5, 2, 3), (5, 3, 2), (5, 3, 3), (5, 4, 1)]
)
def test_no_small_data_sets_are_told_apart_better_by_a_fixed_batch(n, k, m):
    for sigma, epsilon in SETTINGS:
        worst = _worst("fixed", n, k, m, sigma, epsilon)
        found = _delta(_fixed(sigma, m, n, k), epsilon, method="pld")
        assert worst - _CELLS <= found <= 1.7 * worst


@pytest.mark.parametrize(("n", "k", "m"), [(3, 2, 2), (4, 2, 3), (5, 3, 2)])
def test_no_small_data_sets_are_told_apart_better_by_draws_with_replacement(n, k, m):
    for sigma, epsilon in SETTINGS:
        worst = _worst("redrawn", n, k, m, sigma, epsilon)
        found = _delta(_redrawn(sigma, m, n, k), epsilon, method="pld")
        assert worst - _CELLS <= found <= 1.7 * worst


@pytest.mark.parametrize(("n", "k", "rate"), [(3, 2, 0.2), (4, 3, 0.6), (5, 2, 0.05)])
def test_no_small_data_sets_are_told_apart_better_by_a_poisson_sample(n, k, rate):
    """Here the worst neighbours attain the price: the others may as well contribute nothing."""
    for sigma, epsilon in SETTINGS:
        worst = _worst("poisson", n, k, rate, sigma, epsilon)
        found = _delta(_poisson(sigma, rate, k), epsilon, method="pld")
        assert worst - _CELLS <= found <= worst * (1 + 2e-3)


def test_no_two_steps_are_told_apart_better_by_neighbours_that_change():
    """One step of these neighbours, one of those: all pairs of cells."""
    sigma, epsilon, n, k, m = 2.5, 0.7, 4, 2, 2
    laws = [
        np.add.reduceat(_cells(r, sigma), np.arange(0, 800, 8), 1) for r in _laws("fixed", n, k, m)
    ]
    pairs = [(law[i], law[j]) for law in laws for i in (0, 5) for j in (0, 3, 5) if i != j]
    worst = max(
        np.maximum(np.outer(a, c) - np.exp(epsilon) * np.outer(b, d), 0).sum()
        for (a, b), (c, d) in itertools.product(pairs, pairs)
    )
    run = acc.UserLevel(acc.Repeated(_fixed(sigma, m, n, k).mechanism, 2), k)
    assert worst <= _delta(run, epsilon) <= 1.3 * worst


# --- many records, by 30 digits


@functools.cache
def _opposed(sigma, rate, records, epsilon):
    """The hockey-stick divergence where the densities cross."""
    with mp.workdps(30):
        mu, q = 1 / mp.mpf(sigma), mp.mpf(rate)
        weight = [
            mp.binomial(records, j) * q**j * (1 - q) ** (records - j) for j in range(records + 1)
        ]

        def ratio(y):
            return sum(w * mp.exp(j * mu * y - (j * mu) ** 2 / 2) for j, w in enumerate(weight))

        low, high = mp.mpf(0), mp.mpf(400)
        for _ in range(110):
            middle = (low + high) / 2
            over = mp.log(ratio(middle)) - mp.log(ratio(-middle)) > epsilon
            low, high = (low, middle) if over else (middle, high)

        def above(shift):
            return mp.erfc((low - shift) / mp.sqrt(2)) / 2

        return float(
            sum(
                w * (above(j * mu) - mp.exp(mp.mpf(epsilon)) * above(-j * mu))
                for j, w in enumerate(weight)
            )
        )


@pytest.mark.parametrize(
    ("sigma", "rate", "records", "epsilon"),
    [
        (1.0, 0.1, 3, 0.5),
        (2.0, 0.01, 6, 0.1),
        (0.7, 0.5, 4, 2.0),
        (5.0, 0.3, 12, 1.0),
        (20.0, 1e-3, 5, 1e-3),
        (0.3, 0.9, 2, 0.7),
        (2.0, 0.02, 3, 1.6),
    ],
)
def test_one_poisson_step_is_the_pair_of_opposed_mixtures(sigma, rate, records, epsilon):
    truth = _opposed(sigma, rate, records, epsilon)
    run = _poisson(sigma, rate, records)
    assert truth * (1 - 1e-12) <= _delta(run, epsilon, method="pld") <= truth * (1 + 1e-4) + 1e-12
    found = acc.methods(run, REPLACE_ONE)["pld"]
    low, high = (ask(run, truth, REPLACE_ONE) for ask in (found.epsilon_lower, found.epsilon))
    assert low * (1 - 1e-9) <= epsilon <= high * (1 + 1e-9)
    assert high - low <= 1e-3 * epsilon + 1e-5


def test_one_record_is_the_antipodal_pair_of_one_record():
    one, many = acc.PoissonSampled(acc.Gaussian(1.3), 0.05), (1, 40)
    for steps in many:
        plain = acc.epsilon(acc.Repeated(one, steps), 1e-5, adjacency=REPLACE_ONE)
        user = acc.UserLevel(acc.Repeated(one, steps), 1)
        found = acc.epsilon(user, 1e-5, adjacency=REPLACE_ONE, method="pld")
        assert plain * (1 - 1e-9) <= found <= plain * (1 + 1e-4)
        assert acc.epsilon(user, 1e-5, adjacency=REPLACE_ONE) <= plain * (1 + 1e-10)


@pytest.mark.parametrize(
    ("sigma", "m", "n", "k", "epsilon"),
    [(1.0, 10, 100, 3, 0.5), (3.0, 25, 50, 5, 0.2), (8.0, 15, 20, 8, 0.7), (2.0, 30, 1000, 6, 3.0)],
)
def test_a_fixed_batch_lies_between_hidden_records_and_released_ones(sigma, m, n, k, epsilon):
    """Σ_j w_j N(2j/σ, 1) against N(0, 1), and Balle, Barthe and Gaboardi's sum for these w."""
    j = np.arange(k + 1)
    weight = stats.hypergeom.pmf(j, n, k, m)
    y = np.linspace(-9, 9 + 2 * k / sigma, 4001)
    p = np.diff(stats.norm.cdf(y[:, None] - 2 * j / sigma), axis=0) @ weight
    q = np.diff(stats.norm.cdf(y))
    hidden = max(np.maximum(a - np.exp(epsilon) * b, 0).sum() for a, b in ((p, q), (q, p)))
    inner = np.log1p(np.expm1(epsilon) / (1 - weight[0]))
    mu = 2 * j[1:] / sigma
    profile = stats.norm.cdf(mu / 2 - inner / mu)
    profile -= np.exp(inner + stats.norm.logcdf(-mu / 2 - inner / mu))
    released = float(weight[1:] @ profile)
    found = _delta(_fixed(sigma, m, n, k), epsilon, method="pld")
    assert hidden * (1 - 1e-3) <= found <= released * (1 + 1e-4)
    ends = acc.methods(_fixed(sigma, m, n, k), REPLACE_ONE)["pld"]
    assert ends.epsilon_lower(_fixed(sigma, m, n, k), hidden, REPLACE_ONE) <= epsilon * (1 + 1e-3)
    assert ends.epsilon(_fixed(sigma, m, n, k), hidden, REPLACE_ONE) >= epsilon


def test_a_batch_that_always_has_records_of_the_user():
    whole = _fixed(8.0, 4, 6, 6)  # all records are the user's: four of them move by 2 each
    one = acc.epsilon(acc.Gaussian(1.0), 1e-5)
    found = _epsilon(whole)
    assert one * (1 - 1e-12) <= found <= one * (1 + 1e-4)
    assert _epsilon(_fixed(8.0, 4, 6, 900)) == found
    assert _epsilon(_fixed(8.0, 4, 6, 4)) < found
    worst = _worst("fixed", 4, 3, 3, 1.3, 0.4)
    assert worst <= _delta(_fixed(1.3, 3, 4, 3), 0.4, method="pld") <= 1.3 * worst


@pytest.mark.parametrize(
    ("run", "delta"),
    [
        (acc.FixedBatchSampled(acc.Gaussian(2.0), 10, 1000), 1e-5),
        (acc.WithReplacement(acc.Gaussian(2.0), 10, 1000), 1e-5),
        (acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 100), 1e-6),
        (acc.FixedBatchSampled(acc.Gaussian(4.0), 2, 4), 1e-13),
    ],
)
def test_it_is_below_the_step_by_step_charge(run, delta):
    user = acc.UserLevel(run, 3)
    best, charged = (
        acc.epsilon(user, delta, adjacency=REPLACE_ONE, method=m) for m in ("pld", "group")
    )
    assert best < 0.99 * charged


def test_what_is_charged_step_by_step_is_taken_where_it_is_less():
    user = _fixed(4.0, 5, 100, 2)
    grid, charged, best = (
        acc.epsilon(user, 1e-5, adjacency=REPLACE_ONE, method=m) for m in ("pld", "group", "best")
    )
    assert charged < grid
    assert best == charged


# --- laws


@pytest.mark.parametrize(
    ("k", "m", "n"),
    [(3, 2, 5), (200, 5_000, 60_000), (1e6, 3e5, 4e6), (1e9, 1e9, 1.5e9), (5, 1e17, 3e17)],
)
def test_the_masses_are_as_exact_as_is_said(k, m, n):
    law = Hypergeometric(k, m, n)
    first, mass = law.masses()
    share = m / n
    mean, spread = k * share, (k * share * (1 - share) * (n - k) / (n - 1)) ** 0.5
    assert spread <= law.spread * (1 + 1e-12) or law.spread >= 1e-3 * spread

    def ways(a, b):
        return mp.loggamma(a + 1) - mp.loggamma(b + 1) - mp.loggamma(a - b + 1)

    checked = 0
    with mp.workdps(40):
        population, records, batch = mp.mpf(n), mp.mpf(k), mp.mpf(m)
        for z in (-8, -3, 0, 3, 8):
            j = np.floor(mean + z * spread)
            if not max(0, m + k - n) <= j <= min(k, m):
                continue
            i = mp.mpf(j)
            log = ways(records, i) + ways(population - records, batch - i) - ways(population, batch)
            assert abs(float(mass[int(j - first)] / mp.exp(log) - 1)) <= relative_weight_error(law)
            checked += 1
    assert checked


def test_many_records_are_lumped_towards_more_for_an_upper_bound():
    for law in (Hypergeometric(5e3, 3e3, 1e4), Hypergeometric(1e6, 1e4, 1e7), Binomial(1e6, 0.1)):
        (j, up), (i, low) = (merge_weights(law, upper) for upper in (True, False))
        mean = law.most * law.rate
        assert len(j) <= 258
        assert up.sum() == pytest.approx(1, abs=1e-12)
        assert low.sum() == pytest.approx(1, abs=1e-12)
        assert i @ low * (1 - 1e-12) <= mean <= j @ up * (1 + 1e-12)


@pytest.mark.parametrize(
    ("mu", "records", "rate"), [(38.48, 50, 0.0338), (12.8, 34, 0.0913), (0.05, 2, 1e-4)]
)
def test_outcomes_of_a_loss_have_that_loss(mu, records, rate):
    pair = ReplacedRecordsPair(mu, Binomial(records, rate)).side(1, mu, rate, 9.0, True)
    least, most = pair.loss_range(1, mu, rate, 9.0)
    losses = np.linspace(least, most, 10_001)
    found = loss(pair.pair, places(pair.pair, losses))[0]
    np.testing.assert_allclose(found, losses, rtol=1e-12, atol=1e-13)


# --- corners


def _epsilon(run, delta=1e-5):
    return acc.epsilon(run, delta, adjacency=REPLACE_ONE, method="pld")


def test_corners():
    assert _epsilon(_poisson(1.0, 0.0, 3)) == _epsilon(_fixed(1.0, 0, 9, 3)) == 0
    for nothing in (_poisson(0.0, 0.1, 3), _fixed(0.0, 2, 9, 3), _redrawn(0.0, 2, 9, 3)):
        assert _epsilon(nothing) == np.inf
    for loud in (_poisson(1e-3, 0.5, 3), _fixed(1e-3, 2, 9, 3), _redrawn(1e-3, 2, 9, 3)):
        assert 1e6 < _epsilon(loud) < 1e9
    for quiet in (_poisson(1e6, 0.5, 3), _fixed(1e6, 2, 9, 3), _redrawn(1e6, 2, 9, 3)):
        assert _epsilon(quiet) < 1e-5
    exact = acc.epsilon(acc.Gaussian(1 / 6), 1e-13)
    assert exact * (1 - 1e-12) <= _epsilon(_poisson(1.0, 1.0, 3), 1e-13) <= exact * (1 + 1e-4)
    for inner in (acc.FixedBatchSampled, acc.WithReplacement):
        with pytest.raises(acc.UnsupportedQuery):
            acc.epsilon(acc.UserLevel(inner(acc.Gaussian(1.0), 2, 9), 2), 1e-5)


def test_a_sweep_is_its_settings():
    size, records = np.array([2.0, 5.0]), np.array([[1.0], [3.0]])
    swept = _delta(_fixed(2.0, size, 20, records), 0.5, method="pld")
    single = [[_delta(_fixed(2.0, s, 20, k[0]), 0.5, method="pld") for s in size] for k in records]
    np.testing.assert_array_equal(swept, single)
    assert swept.shape == (2, 2)
    assert np.all(np.diff(swept, axis=0) > 0)
    assert np.all(np.diff(swept, axis=1) > 0)


def test_under_a_trace_the_smaller_of_both_prices_is_taken_too():
    """Of two methods neither of which is always below, the second was not asked."""
    traced = jax.jit(lambda s: acc.epsilon(_fixed(s, 5, 100, 2), 1e-5, adjacency=REPLACE_ONE))
    run = _fixed(4.0, 5, 100, 2)
    best, grid = (acc.epsilon(run, 1e-5, adjacency=REPLACE_ONE, method=m) for m in ("best", "pld"))
    assert best < 0.9 * grid
    assert best <= float(traced(4.0)) <= best * (1 + 1e-6)


@pytest.mark.parametrize(("sigma", "records"), [(20.0, 1000), (0.02, 1), (3.0, 12)])
def test_records_that_are_surely_drawn_are_those_of_the_whole_data(sigma, records):
    """However far apart: a loss may be larger than the logarithm of any number that is listed."""
    for adjacency, factor in ((ADD_REMOVE, 1), (REPLACE_ONE, 2)):
        exact = acc.epsilon(acc.Gaussian(sigma / (factor * records)), 1e-5)
        run = _poisson(sigma, 1.0, records)
        high = acc.epsilon(run, 1e-5, adjacency=adjacency, method="pld")
        assert exact * (1 - 1e-12) <= high <= exact * (1 + 1e-4)
        able = [m for m in METHODS if m.name == "pld" and m.supports(run, adjacency)]
        assert all(m.epsilon_lower(run, 1e-5, adjacency) <= exact for m in able)


def test_as_many_records_as_are_never_left_out_by_chance():
    """P(J = 0) = 2^−2000 is no number, and the loss of a likely outcome is 2600."""
    mu, records = 0.05, 2000
    j = np.arange(records + 1)
    log_weight = stats.binom.logpmf(j, records, 0.5)
    y = np.linspace(35.0, 65.0, 3001)[:, None]
    ahead, behind = (
        special.logsumexp(log_weight + s * j * mu * y - (j * mu) ** 2 / 2, axis=1) for s in (1, -1)
    )
    loss, center = ahead - behind, np.exp(log_weight) @ stats.norm.cdf(y.T - mu * j[:, None])
    epsilon = float(loss[np.searchsorted(center, 0.5)])  # half of the mass is above it
    assert epsilon > 2400
    run = _poisson(1 / mu, 0.5, records)
    assert acc.methods(run, REPLACE_ONE)["pld"].epsilon(run, 0.4, REPLACE_ONE) >= epsilon
