"""Users whose records stay on the host: the run of the device, loaded as it draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax import training
from tests.training import test_sources as records
from tests.training.test_sources import Batched, Killed, Numbered, X, Y, flat_price

__all__ = ["flat_price"]

N, USERS, MOST = 40, 12, 4
OWNER = np.random.default_rng(3).permutation(np.repeat(np.arange(USERS), [1, 2, 9, 3, 1, 4] * 2))
NAMES = np.array([f"user {u:02d}" for u in OWNER])
WITH_USERS = {"users": NAMES, "records_per_user": MOST}


def plan_of(kind="poisson", steps=6):
    gaussian = acc.Gaussian(0.8)
    step = {
        "poisson": acc.PoissonSampled(gaussian, 0.375),
        "fixed": acc.FixedBatchSampled(gaussian, 4, USERS),
        "everyone": gaussian,
    }[kind]
    relation = acc.Adjacency.REPLACE_ONE if kind == "fixed" else acc.Adjacency.ADD_REMOVE
    settings = {"clip_norm": 0.7, "population": USERS, "delta": 1e-5, "unit": "user"}
    return training.Plan(acc.Repeated(step, steps), adjacency=relation, **settings)


def run(data, plan=None, **options):
    return records.run(data, plan or plan_of(), **(WITH_USERS | options))


@pytest.mark.parametrize("kind", ["arrays", "memory map", "list", "numbered", "batched"])
@pytest.mark.at_length(every=3)
def test_any_source_of_users_trains_the_model_of_the_device(kind, tmp_path):
    held = run((X, Y), log_private_losses=True)
    found = run(records.SOURCES[kind](tmp_path), log_private_losses=True)
    records.same(found, held)
    for name, column in held.metrics.items():
        np.testing.assert_allclose(found.metrics[name], column, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(("kind", "capacity"), [("poisson", 2), ("fixed", None), ("everyone", 5)])
@pytest.mark.at_length(every=3)
def test_a_user_s_sum_is_clipped_whoever_loads_it(kind, capacity):
    plan = plan_of(kind, steps=3)
    held, found = (run(data, plan, capacity=capacity) for data in ((X, Y), Batched()))
    records.same(found, held)


def test_a_step_sums_what_each_user_s_clipped_sum_gives():
    """Against a loop over users and records, in whose sum every user has at most the clip norm."""
    plan = training.Plan(acc.Repeated(acc.Gaussian(1e-6), 1), 0.7, USERS, 1e-5, unit="user")
    slope = np.arange(1.0, 7.0, dtype=np.float32)

    def loss(w, example):
        x, y = example
        return jnp.sin(x @ w) + y.astype(w.dtype) * w[0]

    settings = {"optimizer": records.optax.sgd(1.0), "loss": loss, "params": slope}
    found = run(Numbered(), plan, **settings)
    total = np.zeros(6)
    for user in range(USERS):
        first = np.flatnonzero(user == OWNER)[:MOST]
        own = sum(np.cos(X[i] @ slope) * X[i] + Y[i] * np.eye(6)[0] for i in first)
        total += own * min(1.0, 0.7 / np.linalg.norm(own))
    np.testing.assert_allclose((slope - found.params) * USERS, total, atol=3e-5)


def test_only_the_records_of_the_users_drawn_are_loaded():
    data = Numbered()
    run(data, plan_of("fixed"))
    sizes = np.minimum(np.bincount(OWNER), MOST)
    assert data.seen.pop(0) == 0  # for the shapes of a record
    assert 6 * 4 * sizes.min() <= len(data.seen) <= 6 * 4 * sizes.max()
    used = {int(i) for u in range(USERS) for i in np.flatnonzero(u == OWNER)[:MOST]}
    assert set(data.seen) <= used != set(range(N))
    # One user at a time: its records once each, none for padding, and no others.
    _, blocks = training.per_user(records.CROSS, training.HostData(data), NAMES, MOST)
    data.seen.clear()
    (x, y), mask = blocks.load(np.array([5, 0]), slots=3)
    own = [np.flatnonzero(user == OWNER)[:MOST] for user in (5, 0)]
    assert data.seen == [*own[0], *own[1]]
    assert mask.tolist() == [[True] * 4, [True, False, False, False], [True] * 4]
    np.testing.assert_array_equal(x[0], X[own[0]])
    np.testing.assert_array_equal(y[1], Y[own[1]].repeat(4))
    assert blocks.records == USERS
    # A block of a mesh that drew nobody: a user of its own, who takes no part.
    nobody, _ = blocks.load(np.array([], int), 1, otherwise=7)
    np.testing.assert_array_equal(nobody[1][0, :2], Y[OWNER == 7])


@pytest.mark.at_length
def test_a_loss_that_draws_has_the_device_s_keys():
    def loss(params, example, key):
        x, y = example
        return records.CROSS(params, (x * jax.random.uniform(key, x.shape), y))

    options = {"loss": loss, "loss_takes_key": True}
    records.same(run(Batched(), **options), run((X, Y), **options))


@pytest.mark.parametrize("step", [0, 3])
def test_a_killed_run_of_users_resumes_to_the_last_bit(step, tmp_path):
    def stop(row):
        if row["step"] == step:
            raise Killed

    options = {"log_every": 1, "checkpoint_every": 2}
    options["users"] = OWNER
    whole = run(Batched(), **options)
    with pytest.raises(Killed):
        run(Batched(), folder=tmp_path, on_log=stop, **options)
    options |= {"folder": tmp_path, "resume": True}
    # As texts and bytes user 10 stands before user 2, and is drawn in another's place.
    for users in (np.roll(OWNER, 1), OWNER.astype(str), OWNER.astype(bytes), -OWNER):
        with pytest.raises(training.CheckpointError, match="its users differs"):
            run(Batched(), **(options | {"users": users}))
    with pytest.raises(training.CheckpointError, match="its records per user differs"):
        run(Batched(), **(options | {"records_per_user": MOST + 1}))
    # Other names in the same order are the same draws.
    assert records.bits(run(Batched(), **(options | {"users": NAMES}))) == records.bits(whole)


@pytest.mark.parametrize("divided", [training.data_parallel, training.fully_sharded])
@pytest.mark.at_length
def test_users_of_the_host_are_divided_over_a_mesh(divided):
    mesh = jax.make_mesh((8,), ("data",))  # 12 users: two blocks are padding
    plan, source = plan_of(steps=3), Numbered()
    found = run(source, plan, mesh=divided(mesh), capacity=8)
    same = run((X, Y), plan, mesh=divided(mesh), capacity=8)
    jax.tree.map(np.testing.assert_array_equal, found.params, same.params)
    one = run((X, Y), plan, capacity=8)
    for a, b in zip(*map(jax.tree.leaves, (found.params, one.params)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_users_of_the_host_are_as_many_as_its_records():
    for wrong in (NAMES[1:], NAMES[None], np.ones(N)):
        with pytest.raises(ValueError, match="users must"):
            run(training.HostData((X, Y)), users=wrong)
    with pytest.raises(ValueError, match="plan's 12 users, got 11"):
        run(Batched(), users=np.where(OWNER == 3, 2, OWNER))
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueError, match="records_per_user must be a whole"):
            run(Batched(), records_per_user=wrong)
    with pytest.raises(ValueError, match=r"records_per_user must be at most \d+ for one user"):
        run(Batched(), records_per_user=10**12)
    with pytest.raises(ValueError, match="must have a length and give records by number"):
        run(records.stream())
