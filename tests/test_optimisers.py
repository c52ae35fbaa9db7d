"""The benchmark of optimisers can be won and lost, and its optimisers are what they are called."""

from __future__ import annotations

import functools
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import signal
from sklearn import metrics

from benchmarks import optimiser_methods, optimisers
from benchmarks.optimiser_methods import BASELINE, METHODS, Method
from benchmarks.optimisers import REPORTED, TUNING, Call, Cell, Measure, Task
from dpjax import training, transforms

CELLS = [Cell("Adult", 1.0, method) for method in METHODS]
SEEDS = [seed for seeds in REPORTED for seed in seeds]

# ------------------------------------------------------------------------------ verdicts


def planted(gains: dict[str, float], *, in_second: float = 1.0, peak: float = 0.0, noise=0.1):
    """Scores that fall off from the best rate, with a gain by method and noise of their own."""

    def measure(call: Call) -> optimisers.Scores:
        gain, found = gains.get(call.method, 0.0), []
        for seed in call.seeds:
            draws = np.random.default_rng([seed, list(METHODS).index(call.method)])
            own = gain * (in_second if seed in SEEDS[10:] else 1.0) + noise * draws.normal()
            # Seeds differ by much more than methods do: pairing takes this out.
            score = 80 + 5 * math.sin(seed) + own - 0.5 * (call.exponent - peak) ** 2
            found.append([[score - 1, score], [score - 1, score]])
        return found

    known: optimisers.Known = {}
    optimisers.fill(known, CELLS, measure)
    return known


def said(known: optimisers.Known) -> dict[str, list[str]]:
    """The row of the page about each method: ahead, level, behind, and where."""
    rows = [line.strip("| ").split(" | ") for line in optimisers.name_winners(known, CELLS)[2:]]
    return {row[0]: row[1:5] for row in rows}


def beside_the_better(known: optimisers.Known) -> dict[str, str]:
    """In how many cells a method is ahead, level or behind beside the better of SGD and Adam."""
    rows = [line.strip("| ").split(" | ") for line in optimisers.name_winners(known, CELLS)[2:]]
    return {row[0]: " ".join(row[5:]) for row in rows}


LEVEL = ["0", "1", "0", "tried, no gain"]


def test_a_planted_gain_and_a_planted_loss_are_named():
    found = said(planted({"DiSK": 0.5, "DOPPLER": -0.5}))
    assert found["DiSK"][:3] == ["1", "0", "0"]
    assert found["DiSK"][3].startswith("Adult, ε = 1: 0.")
    assert found["DOPPLER"] == ["0", "0", "1", "tried, no gain"]
    assert found["Adam"] == LEVEL
    turned = said(planted({"DiSK": -0.5, "DOPPLER": 0.5}))
    assert turned["DiSK"] == ["0", "0", "1", "tried, no gain"]
    assert turned["DOPPLER"][:3] == ["1", "0", "0"]


def test_a_gain_that_the_further_seeds_do_not_have_is_none():
    assert said(planted({"DiSK": 0.5}, in_second=0.0))["DiSK"] == LEVEL


def test_who_is_ahead_of_sgd_may_be_behind_adam():
    known = planted({"Adam": 3.0, "DP-AdamBC": 2.0, "DiSK": 4.0})
    assert said(known)["DP-AdamBC"][:3] == ["1", "0", "0"]
    found = beside_the_better(known)
    assert [found[name] for name in ("DP-AdamBC", "DiSK", "DOPPLER")] == ["0 0 1", "1 0 0", "0 0 1"]
    assert found["Adam"] == "– – –"
    assert beside_the_better(planted({"Adam": -3.0, "DP-AdamBC": 2.0}))["DP-AdamBC"] == "1 0 0"


def test_a_gain_of_everybody_is_none():
    found = said(planted(dict.fromkeys(METHODS, 3.0)))
    assert list(found.values()).count(LEVEL) >= 5


def test_without_a_difference_it_says_level():
    draws = np.random.default_rng(0).normal(size=(4_000, 2, 10))
    words = [
        optimisers.decide(*(optimisers.judge(dict(enumerate(half)), zeros) for half in both))
        for both in draws
        for zeros in [dict.fromkeys(range(10), 0.0)]
    ]
    share = words.count("level") / len(words)
    # P(|t| > 2) at nine degrees of freedom is .0766: both on one side .0383² twice, .0029.
    assert share == pytest.approx(1 - 0.0029, abs=4 * math.sqrt(0.0029 / 4_000))
    assert share > 0.95


