"""Models are pure functions of one record; whatever mixes records is refused."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dpjax import accounting as acc
from dpjax import training

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
    def __init__(self, rngs, norm="none", dropout=False):
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


def models():
    return {
        "logistic": training.logistic(3),
        "softmax": training.softmax(3, 2),
        "mlp": training.mlp(3, 2, hidden=(5,)),
        "linen": training.from_linen(LinenNet(norm="layer"), jnp.ones(3)),
        "nnx": training.from_nnx(lambda rngs: NnxNet(rngs, norm="layer")),
    }


@pytest.mark.parametrize("name", ["logistic", "softmax", "mlp", "linen", "nnx"])
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
        training.from_nnx(lambda rngs: NnxNet(rngs, norm="batch"))


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
