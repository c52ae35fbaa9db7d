"""The plan holds one mechanism, keeps its budget, and refuses what cannot be run or paid."""

from __future__ import annotations

import pytest

from dpjax import accounting as acc
from dpjax import sampling, training

SETTINGS = {"delta": 1e-5, "steps": 20, "batch_size": 100}


def test_a_calibrated_plan_keeps_its_budget_and_certifies_it():
    plan = training.make_plan(400, epsilon=2.0, **SETTINGS)
    assert plan.rate == sampling.realised_rate(0.25)
    assert plan.expected_batch_size == 100.0
    assert plan.steps == 20
    certificate = plan.certify(not_covered=["something"])
    assert 1.99 < certificate.epsilon <= 2.0
    assert certificate.mechanism == plan.mechanism
    assert certificate.delta == 1e-5
    assert sum(certificate.extra_delta.values()) == pytest.approx(1e-8)
    assert certificate.not_covered == ("something",)
    assert certificate.declared["records"] == 400
    assert certificate.verify().epsilon == certificate.epsilon


def test_full_batches_are_not_called_sampled():
    plan = training.make_plan(50, noise_multiplier=3.0, delta=1e-5, steps=4, batch_size=50)
    assert plan.mechanism == acc.Repeated(acc.Gaussian(3.0), 4)
    assert plan.rate == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must .* got 0.0"),
        ({"epsilon": float("nan")}, "epsilon must .* got nan"),
        ({"delta": 1.0}, "delta must .* got 1.0"),
        ({"delta": 0.0}, "delta must .* got 0.0"),
        ({"steps": 0}, "steps must .* got 0"),
        ({"batch_size": 401}, "batch_size must be between 1 and 400, all the records, got 401"),
        ({"batch_size": 0}, "batch_size must .* got 0"),
        ({"clip_norm": 0.0}, "clip_norm must .* got 0.0"),
        ({"clip_norm": -1.0}, "clip_norm must .* got -1.0"),
        ({"noise_multiplier": 1.0}, "either epsilon, a budget, or noise_multiplier"),
        ({"extra_delta": {"an accident": 1.0}}, "reserved for .*an accident"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        training.make_plan(400, **({"epsilon": 1.0, **SETTINGS} | changes))


def test_a_mechanism_that_training_cannot_run_is_refused():
    def plan(step, **changes):
        settings = {"clip_norm": 1.0, "population": 100, "delta": 1e-5} | changes
        return training.Plan(acc.Repeated(step, 3), **settings)

    with pytest.raises(ValueError, match="sampler realises exactly"):
        plan(acc.PoissonSampled(acc.Gaussian(1.0), 0.1))
    with pytest.raises(ValueError, match="sample from 100 records, got 50"):
        plan(acc.FixedBatchSampled(acc.Gaussian(1.0), 10, 50))
    with pytest.raises(ValueError, match="the step must be"):
        plan(acc.UniformBall(0.1, 3))
