"""Models are pure functions of one record; whatever mixes records is refused."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dpjax import accounting as acc
from dpjax import gradients, training

KEY = 0


class LinenNet(nn.Module):
    norm: str = "none"

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(8)(x)
        if self.norm == "batch":
            x = nn.BatchNorm(use_running_average=False)(x)
        if self.norm == "layer":
            x = nn.LayerNorm()(x)
        return nn.Dense(2)(nn.tanh(x))


class NnxNet(nnx.Module):
    def __init__(self, *, rngs, norm="none", dropout=False):
        self.first = nnx.Linear(3, 8, rngs=rngs)
        self.last = nnx.Linear(8, 2, rngs=rngs)
        if norm == "batch":
            self.norm = nnx.BatchNorm(8, rngs=rngs)
        if norm == "layer":
            self.norm = nnx.LayerNorm(8, rngs=rngs)
        if dropout:
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        x = self.first(x)
        if hasattr(self, "norm"):
            x = self.norm(x)
        return self.last(nnx.tanh(x))


class Scores(NamedTuple):
    logits: jax.Array
    hidden: jax.Array


class Named(nn.Module):
    """Its output has names: the first of them was taken for a batch's first record."""

    beside: bool = False

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(2)(x)
        return (x, None) if self.beside else Scores(x, x)


class Positions(nn.Module):
    @nn.compact
    def __call__(self, x, positions):
        return nn.Dense(2)(x + positions)


