"""Gaussian DP against 90-digit arithmetic, its own inverses and its own derivatives."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpjax import accounting as acc
from dpjax._numerics import concrete
from dpjax.accounting import gaussian_dp as gdp
from dpjax.accounting import gaussian_runs


def exact_delta(mu, epsilon):
    mu, epsilon = mp.mpf(float(mu)), mp.mpf(float(epsilon))

    def phi(x):
        return mp.erfc(-x / mp.sqrt(2)) / 2

    return phi(-epsilon / mu + mu / 2) - mp.exp(epsilon) * phi(-epsilon / mu - mu / 2)


def test_profile_is_exact_and_never_below():
    rng = np.random.default_rng(0)
    mus = 10 ** rng.uniform(-4, 2, 120)
    scaled = mus * rng.uniform(0, 8, 120) + mus**2 / 2
    epsilons = np.where(rng.random(120) < 0.5, scaled, 10 ** rng.uniform(-4, 2.7, 120))
    epsilons[::10] = 0.0
    found = gdp.log_delta(mus, epsilons)
    checked = 0
    with mp.workdps(90):
        for mu, epsilon, value in zip(mus, epsilons, found, strict=True):
            if value < -90:  # 90 digits do not reach further
                continue
            error = mp.mpf(float(value)) - mp.log(exact_delta(mu, epsilon))
            assert 0 <= error < 3e-12, (mu, epsilon)
            checked += 1
    assert checked > 60


def test_profile_at_epsilon_500():
    with mp.workdps(120):
        for mu in (20.0, 30.0, 31.7):
            truth = exact_delta(mu, 500.0)
            assert 0 <= gdp.delta(mu, 500.0) / truth - 1 < 1e-11


def test_golden_values():
    # mpmath, 20 digits.
    assert gdp.delta(0.01, 0.1) == pytest.approx(7.857692771036799e-27, rel=1e-11)
    assert gdp.mu(0.05, 1e-5) == pytest.approx(0.017309814184624805, rel=1e-12)
    assert 1 / gdp.mu(0.05, 1e-5) == pytest.approx(57.77069524456454, rel=1e-12)
    assert gdp.epsilon(0.01730981418462480, 1e-5) == pytest.approx(0.05, rel=1e-11)


def test_oracles(oracles):
    for row in oracles["gdp_delta"]:
        p = row["params"]
        assert 0 <= gdp.delta(p["mu"], p["eps"]) - row["value"] <= 1e-11 * row["value"] + 1e-300
    for row in oracles["gdp_mu_for_eps_delta"]:
        p = row["params"]
        found = gdp.mu(p["eps"], p["delta"])
        assert row["value"] * (1 - 1e-12) < found < row["value"] * (1 + 1e-15)
        assert gdp.epsilon(row["value"], p["delta"]) == pytest.approx(p["eps"], rel=1e-11)
    for row in oracles["gaussian_sigma_unit_sens"]:
        p = row["params"]
        assert 1 / gdp.mu(p["eps"], p["delta"]) == pytest.approx(row["value"], rel=1e-12)


@given(
    st.floats(1e-3, 30),
    st.floats(-12, -0.01).map(lambda e: 10.0**e),
)
def test_inverses_never_overshoot(mu, delta):
    epsilon = gdp.epsilon(mu, delta)
    assert gdp.delta(mu, epsilon) <= delta * (1 + 1e-12)
    if epsilon > 1e-9:
        back = gdp.mu(epsilon, delta)
        assert gdp.delta(back, epsilon) <= delta * (1 + 1e-12)
        assert back == pytest.approx(mu, rel=1e-7)


def test_edges():
    assert gdp.delta(0.0, 1.0) == 0.0
    assert gdp.delta(np.inf, 1.0) == 1.0
    assert gdp.delta(np.nan, 1.0) == 1.0
    assert gdp.delta(1e-5, 1.0) > 0.0  # underflow is rounded up
    assert gdp.epsilon(0.0, 1e-5) == 0.0
    assert gdp.epsilon(np.inf, 1e-5) == np.inf
    assert gdp.epsilon(1.0, 0.0) == np.inf
    assert gdp.mu(1.0, 0.0) == 0.0
    assert gdp.mu(1.0, 1.0) == np.inf
    assert gdp.compose([0.0, 0.0]) == 0.0
    assert gdp.compose([1.0, np.inf]) == np.inf
    # Exchanging the distributions: δ(−ε) = 1 − e^{−ε}(1 − δ(ε)).
    assert gdp.delta(1.0, -1.0) == pytest.approx(1 - np.exp(-1) * (1 - gdp.delta(1.0, 1.0)))


def test_derivatives_are_exact():
    for mu, delta in ((1.0, 1e-5), (0.3, 1e-9), (5.0, 1e-6)):
        step = 1e-6 * mu
        slope = (gdp.epsilon(mu + step, delta) - gdp.epsilon(mu - step, delta)) / (2 * step)
        assert jax.grad(gdp.epsilon)(mu, delta) == pytest.approx(slope, rel=1e-4)
    slope = (gdp.mu(1.001, 1e-5) - gdp.mu(0.999, 1e-5)) / 2e-3
    assert jax.grad(gdp.mu)(1.0, 1e-5) == pytest.approx(slope, rel=1e-4)


def test_same_under_jit_vmap_and_x64(monkeypatch):
    mus = np.array([0.1, 1.0, 3.0])
    interpreted = gdp.epsilon(mus, 1e-5)
    monkeypatch.setattr(concrete, "_PATIENCE", 0)  # compiled from the first question on
    plain = gdp.epsilon(mus, 1e-5)
    np.testing.assert_allclose(interpreted, plain, rtol=4e-15)
    assert isinstance(plain, np.ndarray)
    assert plain.dtype == np.float64
    with jax.enable_x64(True):
        np.testing.assert_array_equal(gdp.epsilon(mus, 1e-5), plain)
        inside = jax.jit(gdp.epsilon)(jnp.asarray(mus), 1e-5)
        np.testing.assert_array_equal(np.asarray(inside), plain)
    traced = jax.vmap(lambda m: gdp.epsilon(m, 1e-5))(jnp.asarray(mus, jnp.float32))
    assert np.all(np.asarray(traced) >= gdp.epsilon(np.float32(mus), 1e-5) * (1 - 1e-7))
    np.testing.assert_allclose(traced, plain, rtol=1e-6)


def test_tradeoff_is_the_envelope_of_the_profile():
    mu, rates = 1.3, np.array([0.0, 1e-12, 1e-3, 0.2, 0.7, 1.0])
    curve = gdp.tradeoff(mu, rates)
    epsilons = np.linspace(0.0, 60.0, 4001)
    lines = gdp.approximate_tradeoff(epsilons[:, None], gdp.delta(mu, epsilons)[:, None], rates)
    envelope = lines.max(axis=0)
    assert np.all(envelope <= curve + 1e-9)  # each (ε, δ) is a supporting line
    np.testing.assert_allclose(envelope, curve, atol=2e-4)
    np.testing.assert_allclose(gdp.true_positive_rate(mu, rates), 1 - curve, rtol=1e-9, atol=1e-11)


def test_attack_bounds_hold_for_the_best_attack():
    rng = np.random.default_rng(1)
    mu, n = 0.8, 400_000
    absent, present = rng.normal(size=n), rng.normal(size=n) + mu
    thresholds = np.quantile(absent, [0.9, 0.99])
    for rate, threshold in zip((0.1, 0.01), thresholds, strict=True):
        caught = np.mean(present > threshold)
        bound = gdp.true_positive_rate(mu, rate)
        assert abs(caught - bound) < 5 * np.sqrt(bound / n) + 0.003
    gain = np.mean(present > mu / 2) - np.mean(absent > mu / 2)
    assert gdp.advantage(mu) == pytest.approx(gain, abs=5e-3)


def test_gaussian_runs_are_exact():
    run = acc.Repeated(acc.Gaussian(10.0), 100)
    assert gaussian_runs.gdp_mu(run) == pytest.approx(1.0, rel=1e-14)
    assert acc.epsilon(run, delta=1e-5, method="gdp") == pytest.approx(4.377178095, rel=1e-9)
    replaced = acc.epsilon(run, delta=1e-5, method="gdp", adjacency="replace-one")
    assert replaced == pytest.approx(gdp.epsilon(2.0, 1e-5), rel=1e-12)
    lower, upper = acc.epsilon_interval(run, delta=1e-5)
    assert lower <= upper <= lower * (1 + 1e-9)
    with pytest.raises(acc.UnsupportedQuery, match="not a run of Gaussian"):
        gaussian_runs.gdp_mu(acc.PoissonSampled(acc.Gaussian(1.0), 0.1))
    assert acc.epsilon(acc.Gaussian(0.0), delta=1e-5, method="gdp") == np.inf
