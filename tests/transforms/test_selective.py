"""Selective updates: an exact sensitivity, the right odds, every candidate counted."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import integrate, stats

from dpjax import accounting as acc
from dpjax import transforms
from dpjax.transforms.clip import noisy_total

LOSSES = np.array(
    [0.0, 0.3, -0.3, 1e-9, 0.49999, 0.5, -7.0, 1e30, -1e30, np.inf, -np.inf, np.nan], np.float32
)


def key(seed=0):
    return jax.random.key(seed)


def losses(w):
    return (jnp.array([1.0, 1.2, 0.8, 1.0]) - w) ** 2


@pytest.mark.parametrize("records", [12, 12 * 500])
def test_one_record_moves_the_sum_by_at_most_the_clip(records):
    """Brute force over every record left out, whatever its loss; the sum itself is exact."""
    values = jnp.asarray(np.tile(LOSSES, records // len(LOSSES)))
    total = jax.jit(lambda mask: noisy_total(values, 0.5, 0.0, key(), mask))
    everyone = jnp.ones(records, bool)
    with_all = float(total(everyone))
    moved = [abs(float(total(everyone.at[i].set(False))) - with_all) for i in range(len(LOSSES))]
    assert max(moved) == 0.5
    exact = np.sum(np.clip(np.nan_to_num(np.tile(LOSSES, 1).astype(float), nan=0.0), -0.5, 0.5))
    assert with_all == pytest.approx(exact * records / len(LOSSES), rel=1e-5)


@pytest.mark.parametrize(("wrong", "accepted"), [(1.0, True), (0.95, False), (1.05, False)])
def test_noise_scale(wrong, accepted):
    """Chi-square test of the variance over 20,000 draws, two-sided p = 1e-4, fixed keys."""
    draw = jax.vmap(lambda k: noisy_total(jnp.zeros(7), 0.5, 3.0, k))
    out = np.asarray(draw(jax.random.split(key(1), 20_000)), np.float64)
    statistic = np.sum((out / (0.5 * 3.0 * wrong)) ** 2)
    p = 2 * min(stats.chi2.cdf(statistic, out.size), stats.chi2.sf(statistic, out.size))
    assert (p > 1e-4) == accepted


def test_the_last_digits_of_the_sum_do_not_show():
    """Where sum and noise cancel, the total is exact; its digits are then those of the noise."""
    draw = jax.jit(jax.vmap(lambda k: noisy_total(jnp.ones(2), 1.0, 1.0, k)))
    units = np.asarray(draw(jax.random.split(key(2), 100_000)), np.float64) * 2.0**26
    exact = units[np.abs(units) < 2**22].astype(int)
    counts = np.bincount(exact % 16, minlength=16)
    assert counts.sum() > 500
    assert stats.chisquare(counts).pvalue > 1e-4


def test_candidates_are_kept_with_the_probability_of_the_formula():
    clip, sigma, batch, threshold = 0.5, 2.0, 5.0, -0.3
    u = jnp.array(0.3)
    differences = np.clip(np.asarray(losses(u) - losses(jnp.array(0.0)), np.float64), -clip, clip)
    odds = stats.norm.cdf((batch * threshold - differences.sum()) / (sigma * clip))

    def one(k):
        tx = transforms.selective_update(clip, sigma, batch, k, attempts=1, threshold=threshold)
        w = jnp.array(0.0)
        return tx.update(u, tx.init(w), w, validation_losses=losses)[1].accepted

    kept = int(jax.vmap(one)(jax.random.split(key(2), 20_000)).sum())
    assert 0.2 < odds < 0.95
    assert stats.binomtest(kept, 20_000, odds).pvalue > 1e-4
    assert stats.binomtest(kept, 20_000, odds - 0.03).pvalue < 1e-4


def test_no_more_candidates_than_attempts():
    tx = transforms.selective_update(1.0, 1e-3, 4, key(), attempts=2)
    w = jnp.array(0.0)
    state = tx.init(w)
    moved = []
    for _ in range(4):
        update, state = tx.update(jnp.array(0.1), state, w, validation_losses=losses)
        moved.append(float(update) > 0)
    assert moved == [True, True, False, False]
    assert (int(state.noise.step), int(state.accepted)) == (2, 2)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_candidate_without_a_loss_is_rejected(bad):
    tx = transforms.selective_update(1.0, 1e-3, 4, key(), attempts=2)
    update, state = tx.update(
        jnp.array(bad), tx.init(jnp.array(0.0)), jnp.array(0.0), validation_losses=losses
    )
    assert float(update) == 0.0
    assert int(state.accepted) == 0
    back, _ = tx.update(jnp.array(0.0), state, jnp.array(0.0), validation_losses=lambda w: w[None])
    assert float(back) == 0.0


def test_padding_has_no_vote():
    tx = transforms.selective_update(1.0, 1e-3, 4, key(), attempts=2)
    w, u = jnp.array(0.0), jnp.array(0.1)
    loss = lambda w: jnp.array([-5.0, 1.0]) * w  # noqa: E731
    out = [
        float(tx.update(u, tx.init(w), w, validation_losses=loss, validation_mask=m)[0]) > 0
        for m in (jnp.array([True, False]), jnp.array([False, True]))
    ]
    assert out == [True, False]


def test_jit_is_eager_and_one_trace_serves_a_run_in_a_chain():
    tx = optax.chain(
        transforms.clip_per_example(1.0),
        transforms.gaussian_noise(0.1, key()),
        optax.sgd(0.05),
        transforms.selective_update(0.5, 2.0, 4, key(1), attempts=5),
    )

    def step(w, state):
        gradients = jax.vmap(lambda x: 2 * (w - x))(jnp.array([1.0, 1.2, 0.8]))
        update, state = tx.update(
            gradients, state, w, mask=jnp.array([True, True, False]), validation_losses=losses
        )
        return optax.apply_updates(w, update), state

    chex.clear_trace_counter()
    jitted = jax.jit(chex.assert_max_traces(step, 1))
    w, state = jnp.zeros(()), tx.init(jnp.zeros(()))
    v, other = w, state
    for _ in range(4):
        w, state = jitted(w, state)
        v, other = step(v, other)
    assert float(w) == pytest.approx(float(v), rel=1e-5)
    assert int(state[-1].accepted) == int(other[-1].accepted)
    assert int(state[-1].noise.step) == 4


def test_a_step_that_is_run_again_decides_alike():
    tx = transforms.selective_update(0.5, 2.0, 4, key(3), attempts=50)
    w, u = jnp.array(0.0), jnp.array(0.1)

    def at(step):
        noise = transforms.NoiseState(key(3), jnp.int32(step))
        state = transforms.SelectiveState(noise, jnp.int32(0))
        return float(tx.update(u, state, w, validation_losses=losses)[0])

    decisions = [at(step) for step in range(20)]
    assert decisions == [at(step) for step in range(20)]
    assert len(set(decisions)) == 2


def test_every_attempt_is_priced():
    tx = transforms.selective_update(0.1, 4.0, 64, key(), attempts=200)
    cost = tx.charged(training_noise_multiplier=2.0)
    assert cost == (2.0, 4.0, 200)
    train = acc.PoissonSampled(acc.Gaussian(cost.training_noise_multiplier), 0.02)
    test = acc.PoissonSampled(acc.Gaussian(cost.validation_noise_multiplier), 0.01)
    run = acc.Repeated(acc.Composed((train, test)), cost.attempts)
    orders = np.array([2.0, 8.0])
    parts = 200 * (acc.rdp(train, orders) + acc.rdp(test, orders))
    np.testing.assert_allclose(acc.rdp(run, orders), parts, rtol=1e-9)
    assert np.all(acc.rdp(test, orders) > 0)


@pytest.mark.parametrize(("sigma", "ratio"), [(1.0, 1.66), (0.8, 1.95)])
def test_charging_accepted_updates_only_would_understate(sigma, ratio):
    """The docstring's counterexample by quadrature: the order-2 divergence given acceptance."""
    noise, edge, rare = 5.0, 6.5, stats.norm.cdf(-1 / sigma)

    def law(x, mean):
        return stats.norm.pdf(x, mean, noise) * (0.5 if abs(x) > edge else rare)

    def integral(function):
        points = (-60.0, -edge, edge, 61.0)
        return sum(integrate.quad(function, a, b)[0] for a, b in itertools.pairwise(points))

    mass = [integral(lambda x, m=m: law(x, m)) for m in (0.0, 1.0)]
    moment = {
        pair: integral(lambda x, p=pair: law(x, p[0]) ** 2 / law(x, p[1]))
        for pair in ((0.0, 1.0), (1.0, 0.0))
    }
    divergence = max(
        np.log(moment[0.0, 1.0] * mass[1] / mass[0] ** 2),
        np.log(moment[1.0, 0.0] * mass[0] / mass[1] ** 2),
    )
    assert divergence / (2 / (2 * noise**2)) == pytest.approx(ratio, abs=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss_clip": 0.0}, r"loss_clip must .* got 0.0"),
        ({"noise_multiplier": -1.0}, r"noise_multiplier must .* got -1.0"),
        ({"batch_size": float("inf")}, r"batch_size must .* got inf"),
        ({"attempts": 0}, r"attempts must .* got 0"),
        ({"attempts": 2.0}, r"attempts must .* got 2.0"),
        ({"threshold": -0.6}, r"threshold must .* got -0.6"),
        ({"threshold": float("nan")}, r"threshold must .* got nan"),
    ],
)
def test_bad_arguments(change, message):
    good = {"loss_clip": 0.5, "noise_multiplier": 1.0, "batch_size": 4, "attempts": 3}
    with pytest.raises(ValueError, match=message):
        transforms.selective_update(**(good | change), key=key())


