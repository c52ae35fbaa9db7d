"""clipped_grad against a loop over single records, for every method that exists."""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.gradients import Automatic, Flat, PerGroup, PerSampleAdaptive, clipped_grad

METHODS = ("vmap", "ghost")


def perceptron(params, example):
    x, y = example
    h = jnp.tanh(x @ params["a"]["w"] + params["a"]["b"])
    logits = h @ params["b"]["w"] + params["b"]["b"]
    return -jax.nn.log_softmax(logits)[y]


def perceptron_params(key, dtype=jnp.float32):
    k1, k2 = jax.random.split(key)
    return {
        "a": {"w": jax.random.normal(k1, (5, 7), dtype), "b": jnp.full(7, 0.1, dtype)},
        "b": {"w": jax.random.normal(k2, (7, 3), dtype), "b": jnp.zeros(3, dtype)},
    }


@pytest.fixture
def problem():
    params = perceptron_params(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (12, 5)) * jnp.arange(12.0)[:, None]
    y = jax.random.randint(jax.random.key(2), (12,), 0, 3)
    return params, (x, y)


compiled_gradient = functools.cache(lambda loss: jax.jit(jax.grad(loss)))


def brute_force(loss, params, batch, clip_norm):
    """One record at a time, numpy float64 after the gradient."""
    records = jax.tree.leaves(batch)[0].shape[0]
    total, norms = None, []
    gradient = compiled_gradient(loss)
    for i in range(records):
        g = jax.tree.map(
            lambda a: np.asarray(a, np.float64),
            gradient(params, jax.tree.map(lambda a, i=i: a[i], batch)),
        )
        norm = np.sqrt(sum(float(np.sum(a**2)) for a in jax.tree.leaves(g)))
        norms.append(norm)
        g = jax.tree.map(lambda a, norm=norm: a * min(1.0, clip_norm / max(norm, 1e-300)), g)
        total = g if total is None else jax.tree.map(np.add, total, g)
    return total, np.array(norms)


def assert_close(got, want, rtol=1e-5):
    """‖got − want‖ ≤ rtol·‖want‖ over the whole tree, and the same structure."""
    chex.assert_trees_all_equal_shapes(got, want)
    pairs = list(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True))
    difference = sum(np.sum((np.asarray(a, np.float64) - np.asarray(b)) ** 2) for a, b in pairs)
    assert np.sqrt(difference) <= rtol * np.sqrt(sum(np.sum(np.asarray(b) ** 2) for _, b in pairs))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("microbatch_size", [None, 5, 100])
def test_agrees_with_a_loop(problem, method, microbatch_size):
    params, batch = problem
    fn = jax.jit(clipped_grad(perceptron, 0.7, method, microbatch_size=microbatch_size))
    out = fn(params, batch)
    total, norms = brute_force(perceptron, params, batch, 0.7)
    assert_close(out.sum, total)
    np.testing.assert_allclose(out.norms, norms, rtol=1e-5)
    np.testing.assert_allclose(
        out.losses, jax.vmap(perceptron, (None, 0))(params, batch), rtol=1e-6
    )


@pytest.mark.parametrize("method", METHODS)
def test_masked_and_nonfinite_records_contribute_zero(problem, method):
    params, (x, y) = problem
    bad = x.at[3].set(jnp.nan).at[5, 0].set(jnp.inf).at[7].set(jnp.nan)
    mask = jnp.ones(12, bool).at[7].set(False).at[8].set(False)
    out = jax.jit(clipped_grad(perceptron, 1.0, method))(params, (bad, y), mask)
    keep = np.array([i for i in range(12) if i not in (3, 5, 7, 8)])
    total, norms = brute_force(perceptron, params, (x[keep], y[keep]), 1.0)
    assert_close(out.sum, total)
    np.testing.assert_allclose(out.norms[keep], norms, rtol=1e-5)
    assert int(out.nonfinite) == 2
    assert out.norms[7] == out.norms[8] == out.losses[7] == 0


@pytest.mark.parametrize("method", METHODS)
def test_one_record_never_moves_the_sum_beyond_the_bound(problem, method):
    params, batch = problem
    for strategy in (Flat(), Automatic(), PerSampleAdaptive(), PerGroup()):
        fn = jax.jit(clipped_grad(perceptron, 0.7, method, clipping=strategy))
        for i in (0, 3, 11):
            alone = fn(params, jax.tree.map(lambda a, i=i: a[i : i + 1], batch)).sum
            norm = np.sqrt(
                sum(np.sum(np.asarray(a, np.float64) ** 2) for a in jax.tree.leaves(alone))
            )
            assert norm <= strategy.sensitivity(0.7, "add-remove")


