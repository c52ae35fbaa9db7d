"""A killed run resumes to the last bit whatever samples its batches, within an epoch as well."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import accounting as acc
from dpjax import training

N = 24
OPTIONS = {"optimizer": optax.sgd(0.1, momentum=0.9), "log_every": 1, "checkpoint_every": 2}


class _Killed(Exception):
    pass


def _stop(row):
    if row["step"] == 5:
        raise _Killed


def _loss(w, x):
    return w @ x


@pytest.mark.parametrize("kind", ["random-allocation", "truncated-poisson", "with-replacement"])
@pytest.mark.at_length(every=3)
def test_a_killed_run_resumes_to_the_last_bit(kind, tmp_path, monkeypatch):
    # What runs is looked at, not what it costs.
    monkeypatch.setattr(acc, "epsilon", lambda run, *_, **__: np.ones(np.shape(run.steps)))
    cut = {"capacity": 5} if kind == "truncated-poisson" else {}
    plan = training.make_plan(
        N, sampling=kind, delta=1e-5, batch_size=8, steps=9, noise_multiplier=2.0, **cut
    )
    data, start = jax.random.normal(jax.random.key(1), (N, 5)), jnp.zeros(5)
    key = jax.random.key(2)
    whole = training.fit(_loss, start, data, plan, key=key, **OPTIONS)
    with pytest.raises(_Killed):
        training.fit(_loss, start, data, plan, key=key, folder=tmp_path, on_log=_stop, **OPTIONS)
    # The sampling goes on under the stored key.
    with pytest.warns(UserWarning, match="key is not used"):
        rest = training.fit(
            _loss, start, data, plan, key=jax.random.key(9), folder=tmp_path, resume=True, **OPTIONS
        )
    np.testing.assert_array_equal(rest.params, whole.params)
    other = training.fit(_loss, start, data, plan, key=jax.random.key(9), **OPTIONS)
    assert not np.array_equal(other.params, whole.params)
