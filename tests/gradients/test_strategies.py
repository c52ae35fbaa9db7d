"""Factors of every strategy against closed forms, and the sensitivities they promise."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax.gradients import (
    AdaptiveQuantile,
    Automatic,
    Flat,
    PerGroup,
    PerSampleAdaptive,
    clipped_grad,
    rounding_slack,
)
from dpjax.gradients.strategies import Strategy

ALL = (Flat(), Automatic(), PerSampleAdaptive(), AdaptiveQuantile(10.0, 100))


def clipped_norm(strategy, norm, clip_norm=1.0):
    squared = jnp.array([[norm]], jnp.float32) ** 2
    factors = jax.jit(strategy.factors)(squared, jnp.float32(clip_norm))
    return float(factors[0, 0]) * norm


@pytest.mark.parametrize(
    ("norm", "expected"),  # C‖g‖/(‖g‖ + r/(‖g‖ + r)) with C = 1, r = 0.1, by mpmath
    [
        (0.0001, 0.000100089980992903),
        (0.01, 0.0108803165182987),
        (0.1, 0.166666666666667),
        (10.0, 0.999010880316518),
        (1000.0, 0.999999900010009),
    ],
)
def test_per_sample_adaptive_closed_form(norm, expected):
    assert clipped_norm(PerSampleAdaptive(r=0.1), norm) == pytest.approx(expected, rel=1e-6)


def test_recorded_reference_values(oracles):
    checked = 0
    for name, make in (
        ("psac_norm", lambda p: PerSampleAdaptive(r=p["r"])),
        ("auto_s_norm", lambda p: Automatic(gamma=p["gamma"])),
    ):
        for row in oracles.get(name, []):
            p = row["params"]
            got = clipped_norm(make(p), p["norm"], p.get("C", 1.0))
            assert got == pytest.approx(row["value"], rel=1e-6)
            checked += 1
    assert checked >= 10


@pytest.mark.parametrize("norm", [0.0, 1e-3, 1.0, 50.0])
def test_flat_and_automatic_closed_forms(norm):
    assert clipped_norm(Flat(), norm, 0.7) == pytest.approx(min(norm, 0.7), rel=1e-6)
    assert clipped_norm(Automatic(0.01), norm, 0.7) == pytest.approx(
        0.7 * norm / (norm + 0.01), rel=1e-6
    )


@hypothesis.given(
    st.floats(2.0**-40, 2.0**60, width=32),
    st.floats(2.0**-20, 2.0**20, width=32),
    st.sampled_from(ALL),
)
@hypothesis.settings(max_examples=60)
def test_the_clipped_norm_never_exceeds_the_bound(norm, clip_norm, strategy):
    # Norm and product in float64: the float32 factor alone must keep the bound.
    factors = strategy.factors(jnp.array([[norm]], jnp.float32) ** 2, jnp.float32(clip_norm))
    assert np.float64(factors[0, 0]) * np.float64(np.float32(norm)) <= np.float64(clip_norm)


def test_sensitivities_under_both_adjacencies():
    for strategy in (*ALL, PerGroup()):
        assert strategy.sensitivity(0.5) == 0.5
        assert strategy.sensitivity(0.5, "replace-one") == 1.0
        assert strategy.sensitivity(0.5, acc.Adjacency.ADD_REMOVE) == 0.5
        assert strategy.sensitivity(0.5, acc.Adjacency.REPLACE_ONE) == 1.0


@pytest.mark.parametrize("method", ["vmap", "ghost"])
def test_groups_are_clipped_to_their_own_bounds(method):
    params = {"a": {"w": jnp.ones(3)}, "b": {"w": jnp.ones((3, 2)), "c": jnp.ones(2)}}

    def loss(p, x):
        return 100 * jnp.sum((p["a"]["w"] * x) @ p["b"]["w"] + p["b"]["c"])

    strategy = PerGroup(weights={"b": 2.0})
    x = jax.random.normal(jax.random.key(0), (1, 3))
    out = jax.jit(clipped_grad(loss, 1.0, method, clipping=strategy))(params, x)
    first = np.linalg.norm(out.sum["a"]["w"])
    second = np.sqrt(np.sum(out.sum["b"]["w"] ** 2) + np.sum(out.sum["b"]["c"] ** 2))
    np.testing.assert_allclose([first, second], np.array([1, 2]) / np.sqrt(5), rtol=1e-5)
    named = PerGroup(label=lambda path, leaf: path.split("/")[-1])
    assert named.groups(params) == (0, 1, 0)
    with pytest.raises(ValueError, match="nothing"):
        PerGroup(weights={"nothing": 1.0}).bounds(params, 1.0)


def test_quantile_converges_and_its_noise_is_charged():
    adapt = AdaptiveQuantile(count_noise=20.0, batch_size=1000, quantile=0.7)
    norms = jnp.linspace(0.0, 10.0, 1000)
    mask = jnp.ones(1000, bool)

    def step(c, key):
        return adapt.next_clip_norm(c, norms, mask, key), c

    final, _ = jax.jit(
        lambda: jax.lax.scan(step, jnp.float32(0.1), jax.random.split(jax.random.key(0), 200))
    )()
    assert abs(float(final) - 7.0) < 0.5  # three standard deviations of the stationary noise
    # z⁻² = σ⁻² + (sensitivity ratio ½)²·σ_b⁻², at σ = 1.5, σ_b = 20.
    assert adapt.noise_multiplier(1.5) == pytest.approx(1 / np.sqrt(1 / 2.25 + 0.25 / 400))
    assert adapt.noise_multiplier(adapt.gradient_noise(1.1)) == pytest.approx(1.1)
    with pytest.raises(ValueError, match=r"count_noise must .* got 0\.4"):
        AdaptiveQuantile(0.4, 10).gradient_noise(1.0)


def test_one_record_moves_the_count_by_no_more_than_promised():
    adapt = AdaptiveQuantile(count_noise=1e-6, batch_size=10, learning_rate=1.0)
    norms = jnp.arange(10.0)
    mask = jnp.ones(10, bool)

    def count(norms, mask):  # back from the clip norm to the noisy count
        return -10 * np.log(float(adapt.next_clip_norm(5.0, norms, mask, jax.random.key(0))) / 5.0)

    base = count(norms, mask)
    for i in range(10):
        assert abs(count(norms, mask.at[i].set(False)) - base) <= 0.5 + 1e-4
        for value in (0.0, 99.0, jnp.nan, jnp.inf):
            assert abs(count(norms.at[i].set(value), mask) - base) <= 1 + 1e-4


@pytest.mark.parametrize("records", [100, 1024, 5000])
def test_sums_stay_within_the_rounding_slack(records):
    # All gradients equal and clipped: the worst case for rounding, every partial sum is as large
    # as it can be. 0.1 is not a float32, so every addition rounds.
    params, x = jnp.zeros(3), jnp.full((records, 3), 0.1)
    for method in ("vmap", "ghost"):
        fn = jax.jit(clipped_grad(lambda p, x: jnp.dot(p, x), 0.123, method))
        total = np.asarray(fn(params, x).sum, np.float64)
        one = np.asarray(fn(params, x[:1]).sum, np.float64)
        error = np.linalg.norm(total - records * one) / 0.123
        assert error <= rounding_slack(records, 3) / 2
    assert rounding_slack(records, 10) <= rounding_slack(2 * records, 10)


def test_rounding_slack_refuses_nonsense():
    with pytest.raises(ValueError, match=r"batch_size .* got 0"):
        rounding_slack(0, 10)
    with pytest.raises(ValueError, match=r"failure must .* got 2"):
        rounding_slack(10, 10, failure=2)


def _kinds(base=Strategy):
    return {kind for own in base.__subclasses__() for kind in (own, *_kinds(own))}


def test_a_factor_of_every_strategy_is_finite_and_keeps_the_clip_norm():
    params = {"a": jnp.ones(2), "b": jnp.ones(3)}
    every = [*ALL, PerGroup(weights={"a": 3.0}).bind(params), PerGroup(), Strategy()]
    mine = {kind for kind in _kinds() if kind.__module__.startswith("dpjax.")}
    assert mine <= {type(one) for one in every}, "a strategy that this test does not hold"
    norms = np.concatenate([[0.0, 1e-30, 1e30], np.geomspace(1e-18, 1e18, 200)])
    for strategy in every[:-2]:
        groups = len(set(strategy.groups(params)))
        for clip_norm in (1e-6, 1.0, 1e4):
            shares = np.random.default_rng(0).dirichlet(np.ones(groups), len(norms)).T
            squares = jnp.asarray(np.minimum(shares * norms**2, 3e38), jnp.float32)
            factors = np.asarray(strategy.factors(squares, jnp.float32(clip_norm)), np.float64)
            assert np.all((factors >= 0) & np.isfinite(factors)), strategy
            clipped = np.sqrt(np.sum(factors**2 * np.asarray(squares, np.float64), axis=0))
            assert np.all(clipped <= clip_norm * (1 + 1e-7)), strategy
    # A strategy that normalises makes small gradients larger, whatever is said of clipping.
    assert float(Automatic(0.01).factors(jnp.zeros((1, 1)), jnp.float32(1.0))[0, 0]) > 99
