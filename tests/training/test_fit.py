"""The loop runs exactly the mechanism that is priced: against brute force, and by its noise."""

from __future__ import annotations

import functools
import json
import math
from fractions import Fraction

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from dpjax import accounting as acc
from dpjax import gradients, sampling, training, transforms
from dpjax.correlation import Toeplitz
from dpjax.training import step as step_module
from dpjax.training.loop import Progress, zero_totals
from dpjax.training.options import SHOWN, make_traced_stddev
from dpjax.training.step_config import failure_probability, first_state, rounding_sensitivity

RECORDS, FEATURES = 60, 4


@pytest.fixture
def flat_price(monkeypatch):
    """ε = 1 for everything: these tests look at what runs, not at what it costs."""
    monkeypatch.setattr(acc, "epsilon", lambda run, *_, **__: np.ones(np.shape(run.steps)))


def quadratic(params, example):
    x, y = example
    return 0.5 * (x @ params["w"] + params["b"] - y) ** 2


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    y = (x[:, 0] - 0.5 * x[:, 1]).astype(np.float32)
    return {"w": jnp.zeros(FEATURES), "b": jnp.zeros(())}, (x, y)


def plan_of(step, steps=6, **changes):
    settings = {"clip_norm": 0.7, "population": RECORDS, "delta": 1e-5} | changes
    return training.Plan(acc.Repeated(step, steps), **settings)


def poisson_plan(rate=0.5, noise=0.8, **changes):
    return plan_of(acc.PoissonSampled(acc.Gaussian(noise), rate), **changes)


def by_hand(params, data, plan, key, optimizer, slack):
    """The same run as a plain loop: brute-force clipping, noise, the fixed divisor."""
    sampling_key, noise_key = (jax.random.fold_in(key, number) for number in (0, 1))
    state = optimizer.init(params)
    x, y = (np.asarray(part, np.float64) for part in data)
    mechanisms = [phase.step for phase in plan.phases for _ in range(phase.steps)]
    epoch, within = 0, 0
    for step, mechanism in enumerate(mechanisms):
        n, rate = plan.population, 1.0
        if isinstance(mechanism, acc.FixedBatchSampled):
            size = mechanism.batch_size
            batch = sampling.fixed_batch(sampling_key, step, population=n, batch_size=size)
            rows, rate = np.asarray(batch.indices), size / n
        elif isinstance(mechanism, acc.WithReplacement):
            size = mechanism.batch_size
            batch = sampling.with_replacement(sampling_key, step, population=n, batch_size=size)
            rows, rate = np.asarray(batch.indices), size / n
        elif isinstance(mechanism, acc.PoissonSampled):
            rate = mechanism.rate
            flags = sampling.poisson_inclusion(sampling_key, step, population=n, rate=rate)
            rows = np.flatnonzero(flags)
        elif isinstance(mechanism, acc.TruncatedPoissonSampled):
            rate = mechanism.rate
            settings = {"population": n, "rate": rate, "capacity": mechanism.capacity}
            batch = sampling.truncated_poisson(sampling_key, step, **settings)
            rows = np.asarray(batch.indices[batch.mask])
        elif isinstance(mechanism, acc.RandomAllocation):
            length, rate = mechanism.steps, mechanism.chosen / mechanism.steps
            settings = {"population": n, "steps": length, "chosen": mechanism.chosen}
            batch = sampling.random_allocation(sampling_key, epoch, within, **settings)
            rows = np.asarray(batch.indices[batch.mask])
            epoch, within = (epoch + 1, 0) if within + 1 == length else (epoch, within + 1)
        else:
            rows = np.arange(n)
        multiplier = getattr(mechanism, "mechanism", mechanism).noise_multiplier
        w, b = np.asarray(params["w"], np.float64), float(params["b"])
        total = {"w": np.zeros(FEATURES), "b": np.zeros(())}
        for i in rows:
            with np.errstate(invalid="ignore"):
                residual = x[i] @ w + b - y[i]  # its square, halved, has these derivatives
                g = {"w": residual * x[i], "b": residual}
                norm = np.sqrt((g["w"] ** 2).sum() + g["b"] ** 2)
            if np.isfinite(norm):
                factor = min(1.0, plan.clip_norm / max(norm, 1e-30))
                total = {name: total[name] + factor * g[name] for name in total}
        total = jax.tree.map(lambda t: jnp.asarray(t, jnp.float32), total)
        std = multiplier * plan.clip_norm * (1 + slack)
        noise = transforms.gaussian_noise(std, noise_key)
        noisy, _ = noise.update(total, transforms.NoiseState(noise_key, jnp.asarray(step)))
        mean = jax.tree.map(lambda t, r=rate: t / (r * plan.population), noisy)
        updates, state = optimizer.update(mean, state, params)
        params = optax.apply_updates(params, updates)
    return params


