"""The binomial series of random allocation's moments: against exact sums and the rays' integral."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from dpjax.accounting.pairs import allocation_series as series
from dpjax.accounting.pairs import allocation_transform as transform


def _exact(mu, t, most):
    """E[((W − 1)/s)^j]/j! at 400 digits, by the alternating sums of lognormal moments."""
    with mpmath.workdps(400):
        q = mpmath.exp(mpmath.mpf(mu) ** 2)
        unit = mpmath.sqrt((q - 1) * t)
        powers = [q ** (i * (i - 1) // 2) for i in range(most + 1)]
        f = []
        for k in range(most + 1):
            terms = ((-1) ** (k - i) * mpmath.binomial(k, i) * powers[i] for i in range(k + 1))
            f.append(mpmath.fsum(terms) / (unit**k * mpmath.factorial(k)))
        g = [mpmath.mpf(1)]
        for m in range(1, most + 1):
            terms = ((k * (t + 1) - m) * f[k] * g[m - k] for k in range(1, m + 1))
            g.append(mpmath.fsum(terms) / m)
        return np.array([float(v) for v in g])


@pytest.mark.parametrize(
    ("mu", "t"), [(0.025, 1000), (0.3, 40), (0.6, 3), (1e-4, 2), (1e-3, 10**9)]
)
def test_coefficients_are_within_their_bound_of_exact_sums(mu, t):
    exact = _exact(mu, t, 48)
    found, error = series.coefficients(mu, float(t), 48)
    assert np.all(np.abs(found - exact) <= error)
    size = np.maximum(exact[2:], exact[1:-1])  # those of odd order nearly vanish
    assert np.all(error[2:12] <= 1e-12 * size[:10])
    assert np.all(error[2:] <= 1e-9 * size)


@pytest.mark.parametrize(
    ("mu", "t", "p", "uses"),
    [
        (0.025, 1000.0, 90.5, 100),
        (0.025, 1000.0, -390.0, 100),
        (0.1, 50.0, 12.3, 5),
        (0.1, 50.0, -30.0, 5),
        (0.02, 2.0, -15.0, 40),
        (0.3, 1e3, 8.4, 60),
    ],
)
def test_the_series_and_the_rays_agree_within_both_bounds(monkeypatch, mu, t, p, uses):
    step = 0.05 / series.deviation(mu, t)
    transform._moment.cache_clear()
    ours = transform.values(mu, t, p, step, 20, uses)
    monkeypatch.setattr(series, "REACH", 0.0)
    transform._moment.cache_clear()
    rays = transform.values(mu, t, p, step, 20, uses)
    transform._moment.cache_clear()
    assert np.any(ours.value != rays.value)
    off = ours.error + rays.error + (ours.moment_error + rays.moment_error) * np.abs(rays.value)
    assert np.all(np.abs(ours.value - rays.value) <= off)
    off = ours.moment_error + rays.moment_error
    assert abs(ours.log_moment - rays.log_moment) <= off
    assert ours.moment_error <= 1e-12
    assert ours.error[1] <= 1e-12


@pytest.mark.parametrize("p", [90.5, 13.2, -120.0, 800.3])
def test_too_few_terms_are_told(monkeypatch, p):
    """The rest that is left out is bounded: from any number of terms on the truth is inside."""
    mu, t = 0.025, 1000.0
    y = np.linspace(0.0, 2.0, 9) / series.deviation(mu, t)
    exact, least = series.sums(mu, t, p, y)
    assert np.all(least <= 1e-9)
    widths = []
    for terms in (10, 24, 40):
        monkeypatch.setattr(series, "_terms", lambda *_, n=terms: n)
        value, error = series.sums(mu, t, p, y)
        assert np.all(np.abs(value - exact) <= error + least)
        assert terms > 10 or abs(value[-1] - exact[-1]) >= 1e-3 * error[-1]
        widths.append(error[-1])
    assert widths[0] > widths[1] > widths[2]


@pytest.mark.parametrize(("mu", "t"), [(0.025, 1000.0), (0.4, 30.0), (1.0, 2.0), (0.1, 1e6)])
def test_bounds_on_large_moments_hold(mu, t):
    s, known = series.deviation(mu, t), transform.moments.whole_moments(mu, t)
    for m in (2, 3, 7, 40, 160):
        above = series._log_large(mu, t, float(m), s)
        plain = 0.5 * mu * mu * m * (m - 1)
        assert known[m] <= above <= plain * (1 + 1e-14)
        assert mu > 0.3 or above <= 1.1 * known[m] + 0.5 * np.log(2 * np.pi * m) + 0.1
        assert series._log_large(mu, t, m - 0.5, s) == above
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series, "_MOST_TERMS", 50)  # the further ones by the larger of two
        assert series._log_large(mu, t, 160.0, s) >= known[160]


def test_where_w_varies_much_the_series_says_nothing():
    for mu, t, p in [(2.0, 1e3, 2.0), (1.0, 20.0, 3.3), (0.5, 1.0, 2.0), (1.0, 1e3, 40.0)]:
        value, error = series.sums(mu, t, p, np.array([0.0, 5.0]))
        assert not np.any(error < 1e-9)
        assert np.all(np.isfinite(value))
