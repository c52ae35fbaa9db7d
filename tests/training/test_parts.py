"""Models as they are: what is trained, frozen, or no array; and groups of parameters."""

from __future__ import annotations

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dpjax import accounting as acc
from dpjax import gradients, sampling, training
from dpjax.training.parameters import partition_model

N, STEPS, KEY, CLIP = 12, 3, jax.random.key(5), 0.7
DATA = (
    np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32),
    (np.arange(N) % 2).astype(np.int32),
)
# The noise is far below the differences that are looked at.
QUIET = training.Plan(
    acc.Repeated(acc.PoissonSampled(acc.Gaussian(1e-5), 0.5), STEPS),
    clip_norm=CLIP, population=N, delta=1e-5,
)  # fmt: skip


@pytest.fixture(autouse=True)
def flat_price(monkeypatch):
    monkeypatch.setattr(acc, "epsilon", lambda run, *_, **__: np.ones(np.shape(run.steps)))


def run(loss, params, **options):
    settings = {"optimizer": optax.sgd(0.5), "key": KEY, "loss_takes_key": True, **options}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return training.fit(loss, params, DATA, QUIET, **settings)


def flat(g):
    """Factors of one group: all of the leaves."""
    norm = np.sqrt(sum(float((leaf**2).sum()) for leaf in g))
    return [min(1.0, CLIP / norm)] * len(g)


def by_hand(loss, params, factors=flat):
    """Brute force in float64: loops over steps and records, keys by the documented rule."""
    leaves, structure = jax.tree.flatten(params)
    moving = [
        i for i, x in enumerate(leaves) if eqx.is_array(x) and jnp.issubdtype(x.dtype, jnp.floating)
    ]

    def of_leaves(values, example, key):
        whole = list(leaves)
        for i, value in zip(moving, values, strict=True):
            whole[i] = value
        return loss(structure.unflatten(whole), example, key)

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        gradient = jax.jit(jax.grad(of_leaves))
        values = [np.asarray(leaves[i], np.float64) for i in moving]
        for step in range(STEPS):
            drawing = jax.random.fold_in(KEY, 0)
            total = [np.zeros_like(v) for v in values]
            for i in np.flatnonzero(
                sampling.poisson_inclusion(drawing, step, population=N, rate=0.5)
            ):
                own = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(KEY, 2), step), i)
                record = DATA[0][i], jnp.asarray(DATA[1][i])
                g = gradient([v.astype(np.float32) for v in values], record, own)
                g = [np.asarray(leaf, np.float64) for leaf in g]
                total = [t + f * x for t, f, x in zip(total, factors(g), g, strict=True)]
            values = [v - 0.5 * t / (0.5 * N) for v, t in zip(values, total, strict=True)]
    for i, value in zip(moving, values, strict=True):
        leaves[i] = value
    return structure.unflatten(leaves)


def assert_same(found, expected, atol=3e-5):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if eqx.is_array(x) and jnp.issubdtype(x.dtype, jnp.floating):
            np.testing.assert_allclose(x, y, atol=atol)
        else:
            assert x is y or np.array_equal(x, y)


class Net(eqx.Module):
    """Arrays of three kinds, a number of Python's, a function, and dropout."""

    layers: list
    dropout: eqx.nn.Dropout
    activation: object
    calls: jax.Array
    width: float

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.layers = [eqx.nn.Linear(3, 8, key=first), eqx.nn.Linear(8, 2, key=second)]
        self.dropout, self.activation = eqx.nn.Dropout(0.5), jax.nn.tanh
        self.calls, self.width = jnp.zeros((), jnp.int32), 1.0

    def __call__(self, x, key):
        x = self.dropout(self.activation(self.layers[0](x) * self.width), key=key)
        return self.layers[1](x)


def equinox_loss(model, example, key):
    x, y = example
    return -jax.nn.log_softmax(model(x, key))[y]


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(3, 8, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(nnx.tanh(self.first(x))))


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Dropout(0.5, deterministic=not train)(nn.tanh(nn.Dense(8)(x)))
        return nn.Dense(2)(x)


def test_an_equinox_module_trains_as_it_is():
    model = Net(jax.random.key(0))
    found = run(equinox_loss, model, average=training.exponential_average(0.0))
    assert_same(found.params, by_hand(equinox_loss, model))
    assert found.params.activation is model.activation
    assert found.params.calls.dtype == jnp.int32
    assert_same(found.average, found.params, atol=1e-7)


@pytest.mark.parametrize("kind", ["linen", "nnx"])
@pytest.mark.at_length(every=2)
def test_dropout_in_flax(kind, lenient_promotion):
    if kind == "nnx":
        model = training.from_nnx(Nnx)
    else:
        modes = {"when_training": {"train": True}, "otherwise": {"train": False}}
        model = training.from_linen(Linen(), jnp.ones(3), **modes)
    params, loss = model.init(jax.random.key(0)), training.cross_entropy(model)
    assert_same(run(loss, params).params, by_hand(loss, params))
    # With a key a unit is dropped in half of the draws; without, never, and twice the same.
    x, keys = DATA[0][0], jax.random.split(jax.random.key(1), 200)
    drawn = jax.vmap(lambda key: model.apply(params, x, key))(keys)
    assert len(np.unique(np.asarray(drawn), axis=0)) > 50
    without = model.apply(params, x)
    np.testing.assert_array_equal(without, model.apply(params, x))
    spread = np.asarray(drawn).std(0) / np.sqrt(len(keys))
    assert (np.abs(np.asarray(drawn).mean(0) - without) < 5 * spread).all()


