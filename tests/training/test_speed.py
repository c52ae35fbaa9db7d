"""What is shown of a run while it goes on."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import accounting as acc
from dpjax import training
from dpjax.training import loop as speeds
from dpjax.training.options import SHOWN

X = np.arange(12, dtype=np.float32) / 4


def loss(w, x):
    return w * x  # its gradient is x


def fitted(mechanism, **options):
    plan = training.Plan(mechanism, clip_norm=1.0, population=len(X), delta=1e-5)
    return training.fit(
        loss, jnp.zeros(()), X, plan, optimizer=optax.sgd(0.1), key=jax.random.key(0), **options
    )


@pytest.mark.parametrize("capacity", [None, 5])
def test_the_clipped_share_is_that_of_the_records_drawn(capacity):
    """Of 0, ¼, …, 2¾ those above 1 are clipped; not finite ones are counted apart."""
    found = fitted(
        acc.Repeated(acc.Gaussian(1.0), 4), log_every=2, capacity=capacity, log_private_losses=True
    )
    assert math.isnan(found.metrics["clipped"][0])
    assert found.metrics["clipped"][1:].tolist() == [7 / 12, 7 / 12]


def test_the_clipped_share_on_several_devices_is_that_of_one():
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.5), 3)
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    one, four = (
        fitted(run, mesh=mesh, log_every=1, log_private_losses=True).metrics["clipped"]
        for mesh in (None, mesh)
    )
    np.testing.assert_array_equal(one, four)
    assert len(set(one[1:])) > 1


def test_speed_and_memory_are_shown_and_kept_nowhere(monkeypatch):
    took, real = speeds.Speed.record_timing, []

    def two_seconds(speed, first, stop, seconds):
        real.append(seconds)
        took(speed, first, stop, 2.0)

    monkeypatch.setattr(speeds.Speed, "record_timing", two_seconds)
    monkeypatch.setattr(speeds, "peak_memory", lambda params: 3e6)
    rows, stops = [], []
    run = acc.Composed(
        (
            acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.25), 2),
            acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.0), 0.5), 2),
        )
    )
    found = fitted(
        run, log_every=1, on_log=rows.append, stop_when=lambda row: stops.append(row) or False
    )
    assert list(found.metrics) == ["step", "epsilon"]
    assert all(set(row) == {"step", "epsilon"} for row in stops)
    assert min(real) > 0
    assert math.isnan(rows[0]["steps_per_second"])
    assert math.isnan(rows[0]["records_per_second"])
    for row, records in zip(rows[1:], [3, 3, 6, 6], strict=True):
        assert row["steps_per_second"] == 0.5
        assert row["records_per_second"] == records / 2
    assert [row["memory"] for row in rows] == [3e6] * 5


def test_compiling_is_not_taken_for_slowness():
    plan = training.make_plan(400, noise_multiplier=2.0, delta=1e-5, steps=100, batch_size=100)
    speed = speeds.Speed(plan)
    speed.record_timing(0, 1, seconds=50.0)
    assert speed.row(None)["steps_per_second"] == 1 / 50  # there is nothing else to go by
    speed.record_timing(1, 5, seconds=2.0)
    speed.record_timing(5, 9, seconds=2.0)
    assert speed.row(None)["records_per_second"] == 200.0
    assert math.isnan(speed.row(None)["steps_per_second"])


def test_memory_is_the_devices_where_it_tells(monkeypatch):
    class Device:
        def __init__(self, peak):
            self.peak = peak

        def memory_stats(self):
            return {"peak_bytes_in_use": self.peak}

    monkeypatch.setattr(speeds, "_list_devices", lambda params: [Device(5), Device(7)])
    assert speeds.peak_memory(jnp.zeros(1)) == 7.0


def test_memory_is_else_the_process():
    before = speeds.peak_memory(jnp.zeros(1))
    held = np.ones(1 << 26, np.uint8)  # 67 MB
    assert held.sum() == 1 << 26
    assert 1e7 < before <= speeds.peak_memory(jnp.zeros(1)) < 1e12


def test_a_line_says_what_is_known():
    row = {"step": 1_000, "epsilon": 0.5, "train_loss": math.nan}
    row |= dict.fromkeys(SHOWN, math.nan)
    assert training.progress_line(row) == "step 1,000, ε 0.5"
    assert training.progress_line(row | {"memory": 2e6}) == "step 1,000, ε 0.5, 2 MB"
