"""Low-rank adapters: the model at first, any dense change at full rank, and nothing else moves."""

from __future__ import annotations

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import accounting as acc
from dpjax import gradients, training
from dpjax.gradients import per_example
from dpjax.gradients.ghost import sums

DATA = (
    np.random.default_rng(0).normal(size=(12, 6, 4)).astype(np.float32),
    (np.arange(12) % 2).astype(np.int32),
)


class Attending(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = x + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x))
        return nn.Dense(2)(nn.tanh(nn.Dense(5)(x))).mean(-2)


class Equinox(eqx.Module):
    table: eqx.nn.Embedding
    first: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.table = eqx.nn.Embedding(3, 4, key=keys[0])
        self.first = eqx.nn.Linear(4, 5, key=keys[1])
        self.last = eqx.nn.Linear(5, 2, use_bias=False, key=keys[2])

    def __call__(self, x):
        x = x + self.table(jnp.asarray(1))
        return self.last(jnp.tanh(jax.vmap(self.first)(x)).mean(0))


def made(kind):
    """(base, model's function of one record, names of its kernels)"""
    if kind == "equinox":
        return Equinox(jax.random.key(0)), lambda m, x: m(x), ["first/weight", "last/weight"]
    model = training.from_linen(Attending(), jnp.ones((6, 4)))
    attention = "MultiHeadDotProductAttention_0"
    names = [f"{attention}/{part}/kernel" for part in ("key", "out", "query", "value")]
    names = ["Dense_0/kernel", "Dense_1/kernel", *names]
    return model.init(jax.random.key(0)), model.apply, names


@pytest.mark.parametrize("kind", ["linen", "equinox"])
@pytest.mark.at_length(every=2)
def test_adapters_are_any_change_of_their_rank_of_the_kernels(kind, lenient_promotion):
    base, apply, names = made(kind)
    adapters, merge = training.lora(base, 1, key=jax.random.key(1))
    assert sorted(adapters) == sorted(names)
    x = jnp.asarray(DATA[0][0])
    # At first the model is the one that was given, to the last bit.
    for old, new in zip(jax.tree.leaves(base), jax.tree.leaves(merge(adapters)), strict=True):
        np.testing.assert_array_equal(old, new)

    rng = np.random.default_rng(2)
    paths, structure = jax.tree_util.tree_flatten_with_path(base)
    dense, factors = [], {}
    for place, leaf in paths:
        name = jax.tree_util.keystr(place, simple=True, separator="/")
        if name not in adapters:
            dense.append(leaf)
            continue
        rows, columns = adapters[name]["a"].shape[0], adapters[name]["b"].shape[1]
        a, b = rng.normal(size=(rows, 1)), rng.normal(size=(1, columns))
        change = np.outer(a, b)
        factors[name] = {"a": jnp.asarray(a, jnp.float32), "b": jnp.asarray(b, jnp.float32)}
        dense.append(np.asarray(leaf, np.float64) + change.reshape(leaf.shape))
    tuned = merge(factors)
    for found, wanted in zip(jax.tree.leaves(tuned), dense, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-6)
    dense = structure.unflatten([jnp.asarray(leaf, jnp.float32) for leaf in dense])
    np.testing.assert_allclose(apply(tuned, x), apply(dense, x), atol=2e-5)
    assert not np.allclose(apply(base, x), apply(dense, x), atol=0.01)


@pytest.mark.parametrize("kind", ["linen", "equinox"])
@pytest.mark.at_length(every=2)
def test_only_adapters_are_trained_and_by_the_ghost_method(kind, lenient_promotion, monkeypatch):
    monkeypatch.setattr(acc, "epsilon", lambda run, *_, **__: np.ones(np.shape(run.steps)))
    base, apply, _ = made(kind)
    adapters, merge = training.lora(base, 1, key=jax.random.key(1))
    copied = []

    def loss(params, example):
        x, y = example
        return -jax.nn.log_softmax(apply(merge(params["adapters"], params["base"]), x))[y]

    def no_copies(plan, *arguments):
        copied.append(plan.copied)
        return clipped_sum(plan, *arguments)

    def never(*arguments):
        raise AssertionError("per-example gradients were formed")

    clipped_sum = sums.ghost_clipped_sum
    monkeypatch.setattr(sums, "ghost_clipped_sum", no_copies)
    plan = training.Plan(acc.Repeated(acc.Gaussian(1e-5), 3), 0.1, 12, 1e-5)
    options = {"trainable": {"adapters": True, "base": False}, "optimizer": optax.sgd(1.0)}
    options["key"] = jax.random.key(2)
    given = {"adapters": adapters, "base": base}
    with monkeypatch.context() as patched:
        patched.setattr(per_example, "clipped_sum", never)
        found = training.fit(loss, given, DATA, plan, method="ghost", **options).params
    assert copied
    assert not any(copied)
    for old, new in zip(jax.tree.leaves(base), jax.tree.leaves(found["base"]), strict=True):
        np.testing.assert_array_equal(old, new)
    expected = training.fit(loss, given, DATA, plan, method="vmap", **options).params["adapters"]
    for name, own in found["adapters"].items():
        for side in own:
            assert not np.array_equal(own[side], adapters[name][side])
            np.testing.assert_allclose(own[side], expected[name][side], atol=2e-5)


