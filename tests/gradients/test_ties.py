"""A parameter in several places is one parameter where its library says so.

The truth is flax's own: `nnx.split` says which parameters there are, and `jax.grad` by its state
what one record's gradient is, whose sum, clipped by hand, is what the clipped sum must be.
"""

from __future__ import annotations

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dpjax import gradients
from tests.gradients.tied import TiedLayer, TiedWeights, cross_entropy

pytestmark = pytest.mark.usefixtures("lenient_promotion")
B = 6


def batch():
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.integers(0, 5, B), jnp.int32) for _ in range(2))


def gradients_of_flax(model, records):
    """[records, parameters]: the gradient of each by `nnx.split`'s state, as one vector."""
    graph, state = nnx.split(model)

    def loss(state, example):
        return cross_entropy(nnx.merge(graph, state), example)

    found = []
    for number in range(B):
        gradient = jax.grad(loss)(state, jax.tree.map(lambda x: x[number], records))  # noqa: B023
        found.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient)]))
    return np.stack(found).astype(np.float64)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.at_length(every=2)
@pytest.mark.parametrize("method", ["ghost", "vmap"])
@pytest.mark.parametrize("kind", [TiedWeights, TiedLayer])
def test_a_tie_of_flax_is_one_parameter(kind, method):
    model, records = kind(nnx.Rngs(0)), batch()
    expected = gradients_of_flax(model, records)
    norms = np.linalg.norm(expected, axis=1)
    bound = float(np.median(norms))  # some are clipped, some are not
    assert (norms > bound).any()
    assert (norms < bound).any()
    out = gradients.clipped_grad(cross_entropy, bound, method)(model, records)
    leaves = jax.tree.leaves(out.sum)
    assert len(leaves) == len(jax.tree.leaves(nnx.split(model)[1])) < len(jax.tree.leaves(model))
    np.testing.assert_allclose(out.norms, norms, rtol=1e-5)
    clipped = (np.minimum(1, bound / norms)[:, None] * expected).sum(0)
    np.testing.assert_allclose(flat(out.sum), clipped, atol=1e-5)


@pytest.mark.parametrize("method", ["ghost", "vmap"])
def test_one_record_moves_the_sum_of_a_tied_model_by_the_clip_norm(method):
    model, records = TiedWeights(nnx.Rngs(0)), batch()
    clipped = gradients.clipped_grad(cross_entropy, 0.01, method)
    whole = clipped(model, records).sum
    for left_out in range(2):
        without = clipped(model, records, jnp.arange(B) != left_out).sum
        moved = np.linalg.norm(flat(whole) - flat(without))
        assert moved == pytest.approx(0.01, rel=1e-3)  # to the full: all norms are above


def test_explained_once(capsys):
    gradients.explain_clipping(cross_entropy, TiedWeights(nnx.Rngs(0)), batch())
    table = capsys.readouterr().out
    assert "embed" in table
    assert "head" not in table


@pytest.mark.at_length
def test_a_tie_lasts_on_a_mesh_with_explicit_axes():
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    model, records = TiedWeights(nnx.Rngs(0)), batch()
    place = jax.NamedSharding(mesh, jax.P("x"))
    spread = jax.tree.map(lambda x: jax.device_put(x, place), records)
    clipped = gradients.clipped_grad(cross_entropy, 0.5)
    np.testing.assert_allclose(
        flat(clipped(model, spread).sum), flat(clipped(model, records).sum), atol=1e-6
    )


def test_modules_in_a_tree_of_ones_own_are_tied_too():
    first = TiedLayer(nnx.Rngs(0))
    params = {"a": first, "b": [first, jnp.ones(5)]}

    def loss(params, example):
        logits = params["a"](example[0]) + params["b"][0](example[0]) * params["b"][1]
        return -jax.nn.log_softmax(logits)[example[1]]

    out = gradients.clipped_grad(loss)(params, batch())
    assert len(jax.tree.leaves(out.sum)) == 3  # kernel, bias, and the ones


def test_one_array_in_two_places_of_a_plain_tree_is_two_parameters():
    zeros = jnp.zeros(5)

    def loss(params, example):
        return (params["a"][example[0]] + 2 * params["b"][example[1]] - 1) ** 2

    out = gradients.clipped_grad(loss, 1e3)({"a": zeros, "b": zeros}, batch())
    a, b = (np.bincount(np.asarray(x), minlength=5) for x in batch())
    np.testing.assert_allclose(out.sum["a"], -2.0 * a, rtol=1e-5)
    np.testing.assert_allclose(out.sum["b"], -4.0 * b, rtol=1e-5)


