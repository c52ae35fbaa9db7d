"""Logistic noise against integrals of its densities."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from dpjax import accounting as acc


def density(y):
    return 1 / (4 * mpmath.cosh(y / 2) ** 2)


def profile(theta, epsilon, rate=1):
    """∫ (p − e^ε q)₊ from where the two cross, p mixed with q at a sampling rate."""

    def excess(y):
        p, q = density(y - theta), density(y)
        return rate * p + (1 - rate) * q - mpmath.exp(epsilon) * q

    low, high = mpmath.mpf(-200), mpmath.mpf(200)
    for _ in range(120):  # p/q grows with y
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    return mpmath.quad(excess, [high, high + 1, high + 10, high + 60, 300])


@pytest.mark.parametrize(
    ("noise", "epsilon", "adjacency"),
    [
        (0.25, 1.0, "add-remove"),
        (1.0, 0.0, "add-remove"),
        (1.0, 0.5, "add-remove"),
        (2.0, 0.3, "replace-one"),
        (20.0, 0.01, "add-remove"),
    ],
)
def test_price_is_the_integral_of_the_densities(noise, epsilon, adjacency):
    theta = (2 if adjacency == "replace-one" else 1) / mpmath.mpf(noise)
    true = float(profile(theta, epsilon))
    run = acc.Logistic(noise)
    found = acc.delta(run, epsilon=epsilon, adjacency=adjacency)
    assert found == pytest.approx(true, rel=1e-9)
    assert acc.epsilon(run, true, adjacency=adjacency) == pytest.approx(epsilon, abs=1e-9)


def test_samples_are_priced_from_both_sides():
    run = acc.PoissonSampled(acc.Logistic(1.0), 0.1)
    true = float(profile(mpmath.mpf(1), 0.05, mpmath.mpf("0.1")))
    low, high = acc.epsilon_interval(run, delta=true)
    assert low <= 0.05 <= high
    assert high - low < 1e-3 * 0.05


def test_two_uses_are_priced_from_both_sides():
    # On a square of outcomes, by the middles of cells of equal mass under the second distribution.
    u = (np.arange(4000) + 0.5) / 4000
    y = np.log(u) - np.log1p(-u)
    loss = 2 * (np.logaddexp(y / 2, -y / 2) - np.logaddexp((y - 1) / 2, (1 - y) / 2))
    ratio = np.exp(loss)
    true = float(np.mean(np.maximum(ratio[:, None] * ratio - np.exp(0.7), 0.0)))
    low, high = acc.epsilon_interval(acc.Repeated(acc.Logistic(1.0), 2), delta=true)
    assert low <= 0.7 <= high
    assert high - low < 1e-3 * 0.7


@pytest.mark.parametrize(("noise", "order"), [(0.5, 3.0), (2.0, 1.5), (10.0, 20.0), (0.01, 5.0)])
def test_renyi_curve_is_the_integral(noise, order):
    theta = 1 / mpmath.mpf(noise)
    moment = mpmath.quad(
        lambda y: density(y - theta) ** order * density(y) ** (1 - order),
        [-80, -8, 0, 8, theta + 8, theta + 80],
    )
    true = float(mpmath.log(moment) / (order - 1))
    found = float(acc.rdp(acc.Logistic(noise), [order])[0])
    assert true <= found <= true * (1 + 2e-9)  # an answer is raised by 1e-9 of itself
