"""A short run in a folder of its own, and how to interrupt it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import accounting as acc
from dpjax import training


class Interrupted(Exception):
    pass


@pytest.fixture
def stop_at():
    """`on_log` that stops a run at a row."""

    def make(step, error=Interrupted):
        def on_log(row):
            if row["step"] >= step:
                raise error

        return on_log

    make.error = Interrupted
    return make


def quadratic(w, row):
    return jnp.sum((w - row) ** 2)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of six steps in `tmp_path / "checkpoint"`, with what the test changes of it."""
    monkeypatch.setattr(acc, "epsilon", lambda run, *_, **__: np.ones(np.shape(run.steps)))
    x = np.arange(12, dtype=np.float32).reshape(6, 2) / 12

    def call(
        data=x, steps=6, noise=1.0, clip_norm=1.0, loss=quadratic, start=0.0, delta=1e-5, **options
    ):
        plan = training.Plan(
            acc.Repeated(acc.Gaussian(noise), steps),
            clip_norm=clip_norm,
            population=len(data),
            delta=delta,
        )
        settings = {
            "optimizer": optax.sgd(0.1, momentum=0.9),
            "key": jax.random.key(2),
            "folder": tmp_path / "checkpoint",
            "log_every": 2,
            "checkpoint_every": 2,
            "log_private_losses": True,
        }
        return training.fit(
            loss, jnp.full(2, start, jnp.float32), data, plan, **(settings | options)
        )

    return call
