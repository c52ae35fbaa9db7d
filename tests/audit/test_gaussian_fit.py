"""μ from error rates and from a shift: never above the truth, close to it, and μ to ε exactly."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from dpjax import audit
from dpjax.audit.gaussian_fit import gaussian_epsilon


def _normal_scores(mu, runs, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=runs), mu + rng.normal(size=runs)


# ε at δ = 1e-5 for a μ-GDP mechanism, from the closed-form profile with mpmath.
@pytest.mark.parametrize(
    ("mu", "epsilon"), [(1.0, 4.3771780956812245), (0.31830986088679736, 1.20807373113579)]
)
def test_mu_to_epsilon(mu, epsilon):
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(epsilon, rel=1e-8)
    assert gaussian_epsilon(mu, 1e-5) <= epsilon


@pytest.mark.parametrize("mu", [1e-3, 0.1, 3.0, 31.8, 1026.8])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_mu_to_epsilon_solves_the_profile(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    with mpmath.workdps(50):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        at = mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)
    if epsilon == 0.0:
        assert at <= delta
    else:
        assert float(at) >= delta  # rounded down in ε is rounded up in δ
        assert float(at) == pytest.approx(delta, rel=1e-4)


def test_no_shift_is_no_epsilon():
    assert gaussian_epsilon(0.0, 1e-5) == 0.0


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_error_rates_bound_mu_from_below(mu):
    bound = audit.gaussian_bound(*_normal_scores(mu, 100_000), delta=1e-5)
    assert 0.9 * mu < bound.evidence.mu < mu
    assert bound.epsilon == pytest.approx(gaussian_epsilon(bound.evidence.mu, 1e-5))
    assert "Gaussian" in bound.describe()


@pytest.mark.parametrize("mu", [0.5, 3.0, 641.0])
def test_a_shift_bounds_mu_from_below_at_any_size(mu):
    bound = audit.normal_shift_bound(*_normal_scores(mu, 100_000), delta=1e-5)
    assert 0.95 * mu < bound.evidence.mu < mu


def test_a_shift_keeps_its_confidence():
    # The bound may exceed the truth in at most a tenth of the audits at 90 % confidence.
    wrong = sum(
        audit.normal_shift_bound(
            *_normal_scores(1.0, 100, seed), delta=1e-5, confidence=0.9
        ).evidence.mu
        > 1.0
        for seed in range(300)
    )
    assert wrong <= 50  # P[Binomial(300, 0.1) > 50] < 2e-4


def test_no_difference_is_no_epsilon():
    assert audit.normal_shift_bound(np.zeros(10), np.zeros(10), delta=1e-5).epsilon == 0.0
    bound = audit.gaussian_bound(*_normal_scores(0.0, 2_000), delta=1e-5)
    assert bound.epsilon == 0.0


def test_scores_without_noise_hide_nothing():
    bound = audit.normal_shift_bound(np.zeros(10), np.ones(10), delta=1e-5)
    assert bound.epsilon == math.inf


@pytest.mark.parametrize("cell", [np.inf, -np.inf, np.nan])
def test_scores_without_mean_or_order_are_refused_where_they_would_count_as_private(cell):
    # Infinite scores tell the worlds apart with certainty; their mean is none, and said ε ≥ 0.
    scores, others = np.zeros(100), np.full(100, cell)
    with pytest.raises(ValueError, match=rf"scores must be finite, got {cell}"):
        audit.normal_shift_bound(scores, others, delta=1e-5)
    for bound in (audit.gaussian_bound, audit.distinguishing_bound):
        if np.isnan(cell):
            with pytest.raises(ValueError, match="scores must be ordered, got NaN"):
                bound(scores, others, delta=1e-5)
        else:
            assert bound(scores, others, delta=1e-5).epsilon > 1.5


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.3, 5.0])
@pytest.mark.parametrize("delta", [1e-100, 1e-13, 1e-5, 0.1])
def test_epsilon_of_a_shift_is_rounded_down_where_it_is_small_too(mu, delta):
    found = gaussian_epsilon(mu, delta)
    with mpmath.workdps(60):
        size = mpmath.mpf(mu)

        def profile(epsilon):
            first = mpmath.ncdf(size / 2 - epsilon / size)
            return first - mpmath.exp(epsilon) * mpmath.ncdf(-epsilon / size - size / 2)

        assert found == 0.0 or profile(mpmath.mpf(found)) >= delta
        assert profile(mpmath.mpf(found) * (1 + 1e-8) + 1e-11) < delta
