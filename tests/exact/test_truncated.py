"""Cut Poisson batches against closed forms, brute force on tiny data sets, and dp_accounting."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from dpjax import accounting as acc

ADD_REMOVE, REPLACE_ONE = acc.Adjacency.ADD_REMOVE, acc.Adjacency.REPLACE_ONE


def _releases(values, rate, capacity):
    """Law of the sum of a cut batch of these contributions: {sum: probability}, by enumeration."""
    found: dict[float, float] = {}
    for flags in itertools.product((0, 1), repeat=len(values)):
        drawn = [v for v, flag in zip(values, flags, strict=True) if flag]
        chance = rate ** len(drawn) * (1 - rate) ** (len(values) - len(drawn))
        kept = list(itertools.combinations(drawn, min(len(drawn), capacity)))
        for some in kept:
            found[sum(some)] = found.get(sum(some), 0.0) + chance / len(kept)
    return found


def _divergence(p, q, sigma, epsilon):
    """The hockey-stick divergence of two mixtures of normals, by cells on a line."""
    edges = np.linspace(-5 - 9 * sigma, 5 + 9 * sigma, 4001)
    first, second = (
        sum(w * np.diff(stats.norm.cdf(edges, loc=m, scale=sigma)) for m, w in law.items())
        for law in (p, q)
    )
    return float(np.maximum(first - np.exp(epsilon) * second, 0).sum())


@pytest.mark.parametrize(("rate", "capacity"), [(0.5, 1), (0.7, 2), (1.0, 2), (0.3, 3)])
def test_no_neighbours_of_four_records_are_told_apart_better(rate, capacity):
    sigma, epsilon, levels = 0.8, 0.6, (-1.0, 0.0, 1.0)
    run = acc.TruncatedPoissonSampled(acc.Gaussian(sigma), rate, 4, capacity)
    added, replaced = (acc.delta(run, epsilon, adjacency=a) for a in (ADD_REMOVE, REPLACE_ONE))
    worst = {"added": 0.0, "replaced": 0.0}
    for others in itertools.combinations_with_replacement(levels, 3):
        small = _releases(others, rate, capacity)
        large = {z: _releases((*others, z), rate, capacity) for z in levels}
        for law in large.values():
            for pair in ((law, small), (small, law)):
                worst["added"] = max(worst["added"], _divergence(*pair, sigma, epsilon))
        for one, other in itertools.permutations(large.values(), 2):
            worst["replaced"] = max(worst["replaced"], _divergence(one, other, sigma, epsilon))
    assert 0.4 * added < worst["added"] <= added
    assert 0.25 * replaced < worst["replaced"] <= replaced


def test_one_step_is_the_mixture_of_two_closed_forms():
    sigma, rate, n, capacity, epsilon = 1.3, 0.1, 60, 8, 0.4
    others = stats.binom(n - 1, rate)
    cut = others.sf(capacity - 1)
    sizes = np.arange(capacity, n)
    own = float((others.pmf(sizes) * rate * capacity / (sizes + 1)).sum() / cut)
    parts = [
        acc.delta(acc.PoissonSampled(acc.Gaussian(s), q), epsilon, method="contour")
        for s, q in ((sigma, rate), (sigma / 2, own))
    ]
    run = acc.TruncatedPoissonSampled(acc.Gaussian(sigma), rate, n, capacity)
    exact = (1 - cut) * parts[0] + cut * parts[1]
    assert exact * (1 - 1e-7) <= acc.delta(run, epsilon) <= exact * (1 + 1e-5)


@pytest.mark.parametrize("n", [20, 28, 31, 35])
def test_the_rare_step_that_is_not_cut_is_paid(n):
    """1 − τ down to 1e-10, where the pair that is not cut has all of δ."""
    sigma, rate, epsilon = 10.0, 0.5, 0.1
    run = acc.TruncatedPoissonSampled(acc.Gaussian(sigma), rate, n, 1)
    others = (1 - rate) ** (n - 1)
    own = (1 - others * rate) / (1 - others) / n - rate * others / (1 - others)
    exact = sum(
        weight * acc.delta(acc.PoissonSampled(acc.Gaussian(s), q), epsilon, method="contour")
        for weight, s, q in ((others, sigma, rate), (1 - others, sigma / 2, own))
    )
    assert exact * (1 - 1e-7) <= acc.delta(run, epsilon) <= exact * (1 + 1e-5) + 1e-13


def test_a_capacity_that_holds_everybody_is_poisson():
    plain = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.1), 0.2), 30)
    whole = acc.Repeated(acc.TruncatedPoissonSampled(acc.Gaussian(1.1), 0.2, 50, 50), 30)
    for adjacency in acc.Adjacency:
        ask = {"delta": 1e-6, "adjacency": adjacency, "method": "pld"}
        assert acc.epsilon(whole, **ask) == pytest.approx(acc.epsilon(plain, **ask), rel=1e-9)


def test_nothing_drawn_costs_nothing_and_huge_noise_little():
    for rate, sigma, most in ((0.0, 1.0, 0.0), (0.5, 1e3, 0.1)):
        run = acc.TruncatedPoissonSampled(acc.Gaussian(sigma), rate, 10, 2)
        assert 0 <= acc.epsilon(run, 1e-6) <= most
    tiny = acc.TruncatedPoissonSampled(acc.Gaussian(1e-3), 0.5, 10, 2)
    assert acc.epsilon(tiny, 1e-6) > 1e4
    assert acc.delta(tiny, 1.0) <= 1.0
    assert acc.epsilon_interval(tiny, 1e-6)[0] == 0  # no neighbours are known that attain the pair


# rate, records, capacity, steps, noise: ε by dp_accounting 0.6 at δ = 1e-6, which is above ours
# under add/remove because it takes the antipodal pair there too.
@pytest.mark.parametrize(
    ("setting", "added", "replaced"),
    [
        ((0.01, 10_000, 110, 1000, 1.0), 9.21140662662557, 9.506290583919423),
        ((0.01, 10_000, 130, 1000, 1.0), 4.920767913438276, 5.323991209724855),
        ((0.01, 10_000, 50, 100, 1.0), 5.883176417404755, 5.883176413452057),
    ],
)
def test_at_least_as_tight_as_dp_accounting(setting, added, replaced):
    rate, n, capacity, steps, sigma = setting
    run = acc.Repeated(acc.TruncatedPoissonSampled(acc.Gaussian(sigma), rate, n, capacity), steps)
    assert acc.epsilon(run, 1e-6) < added * 0.998
    assert acc.epsilon(run, 1e-6, adjacency=REPLACE_ONE) <= replaced * (1 + 2e-5)  # the grids


def test_where_no_theorem_covers_it_it_is_refused_by_name():
    sampled = acc.PoissonSampled(acc.Gaussian(1.0), 0.1)
    many = acc.CorrelatedGaussian(1.0, [1.0, 0.5], steps=9, separation=3)
    for inner in (sampled, many, acc.Shuffled(acc.Gaussian(1.0), 3), acc.PureDP(0.1)):
        with pytest.raises(acc.UnsupportedQuery, match="TruncatedPoissonSampled"):
            acc.epsilon(acc.TruncatedPoissonSampled(inner, 0.1, 10, 2), 1e-5)
    with pytest.raises(acc.UnsupportedQuery, match="TruncatedPoissonSampled"):
        acc.epsilon(
            acc.PoissonSampled(acc.TruncatedPoissonSampled(acc.Gaussian(1.0), 0.1, 9, 2), 0.5), 1e-5
        )


def test_no_noise_is_no_privacy():
    for adjacency in acc.Adjacency:
        run = acc.TruncatedPoissonSampled(acc.Gaussian(0.0), 0.5, 10, 2)
        assert acc.epsilon(run, 1e-5, adjacency=adjacency) == np.inf
