"""The ghost method against per-example gradients, use by use, structure by structure."""

from __future__ import annotations

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax._numerics.scope import enable_x64
from dpjax.gradients import Flat, PerGroup, clipped_grad, compensated
from dpjax.gradients.ghost import outer
from dpjax.gradients.methods import plan_memory
from dpjax.gradients.per_example import make_scalar_loss, split_trainable
from dpjax.gradients.ties import find_ties

B = 4


def key(i):
    return jax.random.key(i)


def normal(i, *shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(i).normal(size=shape), dtype)


def tokens(i, *shape, vocabulary=6):
    return jax.random.randint(key(i), shape, 0, vocabulary)


def plan_of(loss, params, batch):
    trained, rebuild = split_trainable(params, find_ties(params))
    return plan_memory(make_scalar_loss(loss, rebuild, False, False), trained, (batch, None))


def compare(loss, params, batch, *, copied=None, rtol=1e-5, strategy=None, clip_norm=None):
    """Ghost against the gradients themselves; `copied`: the leaves expected to have no rule."""
    per_example = jax.jit(jax.vmap(jax.grad(loss, allow_int=True), (None, 0)))(params, batch)
    leaves = [
        np.asarray(g, np.float64)
        for g in jax.tree.leaves(per_example)
        if jnp.issubdtype(g.dtype, jnp.inexact)
    ]
    norms = np.sqrt(sum((leaf.reshape(len(leaf), -1) ** 2).sum(1) for leaf in leaves))
    clip_norm = float(np.median(norms)) if clip_norm is None else clip_norm
    out = jax.jit(clipped_grad(loss, clip_norm, "ghost", clipping=strategy or Flat()))(
        params, batch
    )
    np.testing.assert_allclose(out.norms, norms, rtol=rtol)
    if isinstance(strategy, PerGroup):
        members, bound = strategy.groups(params), clip_norm / np.sqrt(len(leaves))
        assert members == tuple(range(len(leaves)))
        own = [np.sqrt((leaf.reshape(len(leaf), -1) ** 2).sum(1)) for leaf in leaves]
        factors = [np.minimum(1.0, bound / np.maximum(norm, 1e-300)) for norm in own]
    else:
        factors = [np.minimum(1.0, clip_norm / np.maximum(norms, 1e-300))] * len(leaves)
    expected = [np.tensordot(f, leaf, 1) for f, leaf in zip(factors, leaves, strict=True)]
    total = np.sqrt(sum((e**2).sum() for e in expected))
    for got, want in zip(jax.tree.leaves(out.sum), expected, strict=True):
        assert np.linalg.norm(np.asarray(got) - want) <= rtol * total
    if copied is not None:
        assert sorted(plan_of(loss, params, batch).copied) == copied
    return out


# -- matrix products ------------------------------------------------------------------------------


LAYOUTS = [  # (einsum, shape of the record, shape of the parameter)
    ("i,io->o", (5,), (5, 3)),
    ("i,oi->o", (5,), (3, 5)),
    ("ti,io->to", (7, 5), (5, 3)),
    ("ti,oi->ot", (7, 5), (3, 5)),
    ("ti,io->to", (2, 9), (9, 8)),
    ("thd,hde->te", (4, 2, 3), (2, 3, 5)),
    ("thd,hde->the", (4, 2, 3), (2, 3, 5)),
    ("td,dhe->the", (4, 3), (3, 2, 5)),
    ("tsd,dhe->hste", (2, 3, 4), (4, 2, 3)),
    ("i,j->ij", (3,), (4,)),
]


@pytest.mark.parametrize("parameter_first", [False, True])
@pytest.mark.at_length(every=2)
def test_matrix_products_in_every_layout(parameter_first):
    def loss(params, xs):
        total = jnp.zeros(())
        for (spec, *_), w, x in zip(LAYOUTS, params, xs, strict=True):
            for record in (x, jnp.cos(x)):  # used twice: the norm is that of the sum
                if parameter_first:
                    ins, out = spec.split("->")
                    spec_here = ",".join(ins.split(",")[::-1]) + "->" + out
                    y = jnp.einsum(spec_here, w, record)
                else:
                    y = jnp.einsum(spec, record, w)
                total += jnp.sum(jnp.sin(y) * jnp.arange(1.0, y.size + 1).reshape(y.shape))
        return total

    params = [normal(i, *w) for i, (_, _, w) in enumerate(LAYOUTS)]
    xs = [normal(20 + i, B, *x) for i, (_, x, _) in enumerate(LAYOUTS)]
    compare(loss, params, xs, copied=[], strategy=PerGroup())  # every norm counts alone
    for i in range(len(LAYOUTS)):
        alone = plan_of(loss, params, xs).families[i]
        assert len(alone) == 1
        assert len(alone[0].sites) == 2