GROUPS = {"body": {"w": jnp.full((3, 4), 0.1), "b": jnp.zeros(4)}, "head": {"v": jnp.full(4, 0.2)}}


def two_layers(params, example, key):
    x, y = example
    hidden = jnp.tanh(x @ params["body"]["w"] + params["body"]["b"])
    return 0.5 * (3 * hidden @ params["head"]["v"] - y.astype(jnp.float32)) ** 2


@pytest.mark.parametrize("method", ["vmap", "ghost"])
@pytest.mark.at_length(every=2)
def test_groups_are_clipped_each_to_its_own_norm(method):
    strategy = gradients.PerGroup(weights={"body": 0.3, "head": np.sqrt(0.4)})
    assert strategy.clip_norm == pytest.approx(CLIP)

    def factors(g):
        b, w, v = (np.sqrt((leaf**2).sum()) for leaf in g)
        body, head = min(1, 0.3 / np.hypot(b, w)), min(1, np.sqrt(0.4) / v)
        return [body, body, head]

    found = run(two_layers, GROUPS, clipping=strategy, method=method).params
    assert_same(found, by_hand(two_layers, GROUPS, factors))
    assert not np.allclose(
        found["head"]["v"], run(two_layers, GROUPS).params["head"]["v"], atol=3e-4
    )
    labelled = gradients.PerGroup({"body": "one", "head": "two"}, {"one": 0.3, "two": 0.4**0.5})
    assert_same(run(two_layers, GROUPS, clipping=labelled, method=method).params, found, 1e-6)


def test_one_record_moves_the_groups_by_at_most_their_norms():
    strategy = gradients.PerGroup(weights={"body": 0.3, "head": np.sqrt(0.4)})
    clipped = gradients.clipped_grad(two_layers, CLIP, clipping=strategy)
    far = np.float32(1e3) * np.abs(DATA[0][:1]), DATA[1][:1] + 99
    norms = jax.tree.map(
        lambda leaf: float(jnp.sum(jnp.square(leaf.astype(jnp.float32)))),
        clipped(GROUPS, jax.tree.map(jnp.asarray, far), rng=KEY).sum,
    )
    body, head = sum(norms["body"].values()), norms["head"]["v"]
    assert head == pytest.approx(0.4, rel=1e-5)
    assert head <= 0.4
    assert body <= 0.09
    assert head + body <= CLIP**2


FROZEN = {
    "predicate": lambda path, leaf: path.startswith("head"),
    "mask": {"body": False, "head": True},
}


@pytest.mark.parametrize("trainable", FROZEN)
def test_what_is_frozen_takes_no_part(trainable):
    def of_head(head, example, key):
        return two_layers({**GROUPS, "head": head}, example, key)

    found = run(two_layers, GROUPS, trainable=FROZEN[trainable]).params
    assert_same(found, {**GROUPS, "head": by_hand(of_head, GROUPS["head"])})


def test_what_is_frozen_lies_on_every_device():
    mesh = jax.make_mesh((4,), ("data",))
    one = run(two_layers, GROUPS, trainable=FROZEN["mask"]).params
    sharded = run(two_layers, GROUPS, trainable=FROZEN["mask"], mesh=training.fully_sharded(mesh))
    assert_same(jax.device_get(sharded.params), jax.device_get(one))


def test_a_resumed_run_has_the_same_frozen_part(tmp_path):
    class Killed(Exception):
        pass

    def stop(row):
        if row["step"] == 2:
            raise Killed

    model = Net(jax.random.key(0))
    options = {"log_every": 1, "checkpoint_every": 1}
    options["trainable"] = lambda path, leaf: "layers/1" in path
    seen = []
    options["evaluate"] = lambda m: seen.append(type(m)) or {"bias": float(m.layers[1].bias[0])}
    whole = run(equinox_loss, model, **options)
    assert set(seen) == {Net}
    with pytest.raises(Killed):
        run(equinox_loss, model, **options, folder=tmp_path, on_log=stop)
    rest = run(equinox_loss, model, **options, folder=tmp_path, resume=True, key=None)
    assert_same(rest.params, whole.params, atol=0)
    np.testing.assert_array_equal(rest.metrics["bias"], whole.metrics["bias"])
    again = {**options, "folder": tmp_path, "resume": True}
    moved = eqx.tree_at(lambda m: m.layers[0].bias, model, model.layers[0].bias + 1)
    with pytest.raises(training.CheckpointError, match="its frozen parameters differs; resume"):
        run(equinox_loss, moved, **again)
    with pytest.raises(training.CheckpointError, match="strategy of clipping differs"):
        run(equinox_loss, model, **again, clipping=gradients.Automatic())
    with pytest.raises(training.CheckpointError, match="its trainable arrays differs; resume"):
        run(equinox_loss, model, **(again | {"trainable": lambda path, leaf: "layers/0" in path}))