STEPS = {
    "poisson": acc.PoissonSampled(acc.Gaussian(0.8), 0.5),
    "fixed batch": acc.FixedBatchSampled(acc.Gaussian(0.8), 20, RECORDS),
    "with replacement": acc.WithReplacement(acc.Gaussian(0.8), 20, RECORDS),
    "everybody": acc.Gaussian(0.8),
    "allocation": acc.RandomAllocation(acc.Gaussian(0.8), 3),
    "cut": acc.TruncatedPoissonSampled(acc.Gaussian(0.8), 0.5, RECORDS, RECORDS // 2),
}


SIZED = ("fixed batch", "with replacement")  # of a public number of records


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("poisoned", [False, True])
@pytest.mark.at_length(every=2)
def test_fit_is_the_mechanism_step_by_step(problem, kind, poisoned, flat_price):
    params, (x, y) = problem
    if poisoned:
        x = x.copy()
        x[3, 0], x[7, 1] = np.nan, np.inf
    relation = acc.Adjacency.REPLACE_ONE if kind in SIZED else acc.Adjacency.ADD_REMOVE
    plan = plan_of(STEPS[kind], adjacency=relation)
    key = jax.random.key(5)
    found = training.fit(
        quadratic,
        params,
        (x, y),
        plan,
        optimizer=optax.sgd(0.3),
        key=key,
        log_private_losses=True,
    )
    failure = failure_probability(plan)
    largest = {
        "poisson": sampling.poisson_capacity(RECORDS, 0.5, steps=1, delta=failure, epsilon=0.0),
        "fixed batch": 20,
        "with replacement": 20,
        "everybody": RECORDS,
        "cut": RECORDS // 2,
        "allocation": sampling.poisson_capacity(
            RECORDS, 1 / 3, steps=1, delta=failure, epsilon=0.0
        ),
    }[kind]
    slack = rounding_sensitivity(params, largest, failure)
    expected = by_hand(params, (x, y), plan, key, optax.sgd(0.3), slack)
    chex.assert_trees_all_close(found.params, expected, atol=2e-6, rtol=2e-6)
    assert (found.metrics["nonfinite"][-1] > 0) == poisoned
    if poisoned and kind == "everybody":
        assert found.metrics["nonfinite"][-1] == 2 * plan.steps


RUNS = {
    "noise and rate": acc.Composed(
        (
            acc.Repeated(acc.PoissonSampled(acc.Gaussian(1.6), 0.25), 2),
            acc.Repeated(acc.PoissonSampled(acc.Gaussian(0.8), 0.5), 3),
        )
    ),
    "sampled, then allocated": acc.Composed(
        (
            acc.PoissonSampled(acc.Gaussian(1.6), 0.25),
            acc.Repeated(acc.RandomAllocation(acc.Gaussian(0.9), 4, chosen=2), 2),
            acc.RandomAllocation(acc.Gaussian(0.7), 2),
        )
    ),
    "every kind, nested": acc.Repeated(
        acc.Composed(
            (
                acc.FixedBatchSampled(acc.Gaussian(0.8), 20, RECORDS),
                acc.FixedBatchSampled(acc.Gaussian(0.9), 30, RECORDS),
                acc.PoissonSampled(acc.Gaussian(1.1), 0.5),
                acc.Gaussian(2.0),
            )
        ),
        2,
    ),
}


@pytest.mark.parametrize("noise", [0.7, 1.0, 4.0])
def test_failures_cost_no_more_than_is_reserved_at_any_epsilon(noise):
    """p + G(p), which adds up in compositions; of one Gaussian G(p) = Φ(Φ⁻¹(p) + μ)."""
    for adjacency, moves in zip(acc.Adjacency, (1, 2), strict=True):
        plan = training.make_plan(
            RECORDS, noise_multiplier=noise, delta=1e-5, steps=1, batch_size=RECORDS,
            sampling="full", adjacency=adjacency,
        )  # fmt: skip
        failures = 3 * failure_probability(plan)
        cost = failures + stats.norm.cdf(stats.norm.ppf(failures) + moves / noise)
        assert 1e-3 * 1e-8 < cost <= 1e-8


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.at_length(every=2)
def test_any_composition_is_run_as_it_is_priced(problem, kind, monkeypatch):
    monkeypatch.setattr(acc, "epsilon", lambda *_, **__: 1.0)
    params, data = problem
    relation = acc.Adjacency.REPLACE_ONE
    settings = {"clip_norm": 0.7, "population": RECORDS, "delta": 1e-5, "adjacency": relation}
    plan = training.Plan(RUNS[kind], **settings)
    key = jax.random.key(5)
    found = training.fit(quadratic, params, data, plan, optimizer=optax.sgd(0.3), key=key)
    steps = {"noise and rate": 5, "sampled, then allocated": 11}.get(kind, 8)
    assert found.metrics["step"][-1] == plan.steps == steps
    failure = failure_probability(plan)
    largest = RECORDS
    if kind != "every kind, nested":
        tail = {"steps": 1, "delta": failure, "epsilon": 0.0}
        largest = sampling.poisson_capacity(RECORDS, 0.5, **tail)
    slack = rounding_sensitivity(params, largest, failure)
    expected = by_hand(params, data, plan, key, optax.sgd(0.3), slack)
    chex.assert_trees_all_close(found.params, expected, atol=2e-6, rtol=2e-6)


@pytest.mark.at_length
def test_a_batch_larger_than_the_capacity_is_split_not_truncated(problem, flat_price):
    params, data = problem
    runs = [
        training.fit(
            quadratic,
            params,
            data,
            poisson_plan(),
            optimizer=optax.sgd(0.3),
            key=jax.random.key(1),
            capacity=capacity,
        ).params
        for capacity in (None, 7, 1)
    ]
    # Smaller pieces have more rounding slack, and so a little more noise.
    chex.assert_trees_all_close(*runs, atol=2e-4)


@pytest.mark.parametrize("wrong", [1.0, 0.97, 1.03])
def test_the_noise_has_the_scale_that_is_priced(wrong, flat_price):
    # A loss without gradient: one step of plain descent moves the parameters by −noise / batch.
    size = 20_000
    plan = training.Plan(
        acc.Repeated(acc.Gaussian(1.5), 1), clip_norm=2.0, population=10, delta=1e-5
    )
    params = {"a": jnp.zeros(size // 2), "b": jnp.zeros((size // 4, 2))}
    data = jnp.zeros((10, 1))
    found = training.fit(
        lambda p, x: 0.0 * jnp.sum(p["a"]) + 0.0 * jnp.sum(p["b"]) + 0.0 * jnp.sum(x),
        params,
        data,
        plan,
        optimizer=optax.sgd(1.0),
        key=jax.random.key(11),
    )
    slack = rounding_sensitivity(params, 10, failure_probability(plan))
    drawn = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found.params)]) * 10
    scale = 1.5 * 2.0 * (1 + slack) * wrong
    pvalue = 2 * min(
        stats.chi2.cdf((drawn**2).sum() / scale**2, size),
        stats.chi2.sf((drawn**2).sum() / scale**2, size),
    )
    assert (pvalue > 1e-4) == (wrong == 1.0)
    if wrong == 1.0:
        assert stats.kstest(drawn / scale, "norm").pvalue > 1e-4
        assert abs(drawn.mean()) < 4 * scale / np.sqrt(size)


