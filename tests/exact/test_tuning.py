"""The best of a random number of runs, against the exact law of the winner."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax import accounting as acc
from dpjax.accounting.mechanisms import BestOf, draw_trials, trial_parameter
from dpjax.accounting.renyi import method as renyi

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


def finite_winner(law, distribution, expected):
    """Probabilities of the best of K draws, by the sum over K itself; last the outcome of no run.

    Outcome i beats all before it: P(best ≤ i, K = k) = P(K = k)·F(i)^k.
    """
    k = np.arange(0 if distribution == "poisson" else 1, int(250 * expected) + 200)
    if distribution == "poisson":
        weights = scipy.stats.poisson(expected).pmf(k)
    else:
        gamma = trial_parameter(expected, distribution)
        own = scipy.stats.geom(gamma) if distribution == "geometric" else scipy.stats.logser
        weights = (own if distribution == "geometric" else own(1 - gamma)).pmf(k)
    below = np.concatenate([[0.0], np.cumsum(law)])
    below[-1] = 1.0
    powers = below[:, None] ** k  # 0^0 = 1: the outcome of no run is below every other
    reached = powers @ weights
    return np.concatenate([np.diff(reached), [reached[0]]])


def finite_rdp(first, second, orders):
    c = np.asarray(orders)[:, None] - 1
    terms = np.log(first) + c * (np.log(first) - np.log(second))
    top = terms.max(axis=1)
    return (top + np.log(np.exp(terms - top[:, None]).sum(axis=1))) / c[:, 0]


@pytest.mark.parametrize("distribution", ["geometric", "logarithmic", "poisson"])
def test_bound_holds_for_finite_mechanisms_by_brute_force(distribution):
    """Random mechanisms of 2 to 12 ranked outcomes, K's law summed, both directions, 25 orders."""
    rng = np.random.default_rng(17)
    orders = 1 + np.logspace(-2, 2, 25)
    means = (0.01, 0.1, 0.5, 0.9, 1.0) if distribution == "poisson" else (1.001,)
    means += (1.5, 3.0, 20.0, 100.0)
    tightest = 0.0
    for trial in range(60):
        size = rng.integers(2, 13)
        present = rng.dirichlet(np.full(size, 3.0))
        spread = 10 ** rng.uniform(-2, 0.5)
        absent = present * np.exp(spread * rng.standard_normal(size))
        absent /= absent.sum()
        if trial % 4 == 0:  # an outcome at the top that gives its data set away
            present, absent = np.append(present * 0.98, 0.02), np.append(absent * 0.9999, 1e-4)

        def inner(at, p=present, q=absent):
            return np.maximum(finite_rdp(p, q, at), finite_rdp(q, p, at))

        def profile(epsilons, p=present, q=absent):
            gaps = [
                max(np.maximum(a - np.exp(e) * b, 0).sum() for a, b in ((p, q), (q, p)))
                for e in epsilons
            ]
            return np.asarray(gaps)

        expected = float(rng.choice(means))
        best = BestOf(acc.Gaussian(1.0), expected, distribution)
        bound = renyi.select_curve(best, orders, inner, profile)
        one, two = (finite_winner(law, distribution, expected) for law in (present, absent))
        keep = (one > 1e-280) & (two > 1e-280)
        true = np.maximum(
            finite_rdp(one[keep], two[keep], orders), finite_rdp(two[keep], one[keep], orders)
        )
        assert np.all(true <= bound * (1 + 1e-9) + 1e-12), (expected, true - bound)
        tightest = max(tightest, np.max(true / bound))
    assert tightest > 0.3


def test_few_expected_poisson_trials_still_cost_what_they_release():
    # 10,000 × BestOf(Gaussian(1), 0.01, Poisson): about 100 runs are released, and an attack that
    # counts reaches δ(20) ≥ 0.996.
    run = acc.Repeated(BestOf(acc.Gaussian(1.0), 0.01, "poisson"), 10_000)
    assert acc.delta(run, epsilon=20.0, method="rdp") >= 0.996
    assert acc.epsilon(run, delta=1e-5, method="rdp") > 20.0
    assert acc.rdp(BestOf(acc.Gaussian(1.0), 1e-3, "poisson"), [2.0])[0] > 0


@pytest.mark.parametrize("distribution", ["geometric", "logarithmic", "poisson"])
def test_the_mean_is_differentiable_and_checked_under_a_trace(distribution):
    def price(expected):
        return jnp.sum(acc.rdp(BestOf(acc.Gaussian(4.0), expected, distribution), [3.0]))

    # The best λ̂ is one of a grid: the same on either side.
    want = (float(price(7.001)) - float(price(6.999))) / 0.002
    assert float(jax.jit(jax.grad(price))(7.0)) == pytest.approx(want, rel=2e-3)
    for bad in (np.nan, -1.0, 0.0):
        assert float(jax.jit(price)(bad)) == np.inf


def test_formula_by_hand():
    # η = 1, γ = 1/10, RDP(α) = α/8: ε'(4) = 1/2 + min_λ̂ 2(1 − 1/λ̂)λ̂/8 + 2 log(10)/λ̂ +
    # log(10)/3.
    other = np.linspace(1.0001, 40, 400_000)
    extra = np.min(2 * (1 - 1 / other) * other / 8 + 2 * np.log(10) / other)
    found = acc.rdp(BestOf(acc.Gaussian(2.0), 10.0), [4.0])[0]
    assert found == pytest.approx(0.5 + extra + np.log(10) / 3, rel=1e-3)
    assert found >= (0.5 + extra + np.log(10) / 3) * (1 - 1e-9)
    # Poisson: e^{3ε'(4)} = e^{-m} + m·e^{3(1/2 + m δ(log(4/3)))}.
    failure = acc.delta(acc.Gaussian(2.0), epsilon=np.log(4 / 3))
    found = acc.rdp(BestOf(acc.Gaussian(2.0), 10.0, "poisson"), [4.0])[0]
    want = np.log(np.exp(-10) + 10 * np.exp(3 * (0.5 + 10 * failure))) / 3
    assert found == pytest.approx(want, rel=1e-9)


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
