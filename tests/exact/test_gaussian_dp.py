"""Gaussian DP against 90-digit arithmetic, its own inverses and its own derivatives."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpjax import accounting as acc
from dpjax._numerics.scope import enable_x64
from dpjax.accounting.gaussian import gaussian_dp as gaussian_runs
from dpjax.accounting.gaussian import gaussian_dp as gdp
from dpjax.accounting.gaussian import pair


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


def corners(count):
    """Settings from all corners: μ of 1e-6 to 1e3, δ of 1e-290 to 1 − 1e-9, ε to 500."""
    rng = np.random.default_rng(5)
    deltas = 10 ** np.where(rng.random(count) < 0.5, rng.uniform(-290, -1, count), -9.0)
    near = rng.random(count) < 0.6
    deltas = np.where(near, 10 ** rng.uniform(-12, -0.01, count), deltas)
    deltas[::9] = 1 - 10 ** rng.uniform(-9, -1, len(deltas[::9]))
    return 10 ** rng.uniform(-6, 3, count), 10 ** rng.uniform(-4, 2.699, count), deltas


def test_inverses_are_never_below_the_truth_at_the_corners():
    mus, epsilons, deltas = corners(150)
    epsilons[::10] = 0.0
    found, calibrated = gdp.epsilon(mus, deltas), gdp.mu(epsilons, deltas)
    with mp.workdps(640):
        for k, delta in enumerate(deltas):
            loose = mp.mpf(10) ** -10 * (1 + abs(mp.log(delta)) / 100)
            for mu, epsilon in ((mus[k], found[k]), (calibrated[k], epsilons[k])):
                gap = mp.log(delta) - mp.log(exact_delta(mu, epsilon))
                assert gap >= 0, (mu, epsilon, delta)
                assert gap < loose or epsilon == 0.0, (mu, epsilon, delta)


def test_few_evaluations(monkeypatch):
    calls = []
    parts = pair.parts
    monkeypatch.setattr(pair, "parts", lambda *given: calls.append(1) or parts(*given))
    for mu, delta in ((1.0, 1e-5), (0.01, 1e-9), (30.0, 1e-12), (1e-3, 1e-200)):
        gdp.epsilon(mu, delta)
    for epsilon, delta in ((1.0, 1e-5), (0.01, 1e-9), (100.0, 1e-12)):
        gdp.mu(epsilon, delta)
    assert len(calls) <= 7 * 6


def test_derivatives_against_finite_differences():
    """Of 200 random settings, both widths, under jit and vmap."""
    rng = np.random.default_rng(7)
    mus, deltas = 10 ** rng.uniform(-3, 1.5, 200), 10 ** rng.uniform(-14, -1, 200)
    epsilons = gdp.epsilon(mus, deltas)
    keep = epsilons > 1e-3 * mus
    mus, deltas, epsilons = mus[keep], deltas[keep], epsilons[keep]
    assert keep.sum() > 180

    def differences(function, values, *others):
        """Richardson's extrapolation of central differences."""
        step = 3e-3 * values

        def central(h):
            return (function(values + h, *others) - function(values - h, *others)) / (2 * h)

        return (64 * central(step / 4) - 20 * central(step / 2) + central(step)) / 45

    settings = (
        (gdp.epsilon, mus, deltas),
        (gdp.mu, epsilons, deltas),
        (gdp.log_delta, mus, epsilons),
    )
    for function, first, second in settings:
        wanted = (
            differences(function, first, second),
            differences(lambda v, w, f=function: f(w, v), second, first),
        )
        slopes = jax.jit(jax.vmap(jax.grad(function, argnums=(0, 1))))
        with enable_x64(True):
            wide = slopes(first, second)
        given = np.float32(first), np.float32(second)
        narrow = slopes(*given)
        with enable_x64(True):
            same = slopes(*(np.float64(v) for v in given))
        for k in range(2):
            np.testing.assert_allclose(wide[k], wanted[k], rtol=1e-5)
            np.testing.assert_allclose(narrow[k], same[k], rtol=1e-6)


@pytest.mark.parametrize("x64", [False, True])
def test_what_is_out_of_range_is_no_privacy_under_jit(x64):
    with enable_x64(x64):
        for bad in (np.nan, -1.0):
            assert jax.jit(gdp.epsilon)(bad, 1e-5) == np.inf
            assert jax.jit(gdp.epsilon)(1.0, bad) == np.inf
            assert jax.jit(gdp.delta)(bad, 1.0) == 1.0
            assert jax.jit(gdp.log_delta)(bad, 1.0) == 0.0
            assert jax.jit(gdp.mu)(bad, 1e-5) == 0.0
            assert jax.jit(gdp.mu)(1.0, bad) == 0.0
            assert jax.jit(gdp.tradeoff)(bad, 0.5) == 0.0
            assert jax.jit(gdp.true_positive_rate)(bad, 0.5) == 1.0
            assert jax.jit(gdp.advantage)(bad) == 1.0
            assert jax.jit(gdp.rdp)(bad, 2.0) == np.inf
            assert jax.jit(gdp.compose)(jax.numpy.asarray([1.0, bad])) == np.inf
            assert jax.jit(gdp.approximate_tradeoff)(bad, 0.0, 0.1) == 0.0
        assert jax.jit(gdp.delta)(1.0, np.nan) == 1.0


@pytest.mark.parametrize("bad", [-1.0, np.nan, "1", None, True])
def test_bad_arguments_are_named(bad):
    error = ValueError if isinstance(bad, float) else TypeError
    for call, name in (
        (lambda: gdp.delta(bad, 1.0), "mu"),
        (lambda: gdp.log_delta(bad, 1.0), "mu"),
        (lambda: gdp.epsilon(1.0, bad), "delta"),
        (lambda: gdp.mu(bad, 1e-5), "epsilon"),
        (lambda: gdp.compose([1.0, bad]), "mus"),
        (lambda: gdp.rdp(1.0, bad), "orders"),
        (lambda: gdp.tradeoff(1.0, bad), "false_positive_rate"),
    ):
        with pytest.raises(error, match=f"^{name} must be"):
            call()


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


def test_same_under_jit_vmap_and_x64():
    mus = np.array([0.1, 1.0, 3.0])
    plain = gdp.epsilon(mus, 1e-5)
    assert isinstance(plain, np.ndarray)
    assert plain.dtype == np.float64
    np.testing.assert_array_equal(plain, [gdp.epsilon(mu, 1e-5) for mu in mus])
    with enable_x64(True):
        np.testing.assert_array_equal(gdp.epsilon(mus, 1e-5), plain)
        inside = jax.jit(gdp.epsilon)(jnp.asarray(mus), 1e-5)
        np.testing.assert_allclose(np.asarray(inside), plain, rtol=4e-13)
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
