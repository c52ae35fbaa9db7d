"""A run goes on from where it stopped, only as the run that it was, and ends with the same bits."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import stat
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import training
from dpjax._numerics.warning import DpjaxWarning
from dpjax.training import feed, fingerprint, loop
from dpjax.training.fingerprint import array_digest, program_digest


def bits(found):
    columns = {name: column.tobytes() for name, column in found.metrics.items()}
    return columns | {"params": np.asarray(found.params).tobytes()}


@pytest.fixture
def whole(run, tmp_path):
    """The bits of the run that nothing interrupts."""
    return bits(run(folder=tmp_path / "whole"))


@pytest.mark.parametrize("step", [0, 2, 4, 6])
@pytest.mark.parametrize("every", [None, 1, 4])
@pytest.mark.at_length(every=4)
def test_interrupted_anywhere_and_resumed_it_ends_with_the_same_bits(
    run, whole, stop_at, step, every
):
    with pytest.raises(stop_at.error):
        run(on_log=stop_at(step), checkpoint_every=every)
    assert bits(run(resume=True, checkpoint_every=every)) == whole


def test_the_key_is_stored_bound_before_the_first_step(run, tmp_path, stop_at, whole):
    with pytest.raises(stop_at.error):
        run(on_log=stop_at(0))
    names = {path.name for path in (tmp_path / "checkpoint").iterdir()}
    assert names == {"noise_key.json", "key_by_hand.note", "lock"}
    assert bits(run(resume=True)) == whole


@pytest.mark.parametrize("step", [0, 2])
def test_resume_keeps_the_stored_key_and_says_so_of_a_new_one(run, whole, stop_at, step):
    with pytest.raises(stop_at.error):
        run(on_log=stop_at(step))
    with pytest.warns(UserWarning, match="key is not used: the run in .*checkpoint goes") as seen:
        assert bits(run(resume=True, key=jax.random.key(99))) == whole
    ours = [warning.filename for warning in seen if warning.category is DpjaxWarning]
    assert ours == [conftest_of(run)]  # where fit was called
    assert bits(run(resume=True)) == whole  # the key that it began with
    assert bits(run(resume=True, key=None)) == whole


def conftest_of(fixture):
    return fixture.__code__.co_filename


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_the_same_key_is_taken_in_silence_whatever_its_form(run, stop_at, make):
    with pytest.raises(stop_at.error):
        run(on_log=stop_at(2), key=make(5))
    run(resume=True, key=make(5))  # a warning would be an error
    with pytest.warns(UserWarning, match="key is not used"):
        run(resume=True, key=make(6))


def test_a_key_by_hand_that_is_not_used_is_not_noted(run, tmp_path, stop_at):
    with pytest.raises(stop_at.error):
        run(on_log=stop_at(2), key=None)
    with pytest.warns(UserWarning, match="key is not used"):
        run(resume=True, key=jax.random.key(99))
    assert not (tmp_path / "checkpoint" / "key_by_hand.note").exists()


def test_a_finished_run_gives_its_result_again(run, whole):
    run()
    assert bits(run(resume=True)) == whole


def scaled(factor):
    return lambda w, row: jnp.sum(factor * (w - row) ** 2)


@jax.custom_jvp
def squares(x):
    return jnp.sum(x**2)


squares.defjvp(lambda primals, tangents: (squares(*primals), jnp.sum(3.0 * tangents[0])))


CHANGES = {
    "clip norm": ({"clip_norm": 2.0}, r"its clip norm differs \(1.0 there, 2.0 here\)"),
    "noise": ({"noise": 2.0}, "its mechanism differs"),
    "steps": ({"steps": 8}, "its mechanism differs"),
    "delta": ({"delta": 1e-6}, r"its delta differs \(1e-05 there, 1e-06 here\)"),
    "data": ({"data": np.ones((6, 2), np.float32)}, "its data differs;"),
    "records": ({"data": np.ones((7, 2), np.float32)}, "its data differs;"),
    "start": ({"start": 1.0}, "its initial parameters differs;"),
    "loss": ({"loss": lambda w, row: jnp.sum((w + row) ** 2)}, "its loss differs;"),
    "constant": ({"loss": scaled(2.0)}, "its loss differs;"),
    "array": ({"loss": scaled(np.float32([1, 2]))}, "its loss differs;"),
    "rule": ({"loss": lambda w, row: squares(w - row)}, "its loss differs;"),
    "momentum": ({"optimizer": optax.sgd(0.1)}, "its optimiser differs;"),
    "rate": ({"optimizer": optax.sgd(0.2, momentum=0.9)}, "its optimiser differs;"),
    "schedule": (
        {"optimizer": optax.sgd(optax.linear_schedule(0.1, 0.0, 6), momentum=0.9)},
        "its optimiser differs;",
    ),
    "identity": ({"identity": {"column": 3}}, "its column differs"),
    "rows": ({"log_every": 3}, r"its rows of the metrics differs \(2 there, 3 here\)"),
    "capacity": ({"capacity": 3}, "its capacity differs"),
    "method": ({"method": "vmap"}, r"its method differs \(auto there, vmap here\)"),
}


def test_a_number_in_an_array_is_compared_to_the_last_bit(run, stop_at):
    """What an array prints is rounded to eight digits."""
    with pytest.raises(stop_at.error):
        run(on_log=stop_at(0), noise=np.asarray(1.0))
    with pytest.raises(training.CheckpointError, match="its mechanism's numbers differs;"):
        run(resume=True, noise=np.asarray(1 + 1e-15))


@pytest.mark.at_length(every=2)
@pytest.mark.parametrize("kept", ["checkpoints", "key alone"])
@pytest.mark.parametrize("change", CHANGES)
def test_another_run_is_refused_and_the_folder_kept(run, tmp_path, stop_at, change, kept):
    changes, named = CHANGES[change]
    folder = tmp_path / "checkpoint"
    with pytest.raises(stop_at.error):
        run(on_log=stop_at(2 if kept == "checkpoints" else 0))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(training.CheckpointError, match=named):
        run(resume=True, **changes)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


SETTINGS = {
    "jax_threefry_partitionable": False,
    "jax_default_prng_impl": "rbg",
    "jax_random_seed_offset": 1,
    "jax_enable_x64": True,
    "jax_default_matmul_precision": "highest",
    "jax_disable_jit": True,
}


@pytest.mark.parametrize("name", SETTINGS)
def test_another_setting_of_jax_is_refused_by_its_name(run, stop_at, name):
    """The step that is repeated would draw other noise, or add it to another sum."""
    options = {"loss": lambda w, row: jnp.dot(w - row, w - row)}
    with pytest.raises(stop_at.error):
        run(on_log=stop_at(2), **options)
    before = getattr(jax.config, name)
    jax.config.update(name, SETTINGS[name])
    try:
        with pytest.raises(training.CheckpointError, match=f"its {name} differs"):
            run(resume=True, **options)
    finally:
        jax.config.update(name, before)


def _called(call):
    return lambda w, row: jnp.sum((w - row) ** 2) + call(jax.lax.stop_gradient(row[0]))


_SCALAR = jax.ShapeDtypeStruct((), np.float32)
_RULE = jax.custom_batching.custom_vmap(lambda x: x)
_RULE.def_vmap(lambda size, batched, x: (2 * x, batched[0]))
CALLS = {
    "pure": _called(lambda x: jax.pure_callback(np.sin, _SCALAR, x, vmap_method="expand_dims")),
    "ordered": _called(lambda x: jax.experimental.io_callback(np.float32, _SCALAR, x)),
    "within": _called(jax.jit(lambda x: jax.lax.map(
        lambda y: jax.pure_callback(np.sin, _SCALAR, y, vmap_method="expand_dims"), x[None]
    )[0])),
    "rule of vmap": _called(_RULE),
    "price": _called(lambda x: dpjax.accounting.delta(dpjax.accounting.Gaussian(2.0), jnp.abs(x))),
}  # fmt: skip


@pytest.mark.parametrize("kind", CALLS)
def test_a_loss_that_no_digest_tells_from_another_begins_no_run_in_a_folder(run, tmp_path, kind):
    with pytest.raises(training.CheckpointError, match="a function of Python's that no digest"):
        run(loss=CALLS[kind])
    assert {path.name for path in (tmp_path / "checkpoint").iterdir()} <= {"lock"}


def test_a_callback_without_a_value_decides_nothing(run, stop_at, whole):
    def loud(w, row):
        jax.debug.callback(lambda x: None, row)
        return jnp.sum((w - row) ** 2)

    with pytest.raises(stop_at.error):
        run(loss=loud, on_log=stop_at(2))
    assert bits(run(loss=loud, resume=True)) == whole


def test_code_that_sums_otherwise_is_refused(run, stop_at, tmp_path, monkeypatch):
    """Of one version's number: the same noise on a sum that is rounded otherwise."""
    root = tmp_path / "copy"
    shutil.copytree(pathlib.Path(dpjax.__file__).parent, root)
    with pytest.raises(stop_at.error):
        run(on_log=stop_at(2))
    digest = fingerprint.source_digest
    here = digest()
    monkeypatch.setattr(fingerprint, "__file__", str(root / "training" / "fingerprint.py"))
    digest.cache_clear()
    try:
        assert digest() == here  # wherever the files lie
        with open(root / "gradients" / "per_example.py", "a") as file:
            file.write("# other additions")
        digest.cache_clear()
        with pytest.raises(training.CheckpointError, match="its software differs"):
            run(resume=True)
    finally:
        digest.cache_clear()