class Own(gradients.Strategy):
    """A strategy without fields: what it does is kept beside them."""

    def __init__(self, share):
        object.__setattr__(self, "share", share)

    def factors(self, squared_norms, clip_norm):
        return jnp.minimum(1.0, self.share * clip_norm / jnp.sqrt(squared_norms))


@pytest.mark.at_length
def test_a_strategy_is_known_by_what_it_computes(tmp_path, stop_at):
    """With the same key and another strategy, the same noise would fall on another sum."""
    low, high = (run(two_layers, GROUPS, clipping=Own(share)).params for share in (0.1, 0.9))
    assert not np.allclose(low["head"]["v"], high["head"]["v"], atol=1e-3)
    options = {"log_every": 1, "checkpoint_every": 1, "folder": tmp_path}
    with pytest.raises(stop_at.error):
        run(two_layers, GROUPS, **options, clipping=Own(0.1), on_log=stop_at(2))
    options |= {"resume": True, "key": None}
    with pytest.raises(training.CheckpointError, match="its strategy's factors differs; resume"):
        run(two_layers, GROUPS, **options, clipping=Own(0.9))
    assert_same(run(two_layers, GROUPS, **options, clipping=Own(0.1)).params, low, atol=0)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_evaluate_is_given_a_model_on_one_set_of_devices(kind):
    axes = (getattr(jax.sharding.AxisType, kind),)
    mesh = jax.make_mesh((4,), ("data",), axis_types=axes)
    place = jax.devices()[0]
    if kind == "Explicit":
        place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    model = jax.device_put(GROUPS, place)
    record = DATA[0][0], jnp.asarray(DATA[1][0])
    of_record = jax.jit(lambda p: two_layers(p, record, None))
    settings = {"trainable": FROZEN["mask"], "evaluate": lambda p: {"own": float(of_record(p))}}
    found = run(two_layers, model, mesh=mesh, **settings).metrics["own"]
    np.testing.assert_allclose(found, run(two_layers, GROUPS, **settings).metrics["own"], rtol=1e-5)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("flat", "clipping must be a Strategy of dpjax.gradients, got 'flat'"),
        (None, "clipping must be a Strategy of dpjax.gradients, got None"),
        (gradients.PerGroup, "clipping must be a Strategy of dpjax.gradients, got"),
        (gradients.PerGroup({"body": "a"}), "label must be a tree of names like params"),
        (gradients.PerGroup(weights={"body": "x"}), "weights must be a number"),
        (gradients.PerGroup(weights={"body": -1.0}), "weights must be a finite number > 0"),
    ],
)
def test_bad_strategies_are_refused(strategy, words):
    with pytest.raises((ValueError, TypeError), match=words):
        run(two_layers, GROUPS, clipping=strategy)


def test_the_pure_step_has_the_same_parts():
    pure = training.training_step(
        two_layers, GROUPS, QUIET, optimizer=optax.sgd(0.5), loss_takes_key=True,
        trainable=FROZEN["mask"], clipping=gradients.Automatic(0.1),
    )  # fmt: skip
    state, update = pure.init(GROUPS), jax.jit(pure.update)
    assert state["params"]["body"] == {"w": None, "b": None}
    for _ in range(STEPS):
        state, _ = update(state, jax.tree.map(jnp.asarray, DATA), KEY)
    settings = {"trainable": FROZEN["mask"], "clipping": gradients.Automatic(0.1)}
    found = run(two_layers, GROUPS, **settings).params
    np.testing.assert_allclose(state["params"]["head"]["v"], found["head"]["v"], rtol=1e-6)


def test_keys_and_counters_come_back():
    params = {"w": jnp.ones(2), "key": jax.random.key(3), "count": np.arange(2), "name": "a"}
    parts = partition_model(params)
    assert [leaf.dtype for leaf in parts.frozen] == [jnp.int32, jnp.uint32]
    back = parts.restore(parts.trained)
    assert back["name"] == "a"
    assert jax.random.key_data(back["key"]).tolist() == [0, 3]


@pytest.mark.parametrize(
    ("params", "trainable", "words"),
    [
        ({"w": np.ones(2, int)}, None, "hold a floating-point array that is trained, got none"),
        ({"w": 1.0}, None, "hold a floating-point array that is trained, got none"),
        ({"w": jnp.ones(2)}, lambda path, leaf: False, "got trainable that leaves all"),
        (
            {"w": jnp.ones((0, 3)), "n": 2},
            None,
            "hold a number that is trained, got arrays without",
        ),
        ({"w": jnp.ones(2, complex)}, None, "params must be real, got w of complex64"),
        ({"w": jnp.ones(2)}, {"w": 1}, "trainable must say True or False of every leaf, got 1"),
        ({"w": jnp.ones(2)}, {"v": True}, "trainable must be a tree of booleans like params"),
    ],
)
def test_bad_parts_are_refused(params, trainable, words):
    with pytest.raises(ValueError, match=words):
        partition_model(params, trainable)