def test_casts_reshapes_and_pieces_of_one_parameter():
    def loss(params, x):
        q, k, v = jnp.split(params.reshape(5, 12), 3, axis=1)
        out = jnp.tanh(x @ q) + jnp.sin(x @ k) * (x @ v)
        return jnp.sum(out**2)

    compare(loss, normal(0, 5, 3, 4), normal(1, B, 6, 5))
    compare(lambda w, x: loss(w[..., None], x[None]), normal(0, 5, 12), normal(1, B, 5), copied=[])


# -- convolutions ---------------------------------------------------------------------------------


CONVOLUTIONS = [  # (channels, features, groups, settings)
    (3, 4, 1, {}),
    (3, 4, 1, {"window_strides": (2, 1), "padding": "VALID"}),
    (2, 4, 1, {"rhs_dilation": (2, 2)}),
    (2, 4, 1, {"lhs_dilation": (2, 2), "padding": ((1, 2), (0, 1))}),
    (4, 6, 2, {"window_strides": (2, 2)}),
    (4, 8, 4, {}),
]


@pytest.mark.parametrize("layout", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")])
def test_convolutions(layout):
    last = layout[0] == "NHWC"

    def loss(params, xs):
        total = jnp.zeros(())
        for (_, _, groups, settings), w, x in zip(CONVOLUTIONS, params, xs, strict=True):
            settings = {"window_strides": (1, 1), "padding": "SAME", **settings}
            out = jax.lax.conv_general_dilated(
                x[None], w, dimension_numbers=layout, feature_group_count=groups, **settings
            )
            total += jnp.sum(jnp.sin(out) * out)
        return total

    params, xs = [], []
    for i, (channels, features, groups, _) in enumerate(CONVOLUTIONS):
        inner = channels // groups
        params.append(normal(i, *((3, 2, inner, features) if last else (features, inner, 3, 2))))
        xs.append(normal(10 + i, B, *((7, 6, channels) if last else (channels, 7, 6))))
    compare(loss, params, xs, copied=[], strategy=PerGroup())  # every norm counts alone


# -- look-ups -------------------------------------------------------------------------------------


LOOK_UPS = [
    lambda e, t: e[t],
    lambda e, t: jnp.take(e, t, axis=0),
    lambda e, t: jnp.take(e, t + 2, axis=0, mode="clip"),
    lambda e, t: e.at[t + 2].get(mode="fill", fill_value=0),
    lambda e, t: e[t[0]],
    lambda e, t: e[t.reshape(2, 4)],
    lambda e, t: e[jnp.tile(t, 15)],  # long enough for the sort
]


def test_embeddings():
    def loss(tables, example):
        t, x = example
        parts = [jnp.sum(jnp.sin(f(e, t)) @ x) for f, e in zip(LOOK_UPS, tables, strict=True)]
        return sum(parts[1:], start=parts[0])

    tables = [normal(10 + i, 6, 5) for i in range(len(LOOK_UPS))]
    batch = (tokens(1, B, 8), normal(2, B, 5))
    compare(loss, tables, batch, copied=[], strategy=PerGroup())
    forms = [family.form for (family,) in plan_of(loss, tables, batch).families]
    assert forms == ["distinct"] * 4 + ["vectors", "distinct", "distinct"]


def test_tied_embedding_adds_its_two_uses_before_the_norm():
    def loss(params, t):
        h = jnp.tanh(params["e"][t] @ params["w"])
        logits = h @ params["e"].T
        return -jnp.sum(jax.nn.log_softmax(logits)[jnp.arange(8), jnp.roll(t, -1)])

    params = {"e": normal(0, 6, 5), "w": normal(1, 5, 5)}
    compare(loss, params, tokens(2, B, 8), copied=[])


# -- everything else is copied --------------------------------------------------------------------


def test_bias_scale_and_normalisation():
    def loss(params, x):
        h = x @ params["w"] + params["b"]
        mean = h.mean(-1, keepdims=True)
        h = (h - mean) * jax.lax.rsqrt(h.var(-1, keepdims=True) + 1e-5)
        return jnp.sum(jnp.sin(h * params["scale"] + params["shift"]))

    params = {"b": normal(0, 4), "scale": normal(1, 4), "shift": normal(2, 4), "w": normal(3, 5, 4)}
    with jax.numpy_rank_promotion("allow"):
        compare(loss, params, normal(4, B, 6, 5), copied=[0, 1, 2])


USES = [
    lambda w, x: x @ jnp.tanh(w),
    lambda w, x: x @ (w @ w.T),
    lambda w, x: jnp.sum(w * w) + x.sum(),
    lambda w, x: jnp.where(x[:, None] > 0, w, jnp.sin(w)),
    lambda w, x: x @ w + jnp.sum(w, 0),
    lambda w, x: x[:3] @ w[:3] + x[2:] @ w[2:],
    lambda w, x: jax.lax.stop_gradient(w) * jnp.sum(x) + w,
    lambda w, x: jnp.linalg.solve(w @ w.T + jnp.eye(5), x),
    lambda w, x: x @ w[::-1] + x @ w,
    lambda w, x: jax.nn.relu(w) * x[:, None],
    lambda w, x: 2 * jnp.sin(w) @ x,
]


def test_any_other_use_is_exact_too():
    def loss(params, x):
        parts = [jnp.sum(jnp.sin(use(w, x))) for use, w in zip(USES, params, strict=True)]
        return sum(parts[1:], start=parts[0])

    params = [normal(i, 5, 5) for i in range(len(USES))]
    compare(loss, params, normal(20, B, 5), copied=list(range(len(USES))), strategy=PerGroup())


def test_frozen_and_unused_parameters_cost_nothing():
    def loss(params, x):
        h = jnp.tanh(x @ jax.lax.stop_gradient(params["frozen"]))
        return jnp.sum(h @ params["w"])

    params = {"frozen": normal(0, 5, 5), "unused": normal(1, 7), "w": normal(2, 5, 3)}
    out = compare(loss, params, normal(3, B, 5), copied=[])
    plan = plan_of(loss, params, normal(3, B, 5))
    assert [len(f) for f in plan.families] == [0, 0, 1]
    assert not out.sum["frozen"].any()
    assert not out.sum["unused"].any()


# -- structure ------------------------------------------------------------------------------------


def test_jit_remat_and_custom_rules():
    @jax.custom_vjp
    def through(w, x):
        return jnp.round(x @ w)

    through.defvjp(
        lambda w, x: (through(w, x), (w, x)), lambda r, g: (jnp.outer(r[1], g), g @ r[0].T)
    )

    @jax.custom_jvp
    def scaled(x):
        return x**2

    scaled.defjvp(lambda p, t: (scaled(p[0]), 3.0 * t[0]))  # deliberately not the derivative

    def loss(params, x):
        h = jax.jit(lambda w, x: scaled(x @ w))(params["a"], x)
        h = jax.checkpoint(lambda w, h: jnp.tanh(h @ w))(params["b"], h)
        return jnp.sum(jax.nn.relu(through(params["c"], h)) ** 2) + jnp.sum(h**3)

    params = {name: normal(i, 5, 5) for i, name in enumerate("abc")}
    compare(loss, params, normal(4, B, 5), copied=[2])


def test_recurrent_network_and_learned_start():
    def loss(params, xs):
        def step(h, x):
            h = jnp.tanh(x @ params["in"] + h @ params["rec"] + params["b"])
            return h, h @ params["out"]

        h, ys = jax.lax.scan(step, params["h0"], xs, reverse=True)
        return jnp.sum(jnp.sin(ys)) + jnp.sum(h)

    params = {
        "b": normal(0, 4),
        "h0": normal(1, 4),
        "in": normal(2, 3, 4),
        "out": normal(3, 4, 2),
        "rec": normal(4, 4, 4),
    }
    compare(loss, params, normal(5, B, 6, 3), copied=[0, 1])


def test_scanned_stack_of_layers():
    def loss(params, x):
        def layer(h, p):
            h = h + jnp.tanh(jax.nn.gelu(h @ p["up"] + p["b"]) @ p["down"])

            def inner(c, t):
                return c + jnp.sin(t @ p["inner"]), None

            c, _ = jax.lax.scan(inner, jnp.zeros(4), h)
            return h + c[None], None

        h, _ = jax.lax.scan(layer, x, params)
        return jnp.sum(h**2)

    stack = {
        "b": normal(0, 3, 6),
        "down": normal(1, 3, 6, 4),
        "inner": normal(2, 3, 4, 4),
        "up": normal(3, 3, 4, 6),
    }
    with jax.numpy_rank_promotion("allow"):
        compare(loss, stack, normal(4, B, 5, 4), copied=[0])


def test_scanned_stack_of_wide_layers():
    """Of few positions and many entries norms and sums are formed a layer at a time."""

    def loss(params, x):
        def layer(h, p):
            return jnp.tanh(h @ p), None

        h, _ = jax.lax.scan(layer, x, params)
        return jnp.sum(h**2)

    compare(loss, normal(0, 3, 8, 8) / 2, normal(1, B, 1, 8), copied=[])


def test_loops_of_no_steps_and_kernels_without_entries():
    def loss(params, x):
        def step(h, p):
            return jnp.tanh(h @ p), None

        def through_nothing(h, p):
            return h + (h @ p["in"]) @ p["out"], None

        h, _ = jax.lax.scan(step, x @ params["first"], params["none"])
        h, _ = jax.lax.scan(through_nothing, h, params["empty"])
        return jnp.sum(h**2)

    params = {
        "empty": {"in": normal(0, 3, 4, 0), "out": normal(1, 3, 0, 4)},
        "first": normal(2, 4, 4),
        "none": normal(3, 0, 4, 4),
    }
    compare(loss, params, normal(4, B, 5, 4), copied=[])


def test_parameter_inside_and_outside_a_scan():
    def loss(w, x):
        def step(h, _):
            return jnp.tanh(h @ w), jnp.sum(h)

        h, sums = jax.lax.scan(step, x @ w.T, None, length=3)
        return jnp.sum(h) + jnp.sum(sums**2)

    compare(loss, normal(0, 4, 4), normal(1, B, 4), copied=[])


def test_conditions_and_loops():
    def loss(params, x):
        h = jax.lax.cond(x[0] > 0, lambda w: jnp.tanh(x @ w), lambda w: jnp.sin(w @ x), params["a"])
        h = jax.lax.cond(jnp.array(True), lambda h: h * 2.0, lambda h: h, h)
        h = jax.lax.fori_loop(0, 3, lambda i, h: jnp.sin(h @ params["b"]), h)
        return jnp.sum(
            jax.lax.while_loop(lambda c: c[1] < 2, lambda c: (2.0 * c[0], c[1] + 1), (h, 0))[0] ** 2
        )

    # A while loop has no reverse mode in JAX, so it may only see what is not differentiated.
    def counted(params, x):
        steps = jax.lax.while_loop(lambda i: i < jnp.where(x[0] > 0, 3, 2), lambda i: i + 1, 0)
        h = jax.lax.cond(x[0] > 0, lambda w: jnp.tanh(x @ w), lambda w: jnp.sin(w @ x), params["a"])
        h = jax.lax.fori_loop(0, 3, lambda i, h: jnp.sin(h @ params["b"]), h)
        return jnp.sum(h**2) * steps.astype(h.dtype)

    params = {"a": normal(0, 4, 4), "b": normal(1, 4, 4)}
    compare(counted, params, normal(2, B, 4), copied=[])
    with pytest.raises(ValueError, match="while_loop"):
        clipped_grad(loss, 1.0, "ghost")(params, normal(2, B, 4))


# -- whole models ---------------------------------------------------------------------------------


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(y)
        y = nn.LayerNorm()(x)
        return x + nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(12)(y)))


