"""Parameters go back into the files that they were loaded from, wherever the loader put them."""

from __future__ import annotations

import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from dpjax import accounting as acc
from dpjax import training

RNG = np.random.default_rng(0)
STORED = {
    "model.embed.weight": RNG.normal(size=(20, 6)),
    "model.layers.0.q_proj.weight": RNG.normal(size=(6, 6)),
    "model.layers.0.k_proj.weight": RNG.normal(size=(4, 6)),
    "model.layers.0.v_proj.weight": RNG.normal(size=(4, 6)),
    "model.norm.weight": np.ones(6),
    "vision.weight": RNG.normal(size=(3, 3)),  # which the loader leaves alone
}


def write(folder, dtype=np.float32):
    """A checkpoint in two files, with what stands beside it."""
    folder.mkdir()
    tensors = {name: value.astype(dtype) for name, value in STORED.items()}
    tensors["model.steps"] = np.array([7])
    names = list(tensors)
    for number, own in enumerate((names[:3], names[3:])):
        content = {name: tensors[name] for name in own}
        save_file(content, folder / f"model-{number}.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"heads": 3}))
    (folder / "pytorch_model.bin").write_bytes(b"the same numbers, untrained")
    return folder


def read(folder):
    return {
        k: v for path in sorted(folder.glob("*.safetensors")) for k, v in load_file(path).items()
    }


def load(folder):
    """Transposes, cuts into heads, stacks, casts, and brings a table of its own."""
    found, heads = read(folder), json.loads((folder / "config.json").read_text())["heads"]
    at = "model.layers.0."
    keys = [found[f"{at}{n}_proj.weight"].T.reshape(6, 2, 2).transpose(1, 0, 2) for n in "kv"]
    return {
        "embedding": jnp.asarray(found["model.embed.weight"]),
        "layers": {0: {"q": jnp.asarray(found[f"{at}q_proj.weight"]).T.reshape(6, heads, 2)}},
        "kv": jnp.asarray(np.stack(keys)).astype(jnp.float32),
        "norm": jnp.asarray(found["model.norm.weight"]),
        "rotation": jnp.linspace(0.0, 1.0, 5),
    }


def changed(params):
    return {**params, "kv": params["kv"] * 2 + 1, "norm": params["norm"] - 0.25}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_was_trained_is_in_the_files_and_all_else_is_as_it_was(dtype, tmp_path):
    original = write(tmp_path / "original", jnp.dtype(dtype))
    params = changed(load(original))
    folder = training.save_like(tmp_path / "tuned", params, original, load)
    before, after = read(original), read(folder)
    assert {n: (x.shape, x.dtype) for n, x in before.items()} == {
        n: (x.shape, x.dtype) for n, x in after.items()
    }
    for name in before:
        expected = before[name].astype(np.float64)
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            expected = expected * 2 + 1
        expected = expected - 0.25 if name == "model.norm.weight" else expected
        np.testing.assert_array_equal(after[name], expected.astype(before[name].dtype))
    for path in original.glob("*.safetensors"):
        with safe_open(folder / path.name, "numpy") as opened:
            assert opened.metadata() == {"format": "pt"}
    assert (folder / "config.json").read_text() == (original / "config.json").read_text()
    assert not (folder / "pytorch_model.bin").exists()  # weights that were not trained


def test_the_certificate_is_of_these_files(tmp_path):
    original = write(tmp_path / "original")
    plan = training.make_plan(400, noise_multiplier=2.0, delta=1e-5, steps=9, batch_size=100)
    folder = training.save_like(
        tmp_path / "tuned", changed(load(original)), original, load, certificate=plan.certify()
    )
    found = acc.Certificate.from_json((folder / "certificate.json").read_bytes())
    assert list(found.subject) == ["model-0.safetensors", "model-1.safetensors"]
    assert found.check_files(folder)
    with pytest.raises(acc.CertificateError):
        found.check_files(original)


def tied(folder):
    found = load(folder)
    return {**found, "head": found["embedding"].T}


def test_a_number_in_two_places_has_one_value(tmp_path):
    original = write(tmp_path / "original")
    training.save_like(tmp_path / "same", tied(original), original, tied)
    apart = tied(original)
    apart["head"] = apart["head"] + 1
    with pytest.raises(ValueError, match=r"params must have one value for every number .* two for"):
        training.save_like(tmp_path / "apart", apart, original, tied)
    assert not (tmp_path / "apart").exists()


WRONG = {
    "scales": lambda found: {**found, "norm": found["norm"] * 1.5},
    "shifts": lambda found: {**found, "norm": found["norm"] + 1},
    "adds two": lambda found: {**found, "norm": found["norm"] + found["embedding"][0]},
    "squares": lambda found: {**found, "norm": found["norm"] ** 2},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_loader_that_changes_numbers_is_refused(name, tmp_path):
    original = write(tmp_path / "original")

    def change(folder: pathlib.Path):
        return WRONG[name](load(folder))

    params = change(original)
    params["norm"] = params["norm"] * 3
    with pytest.raises(ValueError, match="load must move numbers and change none"):
        training.save_like(tmp_path / "tuned", params, original, change)
    assert not (tmp_path / "tuned").exists()


def test_what_does_not_fit_is_refused(tmp_path):
    original = write(tmp_path / "original")
    params = load(original)
    with pytest.raises(ValueError, match=r"params must have the paths .* norm of \(6,\), got None"):
        training.save_like(
            tmp_path / "a", {k: v for k, v in params.items() if k != "norm"}, original, load
        )
    with pytest.raises(ValueError, match=r"params must have .* norm of \(6,\), got \(1, 6\)"):
        training.save_like(tmp_path / "a", {**params, "norm": params["norm"][None]}, original, load)
    with pytest.raises(ValueError, match="got another rotation, which load takes from elsewhere"):
        training.save_like(tmp_path / "a", {**params, "rotation": jnp.ones(5)}, original, load)
    with pytest.raises(ValueError, match=r"folder must not hold model-0\.safetensors already"):
        training.save_like(original, params, original, load)
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="original must hold floating-point numbers"):
        training.save_like(tmp_path / "a", params, tmp_path / "none", load)
    (tmp_path / "none" / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0 and no table")
    with pytest.raises(ValueError, match="original must hold whole safetensors files"):
        training.save_like(tmp_path / "a", params, tmp_path / "none", load)
    assert not (tmp_path / "a").exists()


def test_a_module_that_is_declared_to_be_no_tree_is_written_as_its_state_is(tmp_path):
    """Such as tunix's: JAX takes it for one leaf, which holds no array."""
    from flax import nnx

    class Opaque(nnx.Module, pytree=False):
        def __init__(self, kernel):
            self.kernel = nnx.Param(kernel)

    def load(folder):
        return Opaque(jnp.asarray(load_file(folder / "a.safetensors")["kernel"].T))

    original = tmp_path / "original"
    original.mkdir()
    save_file({"kernel": np.ones((2, 3), np.float32)}, original / "a.safetensors")
    new = np.arange(6, dtype=np.float32).reshape(3, 2)
    folder = training.save_like(tmp_path / "tuned", Opaque(jnp.asarray(new)), original, load)
    np.testing.assert_array_equal(load_file(folder / "a.safetensors")["kernel"], new.T)


def test_parameters_without_an_array_are_refused(tmp_path):
    original = tmp_path / "original"
    original.mkdir()
    save_file({"kernel": np.ones(2, np.float32)}, original / "a.safetensors")
    with pytest.raises(ValueError, match=r"params must hold floating-point arrays.* got none in"):
        training.save_like(tmp_path / "tuned", {"a": object()}, original, lambda folder: object())