def test_replace_one_costs_more_at_the_same_noise():
    plans = [poisson_plan(noise=4.0, adjacency=relation) for relation in acc.Adjacency]
    prices = {plan.adjacency: plan.epsilon([6] * 40)[0] for plan in plans}
    assert prices[acc.Adjacency.REPLACE_ONE] > 1.3 * prices[acc.Adjacency.ADD_REMOVE]
    # Everybody in every step: exactly the Gaussian of twice the sensitivity.
    whole = plan_of(acc.Gaussian(4.0), adjacency=acc.Adjacency.REPLACE_ONE)
    half = plan_of(acc.Gaussian(2.0), adjacency=acc.Adjacency.ADD_REMOVE)
    assert whole.epsilon([6] * 40)[0] == pytest.approx(half.epsilon([6] * 40)[0], rel=1e-6)


def test_one_compilation_for_the_whole_run(problem, flat_price):
    params, data = problem
    descend = optax.sgd(0.1)
    # Traced once to be checked, once to be known again, once to be compiled, and in no row.
    counted = chex.assert_max_traces(lambda *arguments: descend.update(*arguments), n=3)
    optimizer = optax.GradientTransformation(descend.init, counted)
    # Ten rows of different lengths, batches of changing size, and an uneven last row.
    plan = poisson_plan(steps=29)
    found = training.fit(quadratic, params, data, plan, optimizer=optimizer, log_every=3)
    assert len(found.metrics["step"]) == 11


