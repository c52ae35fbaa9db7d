"""An adaptive clip norm in `fit`: what it does by brute force, and what it costs."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import accounting as acc
from dpjax import training
from dpjax._numerics.checks import CLIP_NORMS
from dpjax._numerics.normal import normal
from dpjax.gradients import AdaptiveQuantile, PerGroup
from dpjax.training.step_config import failure_probability, rounding_sensitivity

N, STEPS, KEY, FIRST = 40, 6, jax.random.key(5), 0.5
DATA = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32) * 4
ADAPT = AdaptiveQuantile(count_noise=2.0, batch_size=N, quantile=0.3, learning_rate=0.5)


def plan_of(noise=1e-3, adaptive=ADAPT, steps=STEPS, clip_norm=FIRST, records=N):
    run = acc.Repeated(acc.Gaussian(noise), steps)
    return training.Plan(run, clip_norm, records, 1e-5, adaptive=adaptive)


def loss(w, x):
    return 0.5 * jnp.sum((w - x) ** 2)


def run(plan=None, data=DATA, loss=loss, **options):
    settings = {"optimizer": optax.sgd(0.3), "key": KEY, **options}
    return training.fit(loss, jnp.zeros(3), data, plan or plan_of(), **settings)


def by_hand():
    """Brute force in float64, the count's noise drawn by the documented rule."""
    w, clip = np.zeros(3), FIRST
    for step in range(STEPS):
        g = w - DATA.astype(np.float64)
        norms = np.linalg.norm(g, axis=1)
        total = (g * np.minimum(1, clip / norms)[:, None]).sum(0)
        own = jax.random.fold_in(jax.random.fold_in(KEY, 3), step)
        count = (norms <= clip).sum() - N / 2 + ADAPT.count_noise * float(normal(own, ()))
        w = w - 0.3 * total / N
        clip *= np.exp(-ADAPT.learning_rate * (0.5 + count / N - ADAPT.quantile))
    return w, clip


@pytest.mark.at_length(every=2)
@pytest.mark.parametrize("capacity", [None, 7])
def test_the_clip_norm_follows_the_quantile(capacity):
    found = run(capacity=capacity)
    w, clip = by_hand()
    np.testing.assert_allclose(found.clip_norm, clip, rtol=1e-5)
    # The noise on the sum is 1e-3 of a clip norm.
    np.testing.assert_allclose(found.params, w, atol=1e-3)
    assert found.clip_norm > 1.5 * FIRST
    assert run(plan_of(adaptive=None)).clip_norm is None


def test_several_devices_count_together():
    mesh = jax.make_mesh((8,), ("data",))
    assert run(mesh=mesh).clip_norm == pytest.approx(run().clip_norm, rel=1e-6)


@pytest.mark.filterwarnings("ignore:epsilon should be at most 10")
def test_the_mechanism_pays_for_the_sum_and_the_count():
    """Two Gaussians of the noise that is really drawn cost what the plan's one costs."""
    z, steps = 1.7, 50
    plan = plan_of(noise=z, steps=steps)
    sigma = ADAPT.gradient_noise(z)
    assert sigma > z
    apart = acc.Composed((
        acc.Repeated(acc.Gaussian(sigma), steps),
        acc.Repeated(acc.Gaussian(2 * ADAPT.count_noise), steps),
    ))  # fmt: skip
    assert acc.epsilon(plan.mechanism, 1e-5) == pytest.approx(acc.epsilon(apart, 1e-5), rel=1e-9)
    certificate = plan.certify()
    assert any("a count of the records below the clip norm" in a for a in certificate.assumptions)
    assert "quantile=0.3" in certificate.declared["adaptive"]
    made = training.make_plan(
        N, epsilon=2.0, delta=1e-4, steps=5, batch_size=20, clip_norm=FIRST, adaptive=ADAPT
    )
    assert 1.99 < made.epsilon() <= 2.0
    assert made.adaptive == ADAPT


def test_the_noise_is_that_of_the_sum_at_the_clip_norm_of_the_step():
    """Records without a gradient: what comes out is noise, of σ·Cₜ at every step."""
    z, d = 1.5, 4096
    plan = plan_of(noise=z, records=8)
    step = training.training_step(
        lambda w, x: 0 * jnp.sum(w) * x, jnp.zeros(d), plan, optimizer=optax.sgd(1.0)
    )
    state, update = step.init(jnp.zeros(d)), jax.jit(step.update)
    slack = rounding_sensitivity(state["params"], 8, failure_probability(plan))
    clips = []
    for _ in range(3):
        clip, before = float(state["clip_norm"]), state["params"]
        state, _ = update(state, jnp.ones(8), KEY)
        noise = 8 * np.asarray(state["params"] - before, np.float64)
        expected = ADAPT.gradient_noise(z) * clip * (1 + slack)
        assert abs(noise.std() / expected - 1) < 4 / np.sqrt(2 * d)
        clips.append(clip)
    assert len(set(clips)) == 3  # all norms are 0: the clip norm falls from step to step
    assert clips[2] < clips[1] < clips[0]


def test_a_resumed_run_has_the_same_clip_norms(tmp_path):
    class Killed(Exception):
        pass

    def stop(row):
        if row["step"] == 3:
            raise Killed

    options = {"log_every": 1, "checkpoint_every": 1}
    whole = run(**options)
    with pytest.raises(Killed):
        run(**options, folder=tmp_path, on_log=stop)
    again = {**options, "folder": tmp_path, "resume": True, "key": None}
    with pytest.raises(training.CheckpointError, match="adaptive clip norm differs"):
        run(plan_of(adaptive=dataclasses.replace(ADAPT, quantile=0.4)), **again)
    rest = run(**again)
    assert rest.clip_norm == whole.clip_norm
    np.testing.assert_array_equal(rest.params, whole.params)


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e30, 0.0])
def test_records_of_any_size_leave_it_finite(value):
    found = run(plan_of(steps=40), data=np.full((N, 3), value, np.float32), loss=lambda w, x: x @ w)
    assert FIRST / 1.001e6 <= found.clip_norm <= FIRST * 1.001e6
    assert np.isfinite(found.params).all()


