"""Sweeps of the accountant divided over devices: one device's answers, by a divided program."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax._numerics import float64

SETTINGS = 1_030  # no multiple of anything: the last blocks are padded


def cube(x, shift, table):
    return {"cube": x**3 + shift, "sum": (table * x).sum() + x}


def asked(devices):
    x = np.linspace(0.0, 1.0, SETTINGS)
    table = np.arange(3.0)  # shared by all settings
    if devices is None:
        return float64.evaluate(cube, (x, 2.0, table), (0, 0, 1))
    with acc.over_devices(devices):
        return float64.evaluate(cube, (x, 2.0, table), (0, 0, 1))


@pytest.mark.parametrize("count", [1, 3, 8])
def test_any_number_of_devices_gives_one_devices_answers(count):
    one, several = asked(None), asked(jax.devices()[:count])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-15), several, one)
    assert several["cube"].shape == (SETTINGS,)
    assert several["cube"].dtype == np.float64


def test_the_compiled_program_is_divided_and_exchanges_nothing():
    program = float64.program(cube, (0, 0, 1), 8)
    program._compiled.clear()
    asked(jax.make_mesh((8,), ("any",)))
    ((compiled, _),) = program._compiled.values()
    text = compiled.as_text()
    assert "num_partitions=8" in text
    assert not re.search("all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all", text)
    first, *shared = compiled.input_shardings[0]
    # 1,030 settings in blocks of 128: nine, so two calls of eight devices.
    assert first.shard_shape((8 * 128,)) == (128,)
    assert len(first.device_set) == 8
    assert all(one.is_fully_replicated for one in shared)
    for result in jax.tree.leaves(compiled.output_shardings):
        assert result.shard_shape((8 * 128,)) == (128,)


@pytest.mark.at_length
def test_a_sweep_of_the_accountant_is_that_of_one_device():
    sigmas = np.linspace(0.8, 3.0, 300)
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigmas), 0.01), 1_000)
    one = acc.epsilon(run, 1e-5, method="rdp")
    with acc.over_devices(jax.devices()[:3]):
        spread = acc.epsilon(run, 1e-5, method="rdp")
    np.testing.assert_allclose(spread, one, rtol=1e-12)
    # Few settings are NumPy's: the two roads are told apart, and agree.
    few = acc.epsilon(
        acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigmas[::50]), 0.01), 1_000),
        1e-5,
        method="rdp",
    )
    np.testing.assert_allclose(spread[::50], few, rtol=1e-8)
    assert np.all(np.diff(spread) < 0)


def test_a_mesh_in_force_and_a_trace_do_not_matter():
    one = asked(None)["cube"]
    with jax.set_mesh(jax.make_mesh((8,), ("data",))):
        np.testing.assert_array_equal(asked(jax.devices()[:4])["cube"], one)

    @jax.jit
    def inside(x):
        return x + np.float32(asked(jax.devices()[:4])["cube"][-1])

    assert float(inside(np.float32(1.0))) == 4.0  # 1³ + 2 + 1
    with jax.set_mesh(jax.make_mesh((8,), ("data",))):
        assert float(inside(np.float32(2.0))) == 5.0
        jax.clear_caches()
        assert float(inside(np.float32(2.0))) == 5.0


def test_few_settings_stay_with_numpy():
    with acc.over_devices(jax.devices()):
        found = acc.epsilon(acc.Gaussian([1.0, 2.0]), 1e-5)
    np.testing.assert_array_equal(found, acc.epsilon(acc.Gaussian([1.0, 2.0]), 1e-5))


@pytest.mark.parametrize("devices", [[], ["cpu"], [None], None, 2, "cpu"])
def test_what_is_no_device_of_this_process_is_refused(devices):
    refused = pytest.raises(ValueError, match="devices must be some of this process's CPUs or GPUs")
    with refused, acc.over_devices(devices):
        pass


def test_one_device_needs_no_list_and_none_is_named_twice():
    first = jax.devices()[0]
    np.testing.assert_array_equal(asked(first)["cube"], asked([first])["cube"])
    refused = pytest.raises(ValueError, match="devices must be named once each")
    with refused, acc.over_devices([first, first]):
        pass