@pytest.mark.at_length
def test_the_same_run_compiles_once_in_a_process(problem, flat_price, monkeypatch):
    params, data = problem
    made = []
    original = step_module._compile_step
    monkeypatch.setattr(
        step_module, "_compile_step", lambda *arguments: made.append(1) or original(*arguments)
    )

    def run(factor=1.0, rate=0.3, **changes):
        loss = lambda p, e: factor * quadratic(p, e)  # noqa: E731 (a new function every time)
        plan = poisson_plan(**{"noise": 0.85, **changes})
        optimizer = optax.sgd(rate)
        key = jax.random.key(1)
        return training.fit(loss, params, data, plan, optimizer=optimizer, key=key).params

    first = run()
    chex.assert_trees_all_equal(first, run())
    assert len(made) == 1
    for changes in ({"factor": 2.0}, {"rate": 0.4}, {"noise": 0.9}, {"clip_norm": 0.6}):
        assert not np.array_equal(run(**changes)["w"], first["w"])
    assert len(made) == 5
    # A part that was replaced is not taken for the one before.
    noise = transforms.gaussian_noise
    monkeypatch.setattr(transforms, "gaussian_noise", lambda s, key: noise(2 * s, key))
    assert not np.array_equal(run()["w"], first["w"])


def test_metrics_hold_a_row_per_log_and_the_price_so_far(problem):
    params, data = problem
    seen = []
    plan = plan_of(acc.Gaussian(2.0), steps=7)
    found = training.fit(
        quadratic,
        params,
        data,
        plan,
        optimizer=optax.sgd(0.3),
        evaluate=lambda p: {"size": float(jnp.linalg.norm(p["w"]))},
        log_every=3,
        on_log=seen.append,
        log_private_losses=True,
    )
    assert found.metrics["step"].tolist() == [0, 3, 6, 7]
    assert [row["step"] for row in seen] == [0, 3, 6, 7]
    assert found.metrics["epsilon"][0] == 0.0
    for step, price in zip([3, 6, 7], found.metrics["epsilon"][1:], strict=True):
        assert price == acc.epsilon(acc.Repeated(acc.Gaussian(2.0), [step] * 40), plan.delta)[0]
    assert found.metrics["size"][0] == 0.0
    first_loss = np.mean(0.5 * np.asarray(data[1]) ** 2)
    one = training.fit(
        quadratic,
        params,
        data,
        plan_of(acc.Gaussian(2.0), steps=1),
        optimizer=optax.sgd(0.3),
        log_private_losses=True,
    )
    assert one.metrics["train_loss"][1] == pytest.approx(first_loss, rel=1e-5)


