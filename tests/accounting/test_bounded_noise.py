"""Ball noise against mpmath, against brute force, and against its own warnings."""

import jax
import mpmath as mp
import numpy as np
import pytest

from dpjax import accounting as acc
from dpjax._numerics.scope import enable_x64
from dpjax.accounting import geometric

REPLACE = acc.Adjacency.REPLACE_ONE


def exact_tv(displacement, dimension):
    """Quadrature in 40 digits of 2κ ∫ cos^d, independent of the incomplete beta function."""
    d = mp.mpf(dimension)
    angle = mp.asin(mp.mpf(displacement) / 2)
    upper = min(angle, 40 / mp.sqrt(d))
    constant = 2 * mp.exp(mp.loggamma((d + 2) / 2) - mp.loggamma((d + 1) / 2)) / mp.sqrt(mp.pi)
    area = mp.quad(lambda u: mp.exp(d * mp.log(mp.cos(u))), mp.linspace(0, upper, 9))
    return constant * area


@pytest.mark.parametrize("dimension", [2, 3, 39, 40, 1000, 10**6, 10**12])
def test_step_is_exact_in_any_dimension(dimension):
    with mp.workdps(40):
        for displacement in (1e-9, 1e-3 / np.sqrt(dimension), 1 / np.sqrt(dimension)):
            truth = exact_tv(displacement, dimension)
            assert 0 <= geometric.ball_delta(displacement, dimension) / truth - 1 < 3e-11


def test_step_oracles(oracles):
    for row in oracles["unit_ball_tv"]:
        p = row["params"]
        found = geometric.ball_delta(p["Delta"] / p["r"], p["d"])
        assert 0 <= found / row["value"] - 1 < 3e-11, p


def test_step_by_monte_carlo():
    rng, n = np.random.default_rng(0), 400_000
    for d, shift in ((1, 0.3), (3, 0.5), (8, 0.2)):
        points = rng.normal(size=(n, d))
        points *= (rng.random(n) ** (1 / d) / np.linalg.norm(points, axis=1))[:, None]
        points[:, 0] -= shift
        outside = np.mean(np.linalg.norm(points, axis=1) > 1)
        assert geometric.ball_delta(shift, d) == pytest.approx(outside, abs=5 * np.sqrt(0.25 / n))


def test_edges():
    assert geometric.ball_delta(0.0, 5) == 0.0
    assert geometric.ball_delta(2.0, 5) == 1.0
    assert geometric.ball_delta(7.0, 1) == 1.0
    assert geometric.ball_delta(0.2, 1) == pytest.approx(0.1, rel=1e-10)
    assert geometric.ball_displacement(0.0, 5) == 0.0


