"""Bootstrap intervals: what they are, and that nothing takes them for a bound."""

from __future__ import annotations

import dataclasses
import json
import math

import jax
import numpy as np
import pytest
from scipy.stats import binom

from dpjax import audit
from dpjax.audit.gaussian_fit import gaussian_epsilon


def _worlds(seed, mu, runs):
    rng = np.random.default_rng(seed)
    return rng.normal(size=runs), mu + rng.normal(size=runs)


@pytest.mark.parametrize("method", ["normal", "threshold"])
def test_the_interval_holds_the_estimate_and_says_what_it_is_not(method):
    found = audit.bootstrap_interval(
        *_worlds(0, 1.0, 500), key=jax.random.key(0), delta=1e-2, method=method, resamples=200
    )
    assert found.low <= found.estimate <= found.high or method == "threshold"
    assert found.low < found.high
    assert found.proof is False
    assert json.loads(found.to_json())["proof"] is False
    assert "no proof" in found.describe()
    assert "proof=False" in repr(found)
    assert "proof=False" in str([found])
    assert not hasattr(found, "contradicts")
    assert not isinstance(found, audit.EmpiricalBound)
    with pytest.raises(TypeError):
        audit.BootstrapInterval(1.0, 2.0, 3.0, 1e-3, 0.95, "normal", 10, proof=True)
    with pytest.raises(ValueError, match="proof"):
        dataclasses.replace(found, proof=True)


def test_it_covers_the_truth_about_as_often_as_it_says_for_a_normal_score():
    truth = gaussian_epsilon(1.0, 1e-2)
    inside = 0
    for seed in range(50):
        found = audit.bootstrap_interval(
            *_worlds(seed, 1.0, 200),
            key=jax.random.key(seed),
            delta=1e-2,
            level=0.9,
            resamples=100,
        )
        inside += found.low <= truth <= found.high
    assert inside >= binom.ppf(1e-4, 50, 0.9)


def test_it_is_no_bound():
    # The cut is chosen on the runs that it is counted on: of nothing it makes something, always.
    ends = [
        audit.bootstrap_interval(
            *_worlds(seed, 0.0, 60),
            key=jax.random.key(seed),
            delta=1e-3,
            method="threshold",
            resamples=50,
        ).low
        for seed in range(20)
    ]
    assert sum(low > 0.0 for low in ends) >= 15  # where a bound may be above 0 once in 40


def test_the_key_decides():
    worlds = _worlds(3, 1.0, 100)
    first, same, other = (
        audit.bootstrap_interval(*worlds, key=jax.random.key(k), delta=1e-2, resamples=50)
        for k in (1, 1, 2)
    )
    assert first == same
    assert (first.low, first.high) != (other.low, other.high)


def test_scores_that_never_vary():
    apart = audit.bootstrap_interval(
        np.zeros(10), np.ones(10), key=jax.random.key(0), delta=1e-2, resamples=5
    )
    assert apart.low == math.inf
    alike = audit.bootstrap_interval(
        np.zeros(10), np.zeros(10), key=jax.random.key(0), delta=1e-2, resamples=5
    )
    assert (alike.low, alike.high) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"delta": 0.0}, "delta must lie"),
        ({"delta": 1.0}, "delta must lie"),
        ({"level": 1.0}, "level must lie"),
        ({"resamples": 1}, "resamples must be"),
        ({"method": "best"}, "method must be"),
    ],
)
def test_arguments_are_checked(given, said):
    settings = {"key": jax.random.key(0), "delta": 1e-2} | given
    with pytest.raises(ValueError, match=said):
        audit.bootstrap_interval(*_worlds(0, 1.0, 20), **settings)


def test_scores_are_checked():
    settings = {"key": jax.random.key(0), "delta": 1e-2}
    with pytest.raises(ValueError, match="scores must be of the same number"):
        audit.bootstrap_interval(np.zeros(3), np.zeros(3), **settings)
    with pytest.raises(ValueError, match="scores must be finite"):
        audit.bootstrap_interval(np.full(5, math.nan), np.zeros(5), **settings)
