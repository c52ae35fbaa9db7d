"""Adapters of kernels with heads, gates and layers are low-rank maps of inputs to outputs."""

from __future__ import annotations

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dpjax import training
from dpjax.gradients import clipped_grad
from dpjax.gradients.methods import choose_clipping
from dpjax.training.kernel_axes import name_leaves

List = getattr(nnx, "List", list)  # older releases of flax take a list as it is
D, N, K, H, F, V = 12, 3, 2, 5, 14, 9  # width, heads, heads of keys, their width, hidden, words


class Einsum(nnx.Module):
    """A product as tunix's models have it."""

    def __init__(self, equation, shape, rngs):
        self.einsum_str, self.shape = equation, shape
        self.w = nnx.Param(nnx.initializers.normal()(rngs.params(), shape))

    def __call__(self, x):
        return jnp.einsum(self.einsum_str, x, self.w[...])


class Llama(nnx.Module):
    """The arrays of tunix's Llama and Qwen, one layer of them."""

    def __init__(self, rngs):
        self.embedder = nnx.Embed(V, D, rngs=rngs)
        self.q_proj = Einsum("TD,DNH->TNH", (D, N, H), rngs)
        self.k_proj = Einsum("TD,DKH->TKH", (D, N, H), rngs)
        self.v_proj = Einsum("TD,DKH->TKH", (D, N, H), rngs)
        self.o_proj = Einsum("TNH,NHD->TD", (N, H, D), rngs)
        self.layers = List([nnx.Linear(D, F, use_bias=False, rngs=rngs)])
        self.lm_head = Einsum("TD,DV->TV", (F, V), rngs)

    def __call__(self, words):
        x = self.embedder(words)
        weights = jax.nn.softmax(jnp.einsum("tnh,snh->nts", self.q_proj(x), self.k_proj(x)))
        x = x + self.o_proj(jnp.einsum("nts,snh->tnh", weights, self.v_proj(x)))
        return self.lm_head(jnp.tanh(self.layers[0](x)))


