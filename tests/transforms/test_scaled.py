"""Adam on gradients scaled before the clip, against a loop, and the sums that it scales."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import clipped_grad, training, transforms


def loss(params, example):
    x, y = example
    return (x @ params["w"] + params["b"] - y) ** 2


def drawn(records: int, seed: int = 0):
    draws = np.random.default_rng(seed)
    x = draws.normal(size=(records, 3)) * np.array([1.0, 0.01, 30.0])
    params = {"w": jnp.asarray([0.5, -1.0, 2.0]), "b": jnp.asarray(0.1)}
    return params, (
        jnp.asarray(x, jnp.float32),
        jnp.asarray(draws.normal(size=records), jnp.float32),
    )


@pytest.mark.parametrize("removed", [0.0, 1.0])
def test_scaled_is_adam_on_what_is_multiplied_back(removed):
    """A loop in float64, the released gradients made by the scale of the state before."""
    gradients, std = np.random.default_rng(3).normal(size=(15, 4)), 0.5
    tx = transforms.scale_then_privatise(std, removed=removed)
    params = jnp.zeros(4)
    state, found, expected = tx.init(params), [], []
    mean, square, noise, scale = np.zeros(4), np.full(4, 0.25), np.full(4, 0.25), np.ones(4)
    for g in gradients:
        np.testing.assert_allclose(state.scale, scale, rtol=1e-4)
        step, state = tx.update(jnp.asarray(scale * g, jnp.float32), state, params)
        found.append(np.asarray(step, np.float64))
        mean = 0.9 * mean + 0.1 * g
        square, noise = (
            0.99 * square + 0.01 * g**2,
            0.99 * noise + 0.01 * (std / scale) ** 2,
        )
        kept = np.maximum(square - removed * noise, 0.1 * noise)
        expected.append(mean / np.sqrt(kept))
        scale = 1 / np.sqrt(kept)
        scale /= np.sqrt(np.mean(scale**2))
    np.testing.assert_allclose(np.stack(found), np.stack(expected), rtol=1e-3)


def test_a_scaled_sum_is_that_of_scaled_gradients():
    """Formed one by one in float64, and clipped there."""
    params, batch = drawn(20)
    scale = {"w": jnp.asarray([0.2, 50.0, 0.01]), "b": jnp.asarray(3.0)}
    found = clipped_grad(loss, 200.0, "vmap")(params, batch, scale=scale)
    total, norms = np.zeros(4), []
    for x, y in zip(*(np.asarray(part, np.float64) for part in batch), strict=True):
        residual = x @ np.array([0.5, -1.0, 2.0]) + float(params["b"]) - y
        g = 2 * residual * np.append(x, 1.0) * np.array([0.2, 50.0, 0.01, 3.0])
        norms.append(np.linalg.norm(g))
        total += g * min(1.0, 200.0 / norms[-1])
    np.testing.assert_allclose(np.append(found.sum["w"], found.sum["b"]), total, rtol=1e-4)
    np.testing.assert_allclose(found.norms, norms, rtol=1e-4)
    assert np.mean(np.array(norms) > 200.0) not in (0.0, 1.0)  # some are clipped, and some are not


@pytest.mark.parametrize("method", ["auto", "vmap"])
def test_a_scale_of_ones_changes_nothing(method):
    params, batch = drawn(40)
    ones = jax.tree.map(jnp.ones_like, params)
    plain = clipped_grad(loss, 1.0, "vmap")(params, batch)
    scaled = jax.jit(lambda s: clipped_grad(loss, 1.0, method)(params, batch, scale=s))(ones)
    for a, b in zip(jax.tree.leaves(plain.sum), jax.tree.leaves(scaled.sum), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_record_of_a_scale_that_is_not_finite_counts_for_nothing():
    params, batch = drawn(5)
    for bad in (jnp.inf, jnp.nan):
        scale = jax.tree.map(jnp.ones_like, params) | {"b": jnp.asarray(bad)}
        found = clipped_grad(loss, 1.0)(params, batch, scale=scale)
        assert found.nonfinite == 5
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(found.sum))


def test_no_records_have_a_sum_of_zero():
    params, batch = drawn(5)
    scale = jax.tree.map(jnp.ones_like, params)
    none = clipped_grad(loss, 1.0)(params, jax.tree.map(lambda x: x[:0], batch), scale=scale)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(none.sum))
    assert none.norms.shape == (0,)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (1.0, "scale must be a tree like the sum"),
        ({"w": jnp.ones(3)}, "scale must be a tree like the sum"),
        (
            {"w": jnp.ones(2), "b": jnp.ones(())},
            r"scale must have the parameters' shapes, got \(2,\)",
        ),
    ],
)
def test_another_scale_is_refused(scale, message):
    params, batch = drawn(5)
    with pytest.raises(ValueError, match=message):
        clipped_grad(loss, 1.0)(params, batch, scale=scale)


def test_the_ghost_method_that_was_asked_for_says_that_it_is_not_used():
    params, batch = drawn(5)
    scale = jax.tree.map(jnp.ones_like, params)
    with pytest.warns(UserWarning, match="gradients are scaled before they are clipped"):
        clipped_grad(loss, 1.0, "ghost")(params, batch, scale=scale)


def test_the_loop_of_the_page_learns_a_column_that_plain_noise_hides():
    """The weight of a column a hundredth as large, at one noise, by steps of one length."""
    plan = training.make_plan(400, noise_multiplier=1.0, delta=1e-4, steps=300, batch_size=400,
                              sampling="full")  # fmt: skip
    draws = np.random.default_rng(7)
    x = draws.normal(size=(400, 2)) * np.array([1.0, 0.01])
    labels = (x[:, 1] > 0).astype(np.float32)
    batch = jnp.asarray(x, jnp.float32), jnp.asarray(labels)

    def logistic(w, example):
        return optax.sigmoid_binary_cross_entropy(example[0] @ w, example[1])

    def learned(is_scaled: bool) -> float:
        own = transforms.scale_then_privatise(plan.noise_std(0)) if is_scaled else optax.trace(0.9)
        noise = transforms.gaussian_noise(400 * plan.noise_std(0), jax.random.key(8))
        clipped, rate = clipped_grad(logistic, 1.0), 0.3

        def step(_, carry):
            w, state, drawn = carry
            scale = state.scale if is_scaled else None
            total, drawn = noise.update(clipped(w, batch, scale=scale).sum, drawn)
            update, state = own.update(total / 400.0, state)
            return w - rate * update, state, drawn

        w = jnp.zeros(2)
        w, *_ = jax.lax.fori_loop(0, 300, step, (w, own.init(w), noise.init(w)))
        return float(np.mean((x @ np.asarray(w) > 0) == (labels > 0)))

    assert learned(True) > 0.9
    assert learned(False) < 0.8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"noise_std": 0.0}, r"noise_std must .* got 0\.0"),
        ({"noise_std": 1.0, "b1": 1.0}, r"b1 must .* got 1\.0"),
        ({"noise_std": 1.0, "b2": -0.1}, r"b2 must .* got -0\.1"),
        ({"noise_std": 1.0, "removed": 1.5}, r"removed must .* got 1\.5"),
    ],
)
def test_bad_numbers_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        transforms.scale_then_privatise(**given)