def test_targets_and_ranks_are_checked():
    base = {"kernel": jnp.ones((3, 2)), "embed": {"kernel": jnp.ones((3, 2))}, "bias": jnp.ones(2)}
    key = jax.random.key(0)
    assert list(training.lora(base, 1, key=key).adapters) == ["kernel"]
    every = training.lora(base, 1, key=key, targets=lambda path, leaf: leaf.ndim == 2)
    assert sorted(every.adapters) == ["embed/kernel", "kernel"]
    with pytest.raises(ValueError, match=r"rank must be .* got 0"):
        training.lora(base, 0, key=key)
    with pytest.raises(ValueError, match=r"two axes or more, got bias of \(2,\)"):
        training.lora(base, 1, key=key, targets=lambda path, leaf: path == "bias")
    with pytest.raises(ValueError, match="targets must choose an array of the model, got none"):
        training.lora({"bias": jnp.ones(2)}, 1, key=key)
    twice = {"a": {"b/kernel": jnp.eye(2)}, "a/b": {"kernel": jnp.eye(2)}}
    with pytest.raises(ValueError, match="a path of its own for every leaf, got a/b/kernel twice"):
        training.lora(twice, rank=1, key=jax.random.key(0))
    with pytest.raises(ValueError, match="scale must"):
        training.lora(base, 1, key=key, scale=float("nan"))


def test_the_drawn_factor_is_on_the_side_of_the_inputs():
    key = jax.random.key(0)
    flax = training.lora({"kernel": jnp.ones((400, 99))}, 50, key=key, scale=2.0).adapters["kernel"]
    assert np.asarray(flax["a"]).std() == pytest.approx(2 / 20, rel=0.03)
    assert not flax["b"].any()
    own = training.lora({"weight": jnp.ones((99, 400))}, 50, key=key).adapters["weight"]
    assert np.asarray(own["b"]).std() == pytest.approx(1 / 20, rel=0.03)
    assert not own["a"].any()


LAYERS, WIDTH = 3, 4


def scanned(kind):
    """(base, loss) of a model whose layers are in one array: plain, and flax's attention."""
    if kind == "plain":
        keys = jax.random.split(jax.random.key(0), LAYERS)
        base = {"blocks": {"kernel": jnp.stack([jax.random.normal(k, (4, WIDTH)) for k in keys])}}

        def apply(model, x):
            block = lambda h, w: (h + jnp.tanh(h @ w), None)  # noqa: E731
            return jax.lax.scan(block, x, model["blocks"]["kernel"])[0]

        return base, apply

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x + nn.MultiHeadDotProductAttention(2)(x), None

    settings = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
    layers = nn.scan(Block, length=LAYERS, **settings)()
    base = layers.init(jax.random.key(0), jnp.ones((6, 4)), None)
    return base, lambda model, x: layers.apply(model, x, None)[0]