class Transformer(nn.Module):
    depth: int = 2

    @nn.compact
    def __call__(self, t):
        x = nn.Embed(6, 8)(t) + self.param("position", nn.initializers.normal(1.0), (5, 8))
        for _ in range(self.depth):
            x = Block()(x)
        return nn.Dense(3)(nn.LayerNorm()(x).mean(0))


class ConvNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(4, (3, 3), strides=2)(x))
        x = nn.max_pool(x, (2, 2))
        x = nn.relu(nn.Conv(5, (2, 2))(nn.GroupNorm(2)(x)))
        return nn.Dense(3)(x.reshape(-1))


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, t):
        x = nn.RNN(nn.OptimizedLSTMCell(6))(nn.Embed(6, 4)(t))
        return nn.Dense(3)(x[-1])


def classification(model):
    def loss(params, example):
        x, y = example
        return -jax.nn.log_softmax(model.apply(params, x))[y]

    return loss


@pytest.mark.usefixtures("lenient_promotion")
@pytest.mark.parametrize(
    ("model", "x"),
    [
        (Transformer(), tokens(1, B, 5)),
        (ConvNet(), normal(1, B, 10, 10, 2)),
        (Recurrent(), tokens(1, B, 7)),
    ],
    ids=["transformer", "convolutional", "lstm"],
)
@pytest.mark.at_length(every=3)
def test_flax_linen(model, x):
    params = jax.jit(model.init)(key(0), x[0])
    loss = classification(model)
    batch = (x, tokens(2, B, vocabulary=3))
    compare(loss, params, batch)
    names = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    plan = plan_of(loss, params, batch)
    for index in plan.copied:
        assert any(word in names[index] for word in ("bias", "scale", "position")), names[index]