class NnxNamed(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        return Scores(self.inner(x), x)


class NnxPositions(NnxNamed):
    def __call__(self, x, positions):
        return self.inner(x + positions)


def models():
    return {
        "logistic": training.logistic(3),
        "softmax": training.softmax(3, 2),
        "mlp": training.mlp(3, 2, hidden=(5,)),
        "linen": training.from_linen(LinenNet(norm="layer"), jnp.ones(3)),
        "nnx": training.from_nnx(lambda rngs: NnxNet(rngs=rngs, norm="layer")),
    }


@pytest.mark.parametrize("name", ["logistic", "softmax", "mlp", "linen", "nnx"])
@pytest.mark.at_length(every=2)
def test_every_kind_of_model_trains_privately(name, lenient_promotion, monkeypatch):
    monkeypatch.setattr(acc, "epsilon", lambda run, *_, **__: np.ones(np.shape(run.steps)))
    model = models()[name]
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    plan = training.Plan(
        acc.Repeated(acc.Gaussian(0.5), 60), clip_norm=1.0, population=300, delta=1e-5
    )
    found = training.fit(
        training.cross_entropy(model),
        model.init(jax.random.key(KEY)),
        (x, y),
        plan,
        optimizer=optax.sgd(1.0, momentum=0.5),
        key=jax.random.key(1),
    )
    assert training.accuracy(model, x, y)(found.params) > 0.85


@pytest.mark.parametrize("name", ["logistic", "softmax", "mlp", "linen", "nnx"])
def test_one_record_or_many_give_the_same_logits(name, lenient_promotion):
    model = models()[name]
    params = model.init(jax.random.key(KEY))
    batch = jax.random.normal(jax.random.key(2), (4, 3))
    together = jax.vmap(model.apply, in_axes=(None, 0))(params, batch)
    alone = jnp.stack([model.apply(params, row) for row in batch])
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_logistic_is_softmax_with_one_class_at_zero():
    x = jnp.array([0.5, -2.0, 1.0])
    params = {"weights": jnp.array([1.0, 0.2, -0.3]), "bias": jnp.array(0.1)}
    z = float(x @ params["weights"] + params["bias"])
    loss = training.cross_entropy(training.logistic(3))
    for label, expected in ((1, np.log1p(np.exp(-z))), (0, np.log1p(np.exp(z)))):
        assert float(loss(params, (x, jnp.asarray(label)))) == pytest.approx(expected, rel=1e-6)


def test_batch_normalisation_is_refused_with_the_reason(lenient_promotion):
    with pytest.raises(ValueError, match=r"batch_stats: batch normalisation .* use GroupNorm"):
        training.from_linen(LinenNet(norm="batch"), jnp.ones(3))
    with pytest.raises(ValueError, match=r"BatchStat: batch normalisation"):
        training.from_nnx(lambda rngs: NnxNet(rngs=rngs, norm="batch"))


def test_other_state_is_refused(lenient_promotion):
    class Moving(nnx.Module):
        def __init__(self, rngs):
            self.inner = nnx.Linear(3, 2, rngs=rngs)
            self.seen = nnx.Variable(jnp.zeros(()))

    with pytest.raises(ValueError, match="hold parameters alone, got other variables"):
        training.from_nnx(Moving)

    class Counting(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.variable("seen", "count", lambda: jnp.zeros(()))
            return nn.Dense(2)(x)

    with pytest.raises(ValueError, match="hold parameters alone, got seen"):
        training.from_linen(Counting(), jnp.ones(3))


def test_the_yardstick_is_the_unclipped_optimum():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(3)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    y = (x @ [1.0, -1.0, 0.5] + rng.logistic(size=400) > 0).astype(np.int32)
    model = training.logistic(3)
    found = training.train_without_privacy(
        training.cross_entropy(model), model.init(jax.random.key(0)), (x, y)
    )
    peer = LogisticRegression(C=1e6).fit(x, y)
    np.testing.assert_allclose(found["weights"], peer.coef_[0], atol=0.02)


TRIED = np.random.default_rng(7).normal(size=(40, 3)).astype(np.float32)
CLASSES = (TRIED[:, 0] > 0).astype(np.int32)


def of_one(module, example):
    return -jax.nn.log_softmax(module(example[0]))[example[1]]


def of_batch(module, batch):
    x, y = batch
    return -jnp.mean(jax.nn.log_softmax(module(x))[jnp.arange(len(y)), y])


def net(**settings):
    return NnxNet(rngs=nnx.Rngs(0), **settings)


def tried(loss, params, **options):
    plan = training.make_plan(40, noise_multiplier=1.0, delta=1e-3, steps=1, batch_size=20)
    settings = {"optimizer": optax.sgd(0.1), "key": jax.random.key(1)} | options
    return training.fit(loss, params, (TRIED, CLASSES), plan, **settings).params


def by_hand(module):
    graph, state = nnx.split(module)
    return lambda state, example: of_one(nnx.merge(graph, state), example), state


def closed_over(module):
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    return lambda params, example: of_one(nnx.merge(graph, params, rest), example), params


def of_variables(**settings):
    module = LinenNet(**settings)
    variables = module.init(jax.random.key(0), TRIED[:1])
    return lambda v, e: of_one(lambda x: module.apply(v, x[None], mutable=True)[0][0], e), variables


def frozen():
    module = net(norm="batch")
    module.eval()
    return tried(of_one, module, trainable=lambda path, leaf: not path.startswith("norm"))


def equinox():
    with jax.debug_key_reuse(False):  # which equinox of some versions does not pass
        return eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))


def of_class(module):
    model = training.from_nnx(module)
    return tried(training.cross_entropy(model), model.init(jax.random.key(0)))


WORK = {
    "nnx instance": lambda: tried(of_one, net(norm="layer")),
    "nnx class with keyword rngs": lambda: of_class(NnxNet),
    "nnx.split by hand": lambda: tried(*by_hand(net())),
    "frozen statistics": frozen,
    "linen variables": lambda: tried(*of_variables(norm="layer")),
    "equinox module": lambda: tried(of_one, equinox()),
}


@pytest.mark.parametrize("name", WORK)
@pytest.mark.at_length(every=2)
def test_what_one_tries_first_trains(name, lenient_promotion):
    found = WORK[name]()
    moved = jax.tree.leaves(eqx.filter(found, eqx.is_inexact_array))
    assert moved
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in moved)
    if name == "frozen statistics":
        assert found.norm.mean[...].tolist() == [0.0] * 8
        assert found.norm.var[...].tolist() == [1.0] * 8