@pytest.mark.parametrize("kind", ["plain", "attention"])
@pytest.mark.at_length(every=2)
def test_stacked_kernels_have_an_adapter_a_layer(kind, lenient_promotion):
    base, apply = scanned(kind)
    stacked = {"stacked": lambda path, leaf: True} if kind == "plain" else {}
    adapters, merge = training.lora(base, 2, key=jax.random.key(1), **stacked)
    assert len(adapters) == (1 if kind == "plain" else 4)
    for own in adapters.values():
        assert own["a"].shape == (LAYERS, 4, 2)
        assert own["b"].shape == (LAYERS, 2, 4)
        assert not np.array_equal(own["a"][0], own["a"][1])
    for old, new in zip(jax.tree.leaves(base), jax.tree.leaves(merge(adapters)), strict=True):
        np.testing.assert_array_equal(old, new)
    # Layer by layer what is added is the layer's own product.
    moved = jax.tree.map(lambda leaf: leaf + jnp.arange(1.0, 4.0)[:, None, None], adapters)
    before, after = (
        {
            jax.tree_util.keystr(place, simple=True, separator="/"): leaf
            for place, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (base, merge(moved))
    )
    for name, own in moved.items():
        change = np.stack(
            [np.asarray(own["a"][i]) @ np.asarray(own["b"][i]) for i in range(LAYERS)]
        )
        expected = before[name] + change.reshape(before[name].shape)
        np.testing.assert_allclose(after[name], expected, rtol=1e-5, atol=1e-5)

    def loss(own, example):
        return jnp.square(apply(merge(own, base), example[0])).mean()

    ghost_, vmap = (
        jax.jit(gradients.clipped_grad(loss, 0.1, method))(adapters, DATA)
        for method in ("ghost", "vmap")
    )
    assert (np.asarray(vmap.norms) > 0.1).any()
    for one, two in zip(*map(jax.tree.leaves, (ghost_, vmap)), strict=True):
        np.testing.assert_allclose(one, two, atol=2e-6, rtol=1e-4)
    assert "copied" not in str(gradients.explain_clipping(loss, adapters, DATA, method="ghost"))


def test_which_arrays_are_stacks_can_be_said():
    base = {"wide": {"kernel": jnp.ones((3, 4, 5))}}
    key = jax.random.key(0)
    each = training.lora(base, 1, key=key, stacked=lambda path, leaf: True)
    each = each.adapters["wide/kernel"]
    assert (each["a"].shape, each["b"].shape) == ((3, 4, 1), (3, 1, 5))
    one = training.lora(base, 1, key=key, stacked=lambda path, leaf: False)
    assert one.adapters["wide/kernel"]["b"].shape == (1, 20)
    # Arrays that are named as attention's, and are not.
    own = {name: {"kernel": jnp.ones((6, 4, 4))} for name in ("query", "key", "value", "out")}
    found = training.lora(own, 1, key=key, stacked=lambda path, leaf: True).adapters
    assert {adapter["a"].shape for adapter in found.values()} == {(6, 4, 1)}
    with pytest.raises(ValueError, match="stacked must leave a kernel two or three axes, got True"):
        training.lora({"kernel": jnp.ones((3, 2))}, 1, key=key, stacked=lambda path, leaf: True)
    known = training.lora(base, 1, key=key, stacked=lambda path, leaf: np.bool_(leaf.ndim == 3))
    assert known.adapters["wide/kernel"]["b"].shape == (3, 1, 5)
    for wrong in (None, 2, "yes"):
        with pytest.raises(ValueError, match="stacked must say True or False of every kernel, got"):
            training.lora(base, 1, key=key, stacked=lambda path, leaf, said=wrong: said)
    with pytest.raises(TypeError, match="stacked must be a function, got"):
        training.lora(base, 1, key=key, stacked={"wide": True})


@pytest.mark.parametrize(
    "empty", [{"kernel": (0, 3)}, {"weight": (3, 0)}, {"kernel": (3, 0)}, {"kernel": (0, 3, 4)}]
)
@pytest.mark.at_length(every=2)
def test_a_kernel_without_entries_has_adapters_without_any(empty):
    base = {"none": jax.tree.map(jnp.zeros, empty, is_leaf=lambda x: isinstance(x, tuple))}
    base["some"] = {"kernel": jnp.ones((2, 3))}
    axes = {f"none/{n}": "layer in out" for n, x in base["none"].items() if x.ndim == 3}
    adapters, merge = training.lora(base, 1, key=jax.random.key(1), axes=axes)
    (name,) = empty
    a, b = (adapters[f"none/{name}"][factor] for factor in "ab")
    assert (a @ b).shape == base["none"][name].shape
    jax.tree.map(np.testing.assert_array_equal, merge(adapters), base)
    clipped = gradients.clipped_grad(lambda p, x: jnp.sum(merge(p)["some"]["kernel"] * x), 1.0)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(clipped(adapters, jnp.ones(2))))