@pytest.mark.usefixtures("lenient_promotion")
def test_flax_nnx():
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(1, 3, (3, 3), rngs=rngs)
            self.dense = nnx.Linear(48, 3, rngs=rngs)

        def __call__(self, x):
            return self.dense(nnx.relu(self.conv(x[None])).reshape(-1))

    model = Model(nnx.Rngs(0))

    def of_model(model, example):
        return -jax.nn.log_softmax(model(example[0]))[example[1]]

    compare(of_model, model, (normal(1, B, 4, 4, 1), tokens(2, B, vocabulary=3)), copied=[0, 2])
    graph, state = nnx.split(model)

    def of_state(state, example):
        return of_model(nnx.merge(graph, state), example)

    compare(of_state, state, (normal(1, B, 4, 4, 1), tokens(2, B, vocabulary=3)), copied=[0, 2])


@pytest.mark.usefixtures("lenient_promotion")
@pytest.mark.at_length
def test_equinox():
    import equinox as eqx

    with jax.debug_key_reuse(False):  # equinox 0.13.1 splits a key twice
        model = eqx.nn.MLP(5, 3, 7, 2, key=key(0))

    def loss(model, example):
        return -jax.nn.log_softmax(model(example[0]))[example[1]]

    batch = (normal(1, B, 5), tokens(2, B, vocabulary=3))
    reference = eqx.filter_vmap(eqx.filter_grad(loss), in_axes=(None, 0))(model, batch)
    out = clipped_grad(loss, 1e6, "ghost")(model, batch)
    want = jax.tree.map(lambda g: g.sum(0), eqx.filter(reference, eqx.is_array))
    chex.assert_trees_all_close(out.sum, want, rtol=1e-4, atol=1e-5)
    assert jax.tree.structure(out.sum) == jax.tree.structure(
        eqx.filter(model, eqx.is_inexact_array)
    )
    eqx.apply_updates(model, out.sum)


