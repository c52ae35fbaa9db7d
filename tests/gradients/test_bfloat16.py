"""16-bit losses: norms and sums in float32, and no record beyond its clip norm as really summed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import accounting as acc
from dpjax import training
from dpjax.gradients import PerGroup, clipped_grad, low_rank_sum, rounding_slack

B, T, D, CLIP = 8, 5, 24, 0.37
RNG = np.random.default_rng(0)
PARAMS = {
    "table": RNG.normal(size=(7, D)),
    "w": RNG.normal(size=(D, D)) / 5,
    "a": RNG.normal(size=(D, 3)) / 5,
    "b": RNG.normal(size=(3, D)) / 5,
    "bias": RNG.normal(size=D) / 5,
    "out": RNG.normal(size=(D, 4)),
}
# Gradients from far below the clip norm to far beyond it.
BATCH = RNG.integers(0, 7, (B, T)), np.float32(10.0) ** np.arange(-4, 4)


def loss(params, example):
    """Computed in bfloat16, whatever the parameters are."""
    tokens, weight = example
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    w = low_rank_sum(half["w"], half["a"], half["b"]) if "a" in half else half["w"]
    hidden = jnp.tanh(half["table"][tokens] @ w + half["bias"][None])
    return jnp.sum((hidden @ half["out"]).astype(jnp.float32)) * weight


def given(dtype, adapters=False):
    names = ["a", "b", "bias"] if adapters else ["table", "w", "bias", "out"]
    params = {name: jnp.asarray(PARAMS[name]).astype(dtype) for name in names}
    if not adapters:
        return params, loss
    fixed = {name: jnp.asarray(PARAMS[name]).astype(dtype) for name in ("table", "w", "out")}
    return params, lambda own, example: loss({**fixed, **own}, example)


def norm(tree):
    """In float64."""
    return np.sqrt(sum((np.asarray(leaf, np.float64) ** 2).sum() for leaf in jax.tree.leaves(tree)))


CASES = [
    (method, dtype, adapters)
    for method in ("vmap", "ghost")
    for dtype in ("float32", "bfloat16")
    for adapters in (False, True)
]


@pytest.mark.parametrize(("method", "dtype", "adapters"), CASES)
@pytest.mark.at_length(every=3)
def test_no_record_counts_more_than_its_clip_norm_as_really_summed(method, dtype, adapters):
    params, of_record = given(dtype, adapters)
    batch = jax.tree.map(jnp.asarray, BATCH)
    clipped = jax.jit(clipped_grad(of_record, CLIP, method))
    dimension = sum(leaf.size for leaf in jax.tree.leaves(params))
    stated = CLIP * (1 + rounding_slack(B, dimension))
    everyone = clipped(params, batch)
    for leaf in (*jax.tree.leaves(everyone.sum), everyone.norms):
        assert leaf.dtype == jnp.float32
    beyond = 0
    for i in range(B):
        alone = clipped(params, batch, mask=jnp.arange(B) == i)
        own = float(alone.norms[i])
        assert norm(alone.sum) <= stated
        # The norm is that of what is summed: the two are read off the same gradient.
        assert norm(alone.sum) == pytest.approx(min(own, CLIP), rel=2e-6)
        beyond += own > CLIP
        without = clipped(params, batch, mask=jnp.arange(B) != i)
        moved = jax.tree.map(lambda x, y: np.float64(x) - np.float64(y), everyone.sum, without.sum)
        assert norm(moved) <= stated
    assert 2 <= beyond <= B - 2


@pytest.mark.parametrize("method", ["vmap", "ghost"])
def test_norms_and_sums_read_the_same_16_bits(method):
    """A compiler may keep the 32 bits that one of them was rounded from, for the other."""
    rng = np.random.default_rng(1)
    params = {
        "table": jnp.asarray(rng.normal(size=(11, 4)), jnp.bfloat16),
        "gate": jnp.asarray(rng.normal(size=4), jnp.bfloat16),
    }

    def squared(params, example):
        tokens, y = example
        return jnp.sum((params["table"][tokens].sum(0) * params["gate"] - y) ** 2)

    clipped = jax.jit(clipped_grad(squared, 1.0, method))
    tokens = jnp.asarray(rng.integers(0, 11, (40, 6)))
    y = jnp.asarray(rng.normal(size=(40, 4)) * 30, jnp.bfloat16)
    for i in range(40):
        alone = clipped(params, (tokens, y), mask=jnp.arange(40) == i)
        assert float(alone.norms[i]) > 1.0
        assert norm(alone.sum) <= 1.0 + rounding_slack(40, 48)


def test_groups_of_16_bit_gradients_keep_their_norms():
    params, of_record = given("bfloat16")
    strategy = PerGroup(lambda path, leaf: path, {"table": 0.1, "w": 0.2, "bias": 0.3, "out": 0.4})
    batch = jax.tree.map(jnp.asarray, BATCH)
    clipped = jax.jit(clipped_grad(of_record, strategy.clip_norm, "ghost", clipping=strategy))
    alone = clipped(params, batch, mask=jnp.arange(B) == B - 1).sum
    for name, bound in strategy.weights.items():
        assert norm(alone[name]) == pytest.approx(bound, rel=2e-6)
        assert norm(alone[name]) <= bound * (1 + 1e-6)


@pytest.mark.parametrize("method", ["vmap", "ghost"])
def test_a_sum_of_many_16_bit_gradients_is_one_of_32_bits(method):
    """In bfloat16 a sum of 1,000 equal gradients would stop growing at 256 of them."""
    rows = jnp.full((1000, 3), 1.0, jnp.bfloat16)
    # 0.7 has no finite binary expansion: what is summed is what bfloat16 makes of it.
    out = clipped_grad(lambda w, x: jnp.sum(w * x) * jnp.bfloat16(0.7), 10.0, method)(
        jnp.ones(3, jnp.bfloat16), rows
    )
    one = float(jnp.bfloat16(0.7))
    np.testing.assert_allclose(out.sum, 1000 * one, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_noise_is_of_32_bits_until_it_is_added(dtype, monkeypatch):
    """What the optimiser is handed is the noisy sum, and rounded at most after that."""
    monkeypatch.setattr(acc, "epsilon", lambda run, *_, **__: np.ones(np.shape(run.steps)))
    n, sigma = 4096, 2.0
    plan = training.Plan(acc.Repeated(acc.Gaussian(sigma), 1), CLIP, 8, 1e-5)
    params = {"w": jnp.zeros(n, dtype)}
    step = training.training_step(
        lambda p, x: jnp.sum(p["w"].astype(jnp.bfloat16) * x),
        params,
        plan,
        optimizer=optax.sgd(1.0),
    )
    rows = jnp.zeros((8, n), jnp.bfloat16)
    key = jax.random.key(3)
    program = jax.make_jaxpr(step.update)(step.init(params), rows, key)
    # Every random word of the noise is of 32 bits, and becomes a number of as many or more.
    words = [
        eqn
        for eqn in _equations(program.jaxpr)
        if eqn.primitive.name == "random_bits" or _from_words(eqn)
    ]
    assert any(map(_from_words, words))
    assert min(var.aval.dtype.itemsize for eqn in words for var in eqn.outvars) >= 4
    noise = -np.asarray(step.update(step.init(params), rows, key)[0]["params"]["w"], np.float64)
    other = {"w": jnp.zeros(n, "float32")}
    exact = training.training_step(
        lambda p, x: jnp.sum(p["w"].astype(jnp.bfloat16) * x), other, plan, optimizer=optax.sgd(1.0)
    )
    wide = -np.asarray(exact.update(exact.init(other), rows, key)[0]["params"]["w"], np.float64)
    # Few of its values are numbers of bfloat16: it was never rounded to them.
    short = np.asarray(jnp.asarray(wide, jnp.float32).astype(jnp.bfloat16), np.float64)
    assert (short == wide).mean() < 0.01
    assert wide.std() * 8 == pytest.approx(sigma * CLIP, rel=0.05)
    np.testing.assert_array_equal(noise, wide if dtype == "float32" else short)


def _from_words(eqn):
    """Whether random words become floating-point numbers."""
    if eqn.primitive.name not in ("convert_element_type", "bitcast_convert_type"):
        return False
    before, after = (var.aval.dtype for var in (*eqn.invars, *eqn.outvars))
    return jnp.issubdtype(before, jnp.unsignedinteger) and jnp.issubdtype(after, jnp.floating)


def _equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for leaf in jax.tree.leaves(dict(eqn.params), is_leaf=lambda v: hasattr(v, "eqns")):
            inner = getattr(leaf, "jaxpr", leaf)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)