def test_what_is_not_complete_is_not_compared():
    known = planted({"DiSK": 5.0})
    chosen = optimisers.choose(known, CELLS[5])
    del known[Call(*CELLS[5], chosen.number, chosen.exponent, REPORTED[3])]
    assert said(known)["DiSK"] == ["0", "0", "0", "not measured"]
    assert optimisers.show_cell(known, CELLS[5], 1.0) is None


# ------------------------------------------------------------------------------ tuning


@pytest.mark.parametrize("peak", [-5.3, -3.0, -0.4, 0.0, 1.0, 5.2])
def test_the_walk_finds_the_best_rate_and_what_is_beside_it(peak):
    known = planted({}, peak=peak, noise=0.0)
    chosen = optimisers.choose(known, CELLS[0])
    assert abs(chosen.exponent - peak) <= 1.0
    assert chosen.output == 1  # the average, which was planted to be better by one
    assert not chosen.at_edge
    row = optimisers.show_cell(known, CELLS[0], 4.0)
    assert row is not None
    assert "at an end" not in row


def test_a_rate_at_the_end_of_what_was_tried_is_said():
    known = planted({}, peak=40.0, noise=0.0)
    assert optimisers.choose(known, CELLS[0]).at_edge
    row = optimisers.show_cell(known, CELLS[0], 4.0)
    assert row is not None
    assert "(at an end)" in row


def test_every_method_has_as_many_trials_and_no_seed_is_used_twice():
    known = planted({"DiSK": 0.5, "Adam": -4.0})
    for cell in CELLS:
        calls = [call for call in known if call[:3] == cell]
        trials = [call for call in calls if call.seeds == TUNING]
        assert len(trials) == len(set(trials)) == 2 * optimisers.TRIALS
        assert [call.seeds for call in calls if call.seeds != TUNING] == list(REPORTED)
    assert len({*SEEDS, *TUNING}) == 25


def test_a_run_that_was_cut_goes_on(tmp_path):
    whole, cache = planted({"DiSK": 0.5}), optimisers.Cache(tmp_path)
    for call in list(whole)[:20]:
        cache.add(call, whole[call])
    with cache.file.open("a") as file:
        file.write('{"call": ["Adult", 1.0')  # cut off while it was written
    known = cache.read()
    assert known == dict(list(whole.items())[:20])
    optimisers.fill(known, CELLS, lambda call: pytest.fail("too late"), until=time.monotonic() - 1)
    optimisers.fill(known, CELLS, lambda call: whole[call])
    assert known == whole


# ------------------------------------------------------------------------------ real runs


def small(kind: str = "area", **settings) -> Task:
    """Two classes by ten small columns, beside a large one that says little."""
    draws = np.random.default_rng(0)
    x = draws.normal(size=(3_000, 11)).astype(np.float32)
    odds = 4 * x[:, :10].sum(axis=1) / 10**0.5 + x[:, 10]
    labels = (draws.random(3_000) < 1 / (1 + np.exp(-odds))).astype(np.int32)
    x *= np.float32([0.03] * 10 + [3.0])
    return Task(
        "planted",
        (x[:2_000], labels[:2_000]),
        (x[2_000:], labels[2_000:]),
        lambda key: {"w": jnp.zeros(11), "b": jnp.zeros(())},
        optimisers.linear,
        kind,
        **{"records": 1_000, "batch": 250, "steps": 30, "start": 1.0} | settings,
    )


@pytest.fixture(scope="module")
def measured() -> optimisers.Known:
    """Three methods on the planted task, of which one is the first under another name."""
    methods = {BASELINE: METHODS[BASELINE], "Adam": METHODS["Adam"], "DiSK": METHODS[BASELINE]}
    known: optimisers.Known = {}
    cells = [Cell("Adult", 4.0, method) for method in methods]
    with jax.numpy_dtype_promotion("standard"):  # as optax's Adam asks for
        optimisers.fill(known, cells, Measure({"Adult": small}, methods))
    return known


@pytest.mark.exact
def test_columns_of_different_scale_are_won_by_adam(measured):
    verdicts = optimisers.compare(measured, Cell("Adult", 4.0, "Adam"))
    assert optimisers.decide(*verdicts) == "ahead"


@pytest.mark.exact
def test_the_same_optimiser_under_another_name_is_level_to_the_bit(measured):
    first, second = optimisers.compare(measured, Cell("Adult", 4.0, "DiSK"))
    assert first == second == optimisers.Verdict("level", 0.0, 0.0)


