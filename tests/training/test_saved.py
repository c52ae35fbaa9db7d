"""A model on disk: what is saved is what is loaded, and nothing else is taken for it."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import training
from dpjax._numerics.scope import enable_x64

MODELS = {
    "logistic": training.logistic(3),
    "softmax": training.softmax(3, 4),
    "mlp": training.mlp(3, 4, hidden=(5, 6)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back_with_its_architecture(name, tmp_path):
    model = MODELS[name]
    params = jax.tree.map(lambda leaf: leaf + 0.5, model.init(jax.random.key(0)))
    plan = training.make_plan(400, noise_multiplier=2.0, delta=1e-5, steps=10, batch_size=100)
    certificate = plan.certify()
    training.save_model(
        tmp_path / "m", params, model, encoding={"columns": []}, certificate=certificate
    )
    found = training.load_model(tmp_path / "m")
    assert jax.tree.structure(found.params) == jax.tree.structure(params)
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(found.model.apply(found.params, x), model.apply(params, x))
    assert found.encoding == {"columns": []}
    assert found.certificate == certificate


def test_every_kind_of_number_comes_back(tmp_path):
    params = {
        "file": jnp.asarray([1.5, -2.0], jnp.bfloat16),
        "list": [np.float64([0.1]), (np.float16(3.0), jnp.zeros((0, 2)))],
        "deep": {"a/b": jnp.ones(()), "0": jnp.ones(1)},
    }
    with enable_x64():
        found = training.load_model(training.save_model(tmp_path, params)).params
    assert found["list"][0].dtype == np.float64
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        there = found
        for entry in path:
            there = there[entry.idx if hasattr(entry, "idx") else entry.key]
        assert there.dtype == leaf.dtype
        assert np.asarray(there).tobytes() == np.asarray(leaf).tobytes()
        assert there.shape == np.shape(leaf)


def test_a_model_of_one_s_own_is_loaded_with_it(tmp_path):
    own = training.Model(lambda key: jnp.zeros(2), lambda w, x: jnp.stack([0 * x[0], x @ w]))
    training.save_model(tmp_path, jnp.ones(2), own)
    assert training.load_model(tmp_path).model is None
    found = training.load_model(tmp_path, own)
    assert found.model.apply(found.params, jnp.ones(2)).tolist() == [0.0, 2.0]


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="folder must hold a model"):
        training.load_model(tmp_path)
    model = training.logistic(2)
    training.save_model(tmp_path, model.init(jax.random.key(0)), model)
    with pytest.raises(ValueError, match="folder must hold no other model"):
        training.save_model(tmp_path, model.init(jax.random.key(0)), model)
    with pytest.raises(ValueError, match="params must be dicts with text keys"):
        training.save_model(tmp_path / "b", {3: jnp.ones(1)})
    file = tmp_path / "model.json"
    whole = file.read_text()
    description = json.loads(whole)
    for changed, message in (
        ({"format": 99}, "use a newer dpjax"),
        ({"sha256 of params.npz": "0"}, "the file that model.json describes"),
        ({"architecture": {"kind": "forest"}}, "got 'forest'"),
    ):
        file.write_text(json.dumps(description | changed))
        with pytest.raises(ValueError, match=message):
            training.load_model(tmp_path)
    for content in (whole[:40], "[]", "{}"):
        file.write_text(content)
        with pytest.raises(ValueError, match=r"model\.json must be whole"):
            training.load_model(tmp_path)