def test_no_exact_loss_is_kept_unless_asked_for(problem, flat_price, tmp_path):
    params, data = problem
    seen = []
    found = training.fit(
        quadratic,
        params,
        data,
        poisson_plan(),
        optimizer=optax.sgd(0.3),
        folder=tmp_path,
        on_log=seen.append,
    )
    assert set(found.metrics) == {"step", "epsilon"}
    assert all(set(row) == {"step", "epsilon", *SHOWN} for row in seen)
    # Nor do checkpoints hold one: their totals are zero, and their table has no column.
    like = Progress(
        {"params": params, "optimizer": optax.sgd(0.3).init(params), "step": np.int32(0)},
        zero_totals(),
        np.zeros((7, 0)),
        np.int32(0),
    )
    store = training.Checkpoints(tmp_path)
    identity = json.loads((tmp_path / "noise_key.json").read_text())["identity"]
    store.bind(jax.random.key(0), lambda key: identity, resume=True)
    loaded = store.latest(like)
    store.close()
    assert loaded is not None
    assert [float(total) for total in loaded[1].totals] == [0.0] * 4


def test_a_run_is_a_function_of_its_key_fresh_by_default(problem, flat_price):
    params, data = problem

    def run(**key):
        return training.fit(
            quadratic, params, data, poisson_plan(), optimizer=optax.sgd(0.3), **key
        )

    same = [run(key=jax.random.key(3)).params for _ in range(2)]
    chex.assert_trees_all_equal(*same)
    fresh = [float(run().params["w"][0]) for _ in range(2)]
    assert fresh[0] != fresh[1]


@pytest.mark.at_length
def test_any_optimiser_and_bfloat16_parameters(problem, lenient_promotion, flat_price):
    params, data = problem
    small = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    for optimizer in (optax.adam(0.1), optax.chain(optax.trace(0.9), optax.scale(-0.1))):
        found = training.fit(quadratic, small, data, poisson_plan(), optimizer=optimizer)
        assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(found.params))
        assert bool(jnp.isfinite(found.params["w"].astype(jnp.float32)).all())


def test_the_slack_is_that_of_two_runs_of_records():
    params = jnp.zeros(100)
    whole = rounding_sensitivity(params, 64, 1e-12)
    assert whole == gradients.rounding_slack(64, 100, failure=1e-12, in_place=True)
    # Two runs on two neighbours; look-ups, chunks and norms; devices; the norms; and second order.
    unit = 2.0**-24
    by_hand = unit * (21 * 2**10 + 2**10 + 2**9 + 2**7 + 2 * 2**10 + 100 / 2)
    by_hand += unit**2 * 65_536 * (2**11 + 3 * 64 + 3 * (2**13 + 2**13) + 180)
    assert rounding_sensitivity(params, 65_536, 1e-12) == pytest.approx(by_hand, rel=1e-2)


def test_bad_data_and_parameters_are_refused(problem, flat_price):
    params, (x, y) = problem
    with pytest.raises(ValueError, match="data must hold the plan's 60 records, got 59"):
        training.fit(quadratic, params, (x[1:], y[1:]), poisson_plan(), optimizer=optax.sgd(0.1))
    with pytest.raises(ValueError, match="one leading axis"):
        training.fit(quadratic, params, (x, y[1:]), poisson_plan(), optimizer=optax.sgd(0.1))
    with pytest.raises(ValueError, match="floating-point"):
        training.fit(
            quadratic,
            {"w": jnp.zeros(4, jnp.int32)},
            (x, y),
            poisson_plan(),
            optimizer=optax.sgd(1),
        )
    with pytest.raises(ValueError, match="capacity must be a whole number >= 1, got 0"):
        training.fit(
            quadratic, params, (x, y), poisson_plan(), optimizer=optax.sgd(0.1), capacity=0
        )


