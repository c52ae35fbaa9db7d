"""Derivatives of the contour's ε against differences of its own concrete answers."""

from __future__ import annotations

import os

import jax
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax._numerics.scope import enable_x64

# DPJAX_SETTINGS=200 asks for more: three minutes of processor time. One of them is off by 4e-5:
# σ = .6097, q = 1.683e-3, T = 11, δ = 2.326e-7, replace-one, by σ.
COUNT = int(os.environ.get("DPJAX_SETTINGS", "40"))


def _run(sigma, rate, steps):
    return acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), steps)


def _settings(count: int, seed: int = 5) -> np.ndarray:
    """σ, rate, steps, δ of ordinary training runs."""
    rng = np.random.default_rng(seed)
    columns = (
        10 ** rng.uniform(np.log10(0.6), 1, count),
        10 ** rng.uniform(-3, np.log10(0.5), count),
        np.round(10 ** rng.uniform(0.7, 4, count)),
        10 ** rng.uniform(-9, -3, count),
    )
    return np.stack(columns, axis=-1)


def _price(adjacency):
    def price(sigma, rate, steps, delta):
        run = _run(sigma, rate, steps)
        return acc.epsilon(run, delta, adjacency=adjacency, method="contour")

    return price


def _differences(price, points: np.ndarray) -> np.ndarray:
    """∂ε/∂(σ, rate, δ) by central differences, extrapolated from two steps; one sweep."""
    found = []
    for size in (4e-3, 2e-3):
        columns = []
        for i in (0, 1, 3):
            up, down = points.copy(), points.copy()
            up[:, i] *= 1 + size
            down[:, i] *= 1 - size
            ends = price(*np.concatenate([up, down]).T).reshape(2, -1)
            ends = np.where(np.isfinite(ends), ends, np.nan)
            columns.append((ends[0] - ends[1]) / (2 * size * points[:, i]))
        found.append(np.stack(columns, axis=-1))
    return (4 * found[1] - found[0]) / 3


@pytest.mark.parametrize("adjacency", list(acc.Adjacency))
def test_slopes_are_those_of_the_concrete_answers(adjacency):
    price, points = _price(adjacency), _settings(COUNT)
    values = price(*points.T)
    wanted = _differences(price, points)
    gradient = jax.jit(jax.vmap(jax.value_and_grad(price, argnums=(0, 1, 3))))
    with enable_x64():
        found, slopes = gradient(*points.T)
        slopes = np.stack([np.asarray(v) for v in slopes], axis=-1)
    np.testing.assert_array_equal(np.asarray(found), values)
    known = np.isfinite(values) & np.isfinite(wanted).all(axis=1) & (values > 0)
    assert np.isfinite(slopes[np.isfinite(values)]).all()
    assert known.mean() >= 0.95  # the others are left to loss distributions
    assert np.isfinite(slopes[known]).all()
    np.testing.assert_allclose(slopes[known], wanted[known], rtol=1e-5)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(
    ("point", "slopes"),
    [
        # once −0.1027 in a float32 program; by differences of mpmath's ε
        ((0.8, 0.03, 50.0, 1e-6), (-11.592841, 84.9776)),
        # once not a number
        ((7.74064616, 0.0181725633, 7.0, 1.09174414e-4), (-0.00191028, 0.774356552)),
    ],
)
def test_both_widths_differentiate_the_same_function(wide, point, slopes):
    price = jax.jit(jax.value_and_grad(_price(acc.Adjacency.ADD_REMOVE), argnums=(0, 1)))
    if wide:
        with enable_x64():
            value, found = price(*point)
    else:
        # A float32 program asks about the numbers that it can hold.
        value, found = price(*point)
        point = [float(np.float32(v)) for v in point]
    assert float(value) >= _price(acc.Adjacency.ADD_REMOVE)(*point)
    np.testing.assert_allclose([float(v) for v in found], slopes, rtol=2e-6)


def test_fixed_batches_and_a_plain_release():
    def price(sigma, other):
        batch = acc.FixedBatchSampled(acc.Gaussian(sigma), 64, 1_000)
        run = acc.Composed((acc.Repeated(batch, 100), acc.Gaussian(other)))
        return acc.epsilon(run, 1e-6, adjacency=acc.Adjacency.REPLACE_ONE, method="contour")

    found = jax.grad(price, argnums=(0, 1))(4.0, 9.0)
    h = 2e-3
    wanted = (
        (price(4.0 + h, 9.0) - price(4.0 - h, 9.0)) / (2 * h),
        (price(4.0, 9.0 + h) - price(4.0, 9.0 - h)) / (2 * h),
    )
    np.testing.assert_allclose([float(v) for v in found], wanted, rtol=1e-5)


def test_twice_is_refused():
    price = _price(acc.Adjacency.ADD_REMOVE)
    with pytest.raises(NotImplementedError, match="once"):
        jax.grad(jax.grad(lambda sigma: price(sigma, 0.01, 100.0, 1e-5)))(1.0)
