"""One-run auditing: the published bound by direct summation, and its confidence by simulation."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dpjax import audit


def _p_value(m, r, v, epsilon, delta):
    """Theorem 5.2 by direct summation in 40 digits."""
    with mpmath.workdps(40):
        q = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        mass = [mpmath.binomial(r, i) * q**i * (1 - q) ** (r - i) for i in range(r + 1)]
        tail = mpmath.fsum(mass[v:])
        alpha = max(mpmath.fsum(mass[v - i : v]) / i for i in range(1, v + 1))
        return float(tail + 2 * m * delta * alpha)


@pytest.mark.parametrize(
    ("m", "r", "v", "delta"), [(100, 100, 80, 1e-5), (1000, 60, 58, 1e-4), (300, 200, 199, 1e-6)]
)
def test_bound_solves_the_published_inequality(m, r, v, delta):
    bound = audit.one_run_bound(canaries=m, guesses=r, correct=v, delta=delta, confidence=0.99)
    assert bound.epsilon > 0.0
    assert _p_value(m, r, v, bound.epsilon, delta) == pytest.approx(0.01, rel=1e-6)


def test_all_right_has_a_closed_form():
    bound = audit.one_run_bound(canaries=50, guesses=50, correct=50, delta=0.0, confidence=0.95)
    accuracy = 0.05 ** (1 / 50)
    assert bound.epsilon == pytest.approx(math.log(accuracy / (1 - accuracy)), rel=1e-9)


@pytest.mark.parametrize("correct", [0, 10, 26])
def test_chance_level_guesses_show_nothing(correct):
    assert audit.one_run_bound(canaries=50, guesses=50, correct=correct, delta=1e-5).epsilon == 0.0


def test_no_guess_shows_nothing():
    assert audit.one_run_bound(canaries=5, guesses=0, correct=0, delta=1e-5).epsilon == 0.0


def test_a_delta_near_one_over_m_makes_the_bound_vacuous():
    many = audit.one_run_bound(canaries=1000, guesses=100, correct=100, delta=1e-2)
    assert (
        many.epsilon
        < audit.one_run_bound(canaries=1000, guesses=100, correct=100, delta=1e-6).epsilon
    )


def test_randomised_response_keeps_its_confidence():
    epsilon, rng = 1.0, np.random.default_rng(0)
    accuracy = 1 / (1 + math.exp(-epsilon))
    bounds = [
        audit.one_run_bound(
            canaries=200,
            guesses=200,
            correct=int(rng.binomial(200, accuracy)),
            delta=0.0,
            confidence=0.9,
        ).epsilon
        for _ in range(300)
    ]
    assert sum(bound > epsilon for bound in bounds) <= 50  # P[Binomial(300, 0.1) > 50] < 2e-4
    assert max(bounds) > 0.8 * epsilon


def test_gaussian_canaries_in_one_run():
    # Each canary is a Gaussian release with μ = 1/σ = 2, so ε(1e-6) is above ε(1e-5) = 9.99.
    def train(key, included):
        return included.astype(jnp.float32) + 0.5 * jax.random.normal(key, included.shape)

    bound = audit.one_run(
        train, key=jax.random.key(0), canaries=5000, guesses=200, delta=1e-6, confidence=0.999
    )
    assert 2.0 < bound.epsilon < 9.99


@pytest.mark.parametrize("guesses", [3, 0, 12])
def test_guesses_are_checked(guesses):
    with pytest.raises(ValueError, match="guesses"):
        audit.one_run(
            lambda key, included: included.astype(jnp.float32),
            key=jax.random.key(0),
            canaries=10,
            guesses=guesses,
            delta=0.0,
        )


def test_scores_are_checked():
    arguments = {"canaries": 10, "guesses": 2, "delta": 0.0}
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        audit.one_run(lambda key, included: jnp.zeros(3), key=jax.random.key(0), **arguments)
    with pytest.raises(ValueError, match="NaN"):
        audit.one_run(
            lambda key, included: jnp.full(10, jnp.nan), key=jax.random.key(1), **arguments
        )


def test_impossible_counts_are_refused():
    with pytest.raises(ValueError, match="correct"):
        audit.one_run_bound(canaries=10, guesses=5, correct=6, delta=0.0)


def _gaussian_canaries(mu, count, seed):
    rng = np.random.default_rng(seed)
    included = rng.random(count) < 0.5
    return mu * included + rng.normal(size=count), included


@pytest.mark.parametrize("method", ["gaussian", "normal"])
def test_canaries_bound_mu_closely_and_keep_their_confidence(method):
    bounds = [
        audit.canary_bound(
            *_gaussian_canaries(2.0, 1_000, seed), delta=1e-5, confidence=0.9, method=method
        ).evidence.mu
        for seed in range(300)
    ]
    assert sum(mu > 2.0 for mu in bounds) <= 50  # P[Binomial(300, 0.1) > 50] < 2e-4
    assert 1.6 < np.median(bounds) < 2.0


@pytest.mark.parametrize("method", ["gaussian", "normal"])
@pytest.mark.parametrize(("noise", "found"), [(1.0, False), (1 / 1.5, True), (0.5, True)])
def test_one_run_finds_halved_noise_by_its_canaries(method, noise, found):
    def train(key, included):
        return included.astype(jnp.float32) + noise * jax.random.normal(key, included.shape)

    settings = {"key": jax.random.key(3), "canaries": 5_000, "delta": 1e-5}
    bound = audit.one_run(train, **settings, method=method)
    assert bound.contradicts(4.3772) is found  # the ε of σ = 1
    assert bound.epsilon > 3.0
    assert "do not disturb each other" in bound.assumption


def test_canaries_are_checked():
    with pytest.raises(ValueError, match="one a canary"):
        audit.canary_bound(np.zeros(3), np.zeros(4, bool), delta=1e-5)
    with pytest.raises(ValueError, match="method"):
        audit.one_run(
            lambda key, included: included * 1.0,
            key=jax.random.key(0),
            canaries=4,
            delta=1e-5,
            method="best",
        )


@pytest.mark.parametrize("method", ["guesses", "gaussian", "normal"])
def test_a_level_in_place_of_a_confidence_is_refused_before_the_run(method):
    def train(key, included):
        raise AssertionError("trained for nothing")

    with pytest.raises(ValueError, match=r"confidence must lie in \[0.5, 1\), .* got 0.01"):
        audit.one_run(
            train, key=jax.random.key(0), canaries=100, guesses=20, delta=1e-5, confidence=0.01,
            method=method,
        )  # fmt: skip
