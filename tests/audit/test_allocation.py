"""An audit of `training.fit`'s step under random allocation: its certificate holds, and is needed.

The optimal test reads the likelihood ratio of the epoch's releases. A record whose step everyone
knows, as in a pass whose order is no secret, breaks the certificate.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest

from dpjax import accounting as acc
from dpjax import audit, sampling, training

_STEPS, _SIGMA, _DELTA = 4, 0.8, 1e-2
_RUN = acc.RandomAllocation(acc.Gaussian(_SIGMA), _STEPS)


def _loss(params, included):
    return -included * 3.0 * params  # three clip norms long: the step has to clip it


def _score(known):
    """The epoch's likelihood ratio: of every step, or of the one that is known."""
    plan = training.Plan(_RUN, clip_norm=1.0, population=2, delta=_DELTA)
    step = training.training_step(_loss, jnp.zeros(()), plan, optimizer=optax.sgd(1.0), capacity=2)

    def score(key, included):
        def once(state, _):
            new, _ = step.update(state, included, key)
            released = (new["params"] - state["params"]) * plan.expected_batch_size
            return new, released

        _, released = jax.lax.scan(once, step.init(jnp.zeros(())), length=_STEPS)
        ratio = jnp.exp((released - 0.5) / _SIGMA**2)
        return ratio[0] if known else ratio.mean()

    return score


@pytest.mark.at_length(every=2)
@pytest.mark.parametrize("known", [False, True])
def test_the_certificate_holds_unless_the_step_is_known(known, monkeypatch):
    if known:
        monkeypatch.setattr(
            sampling,
            "allocation_inclusion",
            lambda key, epoch, step, *, population, **_: jnp.full(population, step == 0),
        )
    bound = audit.distinguish(
        _score(known),
        jnp.array([0.0, 0.0]),
        jnp.array([0.0, 1.0]),
        key=jax.random.key(7),
        delta=_DELTA,
        trials=40_000,
    )
    claim = acc.epsilon(_RUN, _DELTA)
    assert bound.contradicts(claim) is known
    assert bound.epsilon > 0.5 * claim  # the attack is not idle
