"""Contours of sampled runs within a program that is exported: a minute of compilation each."""

import jax
import jax.numpy as jnp
import pytest

from dpjax import accounting as acc
from dpjax._numerics import scope
from dpjax.accounting.contour import method as contour
from tests.accounting.test_exported import NUMBER, export_everywhere, is_plain, sampled_run

REPLACE = acc.Adjacency.REPLACE_ONE


def test_a_sampled_run_is_exported_with_its_derivative():
    # "best": what cannot be traced is not asked where another method answers.
    assert is_plain(
        export_everywhere(jax.value_and_grad(lambda s: acc.epsilon(sampled_run(s), 1e-5)))
    )


_MORE = {
    "sweep": (jax.vmap(lambda s: acc.delta(sampled_run(s), 1.0)), (3,)),
    "replace": (lambda s: acc.epsilon(sampled_run(s), 1e-5, adjacency=REPLACE), ()),
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
    assert is_plain(export_everywhere(function, jax.ShapeDtypeStruct(shape, jnp.float32)))


def test_an_exported_contour_says_what_numpy_says(monkeypatch):
    monkeypatch.setattr(contour, "_LEVELS", (0,))  # four times less to compile
    price = lambda s: acc.epsilon(sampled_run(s), 1e-5, method="contour")  # noqa: E731
    exported = export_everywhere(jax.value_and_grad(price))
    run = scope.compile_for_host(jax.jit(exported.call).lower(NUMBER))
    for sigma in (0.75, 1.5):
        value, slope = run(jnp.float32(sigma))
        assert price(sigma) <= float(value) <= price(sigma) * (1 + 1.3e-7)
        difference = (price(sigma + 1e-5) - price(sigma - 1e-5)) / 2e-5
        assert float(slope) == pytest.approx(difference, rel=1e-5)
