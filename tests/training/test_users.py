"""A user is what is sampled, clipped and priced: against plain loops over users and records."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import accounting as acc
from dpjax import audit, training

SIZES = [1, 3, 2, 7, 1, 4]
USERS, MOST, FEATURES = len(SIZES), 5, 3
OPTIONS = {"optimizer": optax.sgd(1.0), "log_every": 1}


class _Killed(Exception):
    pass


def _loss(w, example):
    x, y = example
    return 0.5 * (x @ w["w"] + w["b"] - y) ** 2


@pytest.fixture(scope="module")
def problem():
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(USERS), SIZES)
    draw.shuffle(owner)
    x = draw.normal(size=(len(owner), FEATURES)).astype(np.float32)
    y = draw.normal(size=len(owner)).astype(np.float32)
    return (x, y), np.array([f"user {u}" for u in owner])


@pytest.fixture
def flat_price(monkeypatch):
    """ε = 1 for everything: these tests look at what runs, not at what it costs."""
    monkeypatch.setattr(acc, "epsilon", lambda run, *_, **__: np.ones(np.shape(run.steps)))


def _plan(step, steps=3, population=USERS, **changes):
    settings = {"clip_norm": 0.7, "population": population, "delta": 1e-5, "unit": "user"}
    return training.Plan(acc.Repeated(step, steps), **(settings | changes))


def _start():
    return {"w": jnp.zeros(FEATURES), "b": jnp.ones(())}


def _quiet():
    """Noise so small that a run is its sums."""
    return acc.Gaussian(1e-6)


def _sum_by_hand(params, data, owner, clip_norm):
    """Σ over users of the clipped sum of their first records' gradients."""
    x, y = data
    total = jax.tree.map(np.zeros_like, params)
    for user in np.unique(owner):
        rows = np.flatnonzero(owner == user)[:MOST]
        each = [jax.grad(_loss)(params, (x[i], y[i])) for i in rows]
        own = jax.tree.map(lambda *leaves: np.sum(leaves, axis=0), *each)
        norm = np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(own)))
        if np.isfinite(norm):
            factor = min(1.0, clip_norm / norm)
            total = jax.tree.map(lambda t, leaf, f=factor: t + f * leaf, total, own)
    return total


@pytest.mark.parametrize("method", ["auto", "vmap", "ghost"])
def test_a_step_sums_what_each_user_s_clipped_sum_gives(problem, method, flat_price):
    data, owner = problem
    plan = _plan(_quiet(), steps=1)
    found = training.fit(
        _loss, _start(), data, plan, users=owner, records_per_user=MOST, method=method, **OPTIONS
    )
    total = _sum_by_hand(_start(), data, owner, plan.clip_norm)
    moved = jax.tree.map(lambda new, old: (old - new) * USERS, found.params, _start())
    for name in moved:
        np.testing.assert_allclose(moved[name], total[name], atol=2e-5)


def test_one_bad_record_silences_its_user_alone(problem, flat_price):
    (x, y), owner = problem
    bad = int(np.flatnonzero(owner == "user 1")[1])
    broken = x.copy()
    broken[bad, 0] = np.nan
    kept = owner != "user 1"
    options = OPTIONS | {"records_per_user": MOST}
    with_nan, without = (
        training.fit(_loss, _start(), rows, _plan(_quiet(), 1, n), **options, users=ids).params
        for rows, ids, n in (
            ((broken, y), owner, USERS),
            ((x[kept], y[kept]), owner[kept], USERS - 1),
        )
    )
    for name in with_nan:
        first, second = (
            (_start()[name] - run[name]) * n for run, n in ((with_nan, USERS), (without, USERS - 1))
        )
        np.testing.assert_allclose(first, second, atol=2e-5)


def test_a_whole_user_moves_the_sum_by_at_most_the_clip_norm(problem, flat_price):
    (x, y), owner = problem
    plan, options = _plan(_quiet(), 1), OPTIONS | {"records_per_user": MOST}

    def total(rows, ids, n):
        found = training.fit(_loss, _start(), rows, _plan(_quiet(), 1, n), **options, users=ids)
        return {name: np.asarray(_start()[name] - found.params[name]) * n for name in found.params}

    whole, moves = total((10 * x, 10 * y), owner, USERS), []
    for user in np.unique(owner):
        kept = owner != user
        rest = total((10 * x[kept], 10 * y[kept]), owner[kept], USERS - 1)
        moves.append(np.sqrt(sum(((whole[k] - rest[k]) ** 2).sum() for k in whole)))
    assert max(moves) <= plan.clip_norm * (1 + 1e-4)
    # It is attained: records clipped one by one would move it by up to five times as much.
    assert min(moves) >= plan.clip_norm * 0.99


