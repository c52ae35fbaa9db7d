"""Derivatives of the contour's ε against differences of its own concrete answers."""

from __future__ import annotations

import os

import jax
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from dpjax import accounting as acc
from dpjax._numerics.scope import enable_x64

# DPJAX_SETTINGS=200 asks for more: three minutes of processor time.
COUNT = int(os.environ.get("DPJAX_SETTINGS", "40"))
# Ends further apart than this, relative, may each have a slope of its own: differences of the upper
# end say nothing of the truth's. `test_where_ends_lie_apart_…` asks at the one of 200 with such.
APART = 1e-6


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
    lower, _ = acc.epsilon_interval(_run(*points.T[:3]), points.T[3], adjacency=adjacency)
    known &= values - lower <= APART * values
    assert np.isfinite(slopes[np.isfinite(values)]).all()
    assert known.mean() >= 0.95  # the others are left to loss distributions
    assert np.isfinite(slopes[known]).all()
    np.testing.assert_allclose(slopes[known], wanted[known], rtol=1e-5)


def _replaced_epsilon(sigma: float, rate: float, steps: int, delta: float) -> float:
    """ε of the antipodal pair: its losses on a grid, convolved by FFT, nothing of them bounded."""
    width, reach, tilt, mu = 2e-4, 24.0, 3.0, 1 / sigma
    count = int(reach / width)
    loss = np.arange(-count, count + 1) * width
    edges = (np.arange(-count, count + 2) - 0.5) * width
    # With u = e^{μy} and k = qe^{−μ²/2} the loss is log((1 − q + ku)/(1 − q + k/u)): a quadratic.
    k, size = rate * np.exp(-0.5 * mu * mu), np.abs(edges)
    b = -(1 - rate) * np.expm1(-size)
    log_u = np.log((b + np.sqrt(b * b + 4 * k * k * np.exp(-size))) / (2 * k)) + size
    y = np.sign(edges) * log_u / mu
    above = (1 - rate) * ndtr(-y) + rate * ndtr(mu - y)
    below = (1 - rate) * ndtr(y) + rate * ndtr(y - mu)
    mass = np.where(edges[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])
    mass = mass * np.exp(tilt * loss)
    total = mass.sum()
    circle = np.zeros(4 * count + 4)
    circle[: count + 1], circle[-count:] = mass[count:] / total, mass[:count] / total
    many = np.fft.irfft(np.fft.rfft(circle) ** steps, len(circle))[: 2 * count]
    loss = np.arange(2 * count) * width
    many = many * np.exp(steps * np.log(total) - tilt * loss)

    def short(epsilon: float) -> float:
        return -many @ np.expm1(np.minimum(epsilon - loss, 0.0)) - delta

    return brentq(short, 0.0, 20.0, xtol=1e-14, rtol=1e-14)


def test_where_ends_lie_apart_the_slope_is_still_the_truths():
    point = (0.6097211968127811, 0.0016828432495652591, 11, 2.3262916785886137e-7)
    price = _price(acc.Adjacency.REPLACE_ONE)
    with enable_x64():
        value, slopes = jax.jit(jax.value_and_grad(price, argnums=(0, 1)))(*map(float, point))
        value, slopes = float(value), [float(v) for v in slopes]
    lower, _ = acc.epsilon_interval(_run(*point[:3]), point[3], adjacency="replace-one")
    assert value - lower > APART * value
    assert lower <= _replaced_epsilon(*point) <= value
    for i, slope in enumerate(slopes):
        ends = []
        for size in (2e-3, 1e-3):
            up, down = ([*point[:i], point[i] * (1 + s), *point[i + 1 :]] for s in (size, -size))
            rise = _replaced_epsilon(*up) - _replaced_epsilon(*down)
            ends.append(rise / (2 * size * point[i]))
        np.testing.assert_allclose(slope, (4 * ends[1] - ends[0]) / 3, rtol=1e-5)


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
