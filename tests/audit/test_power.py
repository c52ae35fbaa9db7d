"""The smallest mistake that an audit could have seen, against simulated audits of that size."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from dpjax import audit
from dpjax.audit.gaussian_fit import gaussian_epsilon
from dpjax.audit.power import gaussian_mu


def _worlds(rng, mu, runs):
    return rng.normal(size=runs), mu + rng.normal(size=runs)


def _canaries(rng, mu, count, guesses, delta, bound=audit.one_run_bound):
    included = rng.random(count) < 0.5
    order = np.argsort(included * mu + rng.normal(size=count))
    half = guesses // 2
    correct = int(included[order[-half:]].sum() + (~included[order[:half]]).sum())
    return bound(canaries=count, guesses=guesses, correct=correct, delta=delta)


def _pairs(rng, mu, pairs, claim):
    """Bets against one claim, by cuts that are those of a normal score."""
    start = audit.start_bound(1e-2, np.linspace(-2.0, 4.0, 13), epsilons=[claim + 1e-9])

    def step(found, pair):
        return found.update(*pair), None

    worlds = np.stack(_worlds(rng, mu, pairs), axis=1)
    return jax.lax.scan(step, start, worlds)[0].bound()


AUDITS = {
    "threshold": lambda rng, mu: audit.distinguishing_bound(*_worlds(rng, mu, 8_000), delta=1e-2),
    "gaussian": lambda rng, mu: audit.gaussian_bound(*_worlds(rng, mu, 8_000), delta=1e-2),
    "normal": lambda rng, mu: audit.normal_shift_bound(*_worlds(rng, mu, 2_000), delta=1e-2),
    "one_run": lambda rng, mu: _canaries(rng, mu, 2_000, 200, 1e-6),
    "one_run_curve": lambda rng, mu: _canaries(
        rng, mu, 2_000, 200, 1e-6, audit.one_run_curve_bound
    ),
    "anytime": lambda rng, mu: _pairs(rng, mu, 500, gaussian_epsilon(1.0, 1e-2)),
}


@pytest.mark.parametrize("method", AUDITS)
@pytest.mark.at_length(every=2)
def test_a_mistake_of_that_size_is_seen_and_a_smaller_one_is_not(method):
    rng, run = np.random.default_rng(0), AUDITS[method]
    mu = 0.2 if method.startswith("one_run") else 1.0
    bound = run(rng, mu)
    claim = gaussian_epsilon(mu, bound.delta)
    factor = audit.smallest_factor(bound, claim)
    assert 1.0 < factor < 10.0

    def seen(by):
        return sum(run(rng, by * mu).contradicts(claim) for _ in range(50))

    # The choice of the cut costs the threshold a little: 0.9 is meant, 0.72 is held.
    assert seen(factor) >= 36
    assert seen((1.0 + factor) / 2.0) <= 25


def test_more_runs_see_smaller_mistakes():
    rng = np.random.default_rng(1)
    factors = [
        audit.smallest_factor(audit.normal_shift_bound(*_worlds(rng, 1.0, n), delta=1e-5), 4.377)
        for n in (200, 2_000, 20_000)
    ]
    assert factors == sorted(factors, reverse=True)
    assert 1.0 < factors[-1] < 1.1


def test_guesses_of_one_run_see_no_halved_noise_and_say_so():
    # The claim of a Gaussian with σ = 1 at δ = 1e-5; no share of right guesses reaches it.
    bound = audit.one_run_bound(canaries=5_000, guesses=200, correct=110, delta=1e-5)
    assert audit.smallest_factor(bound, 4.377) == math.inf
    assert "no reduction of Gaussian noise" in audit.describe_power(bound, 4.377)
    assert audit.one_run_bound(canaries=5_000, guesses=200, correct=200, delta=1e-5).epsilon < 4.377


@pytest.mark.parametrize("mu", [0.05, 1.0, 30.0])
def test_mu_is_recovered_from_its_epsilon(mu):
    assert gaussian_mu(gaussian_epsilon(mu, 1e-2), 1e-2) == pytest.approx(mu, rel=1e-6)


def test_the_sentence_names_claim_and_factor():
    rng = np.random.default_rng(2)
    bound = audit.normal_shift_bound(*_worlds(rng, 1.0, 2_000), delta=1e-5)
    factor = audit.smallest_factor(bound, 4.377)
    said = audit.describe_power(bound, 4.377)
    assert f"a claim of ε = 4.38 Gaussian noise too small by {factor:.3g} times" in said


@pytest.mark.parametrize("claim", [-1.0, math.nan])
def test_a_claim_is_checked(claim):
    bound = audit.one_run_bound(canaries=10, guesses=2, correct=1, delta=1e-5)
    with pytest.raises(ValueError, match="claim must be"):
        audit.smallest_factor(bound, claim)


def test_a_delta_of_zero_is_refused():
    with pytest.raises(ValueError, match="delta must be positive"):
        audit.smallest_factor(audit.one_run_bound(canaries=9, guesses=2, correct=1, delta=0.0), 1.0)


def test_a_claim_of_nothing_is_kept_by_some_noise_and_broken_by_less():
    # ε = 0 at δ = 0.05 is what μ = 2·Φ⁻¹(0.525) = 0.1254 just keeps.
    assert gaussian_mu(0.0, 0.05) == pytest.approx(0.1254135, rel=1e-6)
    assert gaussian_epsilon(gaussian_mu(0.0, 0.05), 0.05) == 0.0
    rng, runs = np.random.default_rng(4), 3_000

    def run(mu):
        return audit.normal_shift_bound(*_worlds(rng, mu, runs), delta=0.05, confidence=0.9)

    factor = audit.smallest_factor(run(0.1), 0.0)
    mu = gaussian_mu(0.0, 0.05)
    assert 1.0 < factor < 3.0
    assert sum(run(factor * mu).contradicts(0.0) for _ in range(50)) >= 36
    assert sum(run((1.0 + factor) / 2.0 * mu).contradicts(0.0) for _ in range(50)) <= 35


def test_an_infinite_or_empty_claim_has_no_factor():
    bound = audit.one_run_bound(canaries=10, guesses=2, correct=1, delta=1e-5)
    assert audit.smallest_factor(bound, math.inf) == math.inf
    assert audit.smallest_factor(bound, 0.0) == math.inf