MIXES = "batch normalisation mixes records, .* GroupNorm or LayerNorm, or freeze .*use_running_aver"
SAID = {
    "batch statistics": (lambda: tried(of_one, net(norm="batch")), f"norm/mean.*{MIXES}"),
    "statistics by hand": (lambda: tried(*by_hand(net(norm="batch"))), MIXES),
    "statistics of linen": (
        lambda: tried(*of_variables(norm="batch")),
        f"batch_stats/BatchNorm_0/mean.*{MIXES}",
    ),
    "statistics of equinox": (
        lambda: tried(of_one, eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "b", mode="ema")[0]),
        f"BatchNorm.*{MIXES}",
    ),
    "statistics closed over": (
        lambda: tried(*closed_over(net(norm="batch"))),
        "loss must change nothing that it closes over, .* use_running_average",
    ),
    "dropout": (
        lambda: tried(of_one, net(dropout=True)),
        "params must hold no random numbers .*one mask for the whole run; write .*from_nnx.*"
        "loss_takes_key=True",
    ),
    "nnx class": (lambda: tried(of_one, NnxNet), r"got the NnxNet itself: .*from_nnx\(NnxNet\)"),
    "built for from_nnx": (lambda: training.from_nnx(net()), r"make must .*from_nnx\(lambda rngs"),
    "nnx.Optimizer": (
        lambda: tried(of_one, net(), optimizer=nnx.Optimizer(net(), optax.sgd(0.1), wrt=nnx.Param)),
        "optimizer must be an optax optimiser, the one that was given to nnx.Optimizer",
    ),
    "nnx.Optimizer as params": (
        lambda: tried(of_one, nnx.Optimizer(net(), optax.sgd(0.1), wrt=nnx.Param)),
        "params must be the module, got an nnx.Optimizer",
    ),
    "linen, a named output": (
        lambda: training.from_linen(Named(), jnp.ones(3)),
        "module must return one array, got a Scores from Named: write the loss of one record",
    ),
    "linen, an output beside a cache": (
        lambda: training.from_linen(Named(beside=True), jnp.ones(3)),
        "module must return one array, got a tuple from Named",
    ),
    "linen, more than features": (
        lambda: training.from_linen(Positions(), jnp.ones(3)),
        r"module must take the features of records alone, got Positions\(x, positions\).*missing a "
        "required argument: 'positions'",
    ),
    "linen, an argument it lacks": (
        lambda: training.from_linen(LinenNet(), jnp.ones(3), when_training={"train": True}),
        "module must take the features of records alone, .* unexpected keyword argument 'train'",
    ),
    "nnx, a named output": (
        lambda: training.from_nnx(NnxNamed).apply(
            training.from_nnx(NnxNamed).init(jax.random.key(0)), jnp.ones(3)
        ),
        "module must return one array, got a Scores from NnxNamed",
    ),
    "nnx, more than features": (
        lambda: training.from_nnx(NnxPositions),
        r"module must take the features of records alone, got NnxPositions\(x, positions\)",
    ),
    "loss of a batch": (
        lambda: tried(of_batch, net()),
        "loss must be of one record, got one that takes a batch: .* leaf: leaf",
    ),
    "linen module": (lambda: tried(of_one, LinenNet()), "got the LinenNet itself: .*from_linen"),
    "linen for nnx": (lambda: training.from_linen(net(), TRIED[0]), "module must be a flax.linen"),
    "loss of nnx": (lambda: training.cross_entropy(net()), "model must be a Model, .* a NnxNet"),
    "score of equinox": (
        lambda: training.accuracy(equinox(), TRIED, CLASSES),
        "model must be a Model, .* a MLP",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_what_cannot_train_says_in_one_sentence_what_to_write(name, lenient_promotion):
    """Dropout kept one mask for a run, statistics were trained, and the rest were raw errors."""
    attempt, sentence = SAID[name]
    with pytest.raises((TypeError, ValueError), match=sentence):
        attempt()


@pytest.mark.parametrize("module", [net, equinox, LinenNet], ids=["nnx", "equinox", "linen"])
def test_a_module_is_not_saved_but_what_to_give_of_it_is_said(module, tmp_path):
    with pytest.raises(ValueError, match=r"params must be a tree of dicts, .* got a .*: give "):
        training.save_model(tmp_path / "m", module())
    with pytest.raises(ValueError, match=r"model must be a Model, .* leave it out"):
        training.save_model(tmp_path / "m", {"w": jnp.ones(2)}, module())


NO_CLASS = {
    "from one": (np.array([1, 2, 3, 1]), "from 0 to 2, got 3"),
    "negative": (np.array([0, -1, 2, 1]), "from 0.*, got -1"),
    "one-hot": (np.eye(3)[[0, 1, 2, 0]], r"got one-hot labels .*argmax\(-1\)"),
    "a column": (np.array([[0], [1], [2], [0]]), r"got a column .*squeeze\(-1\)"),
    "floats": (np.array([0.0, 1.0, 2.0, 0.0]), r"got float64: give labels.astype\(int\)"),
    "booleans": (np.array([True, False, True, False]), r"got bool: give labels.astype\(int\)"),
}


@pytest.mark.parametrize("taker", ["fit", "host", "without privacy", "accuracy", "loss"])
@pytest.mark.parametrize("name", NO_CLASS)
def test_labels_that_are_no_class_are_refused(name, taker):
    """Three classes took labels 1 to 3, and trained a model of the wrong ones."""
    labels, reason = NO_CLASS[name]
    x, model = np.ones((4, 2), np.float32), training.softmax(2, 3)
    params, loss = model.init(jax.random.key(0)), training.cross_entropy(model)
    plan = training.make_plan(4, noise_multiplier=1.0, delta=1e-3, steps=1, batch_size=2)

    def train(data):
        return training.fit(loss, params, data, plan, optimizer=optax.sgd(0.1))

    wrong = int(np.argmax((labels < 0) | (labels > 2))) if labels.ndim == 1 else 0
    takers = {
        "fit": lambda: train((x, labels)),
        "host": lambda: train(training.HostData((x, labels))),
        "without privacy": lambda: training.train_without_privacy(loss, params, (x, labels)),
        "accuracy": lambda: training.accuracy(model, x, labels)(params),
        "loss": lambda: loss(params, (x[wrong], labels[wrong])),
    }
    with pytest.raises((TypeError, ValueError), match=f"labels must be .*{reason}"):
        takers[taker]()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32])