@pytest.mark.parametrize("method", METHODS)
def test_half_precision_keeps_norms_and_sums_in_float32(problem, method):
    _, (x, y) = problem
    params = perceptron_params(jax.random.key(0), jnp.bfloat16)
    batch = (x.astype(jnp.bfloat16), y)
    out = jax.jit(clipped_grad(perceptron, 1.0, method))(params, batch)
    assert out.norms.dtype == jnp.float32
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(out.sum))
    _, norms = brute_force(perceptron, params, batch, 1.0)
    np.testing.assert_allclose(out.norms, norms, rtol=2e-2)


@pytest.mark.parametrize("method", METHODS)
def test_aux_and_dropout_keys(problem, method):
    params, batch = problem

    def loss(params, example, key):
        x, y = example
        keep = jax.random.bernoulli(key, 0.5, x.shape)
        x = jnp.where(keep, x, jnp.zeros_like(x))
        return perceptron(params, (x, y)), {"kept": keep}

    fn = jax.jit(clipped_grad(loss, 1.0, method, has_aux=True))
    out = fn(params, batch, rng=jax.random.key(3))
    again = fn(params, batch, rng=jax.random.split(jax.random.key(3), 12))
    assert out.aux["kept"].shape == (12, 5)
    chex.assert_trees_all_equal(out.sum, again.sum)
    dropped = (jnp.where(out.aux["kept"], batch[0], 0), batch[1])
    total, _ = brute_force(perceptron, params, dropped, 1.0)
    assert_close(out.sum, total)


@pytest.mark.parametrize("method", METHODS)
def test_vmap_over_clip_norms_is_a_loop(problem, method):
    params, batch = problem
    norms = jnp.array([0.1, 1.0, 10.0])
    swept = jax.jit(jax.vmap(lambda c: clipped_grad(perceptron, c, method)(params, batch).sum))(
        norms
    )
    single = jax.jit(clipped_grad(perceptron, 1.0, method))
    for i, c in enumerate(norms.tolist()):
        one = single(params, batch, clip_norm=jnp.float32(c)).sum
        assert_close(jax.tree.map(lambda a, i=i: a[i], swept), one)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p, b: clipped_grad(perceptron, 0.0), r"clip_norm must .* got 0.0"),
        (lambda p, b: clipped_grad(perceptron, float("nan")), r"clip_norm must .* got nan"),
        (lambda p, b: clipped_grad(perceptron, np.ones(8)), "clip_norm must be one number"),
        (  # each record a clip norm of its own, and the price of one
            lambda p, b: clipped_grad(perceptron)(p, b, clip_norm=jnp.ones(8).at[0].set(100.0)),
            "clip_norm must be one number",
        ),
        (lambda p, b: clipped_grad(perceptron, 1e39), r"clip_norm must .* got 1e\+39"),
        (lambda p, b: clipped_grad(perceptron)(p, b, clip_norm=1e-39), r"clip_norm must .* 1e-39"),
        (lambda p, b: clipped_grad(perceptron, 1.0, "magic"), r"method must .* got 'magic'"),
        (
            lambda p, b: clipped_grad(perceptron, microbatch_size=0),
            r"microbatch_size must .* got 0",
        ),
        (lambda p, b: clipped_grad(perceptron)(p, (b[0], b[1][:3])), "one number of records"),
        (lambda p, b: clipped_grad(perceptron)(p, b, jnp.ones(3)), "mask"),
        (lambda p, b: clipped_grad(lambda w, e: e[0])(p, b), "must be a scalar"),
        (
            lambda p, b: clipped_grad(perceptron)(p, b, rng=jax.random.split(jax.random.key(0), 3)),
            "3 keys",
        ),
        (lambda p, b: Automatic(gamma=0.0), r"gamma must .* got 0.0"),
        (lambda p, b: PerSampleAdaptive(r=-1.0), r"r must .* got -1.0"),
        (lambda p, b: Flat().sensitivity(1.0, "both"), r"adjacency must .* got 'both'"),
    ],
)
def test_bad_input_is_named(problem, call, words):
    with pytest.raises(ValueError, match=words):
        call(*problem)
