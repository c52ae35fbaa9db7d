"""`clip_and_sum`: any function of one record, against loops in NumPy; and DP-FedAvg by it."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import accounting as acc
from dpjax import transforms
from dpjax.gradients import Automatic, PerGroup

# ---- what a user writes ----------------------------------------------------------------------

CLIENTS, ROWS, STEPS, RATE, CLIP, NOISE = 40, 6, 5, 0.25, 0.5, 2.0


def local_update(weights, client):
    """How far a client's own steps of gradient descent move the model."""
    x, y = client

    def step(w, _):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        return w - 0.1 * gradient, loss

    after, losses = jax.lax.scan(step, weights, length=STEPS)
    return after - weights, losses[0]


def federated(weights, clients, key, rounds):
    chain = optax.chain(
        transforms.gaussian_noise(NOISE * CLIP, key), optax.scale(1 / (RATE * CLIENTS))
    )
    state, sampling_key = chain.init(weights), jax.random.fold_in(key, 1)
    for number in range(rounds):
        clip = dpjax.clip_and_sum(lambda c, w=weights: local_update(w, c), CLIP, has_aux=True)
        who = dpjax.sampling.poisson(sampling_key, number, population=CLIENTS, rate=RATE)
        of_round = jax.tree.map(lambda rows: rows[who.indices], clients)  # noqa: B023
        moved, state = chain.update(clip(of_round, who.mask).sum, state)
        weights = optax.apply_updates(weights, moved)
    step = acc.PoissonSampled(transforms.released(chain, clip), RATE)
    return weights, acc.certify(acc.Repeated(step, rounds), delta=1e-5)


# ----------------------------------------------------------------------------------------------


def clients():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS, ROWS, 3)).astype(np.float32)
    return x, (x @ np.float32([1, -2, 3])).astype(np.float32)


def test_federated_averaging_is_priced_by_what_is_clipped():
    weights, certificate = federated(jnp.zeros(3), clients(), jax.random.key(0), rounds=3)
    assert np.all(np.isfinite(weights))
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(NOISE), RATE), 3)
    assert certificate.epsilon == acc.epsilon(run, delta=1e-5)


@pytest.mark.parametrize("pieces", ["auto", None, 7])
def test_the_sum_is_that_of_a_loop(pieces):
    x, y = clients()
    x[3], mask = np.nan, np.arange(CLIENTS) != 5
    fn = dpjax.clip_and_sum(
        lambda c: local_update(jnp.zeros(3), c), CLIP, microbatch_size=pieces, has_aux=True
    )
    out, total = jax.jit(fn)((x, y), mask), np.zeros(3)
    for i in range(CLIENTS):
        w = np.zeros(3)
        first = np.mean(y[i].astype(np.float64) ** 2)
        for _ in range(STEPS):
            w -= 0.1 * 2 / ROWS * x[i].T.astype(np.float64) @ (x[i] @ w - y[i])
        norm = np.linalg.norm(w)
        if i != 3:
            np.testing.assert_allclose(out.values[i], first, rtol=1e-5)
            np.testing.assert_allclose(out.norms[i], norm * mask[i], rtol=1e-4)
            total += mask[i] * w * min(1, CLIP / norm)
    assert not np.isfinite(out.norms[3])
    np.testing.assert_allclose(out.sum, total, rtol=1e-4)


@pytest.mark.parametrize("strategy", [Automatic(0.1), PerGroup(lambda path, leaf: path)])
def test_clipped_grad_is_the_case_of_a_gradient(strategy):
    params = {"a": jnp.ones((3, 2)), "b": jnp.ones(2)}
    batch = jnp.asarray(np.random.default_rng(1).normal(size=(9, 3)), jnp.float32)

    def loss(p, x):
        return jnp.sum(jnp.tanh(x @ p["a"]) * p["b"])

    expected = dpjax.clipped_grad(loss, 0.7, "vmap", clipping=strategy)(params, batch)
    found = dpjax.clip_and_sum(lambda x: jax.grad(loss)(params, x), 0.7, clipping=strategy)(batch)
    chex.assert_trees_all_close((found.sum, found.norms), expected[:2], rtol=1e-6)
    empty = dpjax.clip_and_sum(lambda x: jax.grad(loss)(params, x), 0.7)(batch[:0])
    chex.assert_trees_all_equal(empty.sum, jax.tree.map(jnp.zeros_like, params))
    assert empty.norms.shape == (0,)