def test_the_first_records_of_a_heavy_user_are_used():
    x = np.arange(10, dtype=np.float32)
    owner = np.array([7, 7, 3, 7, 7, 3, 7, 7, 7, 7])
    _, (blocks, present) = training.per_user(lambda w, x: w * x, x, owner, 4)
    assert blocks[1].tolist() == [0.0, 1.0, 3.0, 4.0]
    assert blocks[0].tolist() == [2.0, 5.0, 2.0, 2.0]
    assert present.tolist() == [[True, True, False, False], [True] * 4]


def test_a_loss_that_draws_has_a_key_for_every_record(flat_price):
    x, owner, plan = np.ones(4, np.float32), [0, 1, 1, 1], _plan(_quiet(), 1, 2, clip_norm=1e6)
    loss = lambda w, x, key: w * x * (1.0 + jax.random.uniform(key))  # noqa: E731
    options = OPTIONS | {"users": owner, "records_per_user": 3, "key": jax.random.key(0)}
    found = training.fit(loss, jnp.zeros(()), x, plan, loss_takes_key=True, **options)
    drawn = -2 * float(found.params) - 4
    assert 0 < drawn < 4
    of_user, (blocks, present) = training.per_user(loss, x, owner, 3)
    one = float(of_user(1.0, (blocks[1], present[1]), jax.random.key(3))) / 3
    alone = [float(loss(1.0, 1.0, key)) for key in jax.random.split(jax.random.key(3), 3)]
    assert one == pytest.approx(np.mean(alone), rel=1e-6)
    assert np.ptp(alone) > 0.05


def test_users_are_sampled_and_a_killed_run_resumes_to_the_last_bit(problem, tmp_path, flat_price):
    data, owner = problem
    plan = _plan(acc.PoissonSampled(acc.Gaussian(1.0), 0.5), 9)
    options = OPTIONS | {"users": owner, "records_per_user": MOST, "checkpoint_every": 2}
    key = jax.random.key(2)

    def stop(row):
        if row["step"] == 5:
            raise _Killed

    whole = training.fit(_loss, _start(), data, plan, key=key, **options)
    with pytest.raises(_Killed):
        training.fit(_loss, _start(), data, plan, key=key, folder=tmp_path, on_log=stop, **options)
    for wrong in (
        {"users": np.where(owner == "user 0", "zoe", owner)},  # the last, who was the first
        {"users": np.roll(owner, 1)},
        {"records_per_user": MOST + 1},
    ):
        with pytest.raises(training.CheckpointError, match="user"):
            training.fit(
                _loss,
                _start(),
                data,
                plan,
                key=key,
                folder=tmp_path,
                resume=True,
                **(options | wrong),
            )
    rest = training.fit(_loss, _start(), data, plan, folder=tmp_path, resume=True, **options)
    for name in whole.params:
        np.testing.assert_array_equal(rest.params[name], whole.params[name])


def test_an_audit_of_a_heavy_user_stays_below_the_certificate():
    """Fifty records of one user, of the largest gradient there is, in a run of two steps."""
    plan = training.make_plan(
        4, noise_multiplier=1.0, delta=1e-3, steps=2, batch_size=2, unit="user"
    )

    def laws(most):
        owner = np.array([0, 1, 2] + [3] * 50)
        light = np.zeros(len(owner), np.float32)
        heavy = np.where(owner == 3, 5.0, 0.0).astype(np.float32)
        loss = lambda w, x: w * x  # noqa: E731
        of_user, with_user = training.per_user(loss, heavy, owner, most)
        _, without = training.per_user(loss, light, owner, most)
        step = training.training_step(of_user, jnp.zeros(()), plan, optimizer=optax.sgd(1.0))

        def score(data, key):
            state = step.init(jnp.zeros(()))
            moved = []
            for _ in range(2):
                before = state["params"]
                state, _ = step.update(state, data, key)
                moved.append((before - state["params"]) * plan.expected_batch_size)
            return sum(jnp.logaddexp(jnp.log(0.5), jnp.log(0.5) + s - 0.5) for s in moved)

        keys = jax.random.split(jax.random.key(0), (2, 20_000))
        both = zip((with_user, without), keys, strict=True)
        return [np.asarray(jax.jit(jax.vmap(score, (None, 0)))(data, k)) for data, k in both]

    inside, outside = laws(50)
    bound = audit.distinguishing_bound(inside, outside, delta=plan.delta).epsilon
    assert 0.2 * plan.epsilon() < bound <= plan.epsilon()


def test_the_certificate_says_that_a_user_is_the_unit():
    plan = training.make_plan(
        100, noise_multiplier=2.0, delta=1e-5, steps=10, batch_size=20, unit="user"
    )
    certificate = plan.certify()
    assert certificate.declared["unit"] == "user"
    assert any("all that one user contributes" in line for line in certificate.assumptions)
    certificate.verify()
    plain = training.make_plan(100, noise_multiplier=2.0, delta=1e-5, steps=10, batch_size=20)
    assert "unit" not in plain.certify().declared
    assert plain.epsilon() == plan.epsilon()