# -- precision, transformations, devices ----------------------------------------------------------


def small_transformer():
    model = Transformer(depth=1)
    x = tokens(1, 16, 5)
    return classification(model), model.init(key(0), x[0]), (x, tokens(2, 16, vocabulary=3))


@pytest.mark.usefixtures("lenient_promotion")
@pytest.mark.at_length
def test_double_precision_to_twelve_digits():
    with enable_x64():
        loss, params, batch = small_transformer()
        params = jax.tree.map(lambda a: a.astype(jnp.float64), params)
        out = jax.jit(clipped_grad(loss, 1.0, "ghost"))(params, batch)
        reference = jax.jit(clipped_grad(loss, 1.0, "vmap"))(params, batch)
    assert out.norms.dtype == np.float64
    np.testing.assert_allclose(out.norms, reference.norms, rtol=1e-12)
    chex.assert_trees_all_close(out.sum, reference.sum, rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("lenient_promotion")
@pytest.mark.at_length
def test_sharded_over_eight_devices():
    loss, params, batch = small_transformer()
    fn = jax.jit(clipped_grad(loss, 1.0, "ghost"))
    single = fn(params, batch)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    along = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    spread = fn(params, jax.device_put(batch, along))
    assert len(spread.norms.sharding.device_set) == 8
    np.testing.assert_allclose(spread.norms, single.norms, rtol=1e-5)
    chex.assert_trees_all_close(spread.sum, single.sum, rtol=1e-4, atol=1e-6)


def test_vmap_over_parameters_is_a_loop():
    def loss(params, x):
        return jnp.sum(jnp.tanh(x @ params["w"] + params["b"]))

    many = {"b": normal(0, 3, 4), "w": normal(1, 3, 5, 4)}
    batch = normal(2, B, 5)
    fn = clipped_grad(loss, 1.0, "ghost")
    swept = jax.jit(jax.vmap(functools.partial(fn, batch=batch)))(many)
    for i in range(3):
        one = jax.jit(fn)(jax.tree.map(lambda a, i=i: a[i], many), batch)
        chex.assert_trees_all_close(
            jax.tree.map(lambda a, i=i: a[i], swept.sum), one.sum, rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("records", [4, 256], ids=["few numbers", "many"])
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
@pytest.mark.at_length(every=4)
def test_records_that_are_not_finite_add_nothing_however_many_numbers_there_are(records, bad):
    """Few numbers are always cut out, many only where one is not finite."""
    x = jax.random.normal(jax.random.key(0), (records, 300)).at[1, 7].set(bad)
    w = jax.random.normal(jax.random.key(1), (300, 3)) / 300

    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ w))

    with_it = clipped_grad(loss, 1.0, "ghost")(w, x)
    without = clipped_grad(loss, 1.0, "vmap")(w, jnp.delete(x, 1, axis=0))
    np.testing.assert_allclose(with_it.sum, without.sum, rtol=1e-5, atol=1e-6)
    assert with_it.norms[1] != with_it.norms[1] or jnp.isinf(with_it.norms[1])
    assert int(with_it.nonfinite) == 1