@pytest.mark.at_length
def test_the_noise_of_a_run_is_the_plans():
    """One step of a loss without a gradient, along which the parameters are minus the noise."""
    task = small(steps=1)._replace(logits=lambda params, x: 0.0 * jnp.sum(params["w"]))
    plan = training.make_plan(
        1_000, epsilon=1.0, delta=1e-5, steps=1, batch_size=250,
        extra_delta={"overflow of a batch": 1e-9},
    )  # fmt: skip
    told = optimisers.make_prices(task, 1.0)
    assert 1.0 <= told.noise_std / plan.noise_std(0) < 1.1  # the rest is for rounding
    method = Method(optimiser_methods.momentum, (0.0, 0.9), "momentum", 1.0)
    train = optimisers.make_training(task, method, told.capacity)
    records = jax.tree.map(lambda leaf: jnp.asarray(leaf[:1_000]), task.pool)
    numbers = jnp.float32(1.0), jnp.float32(0.0), jnp.float32(told.noise_std)
    last, average = jax.jit(jax.vmap(lambda key: train(*numbers, key, records)))(
        jax.random.split(jax.random.key(0), 300)
    )
    drawn = np.asarray(last["w"], np.float64)
    # A variance of 3,300 normal numbers has the standard error √(2/3300) = 2.5 % of itself.
    assert np.mean(drawn**2) == pytest.approx(told.noise_std**2, rel=0.1)
    assert np.mean(drawn**2) != pytest.approx((2 * told.noise_std) ** 2, rel=0.1)
    np.testing.assert_array_equal(last["w"], average["w"])  # of one iterate


@pytest.mark.parametrize("name", ["SGD, momentum", "scaled before the clip", "zeroth order"])
def test_a_record_moves_the_sum_by_at_most_the_clip_norm(name):
    task, method = small(clip_norm=0.7), METHODS[name]
    draws = np.random.default_rng(1)

    @jax.jit
    def total(params, scale, direction, batch, mask):
        state = (transforms.ScaledState(None, None, None, scale),)
        return optimisers.sum_released(task, method, params, state, direction, batch, mask)

    largest = 0.0
    for size in (1e-3, 1.0, 1e3):
        shapes = {"w": (11,), "b": ()}
        params, direction = (
            {k: jnp.asarray(draws.normal(size=s), jnp.float32) for k, s in shapes.items()}
            for _ in range(2)
        )
        scale = {k: jnp.asarray(size * draws.lognormal(0, 3, s), jnp.float32)
                 for k, s in shapes.items()}  # fmt: skip
        batch = tuple(jnp.asarray(leaf[:20]) for leaf in task.pool)
        whole = total(params, scale, direction, batch, jnp.ones(20, bool))
        for record in range(20):
            less = total(params, scale, direction, batch, jnp.arange(20) != record)
            moved = jax.tree.map(
                lambda a, b: np.sum((np.float64(a) - np.float64(b)) ** 2), whole, less
            )
            largest = max(largest, math.sqrt(sum(jax.tree.leaves(moved))))
    assert largest <= 0.7 * (1 + 1e-5)
    assert largest >= 0.7 * (1 - 1e-5)  # and some record does


@pytest.mark.parametrize("kind", ["area", "accuracy"])
def test_scores_are_those_of_scikit_learn(kind):
    draws = np.random.default_rng(2)
    labels = draws.integers(0, 2, 500)
    if kind == "area":
        given = draws.normal(size=500).round(1).astype(np.float32)  # with ties
        truth = metrics.roc_auc_score(labels, given)
        task = small("area")._replace(logits=lambda params, x: x)
    else:
        given = draws.normal(size=(500, 2)).astype(np.float32)
        truth = metrics.accuracy_score(labels, given.argmax(axis=1))
        task = small("accuracy")._replace(logits=lambda params, x: x)
    found = task.score({}, (jnp.asarray(given), jnp.asarray(labels, jnp.int32)))
    assert found == pytest.approx(100 * truth, abs=1e-4)
    given[3] = np.nan
    assert task.score({}, (jnp.asarray(given), jnp.asarray(labels, jnp.int32))) == 0.0


# ------------------------------------------------------------------------------ optimisers


def follow(tx: optax.GradientTransformation, gradients: jax.Array) -> np.ndarray:
    """The updates of a transformation on a row of gradients."""
    update, state, found = jax.jit(tx.update), tx.init(gradients[0]), []
    for g in gradients:
        step, state = update(g, state, jnp.zeros_like(g))
        found.append(np.asarray(step, np.float64))
    return np.stack(found)


def draw(steps: int, width: int = 4, seed: int = 3) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(steps, width)), jnp.float32)


def test_adam_bc_without_noise_is_adam_to_the_bit(lenient_promotion):
    gradients = draw(30)
    own = follow(optimiser_methods.scale_by_adam_bc(0.0, 1e-30), gradients)
    np.testing.assert_array_equal(own, follow(optax.scale_by_adam(eps=0.0), gradients))


