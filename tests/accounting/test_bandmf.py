"""jax_privacy's configuration of banded matrix factorisation, read by its fields."""

from __future__ import annotations

import types

import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax.accounting import interop


def config(**fields):
    given = {
        "strategy": np.array([1.0, 0.5, 0.2, 0.1], np.float32),
        "iterations": 1000,
        "sampling_prob": 0.4,
        "noise_multiplier": 3.0,
        "truncated_batch_size": None,
        "column_normalize": False,
    }
    return types.SimpleNamespace(**(given | fields))


def test_its_price_is_that_of_its_event():
    # amplified_bandmf_event: ⌈iterations/bands⌉ × PoissonSampled(Gaussian(noise_multiplier))
    for iterations, rounds in ((1000, 250), (1001, 251), (3, 1)):
        event = acc.Repeated(acc.PoissonSampled(acc.Gaussian(3.0), 0.4), rounds)
        found = interop.from_bandmf(config(iterations=iterations))
        assert acc.epsilon(found, 1e-5) == pytest.approx(acc.epsilon(event, 1e-5), rel=1e-6)


@pytest.mark.parametrize(
    "fields",
    [
        {"noise_multiplier": None},
        {"truncated_batch_size": 64},
        {"column_normalize": True},
        {
            "accountant": types.SimpleNamespace(
                neighboring_relation=types.SimpleNamespace(name="REPLACE_ONE")
            )
        },
        {"strategy": [1.0, 1.5]},
    ],
)
def test_what_means_something_else_is_refused(fields):
    with pytest.raises((TypeError, ValueError), match="must"):
        interop.from_bandmf(config(**fields))
