"""The best of a random number of runs, against the exact law of the winner."""

import jax
import numpy as np
import pytest
import scipy.stats

from dpjax import accounting as acc
from dpjax.accounting.tuning import BestOf, draw_trials, trial_parameter

GRID = np.linspace(-9.0, 10.0, 4001)


def generating(below, above, distribution, expected):
    """(E F^K, 1 − E F^K) at F = below = 1 − above, by definition and without cancellation."""
    if distribution == "poisson":
        return np.exp(-expected * above), -np.expm1(-expected * above)
    gamma = trial_parameter(expected, distribution)
    if distribution == "geometric":
        rest = gamma + (1 - gamma) * above
        return gamma * below / rest, above / rest
    total = np.log(gamma)
    return np.log1p(-(1 - gamma) * below) / total, -np.log1p((1 - gamma) * above / gamma) / total


def winner(mean, distribution, expected):
    """Cell probabilities of the largest of K draws of N(mean, 1): the score is the value."""
    law = scipy.stats.norm(mean)
    below, above = generating(law.cdf(GRID), law.sf(GRID), distribution, expected)
    none = generating(0.0, 1.0, distribution, expected)[0]
    cells = np.where(GRID[1:] > mean, -np.diff(above), np.diff(below))
    return np.concatenate([[below[0] - none], cells, [above[-1], none]])


def divergence(first, second, order):
    keep = (first > 1e-290) & (second > 1e-290)
    return np.log(np.sum(first[keep] ** order * second[keep] ** (1 - order))) / (order - 1)


@pytest.mark.parametrize("distribution", ["geometric", "logarithmic", "poisson"])
def test_bound_holds_for_the_exact_winner(distribution):
    for expected in (2.0, 20.0):
        best = BestOf(acc.Gaussian(2.0), expected, distribution)  # μ = 1/2
        orders = np.array([1.5, 2.0, 4.0, 10.0])
        bound = acc.rdp(best, orders)
        present = winner(0.5, distribution, expected)
        absent = winner(0.0, distribution, expected)
        for order, limit in zip(orders, bound, strict=True):
            true = max(divergence(present, absent, order), divergence(absent, present, order))
            assert true <= limit * (1 + 1e-9)
            assert limit < 60 * true


def test_formula_by_hand():
    # η = 1, γ = 1/10, RDP(α) = α/8: ε'(4) = 1/2 + min_λ̂ 2(1 − 1/λ̂)λ̂/8 + 2 log(10)/λ̂ +
    # log(10)/3.
    other = np.linspace(1.0001, 40, 400_000)
    extra = np.min(2 * (1 - 1 / other) * other / 8 + 2 * np.log(10) / other)
    found = acc.rdp(BestOf(acc.Gaussian(2.0), 10.0), [4.0])[0]
    assert found == pytest.approx(0.5 + extra + np.log(10) / 3, rel=1e-3)
    assert found >= (0.5 + extra + np.log(10) / 3) * (1 - 1e-9)
    # Poisson: ε'(4) = 1/2 + m δ(log(4/3)) + log(m)/3.
    failure = acc.delta(acc.Gaussian(2.0), epsilon=np.log(4 / 3))
    found = acc.rdp(BestOf(acc.Gaussian(2.0), 10.0, "poisson"), [4.0])[0]
    assert found == pytest.approx(0.5 + 10 * failure + np.log(10) / 3, rel=1e-9)


@pytest.mark.parametrize(("distribution", "expected"), [("geometric", 7.0), ("logarithmic", 7.0)])
def test_parameter_gives_the_mean(distribution, expected):
    gamma = trial_parameter(expected, distribution)
    law = scipy.stats.geom(gamma) if distribution == "geometric" else scipy.stats.logser(1 - gamma)
    assert law.mean() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("distribution", ["geometric", "logarithmic", "poisson"])
def test_draws_have_the_law(distribution):
    best = BestOf(acc.Gaussian(2.0), 6.0, distribution)
    keys = jax.random.split(jax.random.key(1), 2000)
    draws = np.array([draw_trials(key, best) for key in keys])
    again = draw_trials(jax.random.key(5), best)
    assert again == draw_trials(jax.random.key(5), best)
    assert draws.min() >= (0 if distribution == "poisson" else 1)
    gamma = 1.0 if distribution == "poisson" else trial_parameter(6.0, distribution)
    law = {
        "geometric": scipy.stats.geom(gamma),
        "logarithmic": scipy.stats.logser(1 - gamma),
        "poisson": scipy.stats.poisson(6.0),
    }[distribution]
    for k in (1, 3, 10):
        chance = law.cdf(k)
        assert abs(np.mean(draws <= k) - chance) < 5 * np.sqrt(chance * (1 - chance) / 2000)


def test_cheaper_than_releasing_every_run_and_certified():
    run = acc.Gaussian(4.0)
    best = BestOf(run, 30.0)
    certificate = acc.certify(best, delta=1e-5)
    assert acc.epsilon(run, delta=1e-5) < certificate.epsilon
    assert certificate.epsilon < 0.5 * acc.epsilon(acc.Repeated(run, 30), delta=1e-5)
    assert acc.Certificate.from_json(certificate.to_json()) == certificate
    certificate.verify()


def test_composes_and_nests():
    best = BestOf(acc.Gaussian(4.0), 5.0)
    both = acc.Composed((best, acc.Gaussian(4.0)))
    np.testing.assert_allclose(
        acc.rdp(both, [3.0]), acc.rdp(best, [3.0]) + acc.rdp(acc.Gaussian(4.0), [3.0]), rtol=1e-12
    )
    assert acc.rdp(BestOf(best, 5.0), [3.0])[0] > acc.rdp(best, [3.0])[0]
    inner = BestOf(acc.RandomizedSensitivity([0.1, 0.2], [0.5, 0.5], 1.0), 5.0)
    assert 0 < acc.epsilon(inner, delta=1e-5) < np.inf


def test_a_whole_sweep_of_noises_at_once():
    costs = acc.epsilon(BestOf(acc.Gaussian(np.array([2.0, 4.0, 8.0])), 10.0), delta=1e-5)
    assert np.all(np.diff(costs) < 0)
    one = acc.epsilon(BestOf(acc.Gaussian(4.0), 10.0), delta=1e-5)
    assert one <= costs[1] <= one * 1.001


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="distribution"):
        BestOf(acc.Gaussian(1.0), 5.0, "uniform")
    with pytest.raises(ValueError, match="expected_trials"):
        BestOf(acc.Gaussian(1.0), 0.5)
    with pytest.raises(TypeError, match="mechanism"):
        BestOf(1.0, 5.0)
    with pytest.raises(acc.UnsupportedQuery):
        acc.epsilon(BestOf(acc.UniformBall(0.1, 3), 5.0), delta=1e-5)