GEMMA = {
    "q_einsum/w": ((N, D, H), "d,ndh->nh"),
    "kv_einsum/w": ((2, K, D, H), "d,ckdh->ckh"),
    "attn_vec_einsum/w": ((N, H, D), "nh,nhd->d"),
}
# (tree of shapes, {path: the product that the kernel is in}, axes that the user says)
LAYOUTS = {
    "gemma": ({n: s for n, (s, _) in GEMMA.items()}, {n: e for n, (_, e) in GEMMA.items()}, None),
    "gemma, as many heads of keys": (
        {"qkv_einsum/w": (3, N, D, H), "attn_vec_einsum/w": (N, H, D)},
        {"qkv_einsum/w": "d,cndh->cnh", "attn_vec_einsum/w": "nh,nhd->d"},
        None,
    ),
    "gemma's gates": (
        {"gating_einsum": (2, F, D), "linear": (F, D)},
        {"gating_einsum": "d,cfd->cf", "linear": "f,fd->d"},
        None,
    ),
    "gemma's gates, the older order": (
        {"gating_einsum": (2, D, F), "linear": (F, D)},
        {"gating_einsum": "d,cdf->cf", "linear": "f,fd->d"},
        None,
    ),
    "tunix": (
        {"q_proj/w": (D, N, H), "k_proj/w": (D, K, H), "o_proj/w": (N, H, D), "lm_head/w": (D, V)},
        {
            "q_proj/w": "d,dnh->nh",
            "k_proj/w": "d,dkh->kh",
            "o_proj/w": "nh,nhd->d",
            "lm_head/w": "d,dv->v",
        },
        None,
    ),
    "DenseGeneral beside its bias": (
        {"kernel": (D, N, H), "bias": (N, H)}, {"kernel": "d,dnh->nh"}, None,
    ),
    "said by the user": (
        {"experts": (K, D, F), "mixed": (H, D, N)},
        {"experts": "ed,edf->ef", "mixed": "hn,hdn->d"},
        {"experts": "layer in out", "mixed": "in out in"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.at_length(every=7)
def test_what_is_added_to_a_kernel_is_a_map_of_its_rank_from_inputs_to_outputs(name):
    shapes, products, axes = LAYOUTS[name]
    rng = np.random.default_rng(0)
    base = {n: rng.normal(size=shape).astype(np.float32) for n, shape in shapes.items()}
    given = {"targets": lambda path, _: path in products} if axes else {}
    adapters, merge = training.lora(base, 2, key=jax.random.key(0), axes=axes, **given)
    assert sorted(adapters) == sorted(products)
    filled = {
        name: {side: rng.normal(size=leaf.shape).astype(np.float32) for side, leaf in own.items()}
        for name, own in adapters.items()
    }
    merged = merge(filled)
    for path, product in products.items():
        change = np.asarray(merged[path], np.float64) - base[path]
        enters, leaves = product.partition(",")[0], product.partition("->")[2]
        sizes = dict(zip(product.partition(",")[2].partition("->")[0], change.shape, strict=True))
        apart = [letter for letter in enters if letter in leaves]  # a kernel each
        inputs, outputs = ([x for x in side if x not in apart] for side in (enters, leaves))
        ones = np.eye(int(np.prod([sizes[x] for x in inputs])))
        ones = ones.reshape(-1, *(sizes[x] for x in inputs))
        # The Jacobian of the product, by feeding it the unit vectors.
        kernel = product.partition(",")[2].partition("->")[0]
        jacobian = np.einsum(
            f"Z{''.join(inputs)},{kernel}->{''.join(apart)}Z{''.join(outputs)}", ones, change
        )
        for own in jacobian.reshape(-1, len(ones), int(np.prod([sizes[x] for x in outputs]))):
            values = np.linalg.svd(own, compute_uv=False)
            assert values[1] > 0.1  # both directions of the rank are there
            assert values[2] < 1e-5 * values[0]
        drawn = {name for name, side in adapters[path].items() if np.any(side)}
        assert len(drawn) == 1
        assert np.asarray(adapters[path][drawn.pop()]).std() == pytest.approx(
            len(ones) ** -0.5, rel=0.5
        )


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "said by the user"])
@pytest.mark.at_length(every=3)
def test_adapters_of_every_known_layout_are_clipped_without_copies(name):
    shapes, products, axes = LAYOUTS[name]
    base = {n: jnp.zeros(shape) for n, shape in shapes.items()}
    adapters, merge = training.lora(base, 2, key=jax.random.key(0), axes=axes)
    batch = {
        path: jnp.zeros((3, 4, *(dict(zip(kernel, shapes[path], strict=True))[x] for x in enters)))
        for path, (enters, kernel, _) in (
            (p, product.replace("->", ",").split(",")) for p, product in products.items()
        )
    }

    def loss(adapters, example):
        merged = merge(adapters)
        found = [
            jnp.einsum(f"t{product.replace('->', '->t')}", example[path], merged[path])
            for path, product in products.items()
        ]
        return sum(jnp.sum(jnp.tanh(one)) for one in found)

    choice = choose_clipping("ghost", lambda p, r: (loss(p, r[0]), None), adapters, (batch, None))
    assert choice.method == "ghost", choice.reason
    assert not choice.plan.copied


class Parts(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(N, D, rngs=rngs, decode=False)
        self.heads = nnx.LinearGeneral(D, (N, H), use_bias=False, rngs=rngs)
        self.joined = nnx.LinearGeneral((N, H), D, axis=(-2, -1), rngs=rngs)
        self.product = nnx.Einsum("td,ndh->tnh", (N, D, H), (N, H), rngs=rngs)
        self.conv, self.table = nnx.Conv(2, 3, 3, rngs=rngs), nnx.Embed(V, D, rngs=rngs)


def test_modules_of_nnx_say_what_their_kernels_are():
    """Their paths end in /value: no kernel was found at all."""
    # Of shapes alone: drawing the modules takes longer than all else.
    module = nnx.eval_shape(lambda: Parts(nnx.Rngs(0)))
    adapters, _ = training.lora(module, 1, key=jax.random.key(0))
    sides = {n: (own["a"].shape[0], own["b"].shape[1]) for n, own in adapters.items()}
    attention = {f"attention/{n}/kernel": (D, D) for n in ("query", "key", "value", "out")}
    own = {"heads/kernel": (D, N * H), "joined/kernel": (N * H, D), "product/kernel": (D, N * H)}
    assert sides == attention | own


@pytest.mark.parametrize("kind", ["state", "module", "pure dict", "linen"])
@pytest.mark.at_length(every=4)
def test_a_module_its_state_and_its_pure_dict_have_the_same_adapters(kind):
    module = Llama(nnx.Rngs(0))
    state = nnx.state(module, nnx.Param)
    trees = {"module": module, "state": state, "pure dict": nnx.to_pure_dict(state)}
    if kind == "linen":  # attention of linen, beside it by names
        attention = nn.MultiHeadDotProductAttention(N, qkv_features=N * H)
        trees[kind] = attention.init(jax.random.key(0), jnp.ones((2, D)))["params"]
    adapters, merge = training.lora(trees[kind], 2, key=jax.random.key(1))
    if kind == "linen":
        assert {n: (x["a"].shape[0], x["b"].shape[1]) for n, x in adapters.items()} == {
            **{f"{n}/kernel": (D, N * H) for n in ("query", "key", "value")},
            "out/kernel": (N * H, D),
        }
        return
    expected, _ = training.lora(module, 2, key=jax.random.key(1))
    assert sorted(adapters) == sorted(
        [*(f"{n}_proj/w" for n in "qkvo"), "layers/0/kernel", "lm_head/w"]
    )
    jax.tree.map(np.testing.assert_array_equal, adapters, expected)
    filled = jax.tree.map(jnp.ones_like, adapters)
    found, other = merge(filled), merge(filled, module)
    assert type(found) is type(trees[kind])
    for (one, a), (two, b) in zip(name_leaves(found), name_leaves(other), strict=True):
        assert one == two
        np.testing.assert_array_equal(a, b)


@pytest.mark.exact
def test_a_variable_in_two_places_is_one_kernel(lenient_promotion):
    class Tied(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(4, 4, rngs=rngs)
            self.last = self.first

        def __call__(self, x):
            return self.last(jnp.tanh(self.first(x)))

    module, x = Tied(nnx.Rngs(0)), jnp.arange(4.0)
    adapters, merge = training.lora(module, 1, key=jax.random.key(0))
    assert list(adapters) == ["first/kernel"]
    filled = jax.tree.map(lambda leaf: leaf + 1, adapters)
    own = filled["first/kernel"]
    kernel = np.asarray(module.first.kernel[...]) + np.asarray(own["a"]) @ np.asarray(own["b"])
    expected = np.tanh(np.asarray(x) @ kernel) @ kernel
    np.testing.assert_allclose(merge(filled)(x), expected, rtol=1e-5)


@pytest.mark.exact
def test_ghost_sums_of_a_language_model_are_those_of_a_loop_over_records(lenient_promotion):
    module = Llama(nnx.Rngs(0))
    graph, base = nnx.split(module)
    adapters, merge = training.lora(base, 2, key=jax.random.key(1))
    adapters = jax.tree.map(lambda leaf: leaf + 0.1, adapters)
    words = np.random.default_rng(2).integers(0, V, size=(5, 4))

    def loss(adapters, text):
        scores = jax.nn.log_softmax(nnx.merge(graph, merge(adapters, base))(text[:-1]))
        return -jnp.take_along_axis(scores, text[1:, None], axis=1).mean()

    choice = choose_clipping("auto", lambda p, r: (loss(p, r[0]), None), adapters, (words, None))
    assert choice.method == "ghost", choice.reason
    assert not choice.plan.copied
    found = jax.jit(clipped_grad(loss, 0.05, "ghost"))(adapters, jnp.asarray(words))

    expected = jax.tree.map(lambda leaf: np.zeros(leaf.shape), adapters)
    gradient, clipped = jax.jit(jax.grad(loss)), 0
    for text in words:
        own = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), gradient(adapters, text))
        norm = np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(own)))
        clipped += norm > 0.05
        factor = min(1.0, 0.05 / norm)
        expected = jax.tree.map(lambda total, leaf: total + factor * leaf, expected, own)  # noqa: B023
    assert clipped
    for one, two in zip(*map(jax.tree.leaves, (found.sum, expected)), strict=True):
        np.testing.assert_allclose(one, two, atol=2e-7)


