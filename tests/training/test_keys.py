"""A loss with a key: one a record, the same in every piece and after a resume; augmented copies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import accounting as acc
from dpjax import sampling, training
from dpjax.training.step_config import failure_probability, rounding_sensitivity

N, STEPS, KEY = 20, 4, jax.random.key(5)
DATA = (
    np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32),
    (np.arange(N) % 2).astype(np.float32),
)
START = {"w": jnp.full((3, 4), 0.1), "v": jnp.full(4, 0.2)}
# The noise is far below the differences that are looked at.
QUIET = training.Plan(
    acc.Repeated(acc.PoissonSampled(acc.Gaussian(1e-5), 0.5), STEPS),
    clip_norm=0.7, population=N, delta=1e-5,
)  # fmt: skip


@pytest.fixture(autouse=True)
def flat_price(monkeypatch):
    monkeypatch.setattr(acc, "epsilon", lambda run, *_, **__: np.ones(np.shape(run.steps)))


def dropout(params, example, key):
    x, y = example
    hidden = jnp.tanh(x @ params["w"])
    kept = jax.random.bernoulli(key, 0.5, hidden.shape)
    return 0.5 * (jnp.where(kept, 2 * hidden, 0.0) @ params["v"] - y) ** 2


def plain(params, example):
    x, y = example
    return 0.5 * (jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2


def jitter(example, key):
    x, y = example
    return x + 0.1 * jax.random.normal(key, x.shape), y


def copies_by_hand(params, example, key, copies=3):
    """The mean over copies as a loop."""
    losses = []
    for own in jax.random.split(key, copies):
        losses.append(plain(params, jitter(example, jax.random.split(own)[0])))
    return sum(losses) / copies


def run(loss, plan=QUIET, data=DATA, **options):
    settings = {"optimizer": optax.sgd(0.5), "key": KEY, "loss_takes_key": True, **options}
    return training.fit(loss, START, data, plan, **settings).params


def by_hand(loss, key=KEY):
    """Brute force: a loop over steps and records, each record's key made by the documented rule."""
    params, (x, y) = START, DATA
    gradient = jax.jit(jax.grad(loss))
    for step in range(STEPS):
        flags = sampling.poisson_inclusion(jax.random.fold_in(key, 0), step, population=N, rate=0.5)
        total = jax.tree.map(np.zeros_like, params)
        for i in np.flatnonzero(flags):
            own = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, 2), step), i)
            g = gradient(params, (x[i], y[i]), own)
            norm = np.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(g)))
            factor = min(1.0, QUIET.clip_norm / max(norm, 1e-30))
            total = jax.tree.map(lambda t, leaf, f=factor: t + f * np.asarray(leaf), total, g)
        params = jax.tree.map(lambda p, t: p - 0.5 * t / (0.5 * N), params, total)
    return params


@pytest.mark.parametrize("method", ["vmap", "ghost"])
@pytest.mark.at_length(every=2)
def test_a_records_key_is_a_function_of_run_step_and_record(method):
    found = run(dropout, method=method)
    expected = by_hand(dropout)
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], atol=2e-5)
    other = by_hand(dropout, jax.random.key(6))
    assert not np.allclose(found["w"], other["w"], atol=2e-3)


@pytest.mark.parametrize("method", ["vmap", "ghost"])
@pytest.mark.at_length(every=2)
def test_copies_are_averaged_before_clipping(method):
    found = run(training.augmented(plain, jitter, 3), method=method)
    expected = by_hand(copies_by_hand)
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], atol=2e-5)


@pytest.mark.at_length
def test_pieces_repeat_the_keys():
    whole = run(dropout)
    for capacity in (1, 7):
        for name, value in run(dropout, capacity=capacity).items():
            np.testing.assert_allclose(value, whole[name], atol=2e-5)


@pytest.mark.at_length
def test_copies_leave_the_sensitivity_as_it_is():
    """One record more moves the sum by its clipped mean: at most the clip norm, and that is met."""
    step = acc.Repeated(acc.Gaussian(1e-6), 1)
    far = (
        np.concatenate([DATA[0], [[30.0, 30.0, 30.0]]]).astype(np.float32),
        np.append(DATA[1], np.float32(1e3)),
    )
    loss = training.augmented(plain, jitter, 5)
    sums = []
    for n in (N, N + 1):
        plan = training.Plan(step, clip_norm=0.7, population=n, delta=1e-5)
        found = run(loss, plan, (far[0][:n], far[1][:n]))
        sums.append(jax.tree.map(lambda a, b, n=n: (np.asarray(a) - b) * n / 0.5, found, START))
    moved = np.sqrt(
        sum(((a - b) ** 2).sum() for a, b in zip(*map(jax.tree.leaves, sums), strict=True))
    )
    slack = rounding_sensitivity(START, N + 1, failure_probability(plan))
    assert 0.69 < moved <= 0.7 * (1 + slack) + 1e-4  # the noise, and rounding of the sums


@pytest.mark.at_length
def test_a_resumed_run_repeats_the_keys(tmp_path):
    class Killed(Exception):
        pass

    def stop(row):
        if row["step"] == 2:
            raise Killed

    whole = run(dropout, log_every=1)
    with pytest.raises(Killed):
        run(dropout, log_every=1, folder=tmp_path, on_log=stop, checkpoint_every=1)
    rest = run(dropout, log_every=1, folder=tmp_path, resume=True, key=None)
    for name in whole:
        np.testing.assert_array_equal(rest[name], whole[name])
    with pytest.raises(training.CheckpointError, match="its loss differs"):
        run(lambda p, e, key: 2.0 * dropout(p, e, key), folder=tmp_path, resume=True, log_every=1)


def test_the_pure_step_takes_the_same_keys():
    pure = training.training_step(
        dropout, START, QUIET, optimizer=optax.sgd(0.5), loss_takes_key=True
    )
    state, update = pure.init(START), jax.jit(pure.update)
    for _ in range(STEPS):
        state, _ = update(state, jax.tree.map(jnp.asarray, DATA), KEY)
    for name, value in run(dropout).items():
        np.testing.assert_allclose(state["params"][name], value, rtol=1e-6)


def test_bad_copies_are_refused():
    with pytest.raises(ValueError, match="copies must be at least 1, got 0"):
        training.augmented(plain, jitter, 0)