def test_the_folder_of_a_run_whose_steps_were_deleted_gives_its_noise_to_nobody_else(run, tmp_path):
    run()
    for path in (tmp_path / "checkpoint").glob("step-*"):
        path.unlink()
    with pytest.raises(training.CheckpointError, match="its data differs"):
        run(resume=True, data=np.ones((6, 2), np.float32))


def test_the_same_loss_written_again_is_the_same_run(run, stop_at, whole):
    with pytest.raises(stop_at.error):
        run(on_log=stop_at(2))
    again = optax.sgd(0.1, momentum=0.9)
    found = run(resume=True, loss=lambda v, r: jnp.sum((v - r) ** 2), optimizer=again)
    assert bits(found) == whole


def test_a_new_run_does_not_write_into_an_old_one(run, stop_at):
    with pytest.raises(stop_at.error):
        run(on_log=stop_at(0))
    with pytest.raises(training.CheckpointError, match="resume it, or choose another folder"):
        run()


def test_without_its_key_a_run_is_not_continued(run, tmp_path):
    run()
    training.discard_key(tmp_path / "checkpoint")
    with pytest.raises(training.CheckpointError, match=r"has no noise_key\.json"):
        run(resume=True)


def test_the_key_lies_beside_the_checkpoint_and_never_in_it(run, tmp_path, stop_at):
    key = jax.random.key(123_456_789)
    with pytest.raises(stop_at.error):
        run(on_log=stop_at(4), key=key)
    folder = tmp_path / "checkpoint"
    secret = folder / "noise_key.json"
    assert json.loads(secret.read_text())["words"] == np.asarray(jax.random.key_data(key)).tolist()
    words = np.asarray(jax.random.key_data(key)).tobytes()
    checkpoints = [path for path in folder.iterdir() if path.suffix == ".ckpt"]
    assert len(checkpoints) == 2
    for path in (secret, *checkpoints):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path == secret or words not in path.read_bytes()


