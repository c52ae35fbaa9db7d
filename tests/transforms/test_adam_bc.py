"""Adam without the noise's share of its second moments, against a loop and a known gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import training, transforms


def loop(gradients, stds, b1, b2, floor):
    m = v = s = 0.0
    for t, (g, std) in enumerate(zip(gradients, stds, strict=True), 1):
        m, v, s = (
            b * old + (1 - b) * new for b, old, new in ((b1, m, g), (b2, v, g * g), (b2, s, std**2))
        )
        yield m / (1 - b1**t) / np.sqrt(np.maximum((v - s) / (1 - b2**t), floor))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("noise_std", [0.0, 0.3, [0.1, 0.5, 0.2]])
def test_against_a_loop(noise_std, dtype):
    gradients = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)), dtype)
    stds = (
        list(np.atleast_1d(noise_std)) * 6 if np.ndim(noise_std) == 0 else [*noise_std, *[0.2] * 3]
    )[:6]
    tx = transforms.scale_by_adam_bc(noise_std, 0.8, 0.9, 1e-4)
    state = tx.init(gradients[0])
    wide = np.asarray(gradients, np.float64)
    for g, expected in zip(gradients, loop(wide, stds, 0.8, 0.9, 1e-4), strict=True):
        update, state = jax.jit(tx.update)(g, state)
        assert update.dtype == g.dtype
        np.testing.assert_allclose(
            np.asarray(update, np.float64), expected, rtol=2e-4 if dtype == "float32" else 1e-2
        )


def test_without_noise_it_is_adam(lenient_promotion):
    gradients = jnp.asarray(np.random.default_rng(1).normal(size=(5, 3)), jnp.float32)
    mine, adam = transforms.scale_by_adam_bc(0.0), optax.scale_by_adam(eps=0.0)
    state, other = mine.init(gradients[0]), adam.init(gradients[0])
    for g in gradients:
        update, state = mine.update(g, state)
        expected, other = adam.update(g, other)
        np.testing.assert_allclose(update, expected, rtol=1e-4)


def test_a_plans_noise_goes_through_fit():
    plan = training.make_plan(64, noise_multiplier=2.0, delta=1e-4, steps=3, batch_size=16)
    tx = optax.chain(transforms.scale_by_adam_bc(plan.noise_std(0)), optax.scale(-0.1))

    def loss(w, x):
        return jnp.sum(w * x)

    fit = training.fit(
        loss, jnp.zeros(2), np.ones((64, 2), np.float32), plan, optimizer=tx, key=jax.random.key(0)
    )
    assert np.all(np.isfinite(fit.params))
    assert np.all(fit.params != 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"noise_std": -1.0}, r"noise_std must .* got -1\.0"),
        ({"noise_std": []}, "noise_std must"),
        ({"noise_std": 1.0, "b1": 1.0}, r"b1 must .* got 1\.0"),
        ({"noise_std": 1.0, "b2": -0.1}, r"b2 must .* got -0\.1"),
        ({"noise_std": 1.0, "floor": 0.0}, r"floor must .* got 0\.0"),
    ],
)
def test_bad_numbers_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        transforms.scale_by_adam_bc(**given)
