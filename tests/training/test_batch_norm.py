"""Group normalisation in the place of batch normalisation: what one record gives is its own."""

from __future__ import annotations

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dpjax import training

List = getattr(nnx, "List", list)  # older releases of flax take a list as it is
CHANNELS = 8


class LinenBlock(nn.Module):
    def setup(self):
        self.norm = nn.BatchNorm()

    def __call__(self, x, train):
        return self.norm(x, use_running_average=not train)


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Conv(CHANNELS, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=not train, epsilon=1e-3, name="first")(x)
        x = nn.relu(x)
        x = LinenBlock(name="inner")(nn.Conv(12, (1, 1))(x), train)
        return nn.Dense(2)(x.mean((-3, -2)))


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, CHANNELS, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(CHANNELS, epsilon=1e-3, rngs=rngs)
        self.again = self.norm
        self.last = List([nnx.Linear(CHANNELS, 12, rngs=rngs), nnx.BatchNorm(12, rngs=rngs)])

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        x = self.again(x, use_running_average=False)
        for layer in self.last:
            x = layer(x)
        return x.mean((-3, -2))


CHANGED = {
    "linen": {"first": 8, "inner/norm": 12},
    "nnx": {"norm": 8, "again": 8, "last/1": 12},
}
GROUPS = {8: 2, 12: 3}  # of four channels at least
IMAGE = jnp.ones((5, 5, 3))


@pytest.mark.parametrize("kind", ["linen", "nnx"])
def test_what_changed_is_said(kind, lenient_promotion):
    changed: dict[str, str] = {}

    def replace():
        net = LinenNet() if kind == "linen" else NnxNet(nnx.Rngs(0))
        found = training.replace_batch_norm(net, IMAGE, otherwise={"train": False})
        changed.update(found.changed)
        return found.module if kind == "nnx" else None

    nnx.eval_shape(replace)
    assert changed == {
        name: f"BatchNorm of {channels} channels is GroupNorm in {GROUPS[channels]} groups"
        for name, channels in CHANGED[kind].items()
    }


@pytest.mark.exact
@pytest.mark.parametrize("kind", ["linen", "nnx"])
def test_a_record_is_normalised_by_itself(kind, lenient_promotion):
    if kind == "linen":
        off = {"train": False}
        net = training.replace_batch_norm(LinenNet(), IMAGE, otherwise=off).module
        model = training.from_linen(net, IMAGE, when_training={"train": True}, otherwise=off)
    else:
        model = training.from_nnx(lambda rngs: training.replace_batch_norm(NnxNet(rngs)).module)
    params = model.init(jax.random.key(0))
    if kind == "linen":  # under the paths of before
        assert [set(params["first"]), set(params["inner"]["norm"])] == [{"scale", "bias"}] * 2
    images = np.random.default_rng(1).normal(size=(4, 5, 5, 3)).astype(np.float32)
    together = jax.vmap(model.apply, in_axes=(None, 0))(params, images)
    other = jax.vmap(model.apply, in_axes=(None, 0))(params, images[[0, 3, 3, 1]])
    np.testing.assert_allclose(together[0], other[0], atol=1e-6)
    assert np.ptp(np.asarray(together)) > 0.01


def normalised(x, groups, epsilon):
    """Group normalisation of one record, in float64."""
    x = np.asarray(x, np.float64)
    out = np.empty_like(x)
    size = x.shape[-1] // groups
    for group in range(groups):
        part = x[..., group * size : (group + 1) * size]
        out[..., group * size : (group + 1) * size] = (part - part.mean()) / np.sqrt(
            part.var() + epsilon
        )
    return out


@pytest.mark.parametrize("kind", ["linen", "nnx"])
@pytest.mark.at_length(every=2)
def test_scale_bias_and_epsilon_are_taken_over(kind, lenient_promotion):
    x = np.random.default_rng(2).normal(size=(3, 3, 16)).astype(np.float32) * 5 + 2
    scale, bias = np.arange(1.0, 17.0), np.arange(16.0)[::-1]
    params = {"scale": jnp.asarray(scale, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}
    if kind == "linen":
        norm = nn.BatchNorm(use_running_average=True, epsilon=0.5)
        found = training.replace_batch_norm(norm, jnp.asarray(x))
        assert list(found.changed) == ["BatchNorm"]
        given = found.module.apply({"params": params}, x[None])[0]
    else:
        norm = nnx.BatchNorm(16, epsilon=0.5, rngs=nnx.Rngs(0))
        norm.scale[...], norm.bias[...] = params["scale"], params["bias"]
        module = training.replace_batch_norm(norm).module
        given = module(x[None])[0]
        module.scale[...] = module.scale[...] * 2
        np.testing.assert_array_equal(norm.scale[...], params["scale"])  # a module of its own
    expected = normalised(x, 4, 0.5) * scale + bias
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("channels", "groups", "expected"),
    [(64, 32, 16), (64, 4, 4), (3, 32, 1), (10, 32, 2), (7, 32, 1)],
)
def test_groups_are_as_many_as_divide_the_channels(channels, groups, expected):
    norm = nnx.BatchNorm(channels, rngs=nnx.Rngs(0))
    found = training.replace_batch_norm(norm, groups=groups)
    assert found.module.num_groups == expected


def test_what_cannot_be_replaced_is_refused():
    rngs = nnx.Rngs(0)
    with pytest.raises(
        ValueError, match=r"module must normalise channels that are last, .* axis=1"
    ):
        training.replace_batch_norm(nnx.BatchNorm(8, axis=1, rngs=rngs))
    with pytest.raises(ValueError, match="module must normalise channels that are last"):
        training.replace_batch_norm(
            nn.BatchNorm(use_running_average=True, axis=1), jnp.ones((4, 8))
        )
    with pytest.raises(ValueError, match="example must be one record's features"):
        training.replace_batch_norm(LinenNet())
    with pytest.raises(ValueError, match="groups must be"):
        training.replace_batch_norm(NnxNet(rngs), groups=0)
    for wrong in (eqx.nn.GroupNorm(2, 4), LinenNet, {"w": jnp.ones(2)}):
        with pytest.raises(TypeError, match=r"module must be a module of flax\.nnx or flax\.linen"):
            training.replace_batch_norm(wrong)


def test_dense_attention_and_other_layers_stay(lenient_promotion):
    net = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    found = training.replace_batch_norm(net)
    assert found.changed == {}
    np.testing.assert_array_equal(found.module(jnp.ones((1, 2))), net(jnp.ones((1, 2))))