UNKNOWN = {
    "a stack or heads": {"kernel": (D, N, H)},
    "a stack or heads, by bias": {"kernel": (N, N, H), "bias": (N, H)},
    "projections that do not agree": {"q_proj/w": (D, N, H), "o_proj/w": (N, H, F)},
    "gates that are square": {"gating_einsum": (2, D, D), "linear": (D, D)},
    "a convolution of linen along a line": {"kernel": (3, D, F), "bias": (F,)},
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_axes_that_nothing_tells_are_asked_for(name):
    """A kernel with heads was taken for a stack of as many layers as it has inputs."""
    base = {n: jnp.ones(shape) for n, shape in UNKNOWN[name].items()}
    with pytest.raises(
        ValueError, match=r"axes must say which axes of .*\(.*, .*, .*\) are layers"
    ):
        training.lora(base, 1, key=jax.random.key(0))


def test_a_stack_is_told_by_its_bias():
    base = {"layers": {"kernel": jnp.ones((N, D, F)), "bias": jnp.ones((N, F))}}
    (own,) = training.lora(base, 2, key=jax.random.key(0)).adapters.values()
    assert (own["a"].shape, own["b"].shape) == ((N, D, 2), (N, 2, F))
    keys = jax.random.split(jax.random.key(0), N)
    layer = eqx.filter_vmap(lambda key: eqx.nn.Linear(N, N, key=key))
    square = eqx.filter_eval_shape(layer, keys)  # its biases have the shape of a kernel
    assert list(training.lora(square, 1, key=jax.random.key(0)).adapters) == ["weight"]
    layer = eqx.filter_vmap(lambda key: eqx.nn.Linear(D, F, use_bias=False, key=key))
    stacked = eqx.filter_eval_shape(layer, keys)
    (own,) = training.lora(stacked, 2, key=jax.random.key(0)).adapters.values()
    assert (own["a"].shape, own["b"].shape) == ((N, F, 2), (N, 2, D))
    assert np.any(own["b"])
    assert not np.any(own["a"])


def test_an_adapter_larger_than_its_kernel_is_refused():
    base = {"wide": {"kernel": jnp.ones((D, F))}, "head": {"kernel": jnp.ones((D, 2))}}
    allowed = training.lora(base, 1, key=jax.random.key(0)).adapters  # 14 numbers for 24
    assert len(allowed) == 2
    with pytest.raises(
        ValueError, match=r"rank must make every adapter no larger .* got 2 for head/kernel \(12, 2"
    ):
        training.lora(base, 2, key=jax.random.key(0))
    wrong = {"wide": "layer in out"}
    deep = {"wide": jnp.ones((40, 3, 4))}  # 40 inputs, taken for layers
    with pytest.raises(ValueError, match="560 numbers for its 480"):
        training.lora(deep, 2, key=jax.random.key(0), axes=wrong)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"absent": "in out"}, "axes must name ends of paths of params, got 'absent'"),
        ({"ernel": "in out"}, "axes must name ends of paths"),  # a path's end is whole names
        ({"kernel": "in"}, r"axes must say layer, in or out of each axis of kernel \(3, 2\)"),
        ({"kernel": "in in"}, "at least one in and one out, got 'in in'"),
        ({"kernel": "in heads"}, "axes must say layer, in or out"),
        ({"kernel": None}, "axes must say layer, in or out"),
    ],
)
def test_axes_are_checked(axes, message):
    with pytest.raises(ValueError, match=message):
        training.lora({"kernel": jnp.ones((3, 2))}, 1, key=jax.random.key(0), axes=axes)


def test_axes_are_a_table():
    with pytest.raises(TypeError, match="axes must be a table"):
        training.lora({"kernel": jnp.eye(4)}, 1, key=jax.random.key(0), axes="in out")