def test_the_unit_of_the_plan_and_the_users_of_the_data_agree(problem):
    data, owner = problem
    plan = _plan(_quiet(), 1)
    of_records = _plan(_quiet(), 1, len(owner), unit="record")
    run = lambda plan, **more: training.fit(_loss, _start(), data, plan, **OPTIONS, **more)  # noqa: E731
    with pytest.raises(ValueError, match="users must be given where"):
        run(plan)
    with pytest.raises(ValueError, match="users must be given where"):
        run(of_records, users=owner, records_per_user=2)
    with pytest.raises(ValueError, match="records_per_user must be given"):
        run(plan, users=owner)
    with pytest.raises(ValueError, match="records_per_user must be left out"):
        run(of_records, records_per_user=2)
    with pytest.raises(ValueError, match="plan's 5 users, got 6"):
        run(_plan(_quiet(), 1, 5), users=owner, records_per_user=2)
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueError, match="records_per_user must be a whole"):
            run(plan, users=owner, records_per_user=wrong)
    # More rows than an index counts, and then than any memory holds: known before they are made.
    for most, rows in ((10**12, data), (10**400, data), (2**28, (np.ones((len(owner), 2**12)),))):
        most_named = rf"records_per_user must be at most \d+ .*, got {most}"
        with pytest.raises(ValueError, match=most_named):
            training.fit(_loss, _start(), rows, plan, users=owner, records_per_user=most, **OPTIONS)
    for wrong in (owner[1:], owner[None], np.ones(len(owner))):
        with pytest.raises(ValueError, match="users must"):
            run(plan, users=wrong, records_per_user=2)
    # Sorted beside NaN, user 1 would be two: the run below would have passed for one of six users.
    torn = np.array([1.0, np.nan, 1.0, 2.0, np.nan, 1.0], object)
    for wrong in (torn, np.array(["a", None] * 3, object), np.array([1, "1"] * 3, object)):
        with pytest.raises(ValueError, match="users must all be whole numbers or all be texts"):
            training.per_user(_loss, (data[0][:6], data[1][:6]), wrong, 2)
    # NumPy makes one user of the two.
    for one, two in ((1, "1"), (1, True), ("True", True), (b"1", "1"), (1, 1.0)):
        with pytest.raises(ValueError, match="users must all be whole numbers or all be texts"):
            training.per_user(_loss, (data[0][:2], data[1][:2]), [one, two], 2)
    for names in (["a", "a\0"], [b"a", b"a\0"], [2**63, 2**63 + 1], [2**70, 1]):
        _, (_, present) = training.per_user(_loss, (data[0][:2], data[1][:2]), names, 1)
        assert present.shape == (2, 1)
    with pytest.raises(ValueError, match="data must be a tree of arrays where users are given"):
        training.per_user(_loss, [1.0, 2.0], ["a", "b"], 2)
    with pytest.raises(ValueError, match="unit must be"):
        _plan(_quiet(), 1, unit="household")


@pytest.mark.parametrize("kind", ["bytes", "objects", "numbers"])
def test_any_names_of_users_are_bound_to_the_key(kind, problem, tmp_path, flat_price):
    data, owner = problem
    numbers = np.unique(owner, return_inverse=True)[1]
    names = {
        "bytes": np.array([bytes([250 + n]) for n in numbers]),
        "objects": np.array([np.int64(n) for n in numbers], object),
        "numbers": numbers,
    }[kind]
    options = {"key": jax.random.key(0), "records_per_user": np.int64(MOST), **OPTIONS}
    options |= {"folder": tmp_path, "capacity": np.int64(USERS), "log_every": np.int64(1)}
    plan, start = _plan(_quiet(), 1), _start()
    first = training.fit(_loss, start, data, plan, users=names, **options)
    again = training.fit(_loss, start, data, plan, users=names, resume=True, **options)
    np.testing.assert_array_equal(again.params["w"], first.params["w"])
    other = np.roll(names, 1)
    with pytest.raises(training.CheckpointError, match="users differs"):
        training.fit(_loss, start, data, plan, users=other, resume=True, **options)


def test_the_cost_of_skewed_users_is_said():
    owner = np.array([*range(100), *[0] * 50])
    with pytest.warns(UserWarning, match="pads 100 users of 1 records at the median to 5100 rows"):
        training.per_user(lambda w, x: w * x, np.zeros(150), owner, 51)
    _, (blocks, _) = training.per_user(lambda w, x: w * x, np.zeros(150), owner, 2)
    assert blocks.shape == (100, 2)