@pytest.mark.parametrize(
    ("function", "clip_norm", "batch", "message"),
    [
        (lambda x: x.astype(int), 1.0, jnp.ones(3), "function must return real floating-point"),
        (
            lambda x: x.astype("complex64"),
            1.0,
            jnp.ones(3),
            "function must return real floating-point",
        ),
        (lambda x: (), 1.0, jnp.ones(3), "function must return real floating-point"),
        (lambda x: x, 0.0, jnp.ones(3), "clip_norm must be .*, got 0.0"),
        (lambda x: x, 1.0, (jnp.ones(3), jnp.ones(2)), "batch must have one number of records"),
    ],
)
def test_what_cannot_be_clipped_is_refused(function, clip_norm, batch, message):
    with pytest.raises(ValueError, match=message):
        dpjax.clip_and_sum(function, clip_norm)(batch)


# ---- statistics and clusters: what a user writes ------------------------------------------------

POINTS, REACH = 20_000, 2.0


def private_moments(points, key):
    """Mean and covariance of points from one noisy sum of (x, xxᵀ), and its certificate."""
    clip = dpjax.clip_and_sum(lambda x: (x, jnp.outer(x, x)), REACH)
    noise = optax.chain(transforms.gaussian_noise(4.0 * REACH, key))
    clipped = clip(points, jnp.ones(len(points), bool)).sum
    (first, second), _ = noise.update(clipped, noise.init(clipped))
    mean = first / len(points)
    covariance = second / len(points) - jnp.outer(mean, mean)
    return mean, covariance, acc.certify(transforms.released(noise, clip), delta=1e-6)


def private_clusters(points, centres, key, rounds):
    """Lloyd's rounds on noisy counts and sums of the nearest centre's points, and a certificate."""
    chain = optax.chain(transforms.gaussian_noise(8.0 * REACH, key))
    state = chain.init((jnp.zeros(len(centres)), centres))
    for _ in range(rounds):

        def vote(x, centres=centres):
            one = jax.nn.one_hot(
                jnp.argmin(jnp.sum((centres - x[None]) ** 2, axis=1)), len(centres)
            )
            return one, jnp.outer(one, x)

        clip = dpjax.clip_and_sum(vote, REACH)
        clipped = clip(points, jnp.ones(len(points), bool)).sum
        (counts, sums), state = chain.update(clipped, state)
        centres = sums / jnp.maximum(counts, 1.0)[:, None]
    run = acc.Repeated(transforms.released(chain, clip), rounds)
    return centres, acc.certify(run, delta=1e-6)


# ----------------------------------------------------------------------------------------------


@pytest.mark.at_length
def test_private_moments_are_those_of_the_points():
    # No record is longer than the clip norm: |x|² + |x|⁴ < 4, so that noise alone is added.
    points = np.random.default_rng(1).uniform(-0.7, 0.7, (POINTS, 2)).astype(np.float32)
    mean, covariance, certificate = private_moments(points, jax.random.key(3))
    away = 5 * 4.0 * REACH / POINTS  # five standard deviations of a mean's noise
    np.testing.assert_allclose(mean, points.mean(0), atol=away)
    np.testing.assert_allclose(covariance, np.cov(points.T, bias=True), atol=2 * away)
    assert np.abs(mean - points.mean(0)).max() > 1e-6
    assert certificate.epsilon == acc.epsilon(acc.Gaussian(4.0), delta=1e-6)


@pytest.mark.at_length
def test_private_clusters_find_the_centres():
    rng, truth = np.random.default_rng(2), np.float32([[-0.8, 0.0], [0.6, 0.7], [0.5, -0.7]])
    points = truth[rng.integers(3, size=POINTS)] + 0.1 * rng.normal(size=(POINTS, 2))
    start = jnp.float32([[-0.1, 0.1], [0.1, 0.2], [0.1, -0.2]])
    found, certificate = private_clusters(
        points.astype(np.float32), start, jax.random.key(4), rounds=5
    )
    # A third of the points each: noise of 16 in sums and counts, and the clouds' own spread.
    np.testing.assert_allclose(found, truth, atol=5 * 16 * 2 / (POINTS / 3))
    run = acc.Repeated(acc.Gaussian(8.0), 5)
    assert certificate.epsilon == acc.epsilon(run, delta=1e-6)
