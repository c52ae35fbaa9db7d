"""The threshold bound: exact limits, valid after the choice of a threshold, blind to nothing."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dpjax import audit
from dpjax.audit.bound import upper_limit


def _noisy_sum(key, data):
    return data.sum() + jax.random.laplace(key)


@pytest.mark.parametrize(("count", "runs"), [(0, 50), (3, 50), (49, 50), (7, 50_000)])
def test_upper_limit_is_clopper_pearson(count, runs):
    level = 5e-4
    limit = float(upper_limit(count, runs, level))
    # The limit p solves P[Binomial(runs, p) ≤ count] = level.
    with mpmath.workdps(40):
        tail = mpmath.fsum(
            mpmath.binomial(runs, i)
            * mpmath.mpf(limit) ** i
            * (1 - mpmath.mpf(limit)) ** (runs - i)
            for i in range(count + 1)
        )
    assert float(tail) == pytest.approx(level, rel=1e-9)


def test_upper_limit_is_one_when_every_run_errs():
    assert upper_limit(50, 50, 1e-3) == 1.0


def test_perfect_separation_gives_the_closed_form():
    runs, confidence = 10_000, 0.99
    bound = audit.distinguishing_bound(
        np.zeros(runs), np.ones(runs), delta=0.01, confidence=confidence
    )
    rate = 1.0 - ((1.0 - confidence) / 2) ** (2 / runs)
    assert bound.epsilon == pytest.approx(math.log((1.0 - rate - 0.01) / rate), rel=1e-9)
    assert bound.evidence.false_positives == bound.evidence.false_negatives == 0


def test_the_side_of_the_threshold_does_not_matter():
    rng = np.random.default_rng(0)
    scores, others = rng.normal(size=20_000), 1.0 + rng.normal(size=20_000)
    up = audit.distinguishing_bound(scores, others, delta=1e-3)
    down = audit.distinguishing_bound(-scores, -others, delta=1e-3)
    assert up.epsilon == pytest.approx(down.epsilon, rel=1e-6)
    assert up.evidence.above
    assert not down.evidence.above


def test_identical_worlds_give_zero_at_the_stated_rate():
    # With 90 % confidence at most a tenth of the audits of a constant release may exceed zero.
    wrong = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        bound = audit.distinguishing_bound(
            rng.normal(size=400), rng.normal(size=400), delta=0.0, confidence=0.9
        )
        wrong += bound.epsilon > 0.0
    # P[Binomial(200, 0.1) > 35] < 4e-4.
    assert wrong <= 35


def test_laplace_is_found_within_its_epsilon_and_close_to_it():
    bound = audit.distinguish(
        _noisy_sum, jnp.zeros(2), jnp.array([0.0, 1.0]), key=jax.random.key(0), delta=0.0
    )
    assert 0.9 < bound.epsilon <= 1.0


def test_a_discrete_score_is_cut_between_its_atoms():
    rng = np.random.default_rng(1)
    truth = 1.0 / (1.0 + math.exp(-2.0))
    scores = (rng.random(50_000) > truth).astype(float)
    others = (rng.random(50_000) < truth).astype(float)
    bound = audit.distinguishing_bound(scores, others, delta=0.0)
    assert 1.9 < bound.epsilon <= 2.0


def test_infinite_scores_are_ordered():
    scores = np.where(np.arange(2_000) % 2, -np.inf, 0.0)
    bound = audit.distinguishing_bound(scores, np.full(2_000, np.inf), delta=0.0)
    assert bound.epsilon > 4.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"delta": -0.1}, "delta must .* got -0.1"),
        ({"delta": 0.1, "confidence": 1.0}, "confidence must .* got 1.0"),
        # The level of a test for its confidence: wrong 99 times in 100, it contradicts nothing.
        ({"delta": 0.1, "confidence": 0.01}, r"confidence must lie in \[0.5, 1\), .* got 0.01"),
    ],
)
def test_bad_levels_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        audit.distinguishing_bound(np.zeros(10), np.ones(10), **arguments)


def test_unequal_worlds_are_refused():
    with pytest.raises(ValueError, match="same number of runs"):
        audit.distinguishing_bound(np.zeros(10), np.ones(12), delta=0.1)


def test_unknown_method_is_refused():
    with pytest.raises(ValueError, match="got 'best'"):
        audit.distinguish(
            _noisy_sum, jnp.zeros(1), jnp.ones(1), key=jax.random.key(0), delta=0.1, method="best"
        )


def test_a_claim_is_judged_and_described():
    bound = audit.distinguishing_bound(np.zeros(2_000), np.ones(2_000), delta=0.0)
    assert bound.contradicts(1.0)
    assert not bound.contradicts(math.inf)
    assert "99.9 % confidence" in bound.describe()
    assert "0 of 1000 runs on the data set and 1000 of 1000 on its neighbour" in bound.describe()