def test_digests_need_the_key_and_tell_values_from_values():
    rows = np.arange(6.0)
    first, second = (array_digest(rows, secret=secret) for secret in (b"1", b"2"))
    assert first != second
    assert first == array_digest(rows.copy(), secret=b"1")
    assert first != array_digest(rows + 1e-9, secret=b"1")
    assert first != array_digest(rows.astype(np.float32), secret=b"1")
    inner = [jax.jit(lambda x, c=c: x * np.float32([c, 1.0])) for c in (1.0, 2.0, 2.0)]
    shape = jax.ShapeDtypeStruct((2,), np.float32)
    one, two, same = (program_digest(f, shape, secret=b"1") for f in inner)
    assert one != two == same
    assert same != program_digest(inner[2], shape, secret=b"2")


def test_every_kind_of_leaf_is_stored_and_found(tmp_path):
    state = {
        "key": jax.random.key(3),
        "half": jnp.asarray([1.5, -2.0], jnp.bfloat16),
        "empty": np.zeros((0, 3)),
        "number": jnp.asarray(7, jnp.int32),
        "flags": np.asarray([True, False]),
    }
    store = training.Checkpoints(tmp_path)
    store.bind(jax.random.key(0), lambda key: {}, resume=False)
    store.save(5, state)
    found = store.latest(state)
    store.close()
    assert found is not None
    assert found[0] == 5
    assert jax.random.key_data(found[1].pop("key")).tolist() == [0, 3]
    for name, value in found[1].items():
        assert value.dtype == state[name].dtype
        assert np.asarray(value).tobytes() == np.asarray(state[name]).tobytes()
        assert value.shape == state[name].shape


def test_ctrl_c_saves_the_last_completed_step_of_a_long_row(run, tmp_path, monkeypatch, request):
    """No row ends before the interrupt: the steps done so far are on disk all the same."""
    monkeypatch.setattr(feed, "_SECONDS_A_CALL", 0.02)
    settings = {"steps": 2_000_000, "log_every": 2_000_000, "checkpoint_every": None}
    # A shell's background jobs ignore the signal, and so would Python.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def interrupt():
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    took = feed.OnDevice.record_timing

    def begin(*arguments):  # once some steps are done, however long the program took to compile
        if thread.ident is None:
            thread.start()
        took(*arguments)

    monkeypatch.setattr(feed.OnDevice, "record_timing", begin)
    began = time.process_time()
    with pytest.raises(KeyboardInterrupt):
        run(**settings)
    thread.join()
    assert time.process_time() - began < 20  # the whole row would take far longer
    (saved,) = (tmp_path / "checkpoint").glob("step-*.ckpt")
    assert 0 < int(saved.stem.removeprefix("step-")) < settings["steps"]


def test_minutes_not_rows_bound_the_distance_between_checkpoints(run, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr(loop, "_TIMES_A_SAVE", 0.0)
    saved = []
    save = training.Checkpoints.save
    monkeypatch.setattr(
        training.Checkpoints,
        "save",
        lambda self, step, s: (saved.append(step), save(self, step, s)),
    )
    run(steps=60, log_every=60, checkpoint_every=None)
    assert len(saved) >= 3  # one row, yet several checkpoints
    assert saved[-1] == 60


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    training.write_atomically(path, b"old")

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        training.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    shutil.rmtree(tmp_path)