@pytest.mark.parametrize("method", ["vmap", "ghost"])
@pytest.mark.at_length(every=4)
def test_under_a_trace_a_record_of_no_class_contributes_nothing(dtype, method):
    wrong = 3 if np.issubdtype(dtype, np.unsignedinteger) else -1
    x, labels = (
        np.arange(8, dtype=np.float32).reshape(4, 2),
        np.array([0, wrong, 2, 3]).astype(dtype),
    )
    model = training.softmax(2, 3)
    params = jax.tree.map(lambda leaf: leaf + 0.1, model.init(jax.random.key(0)))
    clipped = jax.jit(gradients.clipped_grad(training.cross_entropy(model), 1.0, method))
    found = clipped(params, (x, labels))
    kept = clipped(params, (x[[0, 2]], labels[[0, 2]]))
    assert int(found.nonfinite) == 2
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found.sum, kept.sum)


_Y = np.arange(60) % 3
UNSCORED = {
    "wrapped": (_Y + 2**32, 60, "labels must have whole numbers from .* got 42949672"),
    "wrapped and unsigned": (_Y.astype(np.uint64) + 2**63, 60, "labels must have whole numbers"),
    "one label": (_Y[:1], 60, "of the same records, .* got shapes .60, 2. and .1,."),
    "a label": (1, 60, "of the same records, .* and ..$"),
    "one record": (_Y, 1, "of the same records"),
    "fewer": (_Y[:59], 60, "of the same records"),
    "none": (_Y[:0], 0, "of the same records, at least one, got shapes"),
    "masked": (np.ma.masked_equal(_Y, 2), 60, "labels must have every value"),
}


@pytest.mark.parametrize("name", UNSCORED)
def test_accuracy_takes_one_class_for_each_record(name):
    """One label was compared with all 60 records, for an accuracy of 60."""
    labels, records, reason = UNSCORED[name]
    with pytest.raises(ValueError, match=reason):
        training.accuracy(training.softmax(2, 3), np.ones((records, 2)), labels)


def test_features_beyond_32_bits_are_refused_wherever_a_model_sees_them():
    x, model = np.full((60, 2), 2**32), training.softmax(2, 3)
    params = model.init(jax.random.key(0))
    takers = {
        "features": lambda: training.accuracy(model, x, _Y),
        "features ": lambda: training.models.probabilities(model, params, x),
        "data": lambda: training.train_without_privacy(
            training.cross_entropy(model), params, (x, _Y), steps=1
        ),
    }
    for name, call in takers.items():
        with pytest.raises(ValueError, match=f"{name.strip()} must have whole numbers from"):
            call()