def test_an_optimiser_that_draws_from_the_key_of_the_run_is_refused(problem, flat_price):
    """Scaled by −1/σC, it would take the run's own noise out again."""
    key = jax.random.key(5)
    for shared in (key, jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)):
        for form in (shared, jax.random.key_data(shared)):
            optimizer = optax.chain(optax.sgd(0.1), transforms.gaussian_noise(1.0, form))
            with pytest.raises(ValueError, match="optimizer must draw noise from keys of its own"):
                training.fit(quadratic, *problem, poisson_plan(), optimizer=optimizer, key=key)
    own = optax.chain(optax.sgd(0.1), transforms.gaussian_noise(1.0, jax.random.key(6)))
    training.fit(quadratic, *problem, poisson_plan(), optimizer=own, key=key)


@pytest.mark.at_length(every=2)
@pytest.mark.parametrize("step", [acc.PoissonSampled(acc.Gaussian(0.8), 0.5), acc.Gaussian(0.8)])
def test_the_pure_step_is_the_step_of_fit(step, problem):
    params, data = problem
    plan, optimizer = plan_of(step, steps=3), optax.sgd(0.1, momentum=0.9)
    run = training.fit(quadratic, params, data, plan, optimizer=optimizer, key=jax.random.key(4))
    pure = training.training_step(quadratic, params, plan, optimizer=optimizer)
    update, state = jax.jit(pure.update), pure.init(params)
    for _ in range(plan.steps):
        state, _ = update(state, data, jax.random.key(4))
    assert int(state["step"]) == plan.steps
    chex.assert_trees_all_close(state["params"], run.params, rtol=1e-6)


@pytest.mark.at_length
def test_what_no_row_has_is_not_compiled(problem, flat_price):
    """A run that records no losses computes none, and trains the same bits."""
    params, data = problem
    plan, optimizer = poisson_plan(), optax.sgd(0.3)
    example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), data)
    state = first_state(params, plan, optimizer, np.int32(0))
    given = state, zero_totals(), jax.random.key(3), data, np.int32(6)
    programs = []
    for counted in (True, False):
        made_of = (quadratic, params, plan, optimizer, None, "auto", 1e-9)
        recipe = step_module.StepConfig(*made_of, counted=counted)
        programs.append(step_module.compile_step(recipe, example).advance.lower(*given).compile())
    (full, totals), (bare, none) = (program(*given) for program in programs)
    assert totals[1] > 0
    assert none[1] == 0
    chex.assert_trees_all_equal(full, bare)
    full, bare = (program.as_text().count(" fusion(") for program in programs)
    assert bare <= full - 6


KEYS = 8


def sweep_of(problem, **changes):
    """A run as one function of what is swept over, and the plan of one of its runs."""
    params, data = problem
    optimizer, traces = optax.inject_hyperparams(optax.sgd), []

    def plan_of(noise, clip_norm):
        settings = {"delta": 1e-5, "steps": 4, "batch_size": 20} | changes
        return training.make_plan(RECORDS, noise_multiplier=noise, clip_norm=clip_norm, **settings)

    def swept(rate, noise, clip_norm, key):
        traces.append(key)
        plan = plan_of(noise, clip_norm)
        step = training.training_step(quadratic, params, plan, optimizer=optimizer(rate))
        first = step.init(params)
        last = jax.lax.fori_loop(0, plan.steps, lambda _, s: step.update(s, data, key)[0], first)
        return last["params"]

    def alone(rate, noise, clip_norm, key):
        plan = plan_of(float(noise), float(clip_norm))
        return training.fit(
            quadratic, params, data, plan, optimizer=optimizer(float(rate)), key=key
        ).params

    return jax.jit(jax.vmap(swept)), alone, traces


SWEPT = {
    "poisson": {},
    "noise schedule": {"noise_schedule": lambda step: 1.0 + step % 2},
    "correlated": {"sampling": "cyclic", "correlation": Toeplitz((1.0, 0.5))},
}


