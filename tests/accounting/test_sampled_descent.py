"""Noisy SGD with drawn batches: bounded however long it runs, and never above composition."""

import math

import jax
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax.accounting import NoisySampledDescent
from dpjax.accounting.last_iterate import releases

REPLACE = acc.Adjacency.REPLACE_ONE


def descent(steps, ratio=0.2, step=0.01, batch=20, population=1000, **rest):
    settings = {"strong_convexity": 1.0, "smoothness": 1.0, **rest}
    moved = ratio / math.sqrt(step / 2)
    return NoisySampledDescent(
        steps, step, 1.0, moved, batch_size=batch, population=population, **settings
    )


def cost(run, **options):
    return acc.epsilon(run, delta=1e-5, adjacency=REPLACE, **options)


def test_split_oracles_are_bounded(oracles):
    """The symmetrised reference bounds the pair; Rényi is of the same size."""
    for row in oracles["hidden_noisysgd_wor_eps"][:2]:
        p = row["params"]
        run = descent(10**6, p["L_over_b_sigma"], 1 - p["c"], 20, 1000)
        parts = releases(run, p["nu"], p["theta"])
        found = cost(parts, method="rdp")
        assert 0.5 * row["value"] < found < 2 * row["value"]


def test_price_stops_growing():
    plain = cost(releases(descent(20_000), 20_000, 1.0), method="rdp")
    bounded = acc.price(descent(20_000), 1e-5, adjacency=REPLACE)
    assert bounded[1].name == "sampled_descent"
    assert bounded[0] < 0.5 * plain
    assert cost(descent(10**6)) == pytest.approx(bounded[0], rel=0.1)


def test_without_contraction_it_is_composition():
    flat = descent(50, strong_convexity=0.0, smoothness=500.0)  # step above 2/smoothness
    assert 0 < cost(flat) <= cost(releases(flat, 50, 1.0), method="rdp")
    assert cost(descent(0)) == 0.0


def test_only_what_it_can_answer():
    with pytest.raises(acc.UnsupportedQuery):
        acc.epsilon(descent(10), delta=1e-5)
    with pytest.raises(ValueError, match="noise_std"):
        NoisySampledDescent(10, 0.1, 0.0, 1.0, 1.0, 1.0, 20, 1000)


def test_a_sweep_is_a_loop_and_a_trace_says_the_same():
    steps = np.array([3, 30, 300])
    alone = [cost(descent(int(t))) for t in steps]
    np.testing.assert_array_equal(cost(descent(steps)), alone)
    traced = jax.jit(lambda t: cost(descent(t)))(30)
    np.testing.assert_allclose(traced, alone[1], rtol=1e-6)