def _record_of_vectors(width: int):
    """The model of vectors: their loss, (30, width) weights, and 600 records."""
    records = np.random.default_rng(width).normal(size=(600, 30)).astype(np.float32)
    return lambda w, record: jnp.sum(jnp.tanh(record @ w) ** 2), records


def _record_of_tokens(width: int):
    """The same of tokens, of which a record has some twice, and the batch each many times."""
    tokens = np.random.default_rng(width).integers(0, 30, size=(600, 12))
    return lambda w, record: jnp.sum(jnp.tanh(3 * w[record].sum(0)) ** 2), tokens


def test_the_derivative_of_a_clipped_sum_knows_parameters_copied_for_every_record():
    """x·w + b squared, unclipped: the derivative of a record's gradient by b is 2 by b, 2x by w."""
    x = jnp.arange(6.0).reshape(3, 2)
    params = {"w": jnp.ones(2), "b": jnp.ones(())}

    def summed(params):
        def loss(params, record):
            return (record @ params["w"] + params["b"]) ** 2

        return clipped_grad(loss, 1e6, method="ghost")(params, x).sum

    moved = jax.jvp(summed, (params,), ({"w": jnp.zeros(2), "b": jnp.ones(())},))[1]
    np.testing.assert_allclose(moved["b"], 2 * len(x), rtol=1e-5)
    np.testing.assert_allclose(moved["w"], 2 * x.sum(axis=0), rtol=1e-5)
    by_b = jax.grad(lambda params: summed(params)["b"])(params)
    np.testing.assert_allclose(by_b["b"], 2 * len(x), rtol=1e-5)


