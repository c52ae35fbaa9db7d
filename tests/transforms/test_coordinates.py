"""Hyperspherical coordinates against the definition in float64, at the edges and at large d."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax._numerics.scope import enable_x64
from dpjax.transforms import Spherical, from_spherical, to_spherical
from dpjax.transforms.coordinates import running_sums


def definition(g):
    """Duan et al. 2025, equations (2) and (3), as a loop in float64."""
    g = np.asarray(g, np.float64)
    d = len(g)
    theta = [np.arctan2(np.hypot.reduce(g[z + 1 :]), g[z]) for z in range(d - 2)]
    return np.hypot.reduce(g), np.array([*theta, np.arctan2(g[-1], g[-2])])


def vectors():
    rng = np.random.default_rng(0)
    yield "normal 2", rng.standard_normal(2)
    yield "normal 3", rng.standard_normal(3)
    yield "normal 50", rng.standard_normal(50)
    yield "graded", rng.standard_normal(50) * np.logspace(0, -36, 50)
    yield "graded up", rng.standard_normal(50) * np.logspace(-36, 0, 50)
    yield "huge", rng.standard_normal(50) * 1e37
    yield "small", rng.standard_normal(50) * 1e-33
    yield "one axis", np.array([0, 0, 1.0, 0, 0])
    yield "negative axis", np.array([0, 0, -1.0, 0, 0])
    yield "last", np.array([0, 0, 0, 0, 1.0])
    yield "last negative", np.array([0, 0, 0, 0, -1.0])
    yield "azimuth at π", np.array([0, 0, 0, -1.0, 0])
    yield "just above -π", np.array([1.0, -1.0, -1e-30])
    yield "pole", np.array([1.0, 1e-30, -1e-30])
    yield "south pole", np.array([-1.0, 1e-20, 1e-20, 0.0])


CASES = dict(vectors())
to, there_and_back = jax.jit(to_spherical), jax.jit(lambda g: from_spherical(to_spherical(g), g))
every_case = pytest.mark.parametrize("name", CASES)


@every_case
def test_angles_are_the_definition(name):
    g = CASES[name].astype(np.float32)
    point = to(jnp.asarray(g))
    norm, theta = definition(g)
    np.testing.assert_allclose(point.norm, norm, rtol=1e-6)
    # Where a number and all after it vanish the direction is undefined; ours is the equator.
    follow = np.append([np.any(g[z:] != 0) for z in range(len(g) - 1)], True)[: len(g) - 1]
    difference = np.asarray(point.angles, np.float64)[follow] - theta[follow]
    turn = difference - 2 * np.pi * np.round(difference / (2 * np.pi))  # -π and π are one angle
    assert np.max(np.abs(turn)) < 4e-7
    assert np.all(np.isfinite(point.elevations))


@every_case
def test_round_trip(name):
    g = jnp.asarray(CASES[name], jnp.float32)
    back = there_and_back(g)
    scale = np.max(np.abs(g))
    error = np.linalg.norm((np.asarray(back, np.float64) - np.asarray(g, np.float64)) / scale)
    assert error <= 1e-5 * np.linalg.norm(np.asarray(g, np.float64) / scale)


@pytest.mark.at_length
def test_round_trip_at_ten_million():
    d = 10_000_000
    g = jnp.asarray(np.random.default_rng(1).standard_normal(d).astype(np.float32))
    back = np.asarray(there_and_back(g))
    assert np.linalg.norm(back - np.asarray(g)) <= 1e-5 * np.linalg.norm(g)


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-42])
def test_zero_and_subnormal_vectors(value):
    g = jnp.full(40, value, jnp.float32)
    point = to_spherical(g)
    assert np.all(np.isfinite(point.elevations))
    assert float(point.norm) == 0
    np.testing.assert_array_equal(from_spherical(point, g), np.zeros(40))


def test_any_tree_and_dtype():
    tree = {"w": jnp.arange(6.0).reshape(2, 3) - 2, "b": (jnp.ones((), jnp.bfloat16), None)}
    back = from_spherical(to_spherical(tree), tree)
    np.testing.assert_allclose(back["w"], tree["w"], atol=1e-5)
    assert back["b"][0].dtype == jnp.bfloat16


def test_float64():
    rng = np.random.default_rng(2)
    with enable_x64():
        g = jnp.asarray(rng.standard_normal(500))
        point = jax.jit(to_spherical)(g)
        back, angles = jax.jit(lambda p, g: (from_spherical(p, g), p.angles))(point, g)
    np.testing.assert_allclose(angles, definition(g)[1], atol=1e-14)
    np.testing.assert_allclose(back, g, atol=1e-13)


def test_unbounded_angles_and_negative_norms():
    """What noise makes of a point: angles beyond the box turn signs, and so does r < 0."""
    rng = np.random.default_rng(3)
    elevations = rng.uniform(-9, 9, 70).astype(np.float32)
    out = from_spherical(Spherical(jnp.float32(-2.0), jnp.asarray(elevations)), jnp.zeros(71))
    wide = elevations.astype(np.float64)
    expected = -2 * np.append(np.sin(wide), 1) * np.append(1, np.cumprod(np.cos(wide)))
    np.testing.assert_allclose(out, expected, atol=2e-6)


@jax.jit
def pull_back(g, weights):
    """Σ weights · ∂(elevations)/∂g, and the same of the round trip, by reverse mode."""
    _, of_angles = jax.vjp(lambda g: to_spherical(g).elevations, g)
    _, of_trip = jax.vjp(lambda g: from_spherical(to_spherical(g), g), g)
    return of_angles(weights[:-1])[0], of_trip(weights)[0]


@pytest.mark.at_length
def test_derivatives():
    rng = np.random.default_rng(4)
    g, weights = rng.standard_normal((2, 10)).astype(np.float32)
    of_angles, of_trip = pull_back(jnp.asarray(g), jnp.asarray(weights))
    np.testing.assert_allclose(of_trip, weights, atol=2e-5)  # the round trip is the identity
    wide, h = g.astype(np.float64), 1e-6
    for k in range(10):
        step = h * np.eye(10)[k]
        slope = -(definition(wide + step)[1] - definition(wide - step)[1]) / (2 * h)
        assert float(of_angles[k]) == pytest.approx(slope @ weights[:-1], abs=2e-5)


def test_derivatives_are_finite_at_zeros():
    for g in (jnp.zeros(10), jnp.zeros(10).at[2].set(1.0)):
        assert all(np.all(np.isfinite(x)) for x in pull_back(g, jnp.ones(10)))


def test_vmap_is_the_loop():
    g = jnp.asarray(np.random.default_rng(5).standard_normal((3, 50)).astype(np.float32))
    together = jax.jit(jax.vmap(to_spherical))(g)
    one = jax.jit(to_spherical)
    for i in range(3):
        np.testing.assert_allclose(together.elevations[i], one(g[i]).elevations, atol=1e-6)


@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(reverse):
    x = np.random.default_rng(6).uniform(0, 1, 32 * 1000).astype(np.float32)
    wide = x.astype(np.float64)[::-1] if reverse else x.astype(np.float64)
    expected = np.cumsum(wide) - wide
    expected = expected[::-1] if reverse else expected
    np.testing.assert_allclose(running_sums(jnp.asarray(x), reverse), expected, rtol=5e-7)


def test_one_number_has_no_direction():
    with pytest.raises(ValueError, match="two numbers"):
        to_spherical(jnp.ones(1))


def test_complex_numbers_are_refused():
    with pytest.raises(ValueError, match="real numbers, got complex ones"):
        to_spherical(jnp.array([1.0, 1.0j]))
