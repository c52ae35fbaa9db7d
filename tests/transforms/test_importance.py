"""Importance sampling: capped odds, a fixed sensitivity, an unbiased sum, and its price."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax import accounting as acc
from dpjax import gradients, sampling, transforms

CLIP, N = 1.0, 6
GRADIENTS = jnp.array(
    [[3.0, 4.0], [0.3, 0.4], [0.0, -0.1], [-2.0, 0.0], [1e-3, 0.0], [0.0, 0.7]], jnp.float32
)
NORMS = jnp.linalg.norm(GRADIENTS, axis=1)


def key(seed=0):
    return jax.random.key(seed)


def draw(step=0, norms=NORMS, normaliser=4.0, batch_size=2, rate=0.5, seed=0):
    return transforms.importance_inclusion(
        key(seed),
        step,
        norms,
        normaliser=normaliser,
        batch_size=batch_size,
        clip_norm=CLIP,
        rate=rate,
    )


def mean(weights, mask, noise_multiplier=0.0, updates=GRADIENTS, seed=1):
    tx = transforms.importance_mean(CLIP, noise_multiplier, N, key(seed))
    out, _ = tx.update(
        updates,
        tx.init(None),
        mask=mask,
        probabilities=weights.probabilities,
        sensitivity=weights.sensitivity,
    )
    return out


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_16_bit_gradients_keep_their_length(dtype):
    """Divided by N·p their entries are 1e-7, of which float16 has one digit."""
    population, batch, size = 10**7, 10**6, 64
    odds = jnp.full(4, batch / population)
    tx = transforms.importance_mean(1.0, 0.0, population, key())
    out, _ = tx.update(
        jnp.full((4, size), size**-0.5, dtype),
        tx.init(None),
        probabilities=odds,
        sensitivity=jnp.float32(1 / batch),
    )
    np.testing.assert_allclose(np.linalg.norm(out), 4 / batch, rtol=1e-5)


def test_records_take_part_as_often_as_they_should():
    drawn = jax.jit(jax.vmap(draw))(jnp.arange(20_000))
    expected = 2 * np.minimum(np.asarray(NORMS), CLIP) / 4.0
    np.testing.assert_allclose(drawn.probabilities[0], expected, rtol=1e-5, atol=2**-32)
    for count, p in zip(drawn.included.sum(0), expected, strict=True):
        assert stats.binomtest(int(count), 20_000, float(p)).pvalue > 1e-4
    # One record's presence says nothing of another's.
    together = int((drawn.included[:, 0] & drawn.included[:, 3]).sum())
    assert stats.binomtest(together, 20_000, 0.25).pvalue > 1e-4


@pytest.mark.parametrize("normaliser", [4.0, 1e-3, -5.0, 0.0, 1e6, jnp.inf])
@pytest.mark.parametrize("rate", [0.3, 1e-9, 1.0])
def test_no_record_takes_part_more_often_than_the_price_says(normaliser, rate):
    norms = jnp.array([0.0, 1e-30, 0.5, 1.0, 1e30, jnp.inf, jnp.nan, -1.0])
    out = draw(norms=norms, normaliser=normaliser, rate=rate)
    most = sampling.realised_rate(rate)
    assert np.all(np.asarray(out.probabilities, np.float64) <= most * (1 + 1e-7))
    assert np.all(np.asarray(out.probabilities)[[0, 6, 7]] == 0)
    assert not np.any(np.asarray(out.included)[[0, 6, 7]])
    assert float(out.sensitivity) * len(norms) >= CLIP / rate * (1 - 1e-6)


def test_certain_records_always_take_part():
    norms = jnp.ones(4)
    out = jax.jit(jax.vmap(lambda t: draw(t, norms, normaliser=2.0, rate=1.0).included))(
        jnp.arange(500)
    )
    assert bool(out.all())


def test_the_rate_is_that_of_the_uniform_sampler_where_all_norms_are_equal():
    """Same key, same bits: the thresholds are the sampler's own, rounded up alike."""
    uniform = sampling.poisson_inclusion(key(), 7, population=1000, rate=0.125)
    ours = draw(7, jnp.ones(1000), normaliser=16.0, batch_size=2, rate=0.125)
    np.testing.assert_array_equal(ours.included, uniform)