class Pair(eqx.Module):
    one: eqx.nn.Linear
    two: eqx.nn.Linear

    def __call__(self, token):
        return self.two(jnp.tanh(self.one(jax.nn.one_hot(token, 5))))


class SharedPair(eqx.Module):
    both: eqx.nn.Shared

    def __call__(self, token):
        return self.both()(token)


def layer(seed):
    return eqx.nn.Linear(5, 5, key=jax.random.key(seed))


def test_one_array_in_two_places_of_an_equinox_module_is_refused():
    one = layer(0)
    with pytest.raises(ValueError, match=r"one array as .*one/weight and .*two/weight.*Shared"):
        gradients.clipped_grad(cross_entropy)(Pair(one, one), batch())
    with pytest.raises(ValueError, match=r"eqx\.nn\.Shared"):
        gradients.clipped_grad(lambda p, x: cross_entropy(p[0], x))([Pair(one, one)], batch())
    copied = Pair(one, jax.tree.map(jnp.copy, one))
    out = gradients.clipped_grad(cross_entropy)(copied, batch())
    assert len(jax.tree.leaves(out.sum)) == 4


@pytest.mark.parametrize("method", ["ghost", "vmap"])
def test_equinox_shares_by_shared(method):
    one = layer(0)
    where, get = (
        (lambda pair: (pair.two.weight, pair.two.bias)),
        (lambda pair: (pair.one.weight, pair.one.bias)),
    )
    model, records = SharedPair(eqx.nn.Shared(Pair(one, layer(1)), where, get)), batch()
    out = gradients.clipped_grad(cross_entropy, 1e3, method)(model, records)
    trained, rest = eqx.partition(model, eqx.is_inexact_array)

    def total(trained):
        apply = lambda *example: cross_entropy(eqx.combine(trained, rest), example)  # noqa: E731
        return jnp.sum(jax.vmap(apply)(*records))

    expected = jax.grad(total)(trained)
    assert len(jax.tree.leaves(out.sum)) == len(jax.tree.leaves(expected)) == 2
    np.testing.assert_allclose(flat(out.sum), flat(expected), atol=1e-5)


@pytest.mark.parametrize("method", ["ghost", "vmap"])
def test_linen_has_a_module_under_two_names_once(method):
    class Net(nn.Module):
        def setup(self):
            self.table = nn.Embed(5, 3)
            self.inner = nn.Dense(3)
            self.same = self.inner

        def __call__(self, token):
            return self.table.attend(self.same(jnp.tanh(self.inner(self.table(token)))))

    net, records = Net(), batch()
    params = net.init(jax.random.key(0), records[0][0])

    def loss(params, example):
        return -jax.nn.log_softmax(net.apply(params, example[0]))[example[1]]

    out = gradients.clipped_grad(loss, 1e3, method)(params, records)
    total = lambda p: jnp.sum(jax.vmap(loss, (None, 0))(p, records))  # noqa: E731
    assert len(jax.tree.leaves(out.sum)) == 3
    np.testing.assert_allclose(flat(out.sum), flat(jax.grad(total)(params)), atol=1e-5)


@pytest.mark.at_length
def test_nnx_jit_keeps_a_tie():
    model, records = TiedWeights(nnx.Rngs(0)), batch()
    clipped = gradients.clipped_grad(cross_entropy, 0.5)
    jitted = nnx.jit(lambda model, records: clipped(model, records).sum)(model, records)
    np.testing.assert_allclose(flat(jitted), flat(clipped(model, records).sum), atol=1e-6)


class Scaled(eqx.Module):
    """A module with a Python number, which is no parameter."""

    weight: jax.Array
    slope: float

    def __call__(self, x):
        return jnp.sum(self.slope * self.weight * x)


def test_jit_does_not_make_a_parameter_of_a_python_number():
    """Within `jax.jit` the number was an array, and trained."""
    module, batch = Scaled(jnp.ones(2), 3.0), jnp.ones((4, 2))
    clipped = gradients.clipped_grad(lambda module, x: module(x), 1.0)
    assert clipped(module, batch).sum.slope is None
    with pytest.raises(ValueError, match=r"stay numbers, got slope made .* use equinox.filter_jit"):
        jax.jit(clipped)(module, batch)
    found = eqx.filter_jit(clipped)(module, batch).sum
    assert found.slope is None
    np.testing.assert_allclose(found.weight, 4 / np.sqrt(2) * np.ones(2), rtol=1e-5)
    own = eqx.tree_at(lambda module: module.slope, module, jnp.float32(3.0))
    assert jax.jit(clipped)(own, batch).sum.slope is not None