def test_lists_of_several_lengths_are_named():
    """NumPy's error spoke of broadcasting, or records beyond a list's end were read."""
    model = training.softmax(3, 2)
    params = model.init(jax.random.key(0))
    matrices = [np.ones((3, 2)), np.ones((3, 4))]
    for uneven in ([[1.0, 2.0, 3.0], [1.0]], matrices):
        with pytest.raises(ValueError, match="features must have records of one shape, got lists"):
            training.accuracy(model, uneven, np.array([0, 1]))
    with pytest.raises(ValueError, match=r"data must be arrays that share one leading axis"):
        training.train_without_privacy(
            training.cross_entropy(model), params, ([np.ones(3), np.ones(2)], np.array([0, 1]))
        )


@pytest.mark.parametrize("name", ["steps", "batch_size"])
def test_no_fraction_of_a_step_or_a_record_is_trained(name):
    loss = training.cross_entropy(training.logistic(2))
    with pytest.raises(ValueError, match=f"{name} must be a whole number >= 1, got 1.5"):
        training.train_without_privacy(loss, {}, (np.ones((4, 2)), np.ones(4, int)), **{name: 1.5})
    with pytest.raises(ValueError, match=r"copies must be a whole number >= 1, got 1.5"):
        training.augmented(loss, lambda x, key: x, copies=1.5)


def _pandas(*given, **options):
    return lambda y: pytest.importorskip("pandas").Series(*(make(y) for make in given), **options)


OTHER_LABELS = {
    "nullable": _pandas(list, dtype="Int64"),
    "categories": _pandas(list, dtype="category"),
    "nothing masked": np.ma.masked_array,
    "big-endian": lambda y: y.astype(">i4"),
    "big-endian of 64 bits": lambda y: y.astype(">i8"),
    "four bits": lambda y: jnp.asarray(y, jnp.int4),
}
NO_NUMBERS = {
    "one missing": (
        _pandas(lambda y: [None, *y.tolist()[1:]], dtype="Int64"),
        "have every value, got Int64 with missing",
    ),
    "texts": (_pandas(lambda y: list("abc"), dtype="category"), "must be numbers, got|whole numb"),
    "masked": (lambda y: np.ma.masked_equal(y, 2), "must have every value, got a masked array"),
    "times": (lambda y: y.astype("timedelta64[s]"), "must be numbers, got time|whole numbers, got"),
}


def _label_takers(y):
    x, model = np.ones((3, 2), np.float32), training.softmax(2, 3)
    params, loss = model.init(jax.random.key(0)), training.cross_entropy(model)
    plan = training.Plan(acc.Repeated(acc.Gaussian(1.0), 1), 1.0, 3, 1e-3)

    def train(data, **options):
        given = {"optimizer": optax.sgd(0.1), "key": jax.random.key(1)}
        return training.fit(loss, params, data, plan, **given, **options).params["bias"]

    return {
        "fit": lambda: train((x, y)),
        "host": lambda: train(training.HostData((x, y))),
        "mesh": lambda: train((x, y), mesh=jax.make_mesh((1,), ("records",))),
        "accuracy": lambda: training.accuracy(model, x, y)(params),
    }


@pytest.mark.parametrize("name", OTHER_LABELS)
@pytest.mark.at_length(every=3)
def test_whole_numbers_of_any_kind_are_labels(name):
    """They ended in errors of JAX's about dtypes."""
    y = np.arange(3)
    wanted = {taker: call() for taker, call in _label_takers(y).items()}
    for taker, call in _label_takers(OTHER_LABELS[name](y)).items():
        np.testing.assert_array_equal(call(), wanted[taker])


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_labels_without_a_number_are_refused_in_a_sentence(name):
    make, reason = NO_NUMBERS[name]
    for call in _label_takers(make(np.arange(3))).values():
        with pytest.raises((TypeError, ValueError), match=f"(data|labels) .*({reason})"):
            call()
