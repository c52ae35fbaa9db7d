"""A model on disk: what is saved is what is loaded, and nothing else is taken for it."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pathlib
import pickle
import re
import shutil
import stat

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save

from dpjax import accounting as acc
from dpjax import training
from dpjax._numerics.scope import enable_x64
from dpjax.training.parameters import partition_model

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
    assert list(found.certificate.subject) == ["model.safetensors", "model.json"]
    assert found.certificate.mechanism == certificate.mechanism
    assert found.certificate.verify().epsilon == certificate.epsilon


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_disk_that_fills_up_leaves_no_model_and_does_not_refuse_the_next_one(
    written, tmp_path, monkeypatch
):
    plan = training.make_plan(400, noise_multiplier=2.0, delta=1e-5, steps=10, batch_size=100)
    certificate, params = plan.certify(), {"w": jnp.ones(3)}
    left, flush = iter(range(written)), os.fsync

    def full(handle):
        if stat.S_ISREG(os.fstat(handle).st_mode) and next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left on device") as refused:
            training.save_model(tmp_path, params, certificate=certificate)
    names = ("model.safetensors", "certificate.json", "model.json")  # the last makes it a model
    assert refused.value.filename == str(tmp_path / names[written])
    assert not list(tmp_path.iterdir())
    training.save_model(tmp_path, params, certificate=certificate)
    assert training.load_model(tmp_path).certificate.epsilon == certificate.epsilon


@pytest.mark.parametrize("copied", [["model.safetensors", "model.json"], ["certificate.json"]])
def test_the_parameters_of_another_run_are_not_those_of_the_certificate(copied, tmp_path):
    for noise in (2.0, 4.0):
        plan = training.make_plan(400, noise_multiplier=noise, delta=1e-5, steps=9, batch_size=100)
        params, folder = {"w": jnp.full(3, noise)}, tmp_path / f"{noise}"
        training.save_model(folder, params, certificate=plan.certify())
    training.load_model(tmp_path / "4.0")
    for name in copied:
        shutil.copy(tmp_path / "2.0" / name, tmp_path / "4.0" / name)
    with pytest.raises(acc.CertificateError, match=r"names another model\.") as refused:
        training.load_model(tmp_path / "4.0")
    assert refused.value.field == "subject"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda text, c, folder: text.replace('"proven"', '"conditional"'), "tier"),
        (lambda text, c, folder: re.sub('"epsilon": [0-9.]+', '"epsilon": 0.1', text), "epsilon"),
        (lambda text, c, folder: c.bind_files({"absent.bin": b""}).to_json(), "subject"),
        (lambda text, c, folder: c.bind_files(
            {"Model.json": b"", "MODEL.safetensors": b""}).to_json(), "subject"),
        (lambda text, c, folder: c.bind_files(
            {"model.json": (folder / "model.json").read_bytes()}).to_json(), "subject"),
    ],
)  # fmt: skip
def test_a_certificate_that_was_changed_or_is_of_no_file_here_is_refused(change, field, tmp_path):
    plan = training.make_plan(400, noise_multiplier=2.0, delta=1e-5, steps=9, batch_size=100)
    training.save_model(tmp_path, jnp.ones(3), certificate=plan.certify())
    path = tmp_path / "certificate.json"
    text = path.read_text()
    changed = change(text, training.load_model(tmp_path).certificate, tmp_path)
    assert changed != text
    path.write_text(changed)
    with pytest.raises(acc.CertificateError) as refused:
        training.load_model(tmp_path)
    assert refused.value.field == field
    path.write_text(plan.certify().to_json())  # bound to no file, as one written by hand
    assert training.load_model(tmp_path).certificate.subject == {}


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
    with pytest.raises(ValueError, match="params must be dicts whose keys are texts or whole"):
        training.save_model(tmp_path / "b", {0.5: jnp.ones(1)})
    file = tmp_path / "model.json"
    whole = file.read_text()
    description = json.loads(whole)
    for changed, message in (
        ({"format": 99}, "use a newer dpjax"),
        ({"sha256 of model.safetensors": "0"}, "the file that model.json describes"),
        ({"architecture": {"kind": "forest"}}, "got 'forest'"),
    ):
        file.write_text(json.dumps(description | changed))
        with pytest.raises(ValueError, match=message):
            training.load_model(tmp_path)
    for content in (whole[:40], "[]", "{}", "[" * 100_000):
        file.write_text(content)
        with pytest.raises(ValueError, match=r"model\.json must be whole"):
            training.load_model(tmp_path)


TREES = {
    "parts without a leaf": [(), {"w": jnp.ones(1), "none": None}, {}, [], jnp.zeros(2)],
    "nothing": {},
    "a 16-bit scalar": {"bias": jnp.zeros((), jnp.bfloat16)},
    "names that the format takes": {
        "__metadata__": np.float32([1.0]), "__metadata___": np.float32([2.0]),
        "a\0b": np.float32([6.0]), "a\0c": np.float32([7.0]), "../../a": np.float32([8.0]),
    },
    "numbers that the format lacks": {
        "c": np.complex64([1 + 2j]), "f": jnp.ones((2, 3), "float8_e4m3b11fnuz"),
    },
    "names that meet": {"a/b": np.float32([1.0]), "a": {"b": np.float32([2.0])}},
    "columns and steps in memory": {
        "t": np.arange(6.0, dtype=np.float32).reshape(2, 3).T,
        "s": np.arange(6, dtype=np.int32)[::2],
    },
    "Python's numbers": {"a": 0.1, "b": True, "c": 3},
    "numbers as keys": {"layers": {0: {"w": jnp.ones(1)}, 10: {}, -1: [jnp.zeros(2)]}, "key": {}},
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_every_tree_comes_back_as_it_was(name, tmp_path):
    params = TREES[name]
    found = training.load_model(training.save_model(tmp_path, params)).params
    listed = [[], *params[1:]] if name == "parts without a leaf" else params
    assert jax.tree.structure(found) == jax.tree.structure(listed)
    for there, leaf in zip(jax.tree.leaves(found), jax.tree.leaves(listed), strict=True):
        np.testing.assert_array_equal(np.asarray(there), np.asarray(jnp.asarray(leaf)))
        assert there.shape == np.shape(leaf)


def test_another_byte_order_is_read_as_the_same_numbers(tmp_path):
    params = {"w": np.arange(3, dtype=">f4")}
    assert training.load_model(training.save_model(tmp_path, params)).params["w"].tolist() == [
        0.0, 1.0, 2.0
    ]  # fmt: skip


@pytest.mark.parametrize(
    "leaf", ["text", object(), np.array(["a"]), np.zeros(2, "M8[D]"), np.longdouble(1)]
)
def test_what_is_no_number_is_refused_and_nothing_is_written(leaf, tmp_path):
    with pytest.raises(ValueError, match="params must be a tree of arrays of numbers"):
        training.save_model(tmp_path / "m", {"a": leaf})
    with pytest.raises(ValueError, match="got key<fry> at"):
        training.save_model(tmp_path / "m", {"a": jax.random.key(0)})
    with pytest.raises(TypeError):
        training.save_model(tmp_path / "m", {"a": jnp.ones(1)}, encoding={"a": object()})
    assert not (tmp_path / "m").exists()


def test_numbers_wider_than_jax_reads_are_named(tmp_path):
    training.save_model(tmp_path, {"w": np.float64([1 / 3])})
    with pytest.warns(UserWarning, match="'w' holds float64, read as float32"):
        training.load_model(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "kept"),
    [(np.int64(2**32 + 5), np.int64(5)), (np.int64(-(2**31) - 1), np.int64(-(2**31)))],
)
@pytest.mark.parametrize("shape", [(), (3,)])
def test_whole_numbers_that_jax_does_not_keep_are_no_parameters(wrong, kept, shape, tmp_path):
    """Cast to 32 bits, 2**32 + 5 would be carried, and read, as 5."""
    make = lambda number: {"w": np.ones(2, np.float32), "ids": np.full(shape, number)}  # noqa: E731
    found = partition_model(make(kept))
    np.testing.assert_array_equal(found.join(found.trained, found.frozen)["ids"], make(kept)["ids"])
    with pytest.raises(ValueError, match=f"params must have whole numbers from .* got {wrong}:"):
        partition_model(make(wrong))
    training.save_model(tmp_path / "wide", make(wrong))
    with pytest.raises(ValueError, match=f"'ids' must have whole numbers from .* got {wrong}:"):
        training.load_model(tmp_path / "wide")
    with enable_x64():
        read = training.load_model(tmp_path / "wide").params
    np.testing.assert_array_equal(read["ids"], make(wrong)["ids"])
    training.save_model(tmp_path / "kept", make(kept))
    with pytest.warns(UserWarning, match="'ids' holds int64, read as int32"):
        read = training.load_model(tmp_path / "kept").params
    np.testing.assert_array_equal(read["ids"], make(kept)["ids"])


def test_another_model_s_certificate_is_not_taken_over(tmp_path):
    (tmp_path / "certificate.json").write_text("{}")
    with pytest.raises(ValueError, match="folder must hold no other model"):
        training.save_model(tmp_path, jnp.ones(2))


def test_parameters_of_another_architecture_are_refused(tmp_path):
    for params in ({"weights": jnp.ones(3), "bias": jnp.zeros(())}, {"w": jnp.ones(2)}):
        with pytest.raises(ValueError, match="params must be those of the architecture"):
            training.save_model(tmp_path, params, training.logistic(2))
    model = training.logistic(2)
    training.save_model(tmp_path, model.init(jax.random.key(0)), model)
    forge(tmp_path, lambda found: found["architecture"].update(features=3))
    with pytest.raises(ValueError, match="params must be those of the architecture"):
        training.load_model(tmp_path)


def forge(folder, change, content=None):
    """A model.json that was changed, and a file of arrays whose digest it holds."""
    found = json.loads((folder / "model.json").read_text())
    if content is not None:
        name = "params.npz" if found["format"] == 1 else "model.safetensors"
        (folder / name).write_bytes(content)
        found[f"sha256 of {name}"] = hashlib.sha256(content).hexdigest()
    change(found)
    (folder / "model.json").write_text(json.dumps(found))


CONTENTS = {
    "empty": b"",
    "no header": b"PK\x03\x04 and no more",
    "pickle": pickle.dumps({"weights": [1.0, 1.0]}),
    "lacking": save({"weights": np.ones(2, np.float32)}),
    "wide": save({"weights": np.ones(2), "bias": np.zeros((), np.float32)}),
    "other numbers": save({"weights": np.ones(2, np.int32), "bias": np.zeros((), np.float32)}),
    "other shape": save({"weights": np.ones(3, np.float32), "bias": np.zeros((), np.float32)}),
    "cut off": save({"weights": np.ones(2, np.float32), "bias": np.zeros((), np.float32)})[:-1],
}


@pytest.mark.parametrize("content", CONTENTS)
def test_a_forged_file_of_arrays_is_refused_in_one_line(content, tmp_path):
    model = training.logistic(2)
    training.save_model(tmp_path, model.init(jax.random.key(0)), model)
    forge(tmp_path, lambda found: None, CONTENTS[content])
    with pytest.raises(ValueError, match=r"model\.safetensors must hold the arrays that mod") as e:
        training.load_model(tmp_path)
    assert "\n" not in str(e.value)


def test_the_arrays_open_without_dpjax(tmp_path):
    params = {"layer": {"kernel": jnp.ones((2, 3)), "bias": jnp.arange(3.0)}, "n": jnp.int32(4)}
    arrays = load_file(training.save_model(tmp_path / "a", params) / "model.safetensors")
    assert set(arrays) == {"layer/kernel", "layer/bias", "n"}
    np.testing.assert_array_equal(arrays["layer/bias"], params["layer"]["bias"])
    folder = training.save_model(tmp_path / "b", {"w": jnp.asarray([1.5, -2.0], jnp.bfloat16)})
    ((name, part),) = safetensors.deserialize((folder / "model.safetensors").read_bytes())
    assert (name, part["dtype"], part["shape"]) == ("w", "BF16", [2])


# ------------------------------------------------- what 0.1.0 wrote: params.npz and model.json

OLD = pathlib.Path(__file__).parent / "format_1"


def test_a_folder_of_the_first_format_loads():
    model = training.mlp(2, 3, hidden=(2,))
    found = training.load_model(OLD / "mlp")
    expected = jax.tree.map(lambda leaf: leaf + 0.5, model.init(jax.random.key(0)))
    chex.assert_trees_all_close(found.params, expected, rtol=1e-6)
    assert found.model.apply(found.params, jnp.ones(2)).shape == (3,)
    assert found.encoding == {"columns": []}
    assert found.certificate.verify().epsilon == pytest.approx(found.certificate.epsilon)
    params = training.load_model(OLD / "own").params
    assert params["a"]["half"].dtype == jnp.bfloat16
    assert params["a"]["half"].tolist() == [1.5, -2.0]
    assert (params["a"]["empty"], params["a"]["none"]) == ({}, None)
    assert [leaf.tolist() for leaf in params["list"]] == [[1, 2], [1 + 2j]]
    assert params["file"] == 3.0


def _archive(save=np.savez, **arrays):
    stored = io.BytesIO()
    save(stored, **arrays)
    return stored.getvalue()


OLD_CONTENTS = {
    "empty": b"",
    "no archive": b"PK\x03\x04 and no more",
    "pickle": pickle.dumps({"half": [1.0, 1.0]}),
    "pickle within": _archive(file_=np.array([None, {}])),
    "bomb": _archive(np.savez_compressed, file_=np.zeros(1 << 18, np.float32)),
}


@pytest.mark.parametrize("content", OLD_CONTENTS)
def test_a_forged_file_of_the_first_format_is_refused_in_one_line(content, tmp_path):
    (tmp_path / "model.json").write_bytes((OLD / "own" / "model.json").read_bytes())
    forge(tmp_path, lambda found: None, OLD_CONTENTS[content])
    with pytest.raises(ValueError, match=r"params\.npz must hold the arrays that model\.json") as e:
        training.load_model(tmp_path)
    assert "\n" not in str(e.value)


CHANGES = {
    "no such type": lambda d: d["parameters"][0].update(dtype="foo"),
    "no name": lambda d: d["parameters"][0].pop("name"),
    "no path": lambda d: d["parameters"][0].pop("path"),
    "a path of text": lambda d: d["parameters"][0].update(path="bias"),
    "a gap": lambda d: d["parameters"][0].update(path=[3]),
    "one place": lambda d: d["parameters"][0].update(path=["weights"]),
    "deep": lambda d: d["parameters"][0].update(path=["a"] * 5_000),
    "no parameters": lambda d: d.update(parameters=None),
    "no kind": lambda d: d.update({"empty parts": [{"path": ["a"], "kind": "set"}]}),
    "architecture of text": lambda d: d.update(architecture="logistic"),
    "architecture of a list": lambda d: d.update(architecture={"kind": []}),
    "size of text": lambda d: d["architecture"].update(features="2"),
    "no size": lambda d: d["architecture"].pop("features"),
    "unknown size": lambda d: d["architecture"].update(depth=2),
    "no layers": lambda d: d.update(
        architecture={"kind": "mlp", "features": 2, "classes": 2, "hidden": 3}
    ),
    "format of another type": lambda d: d.update(format=True),
    "newer, of other keys": lambda d: (d.clear(), d.update(format=3)),
    "encoding of text": lambda d: d.update(encoding="x"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_forged_description_is_refused(change, tmp_path):
    model = training.logistic(2)
    training.save_model(tmp_path, model.init(jax.random.key(0)), model)
    forge(tmp_path, CHANGES[change])
    with pytest.raises(ValueError, match="must"):
        training.load_model(tmp_path)