@pytest.mark.parametrize("stale", [False, True])
def test_one_record_moves_the_average_by_at_most_the_sensitivity(stale):
    """Every record left out of every batch it can be in; stale norms are wrong by up to 1,000×."""
    norms = NORMS[::-1] if stale else NORMS
    wild = GRADIENTS.at[5].set(jnp.array([jnp.nan, 1.0])) if stale else GRADIENTS
    weights = draw(norms=norms)
    masks = jnp.array(list(itertools.product([False, True], repeat=N)))
    out = jax.jit(jax.vmap(lambda mask: mean(weights, mask, updates=wild)))(masks)
    table = {tuple(m): np.asarray(o, np.float64) for m, o in zip(masks.tolist(), out, strict=True)}
    moved = [
        np.linalg.norm(value - table[(*mask[:i], False, *mask[i + 1 :])])
        for mask, value in table.items()
        for i in range(N)
        if mask[i]
    ]
    assert max(moved) <= float(weights.sensitivity) * (1 + 1e-5)
    assert max(moved) > 0.99 * float(weights.sensitivity)


@pytest.mark.parametrize("strategy", [gradients.Flat(), gradients.Automatic()])
def test_the_expectation_is_the_clipped_average(strategy):
    """The sum over all 64 batches, each times its probability."""
    tx = transforms.importance_mean(CLIP, 0.0, N, key(), clipping=strategy)
    clip = transforms.clip_per_example(CLIP, strategy)
    clipped = jax.vmap(lambda g: clip.update(g[None], clip.init(None))[0])(GRADIENTS)
    weights = draw(norms=jnp.linalg.norm(clipped, axis=1))
    masks = np.array(list(itertools.product([False, True], repeat=N)))
    p = np.asarray(weights.probabilities, np.float64)
    odds = np.prod(np.where(masks, p, 1 - p), axis=1)

    def one(mask):
        return tx.update(
            GRADIENTS,
            tx.init(None),
            mask=mask,
            probabilities=weights.probabilities,
            sensitivity=weights.sensitivity,
        )[0]

    expectation = odds @ np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(masks)), np.float64)
    total, _ = clip.update(GRADIENTS, clip.init(None))
    np.testing.assert_allclose(expectation, np.asarray(total) / N, atol=2e-6)


@pytest.mark.parametrize(("wrong", "accepted"), [(1.0, True), (0.95, False), (1.05, False)])
def test_noise_scale(wrong, accepted):
    """σ·K̃/(N·b): chi-square test over 20,000 numbers, two-sided p = 1e-4, fixed key."""
    weights = draw()
    assert float(weights.sensitivity) == pytest.approx(4.0 / (N * 2))
    empty = jnp.zeros(N, bool)
    out = mean(weights, empty, 1.5, updates=jnp.zeros((N, 20_000)))
    statistic = np.sum((np.asarray(out, np.float64) / (1.5 * 4.0 / (N * 2) * wrong)) ** 2)
    p = 2 * min(stats.chi2.cdf(statistic, out.size), stats.chi2.sf(statistic, out.size))
    assert (p > 1e-4) == accepted


def test_the_normaliser_is_a_gaussian_mechanism_of_sensitivity_one_clip_norm():
    estimate = jax.vmap(lambda k: transforms.importance_normaliser(NORMS, CLIP, 3.0, k))
    out = np.asarray(estimate(jax.random.split(key(5), 20_000)))
    exact = np.minimum(np.asarray(NORMS), CLIP).sum()
    assert stats.kstest(out, stats.norm(exact, 3.0 * CLIP).cdf).pvalue > 1e-4
    assert stats.kstest(out, stats.norm(exact, 3.2 * CLIP).cdf).pvalue < 1e-4
    same = key(6)
    with_all = transforms.importance_normaliser(NORMS, CLIP, 1.0, same)
    for i in range(N):
        without = transforms.importance_normaliser(NORMS.at[i].set(0.0), CLIP, 1.0, key(6))
        assert 0 <= float(with_all - without) <= CLIP * (1 + 1e-6)


