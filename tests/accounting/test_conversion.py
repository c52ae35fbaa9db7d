"""Conversions against closed forms and recorded values."""

import math
import warnings

import jax
import mpmath
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

from dpjax import accounting as acc


def exact_gaussian_epsilon(mu, delta):
    """Root of Φ(−ε/μ+μ/2) − e^ε Φ(−ε/μ−μ/2) = δ, the profile by mpmath."""

    def height(e):
        near, far = mpmath.ncdf(-e / mu + mu / 2), mpmath.ncdf(-e / mu - mu / 2)
        return float(mpmath.log(near - mpmath.exp(e) * far)) - math.log(delta)

    with mpmath.workdps(60):
        return scipy.optimize.brentq(height, 0.0, mu * 12 + mu * mu, xtol=1e-14, rtol=1e-13)


def test_conversion_golden_values():
    # from the formulas in 25 digits
    np.testing.assert_allclose(acc.rdp_to_epsilon(2.0, 0.1, 1e-5), 10.226631103850337, rtol=1e-13)
    np.testing.assert_allclose(acc.rdp_to_epsilon(10.0, 0.5, 1e-5), 1.4180106367839718, rtol=1e-13)
    classic = acc.rdp_to_epsilon(2.0, 0.1, 1e-5, classic=True)
    np.testing.assert_allclose(classic, 11.612925464970228, rtol=1e-13)
    np.testing.assert_allclose(acc.zcdp_to_epsilon(0.1, 1e-5), 1.914238832003598, rtol=1e-8)
    np.testing.assert_allclose(
        acc.zcdp_to_epsilon(0.5, 1e-8, classic=True), 6.569708517540586, rtol=1e-13
    )


def test_what_is_no_divergence_is_refused_or_infinite():
    for name, arguments in {
        "orders": (np.nan, 0.5, 1e-5),
        "rdp": (10.0, np.nan, 1e-5),
        "delta": (10.0, 0.5, np.nan),
    }.items():
        with pytest.raises(ValueError, match=f"{name} must be"):
            acc.rdp_to_epsilon(*arguments)
        for classic in (False, True):
            traced = jax.jit(lambda *a, c=classic: acc.rdp_to_epsilon(*a, classic=c))
            assert float(traced(*arguments)) == np.inf
    assert acc.rdp_to_epsilon(10.0, np.inf, 1e-5) == np.inf
    assert acc.rdp_to_epsilon(1.0, 0.5, 1e-5) == np.inf
    for rho in (np.nan, -1.0):
        with pytest.raises(ValueError, match="rho must be"):
            acc.zcdp_to_epsilon(rho, 1e-5)
        for classic in (False, True):
            assert (
                float(jax.jit(lambda r, c=classic: acc.zcdp_to_epsilon(r, 1e-5, classic=c))(rho))
                == np.inf
            )


def test_recorded_conversions(oracles):
    for family, classic in (("rdp_to_eps_improved", False), ("rdp_to_eps_classic", True)):
        for row in oracles[family]:
            p = row["params"]
            got = acc.rdp_to_epsilon(p["alpha"], p["rdp"], p["delta"], classic=classic)
            np.testing.assert_allclose(got, row["value"], rtol=1e-13)
    for row in oracles["zcdp_to_eps_improved_opt_alpha"]:
        got = acc.zcdp_to_epsilon(row["params"]["rho"], row["params"]["delta"])
        assert got >= row["value"] * (1 - 1e-12)
        np.testing.assert_allclose(got, row["value"], rtol=1e-8)


