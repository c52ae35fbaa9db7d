"""Queries within a program that is exported: plain operations, and the answers of NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from dpjax import accounting as acc
from dpjax._numerics import scope
from dpjax.accounting.method import Method, best_bound

REPLACE = acc.Adjacency.REPLACE_ONE
NUMBER = jax.ShapeDtypeStruct((), jnp.float32)


def export_everywhere(function, spec=NUMBER):
    return export.export(jax.jit(function), platforms=("cpu", "cuda", "tpu"))(spec)


def is_plain(exported):
    text = exported.mlir_module()
    assert "f64" in text  # in a float32 program
    return not any(word in text for word in ("callback", "complex", "custom_call"))


def sampled_run(sigma, steps=1_000):
    return acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), 0.01), steps)


def _descent(sigma):
    return acc.NoisyGradientDescent(100, 0.1, 0.01, sigma, 0.5, 1.0)


def _drawn(sigma):
    return acc.RandomizedSensitivity(np.array([0.1, 0.2]), np.array([0.5, 0.5]), sigma)


_QUICK = {
    "Gaussian": (lambda s: acc.epsilon(acc.Repeated(acc.Gaussian(s), 100), 1e-5), 8.0),
    "Gaussian, delta": (lambda s: acc.delta(acc.Repeated(acc.Gaussian(s), 100), 1.0), 20.0),
    "last iterate": (lambda s: acc.epsilon(_descent(s), 1e-5, adjacency=REPLACE), 0.1),
    "randomized sensitivity": (
        lambda s: acc.epsilon(_drawn(s), 1e-5, adjacency=REPLACE, method="hockey_stick"),
        0.2,
    ),
    "Renyi": (lambda s: acc.epsilon(sampled_run(s), 1e-5, method="rdp"), 1.1),
}


@pytest.mark.parametrize("name", _QUICK)
@pytest.mark.at_length(every=3)
def test_a_query_runs_as_plain_operations_and_says_what_numpy_says(name):
    price, at = _QUICK[name]
    at, step = float(np.float32(at)), 1e-4

    def both(sigma):  # derivatives, and a sweep inside
        return (*jax.value_and_grad(price)(sigma), jax.vmap(price)(sigma * jnp.array([1.0, 1.25])))

    exported = export_everywhere(both)
    assert is_plain(exported)
    run = scope.compile_for_host(jax.jit(exported.call).lower(NUMBER))
    value, slope, swept = map(np.asarray, run(jnp.float32(at)))
    want = np.array([price(at), price(float(np.float32(at) * np.float32(1.25)))])
    found = np.append(value, swept[1]).astype(np.float64)
    assert np.all(found >= want)  # rounded up, by a unit of float32 at most
    assert np.all(found <= want * (1 + 1.3e-7))
    assert swept[0] == value
    difference = (price(at * (1 + step)) - price(at * (1 - step))) / (2 * step * at)
    assert slope == pytest.approx(difference, rel=1e-5)


def test_a_float64_program_has_the_answer_to_nine_digits():
    with scope.enable_x64():
        number = jax.ShapeDtypeStruct((), np.float64)
        price = lambda s: acc.epsilon(acc.Repeated(acc.Gaussian(s), 100), 1e-5)  # noqa: E731
        exported = export.export(jax.jit(price))(number)
        assert "callback" not in exported.mlir_module()
        for sigma in (0.3, 3.0, 300.0):
            assert float(exported.call(sigma)) == pytest.approx(price(sigma), rel=1e-9)


def test_a_gpu_runs_the_operations_and_a_cpu_calls_numpy():
    price = jax.jit(lambda s: acc.epsilon(acc.Gaussian(s), 1e-5)).trace(NUMBER)
    assert "callback" not in price.lower(lowering_platforms=("cuda",)).as_text()
    assert "callback" in price.lower(lowering_platforms=("cpu",)).as_text()
    with pytest.raises(ValueError, match="platform"):  # of a TPU, which this machine has not
        price.lower(lowering_platforms=("tpu",))


def test_what_has_no_operations_is_not_exported_silently():
    price = lambda s: acc.epsilon(acc.RandomAllocation(acc.Gaussian(s), 4), 1e-5)  # noqa: E731
    assert jax.jit(price)(2.0) == pytest.approx(price(2.0), rel=1e-6)
    with pytest.raises(NotImplementedError, match="callback"):
        export_everywhere(price)


def test_after_a_complete_method_none_is_asked_under_a_trace():
    def never(run, given, adjacency):
        raise AssertionError

    run = acc.Gaussian(1.0)
    first = Method("first", 1.0, lambda run, adjacency: True, lambda run, delta, _: 2 * delta)
    second = Method("second", 2.0, lambda run, adjacency: True, never)

    def ask(methods):
        return jax.jit(
            lambda d: best_bound("epsilon", methods, run, d, acc.Adjacency.ADD_REMOVE)[0]
        )

    assert ask((first._replace(complete=True), second))(0.25) == 0.5
    with pytest.raises(AssertionError):
        ask((first, second))(0.25)