@pytest.mark.parametrize("kind", SWEPT)
@pytest.mark.at_length(every=3)
def test_a_sweep_is_one_program_and_each_run_is_fit(problem, kind, lenient_promotion, monkeypatch):
    sweep, alone, traces = sweep_of(problem, **SWEPT[kind])
    rates, noises = np.linspace(0.1, 0.5, KEYS), np.geomspace(0.5, 4.0, KEYS)
    clip_norms = np.linspace(0.3, 1.0, KEYS)
    given = (rates, noises, clip_norms, jax.random.split(jax.random.key(3), KEYS))
    found = sweep(*given)
    sweep(*given)
    assert len(traces) == 1
    # Of a noise that is not known the bounds on rounding are those of any ε.
    monkeypatch.setattr(training.Plan, "spent", lambda *_: math.inf)
    for number in (0, KEYS - 1):
        expected = alone(*(values[number] for values in given))
        for name in ("w", "b"):
            np.testing.assert_allclose(found[name][number], expected[name], rtol=1e-5, atol=2e-6)


def test_traced_numbers_that_no_plan_has_never_mean_less_noise(problem, lenient_promotion):
    sweep, *_ = sweep_of(problem)
    noises = [-1.0, np.nan, np.inf, 1e37, 1e-30, 1e-40, 1.0, 1.0]
    clip_norms = [1.0, 1.0, 1.0, 1.0, 1e-18, 1.0, np.nan, -1.0]
    keys = jax.random.split(jax.random.key(3), KEYS)
    found = sweep(np.ones(KEYS), np.array(noises), np.array(clip_norms), keys)
    assert all(bool(jnp.all(jnp.isnan(leaf))) for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize("slack", [0.0, 1e-5])
def test_traced_noise_is_never_below_the_priced_one(slack):
    """In exact arithmetic, over the float32 numbers that the program is given."""
    rng = np.random.default_rng(0)
    priced, clip_norms = rng.uniform(0.01, 20, 500), rng.uniform(1e-3, 1e3, 500).astype(np.float32)
    of_traced = jax.jit(jax.vmap(lambda noise, bound: make_traced_stddev(noise, bound, slack)))
    found = np.asarray(of_traced(priced, clip_norms))
    for stddev, noise, bound in zip(found, priced, clip_norms, strict=True):
        least = Fraction(float(noise)) * Fraction(float(bound)) * (1 + Fraction(slack))
        assert least <= Fraction(float(stddev)) <= least * (1 + Fraction(1, 10**6))


def test_fit_takes_no_traced_plan(problem):
    params, data = problem

    def run(noise):
        plan = poisson_plan(noise=noise)
        return training.fit(quadratic, params, data, plan, optimizer=optax.sgd(0.1)).params

    with pytest.raises(
        ValueError, match="plan must hold numbers, got traced ones: use training_step"
    ):
        jax.vmap(run)(jnp.ones(2))
    with pytest.raises(ValueError, match="nothing but clip_norm and noise multipliers may be tr"):
        jax.vmap(lambda rate: poisson_plan(rate=rate).steps)(jnp.array([0.5, 0.25]))


def test_what_may_not_be_traced_is_refused_by_name(problem):
    """JAX's own errors said neither which number it was nor what to do."""
    params, data = problem
    step = acc.Repeated(acc.Gaussian(1.0), 1)
    make = functools.partial(training.make_plan, batch_size=2, steps=1)
    given = {"optimizer": optax.sgd(0.1)}
    calls = {
        "delta must be a number": lambda v: training.Plan(step, 1.0, 4, v),
        "population must be a number": lambda v: training.Plan(step, 1.0, v, 1e-5),
        "epsilon must .* nothing but clip_norm": lambda v: make(4, epsilon=v, delta=1e-5),
        "population must .* nothing but": lambda v: make(v, epsilon=1.0, delta=1e-5),
        "delta must .* nothing but": lambda v: make(4, noise_multiplier=1.0, delta=v),
        "plan must .* certified, .* plan.epsilon()": lambda v: poisson_plan(noise=v).certify(),
        "key must .* traced one: use training_step": lambda v: training.fit(
            quadratic, params, data, poisson_plan(), key=jax.random.key(v), **given
        ),
    }
    for words, call in calls.items():
        with pytest.raises(ValueError, match=words):
            jax.jit(call)(1)