def test_recorded_noise_by_renyi(oracles):
    """Noise recorded at five digits, from a finite grid of orders: up to 1.5 % is to be gained."""
    for family, method in (
        ("dpsgd_noise_multiplier_rdp_improved", "rdp"),
        ("dpsgd_noise_multiplier_rdp_classic", "rdp_classic"),
    ):
        rows = oracles[family]
        q, steps, eps, delta = (
            np.array([r["params"][k] for r in rows]) for k in ("q", "T", "eps", "delta")
        )
        sigma = np.array([r["value"] for r in rows])
        run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), q), steps)
        got = acc.epsilon(run, delta, method=method)
        assert np.all(got <= eps * 1.0001)
        assert np.all(got >= eps * 0.98), got / eps


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-12])
def test_never_below_the_exact_gaussian(mu, delta):
    exact = exact_gaussian_epsilon(mu, delta)
    by_order = acc.epsilon(acc.Gaussian(1 / mu), delta, method="rdp")
    assert exact <= by_order <= 1.35 * exact + 0.02
    assert by_order <= acc.epsilon(acc.Gaussian(1 / mu), delta, method="rdp_classic")
    back = acc.delta(acc.Gaussian(1 / mu), by_order, method="rdp")
    np.testing.assert_allclose(back, delta, rtol=1e-4)


def test_the_search_finds_the_best_order():
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.01), 1_000)
    orders = 1 + np.exp(np.linspace(-2, 6, 20_001))
    curve = acc.rdp(run, orders)
    dense = np.min(acc.rdp_to_epsilon(orders, curve, 1e-5))
    np.testing.assert_allclose(acc.epsilon(run, 1e-5, method="rdp"), dense, rtol=1e-7)


def test_huge_and_tiny_noise_widen_the_search_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert 0 <= acc.epsilon(acc.Gaussian(1e5), 1e-9, method="rdp") < 1e-4
        assert np.isfinite(acc.epsilon(acc.Gaussian(1e-3), 1e-9, method="rdp"))


def test_no_order_is_too_large_for_the_search():
    # σ = 1e20 and δ = 1e-300: ε = 3.7e-19 at an order about 3.7e21, and 1e-15 is added to any RDP.
    found = acc.epsilon(acc.Gaussian(1e20), 1e-300, method="rdp")
    assert 1e-15 < found < 1.0005e-15


def test_nothing_released_costs_nothing_and_no_noise_costs_everything():
    for run in (
        acc.Composed(()),
        acc.Repeated(acc.Gaussian(1.0), 0),
        acc.PoissonSampled(acc.Gaussian(1.0), 0.0),
    ):
        assert acc.epsilon(run, 1e-5, method="rdp") == 0
        assert acc.delta(run, 0.0, method="rdp") == 0
    for run in (acc.Gaussian(0.0), acc.PoissonSampled(acc.Gaussian(0.0), 0.1)):
        assert acc.epsilon(run, 1e-5, method="rdp") == np.inf
        assert acc.delta(run, 1.0, method="rdp") == 1


@given(
    st.floats(0.3, 30.0),
    st.floats(1e-6, 1.0),
    st.integers(1, 10_000),
    st.floats(1e-12, 0.1),
    st.floats(1.02, 3.0),
)
def test_epsilon_is_monotone_finite_and_not_negative(sigma, rate, steps, delta, factor):
    def at(s, q, t, d):
        run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(s), q), t)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return acc.epsilon(run, d, method="rdp")

    base = at(sigma, rate, steps, delta)
    assert 0 <= base < np.inf
    more, less = base * (1 + 1e-6) + 1e-9, base * (1 - 1e-6) - 1e-9
    assert at(sigma * factor, rate, steps, delta) <= more
    assert at(sigma, rate / factor, steps, delta) <= more
    assert at(sigma, rate, 2 * steps, delta) >= less
    assert at(sigma, rate, steps, delta / factor) >= less


@pytest.mark.at_length
def test_derivatives_against_central_differences():
    def price(sigma, rate, steps, delta):
        run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), steps)
        return acc.epsilon(run, delta, method="rdp")

    point = (1.1, 0.02, 500.0, 1e-6)
    gradient = jax.grad(price, argnums=(0, 1, 3))(*point)
    for k, got in zip((0, 1, 3), gradient, strict=True):
        up, down = list(point), list(point)
        h = 3e-3 * point[k]
        up[k], down[k] = point[k] + h, point[k] - h
        want = (price(*up) - price(*down)) / (2 * h)
        np.testing.assert_allclose(got, want, rtol=3e-4)
