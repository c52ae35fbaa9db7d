"""Dominating pairs against mpmath: moments, cut tails, quadrature and decay bounds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dpjax._numerics.float64 import float64_scope
from dpjax.accounting.contour import powers, saddle_point
from dpjax.accounting.pairs import errors as pair_errors
from dpjax.accounting.pairs import ratio
from dpjax.accounting.pairs.table import PAIRS

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


def _arguments(sign, mu, rate, c):
    return tuple(np.float64(v) for v in (sign, mu, rate, c))


@pytest.mark.parametrize(("family", "sign", "mu", "rate", "c"), CASES)
def test_moment_is_the_integral(family, sign, mu, rate, c):
    with mpmath.workdps(30):
        exact = float(mpmath.log(_transform(family, sign, mu, rate, mpmath.mpf(c))))
    with float64_scope():
        step = PAIRS[family].tilt(*_arguments(sign, mu, rate, c), 512)
        found, claimed = float(step.log_moment), float(step.moment_error)
    assert abs(found - exact) <= claimed + 1e-16
    assert claimed < 1e-13 * max(1.0, abs(exact) * 10)


@pytest.mark.parametrize("rate", [1e-9, 1e-6])
def test_tiny_moments_keep_their_digits(rate):
    """K(1) of "remove" is log(1 + q²(e^{μ²} − 1)): far below the unit roundoff, yet known."""
    with float64_scope():
        step = PAIRS["poisson"].tilt(*_arguments(1, 1.0, rate, 1.0), 256)
        found = float(step.log_moment)
    assert found == pytest.approx(np.log1p(rate**2 * np.expm1(1.0)), rel=1e-8)


@pytest.mark.parametrize(("family", "sign", "mu", "rate", "c"), CASES)
@pytest.mark.parametrize("t", [3.0, 17.0])
def test_transform_is_within_the_quadrature_bound(family, sign, mu, rate, c, t):
    with mpmath.workdps(30):
        at_c = _transform(family, sign, mu, rate, mpmath.mpf(c))
        exact = complex(_transform(family, sign, mu, rate, mpmath.mpc(c, t)) / at_c)
    with float64_scope():
        arguments = _arguments(sign, mu, rate, c)
        for nodes in (96, 512):
            step = PAIRS[family].tilt(*arguments, nodes)
            found = complex(
                np.sum(np.asarray(step.weight) * np.exp(1j * t * np.asarray(step.loss)))
            )
            at = np.array([0.0, 0.4 * t, t])
            bound = PAIRS[family].quadrature_error(*arguments, step, at, at)
            # at c the rule errs too, hence twice; and both sums are rounded
            rounding = 1e-14 + 32 * np.finfo(float).eps * min(float(step.spread) * t, 2.0)
            allowed = 2 * float(bound[2]) + 2 * float(step.truncated) + rounding
            assert abs(found - exact) <= allowed


@pytest.mark.parametrize(
    ("family", "sign", "mu", "rate", "c"),
    [*CASES, ("replace", 1, 0.35, 4.3e-6, 8.9), ("poisson", -1, 0.35, 4.3e-6, 8.9)],
)
@pytest.mark.parametrize("furthest", [50.0, 5e4])
def test_between_its_knots_the_quadrature_bound_is_no_less_than_at_them(
    family, sign, mu, rate, c, furthest
):
    with float64_scope():
        arguments = _arguments(sign, mu, rate, c)
        step = PAIRS[family].tilt(*arguments, 48)
        at = np.linspace(0.0, furthest, 9)
        between = PAIRS[family].quadrature_error(*arguments, step, at, at[[0, -1]])
        for t, bound in zip(at[1:], between[1:], strict=True):
            ends = np.array([0.0, t])
            itself = PAIRS[family].quadrature_error(*arguments, step, ends, ends)[1]
            assert bound >= itself * (1 - 1e-12)


@pytest.mark.parametrize(("family", "sign", "mu", "rate", "c"), CASES)
def test_the_quadrature_bound_of_many_points_is_no_less_than_that_of_each(
    family, sign, mu, rate, c
):
    with float64_scope():
        arguments = _arguments(sign, mu, rate, c)
        step = PAIRS[family].tilt(*arguments, 48)
        many, knots = 0.5 * np.arange(21.0 * 21.0), np.array([0.0, 30.0, 100.0, 220.0])
        found = PAIRS[family].quadrature_error(*arguments, step, many, knots)
        for k in (0, 1, 20, 21, 100, 217, 440):
            # Few points are not bounded by chords over several.
            few = np.array([0.0, many[k]])
            each = PAIRS[family].quadrature_error(*arguments, step, few, knots)[1]
            assert found[k] >= each * (1 - 1e-12)
            assert found[k] <= 30 * each


@pytest.mark.parametrize(("family", "sign", "mu", "rate", "c"), CASES)
def test_decay_bounds_the_transform(family, sign, mu, rate, c):
    t = np.array([0.5, 2.0, 8.0, 30.0])
    with float64_scope():
        arguments = _arguments(sign, mu, rate, c)
        step = PAIRS[family].tilt(*arguments, 4096)
        bound = np.asarray(PAIRS[family].decay(*arguments, step, t))
        weight, loss = np.asarray(step.weight), np.asarray(step.loss)
    beyond = np.concatenate([t, t * 1.3, t * 3.0])
    size = np.abs(np.exp(1j * beyond[:, None] * loss) @ weight)
    assert np.all(size <= np.exp(np.tile(bound, 3)) * (1 + 1e-10) + 1e-13)
    assert np.all(np.diff(bound) <= 1e-12)
    assert bound[-1] < 0  # it says something


def test_decay_is_exact_for_a_wide_gaussian():
    with float64_scope():
        arguments = _arguments(1, 0.1, 1.0, 20.0)
        step = PAIRS["poisson"].tilt(*arguments, 512)
        found = np.asarray(PAIRS["poisson"].decay(*arguments, step, np.array([10.0, 20.0])))
    np.testing.assert_allclose(found, [-0.5, -2.0], rtol=0.03)


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


@pytest.mark.parametrize("rate", [1e-12, 1e-4, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("mu", [0.01, 1.0, 4.0])
def test_the_cheap_ratio_of_searches_is_the_ratio(mu, rate):
    y = np.linspace(-20.0, 400.0, 2001)
    with float64_scope():
        args = tuple(map(jnp.asarray, (y, mu, rate)))
        cheap, exact = np.asarray(ratio.rough_log_ratio(*args)), np.asarray(ratio.log_ratio(*args))
    np.testing.assert_allclose(cheap, exact, rtol=1e-13, atol=1e-300)
    np.testing.assert_allclose(ratio.rough_log_ratio(y, mu, rate), exact, rtol=1e-13, atol=1e-300)


def test_slope_of_the_loss_is_the_posterior():
    with float64_scope():
        y, mu, rate = jnp.asarray(1.7), jnp.asarray(0.8), jnp.asarray(0.05)
        slope = jax.grad(ratio.log_ratio)(y, mu, rate)
        assert float(slope) == pytest.approx(float(mu * ratio.posterior(y, mu, rate)), rel=1e-12)


def test_the_cheap_turn_is_the_turn_with_its_argument_from_below():
    hit, angle = np.meshgrid(np.geomspace(1e-12, 1.0, 200), np.geomspace(1e-9, 2.3, 200))
    with float64_scope():
        size, argument = pair_errors._turn(hit, angle)
        cheap, least = pair_errors.least_turn(hit, angle)
    np.testing.assert_allclose(cheap, size, rtol=1e-13, atol=1e-300)
    ratio = np.asarray(least / argument)
    assert ratio.max() <= 1 + 1e-14
    assert ratio.min() >= 0.988


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("family", ["poisson", "replace", "symmetrised"])
def test_a_coarse_look_sees_the_same_moments(family, sign):
    if family != "poisson" and sign < 0:
        return
    for mu, rate in [(1.0, 0.01), (0.3, 0.2), (1.6, 3e-4), (1.2, 0.6)]:
        args = tuple(map(np.float64, (sign, mu, rate)))
        tilts = np.array([0.1, 2.0, 15.0])
        found, mean, variance, _ = saddle_point._look(PAIRS[family], *args, tilts)
        for k, c in enumerate(tilts):
            exact = PAIRS[family].tilt(*args, c, 1024)
            np.testing.assert_allclose(found[k], exact.log_moment, rtol=1e-6, atol=1e-13)
            mass, loss = exact.weight, exact.loss
            np.testing.assert_allclose(mean[k], mass @ loss, rtol=1e-6, atol=1e-13)
            spread = mass @ (loss - mass @ loss) ** 2
            np.testing.assert_allclose(variance[k], spread, rtol=1e-6)


def test_multiples_of_an_angle_are_exact_to_rounding():
    theta = np.concatenate([np.geomspace(1e-12, 40.0, 300), -np.geomspace(1e-9, 3.0, 50)])
    nothing, once = (0 * theta, 0 * theta), (-2 * np.sin(0.5 * theta) ** 2, np.sin(theta))
    with float64_scope():
        rows = [tuple(jnp.asarray(v) for v in row) for row in (nothing, once)]
        compiled = powers.multiples(*rows, 65)
    k = np.arange(65.0)[:, None]
    exact = -2 * np.sin(0.5 * k * theta) ** 2, np.sin(k * theta)
    allowed = np.finfo(float).eps * (
        8 * k * np.abs(theta) + 20 * 64 * np.minimum(k * abs(theta), 2)
    )
    for real, imag in (map(np.asarray, compiled), powers.multiples(nothing, once, 65)):
        assert np.all(np.abs(real - exact[0]) <= allowed)
        assert np.all(np.abs(imag - exact[1]) <= allowed)


@pytest.mark.parametrize(("blocks", "nodes"), [(16, 128), (20, 224), (33, 300), (32, 1025)])
def test_sums_on_the_line_are_exact_to_their_claimed_rounding(blocks, nodes):
    """At every point, also before a block's middle, and of nodes that are taken in parts."""
    generator = np.random.default_rng(blocks)
    loss = generator.normal(size=nodes) * np.exp(3 * generator.normal(size=nodes) - 6)
    weight = generator.random(nodes)
    weight /= weight.sum()
    t = 0.7 * np.arange(blocks * blocks)
    angle = t[:, None].astype(np.longdouble) * loss
    exact = -2 * np.sin(0.5 * angle) ** 2 @ weight, np.sin(angle) @ weight
    allowed = powers.rounding(0.7 * powers.ways(blocks), weight @ np.abs(loss), blocks, nodes)
    with float64_scope():
        compiled = powers.transform(jnp.asarray(loss), 0.7, blocks, jnp.asarray(weight))
    for found in (compiled, powers.transform(loss, 0.7, blocks, weight)):
        for one, other in zip(found, exact, strict=True):
            assert np.all(np.abs(np.asarray(one) - other) <= allowed)


