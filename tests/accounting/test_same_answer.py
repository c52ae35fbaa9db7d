"""The same question has the same answer to the last bit, however often and in whatever order."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax._numerics.float64 import _FEW_SETTINGS
from dpjax._numerics.scope import enable_x64
from dpjax.accounting.mechanisms import Mechanism
from tests.accounting.mechanism_examples import EXAMPLES

_REPLACE = acc.Adjacency.REPLACE_ONE


def dpsgd(sigma, rate, steps):
    return acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), steps)


_QUESTIONS = {
    "best": lambda: acc.epsilon(dpsgd(1.1, 0.01, 1_000), 1e-5),
    "contour, replace-one": lambda: acc.epsilon(
        dpsgd(0.8, 0.03, 50), 1e-6, adjacency=_REPLACE, method="contour"
    ),
    "contour's delta": lambda: acc.delta(dpsgd(1.1, 0.01, 1_000), 1.0, method="contour"),
    "rdp": lambda: acc.epsilon(dpsgd(1.1, 0.01, 1_000), 1e-5, method="rdp"),
    "one step": lambda: acc.epsilon(dpsgd(1.1, 0.01, 1), 1e-7),
    "gaussian": lambda: acc.epsilon(acc.Repeated(acc.Gaussian(4.0), 7), 1e-5),
    "fixed batches": lambda: acc.epsilon(
        acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(4.0), 5, 100), 20), 1e-5, adjacency=_REPLACE
    ),
    "descent": lambda: acc.epsilon(acc.NoisyGradientDescent(100, 0.1, 0.02, 8e-4, 1.0, 2.0), 1e-5),
    "batches": lambda: acc.epsilon(
        acc.RandomizedSensitivity([0.1, 0.2], [0.5, 0.5], noise_std=1.0), 1e-5, adjacency=_REPLACE
    ),
    "certificate": lambda: acc.certify(dpsgd(1.1, 0.01, 1_000), 1e-5).epsilon,
}


@pytest.mark.at_length
def test_200_questions_in_random_order():
    first = {name: float(ask()).hex() for name, ask in _QUESTIONS.items()}
    rng = np.random.default_rng(3)
    names = rng.permutation(np.repeat(list(_QUESTIONS), 20))
    assert len(names) == 200
    compiled = jax.jit(lambda sigma: acc.epsilon(acc.Gaussian(sigma), 1e-5))
    for count, name in enumerate(names):
        if count % 20 == 10:  # what else a process does: x64, compiled questions, a sweep
            with enable_x64(bool(count % 40 == 10)):
                compiled(2.0)
            acc.epsilon(dpsgd(np.linspace(1, 2, 5), 0.01, 1_000), 1e-5)
        assert float(_QUESTIONS[name]()).hex() == first[name], (count, name)


@pytest.mark.processes
def test_another_process_says_the_same_with_x64_on():
    code = (
        "from tests.accounting.test_same_answer import _QUESTIONS\n"
        "print([float(_QUESTIONS[name]()).hex() for name in reversed(_QUESTIONS)])"
    )
    run = subprocess.run(
        [sys.executable, "-c", "import jax; jax.config.update('jax_enable_x64', True)\n" + code],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    mine = [float(_QUESTIONS[name]()).hex() for name in reversed(_QUESTIONS)]
    assert run.stdout.strip().splitlines()[-1] == str(mine)


@pytest.mark.parametrize(
    "method", ["best", pytest.param("contour", marks=pytest.mark.at_length), "rdp"]
)
def test_a_setting_of_a_small_sweep_is_the_single_one_to_the_last_bit(method):
    rng = np.random.default_rng(8)
    sigmas, rates = rng.uniform(0.6, 4, 12), 10 ** rng.uniform(-4, -0.3, 12)
    steps = np.floor(10 ** rng.uniform(1, 4, 12))
    assert len(sigmas) < _FEW_SETTINGS
    together = acc.epsilon(dpsgd(sigmas, rates, steps), 1e-6, method=method)
    for i in range(12):
        alone = acc.epsilon(dpsgd(sigmas[i], rates[i], steps[i]), 1e-6, method=method)
        assert float(together[i]).hex() == float(alone).hex(), i


def test_a_question_in_a_float32_program_is_the_concrete_one():
    """Under jit and eagerly the same 12 settings have an answer, and the same one."""
    rng = np.random.default_rng(9)
    rows = np.stack(
        [
            rng.uniform(0.6, 4, 12),
            10 ** rng.uniform(-4, -0.3, 12),
            np.floor(10 ** rng.uniform(1, 4, 12)),
        ]
    ).astype(np.float32)

    def price(sigma, rate, steps):
        return acc.epsilon(dpsgd(sigma, rate, steps), 1e-6)

    traced = np.asarray(jax.jit(price)(*rows))
    concrete = price(*rows.astype(np.float64))
    np.testing.assert_array_equal(np.isinf(traced), np.isinf(concrete))
    assert np.all(traced >= concrete)
    np.testing.assert_allclose(traced, concrete, rtol=3e-7)


# With quotients that are no float32; without the two that take seconds.
_NARROW = [
    *(run for run in EXAMPLES if not isinstance(run, acc.TruncatedPoissonSampled | acc.UserLevel)),
    acc.RandomizedSensitivity([1.0, 2.0], [0.5, 0.5], 3.0),
    acc.Composed((acc.RandomizedSensitivity([1.0, 2.0], [0.5, 0.5], 3.0), acc.Gaussian(7.0))),
    acc.Repeated(acc.RandomizedSensitivity([1.0, 2.0], [0.5, 0.5], 3.0), 2),
    acc.RecentredGaussian(0.7, 0.3, 7),
    acc.Anisotropic(0.7, 0.3, 0.3, 0.1, 7),
    acc.ObjectivePerturbation(0.7, 50.0, 0.3, 70.0, 0.1),
    acc.NoisyCyclicDescent(10, 0.3, 0.7, 0.1, 1.0, 2.3, 5, 3.0),
    acc.Laplace(5.3),
    acc.DiscreteLaplace(5.3, 3.0),
    acc.Repeated(acc.DiscreteGaussian(5.3), 3),
    acc.PoissonSampled(acc.Laplace(5.3), 0.013),
]


@pytest.mark.filterwarnings("ignore:noise uniform in a ball")
@pytest.mark.parametrize("run", _NARROW, ids=lambda run: type(run).__name__)
@pytest.mark.at_length(every=3)
def test_numbers_of_a_float32_array_are_priced_as_the_same_numbers(run):
    """Nothing between a field and its price is of 32 bits: a quotient of two would be rounded."""

    def held(value, as_jax):
        if isinstance(value, Mechanism):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return type(value)(**{name: held(field, as_jax) for name, field in fields.items()})
        if isinstance(value, tuple) and value and isinstance(value[0], Mechanism):
            return tuple(held(part, as_jax) for part in value)
        if not isinstance(value, float | np.ndarray | tuple):
            return value
        values = np.asarray(value, np.float32)
        return jnp.asarray(values) if as_jax else values.astype(np.float64)

    try:
        wide, narrow = held(run, False), held(run, True)
    except ValueError:
        pytest.skip("the mechanism takes these fields as Python's numbers alone")
    for adjacency in acc.Adjacency:
        for ask in (
            lambda one: acc.epsilon(one, 1e-5, adjacency=adjacency),  # noqa: B023
            lambda one: acc.epsilon(one, 1e-3, adjacency=adjacency, method="pld"),  # noqa: B023
            lambda one: acc.delta(one, 0.7, adjacency=adjacency),  # noqa: B023
            lambda one: acc.rdp(one, [2.0, 17.0], adjacency=adjacency),  # noqa: B023
        ):
            try:
                expected = ask(wide)
            except (acc.UnsupportedQuery, ValueError):
                continue
            np.testing.assert_array_equal(ask(narrow), expected)


@pytest.mark.parametrize("run", EXAMPLES, ids=lambda run: type(run).__name__)
@pytest.mark.at_length(every=3)
def test_a_user_of_one_record_is_that_record(run):
    deltas = np.array([1e-7, 1e-4])
    for adjacency in acc.Adjacency:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a δ that noise in a ball cannot keep
                found = acc.epsilon(run, deltas, adjacency=adjacency)
                own = acc.epsilon(acc.UserLevel(run, 1), deltas, adjacency=adjacency)
                one = acc.epsilon(acc.UserLevel(run, 1), 1e-4, adjacency=adjacency)
                np.testing.assert_array_equal(own, found)
                assert one == acc.epsilon(run, 1e-4, adjacency=adjacency)
        except acc.UnsupportedQuery:
            continue


# At 0 or 1 a setting is another run: no noise, a user of one record.
_TWO_KINDS = {
    "noise": lambda x: dpsgd(x - 1, 1e-3, 3),
    "noise, truncated": lambda x: acc.TruncatedPoissonSampled(acc.Gaussian(x - 1), 0.01, 9, 2),
    "records": lambda x: acc.UserLevel(acc.PoissonSampled(acc.Gaussian(2.0), 0.1), x),
    "records, charged": lambda x: acc.UserLevel(acc.BestOf(acc.Gaussian(4.0), 3.0), x),
    "records, closed form": lambda x: acc.UserLevel(acc.Gaussian(2.0), x),
}


@pytest.mark.at_length(every=2)
@pytest.mark.parametrize("kind", _TWO_KINDS)
def test_a_sweep_over_runs_of_two_kinds_is_its_settings(kind):
    run, values = _TWO_KINDS[kind], [2.0, 1.0, 1.0]
    questions = [
        (0, lambda one: acc.epsilon(one, 0.3)),
        (0, lambda one: acc.delta(one, epsilon=0.5)),
        (0, lambda one: acc.rdp(one, [2.0, 3.0])),
        (0, lambda one: acc.epsilon(one, 0.3, method="group")),
    ]
    if kind == "records, closed form":
        questions += [
            (0, lambda one: acc.tradeoff(one, [0.05, 0.3])),
            (-1, lambda one: acc.epsilon_interval(one, [[1e-3], [1e-5]])),
            (0, lambda one: acc.price(one, delta=1e-3)[0]),
        ]
    for axis, ask in questions:
        try:
            together = np.asarray(ask(run(np.array(values))))
        except acc.UnsupportedQuery:
            with pytest.raises(acc.UnsupportedQuery):
                ask(run(2.0))
            continue
        single = {value: np.asarray(ask(run(value))) for value in set(values)}
        join = np.concatenate if axis else np.stack
        np.testing.assert_array_equal(together, join([single[v] for v in values], axis))
    with pytest.raises(ValueError, match="delta must be"):
        acc.epsilon(run(np.array(values)), 2.0)


def test_a_traced_noise_of_zero_is_priced_from_above():
    """All is told, or nothing: by the method that says so, which a program asks on the host."""
    truth = -np.expm1(3 * np.log1p(-1e-3))
    found = jax.jit(lambda sigma: acc.delta(dpsgd(sigma, 1e-3, 3), 1.0))(0.0)
    assert truth <= float(found) <= truth * (1 + 1e-6)
    by_contour = jax.jit(lambda sigma: acc.delta(dpsgd(sigma, 1e-3, 3), 1.0, method="contour"))
    assert by_contour(0.0) == 1  # a trace cannot tell it from other noise
