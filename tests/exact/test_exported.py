"""Contours of sampled runs within a program that is exported: a minute of compilation each."""

import jax
import jax.numpy as jnp
import pytest
from jax import export

from dpjax import accounting as acc
from dpjax._numerics import scope
from dpjax.accounting.contour import method as contour

REPLACE = acc.Adjacency.REPLACE_ONE
_NUMBER = jax.ShapeDtypeStruct((), jnp.float32)


def _exported(function, spec=_NUMBER):
    return export.export(jax.jit(function), platforms=("cpu", "cuda", "tpu"))(spec)


def _is_plain(exported):
    text = exported.mlir_module()
    assert "f64" in text  # in a float32 program
    return not any(word in text for word in ("callback", "complex", "custom_call"))


def _sampled(sigma, steps=1_000):
    return acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), 0.01), steps)


def test_a_sampled_run_is_exported_with_its_derivative():
    # "best": what cannot be traced is not asked where another method answers.
    assert _is_plain(_exported(jax.value_and_grad(lambda s: acc.epsilon(_sampled(s), 1e-5))))


_MORE = {
    "sweep": (jax.vmap(lambda s: acc.delta(_sampled(s), 1.0)), (3,)),
    "replace": (lambda s: acc.epsilon(_sampled(s), 1e-5, adjacency=REPLACE), ()),
    "fixed batch": (
        lambda s: acc.epsilon(
            acc.Repeated(acc.FixedBatchSampled(acc.Gaussian(s), 10, 1_000), 100),
            1e-5,
            adjacency=REPLACE,
        ),
        (),
    ),
    "mixed": (
        lambda s: acc.epsilon(
            acc.Composed((acc.Gaussian(9.0), acc.PoissonSampled(acc.Gaussian(s), 0.1))), 1e-5
        ),
        (),
    ),
}


@pytest.mark.parametrize("name", _MORE)
def test_every_sampled_run_is_exported(name, monkeypatch):
    monkeypatch.setattr(contour, "_LEVELS", (0, None))  # finer lines are the same operations
    function, shape = _MORE[name]
    assert _is_plain(_exported(function, jax.ShapeDtypeStruct(shape, jnp.float32)))


def test_an_exported_contour_says_what_numpy_says(monkeypatch):
    monkeypatch.setattr(contour, "_LEVELS", (0,))  # four times less to compile
    price = lambda s: acc.epsilon(_sampled(s), 1e-5, method="contour")  # noqa: E731
    exported = _exported(jax.value_and_grad(price))
    run = scope.compile_for_host(jax.jit(exported.call).lower(_NUMBER))
    for sigma in (0.75, 1.5):
        value, slope = run(jnp.float32(sigma))
        assert price(sigma) <= float(value) <= price(sigma) * (1 + 1.3e-7)
        difference = (price(sigma + 1e-5) - price(sigma - 1e-5)) / 2e-5
        assert float(slope) == pytest.approx(difference, rel=1e-5)
