"""`fit` of a `clip_and_sum`: DP-FedAvg with its certificate; and losses of another signature."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import training
from dpjax.gradients import Automatic

# ---- what a user writes ----------------------------------------------------------------------

CLIENTS, ROWS, LOCAL_STEPS, CLIP = 40, 6, 5, 0.5


def local_update(weights, client):
    """From where a client's own steps of gradient descent lead back to the model, and its loss."""
    x, y = client

    def step(w, _):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        return w - 0.1 * gradient, loss

    after, losses = jax.lax.scan(step, weights, length=LOCAL_STEPS)
    return weights - after, losses[0]


def clip_updates(weights):
    return dpjax.clip_and_sum(lambda client: local_update(weights, client), CLIP, has_aux=True)


def federated(clients, key, **options):
    plan = training.make_plan(
        CLIENTS, noise_multiplier=2.0, delta=1e-5, steps=3, batch_size=10, clip_norm=CLIP
    )
    result = training.fit(
        clip_updates, jnp.zeros(3), clients, plan, optimizer=optax.sgd(1.0), key=key, **options
    )
    return result, plan


# ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clients():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS, ROWS, 3)).astype(np.float32)
    return x, (x @ np.float32([1, -2, 3])).astype(np.float32)


@pytest.mark.at_length
def test_federated_averaging_is_that_of_a_loop_and_certified(clients):
    key = jax.random.key(0)
    result, plan = federated(clients, key, log_private_losses=True)
    weights = jnp.zeros(3)
    noise = training.training_step(  # the same noise and batches, of updates that are zero
        lambda w: dpjax.clip_and_sum(lambda c: jnp.zeros(3), CLIP),
        weights, plan, optimizer=optax.sgd(1.0),
    )  # fmt: skip
    for number in range(3):
        who = dpjax.sampling.poisson(
            jax.random.fold_in(key, 0), number, population=CLIENTS, rate=10 / CLIENTS
        )
        total = np.zeros(3)
        for i in np.asarray(who.indices)[np.asarray(who.mask)]:
            update = np.asarray(local_update(weights, (clients[0][i], clients[1][i]))[0])
            total += update * min(1, CLIP / np.linalg.norm(update))
        state = noise.init(jnp.zeros(3)) | {"step": jnp.int32(number)}
        noisy = noise.update(state, clients, key)[0]["params"]
        weights = weights - total / 10 + noisy
    np.testing.assert_allclose(result.params, weights, rtol=1e-4)
    assert np.all(result.metrics["clipped"][1:] > 0)
    assert np.all(result.metrics["train_loss"][1:] > 1)
    certificate = plan.certify()
    run = dpjax.accounting.Repeated(
        dpjax.accounting.PoissonSampled(dpjax.accounting.Gaussian(2.0), 0.25), 3
    )
    reserved = sum(plan.extra_delta.values())
    assert certificate.epsilon == dpjax.accounting.epsilon(run, delta=1e-5 - reserved)


@pytest.mark.at_length
def test_a_step_is_that_of_fit_and_may_move_the_clip_norm(clients):
    key = jax.random.key(1)
    result, plan = federated(clients, key)
    step = training.training_step(clip_updates, jnp.zeros(3), plan, optimizer=optax.sgd(1.0))
    state, update = step.init(jnp.zeros(3)), jax.jit(step.update)
    for _ in range(3):
        state, _ = update(state, clients, key)
    np.testing.assert_allclose(state["params"], result.params, rtol=1e-6)
    adaptive = dpjax.gradients.AdaptiveQuantile(count_noise=4.0, batch_size=10)
    moving = training.make_plan(
        CLIENTS, noise_multiplier=2.0, delta=1e-5, steps=3, batch_size=10, clip_norm=CLIP,
        adaptive=adaptive,
    )  # fmt: skip
    moved = training.fit(
        clip_updates, jnp.zeros(3), clients, moving, optimizer=optax.sgd(1.0), key=key
    )
    assert moved.clip_norm > CLIP  # most updates are longer


