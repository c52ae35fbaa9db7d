"""Mechanisms through JSON and back, to the last bit."""

import json
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpjax import accounting as acc
from dpjax.accounting.answers.as_json import from_plain, to_plain

EXAMPLES = [
    acc.Gaussian(0.1 + 0.2),
    acc.UniformBall(0.01, 10),
    acc.Repeated(acc.PoissonSampled(acc.Gaussian(1 / 3), 0.01), 1_000),
    acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(4.0), 256, 60_000), 7),
    acc.Composed((acc.Gaussian(1.0), acc.Shuffled(acc.Gaussian(2.0), 20))),
    acc.Composed(()),
    acc.NoisyGradientDescent(100, 0.1, 0.02, 4 / 5000, 1.0, 2.0),
    acc.NoisyCyclicDescent(400, 0.1, 0.02, 4 / 100, 1.0, 2.0, batches=40, diameter=3.0),
    acc.RecentredGaussian(0.5, 0.01, 256),
    acc.BoxedAngles(0.1, 0.01, 256, 100),
    acc.TangentBall(0.3, 0.01, 256),
    acc.Anisotropic(1.0, 0.2, 0.02, 0.004, 256),
    acc.GeoDP(1.0, 0.1, 2048, 10, unsafe_no_dp=True),
    acc.BestOf(acc.Gaussian(4.0), expected_trials=30.0),
]


@pytest.mark.parametrize("run", EXAMPLES, ids=lambda run: type(run).__name__)
def test_round_trip(run):
    again = from_plain(json.loads(json.dumps(to_plain(run), allow_nan=False)))
    assert again == run
    assert jax.tree.structure(again) == jax.tree.structure(run)


def test_arrays_round_trip_and_price_the_same():
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(np.array([0.7, 1 / 3])), 0.01), 10)
    again = from_plain(json.loads(json.dumps(to_plain(run))))
    np.testing.assert_array_equal(
        again.mechanism.mechanism.noise_multiplier, run.mechanism.mechanism.noise_multiplier
    )
    mixed = acc.RandomizedSensitivity([0.1, 0.2], [0.5, 0.5], noise_std=1.0)
    again = from_plain(json.loads(json.dumps(to_plain(mixed))))
    assert acc.delta(again, 0.1) == acc.delta(mixed, 0.1)


@given(st.floats(0.0, 1e300))
def test_every_float_survives(sigma):
    again = from_plain(json.loads(json.dumps(to_plain(acc.Gaussian(sigma)))))
    assert again.noise_multiplier == sigma
    assert math.copysign(1.0, again.noise_multiplier) == math.copysign(1.0, sigma)


def test_infinity_is_written_as_text():
    run = acc.NoisyGradientDescent(1, 0.1, 0.1, 0.1, 0.0, 1.0)
    assert to_plain(run)["diameter"] == "inf"
    assert from_plain(to_plain(run)).diameter == math.inf


@pytest.mark.parametrize(
    "plain",
    [
        {"kind": "Laplace", "scale": 1.0},
        {"noise_multiplier": 1.0},
        {"kind": "Gaussian", "sigma": 1.0},
        {"kind": "Gaussian", "noise_multiplier": -1.0},
        {"kind": "GeoDP", "noise_multiplier": 1.0, "bounding_factor": 0.1, "batch_size": 1,
         "dimension": 2},
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(plain):
    with pytest.raises(acc.CertificateError, match="mechanism"):
        from_plain(plain)


def test_a_trace_has_nothing_to_write():
    with pytest.raises(TypeError, match="traced"):
        jax.jit(lambda s: to_plain(acc.Gaussian(s)))(1.0)