def test_bad_updates():
    tx = transforms.selective_update(0.5, 1.0, 4, key(), attempts=3)
    w = jnp.array(0.0)
    with pytest.raises(ValueError, match="give params and validation_losses"):
        tx.update(w, tx.init(w), w)
    with pytest.raises(ValueError, match="one loss per validation record"):
        tx.update(w, tx.init(w), w, validation_losses=lambda w: w)
    with pytest.raises(ValueError, match=r"training_noise_multiplier must .* got 0"):
        tx.charged(0.0)
    with pytest.raises(ValueError, match="32 bits"):
        noisy_total(jnp.zeros(4), 1.0, 1e9, key())


@pytest.mark.parametrize("stddev", [1.0, np.float32(1.0), np.ones(()), None])
def test_transformations_can_be_built_inside_a_trace(stddev):
    """Constants, arrays of this trace and tracers: none of them may stop the build."""

    def run(updates, traced):
        tx = transforms.gaussian_noise(traced if stddev is None else stddev, key())
        first = tx.update(updates, tx.init(updates))[0]
        tx = transforms.gaussian_noise(jnp.asarray(1.0), key())
        return first - tx.update(updates, tx.init(updates))[0]

    np.testing.assert_array_equal(jax.jit(run)(jnp.zeros(3), jnp.array(1.0)), jnp.zeros(3))


@pytest.mark.parametrize("shape", [(4, 1), (1,), ()])
def test_a_validation_mask_has_one_number_a_record(shape):
    """As a column it broadcast: every record counted four times, and the price was of one."""
    tx = transforms.selective_update(1.0, 1.0, 4, key(), attempts=3)
    with pytest.raises(ValueError, match=r"validation_mask must have shape \(4,\), got"):
        tx.update(
            jnp.array(0.1), tx.init(jnp.array(0.0)), jnp.array(0.0),
            validation_losses=lambda w: jnp.ones(4) * w,
            validation_mask=jnp.ones(shape, bool),
        )  # fmt: skip