@pytest.mark.at_length(every=3)
@pytest.mark.parametrize(
    ("model", "width"),
    [(_record_of_tokens, 8), (_record_of_vectors, 8), (_record_of_vectors, 256)],
    ids=["look-ups", "one product", "runs in a loop"],
)
def test_a_function_of_the_clipped_sum_can_be_differentiated_either_way(model, width):
    """The derivative through the clip, beside that of the loop over records."""
    of_record, records = model(width)
    params = {"w": jax.random.normal(jax.random.key(width), (30, width)) / 10}

    def loss(params, record):
        return of_record(params["w"], record)

    def square(method, params):
        out = clipped_grad(loss, 0.5, method=method)(params, records)
        error = 0.0 if out.error is None else out.error["w"]
        return 0.5 * jnp.sum((out.sum["w"] + error) ** 2)

    direction = {"w": jax.random.normal(jax.random.key(width + 1), (30, width))}
    found = {}
    for method in ("ghost", "vmap"):
        value = functools.partial(square, method)
        gradient = jax.jit(jax.grad(value))(params)["w"]
        moved = jax.jit(lambda p, f=value: jax.jvp(f, (p,), (direction,))[1])(params)
        np.testing.assert_allclose(jnp.sum(gradient * direction["w"]), moved, rtol=1e-4)
        found[method] = gradient
    scale = np.abs(found["vmap"]).max()
    assert scale > 0
    np.testing.assert_allclose(found["ghost"], found["vmap"], atol=2e-5 * scale)


@pytest.mark.parametrize(("positions", "words"), [(2, 1), (7, 3), (64, 1), (64, 20), (64, 10_000)])
def test_columns_of_equal_tokens_are_summed_where_the_token_stands_first(positions, words):
    rng = np.random.default_rng(positions + words)
    kind = np.uint8 if words < 256 else np.int32
    tokens = rng.integers(0, words, (5, positions)).astype(kind)
    columns = rng.integers(-8, 8, (5, positions, 3)).astype(np.float32)  # sums are exact
    expected = np.zeros_like(columns)
    for record, position in np.ndindex(tokens.shape):
        first = list(tokens[record]).index(tokens[record, position])
        expected[record, first] += columns[record, position]
    for form in (outer._move_to_first, outer._multiply_to_first):
        np.testing.assert_array_equal(jax.jit(form)(tokens, columns), expected)
    # A linear map: forward and reverse derivatives are those of the product.
    weights = rng.integers(-8, 8, columns.shape).astype(np.float32)
    forms = (outer._move_to_first, outer._multiply_to_first)
    moved, product = (
        jax.grad(lambda c, f=f: (f(tokens, c) * weights).sum())(columns) for f in forms
    )
    np.testing.assert_array_equal(moved, product)
    tangents = [jax.jvp(lambda c, f=f: f(tokens, c), (columns,), (weights,))[1] for f in forms]
    np.testing.assert_array_equal(*tangents)


def test_a_record_whose_columns_are_no_numbers_spoils_no_other():
    tokens = np.array([[1, 1, 2], [2, 2, 2]], np.int32)
    columns = np.array([[[np.nan], [np.inf], [1.0]], [[1.0], [2.0], [3.0]]], np.float32)
    found = np.asarray(outer._move_to_first(tokens, columns))
    np.testing.assert_array_equal(found[1, :, 0], [6.0, 0.0, 0.0])
    assert not np.isfinite(found[0]).all()  # so that the record is known to have no gradient


def test_what_is_widened_piece_by_piece_is_added_in_the_same_order(monkeypatch):
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 5, 1_000).astype(np.int32)
    values = (10.0 ** rng.uniform(-8, 8, (1_000, 4))).astype(np.float32)
    with enable_x64():
        empty = jnp.zeros((5, 4))
    whole = compensated.scatter_into(empty, tokens, values)
    monkeypatch.setattr(compensated, "_PIECE_BYTES", 8 * 4 * 64)  # 15 pieces and 40 terms
    np.testing.assert_array_equal(compensated.scatter_into(empty, tokens, values), whole)
    expected = np.zeros((5, 4))
    np.add.at(expected, tokens, values.astype(np.float64))
    np.testing.assert_array_equal(whole, expected)
