"""log(1 + x) and erf(x) against 50 digits, on all sides of where they change their form."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dpjax._numerics.arrays import JAX
from dpjax._numerics.scope import enable_x64

log1p, erf = JAX.log1p, JAX.erf

EPS = float(np.finfo(np.float64).eps)


def _units(found, x, function=mpmath.log1p):
    """Error in units of the last place of the true value, at most."""
    with mpmath.workdps(50):
        exact = [function(mpmath.mpf(float(v))) for v in x]
        errors = [
            abs((mpmath.mpf(float(f)) - e) / e) / EPS for f, e in zip(found, exact, strict=True)
        ]
    return float(max(errors))


@pytest.mark.parametrize(
    ("low", "high"),
    [(-0.999, -0.5), (-0.5, -0.4143), (-0.4143, -0.29), (-0.29, -0.25), (-0.25, 1.0), (1.0, 1e9)],
)
def test_to_four_units_in_the_last_place(low, high):
    x = np.random.default_rng(0).uniform(low, high, 1_000)
    with enable_x64(True):
        assert _units(np.asarray(jax.jit(log1p)(x)), x) < 4


def test_tiny_arguments_and_ends():
    x = np.array([-1e-300, 1e-17, -3e-9, 1e-5, -0.25, -0.5])
    with enable_x64(True):
        assert _units(np.asarray(jax.jit(log1p)(x)), x) < 4
        ends = np.asarray(log1p(np.array([-1.0, np.inf, 0.0, np.nan, -2.0])))
    np.testing.assert_array_equal(ends, [-np.inf, np.inf, 0.0, np.nan, np.nan])


def test_derivative():
    with enable_x64(True):
        for x in (-0.9, -0.4, -0.3, -0.1, 2.0):
            np.testing.assert_allclose(jax.grad(log1p)(x), 1 / (1 + x), rtol=1e-14)
        assert jnp.isfinite(jax.grad(log1p)(-0.5))


@pytest.mark.parametrize(("low", "high"), [(1e-300, 1e-9), (1e-9, 0.5), (0.49, 0.51), (0.5, 7.0)])
def test_erf_to_four_units_in_the_last_place(low, high):
    x = np.exp(np.random.default_rng(0).uniform(np.log(low), np.log(high), 500))
    with enable_x64(True):
        for sign in (1, -1):
            assert _units(np.asarray(jax.jit(erf)(sign * x)), sign * x, mpmath.erf) < 4
        ends = np.asarray(erf(np.array([0.0, np.inf, -np.inf, np.nan])))
        for v in (0.0, 0.3, 0.5, -0.5, 2.0):
            slope = 2 / np.sqrt(np.pi) * np.exp(-(v**2))
            np.testing.assert_allclose(jax.grad(erf)(v), slope, rtol=1e-13)
    np.testing.assert_array_equal(ends, [0.0, 1.0, -1.0, np.nan])