@pytest.mark.parametrize(
    ("blocks", "nodes"), [(16, 128), (16, 257), (20, 224), (20, 449), (32, 2049), (64, 8193)]
)
def test_the_claimed_rounding_holds_however_the_sums_are_rounded(blocks, nodes):
    """The largest error of one loss, in half units, however the products are summed.

    Every term of the four sums is rounded so many times; and of fewer than 2·blocks steps each is
    off by 15 where |F| ≤ 2, and where F is small by 4.3 of what it leads to.
    """
    k = np.arange(blocks * blocks)
    middle = np.where(k < blocks // 2, 0, k // blocks * blocks + blocks // 2)
    beside = np.abs(k - middle)
    for angle in np.append(np.geomspace(1e-9, 10.0, 60), np.pi / np.arange(1, blocks + 1)):
        (re, im), (other_re, other_im) = (
            (2 * np.sin(0.5 * v * angle) ** 2, np.abs(np.sin(v * angle))) for v in (middle, beside)
        )
        real = re + other_re + re * other_re + im * other_im
        imag = im + other_im + re * other_im + im * other_re
        way = angle * powers.ways(blocks)
        steps = (2 * blocks - 3) * np.minimum(4.3 * way, 15.0)
        most = (powers.terms(nodes) + 1) * np.hypot(real, imag) + steps
        assert np.all(0.5 * np.finfo(float).eps * most <= powers.rounding(way, 1.0, blocks, nodes))
