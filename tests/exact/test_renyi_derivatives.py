"""ε by the Rényi method: the least over all orders, smooth, and with the right derivatives."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax._numerics.scope import enable_x64

ADJACENCIES = list(acc.Adjacency)
SETTINGS = 200


def price(sigma, rate, delta, steps, adjacency):
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), steps)
    return acc.epsilon(run, delta, adjacency=adjacency, method="rdp")


@functools.cache
def settings():
    """Random settings, exact in float32, that leave an ε above 1e-3."""
    rng = np.random.default_rng(21)
    rows = []
    while len(rows) < SETTINGS:
        sigma, rate = 10 ** rng.uniform(-0.4, 1.2), 10 ** rng.uniform(-4, -0.02)
        delta, steps = 10 ** rng.uniform(-10, -2.5), np.floor(10 ** rng.uniform(0, 4))
        row = [float(np.float32(v)) for v in (sigma, rate, delta, steps)]
        if price(*row, acc.Adjacency.ADD_REMOVE) > 1e-3:
            rows.append(row)
    return np.array(rows).T


@functools.cache
def differences(adjacency):
    """∂ε by σ, q and δ from four points each, whose own error is of the fourth order."""
    points, found = settings(), np.empty((3, SETTINGS))
    for k in range(3):
        h = 1e-4 * points[k]  # the best order may move fast
        moved = np.repeat(points[:, None], 4, axis=1)
        moved[k] += np.outer((-2, -1, 1, 2), h)
        at = price(*moved, adjacency)
        found[k] = (8 * (at[2] - at[1]) - (at[3] - at[0])) / (12 * h)
    return found


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_derivatives_against_differences(adjacency, wide):
    """200 settings, under jit and vmap, in float64 and in float32 programs."""
    gradient = jax.vmap(
        jax.value_and_grad(functools.partial(price, adjacency=adjacency), (0, 1, 2))
    )
    sigma, rate, delta, steps = settings()
    if wide:
        with enable_x64():
            value, parts = jax.tree.map(np.asarray, jax.jit(gradient)(sigma, rate, delta, steps))
    else:
        columns = (v.astype(np.float32) for v in (sigma, rate, delta, steps))
        value, parts = jax.tree.map(np.asarray, jax.jit(gradient)(*columns))
    exact = np.array([price(*row, adjacency) for row in settings().T])
    np.testing.assert_allclose(value, exact, rtol=1e-12 if wide else 3e-7)
    np.testing.assert_allclose(parts, differences(adjacency), rtol=1e-5)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_never_above_a_fine_grid_of_orders(adjacency):
    """ε is at most the least over three ever finer grids of orders, and close to it."""
    for sigma, rate, delta, steps in settings().T[:25]:
        run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), rate), steps)
        found = acc.epsilon(run, delta, adjacency=adjacency, method="rdp")
        low, high = -6.0, 12.0
        for _ in range(3):
            grid = np.linspace(low, high, 120)
            orders = 1 + np.exp(grid)
            curve = acc.rdp(run, orders, adjacency=adjacency)
            values = acc.rdp_to_epsilon(orders, curve, delta)
            assert found <= np.min(values) * (1 + 1e-11)
            best = int(np.argmin(values))
            low, high = grid[max(best - 2, 0)], grid[min(best + 2, 119)]
        assert found >= np.min(values) * (1 - 1e-4)  # what the curve itself is rounded up by


def test_smooth_in_the_noise():
    """Second differences over 60 neighbouring σ are those of a smooth function."""
    sigma = 1.0 + 1e-3 * np.arange(60)
    run = acc.Repeated(acc.PoissonSampled(acc.Gaussian(sigma), 0.01), 1_000)
    values = acc.epsilon(run, 1e-5, method="rdp")
    third = np.diff(values, 3)
    assert np.max(np.abs(third)) < 5e-7 * np.max(values)
    assert np.all(np.diff(values) < 0)
    assert np.all(np.diff(values, 2) > 0)
