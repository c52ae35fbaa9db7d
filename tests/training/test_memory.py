"""The piece that fits: chosen by what the compiled step takes, and never another result."""

from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from dpjax import training
from dpjax.training import memory, step
from dpjax.training.data import HostData

_RECORDS, _BATCH, _SIZE = 2_000, 400, 600


def _loss(params, example):
    # 100 numbers a parameter and record: activations are most of what a step takes.
    hidden = jnp.tanh(example[:, None] * params["w"][None, :])
    return jnp.sum(jnp.sin(hidden).sum(axis=1) * params["v"])


_PARAMS = {"w": jnp.full(100, 0.01), "v": jnp.linspace(-0.1, 0.1, _SIZE)}


def _fit(data, **options):
    plan = training.make_plan(
        _RECORDS, noise_multiplier=1.0, delta=1e-5, steps=2, batch_size=_BATCH
    )
    seen = []
    result = training.fit(
        _loss,
        _PARAMS,
        data,
        plan,
        optimizer=optax.sgd(0.1),
        key=jax.random.key(5),
        log_every=1,
        on_log=lambda row: seen.append(row["step"]),
        **options,
    )
    assert seen == [0, 1, 2]
    return result.params


@pytest.fixture
def data():
    return np.random.default_rng(0).normal(size=(_RECORDS, _SIZE)).astype(np.float32)


@pytest.fixture
def chosen(monkeypatch):
    """What was chosen, and how often the compiler was asked."""
    module = importlib.import_module("dpjax.training.fit")
    answers, asked = [], []
    choose, measure = memory.choose_capacity, memory._measure_bytes

    def choosing(*given):
        answers.append(choose(*given))
        return answers[-1]

    def measuring(*given):
        asked.append(measure(*given))
        return asked[-1]

    monkeypatch.setattr(module, "choose_capacity", choosing)
    monkeypatch.setattr(memory, "_measure_bytes", measuring)
    return answers, asked


@pytest.mark.at_length
def test_a_step_that_surely_fits_is_not_asked_about(data, chosen):
    _fit(data)
    assert chosen == ([None], [])


@pytest.fixture
def uncached():
    """Without the kept programs of other tests, of which one that is read counts as compiled."""
    step._PROGRAMS.clear()
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()


@pytest.mark.usefixtures("uncached")
@pytest.mark.at_length(every=2)
@pytest.mark.parametrize("on_host", [False, True])
def test_what_does_not_fit_is_cut_and_gives_the_same(data, chosen, monkeypatch, on_host):
    records, (answers, asked), compiled = HostData(data) if on_host else data, chosen, []

    def note(name, seconds, **given):
        if name.endswith("backend_compile_duration"):
            compiled.append(given.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(note)
    monkeypatch.setattr(memory, "_DOUBTED", 0.0)
    whole = _fit(records)
    (most,) = asked
    assert answers == [None]  # it fits after all, and what was measured was run
    # What was measured is run; loaded batches are placed by another program.
    assert 1 <= compiled.count("jit(advance)") <= (2 if on_host else 1)
    limit = 0.5 * most / 0.8
    asked.clear()
    monkeypatch.setattr(memory, "find_limit", lambda device: limit)
    cut = _fit(records)
    size = answers[-1]
    assert 20 < size < _BATCH
    assert asked[0] > 0.8 * limit >= asked[-1]
    explicit = _fit(records, capacity=size)
    for own, given, other in zip(*map(jax.tree.leaves, (cut, explicit, whole)), strict=True):
        np.testing.assert_array_equal(own, given)
        np.testing.assert_allclose(own, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("memory_of", "allowed", "low", "high"),
    [
        (lambda size: 1e6 + 1e3 * size, 1.4e6, 380, 400),  # a line
        (lambda size: 1e6 + 1e3 * 1.3 * size if size < 700 else np.inf, 1.65e6, 350, 500),
        (lambda size: 1e3 * 128 * -(-size // 128), 3e5, 125, 256),  # in steps
        (lambda size: size**2, 1e4, 12, 100),  # which a line misjudges: smaller, never larger
        (lambda size: 2e6, 1e6, 1, 1),  # nothing fits
    ],
)
def test_the_size_is_nearly_the_largest_that_fits(monkeypatch, memory_of, allowed, low, high):
    class Config:
        def __init__(self, capacity):
            self.capacity = capacity

        def _replace(self, capacity):
            return Config(capacity)

    asked = []

    def measure(config, arrays, key):
        asked.append(config.capacity)
        return float(memory_of(config.capacity))

    monkeypatch.setattr(memory, "_measure_bytes", measure)
    usual = 1024
    size = memory._find_size(Config(None), None, None, usual, memory_of(usual), allowed)
    assert low <= size <= high
    assert size == 1 or memory_of(size) <= allowed
    assert len(asked) <= 6


def test_limits_that_are_known():
    limit = memory.find_limit(jax.devices("cpu")[0])
    assert limit is None or limit > 1e8

    class Card:
        platform = "gpu"

        def __init__(self, stats):
            self.memory_stats = lambda: stats

    assert memory.find_limit(Card({"bytes_limit": 80e9, "bytes_in_use": 3e9})) == 80e9
    assert memory.find_limit(Card(None)) is None


@pytest.mark.usefixtures("uncached")
def test_numbers_that_have_no_dtype_of_their_own_are_compiled_once():
    """`jnp.full(3, 0.5)` takes its dtype from a Python number, and the step's result has one."""
    weak = {"w": jnp.full(100, 0.01), "v": jnp.full(_SIZE, 0.1)}
    assert all(leaf.aval.weak_type for leaf in weak.values())
    compiled = []

    def note(name, seconds, **given):
        if name.endswith("backend_compile_duration"):
            compiled.append(given.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(note)
    records = np.random.default_rng(0).normal(size=(_RECORDS, _SIZE)).astype(np.float32)
    plan = training.make_plan(
        _RECORDS, noise_multiplier=1.0, delta=1e-5, steps=3, batch_size=_BATCH
    )
    training.fit(_loss, weak, records, plan, optimizer=optax.sgd(0.1), log_every=1)
    assert compiled.count("jit(advance)") == 1