def test_adam_bc_takes_off_the_variance_of_the_noise(lenient_promotion):
    """Of a constant gradient g and noise of σ, E v̂ − σ² is g²: the simulated mean finds it."""
    g, std, runs = 0.5, 2.0, 200_000
    noise = jnp.asarray(np.random.default_rng(4).normal(size=(8, runs)), jnp.float32)
    tx = optimiser_methods.scale_by_adam_bc(0.0, 1e-30)
    state = tx.init(noise[0])
    for row in noise:
        _, state = tx.update(g + std * row, state)
    second = np.asarray(optax.tree.bias_correction(state.square, 0.999, state.count), np.float64)
    # The standard error of the mean of squares of 8 · 200,000 numbers.
    error = math.sqrt((2 * std**4 + 4 * g**2 * std**2) / (8 * runs))
    assert np.mean(second) - std**2 == pytest.approx(g**2, abs=4 * error)
    assert np.mean(second) != pytest.approx(g**2, abs=1.0)  # what Adam divides by the root of


def test_adam_bc_divides_by_what_is_left(lenient_promotion):
    tx = optimiser_methods.scale_by_adam_bc(3.0, 0.01)
    assert follow(tx, jnp.asarray([[5.0, 1.0]])) == pytest.approx(
        np.array([[5 / math.sqrt(25 - 9), 1 / math.sqrt(0.01)]]), rel=1e-4
    )


@pytest.mark.parametrize("order", [1, 2])
def test_doppler_is_the_filter_over_its_answer_to_ones(order):
    gradients = draw(40)
    b, a = signal.butter(order, optimiser_methods.CUTOFF)
    wide = np.asarray(gradients, np.float64)
    expected = signal.lfilter(b, a, wide, axis=0) / signal.lfilter(b, a, np.ones((40, 1)), axis=0)
    np.testing.assert_allclose(
        follow(optimiser_methods.doppler(2.0, order, 1.0), gradients), -2 * expected, rtol=2e-3,
        atol=1e-5,
    )  # fmt: skip
    if order == 1:
        assert -a[1] == pytest.approx(0.9)


@pytest.mark.parametrize("gain", [0.7, 0.5])
def test_disk_is_the_loop_of_its_paper(gain):
    """On a quadratic, with both gradients where the paper takes them, and momentum after."""
    hessian, minimum, rate = np.array([0.2, 1.0, 3.0]), np.array([1.0, -2.0, 0.5]), 0.1
    further = (1 - gain) / gain
    share = (1 - gain) / (gain * further)  # of the gradient ahead: 1 at this γ

    def gradient(x):
        return hessian * (x - minimum)

    x = before = np.zeros(3)
    estimate, trace, expected = None, np.zeros(3), []
    for _ in range(25):
        ahead = x + further * (x - before)
        expected.append(ahead)
        g = share * gradient(ahead) + (1 - share) * gradient(x)
        estimate = g if estimate is None else (1 - gain) * estimate + gain * g
        trace = 0.9 * trace + estimate
        before, x = x, x - rate * 0.1 * trace
    tx = optimiser_methods.disk(rate, gain, 1.0)
    params, found = jnp.zeros(3), []
    state = tx.init(params)
    for _ in range(25):
        found.append(np.asarray(params, np.float64))
        step, state = tx.update(jnp.asarray(gradient(found[-1]), jnp.float32), state, params)
        params = params + step
    np.testing.assert_allclose(np.stack(found), np.stack(expected), atol=1e-5)


def test_zeroth_order_is_the_gradient_in_the_mean():
    """E (u·g)·u = g for normal u, where nothing is clipped."""
    task, method = small(clip_norm=1e6), METHODS["zeroth order"]
    params = {"w": jnp.full(11, 0.1), "b": jnp.zeros(())}
    batch = tuple(jnp.asarray(leaf[:50]) for leaf in task.pool)
    mask = jnp.ones(50, bool)
    summed = functools.partial(optimisers.sum_released, task, method, params, None)

    def estimate(key):
        u = optimisers.draw_direction(key, params)
        along = summed(u, batch, mask)
        return jax.tree.map(lambda leaf: leaf * along, u)

    drawn = jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(5), 20_000))["w"]
    truth = jax.grad(lambda p: sum(task.loss(p, (x, y)) for x, y in zip(*batch, strict=True)))
    expected = np.asarray(truth(params)["w"], np.float64)
    drawn = np.asarray(drawn, np.float64)
    error = drawn.std(axis=0) / math.sqrt(len(drawn))
    assert np.all(np.abs(drawn.mean(axis=0) - expected) < 4.5 * error)
    assert np.max(np.abs(expected) / error) > 20  # so that another vector would be told
