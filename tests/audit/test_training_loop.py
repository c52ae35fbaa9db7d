"""A white-box audit of `training.fit` itself: its certificate holds, and noise / 1.5 shows.

A run's records are canaries, each in or out by its own coin; the loss is linear, so that canary i's
gradient is one clip norm along axis i in every step. With plain descent at rate 1 the released
parameters are minus the sum of all noisy averages, and their coordinate along a canary is the best
score for it. Noise that is independent between coordinates makes one run as many trials.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest

from dpjax import accounting as acc
from dpjax import audit, training, transforms

_CANARIES, _CLIP, _STEPS, _DELTA = 2_000, 0.5, 4, 1e-2


def _loss(params, record):
    axis, included = record
    return -included * 3.0 * _CLIP * params[axis]  # three clip norms long: fit has to clip it


def _scores(plan, key, included):
    """One run of `fit`; per canary, the sum of what the steps released along it."""
    records = jnp.arange(_CANARIES), included.astype(jnp.float32)
    out = training.fit(
        _loss,
        jnp.zeros(_CANARIES),
        records,
        plan,
        optimizer=optax.sgd(1.0),
        key=key,
        log_every=_STEPS,
        capacity=250,
    )
    return out.params


def _plan(noise_multiplier):
    run = acc.Repeated(acc.Gaussian(noise_multiplier), _STEPS)
    return training.Plan(run, clip_norm=_CLIP, population=_CANARIES, delta=_DELTA)


def _plant(monkeypatch, factor):
    """Makes `fit` add `factor` times the noise that it should."""
    original = transforms.gaussian_noise
    monkeypatch.setattr(transforms, "gaussian_noise", lambda s, key: original(factor * s, key))


@pytest.mark.at_length(every=3)
@pytest.mark.parametrize("factor", [1.0, 1 / 1.5, 0.5])
def test_the_certificate_holds_and_smaller_noise_refutes_it(factor, monkeypatch):
    plan = _plan(2.0)
    _plant(monkeypatch, factor)
    bound = audit.one_run(
        lambda key, included: _scores(plan, key, included),
        key=jax.random.key(20),
        canaries=_CANARIES,
        delta=_DELTA,
        method="normal",
    )
    claim = plan.certify().epsilon
    assert bound.contradicts(claim) is (factor < 1)
    assert bound.epsilon > 0.5 * claim  # the attack is not idle
    assert audit.smallest_factor(bound, claim) < 1.5  # nor blind to what is planted


@pytest.mark.parametrize("factor", [1.0, 0.125])
def test_one_run_bound(factor, monkeypatch):
    """The bound of one-run auditing assumes nothing, and so needs a louder mistake."""
    plan = _plan(4.0)
    _plant(monkeypatch, factor)
    bound = audit.one_run(
        lambda key, included: _scores(plan, key, included),
        key=jax.random.key(21),
        canaries=_CANARIES,
        guesses=400,
        delta=1e-5,
    )
    claim = acc.epsilon(plan.mechanism, delta=1e-5)
    assert bound.contradicts(claim) is (factor < 1)
