"""Dominating pairs against mpmath: moments, cut tails, quadrature and decay bounds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dpjax._numerics.float64 import float64_scope
from dpjax._numerics.quadrature import gauss_legendre
from dpjax.accounting.contour import half, line, saddle
from dpjax.accounting.contour import tilt as tilts
from dpjax.accounting.pairs import on_grid as ratio
from dpjax.accounting.pairs.atoms import PAIRS

# NumPy is told not to warn where the accountant asks, too.
pytestmark = pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")

# family, sign, mu, rate, c
CASES = [
    ("poisson", 1, 1.0, 0.01, 5.0),
    ("poisson", -1, 1.0, 0.01, 5.0),
    ("poisson", 1, 5.0, 1e-3, 0.7),
    ("poisson", -1, 0.25, 0.9, 12.0),
    ("poisson", 1, 1.0, 1.0, 2.0),
    ("replace", 1, 1.0, 0.01, 5.0),
    ("replace", 1, 0.5, 1.0, 3.0),
    ("symmetrised", 1, 2.0, 0.01, 3.0),
]


def _transform(family, sign, mu, rate, z):
    """E_P[e^{zL}] by 30-digit quadrature of the definition."""
    mu, rate = mpmath.mpf(mu), mpmath.mpf(rate)
    r = lambda y: 1 - rate + rate * mpmath.exp(mu * y - mu**2 / 2)  # noqa: E731
    g = lambda y: mpmath.exp(-(y**2) / 2) / mpmath.sqrt(2 * mpmath.pi)  # noqa: E731
    ends = list(range(-16, 41, 4))
    if family == "poisson" and sign > 0:
        return mpmath.quad(lambda y: g(y) * r(y) ** (z + 1), ends)
    if family == "poisson":
        return mpmath.quad(lambda y: g(y) * r(y) ** (-z), ends)
    if family == "replace":
        return mpmath.quad(lambda y: g(y) * r(y) ** (z + 1) * r(-y) ** (-z), ends)
    half = [mu / 2 + x for x in range(0, 41, 4)]
    body = mpmath.quad(lambda y: g(y) * (r(y) ** (z + 1) + r(y) ** (-z)), half)
    return body + (1 - rate) * (2 * mpmath.ncdf(mu / 2) - 1)


def _pair(family, sign, mu, rate):
    pair = PAIRS[family].table(np.float64(mu), np.float64(rate))
    return pair if sign > 0 else pair.reversed()


@pytest.mark.parametrize(("family", "sign", "mu", "rate", "c"), CASES)
@pytest.mark.parametrize("nodes", [256, 1024])
@pytest.mark.at_length(every=3)
def test_transform_and_decay_are_within_their_bounds(family, sign, mu, rate, c, nodes):
    ts = np.array([0.0, 3.0, 17.0])
    step = half.tilt(_pair(family, sign, mu, rate), np.float64(c), nodes)
    bound = np.exp(np.min(tilts.quadrature_error(step, ts), axis=0))
    whole, by_loss = step.rounding  # of e^K, and of the weights times the losses they turn
    bound = bound + step.constant + ts * step.per_t + whole + np.minimum(2 * whole, ts * by_loss)
    rho = [1.0, *tilts.decay(step, ts[1:], bound[0])]
    for k, t in enumerate(ts):
        with mpmath.workdps(30):
            exact = _transform(family, sign, mu, rate, mpmath.mpc(c, t))
            exact = complex(exact * mpmath.exp(-mpmath.mpf(float(step.moment))))
        rounding = 1e-15 + 32 * np.finfo(float).eps * min(float(step.spread) * t, 2.0)
        found = np.sum(step.weight * np.exp(1j * t * step.loss))
        assert abs(found - exact) <= bound[k] + rounding
        assert abs(exact) <= rho[k] + bound[0]
    assert nodes == 256 or (bound[0] < 1e-12 and rho[2] < 1)


@pytest.mark.parametrize("rate", [1e-9, 1e-6])
def test_tiny_moments_keep_their_digits(rate):
    """K(1) of "remove" is log(1 + q²(e^{μ²} − 1)): far below the unit roundoff, yet known."""
    weight = np.float64(rate)
    step = tilts.tilt_line(PAIRS["poisson"].table(np.float64(1.0), weight), np.float64(1.0), 256)
    truth = np.log1p(rate**2 * np.expm1(1.0))
    assert abs(step.moment - truth) <= step.constant + step.rounding[0]


def test_log_ratio_is_monotone_and_keeps_small_values():
    with float64_scope():
        y = jnp.linspace(-30.0, 300.0, 2_000)
        for mu in (0.01, 1.0, 5.0):
            for rate in (1e-9, 0.3, 1.0):
                value = np.asarray(ratio.log_ratio(y, jnp.asarray(mu), jnp.asarray(rate)))
                assert np.all(np.isfinite(value))
                assert np.all(np.diff(value) >= 0)
        tiny = ratio.log_ratio(jnp.asarray(1.0), jnp.asarray(1.0), jnp.asarray(1e-9))
        assert float(tiny) == pytest.approx(1e-9 * np.expm1(0.5), rel=1e-9)


def test_slope_of_the_loss_is_the_posterior():
    with float64_scope():
        y, mu, rate = jnp.asarray(1.7), jnp.asarray(0.8), jnp.asarray(0.05)
        slope = jax.grad(ratio.log_ratio)(y, mu, rate)
        odds = rate * jnp.exp(mu * y - 0.5 * mu * mu)  # of having taken part, over 1 − q
        assert float(slope) == pytest.approx(float(mu * odds / (1 - rate + odds)), rel=1e-12)


@pytest.mark.parametrize(("family", "sign", "mu", "rate", "c"), CASES)
def test_a_coarse_look_sees_the_same_moments(family, sign, mu, rate, c):
    at = np.array([0.1, c, 15.0])
    found, mean, variance = saddle._look_at(_pair(family, sign, mu, rate), at)
    for k, one in enumerate(at):
        exact = half.tilt(_pair(family, sign, mu, rate), one, 1024)
        mass, loss = exact.weight, exact.loss
        np.testing.assert_allclose(found[k], exact.moment, rtol=1e-6, atol=1e-13)
        np.testing.assert_allclose(mean[k], mass @ loss, rtol=1e-6, atol=1e-13)
        spread = mass @ (loss - mass @ loss) ** 2
        np.testing.assert_allclose(variance[k], spread, rtol=1e-6)


@pytest.mark.parametrize("n", [8, half.PANEL, 48, 96])
def test_weights_and_places_of_the_rule_are_off_by_what_is_charged(n):
    eps = np.finfo(float).eps
    with mpmath.workdps(40):
        for x, weight in zip(*gauss_legendre(n), strict=True):
            root = mpmath.findroot(lambda t: mpmath.legendre(n, t), mpmath.mpf(float(x)))
            slope = n * mpmath.legendre(n - 1, root) / (1 - root**2)
            exact = 2 / ((1 - root**2) * slope**2)
            assert abs(x - root) <= half.PLACE_UNITS * eps
            assert abs(weight - exact) <= half.WEIGHT_UNITS * eps * exact


@pytest.mark.parametrize(("blocks", "nodes"), [(16, 128), (20, 224), (33, 300), (32, 1025)])
def test_sums_on_the_line_are_exact_to_their_claimed_rounding(blocks, nodes):
    generator = np.random.default_rng(blocks)
    loss = generator.normal(size=nodes) * np.exp(3 * generator.normal(size=nodes) - 6)
    weight = generator.random(nodes)
    weight /= weight.sum()
    t = 0.7 * np.arange(blocks * blocks)
    angle = t[:, None].astype(np.longdouble) * loss
    exact = -2 * np.sin(0.5 * angle) ** 2 @ weight, np.sin(angle) @ weight
    way = t * (weight @ np.abs(loss))
    allowed = np.finfo(float).eps * ((2.5 * nodes + 40) * np.minimum(way, 4.0) + 8 * way + 8)
    with float64_scope():
        compiled = line.transform(jnp.asarray(loss), jnp.asarray(weight), 0.7, blocks)
    for found in (compiled, line.transform(loss, weight, 0.7, blocks)):
        for one, other in zip(found, exact, strict=True):
            assert np.all(np.abs(np.asarray(one) - other) <= allowed)
