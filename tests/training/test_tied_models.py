"""`fit` keeps ties: without noise and clipping it takes the steps of flax's own loop."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dpjax import accounting as acc
from dpjax import training
from tests.gradients.tied import TiedLayer, TiedWeights, cross_entropy

pytestmark = pytest.mark.usefixtures("lenient_promotion")
RECORDS, STEPS, RATE = 12, 8, 0.2


def records():
    rng = np.random.default_rng(1)
    return tuple(rng.integers(0, 5, RECORDS).astype(np.int32) for _ in range(2))


def plan():
    """Every record in every step, no noise to speak of, a clip norm that clips nothing."""
    run = acc.Repeated(acc.Gaussian(1e-9), STEPS)
    return training.Plan(run, clip_norm=1e3, population=RECORDS, delta=1e-5)


@pytest.fixture(autouse=True)
def unpriced(monkeypatch):
    monkeypatch.setattr(acc, "epsilon", lambda run, *_, **__: np.ones(np.shape(run.steps)))


def steps_of_flax(model):
    """The parameters of flax's own loop: `nnx.split` and the gradient by its state."""
    graph, state = nnx.split(model)
    data = jax.tree.map(jnp.asarray, records())

    def mean_loss(state):
        loss = lambda *example: cross_entropy(nnx.merge(graph, state), example)  # noqa: E731
        return jnp.mean(jax.vmap(loss)(*data))

    step = jax.jit(
        lambda state: jax.tree.map(lambda w, g: w - RATE * g, state, jax.grad(mean_loss)(state))
    )
    for _ in range(STEPS):
        state = step(state)
    return state


def train(params, loss=cross_entropy, method="auto", **options):
    return training.fit(
        loss, params, records(), plan(), optimizer=optax.sgd(RATE), key=jax.random.key(3),
        method=method, **options,
    )  # fmt: skip


@pytest.mark.at_length(every=2)
@pytest.mark.parametrize("method", ["ghost", "vmap"])
@pytest.mark.parametrize("kind", [TiedWeights, TiedLayer])
def test_a_tied_module_takes_flaxs_own_steps(kind, method):
    found = train(kind(nnx.Rngs(0)), method=method).params
    state = nnx.split(found)[1]  # as many leaves as before: the tie is in what comes back
    expected = steps_of_flax(kind(nnx.Rngs(0)))
    moved = jax.tree.leaves(nnx.split(kind(nnx.Rngs(0)))[1])
    leaves, truth = jax.tree.leaves(state), jax.tree.leaves(expected)
    assert len(leaves) == len(truth)
    for leaf, true, before in zip(leaves, truth, moved, strict=True):
        np.testing.assert_allclose(leaf, true, atol=2e-5)
        assert np.abs(np.asarray(true) - np.asarray(before)).max() > 0.02
    for example in zip(*records(), strict=True):  # and by every name
        assert cross_entropy(found, example) == pytest.approx(
            float(cross_entropy(nnx.merge(nnx.split(found)[0], expected), example)), abs=1e-4
        )


def test_a_tied_module_trains_on_from_where_it_was():
    once = train(TiedWeights(nnx.Rngs(0))).params
    twice = train(once).params
    assert twice.embed is twice.head
    leaf = np.asarray(twice.embed[...])
    assert np.abs(leaf - np.asarray(once.embed[...])).max() > 0.02


def test_from_nnx_and_the_module_itself_agree():
    model = training.from_nnx(TiedWeightsOfBatches)
    params = model.init(jax.random.key(0))
    assert len(jax.tree.leaves(params)) == 3
    ours = train(params, lambda p, e: -jax.nn.log_softmax(model.apply(p, e[0]))[e[1]]).params
    module = TiedWeights(nnx.Rngs(jax.random.key(0)))
    theirs = nnx.to_pure_dict(nnx.split(train(module).params)[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, theirs)


class TiedWeightsOfBatches(TiedWeights):
    def __call__(self, tokens):
        return jax.vmap(super().__call__)(tokens)


def test_a_step_that_is_compiled_by_hand_knows_the_tie():
    module = TiedWeights(nnx.Rngs(0))
    step = training.training_step(cross_entropy, module, plan(), optimizer=optax.sgd(RATE))
    data, key = jax.tree.map(jnp.asarray, records()), jax.random.key(3)
    state = jax.jit(step.init)(module)  # whose variables are made anew within
    assert len(jax.tree.leaves(state["params"])) == 3
    for _ in range(STEPS):
        state = step.update(state, data, key)[0]
    trained = nnx.split(train(module).params)[1]
    expected = jax.tree.leaves(trained)
    for leaf, true in zip(jax.tree.leaves(state["params"]), expected, strict=True):
        np.testing.assert_allclose(leaf, true, atol=1e-6)


def test_trainable_says_the_same_of_both_places():
    with pytest.raises(ValueError, match=r"trainable must say the same of embed\S* and head\S*, "):
        train(TiedWeights(nnx.Rngs(0)), trainable=lambda path, leaf: "head" not in path)
    found = train(TiedWeights(nnx.Rngs(0)), trainable=lambda path, leaf: "middle" in path).params
    before = TiedWeights(nnx.Rngs(0))
    assert found.embed is found.head
    np.testing.assert_array_equal(found.embed[...], before.embed[...])
    assert np.abs(np.asarray(found.middle.kernel[...] - before.middle.kernel[...])).max() > 0.02


def test_a_tied_run_resumes(tmp_path, stop_at):
    whole = train(TiedWeights(nnx.Rngs(0))).params
    options = {"folder": tmp_path / "run", "checkpoint_every": 2, "log_every": 2}
    with pytest.raises(stop_at.error):
        train(TiedWeights(nnx.Rngs(0)), on_log=stop_at(4), **options)
    resumed = train(TiedWeights(nnx.Rngs(0)), resume=True, **options).params
    for one, two in zip(jax.tree.leaves(whole), jax.tree.leaves(resumed), strict=True):
        np.testing.assert_array_equal(one, two)


class Pair(eqx.Module):
    one: jax.Array
    two: jax.Array

    def __call__(self, token):
        return self.one[token] + self.two[token]


def test_one_array_twice_in_an_equinox_module_is_refused_where_it_is_trained():
    table = jnp.zeros((5, 5))
    with pytest.raises(ValueError, match=r"one array as one and two: .*eqx\.nn\.Shared"):
        train(Pair(table, table))
    with pytest.raises(ValueError, match=r"one array as one and two"):
        train(Pair(table, table), trainable=lambda path, leaf: path == "one")
    found = train(Pair(table, jnp.copy(table))).params
    np.testing.assert_allclose(found.one, found.two, atol=1e-5)  # both are trained, and alike
    assert np.abs(np.asarray(found.one)).max() > 0.02


def test_frozen_arrays_of_an_equinox_module_may_be_one():
    table = jnp.zeros((5, 5))
    params = {"frozen": Pair(table, table), "own": jnp.zeros(5)}
    loss = lambda p, e: cross_entropy(lambda token: p["frozen"](token) + p["own"], e)  # noqa: E731
    train(params, loss, trainable={"frozen": False, "own": True})


def test_a_plain_tree_may_begin_with_one_array_in_two_places():
    zeros = jnp.zeros(5)
    params = {"a": zeros, "b": zeros}
    loss = lambda p, e: cross_entropy(lambda token: p["a"] + 2 * p["b"] * (token == 0), e)  # noqa: E731
    found = train(params, loss).params
    assert np.abs(np.asarray(found["a"] - found["b"])).max() > 0.02