def test_what_has_no_price_is_refused():
    with pytest.raises(ValueError, match="count_noise must exceed noise_multiplier / 2"):
        plan_of(noise=4.0)
    correlated = acc.CorrelatedGaussian(1.0, [1.0, 0.5], steps=4, separation=4)
    with pytest.raises(ValueError, match="adaptive must be None where noise is correlated"):
        training.Plan(correlated, 1.0, N, 1e-5, adaptive=ADAPT)
    with pytest.raises(ValueError, match="clipping must not be AdaptiveQuantile"):
        run(plan_of(adaptive=None), clipping=ADAPT)
    assert run(clipping=PerGroup()).clip_norm == pytest.approx(run().clip_norm, rel=1e-6)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"count_noise": None}, "count_noise must be a number"),
        ({"count_noise": "5"}, "count_noise must be a number"),
        ({"count_noise": np.array([5.0, 6.0])}, "count_noise must be one number"),
        ({"batch_size": np.float32(np.nan)}, r"batch_size must be in \(0, 1e\+36\), got nan"),
        ({"learning_rate": np.float32(-1.0)}, r"learning_rate must be in \(0, 1e\+36\), got -1.0"),
        ({"quantile": None}, "quantile must be a number"),
        ({"quantile": np.float32(2.0)}, r"quantile must be in \(0, 1\), got 2.0"),
    ],
)
def test_numbers_that_are_none_are_refused(wrong, words):
    with pytest.raises((ValueError, TypeError), match=words):
        plan_of(adaptive=dataclasses.replace(ADAPT, **wrong))


@pytest.mark.parametrize("value", [True, "yes", AdaptiveQuantile])
def test_adaptive_is_one_value(value):
    with pytest.raises(ValueError, match="adaptive must be an AdaptiveQuantile or None, got"):
        plan_of(adaptive=value)


@pytest.mark.filterwarnings("ignore:epsilon should be at most 10")
def test_the_certificate_says_arrays_to_the_last_bit():
    """An array's text is rounded, and the run's key is bound to the text."""
    one, two = (dataclasses.replace(ADAPT, count_noise=np.array(c)) for c in (2.0, 2.0 + 1e-12))
    assert repr(one) == repr(two)
    told = [plan_of(adaptive=adaptive).certify().declared["adaptive"] for adaptive in (one, two)]
    assert told[0] != told[1]


@pytest.mark.parametrize(("first", "quantile"), [(1e-15, 0.01), (1e17, 0.99)])
def test_no_clip_norm_leaves_those_whose_squares_float32_holds(first, quantile):
    adaptive = dataclasses.replace(ADAPT, learning_rate=60.0, quantile=quantile)
    data = DATA * np.float32(1e-25 if quantile < 0.5 else 1e18)
    found = run(plan_of(adaptive=adaptive, clip_norm=first), data=data)
    assert CLIP_NORMS.low * 0.999 <= found.clip_norm <= CLIP_NORMS.high * 1.001
    assert np.isfinite(found.params).all()
    assert found.clip_norm != first


def test_noise_that_float32_does_not_hold_at_some_clip_norm_is_refused():
    """At the largest and the smallest clip norm there may be, not at the first one alone."""
    loud = dataclasses.replace(ADAPT, count_noise=1e35, learning_rate=60.0, quantile=0.99)
    for noise, first, words in (
        (1e32, 1.0, r"noise of a step must be in \[1.2e-38, 1e\+36\] .* got 1e\+38"),
        (1e20, 1e18, r"got 1e\+39"),  # clip norms end at 1e19
        (1e-33, 1.0, "got 1e-39"),
        (1e-200, 1.0, "got 1e-206"),
    ):
        with pytest.raises(ValueError, match=words):
            plan_of(noise=noise, adaptive=loud, clip_norm=first)
    # The price of the count raises the noise: just below its own, by a factor of 1e8.
    tight = dataclasses.replace(ADAPT, count_noise=0.5e29 * (1 + 1e-15))
    with pytest.raises(ValueError, match=r"noise of a step must be .* got 2.*e\+42"):
        plan_of(noise=1e29, adaptive=tight, clip_norm=1.0)
    for noise, first in ((9e29, 1.0), (1e-31, 1.0)):
        plan = plan_of(noise=noise, adaptive=loud, clip_norm=first)
        found = run(plan, optimizer=optax.sgd(1e-20))
        assert np.isfinite([*found.params, found.clip_norm]).all()


def test_the_noise_of_a_sum_beside_a_count_is_exact_at_both_ends():
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        for z, own in (
            (1e-200, 1.0),
            (1.0, 0.5 * (1 + 1e-15)),
            (1.1, 0.55 * (1 + 1e-15)),
            (1e200, 1e300),
            (1.7, 2.0),
        ):
            truth = (mpmath.mpf(z) ** -2 - (2 * mpmath.mpf(own)) ** -2) ** mpmath.mpf("-0.5")
            adaptive = AdaptiveQuantile(own, 1)
            assert adaptive.gradient_noise(z) == pytest.approx(float(truth), rel=1e-15)
    with pytest.raises(ValueError, match="count_noise must exceed"):
        AdaptiveQuantile(1.0, 1).gradient_noise(2.0)