def test_a_folder_knows_the_function_and_its_pieces(clients, tmp_path):
    key = jax.random.key(2)
    whole, plan = federated(clients, key)
    settings = {"optimizer": optax.sgd(1.0), "folder": tmp_path, "resume": True}
    first = iter([False, True])
    training.fit(
        clip_updates, jnp.zeros(3), clients, plan, key=key, stop_when=lambda _: next(first),
        log_every=1, **settings,
    )  # fmt: skip
    for other in (
        lambda w: dpjax.clip_and_sum(lambda c: local_update(2 * w, c), CLIP, has_aux=True),
        lambda w: dpjax.clip_and_sum(
            lambda c: local_update(w, c), CLIP, has_aux=True, microbatch_size=3
        ),
    ):
        with pytest.raises(training.CheckpointError, match="its loss differs"):
            training.fit(other, jnp.zeros(3), clients, plan, log_every=1, **settings)
    resumed = training.fit(clip_updates, jnp.zeros(3), clients, plan, log_every=1, **settings)
    np.testing.assert_array_equal(resumed.params, whole.params)


def _sums(function, clip_norm=CLIP, **settings):
    return lambda w: dpjax.clip_and_sum(lambda c: function(w, c), clip_norm, **settings)


UPDATES = _sums(lambda w, c: local_update(w, c)[0])


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        (_sums(lambda w, c: w, 0.25), {}, "clip_norm of clip_and_sum must be the plan's 0.5"),
        (_sums(lambda w, c: w[:2]), {}, "must return a tree like the parameters"),
        (lambda w: jnp.sum(w), {}, "loss must take .params, example., or params alone and return"),
        (UPDATES, {"method": "ghost"}, "method must be as by default where loss makes"),
        (UPDATES, {"clipping": Automatic(0.1)}, "clipping must be as by default"),
        (UPDATES, {"loss_takes_key": True}, "loss_takes_key must be as by default"),
    ],
)
def test_what_a_clipped_sum_cannot_be_is_refused(loss, options, message, clients):
    plan = training.make_plan(
        CLIENTS, noise_multiplier=2.0, delta=1e-5, steps=3, batch_size=10, clip_norm=CLIP
    )
    with pytest.raises(ValueError, match=message):
        training.fit(loss, jnp.zeros(3), clients, plan, optimizer=optax.sgd(1.0), **options)


# ------------------------------------------------------------------ losses of another signature


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        (
            lambda w, x, y: jnp.mean((x @ w - y) ** 2),
            {},
            r"loss must take .params, example., where .* lambda params, example: loss.params, \*ex",
        ),
        (
            lambda w, x, y, key: jnp.mean((x @ w - y) ** 2),
            {"loss_takes_key": True},
            r"give lambda params, example, key: loss.params, \*example, key.",
        ),
        (
            lambda w, c: (c[0] @ w - c[1]) ** 2,
            {},
            r"loss must be one number for a record, got shape .6,.: sum or average",
        ),
        (lambda w, c: (jnp.sum(w), {}), {}, "loss must be one number for a record, got tuple"),
        (lambda w, c: None, {}, "loss must be one number for a record, got NoneType"),
    ],
)
def test_a_loss_of_another_signature_is_told_what_to_write(loss, options, message, clients):
    plan = training.make_plan(CLIENTS, noise_multiplier=2.0, delta=1e-5, steps=3, batch_size=10)
    settings = {"optimizer": optax.sgd(1.0), **options}
    with pytest.raises(ValueError, match=message):
        training.fit(loss, jnp.zeros(3), clients, plan, **settings)
    step = training.training_step(loss, jnp.zeros(3), plan, **settings)
    with pytest.raises(ValueError, match=message):
        step.update(step.init(jnp.zeros(3)), clients, jax.random.key(0))