def test_totals_and_radii(oracles):
    for row in oracles["prgd_total_delta_eps0"]:
        p = row["params"]
        step = acc.UniformBall(p["Delta"], p["d"])
        drawn = acc.Repeated(acc.FixedBatchSampled(step, 1, p["n"]), p["T"])
        found = acc.delta(drawn, epsilon=0.0, adjacency=REPLACE)
        assert found == pytest.approx(row["value"], rel=1e-10)
        # One shuffled pass uses each record once: worse than independent draws.
        shuffled = acc.Repeated(acc.Shuffled(step, p["n"]), p["T"] // p["n"])
        assert acc.delta(shuffled, epsilon=0.0) > found
    for row in oracles["prgd_radius_over_sensitivity"]:
        p = row["params"]
        each = -np.expm1(np.log1p(-p["delta_target"]) / p["T"]) * p["n"]
        found = 1 / geometric.ball_displacement(each, p["d"])
        assert row["value"] <= found < row["value"] * (1 + 1e-10)


def test_composition_formulas():
    step, delta = acc.UniformBall(0.05, 7), geometric.ball_delta(0.05, 7)
    shuffled = acc.Repeated(acc.Shuffled(step, 20), 6)
    assert acc.delta(shuffled, epsilon=0.0) == pytest.approx(1 - (1 - delta) ** 6, rel=1e-9)
    poisson = acc.Repeated(acc.PoissonSampled(step, 0.1), 6)
    assert acc.delta(poisson, epsilon=0.0) == pytest.approx(1 - (1 - delta / 10) ** 6, rel=1e-9)
    mixed = acc.Composed((step, acc.Gaussian(2.0)))
    rest = acc.delta(acc.Gaussian(2.0), epsilon=1.0)
    assert acc.delta(mixed, epsilon=1.0) == pytest.approx(delta + (1 - delta) * rest, rel=1e-9)
    tiny = acc.Composed((acc.UniformBall(1e-8, 7), acc.Gaussian(2.0)))
    found = acc.epsilon(tiny, delta=1e-5)
    assert acc.epsilon(acc.Gaussian(2.0), delta=1e-5) < found
    assert acc.delta(tiny, epsilon=found) <= 1e-5 * (1 + 1e-9)


def test_two_steps_by_brute_force():
    """Adaptive composition of two one-dimensional steps, integrated on a grid."""
    delta = geometric.ball_delta(0.4, 1)
    grid = (np.arange(4000) + 0.5) / 4000 * 3 - 1.2
    one, other = np.abs(grid) < 1, np.abs(grid - 0.4) < 1
    first, second = one / one.sum(), other / other.sum()
    joint = np.maximum(np.outer(second, second) - np.outer(first, first), 0).sum()
    found = acc.delta(acc.Repeated(acc.UniformBall(0.4, 1), 2), epsilon=0.0)
    assert found == pytest.approx(1 - (1 - delta) ** 2, rel=1e-9)
    assert found == pytest.approx(joint, abs=2e-3)


def test_larger_epsilon_buys_nothing_and_says_so():
    run = acc.UniformBall(0.1, 10)
    with pytest.warns(UserWarning, match="buys nothing"):
        assert acc.delta(run, epsilon=5.0) == acc.delta(run, epsilon=0.0)
    with pytest.warns(UserWarning, match="buys nothing"):
        assert acc.epsilon(run, delta=1e-5) == np.inf
    assert acc.epsilon(run, delta=0.2) == 0.0


def test_fixed_batches_are_replace_one_only():
    with pytest.raises(acc.UnsupportedQuery):
        acc.delta(acc.FixedBatchSampled(acc.UniformBall(0.1, 3), 1, 10), epsilon=0.0)


def test_tradeoff_of_balls_alone_and_with_a_gaussian():
    rates = np.array([0.0, 0.1, 0.6, 1.0])
    alone = acc.tradeoff(acc.UniformBall(0.1, 1), rates)  # δ = 0.05
    np.testing.assert_allclose(alone, np.maximum(0.95 - rates, 0), atol=1e-10)
    mixed = acc.Composed((acc.UniformBall(0.1, 1), acc.Gaussian(1.0)))
    rates = np.linspace(0.0, 1.0, 201)
    curve = acc.tradeoff(mixed, rates)
    # By duality it must be the envelope of the lines that δ(ε) gives.
    for epsilon in (0.1, 1.0, 2.0):
        line = 1 - acc.delta(mixed, epsilon=epsilon) - np.exp(epsilon) * rates
        assert np.all(curve >= line - 1e-9)
        assert np.min(curve - line) < 1e-3


def step_densities(contributions, rate, cells=40_000):
    """Laws of a one-dimensional Poisson-sampled step on a grid, one a contribution of a record."""
    grid = (np.arange(cells) + 0.5) / cells * 6 - 3
    absent = np.abs(grid) < 1
    present = [np.abs(grid - c) < 1 for c in contributions]
    return [((1 - rate) * absent + rate * p) * (3.0 / cells) for p in present]


def price(first, second, epsilon):
    return np.maximum(first - np.exp(epsilon) * second, 0).sum()


@pytest.mark.filterwarnings("ignore:noise uniform in a ball")
def test_sampled_balls_by_brute_force():
    """The upper end covers every pair of contributions, the lower end is that of ±Δ/2."""
    rng = np.random.default_rng(3)
    for _ in range(12):
        moved, rate = rng.uniform(0.05, 1.9), rng.uniform(0.05, 0.95)
        run = acc.PoissonSampled(acc.UniformBall(moved, 1), rate)
        upper = acc.delta(run, epsilon=0.0, adjacency=REPLACE)
        for _ in range(10):
            pair = rng.uniform(-moved / 2, moved / 2, 2)
            first, second = step_densities(pair, rate)
            assert price(first, second, rng.choice([0.0, 0.1, 1.0])) <= upper + 1e-3
        first, second = step_densities((moved / 2, -moved / 2), rate)
        assert price(first, second, 0.0) == pytest.approx(upper, abs=1e-3)  # attained at ε = 0
        for epsilon in (0.02, 0.1, 0.3):
            delta = price(first, second, epsilon)
            if delta < price(first, second, 60.0) + 5e-3 or delta > upper - 5e-3:
                continue
            low, high = acc.epsilon_interval(run, delta, adjacency=REPLACE)
            assert low == pytest.approx(epsilon, abs=0.02)
            assert high == np.inf
        never = price(first, second, 60.0)
        assert acc.epsilon_interval(run, never * 0.99, adjacency=REPLACE)[0] == np.inf
        # Adding a record: the outputs beyond the ball of the others, at every ε.
        nothing, one = step_densities((0.0, moved), rate)
        assert price(one, nothing, 60.0) == pytest.approx(acc.delta(run, epsilon=0.0), abs=1e-3)


@pytest.mark.filterwarnings("ignore:noise uniform in a ball")
def test_the_lower_end_is_below_what_clipped_contributions_cost():
    run = acc.PoissonSampled(acc.UniformBall(0.5, 1), 0.5)
    low, high = acc.epsilon_interval(run, delta=0.1125, adjacency=REPLACE)
    assert low == pytest.approx(np.log(1.2), abs=1e-5)
    assert high == np.inf
    twice = acc.Repeated(run, 2)
    never = 1 - (1 - 0.5 * 0.125) ** 2
    assert acc.epsilon_interval(twice, never * 0.999, adjacency=REPLACE)[0] == np.inf
    assert acc.epsilon_interval(twice, never * 1.001, adjacency=REPLACE)[0] < np.inf


def test_derivatives_and_bad_values_under_jit():
    rng = np.random.default_rng(4)
    moved, dimension = rng.uniform(0.01, 1.5, 100), np.floor(10 ** rng.uniform(0, 2, 100))
    spent = geometric.ball_delta(moved, dimension)
    moved, dimension, spent = (v[spent < 0.999] for v in (moved, dimension, spent))
    with enable_x64(True):
        slope = jax.jit(jax.vmap(jax.grad(geometric.ball_delta)))(moved, dimension)
        back = jax.jit(jax.vmap(jax.grad(geometric.ball_displacement)))(spent, dimension)
        h = 1e-4 * moved
        found = [geometric.ball_delta(moved + k * h, dimension) for k in (-2, -1, 1, 2)]
        wanted = (found[0] - 8 * found[1] + 8 * found[2] - found[3]) / (12 * h)
        np.testing.assert_allclose(slope, wanted, rtol=1e-5)
        np.testing.assert_allclose(back, 1 / wanted, rtol=1e-5)
    for bad in (np.nan, -1.0):
        assert jax.jit(geometric.ball_delta)(bad, 5.0) == 1.0
        assert jax.jit(geometric.ball_delta)(0.1, bad) == 1.0
        assert jax.jit(geometric.ball_displacement)(bad, 5.0) == 0.0
        with pytest.raises(ValueError, match="displacement must be"):
            geometric.ball_delta(bad, 5.0)