def test_the_price_covers_the_mechanism_itself():
    """δ(ε) of the very mixtures over all batches in one dimension, against the priced pair's."""
    sigma, rate = 1.2, 0.5
    norms = jnp.array([0.4, 0.9, 1.0])
    updates = norms[:, None] * jnp.array([[1.0], [-1.0], [1.0]])
    weights = draw(norms=norms, normaliser=4.0, rate=rate)
    tx = transforms.importance_mean(CLIP, 0.0, 3, key())
    batches = np.array(list(itertools.product([False, True], repeat=3)))
    p = np.asarray(weights.probabilities, np.float64)
    spread = sigma * float(weights.sensitivity)
    grid = np.linspace(-12 * spread, 12 * spread, 8_001)

    @jax.jit
    @jax.vmap
    def centre(batch):
        return tx.update(
            updates,
            tx.init(None),
            mask=batch,
            probabilities=weights.probabilities,
            sensitivity=weights.sensitivity,
        )[0][0]

    shapes = stats.norm.pdf(grid, np.asarray(centre(jnp.asarray(batches)))[:, None], spread)

    def density(present):
        odds = np.prod(np.where(batches, p * present, 1 - p * present), axis=1)
        return odds @ shapes

    def delta(one, other, epsilon):
        return np.trapezoid(np.maximum(one - np.exp(epsilon) * other, 0.0), grid)

    # What `acc.PoissonSampled` prices: (1−q)·N(0, σ²) + q·N(1, σ²) against N(0, σ²).
    absent, shifted = (
        stats.norm.pdf(grid / spread * sigma, m, sigma) / spread * sigma for m in (0, 1)
    )
    q = sampling.realised_rate(rate)
    priced = (1 - q) * absent + q * shifted, absent
    whole = density(np.ones(3))
    for epsilon in (0.1, 0.3):
        limit = max(delta(*priced, epsilon), delta(*priced[::-1], epsilon))
        for left_out in range(3):
            less = density(np.arange(3) != left_out)
            worst = max(delta(whole, less, epsilon), delta(less, whole, epsilon))
            assert worst <= limit * (1 + 1e-4)
        assert worst > 0.5 * limit  # the last record has the largest norm


def test_the_price_of_a_run():
    rate = transforms.importance_rate(64, CLIP, 640.0)
    assert rate == sampling.realised_rate(0.1)
    steps = acc.Repeated(acc.PoissonSampled(acc.Gaussian(2.0), rate), 100)
    refreshes = acc.Repeated(acc.Gaussian(10.0), 4)
    run = acc.Composed((steps, refreshes))
    orders = np.array([2.0, 8.0])
    parts = acc.rdp(steps, orders) + 4 * orders / (2 * 10.0**2)
    np.testing.assert_allclose(acc.rdp(run, orders), parts, rtol=1e-9)
    uniform = acc.Repeated(acc.PoissonSampled(acc.Gaussian(2.0), 64 / 1000), 100)
    assert np.all(acc.rdp(steps, orders) > acc.rdp(uniform, orders))  # K̃ < N·C samples more often


def test_jit_is_eager_and_one_trace_serves_a_run():
    tx = transforms.importance_mean(CLIP, 0.5, N, key(1))

    def step(number, state, normaliser):
        out = draw(number, normaliser=normaliser)
        return tx.update(
            {"w": GRADIENTS, "b": GRADIENTS[:, :1]},
            state,
            mask=out.included,
            probabilities=out.probabilities,
            sensitivity=out.sensitivity,
        )

    chex.clear_trace_counter()
    jitted = jax.jit(chex.assert_max_traces(step, 1))
    state = tx.init(None)
    for number, normaliser in enumerate((4.0, 5.0, 3.0)):
        args = jnp.int32(number), state, jnp.float32(normaliser)
        eager, _ = step(*args)
        out, state = jitted(*args)
        chex.assert_trees_all_close(out, eager, rtol=2e-6, atol=2e-6)
    assert int(state.step) == 3


def test_refusals():
    with pytest.raises(ValueError, match="probability above 1"):
        transforms.importance_rate(64, CLIP, 63.0)
    with pytest.raises(ValueError, match=r"rate must .* got 1\.5"):
        draw(rate=1.5)
    with pytest.raises(ValueError, match=r"batch_size must .* got 0"):
        draw(batch_size=0)
    with pytest.raises(ValueError, match=r"noise_multiplier must .* got 0\.0"):
        transforms.importance_normaliser(NORMS, CLIP, 0.0, key())
    with pytest.raises(ValueError, match=r"clip_norm must .* got -1\.0"):
        transforms.importance_mean(-1.0, 1.0, N, key())
    with pytest.raises(ValueError, match=r"population must .* got 0"):
        transforms.importance_mean(CLIP, 1.0, 0, key())
    tx = transforms.importance_mean(CLIP, 1.0, N, key())
    with pytest.raises(ValueError, match=r"probabilities=draw\.probabilities"):
        tx.update(GRADIENTS, tx.init(None))


@pytest.mark.parametrize(("probabilities", "sensitivity"), [((6, 1), ()), ((1,), ()), ((6,), (1,))])
def test_probabilities_have_one_number_a_record(probabilities, sensitivity):
    tx = transforms.importance_mean(CLIP, 1.0, N, key())
    with pytest.raises(ValueError, match=r"probabilities must have shape \(6,\) and sensitivity"):
        tx.update(
            GRADIENTS, tx.init(jnp.zeros(2)), probabilities=jnp.ones(probabilities),
            sensitivity=jnp.ones(sensitivity),
        )  # fmt: skip
